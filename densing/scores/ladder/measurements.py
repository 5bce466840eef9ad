"""The measured table of a ladder: a row per exported model and task, ready for the fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from densing.core import Column, InputError, Table, validate
from densing.scores.ladder.questions import PREFIX
from densing.scores.references import LADDER

SOURCE = "densing-cpu"
MEASURED = Table(
    "measured ladder",
    (
        *LADDER.columns,
        Column("size", "text", "name of the size", required=True),
        Column("seed", "integer", "seed of the run", required=True, low=0),
        Column("target", "text", "empty, or the kind of target with a known answer", default=""),
        Column("useful", "number", "share of the training tokens that is not noise", default="1", low=0, high=1),
        Column("n_items", "integer", "questions behind the row", default="0", low=0),
    ),
    key=LADDER.key,
)
# What our tasks store: lm-eval's accuracy, and the loss that densing computes from the samples.
_LOSS, _SCORE = ("bits_per_byte", "gold_bits_per_byte"), ("accuracy", "acc_norm", "acc")


def measured_table(exports: Iterable[Mapping[str, Any]], measurements: pd.DataFrame) -> pd.DataFrame:
    """Join what was trained with what was measured.

    Parameters
    ----------
    exports : iterable of mapping
        Descriptions, see :func:`densing.scores.ladder.read_exports`.
    measurements : pandas.DataFrame
        ``model, task, benchmark, metric, value, n_items, task_hash, file``; models are named as their exports. Where a
        task was asked with several sets of questions, the last set counts, for every model.

    Returns
    -------
    pandas.DataFrame
        Columns of :data:`MEASURED`: those of :data:`densing.scores.references.LADDER` and what tells targets apart.
        Targets are held out.

    Raises
    ------
    InputError
        When nothing that was trained has been measured.
    """
    described = {str(export["name"]): export for export in exports}
    # lm-eval's results files are named after the time of writing; ``date`` is only a day.
    dated = measurements.assign(name=[str(file).replace("\\", "/").split("/")[-1] for file in measurements["file"]])
    last = dated.sort_values("name", kind="stable").groupby("task")["task_hash"].last()
    # Other questions are another measurement.
    measurements = measurements[measurements["task_hash"].eq(measurements["task"].map(last))]
    rows = [
        _row(described[str(model)], str(task), group)
        for (model, task), group in measurements.groupby(["model", "task"], sort=True)
        if str(model) in described and _value(group, _LOSS) is not None and _value(group, _SCORE) is not None
    ]
    if not rows:
        raise InputError("no exported model has been evaluated; run `densing ladder eval` on this folder")
    return validate(pd.DataFrame(rows), MEASURED, "ladder")


def _row(export: Mapping[str, Any], task: str, group: pd.DataFrame) -> dict[str, Any]:
    benchmark = next((str(name) for name in group["benchmark"] if isinstance(name, str) and name), "")
    return {
        "run": export["run"],
        "params_non_embedding": export["params_non_embedding"],
        "tokens": export["tokens"],
        "task": benchmark or task.removeprefix(PREFIX),
        "bits_per_byte": _value(group, _LOSS),
        "accuracy": _value(group, _SCORE),
        "stage": "final",
        "held_out": bool(export["target"]),
        "source": SOURCE,
        "size": export["size"],
        "seed": export["seed"],
        "target": export["target"],
        "useful": export.get("useful", 1.0),
        "n_items": int(group["n_items"].max()),
    }


def _value(group: pd.DataFrame, names: tuple[str, ...]) -> float | None:
    for name in names:
        values = pd.to_numeric(group.loc[group["metric"].eq(name), "value"], errors="coerce").dropna()
        if len(values):
            return float(values.iloc[0])
    return None


def validation_table(exports: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the validation losses of the ladder's own runs: ``run, size, seed, params_non_embedding, tokens, loss``.

    Losses are nats per token. Targets are left out.
    """
    columns = ["run", "size", "seed", "params_non_embedding", "tokens"]
    rows = [
        {**{name: export[name] for name in columns}, "loss": export["loss"]["validation_nats_per_token"]}
        for export in exports
        if not export["target"]
    ]
    return pd.DataFrame(rows, columns=[*columns, "loss"])
