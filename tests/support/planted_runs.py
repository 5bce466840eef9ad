"""Data-parallel runs with a planted fault: host, compute and communication stream of every rank, exact to the ns.

A step is a forward, a backward that starts an all-reduce after every layer, and an optimiser that waits for the last
one. The host launches ahead of the device, and waits for it at the end of a step where it synchronises. What a fault
costs is known: the same run without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from densing.efficiency.profile.run import RunProfile, profile_run
from densing.efficiency.timeline.timeline import Comm, Kind, Lane, Origin, RankTimeline, Spans, Step, Timeline

RETURN = 2_000
ELEMENTS = 1 << 20
"""Of a layer's gradients."""
COMPUTE, COMM = Lane("GPU 0", "stream 7"), Lane("GPU 0", "stream 20")
HOST, BACKWARD = Lane("1", "1"), Lane("1", "2")


@dataclass(frozen=True)
class Planted:
    """A run.

    Parameters
    ----------
    kernel, transfer, launch, latency : int
        Nanoseconds of a layer's kernel, an all-reduce, a launch call, and from a launch to the start of its kernel.
    waits, syncs : bool
        Whether stream waits and synchronisation calls are recorded.
    synchronises : bool
        Whether the host waits for the device at the end of a step.
    slow : mapping of int to float
        Factor of a rank's kernels.
    stall : mapping of (rank, step) to int
        A pause of the host in the middle of the step.
    link : callable
        Factor of a step's transfers.
    jitter : float
        Standard deviation of kernels, as a share of their length.
    overlap : int
        By how much a kernel seems to run into the next one on its stream.
    threads : bool
        Whether another thread launches the backward, as autograd's does.
    sizes : tuple of float
        Of each layer's gradients, relative to the whole of a layer; all alike where there are none.
    start_up : int
        What a transfer takes before its first byte, in ``transfer``.
    every : int
        Instead of every layer's all-reduce one after the backward of every so many steps, as long as all of them.
    small : (int, int)
        Small kernels before each layer's, and nanoseconds that all of them take.
    skew, leave : int
        By how much each rank's clock is ahead of the one before, and up to how much members leave an all-reduce late.
    """

    ranks: int = 2
    steps: int = 4
    layers: int = 4
    kernel: int = 500_000
    transfer: int = 300_000
    launch: int = 6_000
    latency: int = 4_000
    waits: bool = True
    syncs: bool = True
    synchronises: bool = True
    slow: Mapping[int, float] = field(default_factory=dict)
    stall: Mapping[tuple[int, int], int] = field(default_factory=dict)
    link: Callable[[int], float] = lambda step: 1.0
    jitter: float = 0.0
    overlap: int = 0
    threads: bool = False
    sizes: tuple[float, ...] = ()
    start_up: int = 0
    every: int = 0
    small: tuple[int, int] = (0, 0)
    skew: int = 0
    leave: int = 0

    def timelines(self) -> list[RankTimeline]:
        """Return what every rank recorded."""
        ranks = [_Rank(number, self) for number in range(self.ranks)]
        rng = np.random.default_rng(0)
        for step in range(self.steps):
            for rank in ranks:
                rank.begin()
            for layer in range(2 * self.layers):
                for rank in ranks:
                    rank.thread = BACKWARD if self.threads and layer >= self.layers else HOST
                    for _ in range(self.small[0]):
                        rank.kernel(self.small[1] // self.small[0], name="small<float>")
                    length = self.kernel * self.slow.get(rank.number, 1.0) * (1 + self.jitter * rng.standard_normal())
                    rank.kernel(round(length))
                    if layer == self.layers:
                        rank.now += self.stall.get((rank.number, step), 0)
                averages = (layer, step % self.every) == (2 * self.layers - 1, self.every - 1) if self.every else True
                if layer < self.layers or not averages:
                    continue
                arrived = [rank.arrive() for rank in ranks]
                size = self.sizes[layer - self.layers] if self.sizes else 1.0
                took = self.start_up + (self.transfer - self.start_up) * size
                end = max(arrived) + round(took * self.link(step)) * (self.layers if self.every else 1)
                for rank, start in zip(ranks, arrived, strict=True):
                    late = int(rng.integers(0, self.leave + 1)) if self.leave else 0
                    rank.reduce(start, end + late, step * self.layers + layer, size)
            for rank in ranks:
                rank.thread = HOST
                rank.call("cudaStreamWaitEvent", self.waits)
                rank.kernel(self.kernel // 10, after=rank.free[COMM])
                rank.end(step)
        return [rank.timeline() for rank in ranks]

    def length(self) -> int:
        """Nanoseconds from the first start to the last end of a step."""
        ranks = self.timelines()
        return max(rank.steps[-1].end for rank in ranks) - min(rank.steps[0].start for rank in ranks)

    def profile(self) -> RunProfile:
        """Return the run's profile."""
        return profile_run(Timeline(tuple(self.timelines())))


class _Rank:
    def __init__(self, number: int, run: Planted) -> None:
        self.number, self.run, self.now, self.thread = number, run, 0, HOST
        self.free = {COMPUTE: 0, COMM: 0}
        self.work: list[dict[str, Any]] = []
        self.host: list[dict[str, Any]] = []
        self.steps: list[Step] = []

    def begin(self) -> None:
        self.started = self.now

    def call(self, name: str, recorded: bool = True, correlation: int = -1) -> None:
        row = {"start": self.now, "end": self.now + self.run.launch // 2, "kind": Kind.LAUNCH, "name": name}
        if recorded:
            self.host.append({**row, "lane": self.thread, "correlation": correlation})
        self.now += self.run.launch

    def _place(self, lane: Lane, length: int, after: int, kind: Kind, **more: Any) -> int:
        start = max(self.free[lane], after, self.now + self.run.latency)
        self.work.append({"start": start, "end": start + length, "kind": kind, "lane": lane, "name": f"n{kind.name}",
                          "correlation": len(self.work), **more})  # fmt: skip
        self.free[lane] = start + length
        self.call("cudaLaunchKernel", True, len(self.work) - 1)
        return start

    def kernel(self, length: int, after: int = 0, **more: Any) -> None:
        self._place(COMPUTE, length, after, Kind.COMPUTE, **more)

    def arrive(self) -> int:
        self.call("cudaStreamWaitEvent", self.run.waits)
        return max(self.free[COMM], self.free[COMPUTE], self.now + self.run.latency)

    def reduce(self, start: int, end: int, seq: int, size: float = 1.0) -> None:
        members, elements = tuple(range(self.run.ranks)), round(size * ELEMENTS)
        comm = Comm("all_reduce", "0", "default", len(members), members, elements, elements, "float", seq)
        assert self._place(COMM, end - start, self.free[COMPUTE], Kind.COMM, name="ncclDevKernel", comm=comm) == start

    def end(self, step: int) -> None:
        if self.run.synchronises:
            done = max(self.free.values())
            # A wait returns a little later than what it waits for ends.
            row = {
                "start": self.now,
                "end": max(done + RETURN, self.now),
                "kind": Kind.LAUNCH,
                "name": "cudaDeviceSynchronize",
            }
            if self.run.syncs:
                self.host.append({**row, "lane": HOST})
            self.now = row["end"]
        self.steps.append(Step(step, self.started, self.now))

    def timeline(self) -> RankTimeline:
        work = [dict(row) for row in self.work]
        on_lane = [row for row in work if row["lane"] == COMPUTE]
        for row, after in pairwise(on_lane):
            if row["end"] == after["start"]:
                row["end"] += self.run.overlap
        shift = self.run.skew * self.number
        work, host = (
            [{**row, "start": row["start"] + shift, "end": row["end"] + shift} for row in rows]
            for rows in (work, self.host)
        )
        steps = tuple(Step(step.number, step.start + shift, step.end + shift) for step in self.steps)
        return RankTimeline(
            self.number, Spans.build(work), Spans.build(host), steps,
            Origin(f"rank{self.number}.json", "distributedInfo", self.run.ranks, "nccl"),
        )  # fmt: skip
