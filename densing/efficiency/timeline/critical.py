"""The critical path of one rank: the chain of work and waits that made the window as long as it was.

The path is walked back from the window's end along binding edges (:mod:`densing.efficiency.timeline.critical_graph`);
its segments tile the window. Shortening what is not on it gains nothing; shortening what is on it gains at most that
much.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from densing.core import Note
from densing.efficiency.timeline.arrays import Int, distinct, used
from densing.efficiency.timeline.critical_graph import Graph, graph
from densing.efficiency.timeline.launches import named
from densing.efficiency.timeline.nesting import Segments, innermost, step_mark
from densing.efficiency.timeline.spans import Kind, Spans
from densing.efficiency.timeline.timeline import RankTimeline
from densing.efficiency.timeline.windows import Window

PATH_KINDS = ("compute", "communication", "memcpy", "host", "launch", "idle")
COMPUTE, COMMUNICATION, MEMCPY, HOST, LAUNCH, IDLE = range(6)
KEPT_SEGMENTS = 1_000
SHOWN_NAMES = 20

_KIND_TABLE = np.full(len(Kind), IDLE, np.int8)
_KIND_TABLE[[Kind.COMPUTE, Kind.COMM, Kind.CALL]] = COMPUTE, COMMUNICATION, HOST
_KIND_TABLE[[Kind.MEMCPY, Kind.MEMSET]] = MEMCPY


class CriticalPath(msgspec.Struct, frozen=True, eq=False):
    """What bound one rank.

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
        columns = {
            "start_ns": self.start[listed].tolist(),
            "end_ns": self.end[listed].tolist(),
            "kind": [PATH_KINDS[code] for code in self.kind[listed]],
            "lane": [self.lanes[code] for code in self.lane[listed]],
            "name": [self.names[code] for code in self.name[listed]],
        }
        return {
            "totals": dict(self.totals),
            "bound_by": self.bound_by,
            "coverage": self.coverage,
            "top": [list(row) for row in self.top],
            "notes": [note.to_dict() for note in self.notes],
            "segments": columns,
            "left_out": self.left_out + len(self.start) - len(listed),
            "left_out_ns": self.left_out_ns + unlisted_ns,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CriticalPath:
        """Rebuild what :meth:`to_dict` wrote."""
        columns = data["segments"]
        lanes, names = (tuple(dict.fromkeys(columns[key])) for key in ("lane", "name"))
        return cls(
            np.array(columns["start_ns"], np.int64),
            np.array(columns["end_ns"], np.int64),
            np.array([PATH_KINDS.index(kind) for kind in columns["kind"]], np.int8),
            np.array([lanes.index(lane) for lane in columns["lane"]], np.int32),
            np.array([names.index(name) for name in columns["name"]], np.int32),
            lanes,
            names,
            dict(data["totals"]),
            tuple((kind, name, ns) for kind, name, ns in data["top"]),
            tuple(Note.from_dict(note) for note in data["notes"]),
            data["left_out"],
            data["left_out_ns"],
        )


def critical_path(rank: RankTimeline, window: Window) -> CriticalPath:
    """Find what bound a rank: the longest chain of dependencies that ends with the window.

    Works with launches only, without any host record (waits are then ``idle``), and for runs without a device.

    Parameters
    ----------
    rank : RankTimeline
    window : Window

    Notes
    -----
    Source: longest path of the happens-before graph, as in HolisticTraceAnalysis' critical path analysis; the edges
    are inferred, since traces name no events. Between ranks: :mod:`densing.efficiency.profile.critical`.

    Examples
    --------
    >>> from densing.efficiency.timeline.spans import Spans
    >>> from densing.efficiency.timeline.windows import select
    >>> call = {"start": 0, "end": 5, "kind": Kind.LAUNCH, "name": "cudaLaunchKernel", "correlation": 1}
    >>> work = Spans.build([{"start": 8, "end": 20, "kind": Kind.COMPUTE, "name": "gemm", "correlation": 1},
    ...                     {"start": 20, "end": 50, "kind": Kind.COMM, "name": "ncclDevKernel_AllReduce"}])
    >>> rank = RankTimeline(0, work, Spans.build([call]))
    >>> path = critical_path(rank, select(rank))
    >>> path.totals["compute"], path.totals["communication"], path.bound_by
    (12, 30, 'communication')
    """
    edges = graph(rank, window)
    table = _walk(edges, rank.host, window.start, window.end)
    nodes, host = edges.nodes, rank.host
    lanes = tuple(" ".join(filter(None, lane[:2])) for lane in (*nodes.lanes, *host.lanes))
    names = (*nodes.names, *host.names, "")
    table, names = host_names(table, names, host, HOST, len(nodes.lanes))
    start, end, kind, lane, name = table.T
    length = end - start
    totals = {each: int(length[kind == code].sum()) for code, each in enumerate(PATH_KINDS)}
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
        _top(length, kind, name, names),
        _blind(rank, edges),
    )


def _blind(rank: RankTimeline, edges: Graph) -> tuple[Note, ...]:
    """Say which records are missing without which waits cannot be seen."""
    if rank.on_host:
        message = "a run without a device records no waits; they are inferred from pauses"
        return (Note("waits-inferred", "info", message),)
    if len(edges.nodes) and not np.any(rank.host.kind == Kind.LAUNCH):
        message = "the trace records no launches: what the host held up counts as idle"
        return (Note("no-launch-records", "info", message),)
    if len(edges.nodes) and not edges.syncs:
        message = (
            "the trace records no synchronisation call: if there were any, time in which the host waited for the "
            "device counts as host"
        )
        return (Note("no-synchronisation-records", "info", message),)
    return ()


def _top(length: Int, kind: Int, name: Int, names: tuple[str, ...]) -> tuple[tuple[str, str, int], ...]:
    keys, position = np.unique(kind * len(names) + name, return_inverse=True)
    sums = np.zeros(len(keys), np.int64)
    np.add.at(sums, position, length)
    order = np.argsort(-sums, kind="stable")[:SHOWN_NAMES].tolist()
    return tuple((PATH_KINDS[keys[at] // len(names)], names[keys[at] % len(names)], int(sums[at])) for at in order)


class _Tape:
    """Segments written backwards in time: start, end, kind, lane, name."""

    def __init__(self, start: int, end: int) -> None:
        self.floor, self.at = start, end
        self.cells = array("q")

    def back_to(self, moment: int, kind: int, lane: int, name: int) -> None:
        """Write what happened from ``moment`` to where the tape stands."""
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
    if node >= 0 and nodes.end[node] < end and has_calls:
        node = -1
    while tape.at > start:
        if node >= 0:
            # A pause between the end of this node and what waited for it belongs to no record.
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
            # Nothing held this thread before: its own program, as far back as the window goes.
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
    ranges = host.take(np.isin(host.kind, (int(Kind.ANNOTATION), int(Kind.OP))) & ~named(host, step_mark))
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
