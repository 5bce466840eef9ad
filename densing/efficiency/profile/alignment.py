"""The ranks of a run lined up: which communications are the same on all of them, and how far their clocks differ.

Of one collective, over its ranks r: transfer is what the last to arrive needed, the rest is waiting. That needs no
common clock:

.. math:: transfer = \\min_r duration_r, \\qquad wait_r = duration_r - transfer

Source: PyTorch TensorBoard plugin (torch_tb_profiler), communication view; AMD TraceLens, ``comm_latency``.

Members of a collective leave it together, so its ends are the same moment everywhere, and put the clocks on one:

.. math:: offset_r = \\mathrm{median}_c (end_{r,c} - end_{ref,c}), \\qquad
          residual_r = \\mathrm{median}_c |end_{r,c} - end_{ref,c} - offset_r|

Source: alignment on collective ends as users do it by hand (pytorch attention-gym issue 487); veScale ndtimeline
simulates a global clock by communication.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from densing.core import Note, Severity
from densing.efficiency.timeline import OPS, Collectives, Group, Int, nth

if TYPE_CHECKING:
    from densing.efficiency.simulation import Observation

SEND, RECV = OPS.index("send"), OPS.index("recv")
# Point-to-point kernels: without recorded peers they cannot be paired.
_PAIRWISE = tuple(OPS.index(op) for op in ("send", "recv", "send_recv", "p2p_copy"))
# All members contribute the same number of bytes, so different sizes are different communications.
_SAME_BYTES = tuple(OPS.index(op) for op in ("all_reduce", "broadcast", "reduce"))
_UNKNOWN_OP = len(OPS) - 1
BY_SEQ = -2
_NEVER = np.iinfo(np.int64).max
# The columns of a match, and their values for a key that no rank has yet.
_EMPTY = {"op": _UNKNOWN_OP, "group": 0, "by_seq": 0, "number": -1, "order": 0, "step": -1, "n_ranks": 0, "bytes": -1,
          "transfer_ns": _NEVER, "second_ns": _NEVER, "longest_ns": 0, "shortest_rank": -1}  # fmt: skip
_NAMED_CELLS = 3
Key = tuple[int, int, int, int]
Cell = tuple[int, int, int]


class Keys(NamedTuple):
    """Keys of one rank's communications: two communications on two ranks match when their keys are equal.

    Attributes
    ----------
    row : int64 (m,)
        Row in the rank's table.
    group : int64 (m,)
        Number of the group, the same on every rank.
    kind : int64 (m,)
        :data:`BY_SEQ`, or the operation where no sequence number is recorded.
    first, second : int64 (m,)
        Sequence number and n-th with that number; or step and n-th of group and operation in that step.
    lonely : int
        Point-to-point communications without recorded peers, which cannot be matched.
    """

    row: Int
    group: Int
    kind: Int
    first: Int
    second: Int
    lonely: int

    def tuples(self) -> list[Key]:
        """Return one hashable key per communication."""
        columns = (self.group, self.kind, self.first, self.second)
        return list(zip(*(column.tolist() for column in columns), strict=True))


class Groups:
    """Numbers the process groups of a run: the same number for the same group on every rank.

    A group is the same if name and members agree; where members are unknown, name and size; where the trace names no
    group, the stream's number. A pair of ranks that send to each other is a group of two.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.groups: list[Group] = []

    def number(self, group: Group) -> int:
        """Return a group's number; a new one for a new group."""
        identity = (group.name, group.ranks or group.size, "" if group.name or group.ranks else group.label)
        return self._add(identity, group)

    def pair(self, group: Group, src: int, dst: int) -> int:
        """Return the number of a sender and a receiver within a group."""
        return self._add(("pair", group.name, src, dst), Group(group.name, f"{src}->{dst}", 2, (src, dst)))

    def _add(self, identity: Hashable, group: Group) -> int:
        if identity not in self._numbers:
            self._numbers[identity] = len(self.groups)
            self.groups.append(group)
        return self._numbers[identity]


def keys_of(collectives: Collectives, groups: Groups) -> Keys:
    """Return the keys by which a rank's communications are matched with other ranks'.

    Examples
    --------
    >>> from densing.efficiency.timeline import COLUMNS
    >>> columns = {key: np.zeros(2, np.int64) for key in COLUMNS} | {"seq": np.array([4, 5])}
    >>> table = Collectives(0, "all", 0, 9, (Group("0"),), (), (), (), **columns)
    >>> keys_of(table, Groups()).tuples()
    [(0, -2, 4, 0), (0, -2, 5, 0)]
    """
    paired = np.isin(collectives.op, (SEND, RECV)) & (collectives.src >= 0) & (collectives.dst >= 0)
    usable = paired | ~np.isin(collectives.op, _PAIRWISE)
    row = np.flatnonzero(usable)
    numbers = np.array([groups.number(group) for group in collectives.groups] or [0], np.int64)
    number = numbers[collectives.group] if len(collectives) else np.empty(0, np.int64)
    for index in np.flatnonzero(paired).tolist():
        members = collectives.groups[collectives.group[index]]
        number[index] = groups.pair(members, int(collectives.src[index]), int(collectives.dst[index]))
    group = number[row]
    op = np.where(paired, SEND, collectives.op)[row]
    # A receive of unknown number has no partner by number, so pairs go by order.
    seq = np.where(paired, -1, collectives.seq)[row]
    step, by_seq = collectives.step[row], seq >= 0
    kind, first = np.where(by_seq, BY_SEQ, op), np.where(by_seq, seq, step)
    moment = np.where(by_seq, collectives.start_ns[row], collectives.order[row])
    return Keys(row, group, kind, first, nth(moment, group, kind, first), len(collectives) - len(row))


@dataclass(frozen=True, eq=False)
class Matched:
    """Communications matched over ranks, one row each, with the figures that need no common clock.

    Attributes
    ----------
    ranks : tuple of int
    groups : tuple of Group
    op, group : int64 (n,)
        Index into ``OPS`` and ``groups``.
    by_seq : int64 (n,)
        1 where matched by the recorded sequence number, 0 where by step and order.
    number, order : int64 (n,)
        Sequence number, or step (-1 without); n-th of those.
    step : int64 (n,)
        Step on the first rank read; -1 none.
    n_ranks : int64 (n,)
        Ranks that have it: 2 or more.
    bytes : int64 (n,)
        Largest S over ranks; -1 unknown.
    transfer_ns, second_ns, longest_ns : int64 (n,)
        Smallest, second smallest and largest duration over ranks.
    shortest_rank : int64 (n,)
        Rank of the smallest duration: the last to arrive, as far as durations tell.
    notes : tuple of Note
    per_rank : mapping of int to Collectives
        The tables matched; may read them lazily.
    index, numbering
        Key to row, and the groups' numbers.
    """

    ranks: tuple[int, ...]
    groups: tuple[Group, ...]
    op: Int
    group: Int
    by_seq: Int
    number: Int
    order: Int
    step: Int
    n_ranks: Int
    bytes: Int
    transfer_ns: Int
    second_ns: Int
    longest_ns: Int
    shortest_rank: Int
    notes: tuple[Note, ...] = ()
    per_rank: Mapping[int, Collectives] = field(default_factory=dict, repr=False)
    index: Mapping[Key, int] = field(default_factory=dict, repr=False)
    numbering: Groups = field(default_factory=Groups, repr=False)

    def __len__(self) -> int:
        return len(self.op)

    def rows_of(self, collectives: Collectives) -> tuple[Int, Int]:
        """Return the rows of one rank's matched communications: in its own table, and here."""
        keys = keys_of(collectives, self.numbering)
        rows = np.array([self.index.get(key, -1) for key in keys.tuples()], np.int64)
        return keys.row[rows >= 0], rows[rows >= 0]

    def take(self, mask: NDArray[np.bool_]) -> Matched:
        """Keep only some of the communications.

        Parameters
        ----------
        mask : bool (n,)
            True for those that stay.
        """
        position = np.cumsum(mask) - 1
        columns: dict[str, Any] = {key: getattr(self, key)[mask] for key in _EMPTY}
        index = {key: int(position[row]) for key, row in self.index.items() if mask[row]}
        return replace(self, **columns, index=index)


def match_collectives(per_rank: Mapping[int, Collectives]) -> Matched:
    """Match the communications of a run over its ranks, in one pass.

    Two communications are the same if their group is the same and so is the sequence number; where none is recorded,
    the operation, the step (by launch) and the position among those. Sends pair with receives. Where ranks count
    differently within a step, nothing says which is missing, and the step's communications of that kind are left out
    with a note.

    Parameters
    ----------
    per_rank : mapping of int to Collectives
        May read its values lazily: one is held at a time, memory is that of one rank and of the result.

    Returns
    -------
    Matched

    Examples
    --------
    >>> from densing.efficiency.timeline import COLUMNS
    >>> def table(rank, start, end):
    ...     columns = {key: np.zeros(1, np.int64) for key in COLUMNS}
    ...     columns |= {"start_ns": np.array([start]), "end_ns": np.array([end])}
    ...     return Collectives(rank, "all", 0, 99, (Group("0", size=2),), (), (), (), **columns)
    >>> matched = match_collectives({0: table(0, 10, 50), 1: table(1, 40, 51)})
    >>> matched.transfer_ns.tolist(), matched.longest_ns.tolist(), matched.shortest_rank.tolist()
    ([11], [40], [1])
    """
    table = _KeyTable()
    for rank, collectives in per_rank.items():
        table.add(rank, collectives)
    every = Matched(
        tuple(table.ranks),
        tuple(table.numbering.groups),
        **table.columns(),
        notes=tuple(_match_notes(table)),
        per_rank=per_rank,
        index=table.index,
        numbering=table.numbering,
    )
    return every.take(table.usable())


class _KeyTable:
    """What is known so far, one row per key for any number of ranks, which are added one at a time."""

    def __init__(self) -> None:
        self.ranks: list[int] = []
        self.numbering = Groups()
        self.index: dict[Key, int] = {}
        self.lonely = 0
        # Cells whose counts differ between ranks: one count and its rank, another count and its rank.
        self.uneven: dict[Cell, tuple[int, int, int, int]] = {}
        self._cells: dict[Cell, tuple[int, int]] = {}
        self._table = {key: np.empty(0, np.int64) for key in (*_EMPTY, "differs")}

    def columns(self) -> dict[str, Int]:
        """Return the columns of :class:`Matched`, one row per key."""
        return {key: self._table[key][: len(self.index)] for key in _EMPTY}

    def usable(self) -> NDArray[np.bool_]:
        """Return which rows can be used: on two or more ranks, with equal counts and the same operation and size."""
        return (self._table["n_ranks"][: len(self.index)] >= 2) & ~self.miscounted() & ~self.conflicting()

    def conflicting(self) -> NDArray[np.bool_]:
        """Return which rows are different communications on different ranks.

        In a group that the trace does not name, one such row shows that the ranks do not share it: all its rows are
        dropped.
        """
        differs, group = self._table["differs"][: len(self.index)] > 0, self._table["group"][: len(self.index)]
        return differs | (self.nameless()[group] & np.isin(group, group[differs]))

    def nameless(self) -> NDArray[np.bool_]:
        """Return which groups the trace does not name; only their streams distinguish them."""
        return np.array([not (group.name or group.ranks) for group in self.numbering.groups] or [False], bool)

    def miscounted(self) -> NDArray[np.bool_]:
        """Return which rows belong to a group, operation and step whose count differs between ranks."""
        return np.array([key[:3] in self.uneven for key in self.index], bool)

    def add(self, rank: int, collectives: Collectives) -> None:
        """Add one rank."""
        keys = keys_of(collectives, self.numbering)
        self.ranks.append(rank)
        self.lonely += keys.lonely
        rows = np.array([self.index.setdefault(key, len(self.index)) for key in keys.tuples()], np.int64)
        missing = len(self.index) - len(self._table["op"])
        if missing > 0:
            # Columns at least double in length, so that many ranks do not cause many copies.
            room = max(missing, len(self._table["op"]))
            for key, column in self._table.items():
                self._table[key] = np.concatenate((column, np.full(room, _EMPTY.get(key, 0), np.int64)))
        self._count(rank, keys)
        self._describe(rows, keys, collectives)
        table, duration = self._table, collectives.duration_ns[keys.row]
        table["n_ranks"][rows] += 1
        shortest, second = table["transfer_ns"][rows], table["second_ns"][rows]
        shorter = duration < shortest
        table["shortest_rank"][rows] = np.where(shorter, rank, table["shortest_rank"][rows])
        table["second_ns"][rows] = np.where(shorter, shortest, np.minimum(second, duration))
        table["transfer_ns"][rows] = np.minimum(shortest, duration)
        table["longest_ns"][rows] = np.maximum(table["longest_ns"][rows], duration)

    def _count(self, rank: int, keys: Keys) -> None:
        """Compare the number of communications per group, operation and step with the first rank that has any."""
        by_order = keys.kind != BY_SEQ
        cells = np.stack((keys.group[by_order], keys.kind[by_order], keys.first[by_order]), axis=1)
        distinct, counts = np.unique(cells, axis=0, return_counts=True)
        for (group, kind, step), count in zip(distinct.tolist(), counts.tolist(), strict=True):
            cell = (group, kind, step)
            first_count, first_rank = self._cells.setdefault(cell, (count, rank))
            if first_count != count:
                self.uneven.setdefault(cell, (first_count, first_rank, count, rank))

    def _describe(self, rows: Int, keys: Keys, collectives: Collectives) -> None:
        """Fill in new keys, and mark known keys for which this rank has another operation or size."""
        table, row = self._table, keys.row
        new = table["n_ranks"][rows] == 0
        op = np.where(keys.kind == SEND, SEND, collectives.op[row])
        columns = {"group": keys.group, "by_seq": (keys.kind == BY_SEQ).astype(np.int64), "number": keys.first,
                   "order": keys.second, "step": collectives.step[row]}  # fmt: skip
        for key, column in columns.items():
            table[key][rows[new]] = column[new]
        known_op, known_size, size = table["op"][rows], table["bytes"][rows], collectives.bytes[row]
        other_op = (known_op != op) & (known_op != _UNKNOWN_OP) & (op != _UNKNOWN_OP)
        other_size = np.isin(op, _SAME_BYTES) & (known_size >= 0) & (size >= 0) & (known_size != size)
        table["differs"][rows] |= (other_op | other_size).astype(np.int64)
        table["op"][rows] = np.where(known_op == _UNKNOWN_OP, op, known_op)
        table["bytes"][rows] = np.maximum(known_size, size)


def _match_notes(keys: _KeyTable) -> Iterator[Note]:
    """Yield notes on what could not be matched, and why."""
    if len(keys.ranks) == 1:
        message = f"only rank {keys.ranks[0]} was recorded, so its waiting time is unknown; profile all ranks"
        yield Note("one-rank", "info", message, {"rank": keys.ranks[0]})
        return

    def note(code: str, severity: Severity, count: int, text: str) -> Iterator[Note]:
        if count:
            yield Note(code, severity, f"{count} communications {text}", {"count": count})

    columns, usable, miscounted = keys.columns(), keys.usable(), keys.miscounted()
    group, counts = columns["group"], columns["n_ranks"]
    if keys.uneven:
        cells = [
            f"{OPS[kind] or 'unknown'} in group {keys.numbering.groups[number].name or 'unnamed'!r}"
            f"{f', step {step}' if step >= 0 else ''}: {first_count} on rank {first_rank}, {count} on rank {rank}"
            for (number, kind, step), (first_count, first_rank, count, rank) in list(keys.uneven.items())[:_NAMED_CELLS]
        ]
        rows = int(miscounted.sum())
        message = f"{rows} communications were left out because counts differ between ranks ({'; '.join(cells)})"
        yield Note("collective-counts-differ", "warning", message, {"count": rows, "cells": len(keys.uneven)})
    conflicts = int(keys.conflicting().sum())
    yield from note(
        "collective-mismatch", "warning", conflicts, "differ in operation or size between ranks and were left out"
    )
    single = int(((counts == 1) & ~miscounted).sum())
    yield from note("collective-unmatched", "info", single, "have no counterpart on another recorded rank")
    yield from note(
        "point-to-point-unmatched", "info", keys.lonely, "are point-to-point and their peers were not recorded"
    )
    # Members of each group that were recorded; 0 where members are unknown.
    ranks = set(keys.ranks)
    recorded = np.array([len(ranks.intersection(group.ranks)) for group in keys.numbering.groups] or [0], np.int64)
    partial = int((usable & (counts < recorded[group])).sum())
    yield from note("collective-partial", "warning", partial, "lack a recorded member of their group")
    assumed = int((usable & keys.nameless()[group]).sum())
    yield from note(
        "group-assumed", "info", assumed, "do not name a process group; assumed to be shared by all recorded ranks"
    )


FITTED = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
          "all_to_all": "all_to_all", "broadcast": "broadcast", "send": "send_recv", "recv": "send_recv",
          "send_recv": "send_recv"}  # fmt: skip


def observations(matched: Matched, alone: NDArray[np.float64] | None = None) -> tuple[Observation, ...]:
    """Return each matched communication's bytes, group size, transfer time and overlap with compute.

    Transfer is the shortest duration over the ranks, that of the last to arrive. Unknown sizes are left out, and
    broadcasts where there is anything else: their root leaves once its buffer is handed over.

    Parameters
    ----------
    matched : Matched
    alone : float64 (n,), optional
        What each takes alone on its link, as a share of its transfer: :attr:`Replay.alone_share`. All of it by default.
    """
    from densing.efficiency.simulation import Observation

    hidden = np.zeros(len(matched))
    for rank, table in matched.per_rank.items():
        own, rows = matched.rows_of(table)
        mine = matched.shortest_rank[rows] == rank
        length = np.maximum(table.duration_ns[own[mine]], 1)
        hidden[rows[mine]] = np.minimum(table.hidden_ns[own[mine]] / length, 1.0)
    columns = (
        matched.op,
        matched.bytes,
        matched.group,
        matched.n_ranks,
        matched.transfer_ns * (1.0 if alone is None else alone),
    )
    observed = []
    for op, count, group, ranks, transfer, overlapped in zip(
        *(column.tolist() for column in columns), hidden.tolist(), strict=True
    ):
        name = FITTED.get(OPS[op])
        size = 2 if name == "send_recv" else max(matched.groups[group].size, ranks)
        if name is not None and count > 0 and transfer > 0:
            observed.append(Observation(name, float(count), size, transfer / 1e9, overlapped))
    return tuple(one for one in observed if one.op != "broadcast") or tuple(observed)


# How far the ranks' clocks differ.

Verdict = Literal["one rank", "agree", "aligned", "not aligned"]
# In these no member can finish before the last has arrived; in a broadcast or a send the root can.
SYMMETRIC = tuple(OPS.index(op) for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"))
MIN_SHARED = 3
# Members finish a few microseconds apart even on one clock; smaller offsets are not clock differences.
AGREE = 3


@dataclass(frozen=True)
class Clocks:
    """How far the ranks' clocks differ.

    Attributes
    ----------
    verdict : {"one rank", "agree", "aligned", "not aligned"}
        ``agree``: no offset exceeds three residuals, so times are used as recorded. ``aligned``: offsets are applied.
        ``not aligned``: starts on different ranks cannot be compared; only durations can.
    reference : int
        Rank whose clock the others are put on.
    offset_ns : mapping of int to int
        Per rank, what to subtract from its times; 0 where the verdict is not ``aligned``.
    measured_ns : mapping of int to int
        Per rank, the offset measured, whatever the verdict; absent where it could not be.
    residual_ns : mapping of int to int
        Per rank, median distance of single collectives from the offset: what a comparison of starts is good for.
    n : mapping of int to int
        Per rank, collectives the offset rests on.
    bound_ns : mapping of int to int
        Per rank, how far its times may be off the reference's and repeat that in every step: the upper confidence
        limit (97.5 %) of the residual, and where offsets are left in (``agree``) the offset measured too.
    notes : tuple of Note
    """

    verdict: Verdict
    reference: int
    offset_ns: Mapping[int, int]
    measured_ns: Mapping[int, int]
    residual_ns: Mapping[int, int]
    n: Mapping[int, int]
    bound_ns: Mapping[int, int]
    notes: tuple[Note, ...] = ()

    @property
    def comparable(self) -> bool:
        """Whether starts on different ranks can be compared."""
        return self.verdict in ("agree", "aligned")

    @property
    def error_ns(self) -> int:
        """How far apart any two ranks' times may be by error of their clocks: the two largest bounds."""
        return sum(sorted(self.bound_ns.values())[-2:])

    def against(self, rank: int) -> Clocks:
        """Return the clocks shifted by their error bounds so that one rank arrives as early as possible."""
        shift = {other: bound if other == rank else -bound for other, bound in self.bound_ns.items()}
        return replace(self, offset_ns={key: ns + shift.get(key, 0) for key, ns in self.offset_ns.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; one list per quantity, in order of ``ranks``."""
        ranks = sorted(self.offset_ns)
        columns = {key: [getattr(self, key).get(rank) for rank in ranks] for key in _PER_RANK}
        plain: dict[str, Any] = msgspec.to_builtins(
            _ClockColumns(self.verdict, self.reference, ranks, **columns, notes=list(self.notes))
        )
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Clocks:
        """Rebuild what :meth:`to_dict` wrote."""
        table = msgspec.convert(data, _ClockColumns)
        columns = {
            key: {rank: ns for rank, ns in zip(table.ranks, getattr(table, key), strict=True) if ns is not None}
            for key in _PER_RANK
        }
        return cls(table.verdict, table.reference, **columns, notes=tuple(table.notes))


_PER_RANK = ("offset_ns", "measured_ns", "residual_ns", "n", "bound_ns")


class _ClockColumns(msgspec.Struct):
    """Clocks in JSON, which has no integer keys: a list of ranks, and one list per quantity."""

    verdict: Verdict
    reference: int
    ranks: list[int]
    offset_ns: list[int | None]
    measured_ns: list[int | None]
    residual_ns: list[int | None]
    n: list[int | None]
    bound_ns: list[int | None]
    notes: list[Note]


class _Difference(NamedTuple):
    """Clock of one rank relative to another: offset, residual, number of collectives, bound of the residual."""

    offset: int
    residual: int
    n: int
    bound: int


def align_clocks(matched: Matched) -> Clocks:
    """Put the ranks of a run on one clock, by the ends of matched collectives, in one pass over the ranks.

    Ranks without a common collective are joined through ranks that share one with both; offsets and residuals add up
    on the way. Clocks count as not aligned where a rank cannot be reached, rests on fewer than three collectives, or
    where its residual exceeds the median transfer.

    Examples
    --------
    >>> align_clocks(match_collectives({})).verdict
    'one rank'
    """
    ranks = sorted(matched.ranks)
    if len(ranks) < 2:
        return _as_recorded("one rank", ranks, {}, ())
    differences = _joined(ranks[0], _links(matched))
    symmetric = np.isin(matched.op, SYMMETRIC)
    usual = _median(matched.transfer_ns[symmetric]) if symmetric.any() else 0
    doubts = []
    for rank in ranks[1:]:
        clock = differences.get(rank)
        if clock is None:
            doubts.append(f"rank {rank} shares no collective with the others")
        elif clock.n < MIN_SHARED:
            doubts.append(f"rank {rank} shares {clock.n} of the {MIN_SHARED} collectives needed")
        elif clock.residual > usual:
            limit = f"half of the collectives are shorter than {usual} ns"
            doubts.append(f"rank {rank} is uncertain by {clock.residual} ns, {limit}")
    if doubts:
        more = f" (and {len(doubts) - 1} more)" if len(doubts) > 1 else ""
        message = f"clocks are not aligned: {doubts[0]}{more}; waits are inferred from durations only"
        return _as_recorded("not aligned", ranks, differences, (Note("clocks-not-aligned", "warning", message),))
    if all(abs(differences[rank].offset) <= AGREE * differences[rank].residual for rank in ranks[1:]):
        # Offsets are not applied, so times may be off by them too.
        unshifted = {rank: clock._replace(bound=clock.bound + abs(clock.offset)) for rank, clock in differences.items()}
        return _as_recorded("agree", ranks, unshifted, ())
    aligned = _as_recorded("aligned", ranks, differences, ())
    return replace(aligned, offset_ns=aligned.measured_ns)


def _as_recorded(
    verdict: Verdict, ranks: list[int], differences: Mapping[int, _Difference], notes: tuple[Note, ...]
) -> Clocks:
    columns = ({rank: clock[column] for rank, clock in differences.items()} for column in range(4))
    offset, residual, n, bound = columns
    return Clocks(verdict, ranks[0] if ranks else 0, dict.fromkeys(ranks, 0), offset, residual, n, bound, notes)


def _links(matched: Matched) -> dict[int, dict[int, _Difference]]:
    """Each rank's clock relative to the first rank read that shares a collective with it, in both directions."""
    symmetric = np.isin(matched.op, SYMMETRIC)
    first_end, first_rank = np.zeros(len(matched), np.int64), np.full(len(matched), -1, np.int64)
    links: dict[int, dict[int, _Difference]] = defaultdict(dict)
    for rank, collectives in matched.per_rank.items():
        own, rows = matched.rows_of(collectives)
        usable = symmetric[rows]
        ends, rows = collectives.end_ns[own[usable]], rows[usable]
        for other in np.unique(first_rank[rows]).tolist():
            shared = first_rank[rows] == other
            if other == -1:
                first_end[rows[shared]], first_rank[rows[shared]] = ends[shared], rank
                continue
            later = ends[shared] - first_end[rows[shared]]
            offset, n = _median(later), len(later)
            distance = np.sort(np.abs(later - offset))
            # The order statistic at n/2 + sqrt(n) exceeds the median with 97.5 % confidence; of few values the largest.
            bound = int(distance[min(n, math.ceil(n / 2 + math.sqrt(n))) - 1])
            links[other][rank] = _Difference(offset, _median(distance), n, bound)
            links[rank][other] = links[other][rank]._replace(offset=-offset)
    return links


def _median(values: Int) -> int:
    """Median in integer nanoseconds: clocks years apart would lose digits as floats."""
    ordered = np.sort(values)
    return (int(ordered[(len(ordered) - 1) // 2]) + int(ordered[len(ordered) // 2])) // 2


def _joined(reference: int, links: Mapping[int, Mapping[int, _Difference]]) -> dict[int, _Difference]:
    """Offsets from the reference along the links with the smallest sum of residuals (Dijkstra's shortest paths)."""
    reached: dict[int, _Difference] = {}
    queue = [(0, reference, _Difference(0, 0, 0, 0))]
    while queue:
        _, rank, clock = heapq.heappop(queue)
        if rank in reached:
            continue
        reached[rank] = clock
        for other, link in links.get(rank, {}).items():
            n = link.n if rank == reference else min(clock.n, link.n)
            step = _Difference(clock.offset + link.offset, clock.residual + link.residual, n, clock.bound + link.bound)
            heapq.heappush(queue, (step.residual, other, step))
    return reached
