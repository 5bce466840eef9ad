"""From answers to some items of a bank to measurements, which densities are read from like any others."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from densing.core import InputError, Note, formatting
from densing.scores.catalog import load_catalog
from densing.scores.density.runs import SUITES
from densing.scores.evals import Measurements, measurement_frame
from densing.scores.items import Answers, Chosen, ItemBank, one_model

LEAST = 3
"""Answers of a benchmark from which its score is estimated."""
SEVERAL = "not on each of its benchmarks; stratified items do, and give densities"
"""What adaptive items of several benchmarks do not give."""


def bank_benchmarks(bank: ItemBank) -> pd.Series:
    """Return the benchmark that each item of a bank belongs to: its task's, or the task itself.

    Examples
    --------
    >>> bank_benchmarks(ItemBank.load("ikp")).unique()[:2].tolist()
    ['ikp_T1', 'ikp_T2']
    """
    known = sorted(load_catalog().benchmarks["id"], key=len, reverse=True)

    def benchmark(task: str) -> str:
        if prefix := next((prefix for prefix in SUITES.values() if task.startswith(prefix)), ""):
            return task.removeprefix(prefix)
        # Parts of a group are named after it: mmlu_anatomy.
        return next((name for name in known if task == name or task.startswith(f"{name}_")), task)

    tasks = bank.items["task"].astype(str)
    names = tasks.map({task: benchmark(task) for task in tasks.unique()})
    return names.set_axis(bank.items["item"].astype(str))


def choose_items(bank: ItemBank, count: int, *, seed: int = 0) -> list[str]:
    """Return items to ask a new model: as many of each benchmark, stratified by difficulty.

    Parameters
    ----------
    bank : ItemBank
    count : int
    seed : int

    Raises
    ------
    InputError
        When the bank has fewer, or each benchmark would have fewer than three.

    Examples
    --------
    >>> bank = ItemBank.load("ikp")
    >>> len(set(choose_items(bank, 100)))
    100
    """
    benchmarks = bank_benchmarks(bank)
    sizes = benchmarks.value_counts(sort=False)
    if not LEAST * len(sizes) <= count <= len(bank):
        raise InputError(
            f"{count} items: bank {bank.name} takes {LEAST * len(sizes)} ({LEAST} of each of "
            f"{formatting.plural(len(sizes), 'benchmark')}) to {len(bank)} (all it has)"
        )
    # In turns; where a small one has no more, the others go on.
    orders = {
        name: bank.of_items(benchmarks.index[benchmarks.eq(name)]).choose(size, seed=seed)
        for name, size in sizes.items()
    }
    turns = sorted((at, place, item) for place, order in enumerate(orders.values()) for at, item in enumerate(order))
    return [item for *_, item in turns[:count]]


def bank_measurements(
    bank: ItemBank,
    answers: Answers,
    *,
    params: Mapping[str, float] | None = None,
    model: str | None = None,
    chosen: Chosen = "stratified",
) -> Measurements:
    """Return a model's scores on the benchmarks of a bank, estimated from some of their items.

    The score on all items of a benchmark is estimated by strata with the bank's curves as control variate. Its standard
    error holds how far that may be from the score on all of them, and what all of them would leave open as a sample of
    the items that the benchmark could have had: the latter is what a full evaluation's standard error is.

    Parameters
    ----------
    bank : ItemBank
    answers : mapping, series, array or table
        As :meth:`ItemBank.estimate` takes them.
    params : mapping, optional
        The size by name; names a model whose answers do not.
    model : str, optional
        Which one, where a table holds several.
    chosen : {"stratified", "random", "adaptive"}
        How the items were chosen: by :func:`choose_items`, or by :meth:`ItemBank.next`, which a bank of one benchmark
        takes alone: the curves of several do not say how far each of them is off.

    Returns
    -------
    Measurements
        A row per benchmark; read it with :func:`densing.run_densities` or :func:`densing.compare`.

    Raises
    ------
    InputError
        When no benchmark has three answers; adaptive items of several benchmarks.

    Examples
    --------
    >>> bank = ItemBank.load("ikp")
    >>> answers = {item: float(at % 2) for at, item in enumerate(choose_items(bank, 100))}
    >>> len(bank_measurements(bank, answers).measurements) == bank.items["task"].nunique()
    True
    """
    rows = one_model(answers, bank.items["item"], model)
    named = rows["model"].iloc[0] if "model" in rows and len(rows) else "model"
    name = next(iter(params)) if named == "model" and params and len(params) == 1 else str(named)
    benchmarks = bank_benchmarks(bank)
    of_bank = bank.estimate(answers, model=model, chosen=chosen)
    parts = bank.estimate_parts(answers, benchmarks, model=model)
    if chosen == "adaptive":
        if len(parts) > 1:
            raise InputError(f"adaptive items estimate the score on bank {bank.name} alone, {SEVERAL}")
        parts[["score", "error"]] = of_bank.score, of_bank.error
    usable = parts[parts["score"].notna()]
    if usable.empty:
        raise InputError(
            f"no benchmark of bank {bank.name} has {LEAST} answers: {formatting.plural(len(rows), 'answer')} to items "
            f"of {formatting.plural(len(parts), 'benchmark')}"
        )
    notes = list(of_bank.notes)
    if len(few := list(parts.index[parts["score"].isna()])):
        message = f"bank {bank.name}: fewer than {LEAST} answers to {formatting.listed(few)}; left out"
        notes.append(Note("few-answers", "warning", message, {"benchmarks": few}))
    if of_bank.status not in ("ok", "few_items"):
        notes.append(Note(of_bank.status.replace("_", "-"), "warning", f"{name}: {of_bank.sentence}"))
    first = bank.items.set_index(bank.items["item"].astype(str))["task"]
    measured = []
    for part, row in usable.iterrows():
        task = str(first[benchmarks.index[benchmarks.eq(part)][0]])
        own = any(task.startswith(prefix) for prefix in SUITES.values())
        score = float(np.clip(row["score"], 0.0, 1.0))
        beyond = score * (1 - score) / row["items"]
        measured.append(
            {
                "model": name,
                "task": task if own else part,
                "benchmark": part,
                "metric": "accuracy" if own else "acc",
                "filter": "none",
                "value": score,
                "stderr": math.sqrt(row["error"] ** 2 + beyond),
                "n_items": row["answered"],
                "unit": "share",
                "definition": f"estimated from {row['answered']:.0f} of {row['items']:.0f} items of bank {bank.name}",
                "higher_is_better": True,
                "file": "",
                "is_group": False,
            }
        )
    models = pd.DataFrame([{"model": name, "params_total": math.nan, "params_non_embedding": math.nan}])
    return Measurements(measurement_frame(measured), pd.DataFrame(), models, tuple(notes))
