"""Did the trend change pace? A test at a date named beforehand, and an honest search for the best date.

The null model is one Tobit line. Its likelihood-ratio statistics get their p-values from a wild cluster
bootstrap: censored rows are given residuals drawn beyond their limits, whole families flip sign, and limits
cut again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from densing.core import Array
from densing.scores.trend.data import EPOCH, TrendData
from densing.scores.trend.slopes import DAYS_PER_YEAR
from densing.scores.trend.tobit import TobitFit, fit_tobit

CHATGPT = pd.Timestamp("2022-11-30")
PAPER: dict[str, Any] = {
    "before": 0.0048,
    "after": 0.0073,
    "source": "Xiao et al., arXiv 2412.04315, section on the ChatGPT split",
}
MIN_ROWS, MIN_FAMILIES, MIN_SEARCH = 4, 3, 12
MAX_CANDIDATES, TRIM = 15, 0.15


def breakpoint_test(
    data: TrendData,
    *,
    split: pd.Timestamp = CHATGPT,
    cluster: str = "family",
    bootstrap: int = 199,
    seed: int = 0,
) -> dict[str, Any]:
    """Test a break at a stated date and search for one.

    Stated: lines before and after, free in level and slope (Chow). Searched: the best kink of a continuous
    line over up to 15 dates in the middle 70 % of the window (sup-LR).

    Source: Chow (1960); Andrews, Econometrica 61 (1993) 821-856 for the search; Cameron, Gelbach and Miller
    (2008) for the bootstrap.

    Parameters
    ----------
    data : TrendData
    split : Timestamp
        Named before looking: the release of ChatGPT.
    cluster : {"family", "organisation", "model"}
    bootstrap, seed : int

    Returns
    -------
    dict
        ``stated``: date, n_before, n_after, slope_before, slope_after, statistic, p, reason; ``searched``:
        date, slope_before, slope_after, statistic, p, reason; ``paper``: the paper's rates.
    """
    codes = data.clusters(cluster)
    years = data.days / DAYS_PER_YEAR
    at = float((split - EPOCH) / pd.Timedelta(days=1)) / DAYS_PER_YEAR
    reason = _cannot_split(data, codes, at)
    stated: dict[str, Any] = {
        "date": str(split.date()),
        "n_before": int(np.sum(years < at)),
        "n_after": int(np.sum(years >= at)),
        "p": None,
        "reason": reason,
    }
    searched: dict[str, Any] = {"date": None, "p": None, "reason": None}
    if not reason or _can_search(data):
        test = _BreakTest(data, codes, bootstrap, np.random.default_rng([seed, 4]))
        if not reason:
            stated |= _stated(test, years, at)
        if _can_search(data):
            searched |= _searched(test, years)
    if searched["date"] is None:
        searched["reason"] = f"fewer than {MIN_SEARCH} observed rows, or too few dates"
    return {"stated": stated, "searched": searched, "paper": dict(PAPER), "bootstrap": bootstrap}


class _BreakTest:
    """One line fitted to the data and to wild bootstrap worlds drawn from it."""

    def __init__(self, data: TrendData, codes: Array, bootstrap: int, rng: np.random.Generator) -> None:
        design = one_line(data)
        fit = fit_tobit(design, data.log_density, data.censor)
        y, censor = (np.tile(values, (bootstrap, 1)) for values in (data.log_density, data.censor))
        worlds, cut = wild_worlds(data, y, censor, fit, codes, rng)
        self.y, self.censor = np.vstack([data.log_density, worlds]), np.vstack([data.censor, cut])
        self.loglik = fit_tobit(design, self.y, self.censor).loglik

    def ratios(self, design: Array) -> tuple[Array, TobitFit]:
        """Likelihood-ratio statistics of a larger design: in the data first, then in every world."""
        fit = fit_tobit(design, self.y, self.censor)
        return np.where(np.isfinite(fit.loglik), 2 * (fit.loglik - self.loglik), np.nan), fit


def one_line(data: TrendData) -> Array:
    """Design of the null model, shape (n, 2)."""
    years = data.days / DAYS_PER_YEAR
    return np.column_stack([np.ones(len(data)), years - years.mean()])


def wild_worlds(
    data: TrendData, y: Array, censor: Array, fit: TobitFit, codes: Array, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Draw one world without a break for each row of ``y``: residuals of whole clusters flip sign, limits cut again.

    Parameters
    ----------
    data : TrendData
        Dates and limits.
    y, censor : array, shape (B, n)
        Data sets, or one repeated.
    fit : TobitFit
        Of :func:`one_line`, one or one per data set.
    codes : array of int, shape (n,)
    rng : Generator
    """
    mean = fit.beta @ one_line(data).T
    residual = _impute(y - mean, censor, np.broadcast_to(fit.sigma[:, None], y.shape), rng)
    signs = rng.choice([-1.0, 1.0], size=(len(y), int(codes.max()) + 1))[:, codes]
    low, high = data.limits[:, 0], data.limits[:, 1]
    worlds = mean + signs * residual
    return np.clip(worlds, low, high), np.where(worlds >= high, 1, np.where(worlds <= low, -1, 0))


def _impute(residual: Array, censor: Array, sigma: Array, rng: np.random.Generator) -> Array:
    """Residuals (B, n): the real ones, and draws from the tail beyond the limit for censored rows."""
    for side in (1, -1):
        beyond = censor == side
        edge = residual[beyond] / sigma[beyond]
        tail = stats.norm.sf(side * edge) * rng.random(len(edge))
        residual[beyond] = side * sigma[beyond] * stats.norm.isf(np.clip(tail, 1e-300, 1.0))
    return residual


def _p_value(statistics: Array) -> float | None:
    """Share of worlds that reach the data's statistic; fits without a finite maximum count as reaching."""
    if not np.isfinite(statistics[0]):
        return None
    reached = np.sum(~(statistics[1:] < statistics[0]))
    return float((1 + reached) / len(statistics))


def stated_design(years: Array, at: float) -> Array:
    """Two lines, free in level and slope, before and after a date."""
    after = (years >= at).astype(float)
    return np.column_stack([np.ones_like(years), years - at, after, after * (years - at)])


def candidates(years: Array) -> Array:
    """Dates at which a kink is tried: up to 15 of the middle 70 % of the window."""
    dates = np.unique(years)
    low, high = np.quantile(years, [TRIM, 1 - TRIM])
    inner = dates[(dates > max(low, dates[1])) & (dates < min(high, dates[-2]))]
    picks = np.unique(np.linspace(0, len(inner) - 1, min(MAX_CANDIDATES, len(inner))).astype(int))
    return np.asarray(inner[picks])


def kinks(years: Array, dates: Array) -> list[Array]:
    """Continuous lines with a kink, one design per date."""
    return [
        np.column_stack([np.ones_like(years), years - kink, np.maximum(years - kink, 0.0)]) for kink in dates.tolist()
    ]


def _stated(test: _BreakTest, years: Array, at: float) -> dict[str, Any]:
    ratios, fit = test.ratios(stated_design(years, at))
    before, change = float(fit.beta[0, 1]) / DAYS_PER_YEAR, float(fit.beta[0, 3]) / DAYS_PER_YEAR
    return {
        "slope_before": before,
        "slope_after": before + change,
        "statistic": float(ratios[0]),
        "p": _p_value(ratios),
    }


def _searched(test: _BreakTest, years: Array) -> dict[str, Any]:
    dates = candidates(years)
    if len(dates) == 0:
        return {}
    found = [test.ratios(design) for design in kinks(years, dates)]
    table = np.array([ratios for ratios, _ in found])
    table = np.where(np.isfinite(table), table, -np.inf)
    best = int(table[:, 0].argmax())
    slopes = found[best][1].beta[0, 1:] / DAYS_PER_YEAR
    date = EPOCH + pd.Timedelta(days=float(dates[best] * DAYS_PER_YEAR))
    return {
        "date": str(date.round("D").date()),
        "candidates": len(dates),
        "slope_before": float(slopes[0]),
        "slope_after": float(slopes.sum()),
        "statistic": float(table[best, 0]),
        "p": _p_value(table.max(axis=0)),
    }


def _can_search(data: TrendData) -> bool:
    seen = data.observed
    return int(seen.sum()) >= MIN_SEARCH and len(np.unique(data.days[seen])) >= 6


def _cannot_split(data: TrendData, codes: Array, at: float) -> str | None:
    """Why the stated date cannot be tested, or None."""
    for name, side in (
        ("before", data.days / DAYS_PER_YEAR < at),
        ("after", data.days / DAYS_PER_YEAR >= at),
    ):
        seen = side & data.observed
        families = len(np.unique(codes[seen]))
        if seen.sum() < MIN_ROWS or families < MIN_FAMILIES or len(np.unique(data.days[seen])) < 3:
            return (
                f"{int(seen.sum())} observed models of {families} families {name} the date; "
                f"at least {MIN_ROWS} models of {MIN_FAMILIES} families on three dates needed"
            )
    return None
