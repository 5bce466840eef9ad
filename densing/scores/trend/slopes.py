"""What one estimator says about the trend: a slope with its interval, and the doubling time it implies."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

DAYS_PER_MONTH = 30.44
DAYS_PER_YEAR = 365.25


@dataclass(frozen=True)
class Slope:
    """The slope of ln(density) against days, as one estimator sees it.

    Parameters
    ----------
    method : str
        Short name, for programs.
    label : str
        Name and caution, for people.
    slope, lo, hi : float
        Slope per day and the ends of its interval; NaN where nothing could be estimated.
    intercept : float
        Fitted ln(density) on day 0 (2023-02-24).
    n : int
        Rows that entered the fit.
    clusters : int
        Clusters behind the interval; ``n`` for methods that take rows as independent.
    se_type : str
        How the interval was made.
    dropped : int
        Rows the method could not use (censored ones, as a rule).

    Examples
    --------
    >>> steady = Slope("demo", "demo", 0.007, 0.005, 0.01, 0.0, 20, 8, "none", 0)
    >>> [round(value, 2) for value in (steady.doubling_months, *steady.doubling_interval)]
    [3.25, 2.28, 4.55]
    """

    method: str
    label: str
    slope: float
    lo: float
    hi: float
    intercept: float
    n: int
    clusters: int
    se_type: str
    dropped: int

    @property
    def estimable(self) -> bool:
        """Whether the method gave a slope at all."""
        return math.isfinite(self.slope)

    @property
    def doubling_months(self) -> float:
        """Doubling time in months of 30.44 days; infinite for a slope of zero or below."""
        return doubling_months(self.slope)

    @property
    def doubling_interval(self) -> tuple[float, float]:
        """Ends of the doubling time, from inverting the ends of the slope's interval."""
        return doubling_months(self.hi), doubling_months(self.lo)


def doubling_months(slope: float) -> float:
    """Convert a slope of ln(density) per day into a doubling time in months.

    T = ln 2 / slope / 30.44; a slope of zero or below never doubles and gives infinity.

    Source: Xiao et al., arXiv 2412.04315, eq. 5 and section 3.3.

    Parameters
    ----------
    slope : float
        Per day. NaN stays NaN.

    Examples
    --------
    >>> round(doubling_months(0.0073) * DAYS_PER_MONTH, 1)
    95.0
    >>> doubling_months(-0.001)
    inf
    """
    if math.isnan(slope):
        return math.nan
    return math.log(2) / slope / DAYS_PER_MONTH if slope > 0 else math.inf


def not_estimable(method: str, label: str, reason: str, n: int, clusters: int, dropped: int) -> Slope:
    """Return the row of an estimator that could not run, with the reason in its label."""
    nan = math.nan
    return Slope(method, f"{label}; not estimable: {reason}", nan, nan, nan, nan, n, clusters, "none", dropped)


def doubling_text(months: float, lo: float, hi: float) -> str:
    """Put a doubling time and its interval into words.

    Examples
    --------
    >>> doubling_text(3.5, 2.9, 4.4)
    '3.5 months (2.9 to 4.4)'
    >>> doubling_text(9.0, 4.2, math.inf)
    '≥ 4.2 months, upper end unbounded (estimate 9.0)'
    >>> doubling_text(math.inf, 20.0, math.inf)
    '≥ 20.0 months, upper end unbounded (the estimated slope is not positive)'
    """
    if math.isnan(months):
        return "not estimable"
    if math.isinf(lo):
        return "no doubling: the whole interval of the slope is zero or below"
    if math.isinf(hi) or math.isnan(hi):
        seen = f"estimate {months:.1f}" if math.isfinite(months) else "the estimated slope is not positive"
        return f"≥ {lo:.1f} months, upper end unbounded ({seen})"
    return f"{months:.1f} months ({lo:.1f} to {hi:.1f})"


def slopes_table(slopes: Iterable[Slope], headline: str) -> pd.DataFrame:
    """Lay estimators side by side, one row each, the headline marked.

    Examples
    --------
    >>> table = slopes_table([Slope("demo", "demo", 0.007, 0.005, 0.01, 0.0, 20, 8, "none", 0)], "demo")
    >>> table[["method", "doubling_months", "headline"]].round(2).values.tolist()
    [['demo', 3.25, True]]
    """
    rows = []
    for item in slopes:
        lo, hi = item.doubling_interval
        falling = item.estimable and item.slope <= 0
        rows.append(
            {
                "method": item.method,
                "label": f"{item.label}; slope not positive: no doubling" if falling else item.label,
                "slope_per_day": item.slope,
                "slope_lo": item.lo,
                "slope_hi": item.hi,
                "doubling_months": item.doubling_months,
                "lo": lo,
                "hi": hi,
                "n": item.n,
                "clusters": item.clusters,
                "se_type": item.se_type,
                "dropped": item.dropped,
                "headline": item.method == headline,
            }
        )
    return pd.DataFrame(rows)
