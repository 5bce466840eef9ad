"""lighteval's results and details.

Format: lighteval documentation, "Saving and reading results" (0.13): ``results/MODEL/results_TIME.json`` holds
``config_general``, ``results`` by ``suite|task|shots`` (newer versions: ``task|shots``), ``versions`` and
``config_tasks``; ``details/MODEL/TIME/details_TASK_TIME.parquet`` holds a row per document with the columns ``doc``,
``model_response`` and ``metric`` (with or without two underscores around them).
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densing.core import InputError, Note
from densing.scores.evals.harness import LETTER, check_results, is_number, mapping
from densing.scores.evals.items import item_table
from densing.scores.evals.measurements import (
    Measurements,
    checked_rows,
    loss_rows,
    measurement_frame,
    metric_row,
    model_frame,
    task_cells,
)

if TYPE_CHECKING:
    import pandas as pd

_TIME = re.compile(r"(\d{4}-\d{2}-\d{2})T\d{2}-\d{2}-\d{2}(?:\.\d+)?")
_MAX_DETAILS = 2 * 1024**3


def accepts(content: Any) -> bool:
    """Whether this is an object with lighteval's configuration."""
    return isinstance(content, Mapping) and "config_general" in content


def read(content: Any, path: Path) -> Measurements:
    """Return the measurements of one results file, with the items of its details when they stand beside it.

    Raises
    ------
    InputError
        When a part is missing or of another type.
    """
    import pandas as pd

    results = check_results(content, str(path))
    general = mapping(results["config_general"])
    name = str(general.get("model_name") or mapping(general.get("model_config")).get("model_name") or path.parent.name)
    rows: list[dict[str, Any]] = []
    tables: list[pd.DataFrame] = []
    notes: list[Note] = []
    for key, values in results["results"].items():
        if key == "all":
            # The mean over everything that was run.
            continue
        about = _about(results, general, str(key), path) | {"model": name}
        samples: list[dict[str, Any]] = []
        try:
            samples = _samples(path, str(key))
            table = item_table(samples, model=name, task=split_task(str(key))[0])
        except InputError as error:
            notes.append(Note("items-unreadable", "warning", str(error), {"file": str(path)}))
            table = None
        if samples:
            # The documents tell letters from texts.
            choices = [str(pair[1]) for row in samples for pair in row["arguments"] if len(row["arguments"]) > 1]
            letters = all(LETTER.match(choice) for choice in choices)
            form = {"form": "letters" if letters else "cloze", "cot": "no"} if choices else {"form": "generate"}
            about |= form
        for metric, value in values.items():
            if metric.endswith("_stderr"):
                continue
            if not is_number(value):
                problem = f"{metric} is {str(value)[:40]!r}, expected a number; the file is damaged"
                raise InputError(f"{path}: {key}: {problem}")
            rows.append(metric_row(about, metric, float(value), _real(values.get(f"{metric}_stderr"))))
        if table is not None and len(table):
            tables.append(table)
            rows += loss_rows(table, about)
        elif table is not None and not about["is_group"] and (folder := _details_folder(path)) is not None:
            stamp = _TIME.search(path.name)
            time = stamp[0] if stamp else "the time that the name of the results file lacks"
            message = f"{path}: {key} has no details_{key}_{time}.parquet below {folder}; its documents are not read"
            notes.append(Note("items-missing", "warning", message, {"file": str(path)}))
    rows, doubts = checked_rows(rows)
    notes += doubts
    items = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
    facts = {
        "model": name, "type": "lighteval", "args": "{}", "revision": general.get("model_sha"),
        "dtype": general.get("model_dtype"),
    }  # fmt: skip
    return Measurements(measurement_frame(rows), items, model_frame([facts]), tuple(notes))


def split_task(key: str) -> tuple[str, float]:
    """Return task and shots of a results key.

    Examples
    --------
    >>> split_task("leaderboard|arc:challenge|25"), split_task("gsm8k|0"), split_task("leaderboard|mmlu:anatomy|5|0")
    (('arc:challenge', 25.0), ('gsm8k', 0.0), ('mmlu:anatomy', 5.0))
    """
    parts = key.split("|")
    if len(parts) == 2:
        parts = ["", *parts]
    task = parts[1] if len(parts) > 1 else key
    shots = parts[2] if len(parts) > 2 and parts[2].isdecimal() else ""
    return task, float(shots) if shots else math.nan


def _about(results: Mapping[str, Any], general: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    task, shots = split_task(key)
    configs = mapping(results.get("config_tasks"))
    # Configurations are named without the number of shots, in some versions with it.
    config = mapping(configs.get(key) or configs.get(key.rpartition("|")[0]))
    count = config.get("effective_num_docs")
    limit = general.get("max_samples")
    version = mapping(results.get("versions")).get(key)
    stamp = _TIME.search(path.name)
    hashes = mapping(mapping(mapping(results.get("summary_tasks")).get(key)).get("hashes"))
    return task_cells(
        task=task, n_items=_real(count), n_shot=shots, limit=_real(limit),
        task_version="" if version is None else str(version), task_hash=str(hashes.get("hash_examples") or ""),
        harness="lighteval", harness_version=str(general.get("lighteval_sha") or ""),
        date=stamp[1] if stamp else "", file=str(path), is_group=task.endswith(":_average"),
    )  # fmt: skip


def _real(value: Any) -> float:
    return float(value) if is_number(value) and value >= 0 else math.nan


def _samples(path: Path, key: str) -> list[dict[str, Any]]:
    """Return the documents of a task in the form of lm-eval's samples; none where no details stand there."""
    stamp, folder = _TIME.search(path.name), _details_folder(path)
    if stamp is None or folder is None:
        return []
    # details/MODEL/TIME/FILE, whatever levels (a date, an organisation) lie between.
    name = f"details_{key}_{stamp[0]}.parquet"
    files = sorted(file for file in folder.rglob("*.parquet") if file.name == name)
    details = next(iter([file for file in files if path.parent.name in file.parts] or files), None)
    if details is None:
        return []
    import pandas as pd
    import pyarrow as pa

    try:
        if details.stat().st_size > _MAX_DETAILS:
            raise InputError(f"{details}: larger than {_MAX_DETAILS >> 30} GiB")
        frame = pd.read_parquet(details, engine="pyarrow")
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InputError(f"{details}: not readable as Parquet ({str(error).splitlines()[0]})") from error
    frame.columns = [str(column).strip("_") for column in frame.columns]
    if not {"doc", "model_response", "metric"} <= set(frame.columns):
        columns = ", ".join(frame.columns)[:200]
        raise InputError(f"{details}: columns {columns}; expected doc, model_response, metric")
    return [
        _sample(number, *map(_object, cells))
        for number, cells in enumerate(zip(frame["doc"], frame["model_response"], frame["metric"], strict=True))
    ]


def _details_folder(path: Path) -> Path | None:
    """Return the folder of details beside ``results/``, or the nearest above where the tree was moved."""
    folders = (parent / "details" for parent in list(path.parents)[:6])
    return next((folder for folder in folders if folder.is_dir()), None)


def _object(cell: Any) -> Mapping[str, Any]:
    """Return a nested cell; some versions wrote it as the text of a Python or JSON object."""
    if isinstance(cell, Mapping):
        return cell
    for reader in (json.loads, ast.literal_eval):
        try:
            return mapping(reader(str(cell)))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
    return {}


def _sample(
    number: int, doc: Mapping[str, Any], response: Mapping[str, Any], metric: Mapping[str, Any]
) -> dict[str, Any]:
    """Put a row of details into the form of lm-eval's samples."""
    query = str(doc.get("query") or "")
    choices, logs = _list(doc.get("choices")), _list(response.get("logprobs"))
    gold = _list(doc.get("gold_index"))
    scored = {str(name): value for name, value in metric.items()}
    row = {**scored, "doc_id": number, "doc": dict(doc), "metrics": list(scored)}
    if len(choices) < 2 or len(logs) != len(choices):
        return {**row, "target": None, "arguments": [[query, {}]], "resps": [[""]]}
    flags = _list(response.get("argmax_logits_eq_gold"))
    greedy = [bool(flag) for flag in flags] if len(flags) == len(choices) else [False] * len(choices)
    return {
        **row,
        "target": int(gold[0]) if len(gold) == 1 else None,
        "arguments": [[query, str(choice)] for choice in choices],
        "resps": [[[float(log), flag]] for log, flag in zip(logs, greedy, strict=True)],
    }


def _list(value: Any) -> list[Any]:
    if value is None or isinstance(value, str | Mapping):
        return []
    return list(value) if hasattr(value, "__iter__") else [value]
