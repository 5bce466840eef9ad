"""Why a device stood idle: every idle nanosecond of a window gets exactly one cause.

A gap is a stretch of the window in which the device runs nothing at all (no stream, no copy engine). What happens in
it is told by the span that ends it, *the next span*, and by the host call that launched that span:

- ``host_bound``: from the gap's start to the end of the launch call (if that lies in the gap): nothing to run, the
  host had not launched it yet.
- ``communication``: the part of that during which the launching thread waits for communication (inside a gloo, MPI
  or barrier range; or still inside the synchronisation call that it entered before the gap, when the gap follows a
  communication). Also a whole gap that follows a communication, if the next span runs on another stream and was
  launched before the gap began: it waited for that communication.
- ``kernel_wait``: the rest: launched already but not begun (launch latency, a dependency, the pause between kernels).
- ``no_launch_record``: the trace does not say who launched the next span.
- ``before_first``, ``after_last``: the same at the window's start, if nothing ran before; no span follows at all.
- ``unknown``: runs without a device, whose waits leave no event, unless they are marked (``densing::wait``).

HolisticTraceAnalysis asks per stream instead (:mod:`densing.timeline.idle_hta`): a stream may be idle while the
device is busy on another, and its parts sum to no window.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densing.timeline.intervals import Union, covered, intersect, length, subtract, union
from densing.timeline.launches import BUSY, SYNC_CALLS, LaunchStats, launch_of, launch_stats, named
from densing.timeline.meanwhile import Doing, doing
from densing.timeline.overlap import Unions
from densing.timeline.spans import Int, Kind, Spans
from densing.timeline.timeline import RankTimeline
from densing.timeline.waits import MARK
from densing.timeline.windows import Window

CAUSES = (
    "host_bound",
    "communication",
    "kernel_wait",
    "no_launch_record",
    "before_first",
    "after_last",
    "unknown",
)
COMM_RANGES = re.compile(rf"^(gloo|mpi|ucc):|barrier|^{re.escape(MARK)}$", re.I)
SHOWN_GAPS = 10


@dataclass(frozen=True)
class Gap:
    """One idle stretch: its ends (ns), its main cause, and the name of the span that ended it (empty if none)."""

    start_ns: int
    end_ns: int
    cause: str
    next_name: str


@dataclass(frozen=True)
class IdleCauses:
    """Idle time of one device by cause.

    Attributes
    ----------
    idle_ns : int
        As in :class:`~densing.timeline.overlap.Partition`.
    causes : mapping of str to int
        Nanoseconds by cause, every cause of :data:`CAUSES`; they sum to ``idle_ns``.
    gaps : int
    longest : tuple of Gap
        The ten longest.
    meanwhile : tuple of Doing
        What the launching thread did while the device waited for it, by range and by runtime call.
    launches : LaunchStats
    """

    idle_ns: int
    causes: Mapping[str, int]
    gaps: int
    longest: tuple[Gap, ...]
    meanwhile: tuple[Doing, ...]
    launches: LaunchStats

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "causes": dict(self.causes)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> IdleCauses:
        """Rebuild what :meth:`to_dict` wrote."""
        longest = tuple(Gap(**row) for row in data["longest"])
        busy = tuple(Doing(**row) for row in data["meanwhile"])
        launches = LaunchStats.from_dict(data["launches"])
        return cls(data["idle_ns"], dict(data["causes"]), data["gaps"], longest, busy, launches)


@dataclass(frozen=True, eq=False)
class _Gaps:
    """Gaps in columns: next span (position in ``pool``, -1 none), its launch (position in host, -1), host's part."""

    start: Int
    end: Int
    next: Int
    launch: Int
    ready: Int
    """Until when the host held the gap: [start, ready) is the host's part."""


def idle_causes(rank: RankTimeline, window: Window, merged: Unions) -> IdleCauses:
    """Attribute the idle time of a window; definitions in the module's text.

    Parameters
    ----------
    rank : RankTimeline
    window : Window
        Of that rank.
    merged : Unions
        Of the window's work.

    Examples
    --------
    >>> from densing.timeline.overlap import unions
    >>> from densing.timeline.windows import select
    >>> call = {"kind": Kind.LAUNCH, "name": "cudaLaunchKernel"}
    >>> work = Spans.build([{"start": 10, "end": 20, "kind": Kind.COMPUTE, "name": "a", "correlation": 1},
    ...                     {"start": 50, "end": 60, "kind": Kind.COMPUTE, "name": "b", "correlation": 2}])
    >>> host = Spans.build([{**call, "start": 0, "end": 5, "correlation": 1},
    ...                     {**call, "start": 40, "end": 45, "correlation": 2}])
    >>> rank = RankTimeline(0, work, host)
    >>> window = select(rank)
    >>> found = idle_causes(rank, window, unions(window.work)).causes
    >>> found["host_bound"], found["kernel_wait"]
    (25, 5)
    """
    whole = (np.array([window.start], np.int64), np.array([window.end], np.int64))
    start, end = subtract(whole, merged.busy)
    if rank.on_host:
        return _on_host(rank, window, (start, end))
    pool = (window.work if window.name == "hta" else rank.work).of(*BUSY)
    pool = pool.take(pool.end > pool.start)
    gaps = _gaps(start, end, pool, rank.host)
    parts = _attributed(rank, window, gaps, pool)
    causes = {cause: int(parts[cause].sum()) if cause in parts else 0 for cause in CAUSES}
    idle = length((start, end))
    assert sum(causes.values()) == idle, "causes that do not sum to the idle time"
    held = [(lane, _host_part(gaps, chosen)) for lane, chosen in _by_lane(gaps, rank.host)]
    return IdleCauses(
        idle, causes, len(start), _longest(gaps, parts, pool), doing(rank.host, held), launch_stats(rank, window)
    )


def _gaps(start: Int, end: Int, pool: Spans, host: Spans) -> _Gaps:
    """Find what ended each gap: of spans that begin at its end, the one launched first."""
    launch = launch_of(pool, host)
    never = np.iinfo(np.int64).max
    begun = np.where(launch >= 0, host.end[launch], never) if len(host) else np.full(len(pool), never)
    order = np.lexsort((begun, pool.start))
    at = np.searchsorted(pool.start, end)
    found = at < len(pool)
    following = np.where(found, order[np.minimum(at, len(pool) - 1)], -1) if len(pool) else np.full(len(end), -1)
    launched = np.where(following >= 0, launch[following], -1) if len(pool) else following
    ready = np.where(launched >= 0, host.end[launched], start) if len(host) else start
    return _Gaps(start, end, following, launched, np.clip(ready, start, end))


def _attributed(rank: RankTimeline, window: Window, gaps: _Gaps, pool: Spans) -> dict[str, Int]:
    """Nanoseconds of each gap by cause."""
    whole, host_part = gaps.end - gaps.start, gaps.ready - gaps.start
    known = gaps.launch >= 0
    waiting = _waiting(rank.host, gaps, pool)
    behind = known & (host_part == 0) & _after_comm(gaps, pool)
    first = ~known & (gaps.next >= 0) & (gaps.start == window.start)
    last = (gaps.next < 0) & (len(pool) > 0)
    rest = np.where(known, whole - host_part, 0)
    return {
        "host_bound": np.where(known, host_part - waiting, 0),
        "communication": waiting + np.where(behind, rest, 0),
        "kernel_wait": np.where(behind, 0, rest),
        "no_launch_record": np.where(~known & ~first & (gaps.next >= 0), whole, 0),
        "before_first": np.where(first, whole, 0),
        "after_last": np.where(last, whole, 0),
        "unknown": np.where((gaps.next < 0) & ~last, whole, 0),
    }


def _comm_before(gaps: _Gaps, pool: Spans) -> tuple[NDArray[np.bool_], NDArray[np.int32]]:
    """Whether a communication ended when the gap began, and on which stream."""
    comm = pool.of(Kind.COMM)
    if len(comm) == 0:
        return np.zeros(len(gaps.start), bool), np.full(len(gaps.start), -1, np.int32)
    order = np.argsort(comm.end, kind="stable")
    ends = comm.end[order]
    at = np.minimum(np.searchsorted(ends, gaps.start), len(ends) - 1)
    return ends[at] == gaps.start, comm.lane[order[at]]


def _after_comm(gaps: _Gaps, pool: Spans) -> NDArray[np.bool_]:
    """Gaps after a communication, ended by other work of another stream."""
    ended, lane = _comm_before(gaps, pool)
    if len(pool) == 0:
        return ended
    return ended & (pool.lane[gaps.next] != lane) & (pool.kind[gaps.next] != Kind.COMM)


def _waiting(host: Spans, gaps: _Gaps, pool: Spans) -> Int:
    """How much of the host's part of each gap its launching thread waits for communication."""
    found = np.zeros(len(gaps.start), np.int64)
    ended, _ = _comm_before(gaps, pool)
    ranges = host.take(named(host, COMM_RANGES) & np.isin(host.kind, (int(Kind.ANNOTATION), int(Kind.OP))))
    syncs = host.take(named(host, SYNC_CALLS) & (host.kind == Kind.LAUNCH))
    for lane, chosen in _by_lane(gaps, host):
        own = syncs.take(syncs.lane == lane)
        begin = gaps.start[chosen & ended]
        at = np.searchsorted(own.start, begin) - 1
        until = np.where(at >= 0, own.end[at], begin) if len(own) else begin
        mine = ranges.take(ranges.lane == lane)
        held = union(np.concatenate((mine.start, begin)), np.concatenate((mine.end, np.maximum(until, begin))))
        found[chosen] = covered(held, gaps.start[chosen], gaps.ready[chosen])
    return found


def _by_lane(gaps: _Gaps, host: Spans) -> list[tuple[int, NDArray[np.bool_]]]:
    """Gaps by the thread whose launch ended them."""
    known = gaps.launch >= 0
    if not known.any():
        return []
    lane = np.where(known, host.lane[gaps.launch], -1)
    return [(int(each), lane == each) for each in np.unique(lane[known])]


def _host_part(gaps: _Gaps, chosen: NDArray[np.bool_]) -> Union:
    return union(gaps.start[chosen], gaps.ready[chosen])


def _longest(gaps: _Gaps, parts: Mapping[str, Int], pool: Spans) -> tuple[Gap, ...]:
    order = np.argsort(gaps.start - gaps.end, kind="stable")[:SHOWN_GAPS]
    table = np.array([parts[cause] for cause in CAUSES])
    rows = []
    for at in order.tolist():
        cause = CAUSES[int(table[:, at].argmax())]
        name = pool.names[pool.name[gaps.next[at]]] if gaps.next[at] >= 0 else ""
        rows.append(Gap(int(gaps.start[at]), int(gaps.end[at]), cause, name))
    return tuple(rows)


def _on_host(rank: RankTimeline, window: Window, idle: Union) -> IdleCauses:
    """Idle time of a processor: only marked waits tell their cause."""
    ranges = rank.host.take(named(rank.host, COMM_RANGES))
    waits = union(ranges.start, ranges.end)
    total, waited = length(idle), length(intersect(idle, waits))
    causes = dict.fromkeys(CAUSES, 0) | {"communication": waited, "unknown": total - waited}
    share = covered(waits, *idle)
    order = np.argsort(idle[0] - idle[1], kind="stable")[:SHOWN_GAPS]
    longest = tuple(
        Gap(start, end, "communication" if 2 * wait > end - start else "unknown", "")
        for start, end, wait in zip(*(column[order].tolist() for column in (*idle, share)), strict=True)
    )
    marks = rank.host.take(named(rank.host, re.compile("^ProfilerStep")))
    held = [(int(lane), idle) for lane in np.unique(marks.lane)]
    return IdleCauses(total, causes, len(idle[0]), longest, doing(rank.host, held), launch_stats(rank, window))
