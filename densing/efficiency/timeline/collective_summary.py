"""One rank's communications summed by operation and process group."""

from __future__ import annotations

from typing import Any

import numpy as np

from densing.core import Record
from densing.efficiency.timeline.collective_bytes import bandwidth
from densing.efficiency.timeline.collective_table import OPS, Collectives, Group


class CollectiveSummary(Record, frozen=True):
    """What one operation in one process group took on one rank.

    Attributes
    ----------
    op : str
        Empty where neither name nor arguments tell.
    group, group_label : str
        Name and description of the process group.
    group_size : int
        -1 unknown.
    count : int
    count_sized : int
        How many of them have known bytes.
    bytes : int
        S over those (see :mod:`densing.efficiency.timeline.collective_bytes`).
    total_ns, hidden_ns, exposed_ns : int
        Lengths of unions on each rank, of the parts inside the window: all, covered by compute, not covered. Calls at
        the same time count once, as in the :class:`~densing.efficiency.timeline.overlap.Partition`.
    sum_ns : int
        The same without taking unions: calls that run at the same time count each.
    algbw_gbps, busbw_gbps : float or None
        Σ S / Σ t over communications with known bytes, whole spans; t holds the wait for other ranks, so these are
        lower bounds of what the network gave. None where bytes (or, for busbw, group size or factor) are unknown.
    """

    op: str
    group: str
    group_label: str
    group_size: int
    count: int
    count_sized: int
    bytes: int
    total_ns: int
    hidden_ns: int
    exposed_ns: int
    sum_ns: int
    algbw_gbps: float | None
    busbw_gbps: float | None

    @property
    def hidden_pct(self) -> float | None:
        """Share hidden behind compute, 100·hidden/total of the unions; None where the total is 0."""
        return 100 * self.hidden_ns / self.total_ns if self.total_ns else None

    def to_dict(self) -> dict[str, Any]:
        """Return every figure, the share included, as plain data."""
        return {**super().to_dict(), "hidden_pct": self.hidden_pct}


def summary(collectives: Collectives) -> tuple[CollectiveSummary, ...]:
    """Sum a rank's communications by operation and process group, most exposed first.

    Parameters
    ----------
    collectives : Collectives

    Returns
    -------
    tuple of CollectiveSummary

    Examples
    --------
    >>> from densing.efficiency.timeline.collectives import collectives_of
    >>> from densing.efficiency.timeline.overlap import unions
    >>> from densing.efficiency.timeline.spans import Comm, Kind, Spans
    >>> from densing.efficiency.timeline.timeline import RankTimeline
    >>> from densing.efficiency.timeline.windows import select
    >>> comm = Comm("all_reduce", "0", group_size=2, in_elems=1000, dtype="float")
    >>> work = Spans.build([{"start": 0, "end": 80, "kind": Kind.COMM, "name": "ncclDevKernel", "comm": comm}])
    >>> rank = RankTimeline(0, work, Spans.empty())
    >>> [row] = summary(collectives_of(rank, select(rank), unions(work)))
    >>> row.op, row.count, row.bytes, row.exposed_ns, row.busbw_gbps
    ('all_reduce', 1, 4000, 80, 50.0)
    """
    pairs = np.stack((collectives.op, collectives.group), axis=1)
    kinds, which = np.unique(pairs, axis=0, return_inverse=True)
    which = which.reshape(-1)  # numpy 2.0 keeps a second axis here
    rows = [
        _row(collectives, OPS[op], collectives.groups[group], which == number)
        for number, (op, group) in enumerate(kinds.tolist())
    ]
    return tuple(sorted(rows, key=lambda row: (-row.exposed_ns, row.op, row.group)))


def _row(
    collectives: Collectives, op: str, group: Group, chosen: np.ndarray[Any, np.dtype[np.bool_]]
) -> CollectiveSummary:
    sized = chosen & (collectives.bytes >= 0)
    moved = int(collectives.bytes[sized].sum())
    took = int(collectives.duration_ns[sized].sum())
    speed = bandwidth(op, group.size, moved if sized.any() else -1, took)
    return CollectiveSummary(
        op=op,
        group=group.name,
        group_label=group.label,
        group_size=group.size,
        count=int(chosen.sum()),
        count_sized=int(sized.sum()),
        bytes=moved,
        total_ns=int(collectives.union_ns[chosen].sum()),
        hidden_ns=int(collectives.union_hidden_ns[chosen].sum()),
        exposed_ns=int((collectives.union_ns - collectives.union_hidden_ns)[chosen].sum()),
        sum_ns=int(collectives.inside_ns[chosen].sum()),
        algbw_gbps=speed.algbw_gbps,
        busbw_gbps=speed.busbw_gbps,
    )
