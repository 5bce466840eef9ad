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

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from densing.timeline.launches import BUSY, SYNC_CALLS, launch_of, named, uncut
from densing.timeline.meanwhile import STEP_MARK
from densing.timeline.nesting import innermost
from densing.timeline.spans import Int, Kind, Spans
from densing.timeline.timeline import RankTimeline
from densing.timeline.windows import Window

WAIT_CALLS = re.compile(r"wait_?(on_?)?events?|enqueueeventswait", re.I)
USUAL_PAUSES = 4
_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True, eq=False)
class Graph:
    """Binding edges of one rank.

    Attributes
    ----------
    nodes : Spans
        What occupies the device, without empty spans; disjoint per thread in a run without a device.
    before : int64 (n,)
        Node that each node waited for last; -1 if that was its launch, or nothing known.
    call : int64 (n,)
        Launch call (position in ``calls``) that it waited for last; -1 otherwise.
    calls : Spans
        Runtime calls of the host; the last row stands for the end of the window on the main thread.
    wake : int64 (m,)
        Synchronisation call that last held the thread of each call before it; -1 none.
    reached : int64 (m,)
        Node that a synchronisation call waited for; -1 for other calls.
    """

    nodes: Spans
    before: Int
    call: Int
    calls: Spans
    wake: Int
    reached: Int


def graph(rank: RankTimeline, window: Window) -> Graph:
    """Infer what each span of a window waited for last; rules in the module's text."""
    nodes = _nodes(rank, window)
    calls = _calls(rank, window)
    launch = launch_of(nodes, calls)
    launch = np.where((launch >= 0) & (calls.start[launch] <= nodes.start), launch, -1)
    before, call = _binding(nodes, calls, launch)
    reached = _reached(nodes, calls, launch, rank.work.of(Kind.SYNC))
    return Graph(nodes, before, call, calls, _woken(calls, reached), reached)


def _nodes(rank: RankTimeline, window: Window) -> Spans:
    kinds = (*BUSY, Kind.CALL) if rank.on_host else BUSY
    work = uncut(rank, window).of(*kinds)
    work = work.take(work.end > work.start)
    return _flat(work) if rank.on_host else work


def _flat(work: Spans) -> Spans:
    """Nested operators of a processor, as the innermost one at each moment."""
    starts, ends, which = [], [], []
    for lane in np.unique(work.lane).tolist():
        at = np.flatnonzero(work.lane == lane)
        found = innermost(work.start[at], work.end[at])
        starts.append(found.start)
        ends.append(found.end)
        which.append(at[found.which])
    if not starts:
        return work
    index = np.concatenate(which)
    columns = {key: getattr(work, key)[index] for key in ("kind", "name", "lane", "bytes", "correlation", "comm")}
    times = {"start": np.concatenate(starts), "end": np.concatenate(ends)}
    return Spans.columns({**columns, **times}, work.names, work.lanes, work.comms)


def _calls(rank: RankTimeline, window: Window) -> Spans:
    """Runtime calls up to the window's end, and a last row for that end."""
    host = rank.host
    calls = host.take((host.kind == Kind.LAUNCH) & (host.start < window.end))
    marks = host.lane[named(host, STEP_MARK)]
    main = int(marks[-1]) if len(marks) else int(calls.lane[-1]) if len(calls) else 0
    row = {"start": window.end, "end": window.end, "kind": int(Kind.LAUNCH), "name": len(host.names), "lane": main,
           "bytes": -1, "correlation": -1, "comm": -1}  # fmt: skip
    columns = {key: np.append(getattr(calls, key), value) for key, value in row.items()}
    return Spans.columns(columns, (*host.names, ""), host.lanes, host.comms)


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
    at = np.searchsorted(ends[order], moments, side="right") - 1
    return np.where(at >= 0, order[np.maximum(at, 0)], -1)


def _neighbours(nodes: Spans) -> Int:
    """The node that ended last before each node on the same lane."""
    found = np.full(len(nodes), -1, np.int64)
    for lane in np.unique(nodes.lane).tolist():
        at = np.flatnonzero(nodes.lane == lane)
        near = last_ended(nodes.end[at], nodes.start[at])
        found[at] = np.where(near >= 0, at[near], -1)
    return found


def _ends(nodes: Spans, index: Int) -> Int:
    return np.where(index >= 0, nodes.end[index], _NEVER) if len(nodes) else np.zeros(0, np.int64)


def _binding(nodes: Spans, calls: Spans, launch: Int) -> tuple[Int, Int]:
    """Which node, or else which launch call, each node waited for last."""
    if len(nodes) == 0:
        return launch, launch
    lane, any_lane = _neighbours(nodes), last_ended(nodes.end, nodes.start)
    by_lane, by_other = _ends(nodes, lane), _ends(nodes, any_lane)
    delay = (nodes.start - calls.start[launch])[launch >= 0]
    quickest = int(delay.min()) if len(delay) else 0
    by_launch = np.where(launch >= 0, calls.start[launch] + quickest, _NEVER)
    own = np.maximum(by_lane, by_launch)
    held = _held(nodes, calls, launch, lane, own)
    other = (by_other > own) & (held | (own == _NEVER))
    launched = ~other & (by_launch > by_lane)
    return np.where(other, any_lane, np.where(launched, -1, lane)), np.where(launched, launch, -1)


def _held(nodes: Spans, calls: Spans, launch: Int, lane: Int, own: Int) -> NDArray[np.bool_]:
    """Whether something besides its stream and its launch may have held each node."""
    waits = calls.start[named(calls, WAIT_CALLS)]
    paused = nodes.start - np.maximum(own, nodes.start - 2**62) > _usual_pause(nodes, calls, launch, lane)
    if len(waits) == 0:
        return paused
    known = launch >= 0
    since = np.where((lane >= 0) & (launch[lane] >= 0), calls.start[launch[lane]], _NEVER)
    between = np.searchsorted(waits, calls.start[launch]) > np.searchsorted(waits, since, side="right")
    return np.where(known, between, paused)


def _usual_pause(nodes: Spans, calls: Spans, launch: Int, lane: Int) -> int:
    """Four times the median pause between neighbours of which the second was launched in time."""
    in_time = np.where(launch >= 0, calls.start[launch] <= _ends(nodes, lane), True) & (lane >= 0)
    pauses = (nodes.start - _ends(nodes, lane))[in_time]
    return USUAL_PAUSES * int(np.median(pauses)) if len(pauses) else 0


def _reached(nodes: Spans, calls: Spans, launch: Int, records: Spans) -> Int:
    """The node that each synchronisation call waited for."""
    syncs = np.flatnonzero(named(calls, SYNC_CALLS))
    found = np.full(len(calls), -1, np.int64)
    found[syncs] = last_ended(nodes.end, calls.end[syncs])
    _narrow(found, nodes, calls, syncs, records)
    copies = np.flatnonzero((launch >= 0) & (nodes.kind == Kind.MEMCPY))
    blocking = copies[nodes.end[copies] <= calls.end[launch[copies]]]
    found[launch[blocking]] = blocking
    within = (found >= 0) & (_ends(nodes, found) > calls.start) if len(nodes) else np.zeros(len(calls), bool)
    return np.where(within, found, -1)


def _narrow(found: Int, nodes: Spans, calls: Spans, syncs: Int, records: Spans) -> None:
    """Where the trace records which stream a call waited for, look on that stream only."""
    if len(records) == 0:
        return
    wanted = calls.correlation[syncs]
    order = np.argsort(records.correlation, kind="stable")
    at = np.minimum(np.searchsorted(records.correlation[order], wanted), len(order) - 1)
    match = (wanted >= 0) & (records.correlation[order][at] == wanted)
    lane = np.where(match, records.lane[order[at]], -1)
    for each in np.unique(lane[match]).tolist():
        on = np.flatnonzero(nodes.lane == each)
        if len(on):
            chosen = syncs[lane == each]
            near = last_ended(nodes.end[on], calls.end[chosen])
            found[chosen] = np.where(near >= 0, on[near], -1)


def _woken(calls: Spans, reached: Int) -> Int:
    """The synchronisation call that last held the thread of each call before it."""
    wake = np.full(len(calls), -1, np.int64)
    held = np.flatnonzero(reached >= 0)
    for lane in np.unique(calls.lane).tolist():
        at = np.flatnonzero(calls.lane == lane)
        previous = np.concatenate(([-1], at[:-1]))
        silent = np.where(previous >= 0, calls.end[previous], _NEVER)
        near = last_ended(calls.end[held], calls.start[at])
        other = np.where(near >= 0, held[near], -1) if len(held) else near
        other = np.where((other >= 0) & (calls.start[other] >= silent), other, -1)
        own = (previous >= 0) & (reached[previous] >= 0) & (calls.end[previous] <= calls.start[at])
        fresh = np.where(own, previous, other)
        latest = np.maximum.accumulate(np.where(fresh >= 0, np.arange(len(at)), -1))
        wake[at] = np.where(latest >= 0, fresh[latest], -1)
    return wake
