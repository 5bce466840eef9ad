"""Frontier and doubling time: estimators, checks, forecasts."""

from __future__ import annotations

from densing.trend.data import EPOCH, TrendData
from densing.trend.estimate import estimate_trend
from densing.trend.result import TrendResult
from densing.trend.slopes import DAYS_PER_MONTH, Slope, doubling_months, doubling_text

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
