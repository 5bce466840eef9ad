"""What each device span waited for: the binding edges of the happens-before graph, found for all spans at once.

Edges: a span follows the span before it on its stream, the call that launched it, and a span of another stream where
an event made it wait. A host thread follows its own program, and stands still in a synchronisation call until the
device has reached a point. Traces name neither events nor what a call waited for, so the *binding* edge, the one that
came last, is inferred from times:

- A launch takes effect no sooner than λ after its call began, λ = the shortest delay seen on the rank.
- The span before on the same stream explains a start unless the launch took effect later.
- A span of another stream explains it if it ended later than both and the stream was held: where the trace records
  stream-wait calls, one must lie between the launches of the two neighbours on the stream; where it records none, the
  pause before the start must be longer than the stream's usual pause (4 × the median over spans that were launched
  in time).
- A synchronisation call waited for the device if a span ended while it stood; it waited for the last one of these. A
  copy's own launch call did so if the copy ended within the call (a blocking copy).
- A thread that had made no call since before such a call of another thread began was woken by that call.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from densing.efficiency.timeline.arrays import Index, Int, blocks, distinct, median, used
from densing.efficiency.timeline.launches import SYNC_CALLS, launch_of, named, uncut
from densing.efficiency.timeline.nesting import innermost, step_mark
from densing.efficiency.timeline.patterns import any_case
from densing.efficiency.timeline.spans import BUSY, Kind, Spans
from densing.efficiency.timeline.timeline import RankTimeline
from densing.efficiency.timeline.windows import Window

WAIT_CALLS = any_case("waitevent|wait_event|waitonevent|waiton_event|wait_onevent|wait_on_event|enqueueeventswait")
USUAL_PAUSES = 4
_NEVER = np.iinfo(np.int64).min


class Graph(msgspec.Struct, frozen=True, eq=False):
    """Binding edges of one rank.

    Attributes
    ----------
    nodes : Spans
        What occupies the device, without empty spans; disjoint per thread in a run without a device.
    before : int32 (n,)
        Node that each node waited for last; -1 if that was its launch, or nothing known.
    call : int32 (n,)
        Launch call (row of the host's table) that it waited for last; -1 otherwise.
    wake : int32 (m + 1,)
        For each runtime call among the m rows of the host's table, the synchronisation call that last held its thread
        before it; -1 none. The last entry stands for the end of the window on the main thread.
    reached : int32 (m + 1,)
        Node that a synchronisation call waited for; -1 for other rows.
    main : int
        Lane of the main thread.
    calls, syncs : int
        How many runtime calls began before the window's end, and how many of them synchronise.
    """

    nodes: Spans
    before: Index
    call: Index
    wake: Index
    reached: Index
    main: int
    calls: int
    syncs: int


def graph(rank: RankTimeline, window: Window) -> Graph:
    """Infer what each span of a window waited for last; rules in the module's text."""
    nodes, host = _nodes(rank, window), rank.host
    called = (host.kind == Kind.LAUNCH) & (host.start < window.end)
    launch = launch_of(nodes, host)
    if len(host):
        launch[host.start[launch] > nodes.start] = -1
    before, call = _binding(nodes, host, launch, host.start[named(host, WAIT_CALLS) & called])
    syncs = np.flatnonzero(named(host, SYNC_CALLS) & called)
    reached = _reached(nodes, host, launch, syncs, rank.work.of(Kind.SYNC))
    main = _main(host, called)
    wake = _woken(host, called, reached, window.end, main)
    return Graph(nodes, before, call, wake, reached, main, int(called.sum()), len(syncs))


def _nodes(rank: RankTimeline, window: Window) -> Spans:
    kinds = (*BUSY, Kind.CALL) if rank.on_host else BUSY
    work = uncut(rank, window).of(*kinds)
    work = work.take(work.end > work.start)
    return _flat(work) if rank.on_host else work


def _flat(work: Spans) -> Spans:
    """Nested operators of a processor, as the innermost one at each moment."""
    starts, ends, rows = [], [], []
    for lane in used(work.lane):
        at = np.flatnonzero(work.lane == lane)
        segments = innermost(work.start[at], work.end[at])
        starts.append(segments.start)
        ends.append(segments.end)
        rows.append(at[segments.which])
    if not starts:
        return work
    index = np.concatenate(rows)
    columns = {key: getattr(work, key)[index] for key in ("kind", "name", "lane", "bytes", "correlation", "comm")}
    times = {"start": np.concatenate(starts), "end": np.concatenate(ends)}
    return Spans.columns({**columns, **times}, work.names, work.lanes, work.comms)


def _main(host: Spans, called: NDArray[np.bool_]) -> int:
    """Lane of the last step mark, else of the last runtime call."""
    for rows in (named(host, step_mark), called):
        if rows.any():
            return int(host.lane[len(rows) - 1 - int(rows[::-1].argmax())])
    return 0


def last_ended(ends: Int, moments: Int) -> Int:
    """Return, for each moment, which interval ended last at or before it; -1 if none.

    Examples
    --------
    >>> last_ended(np.array([30, 10]), np.array([5, 10, 40]))
    array([-1,  1,  0])
    """
    if len(ends) == 0:
        return np.full(len(moments), -1, np.int64)
    order = np.argsort(ends, kind="stable")
    ordered = ends[order]
    last = np.empty(len(moments), np.int64)
    for part in blocks(len(moments)):
        at = np.searchsorted(ordered, moments[part], side="right") - 1
        last[part] = np.where(at >= 0, order[np.maximum(at, 0)], -1)
    return last


def _neighbours(nodes: Spans) -> Index:
    """The node that ended last before each node on the same lane."""
    before = np.full(len(nodes), -1, np.int32)
    for lane in used(nodes.lane):
        at = np.flatnonzero(nodes.lane == lane)
        near = last_ended(nodes.end[at], nodes.start[at])
        before[at] = np.where(near >= 0, at[near], -1)
    return before


def _times(column: Int, index: Index) -> Int:
    """Moments of some rows; long ago for -1."""
    return np.where(index >= 0, column[index], _NEVER) if len(column) else np.full(len(index), _NEVER)


class _Near(NamedTuple):
    """What may have held each node: its launch, the node before it on its lane and on any; and the usual times."""

    launch: Index
    lane: Index
    any_lane: Index
    waits: Int
    quickest: int
    pause: int


def _binding(nodes: Spans, host: Spans, launch: Index, waits: Int) -> tuple[Index, Index]:
    """Which node, or else which launch call, each node waited for last."""
    before, call = np.empty_like(launch), np.empty_like(launch)
    if len(nodes) == 0:
        return before, call
    lane = _neighbours(nodes)
    quickest, pause = _usual(nodes, host, launch, lane)
    near = _Near(launch, lane, last_ended(nodes.end, nodes.start).astype(np.int32), waits, quickest, pause)
    for part in blocks(len(nodes)):
        before[part], call[part] = _bound(nodes, host, near, part)
    return before, call


def _bound(nodes: Spans, host: Spans, near: _Near, part: slice) -> tuple[Index, Index]:
    launch, lane, any_lane = near.launch[part], near.lane[part], near.any_lane[part]
    by_lane, by_other, called = _times(nodes.end, lane), _times(nodes.end, any_lane), _times(host.start, launch)
    by_launch = np.where(launch >= 0, called + near.quickest, _NEVER)
    own = np.maximum(by_lane, by_launch)
    since = _times(host.start, np.where(lane >= 0, near.launch[lane], -1))
    held = _held(nodes.start[part], own, called, since, near)
    other = (by_other > own) & (held | (own == _NEVER))
    launched = ~other & (by_launch > by_lane)
    return np.where(other, any_lane, np.where(launched, -1, lane)), np.where(launched, launch, -1)


def _held(start: Int, own: Int, called: Int, since: Int, near: _Near) -> NDArray[np.bool_]:
    """Whether something besides its stream and its launch may have held each node."""
    paused = start - np.maximum(own, start - 2**62) > near.pause
    if len(near.waits) == 0:
        return paused
    between = np.searchsorted(near.waits, called) > np.searchsorted(near.waits, since, side="right")
    return np.where(called > _NEVER, between, paused)


def _usual(nodes: Spans, host: Spans, launch: Index, lane: Index) -> tuple[int, int]:
    """The shortest launch delay; four times the median pause between neighbours, the second launched in time."""
    quickest, pauses = np.iinfo(np.int64).max, []
    for part in blocks(len(nodes)):
        start, called, before = nodes.start[part], _times(host.start, launch[part]), _times(nodes.end, lane[part])
        delays = (start - called)[launch[part] >= 0]
        quickest = min(quickest, int(delays.min(initial=quickest)))
        in_time = (called <= before) & (lane[part] >= 0)
        pauses.append((start - before)[in_time])
    in_line = np.concatenate(pauses)
    pause = USUAL_PAUSES * int(median(in_line)) if len(in_line) else 0
    return quickest if np.any(launch >= 0) else 0, pause


def _reached(nodes: Spans, host: Spans, launch: Index, syncs: Int, records: Spans) -> Index:
    """The node that each synchronisation call waited for."""
    reached = np.full(len(host) + 1, -1, np.int32)
    reached[syncs] = last_ended(nodes.end, host.end[syncs])
    _narrow(reached, nodes, host, syncs, records)
    copies = np.flatnonzero((launch >= 0) & (nodes.kind == Kind.MEMCPY))
    blocking = copies[nodes.end[copies] <= host.end[launch[copies]]]
    reached[launch[blocking]] = blocking
    # A call that began when its node had ended already did not wait for it.
    calls = np.flatnonzero(reached >= 0)
    reached[calls[nodes.end[reached[calls]] <= host.start[calls]]] = -1
    return reached


def _narrow(reached: Index, nodes: Spans, calls: Spans, syncs: Int, records: Spans) -> None:
    """Where the trace records which stream a call waited for, look on that stream only."""
    if len(records) == 0:
        return
    correlation = calls.correlation[syncs]
    order = np.argsort(records.correlation, kind="stable")
    at = np.minimum(np.searchsorted(records.correlation[order], correlation), len(order) - 1)
    match = (correlation >= 0) & (records.correlation[order][at] == correlation)
    lane = np.where(match, records.lane[order[at]], -1)
    for each in np.unique(lane[match]).tolist():
        on = np.flatnonzero(nodes.lane == each)
        if len(on):
            chosen = syncs[lane == each]
            near = last_ended(nodes.end[on], calls.end[chosen])
            reached[chosen] = np.where(near >= 0, on[near], -1)


def _woken(host: Spans, called: NDArray[np.bool_], reached: Index, end: int, main: int) -> Index:
    """The synchronisation call that last held the thread of each call before it."""
    wake = np.full(len(host) + 1, -1, np.int32)
    held = np.flatnonzero(reached >= 0)
    if len(held) == 0:
        return wake
    for lane in sorted({*used(host.lane[called]), main}):
        at = np.flatnonzero(called & (host.lane == lane)).astype(np.int32)
        start = host.start[at]
        if lane == main:
            at, start = np.append(at, np.int32(len(host))), np.append(start, end)
        first, fresh = _fresh(host, reached, held, held[host.lane[held] == lane], at, start)
        if len(first):
            wake[at[first[0] :]] = np.repeat(fresh, np.diff(first, append=len(at)))
    return wake


def _fresh(host: Spans, reached: Index, held: Int, own: Int, at: Index, start: Int) -> tuple[Int, Index]:
    """Which calls of a thread were the first after it was held, and what held it.

    Only these can be: the call after a synchronisation of the thread itself, and the first after one of any thread.
    """
    after = np.concatenate((np.searchsorted(at, own) + 1, np.searchsorted(start, host.end[held])))
    first = distinct(after[after < len(at)])
    previous = np.where(first > 0, at[first - 1], -1)
    near = last_ended(host.end[held], start[first])
    other = np.where(near >= 0, held[near], -1)
    other = np.where((other >= 0) & (host.start[other] >= _times(host.end, previous)), other, -1)
    itself = (previous >= 0) & (reached[previous] >= 0) & (_times(host.end, previous) <= start[first])
    fresh = np.where(itself, previous, other).astype(np.int32)
    return first[fresh >= 0], fresh[fresh >= 0]
