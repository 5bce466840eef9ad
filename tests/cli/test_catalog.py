"""``densing catalog``: who measured what, and which scores the rule refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from densing.scores.catalog.catalog import DATA
from tests.support.command import answer, densing, printed


def test_sources_say_who_measured_what() -> None:
    table = {row["evaluator"]: row for row in answer("catalog", "sources")}
    falcon = table["falcon_h1_docs"]
    assert (falcon["models"], falcon["benchmarks"], falcon["scores"]) == (29, 14, 406)
    assert falcon["last"].startswith("2025-05-21") and "Apache-2.0" in falcon["licence"]
    assert (table["euroeval_val"]["flagged"], table["euroeval"]["role"]) == (332, "harness")
    text = densing("catalog", "sources").stdout
    assert "evaluators" in text and "30 languages" in text and "2026-04-30" in text


def test_sources_count_a_users_table(tmp_path: Path) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text("model,benchmark,score,evaluator\nLlama-3-8B,mmlu,0.66,mylab\n", encoding="utf-8")
    out = tmp_path / "sources.csv"
    assert densing("catalog", "sources", "--catalog", str(mine), "--out", str(out)).returncode == 0
    with out.open(encoding="utf-8") as stream:
        rows = {row["evaluator"]: row for row in csv.DictReader(stream)}
    assert (rows["mylab"]["role"], rows["mylab"]["scores"]) == ("user", "1")


def test_erratic_shows_the_figures_behind_the_rule() -> None:
    result = answer("catalog", "erratic")
    assert {row["model"] for row in result["models"]} == {
        f"Gemma-4-{size}" for size in ("E2B", "E4B", "26B-A4B", "31B")
    }
    cells = {(row["model"], row["benchmark"]): row for row in result["cells"]}
    seed = cells["Seed-OSS-36B-Base", "olmo3_eval_math"]
    assert seed["status"] == "erratic" and seed["z"] < -4 and seed["expected"] > 3 * seed["score"]
    assert result["changed"] is None


def test_erratic_applies_its_flags_to_a_table(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    text = (DATA / "scores.csv").read_text(encoding="utf-8")
    path.write_text(text.replace("erratic_cell", ""), encoding="utf-8")
    done = densing("catalog", "erratic", "--apply", str(path))
    assert done.returncode == 0 and "6 rows changed" in done.stdout + done.stderr
    assert path.read_text(encoding="utf-8") == text


def test_a_table_without_flags_is_one_message(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_text("model,benchmark,score\n", encoding="utf-8")
    done = densing("catalog", "erratic", "--apply", str(path))
    assert done.returncode == 1 and "column evaluator is missing" in done.stderr and "Traceback" not in done.stderr


def test_a_table_that_is_not_there_is_one_message(tmp_path: Path) -> None:
    done = densing("catalog", "erratic", "--apply", str(tmp_path / "none.csv"))
    assert done.returncode == 1 and "Traceback" not in done.stderr and json.dumps("none.csv")[1:-1] in done.stderr


def test_show_writes_a_release_as_a_day() -> None:
    lines = densing("catalog", "show", "Llama-3-8B").stdout.splitlines()
    assert [line.split()[1:] for line in lines if line.strip().startswith("released ")] == [["2024-04-18"]]


@pytest.mark.parametrize("name", ["llama 3 8b", "meta-llama/Meta-Llama-3-8B", "Llama3-8B-hf"])
def test_show_finds_a_model_in_whatever_spelling(name: str) -> None:
    assert answer("catalog", "show", name) == answer("catalog", "show", "Llama-3-8B")


def test_show_asks_about_near_names_and_takes_none_for_another() -> None:
    done = densing("catalog", "show", "Mistral 7B", "--json")
    assert done.returncode == 1
    near = printed(done.stdout)["error"]
    assert near["suggestions"] == ["Mistral-7B-v0.1", "Mistral-7B-v0.2", "Mistral-7B-v0.3"]
    assert "did you mean 'Mistral-7B-v0.1' or" in near["message"] and len(near["known"]) > 300
    assert "'Qwen3-8B-Base'" in densing("catalog", "show", "Qwen3-8B").stderr
