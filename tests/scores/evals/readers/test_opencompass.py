"""OpenCompass's summaries and results."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from densing.core.errors import InputError, TableError
from densing.scores.density import run_densities
from densing.scores.evals.readers import read_results

SUMMARY = """dataset,version,metric,mode,opt-125m,opt-350m
######## Knowledge ########,-,-,-,-,-
mmlu,-,naive_average,ppl,26.02,25.10
hellaswag,a6e128,accuracy,ppl,-,32.10
lcsts,8ee1fe,rouge1,gen,1.20,3.40
"""


def test_opencompass_summary(tmp_path: Path) -> None:
    path = tmp_path / "summary_20261121_130722.csv"
    path.write_text(SUMMARY)
    read = read_results(path)
    table = read.measurements
    assert table["value"].tolist() == pytest.approx([0.2602, 0.2510, 0.3210, 1.20, 3.40])
    assert table["unit"].tolist() == ["share", "share", "share", "", ""]
    assert table["is_group"].tolist() == [True, True, False, False, False]
    assert table["date"].unique().tolist() == ["2026-11-21"]
    assert table["task_version"].tolist() == ["", "", "a6e128", "8ee1fe", "8ee1fe"]
    assert read.models["model"].tolist() == ["opt-125m", "opt-350m"]
    assert [note.code for note in read.notes] == ["percent"]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("a,b\n1,2\n", InputError, "an OpenCompass summary has dataset, version, metric, mode"),
        (
            "dataset,version,metric,mode,m\na,-,accuracy,gen,132.0\n",
            TableError,
            "row 2, column m: '132.0' is not a score",
        ),
        ("dataset,version,metric,mode,m\na,-,accuracy,gen,high\n", TableError, "'high' is not a score"),
        ("dataset,version,metric,mode,m\na,-,accuracy,gen,-\n", InputError, "no score in the table"),
        ("dataset,version,metric,mode,m\na,-\n", TableError, "2 cells, but the header has 5"),
    ],
)
def test_wrong_summaries(tmp_path: Path, text: str, error: type[Exception], message: str) -> None:
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(error, match=message):
        read_results(tmp_path / "s.csv")


def result(folder: Path, dataset: str, content: dict[str, object]) -> Path:
    path = folder / "results" / "llama-7b-hf" / f"{dataset}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def test_results_of_data_sets_are_read_with_what_they_state(tmp_path: Path) -> None:
    details = {str(number): {"correct": True} for number in range(101)}
    result(tmp_path, "ARC-c", {"accuracy": 36.0, "type": "PPL", "details": details})
    result(tmp_path, "openai_humaneval", {"humaneval_pass@1": 12.5, "timeout": "3"})
    (tmp_path / "predictions" / "llama-7b-hf").mkdir(parents=True)
    (tmp_path / "predictions" / "llama-7b-hf" / "ARC-c.json").write_text("{broken")
    read = read_results(tmp_path)
    columns = ["model", "task", "benchmark", "metric", "value", "form", "unit"]
    assert read.measurements[columns].to_numpy().tolist() == [
        ["llama-7b-hf", "ARC-c", "arc_challenge", "accuracy", 0.36, "", "share"],
        ["llama-7b-hf", "openai_humaneval", "humaneval", "pass@1", 0.125, "", "share"],
    ]
    first, second = read.measurements.to_dict("records")
    assert (first["n_items"], first["stderr"]) == (101.0, pytest.approx(0.048))
    assert math.isnan(first["n_shot"]) and math.isnan(second["stderr"])
    assert [note.code for note in read.notes] == ["values-left-out"]
    densities = run_densities(read.measurements, read.models.assign(params_total=7e9), "qwen1.5")
    assert sorted(densities.table["benchmark"]) == ["arc_challenge", "humaneval"]


def test_metrics_without_their_folder_have_no_model(tmp_path: Path) -> None:
    (tmp_path / "scores.json").write_text('{"accuracy": 36.0}')
    with pytest.raises(InputError, match=r"metrics without a model; OpenCompass writes them to results/MODEL"):
        read_results(tmp_path / "scores.json")


def test_pass_at_1_of_a_summary_is_read(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text(
        "dataset,version,metric,mode,m\nopenai_humaneval,8e312c,humaneval_pass@1,gen,12.5\n"
    )
    (read,) = read_results(tmp_path).measurements.to_dict("records")
    assert (read["benchmark"], read["metric"], read["value"]) == ("humaneval", "pass@1", 0.125)
    assert read["definition"].startswith("humaneval_pass@1")
