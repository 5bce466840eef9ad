"""Would the forecast have been right? Cut the data, forecast, compare with what came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from densing.core import Array, FitError
from densing.scores.trend.data import EPOCH, TrendData
from densing.scores.trend.headline import Headline, fit_headline
from densing.scores.trend.slopes import DAYS_PER_MONTH, doubling_months

MIN_TRAIN = 10


@dataclass(frozen=True)
class Backtest:
    """How earlier forecasts fared.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per cut: cut, n_train, n_test, doubling_months, coverage, median_error,
        frontier_error, standstill_error.
    n : int
        Held-out models, counted once per cut.
    level : float
        Nominal share of held-out models inside the band.
    coverage : float
        Share really inside; a bound counts as outside only where it contradicts the band.
    median_error : float
        Of observed minus forecast ln(density); above zero where models beat the forecast.
    frontier_error : float
        Median over cuts of the densest model's ln(density) at the end of the holdout minus its forecast.
    standstill_error : float
        The same for the forecast that the frontier stays where it is: what a forecast has to beat.
    """

    table: pd.DataFrame
    n: int
    level: float
    coverage: float
    median_error: float
    frontier_error: float
    standstill_error: float


def backtest(
    data: TrendData,
    holdout_months: float = 6.0,
    *,
    step_months: float = 3.0,
    level: float = 0.9,
    cluster: str = "family",
    seed: int = 0,
) -> Backtest:
    """Cut at regular dates, fit on what was known, score the models of the months after.

    The band of a single model is the spread of a + b t + s e over draws of the line and of e.

    Parameters
    ----------
    data : TrendData
        The reference law is the same throughout: this tests the trend, not the ruler.
    holdout_months, step_months : float
    level : float
    cluster : {"family", "organisation", "model"}
    seed : int

    Raises
    ------
    FitError
        When no cut leaves ten observed models before it and one after.

    Examples
    --------
    >>> from densing.scores.trend.simulate import Scenario, simulate
    >>> found = backtest(simulate(Scenario(n=120, families=40, family_sd=0.0, ceilings=None), 2))
    >>> bool(0.8 < found.coverage <= 1)
    True
    """
    rows = data.ordered()
    last = float(rows.days.max()) if len(rows) else 0.0
    hold, step = holdout_months * DAYS_PER_MONTH, step_months * DAYS_PER_MONTH
    seen = np.sort(rows.days[rows.observed])
    found, scores = [], []
    cut = seen[MIN_TRAIN - 1] if len(seen) > MIN_TRAIN else last
    while cut < last:
        train, test = rows.take(rows.days <= cut), rows.take((rows.days > cut) & (rows.days <= cut + hold))
        if len(test):
            try:
                fit = fit_headline(train, cluster=cluster, seed=seed)
            except FitError:
                cut += step
                continue
            scored = _score(fit, test, level, seed)
            scores.append(scored)
            found.append({**_row(cut, train, fit, scored), **_frontier_errors(fit, train, test, min(hold, last - cut))})
        cut += step
    if not found:
        raise FitError(f"backtest: {len(seen)} observed models leave no cut with {MIN_TRAIN} before it and one after")
    inside, error = (np.concatenate(parts) for parts in zip(*scores, strict=True))
    table = pd.DataFrame(found)
    frontier = (float(table[name].median()) for name in ("frontier_error", "standstill_error"))
    return Backtest(table, len(inside), level, float(np.mean(inside)), _median(error), *frontier)


def _score(fit: Headline, test: TrendData, level: float, seed: int) -> tuple[Array, Array]:
    """Inside the band, and error (NaN for bounds)."""
    rng = np.random.default_rng([seed, 5])
    ahead = test.days - fit.centre
    mid = fit.line[0] + fit.line[1] * ahead
    lines = fit.lines[:, :1] + fit.lines[:, 1:] * ahead
    models = lines + fit.sigma * rng.standard_normal(lines.shape)
    lo, hi = np.quantile(models, [0.5 - level / 2, 0.5 + level / 2], axis=0)
    y, censor = test.log_density, test.censor
    inside = ((y >= lo) | (censor > 0)) & ((y <= hi) | (censor < 0))
    return inside, np.where(censor == 0, y - mid, np.nan)


def _frontier_errors(fit: Headline, train: TrendData, test: TrendData, ahead: float) -> dict[str, float]:
    record = float(train.log_density[train.observed].max())
    came = float(np.max(test.log_density[test.observed], initial=record))
    forecast = record + max(float(fit.line[1]), 0.0) * ahead
    return {"frontier_error": came - forecast, "standstill_error": came - record}


def _row(cut: float, train: TrendData, fit: Headline, scored: tuple[Array, Array]) -> dict[str, Any]:
    inside, error = scored
    return {
        "cut": (EPOCH + pd.Timedelta(days=float(cut))).normalize(),
        "n_train": len(train),
        "n_test": len(inside),
        "doubling_months": doubling_months(fit.slope.slope),
        "coverage": float(np.mean(inside)),
        "median_error": _median(error),
    }


def _median(values: Array) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")
