"""Hidden scores stay hidden, all methods see the same, and the table adds up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from densing.core import InputError, UnknownNameError
from densing.scores.catalog import load_catalog
from densing.scores.joint import validation
from densing.scores.joint.cells import Cells, joint_cells, toy_cells
from densing.scores.joint.validation import SPLITS, Validation, held_out, validate

SHORT = {"chains": 1, "sweeps": 40, "burn": 20, "draws": 40}
LEAST = {"chains": 1, "sweeps": 12, "burn": 8, "draws": 12}
"""For what holds of every chain, however short."""
CATALOG = load_catalog()
DATES = CATALOG.models.set_index("model")["released"]


@pytest.fixture(scope="module")
def cells() -> Cells:
    """All cells of the catalog."""
    return joint_cells(CATALOG)


@pytest.mark.parametrize("kind", SPLITS)
def test_a_split_hides_what_it_says(cells: Cells, kind: str) -> None:
    split = held_out(cells, kind, seed=1, released=DATES)
    table = cells.table
    assert not (split.fit & split.hidden).any() and not (split.shown & split.hidden).any()
    assert not (split.fit & split.shown).any()
    hidden, others = table[split.hidden], table[split.fit | split.shown]
    assert hidden["test"].isin(table["test"][split.fit]).all() and hidden["model"].isin(others["model"]).all()
    both = hidden.merge(others, on=["model", "benchmark"] if kind in ("pairs", "time") else ["model", "test"])
    assert both.empty
    if kind in ("skill", "evaluator"):
        assert hidden.merge(others, on=["model", kind]).empty
        assert not hidden.groupby("model")[kind].nunique().gt(1).any()
    if kind == "time":
        late = pd.Timestamp("2025-11-01")
        assert (hidden["model"].map(DATES) > late).all() and not (table["model"][split.fit].map(DATES) > late).any()
        assert split.shown.any()
    else:
        assert not split.shown.any()
    assert np.array_equal(split.hidden, held_out(cells, kind, seed=1, released=DATES).hidden)
    assert not np.array_equal(split.hidden, held_out(cells, kind, seed=2, released=DATES).hidden)


def test_scores_of_hidden_cells_do_not_change_what_is_predicted() -> None:
    toy = toy_cells()
    split = held_out(toy, "pairs", seed=0)
    changed = toy.table.assign(score=toy.table["score"].mask(split.hidden, 0.5))
    one = validate(toy, splits=["pairs"], seeds=[0], **LEAST).predictions
    other = validate(replace(toy, table=changed), splits=["pairs"], seeds=[0], **LEAST).predictions
    methods = ["joint", "lo", "hi", "ECI", "ECI by test", "PCA 1"]
    pd.testing.assert_frame_equal(one[methods], other[methods])


@pytest.fixture(scope="module")
def result() -> Validation:
    """All splits of a toy table whose last models were released after the others."""
    dates = pd.Series(pd.Timestamp("2025-01-01"), index=[f"m{m}" for m in range(12)])
    dates[["m3", "m9", "m10"]] = pd.Timestamp("2025-12-01")
    models = CATALOG.models.iloc[: len(dates)].assign(model=dates.index, released=dates.to_numpy())
    return validate(toy_cells(12, 6), replace(CATALOG, models=models), seeds=[0, 1], **SHORT)


def test_the_table_is_that_of_the_predictions(result: Validation) -> None:
    table = result.table
    assert set(table["split"]) == set(SPLITS) and (table["seeds"] == 2).all()
    rows = result.predictions[result.predictions["split"].eq("time")]
    joint = table.query("split == 'time' and cells_of == 'all' and method == 'joint'").iloc[0]
    by_seed = [float((g["joint"] - g["score"]).abs().mean()) for _, g in rows.groupby("seed")]
    assert joint["mae"] == pytest.approx(np.mean(by_seed)) and joint["mae_hi"] == pytest.approx(max(by_seed))
    assert joint["coverage"] == pytest.approx(((rows["lo"] <= rows["score"]) & (rows["score"] <= rows["hi"])).mean())
    assert joint["below"] == 0
    eci = table.query("split == 'time' and cells_of == 'all' and method == 'ECI'").iloc[0]
    assert eci["below"] == pytest.approx(1 - eci["joint_mae"] / eci["mae"])
    # All cells of the toy are English.
    english = table[table["cells_of"].eq("English")].drop(columns="cells_of").reset_index(drop=True)
    pd.testing.assert_frame_equal(english, table[table["cells_of"].eq("all")].drop(columns="cells_of"))


def test_the_joint_scale_predicts_the_toy_to_its_noise(result: Validation) -> None:
    joint = result.table.query("method == 'joint' and cells_of == 'all'").set_index("split")
    # Logits scatter by 0.1, which is 0.02 in score, or less; a split by evaluator knows the others' offset.
    assert joint.loc["cells", "mae"] < 0.035 and joint.loc["pairs", "mae"] < 0.05
    assert joint["coverage"].between(0.85, 1).all()


def test_where_it_fails_can_be_asked(result: Validation) -> None:
    table = result.by("evaluator")
    assert set(table["evaluator"]) == {"first", "second"} and table["cells"].sum() == len(result)
    assert table.groupby("split")["mae"].apply(lambda column: column.is_monotonic_decreasing).all()
    with pytest.raises(UnknownNameError, match="column of predictions"):
        result.by("colour")
    assert "rivals" in repr(result) and "ECI by test" in repr(result)


def test_a_split_that_hides_nothing_is_left_out_with_a_sentence() -> None:
    one = replace(toy_cells(), table=toy_cells().table.query("evaluator == 'first'"))
    result = validate(one, splits=["pairs", "evaluator", "time"], seeds=[0, 1], **LEAST)
    assert set(result.predictions["split"]) == {"pairs"}
    assert [note.message for note in result.notes] == [
        "split by evaluator: no cells to hide whose model and test have two others",
        "the split by time needs the models' release dates",
    ]
    with pytest.raises(InputError, match="split by evaluator"):
        validate(one, splits=["evaluator"], seeds=[0], **SHORT)
    with pytest.raises(UnknownNameError, match="split"):
        validate(one, splits=["colour"], seeds=[0], **SHORT)
    with pytest.raises(InputError, match="no split and no seed"):
        validate(one, splits=["pairs"], seeds=[], **SHORT)


@pytest.mark.parametrize("kept", [1, 2])
def test_hidden_cells_that_nothing_predicts_are_counted(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = validate(toy_cells(), splits=["pairs"], seeds=[0], **LEAST)
    assert not whole.notes
    monkeypatch.setattr(validation, "_predicted", lambda *_: (whole.predictions.head(kept), whole.blocks))
    hidden = int(held_out(toy_cells(), "pairs", 0).hidden.sum())
    (note,) = validate(toy_cells(), splits=["pairs"], seeds=[0], **SHORT).notes
    assert note.details["cells"] == hidden - kept
    assert note.message.startswith(f"pairs, seed 0: {hidden - kept} hidden cells of models")
