"""Frontier and doubling time: estimators, checks, forecasts."""

from __future__ import annotations

from densing.scores.trend.data import EPOCH, TrendData
from densing.scores.trend.estimate import estimate_trend
from densing.scores.trend.result import TrendResult
from densing.scores.trend.slopes import DAYS_PER_MONTH, Slope, doubling_months, doubling_text

__all__ = [
    "DAYS_PER_MONTH",
    "EPOCH",
    "Slope",
    "TrendData",
    "TrendResult",
    "doubling_months",
    "doubling_text",
    "estimate_trend",
]
