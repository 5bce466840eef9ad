"""Which host call launched which device span, and how far the host ran ahead of the device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from densing.core import Record
from densing.efficiency.timeline.arrays import Index, Int, blocks, quantile
from densing.efficiency.timeline.patterns import Search, any_case
from densing.efficiency.timeline.spans import BUSY, Kind, Spans
from densing.efficiency.timeline.timeline import RankTimeline
from densing.efficiency.timeline.windows import Window

SYNC_CALLS = any_case(
    "synchronize|synchronise|^urqueuefinish|^ureventwait|^ureventswait|^piqueuefinish|^pieventwait|^pieventswait"
    "|^clfinish|^cudafree$|^hipfree$|^musafree$"
)
"""Runtime calls that return when the device has reached a point (freeing memory waits for the whole device)."""

SHORT_KERNEL_NS = 10_000
SLOW_CALL_NS = 50_000
LONG_DELAY_NS = 100_000
TABLE_SHARE = 4


def uncut(rank: RankTimeline, window: Window) -> Spans:
    """Return the spans that touch a window, with their own starts and ends."""
    return rank.work.touching(window.start, window.end) if window.name == "steps" else window.work


def named(spans: Spans, search: Search) -> NDArray[np.bool_]:
    """Return which spans bear a name that a search finds; each name is tried once."""
    hit = np.array([bool(search(name[:1000])) for name in spans.names], bool)
    return hit[spans.name] if len(hit) else np.zeros(len(spans), bool)


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
        # Correlations are mostly consecutive: a table of all of them is quicker than sorting.
        return _by_table(work, host.correlation, calls, low, width)
    return _by_search(work, host.correlation[calls], _positions(calls))


def _positions(mask: NDArray[np.bool_]) -> Index:
    return np.concatenate([(np.flatnonzero(mask[part]) + part.start).astype(np.int32) for part in blocks(len(mask))])


def _by_search(work: Spans, keys: Int, rows: Index) -> Index:
    if np.any(keys[1:] <= keys[:-1]):
        keys, first = np.unique(keys, return_index=True)
        rows = rows[first]
    launch = np.empty(len(work), np.int32)
    for part in blocks(len(work)):
        own = work.correlation[part]
        at = np.minimum(np.searchsorted(keys, own), len(keys) - 1)
        launch[part] = np.where(keys[at] == own, rows[at], -1)
    return launch


def _by_table(work: Spans, correlation: Int, calls: NDArray[np.bool_], low: int, width: int) -> Index:
    table = np.full(width + 1, -1, np.int32)
    # Backwards, so that of several calls with one correlation the first is written last.
    for part in blocks(len(calls), last_first=True):
        rows = (np.flatnonzero(calls[part]) + part.start)[::-1]
        table[correlation[rows] - low] = rows
    launch = np.empty(len(work), np.int32)
    for part in blocks(len(work)):
        own = work.correlation[part]
        index = own - low
        launch[part] = table[np.where((own >= 0) & (index >= 0) & (index < width), index, width)]
    return launch


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
    length = window.end - window.start
    if len(begin) == 0 or length == 0:
        return None, None
    begun, waited, deepest = np.sort(start), 0, 0
    for part in blocks(len(begin)):
        waited += int(np.maximum(start[part] - np.maximum(begin[part], window.start), 0).sum())
        ahead = np.arange(part.start + 1, part.stop + 1) - np.searchsorted(begun, begin[part], side="right")
        deepest = max(deepest, int(ahead.max()))
    return waited / length, deepest
