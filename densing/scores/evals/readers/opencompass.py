"""OpenCompass's summary table: ``dataset,version,metric,mode`` and one column per model.

Format: OpenCompass 0.5, ``opencompass/summarizers/default.py``: scores with two decimals, shares in percent, ``-`` for
what was not measured, commas in names replaced by spaces; separator rows hold nothing but ``-``.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from densing.core import InputError, Note, TableError
from densing.scores.evals.measurements import Measurements, measurement_frame, metric_row, model_frame

HEADER = ["dataset", "version", "metric", "mode"]
# Averages over the datasets of a group.
GROUP_METRICS = frozenset({"naive_average", "weighted_average", "harmonic_mean", "sum", "standard_deviation"})
_PERCENT = re.compile(r"^(accuracy|score|exact_match|f1|naive_average|weighted_average|.*pass@\d+|acc_\d+|perf_\d+)$")
# A number, with the parts that it is a mean over where some are missing: 82.00 (7/8).
_SCORE = re.compile(r"^(?P<value>[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)(?:\s*\((?P<done>\d+)\s*/\s*(?P<all>\d+)\))?$")
_TIME = re.compile(r"(\d{4})(\d{2})(\d{2})_\d{6}")


def accepts(content: Any) -> bool:
    """Whether this is a table with at least one of the columns of a summary."""
    return not set(HEADER).isdisjoint(map(str, getattr(content, "columns", ())))


def read(content: Any, path: Path) -> Measurements:
    """Return the measurements of a summary table.

    Columns between those of the header, and columns behind it without any score, are named in a note and left out. A
    cell that is not a score is refused with an error note; ``82.00 (7/8)`` is a mean over seven of eight parts.

    Raises
    ------
    InputError
        When the file is not such a table, or holds no score.
    TableError
        When no cell is a score, with every cell that is not one.
    """
    import pandas as pd

    cells: pd.DataFrame = content
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
            about = {
                "model": model, "task": task, "benchmark": "", "form": "generate" if mode == "gen" else "", "cot": "",
                "n_items": math.nan, "n_shot": math.nan, "limit": math.nan, "digest": "",
                "task_version": "" if version == "-" else version, "task_hash": "", "harness": "opencompass",
                "harness_version": "", "is_group": metric in GROUP_METRICS, "date": date, "file": str(path),
            }  # fmt: skip
            row = metric_row(about, metric, value / 100 if percent else value, filter=mode, unit="")
            rows.append({**row, "unit": "share", "higher_is_better": True} if percent else row)
    if problems and not rows:
        raise TableError(str(path), problems)
    if not rows:
        raise InputError(f"{path}: no score in the table")
    notes += [Note("cell-refused", "error", f"{path}: {text}; left out", {"file": str(path)}) for text in problems]
    text = f"{path}: shares are given in percent and were divided by 100"
    notes.append(Note("percent", "info", text, {"file": str(path)}))
    frame = model_frame({"model": name} for name in models)
    return Measurements(measurement_frame(rows), pd.DataFrame(), frame, tuple(notes))
