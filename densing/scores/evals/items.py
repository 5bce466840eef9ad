"""Items of an evaluation from the files lm-eval wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densing.core import InputError
from densing.scores.evals.disk import read_json
from densing.scores.evals.losses import Tokenizer, item_table
from densing.scores.evals.samples import read_samples, task_and_stamp

if TYPE_CHECKING:
    import pandas as pd


def items_of_files(
    results: Path | Mapping[str, Any],
    samples: Sequence[Path],
    *,
    model: str,
    tokenizer: Tokenizer | None = None,
    tokenizer_name: str = "",
) -> tuple[pd.DataFrame | None, list[str]]:
    """Return the items of several samples files, and a sentence for each file that has none.

    Parameters
    ----------
    results : path or mapping
        The results file they belong to (or its content): it holds the tasks' configurations.
    samples : sequence of path
        ``samples_<task>_<time>.jsonl`` files.
    model : str
        Name filled into the column ``model``.
    tokenizer, tokenizer_name
        As in :func:`densing.scores.evals.losses.item_table`.
    """
    import pandas as pd

    read = read_json(results) if isinstance(results, Path) else results
    read = read if isinstance(read, Mapping) else {}
    tables, troubles = [], []
    for path in samples:
        named = task_and_stamp(path.name)
        task = named[0] if named else path.stem
        try:
            config = _config(read, task)
            table = item_table(
                read_samples(path), config, tokenizer, model=model, task=task, tokenizer_name=tokenizer_name
            )
        except InputError as error:
            troubles.append(f"no items from {path.name}: {error}")
            continue
        tables.append(table)
    filled = [table for table in tables if len(table)]
    return (pd.concat(filled, ignore_index=True) if filled else None), troubles


def _config(read: Mapping[str, Any], task: str) -> dict[str, Any]:
    configs = read.get("configs")
    config = configs.get(task) if isinstance(configs, Mapping) else None
    setup = dict(config) if isinstance(config, Mapping) else {}
    if read.get("chat_template") and not setup.get("gen_prefix"):
        # With a chat template lm-eval leaves the delimiter out.
        setup["target_delimiter"] = ""
    return setup
