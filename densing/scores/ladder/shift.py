"""Ratio of tokens or sizes between an arm and plain training: one law and one ratio, fitted to both arms at once.

.. math:: \\ln L_{plain} = \\ln L(N, D; \\theta) + u + e, \\qquad
          \\ln L_{arm} = \\ln L(N, r D; \\theta) + u' + e'

u and u' are effects of a run (size and seed), which all its budgets share, e and e' those of a budget; runs of equal
size and seed share initialisation and order of blocks, so that both are correlated between the arms. The noise of all
may fall with size. A ratio of densities puts L(r N, D) in place of L(N, r D).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy import optimize, stats

from densing.core import Array, InputError
from densing.scores.fit import LawFit
from densing.scores.laws import Law

Axis = Literal["params", "tokens"]
Status = Literal["ok", "flat", "below_floor", "above_ceiling", "few_pairs", "no_change"]
FEW_CLUSTERS = 6
LIMIT = math.log(100.0)
"""Ratios beyond a hundred are not told apart: the law says nothing so far from where it was fitted."""
FLAT = 1.0
"""Half-width of a ln ratio above which the law is too flat to be inverted: the ratio is not known to a factor of e."""
NO_LOSS = 0.97
PURE = 0.05
"""Level of the test that one ratio holds for all sizes and budgets."""
SURE = 0.001
"""Level at which one ratio is so surely wrong that its interval counts no more, which costs the interval that much."""
_GRID = np.linspace(-LIMIT, LIMIT, 25)
_SLOPE, _NOTHING, _STEPS, _ROUNDS = 1e-4, 1e-12, 60, 3
_STEEP = 4.0
"""Most that the variance may change with size, as a power: residuals of few runs may say anything."""


class Noise(NamedTuple):
    """Covariances of ln losses of one run under plain training and under an arm.

    Parameters
    ----------
    run : ndarray, shape (2, 2)
        Of what all budgets of a size and seed share: plain, arm.
    budget : ndarray, shape (2, 2)
        Of each budget alone.
    slope : float
        d ln variance / d ln N; the covariances are those at the geometric mean of the sizes.
    """

    run: Array
    budget: Array
    slope: float


class Robust(NamedTuple):
    """How sure linear combinations of parameters are.

    Parameters
    ----------
    covariance : ndarray, shape (q, q)
        Of the jackknife over runs.
    expected : ndarray, shape (q, q)
        Its mean, were the weights right.
    freedom : float
        Its degrees of freedom, at least 1.
    inverse : ndarray, shape (p, p)
        Of the normal matrix: covariance of all parameters, were the weights right.
    """

    covariance: Array
    expected: Array
    freedom: float
    inverse: Array


@dataclass(frozen=True)
class Shift:
    """A ratio with its interval.

    Parameters
    ----------
    axis : {"params", "tokens"}
        Of densities, or of tokens.
    ratio : float or None
        None where the law cannot say: see ``status``. Where the ratio depends on size or tokens (``one`` is False), its
        value at the middle of the ladder, in logarithms.
    lo, hi : float or None
        Ends of the interval; None where it has none. Where the test rejects one ratio, but not at .1 %, the intervals
        of both fits together, with one ratio and with trends: one time in twenty the test errs.
    status : {"ok", "flat", "below_floor", "above_ceiling", "few_pairs", "no_change"}
        ``flat``: an end is missing, or the half-width is above a factor of e; the end that is there is a bound.
        ``below_floor`` and ``above_ceiling``: the losses are those of a hundredth, or of a hundred times, the size (or
        tokens), or beyond what any reaches. ``few_pairs``: fewer than six clusters of size and seed. ``no_change``: all
        losses are the plain ones to the last bit, so there is nothing to measure.
    trend, trend_lo, trend_hi : float or None
        d ln ratio / d ln D, and its interval; None with one budget.
    size_trend, size_trend_lo, size_trend_hi : float or None
        d ln ratio / d ln N; None with one size.
    p_value : float or None
        Of the test that one ratio holds for all sizes and budgets; None where no trend can be fitted.
    least, most : float or None
        The smallest and the largest ratio over the ladder's sizes and budgets; the ratio itself where it is one.
    least_lo, most_hi : float or None
        Lower end of the interval at the least, upper end at the most.
    pairs, clusters : int

    See Also
    --------
    fit_shift : makes it.
    """

    axis: Axis
    ratio: float | None
    lo: float | None
    hi: float | None
    status: Status
    pairs: int
    clusters: int
    trend: float | None = None
    trend_lo: float | None = None
    trend_hi: float | None = None
    size_trend: float | None = None
    size_trend_lo: float | None = None
    size_trend_hi: float | None = None
    p_value: float | None = None
    least: float | None = None
    most: float | None = None
    least_lo: float | None = None
    most_hi: float | None = None

    @property
    def one(self) -> bool:
        """Whether one ratio may stand for all sizes and budgets: the test does not reject it at 5 %."""
        return self.p_value is None or self.p_value >= PURE

    @property
    def verdict(self) -> str:
        """``yes`` or ``no``: whether one ratio may stand for all; empty where that was not tested."""
        return "" if self.p_value is None else "yes" if self.one else "no"

    @property
    def half_width(self) -> float:
        """Half the width of the interval of the ln ratio; infinite where an end is missing."""
        if self.lo is None or self.hi is None:
            return math.inf
        return (math.log(self.hi) - math.log(self.lo)) / 2

    @property
    def no_loss(self) -> str:
        """Non-inferiority: ``yes`` where the interval's lower end is .97 or more, ``no`` where all of it is below.

        An interval that merely holds 1 decides nothing. Where the ratio is not one, both have to hold at every size and
        budget of the ladder. ``no change`` where no loss differs.
        """
        if self.status == "no_change":
            return "no change"
        if self.status == "few_pairs":
            return "not decided"
        if self.least_lo is not None and self.least_lo >= NO_LOSS:
            return "yes"
        return "no" if self.most_hi is not None and self.most_hi < NO_LOSS else "not decided"


def fit_shift(
    law: LawFit, plain: pd.DataFrame, pairs: pd.DataFrame, axis: Axis = "params", *, level: float = 0.95
) -> Shift:
    """Fit law and ratio to both arms at once, by generalised least squares on ln losses.

    Weights are the inverse of the covariance of a run's ln losses, estimated from residuals by moments in turn with the
    fit. The interval holds the ratios at which the weighted sum of squares, least over the law, rises by no more than
    t^2 V / M, with M the variance of ln r that the weights imply, V the jackknife's over runs of a size and seed (CR3,
    linearised), and t Student's with Bell and McCaffrey's degrees of freedom: weights may be wrong, runs few and the
    profile lopsided. These take the weights for known; since seeds of one size tell them, t has no more degrees of
    freedom than these seeds leave.

    That one ratio holds for all sizes and budgets is tested against trends of ln r with ln D and ln N: the sum of
    squares that they save, scaled by the robust variance of the trends (CR2) as the profile is, is approximately
    Hotelling's T^2. Where one ratio is rejected, the ratio is that of the fit with trends, and its interval holds that
    of one ratio, too, unless the rejection is one at :data:`SURE`.

    Source: the jackknife, MacKinnon, Nielsen and Webb, Journal of Econometrics 232 (2023), section 3; CR2 and degrees
    of freedom, Bell and McCaffrey, Survey Methodology 28 (2002), section 4; the test of several coefficients, Tipton
    and Pustejovsky, Journal of Educational and Behavioral Statistics 40 (2015), section 3; sums of squares scaled to a
    robust variance, Pace, Salvan and Sartori, Statistica Sinica 21 (2011), section 2.

    Parameters
    ----------
    law : LawFit
        Loss in (``params``, ``tokens``), fitted to the plain runs: where the fit begins.
    plain : pandas.DataFrame
        All plain runs, whether paired or not: ``size, seed, tokens, params_non_embedding, loss``.
    pairs : pandas.DataFrame
        See :func:`densing.scores.ladder.pair_table`.
    axis : {"params", "tokens"}
        What is multiplied: size (density ratio) or tokens (token ratio).
    level : float

    Raises
    ------
    InputError
        When there is no pair.

    Examples
    --------
    >>> from densing.scores.ladder import fit_loss, pair_table, simulated_ladder
    >>> losses = simulated_ladder(rho=0.8, noise=0.001, common=0.001)
    >>> plain = losses[losses["arm"].eq("plain")]
    >>> shift = fit_shift(fit_loss(plain), plain, pair_table(losses, "arm")[0])
    >>> round(shift.ratio, 1), shift.one
    (0.8, True)
    """
    if pairs.empty:
        raise InputError("no pair of an arm's and a plain run of equal size, seed and tokens; train both arms alike")
    clusters = pairs.groupby(["size", "seed"]).ngroups
    if (pairs["arm"] == pairs["plain"]).all():
        return Shift(axis, None, None, None, "no_change", len(pairs), clusters)
    joint = Joint(law.law, law.theta, plain, pairs, axis)
    joint.fit()
    ln, low, high = joint.ratio(level if clusters > 1 else None)
    edge = LIMIT - 1e-6
    more: dict[str, Any] = {}
    if clusters > 1 and abs(ln) < edge:
        more = joint.trends(level)
        if (p_value := more["p_value"]) is not None and p_value < PURE:
            both = joint.middle(level)
            ln = both[0]
            if p_value < SURE:
                low, high = both[1:]
            else:
                low, high = (None if one is None else end(one, other)
                             for end, one, other in zip((min, max), (low, high), both[1:], strict=True))  # fmt: skip
            more |= joint.across(level)
    low = None if low is None or low <= -edge else low
    high = None if high is None or high >= edge else high
    status: Status = "ok"
    if clusters < FEW_CLUSTERS:
        status = "few_pairs"
    elif abs(ln) >= edge:
        status = "above_ceiling" if ln > 0 else "below_floor"
    elif low is None or high is None or (high - low) / 2 > FLAT:
        status = "flat"
    # With no end on either side the best value is where the noise has put it.
    ratio = math.exp(ln) if abs(ln) < edge and not (low is None and high is None) else None
    lo, hi = (None if end is None else math.exp(end) for end in (low, high))
    one = {"least": ratio, "most": ratio, "least_lo": lo, "most_hi": hi}
    return Shift(axis, ratio, lo, hi, status, len(pairs), clusters, **{**one, **more})


class Joint:
    """Both arms' ln losses, their covariance, law and ratio: ``beta`` is ln theta, ln ratio and its trends.

    ``spare``: degrees of freedom of the noise of an arm's runs, its seeds of each size less their mean; with one seed
    of each, of all runs about one mean.
    """

    def __init__(self, law: Law, theta: Array, plain: pd.DataFrame, pairs: pd.DataFrame, axis: Axis) -> None:
        columns = ["size", "seed", "tokens", "params", "loss", "arm"]
        sides = (
            plain.assign(params=plain["params_non_embedding"].astype(float), arm=0)[columns],
            pairs.assign(params=pairs["params_arm"], loss=pairs["arm"], arm=1)[columns],
        )
        rows = pd.concat(sides, ignore_index=True)
        runs = rows.groupby(["size", "seed"], sort=True)
        self.law, self.axis = law, axis
        means = {name: math.exp(float(np.log(sides[0][name].astype(float)).mean())) for name in ("params", "tokens")}
        self.x = {name: rows[name].to_numpy(float) / mean for name, mean in means.items()}
        self.y = np.log(rows["loss"].to_numpy(float))
        self.arm, self.run = rows["arm"].to_numpy(bool), runs.ngroup().to_numpy()
        self.budget = rows.groupby("tokens", sort=True).ngroup().to_numpy()
        self.groups = [np.flatnonzero(self.run == run) for run in range(runs.ngroups)]
        self.size = np.array([math.log(self.x["params"][rows].mean()) for rows in self.groups])
        seeds = np.bincount(np.unique(self.size[np.unique(self.run[self.arm])], return_inverse=True)[1])
        self.spare = int(seeds.sum() - (len(seeds) if seeds.max() > 1 else 1)) or 1
        scaled = law.rescale(theta, {name: 1 / mean for name, mean in means.items()})
        self.beta = np.append(np.log(np.maximum(scaled, _NOTHING)), 0.0)
        # Trends that these pairs can tell, about the middle of each.
        logs = [np.log(self.x[name][self.arm]) for name in ("tokens", "params")]
        self.along = [name for name, values in zip(("", "size_"), logs, strict=True) if np.ptp(values) > 0]
        self.z = np.stack([np.ones(self.arm.sum()), *(log - log.mean() for log in logs if np.ptp(log) > 0)])

    def curve(self, beta: Array) -> tuple[Array, Array]:
        """Return ln L and its derivatives (n, len(beta))."""
        p = len(self.law.space)
        theta, ratio = np.exp(np.clip(beta[:p], -60, 60)), beta[p:] @ self.z[: len(beta) - p]
        x = {name: values.copy() for name, values in self.x.items()}
        x[self.axis][self.arm] *= np.exp(np.clip(ratio, -2 * LIMIT, 2 * LIMIT))
        # The arm's rows stand once more, a step further along the axis.
        step, n = math.exp(_SLOPE), len(self.y)
        x = {
            name: np.append(values, values[self.arm] * (step if name == self.axis else 1)) for name, values in x.items()
        }
        value, rows = self.law.linearise(theta, x)
        value, ahead, rows = value[:n], value[n:], rows[:, :n]
        slopes = (np.log(ahead) - np.log(value[self.arm])) / _SLOPE
        derivatives = np.zeros((len(self.y), len(beta)))
        derivatives[:, :p] = (theta[:, None] * rows / value).T
        derivatives[self.arm, p:] = (slopes * self.z[: len(beta) - p]).T
        return np.log(value), derivatives

    def gap(self, beta: Array) -> Array:
        """Return residuals, whitened."""
        return self.white @ (self.y - self.curve(beta)[0])

    def least(self, beta: Array, fixed: float | None = None) -> tuple[Array, float]:
        """Return where the sum of squares is least (Levenberg and Marquardt), ln ratio held where it is given."""
        at = len(self.law.space)
        free = np.arange(len(beta)) != (-1 if fixed is None else at)
        beta = beta.copy()
        beta[at] = beta[at] if fixed is None else fixed
        value, rows = self.curve(beta)
        gap = self.white @ (self.y - value)
        cost, damping = float(gap @ gap), 1e-4
        for _ in range(_STEPS):
            slopes = self.white @ rows[:, free]
            normal, right = slopes.T @ slopes, slopes.T @ gap
            scale = np.diag(normal) + _NOTHING * (1 + np.trace(normal))
            better = False
            while not better and damping < 1e12:
                step = np.zeros(len(beta))
                step[free] = np.clip(np.linalg.solve(normal + damping * np.diag(scale), right), -2, 2)
                tried = beta + step
                tried[at] = np.clip(tried[at], -LIMIT, LIMIT)
                value, rows = self.curve(tried)
                there = self.white @ (self.y - value)
                better = bool(there @ there <= cost)
                damping = max(damping / 10, 1e-12) if better else damping * 10
            if not better:
                break
            fallen, beta, gap = cost - float(there @ there), tried, there
            cost -= fallen
            if fallen <= 1e-10 * cost + 1e-14:
                break
        return beta, cost

    def fit(self) -> None:
        """Fit law and one ratio, and the noise, in turn; begin at the best of a grid with the plain runs' law."""
        self.white = np.diag(self.arm.astype(float))
        self.beta = min(
            (np.append(self.beta[:-1], ln) for ln in _GRID), key=lambda at: float(np.sum(self.gap(at) ** 2))
        )
        for _ in range(_ROUNDS):
            self.whiten(self.noise())
            self.beta, self.cost = self.least(self.beta)

    def noise(self) -> Noise:
        """Return covariances by moments, within runs and between them, and the slope of the variance.

        Of what seeds of one size differ by, which no misfit of the law is part of; where the arm has one seed of each,
        of residuals about the mean of all sizes.
        """
        left = np.full((len(self.groups), 2, self.budget.max() + 1), np.nan)
        left[self.run, self.arm.astype(int), self.budget] = self.y - self.curve(self.beta)[0]
        of = np.unique(self.size, return_inverse=True)[1]
        if np.bincount(of[np.isfinite(left[:, 1]).any(axis=1)]).max() < 2:
            of = np.zeros_like(of)
        with warnings.catch_warnings():
            # Runs without a partner have no mean under the arm, and single ones differ from nothing.
            warnings.simplefilter("ignore", RuntimeWarning)
            for size in range(of.max() + 1):
                alike = left[of == size]
                count = np.isfinite(alike).sum(axis=0)
                left[of == size] = (alike - np.nanmean(alike, axis=0)) * np.sqrt(count / (count - 1))
            squares = np.nanmean(left**2 / np.nanmean(left**2, axis=(0, 2))[:, None], axis=(1, 2))
            slope = self._slope(squares)
            left *= np.exp(-slope * self.size / 2)[:, None, None]
            means = np.nanmean(left, axis=2)
        within, between = np.zeros((2, 2)), np.zeros((2, 2))
        for one, other in ((0, 0), (0, 1), (1, 1)):
            count = np.isfinite(left[:, one] + left[:, other]).sum(axis=1)
            both = count > 0
            if not both.any():
                # A single run under the arm: taken to differ as plain ones do.
                within[other, other], between[other, other] = within[0, 0], between[0, 0]
                continue
            moved = (left[:, one] - means[:, one, None]) * (left[:, other] - means[:, other, None])
            within[[one, other], [other, one]] = np.nansum(moved) / max(float(np.sum(count[both] - 1)), 1.0)
            own = within[one, other] / float(count[both].mean())
            between[[one, other], [other, one]] = float((means[both, one] * means[both, other]).mean()) - own
        if left.shape[2] == 1:
            within, between = between, within
        return Noise(_covariance(between), _covariance(within), slope)

    def _slope(self, squares: Array) -> float:
        """Return d ln variance / d ln N of mean squares of runs, drawn towards 0 by its own error; 0 with one size.

        A slope that few runs make up costs more than one that is missed: it is multiplied by 1 - error^2 / slope^2, not
        below 0, with ln variances of n runs off by 1 / (n - 1): plain runs and the arm's together.
        """
        known = np.isfinite(squares)
        sizes, of, counts = np.unique(self.size[known], return_inverse=True, return_counts=True)
        several = counts > 1
        if several.sum() < 2:
            return 0.0
        logs = np.log(np.bincount(of, squares[known]) / counts + _NOTHING)[several]
        sizes, weights = sizes[several], counts[several] - 1.0
        slope = float(np.polyfit(sizes, logs, 1, w=np.sqrt(weights))[0])
        error = 1 / float(weights @ (sizes - np.average(sizes, weights=weights)) ** 2)
        return float(np.clip(slope * max(0.0, 1 - error / slope**2), -_STEEP, _STEEP)) if slope else 0.0

    def whiten(self, noise: Noise) -> None:
        """Set the inverse root of the covariance of all ln losses; runs are independent."""
        self.white = np.zeros((len(self.y), len(self.y)))
        for rows, size in zip(self.groups, self.size, strict=True):
            arm, budget = self.arm[rows].astype(int), self.budget[rows]
            cells = np.ix_(arm, arm)
            covariance = noise.run[cells] + noise.budget[cells] * np.equal.outer(budget, budget)
            # Losses without noise are as good as doubles hold.
            covariance += np.eye(len(rows)) * (1e-9 * np.trace(covariance) / len(rows) + 1e-20)
            root = np.linalg.inv(np.linalg.cholesky(covariance))
            self.white[np.ix_(rows, rows)] = root * math.exp(-noise.slope * size / 2)

    def quantile(self, level: float, freedom: float) -> float:
        """Return Student's t of an interval, with no more degrees of freedom than the weights have."""
        return float(stats.t.ppf((1 + level) / 2, min(freedom, self.spare)))

    def robust(self, slopes: Array, gap: Array, chosen: Array, *, power: float = -1.0) -> Robust:
        """Return how sure linear combinations (q, p) of beta are.

        Degrees of freedom are those of the Wishart that has the covariance's mean and total variance were the weights
        right. Residuals of a run are multiplied by (I - H)^power, with H its part of the hat matrix: -1 is the
        jackknife (CR3), -1/2 gives a covariance whose mean is right where the weights are (CR2).
        """
        inverse = np.linalg.pinv(slopes.T @ slopes, rcond=1e-12)
        hat = slopes @ inverse @ slopes.T
        left = np.eye(len(gap)) - hat
        parts = np.zeros((len(chosen), len(gap), len(self.groups)))
        for number, rows in enumerate(self.groups):
            values, vectors = np.linalg.eigh(left[np.ix_(rows, rows)])
            # A direction that the fit follows whole has no residual.
            scale = np.where(values > 1e-8, np.maximum(values, 1e-8) ** power, 0.0)
            parts[:, :, number] = chosen @ inverse @ slopes[rows].T @ (vectors * scale) @ vectors.T @ left[rows]
        scores = np.einsum("qng,n->qg", parts, gap)
        expected = np.einsum("ang,bng->ab", parts, parts)
        values, vectors = np.linalg.eigh(expected)
        unit = np.einsum("ab,bng->ang", vectors / np.sqrt(np.maximum(values, 1e-300)) @ vectors.T, parts)
        products = np.einsum("ang,bnh->abgh", unit, unit)
        total = np.einsum("aagh,bbgh->", products, products) + np.einsum("abgh,bagh->", products, products)
        freedom = max(1.0, len(chosen) * (len(chosen) + 1) / float(total)) if total else 1.0
        return Robust(scores @ scores.T, expected, freedom, inverse)

    def ratio(self, level: float | None) -> tuple[float, float | None, float | None]:
        """Return ln ratio with the ends of its interval; a level of None: no ends."""
        ln = float(self.beta[-1])
        if level is None:
            return ln, None, None
        slopes, gap = self.white @ self.curve(self.beta)[1], self.gap(self.beta)
        variance, _, freedom, inverse = self.robust(slopes, gap, np.eye(len(self.beta))[-1:])
        if not inverse[-1, -1] > 0:
            # The law is level: every ratio is as good.
            return ln, None, None
        reach = self.quantile(level, freedom) * math.sqrt(variance[0, 0])
        rise = reach / math.sqrt(inverse[-1, -1])
        if reach < 1e-9:
            return ln, ln, ln
        return ln, self._end(ln, -reach, rise), self._end(ln, reach, rise)

    def _end(self, ln: float, reach: float, rise: float) -> float | None:
        """Return where the profile has risen by the square of ``rise``; None where it does not within the limits."""

        def beyond(at: float) -> float:
            return math.sqrt(max(self.least(self.beta, at)[1] - self.cost, 0.0)) - rise

        inside, outside, step = ln, ln + reach, reach
        limit = math.copysign(LIMIT, reach)
        while (inside_limit := abs(outside) < LIMIT) and beyond(outside) < 0:
            # Steps double: at the limit itself the curvature that they were taken from may say next to nothing.
            step *= 2
            inside, outside = outside, outside + step
        if not inside_limit:
            outside = limit
            if inside == limit or beyond(outside) < 0:
                return None
        return float(optimize.brentq(beyond, inside, outside, xtol=1e-3 * abs(reach)))

    def trends(self, level: float) -> dict[str, Any]:
        """Return the trends with their intervals, and the p value of the test that there is none."""
        more = len(self.along)
        found: dict[str, Any] = {"p_value": None}
        if not more:
            return found
        start = np.append(self.beta, np.zeros(more))
        slopes, gap = self.white @ self.curve(start)[1], self.gap(self.beta)
        step = np.linalg.pinv(slopes, rcond=1e-10) @ gap
        covariance, _, freedom, inverse = self.robust(
            slopes, gap - slopes @ step, np.eye(len(start))[-more:], power=-0.5
        )
        self.bent, cost = self.least(start)
        robust, implied = (
            float(step[-more:] @ np.linalg.pinv(each) @ step[-more:]) for each in (covariance, inverse[-more:, -more:])
        )
        rest = freedom - more + 1
        if rest > 0 and implied > 0:
            squares = max(self.cost - cost, 0.0) * robust / implied
            found["p_value"] = float(stats.f.sf(rest * squares / (freedom * more), more, rest))
        for number, name in enumerate(self.along):
            chosen = np.zeros(len(start))
            chosen[len(self.beta) + number] = 1.0
            found |= dict(
                zip((f"{name}trend", f"{name}trend_lo", f"{name}trend_hi"), self._wald(chosen, level), strict=True)
            )
        return found

    def middle(self, level: float) -> tuple[float, float, float]:
        """Return ln ratio at the middle of the ladder, of the fit with trends."""
        chosen = np.zeros(len(self.bent))
        chosen[len(self.beta) - 1] = 1.0
        return self._wald(chosen, level)

    def across(self, level: float) -> dict[str, float]:
        """Return the smallest and the largest ratio at the ladder's corners, of the fit with trends."""
        corners = [np.append(np.zeros(len(self.beta) - 1), corner) for corner in
                   product((1.0,), *((row.min(), row.max()) for row in self.z[1:]))]  # fmt: skip
        values, lows, highs = zip(*(self._wald(corner, level) for corner in corners), strict=True)
        ends = {"least": min(values), "most": max(values), "least_lo": min(lows), "most_hi": max(highs)}
        return {name: math.exp(np.clip(value, -2 * LIMIT, 2 * LIMIT)) for name, value in ends.items()}

    def _wald(self, chosen: Array, level: float) -> tuple[float, float, float]:
        slopes = self.white @ self.curve(self.bent)[1]
        variance, _, freedom, _ = self.robust(slopes, self.gap(self.bent), chosen[None])
        value = float(chosen @ self.bent)
        reach = self.quantile(level, freedom) * math.sqrt(variance[0, 0])
        return value, value - reach, value + reach


def _covariance(moments: Array) -> Array:
    """Return the nearest matrix that a covariance can be."""
    values, vectors = np.linalg.eigh(moments)
    return np.asarray(vectors * np.maximum(values, 0.0) @ vectors.T)
