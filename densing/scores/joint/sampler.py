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
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
from scipy.sparse import csr_array
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


class Pattern:
    """Where the cells stand in a sparse matrix."""

    def __init__(self, row: Array, column: Array, shape: tuple[int, int]) -> None:
        self.order = np.lexsort((column, row))
        self.columns = column[self.order].astype(np.int32)
        self.starts = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=shape[0]))]).astype(np.int32)
        self.shape = shape

    def summed(self, weight: Array, features: Array) -> Array:
        """Return per row the sum over its cells of weight times features of the column."""
        return np.asarray(csr_array((weight[self.order], self.columns, self.starts), shape=self.shape) @ features)


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

    @cached_property
    def trait_of_benchmark(self) -> Array:
        """Trait of each benchmark."""
        trait = np.empty(int(self.benchmark.max()) + 1, dtype=int)
        trait[self.benchmark] = self.trait
        return trait

    @cached_property
    def by_pair(self) -> Pattern:
        """Cells of each pair and trait, over tests."""
        traits = int(self.trait.max()) + 1
        shape = (int(self.pair.max()) + 1) * traits, len(self.benchmark)
        return Pattern(self.pair * traits + self.trait[self.test], self.test, shape)

    @cached_property
    def by_test(self) -> Pattern:
        """Cells of each test, over models and traits."""
        traits = int(self.trait.max()) + 1
        shape = len(self.benchmark), (int(self.model.max()) + 1) * traits
        return Pattern(self.test, self.model * traits + self.trait[self.test], shape)

    @cached_property
    def slot(self) -> Array:
        return self.model * (int(self.trait.max()) + 1) + self.trait[self.test]

    @cached_property
    def by_slot(self) -> Pattern:
        traits = int(self.trait.max()) + 1
        shape = (int(self.model.max()) + 1) * traits, len(self.benchmark)
        return Pattern(self.slot, self.test, shape)

    @cached_property
    def tests_of_benchmark(self) -> csr_array:
        tests = len(self.benchmark)
        return csr_array((np.ones(tests), (self.benchmark, np.arange(tests))))

    @cached_property
    def model_of_pair(self) -> Array:
        """Model of each pair."""
        model = np.empty(int(self.pair.max()) + 1, dtype=int)
        model[self.pair] = self.model
        return model

    @cached_property
    def pairs_of_model(self) -> csr_array:
        """Ones where a pair is of a model, shape (models, pairs)."""
        pairs = len(self.model_of_pair)
        return csr_array((np.ones(pairs), (self.model_of_pair, np.arange(pairs))))

    @cached_property
    def measured(self) -> Array:
        """Which models were measured on which traits, shape (models, traits)."""
        table = np.zeros((int(self.model.max()) + 1, int(self.trait.max()) + 1), dtype=bool)
        table[self.model, self.trait[self.test]] = True
        return table


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
    models = len(state.abilities)
    variance = state.scatter[test] * state.model_scatter[model] / state.weights
    curve = state.floor[test], state.ceiling[test], index.se**2 + state.noise[test]
    state.logits = draw_logits(state.logits, _fitted(index, state), variance, curve, index.score, rng)
    MODE(index, state, rng)
    _draw_covariance(index, state, rng)
    # ease with benchmarks integrated out
    count = np.bincount(index.benchmark)
    each = count / (state.test_variance[0] + count * state.benchmark_variance[0])
    mean_of = np.bincount(index.benchmark, state.tests[:, 0]) / count
    known = each.sum() + EASE_SD**-2
    state.ease = float((each * mean_of).sum() / known + rng.standard_normal() / np.sqrt(known))
    mean = _centre(state)
    count = np.bincount(index.benchmark)[:, None]
    total = np.zeros_like(state.benchmarks)
    np.add.at(total, index.benchmark, state.tests)
    inverse = count / state.test_variance + 1 / state.benchmark_variance
    centre = (total / state.test_variance + mean / state.benchmark_variance) / inverse
    state.benchmarks = centre + rng.standard_normal(centre.shape) / np.sqrt(inverse)
    _shear_traits(index, state, rng)
    _stretch(index, state, rng)
    _turn(index, state, rng)
    state.test_variance = _variance(state.tests - state.benchmarks[index.benchmark], rng)
    state.benchmark_variance = _variance(state.benchmarks - mean, rng)

    state.evaluator_variance = float(_variance(state.evaluators[:, None], rng)[0])
    residual = state.logits - _fitted(index, state)

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


def MODE(index, state, rng):
    _draw_models(index, state, rng)
    _draw_tests(index, state, rng)


def _fitted(index: Index, state: State) -> Array:
    """Logits but for the scatter."""
    traits = len(state.covariance)
    own = state.abilities[index.model, index.trait[index.test]]
    rows = state.tests[index.test]
    fitted = rows[:, 0] + rows[:, 1] * own + state.evaluators[index.pair]
    return np.asarray(fitted + np.einsum("ij,ij->i", rows[:, 2:], state.abilities[index.model, traits:]))


class _Tie:
    """Logits tied in part to what is fitted to them, so that both move together.

    A logit z of a vague score is known by the fit f alone, and f given z moves by the scatter only; a logit of a sharp
    score is known by it alone. What is held while f moves is u = z - q f, with q the share of the variance of z given
    the score in the sum with that of the scatter: were the curve a line, f given u would be drawn as if z were
    integrated out. Source: Papaspiliopoulos, Roberts and Skold (2003), partially non-centred parametrisations.
    """

    def __init__(self, index: Index, state: State) -> None:
        test = index.test
        self.score = index.score
        self.variance = state.scatter[test] * state.model_scatter[index.model] / state.weights
        self.floor, self.width = state.floor[test], (state.ceiling - state.floor)[test]
        self.noise = index.se**2 + state.noise[test]
        share = np.clip((index.score - self.floor) / self.width, 0.03, 0.97)
        vague = self.noise / (self.width * share * (1 - share)) ** 2
        self.share = vague / (vague + self.variance)
        self.free = 1 - self.share
        self.inverse, self.weight = 1 / self.variance, 1 / self.noise
        self.slope = self.share * self.width
        self.fitted = _fitted(index, state)
        self.held = state.logits - self.share * self.fitted

    def logits(self, fitted: Array) -> Array:
        return np.asarray(self.held + self.share * fitted)

    def look(self, fitted: Array) -> tuple[Array, Array, Array]:
        """Return log density, Gauss-Newton precision, and its product with f plus the gradient."""
        share = expit(self.held + self.share * fitted)
        miss = self.score - self.floor - self.width * share
        rest = self.held - (1 - self.share) * fitted
        slope = self.share * self.width * share * (1 - share)
        density = -0.5 * rest**2 / self.variance - 0.5 * miss**2 / self.noise
        precision = (1 - self.share) ** 2 / self.variance + slope**2 / self.noise
        gradient = (1 - self.share) * rest / self.variance + slope * miss / self.noise
        return density, precision, precision * fitted + gradient


def _log_normal(at: Array, precision: Array, information: Array) -> Array:
    """Log density of N(P^-1 r, P^-1), but for a constant, for a stack."""
    mean = np.linalg.solve(precision, information[..., None])[..., 0]
    gap = at - mean
    return np.asarray(0.5 * np.linalg.slogdet(precision)[1] - 0.5 * np.einsum("ij,ijk,ik->i", gap, precision, gap))


def _draw_models(index: Index, state: State, rng: np.random.Generator) -> None:
    """Metropolis: all abilities of a model, its effects with evaluators and the logits of its scores, in one step."""
    models, traits, width = len(state.abilities), len(state.covariance), state.abilities.shape[1]
    own, shared = np.arange(traits), slice(traits, None)
    tie = _Tie(index, state)
    rows = state.tests[:, 1:]
    squares = (rows[:, :, None] * rows[:, None, :]).reshape(len(rows), -1)
    features = np.column_stack([np.ones(len(rows)), rows, squares])
    kinds = rows.shape[1]
    of_pair = index.model_of_pair
    prior = np.eye(width)
    prior[:traits, :traits] = np.linalg.inv(state.covariance)

    def spread(blocks: Array) -> Array:
        """Sums by pair and trait (pairs, traits, 1 + F), at the places of the abilities (pairs, traits + F)."""
        return np.concatenate([blocks[:, :, 0], blocks[:, :, 1:].sum(axis=1)], axis=1)

    def look(fitted: Array) -> tuple[Array, ...]:
        density, precision, value = tie.look(fitted)
        value = value - precision * state.tests[index.test, 0]
        sums = index.by_pair.summed(precision, features).reshape(-1, traits, features.shape[1])
        weight = sums[:, :, 0].sum(axis=1)
        cross = spread(sums[:, :, 1 : 1 + kinds])
        gram = index.pairs_of_model @ sums[:, :, 1 + kinds :].reshape(len(sums), -1)
        gram = gram.reshape(models, traits, kinds, kinds)
        total = np.bincount(index.pair, value, len(sums))
        line = spread(index.by_pair.summed(value, rows).reshape(-1, traits, kinds))
        known = weight + 1 / state.evaluator_variance
        matrix = np.tile(prior, (models, 1, 1))
        matrix[:, own, own] += gram[:, :, 0, 0]
        matrix[:, own, shared] += gram[:, :, 0, 1:]
        matrix[:, shared, own] += gram[:, :, 1:, 0].swapaxes(1, 2)
        matrix[:, shared, shared] += gram[:, :, 1:, 1:].sum(axis=1)
        outer = cross[:, :, None] * cross[:, None, :] / known[:, None, None]
        matrix -= (index.pairs_of_model @ outer.reshape(len(sums), -1)).reshape(matrix.shape)
        vector = index.pairs_of_model @ (line - cross * (total / known)[:, None])
        return np.bincount(index.model, density, models), matrix, vector, known, cross, total

    def log_proposal(abilities: Array, effects: Array, seen: tuple[Array, ...]) -> Array:
        _, matrix, vector, known, cross, total = seen
        gap = effects - (total - np.einsum("ij,ij->i", cross, abilities[of_pair])) / known
        of_effects = np.bincount(of_pair, 0.5 * np.log(known) - 0.5 * known * gap**2, models)
        return _log_normal(abilities, matrix, vector) + of_effects

    def log_prior(abilities: Array, effects: Array) -> Array:
        of_effects = np.bincount(of_pair, -0.5 * effects**2 / state.evaluator_variance, models)
        return of_effects - 0.5 * np.einsum("ij,jk,ik->i", abilities, prior, abilities)

    here = look(tie.fitted)
    _, matrix, vector, known, cross, total = here
    abilities = gaussian(matrix, vector, rng)
    effects = (total - np.einsum("ij,ij->i", cross, abilities[of_pair])) / known
    effects += rng.standard_normal(len(effects)) / np.sqrt(known)
    moved = replace(state, abilities=abilities, evaluators=effects)
    fitted = _fitted(index, moved)
    there = look(fitted)
    ratio = there[0] - here[0] + log_prior(abilities, effects) - log_prior(state.abilities, state.evaluators)
    ratio += log_proposal(state.abilities, state.evaluators, there) - log_proposal(abilities, effects, here)
    accepted = np.log(rng.random(models)) < ratio
    state.abilities = np.where(accepted[:, None], abilities, state.abilities)
    state.evaluators = np.where(accepted[of_pair], effects, state.evaluators)
    state.logits = np.where(accepted[index.model], tie.logits(fitted), state.logits)
    STAT.append(accepted.mean())


STAT=[]
STAT2=[]


def _draw_tests(index: Index, state: State, rng: np.random.Generator) -> None:
    """Metropolis: ease and loadings of a test and the logits of its scores, in one step."""
    tests, traits, models = len(state.tests), len(state.covariance), len(state.abilities)
    tie = _Tie(index, state)
    design = np.empty((models, traits, state.tests.shape[1]))
    design[:, :, 0], design[:, :, 1] = 1.0, state.abilities[:, :traits]
    design[:, :, 2:] = state.abilities[:, None, traits:]
    design = design.reshape(models * traits, -1)
    squares = (design[:, :, None] * design[:, None, :]).reshape(len(design), -1)
    own = state.evaluators[index.pair]
    shrink = 1 / state.test_variance
    means = state.benchmarks[index.benchmark]

    def look(fitted: Array) -> tuple[Array, Array, Array]:
        density, precision, value = tie.look(fitted)
        gram = index.by_test.summed(precision, squares).reshape(tests, len(shrink), len(shrink))
        vector = index.by_test.summed(value - precision * own, design)
        return np.bincount(index.test, density, tests), gram + np.diag(shrink), vector + shrink * means

    def log_prior(values: Array) -> Array:
        return -0.5 * ((values - means) ** 2 * shrink).sum(axis=1)

    here = look(tie.fitted)
    moved = gaussian(here[1], here[2], rng)
    fitted = _fitted(index, replace(state, tests=moved))
    there = look(fitted)
    ratio = there[0] - here[0] + log_prior(moved) - log_prior(state.tests)
    ratio += _log_normal(state.tests, *there[1:]) - _log_normal(moved, *here[1:])
    accepted = np.log(rng.random(tests)) < ratio
    state.tests = np.where(accepted[:, None], moved, state.tests)
    state.logits = np.where(accepted[index.test], tie.logits(fitted), state.logits)
    STAT2.append(accepted.mean())


@dataclass
class Tuning:
    """Mass and step of the trajectories."""

    step: float
    models: Array  # S
    cross: Array   # pairs x width: cross / known
    known: Array   # pairs
    tests: Array
    fac_models: Array = None
    fac_tests: Array = None
    inv_models: Array = None
    inv_tests: Array = None

    def __post_init__(self) -> None:
        self.inv_models, self.inv_tests = np.linalg.inv(self.models), np.linalg.inv(self.tests)
        self.fac_models, self.fac_tests = np.linalg.cholesky(self.inv_models), np.linalg.cholesky(self.inv_tests)


def tune(index: Index, state: State, precision: Array, abilities: Array, rows4: Array, step: float) -> Tuning:
    models, traits, width = len(state.abilities), len(state.covariance), state.abilities.shape[1]
    tests = len(rows4)
    own, shared = np.arange(traits), slice(traits, None)
    rows = rows4[:, 1:]
    squares = (rows[:, :, None] * rows[:, None, :]).reshape(len(rows), -1)
    features = np.column_stack([np.ones(len(rows)), rows, squares])
    kinds = rows.shape[1]
    prior = np.eye(width)
    prior[:traits, :traits] = np.linalg.inv(state.covariance)
    sums = index.by_pair.summed(precision, features).reshape(-1, traits, features.shape[1])
    cross = np.concatenate([sums[:, :, 1], sums[:, :, 2:1+kinds].sum(axis=1)], axis=1)
    gram = index.pairs_of_model @ sums[:, :, 1 + kinds :].reshape(len(sums), -1)
    gram = gram.reshape(models, traits, kinds, kinds)
    known = sums[:, :, 0].sum(axis=1) + 1 / state.evaluator_variance
    matrix = np.tile(prior, (models, 1, 1))
    matrix[:, own, own] += gram[:, :, 0, 0]
    matrix[:, own, shared] += gram[:, :, 0, 1:]
    matrix[:, shared, own] += gram[:, :, 1:, 0].swapaxes(1, 2)
    matrix[:, shared, shared] += gram[:, :, 1:, 1:].sum(axis=1)
    outer = cross[:, :, None] * cross[:, None, :] / known[:, None, None]
    matrix -= (index.pairs_of_model @ outer.reshape(len(sums), -1)).reshape(matrix.shape)
    design = np.empty((models, traits, rows4.shape[1]))
    design[:, :, 0], design[:, :, 1] = 1.0, abilities[:, :traits]
    design[:, :, 2:] = abilities[:, None, traits:]
    design = design.reshape(models * traits, -1)
    squares = (design[:, :, None] * design[:, None, :]).reshape(len(design), -1)
    gram = index.by_test.summed(precision, squares).reshape(tests, kinds + 1, kinds + 1)
    count = np.bincount(index.benchmark)[:, None]
    k = 1 / (count + state.test_variance / state.benchmark_variance)
    diag = (1 - k[index.benchmark]) / state.test_variance
    gram[:, np.arange(kinds+1), np.arange(kinds+1)] += diag
    return Tuning(step, matrix, cross / known[:, None], known, gram)


LEAPS = 20


def _glide(index: Index, state: State, tuning: Tuning, rng: np.random.Generator, leaps: int | None = None) -> float:
    """Hamiltonian Monte Carlo: all abilities, effects of evaluators, tests and logits in one step; benchmarks integrated out."""
    models, traits, width = len(state.abilities), len(state.covariance), state.abilities.shape[1]
    tie = _Tie(index, state)
    prior = np.eye(width)
    prior[:traits, :traits] = np.linalg.inv(state.covariance)
    count = np.bincount(index.benchmark)[:, None]
    k = 1 / (count + state.test_variance / state.benchmark_variance)
    total = (count * (1 - count * k) / state.test_variance).sum(axis=0)[0] + EASE_SD**-2   # 1'A1 + prior
    benchmark, model, test, pair, own_slot = index.benchmark, index.model, index.test, index.pair, index.slot
    onto = index.tests_of_benchmark
    evar = state.evaluator_variance

    def apply(r):
        return (r - (k * (onto @ r))[benchmark]) / state.test_variance

    def gradient(x, h, t):
        design = np.empty((models, traits, t.shape[1]))
        design[:, :, 0], design[:, :, 1] = 1.0, x[:, :traits]
        design[:, :, 2:] = x[:, None, traits:]
        design = design.reshape(models * traits, -1)
        fitted = np.einsum('ij,ij->i', design[own_slot], t[test]) + h[pair]
        share = expit(tie.held + tie.share * fitted)
        miss = tie.score - tie.floor - tie.width * share
        rest = tie.held - tie.free * fitted
        a, b = rest * tie.inverse, miss * tie.weight
        density = -0.5 * (rest @ a + miss @ b)
        g = tie.free * a + tie.slope * share * (1 - share) * b
        sums = index.by_slot.summed(g, t[:, 1:]).reshape(models, traits, -1)
        px = x @ prior
        gx = np.concatenate([sums[:, :, 0], sums[:, :, 1:].sum(axis=1)], axis=1) - px
        gh = np.bincount(pair, g, len(h)) - h / evar
        r = t.copy(); r[:, 1] -= 1
        r[:, 0] -= apply(r)[:, 0].sum() / total
        ar = apply(r)
        gt = index.by_test.summed(g, design) - ar
        rr = t.copy(); rr[:,1] -= 1
        return density - 0.5 * ((x * px).sum() + h @ h / evar + (rr * ar).sum()), gx, gh, gt, fitted

    of_pair, cross, known = index.model_of_pair, tuning.cross, tuning.known

    def speed(gx, gh, gt):
        # K^-1 g
        vx = gx - index.pairs_of_model @ (cross * gh[:, None])
        vx = np.matmul(tuning.inv_models, vx[..., None])[..., 0]
        vh = gh / known - np.einsum('ij,ij->i', cross, vx[of_pair])
        return vx, vh, np.matmul(tuning.inv_tests, gt[..., None])[..., 0]

    def kinetic(vx, vh, vt):
        hh = vh + np.einsum('ij,ij->i', cross, vx[of_pair])
        return 0.5 * (np.einsum('ij,ijk,ik->', vx, tuning.models, vx) + known @ hh**2 + np.einsum('ij,ijk,ik->', vt, tuning.tests, vt))

    vx = np.matmul(tuning.fac_models, rng.standard_normal((models, width, 1)))[..., 0]
    vh = rng.standard_normal(len(known)) / np.sqrt(known) - np.einsum('ij,ij->i', cross, vx[of_pair])
    vt = np.matmul(tuning.fac_tests, rng.standard_normal((*state.tests.shape, 1)))[..., 0]
    eps = tuning.step * rng.uniform(0.8, 1.2)
    x, h, t = state.abilities, state.evaluators, state.tests
    logp, gx, gh, gt, fitted = gradient(x, h, t)
    start = logp - kinetic(vx, vh, vt)
    for leap in range(leaps or LEAPS):
        ax, ah, at = speed(gx, gh, gt)
        vx, vh, vt = vx + eps / 2 * ax, vh + eps / 2 * ah, vt + eps / 2 * at
        x, h, t = x + eps * vx, h + eps * vh, t + eps * vt
        logp, gx, gh, gt, fitted = gradient(x, h, t)
        ax, ah, at = speed(gx, gh, gt)
        vx, vh, vt = vx + eps / 2 * ax, vh + eps / 2 * ah, vt + eps / 2 * at
    end = logp - kinetic(vx, vh, vt)
    with np.errstate(over='ignore'):
        chance = float(np.exp(min(0.0, end - start))) if np.isfinite(end) else 0.0
    if rng.random() < chance:
        state.abilities, state.evaluators, state.tests = x, h, t
        state.logits = tie.logits(fitted)
    return chance


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


def _shear_traits(index: Index, state: State, rng: np.random.Generator) -> None:
    """Draw where the zero of each trait lies and how much of the free factors is in it; no logit changes.

    Abilities x + A (1, y) on tests of ease and free loadings (d, gamma) - A lambda have the logits of x on (d, gamma).
    """
    traits = len(state.covariance)
    inverse = np.linalg.inv(state.covariance)
    abilities, tests, benchmarks = state.abilities.copy(), state.tests.copy(), state.benchmarks.copy()
    added = np.column_stack([np.ones(len(abilities)), abilities[:, traits:]])
    kinds = added.shape[1]
    # Of ease and free loadings, in the order of ``added``.
    columns = np.r_[0, 2 : kinds + 1]
    rest = tests - benchmarks[index.benchmark]
    over = benchmarks - _centre(state)
    precision = np.kron(inverse, added.T @ added)
    information = -(inverse @ abilities[:, :traits].T @ added)
    for values, loading, trait, variance in (
        (rest, rest[:, 1], index.trait, state.test_variance),
        (over, benchmarks[:, 1], index.trait_of_benchmark, state.benchmark_variance),
    ):
        squares = np.bincount(trait, loading**2, traits)
        precision += np.diag((squares[:, None] / variance[columns]).ravel())
        for position, column in enumerate(columns):
            information[:, position] += np.bincount(trait, loading * values[:, column], traits) / variance[column]
    move = gaussian(precision, information.ravel(), rng).reshape(traits, kinds)
    abilities[:, :traits] += added @ move.T
    tests[:, columns] -= tests[:, [1]] * move[index.trait]
    benchmarks[:, columns] -= benchmarks[:, [1]] * move[index.trait_of_benchmark]
    state.abilities, state.tests, state.benchmarks = abilities, tests, benchmarks


def _stretch(index: Index, state: State, rng: np.random.Generator) -> None:
    """Draw the scale of each trait and free factor against that of its loadings; no logit changes.

    Abilities c x and loadings lambda / c have the logits of x and lambda. Generalised Gibbs sampling: the density along
    the orbit, times the Jacobian of the move, times dc / c (Liu and Sabatti 2000). Sigma moves with its trait, and the
    variances of free loadings with their factor.
    """
    traits, width = len(state.covariance), state.abilities.shape[1]
    benchmark_trait = index.trait_of_benchmark
    rest = (state.tests - state.benchmarks[index.benchmark])[:, 1]
    # Of u = 1 / c: u^power exp(-square u^2 / 2 + line u), its logarithm close to normal.
    power = traits + 1.0 + np.bincount(index.trait, minlength=traits) + np.bincount(benchmark_trait, minlength=traits)
    square = COVARIANCE_SCALE * np.diag(np.linalg.inv(state.covariance))
    square = square + np.bincount(index.trait, rest**2, traits) / state.test_variance[1]
    loading = state.benchmarks[:, 1]
    square += np.bincount(benchmark_trait, loading**2, traits) / state.benchmark_variance[1]
    line = np.bincount(benchmark_trait, loading, traits) / state.benchmark_variance[1]

    def log_density(u: Array) -> Array:
        return np.asarray(power * np.log(u) - 0.5 * square * u**2 + line * u)

    best = (line + np.sqrt(line**2 + 4 * power * square)) / (2 * square)
    sd = 1 / np.sqrt(2 * square * best**2 - line * best)
    there = best * np.exp(sd * rng.standard_normal(traits))
    ratio = log_density(there) - log_density(np.ones(traits))
    ratio += 0.5 * (np.log(there / best) / sd) ** 2 - 0.5 * (np.log(best) / sd) ** 2
    shrink = np.where(np.log(rng.random(traits)) < ratio, there, 1.0)
    shape, scale = VARIANCE_PRIOR
    rate = (state.abilities[:, traits:] ** 2).sum(axis=0) / 2
    rate += scale * (1 / state.test_variance[2:] + 1 / state.benchmark_variance[2:])
    grow = np.sqrt(rng.gamma(len(state.abilities) / 2 + 2 * shape, 1 / rate))
    state.abilities = state.abilities * np.r_[1 / shrink, grow]
    state.covariance = state.covariance / np.outer(shrink, shrink)
    free = np.tile(1 / grow, (len(state.tests), 1))
    state.tests = state.tests * np.column_stack([np.ones(len(free)), shrink[index.trait], free])
    free = free[: len(state.benchmarks)]
    state.benchmarks = state.benchmarks * np.column_stack([np.ones(len(free)), shrink[benchmark_trait], free])
    state.test_variance = state.test_variance * np.r_[1.0, 1.0, grow**-2]
    state.benchmark_variance = state.benchmark_variance * np.r_[1.0, 1.0, grow**-2]


def _turn(index: Index, state: State, rng: np.random.Generator) -> None:
    """Metropolis: turn pairs of free factors, with the variances of their loadings integrated out; no logit changes."""
    traits = len(state.covariance)
    factors = state.abilities.shape[1] - traits
    shape, scale = VARIANCE_PRIOR
    rest = (state.tests - state.benchmarks[index.benchmark])[:, 2:]
    parts = [(len(rest), rest.T @ rest), (len(state.benchmarks), state.benchmarks[:, 2:].T @ state.benchmarks[:, 2:])]

    def log_density(turned: Array) -> float:
        total = 0.0
        for count, squares in parts:
            sums = np.diag(turned.T @ squares @ turned)
            total -= (shape + count / 2) * float(np.log(scale + sums / 2).sum())
        return total

    turned = np.eye(factors)
    here = log_density(turned)
    for first in range(factors):
        for second in range(first):
            for _ in range(TURNS_OF_FACTORS):
                angle = rng.uniform(-np.pi, np.pi)*10**rng.uniform(-2,0)
                step = np.eye(factors)
                step[[first, second], [first, second]] = np.cos(angle)
                step[first, second], step[second, first] = np.sin(angle), -np.sin(angle)
                there = log_density(turned @ step)
                if np.log(rng.random()) < there - here:
                    turned, here = turned @ step, there
    for name, start in (("abilities", traits), ("tests", 2), ("benchmarks", 2)):
        values = getattr(state, name)
        setattr(state, name, np.column_stack([values[:, :start], values[:, start:] @ turned]))


TURNS_OF_FACTORS = 10


def _draw_covariance(index: Index, state: State, rng: np.random.Generator) -> None:
    """Draw Sigma, a trait at a time given the others, from the models that were measured on it.

    The regression of a trait on the others has a normal-inverse-gamma prior under an inverse-Wishart Sigma, and a
    model's ability on a trait that no test asked it for is nothing but that prior: it is drawn afterwards.
    """
    abilities = state.abilities.copy()
    traits, models = len(state.covariance), len(abilities)
    x = abilities[:, :traits]
    scale = x.T @ x + COVARIANCE_SCALE * np.eye(traits)
    covariance = invwishart.rvs(traits + 1 + models, scale, random_state=rng).reshape(traits, traits)
    if traits == 1:
        state.covariance = covariance
        return
    for trait in range(traits):
        others = np.arange(traits) != trait
        measured = index.measured[:, trait]
        design, value = x[measured][:, others], x[measured, trait]
        precision = design.T @ design + COVARIANCE_SCALE * np.eye(traits - 1)
        mean = np.linalg.solve(precision, design.T @ value)
        rate = COVARIANCE_SCALE + value @ value - mean @ precision @ mean
        # Inverse-Wishart with traits + 1 degrees of freedom.
        variance = 1 / rng.gamma((traits + 1 + measured.sum()) / 2, 2 / rate)
        slope = gaussian(precision / variance, precision @ mean / variance, rng)
        covariance[trait, others] = covariance[others, trait] = slope @ covariance[np.ix_(others, others)]
        covariance[trait, trait] = variance + slope @ covariance[others, trait]
        free = ~measured
        x[free, trait] = x[free][:, others] @ slope + np.sqrt(variance) * rng.standard_normal(free.sum())
    state.abilities, state.covariance = abilities, covariance


def _centre(state: State) -> Array:
    """Prior mean of benchmarks: the loading's is 1, as the scale is in Sigma; free factors have no sign."""
    mean = np.zeros(state.tests.shape[1])
    mean[:2] = state.ease, 1.0
    return mean


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
