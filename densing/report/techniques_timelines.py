"""Timelines in numbers: what each rank's steps consist of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from densing.efficiency.timeline import partition, select
from densing.plots import duration, percent, text
from densing.report.tables import Field, ShownTable, column, shown

if TYPE_CHECKING:
    from densing.efficiency.timeline import RankTimeline, Timeline

MOST_ROWS = 400


def timeline_table(timelines: Sequence[tuple[str, Timeline]]) -> ShownTable:
    """Return a row per timeline and rank: time per step, and how it splits."""
    rows = [_row(label, rank) for label, timeline in timelines for rank in timeline.ranks][:MOST_ROWS]
    fields = (
        Field("Timeline", column("label")),
        Field("Rank", column("rank", str), "rank"),
        Field("How", column("how")),
        _time("Step", "step"),
        _time("Compute", "compute"),
        _time("Exposed communication", "exposed"),
        _time("Idle", "idle"),
        Field("Hidden", column("hidden", percent), "hidden", hint="|C ∩ K| / |C| of unions, as in densing profile"),
    )
    caption = "Means over all marked steps of each rank; over the whole timeline where none is marked."
    return shown("timelines-table", caption, pd.DataFrame(rows, dtype=object), fields, sortable=True)


def _time(name: str, key: str) -> Field:
    return Field(name, column(key, duration), key)


def _row(label: str, rank: RankTimeline) -> dict[str, Any]:
    part = partition(select(rank))
    steps = max(len(rank.steps), 1)
    return {
        "label": text.clean(label, 120),
        "rank": rank.rank,
        "how": "simulated" if rank.origin.simulated else "recorded",
        "step": part.window_ns / steps,
        "compute": part.compute_ns / steps,
        "exposed": part.exposed_comm_ns / steps,
        "idle": part.idle_ns / steps,
        "hidden": part.overlap_pct if part.comm_ns else None,
    }
