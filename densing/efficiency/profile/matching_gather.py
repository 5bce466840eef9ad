"""Gathering communications rank by rank: one row per different key, whatever the number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densing.core import Note
from densing.efficiency.profile.matching_keys import BY_SEQ, SEND, Groups, Key, Keys, keys_of
from densing.efficiency.timeline import OPS, Collectives, Int

_UNKNOWN_OP = len(OPS) - 1
_NEVER = np.iinfo(np.int64).max
_EMPTY = {"op": _UNKNOWN_OP, "group": 0, "by_seq": 0, "number": -1, "order": 0, "step": -1, "n_ranks": 0, "bytes": -1,
          "transfer_ns": _NEVER, "second_ns": _NEVER, "longest_ns": 0, "shortest_rank": -1, "differs": 0}  # fmt: skip
# All members put in the same amount, so another amount is another communication.
_SAME_BYTES = tuple(OPS.index(op) for op in ("all_reduce", "broadcast", "reduce"))
_SHOWN = 3
Cell = tuple[int, int, int]


class Gathered:
    """What is known of each key so far; :meth:`add` takes one rank at a time."""

    def __init__(self) -> None:
        self.ranks: list[int] = []
        self.numbering = Groups()
        self.index: dict[Key, int] = {}
        self.lonely = 0
        self.uneven: dict[Cell, tuple[int, int, int, int]] = {}
        self._cells: dict[Cell, tuple[int, int]] = {}
        self._table = {key: np.empty(0, np.int64) for key in _EMPTY}

    def columns(self) -> dict[str, Int]:
        """Return the columns of :class:`~densing.efficiency.profile.matching.Matched`, one row per key."""
        return {key: column[: len(self.index)] for key, column in self._table.items() if key != "differs"}

    def kept(self) -> NDArray[np.bool_]:
        """Return which rows can be used: on two ranks or more, counted alike on all, and alike in what they are."""
        return (self._table["n_ranks"][: len(self.index)] >= 2) & ~self.miscounted() & ~self.conflicting()

    def conflicting(self) -> NDArray[np.bool_]:
        """Return which rows are different communications on different ranks.

        In a group the trace does not name, one such row shows that ranks do not share the group: all its rows go.
        """
        differs, group = self._table["differs"][: len(self.index)] > 0, self._table["group"][: len(self.index)]
        return differs | (self.nameless()[group] & np.isin(group, group[differs]))

    def nameless(self) -> NDArray[np.bool_]:
        """Return which groups the trace does not name, so that only their streams tell them apart."""
        return np.array([not (found.name or found.ranks) for found in self.numbering.groups] or [False], bool)

    def miscounted(self) -> NDArray[np.bool_]:
        """Return which rows belong to a group, operation and step that ranks count differently."""
        return np.array([key[:3] in self.uneven for key in self.index], bool)

    def add(self, rank: int, collectives: Collectives) -> None:
        """Take in one rank."""
        keys = keys_of(collectives, self.numbering)
        self.ranks.append(rank)
        self.lonely += keys.lonely
        rows = self._rows(keys)
        self._count(rank, keys)
        self._describe(rows, keys, collectives)
        self._time(rows, rank, collectives.duration_ns[keys.row])

    def _rows(self, keys: Keys) -> Int:
        rows = np.array([self.index.setdefault(key, len(self.index)) for key in keys.tuples()], np.int64)
        missing = len(self.index) - len(self._table["op"])
        if missing > 0:
            room = max(missing, len(self._table["op"]))
            for key, column in self._table.items():
                self._table[key] = np.concatenate((column, np.full(room, _EMPTY[key], np.int64)))
        return rows

    def _count(self, rank: int, keys: Keys) -> None:
        """Compare the number of communications per group, operation and step with the first rank that has any."""
        by_order = keys.how != BY_SEQ
        cells = np.stack((keys.group[by_order], keys.how[by_order], keys.first[by_order]), axis=1)
        for cell, count in zip(*_counted(cells), strict=True):
            known, first_rank = self._cells.setdefault(cell, (count, rank))
            if known != count:
                self.uneven.setdefault(cell, (known, first_rank, count, rank))

    def _describe(self, rows: Int, keys: Keys, collectives: Collectives) -> None:
        table, row = self._table, keys.row
        new = table["n_ranks"][rows] == 0
        op = np.where(keys.how == SEND, SEND, collectives.op[row])
        told = {"group": keys.group, "by_seq": (keys.how == BY_SEQ).astype(np.int64), "number": keys.first,
                "order": keys.second, "step": collectives.step[row]}  # fmt: skip
        for key, column in told.items():
            table[key][rows[new]] = column[new]
        before, size = table["op"][rows], collectives.bytes[row]
        other_op = (before != op) & (before != _UNKNOWN_OP) & (op != _UNKNOWN_OP)
        known_size = table["bytes"][rows]
        other_size = np.isin(op, _SAME_BYTES) & (known_size >= 0) & (size >= 0) & (known_size != size)
        table["differs"][rows] |= (other_op | other_size).astype(np.int64)
        table["op"][rows] = np.where(before == _UNKNOWN_OP, op, before)
        table["bytes"][rows] = np.maximum(known_size, size)

    def _time(self, rows: Int, rank: int, took: Int) -> None:
        table = self._table
        table["n_ranks"][rows] += 1
        least, second = table["transfer_ns"][rows], table["second_ns"][rows]
        shorter = took < least
        table["shortest_rank"][rows] = np.where(shorter, rank, table["shortest_rank"][rows])
        table["second_ns"][rows] = np.where(shorter, least, np.minimum(second, took))
        table["transfer_ns"][rows] = np.minimum(least, took)
        table["longest_ns"][rows] = np.maximum(table["longest_ns"][rows], took)


def _counted(cells: NDArray[np.int64]) -> tuple[list[Cell], list[int]]:
    found, counts = np.unique(cells, axis=0, return_counts=True)
    return [(group, how, step) for group, how, step in found.tolist()], counts.tolist()


def match_notes(gathered: Gathered) -> Iterator[Note]:
    """Say what could not be matched, and why."""
    if len(gathered.ranks) == 1:
        message = f"only rank {gathered.ranks[0]} was recorded, so nothing says how long it waited; profile all ranks"
        yield Note("one-rank", "info", message, {"rank": gathered.ranks[0]})
        return
    table, counts = gathered.columns(), gathered.columns()["n_ranks"]
    yield from _uneven_notes(gathered)
    conflicts = int(gathered.conflicting().sum())
    if conflicts:
        yield _note("collective-mismatch", "warning", conflicts, "differ in operation or size between ranks; left out")
    alone = int(((counts == 1) & ~gathered.miscounted()).sum())
    if alone:
        yield _note("collective-unmatched", "info", alone, "have no counterpart on another recorded rank")
    if gathered.lonely:
        yield _note("point-to-point-unmatched", "info", gathered.lonely, "are point-to-point without recorded peers")
    partial = int((gathered.kept() & (counts < _expected(gathered, table["group"]))).sum())
    if partial:
        yield _note("collective-partial", "warning", partial, "lack a member of their group that was recorded")
    assumed = int((gathered.kept() & gathered.nameless()[table["group"]]).sum())
    if assumed:
        yield _note("group-assumed", "info", assumed, "name no process group; taken as shared by all recorded ranks")


def _note(code: str, severity: Any, count: int, what: str) -> Note:
    return Note(code, severity, f"{count} communications {what}", {"count": count})


def _uneven_notes(gathered: Gathered) -> Iterator[Note]:
    if not gathered.uneven:
        return
    shown = [
        f"{OPS[how] or 'unknown'} in group {gathered.numbering.groups[group].name or 'unnamed'!r}"
        f"{f', step {step}' if step >= 0 else ''}: {known} on rank {first}, {count} on rank {rank}"
        for (group, how, step), (known, first, count, rank) in list(gathered.uneven.items())[:_SHOWN]
    ]
    rows = int(gathered.miscounted().sum())
    message = f"{rows} communications left out, because ranks count differently ({'; '.join(shown)})"
    yield Note("collective-counts-differ", "warning", message, {"count": rows, "cells": len(gathered.uneven)})


def _expected(gathered: Gathered, group: Int) -> Int:
    """Members of each row's group that were recorded; 0 where members are unknown."""
    ranks = set(gathered.ranks)
    members = [len(ranks.intersection(found.ranks)) for found in gathered.numbering.groups]
    return np.array(members or [0], np.int64)[group]
