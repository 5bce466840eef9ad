r"""Draws from the joint model of all cells: Gibbs sampling, every conditional in closed form but two.

A cell is one score s of model m on test j (benchmark b, run by evaluator e), which asks for trait t:

.. math::
    s &\sim N(c_j + (u_j - c_j)\,\sigma(z),\; se^2 + \tau_j^2) \\
    z &\sim t_\nu(d_j + \lambda_j x_{mt} + \gamma_j^T y_m + h_{me},\; \psi_j \kappa_m) \\
    (d_j, \lambda_j, \gamma_j) &\sim N((D_b, \Lambda_b, \Gamma_b), V_{tests}), \quad
    (D_b, \Lambda_b, \Gamma_b) \sim N((\mu, 1, 0), V_{benchmarks}) \\
    x_m &\sim N(0, \Sigma), \quad y_m \sim N(0, I), \quad h_{me} \sim N(0, s_h^2)

Floors c lie near chance and ceilings u below 1 (label noise). The abilities x are one per trait and correlated: a model
never measured on a trait has what its other abilities let expect, and the error of that. The free factors y are what
tests of different traits share beyond them (a form of question, a prompt); h_me is what one model has of its own with
an evaluator, and what is left is the scatter psi_j of the test times that of the model.

The latent logits z and the noise tau take Metropolis steps, so nothing is linearised in the end. Source: own; the parts
are the two-parameter logistic model (Birnbaum 1968) with correlated dimensions, partial pooling of tests (Gelman and
Hill 2006, ch. 12-14) and Student errors as scale mixtures (Geweke 1993).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import expit, logit, ndtr, ndtri
from scipy.stats import invwishart

from densing.core import Array

# A floor lies this near to chance (standard deviation); generated answers have no floor above 0.
FLOOR_SD = 0.02
# Benchmarks have wrong labels: a perfect model scores about 3 % less than all.
CEILING, CEILING_SD = 0.97, 0.03
# Between them there is at least this much.
NARROWEST = 0.1
FREEDOM = 4.0
# Inverse-gamma priors of variances, as (shape, scale): weak, on the scale of logits.
VARIANCE_PRIOR = (2.0, 0.02)
SCATTER_SHAPE, MODEL_SHAPE = 2.0, 3.0
# Priors of what is common to all tests, proper so that few tests suffice: ease N(0, 3^2), ln tau^2 around that of 100
# items of one right answer in ten, the scale of psi exponential with mean 1.
EASE_SD = 3.0
NOISE_CENTRE, NOISE_SD = float(np.log(1e-3)), 3.0
# Inverse-Wishart prior of Sigma: one degree more than traits, which leaves every correlation uniform.
COVARIANCE_SCALE = 1.0
# Of the least squares that a chain begins with.
TURNS = 100


@dataclass(frozen=True)
class Index:
    """Integer codes of the cells: who, on what, by whom.

    Parameters
    ----------
    model, test, pair : array of int, shape (n,)
        Code of each cell; ``pair`` numbers the (model, evaluator) pairs that occur.
    benchmark, trait : array of int, shape (tests,)
        Benchmark and trait of each test.
    score, se : array, shape (n,)
    chance : array, shape (tests,)
    """

    model: Array
    test: Array
    pair: Array
    benchmark: Array
    trait: Array
    score: Array
    se: Array
    chance: Array


@dataclass
class State:
    """One state of the chain; arrays are replaced, never changed in place.

    Parameters
    ----------
    abilities : array, shape (models, traits + F)
        Abilities by trait, then free factors.
    covariance : array, shape (traits, traits)
        Sigma.
    tests, benchmarks : array, shape (tests, 2 + F) and (benchmarks, 2 + F)
        Ease (minus difficulty), loading on the own trait, loadings on the free factors.
    evaluators : array
        Effects of the (model, evaluator) pairs that occur.
    floor, ceiling, noise, scatter : array, shape (tests,)
        Ends of the curve; variance tau^2 on the score's scale and psi on the logit's.
    model_scatter : array, shape (models,)
        Factor kappa on psi, of order 1.
    ease : float
        Mean ease of benchmarks.
    test_variance, benchmark_variance : array, shape (2 + F,)
    evaluator_variance : float
    typical_scatter : float
        Scale of the prior of psi.
    typical_noise : tuple of float
        Mean and standard deviation of ln tau^2 over tests.
    logits : array, shape (n,)
    """

    abilities: Array
    covariance: Array
    tests: Array
    benchmarks: Array
    evaluators: Array
    floor: Array
    ceiling: Array
    noise: Array
    scatter: Array
    model_scatter: Array
    ease: float
    test_variance: Array
    benchmark_variance: Array
    evaluator_variance: float
    typical_scatter: float
    typical_noise: tuple[float, float]
    logits: Array
    weights: Array


def index_cells(table: pd.DataFrame) -> tuple[Index, dict[str, Array]]:
    """Number what occurs in a table of cells.

    Returns
    -------
    Index
    dict of str to array
        Names in the order of the codes: ``model, test, benchmark, trait``, and ``pair`` as (model code, evaluator).
    """
    models, model = np.unique(table["model"].to_numpy(dtype=str), return_inverse=True)
    tests, test = np.unique(table["test"].to_numpy(dtype=str), return_inverse=True)
    first = table.drop_duplicates("test").set_index("test").loc[tests]
    benchmarks, benchmark = np.unique(first["benchmark"].to_numpy(dtype=str), return_inverse=True)
    traits, trait = np.unique(first["trait"].to_numpy(dtype=str), return_inverse=True)
    pair, pairs = pd.MultiIndex.from_arrays([model, table["evaluator"].to_numpy(dtype=str)]).factorize()
    index = Index(
        model=model,
        test=test,
        pair=pair,
        benchmark=benchmark,
        trait=trait,
        score=table["score"].to_numpy(dtype=float),
        se=table["se"].to_numpy(dtype=float),
        chance=first["floor"].to_numpy(dtype=float),
    )
    names = {"model": models, "test": tests, "benchmark": benchmarks, "trait": traits}
    return index, {**names, "pair": np.array(list(pairs), dtype=object)}


def sample(
    index: Index, factors: int, sweeps: int, burn: int, seed: int, tell: Callable[[int], object]
) -> Iterator[State]:
    """Yield the states of one chain after ``burn`` sweeps.

    Parameters
    ----------
    index : Index
        The cells.
    factors : int
        F, free factors beside the traits.
    sweeps, burn : int
        States yielded, and thrown away before them.
    seed : int
    tell : callable
        Called now and then with the number of sweeps done.
    """
    rng = np.random.default_rng(seed)
    state = _start(index, factors, rng)
    for sweep in range(burn + sweeps):
        _sweep(index, state, rng)
        if sweep % 50 == 0:
            tell(sweep)
        if sweep >= burn:
            yield state


def _start(index: Index, factors: int, rng: np.random.Generator) -> State:
    """Begin with one ability per model and one ease per test: least squares on logits pulled off the ends.

    Both together, in turn: an ease taken over the models that a test happens to measure has all models start alike, and
    a chain of a thousand sweeps still remembers it.
    """
    models, tests = int(index.model.max()) + 1, len(index.benchmark)
    share = np.clip((index.score - index.chance[index.test]) / (1 - index.chance[index.test]), 0.03, 0.97)
    logits = logit(share)
    ability = np.zeros(models)
    for _ in range(TURNS):
        ease = np.bincount(index.test, logits - ability[index.model], tests) / np.bincount(index.test)
        ability = np.bincount(index.model, logits - ease[index.test], models) / np.bincount(index.model)
    traits = int(index.trait.max()) + 1
    abilities = np.column_stack([np.tile(ability[:, None], traits), np.zeros((models, factors))])
    abilities += rng.normal(0, 0.3, abilities.shape)
    loadings = np.column_stack([ease, np.ones(tests), rng.normal(0, 0.2, (tests, factors))])
    count = np.bincount(index.benchmark)
    means = np.zeros((len(count), factors + 2))
    np.add.at(means, index.benchmark, loadings)
    wide = np.full(factors + 2, 0.3)
    wide[0] = 2.0
    return State(
        abilities=abilities,
        covariance=(0.1 + float(ability.var())) * (0.8 * np.ones((traits, traits)) + 0.2 * np.eye(traits)),
        tests=loadings,
        benchmarks=means / count[:, None],
        evaluators=np.zeros(int(index.pair.max()) + 1),
        floor=index.chance.copy(),
        ceiling=np.full(tests, CEILING),
        noise=np.full(tests, 1e-4),
        scatter=np.full(tests, 0.05),
        model_scatter=np.ones(models),
        ease=0.0,
        test_variance=np.full(factors + 2, 0.1),
        benchmark_variance=wide,
        evaluator_variance=0.05,
        typical_scatter=0.05,
        typical_noise=(float(np.log(1e-4)), 1.0),
        logits=logits,
        weights=np.ones(len(logits)),
    )


def _sweep(index: Index, state: State, rng: np.random.Generator) -> None:
    model, test, tests = index.model, index.test, len(index.benchmark)
    models, traits, width = len(state.abilities), len(state.covariance), state.abilities.shape[1]

    # A cell touches its own trait and the free factors, out of all dimensions.
    slots = np.column_stack([index.trait, np.tile(np.arange(traits, width), (tests, 1))])
    at = slots[test]

    def fitted() -> Array:
        """Logits before what a model has of its own with an evaluator."""
        rows = state.tests[test]
        return np.asarray(rows[:, 0] + np.einsum("ij,ij->i", rows[:, 1:], state.abilities[model[:, None], at]))

    own = state.evaluators[index.pair]
    precision = state.weights / (state.scatter[test] * state.model_scatter[model])
    curve = state.floor[test], state.ceiling[test], index.se**2 + state.noise[test]
    state.logits = draw_logits(state.logits, fitted() + own, 1 / precision, curve, index.score, rng)
    _shift_models(index, state, rng)
    _shift_traits(index, state, rng)
    z = state.logits

    # Abilities of the models, then loadings of the tests: linear regressions on each other, all at once. Sums over
    # cells are products of a models x tests matrix, which is small however many pairs are empty.
    weight, value = np.zeros((models, tests)), np.zeros((models, tests))
    weight[model, test], value[model, test] = precision, precision * (z - own)
    of_trait = [np.flatnonzero(index.trait == trait) for trait in range(traits)]
    matrix, vector = np.zeros((models, width, width)), np.zeros((models, width))
    matrix[:, :traits, :traits] = np.linalg.inv(state.covariance)
    matrix[:, range(traits, width), range(traits, width)] = 1.0
    for members in of_trait:
        own_slots = slots[members[0]]
        gram, information = _sums(weight[:, members], value[:, members], state.tests[members])
        matrix[:, own_slots[:, None], own_slots] += gram[:, 1:, 1:]
        vector[:, own_slots] += information[:, 1:] - gram[:, 0, 1:]
    state.abilities = gaussian(matrix, vector, rng)
    of_traits = state.abilities[:, :traits]
    scale = of_traits.T @ of_traits + COVARIANCE_SCALE * np.eye(traits)
    state.covariance = invwishart.rvs(traits + 1 + models, scale, random_state=rng).reshape(traits, traits)
    shrink = 1 / state.test_variance
    gram, information = np.empty((tests, len(shrink), len(shrink))), np.empty_like(state.tests)
    for members in of_trait:
        design = np.column_stack([np.ones(models), state.abilities[:, slots[members[0]]]])
        gram[members], information[members] = _sums(weight[:, members].T, value[:, members].T, design)
    information += shrink * state.benchmarks[index.benchmark]
    state.tests = gaussian(gram + np.diag(shrink), information, rng)
    mean = np.zeros(len(shrink))
    # The loading's mean is 1: the scale is in Sigma. Free factors have no sign.
    mean[:2] = state.ease, 1.0
    count = np.bincount(index.benchmark)[:, None]
    total = np.zeros_like(state.benchmarks)
    np.add.at(total, index.benchmark, state.tests)
    inverse = count / state.test_variance + 1 / state.benchmark_variance
    centre = (total / state.test_variance + mean / state.benchmark_variance) / inverse
    state.benchmarks = centre + rng.standard_normal(centre.shape) / np.sqrt(inverse)
    known = len(count) / state.benchmark_variance[0] + EASE_SD**-2
    state.ease = float(state.benchmarks[:, 0].sum() / state.benchmark_variance[0] / known)
    state.ease += float(rng.standard_normal() / np.sqrt(known))
    mean[0] = state.ease
    state.test_variance = _variance(state.tests - state.benchmarks[index.benchmark], rng)
    state.benchmark_variance = _variance(state.benchmarks - mean, rng)

    rest = z - fitted()
    per_pair: Array = np.bincount(index.pair, precision) + 1 / state.evaluator_variance
    effects = np.bincount(index.pair, precision * rest) / per_pair
    state.evaluators = effects + rng.standard_normal(len(per_pair)) / np.sqrt(per_pair)
    state.evaluator_variance = float(_variance(state.evaluators[:, None], rng)[0])
    residual = rest - state.evaluators[index.pair]

    # Student errors: a weight per cell, a variance per test, a factor per model.
    squared = residual**2 / (state.scatter[test] * state.model_scatter[model])
    state.weights = rng.gamma((FREEDOM + 1) / 2, 2 / (FREEDOM + squared))
    by_test = np.bincount(test, state.weights * residual**2 / state.model_scatter[model], tests)
    half = np.bincount(test, minlength=tests) / 2
    typical = SCATTER_SHAPE * state.typical_scatter
    state.scatter = 1 / rng.gamma(SCATTER_SHAPE + half, 1 / (typical + by_test / 2))
    state.typical_scatter = rng.gamma(tests * SCATTER_SHAPE + 1, 1 / (1 + SCATTER_SHAPE * (1 / state.scatter).sum()))
    by_model = np.bincount(model, state.weights * residual**2 / state.scatter[test], models)
    half = np.bincount(model, minlength=models) / 2
    state.model_scatter = 1 / rng.gamma(MODEL_SHAPE + half, 1 / (MODEL_SHAPE + by_model / 2))
    _draw_ends(index, state, rng)


def _sums(weight: Array, value: Array, design: Array) -> tuple[Array, Array]:
    """Return X'WX (n, k, k) and X'Wv (n, k) of n regressions on one design X (m, k), from W and Wv, both (n, m)."""
    count = design.shape[1]
    squares = (design[:, :, None] * design[:, None, :]).reshape(len(design), count**2)
    return (weight @ squares).reshape(-1, count, count), value @ design


def draw_logits(
    here: Array,
    fitted: Array,
    variance: Array,
    curve: tuple[Array, Array, Array],
    score: Array,
    rng: np.random.Generator,
) -> Array:
    """Metropolis: propose from the Gaussian that the curve's tangent at the present logit gives.

    Parameters
    ----------
    here : array
        Present logits, of cells or of draws x cells.
    fitted, variance : array
        Mean and variance of the logits before the score is seen.
    curve : tuple of array
        Floor, ceiling and variance of the score around the curve.
    score : array
    rng : numpy.random.Generator
    """
    floor, ceiling, noise = curve

    def proposal(z: Array) -> tuple[Array, Array]:
        share = expit(z)
        slope = (ceiling - floor) * share * (1 - share)
        precision = 1 / variance + slope**2 / noise
        gradient = (fitted - z) / variance + slope * (score - floor - (ceiling - floor) * share) / noise
        return z + gradient / precision, precision

    def log_density(z: Array) -> Array:
        miss = score - floor - (ceiling - floor) * expit(z)
        return -0.5 * (z - fitted) ** 2 / variance - 0.5 * miss**2 / noise

    centre, precision = proposal(here)
    there = centre + rng.standard_normal(here.shape) / np.sqrt(precision)
    back, precision_back = proposal(there)
    ratio = log_density(there) - log_density(here)
    ratio += 0.5 * np.log(precision_back) - 0.5 * precision_back * (here - back) ** 2
    ratio -= 0.5 * np.log(precision) - 0.5 * precision * (there - centre) ** 2
    return np.where(np.log(rng.random(here.shape)) < ratio, there, here)


def _shift_models(index: Index, state: State, rng: np.random.Generator) -> None:
    """Metropolis: move a model's abilities and its logits together, on all traits or on one.

    Abilities given logits move by the scatter only, however little the scores of a model near a floor say. Source: Yu
    and Meng (2011), interweaving of centred and non-centred parametrisations.
    """
    model, test = index.model, index.test
    models, traits = len(state.abilities), len(state.covariance)
    one = np.eye(traits)[rng.integers(0, traits, models)]
    direction = np.where(rng.random(models)[:, None] < 0.5, 1.0, one)
    # Steps of all sizes: a posterior may be as narrow as 0.03 or as wide as 2.
    move = direction * (10 ** rng.uniform(-1.5, 0.3, models) * rng.standard_normal(models))[:, None]
    logits = state.logits + state.tests[test, 1] * move[model, index.trait[test]]
    floor, width = state.floor[test], (state.ceiling - state.floor)[test]
    noise = index.se**2 + state.noise[test]
    miss, missed = (index.score - floor - width * expit(at) for at in (logits, state.logits))
    ratio = np.bincount(model, 0.5 * (missed**2 - miss**2) / noise, models)
    here = state.abilities[:, :traits]
    precision = np.linalg.inv(state.covariance)
    ratio -= (((here + 0.5 * move) @ precision) * move).sum(axis=1)
    accepted = np.log(rng.random(models)) < ratio
    state.abilities = state.abilities.copy()
    state.abilities[:, :traits] = np.where(accepted[:, None], here + move, here)
    state.logits = np.where(accepted[model], logits, state.logits)


def _shift_traits(index: Index, state: State, rng: np.random.Generator) -> None:
    """Draw where the zero of each trait lies: all abilities up, all tests harder, and no logit changes."""
    precision = np.linalg.inv(state.covariance)
    abilities, tests, benchmarks = state.abilities.copy(), state.tests.copy(), state.benchmarks.copy()
    of_benchmark = np.empty(len(benchmarks), dtype=int)
    of_benchmark[index.benchmark] = index.trait
    for trait in range(len(precision)):
        own, above = index.trait == trait, of_benchmark == trait
        rest = (tests - benchmarks[index.benchmark])[own]
        over = benchmarks[above, 0] - state.ease
        known = len(abilities) * precision[trait, trait] + (rest[:, 1] ** 2).sum() / state.test_variance[0]
        known += (benchmarks[above, 1] ** 2).sum() / state.benchmark_variance[0]
        centre = -(abilities[:, : len(precision)] @ precision[trait]).sum()
        centre += (rest[:, 1] * rest[:, 0]).sum() / state.test_variance[0]
        centre += (benchmarks[above, 1] * over).sum() / state.benchmark_variance[0]
        move = centre / known + rng.standard_normal() / np.sqrt(known)
        abilities[:, trait] += move
        tests[own, 0] -= tests[own, 1] * move
        benchmarks[above, 0] -= benchmarks[above, 1] * move
    state.abilities, state.tests, state.benchmarks = abilities, tests, benchmarks


def _draw_ends(index: Index, state: State, rng: np.random.Generator) -> None:
    """Floors and ceilings are linear in the score; the noise of a test takes a Metropolis step in its logarithm."""
    test, tests = index.test, len(index.benchmark)
    share = expit(state.logits)
    noise = index.se**2 + state.noise[test]

    def end(
        loading: Array, value: Array, prior: tuple[Array | float, float], lowest: Array | float, highest: Array | float
    ) -> Array:
        mean, sd = prior
        precision = np.bincount(test, loading**2 / noise, tests) + sd**-2
        centre = (np.bincount(test, loading * value / noise, tests) + mean * sd**-2) / precision
        return truncated(centre, 1 / np.sqrt(precision), lowest, highest, rng)

    chance = (index.chance, FLOOR_SD)
    floor = end(1 - share, index.score - state.ceiling[test] * share, chance, 0.0, state.ceiling - NARROWEST)
    state.floor = np.where(index.chance > 0, floor, 0.0)
    labels = (CEILING, CEILING_SD)
    state.ceiling = end(share, index.score - state.floor[test] * (1 - share), labels, state.floor + NARROWEST, 1.0)
    miss = (index.score - state.floor[test] - (state.ceiling - state.floor)[test] * share) ** 2
    centre, width = state.typical_noise

    def log_density(noise: Array) -> Array:
        variance = index.se**2 + noise[test]
        fit = np.bincount(test, -0.5 * np.log(variance) - 0.5 * miss / variance, tests)
        return fit - 0.5 * ((np.log(noise) - centre) / width) ** 2

    there = state.noise * np.exp(0.8 * rng.standard_normal(tests))
    better = np.log(rng.random(tests)) < log_density(there) - log_density(state.noise)
    state.noise = np.where(better, there, state.noise)
    logs = np.log(state.noise)
    known = tests / width**2 + NOISE_SD**-2
    centre = float(
        (logs.sum() / width**2 + NOISE_CENTRE * NOISE_SD**-2 + rng.standard_normal() * np.sqrt(known)) / known
    )
    width = float(np.sqrt(1 / rng.gamma(2 + tests / 2, 1 / (2 + ((logs - centre) ** 2).sum() / 2))))
    state.typical_noise = (centre, width)


def gaussian(precision: Array, information: Array, rng: np.random.Generator) -> Array:
    """Draw from N(P^-1 r, P^-1) for a stack of precisions P and information vectors r."""
    # P^-1 (r + L e) with P = L L^T has covariance P^-1: one system to solve, where r alone and e would take two.
    noise = np.linalg.cholesky(precision) @ rng.standard_normal((*information.shape, 1))
    return np.asarray(np.linalg.solve(precision, information[..., None] + noise)[..., 0])


def truncated(mean: Array, sd: Array, lowest: Array | float, highest: Array | float, rng: np.random.Generator) -> Array:
    """Draw from normal distributions between two limits."""
    low, high = (lowest - mean) / sd, (highest - mean) / sd
    # The distribution function resolves its left tail only, so an interval on the right is mirrored.
    mirrored = low + high > 0
    low, high = np.where(mirrored, -high, low), np.where(mirrored, -low, high)
    below = ndtr(np.maximum(low, -37.0))
    drawn = ndtri(below + rng.random(np.shape(mean)) * (ndtr(np.maximum(high, -37.0)) - below))
    drawn = np.clip(np.where(mirrored, -drawn, drawn), np.where(mirrored, -high, low), np.where(mirrored, -low, high))
    return np.asarray(mean + sd * drawn)


def _variance(values: Array, rng: np.random.Generator) -> Array:
    """Draw the variance of each column around 0."""
    shape, scale = VARIANCE_PRIOR
    return 1 / rng.gamma(shape + len(values) / 2, 1 / (scale + (values**2).sum(axis=0) / 2))
