"""One clock for all ranks: members of a collective leave it together, so its ends are the same moment everywhere.

.. math:: offset_r = \\mathrm{median}_c (end_{r,c} - end_{ref,c}), \\qquad
          residual_r = \\mathrm{median}_c |end_{r,c} - end_{ref,c} - offset_r|

Source: alignment on collective ends as users do it by hand (pytorch attention-gym issue 487); veScale ndtimeline
simulates a global clock by communication.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from densing.core import Note
from densing.efficiency.profile.matching import Matched
from densing.efficiency.timeline import OPS, Int

Verdict = Literal["one rank", "agree", "aligned", "not aligned"]
# In these no member can leave before the last has arrived; in a broadcast or a send the root can.
SYMMETRIC = tuple(OPS.index(op) for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"))
MIN_SHARED = 3
# Members leave a few microseconds apart even on one clock; an offset within that is not a difference of clocks.
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

    def against(self, rank: int) -> Clocks:
        """Return the clocks in error as far as they may be, and so that one rank seems to come as early as it can."""
        shift = {other: bound if other == rank else -bound for other, bound in self.bound_ns.items()}
        return replace(self, offset_ns={key: ns + shift.get(key, 0) for key, ns in self.offset_ns.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; one list per quantity, in order of ``ranks``."""
        ranks = sorted(self.offset_ns)
        columns = {key: [getattr(self, key).get(rank) for rank in ranks] for key in _PER_RANK}
        head = {"verdict": self.verdict, "reference": self.reference, "ranks": ranks}
        return {**head, **columns, "notes": [note.to_dict() for note in self.notes]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Clocks:
        """Rebuild what :meth:`to_dict` wrote."""
        columns = {
            key: {rank: value for rank, value in zip(data["ranks"], data[key], strict=True) if value is not None}
            for key in _PER_RANK
        }
        return cls(data["verdict"], data["reference"], **columns, notes=tuple(map(Note.from_dict, data["notes"])))


_PER_RANK = ("offset_ns", "measured_ns", "residual_ns", "n", "bound_ns")


class _Difference(NamedTuple):
    """Clock of one rank against another's: offset, residual, collectives it rests on, limit of the residual."""

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
    >>> from densing.efficiency.profile.matching import match_collectives
    >>> align_clocks(match_collectives({})).verdict
    'one rank'
    """
    ranks = sorted(matched.ranks)
    if len(ranks) < 2:
        return _as_recorded("one rank", ranks, {}, ())
    differences = _joined(ranks[0], _links(matched))
    symmetric = np.isin(matched.op, SYMMETRIC)
    usual = _median(matched.transfer_ns[symmetric]) if symmetric.any() else 0
    doubts = [text for rank in ranks[1:] if (text := _doubt(rank, differences.get(rank), usual))]
    if doubts:
        more = f" (and {len(doubts) - 1} more)" if len(doubts) > 1 else ""
        message = f"clocks are not aligned: {doubts[0]}{more}; waits are told by durations only"
        return _as_recorded("not aligned", ranks, differences, (Note("clocks-not-aligned", "warning", message),))
    if all(abs(differences[rank].offset) <= AGREE * differences[rank].residual for rank in ranks[1:]):
        # Offsets stay in the times, so times may be off by them too.
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


def _doubt(rank: int, clock: _Difference | None, usual: int) -> str:
    if clock is None:
        return f"rank {rank} shares no collective with the others"
    if clock.n < MIN_SHARED:
        return f"rank {rank} shares {clock.n} of the {MIN_SHARED} collectives needed"
    if clock.residual > usual:
        return f"rank {rank} is uncertain by {clock.residual} ns, half of the collectives take less than {usual} ns"
    return ""


def _links(matched: Matched) -> dict[int, dict[int, _Difference]]:
    """Each rank's clock against that of the first rank read that shares a collective with it, both ways."""
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
            # Of n values the one at n/2 + sqrt(n) is above their median with 97.5 %; of few values, the largest.
            bound = int(distance[min(n, math.ceil(n / 2 + math.sqrt(n))) - 1])
            links[other][rank] = _Difference(offset, _median(distance), n, bound)
            links[rank][other] = links[other][rank]._replace(offset=-offset)
    return links


def _median(values: Int) -> int:
    """Median in whole nanoseconds: clocks years apart would lose digits as floats."""
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
