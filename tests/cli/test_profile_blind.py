"""Traces of a run on a device that hold no kernel of it: nothing tells what the device did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from densing.cli import app
from tests.support.trace_make import HEADER, Event, event, good, kernel, read, write

DEVICES = {"deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}]}
GLOO = {"distributedInfo": {"backend": "gloo", "rank": 0, "world_size": 2}}
OPERATORS = [
    event("user_annotation", "ProfilerStep#1", 0, 100),
    event("cpu_op", "aten::mm", 1, 98),
]
LAUNCHES = [event("cuda_runtime", "cudaLaunchKernel", 3 + at, 1, correlation=at) for at in range(5)]
RANGES = [event("cuda_profiler_range", "model step", 5, 20)]
SYNC = [event("cuda_runtime", "cudaDeviceSynchronize", 99, 1, correlation=9)]
COPIES = [{**kernel("Memcpy HtoD (Pageable -> Device)", 5, 3), "cat": "gpu_memcpy"}]


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("events", "header", "seen"),
    [
        (LAUNCHES + RANGES, DEVICES, "calls of cudaLaunchKernel"),
        (LAUNCHES, GLOO, "calls of cudaLaunchKernel"),
        (LAUNCHES + COPIES, {}, "calls of cudaLaunchKernel"),
        (RANGES, {}, "events of cuda_profiler_range"),
        (SYNC, {}, "events of cuda_runtime"),
        ([], DEVICES, "NVIDIA A100-SXM4-40GB"),
    ],
)
def test_a_device_without_kernels_is_no_processor(
    tmp_path: Path, events: list[Event], header: dict[str, Any], seen: str
) -> None:
    path = write(tmp_path / "rank0.json", OPERATORS + events, **header)
    rank = read(path)
    [note] = [note for note in rank.notes if note.code == "no-device-work"]
    assert rank.blind and not rank.on_host and note.severity == "error" and seen in note.message

    result = invoke("profile", path, "--json")
    assert result.exit_code == 3
    document = json.loads(result.stdout)
    figures = document["figures"]
    assert {key: value for key, value in figures.items() if value is not None} == {
        "ranks": 1, "steps": 0, "skipped_events": 0, "repaired_events": 0}  # fmt: skip
    assert document["causes"] == [] and document["ranks"][0]["window_ns"] == 0


@pytest.mark.parametrize(
    ("events", "header"),
    [
        ([], {}),
        ([], GLOO),
        ([], {**GLOO, **DEVICES}),
        (SYNC, {**GLOO, **DEVICES}),
        ([], {"distributedInfo": {"backend": "cpu:gloo,cuda:gloo", "rank": 0, "world_size": 2}, **DEVICES}),
    ],
)
def test_a_processors_run_stays_one_whatever_the_machine_has(
    tmp_path: Path, events: list[Event], header: dict[str, Any]
) -> None:
    rank = read(write(tmp_path / "rank0.json", OPERATORS + events, **header))
    assert rank.on_host and not rank.blind and len(rank.work)


def test_copies_alone_are_a_profile(tmp_path: Path) -> None:
    assert not read(write(tmp_path / "rank0.json", OPERATORS + COPIES, **DEVICES)).blind


def test_conditions_cannot_be_decided_and_no_share_is_printed(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", OPERATORS + LAUNCHES, **DEVICES)
    for condition in ("exposed_pct>10", "idle_pct<1", "step_ms>5", "idle_ms_per_step>0"):
        result = invoke("profile", path, "--fail-if", condition)
        assert result.exit_code == 4 and "cannot be decided" in result.stderr
    page = tmp_path / "page.html"
    result = invoke("profile", path, "--html", page)
    assert result.exit_code == 3 and "no work was recorded" in result.stdout and "holds no kernel" in result.stderr
    assert "99." not in result.stdout and "98" not in result.stdout
    written = page.read_text(encoding="utf-8")
    assert "Nothing can be said of the time: the work of the devices was not recorded" in written
    assert "Before you quote it" in written.split("holds no kernel")[0], "the reason stands among the caveats"
    assert invoke("profile", path, "--mfu", "params=1e6,tokens=10").exit_code == 1


def test_a_blind_rank_among_others_takes_no_part(tmp_path: Path) -> None:
    alone, both = tmp_path / "alone", tmp_path / "both"
    for folder in (alone, both):
        write(folder / "rank0.json", good(), distributedInfo=HEADER["distributedInfo"])
    write(both / "rank1.json", OPERATORS + LAUNCHES, distributedInfo={**HEADER["distributedInfo"], "rank": 1})
    one, two = (invoke("profile", folder, "--json", "--fail-if", "idle_pct>90") for folder in (alone, both))
    assert (one.exit_code, two.exit_code) == (0, 3)
    figures = [json.loads(result.stdout)["figures"] for result in (one, two)]
    different = {key for key in figures[0] if figures[0][key] != figures[1][key]}
    assert different == {"ranks"}
    assert "mixed-steps" not in {note["code"] for note in json.loads(two.stdout)["notes"]}
