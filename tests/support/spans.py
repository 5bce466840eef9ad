"""Spans made for tests: rows of device and host, ranks in which all may happen, single nanoseconds as an oracle."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

from densing.efficiency.timeline.timeline import Comm, Kind, Lane, RankTimeline, Spans, Step

END = 60
interval = st.tuples(st.integers(0, END), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def ticks(pairs: list[tuple[int, int]]) -> set[int]:
    """Every nanosecond that some interval covers."""
    return {tick for start, end in pairs for tick in range(start, end)}


STREAMS = [Lane("GPU 0", "7"), Lane("GPU 0", "20")]
THREADS = [Lane("1", "1"), Lane("1", "2")]


def span(
    start: int, end: int, kind: Kind = Kind.COMPUTE, correlation: int = -1, lane: Lane = STREAMS[0], name: str = "k"
) -> dict[str, Any]:
    """A row of device work."""
    return {"start": start, "end": end, "kind": kind, "name": name, "correlation": correlation, "lane": lane}


def call(
    start: int, end: int, correlation: int = -1, name: str = "cudaLaunchKernel", kind: Kind = Kind.LAUNCH
) -> dict[str, Any]:
    """A row of the host's main thread."""
    return {"start": start, "end": end, "kind": kind, "name": name, "correlation": correlation, "lane": THREADS[0]}


WORK = (Kind.COMPUTE, Kind.COMPUTE, Kind.COMM, Kind.MEMCPY, Kind.MEMSET, Kind.SYNC)
CALLS = ("cudaLaunchKernel", "cudaLaunchKernel", "cudaMemcpyAsync", "cudaDeviceSynchronize", "cudaStreamWaitEvent")
RANGES = ("ProfilerStep#1", "forward", "nccl:barrier", "enumerate(DataLoader)#x.__next__")


def mixed_rank(seed: int, work: int = 40, host: int = 120) -> RankTimeline:
    """A rank of all that may happen: threads, streams, nesting and crossing, ties, empty spans, lost launches."""
    draw = random.Random(seed)
    wide, step = draw.choice((60, 2000)), draw.choice((1, 1000))
    device = []
    for _ in range(work):
        start, kind = draw.randrange(wide), draw.choice(WORK)
        row = {"start": start, "end": start + draw.choice((0, 2, 30)), "kind": kind, "name": kind.name,
               "lane": Lane("gpu", str(draw.randrange(3))), "correlation": draw.randrange(-1, host) * step}  # fmt: skip
        device.append(row | ({"comm": Comm("all_reduce", "0", in_elems=4, dtype="float")} if kind is Kind.COMM else {}))
    calls = []
    for number in range(host):
        start, call = draw.randrange(wide), draw.random() < 0.8
        calls.append({"start": start, "end": start + draw.choice((0, 2, 9, 50)),
                      "kind": Kind.LAUNCH if call else Kind.ANNOTATION, "name": draw.choice(CALLS if call else RANGES),
                      "lane": Lane("cpu", str(draw.randrange(3))),
                      "correlation": number * step if call else -1})  # fmt: skip
    return RankTimeline(0, Spans.build(device), Spans.build(calls), (Step(1, 5, wide // 2), Step(2, wide // 2, wide)))
