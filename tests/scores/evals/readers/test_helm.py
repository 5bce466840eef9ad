"""HELM's run folders, as version 0.5 writes them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from densing.core.errors import InputError
from densing.scores.evals.readers import read_results
from densing.scores.evals.subjects import SUBJECTS


def stat(name: str, mean: float | None, split: str = "test", **fields: Any) -> dict[str, Any]:
    value = mean or 0.0
    return {
        "name": {"name": name, "split": split, **fields},
        **{"count": 1, "sum": value, "sum_squared": value**2, "min": mean, "max": mean, "mean": mean},
        **{"variance": 0.0, "stddev": 0.0},
    }


def run(
    folder: Path,
    scenario: str = "mmlu",
    arguments: dict[str, Any] | None = None,
    stats: list[dict[str, Any]] | None = None,
    **adapter: Any,
) -> Path:
    """Write a run folder of one scenario; returns the folder."""
    about = {"method": "multiple_choice_joint", "max_train_instances": 5, "model": "org/tiny-1b", **adapter}
    given = {"subject": "anatomy"} if arguments is None else arguments
    told = ",".join(f"{name}={value}" for name, value in given.items())
    path = folder / f"{scenario}:{told},model=org_tiny-1b"
    path.mkdir(parents=True)
    spec = {
        "name": path.name,
        "scenario_spec": {"class_name": "helm.benchmark.scenarios.a.A", "args": given},
        "adapter_spec": about,
        "metric_specs": [],
        "groups": [scenario],
    }
    default = [stat("exact_match", 0.4), stat("num_instances", 101.0), stat("num_train_instances", 5.0)]
    (path / "run_spec.json").write_text(json.dumps(spec))
    (path / "stats.json").write_text(json.dumps(default if stats is None else stats))
    # Requests may be large: they are never opened.
    (path / "scenario_state.json").write_text("{broken")
    return path


def test_a_run_is_measured_on_the_test_split_without_perturbations(tmp_path: Path) -> None:
    stats = [
        stat("exact_match", 0.9, "train"),
        stat("exact_match", 0.1, perturbation={"name": "robustness"}),
        stat("exact_match", 0.4),
        stat("quasi_exact_match", 0.45),
        stat("num_instances", 101.0),
        stat("inference_runtime", 1.5),
    ]
    path = run(tmp_path, "boolq", {}, stats, method="generation", max_eval_instances=1000)
    read = read_results(path)
    table = read.measurements.set_index("metric")
    # Of BoolQ HELM's leaderboards show the quasi exact match; the exact one gets no name that is read as the score.
    assert table["value"].to_dict() == {"helm_exact_match": 0.4, "exact_match": 0.45}
    row = table.loc["exact_match"]
    assert row["stderr"] == pytest.approx(math.sqrt(0.45 * 0.55 / 100))
    said = {"model": "org/tiny-1b", "task": "boolq", "benchmark": "boolq", "form": "generate", "n_shot": 5.0,
            "n_items": 101.0, "cot": "", "harness": "helm", "unit": "share"}  # fmt: skip
    assert {name: row[name] for name in said} == said and math.isnan(row["limit"])
    assert read.notes == () and read_results(path / "stats.json").measurements["value"].tolist() == [0.4, 0.45]


@pytest.mark.parametrize(
    ("method", "form", "cot", "metric"),
    [
        ("multiple_choice_separate_original", "cloze", "no", "accuracy"),
        ("multiple_choice_joint_chain_of_thought", "generate", "yes", "exact_match"),
        ("a_new_method", "", "", "exact_match"),
    ],
)
def test_the_form_is_the_adapters_or_not_stated(tmp_path: Path, method: str, form: str, cot: str, metric: str) -> None:
    run(tmp_path, "commonsense", {"dataset": "hellaswag"}, method=method)
    (row,) = read_results(tmp_path).measurements.to_dict("records")
    assert (row["form"], row["cot"], row["metric"], row["benchmark"]) == (form, cot, metric, "hellaswag")


def test_examples_cut_from_prompts_leave_shots_unstated(tmp_path: Path) -> None:
    run(tmp_path, stats=[stat("exact_match", 0.4), stat("num_train_instances", 3.5)])
    read = read_results(tmp_path)
    assert math.isnan(read.measurements["n_shot"].item()) and "3.5 of 5 examples" in read.notes[0].message
    assert math.isnan(read.measurements["stderr"].item()), "the number of instances is not stated"


def test_subjects_of_mmlu_become_its_mean_and_a_missing_one_is_named(tmp_path: Path) -> None:
    for number, subject in enumerate(SUBJECTS):
        stats = [stat("exact_match", number / 100), stat("num_instances", 100.0 + number)]
        last = run(tmp_path, arguments={"subject": subject}, stats=stats)
    read = read_results(tmp_path)
    mean = read.measurements[read.measurements["benchmark"] == "mmlu"].iloc[0]
    expected = sum((100 + n) * n / 100 for n in range(57)) / sum(100 + n for n in range(57))
    assert mean["value"] == pytest.approx(expected) and mean["task"] == "mmlu:subject=*"
    assert "as they have questions" in read.notes[-1].message and mean["n_shot"] == 5.0
    (last / "run_spec.json").unlink()
    (last / "stats.json").unlink()
    notes = read_results(tmp_path).notes
    assert "1 of its 57 subjects mmlu:subject=* are missing" in " ".join(note.message for note in notes)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    path = run(tmp_path, stats=[stat("inference_runtime", 1.0)])
    with pytest.raises(InputError, match="no score that is known; its statistics are inference_runtime"):
        read_results(path / "run_spec.json")
    (path / "stats.json").write_text(json.dumps([stat("exact_match", 0.4) | {"mean": "high"}]))
    with pytest.raises(InputError, match="exact_match is 'high', expected a number"):
        read_results(path / "run_spec.json")
    (path / "stats.json").unlink()
    with pytest.raises(InputError, match=r"stats\.json is not beside it; a run folder of HELM holds"):
        read_results(path / "run_spec.json")
