r"""A pace that may change: ln density along a curve whose slope is a random walk, and what it was when.

.. math::
    \ln\rho^*_i &= f(t_i) + u_{family(i)} + v_{maker(i)} + \sigma e_i, \quad e_i \sim t_4 \\
    f(t) &= a + s\,t + \sum_k \omega_k (t - t_k)_+, \quad \omega_k \sim N(0, \tau^2 / 12)

Knots t_k stand a month apart; rows beyond the reference are known only as limits. The scale tau of the walk is
estimated, with a half-normal prior; :data:`PRIORS` are three of them, and what they change is part of the result. A
constant pace is the special case tau = 0. Errors of reference and abilities come in as draws of ln density, one per
sweep.

Source: own; the random walk of a slope is the local linear trend of Harvey (1989), here in the truncated-line basis.
The scale of the walk takes Metropolis steps with all coefficients integrated out, the other scales non-centred steps
(Fruehwirth-Schnatter and Wagner 2010) and centred ones (Yu and Meng 2011); the Student errors are scale mixtures
(Geweke 1993), and limits are filled in (Chib 1992).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from scipy.linalg.lapack import dtrtrs
from scipy.sparse import csr_array

from densing.core import Array, Card, FitError, Readable, formatting, listing_of
from densing.scores.trend.data import DAYS_PER_MONTH, DAYS_PER_YEAR, EPOCH, Slope, TrendData, doubling_months

LN2 = math.log(2)
PRIORS: Mapping[str, float] = {"stiff": 2.0, "usual": 4.0, "loose": 8.0}
"""Half-normal scales of tau, in doublings per year that the pace may move within a year."""
FREEDOM = 4.0
CHAINS, SWEEPS, BURN = 8, 500, 150
# Steps of the sampler: of ln tau (standard deviation), and how often scales stretch in a sweep.
WALK_STEP, STRETCHES = 0.8, 3
MIN_OBSERVED = 5
# Weak priors: a pace of 10 doublings per year, a level of 10 and shared effects of 1.5 (ln density) are one standard
# deviation; the variance of single models is inverse-gamma around 0.3.
PACE_SD, LEVEL_SD, SHARED_SD = 10 * LN2, 10.0, 1.5
ERROR_PRIOR = (1.0, 0.3)
SURE, LIKELY = 0.975, 0.9
"""Shares of the draws from which on a change of pace is said, and called probable."""


@dataclass(frozen=True, repr=False)
class PaceFit(Readable):
    """The pace of density over time, as draws.

    Parameters
    ----------
    knots : array, shape (K + 1,)
        Days since 2023-02-24 at which the pace may change, from the first release to the last.
    level : array, shape (R,)
        ln density of a typical model at the first release.
    slopes : array, shape (R, K)
        Slope of ln density per day between knots.
    scales : pandas.DataFrame
        Draws of ``walk`` (doublings per year in a year), ``family``, ``maker`` and ``error`` (ln density).
    prior : str
        Of :data:`PRIORS`.
    interval : float
        Level of all intervals.
    models, families : int
        Behind the fit.

    See Also
    --------
    fit_pace

    Examples
    --------
    >>> from densing.scores.trend.coverage import Scenario, simulate
    >>> fit = fit_pace(simulate(Scenario(doubling_months=3.5), seed=4), sweeps=100, burn=50)
    >>> fit.table().columns.tolist()
    ['date', 'months', 'lo', 'hi', 'per_year', 'per_year_lo', 'per_year_hi']
    """

    knots: Array
    level: Array
    slopes: Array
    scales: pd.DataFrame
    prior: str
    interval: float
    models: int
    families: int

    def curve(self, days: Any) -> Array:
        """Return draws of ln density of a typical model, shape (R, n), at days since 2023-02-24.

        Before the first and after the last release the pace is constant.
        """
        at = np.atleast_1d(np.asarray(days, dtype=float))
        heights = np.column_stack([self.level, self.level[:, None] + np.cumsum(self.slopes * np.diff(self.knots), 1)])
        part = np.clip(np.searchsorted(self.knots, at, side="right") - 1, 0, self.slopes.shape[1] - 1)
        return np.asarray(heights[:, part] + self.slopes[:, part] * (at - self.knots[part]))

    def mean_slope(self, since: float, until: float) -> Array:
        """Return draws of the mean slope of ln density per day between two days, shape (R,)."""
        ends = self.curve([since, until])
        return np.asarray((ends[:, 1] - ends[:, 0]) / (until - since))

    def slope(self, draws: Array) -> Slope:
        """Return draws of a slope as an estimate with its interval."""
        tail = (1 - self.interval) / 2
        low, middle, high = (float(value) for value in np.quantile(draws, [tail, 0.5, 1 - tail]))
        centre = float(self.knots[[0, -1]].mean())
        intercept = float(np.median(self.curve(centre))) - middle * centre
        return Slope(middle, low, high, intercept, self.models, self.families, "posterior of a varying pace", 0)

    @cached_property
    def window(self) -> Slope:
        """The mean pace from the first release to the last."""
        return self.slope(self.mean_slope(self.knots[0], self.knots[-1]))

    @cached_property
    def last_year(self) -> Slope:
        """The mean pace of the last twelve months up to the newest release; of the whole window if that is shorter."""
        return self.slope(self.last_year_draws)

    def window_draws(self, count: int) -> Array:
        """Return ``count`` draws of the window's mean slope per day, evenly spaced over all."""
        return self.mean_slope(self.knots[0], self.knots[-1])[self.picks(count)]

    @property
    def last_year_draws(self) -> Array:
        """Draws of the mean slope per day over the last twelve months, shape (R,)."""
        return self.mean_slope(self.year_ago, self.knots[-1])

    def picks(self, count: int) -> Array:
        """Return ``count`` evenly spaced positions among the draws."""
        return np.linspace(0, len(self.level) - 1, count).round().astype(int)

    @property
    def year_ago(self) -> float:
        """Day a year before the last release, or the first release where that is later."""
        return max(float(self.knots[0]), float(self.knots[-1]) - DAYS_PER_YEAR)

    @cached_property
    def growing(self) -> float:
        """Probability that density grew over the last twelve months."""
        return float(np.mean(self.last_year_draws > 0))

    @cached_property
    def slower(self) -> float:
        """Probability that the last twelve months were slower than the time before; NaN where there is none."""
        if self.year_ago <= self.knots[0]:
            return math.nan
        return float(np.mean(self.last_year_draws < self.mean_slope(self.knots[0], self.year_ago)))

    def table(self) -> pd.DataFrame:
        """Return the pace by month: ``date, months, lo, hi`` (of doubling), and in doublings per year the same."""
        tail = (1 - self.interval) / 2
        low, middle, high = np.quantile(self.slopes, [tail, 0.5, 1 - tail], axis=0)
        middays = (self.knots[:-1] + self.knots[1:]) / 2
        yearly = DAYS_PER_YEAR / LN2
        return pd.DataFrame(
            {
                "date": EPOCH + pd.to_timedelta(middays, unit="D").round("D"),
                "months": [doubling_months(float(value)) for value in middle],
                "lo": [doubling_months(float(value)) for value in high],
                "hi": [doubling_months(float(value)) for value in low],
                "per_year": middle * yearly,
                "per_year_lo": low * yearly,
                "per_year_hi": high * yearly,
            }
        )

    def card(self) -> Card:
        """Return the card: both means, the scale of the random walk, and the pace by month."""
        walk = self.scales["walk"].quantile([0.025, 0.5, 0.975]).tolist()
        facts = {
            "window": _text(self.window),
            "last twelve months": _text(self.last_year),
            "walk": f"{walk[1]:.1f} doublings per year in a year ({walk[0]:.1f} to {walk[2]:.1f})",
        }
        title = f"Pace of {formatting.plural(self.models, 'model')}"
        return Card(title, facts, listing_of(title, self.table()))


def _text(slope: Slope) -> str:
    low, high = slope.doubling_interval
    upper = f"{high:.1f}" if math.isfinite(high) else "none"
    middle = f"{slope.doubling_months:.1f}" if math.isfinite(slope.doubling_months) else "none"
    return f"{middle} months ({low:.1f} to {upper})" if math.isfinite(low) else "no doubling"


def fit_pace(
    data: TrendData,
    level: float = 0.95,
    *,
    prior: str = "usual",
    seed: int = 0,
    chains: int = CHAINS,
    sweeps: int = SWEEPS,
    burn: int = BURN,
) -> PaceFit:
    """Fit a pace that may change.

    Parameters
    ----------
    data : TrendData
        At least five observed rows, from two families, over more than two months.
    level : float
        Of all intervals.
    prior : {"usual", "stiff", "loose"}
        How much the pace may change, see :data:`PRIORS`.
    seed : int
    chains, sweeps, burn : int
        Chains run side by side; each sweep after ``burn`` gives a draw.

    Raises
    ------
    FitError
        When the data cannot carry a pace.

    Examples
    --------
    >>> from densing.scores.trend.coverage import Scenario, simulate
    >>> fit = fit_pace(simulate(Scenario(doubling_months=3.5), seed=4), sweeps=100, burn=50)
    >>> fit.window.lo < 0.0065 < fit.window.hi
    True
    """
    # The sampler loads for half a second, and a pace that was kept does without.
    from densing.scores.joint import truncated

    data = data.ordered()
    observed, families = int(data.observed.sum()), len(np.unique(data.family))
    span = float(np.ptp(data.days)) / DAYS_PER_MONTH if len(data) else 0.0
    if observed < MIN_OBSERVED or families < 2 or span <= 2:
        raise FitError(
            f"pace: {formatting.plural(observed, 'observed model')} of "
            f"{formatting.plural(families, 'family', 'families')} over {span:.1f} months; {MIN_OBSERVED} of two "
            "families over more than two months are needed; widen the window"
        )
    rng = np.random.default_rng([seed, 7])
    first, last = float(data.days.min()), float(data.days.max())
    knots = np.linspace(first, last, max(2, round((last - first) / DAYS_PER_MONTH)) + 1)
    years = (data.days - first) / DAYS_PER_YEAR
    bends = np.maximum(years[:, None] - (knots[1:-1] - first) / DAYS_PER_YEAR, 0.0)
    groups = [data.clusters("family")]
    if data.organisation is not None:
        makers = data.clusters("organisation")
        # Makers of one family each have no effect of their own.
        if makers.max() < groups[0].max():
            groups.append(makers)
    shared = [np.eye(int(codes.max()) + 1)[codes] for codes in groups]
    # Columns: level and slope, then blocks whose standard normal coefficients share a scale.
    blocks = [bends * (LN2 / math.sqrt(12)), *shared]
    fixed = np.column_stack([np.ones(len(years)), years - years.mean()])
    design = np.column_stack([fixed, *blocks])
    ends = 2 + np.cumsum([0, *(block.shape[1] for block in blocks)])
    spread = np.array([PRIORS[prior], *(SHARED_SD for _ in shared)])
    ridge = np.concatenate([[LEVEL_SD**-2, PACE_SD**-2], np.ones(design.shape[1] - 2)])
    # A row has one family and one maker: of the products of two columns, summed in the gram matrix, few are not 0.
    width = design.shape[1]
    below = np.tril_indices(width)
    columns = csr_array(design.T)
    products = (columns[below[0]] * columns[below[1]]).tocsr()
    # Where in the lower triangle each entry of the matrix lies; the upper one is not read.
    place = np.zeros((width, width), np.intp)
    place[below] = np.arange(len(below[0]))
    values = data.draws if data.draws is not None else data.law_draws
    n, floor, ceiling = len(data), data.limits[:, 0], data.limits[:, 1]

    scales = np.full((chains, len(blocks)), 0.5)
    variance, weights = np.full(chains, 0.5), np.ones((chains, n))
    y = np.tile(data.log_density, (chains, 1))
    mean = y.mean(axis=1, keepdims=True) + np.zeros((chains, n))
    kept: list[tuple[Array, ...]] = []
    for sweep in range(burn + sweeps):
        seen, flags = data.log_density, data.censor
        if values is not None and len(values) > 1:
            seen = np.clip(values[rng.integers(len(values), size=chains)], floor, ceiling)
            flags = (seen >= ceiling - 1e-9).astype(int) - (seen <= floor + 1e-9).astype(int)
        seen, flags = np.broadcast_to(seen, (chains, n)), np.broadcast_to(flags, (chains, n))
        # Student errors: rows far from the curve weigh less; limits take a value beyond them.
        deviation = np.sqrt(variance[:, None] / weights)
        beyond = flags != 0
        y = np.where(beyond, y, seen)
        if beyond.any():
            low = np.where(flags > 0, seen, -np.inf)[beyond]
            high = np.where(flags < 0, seen, np.inf)[beyond]
            y[beyond] = truncated(mean[beyond], deviation[beyond], low, high, rng)
        weights = rng.gamma((FREEDOM + 1) / 2, 2 / (FREEDOM + (y - mean) ** 2 / variance[:, None]))
        precision = weights / variance[:, None]
        # Level, slope, bends, families and makers together, given their scales; how far the pace moves with all of
        # them integrated out, since it is known too loosely to be drawn given the bends.
        gram = np.take(np.ascontiguousarray((products @ precision.T).T), place, axis=1)
        moment = (precision * y) @ design
        scales = np.abs(scales)
        trial = scales.copy()
        trial[:, 0] *= np.exp(WALK_STEP * rng.standard_normal(chains))
        here, there = (_marginal(gram, moment, part, ends, ridge) for part in (scales, trial))
        ratio = there[2] - here[2] - 0.5 * (trial[:, 0] ** 2 - scales[:, 0] ** 2) / spread[0] ** 2
        ratio += np.log(trial[:, 0] / scales[:, 0])
        taken = np.log(rng.random(chains)) < ratio
        scales = np.where(taken[:, None], trial, scales)
        noisy = np.where(taken[:, None], there[1], here[1])
        noisy += rng.standard_normal(noisy.shape)
        factor = (there[0][chain] if new else here[0][chain] for chain, new in enumerate(taken))
        standard = np.stack([dtrtrs(f.T, v)[0] for f, v in zip(factor, noisy, strict=True)])
        # A scale up and its coefficients down, the effects as they are: where these are well known, scales move by it.
        for b, (start, end) in enumerate(pairwise(ends)):
            for _ in range(STRETCHES):
                stretch = rng.standard_normal(chains) * 1.7 / math.sqrt(2 * (end - start))
                squares = (standard[:, start:end] ** 2).sum(axis=1)
                ratio = -0.5 * (scales[:, b] / spread[b]) ** 2 * np.expm1(2 * stretch)
                ratio -= 0.5 * squares * np.expm1(-2 * stretch) + stretch * (end - start - 1)
                stretch = np.where(np.log(rng.random(chains)) < ratio, stretch, 0.0)
                scales[:, b] *= np.exp(stretch)
                standard[:, start:end] *= np.exp(-stretch)[:, None]
        # The scales given the standard normal coefficients: a regression of few columns, all together.
        parts = np.stack([standard[:, a:b] @ design[:, a:b].T for a, b in pairwise(ends)], -1)
        base = standard[:, :2] @ fixed.T
        small = (parts * precision[..., None]).swapaxes(1, 2) @ parts + np.diag(spread**-2.0)
        towards = ((parts * (precision * (y - base))[..., None]).sum(axis=1))[..., None]
        root = np.linalg.cholesky(small)
        scales = np.linalg.solve(small, towards + root @ rng.standard_normal(towards.shape))[..., 0]
        mean = base + (parts * scales[:, None, :]).sum(axis=-1)
        shape, rate = ERROR_PRIOR
        squares = (weights * (y - mean) ** 2).sum(axis=1)
        variance = (rate + squares / 2) / rng.gamma(shape + n / 2, size=chains)
        if sweep >= burn:
            walk = standard[:, ends[0] : ends[1]] * scales[:, :1] * (LN2 / math.sqrt(12))
            pace = standard[:, [1]] + np.column_stack([np.zeros(chains), np.cumsum(walk, axis=1)])
            start = standard[:, 0] - standard[:, 1] * years.mean()
            kept.append((start, pace / DAYS_PER_YEAR, np.abs(scales), np.sqrt(variance)))
    start, slopes, widths, error = (np.concatenate(part) for part in zip(*kept, strict=True))
    names = ["walk", "family", "maker"][: len(blocks)]
    frame = pd.DataFrame(widths, columns=names).assign(error=error)
    return PaceFit(knots, start, slopes, frame, prior, level, n, families)


def _marginal(gram: Array, moment: Array, scales: Array, ends: Array, ridge: Array) -> tuple[Array, Array, Array]:
    """Return the factor L, L^-1 r and the marginal log density of the data given scales.

    The posterior precision of the standard normal coefficients is L L^T, their information vector r. Only the lower
    triangle of ``gram`` is read.
    """
    chains, width = len(scales), len(ridge)
    size = np.ones((chains, width))
    for b, (start, end) in enumerate(pairwise(ends)):
        size[:, start:end] = scales[:, [b]]
    matrix = gram * size[:, :, None]
    matrix *= size[:, None, :]
    matrix[:, range(width), range(width)] += ridge
    factor = np.linalg.cholesky(matrix)
    half = np.stack([dtrtrs(f.T, v, trans=1)[0] for f, v in zip(factor, moment * size, strict=True)])
    diagonal = np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
    return factor, half, 0.5 * (half**2).sum(axis=1) - diagonal
