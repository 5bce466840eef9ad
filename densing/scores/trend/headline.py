"""The headline: a Tobit line through all models, its error by leaving out families, the law's error on top.

ln rho*_i = a + b t_i + s e_i, rows beyond the ruler known only as bounds
V = (G - 1)/G sum_g (line_-g - line)(line_-g - line)'  +  Cov over law draws of the line
interval: b -+ c sqrt(V_bb), c the simulated critical value of :mod:`densing.scores.trend.pivot`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from densing.core import Array, FitError
from densing.scores.trend.data import TrendData
from densing.scores.trend.pivot import critical_value
from densing.scores.trend.slopes import DAYS_PER_YEAR, Slope
from densing.scores.trend.tobit import bound_curvature, fit_tobit

METHOD = "tobit-crv3"
LABEL = "all models, Tobit for rows beyond the ruler, family jackknife (CRV3)"
MIN_ROWS, MIN_FAMILIES = 3, 2
MAX_DRAWS = 200
AT_LIMIT = 1e-9


@dataclass(frozen=True)
class Headline:
    """The Tobit line with everything its interval and its forecast are made of.

    Parameters
    ----------
    slope : Slope
        The row for the table of estimators.
    centre : float
        Day at which the line's level is stated.
    line : array, shape (2,)
        ln(density) at ``centre`` and slope per day.
    sigma : float
        Residual standard deviation of ln(density), corrected for the two coefficients.
    leave_out : array, shape (G, 2)
        The line without each family; NaN rows where nothing is left to fit.
    sampling, law : array, shape (2, 2)
        Covariances of the line: which models exist, and the reference law.
    critical : float
        Multiplier of the standard error.
    shares : mapping
        Shares of the slope's variance; None where not computable.
    lines : array, shape (R, 2)
        Draws of the line.
    law_rows : array of int, shape (R,)
        Row of ``law_draws`` behind each draw of the line; empty without law draws.
    """

    slope: Slope
    centre: float
    line: Array
    sigma: float
    leave_out: Array
    sampling: Array
    law: Array
    critical: float
    shares: Mapping[str, float | None]
    lines: Array
    law_rows: Array


def fit_headline(
    data: TrendData,
    level: float = 0.95,
    *,
    cluster: str = "family",
    seed: int = 0,
    draws: int = 2000,
) -> Headline:
    """Fit the headline line.

    Parameters
    ----------
    data : TrendData
        At least three observed rows on two dates, from two families.
    level : float
    cluster : {"family", "organisation", "model"}
        What is left out together.
    seed : int
        For the critical value and the draws of the line.
    draws : int
        Number of line draws kept for forecasts.

    Raises
    ------
    FitError
        When the data cannot carry a slope.
    """
    codes = data.clusters(cluster)
    _check(data, codes)
    centre = float(data.days.mean())
    lines, sigmas = tobit_lines(data, centre, _leave_outs(codes))
    line, leave_out = lines[0], lines[1:]
    if not np.all(np.isfinite(line)):
        raise FitError("Tobit: no finite slope from these rows; widen the window or the ruler's range")
    groups = len(leave_out)
    away = leave_out - line
    sampling = away.T @ away * (groups - 1) / groups
    law_lines, law_rows = _refits(data, data.law_draws, centre)
    law = np.cov(law_lines.T) if len(law_lines) > 1 else np.zeros((2, 2))
    ratio = law[1, 1] / sampling[1, 1] if sampling[1, 1] > 0 else 0.0
    worth = information(data, centre, line, float(sigmas[0]))
    critical = critical_value(data.days, codes, worth, level, law_ratio=ratio, seed=seed)
    half = critical * np.sqrt(sampling[1, 1] + law[1, 1])
    half = half if np.isfinite(half) else np.inf
    slope = _row(line, centre, half, len(data), groups, len(law_lines) > 1)
    inflation = critical / stats.norm.ppf(0.5 + level / 2)
    kept, picks = _draw_lines(line, sampling, law_lines, inflation, draws, seed)
    rows = law_rows[picks] if len(law_rows) else picks
    shares = _shares(data, centre, float(sampling[1, 1]), float(law[1, 1]), len(law_lines) > 1)
    sigma = float(sigmas[0]) * _sigma_correction(int(data.observed.sum()))
    return Headline(slope, centre, line, sigma, leave_out, sampling, law, critical, shares, kept, rows)


def _sigma_correction(seen: int) -> float:
    """Undo the shrinkage of a maximum-likelihood deviation by the two coefficients of the line."""
    return float(np.sqrt(seen / (seen - 2)))


def tobit_lines(
    data: TrendData, centre: float, weights: Array | None = None, values: Array | None = None
) -> tuple[Array, Array]:
    """Tobit lines (B, 2), level at ``centre`` and slope per day, and residual deviations (B,).

    Parameters
    ----------
    weights : array, shape (B, n), optional
        Case weights, e.g. leave-outs; lines that rest on too few rows come back as NaN.
    values : array, shape (B, n), optional
        Draws of ln(density) in place of the data's; a row at its limit (within 1e-9) is censored there.
    """
    y, censor = (data.log_density, data.censor) if values is None else _draw_censoring(data, values)
    design = np.column_stack([np.ones(len(data)), (data.days - centre) / DAYS_PER_YEAR])
    fit = fit_tobit(design, y, censor, weights)
    lines = fit.beta / np.array([1.0, DAYS_PER_YEAR])
    seen = np.atleast_2d(censor) == 0
    used = seen if weights is None else seen & (np.atleast_2d(weights) > 0)
    low = np.where(used, data.days, np.inf).min(axis=1)
    high = np.where(used, data.days, -np.inf).max(axis=1)
    enough = (used.sum(axis=1) >= MIN_ROWS) & (high > low)
    return np.where(enough[:, None], lines, np.nan), np.where(enough, fit.sigma, np.nan)


def information(data: TrendData, centre: float, line: Array, sigma: float) -> Array:
    """What each row is worth: 1 if observed, the curvature of ln Phi at its limit if censored; shape (n,)."""
    z = (data.log_density - line[0] - line[1] * (data.days - centre)) / max(sigma, 1e-12)
    return np.asarray(np.where(data.censor == 0, 1.0, bound_curvature(-data.censor * z)))


def _check(data: TrendData, codes: Array) -> None:
    seen, families = int(data.observed.sum()), len(np.unique(codes))
    if seen < MIN_ROWS:
        raise FitError(
            f"trend: {seen} observed models among {len(data)}, at least {MIN_ROWS} needed; "
            "widen the window, or choose a reference whose range covers more models"
        )
    if families < MIN_FAMILIES:
        raise FitError(f"trend: {families} family, at least {MIN_FAMILIES} needed; widen the window")
    if np.ptp(data.days[data.observed]) == 0:
        raise FitError("trend: all observed models share one release date; widen the window")


def _leave_outs(codes: Array) -> Array:
    return np.vstack([np.ones(len(codes)), codes != np.arange(codes.max() + 1)[:, None]]).astype(float)


def _draw_censoring(data: TrendData, values: Array) -> tuple[Array, Array]:
    """Clip draws at the row limits and say which of them lie there."""
    low, high = data.limits[:, 0], data.limits[:, 1]
    y = np.clip(values, low, high)
    censor = np.where(y >= high - AT_LIMIT, 1, np.where(y <= low + AT_LIMIT, -1, 0))
    return y, censor.astype(np.int8)


def _refits(data: TrendData, values: Array | None, centre: float) -> tuple[Array, Array]:
    """Lines under at most 200 evenly spaced draws, and which draws they are."""
    if values is None or len(values) < 2:
        return np.zeros((0, 2)), np.zeros(0, dtype=int)
    picks = np.unique(np.linspace(0, len(values) - 1, min(MAX_DRAWS, len(values))).astype(int))
    lines, _ = tobit_lines(data, centre, values=values[picks])
    finite = np.all(np.isfinite(lines), axis=1)
    return lines[finite], picks[finite]


def _row(line: Array, centre: float, half: float, n: int, groups: int, with_law: bool) -> Slope:
    slope = float(line[1])
    kind = "cluster jackknife, simulated critical value" + (", plus reference law" if with_law else "")
    intercept = float(line[0] - slope * centre)
    return Slope(METHOD, LABEL, slope, slope - half, slope + half, intercept, n, groups, kind, 0)


def _draw_lines(
    line: Array, sampling: Array, law_lines: Array, inflation: float, draws: int, seed: int
) -> tuple[Array, Array]:
    """Draw lines whose slope spreads as the interval says: jackknife part widened, law part as drawn."""
    rng = np.random.default_rng([seed, 1])
    law = np.cov(law_lines.T) if len(law_lines) > 1 else np.zeros((2, 2))
    if not np.all(np.isfinite(sampling)):
        return np.full((draws, 2), np.nan), np.zeros(0, dtype=int)
    share = law[1, 1] / sampling[1, 1] if sampling[1, 1] > 0 else 0.0
    widen = np.sqrt(max(inflation**2 * (1 + share) - share, 1.0))
    values, vectors = np.linalg.eigh(sampling)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    kept = line + widen * rng.standard_normal((draws, 2)) @ root.T
    if len(law_lines) < 2:
        return kept, np.zeros(0, dtype=int)
    picks = np.arange(draws) % len(law_lines)
    return kept + law_lines[picks] - law_lines.mean(axis=0), picks


def _shares(data: TrendData, centre: float, sampling: float, law: float, with_law: bool) -> dict[str, float | None]:
    """Split the slope's variance into score noise, reference law and which models exist."""
    total = sampling + law
    if not (np.isfinite(total) and total > 0):
        return {"score_noise": None, "reference_law": None, "models": None}
    noisy, _ = _refits(data, data.draws, centre)
    if len(noisy) < 2 or not with_law:
        return {
            "score_noise": None,
            "reference_law": law / total if with_law else None,
            "models": sampling / total,
        }
    score = float(np.clip(np.var(noisy[:, 1], ddof=1) - law, 0.0, sampling))
    return {
        "score_noise": score / total,
        "reference_law": law / total,
        "models": (sampling - score) / total,
    }
