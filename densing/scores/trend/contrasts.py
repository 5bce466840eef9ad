"""What lines through dated densities say of each other: a difference, a share, a ratio, with its interval and its test.

A contrast is a number made of the coefficients of one or several regressions, ``c = f(b_1, b_2, ...)``: the difference
of two slopes, the part of a slope that another variable explains. Its error has two parts, as that of the headline,

``V = (G - 1)/G sum_g (c_-g - c)^2 + Var over draws of the scale of c``,

where ``c_-g`` is the contrast without cluster ``g``, left out of all regressions at once, and a draw of the scale is
the same draw in all regressions: what is paired stays paired. The second part holds the noise of the abilities, a share
of which is in the scatter of models as well; the interval errs on the side of width.

Source: CRV3: MacKinnon, Nielsen and Webb, J. Econometrics 232 (2023) 272-299; the reference distribution as in
:func:`densing.scores.trend.tobit.critical_value`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from densing.core import Array, formatting
from densing.scores.trend.data import TrendData
from densing.scores.trend.tobit import (
    MAX_DRAWS,
    MIN_INFORMATION,
    WORKING_CORRELATION,
    TobitFit,
    bound_curvature,
    censored,
    fit_tobit,
)

MIN_CLUSTERS = 3
"""Fewer families, or organisations, say nothing of how much they differ."""
SIMULATED = 1999
_STEP = 1e-5
_ESTIMABLE = 1e-6
Statistic = Callable[[Array], Array]
"""From coefficients (B, k) of all regressions side by side to the contrast (B,)."""


@dataclass(frozen=True)
class Regression:
    """One Tobit regression of a contrast.

    Parameters
    ----------
    data : TrendData
        The outcome is ``log_density``; it may be any logarithm with limits and draws.
    design : array, shape (n, k)
    outcome : str
        Regressions of the same outcome share the errors of their models.
    """

    data: TrendData
    design: Array
    outcome: str = ""


@dataclass(frozen=True)
class Contrast:
    """An estimate computed from regression coefficients.

    Parameters
    ----------
    estimate, error, lo, hi : float
        NaN if not estimable; the ends are infinite if a single cluster carries the figure.
    reference : array, shape (S,)
        Simulated values of abs(estimate - truth) / error, sorted.
    clusters : array of str, shape (G,)
    leave_out : array, shape (G,)
        The contrast without each cluster.
    models : int
    critical : float
        Multiplier of the error.
    scale_share : float
        Share of the variance that comes from the draws of the scale.
    reason : str
        Why there is no estimate or no error; otherwise empty.
    """

    estimate: float
    error: float
    lo: float
    hi: float
    reference: Array = field(repr=False)
    clusters: Array = field(repr=False)
    leave_out: Array = field(repr=False)
    models: int
    critical: float = math.nan
    scale_share: float = math.nan
    reason: str = ""

    @classmethod
    def missing(cls, reason: str, models: int = 0) -> Contrast:
        """Return a contrast without figures, with the reason."""
        nan, none = math.nan, np.zeros(0)
        return cls(nan, nan, nan, nan, none, none, none, models, reason=reason)

    @property
    def estimable(self) -> bool:
        """Whether there is a figure with an error."""
        return math.isfinite(self.estimate) and math.isfinite(self.error)

    def p(self, truth: float = 0.0) -> float:
        """Return the two-sided p-value of a hypothesised truth, never below that of a normal distribution."""
        if not self.estimable:
            return math.nan
        t = abs(self.estimate - truth) / self.error if self.error > 0 else math.inf
        beyond = len(self.reference) - int(np.searchsorted(self.reference, t))
        return max((1 + beyond) / (1 + len(self.reference)), float(2 * stats.norm.sf(t)))

    def power(self, effect: float, level: float = 0.95) -> float:
        """Return the share of samples in which a test at 1 - level would find an effect of this size.

        The estimate is assumed normal with its standard error.
        """
        if not self.estimable or self.error <= 0:
            return math.nan
        shift, limit = effect / self.error, self.critical_value(level)
        return float(stats.norm.sf(limit - shift) + stats.norm.cdf(-limit - shift))

    def detectable(self, power: float = 0.8, level: float = 0.95) -> float:
        """Return the smallest effect that is detected with this power."""
        return self.error * (self.critical_value(level) + float(stats.norm.ppf(power)))

    def critical_value(self, level: float = 0.95) -> float:
        """Return the ``level`` quantile of abs(estimate - truth) / error."""
        return max(float(np.quantile(self.reference, level)), float(stats.norm.ppf(0.5 + level / 2)))


def estimate_contrast(
    regressions: Sequence[Regression],
    statistic: Statistic,
    *,
    level: float = 0.95,
    cluster: str = "family",
    seed: int = 0,
) -> Contrast:
    """Estimate a contrast of one or several Tobit regressions.

    Parameters
    ----------
    regressions : sequence of Regression
        Draws, if any, are paired by position across regressions.
    statistic : callable
        From coefficients (B, k_1 + k_2 + ...) to the contrast (B,).
    level : float
    cluster : {"family", "organisation", "model"}
        Unit that is left out as a whole, and out of all regressions at once.
    seed : int
        Seeds the simulated reference distribution.

    Returns
    -------
    Contrast
        With a reason instead of figures if the rows do not support an estimate.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> days = np.arange(60.0) * 20
    >>> names = [f"m{i}" for i in range(60)]
    >>> toy = TrendData.from_arrays(names, names, np.datetime64("2023-02-24") + days.astype("m8[D]"),
    ...                             0.5 * days / 365.25 + 0.1 * rng.standard_normal(60))
    >>> design = np.column_stack([np.ones(60), days / 365.25])
    >>> slope = estimate_contrast([Regression(toy, design)], lambda beta: beta[:, 1])
    >>> slope.lo < 0.5 < slope.hi, slope.p() < 0.01, slope.p(0.5) > 0.05
    (True, True, True)
    """
    models = len(np.unique(np.concatenate([part.data.model for part in regressions])))
    labels = [getattr(part.data, cluster) for part in regressions]
    if any(names is None for names in labels):
        return Contrast.missing(f"the rows do not say which {cluster} models are of", models)
    clusters = np.unique(np.concatenate(labels))
    if len(clusters) < MIN_CLUSTERS:
        counted = formatting.plural(len(clusters), cluster, "families" if cluster == "family" else "")
        return Contrast.missing(f"{counted}, at least {MIN_CLUSTERS} needed", models)
    codes = [np.searchsorted(clusters, names) for names in labels]
    fits = []
    for part, own in zip(regressions, codes, strict=True):
        needed = int(np.linalg.matrix_rank(part.design)) + 1
        if int(part.data.observed.sum()) <= needed:
            observed = formatting.plural(int(part.data.observed.sum()), "model with a value", "models with a value")
            return Contrast.missing(f"{observed} for {needed - 1} coefficients", models)
        weights = np.vstack([np.ones(len(own)), own != np.arange(len(clusters))[:, None]]).astype(float)
        fits.append(fit_tobit(part.design, part.data.log_density, part.data.censor, weights))
    beta = np.hstack([fit.beta for fit in fits])
    with np.errstate(all="ignore"):
        values = statistic(beta)
        gradient = _gradient(statistic, beta[0])
    estimate, leave_out = float(values[0]), values[1:]
    if not (math.isfinite(estimate) and np.isfinite(gradient).all()):
        return Contrast.missing("the regression has no finite solution on these rows", models)
    influence, own_errors, lost = _linear(regressions, codes, fits, gradient, len(clusters))
    if lost[0]:
        return Contrast.missing("dates and groups of these models cannot be told apart", models)
    groups = len(clusters)
    deviations = leave_out - estimate
    sampling = float(deviations @ deviations) * (groups - 1) / groups
    scale = _scale_variance(regressions, statistic)
    error = math.sqrt(sampling + scale) if math.isfinite(sampling) and not lost.any() else math.inf
    nothing = np.zeros(0)
    if not math.isfinite(error):
        carrier = (
            clusters[int(np.argmax(lost[1:]))] if lost.any() else clusters[int(np.argmax(~np.isfinite(leave_out)))]
        )
        reason = f"{carrier} alone carries the figure"
        return Contrast(estimate, error, -math.inf, math.inf, nothing, clusters, leave_out, models, reason=reason)
    ratio = scale / sampling if sampling > 0 else 0.0
    reference = _reference(regressions, codes, influence, own_errors, ratio, seed)
    made = Contrast(estimate, error, math.nan, math.nan, reference, clusters, leave_out, models)
    critical = made.critical_value(level)
    share = scale / (sampling + scale) if error > 0 else math.nan
    half = critical * error
    return Contrast(
        estimate, error, estimate - half, estimate + half, reference, clusters, leave_out, models, critical, share
    )


def _gradient(statistic: Statistic, beta: Array) -> Array:
    """Central differences of a statistic at one vector of coefficients."""
    step = _STEP * (1 + np.abs(beta))
    ends = [statistic(beta + sign * np.diag(step)) for sign in (1.0, -1.0)]
    return np.asarray((ends[0] - ends[1]) / (2 * step))


def _linear(
    regressions: Sequence[Regression], codes: Sequence[Array], fits: Sequence[TobitFit], gradient: Array, groups: int
) -> tuple[list[Array], list[Array], Array]:
    """Return the linear maps from errors to the contrast (leave-outs (G, n), all rows (n,)) and where it is not
    estimable.

    The linearised contrast g'b is estimable without a cluster where g lies in the row space of the rows that remain.
    """
    influence, own_errors, start = [], [], 0
    lost = np.zeros(groups + 1, dtype=bool)
    for part, own, fit in zip(regressions, codes, fits, strict=True):
        sigma, beta = max(float(fit.sigma[0]), 1e-12), fit.beta[0]
        slope = gradient[start : start + part.design.shape[1]]
        start += part.design.shape[1]
        z = (part.data.log_density - part.design @ beta) / sigma
        worth = np.where(part.data.censor == 0, 1.0, bound_curvature(-part.data.censor * z))
        worth = np.maximum(worth, MIN_INFORMATION)
        keep = np.vstack([np.ones(len(own), dtype=bool), own != np.arange(groups)[:, None]])
        root = np.sqrt(keep * worth)
        # Columns of one size: a rank is told at one precision then.
        size = np.sqrt((part.design**2).mean(axis=0)) + 1e-300
        inverse = np.linalg.pinv(root[:, :, None] * (part.design / size), rcond=1e-9)
        weighted = slope / size
        reproduced = np.einsum("k,gkn,gn,nj->gj", weighted, inverse, root, part.design / size, optimize=True)
        gap = np.abs(reproduced - weighted).max(axis=1)
        lost |= gap > _ESTIMABLE * max(float(np.abs(weighted).max()), 1e-300)
        maps = np.einsum("k,gkn->gn", weighted, inverse) * root
        noise = sigma / np.sqrt(worth)
        influence.append((maps[1:] - maps[0]) * noise)
        own_errors.append(maps[0] * noise)
    return influence, own_errors, lost


def _scale_variance(regressions: Sequence[Regression], statistic: Statistic) -> float:
    """Variance of the contrast over at most 200 evenly spaced draws, the same draws in all regressions."""
    draws = [part.data.draws if part.data.draws is not None else part.data.law_draws for part in regressions]
    if any(values is None or len(values) < 2 for values in draws):
        return 0.0
    count = min(len(values) for values in draws if values is not None)
    picks = np.unique(np.linspace(0, count - 1, min(MAX_DRAWS, count)).astype(int))
    parts = []
    for part, values in zip(regressions, draws, strict=True):
        y, censor = censored(part.data, np.asarray(values)[picks])
        parts.append(fit_tobit(part.design, y, censor).beta)
    with np.errstate(all="ignore"):
        drawn = statistic(np.hstack(parts))
    drawn = drawn[np.isfinite(drawn)]
    return float(drawn.var(ddof=1)) if len(drawn) > 1 else 0.0


def _reference(
    regressions: Sequence[Regression],
    codes: Sequence[Array],
    influence: Sequence[Array],
    own_errors: Sequence[Array],
    ratio: float,
    seed: int,
) -> Array:
    """Simulate abs(error) / standard error under normal errors, equally correlated within clusters of an outcome."""
    rng = np.random.default_rng([seed, 13])
    groups = influence[0].shape[0]
    shared: dict[tuple[str, str], Array] = {}
    deviations, error = np.zeros((groups, SIMULATED)), np.zeros(SIMULATED)
    for part, own, left, all_rows in zip(regressions, codes, influence, own_errors, strict=True):

        def normal(kind: str, name: str, outcome: str = part.outcome) -> Array:
            key = (kind + outcome, name)
            if key not in shared:
                shared[key] = rng.standard_normal(SIMULATED)
            return shared[key]

        noise = math.sqrt(WORKING_CORRELATION) * np.stack([normal("cluster", str(code)) for code in own])
        noise += math.sqrt(1 - WORKING_CORRELATION) * np.stack([normal("model", name) for name in part.data.model])
        deviations += left @ noise
        error += all_rows @ noise
    variance = np.sum(deviations**2, axis=0) * (groups - 1) / groups
    scale = ratio * float(variance.mean())
    error = error + math.sqrt(scale) * rng.standard_normal(SIMULATED)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sort(np.nan_to_num(np.abs(error) / np.sqrt(variance + scale), nan=0.0))
