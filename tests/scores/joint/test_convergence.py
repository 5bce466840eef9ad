"""R-hat and effective sample size: known chains have known values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter

from densing.core import Array
from densing.scores.joint.convergence import bulk_ess, r_hat


def autoregressive(rho: float, chains: int = 4, length: int = 5000, count: int = 8, seed: int = 0) -> Array:
    """Stationary AR(1) of variance 1, its first thousand steps thrown away."""
    noise = np.sqrt(1 - rho**2) * np.random.default_rng(seed).standard_normal((chains, length + 1000, count))
    return np.asarray(lfilter([1.0], [1.0, -rho], noise, axis=1)[:, 1000:])


@pytest.mark.parametrize("rho", [-0.3, 0.0, 0.5, 0.9])
def test_effective_draws_of_an_autoregression_are_those_of_theory(rho: float) -> None:
    # n (1 - rho) / (1 + rho); the estimate of one chain scatters by some percent, the mean of eight by less.
    assert bulk_ess(autoregressive(rho)).mean() == pytest.approx(20_000 * (1 - rho) / (1 + rho), rel=0.06)


def test_effective_draws_see_chains_that_stay_apart() -> None:
    draws = autoregressive(0.5)
    assert (bulk_ess(draws + 3.0 * np.arange(4)[:, None, None]) < 10).all()
    assert (r_hat(draws) < 1.01).all()


def test_r_hat_of_two_chains_apart_is_that_of_normal_scores() -> None:
    # Two chains that share no value: their normal scores are the lower and the upper half of a normal distribution,
    # with means -/+ sqrt(2 / pi) and variance 1 - 2 / pi; four halves of chains vary by 4 / 3 of the mean squared.
    draws = np.random.default_rng(0).standard_normal((2, 4000, 3))
    mean = 2 / np.pi
    expected = np.sqrt(1 + 4 / 3 * mean / (1 - mean))
    for far in (20.0, 2000.0):
        assert r_hat(draws + far * np.arange(2)[:, None, None]) == pytest.approx(expected, rel=0.01)


def test_r_hat_sees_chains_of_different_width_and_of_infinite_variance() -> None:
    rng = np.random.default_rng(0)
    wide = rng.standard_normal((4, 1000, 1)) * np.array([1.0, 1.0, 1.0, 4.0])[:, None, None]
    assert r_hat(wide)[0] > 1.1
    cauchy = rng.standard_cauchy((4, 1000, 1))
    assert r_hat(cauchy)[0] < 1.02
    assert r_hat(cauchy + 3.0 * np.arange(4)[:, None, None])[0] > 1.2


def test_r_hat_sees_a_single_chain_that_drifts() -> None:
    drift = np.random.default_rng(0).standard_normal((1, 1000, 1)) + np.linspace(0, 3, 1000)[None, :, None]
    assert r_hat(drift)[0] > 1.2 and bulk_ess(drift)[0] < 20


def test_chains_that_stand_still_are_no_evidence() -> None:
    still = np.ones((4, 100, 2))
    apart = still * np.arange(4)[:, None, None]
    assert (r_hat(apart) > 1e6).all() and (bulk_ess(apart) < 10).all()
    assert np.isnan(r_hat(still)).all() and (bulk_ess(still) == 0).all()
