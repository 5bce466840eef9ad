"""The varying pace: its sampler is calibrated against its own prior, and planted paces are found, or not invented."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from densing.core import FitError
from densing.scores.trend import TrendData, estimate_trend, fit_pace, forecast
from densing.scores.trend.coverage import LONG, SCENARIOS, measure_coverage, simulate
from densing.scores.trend.data import DAYS_PER_MONTH, DAYS_PER_YEAR
from densing.scores.trend.pace import (
    ERROR_PRIOR,
    FREEDOM,
    LEVEL_SD,
    LN2,
    PACE_SD,
    PRIORS,
    SHARED_SD,
    PaceFit,
    _marginal,
)
from densing.scores.trend.sentences import now
from tests.support import folders
from tests.support.budget import FULL, may_be
from tests.support.trend_data import dated

WORLDS = 200 if FULL else 16
SHORT = {"chains": 4, "sweeps": 250, "burn": 100}
FAMILIES, MAKERS, MODELS = 12, 5, 36


def from_the_prior(rng: np.random.Generator) -> tuple[TrendData, dict[str, float]]:
    """Draw a pace and data of it as the model says, some rows beyond a ceiling; return both."""
    family = np.arange(MODELS) % FAMILIES
    maker = family % MAKERS
    days = np.sort(rng.uniform(0, 720, MODELS))
    first, last = days[0], days[-1]
    knots = np.linspace(first, last, round((last - first) / DAYS_PER_MONTH) + 1)
    walk, of_family, of_maker = np.abs(rng.standard_normal(3)) * [PRIORS["usual"], SHARED_SD, SHARED_SD]
    variance = 1 / rng.gamma(ERROR_PRIOR[0], 1 / ERROR_PRIOR[1])
    steps = rng.standard_normal(len(knots) - 2) * walk * LN2 / math.sqrt(12)
    # Level and first slope are drawn at the mean date, per year, as the model's design has them.
    slopes = (rng.normal(0, PACE_SD) + np.concatenate([[0.0], np.cumsum(steps)])) / DAYS_PER_YEAR
    middle = slopes[0] * (days.mean() - first)
    heights = np.concatenate([[0.0], np.cumsum(slopes * np.diff(knots))]) + rng.normal(0, LEVEL_SD) - middle
    latent = np.interp(days, knots, heights)
    latent += of_family * rng.standard_normal(FAMILIES)[family] + of_maker * rng.standard_normal(MAKERS)[maker]
    latent += math.sqrt(variance) * rng.standard_t(FREEDOM, MODELS)
    ceiling = np.where(rng.random(MODELS) < 0.5, latent + rng.normal(0, 1, MODELS), np.inf)
    censored = (latent >= ceiling).astype(np.int8)
    data = dated(days.tolist(), np.minimum(latent, ceiling).tolist(), [f"family-{code}" for code in family])
    limits = np.column_stack([np.full(MODELS, -np.inf), ceiling])
    data = data.replace(censor=censored, log_limits=limits, organisation=np.array([f"maker-{code}" for code in maker]))
    ends = np.interp([first, max(first, last - DAYS_PER_YEAR), last], knots, heights)
    truth = {
        "window": (ends[2] - ends[0]) / (last - first),
        "last": (ends[2] - ends[1]) / (last - max(first, last - DAYS_PER_YEAR)),
        "walk": walk,
        "family": of_family,
        "maker": of_maker,
        "error": math.sqrt(variance),
    }
    return data, truth


def quantities(fit: PaceFit) -> dict[str, np.ndarray]:
    means = {"window": fit.window_draws(len(fit.level)), "last": fit.last_year_draws}
    return means | {name: fit.scales[name].to_numpy() for name in fit.scales}


@pytest.mark.slow
def test_the_sampler_is_calibrated_to_its_own_prior() -> None:
    """Simulation-based calibration (Talts et al. 2018): ranks of what was drawn among the draws are uniform."""
    ranks: dict[str, list[float]] = {}
    for number, rng in enumerate(np.random.default_rng(5).spawn(120 if FULL else 40)):
        data, truth = from_the_prior(rng)
        drawn = quantities(fit_pace(data, seed=number, **SHORT))
        for name, value in truth.items():
            ranks.setdefault(name, []).append(float(np.mean(drawn[name] < value)))
    # Six quantities, so that a right sampler fails once in two thousand runs; the seed is fixed.
    failed = {name: p for name, values in ranks.items() if (p := stats.kstest(values, "uniform").pvalue) < 1e-4}
    assert not failed


def test_a_pace_that_stopped_is_told_from_one_that_went_on() -> None:
    clear = replace(LONG, n=300, lab_sd=0.1, family_sd=0.1, residual_sd=0.2, ceilings=None, floors=None)
    stopped, steady = simulate(replace(clear, course=((0.6, 1.0), (0.601, 0.0))), 3), simulate(clear, 3)
    first, second = fit_pace(stopped, **SHORT), fit_pace(steady, **SHORT)
    assert first.slower > 0.975 and first.last_year.lo < 0.002
    assert "slower than before" in now(first, stopped.released).replace("more slowly", "slower")
    truth = LONG.slope
    assert second.last_year.lo < truth < second.last_year.hi and 0.025 < second.slower < 0.975
    assert "not shown to differ" in now(second, steady.released)
    table = first.table()
    early, late = table["per_year"].iloc[:12].mean(), table["per_year"].iloc[-10:].mean()
    assert early == pytest.approx(12 / 3.5, rel=0.15) and abs(late) < 0.6


def test_the_means_are_those_of_the_curve() -> None:
    fit = fit_pace(simulate(LONG, 1), **SHORT)
    ends = fit.curve(fit.knots[[0, -1]])
    assert fit.window.slope == pytest.approx(np.median(ends[:, 1] - ends[:, 0]) / np.ptp(fit.knots))
    # A curve is the sum of its slopes, and goes on straight beyond its ends.
    assert np.allclose(np.diff(fit.curve(fit.knots), axis=1), fit.slopes * np.diff(fit.knots))
    beyond = fit.curve([fit.knots[-1], fit.knots[-1] + 10.0])
    assert np.allclose(beyond[:, 1] - beyond[:, 0], 10 * fit.slopes[:, -1])


def test_one_seed_gives_one_answer_and_the_order_of_rows_none() -> None:
    data = simulate(LONG, 2)
    fit, again = fit_pace(data, seed=1, **SHORT), fit_pace(data, seed=1, **SHORT)
    assert np.array_equal(fit.slopes, again.slopes)
    mixed = fit_pace(data.take(np.random.default_rng(0).permutation(len(data))), seed=1, **SHORT)
    assert np.array_equal(fit.slopes, mixed.slopes)
    assert not np.array_equal(fit.slopes, fit_pace(data, seed=2, **SHORT).slopes)


def test_chains_agree() -> None:
    fit = fit_pace(simulate(LONG, 4))
    for draws in quantities(fit).values():
        chains = draws.reshape(-1, 8)
        within, between = chains.var(axis=0, ddof=1).mean(), len(chains) * chains.mean(axis=0).var(ddof=1)
        assert math.sqrt((len(chains) - 1) / len(chains) + between / within / len(chains)) < 1.1


def test_errors_of_the_reference_widen_the_interval() -> None:
    data = simulate(LONG, 6)
    tilt = np.random.default_rng(0).normal(0, 0.004, 200)
    shaky = data.replace(law_draws=data.log_density + tilt[:, None] * (data.days - data.days.mean()))
    shaky = shaky.replace(log_limits=np.tile([-np.inf, np.inf], (len(data), 1)), censor=np.zeros(len(data), np.int8))
    firm = shaky.replace(law_draws=None)
    assert np.diff(fit_pace(shaky, **SHORT).window.doubling_interval) > np.diff(
        fit_pace(firm, **SHORT).window.doubling_interval
    )


def test_too_little_is_refused_and_the_straight_line_is_quoted_instead() -> None:
    few = dated([0, 100, 200, 300], [0.0, 1.0, 1.8, 3.1], ["a", "b", "c", "d"])
    with pytest.raises(FitError, match="4 observed models of 4 families"):
        fit_pace(few)
    trend = estimate_trend(few, permutations=19, worlds=0, bootstrap=50)
    assert trend.headline["method"] == "tobit-crv3" and trend.varying is None
    assert trend.now == "" and trend.pace().empty and trend.to_dict()["last_year"] is None
    assert trend.predict(["2023-06-01"])["mid"].notna().all()


def test_a_trend_tells_both_means_and_what_the_prior_does() -> None:
    trend = estimate_trend(simulate(LONG, 1), permutations=19, worlds=0, bootstrap=50)
    document = trend.to_dict()
    assert document["headline"]["method"] == "pace" and document["now"].startswith("Over the twelve months to")
    assert len(document["pace"]) == len(trend.pace()) > 20
    assert set(document["last_year"]) >= {"doubling_months", "lo", "hi", "growing", "slower"}
    assert list(trend.priors["prior"].unique()) == list(PRIORS)
    own = trend.priors[trend.priors["prior"].eq("usual")].iloc[0]
    assert own["doubling_months"] == pytest.approx(trend.headline["doubling_months"])
    # The band is that of the curve, not of the line.
    months = trend.predict(trend.pace()["date"])
    assert np.ptp(np.diff(months["mid"])) > 0


def test_a_forecast_goes_on_at_the_last_years_pace_and_may_stand_still() -> None:
    stopped = simulate(SCENARIOS["pace stops"], 8)
    trend = estimate_trend(stopped, permutations=19, worlds=0, bootstrap=50)
    fan = forecast(trend, 12.0)
    assert trend.varying is not None
    days = (fan["date"].iloc[-1] - fan["date"].iloc[0]) / pd.Timedelta(days=1)
    grown = float(np.log(fan["mid"].iloc[-1] / fan["mid"].iloc[0]))
    assert grown == pytest.approx(max(trend.varying.last_year.slope, 0.0) * days, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["no trend", *(["pace falls"] if FULL else []), "pace stops"])
def test_intervals_hold_planted_paces(scenario: str) -> None:
    """The window's mean and the last twelve months; the table in data/coverage.csv has all worlds."""
    row = measure_coverage(SCENARIOS[scenario], WORLDS, seed=77, methods=["pace"]).iloc[0]
    for column in ("coverage", "coverage_last"):
        assert may_be(row[column], WORLDS)[1] >= 0.93


def steady(slopes: list[list[float]], knots: list[float], level: list[float], interval: float = 0.8) -> PaceFit:
    scales = pd.DataFrame({"walk": np.linspace(0.5, 1.5, len(level)), "error": 0.3})
    return PaceFit(np.array(knots), np.array(level), np.array(slopes), scales, "usual", interval, 40, 12)


def test_a_curve_means_and_monthly_paces_by_hand() -> None:
    """Three draws over two pieces of 400 and 200 days."""
    fit = steady([[0.002, 0.004], [0.001, 0.001], [0.003, -0.001]], [100, 500, 700], [1.0, 2.0, 0.5])
    assert np.allclose(fit.curve([0, 100, 300, 500, 600, 800]), [
        [0.8, 1.0, 1.4, 1.8, 2.2, 3.0], [1.9, 2.0, 2.2, 2.4, 2.5, 2.7], [0.2, 0.5, 1.1, 1.7, 1.6, 1.4],
    ])  # fmt: skip
    assert fit.mean_slope(100, 700) == pytest.approx([1.6 / 600, 0.6 / 600, 1.0 / 600])
    assert fit.year_ago == 700 - DAYS_PER_YEAR
    since = DAYS_PER_YEAR - 200
    year = np.array([0.002 * since + 0.8, 0.001 * since + 0.2, 0.003 * since - 0.2]) / DAYS_PER_YEAR
    assert fit.last_year_draws == pytest.approx(year)
    low, middle, high = np.quantile(year, [0.1, 0.5, 0.9])
    assert (fit.last_year.slope, fit.last_year.lo, fit.last_year.hi) == pytest.approx((middle, low, high))
    # A line through the median curve at the middle of the window.
    assert fit.last_year.intercept == pytest.approx(np.median(fit.curve(400)) - middle * 400)
    assert (fit.window.n, fit.window.clusters) == (40, 12) and fit.growing == 1.0
    before = fit.mean_slope(100, fit.year_ago)
    assert fit.slower == np.mean(year < before) and 0 < fit.slower < 1
    table = fit.table()
    assert table["date"].tolist() == [pd.Timestamp("2023-12-21"), pd.Timestamp("2024-10-16")]
    low, middle, high = np.quantile(fit.slopes, [0.1, 0.5, 0.9], axis=0)
    assert table["per_year"].tolist() == pytest.approx(middle * DAYS_PER_YEAR / LN2)
    assert table["per_year_lo"].tolist() == pytest.approx(low * DAYS_PER_YEAR / LN2)
    assert table["per_year_hi"].tolist() == pytest.approx(high * DAYS_PER_YEAR / LN2)
    assert table["months"].tolist() == pytest.approx(LN2 / middle / DAYS_PER_MONTH)
    assert table["lo"].tolist() == pytest.approx(LN2 / high / DAYS_PER_MONTH) and table["hi"][1] == math.inf
    short = steady([[0.002], [0.001]], [100, 300], [1.0, 2.0])
    assert short.year_ago == 100 and math.isnan(short.slower) and short.last_year == short.window
    assert (
        fit.picks(2).tolist() == [0, 2]
        and fit.window_draws(5).tolist() == fit.mean_slope(100, 700)[[0, 0, 1, 2, 2]].tolist()
    )
    assert fit.card().facts["walk"] == "1.0 doublings per year in a year (0.5 to 1.5)"


def test_evidence_of_scales_is_that_of_a_normal_with_their_covariance() -> None:
    """ln N(y; 0, V + X S R^-1 S X') with the coefficients integrated out, against scipy's density."""
    rng = np.random.default_rng(0)
    design, y, precision = rng.normal(size=(9, 5)), rng.normal(size=9), rng.uniform(0.5, 3, 9)
    ends, ridge = np.array([2, 4, 5]), np.array([0.25, 0.1, 1, 1, 1])
    gram, moment = (design.T * precision) @ design, (design.T * precision) @ y
    found, expected = [], []
    for scales in ([0.3, 2.0], [1.5, 0.1]):
        factor, half, log_density = _marginal(gram[None], moment[None], np.array([scales]), ends, ridge)
        size = np.array([1, 1, scales[0], scales[0], scales[1]])
        matrix = gram * size[:, None] * size + np.diag(ridge)
        assert np.allclose(np.tril(factor[0]) @ np.tril(factor[0]).T, matrix)
        assert np.allclose(np.tril(factor[0]) @ half[0], moment * size)
        found.append(log_density[0])
        cover = (design * size) @ np.diag(1 / ridge) @ (design * size).T + np.diag(1 / precision)
        expected.append(stats.multivariate_normal.logpdf(y, np.zeros(9), cover))
    # Up to what no scale changes.
    assert found[0] - found[1] == pytest.approx(expected[0] - expected[1])


def test_the_sampler_is_the_one_that_was_calibrated() -> None:
    """A short chain, frozen: who changes these figures measures the calibration and the coverage again."""
    data, _ = from_the_prior(np.random.default_rng(3))
    shaky = data.replace(
        draws=np.minimum(
            data.log_density + 0.1 * np.random.default_rng(4).standard_normal((20, MODELS)), data.limits[:, 1]
        )
    )
    found = [fit_pace(rows, chains=2, sweeps=2, burn=2, seed=5) for rows in (data, shaky)]
    frozen = json.loads((folders.DATA / "pace_chain.json").read_text(encoding="utf-8"))
    for fit, row in zip(found, frozen, strict=True):
        assert fit.level.tolist() == pytest.approx(row["level"], rel=1e-6)
        assert fit.slopes.mean(axis=1).tolist() == pytest.approx(row["slopes"], rel=1e-6)
        assert fit.scales.to_numpy().ravel().tolist() == pytest.approx(row["scales"], rel=1e-6)


@pytest.mark.parametrize(("days", "families", "ok"), [
    ([0, 20, 40, 61, 62], "abcde", True), ([0, 20, 40, 50, 60], "abcde", False), ([0, 20, 40, 61], "abcd", False),
    ([0, 20, 40, 61, 62], "aaaaa", False), ([0, 20, 40, 61, 62], "aaaab", True),
])  # fmt: skip
def test_a_pace_takes_five_models_of_two_families_over_two_months(days: list[int], families: str, ok: bool) -> None:
    data = dated(days, [0.1 * day for day in range(len(days))], list(families))
    if ok:
        assert len(fit_pace(data, chains=1, sweeps=2, burn=1).knots) == 3
    else:
        with pytest.raises(FitError, match="5 of two families over"):
            fit_pace(data)
