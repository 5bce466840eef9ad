"""The critical path of one rank: the chain of work and waits that determines the length of the window.

The path is walked back from the window's end along binding edges; its segments tile the window. Shortening what is not
on it gains nothing; shortening what is on it gains at most that much.

The edges are those of the happens-before graph, found for all spans at once: a span follows the span before it on its
stream, the call that launched it, and a span of another stream where an event made it wait. A host thread follows its
own program, and stands still in a synchronisation call until the device has reached a point. Traces name neither events
nor what a call waited for, so the *binding* edge, the one that came last, is inferred from times:

- A launch takes effect no sooner than λ after its call began, λ = the shortest delay seen on the rank.
- The span before on the same stream explains a start unless the launch took effect later.
- A span of another stream explains it if it ended later than both and the stream was held: where the trace records
  stream-wait calls, one must lie between the launches of the two neighbours on the stream; where it records none, the
  pause before the start must be longer than the stream's usual pause (4 × the median over spans that were launched
  in time). Where the launch is not recorded it also explains a communication, and what it precedes ten times closer.
- A synchronisation call waited for the device if a span ended while it stood; it waited for the last one of these. A
  copy's own launch call did so if the copy ended within the call (a blocking copy).
- Without a device, a call into a communication library in which a communication ended waited for it until then.
- A thread that had made no call since before such a call of another thread began was woken by that call.
- Where the trace records no synchronisation call, a pause of the host counts as one if it is longer than usual (4 × the
  lower quartile) and for at least half of it the device still worked on what had been launched before.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from densing.core import Note, Record
from densing.efficiency.timeline.classifier import any_case
from densing.efficiency.timeline.host import (
    SYNC_CALLS,
    Segments,
    innermost,
    is_range,
    launch_of,
    named,
    step_mark,
    uncut,
)
from densing.efficiency.timeline.intervals import Index, Int, blocks, distinct, median, positions, quantile, used
from densing.efficiency.timeline.overlap import Window
from densing.efficiency.timeline.timeline import BUSY, Kind, RankTimeline, Spans

PATH_KINDS = ("compute", "communication", "memcpy", "host", "launch", "idle")
COMPUTE, COMMUNICATION, MEMCPY, HOST, LAUNCH, IDLE = range(6)
KEPT_SEGMENTS = 1_000
SHOWN_NAMES = 20
INFERRED_WAIT = "(inferred wait for the device)"
"""Name of the calls that stand for waits in traces which record none."""
WAIT_CALLS = any_case("waitevent|wait_event|waitonevent|waiton_event|wait_onevent|wait_on_event|enqueueeventswait")
USUAL_PAUSES = 4
MUCH_CLOSER = 10
_NEVER = np.iinfo(np.int64).min

_KIND_TABLE = np.full(len(Kind), IDLE, np.int8)
_KIND_TABLE[[Kind.COMPUTE, Kind.COMM, Kind.CALL]] = COMPUTE, COMMUNICATION, HOST
_KIND_TABLE[[Kind.MEMCPY, Kind.MEMSET]] = MEMCPY


class _Segments(Record, frozen=True):
    """The segments of a stored path: columns of equal length, kinds, lanes and names as texts."""

    start_ns: list[int]
    end_ns: list[int]
    kind: list[str]
    lane: list[str]
    name: list[str]


class _Stored(Record, frozen=True):
    """A path as it is written."""

    totals: dict[str, int]
    bound_by: str | None
    coverage: float | None
    top: list[list[str | int]]
    notes: list[Note]
    segments: _Segments
    left_out: int
    left_out_ns: int


class CriticalPath(msgspec.Struct, frozen=True, eq=False):
    """What bounded one rank.

    Attributes
    ----------
    start, end : int64 (n,)
        Segments in order of time, ns; they tile the window.
    kind : int8 (n,)
        Position in :data:`PATH_KINDS`. ``host``: the host's program, synchronisation calls returning; ``launch``: from
        the launch call to the start of its span; ``idle``: pauses that no record explains.
    lane, name : int32 (n,)
        Positions in ``lanes`` and ``names``; a host segment is named by the range that ran in it.
    lanes, names : tuple of str
    totals : mapping of str to int
        Nanoseconds by kind, every kind; they sum to the window.
    notes : tuple of Note
        What the trace does not record, and so the path cannot know.
    left_out, left_out_ns : int
        Segments that a stored path no longer lists, and their length; 0 for a fresh one.
    top : tuple of (kind, name, ns)
        The twenty names with most time on the path.
    """

    start: Int
    end: Int
    kind: NDArray[np.int8]
    lane: NDArray[np.int32]
    name: NDArray[np.int32]
    lanes: tuple[str, ...]
    names: tuple[str, ...]
    totals: Mapping[str, int]
    top: tuple[tuple[str, str, int], ...]
    notes: tuple[Note, ...] = ()
    left_out: int = 0
    left_out_ns: int = 0

    @property
    def bound_by(self) -> str | None:
        """The kind with most time on the path; None for an empty window."""
        best = max(PATH_KINDS, key=lambda kind: self.totals[kind])
        return best if self.totals[best] else None

    @property
    def coverage(self) -> float | None:
        """Share of the path that records explain, 1 − idle/path; None for an empty window."""
        total = sum(self.totals.values())
        return 1 - self.totals["idle"] / total if total else None

    def to_dict(self, segments: int = KEPT_SEGMENTS) -> dict[str, Any]:
        """Return plain data with the longest segments; totals stay those of the whole path."""
        longest = np.argsort(self.start - self.end, kind="stable")[:segments]
        listed = np.sort(longest)
        unlisted_ns = int((self.end - self.start).sum() - (self.end - self.start)[listed].sum())
        columns = _Segments(
            self.start[listed].tolist(),
            self.end[listed].tolist(),
            [PATH_KINDS[code] for code in self.kind[listed]],
            [self.lanes[code] for code in self.lane[listed]],
            [self.names[code] for code in self.name[listed]],
        )
        stored = _Stored(
            totals=dict(self.totals),
            bound_by=self.bound_by,
            coverage=self.coverage,
            top=[list(row) for row in self.top],
            notes=list(self.notes),
            segments=columns,
            left_out=self.left_out + len(self.start) - len(listed),
            left_out_ns=self.left_out_ns + unlisted_ns,
        )
        return stored.to_dict()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CriticalPath:
        """Rebuild what :meth:`to_dict` wrote."""
        stored = _Stored.from_dict(data)
        columns = stored.segments
        lanes, names = tuple(dict.fromkeys(columns.lane)), tuple(dict.fromkeys(columns.name))
        return cls(
            start=np.array(columns.start_ns, np.int64),
            end=np.array(columns.end_ns, np.int64),
            kind=np.array([PATH_KINDS.index(kind) for kind in columns.kind], np.int8),
            lane=np.array([lanes.index(lane) for lane in columns.lane], np.int32),
            name=np.array([names.index(name) for name in columns.name], np.int32),
            lanes=lanes,
            names=names,
            totals=stored.totals,
            top=msgspec.convert(stored.top, tuple[tuple[str, str, int], ...]),
            notes=tuple(stored.notes),
            left_out=stored.left_out,
            left_out_ns=stored.left_out_ns,
        )


def critical_path(rank: RankTimeline, window: Window, edges: Graph | None = None) -> CriticalPath:
    """Find the critical path of a rank: the longest chain of dependencies that ends with the window.

    Works with launches only, without any host record (waits are then ``idle``), and for runs without a device.

    Parameters
    ----------
    rank : RankTimeline
    window : Window
    edges : Graph, optional
        What :func:`graph` found, if it is known already.

    Notes
    -----
    Source: longest path of the happens-before graph, as in HolisticTraceAnalysis' critical path analysis; the edges
    are inferred, since traces name no events. Between ranks: :mod:`densing.efficiency.profile.critical`.

    Examples
    --------
    >>> from densing.efficiency.timeline import Spans, select
    >>> call = {"start": 0, "end": 5, "kind": Kind.LAUNCH, "name": "cudaLaunchKernel", "correlation": 1}
    >>> work = Spans.build([{"start": 8, "end": 20, "kind": Kind.COMPUTE, "name": "gemm", "correlation": 1},
    ...                     {"start": 20, "end": 50, "kind": Kind.COMM, "name": "ncclDevKernel_AllReduce"}])
    >>> rank = RankTimeline(0, work, Spans.build([call]))
    >>> path = critical_path(rank, select(rank))
    >>> path.totals["compute"], path.totals["communication"], path.bound_by
    (12, 30, 'communication')
    """
    edges = graph(rank, window) if edges is None else edges
    nodes, host = edges.nodes, edges.host
    table = _walk(edges, host, window.start, window.end)
    lanes = tuple(lane.text for lane in (*nodes.lanes, *host.lanes))
    names = (*nodes.names, *host.names, "")
    table, names = host_names(table, names, host, HOST, len(nodes.lanes))
    start, end, kind, lane, name = table.T
    length = end - start
    totals = {each: int(length[kind == code].sum()) for code, each in enumerate(PATH_KINDS)}
    # Sums by kind and name; of equal ones the first stays first.
    keys, position = np.unique(kind * len(names) + name, return_inverse=True)
    sums = np.zeros(len(keys), np.int64)
    np.add.at(sums, position, length)
    order = np.argsort(-sums, kind="stable")[:SHOWN_NAMES].tolist()
    top = tuple((PATH_KINDS[keys[at] // len(names)], names[keys[at] % len(names)], int(sums[at])) for at in order)
    assert sum(totals.values()) == max(window.end - window.start, 0), "a critical path that does not tile its window"
    return CriticalPath(
        start,
        end,
        kind.astype(np.int8),
        lane.astype(np.int32),
        name.astype(np.int32),
        lanes,
        names,
        totals,
        top,
        _unrecorded(rank, edges),
    )


def _unrecorded(rank: RankTimeline, edges: Graph) -> tuple[Note, ...]:
    """Yield notes on missing records without which waits are invisible."""
    if rank.on_host:
        message = "a run without a device records no waits; they are inferred from pauses"
        return (Note("waits-inferred", "info", message),)
    if len(edges.nodes) and not np.any(rank.host.kind == Kind.LAUNCH):
        message = "the trace records no launches, so delays by the host count as idle"
        return (Note("no-launch-records", "info", message),)
    if len(edges.nodes) and not edges.syncs:
        message = (
            "the trace records no synchronisation calls; long pauses of the host that end with the device's work "
            "count as waits for it"
        )
        return (Note("no-synchronisation-records", "info", message),)
    return ()


class _Tape:
    """Segments written backwards in time: start, end, kind, lane, name."""

    def __init__(self, start: int, end: int) -> None:
        self.floor, self.at = start, end
        self.cells = array("q")

    def back_to(self, moment: int, kind: int, lane: int, name: int) -> None:
        """Add a segment from ``moment`` to the current beginning of the tape."""
        moment = max(moment, self.floor)
        if moment < self.at:
            self.cells.extend((moment, self.at, kind, lane, name))
            self.at = moment

    def table(self) -> NDArray[np.int64]:
        """Return the segments in order of time, one per row."""
        return np.array(self.cells, np.int64).reshape(-1, 5)[::-1]


class _Columns:
    """Columns of a table as memory views: single values of them cost a third of numpy's, and no copy."""

    def __init__(self, spans: Spans) -> None:
        self.start, self.end = spans.start.data, spans.end.data
        self.lane, self.name = spans.lane.data, spans.name.data


def _walk(edges: Graph, host: Spans, start: int, end: int) -> NDArray[np.int64]:
    """Follow binding edges from the window's end to its start."""
    nodes, calls, tape = _Columns(edges.nodes), _Columns(host), _Tape(start, end)
    before, launched = edges.before.data, edges.call.data
    wake, reached = edges.wake.data, edges.reached.data
    kinds = _KIND_TABLE[edges.nodes.kind].data
    # Lanes and names of the host stand after those of the device; the last name is empty.
    lane0, name0 = len(edges.nodes.lanes), len(edges.nodes.names)
    unnamed, has_calls = name0 + len(host.names), edges.calls > 0
    call, thread = len(host), edges.main + lane0
    node = int(np.argmax(edges.nodes.end)) if len(edges.nodes) else -1
    # If device work ended before the window, the host's program came last.
    if node >= 0 and nodes.end[node] < end and has_calls:
        node = -1
    while tape.at > start:
        if node >= 0:
            # No record explains a pause between the end of this node and what waited for it.
            tape.back_to(nodes.end[node], IDLE, nodes.lane[node], unnamed)
            tape.back_to(nodes.start[node], kinds[node], nodes.lane[node], nodes.name[node])
            call = launched[node]
            if call < 0 and before[node] < 0:
                tape.back_to(start, IDLE, nodes.lane[node], unnamed)
            if call >= 0:
                thread = calls.lane[call] + lane0
                tape.back_to(calls.start[call], LAUNCH, thread, nodes.name[node])
            node = before[node]
        elif wake[call] >= 0:
            woken = wake[call]
            tape.back_to(calls.end[woken], HOST, thread, unnamed)
            call, node = woken, reached[woken]
            thread = calls.lane[call] + lane0
            tape.back_to(nodes.end[node], HOST, thread, calls.name[call] + name0)
        else:
            # Nothing held this thread before: its own program, back to the window's start.
            tape.back_to(start, HOST if has_calls else IDLE, thread, unnamed)
    return tape.table()


Table = NDArray[np.int64]


def host_names(
    table: Table, names: tuple[str, ...], host: Spans, kind: int, first_lane: int
) -> tuple[Table, tuple[str, ...]]:
    """Cut unnamed host segments where ranges begin and end, and name the pieces.

    Parameters
    ----------
    table : int64 (n, 5)
        Start, end, kind, lane, name of disjoint segments in order of time.
    names : tuple of str
        The last one is empty: the name of segments to be named.
    host : Spans
    kind : int
        Which kind is the host's.
    first_lane : int
        Number of the host's first lane.

    Returns
    -------
    table, names
        The same time in at least as many segments; the host's names stand after the others.
    """
    ranges = host.take(is_range(host) & ~named(host, step_mark))
    plain = len(names) - 1
    open_rows = (table[:, 2] == kind) & (table[:, 4] == plain)
    pieces = [table[~open_rows]]
    for lane in used(table[open_rows, 3]):
        own = ranges.take(ranges.lane == lane - first_lane)
        ran = innermost(own.start, own.end)
        pieces.append(_cut(table[open_rows & (table[:, 3] == lane)], ran, own.name, plain))
    merged = np.concatenate(pieces)
    return merged[np.argsort(merged[:, 0], kind="stable")], (*names, *host.names)


def _cut(rows: Table, ran: Segments, name: NDArray[np.int32], plain: int) -> Table:
    """Split rows of one lane at the boundaries of the ranges."""
    moments = distinct(np.concatenate((rows[:, 0], rows[:, 1], ran.start, ran.end)))
    left, right = moments[:-1], moments[1:]
    row = np.searchsorted(rows[:, 0], left, side="right") - 1
    inside = (row >= 0) & (left < rows[row, 1])
    left, right, row = left[inside], right[inside], row[inside]
    piece_name = np.full(len(left), plain, np.int64)
    if len(ran.start):
        at = np.searchsorted(ran.start, left, side="right") - 1
        covered = (at >= 0) & (left < ran.end[at])
        piece_name[covered] = plain + 1 + name[ran.which[at[covered]]]
    return np.column_stack((left, right, rows[row, 2], rows[row, 3], piece_name))


class Graph(msgspec.Struct, frozen=True, eq=False):
    """Binding edges of one rank.

    Attributes
    ----------
    nodes : Spans
        What occupies the device, without empty spans; disjoint per thread in a run without a device.
    host : Spans
        The host's rows; with inferred waits (:data:`INFERRED_WAIT`) where the trace records none.
    before : int32 (n,)
        Node that each node waited for last; -1 if that was its launch, or nothing known.
    call : int32 (n,)
        Launch call (row of the host's table) that it waited for last; -1 otherwise.
    launch, stream, other : int32 (n,)
        Of each node the call that launched it, the node that ended last before it on its lane, and the node of another
        lane that it waits for, whether that came last or not; -1 where unknown.
    quickest, pause : int
        Shortest launch delay; median pause between neighbours on a stream, ns.
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
    host: Spans
    before: Index
    call: Index
    launch: Index
    stream: Index
    other: Index
    quickest: int
    pause: int
    wake: Index
    reached: Index
    main: int
    calls: int
    syncs: int


def graph(rank: RankTimeline, window: Window) -> Graph:
    """Infer what each span of a window waited for last; the rules are in the module's docstring."""
    nodes = uncut(rank, window).of(*BUSY, *([Kind.CALL] if rank.on_host else []))
    nodes = nodes.take(nodes.end > nodes.start)
    nodes = _until_arrived(_flat(nodes)) if rank.on_host else _in_turn(nodes)
    host, launch = rank.host, _launched(nodes, rank.host)
    called = (host.kind == Kind.LAUNCH) & (host.start < window.end)
    syncs = np.flatnonzero(named(host, SYNC_CALLS) & called)
    recorded = len(syncs)
    if not recorded and (waits := _inferred_waits(nodes, host, launch, called, window.end)) is not None:
        host = waits
        launch = _launched(nodes, host)
        called = (host.kind == Kind.LAUNCH) & (host.start < window.end)
        syncs = np.flatnonzero(named(host, INFERRED_WAIT.__eq__))
    edges = _binding(nodes, host, launch, host.start[named(host, WAIT_CALLS) & called])
    reached = _reached(nodes, host, launch, syncs, rank.work.of(Kind.SYNC))
    # The main thread: that of the last step mark, else of the last runtime call.
    main = 0
    for rows in (named(host, step_mark), called):
        if rows.any():
            main = int(host.lane[len(rows) - 1 - int(rows[::-1].argmax())])
            break
    wake = _woken(host, called, reached, window.end, main)
    return Graph(nodes, host, *edges, wake, reached, main, int(called.sum()), recorded)


def _launched(nodes: Spans, host: Spans) -> Index:
    """The call that launched each node; -1 also where it began later, as clocks that disagree say."""
    launch = launch_of(nodes, host)
    if len(host):
        launch[host.start[launch] > nodes.start] = -1
    return launch


def launching(host: Spans, launch: Index, called: NDArray[np.bool_]) -> tuple[Index, Int]:
    """Return the calls of the threads that launch work, as one program: their rows, and until when each was preceded.

    Returns
    -------
    rows : int32 (k,)
        In order of start.
    free : int64 (k,)
        Latest end of the calls before each, ns; its own start for the first.
    """
    lanes = np.zeros(len(host.lanes) + 1, bool)
    lanes[host.lane[launch[launch >= 0]]] = True
    rows = np.flatnonzero(called & lanes[host.lane]).astype(np.int32)
    free = np.append(host.start[rows[:1]], np.maximum.accumulate(host.end[rows])[:-1])
    return rows, free[: len(rows)]


def _inferred_waits(nodes: Spans, host: Spans, launch: Index, called: NDArray[np.bool_], end: int) -> Spans | None:
    """The host's rows with a call for each pause in which it presumably waited for the device; None without any."""
    rows, free = launching(host, launch, called)
    if len(rows) < 2:
        return None
    # The window's end closes the last pause.
    until = np.append(host.start[rows[1:]], end)
    since = np.append(free[1:], host.end[rows].max())
    pause = until - since
    usual = USUAL_PAUSES * quantile(pause[pause > 0], 0.25) if np.any(pause[:-1] > 0) else 0
    # When the device is done with what was launched before each pause.
    done = np.full(len(rows), _NEVER)
    known = launch >= 0
    np.maximum.at(done, np.searchsorted(rows, launch[known]), nodes.end[known])
    done = np.maximum.accumulate(done)
    waits = np.flatnonzero((pause > usual) & (done > since) & (done <= until) & (2 * (done - since) >= pause))
    if len(waits) == 0:
        return None
    lane = host.lane[rows[np.minimum(waits + 1, len(rows) - 1)]]
    columns: dict[str, Any] = {
        key: np.concatenate((getattr(host, key), column))
        for key, column in {
            "start": since[waits],
            "end": done[waits],
            "kind": np.full(len(waits), Kind.LAUNCH),
            "name": np.full(len(waits), len(host.names)),
            "lane": lane,
            "correlation": np.full(len(waits), -1),
        }.items()
    }
    return Spans.columns(columns, (*host.names, INFERRED_WAIT), host.lanes)


def _flat(work: Spans) -> Spans:
    """Nested operators of a processor, as the innermost one at each moment."""
    starts, ends, rows = [], [], []
    for _, at in positions(work.lane):
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


def _until_arrived(nodes: Spans) -> Spans:
    """Take waiting out of a processor's communication calls: one in which a communication ended waited until then."""
    ends = np.sort(nodes.end[nodes.kind == Kind.COMM])
    if len(ends) == 0:
        return nodes
    at = np.searchsorted(ends, nodes.end, side="right") - 1
    arrived = np.where(at >= 0, ends[np.maximum(at, 0)], _NEVER)
    waited = (nodes.kind == Kind.CALL) & (arrived > nodes.start)
    nodes = msgspec.structs.replace(nodes, start=np.where(waited, arrived, nodes.start))
    nodes = nodes.take(nodes.end > nodes.start)
    return nodes.take(np.argsort(nodes.start, kind="stable"))


def _in_turn(nodes: Spans) -> Spans:
    """End a stream's spans where the next one begins, if they overlap by less than half of the shorter of both.

    Work on a stream is done in turn; what is left of overlaps are timestamps that were rounded. A span that truly
    overlaps the next one keeps its end.
    """
    end = nodes.end.copy()
    for _, at in positions(nodes.lane):
        at = at[np.argsort(nodes.start[at], kind="stable")]
        over, length = nodes.end[at[:-1]] - nodes.start[at[1:]], nodes.end[at] - nodes.start[at]
        rounded = (over > 0) & (2 * over < np.minimum(length[:-1], length[1:]))
        end[at[:-1][rounded]] -= over[rounded]
    return msgspec.structs.replace(nodes, end=end)


def last_ended(ends: Int, moments: Int) -> Int:
    """Return, for each moment, which interval ended last at or before it; -1 if none.

    Examples
    --------
    >>> last_ended(np.array([30, 10]), np.array([5, 10, 40]))
    array([-1,  1,  0])
    """
    if len(ends) == 0:
        return np.full(len(moments), -1, np.int64)
    # Stable: of those that end together the last row counts.
    order = np.argsort(ends, kind="stable")
    ordered = ends[order]
    last = np.empty(len(moments), np.int64)
    for part in blocks(len(moments)):
        at = np.searchsorted(ordered, moments[part], side="right") - 1
        last[part] = np.where(at >= 0, order[np.maximum(at, 0)], -1)
    return last


def _times(column: Int, index: Index) -> Int:
    """Moments of some rows; long ago for -1."""
    return np.where(index >= 0, column[index], _NEVER) if len(column) else np.full(len(index), _NEVER)


def _binding(
    nodes: Spans, host: Spans, launch: Index, waits: Int
) -> tuple[Index, Index, Index, Index, Index, int, int]:
    """What each node waited for (see :class:`Graph`); ``waits`` are starts of stream-wait calls."""
    before, call, other = np.empty_like(launch), np.empty_like(launch), np.full_like(launch, -1)
    if len(nodes) == 0:
        return before, call, launch, launch, other, 0, 0
    # Besides its launch a node may have waited for the node that ended last before it on its lane, or on any lane.
    on_lane = _neighbours(nodes)
    on_any = last_ended(nodes.end, nodes.start).astype(np.int32)
    quickest, pause = _usual(nodes, host, launch, on_lane)
    ordered = np.zeros(len(nodes), bool)
    for part in blocks(len(nodes)):
        start, own_launch, own_lane = nodes.start[part], launch[part], on_lane[part]
        by_lane, by_other = _times(nodes.end, own_lane), _times(nodes.end, on_any[part])
        called = _times(host.start, own_launch)
        by_launch = np.where(own_launch >= 0, called + quickest, _NEVER)
        own = np.maximum(by_lane, by_launch)
        # Whether something besides its stream and its launch may have held each node: by its pause, or where waits are
        # recorded, by one between the launches of the two neighbours. 2**62 keeps what nothing precedes from overflow.
        held = start - np.maximum(own, start - 2**62) > USUAL_PAUSES * pause
        if len(waits):
            since = _times(host.start, np.where(own_lane >= 0, launch[own_lane], -1))
            between = np.searchsorted(waits, called) > np.searchsorted(waits, since, side="right")
            ordered[part] = between & (called > _NEVER)
            held = np.where(called > _NEVER, between, held)
        # Without a launch record: a communication follows what ended last, other work what it follows much closer.
        close = MUCH_CLOSER * (start - np.maximum(by_other, start - 2**58)) <= start - np.maximum(own, start - 2**58)
        unlaunched = (own_launch < 0) & ((nodes.kind[part] == Kind.COMM) | close)
        late = (by_other > own) & (held | (own == _NEVER) | unlaunched)
        launched = ~late & (by_launch > by_lane)
        before[part] = np.where(late, on_any[part], np.where(launched, -1, own_lane))
        call[part] = np.where(launched, own_launch, -1)
        other[part] = np.where(late, on_any[part], -1)
    _add_order(nodes, host, launch, ordered, other)
    return before, call, launch, on_lane, other, quickest, pause


def _add_order(nodes: Spans, host: Spans, launch: Index, ordered: NDArray[np.bool_], other: Index) -> None:
    """Add the waits between streams that held nothing here, but may elsewhere.

    A communication waits for the computation launched last before it, as c10d makes its stream do; other work behind a
    recorded stream-wait call for the communication launched last before it.
    """
    comm = nodes.kind == Kind.COMM
    for waiting, awaited in ((comm, nodes.kind == Kind.COMPUTE), (ordered & ~comm, comm)):
        rows = np.flatnonzero(waiting & (other < 0) & (launch >= 0))
        sources = np.flatnonzero(awaited & (launch >= 0))
        if len(rows) == 0 or len(sources) == 0:
            continue
        called = host.start[launch[sources]]
        order = np.argsort(called, kind="stable")
        at = np.searchsorted(called[order], host.start[launch[rows]]) - 1
        chosen = sources[order[np.maximum(at, 0)]]
        # What still ran when the other began was not waited for.
        good = (at >= 0) & (nodes.end[chosen] <= nodes.start[rows]) & (nodes.lane[chosen] != nodes.lane[rows])
        other[rows[good]] = chosen[good]


def _neighbours(nodes: Spans) -> Index:
    """The node that ended last before each node on the same lane."""
    before = np.full(len(nodes), -1, np.int32)
    for _, at in positions(nodes.lane):
        near = last_ended(nodes.end[at], nodes.start[at])
        before[at] = np.where(near >= 0, at[near], -1)
    return before


def _usual(nodes: Spans, host: Spans, launch: Index, lane: Index) -> tuple[int, int]:
    """The shortest launch delay; the median pause between neighbours, the second launched in time."""
    known, quickest, pauses = launch >= 0, 0, []
    if np.any(known):
        quickest = int((nodes.start[known] - host.start[launch[known]]).min())
    for part in blocks(len(nodes)):
        start, called, before = nodes.start[part], _times(host.start, launch[part]), _times(nodes.end, lane[part])
        # A pause counts as usual if the span's launch had taken effect before its neighbour ended.
        in_time = (called + quickest <= before) & (lane[part] >= 0)
        pauses.append((start - before)[in_time])
    in_line = np.concatenate(pauses)
    pause = int(median(in_line)) if len(in_line) else 0
    return quickest, pause


def _reached(nodes: Spans, host: Spans, launch: Index, syncs: Int, records: Spans) -> Index:
    """The node that each synchronisation call waited for."""
    reached = np.full(len(host) + 1, -1, np.int32)
    reached[syncs] = last_ended(nodes.end, host.end[syncs])
    if len(records):
        # Where the trace records which stream a call waited for, look on that stream only.
        correlation = host.correlation[syncs]
        order = np.argsort(records.correlation, kind="stable")
        at = np.minimum(np.searchsorted(records.correlation[order], correlation), len(order) - 1)
        match = (correlation >= 0) & (records.correlation[order][at] == correlation)
        lane = np.where(match, records.lane[order[at]], -1)
        for each in used(lane[match]):
            on_lane = np.flatnonzero(nodes.lane == each)
            if len(on_lane):
                chosen = syncs[lane == each]
                near = last_ended(nodes.end[on_lane], host.end[chosen])
                reached[chosen] = np.where(near >= 0, on_lane[near], -1)
    # A copy that ended within its own launch call held the caller: a blocking copy.
    copies = np.flatnonzero((launch >= 0) & (nodes.kind == Kind.MEMCPY))
    blocking = copies[nodes.end[copies] <= host.end[launch[copies]]]
    reached[launch[blocking]] = blocking
    # A call that began after its node had ended did not wait for it.
    calls = np.flatnonzero(reached >= 0)
    reached[calls[nodes.end[reached[calls]] <= host.start[calls]]] = -1
    return reached


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
        # Only these calls can be the first after the thread was held: the one after a synchronisation of the thread
        # itself, and the first after one of any thread.
        own = held[host.lane[held] == lane]
        after = np.concatenate((np.searchsorted(at, own) + 1, np.searchsorted(start, host.end[held])))
        first = distinct(after[after < len(at)])
        previous = np.where(first > 0, at[first - 1], -1)
        near = last_ended(host.end[held], start[first])
        other = np.where(near >= 0, held[near], -1)
        other = np.where((other >= 0) & (host.start[other] >= _times(host.end, previous)), other, -1)
        itself = (previous >= 0) & (reached[previous] >= 0) & (_times(host.end, previous) <= start[first])
        fresh = np.where(itself, previous, other).astype(np.int32)
        first, fresh = first[fresh >= 0], fresh[fresh >= 0]
        if len(first):
            wake[at[first[0] :]] = np.repeat(fresh, np.diff(first, append=len(at)))
    return wake
