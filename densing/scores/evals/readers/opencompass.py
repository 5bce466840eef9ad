"""OpenCompass's summary table (``dataset,version,metric,mode`` and one column per model), and its results in JSON.

Format: OpenCompass 0.5, ``opencompass/summarizers/default.py``: scores with two decimals, shares in percent, ``-`` for
what was not measured, commas in names replaced by spaces; separator rows hold nothing but ``-``.
``opencompass/tasks/openicl_eval.py``: ``results/MODEL/DATASET.json`` holds the metrics of one data set with all their
digits, with ``--dump-eval-details`` also ``type`` (``GEN`` or ``PPL``) and ``details``, an entry per document.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densing.core import InputError, Note, TableError
from densing.scores.evals.harness import is_number
from densing.scores.evals.measurements import (
    Measurements,
    checked_rows,
    measurement_frame,
    metric_row,
    model_frame,
    share_error,
    task_cells,
)

if TYPE_CHECKING:
    import pandas as pd

HEADER = ["dataset", "version", "metric", "mode"]
# Averages over the datasets of a group.
GROUP_METRICS = frozenset({"naive_average", "weighted_average", "harmonic_mean", "sum", "standard_deviation"})
_PERCENT = re.compile(r"^(accuracy|score|exact_match|f1|naive_average|weighted_average|.*pass@\d+|acc_\d+|perf_\d+)$")
# A number, with the parts that it is a mean over where some are missing: 82.00 (7/8).
_SCORE = re.compile(r"^(?P<value>[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)(?:\s*\((?P<done>\d+)\s*/\s*(?P<all>\d+)\))?$")
_TIME = re.compile(r"(\d{4})(\d{2})(\d{2})_\d{6}")


_COUNTED = re.compile(r"^(accuracy|exact_match|.*pass@1)$")
# Metrics of one data set, not keys of a configuration; what stands beside them that is none (METRIC_BLACKLIST).
_METRIC = re.compile(r"^(accuracy|score|exact_match|f1|rouge\w+|bleu|auc_score|truth|.*pass@\d+)$")
_LABELS = frozenset({"bp", "sys_len", "ref_len", "type", "details"})


def accepts(content: Any) -> bool:
    """Whether this is a table with a column of a summary, or an object with metrics of a data set."""
    if isinstance(content, Mapping):
        return "results" not in content and any(
            is_number(value) and _METRIC.match(str(key)) for key, value in content.items()
        )
    return not set(HEADER).isdisjoint(map(str, getattr(content, "columns", ())))


def read(content: Any, path: Path) -> Measurements:
    """Return the measurements of a summary table, or of the results of one model on one data set.

    Parameters
    ----------
    content : pandas.DataFrame or mapping
        The cells of the table, or what the JSON file holds.
    path : path
        Where it stands; a JSON file's folder names the model.

    Raises
    ------
    InputError
        When the file is not one of these, or holds no score.
    TableError
        When no cell is a score, with every cell that is not one.
    """
    return _read_dataset(content, path) if isinstance(content, Mapping) else _read_summary(content, path)


def _read_dataset(content: Mapping[str, Any], path: Path) -> Measurements:
    import pandas as pd

    if path.resolve().parent.parent.name != "results":
        raise InputError(
            f"{path}: metrics without a model; OpenCompass writes them to results/MODEL/DATASET.json, and the folder "
            "names the model"
        )
    model, details = path.resolve().parent.name, content.get("details")
    documents = [key for key in details if str(key).isdigit()] if isinstance(details, Mapping) else details or []
    items = float(len(documents)) if documents else math.nan
    about = task_cells(
        model=model, task=path.stem, form="generate" if content.get("type") == "GEN" else "", n_items=items,
        harness="opencompass", file=str(path),
    )  # fmt: skip
    rows, left = [], []
    for metric, value in content.items():
        if metric in _LABELS:
            continue
        if not is_number(value):
            left.append(str(metric))
            continue
        error = share_error(value / 100, items) if _COUNTED.match(metric) else math.nan
        rows.append(_row(about, metric, float(value), error))
    rows, notes = checked_rows(rows)
    if left:
        message = f"{path}: {', '.join(left)[:200]} are not numbers and left out"
        notes.append(Note("values-left-out", "info", message, {"file": str(path), "metrics": left}))
    return Measurements(measurement_frame(rows), pd.DataFrame(), model_frame([{"model": model}]), tuple(notes))


def _row(about: Mapping[str, Any], metric: str, value: float, stderr: float = math.nan, **cells: Any) -> dict[str, Any]:
    """Return the row of a metric: shares stand in percent, and ``humaneval_pass@1`` is pass@1 of humaneval."""
    if not _PERCENT.match(metric):
        return metric_row(about, metric, value, stderr, **cells, unit="")
    share = {"unit": "share", "higher_is_better": True}
    if metric.endswith("_pass@1"):
        share["definition"] = f"{metric}: programs that pass their tests at the first try"
        metric = "pass@1"
    return metric_row(about, metric, value / 100, stderr, **cells, **share)


def _read_summary(content: pd.DataFrame, path: Path) -> Measurements:
    """Read a summary table.

    Columns between those of the header, and columns behind it without any score, are named in a note and left out. A
    cell that is not a score is refused with an error note; ``82.00 (7/8)`` is a mean over seven of eight parts.
    """
    import pandas as pd

    cells = content
    names = list(map(str, cells.columns))
    if not set(HEADER) <= set(names) or names[-1] in HEADER:
        columns = ", ".join(names)[:200]
        raise InputError(f"{path}: columns {columns}; an OpenCompass summary has {', '.join(HEADER)} and one per model")
    last = max(names.index(name) for name in HEADER)
    behind = names[last + 1 :]
    models = [name for name in behind if any(_SCORE.match(str(text).strip()) for text in cells[name])] or behind
    spare = [name for name in names if name not in HEADER and name not in models]
    notes = []
    if spare:
        message = f"{path}: columns {', '.join(spare)[:200]} hold no scores of a model and are left out"
        notes.append(Note("columns-left-out", "info", message, {"file": str(path), "columns": spare}))
    stamp = _TIME.search(path.name)
    date = "-".join(stamp.groups()) if stamp else ""
    rows, problems = [], []
    for number, line in cells.iterrows():
        metric, task = str(line["metric"]), str(line["dataset"])
        for model in models:
            text = str(line[model]).strip()
            if text == "-" or metric == "-":
                continue
            if text.lower() in ("", "nan"):
                message = f"{path}: {task} of {model}, {metric}, is not a number"
                notes.append(Note("value-missing", "warning", message, {"model": model, "task": task}))
                continue
            parts, percent = _SCORE.match(text), bool(_PERCENT.match(metric))
            value = float(parts["value"]) if parts else math.nan
            if parts is None or not (0 <= value <= 100 if percent else math.isfinite(value)):
                problems.append(
                    f"row {number}, column {model}: {text[:40]!r} is not a score of {metric}; shares are 0 to 100"
                )
                continue
            if parts["done"] and int(parts["done"]) < int(parts["all"]):
                message = f"{path}: {task} of {model} is a mean over {parts['done']} of {parts['all']} parts"
                notes.append(Note("parts-missing", "warning", message, {"model": model, "task": task, "cell": text}))
            mode, version = str(line["mode"]), str(line["version"])
            about = task_cells(
                model=model, task=task, form="generate" if mode == "gen" else "",
                task_version="" if version == "-" else version, harness="opencompass",
                is_group=metric in GROUP_METRICS, date=date, file=str(path),
            )  # fmt: skip
            rows.append(_row(about, metric, value, filter=mode))
    if problems and not rows:
        raise TableError(str(path), problems)
    if not rows:
        raise InputError(f"{path}: no score in the table")
    notes += [Note("cell-refused", "error", f"{path}: {text}; left out", {"file": str(path)}) for text in problems]
    text = f"{path}: shares are given in percent and were divided by 100"
    notes.append(Note("percent", "info", text, {"file": str(path)}))
    frame = model_frame({"model": name} for name in models)
    return Measurements(measurement_frame(rows), pd.DataFrame(), frame, tuple(notes))
