"""The tables of factual recall: counted right, of the right models, and refused where they do not add up.

Golden numbers are from the description of the verdicts that came with them (``shared/data/ikp_2026/README.md``).
"""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.core.errors import InputError, TableError, UnknownNameError
from densing.scores.catalog import PARTS, TIERS, FactualRecall, load_catalog, load_recall
from densing.scores.catalog.catalog import DATA
from densing.scores.catalog.facts import RECALL, RECALL_MODELS, VERDICTS
from tests.support.folders import SHARED

RAW = SHARED / "data" / "ikp_2026"
needs_verdicts = pytest.mark.skipif(not RAW.is_dir(), reason="the verdicts are not part of the project")


@pytest.fixture(scope="module")
def recall() -> FactualRecall:
    return load_recall()


def test_models_and_items_are_those_of_the_description(recall: FactualRecall) -> None:
    models = recall.models
    open_weights = models["open_weights"].eq(True)
    assert (len(models), open_weights.sum(), models["cohort"].eq(True).sum()) == (171, 70, 65)
    assert models.loc[open_weights, ["released", "params_total_b", "params_active_b"]].notna().all(axis=None)
    items = recall.answers()["items"].groupby("tier").unique().map(list).to_dict()
    clean = dict(zip(TIERS, (200, 200, 183, 188, 181, 187, 172), strict=True))
    assert items == {tier: [count] for tier, count in clean.items()}
    block = recall.answers(parts=("block",))["items"].groupby("model").sum()
    assert set(block) == {113}


def test_no_size_of_closed_weights_is_passed_on(recall: FactualRecall) -> None:
    closed = recall.models[~recall.models["open_weights"].eq(True)]
    assert closed[["params_total_b", "params_active_b"]].isna().all(axis=None)


def test_twins_name_each_other(recall: FactualRecall) -> None:
    twins = recall.models.set_index("model")["twin_of"].dropna().to_dict()
    assert twins and all(twins[other] == model for model, other in twins.items())


def test_every_model_names_a_source_of_the_catalog_which_attributes_it(recall: FactualRecall) -> None:
    sources = load_catalog().sources.set_index("id")
    assert set(recall.models["source"].str.split("#").str[0]) == {"ikp"}
    row = sources.loc["ikp"]
    for part in (
        "Bojie Li",
        "CC BY 4.0",
        "https://github.com/19PINE-AI/ikp",
        "verdicts",
        "texts left out",
        "not endorse",
    ):
        assert part in row["attribution"], part
    assert "2604.24827" in row["paper"]


def test_the_files_are_small_and_hold_no_texts() -> None:
    for name, declaration in (("recall.csv", RECALL), ("recall_models.csv", RECALL_MODELS)):
        assert (DATA / name).stat().st_size < 250_000
        assert list(pd.read_csv(DATA / name, nrows=1).columns) == declaration.names


@needs_verdicts
def test_counts_are_those_of_the_verdicts(recall: FactualRecall) -> None:
    items = pd.read_csv(RAW / "items.csv")
    long = pd.read_csv(RAW / "verdicts.csv.gz").melt("model", var_name="item", value_name="verdict")
    long = long.merge(items[items["clean"] == 1], on="item")
    long["part"] = "common"
    long.loc[long["source_type"] == "researcher", "part"] = "researcher"
    long.loc[long["blank_block"] == 1, "part"] = "block"
    long["kind"] = long["verdict"].map({1: "right", 0: "wrong", -1: "refused"}).fillna("blank")
    theirs = long.pivot_table(
        index=["model", "tier", "part"], columns="kind", values="item", aggfunc="size", fill_value=0
    )
    ours = recall.counts.set_index(["model", "tier", "part"])[list(VERDICTS)].sort_index()
    theirs = theirs[list(VERDICTS)].sort_index()
    pd.testing.assert_frame_equal(ours, theirs, check_dtype=False, check_names=False, check_index_type=False)


@needs_verdicts
def test_facts_of_models_are_those_of_the_repository(recall: FactualRecall) -> None:
    theirs = pd.read_csv(RAW / "models.csv").set_index("model").loc[recall.models["model"]].reset_index()
    for column in ("family", "organisation"):
        assert recall.models[column].tolist() == theirs[column].tolist()
    assert recall.models["released"].tolist() == pd.to_datetime(theirs["released"]).tolist()
    sized = recall.models["open_weights"].eq(True)
    for column in ("params_total_b", "params_active_b"):
        assert recall.models.loc[sized, column].tolist() == theirs.loc[sized, column].tolist()
    for column in ("open_weights", "thinking", "cohort"):
        assert recall.models[column].tolist() == theirs[column].astype(bool).tolist()
    doubts = theirs["notes"].fillna("").str.contains("date_")
    assert (recall.models["date_doubt"].notna() == doubts).all()


@given(tiers=st.sets(st.sampled_from(TIERS), min_size=1), parts=st.sets(st.sampled_from(PARTS), min_size=1))
@settings(max_examples=30)
def test_answers_to_parts_add_up(recall: FactualRecall, tiers: set[str], parts: set[str]) -> None:
    together = recall.answers(sorted(tiers), sorted(parts))
    apart = sum(recall.answers(sorted(tiers), (part,)) for part in parts)
    pd.testing.assert_frame_equal(together, apart, check_index_type=False)
    assert len(together) == len(recall.models) * len(tiers)
    assert (together["right"] <= together["asked"]).all() and (together["asked"] <= together["items"]).all()


def model(name: str, **facts: object) -> dict[str, object]:
    return {"model": name, "family": name, **facts}


def count(name: str, right: object = 1, **cells: object) -> dict[str, object]:
    return {"model": name, "tier": "T1", "part": "common", "right": right, "wrong": 1, "refused": 1, **cells}


@pytest.mark.parametrize(
    ("models", "counts", "message"),
    [
        ([model("a")], [count("b")], "'b' has answers, but no row"),
        ([model("a"), model("a")], [count("a")], "the same row again for model a"),
        ([model("a")], [count("a"), count("a", 2)], "a second row with other values"),
        (
            [model("a"), model("b"), model("c")],
            [count("a"), count("b"), count("c", 7)],
            "9 items, but other models have 3",
        ),
        ([model("a")], [count("a", -1)], "-1.0 is below 0|-1 is below 0"),
        ([model("a")], [count("a", 1.5)], "'1.5' is not a whole number"),
        ([model("a")], [count("a", float("nan"))], "column right: empty"),
        ([model("a")], [count("a", float("inf"))], "'inf' is not a whole number"),
        ([model("a")], [count("a", tier="T8")], "'T8' is not one of T1"),
        ([model("a", twin_of="a")], [count("a")], "names the model itself"),
        ([model("a", params_total_b=7e9)], [count("a")], "write 7 for 7e9"),
        ([model("a", released="March")], [count("a")], "a date like 2024-02-29"),
        ([{"model": "a"}], [count("a")], "column family is missing"),
    ],
)
def test_tables_that_do_not_add_up_are_refused(models: object, counts: object, message: str) -> None:
    with pytest.raises(TableError, match=message):
        load_recall(models, counts)  # type: ignore[arg-type]


def test_tables_of_no_form_are_refused() -> None:
    with pytest.raises(InputError, match="no-such-file"):
        load_recall("no-such-file.csv")
    with pytest.raises(InputError, match="a table is a path"):
        load_recall(7)  # type: ignore[arg-type]


def test_names_of_tiers_and_parts_are_checked(recall: FactualRecall) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'T7'"):
        recall.answers(tiers=("T77",))
    with pytest.raises(UnknownNameError, match="part"):
        recall.answers(parts=("all",))


def test_a_table_without_counts_of_a_model_shows_it_with_zeros() -> None:
    recall = load_recall([model("a"), model("b<script>")], [count("a")])
    assert recall.answers(tiers=("T1",)).loc[("b<script>", "T1")].tolist() == [0, 0, 0]
    assert "nan" not in repr(recall).lower()
