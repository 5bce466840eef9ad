"""Scaling of run time where a naive loop is quadratic: CPU seconds of a large case over those of a small one.

    python benchmarks/growth.py [--repeats 5] [--json]

Each row is a pair in one process, interleaved, the best of its repeats. `size` is how much more the large case holds;
`ratio` near it is linear growth, near its square is quadratic. Steps cut one window, so there `size` is 1: a thousand
steps should cost about what one costs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from densing.efficiency.profile.rank import profile_timeline
from densing.efficiency.profile.replay import Replay
from densing.efficiency.profile.run import merge_run
from densing.efficiency.timeline.critical import critical_path, graph
from densing.efficiency.timeline.dependencies import condense
from densing.efficiency.timeline.overlap import select
from densing.efficiency.timeline.steps import step_partitions
from densing.efficiency.timeline.timeline import Comm, Kind, Lane, RankTimeline, Spans, Step


def of_steps(count: int) -> Callable[[], Any]:
    """Partition 200,000 spans into this many steps."""
    n = 200_000
    start = np.arange(n, dtype=np.int64) * 10
    columns = {"start": start, "end": start + 7, "kind": np.arange(n) % 2, "name": np.zeros(n, int)}
    length = 10 * n // count
    steps = tuple(Step(i, length * i, length * (i + 1)) for i in range(count))
    rank = RankTimeline(0, Spans.columns(columns, ["x"]), Spans.empty(), steps=steps)
    return lambda: step_partitions(rank, select(rank))


def launched(count: int) -> RankTimeline:
    """Launched kernels back to back, an all-reduce in 200."""
    start = np.arange(count, dtype=np.int64) * 10
    kind = np.where(np.arange(count) % 200 == 199, Kind.COMM, Kind.COMPUTE)
    work = Spans.columns(
        {"start": start, "end": start + 9, "kind": kind, "name": start * 0, "correlation": np.arange(count)}, ["k"]
    )
    launches = {"start": start - 200, "end": start - 197, "kind": start * 0 + Kind.LAUNCH, "name": start * 0}
    return RankTimeline(0, work, Spans.columns({**launches, "correlation": np.arange(count)}, ["cudaLaunchKernel"]))


def of_kernels(count: int) -> Callable[[], Any]:
    """Follow the critical path of one rank through this many launched kernels."""
    rank = launched(count)
    return lambda: critical_path(rank, select(rank))


def of_replay(count: int) -> Callable[[], Any]:
    """Condense a rank's graph of this many launched kernels, an all-reduce in 200, and replay it."""
    rank = launched(count)
    window = select(rank)
    return lambda: Replay({0: condense(rank, window, graph(rank, window))}).run_ns()


def of_ranks(count: int) -> Callable[[], Any]:
    """Join this many ranks of 40 all-reduces: match, replay, follow the path, account for every cause."""
    rng = np.random.default_rng(0)
    before = rng.integers(50_000, 100_000, (40, count))
    ends = np.cumsum(before.max(1) + 10_000)
    begins = np.concatenate(([0], ends[:-1]))
    profiles = []
    for rank in range(count):
        arrived = begins + before[:, rank]
        columns = {
            "start": np.concatenate((begins, arrived)),
            "end": np.concatenate((arrived, ends)),
            "kind": np.repeat([Kind.COMPUTE, Kind.COMM], 40),
            "name": np.repeat([0, 1], 40),
            "lane": np.repeat([0, 1], 40),
            "comm": np.repeat([-1, 0], 40),
        }
        comm = Comm("all_reduce", "0", ranks=tuple(range(count)))
        work = Spans.columns(columns, ["gemm", "nccl"], (Lane("GPU", "7"), Lane("GPU", "20")), (comm,))
        profiles.append(profile_timeline(RankTimeline(rank, work, Spans.empty(), (Step(0, 0, int(ends[-1])),))))
    return lambda: merge_run(profiles)


CASES = {
    "1000 steps against 1": (of_steps(1), of_steps(1000), 1),
    "80,000 kernels against 10,000": (of_kernels(10_000), of_kernels(80_000), 8),
    "80,000 kernels replayed": (of_replay(10_000), of_replay(80_000), 8),
    "1024 ranks against 128": (of_ranks(128), of_ranks(1024), 8),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for name, (small, large, size) in CASES.items():
        best = [float("inf"), float("inf")]
        for _ in range(options.repeats):
            for at, work in enumerate((small, large)):
                begin = time.process_time()
                work()
                best[at] = min(best[at], time.process_time() - begin)
        rows.append({"case": name, "size": size, "small_s": best[0], "large_s": best[1], "ratio": best[1] / best[0]})
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        seconds = f"{row['small_s']:.3f} s {row['large_s']:.3f} s"
        print(f"{row['case']:32} {seconds}  ratio {row['ratio']:.1f} for {row['size']}")


if __name__ == "__main__":
    main()
