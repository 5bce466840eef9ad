"""The embedded catalog: what it must hold, whether every reference resolves, and which models are in the headline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from densing.core.errors import InputError, UnknownNameError
from densing.scores.catalog import (
    Catalog,
    Selection,
    evaluator_table,
    load_catalog,
    own_figures,
    score_table,
    select,
    series_list,
    strata,
)
from densing.scores.catalog.catalog import read_groups
from densing.scores.catalog.schema import SIZED_KINDS
from densing.scores.catalog.scores import FLAGS, OTHER_PROTOCOL, WRONG, has_flag
from densing.scores.catalog.tables import check_benchmarks, check_models, check_scores, source_id
from densing.scores.references import load_ladder
from tests.support import folders

SHARED = folders.SHARED / "data" / "catalog"
SHARED_2026 = folders.SHARED / "data" / "catalog_2026"
CATALOG = load_catalog()


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def test_at_least_200_dated_base_models_with_sizes_from_2019_to_2026(catalog: Catalog) -> None:
    models = catalog.models
    dated = models[(models["kind"] == "base") & models["released"].notna() & models["params_total_b"].notna()]
    assert len(dated) >= 200
    assert dated["released"].dt.year.min() == 2019
    assert dated["released"].dt.year.max() == 2026


def test_at_least_12_benchmarks_are_capability_scales_with_scores(catalog: Catalog) -> None:
    scored = set(catalog.scores["benchmark"])
    assert scored == set(catalog.benchmarks["id"])
    assert catalog.benchmarks["scale"].sum() >= 12


def test_every_row_refers_to_things_that_exist(catalog: Catalog) -> None:
    check_models(catalog.models, catalog, "models.csv")
    check_scores(catalog.scores, catalog, "scores.csv")
    check_benchmarks(catalog.benchmarks, catalog, "benchmarks.csv")
    tables = {"model": catalog.models["model"], "benchmark": catalog.benchmarks["id"]}
    assert [set(catalog.scores[column]) - set(known) for column, known in tables.items()] == [set(), set()]


def test_every_fact_has_a_source(catalog: Catalog) -> None:
    assert catalog.scores["source"].notna().all()
    pairs = {
        "released": "released_source",
        "params_total_b": "params_source",
        "params_non_embedding_b": "non_embedding_source",
        "tokens_t": "tokens_source",
    }
    for fact, source in pairs.items():
        assert (catalog.models[fact].notna() == catalog.models[source].notna()).all(), fact
    assert catalog.benchmarks[["chance_source", "items_source"]].notna().all().all()


def test_every_source_is_used_and_has_a_licence_or_says_why_not(catalog: Catalog) -> None:
    columns = [c for c in catalog.models.columns if c.endswith("_source")]
    cells = [*(catalog.models[c] for c in columns), catalog.scores["source"]]
    cells += [catalog.benchmarks["chance_source"], catalog.benchmarks["items_source"]]
    used = {source_id(cell) for cell in pd.concat(cells).dropna()}
    used |= {source for name in ("olmo-ladder", "densing-cpu") for source in load_ladder(name)["source"]}
    # The paper is behind the column in_paper; evaluators have no source column.
    assert set(catalog.sources["id"]) - used == {"densing-paper"}
    public = catalog.sources[catalog.sources["url"].notna()]
    assert public["licence"].notna().all()


def test_attribution_names_author_licence_link_and_changes(catalog: Catalog) -> None:
    licensed = catalog.sources[catalog.sources["licence"] == "CC-BY-4.0"]
    assert set(licensed["id"]) == {"swallow", "ikp", "llmstats"}
    for row in licensed.itertuples():
        for part in (row.title, row.url, "creativecommons.org/licenses/by/4.0", "Changed here:"):
            assert part.split(" (")[0] in row.attribution


def test_a_date_is_called_unverified_exactly_where_it_rests_on_recollection(catalog: Catalog) -> None:
    recalled = catalog.models["released_source"].map(source_id, na_action="ignore") == "recalled"
    assert ((catalog.models["released_basis"] == "unverified") == recalled).all()


def test_models_from_other_weights_name_their_parent(catalog: Catalog) -> None:
    derived = catalog.models[catalog.models["kind"] != "base"]
    assert set(catalog.models["kind"]) == set(SIZED_KINDS)
    assert (derived["derived_from"].notna() | derived["notes"].notna()).all()


def test_flags_are_known_and_mark_what_the_sources_got_wrong(catalog: Catalog) -> None:
    found = {flag for cell in catalog.scores["flags"].dropna() for flag in cell.split(";")}
    assert found == FLAGS
    humaneval = catalog.scores.query("evaluator == 'opencompass' and benchmark == 'humaneval'")
    assert has_flag(humaneval["flags"], WRONG).all()
    bbh = catalog.scores.query("evaluator == 'open_llm_leaderboard_v2' and benchmark == 'bbh'")
    assert has_flag(bbh["flags"], OTHER_PROTOCOL).all()


def test_scores_under_chance_are_flagged_as_such(catalog: Catalog) -> None:
    chance = catalog.benchmarks.set_index("id")["chance"]
    # BBH and MuSR have no agreed floor at their sources, so nothing is flagged there.
    scores = catalog.scores[~catalog.scores["benchmark"].isin(["bbh", "musr"])]
    under = scores["score"] < scores["benchmark"].map(chance)
    assert (under == has_flag(scores["flags"], frozenset({"below_chance"}))).all()


def test_only_mmlu_joins_two_evaluators(catalog: Catalog) -> None:
    joined = series_list(catalog)
    joined = joined[joined["evaluators"].str.contains(";")]
    assert joined["series"].tolist() == ["mmlu:joined"]
    assert joined["evaluators"].tolist() == ["obsscaling;swallow"]


def test_joined_evaluators_agree_on_the_models_both_measured(catalog: Catalog) -> None:
    both = catalog.scores[catalog.scores["series"] == "mmlu:joined"]
    wide = both.pivot_table(index="model", columns="evaluator", values="score").dropna()
    assert len(wide) >= 5
    assert (wide["obsscaling"] - wide["swallow"]).abs().max() < 0.011


def test_every_benchmark_has_a_default_series_with_scores(catalog: Catalog) -> None:
    assert set(catalog.benchmarks["default_series"]) <= set(catalog.scores["series"])
    listed = series_list(catalog)
    assert listed.groupby("benchmark")["default"].sum().eq(1).all()


def test_loading_gives_fresh_tables_every_time() -> None:
    first = load_catalog()
    first.models.loc[0, "model"] = "spoiled"
    first.scores.loc[:, "score"] = 0.0
    assert load_catalog().models.loc[0, "model"] != "spoiled"
    assert load_catalog().scores["score"].max() > 0.9


def test_digest_ignores_order_and_sees_every_change(catalog: Catalog) -> None:
    rng = np.random.default_rng(0)
    shuffled = Catalog(
        catalog.models.iloc[rng.permutation(len(catalog.models)), ::-1].reset_index(drop=True),
        catalog.scores.iloc[rng.permutation(len(catalog.scores))],
        catalog.benchmarks,
        catalog.evaluators,
        catalog.sources.iloc[::-1],
    )
    assert shuffled.digest == catalog.digest == load_catalog().digest
    changed = load_catalog()
    changed.scores.loc[5, "score"] += 1e-9
    assert changed.digest != catalog.digest
    moved = load_catalog()
    moved.models.loc[3, "released"] += pd.Timedelta(days=1)
    assert moved.digest != catalog.digest


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared development data are not beside this checkout")
def test_facts_equal_the_shared_development_data(catalog: Catalog) -> None:
    models = pd.read_csv(SHARED / "models.csv").set_index("model").sort_index()
    ours = catalog.models.set_index("model").loc[models.index]
    # The shared table of models has labels here; other files beside it have counts.
    counted = ["BLOOM-176B", "Llama-2-70B", "Llama-2-7B", "MPT-30B", "MPT-7B"]
    assert (models.loc[counted, "params_total_b"] == models.loc[counted, "params_label_b"]).all()
    sizes = ["params_total_b", "params_active_b"]
    models.loc[counted, sizes] = ours.loc[counted, sizes]
    for column in (
        "params_label_b",
        "params_total_b",
        "params_active_b",
        "params_non_embedding_b",
        "tokens_t",
    ):
        np.testing.assert_allclose(ours[column], models[column], rtol=1e-12, err_msg=column)
    # The shared data call Gemma 3 trained from scratch; its report's abstract says with distillation.
    models.loc[models["family"] == "Gemma-3", "derivation"] = "distilled"
    for column in ("family", "organisation", "architecture", "kind", "derivation", "domain"):
        assert ours[column].tolist() == models[column].tolist(), column
    dates = pd.to_datetime(models["released"]).astype("datetime64[ns]")
    # The shared data follow a tracker; the vendor's own announcement is of the 28th.
    dates[models["family"] == "Cerebras-GPT"] = pd.Timestamp("2023-03-28")
    pd.testing.assert_series_equal(ours["released"], dates, check_index_type=False, check_index=False)
    key = ["model", "benchmark", "evaluator"]
    scores = pd.read_csv(SHARED / "scores.csv").sort_values(key)
    evaluators = set(scores["evaluator"])
    mine = catalog.scores[catalog.scores["evaluator"].isin(evaluators)].sort_values(key)
    assert mine[key].to_numpy().tolist() == scores[key].to_numpy().tolist()
    np.testing.assert_allclose(mine["score"], scores["score"], rtol=1e-12)
    np.testing.assert_array_equal(mine["shots"], scores["n_shot"])
    assert mine["flags"].fillna("").tolist() == scores["flags"].fillna("").tolist()


def test_the_headline_is_dense_general_base_with_a_sourced_date() -> None:
    chosen = select(CATALOG)
    assert set(chosen["kind"]) == {"base"} and set(chosen["architecture"]) == {"dense"}
    assert set(chosen["domain"]) == {"general"} and set(chosen["derivation"]) <= {"scratch", "distilled"}
    assert not chosen["released_basis"].isin(["unverified"]).any()
    assert chosen[["released", "params_total_b", "released_source"]].notna().all().all()
    assert chosen["released"].is_monotonic_increasing and len(chosen) >= 150


@pytest.mark.parametrize(
    ("model", "stratum"),
    [
        ("Llama-3-8B", "headline"),
        ("Gemma-2-9B", "headline"),
        ("Yi-1.5-34B", "continued"),
        ("Falcon3-1B-Base", "compressed"),
        ("StableLM-Zephyr-3B", "instruct"),
        ("Mixtral-8x7B", "moe"),
        ("StarCoder2-7B", "code"),
        ("GPT-3-175B", "unverified date"),
        ("MiniCPM-1.2B", "no size"),
        ("TNLG-v2-6.7B", "no date"),
        ("Gemma-3n-E4B", "effective size"),
        ("Gemma-4-E2B", "effective size"),
        ("Ministral-3-8B-Base", "compressed"),
        ("DeepSeek-V3.1-Base", "continued"),
        ("Qwen3-32B", "instruct"),
        ("Olmo-Hybrid-7B", "headline"),
        ("Nemotron-3-Nano-30B-A3B-Base", "moe"),
        ("SmolLM3-3B-Base", "unverified date"),
    ],
)
def test_strata_name_the_first_reason(model: str, stratum: str) -> None:
    assert strata(CATALOG).set_index("model").loc[model, "stratum"] == stratum


def test_strata_cover_every_model_and_tell_all_reasons() -> None:
    table = strata(CATALOG)
    assert sorted(table["model"]) == sorted(CATALOG.models["model"])
    assert ((table["stratum"] == "headline") == (table["reasons"] == "")).all()
    minerva = table.set_index("model").loc["Minerva-8B", "reasons"]
    assert minerva == "continued;math;unverified date"


def test_the_headline_equals_a_plain_filter() -> None:
    m = CATALOG.models
    plain = m[
        (m["kind"] == "base")
        & (m["architecture"] == "dense")
        & (m["domain"] == "general")
        & m["params_total_b"].notna()
        & m["released"].notna()
        & (m["released_basis"] != "unverified")
        & (m["derivation"] != "checkpoint")
        & (m["params_active_b"] == m["params_total_b"])
    ]
    assert set(select(CATALOG)["model"]) == set(plain["model"])


def test_options_let_others_in() -> None:
    wide = Selection(
        kinds=("base", "continued", "compressed", "instruct"),
        architectures=("dense", "moe"),
        domains=("general", "code", "math"),
        derivations=tuple(CATALOG.models["derivation"].unique()),
        verified_only=False,
        one_size=False,
    )
    assert len(select(CATALOG, wide)) == 380
    assert wide.describe() == "models with any release date"


def test_distilled_models_can_be_left_out() -> None:
    table = strata(CATALOG, Selection(derivations=("scratch",))).set_index("model")
    assert table.loc["Gemma-2-9B", "stratum"] == "distilled"


def test_both_ends_of_the_window_are_inside() -> None:
    window = Selection(since="2024-04-18", until=pd.Timestamp("2024-04-18"))
    assert select(CATALOG, window)["released"].unique().tolist() == [pd.Timestamp("2024-04-18")]
    assert window.describe().endswith("from 2024-04-18 to 2024-04-18")
    assert strata(CATALOG, window).set_index("model").loc["Qwen2-7B", "stratum"] == "outside the window"


def test_descriptions_say_what_is_in() -> None:
    assert Selection().describe() == "dense, general, from-scratch or distilled base models with a sourced release date"
    mixed = Selection(kinds=("base", "continued"), architectures=("dense", "moe"), verified_only=False)
    assert mixed.describe() == "general base or continued models with any release date"


def test_unknown_words_and_dates_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown kind 'bass'; did you mean 'base'"):
        Selection(kinds=("bass",))
    with pytest.raises(InputError, match="since 'soon' is not a date"):
        Selection(since="soon")
    with pytest.raises(InputError, match="swap them"):
        Selection(since="2024-02-01", until="2024-01-01")


def test_lists_of_declared_groups_hold_families_of_the_catalog() -> None:
    table = read_groups()
    assert set(table["family"]) <= set(CATALOG.models["family"])
    assert table["reason"].str.len().min() > 20


# Read by hand: the tables in the model cards of Olmo-3-1125-32B, Apertus-70B-2509, SmolLM3-3B and
# NVIDIA-Nemotron-3-Nano-30B-A3B-Base-BF16, and in the READMEs of DeepSeek-V3 and Seed-OSS.
@pytest.mark.parametrize(
    ("model", "benchmark", "evaluator", "percent"),
    [
        ("Olmo-3-32B", "mmlu_other", "olmo_base_eval", 75.1),
        ("Olmo-3-32B", "squad_gen2mc_mc", "olmo_base_eval", 98.2),
        ("Seed-OSS-36B-Base", "olmo3_eval_math", "olmo_base_eval", 15.3),
        ("Gemma-3-27B", "coqa", "olmo_base_eval", 12.4),
        ("Qwen2.5-32B", "squad", "olmo_base_eval", 64.9),
        ("Apertus-8B", "arc_0shot", "apertus_card", 72.7),
        ("GPT-OSS-20B", "hellaswag", "apertus_card", 41.5),
        ("Poro-34B", "xcopa", "apertus_card", 56.0),
        ("DeepSeek-V3-Base", "mmlu", "deepseek_v3_readme", 87.1),
        ("DeepSeek-V3-Base", "bbh", "deepseek_v3_readme", 87.5),
        ("SmolLM3-3B-Base", "hellaswag_0shot", "smollm3_card", 76.15),
        ("SmolLM3-3B-Base", "mmlu_cloze", "smollm3_card", 44.13),
        ("Qwen2.5-72B", "arc_challenge", "deepseek_v3_readme", 94.5),
        ("Llama-3.2-3B", "math", "smollm3_card", 7.44),
        ("Qwen2.5-32B", "bbh", "seed_oss_readme", 79.1),
        ("Seed-OSS-36B-Base", "math", "seed_oss_readme", 81.7),
        ("Nemotron-3-Nano-30B-A3B-Base", "mmlu", "nemotron3_nano_card", 78.56),
    ],
)
def test_scores_equal_what_the_sources_print(model: str, benchmark: str, evaluator: str, percent: float) -> None:
    rows = CATALOG.scores.query("model == @model and benchmark == @benchmark and evaluator == @evaluator")
    assert rows["score"].tolist() == pytest.approx([percent / 100])


def test_evaluators_hold_as_many_models_and_benchmarks_as_their_tables() -> None:
    table = evaluator_table(CATALOG).set_index("evaluator")
    counts = {
        "falcon_h1_docs": (29, 14),
        "euroeval": (83, 83),
        "euroeval_val": (13, 83),
        "olmo_base_eval": (22, 41),
        "apertus_card": (16, 6),
        "gemma3_report": (7, 21),
        "obsscaling": (148, 8),
    }
    for evaluator, (models, benchmarks) in counts.items():
        assert (table.loc[evaluator, "models"], table.loc[evaluator, "benchmarks"]) == (models, benchmarks)
    assert table["scores"].sum() == len(CATALOG.scores)
    assert table.loc["euroeval", "languages"].split() == sorted(set(table.loc["euroeval", "languages"].split()))
    assert len(table.loc["euroeval", "languages"].split()) == 30
    assert table["last"].max() == pd.Timestamp("2026-04-30")


def test_new_scores_are_series_of_their_own_and_leave_the_default_ones_alone() -> None:
    first = CATALOG.evaluators.set_index("id")["preference"]
    new = CATALOG.scores[CATALOG.scores["evaluator"].map(first) >= first["falcon_h1_docs"]]
    assert (new["series"] == new["benchmark"] + ":" + new["evaluator"]).all()
    old = CATALOG.scores[~CATALOG.scores.index.isin(new.index)]
    assert not set(old["series"]) & set(new["series"])
    shared = CATALOG.benchmarks[CATALOG.benchmarks["id"].isin(old["benchmark"])]
    assert set(shared["default_series"]) <= set(old["series"])


def test_a_stated_error_counts_where_it_is_larger_than_the_items_allow() -> None:
    rows = CATALOG.scores.query("evaluator == 'euroeval' and benchmark == 'mmlu_de'").set_index("model")
    rows = rows[rows["stated_se"].notna() & ~rows["flags"].fillna("").str.contains("erratic")]
    assert len(rows) >= 50
    items = float(CATALOG.benchmarks.set_index("id").loc["mmlu_de", "items"])
    share = (items * rows["score"] + 0.5) / (items + 1)
    binomial = np.sqrt(share * (1 - share) / items)
    wide = rows["stated_se"].where(np.arange(len(rows)) % 2 == 0, 2 * binomial)
    scores = CATALOG.scores.copy()
    scores.loc[scores["evaluator"].eq("euroeval") & scores["benchmark"].eq("mmlu_de"), "stated_se"] = scores[
        "model"
    ].map(wide)
    table = score_table(replace(CATALOG, scores=scores), "mmlu_de", evaluator="euroeval").set_index("model")
    np.testing.assert_allclose(table.loc[rows.index, "score_se"], np.maximum(wide, binomial))
    assert (wide < binomial).any()


def test_own_figures_are_those_of_an_organisation_about_its_own_models() -> None:
    own = CATALOG.scores[own_figures(CATALOG)]
    assert set(own.query("evaluator == 'falcon_h1_docs'")["model"].str.split("-").str[0]) == {"Falcon3", "Falcon"}
    assert own.query("evaluator in ['obsscaling', 'swallow', 'euroeval']").empty
    assert set(own.query("evaluator == 'apertus_card'")["model"]) == {"Apertus-8B", "Apertus-70B"}
    makers = set(CATALOG.models["organisation"].dropna())
    vendors = CATALOG.evaluators.query("role == 'vendor'")["organisation"]
    assert set(vendors) <= makers


def test_organisations_are_compared_without_case_and_one_of_several_is_enough() -> None:
    models = pd.DataFrame(
        [("a", "Microsoft/NVIDIA"), ("b", "nvidia"), ("c", "NVIDIA Research"), ("d", None)],
        columns=["model", "organisation"],
    )
    evaluators = CATALOG.evaluators.assign(
        organisation=CATALOG.evaluators["organisation"].where(lambda s: s.eq("NVIDIA"))
    )
    runner = evaluators.loc[evaluators["organisation"].notna(), "id"].iloc[0]
    scores = pd.DataFrame([(name, runner) for name in "abcd"] + [("b", "obsscaling")], columns=["model", "evaluator"])
    own = own_figures(replace(CATALOG, models=models, scores=scores, evaluators=evaluators))
    assert own.tolist() == [True, True, False, False, False]


def test_languages_are_codes_and_mixtures() -> None:
    languages = CATALOG.benchmarks.set_index("id")["language"]
    assert languages.str.fullmatch(r"[a-z]{2}|mul").all()
    assert languages[["mmlu", "hellaswag_da", "mmlu_de", "mgsm", "cmmlu", "norquad"]].tolist() == [
        "en",
        "da",
        "de",
        "mul",
        "zh",
        "no",
    ]
    suffixed = languages[languages.index.str.contains("_(?:bg|ca|cs|da|de|el|es|et|fi|fr|hr|hu|is|it|lt|lv|nl|pl)$")]
    assert (suffixed.index.str[-2:] == suffixed).all()


def test_months_stand_at_their_middle_and_say_so() -> None:
    months = CATALOG.models[CATALOG.models["released_precision"] == "month"]
    assert {"Olmo-Hybrid-7B", "EuroLLM-22B"} <= set(months["model"])
    assert (months["released"].dt.day == 15).all()


def test_values_of_another_protocol_are_no_disagreement_with_the_usual_one() -> None:
    scores = CATALOG.scores.set_index(["model", "benchmark", "evaluator"])["flags"]
    assert "multiple_choice_no_cot" in scores["Llama-3.1-8B", "bbh", "falcon_h1_docs"]
    assert "unnormalised_acc" in scores["Llama-3.1-8B", "hellaswag", "apertus_card"]
    assert "generated_answer" in scores["Gemma-3-4B", "mmlu_pro", "gemma3_report"]
    assert "option_letters" in scores["DeepSeek-V3-Base", "arc_challenge", "deepseek_v3_readme"]
    assert "other_problem_set" in scores["Qwen2.5-7B", "mbpp", "falcon_h1_docs"]


@pytest.mark.skipif(not SHARED_2026.is_dir(), reason="the shared development data are not beside this checkout")
def test_every_score_of_2026_is_here_with_its_value() -> None:
    raw = pd.concat(pd.read_csv(SHARED_2026 / f"{name}.csv") for name in ("scores_2026", "euroeval_base_2026"))
    raw["evaluator"] = raw["evaluator"].replace("euroeval_test", "euroeval")
    mine = CATALOG.scores[CATALOG.scores["evaluator"].isin(raw["evaluator"])]
    keys = ["evaluator", "model"]
    assert len(mine) == len(raw) == 7207
    # Benchmarks are named otherwise here, so the values of a model by an evaluator are compared as a list.
    ours, theirs = (table.groupby(keys)["score"].apply(sorted).to_dict() for table in (mine, raw))
    assert ours == theirs
    models = pd.read_csv(SHARED_2026 / "models_2026.csv").set_index("model")
    facts = CATALOG.models.set_index("model").loc[models.index]
    # The table of 2026 has labels of these three, rounded; other files beside it have counts.
    counted = ["Olmo-3-32B", "Olmo-3-7B", "SmolLM2-135M"]
    np.testing.assert_allclose(facts.loc[counted, "params_total_b"], models.loc[counted, "params_total_b"], rtol=0.05)
    others = ~models.index.isin(counted)
    np.testing.assert_allclose(facts.loc[others, "params_total_b"], models.loc[others, "params_total_b"])
    recalled = models["released_source"].str.contains("recalled", na=False) & (models.index != "DeepSeek-V3-Base")
    assert ((facts["released_basis"] == "unverified") == recalled).all()
