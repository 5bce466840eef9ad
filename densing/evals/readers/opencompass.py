"""OpenCompass's summary table: ``dataset,version,metric,mode`` and one column per model.

Format: OpenCompass 0.5, ``opencompass/summarizers/default.py``: scores with two decimals, shares in percent, ``-`` for
what was not measured, commas in names replaced by spaces; separator rows hold nothing but ``-``.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from densing.errors import InputError, TableError
from densing.evals.measurements import Measurements, describe_metric, measurement_frame, model_frame
from densing.notes import Note
from densing.tables import read_cells

HEADER = ["dataset", "version", "metric", "mode"]
# Averages over the datasets of a group.
GROUP_METRICS = frozenset({"naive_average", "weighted_average", "harmonic_mean", "sum", "standard_deviation"})
_PERCENT = re.compile(r"^(accuracy|score|exact_match|f1|naive_average|weighted_average|.*pass@\d+|acc_\d+|perf_\d+)$")
_TIME = re.compile(r"(\d{4})(\d{2})(\d{2})_\d{6}")


def read(path: Path) -> Measurements:
    """Return the measurements of a summary table.

    Raises
    ------
    InputError
        When the file is no such table.
    TableError
        With every cell that is no score.
    """
    cells = read_cells(path)
    if list(cells.columns[:4]) != HEADER or len(cells.columns) < 5:
        found = ", ".join(map(str, cells.columns))[:200]
        raise InputError(f"{path}: columns {found}; an OpenCompass summary has {', '.join(HEADER)} and one per model")
    models = [str(name) for name in cells.columns[4:]]
    stamp = _TIME.search(path.name)
    date = "-".join(stamp.groups()) if stamp else ""
    rows, problems = [], []
    for number, line in cells.iterrows():
        metric = str(line["metric"])
        for model in models:
            text = str(line[model]).strip()
            if text == "-" or metric == "-":
                continue
            value = _score(text, metric)
            if math.isnan(value):
                problems.append(
                    f"row {number}, column {model}: {text[:40]!r} is no score of {metric}; shares are 0 to 100"
                )
                continue
            about = {"model": model, "task": str(line["dataset"]), "metric": metric, "filter": str(line["mode"])}
            rows.append(
                {**about, "value": value, **_facts(metric, str(line["version"])), "date": date, "file": str(path)}
            )
    if problems:
        raise TableError(str(path), problems)
    if not rows:
        raise InputError(f"{path}: no score in the table")
    note = Note("percent", "info", f"{path}: shares are given in percent and were divided by 100", {"file": str(path)})
    return Measurements(measurement_frame(rows), _no_items(), model_frame({"model": name} for name in models), (note,))


def _facts(metric: str, version: str) -> dict[str, object]:
    _, definition, better = describe_metric(metric)
    share = bool(_PERCENT.match(metric))
    return {
        "benchmark": "", "stderr": math.nan, "n_items": math.nan, "n_shot": math.nan, "limit": math.nan, "digest": "",
        "unit": "share" if share else "", "definition": definition, "higher_is_better": True if share else better,
        "task_version": "" if version == "-" else version, "task_hash": "", "harness": "opencompass",
        "harness_version": "", "is_group": metric in GROUP_METRICS,
    }  # fmt: skip


def _score(text: str, metric: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.nan
    if not _PERCENT.match(metric):
        return value if math.isfinite(value) else math.nan
    return value / 100 if 0 <= value <= 100 else math.nan


def _no_items():  # type: ignore[no-untyped-def]
    import pandas as pd

    return pd.DataFrame()
