"""Which scores stand on the scale, why others do not, and that nothing is lost without a reason."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.core import InputError, UnknownNameError
from densing.scores.catalog import Catalog, load_catalog, own_figures
from densing.scores.joint.cells import COLUMNS, joint_cells, toy_cells

CATALOG = load_catalog()
BENCHMARKS = ("mmlu", "gsm8k", "hellaswag")


def catalog_of(rows: list[tuple[str, str, str, float]], **columns: object) -> Catalog:
    """Return the catalog with these scores (model, benchmark, evaluator, score) and no others."""
    scores = pd.DataFrame(rows, columns=["model", "benchmark", "evaluator", "score"])
    scores = scores.assign(items=np.nan, stated_se=np.nan, source="recalled#toy", flags=None, series="")
    return dataclasses.replace(CATALOG, scores=scores.assign(**columns))


FOUR = [(f"m{m}", "mmlu", "obsscaling", 0.4 + 0.1 * m) for m in range(4)]


def test_every_score_is_a_cell_or_left_out_with_a_reason() -> None:
    cells = joint_cells(CATALOG)
    assert len(cells) + len(cells.dropped) == len(CATALOG.scores)
    assert cells.dropped["reason"].ne("").all()
    assert not cells.table.duplicated(["model", "test"]).any()
    assert cells.table[COLUMNS].notna().all().all() and (cells.table["se"] > 0).all()
    assert cells.table["score"].between(0, 1).all() and cells.table["floor"].between(0, 0.99).all()


def test_a_quoted_value_is_one_measurement() -> None:
    # The second evaluator prints the first one's value of m1 and a value of its own of m2.
    rows = [*FOUR, ("m1", "mmlu", "opencompass", 0.5), ("m2", "mmlu", "opencompass", 0.55)]
    cells = joint_cells(catalog_of(rows))
    assert cells.dropped["reason"].tolist() == ["quoted"] and cells.dropped["evaluator"].tolist() == ["opencompass"]
    assert len(cells) == 5


def test_a_benchmark_of_two_models_and_flagged_scores_are_left_out() -> None:
    rows = [*FOUR, ("m0", "gsm8k", "obsscaling", 0.1), ("m1", "gsm8k", "obsscaling", 0.2)]
    cells = joint_cells(catalog_of(rows, flags=["erratic_harness", *[None] * 5]))
    assert cells.dropped["reason"].value_counts().to_dict() == {"few models": 2, "wrong": 1}
    assert cells.table["model"].tolist() == ["m1", "m2", "m3"]


def test_nothing_left_says_so() -> None:
    with pytest.raises(InputError, match="no score of 2 is on a capability benchmark shared by 3 models"):
        joint_cells(catalog_of(FOUR[:2]))


def test_stated_errors_count_where_they_are_larger_than_binomial_ones() -> None:
    # 0.0158 is 0.05 over the root of ten: the spread of ten bootstrap samples of one set, which lacks the set's own.
    cells = joint_cells(catalog_of(FOUR, items=100.0, stated_se=[0.07, np.nan, 0.0158, 0.0]))
    errors = dict(zip(cells.table["model"], cells.table["se"], strict=True))
    assert errors["m0"] == 0.07
    binomial = {f"m{m}": np.sqrt(q * (1 - q) / 100) for m, q in ((1, 0.5), (2, 0.6), (3, 0.7))}
    assert {model: errors[model] for model in binomial} == pytest.approx(binomial, rel=0.02)


def test_what_makers_measured_of_their_own_models_counts_only_when_it_is_wanted() -> None:
    # Falcon-H1 has no other scores than those that TII's harness gave it, Granite 4.1 none but IBM's table.
    kept = {own: joint_cells(CATALOG, own=own) for own in ("none", "harness", "all")}
    left_out = {
        own: set(cells.dropped["reason"]) & {"vendor's own", "maker's own harness"} for own, cells in kept.items()
    }
    assert left_out == {"none": {"vendor's own", "maker's own harness"}, "harness": {"vendor's own"}, "all": set()}
    models = {own: set(cells.table["model"]) for own, cells in kept.items()}
    assert models["none"] < models["harness"] < models["all"]
    assert "Falcon-H1-7B" in models["harness"] - models["none"]
    assert "Granite-4.1-8B-Base" in models["all"] - models["harness"]
    own = CATALOG.scores[own_figures(CATALOG)]
    key = ["model", "benchmark", "evaluator"]
    assert kept["none"].table.merge(own[key]).empty
    with pytest.raises(UnknownNameError, match="vendors"):
        joint_cells(CATALOG, own="vendors")


def test_cells_that_are_no_measurements_are_refused() -> None:
    cells = toy_cells()
    mine = cells.table["model"].eq("m3")
    for column, value in (("score", np.nan), ("score", 45.0), ("se", np.inf), ("floor", 1.0)):
        broken = cells.table.assign(**{column: cells.table[column].mask(mine, value)})
        with pytest.raises(InputError, match=rf"{column} .* of m3 on b0@first is outside"):
            dataclasses.replace(cells, table=broken)
    twice = pd.concat([cells.table, cells.table[mine]], ignore_index=True)
    with pytest.raises(InputError, match="m3 has several scores on b0@first; keep one"):
        dataclasses.replace(cells, table=twice)


@settings(max_examples=10)
@given(order=st.permutations(range(12)), names=st.lists(st.text(min_size=1, max_size=8), min_size=4, unique=True))
def test_order_and_names_of_models_change_nothing(order: list[int], names: list[str]) -> None:
    rows = [(f"m{m}", b, "obsscaling", 0.1 + 0.2 * m) for m in range(4) for b in BENCHMARKS]
    plain = joint_cells(catalog_of(rows)).table
    again = joint_cells(catalog_of([(names[int(rows[i][0][1])], *rows[i][1:]) for i in order])).table
    back = again.assign(model=again["model"].map({name: f"m{m}" for m, name in enumerate(names)}))
    pd.testing.assert_frame_equal(back.sort_values(["model", "test"], ignore_index=True), plain)
