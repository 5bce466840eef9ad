"""A run's accuracies in the form in which the catalog takes a user's scores."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from densing.core import Note
from densing.scores.evals.measurements import BENCHMARK_OF

if TYPE_CHECKING:
    import pandas as pd

# In this order of preference; a score of the catalog is one share per model and benchmark.
SCORES = ("accuracy", "acc_norm", "acc", "exact_match", "pass@1", "em", "score", "naive_average")
# The least size the catalog's tables take.
LEAST_PARAMS = 1e5
COLUMNS = [
    "model",
    "params",
    "released",
    "benchmark",
    "score",
    "metric",
    "shots",
    "form",
    "items",
    "evaluator",
    "source",
    "measured",
]


def to_catalog_rows(measurements: pd.DataFrame, models: pd.DataFrame, released: str = "") -> pd.DataFrame:
    """Return the scores that :func:`densing.scores.catalog.load_catalog` takes as a user's table.

    One row per model and benchmark of the catalog: the group's where a group was measured, else the one on most
    documents. Losses have no place in the catalog and stay behind, as do benchmarks it does not know.

    Parameters
    ----------
    measurements, models : pandas.DataFrame
        Tables of a run or of a reader.
    released : str
        Release date of the models, ISO; blank where unknown.

    Returns
    -------
    pandas.DataFrame
        Columns :data:`COLUMNS`, evaluator "user".

    Examples
    --------
    >>> import pandas as pd
    >>> measured = pd.DataFrame({"model": ["tiny"], "task": ["hellaswag"], "benchmark": [""], "metric": ["acc_norm"],
    ...     "value": [0.31], "n_items": [40.0], "n_shot": [10.0], "is_group": [False], "file": ["a/results.json"],
    ...     "date": ["2026-11-21"]})
    >>> sizes = pd.DataFrame({"model": ["tiny"], "params_total": [1.3e8]})
    >>> to_catalog_rows(measured, sizes).iloc[0].to_dict()["benchmark"]
    'hellaswag'
    """
    import pandas as pd

    sizes = models.groupby("model")["params_total"].max().to_dict()
    best: dict[tuple[str, str], tuple[tuple[bool, int, float], dict[str, Any]]] = {}
    for row in _usable(measurements).to_dict("records"):
        identity = (str(row["model"]), str(row["of"]))
        items = 0.0 if math.isnan(row["n_items"]) else float(row["n_items"])
        rank = (bool(row["is_group"]), -SCORES.index(row["metric"]), items)
        if identity not in best or rank > best[identity][0]:
            best[identity] = (rank, row)
    lines = [
        {
            "model": model,
            "params": _digits(sizes[model]),
            "released": released,
            "benchmark": benchmark,
            "score": row["value"],
            "metric": row["metric"],
            "shots": _digits(row["n_shot"]),
            "form": row.get("form") or "",
            "items": _digits(row["n_items"]),
            "evaluator": "user",
            "source": "",
            "measured": row["date"],
        }
        for (model, benchmark), (_, row) in sorted(best.items())
        if sizes.get(model) is not None and sizes[model] >= LEAST_PARAMS
    ]
    return pd.DataFrame(lines, columns=COLUMNS, dtype=object)


def _usable(measurements: pd.DataFrame) -> pd.DataFrame:
    """Return the shares of benchmarks that the catalog knows, with the benchmark in the column ``of``."""
    from densing.scores.catalog import load_catalog

    known = set(load_catalog().benchmarks["id"])
    tasks = measurements["task"].map(lambda task: BENCHMARK_OF.get(task, task))
    benchmarks = measurements["benchmark"].where(measurements["benchmark"] != "", tasks)
    table = measurements.assign(of=benchmarks)
    share = table["value"].between(0.0, 1.0)
    return table[table["metric"].isin(SCORES) & table["of"].isin(known) & share]


def _digits(value: float) -> str:
    return "" if math.isnan(value) else str(int(value))


def left_out(measurements: pd.DataFrame, models: pd.DataFrame, rows: pd.DataFrame) -> list[Note]:
    """Return what of a run did not become a row of the catalog, and why."""
    exported = set(zip(rows["model"], rows["benchmark"], strict=True))
    sizes = models.groupby("model")["params_total"].max().to_dict()
    unsized = sorted({str(m) for m in measurements["model"] if not (sizes.get(m) or math.nan) >= LEAST_PARAMS})
    notes = [
        Note(
            "no-size",
            "warning",
            f"{name}: its size is unknown or below {LEAST_PARAMS:.0e} parameters; left out",
            {"model": name},
        )
        for name in unsized
    ]
    usable = _usable(measurements)
    used = {
        task
        for model, task, of in zip(usable["model"], usable["task"], usable["of"], strict=True)
        if (model, of) in exported
    }
    unknown = sorted(set(map(str, measurements["task"])) - used - set(map(str, usable["task"])))
    if unknown:
        names = ", ".join(unknown[:8]) + (", ..." if len(unknown) > 8 else "")
        message = f"left out, as the catalog has no such benchmark or the task gives no share: {names}"
        notes.append(Note("no-benchmark", "info", message, {"tasks": unknown}))
    return notes
