"""Why a device was idle: every idle nanosecond of a window gets exactly one cause.

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

HolisticTraceAnalysis asks per stream instead: a stream may be idle while the device is busy on
another, and its parts sum to no window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray

from densing.core import Record
from densing.efficiency.timeline.classifier import any_case
from densing.efficiency.timeline.host import (
    SYNC_CALLS,
    Doing,
    LaunchStats,
    doing,
    is_range,
    launch_of,
    launch_stats,
    named,
    step_mark,
)
from densing.efficiency.timeline.intervals import (
    Index,
    Int,
    Union,
    blocks,
    covered,
    distinct,
    intersect,
    length,
    outside,
    union,
    used,
)
from densing.efficiency.timeline.overlap import Unions, Window
from densing.efficiency.timeline.timeline import BUSY, MARK, Kind, RankTimeline, Spans

CAUSES = (
    "host_bound",
    "communication",
    "kernel_wait",
    "no_launch_record",
    "before_first",
    "after_last",
    "unknown",
)
COMM_RANGES = any_case(f"^gloo:|^mpi:|^ucc:|barrier|^{MARK}$")
SHOWN_GAPS = 10


class Gap(Record, frozen=True):
    """One idle stretch: its ends (ns), its main cause, and the name of the span that ended it (empty if none)."""

    start_ns: int
    end_ns: int
    cause: str
    next_name: str


class IdleCauses(Record, frozen=True):
    """Idle time of one device by cause.

    Attributes
    ----------
    idle_ns : int
        As in :class:`~densing.efficiency.timeline.overlap.Partition`.
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


class _Gaps(msgspec.Struct, frozen=True, eq=False):
    """Gaps in columns: next span (position in ``pool``, -1 none), its launch (position in host, -1), host's part."""

    start: Int
    end: Int
    next: Index
    launch: Index
    ready: Int
    """End of the host's part of the gap, [start, ready)."""
    after: Index
    """Lane of a communication that ended when the gap began; -1 if none did."""
    waiting: Int
    """Part of the host's part in which the launching thread waited for communication."""

    def rows(self, index: Any) -> _Gaps:
        """Select gaps."""
        return _Gaps(*(column[index] for column in astuple(self)))


def idle_causes(rank: RankTimeline, window: Window, merged: Unions) -> IdleCauses:
    """Attribute the idle time of a window; definitions are in the module's docstring.

    Parameters
    ----------
    rank : RankTimeline
    window : Window
        Of that rank.
    merged : Unions
        Of the window's work.

    Examples
    --------
    >>> from densing.efficiency.timeline import select, unions
    >>> call = {"kind": Kind.LAUNCH, "name": "cudaLaunchKernel"}
    >>> work = Spans.build([{"start": 10, "end": 20, "kind": Kind.COMPUTE, "name": "a", "correlation": 1},
    ...                     {"start": 50, "end": 60, "kind": Kind.COMPUTE, "name": "b", "correlation": 2}])
    >>> host = Spans.build([{**call, "start": 0, "end": 5, "correlation": 1},
    ...                     {**call, "start": 40, "end": 45, "correlation": 2}])
    >>> rank = RankTimeline(0, work, host)
    >>> window = select(rank)
    >>> causes = idle_causes(rank, window, unions(window.work)).causes
    >>> causes["host_bound"], causes["kernel_wait"]
    (25, 5)
    """
    start, end = outside(merged.busy, window.start, window.end)
    if rank.on_host:
        return _on_host(rank, window, (start, end))
    # The gaps' memory is released before the launches are read.
    causes, longest, host_parts = _caused(rank, window, start, end)
    idle = length((start, end))
    assert sum(causes.values()) == idle, "causes that do not sum to the idle time"
    return IdleCauses(idle, causes, len(start), longest, doing(rank.host, host_parts), launch_stats(rank, window))


def _caused(
    rank: RankTimeline, window: Window, start: Int, end: Int
) -> tuple[dict[str, int], tuple[Gap, ...], list[tuple[int, Union]]]:
    """Idle time by cause, the longest gaps with their main cause, and the host's part of the gaps by thread."""
    # Window hta knows only what was launched before its cut; else the next span may lie beyond the window.
    pool = (window.work if window.name == "hta" else rank.work).of(*BUSY)
    pool = pool.take(pool.end > pool.start)
    gaps = _gaps(start, end, pool, rank.host)
    causes = dict.fromkeys(CAUSES, 0)
    for part in blocks(len(start)):
        for cause, ns in _attributed(window, gaps.rows(part), pool).items():
            causes[cause] += int(ns.sum())
    by_lane = _by_lane(gaps.launch, rank.host)
    host_parts = [(lane, union(start[chosen], gaps.ready[chosen])) for lane, chosen in by_lane]
    longest = gaps.rows(_largest(end - start))
    parts = _attributed(window, longest, pool)
    main = np.array([parts[cause] for cause in CAUSES]).argmax(axis=0).tolist()
    names = [pool.names[pool.name[at]] if at >= 0 else "" for at in longest.next.tolist()]
    rows = zip(longest.start.tolist(), longest.end.tolist(), main, names, strict=True)
    return causes, tuple(Gap(begin, stop, CAUSES[cause], name) for begin, stop, cause, name in rows), host_parts


def _gaps(start: Int, end: Int, pool: Spans, host: Spans) -> _Gaps:
    """Find what ended each gap: of spans that begin at its end, the one launched first."""
    launch = launch_of(pool, host)
    at = np.searchsorted(pool.start, end)
    ended = at < len(pool)
    following, launched, ready = np.full(len(end), -1, np.int32), np.full(len(end), -1, np.int32), start.copy()
    following[ended] = _launched_first(pool, host, launch)[at[ended]]
    launched[ended] = launch[following[ended]]
    known = launched >= 0
    ready[known] = host.end[launched[known]]
    np.clip(ready, start, end, out=ready)
    after = _comm_before(start, pool)
    return _Gaps(start, end, following, launched, ready, after, _waiting(host, start, ready, launched, after >= 0))


def _launched_first(pool: Spans, host: Spans, launch: Index) -> Index:
    """Spans in order of start, and among those that start together in order of the end of their launch."""
    order = np.arange(len(pool), dtype=np.int32)
    same = np.flatnonzero(pool.start[1:] == pool.start[:-1])
    if len(same):
        rows = distinct(np.concatenate((same, same + 1)))
        begun = np.full(len(rows), np.iinfo(np.int64).max)
        known = launch[rows] >= 0
        begun[known] = host.end[launch[rows[known]]]
        order[rows] = rows[np.lexsort((begun, pool.start[rows]))]
    return order


def _attributed(window: Window, gaps: _Gaps, pool: Spans) -> dict[str, Int]:
    """Nanoseconds of each gap by cause."""
    duration, host_part = gaps.end - gaps.start, gaps.ready - gaps.start
    known = gaps.launch >= 0
    # Gaps after a communication, ended by other work of another stream that was launched in time.
    behind = known & (host_part == 0) & (gaps.after >= 0)
    if len(pool):
        behind &= (pool.lane[gaps.next] != gaps.after) & (pool.kind[gaps.next] != Kind.COMM)
    first = ~known & (gaps.next >= 0) & (gaps.start == window.start)
    last = (gaps.next < 0) & (len(pool) > 0)
    after_launch = np.where(known, duration - host_part, 0)
    return {
        "host_bound": np.where(known, host_part - gaps.waiting, 0),
        "communication": gaps.waiting + np.where(behind, after_launch, 0),
        "kernel_wait": np.where(behind, 0, after_launch),
        "no_launch_record": np.where(~known & ~first & (gaps.next >= 0), duration, 0),
        "before_first": np.where(first, duration, 0),
        "after_last": np.where(last, duration, 0),
        "unknown": np.where((gaps.next < 0) & ~last, duration, 0),
    }


def _comm_before(start: Int, pool: Spans) -> Index:
    """The stream of a communication that ended when each gap began; -1 if none did."""
    lane = np.full(len(start), -1, np.int32)
    rows = np.flatnonzero(pool.kind == Kind.COMM)
    if len(rows):
        rows = rows[np.argsort(pool.end[rows], kind="stable")]
        ends = pool.end[rows]
        at = np.minimum(np.searchsorted(ends, start), len(ends) - 1)
        hit = ends[at] == start
        lane[hit] = pool.lane[rows[at[hit]]]
    return lane


def _waiting(host: Spans, start: Int, ready: Int, launched: Index, ended: NDArray[np.bool_]) -> Int:
    """How much of the host's part of each gap its launching thread waits for communication.

    ``ended``: gaps that follow a communication; for these the call in which the thread stood counts as waiting too.
    """
    waiting = np.zeros(len(start), np.int64)
    ranges = host.take(named(host, COMM_RANGES) & is_range(host))
    syncs = host.take(named(host, SYNC_CALLS) & (host.kind == Kind.LAUNCH))
    for lane, chosen in _by_lane(launched, host):
        own = syncs.take(syncs.lane == lane)
        begin = start[chosen & ended]
        # The synchronisation call that the thread entered last before the gap, up to its return.
        at = np.searchsorted(own.start, begin) - 1
        until = np.where(at >= 0, own.end[at], begin) if len(own) else begin
        inside = ranges.take(ranges.lane == lane)
        waits = union(np.concatenate((inside.start, begin)), np.concatenate((inside.end, np.maximum(until, begin))))
        waiting[chosen] = covered(waits, start[chosen], ready[chosen])
    return waiting


def _by_lane(launched: Index, host: Spans) -> list[tuple[int, NDArray[np.bool_]]]:
    """Gaps by the thread whose launch ended them."""
    known = launched >= 0
    if not known.any():
        return []
    lane = np.where(known, host.lane[launched], -1)
    return [(each, lane == each) for each in used(lane[known])]


def _largest(durations: Int) -> Int:
    """Positions of the ten largest, in falling order; of equal ones the first."""
    if len(durations) > SHOWN_GAPS:
        # All that tie with the tenth, sorted: which of equals are listed must not depend on the partition.
        rows = np.flatnonzero(durations >= np.partition(durations, -SHOWN_GAPS)[-SHOWN_GAPS])
        return rows[np.argsort(-durations[rows], kind="stable")[:SHOWN_GAPS]]
    return np.argsort(-durations, kind="stable")


def marked_waits(rank: RankTimeline) -> Union:
    """Return when ranges of the host say that it waits for communication.

    On a processor those of any thread; with a device those of the threads that mark steps, since what others wait for
    holds nobody back.
    """
    chosen = named(rank.host, COMM_RANGES)
    if not rank.on_host:
        lanes = used(rank.host.lane[named(rank.host, step_mark)])
        chosen &= is_range(rank.host) & np.isin(rank.host.lane, lanes)
    ranges = rank.host.take(chosen)
    return union(ranges.start, ranges.end)


def _on_host(rank: RankTimeline, window: Window, idle: Union) -> IdleCauses:
    """Idle time of a processor: only marked waits tell their cause."""
    waits = marked_waits(rank)
    total, waited = length(idle), length(intersect(idle, waits))
    causes = dict.fromkeys(CAUSES, 0) | {"communication": waited, "unknown": total - waited}
    share = covered(waits, *idle)
    order = _largest(idle[1] - idle[0])
    longest = tuple(
        Gap(start, end, "communication" if 2 * wait > end - start else "unknown", "")
        for start, end, wait in zip(*(column[order].tolist() for column in (*idle, share)), strict=True)
    )
    # Nothing is launched here: the threads that mark steps are those whose doing explains the idle time.
    marks = rank.host.take(named(rank.host, step_mark))
    by_lane = [(lane, idle) for lane in used(marks.lane)]
    return IdleCauses(total, causes, len(idle[0]), longest, doing(rank.host, by_lane), launch_stats(rank, window))
