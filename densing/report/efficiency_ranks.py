"""The tables of a profile by rank and by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from densing.efficiency.profile import cut_short
from densing.plots import mean_steps, text
from densing.report.efficiency_tables import frame, named, record, shares, times
from densing.report.sections import count
from densing.report.tables import Field, ShownTable, column, shown

if TYPE_CHECKING:
    from densing.efficiency.profile import RankProfile, RunProfile

MOST_RANKS = 256
MOST_STEPS = 400


def ranks_table(run: RunProfile) -> ShownTable:
    """Return the ranks with their shares; of very many, those with most exposed communication."""
    chosen = sorted(run.ranks, key=lambda rank: -(rank.partition.exposed_pct or 0))[:MOST_RANKS]
    rows = [_rank_row(rank) for rank in sorted(chosen, key=lambda rank: rank.rank)]
    fields = (
        Field("Rank", column("name")),
        shares("Compute", "compute"),
        shares("Exposed", "exposed", hint="Exposed communication, share of the window"),
        shares("Copies", "copies", hint="Exposed copies"),
        shares("Idle", "idle"),
        shares("Hidden", "hidden", hint="Share of the communication behind compute"),
        times("Window", "window_ns"),
        Field("Bound by", column("bound")),
        Field("Skipped", column("skipped", count), "skipped", hint="Damaged events left out", minor=True),
        Field("Host", column("host", named), minor=True),
        Field("Trace", column("source", lambda value: text.clean(value, 120)), minor=True),
    )
    rest = f" {len(run.ranks) - len(rows)} ranks with less exposed communication are left out." * (
        len(run.ranks) > len(rows)
    )
    return shown("ranks-table", f"Rank by rank.{rest}", frame(rows), fields, sortable=True)


def _rank_row(rank: RankProfile) -> dict[str, Any]:
    part = rank.partition
    whole = part.window_ns

    def share(ns: int) -> float | None:
        return 100 * ns / whole if whole else None

    return {
        "name": f"rank {rank.rank}", "compute": share(part.compute_ns), "exposed": share(part.exposed_comm_ns),
        "copies": share(part.exposed_memcpy_ns), "idle": share(part.idle_ns),
        "hidden": None if cut_short([rank]) else part.overlap_pct,
        "window_ns": whole, "bound": rank.path.bound_by or text.MISSING, "skipped": rank.skipped, "host": rank.host,
        "source": rank.source,
    }  # fmt: skip


def steps_table(run: RunProfile) -> ShownTable:
    """Return the steps one by one, each the mean over the ranks that recorded it."""
    table = mean_steps({rank.rank: rank.steps for rank in run.ranks})
    rows = [
        {"name": f"step {number}", "all": sum(parts.values()), "busy": parts["compute"] + parts["hidden"], **parts}
        for number, parts in table[:MOST_STEPS]
    ]
    fields = (
        Field("Step", column("name")),
        times("Length", "all"),
        times("Compute", "busy"),
        times("Hidden", "hidden", hint="Compute that hides communication"),
        times("Exposed", "exposed_comm", hint="Exposed communication"),
        times("Copies", "exposed_memcpy", hint="Exposed copies"),
        times("Idle", "idle"),
    )
    rest = f" The first {MOST_STEPS} of {len(table)}." * (len(table) > MOST_STEPS)
    return shown("steps-table", f"Step by step, the mean over ranks.{rest}", frame(rows), fields, sortable=True)


def spread_table(run: RunProfile, most: int = 10) -> ShownTable:
    """Return the steps in which the ranks' times differ most."""
    found = sorted((row for row in run.spread if row.spread), key=lambda row: -(row.spread or 0))[:most]
    rows = [{**record(row), "over": 100 * (row.spread or 0), "name": f"step {row.number}"} for row in found]
    fields = (
        Field("Step", column("name")),
        times("Median rank", "median_ns"),
        times("Slowest rank", "max_ns"),
        shares("Slower by", "over"),
        Field("Which", lambda row: f"rank {row['slowest_rank']}"),
        Field("Ranks", column("ranks", count), "ranks"),
    )
    caption = (
        "The steps whose times differ most between ranks. A collective at the end of a step makes all ranks equally "
        "slow: a small difference is no proof that none lags."
    )
    return shown("spread-table", caption, frame(rows), fields)
