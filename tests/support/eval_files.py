"""Small results and samples files in the form in which lm-eval writes them, made by the tests themselves."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from densing.scores.evals.identity import UnitKey
from densing.scores.evals.measurements import Measurements
from densing.scores.evals.store import RunStore, Unit

STAMP = "2026-11-21T13-07-22.365437"


def choice_sample(
    doc_id: int,
    logs: Sequence[float],
    gold: int,
    *,
    context: str = "Question?",
    choices: Sequence[str] | None = None,
    strings: bool = True,
    **metrics: Any,
) -> dict[str, Any]:
    """One multiple-choice document, as in a file (``strings``) or as in memory."""
    texts = [f" answer {i}" for i in range(len(logs))] if choices is None else list(choices)
    if strings:
        arguments: Any = {f"gen_args_{i}": {"arg_0": context, "arg_1": text} for i, text in enumerate(texts)}
        resps: Any = [[[str(log), "False"]] for log in logs]
    else:
        arguments, resps = [[context, text] for text in texts], [[[log, False]] for log in logs]
    return {
        "doc_id": doc_id,
        "doc": {"id": doc_id},
        "target": str(gold) if strings else gold,
        "arguments": arguments,
        "resps": resps,
        "filtered_resps": [resp[0] for resp in resps],
        "filter": "none",
        "metrics": list(metrics),
        "doc_hash": f"hash{doc_id}",
        "prompt_hash": "p",
        "target_hash": "t",
        **metrics,
    }


def samples_of(task: str, n: int = 4) -> list[dict[str, Any]]:
    """A few documents whose numbers follow from task and document."""
    rows = []
    for i in range(n):
        logs = [-5.0 - i - 0.25 * j - len(task) / 16 for j in range(4)]
        rows.append(choice_sample(i, logs, i % 4, acc=float(i % 4 == 0)))
    return rows


def results_of(tasks: Mapping[str, Sequence[Mapping[str, Any]]], **extra: Any) -> dict[str, Any]:
    """The results file that belongs to samples."""
    found: dict[str, Any] = {
        "results": {},
        "group_subtasks": {task: [] for task in tasks},
        "configs": {},
        "versions": {},
        "n-shot": {},
        "higher_is_better": {},
        "n-samples": {},
        "config": {"model": "hf", "model_args": {"pretrained": "models/tiny"}, "limit": 40.0, "model_sha": "abc"},
        "date": 1763730442.5,
        "lm_eval_version": "0.4.13",
        "task_hashes": dict.fromkeys(tasks, "f00d"),
        "model_name": "models/tiny",
    }
    for task, rows in tasks.items():
        n = len(rows)
        mean = sum(row["acc"] for row in rows) / n
        stderr = math.sqrt(mean * (1 - mean) / (n - 1)) if n > 1 else "N/A"
        found["results"][task] = {
            "alias": task,
            "name": task,
            "sample_len": n,
            "acc,none": mean,
            "acc_stderr,none": stderr,
        }
        found["configs"][task] = {
            "task": task,
            "output_type": "multiple_choice",
            "doc_to_target": "{{gold}}",
            "doc_to_choice": "{{choices}}",
            "target_delimiter": " ",
            "metadata": {"version": 1.0},
        }
        found["versions"][task] = 1.0
        found["n-shot"][task] = 0
        found["higher_is_better"][task] = {"acc": True}
        found["n-samples"][task] = {"original": 2 * n, "effective": n}
    return found | extra


def write_results(
    folder: Path, tasks: Mapping[str, Sequence[Mapping[str, Any]]], stamp: str = STAMP, **extra: Any
) -> Path:
    """Write a results file and its samples; return the results file."""
    folder.mkdir(parents=True, exist_ok=True)
    for task, rows in tasks.items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"samples_{task}_{stamp}.jsonl").write_text(lines, encoding="utf-8")
    path = folder / f"results_{stamp}.json"
    path.write_text(json.dumps(results_of(tasks, **extra), ensure_ascii=False), encoding="utf-8")
    return path


def key(task: str = "toy", label: str = "models/tiny", **settings: object) -> UnitKey:
    """Key of a unit of the tests."""
    return UnitKey({"type": "hf", "revision": "abc"}, {"name": task, "version": 1.0, "hash": "f00d"}, settings, label)


def finish(store: Path, unit_key: UnitKey, n: int = 4) -> Unit:
    """Evaluate a unit, as the runner does."""
    unit = RunStore(store).unit(unit_key)
    with unit.lock():
        unit.journal_path.write_bytes(b"journal")
        with unit.stage() as staged:
            write_results(staged / "models__tiny", {unit_key.task_name: samples_of(unit_key.task_name, n)})
            unit.finish(staged, {"model": {"params_total": 117120}, "caveats": ["4 documents"]})
    return unit


def finish_many(store: str, tasks: list[str]) -> None:
    """Evaluate several units one after the other."""
    for task in tasks:
        finish(Path(store), key(task))


def measured_run(folder: Path) -> Path:
    """A run of one model on HellaSwag and on a task that the catalog does not know."""
    for task in ("hellaswag", "toy"):
        unit = RunStore(folder).unit(UnitKey({"type": "hf"}, {"name": task}, {}, "Tiny-134M"))
        with unit.stage() as staged:
            write_results(staged, {task: samples_of(task)})
            unit.finish(staged, {"model": {"params_total": 134515008}, "caveats": ["limit 4"]})
    return folder


def write_json(path: Path, content: Any) -> Path:
    """Write JSON and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def cell(read: Measurements, task: str, metric: str, column: str = "value") -> Any:
    """One cell of the measurements."""
    table = read.measurements
    found = table[(table["task"] == task) & (table["metric"] == metric)]
    assert len(found) == 1
    return found[column].iloc[0]


def lighteval_file(folder: Path, **extra: Any) -> Path:
    """A results file in the form of lighteval's documentation."""
    content = {
        "config_general": {"lighteval_sha": "203045a", "max_samples": 2, "model_name": "org/gpt2", "model_sha": "607a"},
        "results": {
            "leaderboard|arc:challenge|25": {"acc": 0.5, "acc_stderr": 0.1, "acc_norm": 0.0, "acc_norm_stderr": 0.0},
            "leaderboard|mmlu:_average|5": {"acc": 0.25},
            "all": {"acc": 0.375, "acc_stderr": 0.1},
        },
        "versions": {"leaderboard|arc:challenge|25": 0},
        "config_tasks": {"leaderboard|arc:challenge": {"name": "arc:challenge", "effective_num_docs": 2}},
        "summary_tasks": {"leaderboard|arc:challenge|25": {"hashes": {"hash_examples": "8517"}}},
    } | extra  # fmt: skip
    return write_json(folder / "results" / "org" / "gpt2" / "results_2026-11-21T13-07-22.365437.json", content)
