"""FLOPs of training: 6 N D of the facts, and no figure where a fact is missing or not the whole story."""

from __future__ import annotations

import csv
import math

import pytest

from densing.scores.catalog import load_catalog, training_compute
from densing.scores.catalog.catalog import DATA
from densing.scores.catalog.compute import NO_ACTIVE, NO_TOKENS, NOT_WHOLE, TEACHER


def test_every_figure_is_six_times_what_the_table_says() -> None:
    rows = training_compute(load_catalog()).set_index("model")
    with (DATA / "models.csv").open(encoding="utf-8") as stream:
        facts = {row["model"]: row for row in csv.DictReader(stream)}
    known = 0
    for name, row in facts.items():
        size = row["params_active_b"] or (row["params_total_b"] if row["architecture"] == "dense" else "")
        if row["kind"] == "base" and size and row["tokens_t"]:
            known += 1
            assert rows.loc[name, "flops"] == pytest.approx(6e21 * float(size) * float(row["tokens_t"]))
            assert row["tokens_source"] in rows.loc[name, "evidence"] and not rows.loc[name, "missing"]
            assert (TEACHER in rows.loc[name, "evidence"]) == (row["derivation"] == "distilled")
        else:
            assert math.isnan(rows.loc[name, "flops"]) and rows.loc[name, "missing"] and not rows.loc[name, "evidence"]
    assert rows["flops"].notna().sum() == known > 100


def test_what_is_missing_is_named() -> None:
    facts = {"released": "2024-01-01", "params_b": 2.0, "tokens_t": 1.0, "benchmark": "mmlu", "score": 0.5}
    models = [
        {"model": "whole", **facts},
        {"model": "silent", **facts, "tokens_t": None},
        {"model": "mixture", **facts, "architecture": "moe", "params_active_b": None},
        {"model": "continued", **facts, "kind": "continued"},
    ]
    rows = training_compute(load_catalog(models, embedded=False)).set_index("model")
    assert rows["missing"].to_dict() == {
        "whole": "", "silent": NO_TOKENS, "mixture": NO_ACTIVE, "continued": NOT_WHOLE,
    }  # fmt: skip
    assert rows.loc["whole", "flops"] == 6 * 2e9 * 1e12 and rows["flops"].count() == 1
