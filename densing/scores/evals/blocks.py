"""Some documents of a task, in random order, through lm-eval's own evaluation."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from densing.core import InputError
from densing.scores.evals.identity import effective_shots
from densing.scores.evals.plan import Settings

if TYPE_CHECKING:
    import pandas as pd

# Per-document metrics that are read, the ladder's own first; a loss is derived from the samples where none is stored.
METRICS = {"loss": ("metric_bits_per_byte",), "score": ("metric_accuracy", "metric_acc_norm", "metric_acc")}


def prepare(name: str, task: Any, settings: Settings) -> None:
    """Set a task up as ``simple_evaluate`` does.

    Raises
    ------
    InputError
        When its examples depend on the documents before: then an item of a block is not that item of the full set.
    """
    shots = effective_shots(task, settings.num_fewshot)
    sampler = str(getattr(getattr(task, "fewshot_cfg", None), "sampler", None) or "default")
    if shots and sampler != "first_n":
        raise InputError(
            f"task {name} draws {shots} examples anew for every document, so that its items depend on their order; "
            "evaluate it whole, or give it fixed examples (fewshot_config: sampler: first_n)"
        )
    task.set_config(key="num_fewshot", value=shots)
    task.set_fewshot_seed(seed=settings.seed[3])
    if settings.gen_kwargs and task.get_config("output_type") == "generate_until":
        task.set_config(key="generation_kwargs", value=dict(settings.gen_kwargs), update=True)


def evaluate_block(
    lm: Any, tasks: Mapping[str, Any], ids: Mapping[str, list[int]], settings: Settings
) -> dict[str, pd.DataFrame]:
    """Return the item tables of some documents, through lm-eval's own evaluation."""
    from lm_eval.evaluator import evaluate

    from densing.scores.evals.losses import item_table

    results = evaluate(
        lm=lm,
        task_dict={"tasks": {name: tasks[name] for name in ids}, "groups": {}},
        samples=dict(ids),
        bootstrap_iters=0,
        log_samples=True,
        system_instruction=settings.system_instruction,
        apply_chat_template=settings.apply_chat_template,
        fewshot_as_multiturn=bool(settings.multiturn),
        confirm_run_unsafe_code=True,  # the session has asked for consent
    )
    return {name: item_table(results["samples"][name], results["configs"][name], task=name) for name in ids}


def item_values(table: pd.DataFrame, ids: Sequence[int], quantity: str) -> list[float]:
    """Return what a rule sees of some documents.

    Parameters
    ----------
    table : pandas.DataFrame
        Items of one task (:func:`densing.scores.evals.losses.item_table`).
    ids : sequence of int
        Documents, in the order wanted.
    quantity : {"loss", "score"}
        Bits per byte of the gold answer, or 1 and 0.

    Raises
    ------
    InputError
        When a document has no such value.

    Examples
    --------
    >>> import pandas as pd
    >>> item_values(pd.DataFrame({"doc_id": [3, 5], "metric_acc": [1.0, 0.0]}), [5, 3], "score")
    [0.0, 1.0]
    """
    found = next((column for column in METRICS[quantity] if column in table.columns), None)
    if found is not None:
        values = table[found]
    elif quantity == "loss":
        values = table["nll"] / (table["n_bytes"] * math.log(2))
    else:
        raise InputError("the tasks store no accuracy per document; stop by loss, or evaluate everything")
    chosen = values.astype(float).set_axis(table["doc_id"].astype(int)).loc[list(ids)]
    if not np.isfinite(chosen).all():
        unknown = int(chosen.index[~np.isfinite(chosen)][0])
        raise InputError(
            f"document {unknown}: no finite {quantity} of the gold answer; such a task cannot be stopped by it"
        )
    return [float(value) for value in chosen]


def benchmark_of(name: str, task: Any) -> str:
    """Return the benchmark that a task's metadata names, else the task's own name."""
    metadata = task.get_config("metadata")
    return str((metadata or {}).get("benchmark") or name)


def random_order(name: str, size: int, seed: int) -> NDArray[np.int64]:
    """Return the order in which a task's documents are drawn: its own stream, whatever other tasks there are.

    Examples
    --------
    >>> sorted(random_order("piqa", 4, 0).tolist())
    [0, 1, 2, 3]
    """
    word = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return np.random.default_rng([seed, word]).permutation(size)
