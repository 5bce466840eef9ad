"""Models placed on a scale stand where a fit with them would have put them, and move nothing."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from scipy.stats import multivariate_normal, norm, t

from densing.core import InputError
from densing.scores.joint.cells import Cells, toy_cells
from densing.scores.joint.placement import _New, place
from densing.scores.joint.posterior import FREEDOM, MODEL_SD, index_cells
from densing.scores.joint.scale import GENERAL, JointDraws, JointScale, fit_joint

LATER = ["m03", "m11", "m19"]
PLACED = [-0.457315266, 1.90534472, -3.78022671, 4.41922569]
"""Mean, spread, first and last figure of models placed by four sweeps."""
SHORT = {"chains": 1, "sweeps": 80, "burn": 60, "draws": 80}


def world() -> Cells:
    """Twenty-four models, the weakest first, eight benchmarks, two evaluators."""
    cells = toy_cells(24, 8)
    return replace(cells, table=cells.table.assign(model="m" + cells.table["model"].str[1:].str.zfill(2)))


@pytest.fixture(scope="module")
def scale() -> JointScale:
    """Fitted without three of them."""
    return fit_joint(part(LATER, without=True), **SHORT)


def part(models: list[str], without: bool = False) -> Cells:
    """Return the cells of some models, or of the others."""
    cells = world()
    mask = cells.table["model"].isin(models)
    return replace(cells, table=cells.table[~mask if without else mask].reset_index(drop=True))


def test_placed_models_stand_where_a_fit_with_them_puts_them(scale: JointScale) -> None:
    placed = place(scale, part(LATER)).abilities().set_index("model")
    fitted = fit_joint(world(), **SHORT).abilities().set_index("model")
    for name in LATER:
        assert abs(placed.loc[name, "ability"] - fitted.loc[name, "ability"]) < 1.5 * fitted.loc[name, "sd"]
        assert placed.loc[name, "sd"] == pytest.approx(fitted.loc[name, "sd"], rel=0.5)
        assert placed.loc[name, "cells"] == 12


def test_placing_moves_nothing_that_was_there(scale: JointScale) -> None:
    placed = place(scale, part(LATER))
    old = np.isin(placed.models, scale.models)
    assert placed.models[old].tolist() == scale.models.tolist() and placed.placed == tuple(LATER)
    for basket in (GENERAL, "code"):
        assert np.array_equal(placed.ability(basket)[:, old], scale.ability(basket))
        assert placed.basket(basket) == scale.basket(basket)
    table = scale.cells.table
    ahead, behind = scale.predict(table, seed=3), placed.predict(table, seed=3)
    assert np.median(ahead, axis=0) == pytest.approx(np.median(behind, axis=0), abs=0.02)
    # The same numbers for the same seed, whatever else is placed beside them makes them differ.
    assert np.array_equal(place(scale, part(LATER)).ability(), placed.ability())


def test_models_can_be_placed_one_after_another(scale: JointScale) -> None:
    both = place(place(scale, part(LATER[:1])), part(LATER[1:]))
    assert sorted(both.placed) == LATER and set(both.models) == set(world().table["model"])
    order = both.abilities().set_index("model")["ability"]
    assert order["m02"] < order["m04"] and order["m01"] < order["m03"] < order["m06"]


def test_intervals_of_placed_models_hold_what_was_hidden_of_them(scale: JointScale) -> None:
    # Half of the later models' scores are shown, the others predicted.
    rows = part(LATER).table
    shown = np.arange(len(rows)) % 2 == 0
    placed = place(scale, replace(world(), table=rows[shown].reset_index(drop=True)))
    draws = placed.predict(rows[~shown])
    low, high = np.quantile(draws, [0.005, 0.995], axis=0)
    score = rows["score"][~shown]
    assert ((low <= score) & (score <= high)).all()
    assert np.abs(np.median(draws, axis=0) - score).mean() < 0.05


def test_an_own_harness_widens_and_an_own_benchmark_says_nothing(scale: JointScale) -> None:
    mine = part(["m11"]).table
    theirs = place(scale, replace(world(), table=mine)).abilities().set_index("model").loc["m11"]
    own = mine.drop_duplicates("benchmark").assign(evaluator="mine")
    own = own.assign(test=own["benchmark"] + "@mine")
    extra = own.iloc[:1].assign(benchmark="secret", test="secret@mine", skill="cooking", trait="cooking")
    result = place(scale, replace(world(), table=pd.concat([own, extra], ignore_index=True)))
    here = result.abilities().set_index("model").loc["m11"]
    assert here["sd"] > theirs["sd"] and abs(here["ability"] - theirs["ability"]) < 3 * here["sd"]
    said = {note.code: note.message for note in result.notes}
    assert said["benchmarks-not-on-scale"] == "1 score on secret: not on the joint scale, left out"
    assert said["tests-not-on-scale"].startswith("b0@mine, b1@mine")
    assert set(own["test"]) <= set(result.tests)


def test_what_cannot_be_placed_is_refused(scale: JointScale) -> None:
    with pytest.raises(InputError, match="m00: already on the joint scale"):
        place(scale, part(["m00"]))
    nowhere = part(LATER).table.assign(benchmark="secret")
    with pytest.raises(InputError, match="no score of 36 is on a benchmark of the joint scale"):
        place(scale, replace(world(), table=nowhere))


def new_models(scale: JointScale) -> tuple[_New, JointDraws]:
    """What the scores of the later models say, under four draws of the scale."""
    table = part(LATER).table
    index, names = index_cells(table)
    tests = pd.Index(scale.tests).get_indexer(names["test"])[index.test]
    trait = np.searchsorted(scale.traits, names["trait"])[index.trait][index.test]
    draws = JointDraws(**{item.name: getattr(scale.draws, item.name)[:4].astype(float) for item in fields(scale.draws)})
    return _New(draws, (index.model, tests, index.pair, trait), table), draws


def test_the_density_of_new_models_is_written_out(scale: JointScale) -> None:
    new, draws = new_models(scale)
    table = part(LATER).table
    at = 0.4 * np.random.default_rng(0).standard_normal((4, len(new.block)))
    density, gradient = new.density(at)
    tests = pd.Index(scale.tests).get_indexer(table["test"])

    def by_hand(row: np.ndarray, draw: int) -> list[float]:
        ability, effect, spread, factors = np.split(row, [new.first, new.second, new.third])
        totals = []
        for model in range(3):
            total = 0.0
            for cell in np.flatnonzero(new.model == model):
                ease, loading, *pulls = draws.tests[draw, tests[cell]]
                z = ease + loading * ability[new.slot[cell]] + effect[new.pair[cell]]
                z += sum(pull * factors[f * 3 + model] for f, pull in enumerate(pulls))
                floor, ceiling = draws.floor[draw, tests[cell]], draws.ceiling[draw, tests[cell]]
                slope = (ceiling - floor) * expit(z) * expit(-z)
                sd = np.sqrt(
                    table["se"][cell] ** 2 + draws.scatter[draw, tests[cell]] * np.exp(spread[model]) * slope**2
                )
                total += t.logpdf(table["score"][cell], FREEDOM, floor + (ceiling - floor) * expit(z), sd)
            mine = new.owner == model
            cover = np.ones((mine.sum(), mine.sum())) + np.diag(draws.own[draw, new.kind[mine]] ** 2)
            total += multivariate_normal.logpdf(ability[mine], np.zeros(mine.sum()), cover)
            pairs = effect[new.block[new.first : new.second] == model]
            total += norm.logpdf(pairs, 0, np.sqrt(draws.evaluator_variance[draw])).sum()
            total += norm.logpdf(spread[model], 0, MODEL_SD) + norm.logpdf(factors[model::3]).sum()
            totals.append(total)
        return totals

    expected = np.array([by_hand(at[draw], draw) for draw in range(4)])
    other = 0.4 * np.random.default_rng(1).standard_normal(at.shape)
    moved = np.array([by_hand(other[draw], draw) for draw in range(4)])
    # But for a constant of each model.
    np.testing.assert_allclose(density - new.density(other)[0], expected - moved, atol=1e-8)
    for position in range(at.shape[1]):
        along = 1e-5 * np.eye(at.shape[1])[position]
        slope = (new.density(at + along)[0] - new.density(at - along)[0]).sum(axis=1) / 2e-5
        np.testing.assert_allclose(gradient[:, position], slope, rtol=1e-4, atol=1e-4)


def test_the_curvature_of_new_models_is_what_their_slopes_vary_by(scale: JointScale) -> None:
    """Over scores that the model draws, with one draw of the tests; precisions of the priors are the rest."""
    new, draws = new_models(scale)
    for name in ("ease", "loading", "scatter", "pulls", "own", "effect_variance"):
        setattr(new, name, np.repeat(getattr(new, name)[:1], 1500, axis=0))
    new.curve = tuple(np.repeat(part[:1], 1500, axis=0) for part in new.curve)
    new.variance = np.full(len(new.variance), 0.05**2)
    at = new.start()[0]
    matrix = new.curvature(at).toarray()
    assert np.allclose(matrix, matrix.T)
    effect = np.split(at, [new.first, new.second])[1]
    z = new.ease + new.loading * at[: new.first][new.slot] + effect[new.pair]
    rng = np.random.default_rng(0)
    curve = new.curve[0] + new.curve[1] * expit(z)
    spread = new.scatter * (new.curve[1] * expit(z) * expit(-z)) ** 2
    new.score = curve + np.sqrt(new.variance + spread) * rng.standard_t(FREEDOM, curve.shape)
    _, gradient = new.density(np.tile(at, (1500, 1)))
    held = np.full(len(new.block), MODEL_SD**-2)
    precision = draws.own[0, new.kind] ** -2
    total = np.bincount(new.owner, precision) + 1
    held[: new.first] = precision - precision**2 / total[new.owner]
    held[new.first : new.second] = 1 / draws.evaluator_variance[0]
    held[new.third :] = 1.0
    seen = np.diag(matrix) - held
    np.testing.assert_allclose(gradient[:, : new.third].var(axis=0), seen[: new.third], rtol=0.25, atol=0.05)
    # Abilities of one model are tied by what they have in common.
    first, second = np.flatnonzero(new.owner == 0)[:2]
    tie = -precision[first] * precision[second] / total[0]
    assert matrix[first, second] - tie == pytest.approx(np.cov(gradient[:, first], gradient[:, second])[0, 1], abs=0.3)


def test_a_start_is_least_squares_on_logits_pulled_off_the_ends(scale: JointScale) -> None:
    new, _ = new_models(scale)
    new.score = np.linspace(-0.2, 1.2, len(new.score))
    floor, width = (part.mean(axis=0) for part in new.curve)
    share = np.clip((new.score - floor) / width, 0.03, 0.97)
    target = np.log(share / (1 - share)) - new.ease.mean(axis=0)
    loading = new.loading.mean(axis=0)
    found = new.start()
    for slot in range(new.first):
        own = new.slot == slot
        assert found[:, slot].tolist() == pytest.approx([np.clip(target[own].sum() / loading[own].sum(), -3, 3)] * 4)
    assert (found[:, new.first :] == 0).all()


def test_placed_models_are_the_ones_that_this_sampler_places(scale: JointScale) -> None:
    """Figures of this program, frozen, on a scale that is given: another sampler is another version of the cache."""
    rng = np.random.default_rng(0)
    traits, tests, benchmarks = len(scale.traits), len(scale.tests), len(scale.benchmarks)
    shapes = {"own": traits, "floor": tests, "ceiling": tests, "scatter": tests}
    made = {
        "own": 0.3 + 0.1 * rng.random((6, traits)),
        "tests": np.dstack([0.3 * rng.standard_normal((6, tests)), 1 + 0.1 * rng.random((6, tests)),
                            0.1 * rng.standard_normal((6, tests)), 0.1 * rng.standard_normal((6, tests))]),
        "benchmarks": np.dstack([0.3 * rng.standard_normal((6, benchmarks)), 1 + 0.1 * rng.random((6, benchmarks)),
                                 0.1 * rng.standard_normal((6, benchmarks, 2))]),
        "floor": 0.02 * rng.random((6, shapes["floor"])), "ceiling": 0.97 + 0.02 * rng.random((6, shapes["ceiling"])),
        "scatter": 0.01 * (1 + rng.random((6, shapes["scatter"]))),
        "evaluator_variance": 0.05 + 0.01 * rng.random(6), "test_variance": 0.05 + 0.01 * rng.random((6, 4)),
        "typical_scatter": 0.01 + 0.001 * rng.random(6),
    }  # fmt: skip
    given = {name: getattr(scale.draws, name)[:6] for name in ("abilities", "evaluators", "model_scatter")}
    known = replace(scale, draws=replace(scale.draws, **given, **made))
    own = part(["m11"]).table.assign(evaluator="mine")
    own = own.drop_duplicates("benchmark").assign(test=lambda t: t["benchmark"] + "@mine")
    table = pd.concat([part(LATER[:1]).table, own], ignore_index=True)
    placed = place(known, replace(world(), table=table), sweeps=4, seed=2)
    at = np.isin(placed.models, placed.placed)
    figures = np.concatenate(
        [
            placed.draws.abilities[:, at].ravel(),
            placed.draws.evaluators[:, -3:].ravel(),
            placed.draws.model_scatter[:, at].ravel(),
        ]
    )
    assert [float(figures.mean()), float(figures.std()), float(figures[0]), float(figures[-1])] == pytest.approx(
        PLACED, rel=1e-4
    )
