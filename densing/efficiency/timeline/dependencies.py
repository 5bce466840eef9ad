"""What one rank's work waited for, condensed: the recorded run as a system of longest paths, to be replayed.

Of the graph of :func:`densing.efficiency.timeline.critical.graph` every span keeps up to three edges: from the span
before it on its stream, from its launch, from a span of another stream. A replay starts each span at the latest of
them; the time that recorded starts have beyond it stays as a delay of the edge that bound, so that a replay with
nothing changed gives the recorded times.

What has no edge to another stream or to the host's waits is summed up. A row is a stretch of one stream (it ends where
somebody waits for it), a moment of the host's program, the arrival at a communication or its end:

.. math:: end = \\max(end_{before} + gap + held + spent,\\; end_{other} + lag + spent,\\; end_{base} + called)

*base* is the last moment of the host's program before the launch that bound the stretch. Times are split by kind, so
that a replay can change a kind: max and plus only, hence exact for the row; of several launches within a stretch the
one that bound it stands for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from densing.efficiency.timeline.critical import Graph, launching
from densing.efficiency.timeline.host import is_range, named, uncut
from densing.efficiency.timeline.intervals import Index, Int, covered, quantile, union
from densing.efficiency.timeline.overlap import Window, counted_steps
from densing.efficiency.timeline.timeline import Kind, RankTimeline
from densing.efficiency.timeline.traffic import LOADING


class Spent(IntEnum):
    """Kinds of time in a row.

    Work; pauses of the device that nothing explains (``IDLE``), pauses of a stream while others work (``HELD``); the
    host's program at its usual pace, its long pauses (``STALL``), and those in which it fetched data; from a launch
    call to the start of what it launched.
    """

    COMPUTE = 0
    MEMCPY = 1
    IDLE = 2
    HELD = 3
    HOST = 4
    STALL = 5
    LOADING = 6
    LAUNCH = 7


class Row(IntEnum):
    """A stretch of a stream, the arrival at a communication, its end, a moment of the host, a step's end."""

    WORK = 0
    ARRIVAL = 1
    END = 2
    PROGRAM = 3
    STEP = 4


CLASSES = tuple(kind.name.lower() for kind in Spent)
"""Names of the kinds of time, in order."""
NOTHING, BEGINNING = -1, -2
"""In place of a row: no such edge; the window's start."""
STALL_PAUSES, STALL_SHARE = 10, 0.01
"""A pause of the host is long above this many usual ones (their lower quartile), and above this share of a step."""
_NEVER = np.iinfo(np.int64).min // 4
_TURN = np.array((0, 2, 0, 1, 3))
_COLUMNS = ("kind", "before", "other", "base", "gap_ns", "held_ns", "lag_ns", "collective", "segment", "at_ns")
PART = 1 << 12
"""Spans looked at together: what is computed of a part at a time takes little memory. A stretch ends with its part."""

_CLASS = np.full(len(Kind), Spent.IDLE, np.int64)
_CLASS[[Kind.COMPUTE, Kind.CALL]] = Spent.COMPUTE, Spent.HOST
_CLASS[[Kind.MEMCPY, Kind.MEMSET]] = Spent.MEMCPY


class Dependencies(msgspec.Struct, frozen=True, eq=False):
    """The rows of one rank, in an order in which each comes after those it waits for.

    Attributes
    ----------
    start_ns, end_ns : int
        The window, on the rank's clock.
    steps : int
        Steps in the window; 0 where none is marked.
    kind : int64 (n,)
        :class:`Row`.
    before, other, base : int64 (n,)
        Rows waited for; :data:`NOTHING`, or :data:`BEGINNING` for the window's start.
    gap_ns, held_ns, lag_ns : int64 (n,)
        Delay behind ``before``, with the whole device idle and with other streams at work; and behind ``other``.
    spent_ns, called_ns : int64 (n, classes)
        Time of the row itself, and from ``base`` to its end by way of its launch, by :data:`CLASSES`.
    collective : int64 (n,)
        Row of the rank's :class:`Collectives` for arrivals and ends; -1 otherwise.
    segment : int64 (n,)
        Communications launched before the row in the rank's program.
    launched : int64 (communications,)
        Rows of :class:`Collectives` in order of launch.
    at_ns : int64 (n,)
        Recorded end of each row, since the window's start.
    """

    start_ns: int
    end_ns: int
    steps: int
    kind: Int
    before: Int
    other: Int
    base: Int
    gap_ns: Int
    held_ns: Int
    lag_ns: Int
    spent_ns: Int
    called_ns: Int
    collective: Int
    segment: Int
    launched: Int
    at_ns: Int

    def __len__(self) -> int:
        return len(self.kind)

    def head(self, steps: int) -> Dependencies:
        """Return the rows up to the end of the first steps; all where there are no more, or none is marked.

        A row waits for earlier ones only, so that they are a whole of their own.
        """
        if not 0 <= steps < self.steps:
            return self
        ends = np.flatnonzero(self.kind == Row.STEP)
        stop = int(ends[steps - 1]) + 1 if steps else 0
        columns = {
            name: getattr(self, name)[:stop].copy()
            for name in self.__struct_fields__
            if name not in ("start_ns", "end_ns", "steps", "launched")
        }
        end = self.start_ns + (int(self.at_ns[stop - 1]) if steps else 0)
        return msgspec.structs.replace(self, end_ns=end, steps=steps, **columns)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: lists, and of the times by class those that are not zero."""
        row: dict[str, Any] = {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in ((name, getattr(self, name)) for name in self.__struct_fields__)
        }
        for name in ("spent_ns", "called_ns"):
            column = getattr(self, name).ravel()
            filled = np.flatnonzero(column)
            row[name] = [filled.tolist(), column[filled].tolist()]
        return row

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Dependencies:
        """Rebuild what :meth:`to_dict` wrote."""
        row: dict[str, Any] = {
            name: np.asarray(value, np.int64) if isinstance(value, list) else value for name, value in data.items()
        }
        for name in ("spent_ns", "called_ns"):
            at, values = data[name]
            column = np.zeros(len(data["kind"]) * len(CLASSES), np.int64)
            column[at] = values
            row[name] = column.reshape(-1, len(CLASSES))
        return cls(**row)


def condense(rank: RankTimeline, window: Window, edges: Graph) -> Dependencies:
    """Condense a rank's graph to the rows that a replay needs.

    Parameters
    ----------
    rank : RankTimeline
    window : Window
    edges : Graph
        Of :func:`densing.efficiency.timeline.critical.graph`, of the same rank and window.

    Examples
    --------
    >>> from densing.efficiency.timeline import Spans, select
    >>> from densing.efficiency.timeline.critical import graph
    >>> call = {"start": 0, "end": 5, "kind": Kind.LAUNCH, "name": "cudaLaunchKernel", "correlation": 1}
    >>> work = Spans.build([{"start": 8, "end": 20, "kind": Kind.COMPUTE, "name": "gemm", "correlation": 1},
    ...                     {"start": 20, "end": 50, "kind": Kind.COMM, "name": "ncclDevKernel_AllReduce"}])
    >>> rank = RankTimeline(0, work, Spans.build([call]))
    >>> window = select(rank)
    >>> condense(rank, window, graph(rank, window)).at_ns.tolist()
    [12, 12, 42, 42]
    """
    return _Builder(rank, window, edges).build()


class Fused(NamedTuple):
    """The rows of a rank in which adjacent kernels are one launch, how many kernels that concerns, and how many stay.

    ``kernels`` is 0 where no kernel has such a name.
    """

    rows: Dependencies
    kernels: int
    launches: int


def fuse(rank: RankTimeline, window: Window, edges: Graph, text: str) -> Fused:
    """Condense a rank as :func:`condense` does, with runs of kernels of a name launched at once.

    Kernels whose names hold the text make one launch where they follow each other on their stream, and neither a wait,
    a communication nor a long pause of the host lies between their launches. Saved are the pauses between them and the
    host's time for all launch calls but the first, each from the end of the call before it to its own end. Kernels keep
    their length. A call that also launched others, as that of a graph does, stays.

    Parameters
    ----------
    rank : RankTimeline
    window : Window
    edges : Graph
    text : str

    Returns
    -------
    Fused
        Rows one for one those of :func:`condense`.

    Examples
    --------
    >>> from densing.efficiency.timeline import Spans, select
    >>> from densing.efficiency.timeline.critical import graph
    >>> calls = [{"start": 10 * n, "end": 10 * n + 5, "kind": Kind.LAUNCH, "name": "cudaLaunchKernel", "correlation": n}
    ...          for n in range(3)]
    >>> work = [{"start": 10 * n + 8, "end": 10 * n + 10, "kind": Kind.COMPUTE, "name": "add", "correlation": n}
    ...         for n in range(3)]
    >>> rank = RankTimeline(0, Spans.build(work), Spans.build(calls))
    >>> window = select(rank)
    >>> found = fuse(rank, window, graph(rank, window), "add")
    >>> found.kernels, found.launches
    (3, 1)
    """
    nodes, plain = edges.nodes, _Builder(rank, window, edges)
    rows = plain.build()
    chosen = named(nodes, lambda name: text in name) & (nodes.kind == Kind.COMPUTE)
    order = np.lexsort((nodes.start, nodes.lane))
    before, after = order[:-1], order[1:]
    joined = np.zeros(len(nodes), bool)
    joined[after] = chosen[before] & chosen[after] & (plain.run[before] == plain.run[after])
    if joined.any():
        rows = _Builder(rank, window, edges, joined).build()
    kernels = int(chosen.sum())
    return Fused(rows, kernels, kernels - int(joined.sum()))


def _of_part(order: NDArray[np.int32], begin: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The nodes of a part, and the one before each."""
    return order[begin : begin + PART], np.append(order[begin - 1] if begin else -1, order[begin : begin + PART][:-1])


class _Builder:
    """The steps of :func:`condense`: the host's moments, the streams' stretches, and both in order."""

    def __init__(
        self, rank: RankTimeline, window: Window, edges: Graph, joined: NDArray[np.bool_] | None = None
    ) -> None:
        self.rank, self.window, self.edges = rank, window, edges
        # Nodes launched together with the one before them on their stream.
        self.joined = np.zeros(len(edges.nodes), bool) if joined is None else joined
        self.steps = counted_steps(rank, window)
        self.rows: list[dict[str, Any]] = []
        self.count = 0
        comm = np.flatnonzero(edges.nodes.kind == Kind.COMM)
        called = self._called(comm)
        self.comm, self.launched = comm, comm[np.argsort(called, kind="stable")]
        self.boundaries = np.sort(called)

    def build(self) -> Dependencies:
        """Return the rows in order."""
        self._host()
        self._streams()
        self._ends()
        names = (*_COLUMNS, "spent_ns", "called_ns", "begin")
        table = {name: np.concatenate([part.pop(name) for part in self.rows]) for name in names}
        # Rows end after what they wait for; of those that end together what others may wait for comes first.
        order = np.lexsort((table.pop("begin"), _TURN[table["kind"]], table["at_ns"]))
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))
        for name in table:
            table[name] = table[name][order]
        for name in ("before", "other", "base"):
            known = table[name] >= 0
            table[name][known] = position[table[name][known]]
            # A span inside an earlier one of its stream ends before what it would wait for: nothing explains it.
            late = table[name] >= np.arange(len(order))
            table[name][late] = NOTHING
            table["base"][late] = BEGINNING
            table["called_ns"][late] = 0
            table["called_ns"][late, Spent.IDLE] = table["at_ns"][late]
        number = self._collectives()
        own = np.searchsorted(self.comm, table["collective"])
        table["collective"] = np.where(table["collective"] >= 0, np.append(number, -1)[own], -1)
        launched = number[np.searchsorted(self.comm, self.launched)]
        window = self.window
        return Dependencies(window.start, window.end, len(self.steps), **table, launched=launched)

    def _called(self, nodes: Any) -> Int:
        """When each of some nodes was launched, or began where no launch is recorded."""
        launch = self.edges.launch[nodes]
        start = self.edges.nodes.start[nodes]
        return np.where(launch >= 0, self.edges.host.start[launch], start) if len(self.edges.host) else start

    def _collectives(self) -> Int:
        """Row of each communication among those of the window, which :class:`Collectives` lists in order of start."""
        spans = uncut(self.rank, self.window).of(Kind.COMM)
        listed = np.flatnonzero(spans.end > spans.start)
        if len(listed) == len(self.comm) and np.array_equal(spans.start[listed], self.edges.nodes.start[self.comm]):
            return listed
        return np.full(len(self.comm), -1, np.int64)

    def _add(self, count: int, **columns: Any) -> int:
        """Add rows; return the number of the first."""
        defaults = {"before": NOTHING, "other": NOTHING, "base": NOTHING, "collective": NOTHING}
        row: dict[str, Any] = {
            name: np.broadcast_to(np.asarray(columns.get(name, defaults.get(name, 0)), np.int64), count).copy()
            for name in (*_COLUMNS, "begin")
        }
        for name in ("spent_ns", "called_ns"):
            row[name] = columns.get(name, np.zeros((count, len(CLASSES)), np.int64))
        self.rows.append(row)
        self.count += count
        return self.count - count

    def _host(self) -> None:
        """Rows of the host: waits for the device, launches of communications, and calls after long pauses."""
        edges, host, window = self.edges, self.edges.host, self.window
        held = np.flatnonzero(edges.reached[:-1] >= 0)
        self.held = held = held[host.end[held] <= window.end]
        called = (host.kind == Kind.LAUNCH) & (host.start < window.end)
        rows, free = launching(host, edges.launch, called)
        self._leave_out(rows, free)
        pause = np.maximum(free, window.start, out=free)
        np.subtract(host.start[rows], pause, out=pause)
        np.maximum(pause, 0, out=pause)
        fetching = self._fetching(host.start[rows], pause)
        usual = STALL_PAUSES * quantile(pause[pause > 0], 0.25) if np.any(pause > 0) else 0
        least = max(usual, STALL_SHARE * (window.end - window.start) / max(len(self.steps), 1))
        pause -= fetching
        long_ = (pause > least) | (fetching > 0)
        launched = edges.launch[self.comm]
        chosen = np.sort(np.concatenate((launched[launched >= 0], rows[long_])))
        chosen = chosen[np.append(True, chosen[1:] != chosen[:-1])[: len(chosen)]]
        # A wait is a moment when it returns, another call when it begins.
        chosen = chosen[(edges.reached[chosen] < 0) & (host.start[chosen] >= window.start)]
        self.moment_row = np.concatenate((held, chosen)).astype(np.int64)
        self.moment = np.concatenate((host.end[held], host.start[chosen]))
        self.plain = len(held) + np.argsort(self.moment[len(held) :], kind="stable")
        at = host.start[self.moment_row]
        base, since = self._base(at, edges.wake[self.moment_row], before=True)
        times, offset = np.zeros((len(at), len(CLASSES)), np.int64), at - since - self._saved(since, at)
        own = np.minimum(np.searchsorted(rows, self.moment_row), max(len(rows) - 1, 0))
        if len(rows):
            known = rows[own] == self.moment_row
            for code, column in ((Spent.LOADING, fetching), (Spent.STALL, np.where(pause > least, pause, 0))):
                times[:, code] = np.clip(np.where(known, column[own], 0), 0, offset - times.sum(axis=1))
        times[:, Spent.HOST] = offset - times.sum(axis=1)
        lag = np.zeros(len(at), np.int64)
        if len(held):
            lag[: len(held)] = host.end[held] - np.minimum(edges.nodes.end[edges.reached[held]], window.end)
        self._add(
            len(at),
            kind=Row.PROGRAM,
            base=base,
            lag_ns=lag,
            called_ns=times,
            segment=np.searchsorted(self.boundaries, at),
            at_ns=self.moment - window.start,
            begin=at,
        )

    def _leave_out(self, rows: Index, free: Int) -> None:
        """Note the calls that launch joined nodes alone, and what the host's program takes until the end of each."""
        launch, host = self.edges.launch, self.edges.host
        gone = np.zeros(len(host) + 1, bool)
        gone[launch[self.joined]] = True
        gone[launch[~self.joined]] = gone[-1] = False
        gone_rows = gone[rows]
        self.left_out = host.start[rows[gone_rows]]
        self.saved = np.append(0, np.cumsum((host.end[rows] - np.minimum(free, host.start[rows]))[gone_rows]))

    def _saved(self, since: Int, until: Int) -> Int:
        """The host's time for calls that are not made, between two moments each."""
        first, last = (np.searchsorted(self.left_out, moment) for moment in (since, until))
        return np.clip(self.saved[last] - self.saved[first], 0, np.maximum(until - since, 0))

    def _base(self, at: Int, wake: Any, before: bool = False) -> tuple[Int, Int]:
        """The last moment of the host before each call (``before``: itself left out), and when that was.

        A wait holds only the threads that it woke; other moments belong to the one program of all threads.
        """
        woken, when = np.full(len(at), BEGINNING), np.full(len(at), self.window.start)
        if len(self.held):
            row = np.minimum(np.searchsorted(self.held, wake), len(self.held) - 1)
            known = (wake >= 0) & (self.held[row] == wake)
            woken[known], when[known] = row[known], self.moment[row[known]]
        if len(self.plain):
            moments = self.moment[self.plain]
            last = np.searchsorted(moments, at, side="left" if before else "right") - 1
            later = (last >= 0) & (moments[np.maximum(last, 0)] > when)
            woken[later], when[later] = self.plain[last[later]], moments[last[later]]
        return woken, when

    def _fetching(self, until: Int, pause: Int) -> Int:
        """The part of each pause before a moment in which the host fetched data."""
        host = self.rank.host
        ranges = host.take(named(host, LOADING) & is_range(host))
        if len(ranges) == 0:
            return np.zeros(len(pause), np.int64)
        return covered(union(ranges.start, ranges.end), until - pause, until)

    def _streams(self) -> None:
        """Rows of the device: stretches of streams, arrivals at communications and their ends."""
        edges, nodes = self.edges, self.edges.nodes
        n = len(nodes)
        order = np.lexsort((nodes.start, nodes.lane)).astype(np.int32)
        # Waited for by another lane or by the host, or not followed by its successor on the lane.
        source = nodes.kind == Kind.COMM
        for begin in range(0, n, PART):
            awaited = edges.other[begin : begin + PART]
            source[awaited[awaited >= 0]] = True
        source[edges.reached[self.held]] = True
        for begin in range(0, n, PART):
            index, previous = _of_part(order, begin)
            apart = edges.stream[index[edges.stream[index] != previous]]
            source[apart[apart >= 0]] = True
        busy = union(nodes.start, nodes.end)
        self.run = np.full(n, -1, np.int32)
        first_row, runs = self.count, 0
        parts = []
        for begin in range(0, n, PART):
            index, previous = _of_part(order, begin)
            part = self._stretches(index, previous, source, busy)
            self.run[index] = part.pop("run") + runs
            runs += len(part["kind"])
            parts.append(part)
        if not parts:
            self.leaving, self.ended = np.empty(0, np.int64), np.empty(0, np.int64)
            return
        table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        del parts
        is_comm = table["kind"] == Row.ARRIVAL
        # A communication has two rows; its end comes after all others, and is what others wait for.
        leaving = first_row + np.arange(runs)
        leaving[is_comm] = first_row + runs + np.arange(int(is_comm.sum()))
        self.leaving, self.ended = leaving, table.pop("ended")
        for name in ("before", "other"):
            known = table[name] >= 0
            table[name][known] = leaving[self.run[table[name][known]]]
        length = table.pop("length")
        number = first_row + np.flatnonzero(is_comm)
        columns = {name: table[name][is_comm] for name in ("collective", "segment", "begin")}
        self._add(runs, **table)
        at_ns = self.ended[is_comm] - self.window.start
        self._add(len(number), kind=Row.END, before=number, gap_ns=length[is_comm], at_ns=at_ns, **columns)
        # What the host's waits reached.
        self.rows[0]["other"][: len(self.held)] = leaving[self.run[edges.reached[self.held]]]

    def _stretches(
        self, index: NDArray[np.int32], previous: NDArray[np.int32], source: NDArray[np.bool_], busy: tuple[Int, Int]
    ) -> dict[str, Any]:
        """The stretches of some nodes in order of lane and start; what they wait for stands as nodes."""
        edges, window, nodes, host = self.edges, self.window, self.edges.nodes, self.edges.host
        start = np.clip(nodes.start[index], window.start, window.end)
        end = np.clip(nodes.end[index], window.start, window.end)
        kind, length = nodes.kind[index], end - start
        early = nodes.start[index] < window.start
        stream = np.where(early, NOTHING, edges.stream[index]).astype(np.int64)
        other = np.where(early, NOTHING, edges.other[index]).astype(np.int64)
        launch, call, before = edges.launch[index], edges.call[index], edges.before[index]
        # When launches take effect, since the moment of the host that they follow.
        base, offset, delay = (
            np.full(len(index), NOTHING),
            np.zeros(len(index), np.int64),
            np.zeros(len(index), np.int64),
        )
        known = launch >= 0
        bound_launch = call >= 0
        if known.any():
            at = host.start[launch[known]]
            base[known], since = self._base(at, edges.wake[launch[known]])
            offset[known] = at - since - self._saved(since, at)
            after = start[known] - at
            delay[known] = np.where(bound_launch[known], after, np.minimum(after, edges.quickest))
        bound_stream = ~bound_launch & (before >= 0) & (before == edges.stream[index])
        bound_other = ~bound_launch & (before >= 0) & ~bound_stream

        def ended(rows: Int) -> Int:
            return np.clip(nodes.end[np.maximum(rows, 0)], window.start, window.end)

        room = np.where(stream >= 0, start - ended(stream), 0)
        gap = np.where(bound_stream, room, np.where(known, np.minimum(room, edges.pause), 0))
        gap[self.joined[index]] = 0
        lag = np.where(bound_other & (other >= 0), start - ended(other), 0)
        # What nothing explains began at its own time after the window's start.
        free = early | ((before < 0) & ~bound_launch)
        base[free], offset[free], delay[free] = BEGINNING, 0, (start - window.start)[free]
        segment = np.searchsorted(self.boundaries, self._called(index))
        first = (stream != previous) | (previous < 0) | (kind == Kind.COMM) | (other >= 0) | free
        first |= source[previous]
        first[1:] |= (base[1:] != base[:-1]) | (segment[1:] != segment[:-1])
        first[:1] = True
        begins = np.flatnonzero(first)
        ends = np.append(begins[1:], len(index)) - 1
        run = np.cumsum(first) - 1
        # Sums along the lane: time of the spans and pauses up to and with each span.
        fetching = np.zeros(len(index), np.int64)
        if self.rank.on_host:
            fetching = self._fetching(start, np.where(bound_stream & (other < 0), gap, 0))
        held = np.minimum(covered(busy, start - gap, start), gap - fetching)
        pauses = {Spent.IDLE: gap - fetching - held, Spent.HELD: held}
        along = np.cumsum(length + np.where(first, fetching, gap))
        candidate = np.where((base != NOTHING) & ~self.joined[index], offset + delay + length - along, _NEVER)
        bound = np.flatnonzero(candidate == np.maximum.reduceat(candidate, begins)[run])
        bound = bound[np.append(True, run[bound][1:] != run[bound][:-1])]
        spent, called = (np.zeros((len(begins), len(CLASSES)), np.int64) for _ in range(2))
        classes = _CLASS[kind]
        for code in (Spent.COMPUTE, Spent.MEMCPY, Spent.HOST, Spent.IDLE, Spent.HELD, Spent.LOADING):
            own = np.where((classes == code) & (kind != Kind.COMM), length, 0)
            more = np.where(first, 0, pauses[code]) if code in pauses else fetching if code == Spent.LOADING else 0
            total = np.cumsum(own + more)
            spent[:, code] = (
                total[ends] - total[begins] + own[begins] + (fetching[begins] if code == Spent.LOADING else 0)
            )
            called[:, code] = total[ends] - total[bound] + own[bound]
        is_comm = kind[begins] == Kind.COMM
        called[is_comm] = 0
        called[:, Spent.HOST] += offset[bound]
        unexplained = np.where(free[bound], Spent.IDLE, Spent.LAUNCH)
        called[np.arange(len(begins)), unexplained] += delay[bound]
        return {
            "run": run,
            "kind": np.where(is_comm, Row.ARRIVAL, Row.WORK),
            "before": stream[begins],
            "other": other[begins],
            "base": base[bound],
            "gap_ns": pauses[Spent.IDLE][begins],
            "held_ns": pauses[Spent.HELD][begins],
            "lag_ns": lag[begins],
            "spent_ns": spent,
            "called_ns": called,
            "collective": np.where(is_comm, index[begins], NOTHING),
            "segment": segment[begins],
            "at_ns": np.where(is_comm, start[begins], end[ends]) - window.start,
            "begin": start[begins],
            "ended": end[ends],
            "length": length[begins],
        }

    def _ends(self) -> None:
        """Rows of the ends of steps and of the window: moments of the host, or of the device where no call is known."""
        window, host, edges = self.window, self.edges.host, self.edges
        moments = {step.end for step in self.steps if window.start < step.end <= window.end} | {window.end}
        at = np.array(sorted(moments), np.int64)
        times = np.zeros((len(at), len(CLASSES)), np.int64)
        row: dict[str, Any]
        if edges.calls:
            # The last call before each moment says which wait held its thread: one that has just returned, itself.
            calls = np.flatnonzero((host.kind == Kind.LAUNCH) & (host.lane == edges.main))
            last = np.searchsorted(host.start[calls], at, side="right") - 1
            wake = np.full(len(at), -1)
            if len(calls):
                call = calls[np.maximum(last, 0)]
                returned = (edges.reached[call] >= 0) & (host.end[call] <= at)
                wake = np.where(last < 0, -1, np.where(returned, call, edges.wake[call]))
            wake[at >= window.end] = edges.wake[-1]
            base, since = self._base(at, wake)
            times[:, Spent.HOST] = at - since - self._saved(since, at)
            row = {"base": base, "called_ns": times}
        else:
            order = np.argsort(self.ended, kind="stable")
            last = np.searchsorted(self.ended[order], at, side="right") - 1
            before, when = np.full(len(at), BEGINNING), np.full(len(at), window.start)
            known = last >= 0
            before[known], when[known] = self.leaving[order[last[known]]], self.ended[order[last[known]]]
            times[:, Spent.IDLE] = at - when
            row = {"before": before, "spent_ns": times}
        segment = np.searchsorted(self.boundaries, at)
        self._add(len(at), kind=Row.STEP, segment=segment, at_ns=at - window.start, begin=at, **row)
