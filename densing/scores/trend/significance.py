"""Is there a trend, and did it change pace? Each test with its p-value, and with how often it is right on these data.

Shuffled dates: would models released in another order give as steep a slope? A break: did the pace change, at a date
named beforehand or at the best one that a search finds? The null model of a break is one Tobit line. Its
likelihood-ratio statistics get their p-values from a wild cluster bootstrap: censored rows are given residuals drawn
beyond their limits, whole families flip sign, and limits cut again.

Size and power are simulated: worlds keep the data's dates, families and limits and draw ln rho* = path(t) + u_family +
e, normal, with both deviations estimated from the data. A p-value says little without these two shares: a test that
rejects 18 % of worlds without a trend accuses the innocent, one that finds a trend in 5 % of worlds that have one
acquits everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import log_ndtr, logsumexp, ndtr, ndtri

from densing.core import Array
from densing.scores.trend.data import DAYS_PER_MONTH, DAYS_PER_YEAR, EPOCH, TrendData, doubling_months
from densing.scores.trend.estimators import envelope_slopes
from densing.scores.trend.tobit import TobitFit, bound_curvature, fit_tobit, inverse_mills

SIGNIFICANT = 0.05
BLOCKS = "headline_family_blocks"
"""The test to read: the others break the ties within families or rest on record-setters."""
CHATGPT = pd.Timestamp("2022-11-30")
SLOW_MONTHS = 12.0
"""A doubling time that a test of the trend should be able to see: growth of density by two in a year."""
# What a break is tested on at least: observed rows and families on each side of a stated date, rows for a search.
MIN_ROWS, MIN_FAMILIES, MIN_SEARCH = 4, 3, 12
MAX_CANDIDATES, TRIM = 15, 0.15
# Of the simulated worlds: one set of shuffles for all of them, or few shuffles and resamples for each.
SHUFFLES, ENVELOPE_SHUFFLES, BOOTSTRAP = 199, 59, 39
_GRID = np.linspace(-4.5, 4.5, 121)


@dataclass(frozen=True)
class Effect:
    """An alternative to the null hypothesis, in words, and the share of such worlds that a test rejects."""

    effect: str
    share: float


@dataclass(frozen=True)
class SizeAndPower:
    """How often a test rejects at 5 %, in simulated worlds.

    Parameters
    ----------
    size : float
        Under the null hypothesis; should be 5 %. NaN if no world could be tested.
    power : tuple of Effect
        Under alternatives.
    """

    size: float
    power: tuple[Effect, ...]


@dataclass(frozen=True)
class ShuffleTest:
    """A slope compared with those of shuffled release dates.

    Parameters
    ----------
    p, slope, null_median_slope, null_median_doubling_months : float or None
        The p-value, the slope per day in the data, the median of the shuffles and the doubling time that it implies;
        None where not computable.
    null_slopes : tuple of float
        Of the shuffles, six digits.
    size, power
        As in :class:`SizeAndPower`; None where they were not simulated.
    """

    p: float | None
    slope: float | None
    null_median_slope: float | None
    null_median_doubling_months: float | None
    null_slopes: tuple[float, ...]
    size: float | None = None
    power: tuple[Effect, ...] | None = None


@dataclass(frozen=True)
class PermutationTests:
    """The tests that shuffle release dates.

    Parameters
    ----------
    permutations : int
    envelope : ShuffleTest
        Of the record-setters' slope.
    headline : ShuffleTest
        Of the headline's slope, models shuffled one by one.
    headline_family_blocks : ShuffleTest
        The same, whole families shuffled: the test to quote.
    """

    permutations: int
    envelope: ShuffleTest
    headline: ShuffleTest
    headline_family_blocks: ShuffleTest


@dataclass(frozen=True)
class StatedBreak:
    """A test of a break at a date named beforehand.

    Parameters
    ----------
    date : str
    n_before, n_after : int
        Rows, bounds included.
    p : float or None
    reason : str or None
        Why it was not tested.
    slope_before, slope_after, statistic : float, optional
        Slopes per day and the likelihood-ratio statistic, if tested.
    size, power
        As in :class:`SizeAndPower`; None where they were not simulated.
    """

    date: str
    n_before: int
    n_after: int
    p: float | None
    reason: str | None
    slope_before: float | None = None
    slope_after: float | None = None
    statistic: float | None = None
    size: float | None = None
    power: tuple[Effect, ...] | None = None


@dataclass(frozen=True)
class SearchedBreak:
    """The best break of a search.

    Parameters
    ----------
    date : str or None
    p : float or None
        Accounts for the search.
    reason : str or None
        Why nothing was searched.
    candidates : int, optional
        Dates tried.
    slope_before, slope_after, statistic, size, power
        As in :class:`StatedBreak`.
    """

    date: str | None
    p: float | None
    reason: str | None
    candidates: int | None = None
    slope_before: float | None = None
    slope_after: float | None = None
    statistic: float | None = None
    size: float | None = None
    power: tuple[Effect, ...] | None = None


@dataclass(frozen=True)
class PaperRates:
    """The paper's slopes per day before and after ChatGPT."""

    before: float
    after: float
    source: str


PAPER = PaperRates(0.0048, 0.0073, "Xiao et al., arXiv 2412.04315, section on the ChatGPT split")


@dataclass(frozen=True)
class BreakTests:
    """The stated and the searched break, the paper's rates beside them, and the worlds behind the p-values."""

    stated: StatedBreak
    searched: SearchedBreak
    paper: PaperRates
    bootstrap: int


def permutation_test(
    data: TrendData, *, cluster: str = "family", permutations: int = 999, seed: int = 0
) -> PermutationTests:
    """Compare the envelope's and the headline's slope with those of shuffled release dates.

    p = (1 + number of shuffles with a slope at least as large) / (1 + shuffles), one-sided.

    Models shuffled one by one break the ties within families, which makes a trend look more certain than it
    is; the block shuffle exchanges the dates of whole families and keeps the spacing inside each.

    Parameters
    ----------
    data : TrendData
    cluster : {"family", "organisation", "model"}
    permutations, seed : int
    """
    rng = np.random.default_rng([seed, 2])
    # The data's own order stands first, so that all slopes come out of one batch.
    identity = np.arange(len(data))
    orders = np.vstack([identity, rng.permuted(np.tile(identity, (permutations, 1)), axis=1)])
    single = _tobit_slopes(data, data.days[orders])
    # A bound sets no record: the envelope's shuffles are of the observed rows alone.
    observed = data.take(data.observed)
    identity = np.arange(len(observed))
    orders = np.vstack([identity, rng.permuted(np.tile(identity, (permutations, 1)), axis=1)])
    records = envelope_slopes(observed.days, observed.log_density[orders])[0]
    blocks = _tobit_slopes(data, block_shuffles(data.days, data.clusters(cluster), permutations, rng))
    return PermutationTests(permutations, _judged(records), _judged(single), _judged(blocks))


def block_shuffles(days: Array, codes: Array, count: int, rng: np.random.Generator) -> Array:
    """Shuffle the mean dates of clusters, keeping the offsets inside each; row 0 is unshuffled.

    Examples
    --------
    >>> days, codes = np.array([0.0, 2.0, 10.0]), np.array([0, 0, 1])
    >>> block_shuffles(days, codes, 20, np.random.default_rng(0)).max(axis=0).tolist()
    [9.0, 11.0, 10.0]
    """
    # A family keeps the spacing of its models: its mean date moves to another family's, and they with it.
    anchors = np.bincount(codes, weights=days) / np.bincount(codes)
    order = np.arange(len(anchors))
    orders = np.vstack([order, rng.permuted(np.tile(order, (count, 1)), axis=1)])
    return np.asarray(days + (anchors[orders] - anchors)[:, codes])


def _tobit_slopes(data: TrendData, days: Array) -> Array:
    """Tobit slopes per day for many sets of dates (B, n)."""
    years = (days - data.days.mean()) / DAYS_PER_YEAR
    design = np.stack([np.ones_like(years), years], axis=-1)
    fit = fit_tobit(design, data.log_density, data.censor)
    return np.asarray(np.where(fit.converged, fit.beta[:, 1], np.nan) / DAYS_PER_YEAR)


def _judged(slopes: Array) -> ShuffleTest:
    """Test the first slope against the others."""
    slope, null = float(slopes[0]), slopes[1:][np.isfinite(slopes[1:])]
    if not np.isfinite(slope) or len(null) == 0:
        return ShuffleTest(None, None, None, None, ())
    # A shuffle that changes nothing must count as reaching, whatever the order of its sums did to the last digit.
    reached = int(np.sum(null >= slope * (1 - 1e-12) if slope > 0 else null >= slope))
    middle = float(np.median(null))
    doubling = doubling_months(middle)
    return ShuffleTest(
        p=(1 + reached) / (1 + len(null)),
        slope=slope,
        null_median_slope=middle,
        null_median_doubling_months=doubling if np.isfinite(doubling) else None,
        null_slopes=tuple(float(f"{value:.6g}") for value in null),
    )


def breakpoint_test(
    data: TrendData,
    *,
    split: pd.Timestamp = CHATGPT,
    cluster: str = "family",
    bootstrap: int = 199,
    seed: int = 0,
) -> BreakTests:
    """Test a break at a stated date and search for one.

    Stated: lines before and after, free in level and slope (Chow). Searched: the best kink of a continuous
    line over up to 15 dates in the middle 70 % of the window (sup-LR).

    Source: Chow (1960); Andrews, Econometrica 61 (1993) 821-856 for the search; Cameron, Gelbach and Miller
    (2008) for the bootstrap.

    Parameters
    ----------
    data : TrendData
    split : Timestamp
        Chosen beforehand: the release of ChatGPT.
    cluster : {"family", "organisation", "model"}
    bootstrap, seed : int
    """
    codes = data.clusters(cluster)
    years = data.days / DAYS_PER_YEAR
    at = float((split - EPOCH) / pd.Timedelta(days=1)) / DAYS_PER_YEAR
    reason = _untestable(data, codes, at)
    date, before, after = str(split.date()), int(np.sum(years < at)), int(np.sum(years >= at))
    stated = StatedBreak(date, before, after, None, reason)
    searched = SearchedBreak(None, None, f"fewer than {MIN_SEARCH} observed rows, or too few dates")
    observed = data.observed
    searchable = int(observed.sum()) >= MIN_SEARCH and len(np.unique(data.days[observed])) >= 6
    if not reason or searchable:
        worlds = _NullWorlds(data, codes, bootstrap, np.random.default_rng([seed, 4]))
        if not reason:
            ratios, fit = worlds.ratios(stated_design(years, at))
            pace, change = float(fit.beta[0, 1]) / DAYS_PER_YEAR, float(fit.beta[0, 3]) / DAYS_PER_YEAR
            stated = StatedBreak(
                date, before, after, _p_value(ratios), None, pace, pace + change, statistic=float(ratios[0])
            )
        if searchable and len(dates := candidates(years)):
            searched = _searched(worlds, years, dates)
    return BreakTests(stated, searched, PAPER, bootstrap)


class _NullWorlds:
    """One line fitted to the data and to wild bootstrap worlds drawn from it."""

    def __init__(self, data: TrendData, codes: Array, bootstrap: int, rng: np.random.Generator) -> None:
        design = one_line(data)
        fit = fit_tobit(design, data.log_density, data.censor)
        y, censor = (np.tile(values, (bootstrap, 1)) for values in (data.log_density, data.censor))
        worlds, cut = wild_worlds(data, y, censor, fit, codes, rng)
        self.y, self.censor = np.vstack([data.log_density, worlds]), np.vstack([data.censor, cut])
        self.loglik = fit_tobit(design, self.y, self.censor).loglik

    def ratios(self, design: Array) -> tuple[Array, TobitFit]:
        """Likelihood-ratio statistics of a larger design: in the data first, then in every world."""
        fit = fit_tobit(design, self.y, self.censor)
        return np.where(np.isfinite(fit.loglik), 2 * (fit.loglik - self.loglik), np.nan), fit


def one_line(data: TrendData) -> Array:
    """Design of the null model, shape (n, 2)."""
    years = data.days / DAYS_PER_YEAR
    return np.column_stack([np.ones(len(data)), years - years.mean()])


def wild_worlds(
    data: TrendData, y: Array, censor: Array, fit: TobitFit, codes: Array, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Draw one world without a break per row of ``y``: residuals of whole clusters flip sign, then rows are censored.

    Parameters
    ----------
    data : TrendData
        Dates and limits.
    y, censor : array, shape (B, n)
        Data sets, or one repeated.
    fit : TobitFit
        Of :func:`one_line`, one or one per data set.
    codes : array of int, shape (n,)
    rng : Generator
    """
    mean = fit.beta @ one_line(data).T
    residual, sigma = y - mean, np.broadcast_to(fit.sigma[:, None], y.shape)
    for side in (1, -1):
        # Of a bound only the limit is known: its residual is drawn from the normal's tail beyond it.
        beyond = censor == side
        edge = residual[beyond] / sigma[beyond]
        tail = ndtr(-side * edge) * rng.random(len(edge))
        residual[beyond] = side * sigma[beyond] * -ndtri(np.clip(tail, 1e-300, 1.0))
    # One sign for a whole family: what its models share is kept, which way it went is not.
    signs = rng.choice([-1.0, 1.0], size=(len(y), int(codes.max()) + 1))[:, codes]
    low, high = data.limits[:, 0], data.limits[:, 1]
    worlds = mean + signs * residual
    return np.clip(worlds, low, high), np.where(worlds >= high, 1, np.where(worlds <= low, -1, 0))


def _p_value(statistics: Array) -> float | None:
    """Return the share of worlds that reach the data's statistic; fits without a finite maximum count too."""
    if not np.isfinite(statistics[0]):
        return None
    reached = np.sum(~(statistics[1:] < statistics[0]))
    return float((1 + reached) / len(statistics))


def stated_design(years: Array, at: float) -> Array:
    """Two lines, free in level and slope, before and after a date."""
    after = (years >= at).astype(float)
    return np.column_stack([np.ones_like(years), years - at, after, after * (years - at)])


def candidates(years: Array) -> Array:
    """Dates at which a kink is tried: up to 15 of the middle 70 % of the window."""
    dates = np.unique(years)
    low, high = np.quantile(years, [TRIM, 1 - TRIM])
    inner = dates[(dates > max(low, dates[1])) & (dates < min(high, dates[-2]))]
    # A line needs two dates on each side of its kink, and near the ends a few models decide.
    picks = np.unique(np.linspace(0, len(inner) - 1, min(MAX_CANDIDATES, len(inner))).astype(int))
    return np.asarray(inner[picks])


def kinks(years: Array, dates: Array) -> list[Array]:
    """Continuous lines with a kink, one design per date."""
    return [
        np.column_stack([np.ones_like(years), years - kink, np.maximum(years - kink, 0.0)]) for kink in dates.tolist()
    ]


def _searched(worlds: _NullWorlds, years: Array, dates: Array) -> SearchedBreak:
    fits = [worlds.ratios(design) for design in kinks(years, dates)]
    table = np.array([ratios for ratios, _ in fits])
    table = np.where(np.isfinite(table), table, -np.inf)
    best = int(table[:, 0].argmax())
    slopes = fits[best][1].beta[0, 1:] / DAYS_PER_YEAR
    date = EPOCH + pd.Timedelta(days=float(dates[best] * DAYS_PER_YEAR))
    return SearchedBreak(
        date=str(date.round("D").date()),
        # Every world is searched, too: its best date stands against the best one of the data.
        p=_p_value(table.max(axis=0)),
        reason=None,
        candidates=len(dates),
        slope_before=float(slopes[0]),
        slope_after=float(slopes.sum()),
        statistic=float(table[best, 0]),
    )


def _untestable(data: TrendData, codes: Array, at: float) -> str | None:
    """Return why the stated date cannot be tested, or None."""
    for name, side in (
        ("before", data.days / DAYS_PER_YEAR < at),
        ("after", data.days / DAYS_PER_YEAR >= at),
    ):
        observed = side & data.observed
        families = len(np.unique(codes[observed]))
        if observed.sum() < MIN_ROWS or families < MIN_FAMILIES or len(np.unique(data.days[observed])) < 3:
            return (
                f"{int(observed.sum())} observed models of {families} families {name} the date; "
                f"at least {MIN_ROWS} models of {MIN_FAMILIES} families on three dates needed"
            )
    return None


@dataclass(frozen=True)
class Shocks:
    """Scatter of models around a line.

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


def _normal_log_density(z: Array) -> Array:
    return np.asarray(-(z**2) / 2 - np.log(np.sqrt(2 * np.pi)))


def estimate_shocks(data: TrendData, cluster: str = "family") -> Shocks | None:
    """Estimate the size of family and model shocks by maximum likelihood.

    ln rho*_i = a + b t_i + u_family + e_i, both normal, rows beyond the reference known only as bounds: a Tobit line
    with a random intercept, its u integrated out on a grid.

    Source: Laird and Ware, Biometrics 38 (1982) 963-974, with Tobin's (1958) likelihood of bounds.

    Returns
    -------
    Shocks or None
        None where no line with a positive scatter fits.

    Examples
    --------
    >>> from densing.scores.trend.coverage import Scenario, simulate
    >>> shocks = estimate_shocks(simulate(Scenario(n=400, families=100, family_sd=0.6, residual_sd=0.3), 1))
    >>> abs(shocks.family_sd - 0.6) < 0.1, abs(shocks.model_sd - 0.3) < 0.03
    (True, True)
    """
    from scipy.optimize import minimize

    years = (data.days - data.days.mean()) / DAYS_PER_YEAR
    line = fit_tobit(np.column_stack([np.ones_like(years), years]), data.log_density, data.censor)
    scale = float(line.sigma[0])
    if not (line.converged[0] and np.isfinite(scale) and scale > 1e-6):
        return None
    codes = data.clusters(cluster)
    # Given u the rows of a family are independent: log-likelihoods add up over its members, at every point of the grid.
    members = (codes == np.arange(codes.max() + 1)[:, None]).astype(float)
    weights = _normal_log_density(_GRID) + np.log(_GRID[1] - _GRID[0])
    y, censor = data.log_density[:, None], data.censor[:, None]

    def loss(params: Array) -> float:
        level, slope, family_sd, model_sd = *params[:2], *np.exp(params[2:])
        z = (y - level - slope * years[:, None] - family_sd * _GRID) / model_sd
        terms = np.where(censor == 0, _normal_log_density(z) - np.log(model_sd), log_ndtr(-censor * z))
        return -float(logsumexp(members @ terms + weights, axis=1).sum())

    # From half of the line's variance for each; neither may vanish, nor run away where families have one model each.
    start = np.array([*line.beta[0], *np.log([scale / 2**0.5] * 2)])
    bounds = [(None, None), (None, None), *[tuple(np.log([0.02 * scale, 3 * scale]))] * 2]
    best = minimize(loss, start, method="L-BFGS-B", bounds=bounds).x
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
    than 99 of 100 worlds (``tests/scores/trend/test_significance.py``).

    Parameters
    ----------
    y, censor : array, shape (W, n)
    dates : array, shape (P, n)
        Around zero.
    """
    # The line without a slope does not know the dates, so it is fitted once per world for all its shuffles.
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
    worlds, n = y.shape
    # All designs at once: sums over the rows are products of matrices.
    added = np.stack([design[:, 2:] for design in designs], axis=1)
    shape = added.shape[1:]
    own = (weight @ (line[:, :, None] * line[:, None, :]).reshape(n, -1)).reshape(worlds, 2, 2)
    cross = (weight @ (line[:, :, None, None] * added[:, None]).reshape(n, -1)).reshape(worlds, 2, *shape)
    curvature = weight @ (added[..., None] * added[:, :, None]).reshape(n, -1)
    explained = np.linalg.solve(own, cross.reshape(worlds, 2, -1)).reshape(cross.shape)
    curvature = curvature.reshape(worlds, *shape, shape[1]) - np.einsum("wida,widb->wdab", cross, explained)
    # The line's own score is zero at its fit, so that only the added columns pull.
    force = (score @ added.reshape(n, -1)).reshape(worlds, *shape)
    pulled = (np.linalg.pinv(curvature, hermitian=True) @ force[..., None])[..., 0]
    return np.asarray(np.where(fit.converged, (force * pulled).sum(axis=-1).max(axis=1), np.nan))


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
) -> dict[str, SizeAndPower]:
    """Simulate size and power, at 5 %, of the tests that shuffle release dates.

    Parameters
    ----------
    data : TrendData
    shocks : Shocks
    paces : mapping of str to float
        Slopes per day at which power is wanted, by the words that name them.
    tests : tuple of str
        Fields of :class:`PermutationTests`.
    cluster : {"family", "organisation", "model"}
    worlds, seed : int

    Returns
    -------
    dict of SizeAndPower
        By test.
    """
    # One set of shuffles for all worlds: dates and families are the data's in each, and the products are shared.
    rng = np.random.default_rng([seed, 6])
    shuffles = {
        BLOCKS: block_shuffles(data.days, data.clusters(cluster), SHUFFLES, rng),
        "headline": np.vstack([data.days, rng.permuted(np.tile(data.days, (SHUFFLES, 1)), axis=1)]),
    }
    shares: dict[str, list[Effect]] = {name: [] for name in tests}
    for effect, pace in {"": 0.0, **paces}.items():
        path = shocks.level + pace * (data.days - data.days.mean())
        y, censor = draw_worlds(data, shocks, path, worlds, rng, cluster)
        for name in tests:
            if name == "envelope":
                share = _envelope_rejects(data, shocks, path, worlds, rng, cluster)
            else:
                share = _rejects(one_step_slopes(y, censor, (shuffles[name] - data.days.mean()) / DAYS_PER_YEAR))
            shares[name].append(Effect(effect, share))
    return {name: SizeAndPower(null.share, tuple(effects)) for name, (null, *effects) in shares.items()}


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
) -> SizeAndPower:
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
    """
    rng = np.random.default_rng([seed, 7])
    years = data.days / DAYS_PER_YEAR
    line = shocks.level + slope * (data.days - data.days.mean())
    if split is None:
        designs = kinks(years, candidates(years))
        middle = float(data.days.min() + data.days.max()) / 2
        bends = {"the pace halves midway": (4 / 3, 2 / 3), "the pace stops midway": (2.0, 0.0)} if slope > 0 else {}
        paths = {
            effect: _bent(line, data.days, middle, slope * before, slope * after)
            for effect, (before, after) in bends.items()
        }
    else:
        at = float((split - EPOCH) / pd.Timedelta(days=1))
        designs = [stated_design(years, at / DAYS_PER_YEAR)]
        effect = f"the paper's rates ({PAPER.before:g} before, {PAPER.after:g} after) hold"
        paths = {effect: _bent(line, data.days, at, PAPER.before, PAPER.after)}
    shares = [
        _breaks(data, designs, *draw_worlds(data, shocks, path, worlds, rng, cluster), data.clusters(cluster), rng)
        for path in (line, *paths.values())
    ]
    return SizeAndPower(shares[0], tuple(Effect(*pair) for pair in zip(paths, shares[1:], strict=True)))


def _bent(line: Array, days: Array, at: float, before: float, after: float) -> Array:
    """Mean ln density with a kink, at the line's own height in the mean."""
    # Same height on average: what the test sees is the bend, not another level of density.
    path = before * np.minimum(days - at, 0.0) + after * np.maximum(days - at, 0.0)
    return np.asarray(path + (line - path).mean())


def _rejects(values: Array) -> float:
    """Share of worlds whose first value, of (W, 1 + shuffles), is among the largest 5 % of its row; NaN without any."""
    usable = values[np.isfinite(values[:, 0])]
    if len(usable) == 0:
        return float("nan")
    with np.errstate(invalid="ignore"):
        reached = np.sum(usable[:, 1:] >= usable[:, :1], axis=1)
    return float(np.mean((1 + reached) / np.isfinite(usable).sum(axis=1) <= SIGNIFICANT))


def _breaks(
    data: TrendData, designs: list[Array], y: Array, censor: Array, codes: Array, rng: np.random.Generator
) -> float:
    """Share of worlds whose score statistic is among the largest 5 % of their own bootstrap."""
    # Each world is tested as the data are: its own line, and its own bootstrap around that.
    null = one_line(data)
    fit = fit_tobit(null, y, censor)
    columns = [score_statistics(y, censor, fit, null, designs)]
    for _ in range(BOOTSTRAP):
        worlds, cut = wild_worlds(data, y, censor, fit, codes, rng)
        columns.append(score_statistics(worlds, cut, fit_tobit(null, worlds, cut), null, designs))
    return _rejects(np.column_stack(columns))


def _envelope_rejects(
    data: TrendData, shocks: Shocks, path: Array, worlds: int, rng: np.random.Generator, cluster: str
) -> float:
    """The same for the record-setters of the rows that were observed, their values shuffled."""
    rows = data.take(data.observed).replace(log_limits=None)
    values, _ = draw_worlds(rows, shocks, path[data.observed], worlds, rng, cluster)
    orders = rng.permuted(np.tile(np.arange(len(rows)), (worlds * ENVELOPE_SHUFFLES, 1)), axis=1)
    shuffled = np.take_along_axis(np.repeat(values, ENVELOPE_SHUFFLES, axis=0), orders, axis=1)
    null = envelope_slopes(rows.days, shuffled)[0].reshape(worlds, ENVELOPE_SHUFFLES)
    return _rejects(np.column_stack([envelope_slopes(rows.days, values)[0], null]))
