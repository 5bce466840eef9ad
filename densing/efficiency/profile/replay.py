"""The recorded run replayed: one account of what bound it, what each cause costs, and what a change would gain.

Every rank is a system of longest paths (:mod:`densing.efficiency.timeline.dependencies`); a communication that was
matched over ranks joins them. It ends on each rank when the last has arrived and its transfer is done:

.. math:: end_{r,c} = \\max_s arrival_{s,c} + transfer_{r,c}

where the transfer is what the recorded end has beyond the last recorded arrival on comparable clocks (a rank that left
before did not wait), else the shortest duration over ranks. With nothing changed the replay gives the recorded times,
up to clocks that contradict each other; :class:`Fidelity` says by how much it misses.

Collectives in flight at once between the same ranks share their link: each of k goes at 1/k of its rate. What a
transfer takes *alone* is its time so divided, and a changed run is replayed until transfers and what they overlap with
agree:

.. math:: alone_c = \\int_{start_c}^{end_c} dt / k(t)

Messages between two ranks, and collectives of other groups, have links of their own.

A cause costs what the replay gains without it, one cause at a time. What all causes removed together gain beyond the
sum is their interaction. Ranks are *even* where every rank's own time between two of its communications (work, pauses,
the host's program) is the median over the ranks.

Source: replay of a profiled graph as in dPRO (MLSys'22, arXiv 2205.02473) and Daydream (ATC'20); even ranks after the
what-if analysis of OSDI'25 (arXiv 2505.05713), with the median where it takes the mean.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from densing.core import InputError, Record
from densing.efficiency.timeline import (
    BEGINNING,
    CLASSES,
    OPS,
    Collectives,
    Dependencies,
    Fused,
    Group,
    Int,
    Row,
    Spent,
    distinct,
)

if TYPE_CHECKING:
    from densing.efficiency.profile.alignment import Clocks, Matched

Float = NDArray[np.float64]
TOLERANCE_PCT = 2.0
"""Largest error of a replay, of the run and of each step, that counts as none."""
UNLIKE = 1.5
"""Ratio of the third to the first quartile from which transfers of one size count as unlike: normal noise of 30 %."""
MOST_PASSES, SETTLED_NS = 12, 1_000
"""Most passes of a replay whose transfers share links; by how little transfers then differ from one to the next."""
_SHARING = [OPS.index(op) for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")]
_NEVER = float("-inf")


class Fidelity(Record, frozen=True):
    """How well the replay of a run with nothing changed gives what was recorded.

    Attributes
    ----------
    status : {"ok", "off", "none"}
        ``off``: by more than 2 % of the run or of a step; ``none``: there was nothing to replay.
    sentence : str
    recorded_ns, replayed_ns : int
        From the first start of a window to the last end.
    worst_step_pct : float or None
        Largest error of a step's length on any rank, % of it; None without marked steps.
    """

    status: Literal["ok", "off", "none"]
    sentence: str
    recorded_ns: int
    replayed_ns: int
    worst_step_pct: float | None


class Times(NamedTuple):
    """What rows take: columns of :class:`Dependencies`, in the order of a replay, ns."""

    gap: Float
    held: Float
    spent: Int
    called: Int


@dataclass(frozen=True)
class Change:
    """What a replay changes; by default nothing.

    Attributes
    ----------
    without : tuple of str
        Kinds of time, of :data:`densing.efficiency.timeline.CLASSES`, that take no time.
    even : bool (ranks,), optional
        Ranks whose own time is the median over the ranks.
    transfer : float64 (n,), optional
        Transfer of each row that is the end of a communication, alone on its link, ns, in place of the recorded one.
    apart : bool (n,), optional
        Rows whose communications are not made: no rank waits for another in them.
    late : bool (n,), optional
        Ends of communications: what waits for one, communications apart, waits for the one of them before of the same
        operation and group instead.
    unblocked : bool
        Whether the host no longer waits for communications.
    overlapped : bool
        Whether nothing but communications waits for communications.
    dropped : tuple of int
        Positions of ranks that take no part.
    own : Times, optional
        What rows take, in place of the recorded times.
    """

    without: tuple[str, ...] = ()
    even: NDArray[np.bool_] | None = None
    transfer: Float | None = None
    apart: NDArray[np.bool_] | None = None
    late: NDArray[np.bool_] | None = None
    unblocked: bool = False
    overlapped: bool = False
    dropped: tuple[int, ...] = ()
    own: Times | None = None


class Replay:
    """A run ready to be replayed, with any part changed.

    Parameters
    ----------
    graphs : mapping of int to Dependencies
        By rank.
    tables : mapping of int to Collectives, optional
        By rank; may be read lazily, in order of rank.
    matched : Matched, optional
        The communications that join them; None for a single rank.
    clocks : Clocks, optional
    apart : str
        Why ranks are replayed each on its own, with nothing matched; empty where they are not.

    Attributes
    ----------
    ranks : tuple of int
    rank : int64 (n,)
        Position in ``ranks`` of each row; rows are in the order of the replay.
    kind : int64 (n,)
        Of the row, as in :class:`Dependencies`.
    communication : int64 (n,)
        Row of ``matched``, -1 elsewhere and for what was not matched.
    over_tcp : bool
        Whether communication went over TCP, as gloo's does.
    operations : tuple of (op, group)
    operation : int64 (n,)
        Position in ``operations`` of ends of communications, -1 elsewhere.
    contradictions : int
        Communications taken out because ranks meet in them in contradictory order.
    fuse : callable or None
        Reads the ranks again, with the kernels of a name fused (:func:`densing.efficiency.timeline.fuse`); by rank, in
        order. None where only what a profile keeps is at hand.

    Examples
    --------
    >>> from densing.efficiency.timeline import Kind, RankTimeline, Spans, condense, graph, select
    >>> work = Spans.build([{"start": 0, "end": 60, "kind": Kind.COMPUTE, "name": "gemm"},
    ...                     {"start": 60, "end": 80, "kind": Kind.MEMCPY, "name": "Memcpy HtoD"}])
    >>> rank = RankTimeline(0, work, Spans.empty())
    >>> window = select(rank)
    >>> replay = Replay({0: condense(rank, window, graph(rank, window))})
    >>> replay.run_ns(), replay.run_ns(Change(without=("memcpy",)))
    (80.0, 60.0)
    """

    def __init__(
        self,
        graphs: Mapping[int, Dependencies],
        tables: Mapping[int, Collectives] | None = None,
        matched: Matched | None = None,
        clocks: Clocks | None = None,
        apart: str = "",
    ) -> None:
        self.apart = apart
        self.ranks = tuple(sorted(graphs))
        parts = [graphs[rank] for rank in self.ranks]
        self.matched = matched
        self.fuse: Callable[[str], Iterable[tuple[int, Fused]]] | None = None
        self._fused: dict[str, tuple[Times, int, int]] = {}
        self._last: tuple[Change, Float, tuple[Float, Float, Float]] | None = None
        self.comparable = clocks is None or clocks.comparable
        offset = [0 if clocks is None else clocks.offset_ns.get(rank, 0) for rank in self.ranks]
        begins = [part.start_ns - own for part, own in zip(parts, offset, strict=True)]
        self.origin = min(begins, default=0)
        self.starts = np.array([begin - self.origin if self.comparable else 0 for begin in begins], np.float64)
        self._ends = [int(start) + part.end_ns - part.start_ns for start, part in zip(self.starts, parts, strict=True)]
        self.steps = sum(part.steps for part in parts) / max(len(parts), 1)
        self._sizes = sizes = [len(part) for part in parts]
        at = np.cumsum([0, *sizes])
        self.rank = np.repeat(np.arange(len(parts)), sizes)
        # Moments of a replay: never, the start of each rank's window, then the rows.
        head = 1 + len(parts)
        edges = {}
        for name in ("before", "other", "base"):
            columns = [
                np.where(column >= 0, column + head + first, np.where(column == BEGINNING, 1 + number, 0))
                for number, (first, part) in enumerate(zip(at[:-1].tolist(), parts, strict=True))
                for column in (getattr(part, name),)
            ]
            edges[name] = np.concatenate(columns) if columns else np.empty(0, np.int64)

        def joined(name: str) -> Int:
            columns = [getattr(part, name) for part in parts]
            return np.concatenate(columns) if columns else np.empty(0, np.int64)

        self.kind, collective = joined("kind"), joined("collective")
        gap, held, lag = (joined(name).astype(np.float64) for name in ("gap_ns", "held_ns", "lag_ns"))
        spent, called = joined("spent_ns").reshape(-1, len(CLASSES)), joined("called_ns").reshape(-1, len(CLASSES))
        recorded = joined("at_ns") + self.starts[self.rank]
        communication, operation, segment = self._numbered(parts, collective, at, tables or {}, matched)
        arrivals, ends = self.kind == Row.ARRIVAL, (self.kind == Row.END) & (communication >= 0)
        # The last recorded arrival at each, and what each end has beyond it.
        count = 0 if matched is None else len(matched)
        last = np.full(count + 1, _NEVER)
        np.maximum.at(last, communication[arrivals], recorded[arrivals])
        members = np.bincount(communication[arrivals] + 1, minlength=count + 1)[1:]
        transfer = np.zeros(len(gap))
        transfer[self.kind == Row.END] = gap[self.kind == Row.END]
        if matched is not None:
            known = matched.transfer_ns[communication[ends]].astype(np.float64)
            transfer[ends] = recorded[ends] - last[communication[ends]] if self.comparable else known
        # Where clocks disagree, or who sends need not wait, an end comes before the last arrival: it waited for none.
        joins = ends.copy()
        joins[ends] = (transfer[ends] >= 0) & (members[communication[ends]] > 1)
        order, self.contradictions = _schedule(at, communication, arrivals, joins, members)
        self._order = order
        transfer[ends & ~joins] = gap[ends & ~joins]
        position = np.concatenate((np.arange(head), np.empty(len(order), np.int64)))
        position[head + order] = head + np.arange(len(order))
        self.before, self.other, self.base = (position[edges[name][order]] for name in ("before", "other", "base"))
        self.head = head
        for name, column in (
            ("rank", self.rank), ("kind", self.kind), ("communication", communication), ("operation", operation),
            ("segment", segment), ("lag", lag), ("transfer", transfer), ("recorded", recorded), ("joins", joins),
        ):  # fmt: skip
            setattr(self, name, column[order])
        self.own = Times(gap[order], held[order], spent[order], called[order])
        # What each row does with its communication: nothing, arrive at it (number + 1), or leave it (-number - 1).
        role = np.zeros(len(order), np.int64)
        arrive = self.kind == Row.ARRIVAL
        role[arrive] = self.communication[arrive] + 1
        role[self.joins] = -self.communication[self.joins] - 1
        self.role = role
        self.count = count
        # The links, as (rank, members): a communication of several kinds of groups is told by its members.
        self._links = np.full(len(order), -1)
        if matched is not None:
            members_of = {group: place for place, group in enumerate(dict.fromkeys(map(_members, matched.groups)))}
            place = np.array([members_of[_members(group)] for group in matched.groups] or [0])
            rows = np.flatnonzero(self.joins)
            rows = rows[np.isin(matched.op[self.communication[rows]], _SHARING)]
            self._links[rows] = place[matched.group[self.communication[rows]]] * len(parts) + self.rank[rows]
        self._lasted = self.transfer
        self.transfer = self.transfer.copy()
        rows = np.flatnonzero(self._links >= 0)
        begin = self.recorded[rows] - self.transfer[rows]
        self.transfer[rows] = alone(self._links[rows], begin, self.transfer[rows])

    rank: Int
    kind: Int
    communication: Int
    operation: Int
    segment: Int
    own: Times
    lag: Float
    transfer: Float
    recorded: Float
    joins: NDArray[np.bool_]

    def _numbered(
        self,
        parts: Sequence[Dependencies],
        collective: Int,
        at: Int,
        tables: Mapping[int, Collectives],
        matched: Matched | None,
    ) -> tuple[Int, Int, Int]:
        """The matched communication of each row, its operation, and its segment of the program.

        A segment begins with the launch of a communication; it is the same on ranks that launched as many others since
        the last matched one.
        """
        communication, operation = np.full(len(collective), -1), np.full(len(collective), -1)
        segment = np.empty(len(collective), np.int64)
        known: dict[tuple[str, str], int] = {}
        # Of each of a rank's communications (the last stands for none) the matched one and the operation.
        of_rank: dict[int, tuple[Int, Int]] = {}
        self.over_tcp = False
        for rank, table in tables.items():
            self.over_tcp |= any(name.startswith("gloo:") for name in table.names)
            numbers, codes = np.full(len(table) + 1, -1), np.full(len(table) + 1, -1)
            if matched is not None:
                own, rows = matched.rows_of(table)
                numbers[own] = rows
            kind = table.op * (len(table.groups) + 1) + table.group
            for code in distinct(kind).tolist():
                op, group = divmod(code, len(table.groups) + 1)
                key = (OPS[op], table.groups[group].name or table.groups[group].label)
                codes[:-1][kind == code] = known.setdefault(key, len(known))
            of_rank[rank] = numbers, codes
        for number, (rank, part) in enumerate(zip(self.ranks, parts, strict=True)):
            here = slice(int(at[number]), int(at[number + 1]))
            numbers, codes = of_rank.get(rank, (np.full(1, -1), np.full(1, -1)))
            own = np.where(collective[here] < len(numbers) - 1, collective[here], -1)
            communication[here], operation[here] = numbers[own], codes[own]
            launched = numbers[np.where(part.launched < len(numbers) - 1, part.launched, -1)]
            index = np.arange(len(launched) + 1)
            seen = np.maximum.accumulate(np.append(0, np.where(launched >= 0, index[1:], 0)))
            since = np.append(-1, launched)[seen] + 1
            # What follows the last launch is cut by the window's end: it is compared with its like only.
            segment[here] = (since * 2**21 + 2 * (index - seen) + (index == len(launched)))[part.segment]
        self.operations = tuple(known)
        return communication, np.where(self.kind == Row.END, operation, -1), segment

    def __len__(self) -> int:
        return len(self.kind)

    @cached_property
    def recorded_ns(self) -> int:
        """From the first start of a window to the last end, of ranks that meet others."""
        return max((end for end, joined in zip(self._ends, self.joined, strict=True) if joined), default=0)

    @cached_property
    def moments(self) -> Float:
        """When each row ends with nothing changed, ns since the first start; never and the starts come first."""
        change = Change()
        return self._passed(change, *self._weights(change))

    def fused(self, text: str) -> tuple[Times, int, int]:
        """Read the ranks again, with adjacent kernels whose names hold a text launched at once.

        Returns
        -------
        Times
        kernels, launches : int
            Kernels of such a name on all ranks, and launches of them that are left.

        Raises
        ------
        InputError
            When only what a profile keeps is at hand, or the traces are no longer those that were profiled.
        """
        if self.fuse is None:
            raise InputError(
                f"--what-if fuse={text}: stored results hold no single kernels; give the traces in their place"
            )
        if text not in self._fused:
            read = dict(self.fuse(text))
            parts = [read[rank].rows for rank in self.ranks if rank in read]

            def joined(name: str) -> Any:
                columns = [getattr(part, name)[:size] for part, size in zip(parts, self._sizes, strict=True)]
                return np.concatenate(columns)[self._order]

            sizes = [len(part) for part in parts]
            # Of long runs the first steps are replayed.
            alike = len(sizes) == len(self._sizes) and all(map(int.__ge__, sizes, self._sizes))
            if not alike or not np.array_equal(joined("at_ns") + self.starts[self.rank], self.recorded):
                raise InputError(
                    f"--what-if fuse={text}: the traces have changed since they were profiled; profile again"
                )
            gap, held = (joined(name).astype(np.float64) for name in ("gap_ns", "held_ns"))
            own = Times(gap, held, joined("spent_ns"), joined("called_ns"))
            found = read.values()
            self._fused[text] = own, sum(one.kernels for one in found), sum(one.launches for one in found)
        return self._fused[text]

    def times(self, change: Change | None = None) -> Float:
        """Replay: when each row ends, ns since the first start of a window.

        Those of the last change are kept: how long a run takes, its steps and its path are read off the same replay.

        Returns
        -------
        float64 (1 + ranks + n,)
            Never, the starts of the ranks' windows, then the rows.
        """
        return self.moments if change is None else self._solved(change)[0]

    def _solved(self, change: Change) -> tuple[Float, tuple[Float, Float, Float]]:
        """The moments of a changed run and its weights, with transfers that share links as they then overlap."""
        if self._last is None or self._last[0] is not change:
            after, beside, called = self._weights(change)
            moments = self._passed(change, after, beside, called)
            transfer = self.transfer if change.transfer is None else change.transfer
            sent = np.flatnonzero((self._links >= 0) & (transfer > 0))
            if change.apart is not None:
                sent = sent[~change.apart[sent]]
            for _ in range(MOST_PASSES):
                if not len(sent):
                    break
                lasted = shared(self._links[sent], moments[self.head + sent] - after[sent], transfer[sent])
                if np.all(np.abs(lasted - after[sent]) <= SETTLED_NS):
                    break
                after = after.copy()
                after[sent] = lasted
                moments = self._passed(change, after, beside, called)
            self._last = (change, moments, (after, beside, called))
        return self._last[1:]

    def _passed(self, change: Change, after: Float, beside: Float, called: Float) -> Float:
        starts = self.starts
        if change.even is not None and self.comparable:
            starts = np.where(change.even, np.minimum(starts, np.sort(starts)[(len(starts) - 1) // 2]), starts)
        end: list[float] = [_NEVER, *starts.tolist()]
        append = end.append
        met = [_NEVER] * (self.count + 1)
        columns = (*self.edges(change), after, beside, called, self.roles(change))
        # A plain loop over lists: rows wait for one another, and numpy's scalars would cost more than the sums.
        for before, other, base, more, aside, since, role in zip(*(column.tolist() for column in columns), strict=True):
            if role < 0:
                append(met[-role] + more)
                continue
            moment = end[before] + more
            if (late := end[other] + aside) > moment:
                moment = late
            if (late := end[base] + since) > moment:
                moment = late
            append(moment)
            if role and moment > met[role]:
                met[role] = moment
        return np.array(end)

    def edges(self, change: Change) -> tuple[Int, Int, Int]:
        """Return what each row waits for: before, other and base, as positions in the moments of a replay."""
        if change.late is None:
            return self.before, self.other, self.base
        ends = np.flatnonzero(change.late)
        ends = ends[np.lexsort((ends, self.operation[ends], self.rank[ends]))]
        earlier = np.arange(self.head + len(self))
        earlier[self.head + ends[:1]] = 0
        follows = (np.diff(self.rank[ends]) == 0) & (np.diff(self.operation[ends]) == 0)
        earlier[self.head + ends[1:]] = np.where(follows, self.head + ends[:-1], 0)
        waiting = ~np.isin(self.kind, (Row.ARRIVAL, Row.END))
        other = np.where(waiting, earlier[self.other], self.other)
        # What follows it on its own stream follows what it followed instead.
        behind = waiting & np.isin(self.before, self.head + ends)
        other[behind] = np.maximum(other, earlier[self.before])[behind]
        before = self.before.copy()
        before[behind] = before[before[before[behind] - self.head] - self.head]
        return before, other, self.base

    @cached_property
    def step(self) -> Int:
        """Step in which each row was launched, or was done where no launch is recorded; 0 where no step is marked."""
        launch = np.where(self.base >= self.head, self.base - self.head, np.arange(len(self)))
        step = np.zeros(len(self), np.int64)
        for rank in range(len(self.ranks)):
            own = self.rank == rank
            ends = np.sort(self.recorded[own & (self.kind == Row.STEP)])
            step[own] = np.searchsorted(ends, self.recorded[launch[own]], side="right")
        return step

    def roles(self, change: Change) -> Int:
        """Return what each row does with its communication c: nothing (0), arrive (c + 1), or leave (-c - 1)."""
        role = self.role if change.apart is None else np.where(change.apart, 0, self.role)
        # The others do not wait for a rank that is gone.
        return np.where(np.isin(self.rank, change.dropped) & (role > 0), 0, role) if change.dropped else role

    def run_ns(self, change: Change | None = None) -> float:
        """Return how long the run takes, ns from the first start of a window to the last end of a row.

        Where a device still worked at the end of its rank's window, the run lasts until its work is done; the host's
        marks came earlier than it by chance, and do not count. Nor do ranks that no communication joins to the others.
        """
        moments = self.times(change)
        counts = self.counts if change is None else self.counts & ~np.isin(self.rank, change.dropped)
        return float(max(moments[self.head :].max(initial=0.0, where=counts), 0.0))

    @cached_property
    def counts(self) -> NDArray[np.bool_]:
        """Which rows the run lasts until."""
        device = ~np.isin(self.kind, (Row.PROGRAM, Row.STEP))
        ranks = len(self.ranks)
        last = np.full((2, ranks), _NEVER)
        np.maximum.at(last, (device.astype(np.int64), self.rank), self.recorded)
        return (device | (last[1] < last[0])[self.rank]) & self.joined[self.rank]

    @cached_property
    def joined(self) -> NDArray[np.bool_]:
        """Which ranks meet others in a communication; all where none does."""
        mask = np.bincount(self.rank[self.joins], minlength=len(self.ranks)) > 0
        return mask if mask.any() else np.ones(len(self.ranks), bool)

    def weights(self, change: Change | None = None) -> tuple[Float, Float, Float]:
        """Return how much later than each of what it waits for a row ends: before, other and base, ns (n,) each."""
        return self._weights(Change()) if change is None else self._solved(change)[1]

    def _weights(self, change: Change) -> tuple[Float, Float, Float]:
        """The same, with transfers as much slower than alone as they were recorded."""
        factor = self._factors(change.even)
        spent, called = np.zeros(len(self)), np.zeros(len(self))
        own = change.own or self.own
        gap, held = own.gap, own.held
        for code, name in enumerate(CLASSES):
            if name in change.without:
                if code == Spent.IDLE:
                    gap = np.where(self.kind == Row.END, gap, 0)
                continue
            scale = 1.0 if factor is None else factor[code]
            spent += own.spent[:, code] * scale
            called += own.called[:, code] * scale
            if code == Spent.IDLE and factor is not None:
                gap = np.where(self.kind == Row.END, gap, gap * factor[code])
            if code == Spent.HELD and factor is not None:
                held = held * factor[code]
        ends = self.kind == Row.END
        transfer = self._lasted
        if change.transfer is not None:
            scale = np.divide(self._lasted, self.transfer, out=np.ones(len(self)), where=self.transfer > 0)
            transfer = change.transfer * scale
        after = np.where(ends, transfer, gap + held + spent)
        beside = self.lag + spent
        if change.unblocked:
            beside = np.where(self.awaits_communication, _NEVER, beside)
        if change.overlapped:
            from_end = self.kind[np.maximum(self.other - self.head, 0)] == Row.END
            beside = np.where((self.other >= self.head) & from_end & (self.kind != Row.ARRIVAL), _NEVER, beside)
        return after, beside, called

    @cached_property
    def waits(self) -> NDArray[np.bool_]:
        """Which rows are the host waiting for the device."""
        return np.asarray((self.kind == Row.PROGRAM) & (self.other >= self.head))

    @cached_property
    def awaits_communication(self) -> NDArray[np.bool_]:
        """Which rows are the host waiting for a communication."""
        source = np.maximum(self.other - self.head, 0)
        return self.waits & (self.kind[source] == Row.END)

    def _factors(self, even: NDArray[np.bool_] | None) -> list[Float] | None:
        """By class, the factor of each row's time that makes its rank even; None where no rank is."""
        if even is None or not even.any():
            return None
        mask = even[self.rank]
        return [np.where(mask, factor, 1.0) for factor in self._even_factors]

    @cached_property
    def _even_factors(self) -> list[Float]:
        """By class, the median over ranks of the time in a row's segment over the rank's own."""
        ranks = len(self.ranks)
        _, key = np.unique(self.segment, return_inverse=True)
        keys = int(key.max(initial=-1)) + 1
        cell = key * ranks + self.rank
        present = np.bincount(cell, minlength=keys * ranks).reshape(keys, ranks) > 0
        n = present.sum(axis=1)
        factors = []
        for code, _ in enumerate(CLASSES):
            if code == Spent.LAUNCH:
                factors.append(np.ones(len(self)))
                continue
            total = np.bincount(cell, self._own(code), minlength=keys * ranks).reshape(keys, ranks)
            ordered = np.sort(np.where(present, total, np.inf), axis=1)
            row = np.arange(keys)
            median = (ordered[row, np.maximum(n - 1, 0) // 2] + ordered[row, np.minimum(n // 2, ranks - 1)]) / 2
            own = total.ravel()[cell]
            # A rank alone in its segment has nothing to be compared with.
            scale = np.where((own > 0) & (n[key] > 1), median[key] / np.where(own > 0, own, 1.0), 1.0)
            factors.append(scale)
        return factors

    @cached_property
    def even_ns(self) -> float:
        """How long the run takes with even ranks."""
        return self.run_ns(Change(even=np.ones(len(self.ranks), bool)))

    def step_range_ns(self, change: Change) -> tuple[float, float] | None:
        """Return the shortest and the longest step of a replay, ns; None where the marks of steps do not bound it.

        A step ends with the last rank that takes part.
        """
        rows = np.flatnonzero((self.kind == Row.STEP) & self.counts & ~np.isin(self.rank, change.dropped))
        steps = int(self.steps)
        if steps < 1 or steps != self.steps or len(rows) == 0:
            return None
        rows = rows[np.lexsort((self.recorded[rows], self.rank[rows]))]
        first = np.searchsorted(self.rank[rows], self.rank[rows])
        number = np.arange(len(rows)) - first
        ends = np.full(int(number.max()) + 1, _NEVER)
        np.maximum.at(ends, number, self.times(change)[self.head + rows])
        lengths = np.diff(np.append(float(self.starts.min()), ends[:steps]))
        return (float(lengths.min()), float(lengths.max())) if np.all(lengths > 0) else None

    def excess_ns(self) -> Float:
        """Return by how much each rank's own time exceeds that of an even rank, ns (ranks,)."""
        excess = np.zeros(len(self.ranks))
        for code, factor in enumerate(self._even_factors):
            more = self._own(code) * np.maximum(1 - factor, 0)
            excess += np.bincount(self.rank, more, minlength=len(self.ranks))
        return excess

    def class_times(self) -> Float:
        """Return the time of each kind on each rank, whether it bound anything or not, ns (classes, ranks)."""
        times = [np.bincount(self.rank, self._own(code), minlength=len(self.ranks)) for code in range(len(CLASSES))]
        return np.stack(times)

    def _own(self, code: int) -> Float:
        """Time of a kind that each row spends itself.

        The host's is told once, by its own rows; other rows only say where in it they were launched.
        """
        told = np.isin(self.kind, (Row.PROGRAM, Row.STEP)) | (code == Spent.LAUNCH)
        time = self.own.spent[:, code] + np.where(told, self.own.called[:, code], 0)
        if code == Spent.IDLE:
            return np.asarray(time + np.where(self.kind == Row.END, 0, self.own.gap), np.float64)
        return np.asarray(time + self.own.held if code == Spent.HELD else time, np.float64)

    @property
    def longest_stall_ns(self) -> int:
        """The longest pause of the host's program that counts as a stall."""
        return int(self.own.called[:, Spent.STALL].max(initial=0))

    @cached_property
    def alone_share(self) -> Float:
        """What each matched communication takes alone on its link over what it took, (matched,)."""
        rows = np.flatnonzero((self._links >= 0) & (self._lasted > 0))
        number, share = self.communication[rows], self.transfer[rows] / self._lasted[rows]
        count = np.bincount(number, minlength=self.count)
        return np.where(count, np.bincount(number, share, minlength=self.count) / np.maximum(count, 1), 1.0)

    @cached_property
    def slow_transfers(self) -> Float | None:
        """Factors that bring each matched transfer to the quickest quarter of its operation, size and ranks.

        None where nothing was matched, or their quarters differ by no more than chance makes them
        (:data:`UNLIKE`).
        """
        if self.matched is None or not self.joins.any():
            return None
        rows = np.flatnonzero(self.joins)
        matched, number = self.matched, self.communication[rows]
        _, kind = np.unique(
            np.stack((matched.op[number], matched.bytes[number], matched.n_ranks[number])), axis=1, return_inverse=True
        )
        kind = kind.reshape(-1)
        order = np.lexsort((self.transfer[rows], kind))
        n = np.bincount(kind)
        ordered, first = self.transfer[rows][order], np.cumsum(n) - n
        quick, slow = (ordered[first + (n - 1) * quarter // 4] for quarter in (1, 3))
        chosen = (slow >= UNLIKE * quick)[kind] & (quick[kind] > 0)
        if not chosen.any():
            return None
        factor = np.ones(len(self))
        factor[rows[chosen]] = quick[kind[chosen]] / np.maximum(self.transfer[rows[chosen]], quick[kind[chosen]])
        return factor

    @cached_property
    def fidelity(self) -> Fidelity:
        """How well the replay gives what was recorded."""
        if not len(self) or self.recorded_ns <= 0:
            return Fidelity("none", "there is nothing to replay: no work lies in the window", self.recorded_ns, 0, None)
        replayed = self.run_ns()
        marks = np.flatnonzero(self.kind == Row.STEP)
        marks = marks[np.lexsort((self.recorded[marks], self.rank[marks]))]
        first = np.append(True, self.rank[marks][1:] != self.rank[marks][:-1])
        moments = self.moments[self.head + marks]
        begin = self.starts[self.rank[marks]]
        recorded = self.recorded[marks] - np.where(first, begin, np.roll(self.recorded[marks], 1))
        lasted = moments - np.where(first, begin, np.roll(moments, 1))
        filled = recorded > 0.01 * self.recorded_ns
        worst: float | None = None
        if self.steps and filled.any():
            worst = float(100 * np.abs(lasted[filled] / recorded[filled] - 1).max())
        error = 100 * (replayed / self.recorded_ns - 1)
        reasons = [f"each rank is replayed on its own: {self.apart}"] if self.apart else []
        if not self.comparable and not self.apart:
            reasons.append("the ranks' clocks cannot be compared, so each window begins at 0")
        if self.contradictions:
            reasons.append(f"ranks meet in {self.contradictions} communications in contradictory order")
        why = f"; {'; '.join(reasons)}" if reasons else ""
        steps = "" if worst is None else f", single steps within {worst:.1f} %"
        off = abs(error) > TOLERANCE_PCT or (worst or 0.0) > TOLERANCE_PCT
        sentence = (
            f"the replay with nothing changed takes {replayed / self.recorded_ns:.3f} of the recorded time{steps}"
        )
        return Fidelity("off" if off else "ok", sentence + why, self.recorded_ns, round(replayed), worst)


def _members(group: Group) -> tuple[int, ...] | str:
    """What tells the link of a group: its ranks, else its name."""
    return tuple(sorted(group.ranks)) or group.name or group.label


def alone(link: Int, begin: Float, lasted: Float) -> Float:
    """Return what each transfer would take alone on its link, where k at once go at 1/k of the rate each, ns.

    Parameters
    ----------
    link : int64 (n,)
    begin, lasted : float64 (n,)
        When each began, and how long it took.

    Examples
    --------
    >>> alone(np.array([0, 0, 1]), np.array([0.0, 10.0, 0.0]), np.array([30.0, 40.0, 5.0])).tolist()
    [20.0, 30.0, 5.0]
    """
    n = len(link)
    at = np.concatenate((begin, begin + lasted))
    order = np.lexsort((at, np.concatenate((link, link))))
    flight = np.cumsum(np.where(order < n, 1, -1))
    passed = np.append(np.diff(at[order]), 0.0)
    progress = np.empty(2 * n)
    progress[order] = np.append(0.0, np.cumsum(np.where(flight > 0, passed / np.maximum(flight, 1), 0.0))[:-1])
    return progress[n:] - progress[:n]


def shared(link: Int, begin: Float, alone: Float) -> Float:
    """Return how long each transfer takes where k at once on a link go at 1/k of the rate each, ns.

    The inverse of :func:`alone`.

    Examples
    --------
    >>> shared(np.array([0, 0, 1]), np.array([0.0, 10.0, 0.0]), np.array([20.0, 30.0, 5.0])).tolist()
    [30.0, 40.0, 5.0]
    """
    lasted = alone.copy()
    order = np.lexsort((begin, link))
    places, begins = link[order], begin[order]
    if not np.any((places[1:] == places[:-1]) & (begins[1:] < (begins + alone[order])[:-1])):
        return lasted
    # By link a heap of (progress at which it is done, row): all in flight progress alike.
    flying: list[tuple[float, int]] = []
    now = progress = 0.0
    place = -1
    ends = [*zip(places.tolist(), begins.tolist(), order.tolist(), strict=True), (-1, np.inf, -1)]
    for here, moment, row in ends:
        until = moment if here == place else np.inf
        while flying and (end := now + (flying[0][0] - progress) * len(flying)) <= until:
            (progress, done) = heapq.heappop(flying)
            now = end
            lasted[done] = end - begin[done]
        if flying:
            progress += (until - now) / len(flying)
        place, now = here, moment
        if row >= 0:
            heapq.heappush(flying, (progress + alone[row], row))
    return lasted


def _schedule(
    at: Int, communication: Int, arrivals: NDArray[np.bool_], joins: NDArray[np.bool_], members: Int
) -> tuple[Int, int]:
    """An order of all rows in which every arrival at a communication comes before its ends.

    Rows of a rank keep their order. Where ranks wait for each other in a circle, the ends that stand in the way no
    longer join (``joins`` is changed); also returns how many communications these are.
    """
    n = int(at[-1])
    meets = np.flatnonzero((arrivals & (communication >= 0)) | joins)
    if len(at) < 3 or len(meets) == 0:
        joins[:] = False
        return np.arange(n), 0
    rank_of = np.searchsorted(at, meets, side="right") - 1
    cuts = np.searchsorted(rank_of, np.arange(len(at)))
    missing = members.tolist()
    numbers, is_end, rows = communication[meets].tolist(), joins[meets].tolist(), meets.tolist()
    pointer, stop, done = cuts[:-1].tolist(), cuts[1:].tolist(), at[:-1].tolist()
    parked: dict[int, list[int]] = {}
    pieces: list[tuple[int, int]] = []
    ready = list(range(len(at) - 2, -1, -1))
    dropped: set[int] = set()
    while True:
        while ready:
            rank = ready.pop()
            place, last = pointer[rank], stop[rank]
            while place < last:
                number = numbers[place]
                if is_end[place] and number in dropped:
                    joins[rows[place]] = False
                elif is_end[place]:
                    if missing[number] > 0:
                        break
                else:
                    missing[number] -= 1
                    if missing[number] == 0:
                        ready.extend(parked.pop(number, ()))
                place += 1
            pointer[rank] = place
            row = rows[place] if place < last else int(at[rank + 1])
            if row > done[rank]:
                pieces.append((done[rank], row))
                done[rank] = row
            if place < last:
                parked.setdefault(numbers[place], []).append(rank)
        if not parked:
            break
        number = min(parked)
        dropped.add(number)
        ready.extend(parked.pop(number))
    return np.concatenate([np.arange(first, last) for first, last in pieces]), len(dropped)
