"""Each conditional of the sampler is the one of the model that its docstring writes down."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit, logsumexp
from scipy.stats import invwishart, kstest, norm, truncnorm

from densing.core import Array
from densing.scores.joint import sampler
from densing.scores.joint.cells import toy_cells
from densing.scores.joint.sampler import Index, State, draw_logits, index_cells, sample

FACTORS = 1


def small() -> Index:
    """Three models on four tests of two benchmarks, two traits, floors from nothing to a half; one cell is missing."""
    cells = [(model, test) for model in range(3) for test in range(4) if (model, test) != (2, 3)]
    model, test = (np.array(codes) for codes in zip(*cells, strict=True))
    # Tests 0 and 2 are of one evaluator, 1 and 3 of another; benchmark 0 has tests 0 and 1.
    pair = np.unique(model * 2 + test % 2, return_inverse=True)[1]
    return Index(
        model=model,
        test=test,
        pair=pair,
        benchmark=np.array([0, 0, 1, 1]),
        trait=np.array([0, 0, 1, 1]),
        score=np.zeros(len(model)),
        se=np.full(len(model), 0.02),
        chance=np.array([0.02, 0.25, 0.0, 0.5]),
    )


def of_prior(index: Index, rng: np.random.Generator) -> State:
    """Draw everything but logits and scores from the prior, written from the docstring of the module."""
    models, tests, benchmarks, traits = 3, 4, 2, 2
    width = 2 + FACTORS
    shape, scale = sampler.VARIANCE_PRIOR

    def variance(count: int) -> Array:
        return scale / rng.gamma(shape, size=count)

    covariance = invwishart.rvs(traits + 1, sampler.COVARIANCE_SCALE * np.eye(traits), random_state=rng)
    benchmark_variance, test_variance, evaluator_variance = variance(width), variance(width), variance(1)[0]
    ease = rng.normal(0, sampler.EASE_SD)
    mean = np.array([ease, 1.0, *[0.0] * FACTORS])
    of_benchmarks = mean + rng.standard_normal((benchmarks, width)) * np.sqrt(benchmark_variance)
    of_tests = of_benchmarks[index.benchmark] + rng.standard_normal((tests, width)) * np.sqrt(test_variance)
    typical_scatter = rng.exponential()
    centre = rng.normal(sampler.NOISE_CENTRE, sampler.NOISE_SD)
    spread = np.sqrt(2 / rng.gamma(2.0))
    while True:
        floor = np.where(index.chance > 0, rng.normal(index.chance, sampler.FLOOR_SD), 0.0)
        ceiling = rng.normal(sampler.CEILING, sampler.CEILING_SD, tests)
        if (floor >= 0).all() and (ceiling <= 1).all() and (ceiling - floor >= sampler.NARROWEST).all():
            break
    return State(
        abilities=np.column_stack(
            [rng.multivariate_normal(np.zeros(traits), covariance, models), rng.standard_normal((models, FACTORS))]
        ),
        covariance=covariance,
        tests=of_tests,
        benchmarks=of_benchmarks,
        evaluators=rng.standard_normal(int(index.pair.max()) + 1) * np.sqrt(evaluator_variance),
        floor=floor,
        ceiling=ceiling,
        noise=np.exp(rng.normal(centre, spread, tests)),
        scatter=sampler.SCATTER_SHAPE * typical_scatter / rng.gamma(sampler.SCATTER_SHAPE, size=tests),
        model_scatter=sampler.MODEL_SHAPE / rng.gamma(sampler.MODEL_SHAPE, size=models),
        ease=ease,
        test_variance=test_variance,
        benchmark_variance=benchmark_variance,
        evaluator_variance=evaluator_variance,
        typical_scatter=typical_scatter,
        typical_noise=(centre, spread),
        logits=np.zeros(len(index.model)),
        weights=rng.gamma(sampler.FREEDOM / 2, 2 / sampler.FREEDOM, len(index.model)),
    )


def measure(index: Index, state: State, rng: np.random.Generator) -> Index:
    """Draw logits and scores of a state: what the model says would be measured."""
    model, test = index.model, index.test
    traits = len(state.covariance)
    ability = state.abilities[model, index.trait[test]]
    free = (state.tests[test, 2:] * state.abilities[model][:, traits:]).sum(axis=1)
    mean = state.tests[test, 0] + state.tests[test, 1] * ability + free + state.evaluators[index.pair]
    spread = np.sqrt(state.scatter[test] * state.model_scatter[model] / state.weights)
    state.logits = mean + spread * rng.standard_normal(len(model))
    curve = state.floor[test] + (state.ceiling - state.floor)[test] * expit(state.logits)
    noise = np.sqrt(index.se**2 + state.noise[test])
    return replace(index, score=curve + noise * rng.standard_normal(len(model)))


def readings(index: Index, state: State) -> Array:
    """Bounded functions of parameters and data; priors of variances have heavy tails, so that moments may not exist."""
    squash = np.tanh
    return np.array(
        [
            *squash(state.abilities[0]),
            *squash(state.abilities[2] ** 2),
            squash(state.abilities[0, 0] * state.abilities[0, 1]),
            squash(np.log(state.covariance[0, 0])),
            squash(state.covariance[0, 1] / np.sqrt(state.covariance[0, 0] * state.covariance[1, 1])),
            *squash(state.tests[0]),
            *squash((state.tests[3] - state.benchmarks[1]) ** 2 * 50),
            *squash((state.benchmarks[0] - state.benchmarks[1]) ** 2 * 20),
            squash(state.ease / 3),
            *squash(np.log(state.test_variance) + 4),
            *squash(np.log(state.benchmark_variance) + 4),
            squash(np.log(state.evaluator_variance) + 4),
            squash(state.evaluators[0] ** 2 * 50),
            *(state.floor[[0, 1, 3]] * 20),
            *(state.ceiling * 20),
            *squash((np.log(state.noise) - sampler.NOISE_CENTRE) / 3),
            squash((state.typical_noise[0] - sampler.NOISE_CENTRE) / 3),
            squash(np.log(state.typical_noise[1])),
            *squash(np.log(state.scatter)),
            squash(np.log(state.typical_scatter)),
            *squash(np.log(state.model_scatter)),
            squash(np.log(state.weights[0])),
            *squash(index.score[[0, 3, 5]] * 2),
            squash((state.logits[0] - state.logits[1]) / 3),
        ]
    )


def disagreement(sweeps: int, seed: int) -> Array:
    """Return z-values of the readings: drawn from prior and model at once, against sweeps that alternate with data."""
    rng = np.random.default_rng(seed)
    index = small()
    direct = []
    for _ in range(sweeps):
        state = of_prior(index, rng)
        direct.append(readings(measure(index, state, rng), state))
    state = of_prior(index, rng)
    chain = []
    for _ in range(sweeps):
        # Scores and logits anew from the parameters, then the sampler's kernel for all but the scores.
        index = measure(index, state, rng)
        sampler._sweep(index, state, rng)
        chain.append(readings(index, state))
    one, other = np.array(direct), np.array(chain)
    batches = other[: sweeps // 40 * 40].reshape(40, -1, other.shape[1]).mean(axis=1)
    error = np.hypot(one.std(axis=0) / np.sqrt(sweeps), batches.std(axis=0, ddof=1) / np.sqrt(40))
    return np.asarray((other.mean(axis=0) - one.mean(axis=0)) / error)


@pytest.fixture
def mixing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Priors under which a chain that draws its own data crosses the space in a few hundred sweeps."""
    monkeypatch.setattr(sampler, "VARIANCE_PRIOR", (3.0, 2.0))
    monkeypatch.setattr(sampler, "EASE_SD", 0.7)
    monkeypatch.setattr(sampler, "NOISE_SD", 1.0)


@pytest.mark.usefixtures("mixing")
def test_simulators_of_the_joint_distribution_agree() -> None:
    # Geweke (2004), Getting it right: whatever is wrong in a conditional, in the priors or in the latent logits, makes
    # the two ways to draw (parameters, scores) differ. Bonferroni at 0.1 % over 53 readings: |t| with 39 degrees < 5.0.
    z = disagreement(3000, seed=1)
    assert np.abs(z).max() < 5.0, np.round(z, 1)


@pytest.mark.usefixtures("mixing")
def test_geweke_test_sees_a_censored_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    # A test that cannot fail is none: draws that are clipped at the limits instead of drawn between them.
    def clipped(mean: Array, sd: Array, lowest: Array, highest: Array, rng: np.random.Generator) -> Array:
        return np.clip(mean + sd * rng.standard_normal(len(mean)), lowest, highest)

    monkeypatch.setattr(sampler, "truncated", clipped)
    assert np.abs(disagreement(2000, seed=1)).max() > 5.0


def test_truncated_draws_follow_their_distribution_in_either_tail() -> None:
    rng = np.random.default_rng(0)
    for mean, low, high in ((0.97, 0.1, 1.0), (1.3, 0.1, 1.0), (-0.4, 0.0, 0.6), (0.5, 0.0, 1.0)):
        drawn = sampler.truncated(np.full(4000, mean), np.full(4000, 0.03), low, high, rng)
        law = truncnorm((low - mean) / 0.03, (high - mean) / 0.03, mean, 0.03)
        assert kstest(drawn, law.cdf).pvalue > 1e-3, (mean, low, high)
    # Forty standard deviations away the limit itself is as near as a double gets.
    far = sampler.truncated(np.array([9.0, -9.0]), np.array([0.03, 0.03]), 0.0, 1.0, rng)
    assert np.isfinite(far).all() and (far >= 0).all() and (far <= 1).all()


def test_latent_logits_have_the_posterior_that_a_grid_gives() -> None:
    rng = np.random.default_rng(0)
    cases = [(0.97, 0.25, 0.95, 1e-3, 2.0, 0.5), (0.26, 0.25, 0.95, 4e-4, 0.0, 1.0), (0.6, 0.0, 0.97, 1e-4, 1.0, 4.0)]
    grid = np.linspace(-12, 14, 20_001)
    for score, floor, ceiling, noise, fitted, variance in cases:
        many = 3000
        z = np.full(many, 0.0)
        curve = np.full(many, floor), np.full(many, ceiling), np.full(many, noise)
        for _ in range(60):
            z = draw_logits(z, np.full(many, fitted), np.full(many, variance), curve, np.full(many, score), rng)
        log = norm.logpdf(grid, fitted, np.sqrt(variance))
        log += norm.logpdf(score, floor + (ceiling - floor) * expit(grid), np.sqrt(noise))
        share = np.exp(log - logsumexp(log))
        assert kstest(z, lambda at, share=share: np.interp(at, grid, np.cumsum(share))).pvalue > 1e-3, score


def test_codes_name_what_they_number() -> None:
    table = toy_cells().table
    index, names = index_cells(table)
    assert (names["model"][index.model] == table["model"]).all() and (names["test"][index.test] == table["test"]).all()
    assert (names["benchmark"][index.benchmark[index.test]] == table["benchmark"]).all()
    assert (names["trait"][index.trait[index.test]] == table["trait"]).all()
    of_cell = names["pair"][index.pair]
    assert [(names["model"][m], e) for m, e in of_cell] == list(zip(table["model"], table["evaluator"], strict=True))


def test_one_seed_gives_one_chain_and_another_another() -> None:
    index, _ = index_cells(toy_cells(models=4, benchmarks=4).table)

    def last(seed: int) -> Array:
        return list(sample(index, 1, 3, 2, seed, lambda sweep: None))[-1].abilities

    assert np.array_equal(last(1), last(1)) and not np.array_equal(last(1), last(2))
