"""Would shuffled release dates give as steep a trend?"""

from __future__ import annotations

from typing import Any

import numpy as np

from densing.core import Array
from densing.scores.trend.data import TrendData
from densing.scores.trend.envelopes import envelope_slopes
from densing.scores.trend.slopes import DAYS_PER_YEAR, doubling_months
from densing.scores.trend.tobit import fit_tobit

BLOCKS = "headline_family_blocks"
"""The test to read: the others break the ties within families or rest on record-setters."""


def permutation_test(
    data: TrendData, *, cluster: str = "family", permutations: int = 999, seed: int = 0
) -> dict[str, Any]:
    """Compare the envelope's and the headline's slope with those of shuffled release dates.

    p = (1 + number of shuffles with a slope at least as large) / (1 + shuffles), one-sided.

    Models shuffled one by one break the ties within families, which makes a trend look more certain than it
    is; the block shuffle exchanges the dates of whole families and keeps the spacing inside each.

    Parameters
    ----------
    data : TrendData
    cluster : {"family", "organisation", "model"}
    permutations, seed : int

    Returns
    -------
    dict
        ``envelope``, ``headline`` and ``headline_family_blocks``: p, slope, null_median_slope,
        null_median_doubling_months and null_slopes (six digits); None where not computable.
    """
    rng = np.random.default_rng([seed, 2])
    identity = np.arange(len(data))
    orders = np.vstack([identity, rng.permuted(np.tile(identity, (permutations, 1)), axis=1)])
    return {
        "permutations": permutations,
        "envelope": _verdict(_envelope_null(data, permutations, rng)),
        "headline": _verdict(_tobit_slopes(data, data.days[orders])),
        BLOCKS: _verdict(_tobit_slopes(data, block_shuffles(data.days, data.clusters(cluster), permutations, rng))),
    }


def block_shuffles(days: Array, codes: Array, count: int, rng: np.random.Generator) -> Array:
    """Shuffle the mean dates of clusters, keeping the offsets inside each; row 0 is unshuffled.

    Examples
    --------
    >>> days, codes = np.array([0.0, 2.0, 10.0]), np.array([0, 0, 1])
    >>> block_shuffles(days, codes, 20, np.random.default_rng(0)).max(axis=0).tolist()
    [9.0, 11.0, 10.0]
    """
    anchors = np.bincount(codes, weights=days) / np.bincount(codes)
    order = np.arange(len(anchors))
    orders = np.vstack([order, rng.permuted(np.tile(order, (count, 1)), axis=1)])
    return np.asarray(days + (anchors[orders] - anchors)[:, codes])


def _envelope_null(data: TrendData, permutations: int, rng: np.random.Generator) -> Array:
    seen = data.take(data.observed)
    identity = np.arange(len(seen))
    orders = np.vstack([identity, rng.permuted(np.tile(identity, (permutations, 1)), axis=1)])
    return envelope_slopes(seen.days, seen.log_density[orders])[0]


def _tobit_slopes(data: TrendData, days: Array) -> Array:
    """Tobit slopes per day for many sets of dates (B, n)."""
    years = (days - data.days.mean()) / DAYS_PER_YEAR
    design = np.stack([np.ones_like(years), years], axis=-1)
    fit = fit_tobit(design, data.log_density, data.censor)
    return np.asarray(np.where(fit.converged, fit.beta[:, 1], np.nan) / DAYS_PER_YEAR)


def _verdict(slopes: Array) -> dict[str, Any]:
    """Judge the first slope by the others."""
    observed, null = float(slopes[0]), slopes[1:][np.isfinite(slopes[1:])]
    if not np.isfinite(observed) or len(null) == 0:
        names = ("p", "slope", "null_median_slope", "null_median_doubling_months")
        return {**dict.fromkeys(names), "null_slopes": []}
    reached = int(np.sum(null >= observed * (1 - 1e-12) if observed > 0 else null >= observed))
    middle = float(np.median(null))
    doubling = doubling_months(middle)
    return {
        "p": (1 + reached) / (1 + len(null)),
        "slope": observed,
        "null_median_slope": middle,
        "null_median_doubling_months": doubling if np.isfinite(doubling) else None,
        "null_slopes": [float(f"{value:.6g}") for value in null],
    }
