"""Trend data by hand: days and values, and families where they matter."""

from __future__ import annotations

import pandas as pd

from densing.scores.trend import TrendData


def dated(days: list[float], values: list[float], families: list[str] | None = None) -> TrendData:
    """Return models with these ln densities, released so many days after 2023-02-24; each its own family by default."""
    released = pd.Timestamp("2023-02-24") + pd.to_timedelta(days, unit="D")
    names = [f"m{number}" for number in range(len(days))]
    return TrendData.from_arrays(names, families or names, released, values)
