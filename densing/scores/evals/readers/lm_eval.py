"""lm-eval's results files, current and old, with the samples that stand beside them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densing.core import InputError, Note
from densing.scores.evals.harness import check_results, mapping, model_facts, model_name, result_rows
from densing.scores.evals.items import item_table, items_of_files, task_and_stamp
from densing.scores.evals.measurements import Measurements, measurement_frame, model_frame

if TYPE_CHECKING:
    import pandas as pd

_TIME = re.compile(r"_(\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}(?:\.\d+)?)$")


def accepts(content: Any) -> bool:
    """Whether this is an object with lm-eval's results, of the current schema or the old one."""
    return (
        isinstance(content, Mapping)
        and "results" in content
        and not {"configs", "config", "versions"}.isdisjoint(content)
    )


def read(content: Any, path: Path | None = None) -> Measurements:
    """Return the measurements of one results file, or of what ``lm_eval.simple_evaluate`` returned.

    Parameters
    ----------
    content : mapping
        What the file holds.
    path : path, optional
        The file; its samples are looked for beside it, by their time.

    Raises
    ------
    InputError
        When a part of it is damaged.
    """
    where = "results in memory" if path is None else str(path)
    results = check_results(content, where)
    name = model_name(results, "model" if path is None else path.stem)
    stamp = None if path is None else _TIME.search(path.stem)
    inline = results.get("samples")
    if isinstance(inline, Mapping) or path is None:
        items, problems = _inline_items(results, mapping(inline), name)
    else:
        items, problems = _items(results, path, stamp[1] if stamp else "", name)
    rows, notes = result_rows(results, items, model=name, where=where)
    if stamp:
        rows = [row | {"date": row["date"] or stamp[1][:10]} for row in rows]
    notes += [Note("items-unreadable", "warning", text, {"file": where}) for text in problems]
    return Measurements(measurement_frame(rows), items, model_frame([model_facts(results, name)]), tuple(notes))


def _items(results: Mapping[str, Any], path: Path, stamp: str, name: str) -> tuple[pd.DataFrame, list[str]]:
    """Return the items of the samples files that have the results' time, and a sentence for what cannot be read."""
    import pandas as pd

    # Beside the results, or one level further down or up (a folder per date).
    folder, pattern = path.parent, "samples_*.jsonl"
    near = (folder.glob(pattern), folder.glob(f"*/{pattern}"), folder.parent.glob(pattern))
    own: list[Path] = []
    for files in near if stamp else ():
        own = own or [file for file in sorted(files) if (task_and_stamp(file.name) or ("", ""))[1] == stamp]
    if not own and (other := sorted(folder.glob(pattern))):
        when = f"its own time, {stamp}" if stamp else "a time in its name (results_2026-11-21T13-07-22.json)"
        return pd.DataFrame(), [
            f"{path}: {len(other)} samples files beside it ({other[0].name}) are not read, because the results file "
            f"is paired with samples by {when}; rename it to include losses of the right answers"
        ]
    table, problems = items_of_files(results, own, model=name)
    return pd.DataFrame() if table is None else table, problems


def _inline_items(results: Mapping[str, Any], samples: Mapping[str, Any], name: str) -> tuple[pd.DataFrame, list[str]]:
    import pandas as pd

    tables, problems = [], []
    for task, rows in samples.items():
        config = mapping(mapping(results.get("configs")).get(task))
        try:
            if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
                raise InputError(f"samples of {str(task)[:60]!r} are not a list of objects")
            tables.append(item_table(rows, config, model=name, task=str(task)))
        except InputError as error:
            problems.append(f"no items: {error}")
    filled = [table for table in tables if len(table)]
    return (pd.concat(filled, ignore_index=True) if filled else pd.DataFrame()), problems
