"""What a host thread was doing: which of several nested spans runs at each moment, and time by name.

Host rows nest: an annotation holds operators, operators hold runtime calls. Time is told once if each moment belongs to
the span that began last among those running.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from densing.core import Record
from densing.efficiency.timeline.arrays import Int, blocks, distinct
from densing.efficiency.timeline.intervals import Union, covered, length
from densing.efficiency.timeline.launches import named
from densing.efficiency.timeline.spans import Kind, Spans


class Segments(NamedTuple):
    """Disjoint intervals in order of time; ``which`` names the span that each belongs to."""

    start: Int
    end: Int
    which: Int


def unbroken(host: Spans, rows: NDArray[np.bool_]) -> Iterator[NDArray[np.int64]]:
    """Yield rows of a table part by part, cut where none of those before is still running.

    To split time among the spans of each part is to split it among all of them.

    Examples
    --------
    >>> from densing.efficiency.timeline.spans import Kind
    >>> host = Spans.build([{"start": at, "end": at + 5, "kind": Kind.OP, "name": "a"} for at in (0, 4, 9)])
    >>> [part.tolist() for part in unbroken(host, np.array([True, False, True]))]
    [[0], [2]]
    """
    pending = np.empty(0, np.int64)
    for block in blocks(len(rows)):
        at = np.concatenate((pending, np.flatnonzero(rows[block]) + block.start))
        reach = np.maximum.accumulate(host.end[at])
        cuts = np.flatnonzero(host.start[at[1:]] >= reach[:-1])
        cut = int(cuts[-1]) + 1 if len(cuts) else 0
        if cut:
            yield at[:cut]
        pending = at[cut:]
    if len(pending):
        yield pending


def innermost(start: Int, end: Int) -> Segments:
    """Split time among the spans of one thread: each moment belongs to the running span that began last.

    Of spans that begin together the shorter one is inside. Spans need not nest properly.

    Parameters
    ----------
    start, end : int64 (n,)
        Nanoseconds, in any order.

    Returns
    -------
    Segments
        Their total length is that of the union of the spans.

    Examples
    --------
    >>> innermost(np.array([0, 10]), np.array([100, 30]))._asdict()
    {'start': array([ 0, 10, 30]), 'end': array([ 10,  30, 100]), 'which': array([0, 1, 0])}
    """
    order = np.flatnonzero(end > start)
    start, end = start[order], end[order]
    if not np.all(start[1:] >= end[:-1]):
        inside = np.lexsort((-end, start))
        order, start, end = order[inside], start[inside], end[inside]
    if np.all(start[1:] >= end[:-1]):
        return Segments(start, end, order)
    parent = _parents(start, end)
    segments = _painted(start, end) if parent is None else _unrolled(start, end, parent)
    return Segments(segments.start, segments.end, order[segments.which])


def _parents(start: Int, end: Int) -> Int | None:
    """Index of the span around each span (-1 none) of a sorted table; None where spans cross.

    A span's depth is the number of earlier spans still open; its parent is the last earlier span one level up.
    """
    n = len(start)
    depth = np.arange(n) - np.searchsorted(np.sort(end), start, side="right")
    parent = np.full(n, -1, np.int64)
    by_depth = np.argsort(depth, kind="stable")
    cuts = np.searchsorted(depth[by_depth], np.arange(int(depth.max(initial=0)) + 2))
    for level in range(1, len(cuts) - 1):
        upper, lower = by_depth[cuts[level - 1] : cuts[level]], by_depth[cuts[level] : cuts[level + 1]]
        parent[lower] = upper[np.searchsorted(upper, lower) - 1] if len(upper) else -1
    inner = parent >= 0
    crossing = np.any(end[parent[inner]] < end[inner]) or np.any(inner != (depth > 0))
    return None if crossing else parent


def _unrolled(start: Int, end: Int, parent: Int) -> Segments:
    """Segments of spans that nest: a span runs from its start, and its parent again from its end."""
    index = np.arange(len(start))
    # At one moment ends come first, outer ones last; then starts, outer ones first.
    closing = np.lexsort((-index, end))
    moments = np.concatenate((end[closing], start))
    running = np.concatenate((parent[closing], index))
    order = np.argsort(moments, kind="stable")
    moments, running = moments[order], running[order]
    if len(moments) == 0:
        return Segments(moments, moments, running)
    return _filled(moments[:-1], moments[1:], running[:-1])


def _painted(start: Int, end: Int) -> Segments:
    """Segments of spans that cross: one pass over all boundaries with a heap of what is running."""
    moments = distinct(np.concatenate((start, end)))
    opens = np.searchsorted(start, moments, side="right").tolist()
    ends, running, pushed, heap = end.tolist(), [], 0, list[int]()
    for moment, opened in zip(moments.tolist(), opens, strict=True):
        for index in range(pushed, opened):
            # The span that began last is on top; those that have ended below it go when they come up.
            heapq.heappush(heap, -index)
        pushed = opened
        while heap and ends[-heap[0]] <= moment:
            heapq.heappop(heap)
        running.append(-heap[0] if heap else -1)
    return _filled(moments[:-1], moments[1:], np.array(running[:-1], np.int64))


def _filled(start: Int, end: Int, running: NDArray[np.int64]) -> Segments:
    """Leave out what has no length, and time in which nothing runs."""
    filled = (end > start) & (running >= 0)
    return Segments(start[filled], end[filled], running[filled])


SHOWN = 10


class Doing(Record, frozen=True):
    """Time by name.

    Attributes
    ----------
    level : {"range", "call"}
        Annotations and operators (innermost first, step marks left out), or runtime calls.
    name : str
        Empty for time in which nothing of that level ran.
    ns : int
    """

    level: str
    name: str
    ns: int


def step_mark(name: str) -> bool:
    """Return whether a name marks a step."""
    return name.startswith("ProfilerStep")


def doing(host: Spans, stretches: Iterable[tuple[int, Union]]) -> tuple[Doing, ...]:
    """Return the names that fill most of some stretches of time: ten ranges and ten runtime calls.

    Parameters
    ----------
    host : Spans
    stretches : iterable of (lane, union)
        Which stretches to look at, on which thread.

    Examples
    --------
    >>> host = Spans.build([{"start": 0, "end": 80, "kind": Kind.ANNOTATION, "name": "load"},
    ...                     {"start": 20, "end": 30, "kind": Kind.LAUNCH, "name": "cudaMalloc"}])
    >>> doing(host, [(0, (np.array([10]), np.array([100])))])
    (Doing(level='range', name='load', ns=70), Doing(level='range', name='', ns=20),
     Doing(level='call', name='', ns=80), Doing(level='call', name='cudaMalloc', ns=10))
    """
    by_lane = list(stretches)
    ranges = np.isin(host.kind, (int(Kind.ANNOTATION), int(Kind.OP))) & ~named(host, step_mark)
    return (*_totals("range", host, ranges, by_lane), *_totals("call", host, host.kind == Kind.LAUNCH, by_lane))


def _totals(level: str, host: Spans, rows: NDArray[np.bool_], by_lane: list[tuple[int, Union]]) -> list[Doing]:
    sums = np.zeros(len(host.names), np.int64)
    unnamed = 0
    for lane, stretches in by_lane:
        unnamed += length(stretches)
        for own in unbroken(host, rows & (host.lane == lane)):
            segments = innermost(host.start[own], host.end[own])
            inside = covered(stretches, segments.start, segments.end)
            np.add.at(sums, host.name[own[segments.which]], inside)
            unnamed -= int(inside.sum())
    table = [(int(sums[at]), host.names[at]) for at in np.flatnonzero(sums).tolist()]
    if unnamed:
        table.append((unnamed, ""))
    return [Doing(level, name, ns) for ns, name in sorted(table, key=lambda row: (-row[0], row[1]))[:SHOWN]]
