"""Item curves: the maximum of the marginal likelihood, found another way, and what they recover of planted ones."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from densing.core import Array
from densing.scores.items import irt
from densing.scores.items.irt import fit_curves, posterior


def planted(models: int, items: int, seed: int) -> tuple[Array, Array, Array, Array]:
    rng = np.random.default_rng(seed)
    slope, difficulty = rng.lognormal(0.3, 0.3, items), rng.normal(0, 1, items)
    ability = rng.normal(0, 1, models)
    answers = rng.random((models, items)) < expit(slope * (ability[:, None] - difficulty))
    return answers.astype(float), slope, difficulty, ability


def minus_log_likelihood(values: Array, answers: Array, common: bool) -> float:
    """Marginal over a standard normal, by Gauss and Hermite's rule; other code and other nodes than the module's."""
    node, weight = np.polynomial.hermite_e.hermegauss(51)
    items = answers.shape[1]
    slope, intercept = (np.full(items, values[0]), values[1:]) if common else (values[:items], values[items:])
    p = expit(np.multiply.outer(node, slope) + intercept)
    likelihood = np.where(answers[:, None] == 1, p, 1 - p).prod(2)
    return -float(np.log(likelihood @ weight / weight.sum()).sum())


@pytest.mark.parametrize("slopes", ["each", "common"])
def test_curves_are_the_maximum_of_the_marginal_likelihood(slopes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without priors of the items, which that maximum does not have.
    monkeypatch.setattr(irt, "LEAST_SPREAD", 1e6)
    monkeypatch.setattr(irt, "TOLERANCE", 1e-5)
    answers, *_ = planted(1500, 6, 3)
    common = slopes == "common"
    start = np.concatenate((np.ones(1 if common else 6), np.zeros(6)))
    found = minimize(minus_log_likelihood, start, (answers, common), "L-BFGS-B")
    curves = fit_curves(answers, slopes=slopes)
    ours = np.concatenate((curves.slope[:1] if common else curves.slope, curves.intercept))
    assert minus_log_likelihood(ours, answers, common) - found.fun < 0.01
    assert abs(ours - found.x).max() < 0.02


def test_priors_pull_slopes_of_few_models_to_their_mean() -> None:
    answers, slope, _, ability = planted(60, 100, 8)
    free = np.array([fit_curves(answers).slope, np.zeros(100)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(irt, "LEAST_SPREAD", 1e6)
        free[1] = fit_curves(answers).slope
    errors = ((free - slope * ability.std()) ** 2).mean(1)
    assert errors[0] < 0.6 * errors[1]


def test_planted_items_and_abilities_come_back_within_their_errors() -> None:
    answers, slope, difficulty, ability = planted(300, 200, 5)
    curves = fit_curves(answers)
    # The scale is that of these models: mean 0, variance 1.
    middle, spread = ability.mean(), ability.std()
    z = (curves.ability - (ability - middle) / spread) / curves.ability_error
    assert curves.converged and 0.85 < z.std() < 1.15 and 0.9 < (abs(z) < 1.96).mean() < 0.98
    # Their prior pulls slopes to its mean, so that they are a little farther off than their errors say, and closer
    # together.
    z = (curves.slope - slope * spread) / curves.slope_error
    assert 0.8 < z.std() < 1.25 and abs(z.mean()) < 0.25
    assert 0.5 < curves.slope.var() / (slope * spread).var() < 1.2
    assert np.corrcoef(-curves.intercept / curves.slope, difficulty)[0, 1] > 0.98


def test_missing_answers_are_no_wrong_ones() -> None:
    answers, *_ = planted(200, 60, 1)
    holes = np.random.default_rng(0).random(answers.shape) < 0.4
    full, part = fit_curves(answers), fit_curves(np.where(holes, np.nan, answers))
    assert np.corrcoef(full.intercept, part.intercept)[0, 1] > 0.97
    assert abs(part.ability - full.ability).mean() < 0.25 and abs((part.ability - full.ability).mean()) < 0.05
    assert (part.ability_error > full.ability_error).mean() > 0.95


def test_items_of_extreme_answers_have_finite_curves() -> None:
    answers, *_ = planted(100, 30, 2)
    answers[:, 0], answers[:, 1] = 1.0, 0.0
    curves = fit_curves(answers)
    assert np.isfinite(curves.slope).all() and curves.converged
    assert curves.intercept[0] == curves.intercept.max() and curves.intercept[1] == curves.intercept.min()


def test_probabilities_count_as_shares_of_an_answer() -> None:
    rng = np.random.default_rng(4)
    ability, difficulty = rng.normal(size=(150, 1)), np.linspace(-2, 2, 50)
    curves = fit_curves(expit(1.4 * (ability - difficulty)))
    assert abs(curves.slope / (1.4 * ability.std()) - 1).max() < 0.1
    assert np.corrcoef(curves.ability, ability[:, 0])[0, 1] > 0.999


def test_a_posterior_without_answers_is_the_prior() -> None:
    theta, weights, loglik = posterior(np.full((1, 3), np.nan), np.ones(3), np.zeros(3))
    assert weights[0] @ theta == pytest.approx(0, abs=1e-9)
    assert weights[0] @ theta**2 == pytest.approx(1, abs=1e-3) and loglik[0] == pytest.approx(0, abs=1e-9)
