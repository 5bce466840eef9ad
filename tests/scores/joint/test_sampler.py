"""Every move of the sampler leaves the posterior as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.special import expit

from densing.core import Array
from densing.scores.joint import posterior as joint
from densing.scores.joint.cells import toy_cells
from densing.scores.joint.posterior import Index, Posterior, index_cells, truncated
from densing.scores.joint.sampler import KNOWN, Move, Slow, moves, pilot, roots, sample, sweep
from tests.support.joint_worlds import few_cells

CHAIN = [
    0.1510252,
    -0.02278661,
    0.007227303,
    0.03688988,
    -0.3658946,
    0.626879,
    -4.824822,
    0.5226927,
    1.394324,
    1.450086,
    1.438865,
    1.441497,
]
"""Means of abilities, eases, loadings and so on at the end of a short chain, and the spread of each of its states."""


def of_prior(model: Posterior, rng: np.random.Generator) -> Array:
    """Draw all parameters from the prior, written from the docstring of the model."""
    index, at = model.index, model.at
    shape, scale = joint.VARIANCE_PRIOR
    v = np.empty(model.size)

    def variance() -> float:
        return float(scale / rng.gamma(shape))

    for name, (centre, sd) in (("ease", joint.EASE), ("loading", joint.LOADING)):
        v[at[f"{name}_mean"]] = rng.normal(centre, sd)
        between, within = variance(), variance()
        v[at[f"{name}_between"]], v[at[f"{name}_within"]] = np.log(between) / 2, np.log(within) / 2
        of_benchmarks = rng.normal(v[at[f"{name}_mean"]], np.sqrt(between), len(model.per_benchmark))
        v[at[name]] = rng.normal(of_benchmarks[index.benchmark], np.sqrt(within))
    v[at["own"]] = rng.normal(*joint.OWN, model.traits)
    general = rng.standard_normal(model.models)
    v[at["ability"]] = rng.normal(general[model.owner], np.exp(v[at["own"]])[model.kind])
    v[at["evaluator"]] = np.log(variance()) / 2
    spread = np.where(model.alone, 1.0, np.exp(v[at["evaluator"]]))
    v[at["effect"]] = spread * rng.standard_normal(model.pairs)
    within, between = (np.log(variance()) / 2 for _ in range(2))
    v[at["pull_within"]], v[at["pull_between"]] = within, between
    for pull, factor in zip(model.pulls, model.factors, strict=True):
        of_benchmarks = rng.normal(0, np.exp(between), len(model.per_benchmark))
        v[at[pull]] = rng.normal(of_benchmarks[model.index.benchmark], np.exp(within))
        v[at[factor]] = rng.standard_normal(model.models)
    v[at["typical"]] = rng.normal(*joint.SCATTER)
    v[at["scatter"]] = rng.normal(v[at["typical"]], joint.SCATTER_SD, model.tests)
    v[at["model_scatter"]] = rng.normal(0, joint.MODEL_SD, model.models)
    ones = np.ones(model.tests)
    low, high = index.chance - model.reach, index.chance + model.reach
    free = model.reach > 0
    share = rng.uniform(-1, 1, model.tests)
    floor = truncated(index.chance[free], joint.FLOOR_SD * ones[free], low[free], high[free], rng)
    share[free] = (floor - index.chance[free]) / model.reach[free]
    v[at["floor"]] = np.arctanh(share)
    ceiling = truncated(joint.CEILING * ones, joint.CEILING_SD * ones, model.lowest, 1.0, rng)
    v[at["ceiling"]] = np.arctanh(2 * (ceiling - model.lowest) / (1 - model.lowest) - 1)
    return v


def measure(model: Posterior, vector: Array, rng: np.random.Generator) -> None:
    """Draw the scores anew: what the model says would be measured."""
    index, (q, _, variance, _) = model.index, model.slopes(vector)
    floor, ceiling, _, _ = model.curve(q)
    z = model.logit(q, q["effect"] * model.effect_scale(q))
    curve = floor[index.test] + (ceiling - floor)[index.test] * expit(z)
    score = curve + np.sqrt(variance) * rng.standard_t(joint.FREEDOM, len(curve))
    model.index = replace(index, score=score)


def readings(model: Posterior, vector: Array) -> Array:
    """Bounded functions of parameters and data."""
    q = model.split(vector)
    centred = {name: values - np.mean(values) for name, values in q.items()}
    parts = [
        np.tanh(q["ability"]),
        np.tanh(q["ability"][:2] * q["ability"][1:3]),
        np.tanh(centred["ability"][:3] ** 2),
        np.tanh(q["effect"]),
        np.tanh(q["effect"][:3] ** 2 * 4),
        np.tanh(q["ease"] / 2),
        np.tanh(centred["ease"] ** 2),
        np.tanh(q["loading"]),
        *(np.tanh(q[name]) for name in (*model.pulls, *model.factors)),
        # Which factor is which, and its sign, is arbitrary: what both do to a model is not.
        np.tanh(sum(q[pull] * q[factor][0] for pull, factor in zip(model.pulls, model.factors, strict=True)) * 2),
        np.tanh(q["floor"] / 2),
        np.tanh(q["ceiling"] / 2),
        np.tanh((q["scatter"] + 4) / 3),
        np.tanh(q["model_scatter"]),
        *(np.tanh((q[name] + 1) / 2) for name in joint.SCALES if name != "typical"),
        np.tanh((q["typical"] + 4) / 3),
        np.tanh(q["ease_mean"] / 2),
        np.tanh(q["loading_mean"]),
        np.tanh(model.index.score[[0, 3, 5]] * q["ability"][[0, 1, 2]]),
    ]
    return np.concatenate(parts)


def disagreement(sweeps: int, seed: int) -> Array:
    """Return z-values of the readings: drawn from prior and model at once, against sweeps that alternate with data."""
    rng = np.random.default_rng(seed)
    model = Posterior(few_cells())
    direct = []
    for _ in range(sweeps):
        vector = of_prior(model, rng)
        measure(model, vector, rng)
        direct.append(readings(model, vector))
    # Any point makes valid moves, as long as it is the same for all sweeps; steps are short enough for most of them.
    reference = of_prior(model, rng)
    measure(model, reference, rng)
    kernel = moves(model, reference, slow=3, scales=True)
    for move in kernel.all():
        move.log_step[:] = np.log(0.3)
    vector, chain = of_prior(model, rng), []
    for _ in range(sweeps):
        measure(model, vector, rng)
        vector, _ = sweep(model, kernel, vector, model.point(vector), rng)
        chain.append(readings(model, vector))
    one, other = np.array(direct), np.array(chain)
    batches = other[: sweeps // 40 * 40].reshape(40, -1, other.shape[1]).mean(axis=1)
    error = np.hypot(one.std(axis=0) / np.sqrt(sweeps), batches.std(axis=0, ddof=1) / np.sqrt(40))
    return np.asarray((other.mean(axis=0) - one.mean(axis=0)) / error)


@pytest.fixture
def mixing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Priors under which a chain that draws its own data crosses the space in a few hundred sweeps."""
    monkeypatch.setattr(joint, "VARIANCE_PRIOR", (6.0, 2.0))
    monkeypatch.setattr(joint, "EASE", (0.0, 0.7))
    monkeypatch.setattr(joint, "LOADING", (0.0, 0.3))
    monkeypatch.setattr(joint, "OWN", (-0.5, 0.3))
    monkeypatch.setattr(joint, "SCATTER", (-2.0, 0.5))


@pytest.mark.slow
@pytest.mark.usefixtures("mixing")
def test_simulators_of_the_joint_distribution_agree() -> None:
    # Geweke (2004), Getting it right: whatever is wrong in a density, a move or a conditional makes the two ways to
    # draw (parameters, scores) differ. Bonferroni at 0.1 % over some 80 readings: |t| with 39 degrees of freedom < 5.0.
    # In half as many sweeps the slowest readings have not crossed the space, and their errors are taken for too small.
    z = disagreement(2000, seed=1)
    assert np.abs(z).max() < 5.0, np.round(z, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("mixing")
def test_geweke_test_sees_what_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    # A test that cannot fail is none: in a third of the sweeps, with benchmarks drawn far too widely.
    drawn = Posterior.draw_benchmarks

    def wide(self: Posterior, vector: Array, rng: np.random.Generator) -> Array:
        return 4 * drawn(self, vector, rng) - 3 * np.mean([drawn(self, vector, rng) for _ in range(20)], axis=0)

    monkeypatch.setattr(Posterior, "draw_benchmarks", wide)
    assert np.abs(disagreement(680, seed=1)).max() > 5.0


def test_slow_moves_change_no_score_to_first_order() -> None:
    index, _ = index_cells(toy_cells(8, 6).table)
    model = Posterior(index)
    reference = model.start()
    information, of_cells = model.information(reference)
    slow = Slow(model, reference, information, of_cells, 4, scales=False)

    def scores(vector: Array) -> Array:
        q = model.split(vector)
        return model.logit(q, q["effect"] * model.effect_scale(q))

    rng = np.random.default_rng(0)
    for _ in range(5):
        slow.begin(reference)
        there = slow.shift(reference, 0.05 * rng.standard_normal(slow.basis.shape[1]))
        tests_alone = reference.copy()
        of_models = model.places("ability", "effect", *model.factors)
        tests_alone[of_models] = there[of_models]
        moved = np.abs(scores(there) - scores(reference)).mean()
        assert moved < 0.5 * np.abs(scores(tests_alone) - scores(reference)).mean()


def test_a_slow_move_comes_back_the_way_it_went() -> None:
    index, _ = index_cells(toy_cells(8, 6).table)
    model = Posterior(index)
    reference = model.start()
    slow = Slow(model, reference, *model.information(reference), 4, scales=True)
    by = 0.3 * np.random.default_rng(1).standard_normal(slow.basis.shape[1])
    slow.begin(reference)
    back = slow.shift(slow.shift(reference, by), -by)
    assert back == pytest.approx(reference, abs=1e-9)
    # And its slope is that of the density along it.
    for at in range(len(by)):
        step = 1e-5 * np.eye(len(by))[at]
        found = []
        for sign in (1, -1):
            slow.begin(reference)
            found.append(model.point(slow.shift(reference, sign * step)).density)
        slope = slow.slope(reference, model.point(reference).gradient)[at]
        assert slope == pytest.approx((found[0] - found[1]) / 2e-5, rel=1e-4, abs=1e-3)


def test_roots_are_those_of_the_inverse_block_by_block() -> None:
    rng = np.random.default_rng(0)
    half = rng.standard_normal((6, 6))
    matrix, blocks = half @ half.T + np.eye(6), np.array([1, 0, -1, 1, 0, 0])
    root, of_column = roots(csr_matrix(matrix), blocks)
    dense = root.toarray()
    for block in (0, 1):
        members = np.flatnonzero(blocks == block)
        mine = dense[members][:, of_column == block]
        assert mine @ mine.T == pytest.approx(np.linalg.inv(matrix[np.ix_(members, members)]))
    assert not dense[2].any() and not dense[blocks == 0][:, of_column == 1].any()


def test_steps_are_tuned_to_four_acceptances_in_five() -> None:
    index, _ = index_cells(toy_cells(8, 6).table)
    model = Posterior(index)
    known = pilot(model, 80, 0, lambda sweep: None)
    rng = np.random.default_rng(0)
    vector, stays = known.states[-1], np.zeros(model.tests)
    where = model.places("ease")
    for _ in range(100):
        there, _ = sweep(model, known.moves, vector, model.point(vector), rng)
        stays += there[where] == vector[where]
        vector = there
    # The slow move, at its own rate, moves eases too: what stays was refused twice.
    assert stays.mean() / 100 < 0.2
    assert all(isinstance(move, Move) for move in known.moves.all())


def test_one_seed_gives_one_chain_and_another_another() -> None:
    index, _ = index_cells(toy_cells(models=4, benchmarks=4).table)
    model = Posterior(index)

    def last(seed: int) -> Array:
        known = pilot(model, 8, 0, lambda sweep: None)
        return list(sample(model, known, 3, 2, seed, lambda sweep: None))[-1]

    assert np.array_equal(last(1), last(1)) and not np.array_equal(last(1), last(2))


def test_scales_are_the_pilots_in_every_chain() -> None:
    index, _ = index_cells(toy_cells(models=6, benchmarks=4).table)
    model = Posterior(index)
    known = pilot(model, 20, 0, lambda sweep: None)
    scales = model.places(*KNOWN)
    states = [*known.states, *sample(model, known, 5, 2, 3, lambda sweep: None)]
    assert len({tuple(state[scales]) for state in states}) == 1
    assert len({state[model.at["ease_within"]][0] for state in states}) > 1


def test_scales_are_found_where_there_is_enough_to_find_them() -> None:
    # Forty models of two evaluators, drawn from the model itself with scales that are not where the pilot begins.
    rng = np.random.default_rng(4)
    cells = [(m, j) for m in range(40) for j in range(24)]
    model, test = (np.array(codes) for codes in zip(*cells, strict=True))
    pair = np.unique(model * 2 + test % 2, return_inverse=True)[1]
    benchmark = np.arange(24) // 2
    index = Index(model, test, pair, benchmark, benchmark % 2, np.zeros(960), np.full(960, 0.005), np.zeros(24))
    truth = Posterior(index)
    vector = of_prior(truth, rng)
    values = {"own": 0.4, "evaluator": 0.5, "ease_within": 0.5, "ease_between": 1.0, "loading_within": 0.2}
    values |= {"loading_between": 0.4}
    for name, sd in values.items():
        vector[truth.at[name]] = np.log(sd)
    vector[truth.at["typical"]], vector[truth.at["scatter"]] = -3.0, rng.normal(-3.0, 0.8, 24)
    vector[truth.at["ease_mean"]], vector[truth.at["loading_mean"]] = 0.0, 0.0
    general = rng.standard_normal(40)
    vector[truth.at["ability"]] = rng.normal(general[truth.owner], 0.4)
    vector[truth.at["effect"]] = 0.5 * rng.standard_normal(truth.pairs)
    for name in ("ease", "loading"):
        of_benchmarks = values[f"{name}_between"] * rng.standard_normal(12)
        vector[truth.at[name]] = rng.normal(of_benchmarks[benchmark], values[f"{name}_within"])
    measure(truth, vector, rng)
    found = truth.split(pilot(truth, 200, 0, lambda sweep: None).states[-1])
    # A standard deviation of k groups is known to some 1 / sqrt(2 k), three of those allowed; 80 are effects. What
    # models have of their own on two traits, two free factors can say as well.
    for name, groups in {"evaluator": 80, "ease_within": 12, "ease_between": 12}.items():
        assert np.abs(found[name] - np.log(values[name])).max() < 3 / np.sqrt(2 * groups) + 0.1, name
    assert found["typical"][0] == pytest.approx(-3.0, abs=0.7)


def test_moves_that_change_priors_alone_end_where_the_whole_density_is_theirs() -> None:
    # What is carried over from the last point is what would be worked out anew.
    index, _ = index_cells(toy_cells(models=6, benchmarks=4).table)
    model = Posterior(index)
    known = pilot(model, 8, 0, lambda sweep: None)
    rng, vector = np.random.default_rng(0), known.states[-1]
    assert known.moves.means.of_priors and not moves(model, vector, slow=0, scales=True).means.of_priors
    for _ in range(5):
        for move in known.moves.all()[:-1]:
            vector, point = move(model, vector, model.point(vector), rng, tune=False)
            anew = model.point(vector)
            assert point.density == pytest.approx(anew.density) and point.gradient == pytest.approx(anew.gradient)


FROZEN = """
import json
import numpy as np
from densing.scores.joint.cells import toy_cells
from densing.scores.joint.posterior import Posterior, index_cells
from densing.scores.joint.sampler import pilot, sample
index, _ = index_cells(toy_cells(models=6, benchmarks=4).table)
model = Posterior(index)
known = pilot(model, 6, 0, lambda sweep: None)
states = [*known.states, *sample(model, known, 3, 2, 1, lambda sweep: None)]
names = ("ability", "ease", "loading", "effect", "floor", "ceiling", "scatter", "factor_0")
found = [float(states[-1][model.at[name]].mean()) for name in names]
print(json.dumps(found + [float(np.std(state)) for state in states]))
"""


def test_the_sampler_is_the_one_that_was_checked() -> None:
    """A short chain, frozen: who changes these figures runs the (slow) comparison of simulators again.

    The last bit of a product leads to another chain: the kernels of OpenBLAS are those of one kind of processor.
    """
    kernels = {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FROZEN], env={**os.environ, **kernels}, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found == pytest.approx(CHAIN, rel=1e-3, abs=1e-6)
