"""The record-setters of a series: the paper's frontier, kept as a replication and as a warning.

A model sets a record when its density beats every earlier one. A line through the records is the regression
behind eq. 5 of arXiv 2412.04315 as usually read; it is biased fast, since even a series without any trend
has rising records.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from densing.core import Array
from densing.scores.trend.data import TrendData
from densing.scores.trend.slopes import Slope, not_estimable

ENVELOPE_LABEL = "record-setters OLS (Xiao et al. replication; biased fast)"
RUNNING_LABEL = "running maximum at every release date, OLS (Xiao et al. replication, other reading)"
MIN_RECORDS = 3


def record_mask(days: Array, values: Array) -> Array:
    """Mark the rows that set a record: above every value of an earlier date, and the best of their own.

    Parameters
    ----------
    days, values : array, shape (..., n)
        Any order; leading axes are a batch.

    Returns
    -------
    array of bool, shape (..., n)

    Examples
    --------
    >>> record_mask(np.array([0, 1, 1, 2]), np.array([1.0, 2.0, 3.0, 2.5])).tolist()
    [True, False, True, False]
    """
    days, values = np.broadcast_arrays(days, values)
    order = np.lexsort((-values, days), axis=-1)
    ordered = np.take_along_axis(values, order, axis=-1)
    before = np.maximum.accumulate(ordered, axis=-1)[..., :-1]
    fresh = np.ones(ordered.shape, dtype=bool)
    fresh[..., 1:] = ordered[..., 1:] > before
    mask = np.zeros(ordered.shape, dtype=bool)
    np.put_along_axis(mask, order, fresh, axis=-1)
    return mask


def envelope_slopes(days: Array, values: Array) -> tuple[Array, Array, Array]:
    """Slope, R² and number of records of the record-setter regression, batched.

    Parameters
    ----------
    days, values : array, shape (B, n) (or (n,) for ``days``)

    Returns
    -------
    slope, r2, records : arrays, shape (B,)
        Slope and R² are NaN with fewer than three records.

    Examples
    --------
    >>> slope, r2, records = envelope_slopes(np.arange(4.0), np.array([[0.0, 1.0, 0.5, 3.0]]))
    >>> slope.tolist(), records.tolist()
    ([1.0], [3])
    """
    values = np.atleast_2d(values)
    days = np.broadcast_to(np.asarray(days, dtype=float), values.shape)
    keep = record_mask(days, values)
    count = keep.sum(axis=-1)
    safe = np.maximum(count, 1)[:, None]
    t = np.where(keep, days - (days * keep).sum(axis=-1, keepdims=True) / safe, 0.0)
    y = np.where(keep, values - (values * keep).sum(axis=-1, keepdims=True) / safe, 0.0)
    tt, ty, yy = (t * t).sum(axis=-1), (t * y).sum(axis=-1), (y * y).sum(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope, r2 = ty / tt, ty**2 / (tt * yy)
    few = count < MIN_RECORDS
    return np.where(few, np.nan, slope), np.where(few, np.nan, r2), count


def envelope(data: TrendData, level: float = 0.95) -> Slope:
    """Ordinary least squares through the record-setters, with the classical interval.

    ln rho_max = A t + B over the records of the running maximum.

    Source: Xiao et al., arXiv 2412.04315, eq. 5 (whether only records enter is not stated there).

    Parameters
    ----------
    data : TrendData
        Censored rows are left out.
    level : float
        Nominal level of the interval; its real coverage is far lower (see :mod:`densing.scores.trend.coverage`).
    """
    seen = data.take(data.observed)
    keep = record_mask(seen.days, seen.log_density) if len(seen) else np.zeros(0, dtype=bool)
    days, values = seen.days[keep], seen.log_density[keep]
    return _classical("envelope", ENVELOPE_LABEL, days, values, level, len(data) - len(seen))


def running_max(data: TrendData, level: float = 0.95) -> Slope:
    """Ordinary least squares through the running maximum at every distinct release date.

    Source: the other reading of eq. 5 of arXiv 2412.04315, where rho_max is a step function of time.
    """
    seen = data.take(data.observed)
    dates, inverse = np.unique(seen.days, return_inverse=True)
    best = np.full(len(dates), -np.inf)
    np.maximum.at(best, inverse, seen.log_density)
    steps = np.maximum.accumulate(best) if len(best) else best
    return _classical("running-max", RUNNING_LABEL, dates, steps, level, len(data) - len(seen))


def _classical(method: str, label: str, days: Array, values: Array, level: float, dropped: int) -> Slope:
    n = len(days)
    if n < MIN_RECORDS:
        return not_estimable(method, label, f"{n} points, at least {MIN_RECORDS} needed", n, n, dropped)
    fit = stats.linregress(days, values)
    error = fit.stderr if np.isfinite(fit.stderr) else 0.0  # undefined correlation: a constant maximum
    half = stats.t.ppf(0.5 + level / 2, n - 2) * error
    slope = float(fit.slope)
    return Slope(method, label, slope, slope - half, slope + half, float(fit.intercept), n, n, "classical t", dropped)
