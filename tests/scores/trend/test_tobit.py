"""The headline estimator: its error, its critical value, how the reference law enters, and the Tobit solver beneath.

The solver is held against other implementations, and to the properties of a maximum of likelihood.
"""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import norm
from statsmodels.base.model import GenericLikelihoodModel

from densing.core.errors import FitError
from densing.scores.trend import TrendData, estimate_trend
from densing.scores.trend.coverage import Scenario, simulate
from densing.scores.trend.tobit import VarianceShares, critical_value, fit_headline, fit_tobit
from tests.support.trend_data import dated

pytestmark = pytest.mark.usefixtures("few_sweeps")
UNCENSORED = Scenario(n=40, families=9, ceilings=None)


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
    data = dated([0, 10, 20, 30, 30], [0.0, 0.2, 0.1, 0.5, 0.4], ["f", "f", "f", "f", "g"])
    trend = estimate_trend(data, permutations=19, worlds=0, bootstrap=50)
    assert np.isinf(trend.headline["slope_hi"])
    assert np.isinf(trend.headline["hi"])
    assert {"no-interval", "few-families"} <= {note.code for note in trend.notes}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (dated([0, 1], [0.0, 1.0]), "2 observed models"),
        (dated([0, 1, 2], [0.0, 1.0, 2.0], ["f", "f", "f"]), "1 family"),
        (dated([5, 5, 5], [0.0, 1.0, 2.0]), "one release date"),
    ],
)
def test_too_little_data_is_refused_with_the_reason(data: TrendData, says: str) -> None:
    with pytest.raises(FitError, match=says):
        estimate_trend(data)


def test_a_perfect_line_is_found() -> None:
    days = [0.0, 50.0, 100.0, 150.0, 220.0, 300.0]
    trend = estimate_trend(dated(days, [0.007 * day for day in days]), permutations=19, worlds=0, bootstrap=50)
    for row in trend.estimates.itertuples():
        # The pace has priors: six points without any scatter leave it a few per cent.
        close = 0.05 if row.method == "pace" else 1e-5
        assert row.slope_per_day == pytest.approx(0.007, rel=close) or "not estimable" in row.label


# --- the Tobit solver ---------------------------------------------------------------------------------------------

Sample = tuple[np.ndarray, np.ndarray, np.ndarray]


def sample(seed: int, n: int = 50) -> Sample:
    """Design, values and censoring of a line with ceilings and a floor."""
    rng = np.random.default_rng(seed)
    t = rng.uniform(-1, 1, n)
    y = 1 + 2 * t + rng.normal(0, 0.7, n)
    high = rng.uniform(1.0, 4.0, n)
    seen = np.clip(y, -0.5, high)
    censor = np.where(y >= high, 1, np.where(y <= -0.5, -1, 0))
    return np.column_stack([np.ones(n), t]), seen, censor


class Reference(GenericLikelihoodModel):  # type: ignore[misc]
    """Tobit in its textbook parametrisation, numerical derivatives: an independent second implementation."""

    def __init__(self, endog: np.ndarray, exog: np.ndarray, censor: np.ndarray) -> None:
        self.censor = censor
        super().__init__(endog, exog, extra_params_names=["log_sigma"])

    def loglikeobs(self, params: np.ndarray) -> np.ndarray:
        sigma = np.exp(params[-1])
        z = (self.endog - self.exog @ params[:-1]) / sigma
        return np.select(
            [self.censor < 0, self.censor > 0], [norm.logcdf(z), norm.logsf(z)], norm.logpdf(z) - params[-1]
        )


@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_a_statsmodels_likelihood_model(seed: int) -> None:
    x, y, censor = sample(seed)
    ours = fit_tobit(x, y, censor)
    model = Reference(y, x, censor)
    start = np.array([y.mean(), 0.0, np.log(y.std())])
    # Its forward differences cannot reach this gtol; agreement below is what shows that it got there.
    theirs = model.fit(start_params=start, method="bfgs", gtol=1e-9, disp=0, skip_hessian=True, warn_convergence=False)
    assert ours.converged.all()
    np.testing.assert_allclose(ours.beta[0], theirs.params[:2], rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(ours.sigma[0], np.exp(theirs.params[2]), rtol=2e-5)
    assert ours.loglik[0] >= theirs.llf - 1e-8


def test_without_bounds_it_is_least_squares() -> None:
    x, y, _ = sample(1)
    fit = fit_tobit(x, y, np.zeros(len(y), dtype=int))
    beta, rss, *_ = np.linalg.lstsq(x, y, rcond=None)
    np.testing.assert_allclose(fit.beta[0], beta, rtol=1e-10)
    np.testing.assert_allclose(fit.sigma[0], np.sqrt(rss[0] / len(y)), rtol=1e-8)


@given(st.integers(0, 10_000))
@settings(max_examples=40)
def test_no_step_in_any_direction_improves_the_likelihood(seed: int) -> None:
    x, y, censor = sample(seed, 30)
    fit = fit_tobit(x, y, censor)

    def loglik(a: float, b: float, sigma: float) -> float:
        z = (y - x @ [a, b]) / sigma
        terms = np.select([censor < 0, censor > 0], [norm.logcdf(z), norm.logsf(z)], norm.logpdf(z) - np.log(sigma))
        return float(terms.sum())

    at = np.array([*fit.beta[0], fit.sigma[0]])
    best = loglik(*at)
    np.testing.assert_allclose(best, fit.loglik[0], rtol=1e-10)
    for direction in np.vstack([np.eye(3), -np.eye(3)]):
        assert loglik(*(at + 1e-3 * direction)) <= best + 1e-10


def test_a_weight_of_two_is_the_row_twice_and_zero_leaves_it_out() -> None:
    x, y, censor = sample(2)
    weights = np.ones((2, len(y)))
    weights[0, :10], weights[1, 5:12] = 2.0, 0.0
    batch = fit_tobit(x, y, censor, weights)
    twice = np.r_[np.arange(len(y)), np.arange(10)]
    rest = np.delete(np.arange(len(y)), np.arange(5, 12))
    for row, picks in ((0, twice), (1, rest)):
        single = fit_tobit(x[picks], y[picks], censor[picks])
        np.testing.assert_allclose(batch.beta[row], single.beta[0], rtol=1e-8)


def test_batches_over_designs_and_values_match_single_fits() -> None:
    samples = [sample(seed) for seed in range(4)]
    batch = fit_tobit(*(np.stack(parts) for parts in zip(*samples, strict=True)))
    for row, (x, y, censor) in enumerate(samples):
        single = fit_tobit(x, y, censor)
        np.testing.assert_allclose(batch.beta[row], single.beta[0], rtol=1e-8)
        np.testing.assert_allclose(batch.loglik[row], single.loglik[0], rtol=1e-10)


def test_nothing_observed_does_not_converge() -> None:
    x, y, _ = sample(3)
    assert not fit_tobit(x, y, np.ones(len(y), dtype=int)).converged.any()


def test_bounds_repair_the_slope_that_clipping_flattens() -> None:
    rng = np.random.default_rng(5)
    t = np.linspace(0, 1, 4000)
    y = 3 * t + rng.normal(0, 0.5, 4000)
    x = np.column_stack([np.ones(4000), t])
    clipped = np.linalg.lstsq(x, np.minimum(y, 1.5), rcond=None)[0][1]
    repaired = fit_tobit(x, np.minimum(y, 1.5), (y > 1.5).astype(int)).beta[0, 1]
    assert clipped < 2.0
    assert abs(repaired - 3.0) < 0.15  # about three standard errors at this n
