"""The record-setters of a series: the paper's frontier, kept as a replication and as a warning.

A model sets a record when its density beats every earlier one. A line through the records is the regression
behind eq. 5 of arXiv 2412.04315 as usually read; it is biased fast, since even a series without any trend
has rising records. :func:`record_setter_bias` measures by how much.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from densing.core import Array
from densing.scores.trend.data import Slope, TrendData, doubling_months

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
    # By date, the best of a date first: a row sets a record when it beats all that stand before it.
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
    # Least squares by sums over the records alone, so that every series of the batch may have its own number of them.
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
    observed = data.take(data.observed)
    keep = record_mask(observed.days, observed.log_density) if len(observed) else np.zeros(0, dtype=bool)
    return _classical(observed.days[keep], observed.log_density[keep], level, len(data) - len(observed))


def running_max(data: TrendData, level: float = 0.95) -> Slope:
    """Ordinary least squares through the running maximum at every distinct release date.

    Source: the other reading of eq. 5 of arXiv 2412.04315, where rho_max is a step function of time.
    """
    observed = data.take(data.observed)
    dates, inverse = np.unique(observed.days, return_inverse=True)
    best = np.full(len(dates), -np.inf)
    np.maximum.at(best, inverse, observed.log_density)
    steps = np.maximum.accumulate(best) if len(best) else best
    return _classical(dates, steps, level, len(data) - len(observed))


def _classical(days: Array, values: Array, level: float, dropped: int) -> Slope:
    n = len(days)
    if n < MIN_RECORDS:
        return Slope.missing(f"{n} points, at least {MIN_RECORDS} needed", n, n, dropped)
    fit = stats.linregress(days, values)
    error = fit.stderr if np.isfinite(fit.stderr) else 0.0  # undefined correlation: a constant maximum
    half = stats.t.ppf(0.5 + level / 2, n - 2) * error
    slope = float(fit.slope)
    return Slope(slope, slope - half, slope + half, float(fit.intercept), n, n, "classical t", dropped)


def simulate_envelope(
    days: Array, sd: float, *, slope: float = 0.0, draws: int = 2000, seed: int = 0
) -> tuple[Array, Array]:
    """Draw independent normal series at given dates and return their record-setter slopes and R².

    ln rho_i = slope t_i + sd e_i.

    Source: the simulation of the project's design notes on the Densing Law (29 dates over 590 days, sd 1).

    Parameters
    ----------
    days : array, shape (n,) or (draws, n)
    sd, slope : float
    draws, seed : int

    Returns
    -------
    slopes, r2 : arrays
        Of the draws with at least three records.

    Examples
    --------
    >>> slopes, _ = simulate_envelope(np.linspace(0, 590, 29), 1.0, draws=500)
    >>> bool(np.median(slopes) > 0.004)  # no trend went in
    True
    """
    rng = np.random.default_rng([seed, 3])
    values = slope * days + sd * rng.standard_normal((draws, np.shape(days)[-1]))
    slopes, r2, _ = envelope_slopes(days, values)
    finite = np.isfinite(slopes)
    return slopes[finite], r2[finite]


@dataclass(frozen=True)
class EnvelopeWithoutTrend:
    """What the envelope reads where density does not grow at all.

    Parameters
    ----------
    median_slope : float
        Per day.
    median_doubling_months : float or None
        None where the median slope is not positive.
    slope_05, slope_95 : float
        5 and 95 % points.
    median_r2 : float
    share_at_least_observed : float or None
        Share of series without trend whose envelope is at least as steep as the real one; None without a real one.
    """

    median_slope: float
    median_doubling_months: float | None
    slope_05: float
    slope_95: float
    median_r2: float
    share_at_least_observed: float | None


@dataclass(frozen=True)
class EnvelopeOfHeadline:
    """What the envelope reads, in the median, when the headline is true; None where there is no doubling."""

    true_doubling_months: float | None
    median_doubling_months: float | None


@dataclass(frozen=True, kw_only=True)
class RecordSetterBias:
    """The envelope's bias on a data set's own dates.

    Parameters
    ----------
    n, draws : int
        Observed models, and simulated series of as many.
    residual_sd : float, optional
        Of the series, around their line; None where no series had three records.
    no_trend : EnvelopeWithoutTrend or None
    with_trend : EnvelopeOfHeadline or None
    """

    n: int
    draws: int
    residual_sd: float | None = None
    no_trend: EnvelopeWithoutTrend | None
    with_trend: EnvelopeOfHeadline | None


def record_setter_bias(
    data: TrendData, sd: float, slope: float, observed: float, *, draws: int = 2000, seed: int = 0
) -> RecordSetterBias:
    """Measure the envelope's bias on this data set's own dates.

    Parameters
    ----------
    data : TrendData
    sd, slope : float
        Residual deviation and slope of the headline.
    observed : float
        The envelope's slope on the real data; NaN if it has none.
    draws, seed : int
    """
    days = data.days[data.observed]
    null, r2 = simulate_envelope(days, sd, draws=draws, seed=seed)
    true, _ = simulate_envelope(days, sd, slope=slope, draws=draws, seed=seed + 1)
    if len(null) == 0 or len(true) == 0:
        return RecordSetterBias(n=len(days), draws=draws, no_trend=None, with_trend=None)

    def months(pace: float) -> float | None:
        doubling = doubling_months(pace)
        return doubling if np.isfinite(doubling) else None

    low, middle, high = (float(value) for value in np.quantile(null, [0.05, 0.5, 0.95]))
    reached = float(np.mean(null >= observed)) if np.isfinite(observed) else None
    return RecordSetterBias(
        n=len(days),
        draws=draws,
        residual_sd=sd,
        no_trend=EnvelopeWithoutTrend(middle, months(middle), low, high, float(np.median(r2)), reached),
        with_trend=EnvelopeOfHeadline(months(slope), months(float(np.median(true)))),
    )
