"""A run's profile as DataFrames with fixed columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from densing.profile.rank import RankProfile
from densing.timeline.collective_summary import CollectiveSummary

if TYPE_CHECKING:
    import pandas as pd


def rank_frame(ranks: Sequence[RankProfile]) -> pd.DataFrame:
    """Return a row per rank: its window, the partition in ns, ratios in percent, idle causes and what bounds it."""
    import pandas as pd

    rows = [
        {
            "rank": rank.rank,
            "window": rank.window,
            **rank.partition.to_dict(),
            **{f"idle_{cause}_ns": ns for cause, ns in rank.idle.causes.items()},
            "bound_by": rank.path.bound_by,
            "steps": len(rank.steps),
            "skipped_events": rank.skipped,
            "source": rank.source,
        }
        for rank in ranks
    ]
    return pd.DataFrame(rows)


def step_frame(ranks: Sequence[RankProfile]) -> pd.DataFrame:
    """Return a row per rank and step with its partition."""
    import pandas as pd

    rows = [
        {"rank": rank.rank, "step": step.number, "start_ns": step.start_ns, **step.partition.to_dict()}
        for rank in ranks
        for step in rank.steps
    ]
    return pd.DataFrame(rows)


def collective_frame(rows: Sequence[CollectiveSummary]) -> pd.DataFrame:
    """Return a row per operation and process group, over all ranks."""
    import pandas as pd

    return pd.DataFrame([row.to_dict() for row in rows])
