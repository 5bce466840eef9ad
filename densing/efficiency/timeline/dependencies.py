"""What one rank's work waited for, condensed: the recorded run as a system of longest paths, to be replayed.

Of the graph of :func:`densing.efficiency.timeline.critical.graph` every span keeps up to three edges: from the span
before it on its stream, from its launch, from a span of another stream. A replay starts each span at the latest of
them; the time that recorded starts have beyond it stays as a delay of the edge that bound, so that a replay with
nothing changed gives the recorded times.

What has no edge to another stream or to the host's waits is summed up. A row is a stretch of one stream (it ends where
somebody waits for it), a moment of the host's program, the arrival at a communication or its end:

.. math:: end = \\max(end_{before} + gap + spent,\\; end_{other} + lag + spent,\\; end_{base} + called)

*base* is the last moment of the host's program before the launch that bound the stretch. Times are split by kind, so
that a replay can change a kind: max and plus only, hence exact for the row; of several launches within a stretch the
one that bound it stands for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from densing.efficiency.timeline.critical import Graph, launching
from densing.efficiency.timeline.host import is_range, named
from densing.efficiency.timeline.intervals import Int, covered, median, union
from densing.efficiency.timeline.overlap import Window, counted_steps
from densing.efficiency.timeline.timeline import Kind, RankTimeline
from densing.efficiency.timeline.traffic import LOADING

CLASSES = ("compute", "memcpy", "idle", "host", "stall", "loading", "launch")
"""Kinds of time in a row: work; pauses of the device that nothing explains; the host's program at its usual pace, its
long pauses, and those in which it fetched data; from a launch call to the start of what it launched."""
COMPUTE, MEMCPY, IDLE, HOST, STALL, LOAD, LAUNCH = range(len(CLASSES))
WORK, ARRIVAL, END, PROGRAM, MARK = range(5)
"""Kinds of row: a stretch of a stream, the arrival at a communication, its end, a moment of the host, a step's end."""
NOTHING, BEGINNING = -1, -2
"""In place of a row: no such edge; the window's start."""
STALL_PAUSES, STALL_SHARE = 10, 0.01
"""A pause of the host is long above this many usual ones, and above this share of a step."""
_NEVER = np.iinfo(np.int64).min // 4
_TURN = np.array((0, 2, 0, 1, 3))

_CLASS = np.full(len(Kind), IDLE, np.int64)
_CLASS[[Kind.COMPUTE, Kind.CALL]] = COMPUTE, HOST
_CLASS[[Kind.MEMCPY, Kind.MEMSET]] = MEMCPY


class Dependencies(msgspec.Struct, frozen=True, eq=False):
    """The rows of one rank, in an order in which each comes after those it waits for.

    Attributes
    ----------
    start_ns, end_ns : int
        The window, on the rank's clock.
    steps : int
        Steps in the window; 0 where none is marked.
    kind : int64 (n,)
        :data:`WORK` to :data:`MARK`.
    before, other, base : int64 (n,)
        Rows waited for; :data:`NOTHING`, or :data:`BEGINNING` for the window's start.
    gap_ns, lag_ns : int64 (n,)
        Delay behind ``before`` and ``other``.
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
    lag_ns: Int
    spent_ns: Int
    called_ns: Int
    collective: Int
    segment: Int
    launched: Int
    at_ns: Int

    def __len__(self) -> int:
        return len(self.kind)

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


def dependencies(rank: RankTimeline, window: Window, edges: Graph) -> Dependencies:
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
    >>> dependencies(rank, window, graph(rank, window)).at_ns.tolist()
    [12, 12, 42]
    """
    return _Builder(rank, window, edges).build()


class _Builder:
    """The steps of :func:`dependencies`: the host's moments, the streams' stretches, and both in order."""

    def __init__(self, rank: RankTimeline, window: Window, edges: Graph) -> None:
        self.rank, self.window, self.edges = rank, window, edges
        self.steps = len(counted_steps(rank, window))
        self.rows: list[dict[str, Any]] = []
        self.count = 0

    def build(self) -> Dependencies:
        """Return the rows in order."""
        nodes, host = self.edges.nodes, self.edges.host
        launch = self.edges.launch
        comm = np.flatnonzero(nodes.kind == Kind.COMM)
        # The program's order: by launch, else by start.
        called = np.where(launch >= 0, host.start[launch], nodes.start) if len(host) else nodes.start
        launched = comm[np.argsort(called[comm], kind="stable")]
        self.called = np.sort(called[comm])
        self._host(np.unique(launch[comm][launch[comm] >= 0]))
        self._streams(called)
        self._ends()
        names = ("kind", "before", "other", "base", "gap_ns", "lag_ns", "spent_ns", "called_ns", "collective",
                 "segment", "at_ns", "begin")  # fmt: skip
        table = {name: np.concatenate([part[name] for part in self.rows]) for name in names}
        # Rows end after what they wait for; of those that end together what others may wait for comes first.
        order = np.lexsort((table.pop("begin"), _TURN[table["kind"]], table["at_ns"]))
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))
        table = {name: column[order] for name, column in table.items()}
        for name in ("before", "other", "base"):
            known = table[name] >= 0
            table[name][known] = position[table[name][known]]
        number = np.full(len(nodes), -1, np.int64)
        number[comm] = self._collective(comm)
        table["collective"] = np.where(table["collective"] >= 0, number[table["collective"]], -1)
        return Dependencies(
            self.window.start, self.window.end, self.steps, **table, launched=number[launched]
        )

    def _collective(self, comm: Int) -> Int:
        """Row of each communication among those of the window, which :class:`Collectives` lists in order of start."""
        start = self.edges.nodes.start[comm]
        from densing.efficiency.timeline.host import uncut

        spans = uncut(self.rank, self.window).of(Kind.COMM)
        listed = np.flatnonzero(spans.end > spans.start)
        if len(listed) == len(comm) and np.array_equal(spans.start[listed], start):
            return listed
        return np.full(len(comm), -1, np.int64)

    def _add(self, count: int, **columns: Any) -> int:
        """Add rows; return the number of the first."""
        empty: dict[str, Any] = {
            **dict.fromkeys(("before", "other", "base", "collective"), NOTHING),
            **dict.fromkeys(("gap_ns", "lag_ns"), 0),
        }
        row = {
            name: np.broadcast_to(np.asarray(value, np.int64), count).copy()
            for name, value in {**empty, **columns}.items()
            if name not in ("spent_ns", "called_ns")
        }
        for name in ("spent_ns", "called_ns"):
            row[name] = columns.get(name, np.zeros((count, len(CLASSES)), np.int64))
        row["segment"] = np.searchsorted(self.called, columns["program"]) if "program" in columns else row["segment"]
        row.pop("program", None)
        self.rows.append(row)
        self.count += count
        return self.count - count

    def _host(self, marked: Int) -> None:
        """Rows of the host: waits for the device, launches of communications, and calls after long pauses."""
        edges, host, window = self.edges, self.edges.host, self.window
        held = np.flatnonzero(edges.reached[:-1] >= 0)
        held = held[host.end[held] <= window.end]
        called = (host.kind == Kind.LAUNCH) & (host.start < window.end)
        rows, free = launching(host, edges.launch, called) if len(host) else (np.empty(0, np.int32), window.start)
        pause = np.maximum(host.start[rows] - np.maximum(free, window.start), 0)
        loading = np.zeros(len(rows), np.int64)
        ranges = host.take(named(host, LOADING) & is_range(host)) if len(rows) else host
        if len(rows) and len(ranges):
            loading = covered(union(ranges.start, ranges.end), host.start[rows] - pause, host.start[rows])
        usual = STALL_PAUSES * median(pause[pause > 0]) if np.any(pause > 0) else 0
        length = (window.end - window.start) / max(self.steps, 1)
        long_ = (pause - loading > usual) & (pause - loading > STALL_SHARE * length)
        stall = np.where(long_, pause - loading, 0)
        chosen = np.union1d(marked, rows[long_ | (loading > 0)])
        chosen = np.setdiff1d(chosen, held)
        chosen = chosen[host.start[chosen] >= window.start]
        # Of each moment when it is: a wait when it returns, another call when it begins.
        self.moment_row = np.concatenate((held, chosen)).astype(np.int64)
        self.moment = np.concatenate((host.end[held], host.start[chosen]))
        order = np.argsort(self.moment, kind="stable")
        self.by_time = order
        self.row_of_wake = np.full(len(host) + 1, BEGINNING, np.int64)
        self.row_of_wake[held] = np.arange(len(held))
        at = host.start[self.moment_row]
        base, since = self._base(at, edges.wake[self.moment_row], before=True)
        times = np.zeros((len(at), len(CLASSES)), np.int64)
        offset = at - since
        of_call = np.full(len(host), -1, np.int64)
        of_call[rows] = np.arange(len(rows))
        own = of_call[self.moment_row]
        known = own >= 0
        for code, column in ((LOAD, loading), (STALL, stall)):
            part = np.where(known, column[own], 0) if len(column) else np.zeros(len(own), np.int64)
            times[:, code] = np.clip(part, 0, np.maximum(offset - times.sum(axis=1), 0))
        times[:, HOST] = offset - times.sum(axis=1)
        reached = np.where(np.arange(len(own)) < len(held), edges.reached[self.moment_row], -1)
        self.reached = reached
        lag = np.zeros(len(own), np.int64)
        lag[reached >= 0] = (self.moment - np.minimum(edges.nodes.end[reached], window.end))[reached >= 0] if len(
            edges.nodes
        ) else 0
        self._add(
            len(at), kind=PROGRAM, other=NOTHING, base=base, lag_ns=lag, called_ns=times, program=at,
            at_ns=self.moment - window.start, begin=at,
        )  # fmt: skip

    def _base(self, at: Int, wake: Any, before: bool = False) -> tuple[Int, Int]:
        """The last moment of the host before each call (``before``: itself left out), and when that was."""
        woken = self.row_of_wake[wake]
        woken[wake < 0] = BEGINNING
        moments = self.moment[self.by_time]
        last = np.searchsorted(moments, at, side="left" if before else "right") - 1
        chosen = self.by_time[np.maximum(last, 0)] if len(moments) else np.zeros(len(at), np.int64)
        # A wait holds only the threads that it woke; other moments belong to the one program of all threads.
        host = self.edges.host
        waits = len(moments) > 0
        if waits:
            is_wait = np.append(self.edges.reached[:-1] >= 0, False)
            plain = self.by_time[~is_wait[self.moment_row[self.by_time]]]
            when = self.moment[plain]
            last = np.searchsorted(when, at, side="left" if before else "right") - 1
            chosen = np.where(last >= 0, plain[np.maximum(last, 0)], BEGINNING) if len(plain) else np.full(
                len(at), BEGINNING
            )
        else:
            chosen = np.full(len(at), BEGINNING)
        start = self.window.start
        when_plain = np.where(chosen >= 0, self.moment[np.maximum(chosen, 0)], start) if waits else np.full(
            len(at), start
        )
        when_woken = np.where(woken >= 0, host.end[np.maximum(wake, 0)], start) if len(host) else np.full(
            len(at), start
        )
        later = when_plain > when_woken
        return np.where(later, chosen, woken), np.where(later, when_plain, when_woken)

    def _streams(self, called: Int) -> None:
        """Rows of the device: stretches of streams, arrivals at communications and their ends."""
        edges, window = self.edges, self.window
        nodes, host = edges.nodes, edges.host
        n = len(nodes)
        order = np.lexsort((nodes.start, nodes.lane))
        inverse = np.empty(n, np.int64)
        inverse[order] = np.arange(n)
        lane, kind = nodes.lane[order], nodes.kind[order]
        start = np.clip(nodes.start[order], window.start, window.end)
        end = np.clip(nodes.end[order], window.start, window.end)
        length = end - start
        stream, other, launch = edges.stream[order].astype(np.int64), edges.other[order].astype(np.int64), (
            edges.launch[order]
        )
        before, call = edges.before[order], edges.call[order]
        early = nodes.start[order] < window.start
        stream[early], other[early] = -1, -1
        stream[stream >= 0] = inverse[stream[stream >= 0]]
        other[other >= 0] = inverse[other[other >= 0]]
        index = np.arange(n)
        # Waited for by another lane or by the host, or not followed by its successor on the lane.
        chained = stream == index - 1
        chained[:1] = False
        source = kind == Kind.COMM
        source[other[other >= 0]] = True
        source[stream[(stream >= 0) & ~chained]] = True
        source[inverse[self.reached[self.reached >= 0]]] = True
        # When launches take effect, since the moment of the host that they follow.
        base, since = np.full(n, NOTHING), np.zeros(n, np.int64)
        known = launch >= 0
        offset = np.zeros(n, np.int64)
        if known.any():
            at = host.start[launch[known]]
            base[known], since[known] = self._base(at, edges.wake[launch[known]])
            offset[known] = at - since[known]
        bound_launch = call >= 0
        bound_stream = ~bound_launch & (before >= 0) & (before == edges.stream[order])
        bound_other = ~bound_launch & (before >= 0) & ~bound_stream
        room = start - np.where(stream >= 0, end[stream], start)
        gap = np.where(bound_stream, room, np.minimum(room, edges.pause))
        delay = np.zeros(n, np.int64)
        if known.any():
            after = start[known] - host.start[launch[known]]
            delay[known] = np.where(bound_launch[known], after, np.minimum(after, edges.quickest))
        lag = np.where(bound_other & (other >= 0), start - end[other], 0)
        # What nothing explains began at its own time after the window's start.
        free = early | ((before < 0) & ~bound_launch)
        base[free], offset[free], delay[free] = BEGINNING, 0, (start - window.start)[free]
        delay[early] = 0
        segment = np.searchsorted(self.called, called[order])
        first = ~chained | (kind == Kind.COMM) | (other >= 0) | free
        first[1:] |= source[:-1] | (base[1:] != base[:-1]) | (segment[1:] != segment[:-1])
        if n == 0:
            return
        begins = np.flatnonzero(first)
        ends = np.append(begins[1:], n) - 1
        run = np.cumsum(first) - 1
        # Sums along the lane: time of the spans and pauses up to and with each span.
        pauses = np.where(first, 0, gap)
        fetching = self._fetching(start, np.where(bound_stream & (other < 0), gap, 0))
        first_gap = gap - fetching
        pauses -= np.where(first, 0, fetching)
        along = np.cumsum(length + pauses + fetching)
        candidate = np.where(base != NOTHING, offset + delay + length - along, _NEVER)
        best = np.maximum.reduceat(candidate, begins)
        bound = np.flatnonzero(candidate == best[run])
        bound = bound[np.append(True, run[bound][1:] != run[bound][:-1])]
        spent = np.zeros((len(begins), len(CLASSES)), np.int64)
        by_call = np.zeros((len(begins), len(CLASSES)), np.int64)
        classes = _CLASS[kind]
        for code in (COMPUTE, MEMCPY, HOST, IDLE, LOAD):
            column = np.where((classes == code) & (kind != Kind.COMM), length, 0)
            if code in (IDLE, LOAD):
                column += pauses if code == IDLE else fetching
            total = np.cumsum(column)
            spent[:, code] = total[ends] - total[begins] + column[begins]
            by_call[:, code] = total[ends] - total[bound] + np.where(classes[bound] == code, length[bound], 0)
        is_comm = kind[begins] == Kind.COMM
        spent[is_comm, : LOAD] = 0
        by_call[is_comm] = 0
        by_call[:, HOST] += offset[bound]
        unexplained = free[bound]
        by_call[~unexplained, LAUNCH] += delay[bound][~unexplained]
        by_call[unexplained, IDLE] += delay[bound][unexplained]
        # Numbers of rows: a communication has two, its end comes after all others.
        at = self.count
        number = at + np.arange(len(begins))
        leaving = number.copy()
        leaving[is_comm] = at + len(begins) + np.arange(int(is_comm.sum()))
        row_before = np.where(stream[begins] >= 0, leaving[run[stream[begins]]], NOTHING)
        row_other = np.where(other[begins] >= 0, leaving[run[other[begins]]], NOTHING)
        self._add(
            len(begins),
            kind=np.where(is_comm, ARRIVAL, WORK),
            before=row_before,
            other=row_other,
            base=base[bound],
            gap_ns=first_gap[begins],
            lag_ns=lag[begins],
            spent_ns=spent,
            called_ns=by_call,
            collective=np.where(is_comm, order[begins], -1),
            segment=segment[begins],
            at_ns=np.where(is_comm, start[begins], end[ends]) - window.start,
            begin=start[begins],
        )
        of_comm = begins[is_comm]
        own = np.zeros((len(of_comm), len(CLASSES)), np.int64)
        self._add(
            len(of_comm),
            kind=END,
            before=number[is_comm],
            gap_ns=length[of_comm],
            spent_ns=own,
            collective=order[of_comm],
            segment=segment[of_comm],
            at_ns=end[of_comm] - window.start,
            begin=start[of_comm],
        )
        # What the host's waits reached.
        waits = self.rows[0]
        held = self.reached >= 0
        waits["other"][held] = leaving[run[inverse[self.reached[held]]]]
        self.streams = leaving, end[ends]

    def _fetching(self, start: Int, gap: Int) -> Int:
        """Without a device, the part of each pause of a thread in which it fetched data."""
        host = self.rank.host
        ranges = host.take(named(host, LOADING) & is_range(host)) if self.rank.on_host else host.take(slice(0))
        return covered(union(ranges.start, ranges.end), start - gap, start) if len(ranges) else np.zeros_like(gap)

    def _ends(self) -> None:
        """Rows of the ends of steps and of the window: moments of the host, or of the device where no call is known."""
        window, host = self.window, self.edges.host
        moments = [step.end for step in counted_steps(self.rank, window) if window.start < step.end <= window.end]
        if not moments or moments[-1] != window.end:
            moments.append(window.end)
        at = np.array(sorted(moments), np.int64)
        times = np.zeros((len(at), len(CLASSES)), np.int64)
        if self.edges.calls:
            # The last call before each moment says which wait held its thread.
            called = np.flatnonzero((host.kind == Kind.LAUNCH) & (host.lane == self.edges.main))
            last = np.searchsorted(host.start[called], at, side="right") - 1
            wake = np.where(last >= 0, self.edges.wake[called[np.maximum(last, 0)]] if len(called) else -1, -1)
            # A wait that has just returned holds what comes after it.
            itself = np.where(last >= 0, called[np.maximum(last, 0)] if len(called) else 0, 0)
            returned = (last >= 0) & (self.edges.reached[itself] >= 0)
            returned &= host.end[itself] <= at
            wake = np.where(returned, itself, wake)
            wake[at >= window.end] = self.edges.wake[-1]
            base, since = self._base(at, wake)
            times[:, HOST] = at - since
            self._add(len(at), kind=MARK, base=base, called_ns=times, program=at, at_ns=at - window.start, begin=at)
            return
        leaving, ended = self.streams if len(self.edges.nodes) else (np.empty(0, np.int64), np.empty(0, np.int64))
        order = np.argsort(ended, kind="stable")
        last = np.searchsorted(ended[order], at, side="right") - 1
        row = np.where(last >= 0, leaving[order[np.maximum(last, 0)]], BEGINNING) if len(order) else np.full(
            len(at), BEGINNING
        )
        when = np.where(last >= 0, ended[order[np.maximum(last, 0)]], window.start) if len(order) else np.full(
            len(at), window.start
        )
        times[:, IDLE] = at - when
        self._add(len(at), kind=MARK, before=row, spent_ns=times, program=at, at_ns=at - window.start, begin=at)
