"""Synchronous runs whose ranks come late: simulated, and as trace files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from densing.efficiency.profile.rank import profile_timeline
from densing.efficiency.profile.run import RunProfile, merge_run
from densing.efficiency.simulation import Delay, Graph, simulate
from densing.efficiency.timeline import Comm, Kind
from tests.support import trace_make

WORK_S, TRANSFER_S = 0.4, 0.05


def delayed_run(delay: Delay, ranks: int, steps: int, work: float = WORK_S) -> RunProfile:
    """Every step a rank is late, computes, and sums with all others; simulated and profiled."""
    graph = Graph()
    before: list[int] = []
    for step in range(steps):
        graph.step = step
        late = delay.draw(ranks, step)
        computed = []
        for rank in range(ranks):
            graph.add("late", Kind.ANNOTATION, (rank,), "compute", float(late[rank]), after=before)
            computed.append(graph.add("step", Kind.COMPUTE, (rank,), "compute", work))
        comm = Comm("all_reduce", "0", group_size=ranks, in_elems=1000, dtype="float", seq=step)
        everyone = tuple(range(ranks))
        before = [
            graph.add("all_reduce", Kind.COMM, everyone, "comm", TRANSFER_S, count=4000, after=computed, comm=comm)
        ]
    return merge_run([profile_timeline(rank) for rank in simulate(graph).timeline.ranks])


def write_run(folder: Path, own_s: np.ndarray, marks: bool = True) -> Path:
    """Write a trace per rank: in every step a kernel of its own seconds, then an all-reduce that waits for the last."""
    ranks, steps = own_s.shape
    own = np.rint(1e6 * own_s).astype(int)
    for rank in range(ranks):
        events, at, key = [], 0, 1
        for step in range(steps):
            end = at + int(own[:, step].max()) + 1000
            if marks:
                events.append(trace_make.event("user_annotation", f"ProfilerStep#{step}", at, end - at))
            for name, start, until in (("gemm", at, at + own[rank, step]), ("comm", at + own[rank, step], end)):
                events.append(trace_make.event("cuda_runtime", "cudaLaunchKernel", at, 1, correlation=key))
                stream, kernel = (7, "gemm") if name == "gemm" else (20, trace_make.ALL_REDUCE)
                events.append(trace_make.kernel(kernel, int(start), int(until - start), stream, key))
                key += 1
            at = end
        about = {"backend": "nccl", "rank": rank, "world_size": ranks}
        trace_make.write(folder / f"rank{rank}.json", events, distributedInfo=about)
    return folder
