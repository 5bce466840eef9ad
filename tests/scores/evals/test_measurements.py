"""Measurements that join the catalog: which rows it takes, and what is said of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from densing.scores.catalog import load_catalog
from densing.scores.evals import read_results
from densing.scores.evals.measurements import left_out, to_catalog_rows
from tests.support.eval_files import measured_run, samples_of, write_results


def test_scores_join_the_catalog(tmp_path: Path) -> None:
    read = read_results(measured_run(tmp_path / "run"))
    rows = to_catalog_rows(read.measurements, read.models, "2024-11-02")
    assert rows[["model", "benchmark", "score", "metric"]].to_numpy().tolist() == [
        ["Tiny-134M", "hellaswag", 0.25, "acc"]
    ]
    assert [note.code for note in left_out(read.measurements, read.models, rows)] == ["no-benchmark"]
    rows.to_csv(tmp_path / "scores.csv", index=False)
    merged = load_catalog(tmp_path / "scores.csv")
    score = merged.scores[merged.scores["model"] == "Tiny-134M"].iloc[0]
    assert score[["score", "evaluator", "shots", "items"]].tolist() == [0.25, "user", 0, 4]
    model = merged.models.set_index("model").loc["Tiny-134M"]
    assert model["params_total_b"] == pytest.approx(0.134515008)


def test_models_without_a_size_are_named(tmp_path: Path) -> None:
    read = read_results(write_results(tmp_path, {"hellaswag": samples_of("hellaswag")}))
    rows = to_catalog_rows(read.measurements, read.models)
    assert rows.empty
    assert [note.code for note in left_out(read.measurements, read.models, rows)] == ["no-size"]
