"""Difference and ratio of two means of correlated observations, with bootstrap intervals; numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MAX_CORRELATION = 0.95
_BLOCK = 1 << 22
"""Numbers drawn at a time: memory stays bounded for runs of any length."""


class Estimate(NamedTuple):
    """A difference other − base and a ratio other/base, with intervals; the ratio None where a mean is not above 0."""

    difference: float
    low: float
    high: float
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    correlation: float


class _Draws(NamedTuple):
    """Resampled means and variances of the mean, each (draws,)."""

    mean: Floats
    variance: Floats


def compare_means(columns: Sequence[tuple[Floats, Floats]], *, level: float, draws: int, seed: int) -> list[Estimate]:
    """Compare pairs of samples; the same steps are drawn for every pair.

    Parameters
    ----------
    columns : sequence of (float64 (n,), float64 (m,))
        Base and other, by metric; all with the same n and m, 2 or more.
    level : float
    draws, seed : int

    Returns
    -------
    list of Estimate
    """
    if not columns:
        return []
    base = np.stack([pair[0] for pair in columns])
    other = np.stack([pair[1] for pair in columns])
    generator = np.random.default_rng(seed)
    drawn = [_resample(sample, draws, generator) for sample in (base, other)]
    return [
        _estimate(a, b, _Draws(*(part[row] for part in drawn[0])), _Draws(*(part[row] for part in drawn[1])), level)
        for row, (a, b) in enumerate(columns)
    ]


def lag_one(*samples: Floats) -> float:
    """Return the lag-1 autocorrelation of samples in order of time, pooled, corrected for bias, in [0, 0.95].

    .. math:: r = \\frac{\\sum (x_t - \\bar x)(x_{t+1} - \\bar x)}{\\sum (x_t - \\bar x)^2}, \\quad
              \\rho = r + (1 + 3 r)/n

    with n the mean length of the samples.

    Notes
    -----
    Source: bias −(1 + 3ρ)/n of the sample autocorrelation with unknown mean, Marriott and Pope (1954), recalled.

    Examples
    --------
    >>> lag_one(np.array([1.0, -1.0, 1.0, -1.0])), round(lag_one(np.arange(100.0)), 2)
    (0.0, 0.95)
    """
    centred = [sample - sample.mean() for sample in samples]
    total = sum(float((part**2).sum()) for part in centred)
    if total == 0:
        return 0.0
    raw = sum(float((part[1:] * part[:-1]).sum()) for part in centred) / total
    mean_length = sum(map(len, samples)) / len(samples)
    return min(max(raw + (1 + 3 * raw) / mean_length, 0.0), MAX_CORRELATION)


def _resample(samples: Floats, draws: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
    """Return means and variances of the mean, (metrics, draws), of resampled steps."""
    size = samples.shape[1]
    means, variances = (np.empty((len(samples), draws)) for _ in range(2))
    block = max(1, _BLOCK // size)
    for begin in range(0, draws, block):
        index = generator.integers(0, size, (min(block, draws - begin), size))
        for row, sample in enumerate(samples):
            drawn = sample[index]
            part = slice(begin, begin + len(index))
            means[row, part] = drawn.mean(axis=1)
            variances[row, part] = drawn.var(axis=1, ddof=1) / size
    return means, variances


def _estimate(base: Floats, other: Floats, a: _Draws, b: _Draws, level: float) -> Estimate:
    means = float(base.mean()), float(other.mean())
    squares = base.var(ddof=1) / len(base), other.var(ddof=1) / len(other)
    correlation = lag_one(base, other)
    wider = np.sqrt((1 + correlation) / (1 - correlation))
    difference = means[1] - means[0]
    quantile = _quantile(b.mean - a.mean - difference, a.variance + b.variance, level)
    reach = float(quantile * np.sqrt(squares[0] + squares[1]) * wider)
    ratio = _ratio(means, squares, a, b, level, float(wider))
    return Estimate(difference, difference - reach, difference + reach, *ratio, correlation)


def _ratio(
    means: tuple[float, float], squares: tuple[float, float], a: _Draws, b: _Draws, level: float, wider: float
) -> tuple[float | None, float | None, float | None]:
    """Return the ratio of means with its interval, from the bootstrap-t of its logarithm."""
    if min(means) <= 0:
        return None, None, None
    ratio = means[1] / means[0]
    good = (a.mean > 0) & (b.mean > 0)
    middle = np.log(ratio)
    drawn = np.log(b.mean[good] / a.mean[good]) - middle
    variance = a.variance[good] / a.mean[good] ** 2 + b.variance[good] / b.mean[good] ** 2
    error = np.sqrt(squares[0] / means[0] ** 2 + squares[1] / means[1] ** 2)
    reach = _quantile(drawn, variance, level) * error * wider
    # Beyond this a ratio says nothing, and its exponential would overflow.
    if reach > np.log(1e6):
        return ratio, None, None
    return ratio, float(np.exp(middle - reach)), float(np.exp(middle + reach))


def _quantile(distance: Floats, variance: Floats, level: float) -> float:
    """Return the quantile of |distance|/√variance over the resamples that vary; 0 if none does."""
    varied = variance > 0
    return float(np.quantile(np.abs(distance[varied]) / np.sqrt(variance[varied]), level)) if varied.any() else 0.0
