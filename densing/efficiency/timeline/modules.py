"""Time by module: work belongs to the module, or named range, whose call or range it was launched in.

Calls of ``nn.Module`` (recorded with stacks or modules) and annotations (NVTX, ``record_function``) of one thread nest
by their times. Autograd launches what it does from a thread of its own, in no module: the time of the backward pass
stands beside that of the modules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from densing.core import Record
from densing.efficiency.timeline.host import innermost, launch_of, step_mark
from densing.efficiency.timeline.intervals import Int
from densing.efficiency.timeline.overlap import Window
from densing.efficiency.timeline.timeline import Kind, RankTimeline, Spans

OUTSIDE = "(in no module)"
"""Stands for what was launched in no module and no range."""
_PREFIX = "nn.Module: "
# Ranges of communications and of the profiler itself are no parts of a model.
_NOT_OF_MODEL = re.compile(r"(?i)((nccl|rccl|gloo|xccl|oneccl|hccl|mpi|ucc|mccl|c10d)\w*:|densing::|PyTorch Profiler)")
KEPT_MODULES = 200

Index = NDArray[np.int64]


class ModuleTime(Record, frozen=True):
    """Time of the work that one module launched, nanoseconds.

    Attributes
    ----------
    path : tuple of str
        Modules and ranges from the outermost to this one.
    count : int
        Pieces of work (kernels, copies, collectives) that it launched itself.
    own_ns : int
        Durations of what it launched itself, added up.
    total_ns : int
        With what the modules within it launched.
    """

    path: tuple[str, ...]
    count: int
    own_ns: int
    total_ns: int


def module_times(rank: RankTimeline, window: Window) -> tuple[ModuleTime, ...]:
    """Return the time by module, modules before those within them; empty where no module and no range was recorded.

    On processors, where operators nest, a moment belongs to the innermost operator.

    Examples
    --------
    >>> from densing.efficiency.timeline import Kind, RankTimeline, Spans, select
    >>> call = {"start": 1, "end": 2, "kind": Kind.LAUNCH, "name": "cudaLaunchKernel", "correlation": 7}
    >>> host = Spans.build([{"start": 0, "end": 9, "kind": Kind.FRAME, "name": "nn.Module: Linear_0"}, call])
    >>> work = Spans.build([{"start": 5, "end": 25, "kind": Kind.COMPUTE, "name": "gemm", "correlation": 7}])
    >>> rank = RankTimeline(0, work, host)
    >>> module_times(rank, select(rank))
    (ModuleTime(path=('Linear_0',), count=1, own_ns=20, total_ns=20),)
    """
    host, work = rank.host, window.work
    of_model = np.array([not step_mark(name) and not _NOT_OF_MODEL.match(name) for name in host.names], bool)
    kinds = np.isin(host.kind, (int(Kind.ANNOTATION), int(Kind.FRAME)))
    ranges = np.flatnonzero(kinds & of_model[host.name]) if len(of_model) else np.empty(0, np.int64)
    if not len(ranges) or not len(work):
        return ()
    lane, moment, took = _launched(rank, work)
    node = np.full(len(moment), -1, np.int64)
    paths: dict[tuple[str, ...], int] = {}
    for number in np.unique(host.lane[ranges]).tolist():
        own = ranges[host.lane[ranges] == number]
        nodes = _nodes(host, own, paths)
        here = np.flatnonzero(lane == number)
        segments = innermost(host.start[own], host.end[own])
        if len(here) and len(segments.start):
            at = np.searchsorted(segments.start, moment[here], side="right") - 1
            inside = (at >= 0) & (moment[here] < segments.end[at])
            node[here[inside]] = nodes[segments.which[at[inside]]]
    node[node < 0] = paths.setdefault((OUTSIDE,), len(paths))
    counts = np.bincount(node, minlength=len(paths)).tolist()
    own_ns = np.bincount(node, took, len(paths)).astype(np.int64).tolist()
    return summed(ModuleTime(path, counts[at], own_ns[at], own_ns[at]) for path, at in paths.items())


def summed(rows: Iterable[ModuleTime], most: int = KEPT_MODULES) -> tuple[ModuleTime, ...]:
    """Return rows of one path as one, their totals computed anew; of very many, those with most time.

    What is left out stays in the own time of what it lies in.

    Examples
    --------
    >>> [row] = summed([ModuleTime(("a",), 1, 5, 5), ModuleTime(("a", "b"), 1, 7, 7), ModuleTime(("a",), 1, 9, 9)], 1)
    >>> row
    ModuleTime(path=('a',), count=3, own_ns=21, total_ns=21)
    """
    own: dict[tuple[str, ...], list[int]] = {}
    for row in rows:
        for depth in range(1, len(row.path)):
            own.setdefault(row.path[:depth], [0, 0])
        sums = own.setdefault(row.path, [0, 0])
        sums[0] += row.own_ns
        sums[1] += row.count
    inmost_first = sorted((path for path in own if path[1:]), key=len, reverse=True)
    total = {path: ns for path, (ns, _) in own.items()}
    for path in inmost_first:
        total[path[:-1]] += total[path]
    # Nothing takes longer than what it lies in, so that what is kept lies in what is kept.
    kept = set(sorted(filter(total.get, total), key=lambda path: (-total[path], len(path)))[:most])
    for path in inmost_first:
        if path not in kept:
            for at, amount in enumerate(own[path]):
                own[path[:-1]][at] += amount
    order = sorted(kept, key=lambda path: [(-total[path[:depth]], path[:depth]) for depth in range(1, len(path) + 1)])
    return tuple(ModuleTime(path, own[path][1], own[path][0], total[path]) for path in order)


def _launched(rank: RankTimeline, work: Spans) -> tuple[Index, Int, Int]:
    """Return, per piece of work, the host's lane (-1 unknown) and moment of its launch, and how long it took."""
    if not rank.on_host:
        launch = launch_of(work, rank.host)
        known = launch >= 0
        lane = np.where(known, rank.host.lane[launch], -1) if len(rank.host) else np.full(len(work), -1)
        moment = np.where(known, rank.host.start[launch], 0) if len(rank.host) else np.zeros(len(work), np.int64)
        return lane.astype(np.int64), moment, work.end - work.start
    numbers = {lane: number for number, lane in enumerate(rank.host.lanes)}
    parts = []
    for number in np.unique(work.lane).tolist():
        own = np.flatnonzero(work.lane == number)
        segments = innermost(work.start[own], work.end[own])
        there = np.full(len(segments.start), numbers.get(work.lanes[number], -1), np.int64)
        parts.append((there, segments.start, segments.end - segments.start))
    lane, moment, took = (np.concatenate(column) for column in zip(*parts, strict=True))
    return lane, moment, took


def _nodes(host: Spans, rows: Index, paths: dict[tuple[str, ...], int]) -> Index:
    """Return the number of the path of each range of one thread; rows are in order of start, longer first."""
    nodes = np.empty(len(rows), np.int64)
    within: list[tuple[int, tuple[str, ...]]] = []
    table = zip(host.start[rows].tolist(), host.end[rows].tolist(), host.name[rows].tolist(), strict=True)
    for at, (start, end, name) in enumerate(table):
        while within and within[-1][0] <= start:
            within.pop()
        above: Sequence[str] = within[-1][1] if within else ()
        path = (*above, host.names[name].removeprefix(_PREFIX))
        nodes[at] = paths.setdefault(path, len(paths))
        within.append((end, path))
    return nodes
