"""The Tobit solver against other implementations, and the properties of a maximum of likelihood."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from statsmodels.base.model import GenericLikelihoodModel

from densing.scores.trend.headline import fit_tobit

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
