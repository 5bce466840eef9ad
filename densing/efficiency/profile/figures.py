"""The figures of a run: sums over its ranks, as shares of their windows and per step; its communications by kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import astuple, replace

from densing.efficiency.profile.rank import RankProfile
from densing.efficiency.timeline import CollectiveSummary, Partition, StepTimes, bandwidth, step_times

Figures = dict[str, int | float | str | None]

METRICS = {
    "ranks": "ranks profiled",
    "steps": "steps in the window, summed over ranks",
    "step_ms": "median step time over ranks and steps, ms; the mean window without steps",
    "step_p95_over_median": "95th percentile of step times over their median",
    "compute_pct": "time computing, % of the windows of all ranks",
    "comm_pct": "time communicating, %",
    "overlap_pct": "share of communication hidden behind compute, %; null without communication, or where most of it "
    "lies beyond the window",
    "achievable_pct": "ceiling of that share: min(compute, communication) / communication, %",
    "exposed_pct": "exposed communication, % of the windows",
    "exposed_memcpy_pct": "copies hidden by neither compute nor communication, %",
    "idle_pct": "neither compute, communication nor copies, %",
    "exposed_ms_per_step": "exposed communication per step, ms (per window without steps)",
    "idle_ms_per_step": "idle time per step, ms",
    "skipped_events": "damaged events left out",
    "repaired_events": "damaged events kept after repair",
}


def pooled(parts: Sequence[Partition]) -> Partition:
    """Add partitions up: the time of all ranks, as if one device had lived it all.

    Examples
    --------
    >>> one = Partition(100, 70, 50, 40, 0, 20, 20, 0, 30)
    >>> pooled([one, one]).exposed_pct
    20.0
    """
    table = np.array([astuple(part) for part in parts], np.int64)
    return Partition(*table.sum(axis=0).tolist()) if len(parts) else Partition(*[0] * 9)


def figures(ranks: Sequence[RankProfile]) -> Figures:
    """Return the run's figures, the keys of :data:`METRICS`; undefined ones are None."""
    total = pooled([rank.partition for rank in ranks])
    times = all_step_times(ranks)
    steps = times.count or len(ranks)
    # What was recorded of no device, or of no time, has no length that could be judged.
    known = total.window_ns > 0
    shares = {key: 100 * getattr(total, name) / total.window_ns if known else None for key, name in _SHARES.items()}
    step_ns = total.window_ns / max(len(ranks), 1) if times.median_ns is None else times.median_ns
    return {
        "ranks": len(ranks),
        "steps": times.count,
        "step_ms": step_ns / 1e6 if known else None,
        "step_p95_over_median": times.p95_over_median,
        "overlap_pct": None if cut_short(ranks) else total.overlap_pct,
        "achievable_pct": total.achievable_pct,
        **shares,
        "exposed_ms_per_step": total.exposed_comm_ns / steps / 1e6 if known else None,
        "idle_ms_per_step": total.idle_ns / steps / 1e6 if known else None,
        "skipped_events": sum(rank.skipped for rank in ranks),
        "repaired_events": sum(rank.repaired for rank in ranks),
    }


def cut_short(ranks: Sequence[RankProfile]) -> tuple[int, int] | None:
    """Return the communication inside the windows and in all, ns, where less than half lies inside; else None.

    Then what was hidden of the part inside says nothing of the whole: a late all-reduce that begins with the last
    recorded step has hardly begun to be hidden.
    """
    inside = sum(int(rank.collectives.inside_ns.sum()) for rank in ranks)
    total = sum(int(rank.collectives.duration_ns.sum()) for rank in ranks)
    return (inside, total) if 2 * inside < total else None


_SHARES = {
    "compute_pct": "compute_ns",
    "comm_pct": "comm_ns",
    "exposed_pct": "exposed_comm_ns",
    "exposed_memcpy_pct": "exposed_memcpy_ns",
    "idle_pct": "idle_ns",
}


def all_step_times(ranks: Sequence[RankProfile]) -> StepTimes:
    """Describe the step times of all ranks together."""
    return step_times([step.end_ns - step.start_ns for rank in ranks for step in rank.steps])


def per_step(ranks: Sequence[RankProfile]) -> int:
    """Return by how many steps totals over the ranks divide: all ranks' steps, or one window each without steps."""
    return sum(len(rank.steps) for rank in ranks) or max(len(ranks), 1)


def run_collectives(parts: Sequence[Sequence[CollectiveSummary]]) -> tuple[CollectiveSummary, ...]:
    """Sum the ranks' communications by operation and process group, most exposed first."""
    kinds: dict[tuple[str, str], list[CollectiveSummary]] = {}
    for part in parts:
        for row in part:
            # Without a name of the group its description (the stream) keeps apart what may run at the same time.
            kinds.setdefault((row.op, row.group or row.group_label), []).append(row)
    rows = [_summed(same) for same in kinds.values()]
    return tuple(sorted(rows, key=lambda row: (-row.exposed_ns, row.op, row.group)))


def _summed(rows: Sequence[CollectiveSummary]) -> CollectiveSummary:
    keys = ("count", "count_sized", "bytes", "total_ns", "hidden_ns", "exposed_ns", "sum_ns")
    total: dict[str, Any] = {key: sum(getattr(row, key) for row in rows) for key in keys}
    # Rates are of the sized spans, so they add as bytes over the time these took.
    nanoseconds = sum(row.bytes / row.algbw_gbps for row in rows if row.algbw_gbps)
    moved = sum(row.bytes for row in rows if row.algbw_gbps)
    sizes = {row.group_size for row in rows if row.group_size > 0} or {-1}
    # Groups of one name and different sizes have no common factor of bus bandwidth.
    speed = bandwidth(rows[0].op, max(sizes) if len(sizes) == 1 else -1, moved if moved else -1, round(nanoseconds))
    return replace(rows[0], **total, group_size=max(sizes), algbw_gbps=speed.algbw_gbps, busbw_gbps=speed.busbw_gbps)


WAIT_COLUMNS: tuple[str, ...] = ("matched_ns", "transfer_ns", "wait_ns", "exposed_wait_ns")
"""What matched ranks add to the run's communications, operation by operation and group by group."""


@dataclass(frozen=True)
class Waiting:
    """Waiting in the matched communications of one operation and group, all ranks together, told by durations.

    Attributes
    ----------
    lasted_ns, waited_ns : int
        Σ of the parts inside the window, and of what of them was waiting: a span waits first and transfers then.
    exposed_ns : int
        Exposed time that was waiting whatever was hidden: Σ max(0, exposed − transfer). A lower bound, exact where the
        hidden part comes first: wait that compute covers costs nothing.
    """

    lasted_ns: int
    waited_ns: int
    exposed_ns: int

    @property
    def share(self) -> float:
        """Σ wait / Σ inside the window, 0 to 1."""
        return self.waited_ns / self.lasted_ns

    def to_dict(self) -> dict[str, int]:
        """Return the sums as plain data: what was matched is transfer and wait, the parts inside the window.

        Examples
        --------
        >>> Waiting(lasted_ns=500, waited_ns=100, exposed_ns=60).to_dict()
        {'matched_ns': 500, 'transfer_ns': 400, 'wait_ns': 100, 'exposed_wait_ns': 60}
        """
        values = (self.lasted_ns, self.lasted_ns - self.waited_ns, self.waited_ns, self.exposed_ns)
        return dict(zip(WAIT_COLUMNS, values, strict=True))
