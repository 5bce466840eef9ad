"""What makes two communications on two ranks the same one."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from densing.efficiency.timeline import OPS, Collectives, Group, Int, nth

SEND, RECV = OPS.index("send"), OPS.index("recv")
# Kernels between some members of a group only: without recorded peers nothing says which of them belong together.
_PAIRWISE = tuple(OPS.index(op) for op in ("send", "recv", "send_recv", "p2p_copy"))
BY_SEQ = -2
Key = tuple[int, int, int, int]


class Keys(NamedTuple):
    """Keys of one rank's communications that can be matched.

    Attributes
    ----------
    row : int64 (m,)
        Row in the rank's table.
    group : int64 (m,)
        Number of the group, the same on every rank.
    how : int64 (m,)
        :data:`BY_SEQ`, or the operation where no sequence number is recorded.
    first, second : int64 (m,)
        Sequence number and n-th with that number; or step and n-th of group and operation in that step.
    lonely : int
        Communications that cannot be matched: between some members only, and without recorded peers.
    """

    row: Int
    group: Int
    how: Int
    first: Int
    second: Int
    lonely: int

    def tuples(self) -> list[Key]:
        """Return one hashable key per communication."""
        columns = (self.group, self.how, self.first, self.second)
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
    >>> from densing.efficiency.timeline.collectives import COLUMNS
    >>> columns = {key: np.zeros(2, np.int64) for key in COLUMNS} | {"seq": np.array([4, 5])}
    >>> table = Collectives(0, "all", 0, 9, (Group("0"),), (), (), (), **columns)
    >>> keys_of(table, Groups()).tuples()
    [(0, -2, 4, 0), (0, -2, 5, 0)]
    """
    paired = np.isin(collectives.op, (SEND, RECV)) & (collectives.src >= 0) & (collectives.dst >= 0)
    usable = paired | ~np.isin(collectives.op, _PAIRWISE)
    row = np.flatnonzero(usable)
    group = _numbers(collectives, groups, paired)[row]
    op = np.where(paired, SEND, collectives.op)[row]
    # A receive of unknown number has no partner by number, so pairs go by order.
    seq = np.where(paired, -1, collectives.seq)[row]
    step, by_seq = collectives.step[row], seq >= 0
    how, first = np.where(by_seq, BY_SEQ, op), np.where(by_seq, seq, step)
    when = np.where(by_seq, collectives.start_ns[row], collectives.order[row])
    return Keys(row, group, how, first, nth(when, group, how, first), len(collectives) - len(row))


def _numbers(collectives: Collectives, groups: Groups, paired: NDArray[np.bool_]) -> Int:
    table = np.array([groups.number(group) for group in collectives.groups] or [0], np.int64)
    numbers = table[collectives.group] if len(collectives) else np.empty(0, np.int64)
    for at in np.flatnonzero(paired).tolist():
        group = collectives.groups[collectives.group[at]]
        numbers[at] = groups.pair(group, int(collectives.src[at]), int(collectives.dst[at]))
    return numbers
