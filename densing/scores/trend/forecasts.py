"""What a trend says of what comes: the frontier carried forward, dates, how such forecasts fared, what follows from it.

The frontier is the densest model measured so far, as in eq. 5 of arXiv 2412.04315; from the newest release on it is
carried forward at the pace of the last twelve months, which may be none. The fan is the spread over draws of that pace,
of the densest model's score and of the reference law. That the densest of many owes part of its place to luck is not
corrected; models beyond the reference, which may be denser still, do not count
(:func:`densing.scores.trend.estimate_trend` names them). A line through all models, lifted to its upper decile, was
tried first: back-tests ran higher still (docs/adr/0003).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from numbers import Real
from typing import Any, Protocol

import numpy as np
import pandas as pd
from scipy.special import stdtr

from densing.core import Array, DomainError, FitError, InputError
from densing.scores.fit import GUARD
from densing.scores.trend.data import DAYS_PER_MONTH, DAYS_PER_YEAR, EPOCH, TrendData, doubling_months
from densing.scores.trend.estimate import TrendResult
from densing.scores.trend.pace import PaceFit, fit_pace
from densing.scores.trend.tobit import Headline, fit_headline

MIN_TRAIN = 10
FURTHEST = pd.Timestamp("2150-01-01")
"""Later than this counts as never."""
HARDWARE_YEARS = 2.1
MONTHS_PER_YEAR = DAYS_PER_YEAR / DAYS_PER_MONTH
SURE = 0.95
"""Confidence from which on a forecast counts as closer than standing still."""


class FitLike(Protocol):
    """The part of a law fit that a forecast needs."""

    @property
    def law(self) -> Any: ...
    @property
    def theta(self) -> Array: ...
    @property
    def draws(self) -> Array: ...
    @property
    def domain(self) -> Mapping[str, tuple[float, float]]: ...


class ReferenceLike(Protocol):
    """The part of a reference that a forecast needs."""

    @property
    def fit(self) -> FitLike: ...
    @property
    def given(self) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class Arrival:
    """The date at which the frontier reaches a density.

    Parameters
    ----------
    date, lo, hi : pandas.Timestamp
        Best guess and interval; NaT where a date is never reached (``date``, ``hi``) or has no earliest end
        (``lo``).
    density, density_lo, density_hi : float
        The density needed.
    level : float
    note : str
        Caution in words; empty when there is none.
    """

    date: pd.Timestamp
    lo: pd.Timestamp
    hi: pd.Timestamp
    density: float
    density_lo: float
    density_hi: float
    level: float
    note: str

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; a date never reached is None."""
        days = {
            name: None if pd.isna(stamp) else str(stamp.date())
            for name, stamp in (("date", self.date), ("date_lo", self.lo), ("date_hi", self.hi))
        }
        needs = (self.density, self.density_lo, self.density_hi)
        names = ("density", "density_lo", "density_hi")
        finite = {name: value if np.isfinite(value) else None for name, value in zip(names, needs, strict=True)}
        return {**days, **finite, "level": self.level, "note": self.note}


def forecast(
    trend: TrendResult,
    horizon_months: float | str | date | timedelta = 24.0,
    *,
    step_months: float = 1.0,
    today: pd.Timestamp | None = None,
) -> pd.DataFrame:
    """Extrapolate the frontier.

    rho(t) = rho_record exp(max(b, 0) (t - t_last)): a record cannot fall.

    Parameters
    ----------
    trend : TrendResult
    horizon_months : float, timedelta, or date
        Months (of 30.44 days) or a time from the newest release on, or the last date, as ``"2026-12-31"``.
    step_months : float
    today : Timestamp, optional
        Dates before it are left out: they are for :func:`score_forecast`.

    Returns
    -------
    pandas.DataFrame
        date, mid, lo50, hi50, lo90, hi90: density of the frontier (not its logarithm).

    Raises
    ------
    InputError
        When the horizon is not time, or before the newest release.

    Examples
    --------
    >>> from densing.scores.trend import estimate_trend
    >>> from densing.scores.trend.coverage import Scenario, simulate
    >>> fan = forecast(estimate_trend(simulate(Scenario(), 1), permutations=19, worlds=0), 12)
    >>> len(fan), bool((fan["lo90"] <= fan["mid"]).all())
    (13, True)

    See Also
    --------
    date_for, when
    """
    first = pd.Timestamp(trend.data.released.max()).normalize()
    steps = np.arange(0.0, _months_from(first, horizon_months) + 1e-9, step_months)
    dates = first + pd.to_timedelta(steps * DAYS_PER_MONTH, unit="D").round("D")
    ahead = np.asarray((dates - first) / pd.Timedelta(days=1), dtype=float)
    start = Frontier.of(trend)
    # A frontier of records never falls, whatever the slope: a pace below zero holds it still.
    mid = start.record + max(start.pace, 0.0) * ahead
    drawn = start.records[:, None] + np.maximum(start.paces, 0.0)[:, None] * ahead
    lo90, lo50, hi50, hi90 = np.exp(np.quantile(drawn, [0.05, 0.25, 0.75, 0.95], axis=0))
    fan = pd.DataFrame({"date": dates, "mid": np.exp(mid), "lo50": lo50, "hi50": hi50, "lo90": lo90, "hi90": hi90})
    return fan if today is None else fan[fan["date"] >= today].reset_index(drop=True)


def _months_from(first: pd.Timestamp, horizon: float | str | date | timedelta) -> float:
    """Return a horizon in months of 30.44 days after a date."""
    try:
        if isinstance(horizon, Real):
            span = float(horizon)
        elif isinstance(horizon, timedelta):
            span = pd.Timedelta(horizon) / pd.Timedelta(days=DAYS_PER_MONTH)
        else:
            # ISO only: of 01.12.2027 one reader makes January, another December.
            end = datetime.fromisoformat(horizon) if isinstance(horizon, str) else horizon
            span = (pd.Timestamp(end) - first) / pd.Timedelta(days=DAYS_PER_MONTH)
    except (ValueError, TypeError) as error:
        raise InputError(f"horizon {horizon!r}: give months, a timedelta, or a date such as 2026-12-31") from error
    if not 0 <= span < 12_000:
        raise InputError(f"horizon {horizon!r}: it must lie after the newest release ({first.date()})")
    return span


@dataclass(frozen=True)
class ForecastScore:
    """A forecast of the frontier compared with the outcome.

    Parameters
    ----------
    date : Timestamp
        The last release within the horizon.
    mid, lo90, hi90 : float
        Density forecast for it.
    came : float
        Density of the densest model measured by then, the record at the time included.
    model : str
        Its name.
    record : float
        Density of the densest model at the time of the forecast.
    """

    date: pd.Timestamp
    mid: float
    lo90: float
    hi90: float
    came: float
    model: str
    record: float


def score_forecast(trend: TrendResult | FittedTrend, later: TrendData, horizon_months: float) -> ForecastScore | None:
    """Compare the forecast of a frontier with the outcome.

    Parameters
    ----------
    trend : TrendResult or FittedTrend
    later : TrendData
        Models released after those of the trend, on the same reference.
    horizon_months : float

    Returns
    -------
    ForecastScore or None
        None without a later model that was measured.

    Examples
    --------
    >>> from densing.scores.trend import estimate_trend
    >>> from densing.scores.trend.coverage import Scenario, simulate
    >>> data = simulate(Scenario(), 1)
    >>> trend = estimate_trend(data.window(until="2024-06-30"), permutations=19, worlds=0)
    >>> score_forecast(trend, data.window(since="2024-07-01"), 6).came > 0
    True
    """
    last = float(trend.data.days.max())
    within = (later.days > last) & (later.days <= last + horizon_months * DAYS_PER_MONTH)
    measured = later.take(later.observed & within)
    if not len(measured):
        return None
    end = pd.Timestamp(measured.released.max())
    ahead = float(measured.days.max()) - last
    start = Frontier.of(trend)
    drawn = start.records + np.maximum(start.paces, 0.0) * ahead
    lo90, hi90 = np.exp(np.quantile(drawn, [0.05, 0.95]))
    best = int(measured.log_density.argmax())
    beaten = measured.log_density[best] > start.record
    densest = int(np.argmax(np.where(trend.data.observed, trend.data.log_density, -np.inf)))
    return ForecastScore(
        date=end.normalize(),
        mid=float(np.exp(start.record + max(start.pace, 0.0) * ahead)),
        lo90=float(lo90),
        hi90=float(hi90),
        came=float(np.exp(max(measured.log_density[best], start.record))),
        model=str(measured.model[best] if beaten else trend.data.model[densest]),
        record=float(np.exp(start.record)),
    )


def date_for(
    trend: TrendResult,
    density: float,
    level: float = 0.9,
    *,
    later: TrendData | None = None,
    today: pd.Timestamp | None = None,
) -> Arrival:
    """Say when the frontier reaches a density.

    t = t_last + (ln rho - ln rho_record) / b, draw by draw; if a model has that density already, its date.

    Parameters
    ----------
    trend : TrendResult
    density : float
        Above zero.
    level : float
    later, today
        As for :func:`when`.

    Raises
    ------
    DomainError
        For a density of zero or below.

    See Also
    --------
    when, forecast

    Examples
    --------
    >>> import densing
    >>> densities = densing.catalog_densities(densing.load_catalog(), densing.load_reference("qwen1.5", "mmlu"))
    >>> trend = densing.estimate_trend(densities.headline, permutations=19, bootstrap=50, worlds=0, keep=True)
    >>> arrival = densing.date_for(trend, 10.0)
    >>> bool(arrival.lo < arrival.date)
    True
    """
    if not (np.isfinite(density) and density > 0):
        raise DomainError(f"density {density:g}: give a finite number above zero")
    need = np.full(len(trend.draws), np.log(density))
    return _scored(_arrival(trend, float(np.log(density)), need, level, ""), trend, later, today)


def when(
    trend: TrendResult,
    score: float,
    params: float,
    reference: ReferenceLike,
    level: float = 0.9,
    *,
    later: TrendData | None = None,
    today: pd.Timestamp | None = None,
) -> Arrival:
    """Say when a score fits into a number of parameters.

    Needed density: rho = N_eff(score) / params; then as :func:`date_for`. Draws of the law are those behind
    the same draws of the record, so its error is not counted twice.

    Source: eq. 4 and 5 of Xiao et al., arXiv 2412.04315.

    Parameters
    ----------
    trend : TrendResult
    score : float
        In [0, 1], on the benchmark of ``reference``.
    params : float
        A count.
    reference : Reference
        The one behind ``trend``.
    level : float
    later : TrendData, optional
        Models released after those of the trend, on the same reference: a date up to the newest of them is scored in
        ``note``.
    today : Timestamp, optional
        An earlier date that no data can score is withheld.

    Raises
    ------
    DomainError
        For a score outside [0, 1] or a size of zero or below.

    See Also
    --------
    date_for, forecast

    Examples
    --------
    >>> import densing
    >>> densities = densing.catalog_densities(densing.load_catalog(), densing.load_reference("qwen1.5", "mmlu"))
    >>> trend = densing.estimate_trend(densities.headline, permutations=19, bootstrap=50, worlds=0, keep=True)
    >>> arrival = densing.when(trend, 0.75, 3e9, densities.reference)
    >>> bool(arrival.density_lo < arrival.density < arrival.density_hi)
    True
    """
    if not 0 <= score <= 1:
        raise DomainError(f"score {score:g}: give a share in [0, 1]")
    if not (params > 0 and np.isfinite(params)):
        raise DomainError(f"params {params:g}: give a count above zero")
    # Each draw of the line was made under one draw of the law: the size needed is read under the same one.
    fit = reference.fit
    effective, status = fit.law.invert(fit.theta, score, **reference.given)
    rows = trend.fit.law_rows
    if len(rows) == 0 or rows.max() >= len(fit.draws):
        rows = np.arange(len(trend.draws)) % max(len(fit.draws), 1)
    drawn = fit.law.invert(fit.draws[rows], score, **reference.given)[0] if len(fit.draws) else effective
    with np.errstate(divide="ignore"):
        middle = float(np.log(effective)) - np.log(params)
        need = np.log(np.broadcast_to(drawn, trend.draws.shape)) - np.log(params)
    low, high = fit.domain.get("params", (0.0, np.inf))
    note = ""
    if str(status) == "below_floor":
        note = "the score is at or below the reference's floor: any size does"
    elif str(status) == "above_ceiling":
        note = "the score is at or above the reference's ceiling: no finite reference model reaches it"
    elif not low / GUARD <= float(np.asarray(effective)) <= GUARD * high:
        note = "the score lies beyond the reference's sizes: extrapolated"
    return _scored(_arrival(trend, middle, need, level, note), trend, later, today)


def _scored(arrival: Arrival, trend: TrendResult, later: TrendData | None, today: pd.Timestamp | None) -> Arrival:
    """Score a date covered by later data; withhold one that has passed without any."""
    last = pd.Timestamp(trend.data.released.max())
    if pd.isna(arrival.date) or arrival.date <= last:
        return arrival
    known = last if later is None or not len(later) else max(last, pd.Timestamp(later.released.max()))
    if arrival.date <= known and later is not None:
        reached = later.take((later.censor >= 0) & (later.log_density >= np.log(arrival.density))).window(last)
        outcome = f"forecast from models to {last.date()}; by {known.date()} no model had it"
        if len(reached):
            first = int(reached.days.argmin())
            day = pd.Timestamp(reached.released[first]).date()
            outcome = f"forecast from models to {last.date()}; {reached.model[first]} had it on {day}"
        return replace(arrival, note="; ".join(filter(None, (arrival.note, outcome))))
    if today is not None and arrival.date < today:
        passed = f"the date forecast has passed, and the data, which end on {known.date()}, cannot score it"
        note = "; ".join(filter(None, (arrival.note, passed)))
        return replace(arrival, date=pd.NaT, lo=pd.NaT, hi=pd.NaT, note=note)
    return arrival


@dataclass(frozen=True)
class Frontier:
    """The frontier at the newest release, and the pace of its extrapolation.

    Parameters
    ----------
    record : float
        ln(density) of the densest observed model.
    pace : float
        Slope per day of the last twelve months; of the straight line if the data cannot support a changing pace.
    records, paces : array, shape (R,)
        Draws of both, paired through the reference law.
    """

    record: float
    pace: float
    records: Array
    paces: Array

    @classmethod
    def of(cls, trend: TrendResult | FittedTrend) -> Frontier:
        """Read the frontier off a trend."""
        data = trend.data
        densest = int(np.flatnonzero(data.observed)[np.argmax(data.log_density[data.observed])])
        record, pace, paces = float(data.log_density[densest]), float(trend.fit.line[1]), trend.fit.lines[:, 1]
        if trend.varying is not None:
            # What lies ahead goes on at the pace of the last twelve months; where a draw of it is not positive, the
            # frontier stands still.
            pace, paces = trend.varying.last_year.slope, trend.varying.last_year_draws[trend.varying.picks(len(paces))]
        drawn = data.law_draws if data.draws is None else data.draws
        if drawn is None:
            return cls(record, pace, np.full(len(paces), record), paces)
        # The same draws of the law as behind the lines: a reference that reads high reads the record high, too.
        rows = trend.fit.law_rows if len(trend.fit.law_rows) else np.arange(len(paces)) % len(drawn)
        return cls(record, pace, drawn[rows, densest], paces)


def _arrival(trend: TrendResult, middle: float, need: Array, level: float, note: str) -> Arrival:
    start = Frontier.of(trend)
    mid = _days(trend, np.array([middle]), np.array([start.record]), np.array([start.pace]))[0]
    days = _days(trend, need, start.records, start.paces)
    ends = [(1 - level) / 2, (1 + level) / 2]
    lo, hi = np.quantile(days, ends, method="inverted_cdf")  # no arithmetic between infinite neighbours
    need_lo, need_hi = np.exp(np.quantile(need, ends, method="inverted_cdf"))
    date, earliest, latest = (_stamp(value) for value in (mid, lo, hi))
    notes = [note] if note else []
    if pd.isna(date):
        notes.append("the frontier does not get there")
    elif middle <= start.record:
        notes.append("a model of that density exists")
    if pd.isna(latest) and not pd.isna(date):
        notes.append("no latest date: some of the likely trends never get there")
    with np.errstate(over="ignore"):
        density = float(np.exp(middle))
    return Arrival(date, earliest, latest, density, float(need_lo), float(need_hi), level, "; ".join(notes))


def _days(trend: TrendResult, need: Array, records: Array, paces: Array) -> Array:
    """Days since 2023-02-24 at which the frontier reaches ``need``: an actual release, or the extrapolated pace."""
    data = trend.data
    # What the record had by then is a release; what it lacks lies ahead, at the pace of each draw.
    order = np.argsort(data.days[data.observed], kind="stable")
    days = data.days[data.observed][order]
    best = np.maximum.accumulate(data.log_density[data.observed][order])
    release = days[np.minimum(np.searchsorted(best, need), len(days) - 1)]
    with np.errstate(divide="ignore", invalid="ignore"):
        later = float(data.days.max()) + (need - records) / np.where(paces > 0, paces, np.nan)
    return np.where(need <= records, release, np.where(paces > 0, later, np.inf))


def _stamp(days: float) -> Any:
    """Timestamp of a day count; NaT when it lies before 1970 or counts as never."""
    furthest = (FURTHEST - EPOCH) / pd.Timedelta(days=1)
    earliest = (pd.Timestamp("1970-01-01") - EPOCH) / pd.Timedelta(days=1)
    if not earliest <= days <= furthest:
        return pd.NaT
    return (EPOCH + pd.Timedelta(days=round(days))).normalize()


@dataclass(frozen=True)
class FittedTrend:
    """What a forecast of the frontier reads of a trend: the models known, the line, and the pace where it was fitted.

    See Also
    --------
    TrendResult
    """

    data: TrendData
    fit: Headline
    varying: PaceFit | None


@dataclass(frozen=True)
class Backtest:
    """Forecasts from earlier dates, compared with outcomes.

    Parameters
    ----------
    n : int
        Held-out models, counted once per cut; 0 if none could be held out, and then all other fields are None.
    why : str, optional
        Why none could.
    level : float
        Nominal share of held-out models inside the band.
    coverage : float
        Observed share inside; a bound counts as outside only if it contradicts the band.
    median_error : float
        Of observed minus forecast ln(density), by the line; above zero where models beat it.
    frontier_error : float
        Median over cuts of the record's ln(density) at the last measured release of the holdout minus
        :func:`forecast` of it; NaN if no holdout has one.
    standstill_error : float
        The same for a frontier that stays where it is, the benchmark for a forecast.
    closer : float
        Confidence that the mean absolute error of :func:`forecast` is below that of a frontier that stays where it is:
        Student's t on the paired differences, cuts whose holdouts overlap averaged; NaN where too few are left.
    cuts : pandas.DataFrame
        One row per cut: cut, n_train, n_test, doubling_months, coverage, median_error,
        frontier_error, standstill_error.
    """

    n: int
    why: str | None = None
    level: float | None = None
    coverage: float | None = None
    median_error: float | None = None
    frontier_error: float | None = None
    standstill_error: float | None = None
    closer: float | None = None
    cuts: pd.DataFrame | None = None

    @property
    def beats_standing_still(self) -> bool:
        """Whether the forecast was closer to the outcome than a frontier that stays where it is, beyond chance."""
        return self.closer is not None and self.closer >= SURE


def backtest(
    data: TrendData,
    holdout_months: float = 6.0,
    *,
    step_months: float = 3.0,
    level: float = 0.9,
    cluster: str = "family",
    pace: Callable[..., PaceFit] = fit_pace,
    seed: int = 0,
) -> Backtest:
    """Cut at regular dates, fit on what was known, score the models of the following months.

    The frontier is forecast as :func:`forecast` does, and scored by :func:`score_forecast`. The band of a single model
    is the spread of a + b t + s e over draws of the straight line and of e.

    Parameters
    ----------
    data : TrendData
        The reference law is the same throughout: this tests the trend, not the reference, which
        :func:`densing.scores.trend.backtest_forecasts` fits anew at every date.
    holdout_months, step_months : float
    level : float
    cluster : {"family", "organisation", "model"}
    pace : callable
        Fits the pace of what was known; a second or two per cut.
    seed : int

    Raises
    ------
    FitError
        When no cut leaves ten observed models before it and one after.

    Examples
    --------
    >>> from functools import partial
    >>> from densing.scores.trend.coverage import Scenario, simulate
    >>> data = simulate(Scenario(n=120, families=40, family_sd=0.0, ceilings=None), 2)
    >>> result = backtest(data, pace=partial(fit_pace, chains=2, sweeps=50, burn=20))
    >>> bool(0.8 < result.coverage <= 1)
    True
    """
    rows = data.ordered()
    last = float(rows.days.max()) if len(rows) else 0.0
    hold, step = holdout_months * DAYS_PER_MONTH, step_months * DAYS_PER_MONTH
    # The first cut is where ten models are known, and every later one a step on.
    dates = np.sort(rows.days[rows.observed])
    cuts, inside, errors = [], [], []
    cut = dates[MIN_TRAIN - 1] if len(dates) > MIN_TRAIN else last
    while cut < last:
        train, test = rows.take(rows.days <= cut), rows.take((rows.days > cut) & (rows.days <= cut + hold))
        try:
            fit = fit_headline(train, cluster=cluster, seed=seed) if len(test) else None
        except FitError:
            fit = None
        if fit is not None:
            held, error = _held(fit, test, level, seed)
            try:
                varying = pace(train, seed=seed)
            except FitError:
                varying = None
            ahead = (cut + hold - float(train.days.max())) / DAYS_PER_MONTH
            score = score_forecast(FittedTrend(train, fit, varying), test, ahead)
            cuts.append(
                {
                    "cut": (EPOCH + pd.Timedelta(days=float(cut))).normalize(),
                    "n_train": len(train),
                    "n_test": len(held),
                    "doubling_months": doubling_months(fit.slope.slope),
                    "coverage": float(np.mean(held)),
                    "median_error": _median(error),
                    "frontier_error": math.log(score.came / score.mid) if score else math.nan,
                    "standstill_error": math.log(score.came / score.record) if score else math.nan,
                }
            )
            inside.append(held)
            errors.append(error)
        cut += step
    if not cuts:
        raise FitError(f"backtest: {len(dates)} observed models leave no cut with {MIN_TRAIN} before it and one after")
    table, members = pd.DataFrame(cuts), np.concatenate(inside)
    return Backtest(
        n=len(members),
        level=level,
        coverage=float(np.mean(members)),
        median_error=_median(np.concatenate(errors)),
        frontier_error=float(table["frontier_error"].median()),
        standstill_error=float(table["standstill_error"].median()),
        closer=_closer(table, max(1, math.ceil(holdout_months / step_months))),
        cuts=table,
    )


def _closer(cuts: pd.DataFrame, overlapping: int) -> float:
    """Return the confidence that the forecast's mean absolute error is the lower one: Student's t, paired.

    So many consecutive cuts count as one, since they are scored on the same models; NaN for fewer than two of these.
    """
    scored = cuts.dropna(subset="frontier_error")
    gain = scored["standstill_error"].abs() - scored["frontier_error"].abs()
    means = gain.groupby(np.arange(len(gain)) // overlapping).mean()
    if len(means) < 2:
        return math.nan
    middle, error = float(means.mean()), float(means.sem())
    return float(stdtr(len(means) - 1, middle / error)) if error else float(middle > 0)


def _held(fit: Headline, test: TrendData, level: float, seed: int) -> tuple[Array, Array]:
    """Return whether each model lies inside its band, and its error (NaN for bounds)."""
    rng = np.random.default_rng([seed, 5])
    ahead = test.days - fit.centre
    mid = fit.line[0] + fit.line[1] * ahead
    lines = fit.lines[:, :1] + fit.lines[:, 1:] * ahead
    models = lines + fit.sigma * rng.standard_normal(lines.shape)
    lo, hi = np.quantile(models, [0.5 - level / 2, 0.5 + level / 2], axis=0)
    # A bound contradicts the band only where it lies beyond it on its own side.
    y, censor = test.log_density, test.censor
    inside = ((y >= lo) | (censor > 0)) & ((y <= hi) | (censor < 0))
    return inside, np.where(censor == 0, y - mid, np.nan)


def _median(values: Array) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")


def factor_per_year(months: float) -> float:
    """Growth of density in a year for a doubling time in months.

    F = 2^(365.25 / (30.44 T)); equally the factor by which parameters of equal performance shrink.

    Source: Xiao et al., arXiv 2412.04315, corollary 1.

    Raises
    ------
    DomainError
        For a doubling time of zero or below.

    Examples
    --------
    >>> round(factor_per_year(3.30), 1)
    12.4
    """
    return 2.0 ** (MONTHS_PER_YEAR / _positive(months))


def with_hardware(months: float, hardware_years: float = HARDWARE_YEARS) -> float:
    """Doubling time, in months, of the effective size that a fixed price buys.

    1/T = 1/T_density + 1/T_hardware.

    Source: Xiao et al., arXiv 2412.04315, corollary 3; 2.1 years for FLOP per dollar: Hobbhahn et al. (2023).

    Parameters
    ----------
    months : float
        Doubling time of density.
    hardware_years : float
        Doubling time of computation per price.

    Examples
    --------
    >>> round(with_hardware(95.0 / 30.44) * 30.44, 1)  # days
    84.5
    """
    return 1 / (1 / _positive(months) + 1 / (_positive(hardware_years) * MONTHS_PER_YEAR))


def corollaries(trend: TrendResult, hardware_years: float = HARDWARE_YEARS) -> pd.DataFrame:
    """Return the consequences of a headline, with intervals.

    Parameters
    ----------
    trend : TrendResult
    hardware_years : float

    Returns
    -------
    pandas.DataFrame
        quantity, unit, value, lo, hi, equation; every quantity is monotone in T, so its ends are those of T.
    """
    ends = [float(trend.headline[name]) for name in ("doubling_months", "lo", "hi")]
    rows = [
        ("parameters at equal performance shrink by", "times per year", factor_per_year, "2^(12 months / T)"),
        (
            "effective size at a fixed price doubles in",
            "months",
            lambda months: with_hardware(months, hardware_years),
            f"1/T = 1/T_density + 1/({hardware_years:g} years)",
        ),
    ]
    table = []
    for quantity, unit, make, equation in rows:
        value, *limits = (make(months) for months in ends)
        table.append((quantity, unit, value, min(limits), max(limits), equation))
    return pd.DataFrame(table, columns=["quantity", "unit", "value", "lo", "hi", "equation"])


def _positive(value: float) -> float:
    if math.isnan(value) or value <= 0:
        raise DomainError(f"a doubling time of {value:g}: it must be above zero")
    return value
