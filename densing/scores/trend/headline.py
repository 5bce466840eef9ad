"""The headline: a Tobit line through all models, its error by leaving out families, the law's error on top.

ln rho*_i = a + b t_i + s e_i, rows beyond the ruler known only as bounds
V = (G - 1)/G sum_g (line_-g - line)(line_-g - line)'  +  Cov over law draws of the line
interval: b -+ c sqrt(V_bb), c the simulated critical value of :func:`critical_value`
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from densing.core import Array, FitError
from densing.scores.trend.data import DAYS_PER_YEAR, Slope, TrendData
from densing.scores.trend.tobit import bound_curvature, fit_tobit

MIN_ROWS, MIN_FAMILIES = 3, 2
MAX_DRAWS = 200
AT_LIMIT = 1e-9
WORKING_CORRELATION = 0.5
"""Correlation within a family assumed for the critical value (from 0 to 0.8 it moves by about 1-3 %)."""
MIN_INFORMATION = 1e-6


@dataclass(frozen=True)
class VarianceShares:
    """Where the variance of the headline's slope comes from, as shares of it; None where not computable.

    Parameters
    ----------
    score_noise : float or None
        The sampling of the benchmarks' items.
    reference_law : float or None
        The fitted ruler.
    models : float or None
        Which models exist.
    """

    score_noise: float | None
    reference_law: float | None
    models: float | None


@dataclass(frozen=True)
class Headline:
    """The Tobit line with everything its interval and its forecast are made of.

    Parameters
    ----------
    slope : Slope
        The slope with its interval, as the table of estimators holds it.
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
    shares : VarianceShares
        Of the slope's variance.
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
    shares: VarianceShares
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
    # The line with every row first, then without each cluster.
    weights = np.vstack([np.ones(len(codes)), codes != np.arange(codes.max() + 1)[:, None]]).astype(float)
    lines, sigmas = tobit_lines(data, centre, weights)
    line, leave_out = lines[0], lines[1:]
    if not np.all(np.isfinite(line)):
        raise FitError("Tobit: no finite slope from these rows; widen the window or the ruler's range")
    groups = len(leave_out)
    deviations = leave_out - line
    sampling = deviations.T @ deviations * (groups - 1) / groups
    law_lines, law_rows = _refits(data, data.law_draws, centre)
    with_law = len(law_lines) > 1
    law = np.cov(law_lines.T) if with_law else np.zeros((2, 2))
    ratio = law[1, 1] / sampling[1, 1] if sampling[1, 1] > 0 else 0.0
    worth = information(data, centre, line, float(sigmas[0]))
    critical = critical_value(data.days, codes, worth, level, law_ratio=ratio, seed=seed)
    half = critical * np.sqrt(sampling[1, 1] + law[1, 1])
    half = half if np.isfinite(half) else np.inf
    pace, intercept = float(line[1]), float(line[0] - float(line[1]) * centre)
    kind = "cluster jackknife, simulated critical value" + (", plus reference law" if with_law else "")
    slope = Slope(pace, pace - half, pace + half, intercept, len(data), groups, kind, 0)
    inflation = critical / stats.norm.ppf(0.5 + level / 2)
    drawn, picks = _draw_lines(line, sampling, law, law_lines, inflation, draws, seed)
    rows = law_rows[picks] if len(law_rows) else picks
    shares = _shares(data, centre, float(sampling[1, 1]), float(law[1, 1]), with_law)
    # Maximum likelihood divides by n: the two coefficients of the line are given back.
    observed = int(data.observed.sum())
    sigma = float(sigmas[0]) * float(np.sqrt(observed / (observed - 2)))
    return Headline(slope, centre, line, sigma, leave_out, sampling, law, critical, shares, drawn, rows)


def tobit_crv3(data: TrendData, level: float = 0.95, *, cluster: str = "family", seed: int = 0) -> Slope:
    """Return the slope of :func:`fit_headline` alone, as estimators give it."""
    return fit_headline(data, level, cluster=cluster, seed=seed, draws=2).slope


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
    y, censor = data.log_density, data.censor
    if values is not None:
        floor, ceiling = data.limits[:, 0], data.limits[:, 1]
        y = np.clip(values, floor, ceiling)
        censor = np.where(y >= ceiling - AT_LIMIT, 1, np.where(y <= floor + AT_LIMIT, -1, 0)).astype(np.int8)
    design = np.column_stack([np.ones(len(data)), (data.days - centre) / DAYS_PER_YEAR])
    fit = fit_tobit(design, y, censor, weights)
    lines = fit.beta / np.array([1.0, DAYS_PER_YEAR])
    observed = np.atleast_2d(censor) == 0
    used = observed if weights is None else observed & (np.atleast_2d(weights) > 0)
    first = np.where(used, data.days, np.inf).min(axis=1)
    last = np.where(used, data.days, -np.inf).max(axis=1)
    sufficient = (used.sum(axis=1) >= MIN_ROWS) & (last > first)
    return np.where(sufficient[:, None], lines, np.nan), np.where(sufficient, fit.sigma, np.nan)


def information(data: TrendData, centre: float, line: Array, sigma: float) -> Array:
    """What each row is worth: 1 if observed, the curvature of ln Phi at its limit if censored; shape (n,)."""
    z = (data.log_density - line[0] - line[1] * (data.days - centre)) / max(sigma, 1e-12)
    return np.asarray(np.where(data.censor == 0, 1.0, bound_curvature(-data.censor * z)))


def _check(data: TrendData, codes: Array) -> None:
    observed, families = int(data.observed.sum()), len(np.unique(codes))
    if observed < MIN_ROWS:
        raise FitError(
            f"trend: {observed} observed models among {len(data)}, at least {MIN_ROWS} needed; "
            "widen the window, or choose a reference whose range covers more models"
        )
    if families < MIN_FAMILIES:
        raise FitError(f"trend: {families} family, at least {MIN_FAMILIES} needed; widen the window")
    if np.ptp(data.days[data.observed]) == 0:
        raise FitError("trend: all observed models share one release date; widen the window")


def _refits(data: TrendData, values: Array | None, centre: float) -> tuple[Array, Array]:
    """Lines under at most 200 evenly spaced draws, and which draws they are."""
    if values is None or len(values) < 2:
        return np.zeros((0, 2)), np.zeros(0, dtype=int)
    # Two hundred refits tell a covariance; evenly spaced, so that the same ones are taken whatever else is asked.
    picks = np.unique(np.linspace(0, len(values) - 1, min(MAX_DRAWS, len(values))).astype(int))
    lines, _ = tobit_lines(data, centre, values=values[picks])
    finite = np.all(np.isfinite(lines), axis=1)
    return lines[finite], picks[finite]


def _draw_lines(
    line: Array, sampling: Array, law: Array, law_lines: Array, inflation: float, draws: int, seed: int
) -> tuple[Array, Array]:
    """Draw lines whose slope spreads as the interval says: jackknife part widened, law part as drawn."""
    rng = np.random.default_rng([seed, 1])
    if not np.all(np.isfinite(sampling)):
        return np.full((draws, 2), np.nan), np.zeros(0, dtype=int)
    share = law[1, 1] / sampling[1, 1] if sampling[1, 1] > 0 else 0.0
    # The interval is `inflation` times the joint standard error. The law's lines are added as they were drawn, so the
    # jackknife part alone is widened until both together have that width: w^2 + share = inflation^2 (1 + share).
    widen = np.sqrt(max(inflation**2 * (1 + share) - share, 1.0))
    values, vectors = np.linalg.eigh(sampling)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    drawn = line + widen * rng.standard_normal((draws, 2)) @ root.T
    if len(law_lines) < 2:
        return drawn, np.zeros(0, dtype=int)
    picks = np.arange(draws) % len(law_lines)
    return drawn + law_lines[picks] - law_lines.mean(axis=0), picks


def _shares(data: TrendData, centre: float, sampling: float, law: float, with_law: bool) -> VarianceShares:
    """Split the slope's variance into score noise, reference law and which models exist."""
    total = sampling + law
    if not (np.isfinite(total) and total > 0):
        return VarianceShares(None, None, None)
    # Draws with the noise of the scores hold the law's error too; what is beyond it is the noise.
    noisy, _ = _refits(data, data.draws, centre)
    if len(noisy) < 2 or not with_law:
        return VarianceShares(None, law / total if with_law else None, sampling / total)
    score = float(np.clip(np.var(noisy[:, 1], ddof=1) - law, 0.0, sampling))
    return VarianceShares(score / total, law / total, (sampling - score) / total)


def critical_value(
    days: Array,
    codes: Array,
    information: Array,
    level: float = 0.95,
    *,
    law_ratio: float = 0.0,
    correlation: float = WORKING_CORRELATION,
    draws: int = 1999,
    seed: int = 0,
) -> float:
    """Simulate the critical value of the cluster jackknife t of a slope.

    c = quantile_level of |b - beta| / sqrt(V_jackknife + V_law) under e = u_family + v, normal.

    The jackknife variance rests on few, unequal families, so that this ratio follows no t table exactly. Under the
    working model (normal, equally correlated within families) its distribution depends only on dates, families and how
    much each row is worth, all of which are known; so it is simulated.

    Source: the working-model idea is Bell and McCaffrey (2002) and Hansen, Jackknife standard errors for
    clustered regression (2024); both match moments to a t, here the distribution itself is drawn.

    Parameters
    ----------
    days : array, shape (n,)
    codes : array of int, shape (n,)
        Clusters 0..G-1.
    information : array, shape (n,)
        What a row is worth for the slope: 1 if observed, less if censored (curvature of its likelihood).
    level : float
    law_ratio : float
        Variance from the reference law over the jackknife variance.
    correlation : float
        Within clusters, of the working model.
    draws, seed : int

    Returns
    -------
    float
        Multiplies the standard error; about t's quantile with G - 1 degrees of freedom, larger when few
        families carry the slope, never below the normal quantile (where one family outweighs the rest the
        jackknife error is far too large, and the simulation would shrink it on the working model's word).

    Examples
    --------
    >>> days = np.repeat(np.arange(20.0), 2)
    >>> round(critical_value(days, np.repeat(np.arange(20), 2), np.ones(40)), 1)
    2.2
    """
    # Only how far each cluster moves the slope matters, so errors are drawn once and mapped linearly.
    influence, own = _influences(days, codes, information)
    rng = np.random.default_rng(seed)
    groups = int(codes.max()) + 1
    noise = np.sqrt(correlation) * rng.standard_normal((groups, draws))[codes]
    noise += np.sqrt(1 - correlation) * rng.standard_normal((len(days), draws))
    noise /= np.sqrt(np.maximum(information, MIN_INFORMATION))[:, None]
    variance = np.sum((influence @ noise) ** 2, axis=0) * (groups - 1) / groups
    law = law_ratio * variance.mean()
    error = own @ noise + np.sqrt(law) * rng.standard_normal(draws)
    simulated = float(np.quantile(np.abs(error) / np.sqrt(variance + law), level))
    return max(simulated, float(stats.norm.ppf(0.5 + level / 2)))


def _influences(days: Array, codes: Array, information: Array) -> tuple[Array, Array]:
    """Linear maps from errors to (b_-g - b) for each cluster, shape (G, n), and to b - beta, shape (n,)."""
    groups = int(codes.max()) + 1
    keep = np.vstack([np.ones(len(days), dtype=bool), codes != np.arange(groups)[:, None]])
    weights = keep * np.maximum(information, MIN_INFORMATION)
    centre = (weights * days).sum(axis=1, keepdims=True) / weights.sum(axis=1, keepdims=True)
    lever = weights * (days - centre)
    slopes = lever / np.maximum((lever * (days - centre)).sum(axis=1, keepdims=True), 1e-300)
    return slopes[1:] - slopes[0], slopes[0]
