"""The same communication on every rank: transfer is what the last to arrive needed, the rest is waiting.

Without a common clock (of one collective, over its ranks r):

.. math:: transfer = \\min_r duration_r, \\qquad wait_r = duration_r - transfer

Source: PyTorch TensorBoard plugin (torch_tb_profiler), communication view; AMD TraceLens, ``comm_latency``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densing.core import Note
from densing.efficiency.profile.matching_gather import Gathered, match_notes
from densing.efficiency.profile.matching_keys import Groups, Key, keys_of
from densing.efficiency.timeline import OPS, Collectives, Group, Int

MATCH_COLUMNS = ("op", "group", "by_seq", "number", "order", "step", "n_ranks", "bytes", "transfer_ns", "longest_ns",
                 "second_ns", "shortest_rank")  # fmt: skip


@dataclass(frozen=True, eq=False)
class Matched:
    """Communications matched over ranks, one row each, with what needs no common clock.

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
        The tables matched; may read them lazily. Not part of :meth:`to_dict`.
    index, numbering
        Key to row, and the groups' numbers. Not part of :meth:`to_dict`.
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
        """Return, for what could be matched of one rank, its own rows and the rows here."""
        keys = keys_of(collectives, self.numbering)
        found = np.array([self.index.get(key, -1) for key in keys.tuples()], np.int64)
        return keys.row[found >= 0], found[found >= 0]

    def take(self, kept: NDArray[np.bool_]) -> Matched:
        """Leave communications out.

        Parameters
        ----------
        kept : bool (n,)
        """
        place = np.cumsum(kept) - 1
        columns: dict[str, Any] = {key: getattr(self, key)[kept] for key in MATCH_COLUMNS}
        index = {key: int(place[row]) for key, row in self.index.items() if kept[row]}
        return replace(self, **columns, index=index)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; ``columns`` as equally long lists."""
        return {
            "ranks": list(self.ranks),
            "groups": [{**group._asdict(), "ranks": list(group.ranks)} for group in self.groups],
            "ops": [OPS[code] for code in self.op],
            "columns": {key: getattr(self, key).tolist() for key in MATCH_COLUMNS},
            "notes": [note.to_dict() for note in self.notes],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Matched:
        """Rebuild what :meth:`to_dict` wrote; without the ranks' own tables."""
        groups = tuple(Group(**{**group, "ranks": tuple(group["ranks"])}) for group in data["groups"])
        columns: dict[str, Any] = {key: np.asarray(data["columns"][key], np.int64) for key in MATCH_COLUMNS}
        notes = tuple(Note.from_dict(note) for note in data["notes"])
        return cls(tuple(data["ranks"]), groups, **columns, notes=notes)


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
    >>> from densing.efficiency.timeline.collectives import COLUMNS
    >>> def table(rank, start, end):
    ...     columns = {key: np.zeros(1, np.int64) for key in COLUMNS}
    ...     columns |= {"start_ns": np.array([start]), "end_ns": np.array([end])}
    ...     return Collectives(rank, "all", 0, 99, (Group("0", size=2),), (), (), (), **columns)
    >>> found = match_collectives({0: table(0, 10, 50), 1: table(1, 40, 51)})
    >>> found.transfer_ns.tolist(), found.longest_ns.tolist(), found.shortest_rank.tolist()
    ([11], [40], [1])
    """
    gathered = Gathered()
    for rank, collectives in per_rank.items():
        gathered.add(rank, collectives)
    kept = gathered.kept()
    columns: dict[str, Any] = {key: column[kept] for key, column in gathered.columns().items()}
    place = np.cumsum(kept) - 1
    index = {key: int(place[row]) for key, row in gathered.index.items() if kept[row]}
    return Matched(
        tuple(gathered.ranks),
        tuple(gathered.numbering.groups),
        **columns,
        notes=tuple(match_notes(gathered)),
        per_rank=per_rank,
        index=index,
        numbering=gathered.numbering,
    )
