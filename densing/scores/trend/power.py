"""How often a test rejects on these very dates and families: where nothing is (size), and where something is (power).

Worlds keep the data's dates, families and limits and draw ln rho* = path(t) + u_family + e, normal, with both
deviations estimated from the data. A p-value says little without these two shares: a test that rejects 18 % of worlds
without a trend accuses the innocent, one that finds a trend in 5 % of worlds that have one acquits everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import optimize, stats
from scipy.special import log_ndtr, logsumexp

from densing.core import Array
from densing.scores.trend.breakpoint import PAPER, candidates, kinks, one_line, stated_design, wild_worlds
from densing.scores.trend.data import EPOCH, TrendData
from densing.scores.trend.envelopes import envelope_slopes
from densing.scores.trend.permutation import BLOCKS, block_shuffles
from densing.scores.trend.slopes import DAYS_PER_MONTH, DAYS_PER_YEAR, doubling_months
from densing.scores.trend.tobit import TobitFit, bound_curvature, fit_tobit, inverse_mills

SIGNIFICANT = 0.05
SLOW_MONTHS = 12.0
"""A doubling time that a test of the trend should be able to see: growth of density by two in a year."""
SHUFFLES, ENVELOPE_SHUFFLES, BOOTSTRAP = 199, 59, 39
_GRID = np.linspace(-4.5, 4.5, 121)


@dataclass(frozen=True)
class Shocks:
    """What models scatter by around a line.

    Parameters
    ----------
    level : float
        ln(density) of the line at the mean release date.
    family_sd, model_sd : float
        Standard deviations of ln(density): shared by a family, and a model's own.
    """

    level: float
    family_sd: float
    model_sd: float


def estimate_shocks(data: TrendData, cluster: str = "family") -> Shocks | None:
    """Estimate the size of family and model shocks by maximum likelihood.

    ln rho*_i = a + b t_i + u_family + e_i, both normal, rows beyond the ruler known only as bounds: a Tobit line with a
    random intercept, its u integrated out on a grid.

    Source: Laird and Ware, Biometrics 38 (1982) 963-974, with Tobin's (1958) likelihood of bounds.

    Returns
    -------
    Shocks or None
        None where no line with a positive scatter fits.

    Examples
    --------
    >>> from densing.scores.trend.simulate import Scenario, simulate
    >>> found = estimate_shocks(simulate(Scenario(n=400, families=100, family_sd=0.6, residual_sd=0.3), 1))
    >>> abs(found.family_sd - 0.6) < 0.1, abs(found.model_sd - 0.3) < 0.03
    (True, True)
    """
    years = _years(data)
    line = fit_tobit(np.column_stack([np.ones_like(years), years]), data.log_density, data.censor)
    scale = float(line.sigma[0])
    if not (line.converged[0] and np.isfinite(scale) and scale > 1e-6):
        return None
    codes = data.clusters(cluster)
    members = (codes == np.arange(codes.max() + 1)[:, None]).astype(float)
    weights = stats.norm.logpdf(_GRID) + np.log(_GRID[1] - _GRID[0])
    y, censor = data.log_density[:, None], data.censor[:, None]

    def loss(params: Array) -> float:
        level, slope, family_sd, model_sd = *params[:2], *np.exp(params[2:])
        z = (y - level - slope * years[:, None] - family_sd * _GRID) / model_sd
        terms = np.where(censor == 0, stats.norm.logpdf(z) - np.log(model_sd), log_ndtr(-censor * z))
        return -float(logsumexp(members @ terms + weights, axis=1).sum())

    start = np.array([*line.beta[0], *np.log([scale / 2**0.5] * 2)])
    bounds = [(None, None), (None, None), *[tuple(np.log([0.02 * scale, 3 * scale]))] * 2]
    best = optimize.minimize(loss, start, method="L-BFGS-B", bounds=bounds).x
    return Shocks(float(best[0]), *(float(value) for value in np.exp(best[2:]))) if np.isfinite(best).all() else None


def draw_worlds(
    data: TrendData, shocks: Shocks, path: Array, worlds: int, rng: np.random.Generator, cluster: str = "family"
) -> tuple[Array, Array]:
    """Draw ln densities on the data's dates, families and limits: values and censoring, each (worlds, n).

    Parameters
    ----------
    path : array, shape (n,)
        Mean of ln(density) of each row.
    """
    codes = data.clusters(cluster)
    latent = path + shocks.family_sd * rng.standard_normal((worlds, codes.max() + 1))[:, codes]
    latent += shocks.model_sd * rng.standard_normal((worlds, len(data)))
    low, high = data.limits[:, 0], data.limits[:, 1]
    return np.clip(latent, low, high), np.where(latent >= high, 1, np.where(latent <= low, -1, 0)).astype(np.int8)


def one_step_slopes(y: Array, censor: Array, dates: Array) -> Array:
    """Tobit slopes (W, P) of W worlds at P sets of dates, one Newton step from the line without a slope.

    b = sum_i g_i t_i / (sum_i w_i t_i^2 - (sum_i w_i t_i)^2 / sum_i w_i), g and w the score and the curvature of each
    row at slope zero. All worlds and shuffles are three matrix products; decisions are those of the full fit in more
    than 99 of 100 worlds (``tests/test_trend_power.py``).

    Parameters
    ----------
    y, censor : array, shape (W, n)
    dates : array, shape (P, n)
        Around zero.
    """
    flat = fit_tobit(np.ones((y.shape[1], 1)), y, censor)
    score, weight = _scores(flat, np.ones((y.shape[1], 1)), y, censor)
    spread = weight @ (dates**2).T - (weight @ dates.T) ** 2 / weight.sum(axis=1, keepdims=True)
    slopes = flat.sigma[:, None] * (score @ dates.T) / spread
    return np.asarray(np.where(flat.converged[:, None], slopes, np.nan))


def score_statistics(y: Array, censor: Array, fit: TobitFit, line: Array, designs: list[Array]) -> Array:
    """Largest score statistic (W,) over designs that add columns to a line; stands for the likelihood ratio.

    U' V^-1 U with U the score of the added columns and V their curvature once the line's is taken out.

    Source: Rao (1948); equal to the likelihood ratio in the first order.

    Parameters
    ----------
    y, censor : array, shape (W, n)
    fit : TobitFit
        Of the line to each world.
    line : array, shape (n, 2)
    designs : list of array, shape (n, 2 + k)
        The first two columns span the line.
    """
    score, weight = _scores(fit, line, y, censor)
    own = np.einsum("wn,ni,nj->wij", weight, line, line)
    found = []
    for design in designs:
        added = design[:, 2:]
        cross = np.einsum("wn,ni,nj->wij", weight, line, added)
        left = np.einsum("wn,ni,nj->wij", weight, added, added) - np.swapaxes(cross, 1, 2) @ np.linalg.solve(own, cross)
        force = (score @ added)[:, :, None]
        found.append((np.swapaxes(force, 1, 2) @ np.linalg.pinv(left, hermitian=True) @ force)[:, 0, 0])
    return np.asarray(np.where(fit.converged, np.max(found, axis=0), np.nan))


def _scores(fit: TobitFit, design: Array, y: Array, censor: Array) -> tuple[Array, Array]:
    """First derivative and curvature of every row's log-likelihood in its mean, in units of sigma; (W, n) each."""
    z = (y - fit.beta @ design.T) / fit.sigma[:, None]
    score = np.where(censor == 0, z, censor * inverse_mills(-censor * z))
    return score, np.where(censor == 0, 1.0, bound_curvature(-censor * z))


def shuffle_power(
    data: TrendData,
    shocks: Shocks,
    paces: Mapping[str, float],
    *,
    tests: tuple[str, ...] = (BLOCKS, "headline", "envelope"),
    cluster: str = "family",
    worlds: int = 400,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Simulate size and power, at 5 %, of the tests that shuffle release dates.

    Parameters
    ----------
    data : TrendData
    shocks : Shocks
    paces : mapping of str to float
        Slopes per day at which power is wanted, by the words that name them.
    tests : tuple of str
        Entries of :func:`densing.scores.trend.permutation.permutation_test`.
    cluster : {"family", "organisation", "model"}
    worlds, seed : int

    Returns
    -------
    dict
        Per test ``size`` and ``power``, a list of effect and share.
    """
    rng = np.random.default_rng([seed, 6])
    shuffles = {
        BLOCKS: block_shuffles(data.days, data.clusters(cluster), SHUFFLES, rng),
        "headline": np.vstack([data.days, rng.permuted(np.tile(data.days, (SHUFFLES, 1)), axis=1)]),
    }
    found: dict[str, dict[str, Any]] = {name: {"size": None, "power": []} for name in tests}
    for effect, pace in {"": 0.0, **paces}.items():
        path = shocks.level + pace * (data.days - data.days.mean())
        y, censor = draw_worlds(data, shocks, path, worlds, rng, cluster)
        for name in tests:
            if name == "envelope":
                share = _envelope_rejects(data, shocks, path, worlds, rng, cluster)
            else:
                share = _rejects(one_step_slopes(y, censor, (shuffles[name] - data.days.mean()) / DAYS_PER_YEAR))
            if effect:
                found[name]["power"].append({"effect": effect, "share": share})
            else:
                found[name]["size"] = share
    return found


def trend_paces(slope: float) -> dict[str, float]:
    """Name the paces at which the tests of a trend are judged: the estimate, where it rises, and a slow one."""
    slow = {f"a doubling in {SLOW_MONTHS:g} months": float(np.log(2)) / SLOW_MONTHS / DAYS_PER_MONTH}
    return {**({f"a doubling in {doubling_months(slope):.1f} months": slope} if slope > 0 else {}), **slow}


def break_power(
    data: TrendData,
    shocks: Shocks,
    slope: float,
    *,
    split: pd.Timestamp | None = None,
    cluster: str = "family",
    worlds: int = 200,
    seed: int = 0,
) -> dict[str, Any]:
    """Simulate size and power, at 5 %, of the search for a break, or of the test at a stated date.

    The size is the share of worlds with one straight line, of the estimated slope, that are called broken. The searched
    test is tried on a pace that halves, and one that stops, at the middle of the window while the average stays the
    estimate; the stated one on the paper's rates before and after its date. Every world has its own bootstrap, with
    score statistics in place of likelihood ratios.

    Parameters
    ----------
    data : TrendData
    shocks : Shocks
    slope : float
        Per day, of the line without a break.
    split : Timestamp, optional
        The stated date; the search without one.
    cluster : {"family", "organisation", "model"}
    worlds, seed : int

    Returns
    -------
    dict
        ``size`` and ``power``, a list of effect and share.
    """
    rng = np.random.default_rng([seed, 7])
    line = shocks.level + slope * (data.days - data.days.mean())
    if split is None:
        designs = kinks(_years(data, EPOCH), candidates(_years(data, EPOCH)))
        middle = float(data.days.min() + data.days.max()) / 2
        bends = {"the pace halves midway": (4 / 3, 2 / 3), "the pace stops midway": (2.0, 0.0)} if slope > 0 else {}
        paths = {words: _bent(line, data.days, middle, *(slope * f for f in bend)) for words, bend in bends.items()}
    else:
        at = float((split - EPOCH) / pd.Timedelta(days=1))
        designs = [stated_design(_years(data, EPOCH), at / DAYS_PER_YEAR)]
        rates = (float(PAPER["before"]), float(PAPER["after"]))
        words = f"the paper's rates ({rates[0]:g} before, {rates[1]:g} after) hold"
        paths = {words: _bent(line, data.days, at, *rates)}
    shares = [
        _breaks(data, designs, *draw_worlds(data, shocks, path, worlds, rng, cluster), data.clusters(cluster), rng)
        for path in (line, *paths.values())
    ]
    return {
        "size": shares[0],
        "power": [{"effect": words, "share": share} for words, share in zip(paths, shares[1:], strict=True)],
    }


def _years(data: TrendData, since: pd.Timestamp | None = None) -> Array:
    days = data.days - (data.days.mean() if since is None else 0.0)
    return np.asarray(days / DAYS_PER_YEAR)


def _bent(line: Array, days: Array, at: float, before: float, after: float) -> Array:
    """Mean ln density with a kink, at the line's own height in the mean."""
    path = before * np.minimum(days - at, 0.0) + after * np.maximum(days - at, 0.0)
    return np.asarray(path + (line - path).mean())


def _rejects(values: Array) -> float | None:
    """Share of worlds whose first value, of (W, 1 + shuffles), is among the largest 5 % of its row."""
    usable = values[np.isfinite(values[:, 0])]
    if len(usable) == 0:
        return None
    with np.errstate(invalid="ignore"):
        reached = np.sum(usable[:, 1:] >= usable[:, :1], axis=1)
    return float(np.mean((1 + reached) / np.isfinite(usable).sum(axis=1) <= SIGNIFICANT))


def _breaks(
    data: TrendData, designs: list[Array], y: Array, censor: Array, codes: Array, rng: np.random.Generator
) -> float | None:
    """Share of worlds whose score statistic is among the largest 5 % of their own bootstrap."""
    null = one_line(data)
    fit = fit_tobit(null, y, censor)
    columns = [score_statistics(y, censor, fit, null, designs)]
    for _ in range(BOOTSTRAP):
        worlds, cut = wild_worlds(data, y, censor, fit, codes, rng)
        columns.append(score_statistics(worlds, cut, fit_tobit(null, worlds, cut), null, designs))
    return _rejects(np.column_stack(columns))


def _envelope_rejects(
    data: TrendData, shocks: Shocks, path: Array, worlds: int, rng: np.random.Generator, cluster: str
) -> float | None:
    """The same for the record-setters of the rows that were observed, their values shuffled."""
    seen = data.take(data.observed).replace(log_limits=None)
    values, _ = draw_worlds(seen, shocks, path[data.observed], worlds, rng, cluster)
    orders = rng.permuted(np.tile(np.arange(len(seen)), (worlds * ENVELOPE_SHUFFLES, 1)), axis=1)
    shuffled = np.take_along_axis(np.repeat(values, ENVELOPE_SHUFFLES, axis=0), orders, axis=1)
    null = envelope_slopes(seen.days, shuffled)[0].reshape(worlds, ENVELOPE_SHUFFLES)
    return _rejects(np.column_stack([envelope_slopes(seen.days, values)[0], null]))
