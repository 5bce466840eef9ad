"""The headline estimator: its error, its critical value, and how the reference law enters."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats

from densing.core.errors import FitError
from densing.scores.trend import TrendData, estimate_trend
from densing.scores.trend.coverage import Scenario, simulate
from densing.scores.trend.headline import VarianceShares, critical_value, fit_headline

UNCENSORED = Scenario(n=40, families=9, ceilings=None)


def made(days: list[float], values: list[float], families: list[str] | None = None) -> TrendData:
    released = pd.Timestamp("2023-02-24") + pd.to_timedelta(days, unit="D")
    names = [f"m{number}" for number in range(len(days))]
    return TrendData.from_arrays(names, families or names, released, values)


@pytest.mark.parametrize("seed", range(4))
def test_headline_without_bounds_has_the_slope_and_crv3_error_of_statsmodels(seed: int) -> None:
    data = simulate(UNCENSORED, seed)
    fit = fit_headline(data)
    keywords = {"groups": data.clusters()}
    theirs = sm.OLS(data.log_density, sm.add_constant(data.days)).fit(
        cov_type="cluster-crv3", cov_kwds=keywords, use_t=True
    )
    np.testing.assert_allclose(fit.line[1], theirs.params[1], rtol=1e-9)
    np.testing.assert_allclose(np.sqrt(fit.sampling[1, 1]), theirs.bse[1], rtol=1e-7)
    np.testing.assert_allclose(fit.slope.intercept, theirs.params[0], rtol=1e-8, atol=1e-9)


def test_headline_error_with_bounds_is_the_jackknife_over_families_written_out() -> None:
    data = simulate(Scenario(n=40, families=8), 3)
    fit = fit_headline(data)
    slopes = [fit_headline(data.take(data.family != name)).line[1] for name in np.unique(data.family)]
    by_hand = 7 / 8 * np.sum((np.array(slopes) - fit.line[1]) ** 2)
    np.testing.assert_allclose(fit.sampling[1, 1], by_hand, rtol=1e-7)
    np.testing.assert_allclose(fit.leave_out[:, 1], slopes, rtol=1e-7)


def test_law_draws_widen_the_interval_and_shares_add_up() -> None:
    data = simulate(Scenario(law_sd=0.2, law_draws=150), 1)
    assert data.law_draws is not None
    rng = np.random.default_rng(0)
    noisy = data.law_draws + 0.3 * rng.standard_normal(data.law_draws.shape)
    full = fit_headline(data.replace(draws=noisy))
    plain = fit_headline(data.replace(law_draws=None))
    assert full.slope.hi - full.slope.lo > plain.slope.hi - plain.slope.lo
    shares = astuple(full.shares)
    assert all(share is not None and share > 0 for share in shares)
    assert sum(shares) == pytest.approx(1.0)
    assert plain.shares == VarianceShares(score_noise=None, reference_law=None, models=1.0)


def test_law_variance_is_the_variance_of_refits() -> None:
    data = simulate(Scenario(ceilings=None, law_sd=0.2, law_draws=120), 2)
    assert data.law_draws is not None
    slopes = [np.polyfit(data.days, row, 1)[0] for row in data.law_draws]
    np.testing.assert_allclose(fit_headline(data).law[1, 1], np.var(slopes, ddof=1), rtol=1e-6)


def test_a_broken_law_draw_is_left_out_and_poisons_nothing() -> None:
    data = simulate(Scenario(law_sd=0.1, law_draws=60), 3)
    assert data.law_draws is not None
    broken = data.law_draws.copy()
    broken[7, 3] = np.nan
    rest = np.delete(data.law_draws, 7, axis=0)
    found, expected = (fit_headline(data.replace(law_draws=draws)) for draws in (broken, rest))
    np.testing.assert_allclose(found.law, expected.law, rtol=1e-9)
    assert 7 not in found.law_rows


def test_line_draws_spread_as_the_interval_says() -> None:
    fit = fit_headline(simulate(Scenario(law_sd=0.1, law_draws=100), 4), draws=40_000)
    low, high = np.quantile(fit.lines[:, 1], [0.025, 0.975])
    width = fit.slope.hi - fit.slope.lo
    np.testing.assert_allclose([low, high], [fit.slope.lo, fit.slope.hi], atol=0.02 * width)
    assert abs(fit.lines[:, 1].mean() - fit.line[1]) < 0.01 * width


def test_critical_value_nears_the_normal_with_many_equal_clusters() -> None:
    days = np.linspace(0, 1, 400)
    found = critical_value(days, np.arange(400), np.ones(400), draws=20_000)
    assert found == pytest.approx(stats.norm.ppf(0.975), abs=0.04)


def test_critical_value_grows_with_fewer_families() -> None:
    days = np.linspace(0, 1, 40)
    few, many = (critical_value(days, np.arange(40) // size, np.ones(40)) for size in (8, 1))
    assert few > many + 0.5


def test_critical_value_is_never_below_the_normal_one() -> None:
    one_giant = np.r_[np.zeros(30, dtype=int), np.arange(1, 11)]
    assert critical_value(np.linspace(0, 1, 40), one_giant, np.ones(40)) >= stats.norm.ppf(0.975)


def test_one_family_alone_gives_no_interval_rather_than_a_wrong_one() -> None:
    data = made([0, 10, 20, 30, 30], [0.0, 0.2, 0.1, 0.5, 0.4], ["f", "f", "f", "f", "g"])
    trend = estimate_trend(data, permutations=19, worlds=0, bootstrap=50)
    assert np.isinf(trend.headline["slope_hi"])
    assert np.isinf(trend.headline["hi"])
    assert {"no-interval", "few-families"} <= {note.code for note in trend.notes}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (made([0, 1], [0.0, 1.0]), "2 observed models"),
        (made([0, 1, 2], [0.0, 1.0, 2.0], ["f", "f", "f"]), "1 family"),
        (made([5, 5, 5], [0.0, 1.0, 2.0]), "one release date"),
    ],
)
def test_too_little_data_is_refused_with_the_reason(data: TrendData, says: str) -> None:
    with pytest.raises(FitError, match=says):
        estimate_trend(data)


def test_a_perfect_line_is_found() -> None:
    days = [0.0, 50.0, 100.0, 150.0, 220.0, 300.0]
    trend = estimate_trend(made(days, [0.007 * day for day in days]), permutations=19, worlds=0, bootstrap=50)
    for row in trend.estimates.itertuples():
        assert row.slope_per_day == pytest.approx(0.007, rel=1e-5) or "not estimable" in row.label
