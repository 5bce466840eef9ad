"""``densing profile`` through its real entry point, and the traces its tests write."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.support import command


def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    """A complete event."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def trace(rank: int, late: float = 0.0, comm: str = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)") -> dict[str, Any]:
    """Three steps of 100 µs: 50 of compute, 40 of communication from 40 (later on a late rank), 20 of it hidden."""
    rows = []
    for step in (1, 2, 3):
        at = 100.0 * step
        rows += [
            event("user_annotation", f"ProfilerStep#{step}", at, 100),
            event("cuda_runtime", "cudaLaunchKernel", at + 2, 3, correlation=10 * step),
            event("cuda_runtime", "cudaLaunchKernel", at + 20, 3, correlation=10 * step + 1),
            event("kernel", "ampere_sgemm_128x64_tn", at + 10, 50, stream=7, device=0, correlation=10 * step),
            event("kernel", comm, at + 40 + late, 40 - late, stream=20, device=0, correlation=10 * step + 1),
        ]
    info = {"backend": "nccl", "rank": rank, "world_size": 2}
    return {"schemaVersion": 1, "distributedInfo": info, "traceEvents": rows}


def write(path: Path, content: dict[str, Any]) -> Path:
    """Write a trace."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def cut(path: Path) -> None:
    """Let a trace end in the middle of its last event."""
    text = path.read_text()
    path.write_text(text[: text.rindex('"args"')])


def run_of(folder: Path, ranks: int) -> Path:
    """Write the traces of a run of so many ranks."""
    for rank in range(ranks):
        content = trace(rank)
        content["distributedInfo"]["world_size"] = ranks
        write(folder / f"rank{rank}.json", content)
    return folder


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A folder of two ranks, of which the second comes late."""
    for rank in (0, 1):
        write(tmp_path / "run" / f"rank{rank}.json", trace(rank, late=25.0 * rank))
    return tmp_path / "run"


def densing(*arguments: object, code: int = 0) -> CompletedProcess[str]:
    """Run a command; it ends with the exit code expected and without a traceback."""
    done = command.densing(*arguments, columns=100)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def profile(*arguments: object, code: int = 0) -> dict[str, Any]:
    """Return the document that ``densing profile --json`` prints."""
    return command.printed(densing("profile", *arguments, "--json", code=code).stdout)  # type: ignore[no-any-return]
