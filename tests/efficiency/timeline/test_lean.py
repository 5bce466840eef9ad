"""What keeps profiling quick and small: tables in blocks that no figure depends on, bounded memory, few modules."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from densing.efficiency.profile.rank import ProfileOptions, profile_timeline
from densing.efficiency.timeline import intervals as intervals_module
from densing.efficiency.timeline.timeline import Kind, Lane, RankTimeline, Spans
from tests.support.command import printed
from tests.support.spans import mixed_rank


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("window", ["steps", "all", "hta"])
def test_no_figure_depends_on_the_size_of_the_blocks(seed: int, window: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rank, options = mixed_rank(seed), ProfileOptions(window)  # type: ignore[arg-type]
    whole = profile_timeline(rank, options).to_dict()
    monkeypatch.setattr(intervals_module, "BLOCK", 3)
    assert profile_timeline(rank, options).to_dict() == whole


def test_profiling_takes_little_more_memory_than_the_timeline() -> None:
    count, per = 120_000, 1_000
    start = np.arange(count) * per
    host = {"start": start, "end": start + 400, "kind": np.full(count, Kind.LAUNCH), "name": np.zeros(count, np.int32),
            "lane": np.arange(count) % 2, "correlation": np.arange(count) * 9}  # fmt: skip
    # A communication in 40 spans: what a replay needs grows with their number.
    kind = np.where(np.arange(count // 2) % 40 == 1, Kind.COMM, np.arange(count // 2) % 2 * Kind.MEMCPY)
    work = {"start": start[::2] + 500, "end": start[::2] + 1_200, "kind": kind,
            "name": np.zeros(count // 2, np.int32), "correlation": np.arange(count)[::2] * 9}  # fmt: skip
    rank = RankTimeline(0, Spans.columns(work, ("gemm",)),
                        Spans.columns(host, ("cudaLaunchKernel",), (Lane("cpu", "0"), Lane("cpu", "1"))))  # fmt: skip
    table = sum(getattr(part, key).nbytes for part in (rank.work, rank.host)
                for key in ("start", "end", "kind", "name", "lane", "correlation"))  # fmt: skip
    profile_timeline(mixed_rank(1))
    tracemalloc.start()
    profile_timeline(rank)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * table


def test_a_single_trace_loads_nothing_heavy(tmp_path: Path) -> None:
    events = [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 10 * at, "dur": 5, "pid": 0, "tid": 7,
               "args": {"correlation": at}} for at in range(20)]  # fmt: skip
    trace = tmp_path / "rank0.json"
    trace.write_text(json.dumps({"traceEvents": events}))
    code = (
        "import sys; sys.argv = ['densing', 'profile', '--json', sys.argv[1]]\n"
        "from densing.cli import main\n"
        "try: main()\n"
        "except SystemExit as left: assert not left.code, left.code\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, trace], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert printed(done.stdout)["ranks"][0]["compute_ns"] == 100_000
    assert not loaded & {"numpy.ma", "zipfile", "pandas", "pyarrow", "rich", "torch", "scipy", "plotly",
                         "densing.efficiency.profile.alignment", "densing.efficiency.profile.critical",
                         "densing.efficiency.profile.waiting", "densing.efficiency.profile.whatif_run",
                         "densing.efficiency.profile.comparison", "densing.efficiency.profile.batch"}  # fmt: skip
