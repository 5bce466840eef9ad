"""Forecasts against algebra, back-tests against known worlds, corollaries against published figures."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from densing.core.errors import DomainError, FitError, InputError
from densing.scores.trend import TrendData, TrendResult, estimate_trend
from densing.scores.trend.coverage import Scenario, simulate
from densing.scores.trend.forecasts import (
    Frontier,
    _closer,
    backtest,
    corollaries,
    date_for,
    factor_per_year,
    forecast,
    score_forecast,
    when,
    with_hardware,
)
from densing.scores.trend.pace import fit_pace
from densing.scores.trend.tobit import fit_headline

SHORT = partial(fit_pace, chains=2, sweeps=60, burn=30)
"""Chains that are long enough for everything but figures."""


@cache
def rising() -> TrendResult:
    data = simulate(Scenario(n=60, families=20, law_sd=0.05, law_draws=120), 5)
    return estimate_trend(data, permutations=19, worlds=0)


@cache
def without_trend() -> TrendResult:
    return estimate_trend(simulate(Scenario(doubling_months=np.inf), 0), permutations=19, worlds=0)


class PowerLaw:
    """A reference with score = (N / scale)^0.25, inverted exactly: N = scale * score^4."""

    def invert(self, theta: np.ndarray, y: float, **given: float) -> tuple[np.ndarray, np.ndarray]:
        size = np.asarray(theta)[..., 0] * y**4
        return size, np.full(np.shape(size), "ok" if y > 0 else "below_floor")


def reference(draws: int = 120, spread: float = 0.0) -> Any:
    scale = 1e11 * np.exp(spread * np.random.default_rng(0).standard_normal((draws, 1)))
    fit = SimpleNamespace(law=PowerLaw(), theta=np.array([1e11]), draws=scale, domain={"params": (1e8, 7e10)})
    return SimpleNamespace(fit=fit, given={})


def record() -> float:
    return float(rising().data.log_density[rising().data.observed].max())


def last() -> pd.Timestamp:
    return pd.Timestamp(rising().data.released.max()).normalize()


def test_frontier_is_the_record_carried_on_at_the_pace_of_the_last_year() -> None:
    fan = forecast(rising(), 6)
    ahead = (fan["date"] - last()).dt.days
    assert rising().varying is not None
    np.testing.assert_allclose(np.log(fan["mid"]), record() + rising().varying.last_year.slope * ahead)
    straight = forecast(replace(rising(), varying=None), 6)
    np.testing.assert_allclose(np.log(straight["mid"]), record() + rising().fit.line[1] * ahead)
    ordered = fan[["lo90", "lo50", "mid", "hi50", "hi90"]].to_numpy()
    assert (np.diff(ordered[1:], axis=1) > 0).all()
    assert fan["date"].is_monotonic_increasing and len(fan) == 7


def test_a_record_never_falls() -> None:
    assert rising().varying is not None
    falling = replace(rising(), varying=replace(rising().varying, slopes=-rising().varying.slopes))
    assert (np.diff(forecast(falling, 6)["mid"]) == 0).all()


def test_a_density_that_exists_is_dated_by_the_model_that_has_it() -> None:
    seen = rising().data.observed
    order = np.argsort(rising().data.days[seen], kind="stable")
    first = np.flatnonzero(rising().data.log_density[seen][order] >= record() - 0.5)[0]
    found = date_for(rising(), float(np.exp(record() - 0.5)))
    assert found.date == pd.Timestamp(rising().data.released[seen][order][first]).round("D")
    assert "exists" in found.note


def test_date_for_inverts_the_forecast() -> None:
    fan = forecast(rising(), 12)
    for row in fan[1:].itertuples():
        found = date_for(rising(), row.mid)
        assert abs((found.date - row.date).days) <= 1
        assert found.lo <= found.date < found.hi


def test_date_interval_is_the_share_of_paces_that_crossed() -> None:
    found = date_for(rising(), float(np.exp(record() + 1)), level=0.9)
    rows = rising().fit.law_rows
    densest = int(np.flatnonzero(rising().data.observed)[np.argmax(rising().data.log_density[rising().data.observed])])
    records = rising().data.law_draws[rows, densest]
    ahead = (found.hi - last()).days
    paces = Frontier.of(rising()).paces
    crossed = np.mean(records + np.maximum(paces, 0) * ahead >= record() + 1)
    assert crossed == pytest.approx(0.95, abs=0.01)


def test_dates_that_have_passed_are_not_forecast() -> None:
    whole = forecast(rising(), 12)
    today = last() + pd.Timedelta(days=100)
    kept = forecast(rising(), 12, today=today)
    pd.testing.assert_frame_equal(kept, whole[whole["date"] >= today].reset_index(drop=True))
    assert 0 < len(kept) < len(whole)
    assert forecast(rising(), 12, today=last() + pd.Timedelta(days=400)).empty


def test_a_forecast_is_scored_against_what_came() -> None:
    """By hand: slope .002 a day, cut at day 300, a record of 1.0 at day 280, later models at days 350 and 420."""
    days = [*range(0, 300, 20), 350, 420, 700]
    values = [0.002 * day + (0.1 if day % 40 else -0.1) for day in days[:-3]] + [1.5, 0.9, 9.0]
    values[days.index(280)] = 1.0
    names = [f"m{day}" for day in days]
    family = [f"f{day // 60}" for day in days]
    data = TrendData.from_arrays(names, family, pd.Timestamp("2023-02-24") + pd.to_timedelta(days, "D"), values)
    cut = pd.Timestamp("2023-02-24") + pd.Timedelta(days=300)
    trend = estimate_trend(data.window(until=cut), permutations=19, worlds=0)
    score = score_forecast(trend, data.window(since=cut), 6.0)
    assert score is not None and trend.varying is not None
    assert (score.date, score.model) == (pd.Timestamp("2023-02-24") + pd.Timedelta(days=420), "m350")
    assert (score.came, score.record) == pytest.approx((np.exp(1.5), np.exp(1.0)))
    assert score.mid == pytest.approx(np.exp(1.0 + trend.varying.last_year.slope * 140))
    assert score.lo90 <= score.mid <= score.hi90
    assert score_forecast(trend, data.window(since=cut).take(np.array([2])), 6.0) is None


def test_a_date_is_scored_by_later_models_and_withheld_where_none_can_score_it() -> None:
    need = float(np.exp(record() + 0.8))
    ahead = date_for(rising(), need)
    later = TrendData.from_arrays(["late", "weak"], ["x", "y"], [ahead.date, ahead.date], [record() + 1.0, record()])
    assert f"late had it on {ahead.date.date()}" in date_for(rising(), need, later=later).note
    assert "no model had it" not in date_for(rising(), need, later=later).note
    weak = later.take(np.array([1]))
    assert f"by {ahead.date.date()} no model had it" in date_for(rising(), need, later=weak).note
    gone = date_for(rising(), need, today=ahead.date + pd.Timedelta(days=1))
    assert pd.isna(gone.date) and pd.isna(gone.lo) and pd.isna(gone.hi) and "cannot score it" in gone.note
    assert date_for(rising(), need, today=ahead.date) == ahead
    known = date_for(rising(), float(np.exp(record() - 0.5)), today=ahead.date + pd.Timedelta(days=900))
    assert "exists" in known.note and not pd.isna(known.date), "what has come is no forecast"


def test_a_flat_trend_has_no_latest_date() -> None:
    found = date_for(without_trend(), 1e3)
    assert pd.isna(found.hi)
    assert "no latest date" in found.note or "does not get there" in found.note
    json.dumps(found.to_dict(), allow_nan=False)


def test_when_is_the_date_of_the_needed_density() -> None:
    found = when(rising(), 0.7, 1e7, reference())
    assert found.density == pytest.approx(1e11 * 0.7**4 / 1e7)
    assert found.date == date_for(rising(), found.density).date
    halved = when(rising(), 0.7, 0.5e7, reference())
    months = (halved.date - found.date).days / 30.44
    assert rising().varying is not None
    assert months == pytest.approx(rising().varying.last_year.doubling_months, abs=0.05)


def test_law_draws_are_paired_and_widen_the_date() -> None:
    sure, unsure = when(rising(), 0.7, 1e7, reference()), when(rising(), 0.7, 1e7, reference(spread=0.5))
    assert unsure.hi - unsure.lo > sure.hi - sure.lo
    # When the reference's error in the needed size also sits in the record, it cancels instead of adding.
    shift = reference(spread=0.5)
    shared = np.log(shift.fit.draws[:, 0] / 1e11)
    lifted = rising().data.replace(law_draws=rising().data.law_draws + shared[:, None])
    cancelled = when(replace(rising(), data=lifted), 0.7, 1e7, shift)
    assert abs((cancelled.hi - sure.hi).days) <= 1 and abs((cancelled.lo - sure.lo).days) <= 1


def test_scores_off_the_reference_are_said_to_be_so() -> None:
    assert "any size does" in when(rising(), 0.0, 1e9, reference()).note
    assert "extrapolated" in when(rising(), 0.1, 1e9, reference()).note
    assert when(rising(), 0.7, 1e10, reference()).note == "a model of that density exists"
    assert when(rising(), 0.7, 1e7, reference()).note == ""


@pytest.mark.parametrize(("score", "params"), [(45.0, 1e9), (-0.1, 1e9), (0.5, 0.0), (np.nan, 1e9)])
def test_impossible_questions_are_refused(score: float, params: float) -> None:
    with pytest.raises(DomainError):
        when(rising(), score, params, reference())


def test_impossible_densities_are_refused() -> None:
    with pytest.raises(DomainError, match="above zero"):
        date_for(rising(), 0.0)


def test_backtest_bands_hold_their_share_when_models_are_independent() -> None:
    """Without family shocks 90 % bands hold 90 % of held-out models, and late cuts are right in the median."""
    scenario = Scenario(n=220, families=220, family_sd=0.0, residual_sd=0.8, ceilings=None, spread_months=0.0)
    # The band is the line's: the pace is fitted as quickly as can be.
    least = partial(fit_pace, chains=1, sweeps=2, burn=1)
    worlds = [backtest(simulate(scenario, seed), pace=least, seed=seed).cuts.assign(world=seed) for seed in range(12)]
    cuts = pd.concat(worlds)
    late = cuts[cuts["n_train"] >= 100]
    assert np.average(cuts["coverage"], weights=cuts["n_test"]) == pytest.approx(0.9, abs=0.025)
    errors = late.groupby("world")["median_error"].mean()
    assert abs(errors.mean()) < 3.3 * errors.std() / np.sqrt(len(errors))


@pytest.mark.slow
@pytest.mark.parametrize(("doubling", "least", "most"), [(2.0, 0.6, 1.0), (np.inf, 0.0, 0.1)])
def test_backtest_says_whether_the_forecast_beats_standing_still(doubling: float, least: float, most: float) -> None:
    """With a strong trend it does; without one it cannot, but for chance."""
    scenario = Scenario(n=160, families=40, doubling_months=doubling, months=36, ceilings=None)
    worlds = [backtest(simulate(scenario, seed), pace=SHORT, seed=seed) for seed in range(10)]
    assert least <= np.mean([world.beats_standing_still for world in worlds]) <= most
    misses = pd.concat([world.cuts for world in worlds])[["frontier_error", "standstill_error"]].abs().mean()
    assert (misses["frontier_error"] < 0.7 * misses["standstill_error"]) == (least > 0)


def test_cuts_scored_on_the_same_models_count_once() -> None:
    """By hand: closer by 1 and by 2 in the cuts of one block, by 2.5 in the other; t of 1.5 and 2.5 is 4 with 1 df."""
    cuts = pd.DataFrame({"standstill_error": [2.0, 4.0, math.nan, -3.5], "frontier_error": [-1.0, 2.0, math.nan, 1.0]})
    assert _closer(cuts, 2) == pytest.approx(0.5 + math.atan(4) / math.pi)
    assert _closer(-cuts, 2) == _closer(cuts, 2)
    assert math.isnan(_closer(cuts.head(2), 2))
    assert _closer(cuts.assign(frontier_error=cuts["standstill_error"]), 2) == 0.0, "standing still is not closer"


def test_backtest_only_looks_back() -> None:
    data = simulate(Scenario(n=60, families=20), 5)
    found = backtest(data, 6.0, pace=SHORT).cuts
    late = data.days > (found["cut"].iloc[0] - pd.Timestamp("2023-02-24")).days + 6 * 30.44 + 1
    changed = data.replace(log_density=np.where(late, data.log_density + 5, data.log_density))
    pd.testing.assert_series_equal(found.iloc[0], backtest(changed, 6.0, pace=SHORT).cuts.iloc[0])


def test_backtest_without_a_cut_says_so() -> None:
    with pytest.raises(FitError, match="no cut"):
        backtest(simulate(Scenario(n=10, families=5, ceilings=None), 0))


@pytest.mark.parametrize(("days", "combined"), [(95.0, 84.5), (99.0, 87.7), (106.5, 93.5)])
def test_density_and_hardware_combine_as_derived_from_the_paper(days: float, combined: float) -> None:
    """densing-law.md 1.11: 1/T = 1/Td + 1/(2.1 years); the paper's 88 days belongs to 99."""
    assert with_hardware(days / 30.44) * 30.44 == pytest.approx(combined, abs=0.06)


@pytest.mark.parametrize(
    ("slope", "factor"), [(0.007, 12.9), (0.0073, 14.4), (0.0066, 11.1), (0.0065, 10.7), (0.0048, 5.8)]
)
def test_growth_per_year_of_the_published_slopes(slope: float, factor: float) -> None:
    """densing-law.md 1.6, second row of its consistency table."""
    assert factor_per_year(np.log(2) / slope / 30.44) == pytest.approx(factor, abs=0.06)


def test_corollaries_carry_the_interval_and_its_open_end() -> None:
    table = corollaries(rising())
    assert ((table["lo"] <= table["value"]) & (table["value"] <= table["hi"])).all()
    flat = corollaries(without_trend()).set_index("unit")
    assert flat.loc["times per year", "lo"] == 1.0
    assert flat.loc["months", "hi"] == pytest.approx(2.1 * 365.25 / 30.44)


@pytest.mark.parametrize("months", [0.0, -1.0, np.nan])
def test_no_corollary_of_an_impossible_doubling_time(months: float) -> None:
    with pytest.raises(DomainError):
        factor_per_year(months)


@pytest.fixture(scope="module")
def simulated() -> TrendResult:
    return estimate_trend(simulate(Scenario(), 1), permutations=9, bootstrap=9, worlds=0)


def test_a_horizon_is_months_a_time_or_a_date(simulated: TrendResult) -> None:
    first = pd.Timestamp(simulated.data.released.max()).normalize()
    months = forecast(simulated, 12)
    until = (first + pd.Timedelta(days=12 * 30.44)).ceil("s")
    for horizon in (until, str(until), until.to_pydatetime(), until - first, np.int64(12)):
        pd.testing.assert_frame_equal(forecast(simulated, horizon), months)


@pytest.mark.parametrize("horizon", ["soon", "2019-01-01", "01.12.2027", -3, None, float("nan"), float("inf")])
def test_a_horizon_that_is_no_time_ahead_is_refused(simulated: TrendResult, horizon: Any) -> None:
    with pytest.raises(InputError, match="horizon"):
        forecast(simulated, horizon)


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_a_back_test_is_its_cuts_written_out(level: float) -> None:
    """Models released on the last day of a holdout belong to it, those of the day of the cut to what was known."""
    data = simulate(Scenario(n=40, families=14, months=20, ceilings=(1.5, 8.0)), 4)
    month = 30.44
    days = month * np.sort(np.random.default_rng(0).integers(0, 20, 40))
    data = data.replace(days=days).ordered()
    days = data.days
    found = backtest(data, 3.0, step_months=2.0, level=level, pace=SHORT, seed=3)
    cut, rows, members, errors = np.sort(days[data.censor == 0])[9], [], [], []
    while cut < days.max():
        train, test = data.take(days <= cut), data.take((days > cut) & (days < cut + 3 * month + 1e-6))
        if len(test):
            fit = fit_headline(train, seed=3)
            ahead = test.days - fit.centre
            error = test.log_density - fit.line[0] - fit.line[1] * ahead
            lines = fit.lines[:, :1] + fit.lines[:, 1:] * ahead
            drawn = lines + fit.sigma * np.random.default_rng([3, 5]).standard_normal(lines.shape)
            lo, hi = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
            above, below = test.log_density > hi, test.log_density < lo
            # A bound from above is no failure below it, nor one from below above it.
            out = np.where(test.censor == 0, above | below, np.where(test.censor > 0, above, below))
            record = train.log_density[train.censor == 0].max()
            came = test.take(test.censor == 0)
            top = max(record, came.log_density.max(initial=-np.inf))
            try:
                slope = SHORT(train, seed=3).last_year.slope
            except FitError:
                slope = fit.line[1]
            gain = max(slope, 0) * (came.days.max(initial=-np.inf) - train.days.max())
            missed = [top - record - gain, top - record] if len(came) else [math.nan, math.nan]
            seen = error[test.censor == 0]
            middle = np.median(seen) if len(seen) else math.nan
            rows.append([len(train), len(test), np.mean(~out), middle, *missed])
            members.append(~out)
            errors.append(seen)
        cut += 2 * month
    names = ["n_train", "n_test", "coverage", "median_error", "frontier_error", "standstill_error"]
    np.testing.assert_allclose(found.cuts[names].to_numpy(float), np.array(rows, float), atol=1e-9)
    assert found.n == sum(map(len, members)) and found.coverage == np.concatenate(members).mean()
    assert found.median_error == pytest.approx(np.median(np.concatenate(errors)))
    assert found.frontier_error == pytest.approx(np.nanmedian([row[4] for row in rows]))
    assert found.standstill_error == pytest.approx(np.nanmedian([row[5] for row in rows]))
