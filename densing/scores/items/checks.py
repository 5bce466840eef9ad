"""What is wrong with items: solved by none or all, telling nothing, alike, off their curve, drifting by date."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats
from scipy.special import expit

from densing.core import Array
from densing.scores.items.irt import ItemCurves

GROUPS = 6
"""Groups of models by ability in which an item's curve is compared with its answers."""
FALSE_SHARE = 0.05
"""Share of false alarms among the items that are said to be off their curve, or to drift."""
LEAST_ALIKE = 15
"""Least number of right, and of wrong, answers of items that are duplicates when all models answer them alike."""
FLAGS = {
    "none_right": "no model solves it",
    "all_right": "every model solves it",
    "not_discriminating": "stronger models do not solve it more often",
    "duplicate": "all models answer it as they answer an earlier item, or its text is the same",
    "misfit": "its answers do not follow its curve",
    "drift": "newer models of the same ability solve it more often, or less",
}
"""What is said of an item; the first that applies."""


def check_items(answers: Array, curves: ItemCurves, released: Array, text_hash: Array) -> pd.DataFrame:
    """Return one row per item: answers, share, fit_p, drift_z, flag.

    fit: sum over groups of models of (right - expected)^2 / variance, chi-squared with the groups less two.
    drift: score test of a term for the date beside ability, z, positive where newer models do better.

    Parameters
    ----------
    answers : (M, J) array
        NaN where there is none.
    curves : ItemCurves
        Fitted to them.
    released : (M,) array
        Dates as numbers, NaN where unknown.
    text_hash : (J,) array of str

    Source: Yen, Applied Psychological Measurement 5 (1981) 245-262, for the test of fit by groups of ability; Benjamini
    and Hochberg, JRSS B 57 (1995) 289-300, for which items are named.
    """
    known = np.isfinite(answers)
    count = known.sum(0)
    right = np.nansum(answers, 0)
    p = expit(np.outer(curves.ability, curves.slope) + curves.intercept)
    residual = np.where(known, np.where(known, answers, 0) - p, 0.0)
    variance = np.where(known, p * (1 - p), 0.0)
    order = np.argsort(curves.ability, kind="stable")
    groups = [part for part in np.array_split(order, GROUPS) if len(part)]
    sums = np.array([residual[part].sum(0) for part in groups])
    spreads = np.array([variance[part].sum(0) for part in groups])
    # Where next to nothing is expected to go wrong, one slip would count for more than it is.
    usable = spreads > 0.5
    chi = np.where(usable, sums**2 / np.where(usable, spreads, 1), 0).sum(0)
    degrees = usable.sum(0) - 2
    fit_p = np.where(degrees > 0, stats.chi2.sf(chi, np.maximum(degrees, 1)), np.nan)
    drift_z = _drift(residual, variance, curves.ability, released)
    flag = np.full(answers.shape[1], "", dtype=object)
    flag[_named(2 * stats.norm.sf(np.abs(drift_z)))] = "drift"
    flag[_named(fit_p)] = "misfit"
    flag[_duplicates(answers, right, count, text_hash)] = "duplicate"
    flag[curves.slope <= 0] = "not_discriminating"
    flag[right == count] = "all_right"
    flag[right == 0] = "none_right"
    share = right / np.maximum(count, 1)
    return pd.DataFrame({"answers": count, "share": share, "fit_p": fit_p, "drift_z": drift_z, "flag": flag})


def _drift(residual: Array, variance: Array, ability: Array, released: Array) -> Array:
    dated = np.isfinite(released)
    if dated.sum() < 3 or np.ptp(released[dated]) == 0:
        return np.full(residual.shape[1], np.nan)
    date = np.where(dated, released - released[dated].mean(), 0.0)
    date = (date / date[dated].std())[:, None]
    weight, theta = variance * dated[:, None], ability[:, None]
    # The part of the date that neither a constant nor ability explains, each item with its own weights.
    total = np.maximum(weight.sum(0), 1e-9)
    centred = [part - (weight * part).sum(0) / total for part in (date, theta)]
    slope = (weight * centred[0] * centred[1]).sum(0) / np.maximum((weight * centred[1] ** 2).sum(0), 1e-9)
    left = centred[0] - slope * centred[1]
    spread = (weight * left**2).sum(0)
    score = (residual * dated[:, None] * left).sum(0)
    return np.where(spread > 0.5, score / np.sqrt(np.maximum(spread, 1e-9)), np.nan)


def _named(p: Array) -> Array:
    """Return which p values are significant when :data:`FALSE_SHARE` of those named may be false."""
    from statsmodels.stats.multitest import multipletests

    named = np.zeros(len(p), dtype=bool)
    known = np.isfinite(p)
    if known.any():
        named[known] = multipletests(p[known], FALSE_SHARE, "fdr_bh")[0]
    return named


def _duplicates(answers: Array, right: Array, count: Array, text_hash: Array) -> Array:
    columns = pd.Series([column.tobytes() for column in np.ascontiguousarray(np.nan_to_num(answers.T, nan=-1.0))])
    mixed = (right >= LEAST_ALIKE) & (count - right >= LEAST_ALIKE)
    texts = pd.Series(text_hash)
    repeated: Array = ((columns.duplicated() & mixed) | (texts.ne("") & texts.duplicated())).to_numpy()
    return repeated
