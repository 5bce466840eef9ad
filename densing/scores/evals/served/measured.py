"""What the variants of a model reached on the same items: a row each, from the result store."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from densing.core import InputError
from densing.scores.evals.identity import UnitKey, canonical_json
from densing.scores.evals.served.variant import ARGUMENTS, FULL
from densing.scores.evals.store import RunStore

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["model", "exit", "cut", "cut_bits", "weight_bits", "layers", "bits_per_byte", "bits_per_byte_se", "accuracy",
           "accuracy_se", "n_items", "n_tasks", "kept_params", "kept_non_embedding", "weight_bytes",
           "bytes_per_token", "extra_bits_per_byte", "extra_bits_per_byte_se"]  # fmt: skip
# Of several metrics of a task the first that it has.
LOSSES = ("bits_per_byte", "gold_bits_per_byte")
SCORES = ("accuracy", "acc_norm", "acc")


def measured_variants(run: RunStore | Path | str, model: str) -> pd.DataFrame:
    """Return what each variant of a model reached on the items that all its variants were asked.

    Parameters
    ----------
    run : RunStore or path
        The result store that ``densing eval --model MODEL --exit ...`` wrote.
    model : str
        The model without its variants' options, such as ``smollm2-135m``.

    Returns
    -------
    pandas.DataFrame
        A row per variant, sorted by exit, cut and bits, with the columns :data:`COLUMNS`:

        - ``model``: the variant's name in the store, as ``run_densities`` and ``RunStore.measurements`` know it;
        - ``exit``: layers computed (``layers`` where all are); ``cut``: layers before the hand-over, NA without one;
        - ``cut_bits``, ``weight_bits``: 16 where nothing is rounded to fewer;
        - ``bits_per_byte``, ``accuracy`` with standard errors ``_se``: means over tasks, each task with equal weight,
          NaN where the tasks have no such metric; ``n_items`` documents of ``n_tasks`` tasks;
        - ``kept_params``, ``kept_non_embedding``: parameters of the layers computed, translator included;
        - ``weight_bytes``: what they weigh as stored; ``bytes_per_token``: what is handed over of a token, 0 without
          a cut;
        - ``extra_bits_per_byte``: beyond the whole model (all layers, no cut, 16 bits), a mean of differences item by
          item of the right answer's bits per byte, and of tasks with equal weight; NaN where the whole model was not
          asked. Its error ``_se`` is smaller than that of the difference of two means: the items are the same.

    Raises
    ------
    InputError
        When the store has no variant of the model, two models of this name, or no item that all variants were asked.

    See Also
    --------
    Variant, variant_grid
    """
    import pandas as pd

    store = run if isinstance(run, RunStore) else RunStore(Path(run))
    units = [(unit, UnitKey.from_dict(unit.manifest["key"])) for unit in store.units()]
    labels = {key.model_digest: key.label for _, key in units}
    answers: dict[str, dict[str, dict[str, Any]]] = {}
    losses: dict[str, dict[str, pd.DataFrame]] = {}
    facts: dict[str, dict[str, Any]] = {}
    bases = set()
    for unit, key in units:
        about = unit.manifest.get("model", {})
        if "served" not in about or (key.label.rpartition("@")[0] or key.label) != model:
            continue
        args = {name: value for name, value in key.model["args"].items() if name not in ARGUMENTS}
        bases.add(canonical_json({**key.model, "args": args}))
        # As read_run names models of one label (here: with other translators).
        shared_label = list(labels.values()).count(key.label) > 1
        name = f"{key.label}@{key.model_digest[:6]}" if shared_label else key.label
        facts[name] = {**about, **about["served"]}
        items = canonical_json([key.task, key.settings])
        measured = unit.measurements(name)
        answers.setdefault(name, {})[items] = _means(measured.measurements)
        losses.setdefault(name, {})[items] = measured.items
    if not answers:
        raise InputError(
            f"{store.folder}: no variant of {model} has been evaluated; run densing eval --model {model} --exit LAYERS "
            f"--cut LAYER --cut_bits BITS --out {store.folder}"
        )
    if len(bases) > 1:
        raise InputError(
            f"{store.folder}: {len(bases)} different models share the name {model}; evaluate one per store"
        )
    shared = set.intersection(*(set(own) for own in answers.values()))
    if not shared:
        raise InputError(
            f"{store.folder}: the {len(answers)} variants of {model} share no task with the same settings; evaluate "
            "them with the same --tasks and --limit"
        )
    first = {"cut": None, "cut_bits": FULL, "weight_bits": FULL}
    whole = [
        name for name, about in facts.items() if about["exit"] == about["layers"] and first.items() <= about.items()
    ]
    rows = []
    for name, own in answers.items():
        tasks = [own[items] for items in sorted(shared)]
        about = facts[name]
        row = {
            "model": name,
            **{column: about[column] for column in ("exit", "cut", "cut_bits", "weight_bits", "layers")},
            "kept_params": about["params_total"],
            "kept_non_embedding": about["params_non_embedding"],
            "weight_bytes": about["weight_bytes"],
            "bytes_per_token": about["bytes_per_token"],
            "n_items": sum(task["n_items"] for task in tasks),
            "n_tasks": sum(task["n_tasks"] for task in tasks),
        }
        for quantity in ("bits_per_byte", "accuracy"):
            pairs = [pair for task in tasks for pair in task[quantity]]
            row[quantity] = float(np.mean([value for value, _ in pairs])) if pairs else math.nan
            errors = [error for _, error in pairs]
            row[f"{quantity}_se"] = math.hypot(*errors) / len(errors) if errors else math.nan
        pairs = [pair for items in sorted(shared) for pair in _beyond(losses, name, whole, items)]
        row["extra_bits_per_byte"] = float(np.mean([value for value, _ in pairs])) if pairs else math.nan
        row["extra_bits_per_byte_se"] = math.hypot(*(e for _, e in pairs)) / len(pairs) if pairs else math.nan
        rows.append(row)
    table = pd.DataFrame(rows, columns=COLUMNS).astype({"cut": "Int64"})
    return table.sort_values(["exit", "cut", "cut_bits", "weight_bits"], ignore_index=True)


def _means(measurements: pd.DataFrame) -> dict[str, Any]:
    """Return loss and score of a unit's tasks as (value, standard error), and how many items and tasks they are of."""
    single = measurements[~measurements["is_group"].astype(bool)]
    result: dict[str, Any] = {"bits_per_byte": [], "accuracy": [], "n_items": 0, "n_tasks": 0}
    for _, task in single.groupby("task", sort=True):
        result["n_tasks"] += 1
        result["n_items"] += int(task["n_items"].max())
        for quantity, names in (("bits_per_byte", LOSSES), ("accuracy", SCORES)):
            rows = [task[task["metric"].eq(name)] for name in names]
            chosen = next((part for part in rows if len(part)), None)
            if chosen is not None:
                result[quantity].append((float(chosen["value"].iloc[0]), float(chosen["stderr"].iloc[0])))
    return result


def _beyond(
    losses: dict[str, dict[str, pd.DataFrame]], name: str, whole: list[str], items: str
) -> Iterator[tuple[float, float]]:
    """Yield per task the mean difference in bits per byte to the whole model, item by item, and its standard error."""
    if not whole:
        return
    columns = ["task", "doc_id", "nll", "n_bytes"]
    if not set(columns) <= set(losses[name][items]):
        return
    both = losses[name][items][columns].merge(losses[whole[0]][items][columns], on=["task", "doc_id"])
    both["bits"] = (both["nll_x"] - both["nll_y"]) / both["n_bytes_x"] / math.log(2)
    for _, task in both.dropna(subset="bits").groupby("task", sort=True):
        yield float(task["bits"].mean()), float(task["bits"].sem())
