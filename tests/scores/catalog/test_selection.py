"""Which models headline figures are about, and why the others are not."""

from __future__ import annotations

import pandas as pd
import pytest

from densing.core.errors import InputError, UnknownNameError
from densing.scores.catalog import Selection, load_catalog, select, strata

CATALOG = load_catalog()


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
    ]
    assert set(select(CATALOG)["model"]) == set(plain["model"])


def test_options_let_others_in() -> None:
    wide = Selection(
        kinds=("base", "continued", "compressed", "instruct"),
        architectures=("dense", "moe"),
        domains=("general", "code", "math"),
        derivations=tuple(CATALOG.models["derivation"].unique()),
        verified_only=False,
    )
    assert len(select(CATALOG, wide)) == 287
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
    assert Selection().describe() == "dense, general, from-scratch base models with a sourced release date"
    mixed = Selection(kinds=("base", "continued"), architectures=("dense", "moe"), verified_only=False)
    assert mixed.describe() == "general base or continued models with any release date"


def test_unknown_words_and_dates_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown kind 'bass'; did you mean 'base'"):
        Selection(kinds=("bass",))
    with pytest.raises(InputError, match="since 'soon' is not a date"):
        Selection(since="soon")
    with pytest.raises(InputError, match="swap them"):
        Selection(since="2024-02-01", until="2024-01-01")
