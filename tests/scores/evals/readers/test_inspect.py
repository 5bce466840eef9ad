"""inspect's logs, as version 0.3.285 writes them: an archive with members packed by zstd, or an object in JSON."""

from __future__ import annotations

import json
import math
import struct
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from densing.core.errors import InputError
from densing.scores.density import run_densities
from densing.scores.evals.readers import read_results


def score(name: str = "choice", accuracy: Any = 0.5, stderr: float = 0.1, **fields: Any) -> dict[str, Any]:
    metrics = {"accuracy": accuracy, "stderr": stderr}
    return {
        "name": name,
        "scorer": name,
        "metrics": {metric: {"name": metric, "value": value, "params": {}} for metric, value in metrics.items()},
        **fields,
    }


def log(task: str = "inspect_evals/mmlu_5_shot", model: str = "hf/org/tiny-1b", **fields: Any) -> dict[str, Any]:
    about = {
        "created": "2026-11-25T17:26:16+00:00",
        "task": task,
        "task_version": 2,
        "task_args": {},
        "dataset": {"samples": 50},
        "model": model,
        "model_args": {},
        "config": {"epochs": 2, **fields.pop("config", {})},
        "packages": {"inspect_ai": "0.3.285"},
    }
    results = {"total_samples": 80, "completed_samples": 80, "scores": [score()]}
    return {
        "version": 2,
        "status": "success",
        "eval": {**about, **fields.pop("eval", {})},
        "plan": {"steps": [{"solver": "multiple_choice", "params": {"cot": False}}]},
        "results": {**results, **fields.pop("results", {})},
        **fields,
    }


def packed(path: Path, content: dict[str, Any], member: str = "header.json", zstd: bool = False) -> Path:
    data = json.dumps(content).encode()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("samples/1_epoch_1.json", "{}")
        archive.writestr(member, pa.compress(data, "zstd", asbytes=True) if zstd else data)
        at = archive.getinfo(member).header_offset
    if zstd:
        # The standard library cannot write the method: it and the inflated size are put into both headers.
        raw = bytearray(path.read_bytes())
        central = raw.rindex(b"PK\x01\x02")
        for method, size in ((at + 8, at + 22), (central + 10, central + 24)):
            struct.pack_into("<H", raw, method, 93)
            struct.pack_into("<I", raw, size, len(data))
        path.write_bytes(bytes(raw))
    return path


@pytest.mark.parametrize("form", ["deflated", "zstd", "json"])
def test_a_log_of_inspect_is_measured_without_inspect(tmp_path: Path, form: str) -> None:
    content = log(config={"limit": 40})
    if form == "json":
        path = tmp_path / "log.json"
        path.write_text(json.dumps(content))
    else:
        path = packed(tmp_path / "log.eval", content, zstd=form == "zstd")
    read = read_results(path)
    (row,) = read.measurements.to_dict("records")
    said = {"model": "org/tiny-1b", "task": "mmlu_5_shot", "benchmark": "mmlu", "metric": "accuracy", "value": 0.5,
            "stderr": 0.1, "n_items": 40.0, "n_shot": 5.0, "limit": 40.0, "form": "generate", "filter": "",
            "harness": "inspect", "harness_version": "0.3.285", "date": "2026-11-25", "file": str(path)}  # fmt: skip
    assert {name: row[name] for name in said} == said
    assert read.models["model"].tolist() == ["org/tiny-1b"] and read.notes == ()


def test_scorers_are_told_apart_and_what_is_not_counted_is_said(tmp_path: Path) -> None:
    scores = [score("match", 0.4, scored_samples=39, unscored_samples=1), score("includes", 0.6)]
    content = log(
        "gsm8k",
        "openai/gpt-x",
        status="cancelled",
        results={"scores": scores, "completed_samples": 78},
        eval={"task_args": {"fewshot": 10}},
        plan={"steps": [{"solver": "chain_of_thought", "params": {}}]},
    )
    read = read_results(packed(tmp_path / "log.eval", content))
    columns = ["model", "filter", "value", "n_items", "n_shot", "cot"]
    assert read.measurements[columns].to_numpy().tolist() == [
        ["openai/gpt-x", "match", 0.4, 39.0, 10.0, "yes"],
        ["openai/gpt-x", "includes", 0.6, 39.0, 10.0, "yes"],
    ]
    assert [note.code for note in read.notes] == ["not-finished", "samples-missing", "samples-unscored"]


def test_a_folder_of_logs_gives_densities(tmp_path: Path) -> None:
    packed(tmp_path / "2026-11-25T17-26-16-00-00_mmlu_a.eval", log(results={"scores": [score(accuracy=0.45)]}))
    packed(tmp_path / "2026-11-25T17-26-16-00-00_poems_b.eval", log("poems"))
    read = read_results(tmp_path)
    models = read.models.assign(params_total=1e9)
    densities = run_densities(read.measurements, models, "qwen1.5")
    assert densities.table["benchmark"].tolist() == ["mmlu"] and densities.table["n_items"].tolist() == [40.0]
    # Answers were generated and the reference's were not; the other task is on no reference.
    assert densities.table["protocol"].tolist() == ["differs"]
    assert [note.details["tasks"] for note in densities.notes if note.code == "tasks-not-used"] == [["poems"]]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            log(status="error", error={"message": "no network"}, results={"scores": []}),
            r"status is error \(no network\)",
        ),
        (log(results={"scores": [score(accuracy="high")]}), "accuracy is 'high', expected a number"),
    ],
)
def test_logs_without_results_are_refused_with_their_reason(
    tmp_path: Path, content: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        read_results(packed(tmp_path / "log.eval", content))


def test_a_log_that_broke_off_and_other_archives_are_refused(tmp_path: Path) -> None:
    started = {name: value for name, value in log().items() if name in ("version", "eval", "plan")}
    with pytest.raises(InputError, match=r"status is started; finish it with `inspect eval-retry`"):
        read_results(packed(tmp_path / "a.eval", started, "_journal/start.json"))
    with pytest.raises(InputError, match=r"holds neither header\.json nor _journal/start\.json"):
        read_results(packed(tmp_path / "b.eval", {}, "other.json"))
    (tmp_path / "c.eval").write_bytes(b"no archive")
    with pytest.raises(InputError, match=r"c\.eval: not readable as a log of inspect .* copy it again"):
        read_results(tmp_path / "c.eval")


def test_an_unknown_error_is_not_taken_for_none(tmp_path: Path) -> None:
    lone = score()
    del lone["metrics"]["stderr"]
    read = read_results(packed(tmp_path / "log.eval", log(results={"scores": [lone]})))
    assert math.isnan(read.measurements["stderr"].item())
