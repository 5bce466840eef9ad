"""A run's profile as DataFrames with fixed columns, those of an empty one too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from densing.efficiency.profile.rank import RankProfile
from densing.efficiency.profile.waiting import WAITING, Waiting
from densing.efficiency.timeline import CAUSES, CollectiveSummary, Partition

if TYPE_CHECKING:
    import pandas as pd

_PARTITION = tuple(Partition(*[0] * len(Partition.__struct_fields__)).to_dict())
_RATIOS = tuple(name for name in _PARTITION if name.endswith("_pct"))
_IDLE = tuple(f"idle_{cause}_ns" for cause in CAUSES)
_TOLD = ("world_size", "backend", "host", "devices", "on_host", "events", "repaired_events", "rank_from")
_RANK = ("rank", "window", *_PARTITION, *_IDLE, "bound_by", "steps", "skipped_events", "source", *_TOLD)
_STEP = ("rank", "step", "start_ns", *_PARTITION)
_COLLECTIVE = (*CollectiveSummary.__struct_fields__, "hidden_pct", *WAITING)
_RATES = ("algbw_gbps", "busbw_gbps", "hidden_pct")


def rank_frame(ranks: Sequence[RankProfile]) -> pd.DataFrame:
    """Return a row per rank.

    Columns: its window, the partition in nanoseconds, ratios in percent, idle time by cause, what bounds its critical
    path, counts of steps and events, and what its trace says of itself (``world_size`` -1 and empty texts if unknown;
    ``devices`` are joined by commas).
    """
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
            "world_size": rank.world_size,
            "backend": rank.backend,
            "host": rank.host,
            "devices": ", ".join(dict.fromkeys(rank.devices)),
            "on_host": rank.on_host,
            "events": rank.events,
            "repaired_events": rank.repaired,
            "rank_from": rank.rank_from,
        }
        for rank in ranks
    ]
    return _frame(rows, _RANK, _RATIOS)


def step_frame(ranks: Sequence[RankProfile]) -> pd.DataFrame:
    """Return a row per rank and step: its start, and the step's own partition in nanoseconds and percent."""
    rows = [
        {"rank": rank.rank, "step": step.number, "start_ns": step.start_ns, **step.partition.to_dict()}
        for rank in ranks
        for step in rank.steps
    ]
    return _frame(rows, _STEP, _RATIOS)


def collective_rows(
    rows: Sequence[CollectiveSummary], waiting: Mapping[tuple[str, str], Waiting]
) -> list[dict[str, Any]]:
    """Return, per operation and process group over all ranks, the sums and how much was waiting for other ranks.

    Keys as in :class:`CollectiveSummary` and :meth:`Waiting.to_dict`; the latter None where nothing was matched.
    """
    unknown: dict[str, Any] = dict.fromkeys(WAITING)
    told = {key: found.to_dict() for key, found in waiting.items()}
    return [{**row.to_dict(), **told.get((row.op, row.group), unknown)} for row in rows]


def collective_frame(rows: Sequence[CollectiveSummary], waiting: Mapping[tuple[str, str], Waiting]) -> pd.DataFrame:
    """Return :func:`collective_rows` as columns."""
    return _frame(collective_rows(rows, waiting), _COLLECTIVE, _RATES).astype(dict.fromkeys(WAITING, "Int64"))


def _frame(rows: Sequence[dict[str, Any]], columns: Sequence[str], numbers: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    # A ratio that is undefined in every row is a number all the same.
    return pd.DataFrame(rows, columns=list(columns)).astype(dict.fromkeys(numbers, "float64"))
