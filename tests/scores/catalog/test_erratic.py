"""The rule for erratic scores: what it finds in the catalog, what it leaves alone, how often it errs on clean data."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.core.errors import InputError
from densing.scores.catalog import (
    WRONG,
    Catalog,
    erratic_cells,
    erratic_flags,
    erratic_models,
    load_catalog,
    score_table,
    write_flags,
)
from densing.scores.catalog.catalog import DATA
from densing.scores.catalog.erratic import OWN_FLAGS
from tests.support.erratic import clean_catalog

CATALOG = load_catalog()


@pytest.fixture(scope="module")
def models() -> pd.DataFrame:
    return erratic_models(CATALOG)


@pytest.fixture(scope="module")
def erratic(models: pd.DataFrame) -> pd.DataFrame:
    return models[models["status"].str.startswith("erratic")]


@pytest.fixture(scope="module")
def cells() -> pd.DataFrame:
    return erratic_cells(CATALOG)


def statuses(cells: pd.DataFrame) -> dict[tuple[str, str, str], str]:
    keys = zip(cells["evaluator"], cells["model"], cells["benchmark"], strict=True)
    return dict(zip(keys, cells["status"], strict=True))


def with_score(catalog: Catalog, model: str, benchmark: str, score: float) -> Catalog:
    scores = catalog.scores.copy()
    scores.loc[scores["model"].eq(model) & scores["benchmark"].eq(benchmark), "score"] = score
    return dataclasses.replace(catalog, scores=scores)


def test_gemma_4_in_euroeval_comes_out_as_a_whole_generation(erratic: pd.DataFrame) -> None:
    assert set(zip(erratic["evaluator"], erratic["model"], strict=True)) == {
        ("euroeval_val", f"Gemma-4-{size}") for size in ("E2B", "E4B", "26B-A4B", "31B")
    }


@pytest.mark.parametrize(
    ("evaluator", "model", "benchmark"),
    [
        # Format failures that the collectors of the tables noticed, or that a reader of the cards sees.
        ("olmo_base_eval", "Seed-OSS-36B-Base", "olmo3_eval_math"),
        ("olmo_base_eval", "Granite-3.3-8B-Base", "humaneval"),
        ("olmo_base_eval", "Gemma-3-27B", "coqa"),
        ("olmo_base_eval", "Gemma-2-27B", "coqa"),
    ],
)
def test_format_failures_come_out(evaluator: str, model: str, benchmark: str, cells: pd.DataFrame) -> None:
    assert statuses(cells)[evaluator, model, benchmark] == "erratic"


@pytest.mark.parametrize(
    "family",
    [
        "Pleias",
        "Monad",
        "CroissantLLM",
        "Pythia",
        "Comma",
        "GPT-2",
        "MobileLLM-R1",
        "Llama-1",
        "Llama-2",
        "BLOOM",
        "Gemma",
        "Falcon",
        "MPT",
        "Cerebras-GPT",
        "OLMo",
        "Viking",
        "Falcon-H1-Tiny",
        "SmolLM2",
        "Salamandra",
        "EuroLLM",
    ],
)
def test_honestly_weak_and_first_generation_models_stay(
    family: str, erratic: pd.DataFrame, cells: pd.DataFrame
) -> None:
    members = CATALOG.models.loc[CATALOG.models["family"] == family, "model"]
    assert len(members)
    assert not erratic["model"].isin(members).any()
    assert "erratic" not in set(cells.loc[cells["model"].isin(members), "status"])


def test_the_stored_flags_are_exactly_what_the_rule_gives() -> None:
    stored = [";".join(sorted(set(str(cell or "").split(";")) & OWN_FLAGS)) for cell in CATALOG.scores["flags"]]
    assert stored == erratic_flags(CATALOG).tolist()
    assert OWN_FLAGS <= WRONG


def test_scores_of_the_references_are_not_touched(erratic: pd.DataFrame, cells: pd.DataFrame) -> None:
    refused = set(erratic["evaluator"]) | set(cells.loc[cells["status"] == "erratic", "evaluator"])
    references = {"obsscaling", "swallow", "open_llm_leaderboard_v2", "opencompass", "qwen2.5_blog"}
    assert not refused & references


def test_flagged_scores_stay_out_unless_asked_for() -> None:
    kept = score_table(CATALOG, "mmlu_de", evaluator="euroeval_val")["model"]
    everything = score_table(CATALOG, "mmlu_de", evaluator="euroeval_val", include_flagged=True)["model"]
    assert set(everything) - set(kept) == {f"Gemma-4-{size}" for size in ("E2B", "E4B", "26B-A4B", "31B")}


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, 0.001),
        ({"models": 12}, 0.001),
        ({"models": 40, "benchmarks": 8, "languages": 4}, 0.001),
        ({"progress": 0.0}, 0.001),
        # Skills and noise twice as wide as usual.
        ({"skill_spread": 0.7}, 0.003),
        ({"noise": 0.3}, 0.003),
    ],
)
def test_clean_tables_are_nearly_never_flagged(options: dict[str, float], most: float) -> None:
    cells = flagged = judged = strict = 0
    for seed in range(100, 104):
        catalog = clean_catalog(seed, **options)  # type: ignore[arg-type]
        models = erratic_models(catalog)
        table = erratic_cells(catalog)
        cells, flagged = cells + len(table), flagged + int((table["status"] == "erratic").sum())
        judged += int((models["status"] != "too few").sum())
        strict += int(models["status"].str.startswith("erratic").sum())
    assert cells > 700
    assert flagged / cells <= most
    assert strict <= 0.02 * judged


def test_a_planted_format_failure_of_an_able_model_is_found() -> None:
    found = decided = 0
    for seed in range(8):
        catalog = clean_catalog(seed)
        wide = catalog.scores.pivot_table(index="model", columns="benchmark", values="score")
        free = catalog.benchmarks.loc[catalog.benchmarks["chance"] == 0, "id"]
        # Able: above the median almost everywhere; the benchmark separates, and is not at its ceiling.
        ranks = wide.rank(pct=True).mean(axis=1)
        model = str(ranks.sort_values().index[-4])
        able = [b for b in free if b in wide and 0.45 < wide.loc[model, b] < 0.95]
        for benchmark in able[:2]:
            verdict = statuses(erratic_cells(with_score(catalog, model, benchmark, 0.0)))["clean", model, benchmark]
            decided += verdict != "too few"
            found += verdict == "erratic"
    assert decided >= 8
    assert found >= 0.8 * decided


def test_a_generation_that_was_loaded_wrongly_is_found_and_its_elders_are_not() -> None:
    found = planted = 0
    for seed in range(8):
        # Enough models that those struck are few among those judged.
        catalog = clean_catalog(seed, models=140, benchmarks=12)
        models = catalog.models.assign(line=catalog.models["family"].str.split("-").str[0])
        chance = catalog.scores["benchmark"].map(catalog.benchmarks.set_index("id")["chance"])
        for _, members in models.groupby("family"):
            elders = models[models["line"].isin(members["line"]) & (models["released"] < members["released"].min())]
            hit = catalog.scores["model"].isin(members["model"])
            # Able enough to fall: well above the floor, and larger than an elder that is no dwarf itself.
            largest = elders["params_total_b"].where(elders["params_total_b"] > 3).min()
            able = members[members["params_total_b"] > largest]
            level = ((catalog.scores["score"] - chance) / (1 - chance))[hit].median()
            if len(able) < 2 or len(able) < len(members) or level < 0.4:
                continue
            scores = catalog.scores.copy()
            scores.loc[hit, "score"] = (chance + (scores["score"] - chance) * 0.1)[hit].clip(0, 1)
            verdicts = erratic_models(dataclasses.replace(catalog, scores=scores)).set_index("model")["status"]
            planted += len(members)
            found += int(verdicts[members["model"]].str.startswith("erratic").sum())
            assert not verdicts[elders["model"]].str.startswith("erratic").any()
            break
    assert planted >= 8
    # The elders are the measure: a fault that undoes no more than the generation gained cannot be seen.
    assert found >= 0.5 * planted


def test_a_model_that_is_weak_everywhere_is_not_erratic() -> None:
    catalog = clean_catalog(3)
    model = str(catalog.models.sort_values("params_total_b")["model"].iloc[-1])
    chance = catalog.scores["benchmark"].map(catalog.benchmarks.set_index("id")["chance"])
    scores = catalog.scores.copy()
    scores.loc[scores["model"] == model, "score"] = chance[scores["model"] == model]
    # Its organisation has nothing else, so nothing says that it ought to be better.
    models = catalog.models.copy()
    models.loc[models["model"] == model, "organisation"] = "Newcomer"
    spoiled = dataclasses.replace(catalog, scores=scores, models=models)
    verdicts = erratic_models(spoiled)
    assert verdicts.loc[verdicts["model"] == model, "status"].tolist() == ["too few"]
    cells = erratic_cells(spoiled)
    assert "erratic" not in set(cells.loc[cells["model"] == model, "status"])


def test_another_evaluator_that_saw_the_same_absolves_the_cell() -> None:
    catalog = clean_catalog(2)
    wide = catalog.scores.pivot_table(index="model", columns="benchmark", values="score")
    model = str(wide.rank(pct=True).mean(axis=1).sort_values().index[-4])
    free = catalog.benchmarks.loc[catalog.benchmarks["chance"] == 0, "id"]
    benchmark = next(b for b in free if 0.5 < wide.loc[model, b] < 0.95)
    spoiled = with_score(catalog, model, benchmark, 0.0)
    assert statuses(erratic_cells(spoiled))["clean", model, benchmark] == "erratic"
    other = spoiled.scores[spoiled.scores["model"].eq(model) & spoiled.scores["benchmark"].eq(benchmark)]
    people = pd.concat([spoiled.evaluators, spoiled.evaluators.assign(id="other")], ignore_index=True)
    both = dataclasses.replace(
        spoiled,
        scores=pd.concat([spoiled.scores, other.assign(evaluator="other")], ignore_index=True),
        evaluators=people,
    )
    assert statuses(erratic_cells(both))["clean", model, benchmark] == "weak elsewhere too"


@settings(max_examples=10, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(random: object) -> None:
    catalog = clean_catalog(1, models=20, benchmarks=10)
    rows = list(range(len(catalog.scores)))
    random.shuffle(rows)  # type: ignore[attr-defined]
    shuffled = dataclasses.replace(catalog, scores=catalog.scores.iloc[rows].reset_index(drop=True))
    assert statuses(erratic_cells(shuffled)) == statuses(erratic_cells(catalog))


@pytest.mark.parametrize("models", [1, 2, 3])
def test_too_few_models_give_a_status_and_never_a_flag(models: int) -> None:
    catalog = clean_catalog(5, models=models, benchmarks=6)
    assert set(erratic_models(catalog)["status"]) == {"too few"}
    assert set(erratic_cells(catalog)["status"]) == {"too few"}
    assert set(erratic_flags(catalog)) == {""}


def test_ends_of_the_scale_missing_facts_and_no_scores_are_no_trouble() -> None:
    catalog = clean_catalog(2, models=15, benchmarks=8)
    same = dataclasses.replace(catalog, scores=catalog.scores.assign(score=1.0))
    assert set(erratic_flags(same)) == {""}
    floor = dataclasses.replace(catalog, scores=catalog.scores.assign(score=0.0))
    assert set(erratic_flags(floor)) == {""}
    bare = catalog.models.assign(released=pd.NaT, params_total_b=np.nan, params_active_b=np.nan, organisation=None)
    assert set(erratic_models(dataclasses.replace(catalog, models=bare))["status"]) == {"too few"}
    certain = dataclasses.replace(catalog, benchmarks=catalog.benchmarks.assign(chance=1.0))
    assert set(erratic_flags(certain)) == {""}
    empty = dataclasses.replace(catalog, scores=catalog.scores.iloc[:0])
    assert erratic_models(empty).empty and erratic_cells(empty).empty and erratic_flags(empty).empty


def test_a_users_own_row_without_neighbours_is_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    lines = ["model,params,released,benchmark,score,evaluator", "Mine-7B,7e9,2025-06-01,mmlu,0.1,mine"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    cells = erratic_cells(load_catalog(path, embedded=False))
    assert cells.loc[cells["model"] == "Mine-7B", "status"].tolist() == ["too few"]


def test_writing_flags_changes_nothing_else_and_takes_back_what_the_rule_does_not_give(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    text = (DATA / "scores.csv").read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    spoiled = text.replace("erratic_model", "").replace(";,letters", ",letters").replace(";,generate", ",generate")
    line = next(
        line for line in text.splitlines() if line.startswith("Qwen2.5-7B,gsm8k,") and ",falcon_h1_docs," in line
    )
    assert line.endswith(",,,")
    spoiled = spoiled.replace(line, line[:-2] + "erratic_cell,,")
    path.write_text(spoiled, encoding="utf-8")
    assert write_flags(CATALOG, path) == 333
    assert path.read_text(encoding="utf-8") == text


def test_a_table_without_flags_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_text("model,benchmark,evaluator\na,mmlu,b\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"scores\.csv: column flags is missing"):
        write_flags(CATALOG, path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "column model is missing"),
        ("model,benchmark,evaluator,flags\na,mmlu\n", "row 2 has 2 cells, but the header has 4"),
    ],
)
def test_an_empty_or_ragged_table_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "scores.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        write_flags(CATALOG, path)
    assert path.read_text() == text
