"""Sizes by name: which model of the catalog a name means, and that nothing is guessed."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from densing.core.errors import InputError
from densing.scores.catalog import load_catalog, names
from densing.scores.catalog.identity import _ALIASES, find_model
from densing.scores.catalog.names import with_sizes


@pytest.mark.parametrize(
    ("name", "model", "how"),
    [
        ("Llama-2-13B", "Llama-2-13B", "exact"),
        ("llama_2_13b", "Llama-2-13B", "normalised"),
        ("models/Qwen2.5-7B/", "Qwen2.5-7B", "normalised"),
        ("EleutherAI/pythia-1.4b-deduped@step143000", "Pythia-1.4B-deduped", "normalised"),
        ("EleutherAI/pythia-v1.1-6.9b-deduped@step143000", "Pythia-6.9B-deduped", "alias"),
        ("meta-llama/Llama-2-13b-hf", "Llama-2-13B", "alias"),
        ("meta-llama/Meta-Llama-3-8B", "Llama-3-8B", "alias"),
        ("huggyllama/llama-30b", "Llama-1-33B", "alias"),
        ("openai-community/gpt2-xl", "GPT-2-1.5B", "alias"),
        ("llama-2-7b-turbomind", "Llama-2-7B", "alias"),
    ],
)
def test_a_name_is_found_and_how_is_said(name: str, model: str, how: str) -> None:
    assert find_model(load_catalog(), name) == (model, how)


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen2.5-7B-Instruct", "Llama-2-13b-chat-hf", "llama", "Qwen2.5", "Llama-2-14B", "", "/", "@main"]
)
def test_no_name_is_guessed(name: str) -> None:
    assert find_model(load_catalog(), name) is None


def test_every_alias_is_a_model_of_the_catalog() -> None:
    assert set(_ALIASES.values()) <= set(load_catalog().models["model"])


def sizes_of(rows: list[dict[str, Any]], params: dict[str, float] | None = None) -> tuple[pd.DataFrame, list[str]]:
    models = pd.DataFrame(rows, columns=["model", "params_total", "params_non_embedding"])
    table, notes = with_sizes(models, params)
    return table.set_index("model"), [note.message for note in notes]


def test_a_size_is_the_one_given_then_the_stored_one_then_the_catalogs() -> None:
    rows = [{"model": name} for name in ("meta-llama/Llama-2-13b-hf", "a/mine")]
    rows.append({"model": "b/stored", "params_total": 5e8})
    table, notes = sizes_of(rows, {"mine": 1e9})
    assert table["params_total"].tolist() == [13e9, 1e9, 5e8]
    assert table["size_from"].tolist() == ["catalog: Llama-2-13B (alias)", "--params", "results"]
    # In the words of a table's own note.
    assert notes[1:] == [
        "results: 1 model of yours that the catalog knows: meta-llama/Llama-2-13b-hf (there Llama-2-13B); treated as "
        "your own measurement of it, with blanks filled from the catalog"
    ]
    assert "is that of Llama-2-13B in the catalog (alias name)" in notes[0]


def test_a_stored_size_that_disagrees_keeps_the_catalogs_other_sizes_away() -> None:
    known = load_catalog().models.dropna(subset=["params_non_embedding_b"]).iloc[0]
    true = known["params_total_b"] * 1e9
    table, _ = sizes_of([{"model": known["model"], "params_total": true}])
    assert table["params_non_embedding"].tolist() == [known["params_non_embedding_b"] * 1e9]
    table, _ = sizes_of([{"model": known["model"], "params_total": 2 * true}])
    assert table["params_non_embedding"].isna().all()
    assert table["params_total"].tolist() == [2 * true]


def test_a_name_that_nothing_matches_says_what_is_near_and_what_to_write() -> None:
    table, notes = sizes_of([{"model": "Qwen/Qwen2.5-7B-Instruct"}])
    assert table["params_total"].isna().all()
    assert "Qwen2.5-7B" in notes[0]
    assert "--params 'Qwen/Qwen2.5-7B-Instruct=13e9'" in notes[0]


def test_a_size_of_a_model_that_was_not_measured_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"--params other=1e\+09: no such model in the results; they contain a/mine, b/mine"
    ):
        sizes_of([{"model": "a/mine"}, {"model": "b/mine"}], {"other": 1e9})
    with pytest.raises(InputError, match="2 models of that name in the results"):
        sizes_of([{"model": "a/mine"}, {"model": "b/mine"}], {"mine": 1e9})


def test_a_measured_model_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, real = [], names.identify

    def identify(catalog: Any, name: str, **more: Any) -> Any:
        asked.append(name)
        return real(catalog, name, **more)

    monkeypatch.setattr(names, "identify", identify)
    given = ["Gemma 7B", "EleutherAI/pythia-1.4b-deduped@step1000", "Zeta-7B"]
    table, _ = with_sizes(pd.DataFrame({"model": given}))
    assert asked == given
    assert table["known_as"].dropna().tolist() == ["Gemma-7B"]
    assert table["size_from"].tolist()[1] == "catalog: Pythia-1.4B-deduped (normalised)", "a checkpoint has its size"
