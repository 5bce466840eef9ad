"""The critical path of a run: through the ranks' own work and, at collectives, from rank to rank.

A collective cannot move data before its last rank arrives. So the path is walked back from the end of the rank that
ends last; at a collective that held this rank it goes to the rank that arrived last, at the moment of its arrival, and
on from there. What lies between is that rank's own time, split by its own critical path
(:func:`densing.efficiency.timeline.critical_path`).

The walk takes plain columns, so that thousands of ranks can be read one at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from densing.core import Note
from densing.efficiency.profile.alignment import Clocks, Matched
from densing.efficiency.profile.rank import RankProfile
from densing.efficiency.timeline import PATH_KINDS, CriticalPath, Int

Local = Callable[[int, int, int], Mapping[str, int]]
"""``local(rank, start, end)`` → nanoseconds by kind; the rest of [start, end) counts as ``idle``."""
MAX_RANKS = 64
"""Most ranks whose own critical paths are held in memory."""


@dataclass(frozen=True, eq=False)
class RankCollectives:
    """One rank's collectives, in any order, on the clock common to all ranks.

    Attributes
    ----------
    start, end : int
        The rank's window, ns.
    key : int64 (n,)
        Number of the matched collective, the same on all its ranks, from 0; -1 if it was not matched.
    begins, ends : int64 (n,)
        When this rank arrived at it, and when it was over here.
    blocking : bool (n,), optional
        Whether it held the rank: its own critical path leads through it (:func:`blocking`) or, more coarsely, part of
        it was exposed. All by default. A hidden collective must not turn the path.
    """

    start: int
    end: int
    key: Int
    begins: Int
    ends: Int
    blocking: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Turn:
    """A collective on the path.

    Attributes
    ----------
    key : int
    rank : int
        Rank on which the path leaves the collective.
    last_rank : int
        Rank that arrived last: the path goes on there.
    transfer_ns : int
        From the last arrival to the end on ``rank``: on the path.
    waited_ns : int
        How long ``rank`` had stood in it before the last arrival: the cost of ``last_rank`` being late.
    """

    key: int
    rank: int
    last_rank: int
    transfer_ns: int
    waited_ns: int


@dataclass(frozen=True)
class RunPath:
    """What bound a run.

    Attributes
    ----------
    start_ns, end_ns : int
        Ends of the path: from the start of the rank where it begins to the latest end of any rank.
    rank, stretch_start_ns, stretch_end_ns : tuple of int
        Stretches in order of time, and whose time they are; they tile the path.
    collective : tuple of int
        Key of the collective that a stretch transfers; -1 for a rank's own time.
    totals : mapping of int to mapping of str to int
        Nanoseconds by rank and kind; they sum to the path. Transfers count as ``communication`` of the rank on which
        the path leaves them.
    turns : tuple of Turn
        Collectives on the path, in order of time.
    """

    start_ns: int
    end_ns: int
    rank: tuple[int, ...]
    stretch_start_ns: tuple[int, ...]
    stretch_end_ns: tuple[int, ...]
    collective: tuple[int, ...]
    totals: Mapping[int, Mapping[str, int]]
    turns: tuple[Turn, ...]

    @property
    def by_kind(self) -> dict[str, int]:
        """Nanoseconds by kind, all ranks together."""
        kinds = dict.fromkeys(kind for row in self.totals.values() for kind in row)
        return {kind: sum(row.get(kind, 0) for row in self.totals.values()) for kind in kinds}

    @property
    def by_rank(self) -> dict[int, int]:
        """Nanoseconds by rank, all kinds together."""
        return {rank: sum(row.values()) for rank, row in self.totals.items()}

    @property
    def bound_by(self) -> tuple[int, str] | None:
        """The rank and kind with most time on the path; None for an empty one."""
        cells = [(ns, rank, kind) for rank, row in self.totals.items() for kind, ns in row.items() if ns]
        best = max(cells, key=lambda cell: cell[0], default=None)
        return best[1:] if best else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; ranks as a list beside their totals, since JSON knows no integer keys."""
        columns = (self.rank, self.stretch_start_ns, self.stretch_end_ns, self.collective)
        document = _PathDocument(
            self.start_ns,
            self.end_ns,
            _Stretches(*map(list, columns)),
            list(self.totals),
            list(self.totals.values()),
            list(self.turns),
            None if self.bound_by is None else _Bound(*self.bound_by),
        )
        plain: dict[str, Any] = msgspec.to_builtins(document)
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunPath:
        """Rebuild what :meth:`to_dict` wrote."""
        path = msgspec.convert(data, _PathDocument)
        stretches = path.stretches
        return cls(
            path.start_ns,
            path.end_ns,
            tuple(stretches.rank),
            tuple(stretches.start_ns),
            tuple(stretches.end_ns),
            tuple(stretches.collective),
            dict(zip(path.ranks, path.totals, strict=True)),
            tuple(path.turns),
        )


class _Stretches(msgspec.Struct):
    rank: list[int]
    start_ns: list[int]
    end_ns: list[int]
    collective: list[int]


class _Bound(msgspec.Struct):
    rank: int
    kind: str


class _PathDocument(msgspec.Struct):
    """A path as JSON has it, which knows no integer keys: ranks as a list beside their totals."""

    start_ns: int
    end_ns: int
    stretches: _Stretches
    ranks: list[int]
    totals: list[Mapping[str, int]]
    turns: list[Turn]
    bound_by: _Bound | None = None


def run_path(ranks: Sequence[RankProfile], matched: Matched, clocks: Clocks) -> tuple[RunPath | None, tuple[Note, ...]]:
    """Walk the critical path of a run from rank to rank.

    Returns
    -------
    RunPath or None
        None where there is nothing to walk: one rank, no matched communication, clocks that cannot be compared, or
        more than :data:`MAX_RANKS` ranks; the notes say which.
    tuple of Note
    """
    refusal = ""
    if len(ranks) < 2:
        refusal = "one rank was recorded"
    elif len(matched) == 0:
        refusal = "no communication could be matched"
    elif not clocks.comparable:
        refusal = "the ranks' clocks cannot be compared"
    elif len(ranks) > MAX_RANKS:
        refusal = f"{len(ranks)} ranks exceed the {MAX_RANKS} whose paths fit in memory"
    if refusal:
        return None, (Note("no-run-path", "info", f"no critical path across ranks: {refusal}"),)
    rows = {}
    for rank in ranks:
        table, offset = rank.collectives, clocks.offset_ns[rank.rank]
        key = np.full(len(table), -1, np.int64)
        own, matched_row = matched.rows_of(table)
        key[own] = matched_row
        blocks = blocking(rank.path, table.start_ns, table.end_ns)
        begins, ends = table.start_ns - offset, table.end_ns - offset
        rows[rank.rank] = RankCollectives(rank.start_ns - offset, rank.end_ns - offset, key, begins, ends, blocks)
    shift = {rank.rank: -clocks.offset_ns[rank.rank] for rank in ranks}
    path = run_critical_path(rows, local_of({rank.rank: rank.path for rank in ranks}, shift))
    # A rank's own path may be stored without its shortest segments: they count as idle between ranks.
    short_ns = sum(rank.path.left_out_ns for rank in ranks)
    if not short_ns:
        return path, ()
    share = 100 * short_ns / max(sum(rank.end_ns - rank.start_ns for rank in ranks), 1)
    text = f"{share:.2g} % of rank time was too fragmented for the critical path and is counted as idle"
    return path, (Note("run-path-shortened", "info", text, {"ns": short_ns}),)


def local_of(paths: Mapping[int, CriticalPath], offsets: Mapping[int, int] | None = None) -> Local:
    """Return the split of a rank's own time by its own critical path.

    Parameters
    ----------
    paths : mapping of rank to CriticalPath
    offsets : mapping of rank to int, optional
        Nanoseconds that the common clock is ahead of the rank's: common = own + offset.
    """
    shift = offsets or {}
    prepared: dict[int, tuple[Int, Int]] = {}

    def local(rank: int, start: int, end: int) -> dict[str, int]:
        path = paths[rank]
        if rank not in prepared:
            by_kind = (path.end - path.start)[:, None] * (path.kind[:, None] == np.arange(len(PATH_KINDS)))
            prepared[rank] = (path.end, np.concatenate((np.zeros((1, len(PATH_KINDS)), np.int64), by_kind.cumsum(0))))
        moments = np.array([start, end], np.int64) - shift.get(rank, 0)
        ends, sums = prepared[rank]
        at = np.searchsorted(ends, moments, side="right")
        total = sums[at].copy()
        for row, (index, moment) in enumerate(zip(at.tolist(), moments.tolist(), strict=True)):
            if index < len(ends):
                total[row, path.kind[index]] += max(moment - int(path.start[index]), 0)
        return {kind: ns for kind, ns in zip(PATH_KINDS, (total[1] - total[0]).tolist(), strict=True) if ns}

    return local


def blocking(path: CriticalPath, begins: Int, ends: Int) -> NDArray[np.bool_]:
    """Return which of a rank's collectives its own critical path leads through.

    Parameters
    ----------
    path : CriticalPath
        Of the rank, on its own clock.
    begins, ends : int64 (n,)
        On the same clock.
    """
    mask = path.kind == PATH_KINDS.index("communication")
    start, end = path.start[mask], path.end[mask]
    return np.asarray(np.searchsorted(end, begins, side="right") < np.searchsorted(start, ends, side="left"))


def run_critical_path(ranks: Mapping[int, RankCollectives], local: Local) -> RunPath:
    """Walk back through a run from its last end, from rank to rank where one waited for another.

    Parameters
    ----------
    ranks : mapping of rank to RankCollectives
        Read once in whole, then only where the path goes; it may load what it returns.
    local : callable
        ``local(rank, start, end)`` → nanoseconds by kind.

    Raises
    ------
    AssertionError
        Never, unless the arithmetic is broken: the path sums to its length.

    Notes
    -----
    Source: longest path of the happens-before graph with an edge from the last arrival at a collective to its end on
    every rank. Its error is that of the clocks' alignment.

    Examples
    --------
    Rank 1 arrives 30 ns after rank 0, and both end 10 ns later.

    >>> columns = [np.array([value]) for value in (0, 20, 60)], [np.array([value]) for value in (0, 50, 60)]
    >>> ranks = {rank: RankCollectives(0, 70, *columns[rank]) for rank in (0, 1)}
    >>> path = run_critical_path(ranks, lambda rank, start, end: {"compute": end - start})
    >>> path.totals[1], path.totals[0]["communication"], path.turns[0].waited_ns
    ({'compute': 50}, 10, 30)
    """
    if not ranks:
        return RunPath(0, 0, (), (), (), (), {}, ())
    last_begin, last_rank, shared, finish = _arrivals(ranks)
    walk = _Walk(ranks, local, *finish)
    while (turn := walk.next_collective(shared)) is not None:
        position, key = turn
        walk.pass_collective(position, key, int(last_begin[key]), int(last_rank[key]))
    return walk.result()


def _arrivals(ranks: Mapping[int, RankCollectives]) -> tuple[Int, Int, NDArray[np.bool_], tuple[int, int]]:
    """Per collective the last arrival and whose; which ones several ranks share; the last end and its rank."""
    begin, owner, count = (np.zeros(0, np.int64) for _ in range(3))
    finish: tuple[int, int] | None = None
    for rank in sorted(ranks):
        row = ranks[rank]
        order = np.argsort(row.begins, kind="stable")
        order = order[row.key[order] >= 0]
        keys, begins = row.key[order], row.begins[order]
        grown = max(int(keys.max(initial=-1)) + 1 - len(begin), 0)
        begin = np.concatenate((begin, np.full(grown, np.iinfo(np.int64).min)))
        owner, count = (np.concatenate((column, np.zeros(grown, np.int64))) for column in (owner, count))
        later = begins > begin[keys]
        begin[keys[later]], owner[keys[later]] = begins[later], rank
        count[np.unique(keys)] += 1
        if finish is None or row.end > finish[1]:
            finish = rank, row.end
    assert finish is not None
    return begin, owner, count > 1, finish


class _Walk:
    """The path as it grows backwards."""

    def __init__(self, ranks: Mapping[int, RankCollectives], local: Local, rank: int, end: int) -> None:
        self.ranks, self.local, self.rank, self.at, self.end = ranks, local, rank, end, end
        self.rows: list[tuple[int, int, int, int]] = []
        self.totals: dict[int, dict[str, int]] = {}
        self.turns: list[Turn] = []
        self.passed: set[int] = set()
        self.loaded: dict[int, tuple[list[int], list[int], list[int], int]] = {}

    def columns(self, rank: int) -> tuple[list[int], list[int], list[int], int]:
        """Ends, begins and keys of a rank's blocking collectives in order of their ends, and its start."""
        if rank not in self.loaded:
            row = self.ranks[rank]
            mask = row.key >= 0 if row.blocking is None else (row.key >= 0) & row.blocking
            order = np.flatnonzero(mask)[np.argsort(row.ends[mask], kind="stable")]
            columns = (row.ends[order].tolist(), row.begins[order].tolist(), row.key[order].tolist())
            self.loaded[rank] = (*columns, row.start)
        return self.loaded[rank]

    def next_collective(self, shared: NDArray[np.bool_]) -> tuple[int, int] | None:
        """The last collective that held the present rank before now; its position there and its key."""
        ends, begins, keys, start = self.columns(self.rank)
        for position in range(bisect_right(ends, self.at) - 1, -1, -1):
            key = keys[position]
            if ends[position] <= start:
                return None
            if shared[key] and key not in self.passed and begins[position] < self.at:
                return position, key
        return None

    def pass_collective(self, position: int, key: int, last_begin: int, last_rank: int) -> None:
        """Write the rank's own time back to the collective, its transfer, and turn to who arrived last."""
        ends, begins, _, start = self.columns(self.rank)
        end, begin = ends[position], begins[position]
        self.own_time(end)
        # Where clocks disagree, the last arrival may seem to come after the end.
        arrival = max(min(last_begin, end), begin, start)
        transfer = end - arrival
        if transfer:
            self.rows.append((self.rank, arrival, end, key))
            self.add(self.rank, "communication", transfer)
        self.turns.append(Turn(key, self.rank, last_rank, transfer, arrival - begin if begin >= start else 0))
        self.passed.add(key)
        self.at, self.rank = arrival, last_rank

    def own_time(self, start: int) -> None:
        """Write what the present rank did from ``start`` until now."""
        if start >= self.at:
            return
        self.rows.append((self.rank, start, self.at, -1))
        remaining = self.at - start
        for kind, ns in self.local(self.rank, start, self.at).items():
            self.add(self.rank, kind, min(ns, remaining))
            remaining -= min(ns, remaining)
        self.add(self.rank, "idle", remaining)
        self.at = start

    def add(self, rank: int, kind: str, ns: int) -> None:
        if ns:
            row = self.totals.setdefault(rank, {})
            row[kind] = row.get(kind, 0) + ns

    def result(self) -> RunPath:
        """Close the path at the start of the rank that it has reached."""
        self.own_time(min(self.columns(self.rank)[3], self.at))
        rows = self.rows[::-1]
        rank, start, end, key = zip(*rows, strict=True) if rows else ((), (), (), ())
        total = sum(sum(row.values()) for row in self.totals.values())
        assert total == self.end - self.at, "a path that does not sum to its length"
        totals = dict(sorted(self.totals.items()))
        return RunPath(self.at, self.end, rank, start, end, key, totals, tuple(self.turns[::-1]))
