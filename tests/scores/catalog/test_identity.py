"""Names of models: one model whatever its spelling, never two as one, families and kinds, and what is asked."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import densing
from densing.core.errors import TableError
from densing.scores.catalog import (
    Catalog,
    identify,
    infer_families,
    kind_of,
    load_catalog,
    read_extra,
    same_size,
    with_sizes,
)

CATALOG = load_catalog()
MODELS = CATALOG.models["model"].astype(str).tolist()
LEADERBOARD = pd.read_csv(Path(__file__).parents[3] / "examples" / "leaderboard.csv")
REFERENCE = densing.load_reference("qwen1.5", "mmlu")


def table(*names: str, **columns: Any) -> pd.DataFrame:
    rows = pd.DataFrame({"model": names, "params": 3e9, "released": "2024-06-01", "benchmark": "mmlu", "score": 0.6})
    return rows.assign(**columns)


def notes_of(source: pd.DataFrame, code: str) -> list[str]:
    parts = read_extra(source)
    return [note.message for part in parts.values() for note in part.notes if note.code == code]


# ---- identities ----------------------------------------------------------------------------------------------------


@given(
    st.sampled_from(MODELS),
    st.sampled_from("-_ "),
    st.sampled_from([str, str.lower, str.upper]),
    st.sampled_from(["", "org/", "some-lab/"]),
    st.sampled_from(["", "-hf", "_HF", " fp16"]),
)
def test_a_model_is_itself_in_every_spelling(name: str, separator: str, case: Any, org: str, added: str) -> None:
    spelled = org + case(name.replace("-", separator)) + added
    assert identify(CATALOG, spelled).model == name


@given(
    st.sampled_from(MODELS),
    st.sampled_from(
        ["instruct", "it", "chat", "sft", "dpo", "0999", "v9.3", "Math", "Coder", "GPTQ", "9x7B", "mine", "128k"]
    ),
)
def test_a_word_that_makes_another_model_never_leaves_it_the_same(name: str, word: str) -> None:
    assert identify(CATALOG, f"{name}-{word}").model is None
    assert identify(CATALOG, f"{name} ({word})").model is None


def test_no_two_models_of_the_catalog_are_told_alike() -> None:
    assert [identify(CATALOG, name.lower()).model for name in MODELS] == MODELS


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Llama 3 8B", "Llama-3.1-8B"),
        ("qwen2 7b", "Qwen2.5-7B"),
        ("Gemma 7B it", "Gemma-7B"),
        ("OLMo 7B 0424", "OLMo-7B"),
        ("Gemma 2B", "Gemma-2-2B"),
        ("Yi 6B 200K", "Yi-6B"),
        ("falcon 7b", "Falcon3-7B-Base"),
        ("Qwen3-8B", "Qwen3-8B-Base"),
        ("pythia-1.4b", "Pythia-1.4B-deduped"),
        ("pythia-1.4b@step1000", "Pythia-1.4B"),
        ("Llama 31 8B", "Llama-3.1-8B"),
    ],
)
def test_models_that_differ_are_never_one(one: str, other: str) -> None:
    assert identify(CATALOG, one).model != other


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Gemma 7 B", "Gemma-7B"),
        ("Llama3-8B-Base", "Llama-3-8B"),
        ("google/gemma-3-4b-pt", "Gemma-3-4B"),
        ("Open Llama 3B v2", "OpenLLaMA-3B-v2"),
        ("bigscience/bloom-7b1", "BLOOM-7.1B"),
        ("Qwen2.5 500M", "Qwen2.5-0.5B"),
        ("Falcon3 7B (base)", "Falcon3-7B-Base"),
    ],
)
def test_spellings_that_nobody_listed_are_found(name: str, model: str) -> None:
    assert identify(CATALOG, name).model == model


def test_near_names_are_asked_about_with_both_names_and_others_are_not() -> None:
    assert "Mistral-7B-v0.1" in identify(CATALOG, "Mistral 7B").near
    assert identify(CATALOG, "Gema-7B").near == ("Gemma-7B",)
    assert identify(CATALOG, "Falcon3-7B").near == ("Falcon3-7B-Base",)
    assert identify(CATALOG, "Mistral Nemo", params_b=12.2).near == ("Mistral-Nemo-12B",)
    for name in ("mine", "Zeta-7B", "OLMo-7B-0724", "Llama-3.3-8B", "Gemma-7B-it", "Mistral Nemo", "", "7B", "!?"):
        assert identify(CATALOG, name).near == (), name
    (message,) = notes_of(table("Mistral 7B", "mine"), "near-names")
    assert "Mistral 7B (Mistral-7B-v0.1 or" in message and "mine" not in message.split("mine.csv")[-1]
    assert "Zeta 7B and zeta-7b" in notes_of(table("Zeta 7B", "zeta-7b"), "near-names")[0]


def test_sizes_are_one_as_far_as_they_are_rounded() -> None:
    for one, two in [
        (7.6, 7.61),
        (7.615616512, 7.61),
        (1.41465, 1.414647808),
        (0.07, 0.0704266),
        (8, 8.03),
        (6.74, 6.7384),
    ]:
        assert same_size(one, two) and same_size(two, one)
    for one, two in [(7, 8.5), (1, 2), (7, 7.7), (3.0, 0.0), (13, 7), (0.5, 0.6), (float("nan"), 1.0)]:
        assert not same_size(one, two)


def test_another_size_is_another_model_and_is_asked_about() -> None:
    assert identify(CATALOG, "gemma 7b", params_b=7).model == "Gemma-7B", "the size in its name"
    found = identify(CATALOG, "gemma 7b", params_b=27)
    assert (found.model, found.near) == (None, ("Gemma-7B",))


# ---- tables and results --------------------------------------------------------------------------------------------


def test_a_known_model_is_the_users_own_measurement_and_counts_once() -> None:
    rows = table("gemma 7b", "mine", params=[8.5e9, 3e9], released=["2024-02-21", "2024-06-01"])
    mine = densing.table_densities(rows, REFERENCE)
    assert mine.table.set_index("model")["known_as"].dropna().to_dict() == {"gemma 7b": "Gemma-7B"}
    assert not mine.table["verified"].any()
    everyone = densing.catalog_densities(CATALOG, REFERENCE)
    ranking = densing.rank(mine, everyone)
    assert "Gemma-7B" in set(everyone.table["model"]) and ranking.table["of"].unique().tolist() == [len(everyone)]
    assert "gemma 7b (there Gemma-7B)" in notes_of(rows, "known-models")[0]
    joined = densing.catalog_densities(load_catalog(rows), REFERENCE)
    assert set(joined.table["model"]) - set(everyone.table["model"]) == {"mine"}
    (note,) = [note for note in joined.notes if note.code == "measured-already"]
    assert "Gemma-7B on mmlu (0.6, there 0.6" in note.message


def test_the_shipped_leaderboard_joins_the_catalog_without_a_second_row() -> None:
    spelled = LEADERBOARD.assign(model=LEADERBOARD["model"].str.lower().str.replace("-", " "))
    for rows in (LEADERBOARD, spelled, spelled.drop(columns=["family", "organisation"])):
        joined = load_catalog(rows)
        assert len(joined.models) == len(CATALOG.models)
        pd.testing.assert_series_equal(joined.models["params_total_b"], CATALOG.models["params_total_b"])


def test_two_spellings_of_one_model_in_one_table_are_refused_by_row() -> None:
    with pytest.raises(TableError, match=r"row 3, column model: 'gemma-7b' is Gemma-7B, which row 2 already has as"):
        load_catalog(table("Gemma 7B", "gemma-7b", params=8.5e9, released="2024-02-21"))


def test_a_contradiction_is_told_by_the_users_own_column() -> None:
    rows = table("Llama-3-8B", params=9e9, released="2024-04-18").rename(columns={"params": "Model size"})
    with pytest.raises(
        TableError, match=r"row 2, column Model size: 9.0 B for Llama-3-8B, where the embedded catalog has 8.03 B"
    ):
        load_catalog(rows)
    (note,) = [
        n for n in load_catalog(table("Llama 3 8B", params=8e9, released="2024-04-18")).notes if n.code == "sizes-agree"
    ]
    assert "Llama-3-8B (8 B, there 8.03 B)" in note.message


def test_scores_alone_are_read_by_known_names() -> None:
    joined = load_catalog(pd.DataFrame([{"model": "meta-llama/Llama-3-8B", "benchmark": "mmlu", "score": 0.66}]))
    assert joined.scores.iloc[-1]["model"] == "Llama-3-8B"
    assert "names-matched" in [note.code for note in joined.notes]


def test_a_name_that_leaves_off_base_is_the_catalogs_only_where_its_kind_is_stated() -> None:
    facts = {"params": 8.2e9, "released": "2025-04-29"}
    unsure = load_catalog(table("Qwen3-8B", "mine", kind=["", "base"], **facts))
    assert len(unsure.models) == len(CATALOG.models) + 2
    sure = load_catalog(table("Qwen3-8B", kind="base", **facts))
    assert len(sure.models) == len(CATALOG.models)


def test_a_second_table_finds_the_models_of_the_first() -> None:
    first = table("My Model 3B")
    second = pd.DataFrame([{"model": "my-model-3b", "benchmark": "gsm8k", "score": 0.5}])
    joined = load_catalog(first, second)
    assert joined.scores.tail(2)["model"].tolist() == ["My Model 3B"] * 2


def test_results_follow_the_same_rule() -> None:
    models = pd.DataFrame(
        {"model": ["google/gemma-7b", "google/gemma-7b-it", "mine-8x7B"], "params_total": [8.5e9, 8.5e9, 47e9]}
    )
    sized, notes = with_sizes(models)
    told = sized[["known_as", "kind", "architecture"]].fillna("").to_numpy().tolist()
    assert told == [["Gemma-7B", "base", "dense"], ["", "instruct", ""], ["", "", "moe"]]
    assert [note.code for note in notes] == ["known-models"]


# ---- families ------------------------------------------------------------------------------------------------------


def hidden(name: str) -> Catalog:
    return dataclasses.replace(CATALOG, models=CATALOG.models[CATALOG.models["model"].ne(name)])


def test_a_model_taken_out_of_the_catalog_is_given_back_its_family() -> None:
    sizes = CATALOG.models["family"].value_counts()
    rows = CATALOG.models[CATALOG.models["family"].map(sizes).gt(1)].iloc[::6]
    right, wrong = 0, []
    for row in rows.itertuples():
        read = infer_families([row.model], hidden(row.model))
        right += read.family[row.model] == row.family
        wrong += [row.model] if read.family[row.model] != row.family and read.how[row.model] == "catalog" else []
    assert right / len(rows) > 0.85
    assert wrong == [], "what is called known is never another family"


def reversed_names(names: pd.Series) -> pd.Series:
    """Names that nothing knows, of the same build."""
    return names.str.replace(r"^[A-Za-z]+", lambda match: "Zq" + match[0][::-1], regex=True)


def pairs(labels: list[str]) -> set[tuple[int, int]]:
    return {(a, b) for a, b in itertools.combinations(range(len(labels)), 2) if labels[a] == labels[b]}


def test_families_of_names_that_nothing_knows_are_found_from_the_table_alone() -> None:
    read = infer_families(reversed_names(LEADERBOARD["model"]), CATALOG)
    assert set(read.how.values()) == {"name", "alone"}
    true, found = pairs(LEADERBOARD["family"].tolist()), pairs(list(read.family.values()))
    assert len(true & found) / len(found) > 0.97
    assert len(true & found) / len(true) > 0.95


def test_models_without_anything_in_common_are_families_of_their_own() -> None:
    names = ["Alpha-7B", "Beta-7B", "Gamma-1.5-7B", "Gamma-2-7B", "Delta-7B-v2", "x", "7B", "!?"]
    read = infer_families(names, CATALOG)
    assert set(read.how.values()) == {"alone"} and list(read.family.values()) == names


def test_generations_are_families_and_versions_of_weights_are_not() -> None:
    read = infer_families(
        ["Zeta-1-7B", "Zeta-2-1B", "zeta2-7b-hf", "Zeta-2-7B-Instruct", "Zeta-2-9B-v0.1-base"], CATALOG
    )
    assert list(read.family.values()) == ["Zeta-1-7B", *["Zeta-2"] * 4]
    assert set(read.organisation.values()) == {"Zeta"}
    assert infer_families(["Pythia-1.4B-deduped"], CATALOG).family == {"Pythia-1.4B-deduped": "Pythia"}
    begins = infer_families(["Gemma-9-7B", "Mistral-7B-OpenOrca"], CATALOG)
    assert list(begins.family.values()) == ["Gemma-9-7B", "Mistral"], "a number behind a family is another generation"
    assert list(begins.how.values()) == ["alone", "beginning"]


def test_without_its_columns_the_shipped_example_has_its_families_and_says_so() -> None:
    bare = LEADERBOARD.drop(columns=["family", "organisation"])
    stated, read = (densing.table_densities(rows, REFERENCE).table for rows in (LEADERBOARD, bare))
    assert pairs(read["family"].tolist()) == pairs(stated["family"].tolist())
    assert (
        "families of 72 models are read from names; known to the catalog: Llama-1 (4)"
        in notes_of(bare, "families-inferred")[0]
    )
    assert notes_of(LEADERBOARD, "families-inferred") == []
    unknown = bare.assign(model=reversed_names(bare["model"]))
    assert "too narrow if two of the last" in notes_of(unknown, "families-inferred")[0]


def test_without_its_columns_the_shipped_example_has_nearly_its_interval() -> None:
    from densing.scores.trend import TrendData, fit_headline

    bare = LEADERBOARD.drop(columns=["family", "organisation"])
    unknown = bare.assign(model=reversed_names(bare["model"]))
    lines = [
        fit_headline(TrendData.from_density(densing.table_densities(rows, REFERENCE)), 0.95).slope.doubling
        for rows in (LEADERBOARD, bare, unknown, unknown.assign(family=unknown["model"]))
    ]
    (_, low, high), *others = lines
    assert others[0] == pytest.approx(lines[0], rel=1e-6)
    assert others[1][1:] == pytest.approx((low, high), rel=0.1)
    assert others[2][2] - others[2][1] < 0.75 * (high - low), "the interval that every name for itself would give"


# ---- merged cells --------------------------------------------------------------------------------------------------

ZETA = ("Zeta-1B", "Zeta-7B", "Eta-1B", "Eta-7B")


@pytest.mark.parametrize("column", ["family", "organisation"])
def test_merged_cells_are_refused_with_rows_and_remedy(column: str) -> None:
    with pytest.raises(
        TableError,
        match=rf"column {column}: blank in row 3 \(below Z, row 2\), row 5 \(below E, row 4\); .*write unknown",
    ):
        read_extra(table(*ZETA, **{column: ["Z", "", "E", ""]}))
    merged = table(*ZETA, **{column: ["Z", "", "E", ""]}).rename(columns={column: column.upper()})
    with pytest.raises(TableError, match=f"column {column.upper()}: blank"):
        read_extra(merged)


def test_what_is_known_to_be_unknown_is_no_merged_cell() -> None:
    rows = read_extra(table(*ZETA, organisation=["Z", "unknown", "E", "-"]))["models"].rows
    assert rows["organisation"].tolist() == ["Z", None, "E", None]
    whole = table(*ZETA, family=["Z", "Z", "E", "E"])
    assert notes_of(whole, "blank-below") == notes_of(whole, "families-inferred") == []


def test_a_blank_among_repeated_values_and_blank_dates_are_asked_about_and_not_filled() -> None:
    rows = table(*ZETA, family=["Z", "Z", "E", ""], released=["2024-06-01", None, "2024-07-01", None])
    family, released = notes_of(rows, "blank-below")
    assert "column family: blank in row 5 (below E, row 4)" in family
    assert (
        "column released: blank in row 3 (below 2024-06-01, row 2), row 5" in released and "out of trends" in released
    )
    assert read_extra(rows)["models"].rows["released"].isna().tolist() == [False, True, False, True]


def test_merged_cells_over_models_that_the_catalog_knows_are_filled_by_it_unless_they_contradict() -> None:
    once = LEADERBOARD["family"].where(LEADERBOARD["family"].ne(LEADERBOARD["family"].shift()), None)
    filled = densing.table_densities(LEADERBOARD.assign(family=once), REFERENCE).table
    stated = densing.table_densities(LEADERBOARD, REFERENCE).table
    assert filled["family"].tolist() == stated["family"].tolist()
    with pytest.raises(TableError, match="column family: blank"):
        read_extra(LEADERBOARD.assign(family="suite " + once))


# ---- kinds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "stratum"),
    [
        ("GPT-4", "closed"),
        ("gpt-3.5-turbo", "closed"),
        ("Claude 3 Opus", "closed"),
        ("Llama-3-8B-Instruct", "instruct"),
        ("Zeta-7B-it", "instruct"),
        ("Zeta 7B (chat)", "instruct"),
        ("zeta_7b_dpo", "instruct"),
        ("Mixtral-8x7B", "moe"),
        ("Zeta-8x3B", "moe"),
        ("Zeta-30B-A3B", "moe"),
        ("Zeta-MoE-7B", "moe"),
        ("Zeta-7B-GPTQ", "compressed"),
        ("Zeta-Coder-7B", "code"),
        ("Yi-1.5-9B", "continued"),
        ("Zeta-7B", "headline"),
        ("Gutenberg-7B", "headline"),
        ("GPT-2 clone 1B", "headline"),
        ("MiniGPT-4-7B", "headline"),
        ("Britain-1B", "headline"),
    ],
)
def test_kinds_are_told_by_names_and_set_apart(name: str, stratum: str) -> None:
    size = {"Mixtral-8x7B": 46.7e9, "Yi-1.5-9B": 8.8e9}.get(name, 30e9)
    result = densing.table_densities(table(name, params=size), REFERENCE)
    assert result.table["stratum"].tolist() == [stratum]
    assert not result.table["verified"].any()
    assert ("user-apart" in [note.code for note in result.notes]) == (stratum != "headline")


def test_no_model_of_the_catalog_is_told_to_be_what_it_is_not() -> None:
    for row in CATALOG.models.to_dict("records"):
        told = kind_of(str(row["model"]))
        assert {column: row[column] for column in ("kind", "architecture", "domain") if column in told} == {
            column: told[column] for column in ("kind", "architecture", "domain") if column in told
        }, row["model"]


def test_what_the_columns_say_stands() -> None:
    rows = table("Zeta-7B-chat", "Zeta-8x7B", params=50e9, kind=["base", ""], architecture=["", "dense"])
    result = densing.table_densities(rows, REFERENCE)
    assert result.table["stratum"].tolist() == ["headline", "headline"]
    assert notes_of(rows, "kinds-told") == []
    assert (
        "Zeta-7B-chat (chat), Zeta-8x7B (mixture of experts)"
        in notes_of(table("Zeta-7B-chat", "Zeta-8x7B"), "kinds-told")[0]
    )


def test_a_trend_over_tuned_models_says_so() -> None:
    names = [f"Zeta-{n}-7B" for n in range(1, 6)] + ["GPT-4"]
    result = densing.table_densities(table(*names), REFERENCE)
    codes = [note.code for note in densing.TrendData.from_density(result).notes]
    assert codes == ["tuned-rows"]
    assert densing.TrendData.from_density(result.headline).notes == ()
