"""Models placed on a scale stand where a fit with them would have put them, and move nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from densing.core import InputError
from densing.scores.joint.cells import Cells, toy_cells
from densing.scores.joint.placement import place
from densing.scores.joint.scale import GENERAL, JointScale, fit_joint

LATER = ["m03", "m11", "m19"]
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
