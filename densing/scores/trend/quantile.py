"""The 0.9 quantile line: a frontier that uses every model and knows about limits.

With two coefficients the best line of a quantile regression passes through two of the points, so trying
every pair finds the exact optimum, and the losses of all pairs serve all bootstrap resamples at once as one
matrix product. The same search gives Powell's censored version, whose loss is not convex.
"""

from __future__ import annotations

import numpy as np

from densing.core import Array
from densing.scores.trend.data import TrendData
from densing.scores.trend.slopes import Slope, not_estimable

LABEL = "0.9 quantile regression (Powell, limits respected), pairs-cluster bootstrap"
MIN_ROWS = 5
MAX_CELLS = 20_000_000
TIE = 1e-10
"""Losses this close are equal; where q n is whole the best line is not unique, and the slowest is taken."""


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
    seen = data.observed
    if seen.sum() < MIN_ROWS or np.ptp(data.days[seen]) == 0:
        reason = f"{int(seen.sum())} observed rows, at least {MIN_ROWS} on two dates needed"
        return not_estimable("quantile-0.9", LABEL, reason, len(data), groups, 0)
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(groups, np.full(groups, 1 / groups), size=bootstrap)
    weights = np.vstack([np.ones(len(data)), counts[:, codes]])
    slopes, intercepts = quantile_lines(data.days, data.log_density, data.limits, weights, q)
    usable = slopes[1:][_spans_dates(data.days, weights[1:])]
    lo, hi = np.quantile(usable, [(1 - level) / 2, (1 + level) / 2]) if len(usable) > 1 else (np.nan, np.nan)
    return Slope(
        f"quantile-{q:g}",
        LABEL,
        float(slopes[0]),
        float(lo),
        float(hi),
        float(intercepts[0]),
        len(data),
        groups,
        "pairs-cluster bootstrap",
        0,
    )


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


def _spans_dates(days: Array, weights: Array) -> Array:
    """Resamples that hold at least two distinct dates."""
    low = np.where(weights > 0, days, np.inf).min(axis=1)
    high = np.where(weights > 0, days, -np.inf).max(axis=1)
    return np.asarray(high > low)
