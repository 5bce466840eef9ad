"""The critical path of a run: through the ranks' own work and, at collectives, from rank to rank.

A collective cannot move data before its last rank arrives. So the path is walked back from the end of the rank that
ends last, along what bound each row of the replay (:mod:`densing.efficiency.profile.replay`); at a collective it goes
to the rank that arrived last, at the moment of its arrival, and on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from densing.core import Note
from densing.efficiency.profile.replay import Change, Replay
from densing.efficiency.timeline import CLASSES, Row

_KINDS = dict(zip(CLASSES, ("compute", "memcpy", "idle", "idle", "host", "host", "host", "launch"), strict=True))
"""Kind on the path of each class of time in the replay."""


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


def run_path(replay: Replay) -> tuple[RunPath | None, tuple[Note, ...]]:
    """Walk the critical path of a run from rank to rank, back along the binding edges of its replay.

    Parameters
    ----------
    replay : Replay
        Of any number of ranks.

    Returns
    -------
    RunPath or None
        None where there is nothing to walk: one rank, no matched communication, or clocks that cannot be compared; the
        notes say which.
    tuple of Note

    Raises
    ------
    AssertionError
        Never, unless the arithmetic is broken: the path sums to its length.

    Notes
    -----
    Source: longest path of the happens-before graph with an edge from the last arrival at a collective to its end on
    every rank. Its error is that of the clocks' alignment.
    """
    refusal = ""
    if len(replay.ranks) < 2:
        refusal = "one rank was recorded"
    elif not replay.joins.any():
        refusal = "ranks are replayed each on its own" if replay.apart else "no communication could be matched"
    elif not replay.comparable:
        refusal = "the ranks' clocks cannot be compared"
    if refusal:
        return None, (Note("no-run-path", "info", f"no critical path across ranks: {refusal}"),)
    return walk(replay), ()


def walk(replay: Replay, change: Change | None = None) -> RunPath:
    """Walk back along the binding edges of a replay of one rank or more, with whole kinds of time unchanged.

    Parameters
    ----------
    replay : Replay
        With at least one row.
    change : Change, optional
        Of transfers, of who takes part, or of who waits.
    """
    moments, head = replay.times(change), replay.head
    change = change or Change()
    counts = replay.counts & ~np.isin(replay.rank, change.dropped)
    row = int(np.where(counts, moments[head:], -np.inf).argmax())
    weights = replay.weights(change)
    # The last to arrive at each communication, by the replay.
    role = replay.roles(change)
    own, links = change.own or replay.own, replay.edges(change)
    arrivals = np.flatnonzero(role > 0)
    last = np.full(replay.count, -1)
    order = arrivals[np.lexsort((-arrivals, moments[head + arrivals]))]
    last[role[order] - 1] = order
    stretches: list[tuple[int, int, int, int]] = []
    totals: dict[int, dict[str, int]] = {}
    turns: list[Turn] = []
    shift = replay.origin
    at = head + row
    final = round(moments[at])
    while at >= head:
        row = at - head
        rank, now = replay.ranks[replay.rank[row]], moments[at]
        if role[row] < 0:
            number = -int(role[row]) - 1
            source = head + int(last[number])
            arrival, begun = moments[source], moments[replay.before[row]]
            if round(now) > round(arrival):
                stretches.append((rank, round(arrival), round(now), number))
            _add(totals, rank, {"communication": round(now) - round(arrival)})
            last_rank = replay.ranks[replay.rank[source - head]]
            turns.append(Turn(number, rank, last_rank, round(now) - round(arrival), round(arrival) - round(begun)))
            at = source
            continue
        edges = [column[row] for column in links]
        edge = int(np.argmax([moments[source] + weight[row] for source, weight in zip(edges, weights, strict=True)]))
        before = moments[edges[edge]]
        kinds: dict[str, int] = {}
        if replay.kind[row] != Row.END:
            # By the host's program, or by what the row itself spent behind another.
            times = own.called[row] if edge == 2 else own.spent[row]
            for name, ns in zip(CLASSES, times.tolist(), strict=True):
                kinds[_KINDS[name]] = kinds.get(_KINDS[name], 0) + ns
        # The rest is a communication alone, a wait that returned, or a pause that nothing explains.
        rest = "communication" if replay.kind[row] == Row.END else "host" if replay.waits[row] else "idle"
        kinds[rest] = kinds.get(rest, 0) + round(now) - round(before) - sum(kinds.values())
        _add(totals, rank, kinds)
        if round(now) > round(before):
            if stretches and stretches[-1][0] == rank and stretches[-1][3] < 0 and replay.kind[row] != Row.END:
                stretches[-1] = (rank, round(before), stretches[-1][2], -1)
            else:
                stretches.append((rank, round(before), round(now), -1))
        at = int(edges[edge])
    start = round(moments[at])
    total = sum(sum(row.values()) for row in totals.values())
    assert total == final - start, "a path that does not sum to its length"
    rows = [(rank, begin + shift, end + shift, key) for rank, begin, end, key in reversed(stretches)]
    ranks, begins, ends, numbers = zip(*rows, strict=True) if rows else ((), (), (), ())
    filled = {rank: {kind: ns for kind, ns in kinds.items() if ns} for rank, kinds in sorted(totals.items())}
    return RunPath(start + shift, final + shift, ranks, begins, ends, numbers, filled, tuple(turns[::-1]))


def _add(totals: dict[int, dict[str, int]], rank: int, kinds: Mapping[str, int]) -> None:
    row = totals.setdefault(rank, {})
    for kind, ns in kinds.items():
        row[kind] = row.get(kind, 0) + ns
