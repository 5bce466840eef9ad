"""Who arrived last at each communication, and how long the others waited.

With clocks that can be compared (of one collective, over its ranks r):

.. math:: wait_r = \\max_s start_s - start_r

Source: what-if analysis of stragglers (OSDI'25, arXiv 2505.05713): transfer is counted from the latest start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from densing.efficiency.profile.clocks import Clocks
from densing.efficiency.profile.matching import Matched
from densing.efficiency.timeline import Collectives, Int

_LATEST, _EARLIEST = np.iinfo(np.int64).max, np.iinfo(np.int64).min
ARRIVAL_COLUMNS = ("first_start_ns", "second_start_ns", "last_start_ns", "last_end_ns", "last_rank")
WAIT_COLUMNS = ("matched", "row", "wait_ns", "wait_by_start_ns", "start_after_first_ns", "end_before_last_ns")


@dataclass(frozen=True, eq=False)
class Arrivals:
    """First and last arrival at each matched communication, on the common clock; rows as in ``Matched``.

    Attributes
    ----------
    first_start_ns, last_start_ns, last_end_ns : int64 (n,)
    second_start_ns : int64 (n,)
        Latest start but one.
    last_rank : int64 (n,)
        Rank of the latest start.
    """

    first_start_ns: Int
    second_start_ns: Int
    last_start_ns: Int
    last_end_ns: Int
    last_rank: Int

    def to_dict(self) -> dict[str, list[int]]:
        """Return plain data: equally long lists."""
        return {key: getattr(self, key).tolist() for key in ARRIVAL_COLUMNS}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Arrivals:
        """Rebuild what :meth:`to_dict` wrote."""
        return cls(**{key: np.asarray(data[key], np.int64) for key in ARRIVAL_COLUMNS})


@dataclass(frozen=True, eq=False)
class Waits:
    """Waiting of one rank, one row per matched communication.

    Attributes
    ----------
    rank : int
    matched, row : int64 (m,)
        Row in ``Matched`` and in the rank's own table.
    wait_ns : int64 (m,)
        By durations: own duration − smallest over ranks. Needs no common clock.
    wait_by_start_ns : int64 (m,)
        By starts: latest start − own start. Zeros where clocks cannot be compared, like the next two.
    start_after_first_ns, end_before_last_ns : int64 (m,)
        Distance to the earliest start, and to the latest end.
    """

    rank: int
    matched: Int
    row: Int
    wait_ns: Int
    wait_by_start_ns: Int
    start_after_first_ns: Int
    end_before_last_ns: Int

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; ``columns`` as equally long lists."""
        return {"rank": self.rank, "columns": {key: getattr(self, key).tolist() for key in WAIT_COLUMNS}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Waits:
        """Rebuild what :meth:`to_dict` wrote."""
        return cls(data["rank"], **{key: np.asarray(data["columns"][key], np.int64) for key in WAIT_COLUMNS})


def arrivals_of(matched: Matched, clocks: Clocks) -> Arrivals | None:
    """Find the first and the last to arrive at each communication, in one pass over the ranks.

    Returns
    -------
    Arrivals or None
        None where clocks cannot be compared.
    """
    if not clocks.comparable:
        return None
    n = len(matched)
    first, end = np.full(n, _LATEST), np.full(n, _EARLIEST)
    second, last, who = np.full(n, _EARLIEST), np.full(n, _EARLIEST), np.full(n, -1, np.int64)
    for rank, collectives in matched.per_rank.items():
        own, rows = matched.rows_of(collectives)
        start = collectives.start_ns[own] - clocks.offset_ns[rank]
        first[rows] = np.minimum(first[rows], start)
        end[rows] = np.maximum(end[rows], collectives.end_ns[own] - clocks.offset_ns[rank])
        before, later = last[rows], start > last[rows]
        who[rows] = np.where(later, rank, who[rows])
        second[rows] = np.where(later, before, np.maximum(second[rows], start))
        last[rows] = np.maximum(before, start)
    return Arrivals(first, second, last, end, who)


def waits_of(matched: Matched, collectives: Collectives, clocks: Clocks, arrivals: Arrivals | None) -> Waits:
    """Return how long one rank waited in each matched communication.

    Parameters
    ----------
    matched : Matched
    collectives : Collectives
        Of the rank.
    clocks : Clocks
    arrivals : Arrivals or None
        From :func:`arrivals_of`.
    """
    own, rows = matched.rows_of(collectives)
    wait = collectives.duration_ns[own] - matched.transfer_ns[rows]
    if arrivals is None:
        nothing = np.zeros(len(rows), np.int64)
        return Waits(collectives.rank, rows, own, wait, nothing, nothing, nothing)
    start = collectives.start_ns[own] - clocks.offset_ns[collectives.rank]
    end = collectives.end_ns[own] - clocks.offset_ns[collectives.rank]
    return Waits(
        collectives.rank,
        rows,
        own,
        wait,
        arrivals.last_start_ns[rows] - start,
        start - arrivals.first_start_ns[rows],
        arrivals.last_end_ns[rows] - end,
    )
