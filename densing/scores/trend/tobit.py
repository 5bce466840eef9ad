"""The headline: a Tobit line through all models, its error by leaving out families, the law's error on top.

ln rho*_i = a + b t_i + s e_i, rows beyond the reference known only as bounds
V = (G - 1)/G sum_g (line_-g - line)(line_-g - line)'  +  Cov over law draws of the line
interval: b -+ c sqrt(V_bb), c the simulated critical value of :func:`critical_value`

The regression with bounds itself, :func:`fit_tobit`, stands below. Its latent model is y* = X b + s e with e standard
normal; a row is seen as y*, as "at or below c" or as "at or above c". With theta = 1/s and gamma = b/s the
log-likelihood is concave (Olsen 1978), so Newton's method with step halving finds its one maximum. All fits of a batch
(leave-outs, resamples, draws, permutations) move together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import erfcx, log_ndtr, ndtri

from densing.core import Array, FitError, formatting
from densing.scores.trend.data import DAYS_PER_YEAR, Slope, TrendData

MIN_ROWS, MIN_FAMILIES = 3, 2
MAX_DRAWS = 200
AT_LIMIT = 1e-9
WORKING_CORRELATION = 0.5
"""Correlation within a family assumed for the critical value (from 0 to 0.8 it moves by about 1-3 %)."""
MIN_INFORMATION = 1e-6
_LOG_ROOT_TAU = 0.5 * np.log(2 * np.pi)
_MAX_ITER, _MAX_HALVINGS = 60, 30
_PERFECT = 1e-8  # residual deviation, relative to the values, at which a fit is perfect and its likelihood unbounded
_DECREMENT = 1e-12  # predicted gain in log-likelihood (an absolute scale) at which a fit has converged


@dataclass(frozen=True)
class VarianceShares:
    """Where the variance of the headline's slope comes from, as shares of it; None where not computable.

    Parameters
    ----------
    score_noise : float or None
        The sampling of the benchmarks' items.
    reference_law : float or None
        The fitted reference.
    models : float or None
        Which models exist.
    """

    score_noise: float | None
    reference_law: float | None
    models: float | None


@dataclass(frozen=True)
class Headline:
    """The Tobit line with everything its interval and its forecast are made of.

    Parameters
    ----------
    slope : Slope
        The slope with its interval, as the table of estimators holds it.
    centre : float
        Day at which the line's level is stated.
    line : array, shape (2,)
        ln(density) at ``centre`` and slope per day.
    sigma : float
        Residual standard deviation of ln(density), corrected for the two coefficients.
    leave_out : array, shape (G, 2)
        The line without each family; NaN rows where nothing is left to fit.
    sampling, law : array, shape (2, 2)
        Covariances of the line: which models exist, and the reference law.
    critical : float
        Multiplier of the standard error.
    shares : VarianceShares
        Of the slope's variance.
    lines : array, shape (R, 2)
        Draws of the line.
    law_rows : array of int, shape (R,)
        Row of ``law_draws`` behind each draw of the line; empty without law draws.
    """

    slope: Slope
    centre: float
    line: Array
    sigma: float
    leave_out: Array
    sampling: Array
    law: Array
    critical: float
    shares: VarianceShares
    lines: Array
    law_rows: Array


def fit_headline(
    data: TrendData,
    level: float = 0.95,
    *,
    cluster: str = "family",
    seed: int = 0,
    draws: int = 2000,
) -> Headline:
    """Fit the headline line.

    Parameters
    ----------
    data : TrendData
        At least three observed rows on two dates, from two families.
    level : float
    cluster : {"family", "organisation", "model"}
        What is left out together.
    seed : int
        For the critical value and the draws of the line.
    draws : int
        Number of line draws kept for forecasts.

    Raises
    ------
    FitError
        When the data cannot carry a slope.
    """
    codes = data.clusters(cluster)
    observed, families = int(data.observed.sum()), len(np.unique(codes))
    if observed < MIN_ROWS:
        raise FitError(
            f"trend: {formatting.plural(observed, 'observed model')} among {len(data)}, at least {MIN_ROWS} needed; "
            "widen the window, or choose a reference whose range covers more models"
        )
    if families < MIN_FAMILIES:
        raise FitError(f"trend: {families} family, at least {MIN_FAMILIES} needed; widen the window")
    if np.ptp(data.days[data.observed]) == 0:
        raise FitError("trend: all observed models share one release date; widen the window")
    # Around the mean date level and slope are nearly independent, which keeps their covariance well conditioned.
    centre = float(data.days.mean())
    # The line with every row first, then without each cluster.
    weights = np.vstack([np.ones(len(codes)), codes != np.arange(codes.max() + 1)[:, None]]).astype(float)
    lines, sigmas = tobit_lines(data, centre, weights)
    line, leave_out = lines[0], lines[1:]
    if not np.all(np.isfinite(line)):
        raise FitError("Tobit: no finite slope from these rows; widen the window or the reference's range")
    groups = len(leave_out)
    # Around the line of all rows, not around the mean of the leave-outs: CRV3 errs on the side of width.
    deviations = leave_out - line
    sampling = deviations.T @ deviations * (groups - 1) / groups
    law_lines, law_rows = _refits(data, data.law_draws, centre)
    with_law = len(law_lines) > 1
    law = np.cov(law_lines.T) if with_law else np.zeros((2, 2))
    ratio = law[1, 1] / sampling[1, 1] if sampling[1, 1] > 0 else 0.0
    worth = information(data, centre, line, float(sigmas[0]))
    critical = critical_value(data.days, codes, worth, level, law_ratio=ratio, seed=seed)
    # The law's error is common to all models, so that leaving out families cannot see it: it is added.
    half = critical * np.sqrt(sampling[1, 1] + law[1, 1])
    half = half if np.isfinite(half) else np.inf
    pace, intercept = float(line[1]), float(line[0] - float(line[1]) * centre)
    kind = "cluster jackknife, simulated critical value" + (", plus reference law" if with_law else "")
    slope = Slope(pace, pace - half, pace + half, intercept, len(data), groups, kind, 0)
    inflation = critical / ndtri(0.5 + level / 2)
    draws_of_line, picks = _draw_lines(line, sampling, law, law_lines, inflation, draws, seed)
    rows = law_rows[picks] if len(law_rows) else picks
    shares = _shares(data, centre, float(sampling[1, 1]), float(law[1, 1]), with_law)
    # Maximum likelihood divides by n: the two coefficients of the line are given back.
    sigma = float(sigmas[0]) * float(np.sqrt(observed / (observed - 2)))
    return Headline(slope, centre, line, sigma, leave_out, sampling, law, critical, shares, draws_of_line, rows)


def tobit_crv3(data: TrendData, level: float = 0.95, *, cluster: str = "family", seed: int = 0) -> Slope:
    """Return the slope of :func:`fit_headline` alone, as estimators give it."""
    return fit_headline(data, level, cluster=cluster, seed=seed, draws=2).slope


def tobit_slope(data: TrendData, level: float = 0.95, *, cluster: str = "family", seed: int = 0) -> Slope:
    """Return the slope of :func:`tobit_crv3`, or the reason where the data cannot carry one."""
    try:
        return tobit_crv3(data, level, cluster=cluster, seed=seed)
    except FitError as error:
        reason = str(error).removeprefix("trend: ").split(";")[0]
        return Slope.missing(reason, len(data), len(np.unique(data.family)), 0)


def _draw_lines(
    line: Array, sampling: Array, law: Array, law_lines: Array, inflation: float, draws: int, seed: int
) -> tuple[Array, Array]:
    """Draw lines whose slope spreads as the interval says: jackknife part widened, law part as drawn."""
    rng = np.random.default_rng([seed, 1])
    if not np.all(np.isfinite(sampling)):
        return np.full((draws, 2), np.nan), np.zeros(0, dtype=int)
    share = law[1, 1] / sampling[1, 1] if sampling[1, 1] > 0 else 0.0
    # The interval is `inflation` times the joint standard error. The law's lines are added as they were drawn, so the
    # jackknife part alone is widened until both together have that width: w^2 + share = inflation^2 (1 + share).
    widen = np.sqrt(max(inflation**2 * (1 + share) - share, 1.0))
    values, vectors = np.linalg.eigh(sampling)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    lines = line + widen * rng.standard_normal((draws, 2)) @ root.T
    if len(law_lines) < 2:
        return lines, np.zeros(0, dtype=int)
    picks = np.arange(draws) % len(law_lines)
    return lines + law_lines[picks] - law_lines.mean(axis=0), picks


def _refits(data: TrendData, values: Array | None, centre: float) -> tuple[Array, Array]:
    """Lines under at most 200 evenly spaced draws, and which draws they are."""
    if values is None or len(values) < 2:
        return np.zeros((0, 2)), np.zeros(0, dtype=int)
    # Two hundred refits tell a covariance; evenly spaced, so that the same ones are taken whatever else is asked.
    picks = np.unique(np.linspace(0, len(values) - 1, min(MAX_DRAWS, len(values))).astype(int))
    lines, _ = tobit_lines(data, centre, values=values[picks])
    finite = np.all(np.isfinite(lines), axis=1)
    return lines[finite], picks[finite]


def _shares(data: TrendData, centre: float, sampling: float, law: float, with_law: bool) -> VarianceShares:
    """Split the slope's variance into score noise, reference law and which models exist."""
    total = sampling + law
    if not (np.isfinite(total) and total > 0):
        return VarianceShares(None, None, None)
    # Draws with the noise of the scores hold the law's error too; what is beyond it is the noise.
    noisy, _ = _refits(data, data.draws, centre)
    if len(noisy) < 2 or not with_law:
        return VarianceShares(None, law / total if with_law else None, sampling / total)
    score = float(np.clip(np.var(noisy[:, 1], ddof=1) - law, 0.0, sampling))
    return VarianceShares(score / total, law / total, (sampling - score) / total)


def tobit_lines(
    data: TrendData, centre: float, weights: Array | None = None, values: Array | None = None
) -> tuple[Array, Array]:
    """Tobit lines (B, 2), level at ``centre`` and slope per day, and residual deviations (B,).

    Parameters
    ----------
    weights : array, shape (B, n), optional
        Case weights, e.g. leave-outs; lines that rest on too few rows come back as NaN.
    values : array, shape (B, n), optional
        Draws of ln(density) in place of the data's; a row at its limit (within 1e-9) is censored there.
    """
    y, censor = (data.log_density, data.censor) if values is None else censored(data, values)
    # In years: level and slope are of one order of magnitude then, and Newton's steps well scaled.
    design = np.column_stack([np.ones(len(data)), (data.days - centre) / DAYS_PER_YEAR])
    fit = fit_tobit(design, y, censor, weights)
    lines = fit.beta / np.array([1.0, DAYS_PER_YEAR])
    observed = np.atleast_2d(censor) == 0
    used = observed if weights is None else observed & (np.atleast_2d(weights) > 0)
    first = np.where(used, data.days, np.inf).min(axis=1)
    last = np.where(used, data.days, -np.inf).max(axis=1)
    sufficient = (used.sum(axis=1) >= MIN_ROWS) & (last > first)
    return np.where(sufficient[:, None], lines, np.nan), np.where(sufficient, fit.sigma, np.nan)


def censored(data: TrendData, values: Array) -> tuple[Array, Array]:
    """Cut draws of ln(density), shape (B, n), at the limits of their rows; returns them and which were cut."""
    floor, ceiling = data.limits[:, 0], data.limits[:, 1]
    y = np.clip(values, floor, ceiling)
    return y, np.where(y >= ceiling - AT_LIMIT, 1, np.where(y <= floor + AT_LIMIT, -1, 0)).astype(np.int8)


def information(data: TrendData, centre: float, line: Array, sigma: float) -> Array:
    """What each row is worth: 1 if observed, the curvature of ln Phi at its limit if censored; shape (n,)."""
    z = (data.log_density - line[0] - line[1] * (data.days - centre)) / max(sigma, 1e-12)
    return np.asarray(np.where(data.censor == 0, 1.0, bound_curvature(-data.censor * z)))


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

    The jackknife variance rests on few, unequal families, so that this ratio follows no t table exactly. Under the
    working model (normal, equally correlated within families) its distribution depends only on dates, families and how
    much each row is worth, all of which are known; so it is simulated.

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
    # Only how far each cluster moves the slope matters, so errors are drawn once and mapped linearly.
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
    return max(simulated, float(ndtri(0.5 + level / 2)))


def _influences(days: Array, codes: Array, information: Array) -> tuple[Array, Array]:
    """Linear maps from errors to (b_-g - b) for each cluster, shape (G, n), and to b - beta, shape (n,)."""
    groups = int(codes.max()) + 1
    keep = np.vstack([np.ones(len(days), dtype=bool), codes != np.arange(groups)[:, None]])
    weights = keep * np.maximum(information, MIN_INFORMATION)
    centre = (weights * days).sum(axis=1, keepdims=True) / weights.sum(axis=1, keepdims=True)
    # The least-squares slope is sum_i l_i y_i / sum_i l_i (t_i - t), l_i = w_i (t_i - t): linear in the errors.
    lever = weights * (days - centre)
    slopes = lever / np.maximum((lever * (days - centre)).sum(axis=1, keepdims=True), 1e-300)
    return slopes[1:] - slopes[0], slopes[0]


@dataclass(frozen=True)
class TobitFit:
    """A batch of Tobit fits.

    Parameters
    ----------
    beta : array, shape (B, k)
        Coefficients of the design.
    sigma : array, shape (B,)
        Residual standard deviation.
    loglik : array, shape (B,)
    converged : array of bool, shape (B,)
    """

    beta: Array
    sigma: Array
    loglik: Array
    converged: Array


def fit_tobit(design: Array, y: Array, censor: Array, weights: Array | None = None) -> TobitFit:
    """Fit Tobit regressions by maximum likelihood, batched.

    maximise sum_i w_i l_i with l_i = ln theta + ln phi(z_i) for an observed row, ln Phi(z_i) for one at or
    below its limit, ln Phi(-z_i) for one at or above, z_i = theta y_i - x_i gamma.

    Source: Tobin (1958); concave form: Olsen, Econometrica 46 (1978) 1211-1215.

    Parameters
    ----------
    design : array, shape (n, k) or (B, n, k)
    y : array, shape (n,) or (B, n)
        Values, or limits for censored rows.
    censor : array of int, shape (n,) or (B, n)
        -1 at or below, 0 observed, +1 at or above.
    weights : array, shape (n,) or (B, n), optional
        Case weights; 0 leaves a row out.

    Returns
    -------
    TobitFit
        Fits without a finite maximum (too few observed rows) come back with ``converged`` False.

    Examples
    --------
    >>> t = np.arange(6.0)
    >>> x = np.column_stack([np.ones(6), t])
    >>> y = 1 + 2 * t + np.array([0.1, -0.1, 0.05, -0.05, 0.1, -0.1])
    >>> open_end = fit_tobit(x, np.minimum(y, 9.0), np.where(y > 9, 1, 0))
    >>> open_end.beta.round(2).tolist()
    [[1.02, 2.0]]
    """
    # In theta = 1/s and gamma = b/s the likelihood has one maximum, so Newton from a crude start is safe where a step
    # that would lower it is halved. Fits that are done leave the batch; the others go on without them.
    problem = _Problem.build(design, y, censor, weights)
    params = problem.start()
    value = problem.loglik(params)
    active = np.isfinite(value)
    # A line through every point has no finite maximum: theta runs away, and is stopped here.
    ceiling = 1 / (_PERFECT * max(1.0, problem.largest))
    converged = np.zeros(len(value), dtype=bool)
    part = problem
    for _ in range(_MAX_ITER):
        rows = np.flatnonzero(active)
        if rows.size == 0:
            break
        # Fits only leave: as many as before are the same ones.
        part = part if len(rows) == len(part.y) else problem.part(rows)
        step, gain = part.newton(params[rows])
        params[rows], value[rows], moved = part.line_search(params[rows], value[rows], step)
        done = gain < _DECREMENT
        converged[rows] = done
        active[rows] = ~done & moved & (params[rows, -1] < ceiling)
    theta = params[:, -1]
    with np.errstate(divide="ignore", invalid="ignore"):
        return TobitFit(params[:, :-1] / theta[:, None], 1 / theta, value, converged)


def inverse_mills(z: Array) -> Array:
    """Return phi(z) / Phi(z), stable in both tails: sqrt(2 / pi) / erfcx(-z / sqrt 2).

    Examples
    --------
    >>> inverse_mills(np.array([-100.0, 0.0, 40.0])).round(3).tolist()
    [100.01, 0.798, 0.0]
    """
    return np.asarray(np.sqrt(2 / np.pi) / erfcx(-z / np.sqrt(2)))


def bound_curvature(z: Array) -> Array:
    """Return -d^2 ln Phi / dz^2, between 0 (the bound says nothing) and 1 (as good as a value).

    Examples
    --------
    >>> bound_curvature(np.array([-1e9, 0.0, 40.0])).round(3).tolist()
    [1.0, 0.637, 0.0]
    """
    return _mills_and_curvature(z)[1]


def _mills_and_curvature(z: Array) -> tuple[Array, Array]:
    """Return :func:`inverse_mills` and :func:`bound_curvature`."""
    mills = inverse_mills(z)
    # Beyond, the difference below is lost to rounding and the limit 1 is reached.
    near = z > -1e4
    return mills, np.where(near, np.clip(mills * (mills + z), 0.0, 1.0), 1.0)


@dataclass(frozen=True)
class _Problem:
    """The batch: one design (n, k) for all or one for each (B, n, k), y and weights (B, n), where and how it is cut."""

    design: Array
    products: Array
    y: Array
    censor: Array
    weights: Array | None
    cut: Array
    sign: Array
    seen: Array

    @classmethod
    def build(cls, design: Array, y: Array, censor: Array, weights: Array | None) -> _Problem:
        design, y = np.asarray(design, dtype=float), np.atleast_2d(np.asarray(y, dtype=float))
        flags = np.atleast_2d(np.asarray(censor))
        share = None if weights is None else np.atleast_2d(np.asarray(weights, dtype=float))
        size = max(len(design) if design.ndim == 3 else 1, len(y), len(flags), 1 if share is None else len(share))
        if design.ndim == 3:
            design = np.broadcast_to(design, (size, *design.shape[1:]))
        shape = (size, y.shape[1])
        return cls._of(
            design,
            (design[..., :, None] * design[..., None, :]).reshape(*design.shape[:-1], -1),
            np.ascontiguousarray(np.broadcast_to(y, shape)),
            np.broadcast_to(flags, shape),
            None if share is None else np.broadcast_to(share, shape),
        )

    @classmethod
    def _of(cls, design: Array, products: Array, y: Array, censor: Array, weights: Array | None) -> _Problem:
        # Bounds by their places in the flat array, and the weight of the observed rows: both are needed at every step.
        cut = np.flatnonzero(censor)
        observed = np.asarray(censor == 0, dtype=float)
        seen = (observed if weights is None else observed * weights).sum(axis=1)
        return cls(design, products, y, censor, weights, cut, -censor.reshape(-1)[cut].astype(float), seen)

    def part(self, rows: Array) -> _Problem:
        """Return the fits still moving."""
        if len(rows) == len(self.y):
            return self
        design, products = (each[rows] if self.design.ndim == 3 else each for each in (self.design, self.products))
        weights = None if self.weights is None else self.weights[rows]
        return self._of(design, products, self.y[rows], self.censor[rows], weights)

    @property
    def largest(self) -> float:
        """The largest absolute number among values and design."""
        return max(float(np.nanmax(np.abs(self.design))), float(np.nanmax(np.abs(self.y))))

    def _total(self, values: Array, columns: Array) -> Array:
        """Sum values (B, n) times columns over the rows, shape (B, columns)."""
        return np.asarray(values @ columns if columns.ndim == 2 else (values[:, None, :] @ columns)[:, 0])

    def _z(self, params: Array) -> Array:
        gamma, theta = params[:, :-1], params[:, -1:]
        line = gamma @ self.design.T if self.design.ndim == 2 else (self.design @ gamma[:, :, None])[:, :, 0]
        z = theta * self.y
        z -= line
        return np.asarray(z)

    def start(self) -> Array:
        """Least squares with limits taken as values: crude, but the likelihood is concave."""
        weights = np.ones(self.y.shape) if self.weights is None else self.weights
        k = self.design.shape[-1]
        gram = self._total(weights, self.products).reshape(-1, k, k)
        beta = _solve(gram, self._total(weights * self.y, self.design))
        residual = self._z(np.column_stack([beta, np.ones(len(beta))]))
        total = np.maximum(weights.sum(axis=1), 1.0)
        scale = np.sqrt(np.sum(weights * residual**2, axis=1) / total)
        theta = 1 / np.maximum(scale, 1e-8)
        return np.column_stack([beta * theta[:, None], theta])

    def loglik(self, params: Array) -> Array:
        """Log-likelihood, shape (B,); minus infinity where theta is not positive or nothing is observed."""
        theta = params[:, -1]
        z = self._z(params)
        # A step may try a theta below zero: that counts as impossible, and the line search turns back.
        safe = np.where(theta > 0, theta, 1.0)
        terms = -0.5 * z**2 + (np.log(safe) - _LOG_ROOT_TAU)[:, None]
        terms.reshape(-1)[self.cut] = log_ndtr(self.sign * z.reshape(-1)[self.cut])
        if self.weights is not None:
            terms = np.where(self.weights > 0, self.weights * terms, 0.0)
        return np.where((theta > 0) & (self.seen > 0), terms.sum(axis=1), -np.inf)

    def newton(self, params: Array) -> tuple[Array, Array]:
        """Newton step (B, k+1) and the gain in log-likelihood it promises (B,)."""
        theta = params[:, -1]
        z = self._z(params)
        slope, curvature = -z, np.ones_like(z)
        inner = self.sign * z.reshape(-1)[self.cut]
        mills, bend = _mills_and_curvature(inner)
        slope.reshape(-1)[self.cut] = self.sign * mills
        curvature.reshape(-1)[self.cut] = bend
        if self.weights is not None:
            slope, curvature = slope * self.weights, curvature * self.weights
        k = self.design.shape[-1]
        # z falls with gamma by the design and rises with theta by y; ln theta, once per observed row, is a function of
        # theta alone.
        lever = curvature * self.y
        gradient, hessian = np.empty((len(z), k + 1)), np.empty((len(z), k + 1, k + 1))
        gradient[:, :k] = -self._total(slope, self.design)
        gradient[:, k] = (slope * self.y).sum(axis=1) + self.seen / theta
        hessian[:, :k, :k] = self._total(curvature, self.products).reshape(-1, k, k)
        hessian[:, :k, k] = hessian[:, k, :k] = -self._total(lever, self.design)
        hessian[:, k, k] = (lever * self.y).sum(axis=1) + self.seen / theta**2
        step = _solve(hessian, gradient)
        return step, 0.5 * np.abs(np.sum(step * gradient, axis=1))

    def line_search(self, params: Array, value: Array, step: Array) -> tuple[Array, Array, Array]:
        """Halve steps until the log-likelihood does not fall; returns parameters, values and who moved."""
        length = np.ones(len(params))
        slack = 1e-10 * (1 + np.abs(value))
        for _ in range(_MAX_HALVINGS):
            trial = params + length[:, None] * step
            reached = self.loglik(trial)
            worse = ~(reached >= value - slack)
            if not worse.any():
                break
            length[worse] *= 0.5
        moved = ~worse
        return np.where(moved[:, None], trial, params), np.where(moved, reached, value), moved


def _solve(matrix: Array, right: Array) -> Array:
    """Solve symmetric systems scaled to unit diagonal; a trace of ridge keeps empty ones finite."""
    diagonal = np.sqrt(np.maximum(np.einsum("bii->bi", matrix), 1e-300))
    scaled = matrix / diagonal[:, :, None] / diagonal[:, None, :]
    scaled = scaled + 1e-13 * np.eye(matrix.shape[-1])
    scaled = np.where(np.isfinite(scaled), scaled, np.eye(matrix.shape[-1]))
    return np.linalg.solve(scaled, (right / diagonal)[:, :, None])[:, :, 0] / diagonal
