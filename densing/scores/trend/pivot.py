"""How far a jackknife t may stray: its critical value for this very set of dates and families.

The jackknife variance of a slope rests on few, unequal families, so (estimate - truth) / standard error
follows no t table exactly. Its distribution under a working model (normal, equally correlated within
families) depends only on dates, families and how much each row is worth, all of which are known; so it is
simulated.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from densing.core import Array

WORKING_CORRELATION = 0.5
"""Correlation within a family assumed for the critical value (from 0 to 0.8 it moves by about 1-3 %)."""
MIN_INFORMATION = 1e-6


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
