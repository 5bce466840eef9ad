"""The host's side: which call launched which device span, how far it ran ahead, and what a thread was doing meanwhile.

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
from densing.efficiency.timeline.classifier import Search, any_case
from densing.efficiency.timeline.intervals import Index, Int, Union, blocks, covered, distinct, length, quantile
from densing.efficiency.timeline.overlap import Window
from densing.efficiency.timeline.timeline import BUSY, Kind, RankTimeline, Spans

SYNC_CALLS = any_case(
    "synchronize|synchronise|^urqueuefinish|^ureventwait|^ureventswait|^piqueuefinish|^pieventwait|^pieventswait"
    "|^clfinish|^cudafree$|^hipfree$|^musafree$"
)
"""Runtime calls that block until the device reaches a point (freeing memory waits for the whole device)."""

SHORT_KERNEL_NS = 10_000
SLOW_CALL_NS = 50_000
LONG_DELAY_NS = 100_000
TABLE_SHARE = 4


def uncut(rank: RankTimeline, window: Window) -> Spans:
    """Return the spans that touch a window, with their own starts and ends."""
    # Only window ``steps`` cuts spans. One of a blind rank is a moment, which spans may hold and its work does not.
    return rank.work.touching(window.start, window.end) if window.name == "steps" and not rank.blind else window.work


def named(spans: Spans, search: Search) -> NDArray[np.bool_]:
    """Return which spans have a name that a search matches; each name is tried once."""
    hit = np.array([bool(search(name[:1000])) for name in spans.names], bool)
    return hit[spans.name] if len(hit) else np.zeros(len(spans), bool)


def is_range(spans: Spans) -> NDArray[np.bool_]:
    """Return which spans are ranges of the program: annotations and operators."""
    return np.isin(spans.kind, (int(Kind.ANNOTATION), int(Kind.OP)))


def launch_of(work: Spans, host: Spans) -> Index:
    """Return, for each device span, the position in ``host`` of the call that launched it; -1 if none is recorded.

    Calls and spans are joined by correlation; of several calls with one correlation the first counts.

    Examples
    --------
    >>> call = {"start": 0, "end": 4, "kind": Kind.LAUNCH, "name": "cudaLaunchKernel", "correlation": 7}
    >>> span = {"start": 6, "end": 9, "kind": Kind.COMPUTE, "name": "gemm", "correlation": 7}
    >>> launch_of(Spans.build([span, {**span, "correlation": -1}]), Spans.build([call])).tolist()
    [0, -1]
    """
    calls = (host.kind == Kind.LAUNCH) & (host.correlation >= 0)
    count = np.count_nonzero(calls)
    if count == 0:
        return np.full(len(work), -1, np.int32)
    never = np.iinfo(np.int64)
    low = int(host.correlation.min(where=calls, initial=never.max))
    width = int(host.correlation.max(where=calls, initial=never.min)) - low + 1
    if width <= TABLE_SHARE * count:
        # Correlations are mostly consecutive: a table of all of them is quicker than sorting. It is written backwards,
        # so that of several calls with one correlation the first is written last; its last entry stands for none.
        table = np.full(width + 1, -1, np.int32)
        for part in blocks(len(calls), last_first=True):
            rows = (np.flatnonzero(calls[part]) + part.start)[::-1]
            table[host.correlation[rows] - low] = rows
        launch = np.empty(len(work), np.int32)
        for part in blocks(len(work)):
            own = work.correlation[part]
            index = own - low
            launch[part] = table[np.where((own >= 0) & (index >= 0) & (index < width), index, width)]
        return launch
    keys, rows = host.correlation[calls], _positions(calls)
    if np.any(keys[1:] <= keys[:-1]):
        keys, first = np.unique(keys, return_index=True)
        rows = rows[first]
    launch = np.empty(len(work), np.int32)
    for part in blocks(len(work)):
        own = work.correlation[part]
        at = np.minimum(np.searchsorted(keys, own), len(keys) - 1)
        launch[part] = np.where(keys[at] == own, rows[at], -1)
    return launch


def _positions(mask: NDArray[np.bool_]) -> Index:
    return np.concatenate([(np.flatnonzero(mask[part]) + part.start).astype(np.int32) for part in blocks(len(mask))])


class LaunchStats(Record, frozen=True):
    """How a rank's launches went; times in ns, None where no launch is recorded.

    Attributes
    ----------
    spans, unlinked : int
        Device spans that begin in the window; those of them without a launch record.
    delay_p50_ns, delay_p95_ns, delay_max_ns : int or None
        From the start of the launch call to the start of (the first of) its device spans.
    long_delays, slow_calls, short_kernels : int
        Delays above 100 µs, launch calls above 50 µs, kernels under 10 µs: the marks of HolisticTraceAnalysis
        (get_cuda_kernel_launch_stats).
    negative_delays : int
        Spans that begin before their launch: clocks of host and device disagree. They are left out of the delays.
    queue_mean, queue_max : float, int or None
        Launched but not begun: mean over the window's time, and most at once.
    """

    spans: int
    unlinked: int
    delay_p50_ns: int | None = None
    delay_p95_ns: int | None = None
    delay_max_ns: int | None = None
    long_delays: int = 0
    slow_calls: int = 0
    short_kernels: int = 0
    negative_delays: int = 0
    queue_mean: float | None = None
    queue_max: int | None = None


def launch_stats(rank: RankTimeline, window: Window) -> LaunchStats:
    """Measure launch delays, the queue and short kernels of the spans that begin inside a window."""
    work = uncut(rank, window).of(*BUSY)
    work = work.take(work.start >= window.start)
    launch = launch_of(work, rank.host)
    kernels = (work.kind == Kind.COMPUTE) | (work.kind == Kind.COMM)
    short = int(np.sum(kernels & (work.end - work.start < SHORT_KERNEL_NS)))
    calls, first = _first_of(launch)
    slow = int(np.sum(rank.host.end[calls] - rank.host.start[calls] > SLOW_CALL_NS))
    begin, start = rank.host.start[calls], work.start[first]
    good = start >= begin
    begin, start = begin[good], start[good]
    mean, deepest = _queue(begin, start, window)
    delays = start - begin
    return LaunchStats(
        spans=len(work),
        unlinked=int(np.sum(launch < 0)),
        delay_p50_ns=round(quantile(delays, 0.5)) if len(delays) else None,
        delay_p95_ns=round(quantile(delays, 0.95)) if len(delays) else None,
        delay_max_ns=int(delays.max()) if len(delays) else None,
        long_delays=int(np.sum(delays > LONG_DELAY_NS)),
        slow_calls=slow,
        short_kernels=short,
        negative_delays=int(np.sum(~good)),
        queue_mean=mean,
        queue_max=deepest,
    )


def _first_of(launch: Index) -> tuple[Index, Index]:
    """The calls that launched something, in order, and the first span of each.

    A graph launch starts many spans; its delay is that of the first.
    """
    rows = _positions(launch >= 0) if len(launch) else launch
    rows = rows[np.argsort(launch[rows], kind="stable")]
    calls = launch[rows]
    fresh = np.concatenate((calls[:1] >= 0, calls[1:] != calls[:-1]))
    return calls[fresh], rows[fresh]


def _queue(begin: Int, start: Int, window: Window) -> tuple[float | None, int | None]:
    """Mean and greatest number of launches that have not begun (mean by Little's law); launches are in order."""
    window_ns = window.end - window.start
    if len(begin) == 0 or window_ns == 0:
        return None, None
    begun, waited, deepest = np.sort(start), 0, 0
    for part in blocks(len(begin)):
        waited += int(np.maximum(start[part] - np.maximum(begin[part], window.start), 0).sum())
        ahead = np.arange(part.start + 1, part.stop + 1) - np.searchsorted(begun, begin[part], side="right")
        deepest = max(deepest, int(ahead.max()))
    return waited / window_ns, deepest


# What a thread was doing at each moment.


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
    >>> from densing.efficiency.timeline import Kind
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
    """Drop empty segments, and time in which nothing runs."""
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
    """Return the names that take most of some stretches of time: ten ranges and ten runtime calls.

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
    ranges = is_range(host) & ~named(host, step_mark)
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
