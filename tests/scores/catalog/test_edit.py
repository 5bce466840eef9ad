"""Rows added to a user's tables, and what a check of those tables tells."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from densing.core.errors import TableError, UnknownNameError
from densing.scores.catalog import add_model, add_score, load_catalog, validate_catalog


def test_models_and_scores_are_appended_and_load_again(tmp_path: Path) -> None:
    add_model(tmp_path, model="Tiny", params=7e8, released=pd.Timestamp("2024-05-01"))
    add_model(tmp_path, model="Small", params=2e9, released="2024-06-01", kind="base")
    assert add_score(tmp_path, model="Tiny", benchmark="mmlu", score=0.31) == []
    add_score(tmp_path, model="Small", benchmark="mmlu", score=0.42, shots=5)
    catalog = load_catalog(tmp_path)
    assert catalog.models.set_index("model").loc["Small", "params_total_b"] == 2.0
    mine = catalog.scores.tail(2)
    assert mine["score"].tolist() == [0.31, 0.42]
    assert mine["shots"].isna().tolist() == [True, False]


def test_a_row_that_does_not_fit_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    add_score(file, model="Llama-3-8B", benchmark="mmlu", score=0.5)
    before = file.read_bytes()
    for fields, words in [
        ({"model": "Llama-3-8B", "benchmark": "math", "score": 45}, "row 3, column score"),
        ({"model": "Nobody", "benchmark": "math", "score": 0.4}, "'Nobody' is not in the catalog"),
        ({"model": "Llama-3-8B", "benchmark": "mmlu", "score": 0.6}, "a second row with other values"),
        ({"model": "Llama-3-8B", "benchmark": "mmlu", "score": 0.6, "evaluator": "obsscaling"}, "column evaluator"),
    ]:
        with pytest.raises(TableError, match=words):
            add_score(file, **fields)
        assert file.read_bytes() == before
    with pytest.raises(UnknownNameError, match="did you mean 'score'"):
        add_score(file, model="Llama-3-8B", benchmark="math", scor=0.4)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]


def test_a_first_row_that_does_not_fit_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="row 2, column params: 7 is below"):
        add_model(tmp_path / "new" / "models.csv", model="Tiny", params=7)
    assert list(tmp_path.iterdir()) == []


def test_scores_in_a_file_may_refer_to_a_further_table(tmp_path: Path) -> None:
    add_model(tmp_path / "m.csv", model="Tiny", params_b=0.7)
    with pytest.raises(TableError, match="'Tiny' is not in the catalog"):
        add_score(tmp_path / "s.csv", model="Tiny", benchmark="mmlu", score=0.3)
    add_score(tmp_path / "s.csv", extra=[tmp_path / "m.csv"], model="Tiny", benchmark="mmlu", score=0.3)
    assert len(load_catalog(tmp_path / "m.csv", tmp_path / "s.csv").scores) == len(load_catalog().scores) + 1


def test_validation_returns_errors_as_notes(tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_text("model,benchmark,score\nLlama-3-8B,mmlu,45\nLlama-3-8B,math,46\n")
    notes = validate_catalog(file)
    assert [(note.code, note.severity) for note in notes] == [("invalid-table", "error")] * 2
    assert "row 3, column score" in notes[1].message and "bad.csv" in notes[1].message


def test_validation_warns_of_far_scores_and_missing_parents(tmp_path: Path) -> None:
    add_model(tmp_path, model="Chatty", params_b=8, kind="instruct", released="2024-05-01")
    add_score(tmp_path, model="Llama-3-8B", benchmark="mmlu", score=0.25)
    add_score(tmp_path, model="Llama-3-70B", benchmark="mmlu", score=0.79)
    notes = validate_catalog(tmp_path)
    assert [note.code for note in notes] == ["wide-spread", "no-parent"]
    assert notes[0].details == {"model": "Llama-3-8B", "benchmark": "mmlu"}


def test_a_good_table_gives_no_notes(tmp_path: Path) -> None:
    add_model(tmp_path, model="Tiny", params_b=0.7, released="2024-05-01")
    assert validate_catalog(tmp_path) == []
