"""Which host call launched which device span, and how far the host ran ahead of the device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densing.timeline.spans import Int, Kind, Spans
from densing.timeline.timeline import RankTimeline
from densing.timeline.windows import Window

BUSY = (Kind.COMPUTE, Kind.COMM, Kind.MEMCPY, Kind.MEMSET)
"""Kinds that keep a device busy."""

SYNC_CALLS = re.compile(r"synchroni[sz]e|^(ur|pi)(queuefinish|events?wait)|^clfinish|^(cuda|hip|musa)free$", re.I)
"""Runtime calls that return when the device has reached a point (freeing memory waits for the whole device)."""

SHORT_KERNEL_NS = 10_000
SLOW_CALL_NS = 50_000
LONG_DELAY_NS = 100_000
TABLE_SHARE = 4


def uncut(rank: RankTimeline, window: Window) -> Spans:
    """Return the spans that touch a window, with their own starts and ends."""
    if window.name != "steps":
        return window.work
    work, start, end = rank.work, window.start, window.end
    return work.take((work.start < end) & ((work.end > start) | ((work.end == work.start) & (work.start >= start))))


def named(spans: Spans, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Return which spans bear a name that a pattern finds; each name is tried once."""
    hit = np.array([bool(pattern.search(name[:1000])) for name in spans.names], bool)
    return hit[spans.name] if len(hit) else np.zeros(len(spans), bool)


def launch_of(work: Spans, host: Spans) -> Int:
    """Return, for each device span, the position in ``host`` of the call that launched it; -1 if none is recorded.

    Calls and spans are joined by correlation; of several calls with one correlation the first counts.

    Examples
    --------
    >>> call = {"start": 0, "end": 4, "kind": Kind.LAUNCH, "name": "cudaLaunchKernel", "correlation": 7}
    >>> span = {"start": 6, "end": 9, "kind": Kind.COMPUTE, "name": "gemm", "correlation": 7}
    >>> launch_of(Spans.build([span, {**span, "correlation": -1}]), Spans.build([call]))
    array([ 0, -1])
    """
    calls = np.flatnonzero((host.kind == Kind.LAUNCH) & (host.correlation >= 0))
    if len(calls) == 0:
        return np.full(len(work), -1, np.int64)
    keys = host.correlation[calls]
    low, width = int(keys.min()), int(keys.max()) - int(keys.min()) + 1
    if width <= TABLE_SHARE * len(keys):
        # Correlations are mostly consecutive: a table of all of them is quicker than sorting.
        table = np.full(width + 1, -1, np.int64)
        table[keys[::-1] - low] = calls[::-1]
        wanted = work.correlation - low
        return table[np.where((work.correlation >= 0) & (wanted >= 0) & (wanted < width), wanted, width)]
    known, first = np.unique(keys, return_index=True)
    at = np.minimum(np.searchsorted(known, work.correlation), len(known) - 1)
    return np.where(known[at] == work.correlation, calls[first[at]], -1)


@dataclass(frozen=True)
class LaunchStats:
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

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LaunchStats:
        """Rebuild what :meth:`to_dict` wrote."""
        return cls(**data)


def launch_stats(rank: RankTimeline, window: Window) -> LaunchStats:
    """Measure launch delays, the queue and short kernels of the spans that begin inside a window."""
    work = uncut(rank, window).of(*BUSY)
    work = work.take(work.start >= window.start)
    launch = launch_of(work, rank.host)
    kernels = np.isin(work.kind, (int(Kind.COMPUTE), int(Kind.COMM)))
    short = int(np.sum(kernels & (work.end - work.start < SHORT_KERNEL_NS)))
    linked = np.flatnonzero(launch >= 0)
    # A graph launch starts many spans; its delay is that of the first.
    calls, first = np.unique(launch[linked], return_index=True)
    begin, start = rank.host.start[calls], work.start[linked[first]]
    good = start >= begin
    delays = (start - begin)[good]
    p50, p95, most = (round(float(np.percentile(delays, q))) if len(delays) else None for q in (50, 95, 100))
    mean, deepest = _queue(begin[good], start[good], window)
    return LaunchStats(
        spans=len(work),
        unlinked=len(work) - len(linked),
        delay_p50_ns=p50,
        delay_p95_ns=p95,
        delay_max_ns=most,
        long_delays=int(np.sum(delays > LONG_DELAY_NS)),
        slow_calls=int(np.sum(rank.host.end[calls] - begin > SLOW_CALL_NS)),
        short_kernels=short,
        negative_delays=int(np.sum(~good)),
        queue_mean=mean,
        queue_max=deepest,
    )


def _queue(begin: Int, start: Int, window: Window) -> tuple[float | None, int | None]:
    """Mean and greatest number of launches that have not begun (mean by Little's law)."""
    length = window.end - window.start
    if len(begin) == 0 or length == 0:
        return None, None
    waited = int(np.maximum(start - np.maximum(begin, window.start), 0).sum())
    launched, begun = np.sort(begin), np.sort(start)
    depth = np.arange(1, len(launched) + 1) - np.searchsorted(begun, launched, side="right")
    return waited / length, max(int(depth.max()), 0)
