"""The estimators beside the headline: least squares with CRV3 errors, Theil-Sen, a mixed model, a quantile line.

The first three come from well-kept libraries. The 0.9 quantile line is a frontier that uses every model and knows about
limits. With two coefficients the best line of a quantile regression passes through two of the points, so trying every
pair finds the exact optimum, and the losses of all pairs serve all bootstrap resamples at once as one matrix product.
The same search gives Powell's censored version, whose loss is not convex.
"""

from __future__ import annotations

import warnings

import numpy as np
import statsmodels.api as sm
from scipy import stats

from densing.core import Array
from densing.scores.trend.data import DAYS_PER_YEAR, Slope, TrendData

MIN_ROWS = 3
MIN_QUANTILE_ROWS = 5
MAX_CELLS = 20_000_000
"""Of one block of lines by rows or resamples: what is in memory at a time."""
TIE = 1e-10
"""Losses this close are equal; where q n is whole the best line is not unique, and the slowest is taken."""


def ols_crv3(data: TrendData, level: float = 0.95, *, cluster: str = "family") -> Slope:
    """Ordinary least squares over all observed rows, cluster-robust with few clusters in mind.

    V = (G - 1)/G sum_g (b_-g - b)(b_-g - b)', t with G - 1 degrees of freedom.

    Source: CRV3: MacKinnon, Nielsen and Webb, J. Econometrics 232 (2023) 272-299; as in statsmodels.
    """
    observed, groups, reason = _observed(data, cluster)
    n, dropped = len(observed), len(data) - len(observed)
    if not reason and groups < 2:
        reason = f"{groups} cluster, at least 2 needed"
    if reason:
        return Slope.missing(reason, n, groups, dropped)
    model = sm.OLS(observed.log_density, sm.add_constant(observed.days / DAYS_PER_YEAR))
    try:
        fit = model.fit(cov_type="cluster-crv3", cov_kwds={"groups": observed.clusters(cluster)}, use_t=True)
        error = float(fit.bse[1]) / DAYS_PER_YEAR
    except ValueError:  # without one of the clusters no slope is left, so that the jackknife has no variance
        fit, error = model.fit(), np.inf
    slope = float(fit.params[1]) / DAYS_PER_YEAR
    half = stats.t.ppf(0.5 + level / 2, groups - 1) * error
    kind = f"CRV3, t({groups - 1})"
    return Slope(slope, slope - half, slope + half, float(fit.params[0]), n, groups, kind, dropped)


def theil_sen(data: TrendData, level: float = 0.95) -> Slope:
    """Median of the slopes of all pairs of observed rows, with the rank interval of scipy.

    Source: Sen, JASA 63 (1968) 1379-1389.
    """
    observed, _, reason = _observed(data, "model")
    n, dropped = len(observed), len(data) - len(observed)
    if reason:
        return Slope.missing(reason, n, n, dropped)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # many ties make scipy's rank variance negative: no interval then
        slope, intercept, lo, hi = stats.theilslopes(observed.log_density, observed.days, alpha=level)
    lo, hi = (lo, hi) if np.isfinite([lo, hi]).all() else (-np.inf, np.inf)
    return Slope(float(slope), float(lo), float(hi), float(intercept), n, n, "rank", dropped)


def mixed(data: TrendData, level: float = 0.95, *, cluster: str = "family") -> Slope:
    """Linear mixed model, ln rho = a + b t + u_family + e, by restricted maximum likelihood.

    Source: Laird and Ware, Biometrics 38 (1982) 963-974; as in statsmodels.
    """
    observed, groups, reason = _observed(data, cluster)
    n, dropped = len(observed), len(data) - len(observed)
    if not reason and not 2 <= groups < n:
        reason = f"{groups} clusters for {n} rows leave no family variance to estimate"
    if reason:
        return Slope.missing(reason, n, groups, dropped)
    design = sm.add_constant(observed.days / DAYS_PER_YEAR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a family variance of zero is a legitimate answer here
            fit = sm.MixedLM(observed.log_density, design, groups=observed.clusters(cluster)).fit(reml=True)
            slope, error = float(fit.fe_params[1]), float(fit.bse_fe[1])
    except (np.linalg.LinAlgError, ValueError):
        slope, error = np.nan, np.nan
    if not (np.isfinite(slope) and np.isfinite(error)):
        return Slope.missing("the fit is singular", n, groups, dropped)
    half = stats.norm.ppf(0.5 + level / 2) * error
    middle, lo, hi = (value / DAYS_PER_YEAR for value in (slope, slope - half, slope + half))
    return Slope(middle, lo, hi, float(fit.fe_params[0]), n, groups, "REML, normal", dropped)


def _observed(data: TrendData, cluster: str) -> tuple[TrendData, int, str]:
    """Observed rows, their number of clusters, and why they do not suffice (empty when they do)."""
    observed = data.take(data.observed)
    groups = len(np.unique(observed.clusters(cluster)))
    if len(observed) < MIN_ROWS:
        return observed, groups, f"{len(observed)} observed rows, at least {MIN_ROWS} needed"
    if np.ptp(observed.days) == 0:
        return observed, groups, "all observed rows share one release date"
    return observed, groups, ""


def quantile_slope(
    data: TrendData,
    level: float = 0.95,
    *,
    q: float = 0.9,
    cluster: str = "family",
    bootstrap: int = 500,
    seed: int = 0,
) -> Slope:
    """Fit the q quantile of ln(density) against days, interval by resampling whole families.

    minimise sum_i r_q( y_i - clip(a + b t_i, lo_i, hi_i) ), r_q(u) = u (q - [u < 0]).

    Source: Koenker and Bassett (1978); censored version: Powell, J. Econometrics 32 (1986) 143-155.

    Parameters
    ----------
    data : TrendData
        Censored rows enter at their limits.
    level, q : float
    cluster : {"family", "model"}
    bootstrap : int
        Resamples of clusters.
    seed : int
    """
    codes = data.clusters(cluster)
    groups = int(codes.max()) + 1 if len(data) else 0
    observed = data.observed
    if observed.sum() < MIN_QUANTILE_ROWS or np.ptp(data.days[observed]) == 0:
        reason = f"{int(observed.sum())} observed rows, at least {MIN_QUANTILE_ROWS} on two dates needed"
        return Slope.missing(reason, len(data), groups, 0)
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(groups, np.full(groups, 1 / groups), size=bootstrap)
    weights = np.vstack([np.ones(len(data)), counts[:, codes]])
    slopes, intercepts = quantile_lines(data.days, data.log_density, data.limits, weights, q)
    # A resample whose families were all released on one date has no slope.
    first = np.where(weights > 0, data.days, np.inf).min(axis=1)
    last = np.where(weights > 0, data.days, -np.inf).max(axis=1)
    usable = slopes[1:][(last > first)[1:]]
    lo, hi = np.quantile(usable, [(1 - level) / 2, (1 + level) / 2]) if len(usable) > 1 else (np.nan, np.nan)
    n, kind = len(data), "pairs-cluster bootstrap"
    return Slope(float(slopes[0]), float(lo), float(hi), float(intercepts[0]), n, groups, kind, 0)


def quantile_lines(days: Array, values: Array, limits: Array, weights: Array, q: float) -> tuple[Array, Array]:
    """Return slopes and intercepts (B,) of the exact weighted quantile lines; of equals the smallest slope.

    Parameters
    ----------
    days, values : array, shape (n,)
    limits : array, shape (n, 2)
        Ends between which a row can be seen; infinite where there are none.
    weights : array, shape (B, n)
    q : float

    Examples
    --------
    >>> days, free = np.arange(4.0), np.tile([-np.inf, np.inf], (4, 1))
    >>> quantile_lines(days, np.array([0.0, 1.0, 9.0, 3.0]), free, np.ones((1, 4)), 0.5)[0].tolist()
    [1.0]
    """
    first, second = np.triu_indices(len(days), 1)
    apart = days[first] != days[second]
    first, second = first[apart], second[apart]
    slopes = (values[second] - values[first]) / (days[second] - days[first])
    intercepts = values[first] - slopes * days[first]
    order = np.lexsort((intercepts, slopes))
    slopes, intercepts = slopes[order], intercepts[order]
    best = np.full(len(weights), np.inf)
    chosen = np.zeros(len(weights), dtype=int)
    # Lines come sorted by slope, so the first of equals is the slowest, within a block and over blocks.
    chunk = max(1, MAX_CELLS // max(len(days), len(weights)))
    for start in range(0, len(slopes), chunk):
        part = slice(start, start + chunk)
        lines = intercepts[part, None] + slopes[part, None] * days
        residual = values - np.clip(lines, limits[:, 0], limits[:, 1])
        loss = (residual * (q - (residual < 0))) @ weights.T
        least = loss.min(axis=0)
        slowest = np.argmax(loss <= least * (1 + TIE) + TIE, axis=0)
        better = least * (1 + TIE) + TIE < best
        best[better], chosen[better] = least[better], slowest[better] + start
    return slopes[chosen], intercepts[chosen]
