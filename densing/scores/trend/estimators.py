"""The estimators of a slope of ln(density), and the table of them: a new one is a function here and a row there.

The headline's own is :func:`densing.scores.trend.fit_pace`, the mean of a pace that may change. Beside it stand the
straight line through all models, limits as limits (:func:`densing.scores.trend.fit_headline`); the paper's two readings
of a frontier, kept as a replication and as a warning; least squares with CRV3 errors, Theil-Sen and a mixed model, from
well-kept libraries; and the 0.9 quantile line, a frontier that uses every model and knows about limits.

How often the interval of each held the truth where the truth was known is in ``data/coverage.csv``, which ``make
coverage-table`` measures (:mod:`densing.scores.trend.coverage`): the table says why the headline is the headline.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri, stdtrit

from densing.core import Array, Column, FitError, Table, read_table
from densing.scores.trend.data import DAYS_PER_YEAR, Slope, TrendData
from densing.scores.trend.pace import fit_pace
from densing.scores.trend.tobit import tobit_crv3

MIN_RECORDS = 3
MIN_ROWS = 3
MIN_QUANTILE_ROWS = 5
MAX_CELLS = 20_000_000
"""Of one block of lines by rows or resamples: what is in memory at a time."""
TIE = 1e-10
"""Losses this close are equal; where q n is whole the best line is not unique, and the slowest is taken."""


@dataclass(frozen=True)
class Estimator:
    """A way to estimate the slope of ln(density).

    Parameters
    ----------
    name : str
        For programs: the column ``method`` of the tables.
    function : callable
        Takes the data, the level of the interval and, by keyword, those of ``cluster``, ``bootstrap`` and ``seed``
        that it uses.
    label : str
        Name and caution, for readers.
    headline : bool
        Whether its row is the one to quote; true of one estimator only.
    """

    name: str
    function: Callable[..., Slope]
    label: str
    headline: bool = False

    def fit(self, data: TrendData, level: float = 0.95, **options: Any) -> Slope:
        """Return the estimate; each estimator gets those options that its function takes."""
        # An estimator states what it uses by its signature; the others are not its business.
        parameters = inspect.signature(self.function).parameters
        return self.function(data, level, **{name: value for name, value in options.items() if name in parameters})


def envelope(data: TrendData, level: float = 0.95) -> Slope:
    """Ordinary least squares through the record-setters, with the classical interval.

    ln rho_max = A t + B over the records of the running maximum. A model sets a record when its density beats every
    earlier one; the line is biased fast, since even a series without any trend has rising records
    (``checks.record_setter_bias`` measures by how much).

    Source: Xiao et al., arXiv 2412.04315, eq. 5 (whether only records enter is not stated there).

    Parameters
    ----------
    data : TrendData
        Censored rows are left out.
    level : float
        Nominal level of the interval; its real coverage is far lower (:func:`measured_coverage`).
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
    # Dates without a new record count too: the frontier stood still there.
    steps = np.maximum.accumulate(best) if len(best) else best
    return _classical(dates, steps, level, len(data) - len(observed))


def _classical(days: Array, values: Array, level: float, dropped: int) -> Slope:
    n = len(days)
    if n < MIN_RECORDS:
        return Slope.missing(f"{n} points, at least {MIN_RECORDS} needed", n, n, dropped)
    from scipy.stats import linregress

    fit = linregress(days, values)
    error = fit.stderr if np.isfinite(fit.stderr) else 0.0  # undefined correlation: a constant maximum
    half = stdtrit(n - 2, 0.5 + level / 2) * error
    slope = float(fit.slope)
    return Slope(slope, slope - half, slope + half, float(fit.intercept), n, n, "classical t", dropped)


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


def ols_crv3(data: TrendData, level: float = 0.95, *, cluster: str = "family") -> Slope:
    """Ordinary least squares over all observed rows, cluster-robust with few clusters in mind.

    V = (G - 1)/G sum_g (b_-g - b)(b_-g - b)', t with G - 1 degrees of freedom.

    Source: CRV3: MacKinnon, Nielsen and Webb, J. Econometrics 232 (2023) 272-299; as in statsmodels.
    """
    observed, groups, reason = _observed(data, cluster)
    n, dropped = len(observed), len(data) - len(observed)
    if not reason and groups < 2:
        reason = f"{groups} cluster, at least 2 needed"
    if reason:
        return Slope.missing(reason, n, groups, dropped)
    import statsmodels.api as sm

    model = sm.OLS(observed.log_density, sm.add_constant(observed.days / DAYS_PER_YEAR))
    try:
        fit = model.fit(cov_type="cluster-crv3", cov_kwds={"groups": observed.clusters(cluster)}, use_t=True)
        error = float(fit.bse[1]) / DAYS_PER_YEAR
    except ValueError:  # without one of the clusters no slope is left, so that the jackknife has no variance
        fit, error = model.fit(), np.inf
    slope = float(fit.params[1]) / DAYS_PER_YEAR
    # As many degrees of freedom as clusters allow, not rows: few families carry few.
    half = stdtrit(groups - 1, 0.5 + level / 2) * error
    kind = f"CRV3, t({groups - 1})"
    return Slope(slope, slope - half, slope + half, float(fit.params[0]), n, groups, kind, dropped)


def theil_sen(data: TrendData, level: float = 0.95) -> Slope:
    """Median of the slopes of all pairs of observed rows, with the rank interval of scipy.

    Source: Sen, JASA 63 (1968) 1379-1389.
    """
    observed, _, reason = _observed(data, "model")
    n, dropped = len(observed), len(data) - len(observed)
    if reason:
        return Slope.missing(reason, n, n, dropped)
    # It takes half a second to load, and what is kept of a trend does without.
    from scipy.stats import theilslopes

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # many ties make scipy's rank variance negative: no interval then
        slope, intercept, lo, hi = theilslopes(observed.log_density, observed.days, alpha=level)
    lo, hi = (lo, hi) if np.isfinite([lo, hi]).all() else (-np.inf, np.inf)
    return Slope(float(slope), float(lo), float(hi), float(intercept), n, n, "rank", dropped)


def mixed(data: TrendData, level: float = 0.95, *, cluster: str = "family") -> Slope:
    """Linear mixed model, ln rho = a + b t + u_family + e, by restricted maximum likelihood.

    Source: Laird and Ware, Biometrics 38 (1982) 963-974; as in statsmodels.
    """
    observed, groups, reason = _observed(data, cluster)
    n, dropped = len(observed), len(data) - len(observed)
    if not reason and not 2 <= groups < n:
        reason = f"{groups} clusters for {n} rows leave no family variance to estimate"
    if reason:
        return Slope.missing(reason, n, groups, dropped)
    import statsmodels.api as sm

    design = sm.add_constant(observed.days / DAYS_PER_YEAR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a family variance of zero is a legitimate answer here
            fit = sm.MixedLM(observed.log_density, design, groups=observed.clusters(cluster)).fit(reml=True)
            slope, error = float(fit.fe_params[1]), float(fit.bse_fe[1])
    except (np.linalg.LinAlgError, ValueError):
        slope, error = np.nan, np.nan
    if not (np.isfinite(slope) and np.isfinite(error)):
        return Slope.missing("the fit is singular", n, groups, dropped)
    half = ndtri(0.5 + level / 2) * error
    middle, lo, hi = (value / DAYS_PER_YEAR for value in (slope, slope - half, slope + half))
    return Slope(middle, lo, hi, float(fit.fe_params[0]), n, groups, "REML, normal", dropped)


def _observed(data: TrendData, cluster: str) -> tuple[TrendData, int, str]:
    """Observed rows, their number of clusters, and why they do not suffice (empty when they do)."""
    observed = data.take(data.observed)
    groups = len(np.unique(observed.clusters(cluster)))
    if len(observed) < MIN_ROWS:
        return observed, groups, f"{len(observed)} observed rows, at least {MIN_ROWS} needed"
    if np.ptp(observed.days) == 0:
        return observed, groups, "all observed rows share one release date"
    return observed, groups, ""


def quantile_slope(
    data: TrendData,
    level: float = 0.95,
    *,
    q: float = 0.9,
    cluster: str = "family",
    bootstrap: int = 500,
    seed: int = 0,
) -> Slope:
    """Fit the q quantile of ln(density) against days, interval by resampling whole families.

    minimise sum_i r_q( y_i - clip(a + b t_i, lo_i, hi_i) ), r_q(u) = u (q - [u < 0]).

    With two coefficients the best line passes through two of the points, so trying every pair finds the exact optimum,
    of Powell's censored version too, whose loss is not convex; and the losses of all pairs serve all bootstrap
    resamples at once, as one matrix product.

    Source: Koenker and Bassett (1978); censored version: Powell, J. Econometrics 32 (1986) 143-155.

    Parameters
    ----------
    data : TrendData
        Censored rows enter at their limits.
    level, q : float
    cluster : {"family", "organisation", "model"}
    bootstrap : int
        Resamples of clusters.
    seed : int
    """
    groups = len(np.unique(data.clusters(cluster)))
    observed = data.observed
    if observed.sum() < MIN_QUANTILE_ROWS or np.ptp(data.days[observed]) == 0:
        reason = f"{int(observed.sum())} observed rows, at least {MIN_QUANTILE_ROWS} on two dates needed"
        return Slope.missing(reason, len(data), groups, 0)
    weights = data.resample(cluster, bootstrap, np.random.default_rng(seed))
    slopes, intercepts = quantile_lines(data.days, data.log_density, data.limits, weights, q)
    # A resample whose families were all released on one date has no slope.
    first = np.where(weights > 0, data.days, np.inf).min(axis=1)
    last = np.where(weights > 0, data.days, -np.inf).max(axis=1)
    usable = slopes[1:][(last > first)[1:]]
    lo, hi = np.quantile(usable, [(1 - level) / 2, (1 + level) / 2]) if len(usable) > 1 else (np.nan, np.nan)
    n, kind = len(data), "pairs-cluster bootstrap"
    return Slope(float(slopes[0]), float(lo), float(hi), float(intercepts[0]), n, groups, kind, 0)


def quantile_lines(days: Array, values: Array, limits: Array, weights: Array, q: float) -> tuple[Array, Array]:
    """Return slopes and intercepts (B,) of the exact weighted quantile lines; of equals the smallest slope.

    Parameters
    ----------
    days, values : array, shape (n,)
    limits : array, shape (n, 2)
        Ends between which a row can be seen; infinite where there are none.
    weights : array, shape (B, n)
    q : float

    Examples
    --------
    >>> days, free = np.arange(4.0), np.tile([-np.inf, np.inf], (4, 1))
    >>> quantile_lines(days, np.array([0.0, 1.0, 9.0, 3.0]), free, np.ones((1, 4)), 0.5)[0].tolist()
    [1.0]
    """
    first, second = np.triu_indices(len(days), 1)
    # Two rows of one date carry a line without a slope.
    dated = days[first] != days[second]
    first, second = first[dated], second[dated]
    slopes = (values[second] - values[first]) / (days[second] - days[first])
    intercepts = values[first] - slopes * days[first]
    order = np.lexsort((intercepts, slopes))
    slopes, intercepts = slopes[order], intercepts[order]
    best = np.full(len(weights), np.inf)
    chosen = np.zeros(len(weights), dtype=int)
    # Lines come sorted by slope, so the first of equals is the slowest, within a block and over blocks.
    chunk = max(1, MAX_CELLS // max(len(days), len(weights)))
    for start in range(0, len(slopes), chunk):
        part = slice(start, start + chunk)
        lines = intercepts[part, None] + slopes[part, None] * days
        loss = check_loss(values, lines, limits, q) @ weights.T
        lowest = loss.min(axis=0)
        slowest = np.argmax(loss <= lowest * (1 + TIE) + TIE, axis=0)
        better = lowest * (1 + TIE) + TIE < best
        best[better], chosen[better] = lowest[better], slowest[better] + start
    return slopes[chosen], intercepts[chosen]


def check_loss(values: Array, fitted: Array, limits: Array, q: float) -> Array:
    """Return the check loss of each row about its q quantile ``fitted``, shape (..., n), censored at the limits.

    Source: Powell, J. Econometrics 32 (1986) 143-155.

    Examples
    --------
    >>> check_loss(np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.array([[-9.0, 9.0]] * 2), 0.9).round(2).tolist()
    [0.9, 0.1]
    """
    residual = values - np.clip(fitted, limits[:, 0], limits[:, 1])
    return np.asarray(residual * (q - (residual < 0)))


def mean_pace(data: TrendData, level: float = 0.95, *, seed: int = 0) -> Slope:
    """Return the mean pace over the window by :func:`fit_pace`, or the reason why there is none."""
    try:
        return fit_pace(data, level, seed=seed).window
    except FitError as error:
        reason = str(error).removeprefix("pace: ").split(";")[0]
        return Slope.missing(reason, len(data), len(np.unique(data.family)), 0)


PAPERS_OWN = ("envelope", "running-max")
"""Readings of the paper's own method, which are not estimators of a pace: shown beside its replication only."""

ESTIMATORS: Mapping[str, Estimator] = {
    estimator.name: estimator
    for estimator in (
        Estimator(
            "pace",
            mean_pace,
            "mean of a pace that may change: all models, limits as limits, effects of families and makers",
            headline=True,
        ),
        Estimator(
            "tobit-crv3",
            tobit_crv3,
            "one straight line: all models, Tobit for rows beyond the reference, family jackknife (CRV3)",
        ),
        Estimator("envelope", envelope, "record-setters OLS (Xiao et al. replication; biased fast)"),
        Estimator(
            "running-max",
            running_max,
            "running maximum at every release date, OLS (Xiao et al. replication, other reading)",
        ),
        Estimator("ols-crv3", ols_crv3, "all observed models, OLS, CRV3 by family (censored rows dropped)"),
        Estimator(
            "quantile-0.9",
            quantile_slope,
            "0.9 quantile regression (Powell, limits respected), pairs-cluster bootstrap",
        ),
        Estimator("theil-sen", theil_sen, "Theil-Sen median slope (interval ignores families; censored rows dropped)"),
        Estimator(
            "mixedlm",
            mixed,
            "mixed model with a random intercept per family (second opinion; censored rows dropped)",
        ),
    )
}
HEADLINE = next(estimator for estimator in ESTIMATORS.values() if estimator.headline)
LINE = ESTIMATORS["tobit-crv3"]
"""One pace for the whole window: what checks and many comparisons are made with."""
ORGANISATIONS = f"{LINE.name}-organisations"
"""The straight line with organisations in place of families as clusters."""
RIVALS = {LINE.name: "one straight line", "envelope": "record-setters"}


def estimates_table(slopes: Mapping[str, Slope], estimators: Iterable[Estimator] = ESTIMATORS.values()) -> pd.DataFrame:
    """Lay estimates side by side, one row per estimator, the headline marked.

    Examples
    --------
    >>> slope = Slope(0.007, 0.005, 0.01, 0.0, 20, 8, "none", 0)
    >>> table = estimates_table({"demo": slope}, [Estimator("demo", envelope, "a demonstration", headline=True)])
    >>> table[["method", "doubling_months", "headline"]].round(2).values.tolist()
    [['demo', 3.25, True]]
    """
    estimators = list(estimators)
    # Where the data are too few for the headline's estimator, the first one that gives a slope is quoted.
    able = [item for item in estimators if slopes[item.name].estimable] or estimators
    quoted = next((item for item in able if item.headline), able[0])
    rows = []
    for estimator in estimators:
        slope = slopes[estimator.name]
        lo, hi = slope.doubling_interval
        label = estimator.label
        if slope.reason:
            label += f"; not estimable: {slope.reason}"
        elif slope.estimable and slope.slope <= 0:
            label += "; slope not positive: no doubling"
        rows.append(
            {
                "method": estimator.name,
                "label": label,
                "slope_per_day": slope.slope,
                "slope_lo": slope.lo,
                "slope_hi": slope.hi,
                "doubling_months": slope.doubling_months,
                "lo": lo,
                "hi": hi,
                "n": slope.n,
                "clusters": slope.clusters,
                "se_type": slope.se_type,
                "dropped": slope.dropped,
                "headline": estimator is quoted,
            }
        )
    return pd.DataFrame(rows)


FILE = Path(__file__).parent / "data" / "coverage.csv"
SCHEMA = Table(
    "coverage",
    (
        Column("scenario", "text", "simulated world", required=True),
        Column("method", "text", "estimator", required=True),
        Column("reps", "integer", "worlds that gave a slope", required=True, low=1),
        Column("median", "number", "median estimate of the mean over the window, doublings per year", required=True),
        Column(
            "coverage",
            "number",
            "share of 95 % intervals that hold the window's mean pace",
            required=True,
            low=0,
            high=1,
        ),
        Column("coverage_last", "number", "the same for the last twelve months", required=True, low=0, high=1),
    ),
    key=("scenario", "method"),
)


@cache
def measured_coverage() -> pd.DataFrame:
    """Return the table of measured coverages: scenario, method, reps, median_doubling_months, coverage."""
    return read_table(FILE, SCHEMA, FILE.name)


@cache
def why(headline: str) -> str:
    """Return in a sentence why this estimator leads: how often its intervals, and its rivals', contained the truth.

    Examples
    --------
    >>> why("pace").startswith("Why this estimator: in simulated worlds, of constant and of changing pace, its 95 % ")
    True
    """
    rivals = ", ".join(f"those of {name} in {_both(method)}" for method, name in RIVALS.items() if method != headline)
    return (
        f"Why this estimator: in simulated worlds, of constant and of changing pace, its 95 % intervals held the mean "
        f"pace and that of the last twelve months in {_both(headline)} of cases, {rivals}."
    )


@cache
def record(headline: str) -> str:
    """Return in words how the headline's estimator performed in simulations, and where it performed worst.

    Examples
    --------
    >>> record("pace").startswith("In simulations (19 kinds of world, 200 of each) pace held the mean pace in")
    True
    """
    table = measured_coverage()
    rows = table[table["method"] == headline]
    kinds, reps = table["scenario"].nunique(), int(table["reps"].max())
    worst, worst_last = (rows.loc[rows[name].idxmin(), "scenario"] for name in ("coverage", "coverage_last"))
    return (
        f"In simulations ({kinds} kinds of world, {reps} of each) {headline} held the mean pace in "
        f"{_percent(rows['coverage'])} of them, least often in '{worst}', and that of the last twelve months in "
        f"{_percent(rows['coverage_last'])}, least often in '{worst_last}'."
    )


def held_truth(method: str) -> str:
    """Return how often a method's 95 % interval contained the window's mean pace in simulations, or an empty string.

    Examples
    --------
    >>> held_truth("a method of one's own")
    ''
    """
    rows = measured_coverage()
    shares = rows.loc[rows["method"] == method, "coverage"]
    return _percent(shares) if len(shares) else ""


def _both(method: str) -> str:
    rows = measured_coverage()
    rows = rows[rows["method"] == method]
    return f"{_percent(rows['coverage'])} and {_percent(rows['coverage_last'])}"


def _percent(shares: pd.Series) -> str:
    low, high = (f"{100 * share:.0f}" for share in (shares.min(), shares.max()))
    return f"{low} %" if low == high else f"{low} to {high} %"
