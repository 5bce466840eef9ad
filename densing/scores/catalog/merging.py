"""A user's rows joined to the catalog: repeated rows are dropped, other values refused or taken instead."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd

from densing.core import Note, Table, TableError
from densing.scores.catalog.checks import check_benchmarks, check_models, check_scores, source_id
from densing.scores.catalog.complete import complete_models, complete_scores, user_source
from densing.scores.catalog.extras import Part
from densing.scores.catalog.schema import BENCHMARKS, EVALUATORS, MODELS, SCORES, SOURCES
from densing.scores.catalog.store import Catalog

_TABLES: dict[str, Table] = {t.name: t for t in (MODELS, SCORES, BENCHMARKS, EVALUATORS, SOURCES)}
# A second value of one of these is a contradiction; other columns keep what is there.
_FACTS: dict[str, tuple[str, ...]] = {
    "models": (
        "family",
        "released",
        "params_total_b",
        "params_active_b",
        "params_non_embedding_b",
        "tokens_t",
        "architecture",
        "kind",
        "derivation",
        "domain",
    ),
    "scores": ("score",),
    "benchmarks": ("chance", "items", "scale"),
    "evaluators": (),
    "sources": (),
}


def merge(catalog: Catalog, parts: dict[str, Part], replace: bool = False) -> Catalog:
    """Return the catalog with a user's parts joined to it.

    Parameters
    ----------
    catalog : Catalog
        What is there already.
    parts : dict of str to Part
        The user's tables, from :func:`densing.scores.catalog.extras.read_extra`.
    replace : bool
        Whether a user's row with another value replaces the existing one instead of being refused.

    Returns
    -------
    Catalog
        With a note for every kind of thing that was dropped, filled in or replaced.

    Raises
    ------
    TableError
        For a second value under an existing key, or a reference to something unknown.
    """
    for name in ("sources", "evaluators", "benchmarks"):
        if name in parts:
            catalog = _join(catalog, name, parts[name], replace)
    completers = {"models": complete_models, "scores": complete_scores}
    completed = {name: fill(parts[name], catalog) for name, fill in completers.items() if name in parts}
    catalog = _register(catalog, completed)
    for name, part in completed.items():
        catalog = _join(catalog, name, part, replace)
    if "benchmarks" in parts:
        check_benchmarks(parts["benchmarks"].rows, catalog, parts["benchmarks"].where)
    if "models" in completed:
        check_models(completed["models"].rows, catalog, completed["models"].where)
    if "scores" in completed:
        check_scores(completed["scores"].rows, catalog, completed["scores"].where)
    return catalog


def _register(catalog: Catalog, parts: dict[str, Part]) -> Catalog:
    """Add the user's files to the sources, and evaluators that only the user names to the evaluators."""
    notes = list(catalog.notes)
    files = {user_source(part.where): part.where for part in parts.values()}
    new_sources = [
        {"id": mine, "title": f"the user's table {mine[5:]}", "facts": "as the user states"}
        for mine in files
        if mine not in set(catalog.sources["id"])
    ]
    new_evaluators: list[dict[str, Any]] = []
    if "scores" in parts:
        part = parts["scores"]
        for name in sorted(set(part.rows["evaluator"]) - set(catalog.evaluators["id"])):
            new_evaluators.append({"id": name, "role": "user", "who": user_source(part.where), "preference": 1000.0})
            if name != "user":
                message = f"{part.where}: evaluator {name!r} is new; its scores are a series of their own"
                notes.append(Note("new-evaluator", "info", message, {"evaluator": name}))
    return dataclasses.replace(
        catalog,
        sources=_append(catalog.sources, pd.DataFrame(new_sources)),
        evaluators=_append(catalog.evaluators, pd.DataFrame(new_evaluators)),
        notes=tuple(notes),
    )


def _join(catalog: Catalog, name: str, part: Part, replace: bool) -> Catalog:
    old: pd.DataFrame = getattr(catalog, name)
    key = list(_TABLES[name].key)
    positions = {identity: place for place, identity in enumerate(old[key].itertuples(index=False, name=None))}
    keys = list(part.rows[key].itertuples(index=False, name=None))
    at = [positions.get(k) for k in keys]
    new = part.rows[[place is None for place in at]]
    problems: list[str] = []
    repeated: list[str] = []
    replaced: list[str] = []
    result = old.copy()
    for number, where_old, identity in zip(part.rows.index, at, keys, strict=True):
        if where_old is None:
            continue
        row = part.rows.loc[number]
        differing = _differences(old.iloc[where_old], row, name, part.stated)
        label = " ".join(map(str, identity))
        if differing and not replace:
            problems += [_refusal(number, column, row, old.iloc[where_old], label, name) for column in differing]
            continue
        if differing:
            old_row = old.iloc[where_old]
            changes = ", ".join(f"{column} {_shown(old_row[column])} → {_shown(row[column])}" for column in differing)
            replaced.append(f"{label} ({changes})")
        else:
            repeated.append(label)
        _update(result, where_old, row, part.stated if differing else ())
    if problems:
        raise TableError(part.where, problems)
    notes = (*catalog.notes, *_join_notes(part.where, name, repeated, replaced))
    return dataclasses.replace(catalog, **{name: _append(result, new)}, notes=notes)


def _differences(old: pd.Series, row: pd.Series, name: str, stated: tuple[str, ...]) -> list[str]:
    columns = [column for column in _FACTS[name] if column in stated and column in old.index]
    return [c for c in columns if not (_blank(old[c]) or _blank(row[c]) or _same(old[c], row[c]))]


def _update(result: pd.DataFrame, position: int, row: pd.Series, stated: tuple[str, ...]) -> None:
    """Fill blank cells from the user's row; overwrite the stated ones (and the sources that go with them)."""
    for column in result.columns:
        if column not in row.index or _blank(row[column]):
            continue
        place = result.columns.get_loc(column)
        overwrite = column in stated or (
            bool(stated) and (column == "source" or column.endswith(("_source", "_basis")))
        )
        if overwrite or _blank(result.iloc[position, place]):
            result.iloc[position, place] = row[column]


def _refusal(number: int, column: str, row: pd.Series, old: pd.Series, label: str, name: str) -> str:
    source = str(old.get("source") or old.get("params_source") or "")
    origin = source_id(source)[5:] if source.startswith("user:") else "the embedded catalog"
    remedies = {
        "scores": "name who measured yours in a column evaluator",
        "models": "leave the cell blank or rename it",
    }
    remedy = remedies.get(name, "drop the row or rename it")
    return (
        f"row {number}, column {column}: {_shown(row[column])} for {label}, "
        f"where {origin} has {_shown(old[column])}; {remedy}"
    )


def _join_notes(where: str, name: str, repeated: list[str], replaced: list[str]) -> list[Note]:
    notes = []
    if repeated:
        message = f"{where}: {len(repeated)} rows repeat the catalog's {name} and change nothing"
        notes.append(Note("repeated-rows", "info", message, {"table": name, "rows": repeated}))
    if replaced:
        more = f" and {len(replaced) - 5} more" if len(replaced) > 5 else ""
        message = f"{where}: {len(replaced)} rows replace the catalog's {name}: {'; '.join(replaced[:5])}{more}"
        notes.append(Note("replaced-rows", "warning", message, {"table": name, "rows": replaced}))
    return notes


def _append(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    if new.empty:
        return old.reset_index(drop=True)
    columns = {column: [*old[column], *_cells(new, column)] for column in old.columns}
    return pd.DataFrame({c: pd.Series(values, dtype=old[c].dtype) for c, values in columns.items()})


def _cells(rows: pd.DataFrame, column: str) -> list[Any]:
    if column not in rows.columns:
        return [None] * len(rows)
    return [None if _blank(cell) else cell for cell in rows[column]]


def _blank(cell: Any) -> bool:
    return cell is None or bool(pd.isna(cell))


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, float) and isinstance(two, float):
        return bool(np.isclose(one, two, rtol=1e-9, atol=0.0))
    return bool(one == two)


def _shown(value: Any) -> str:
    return str(value.date()) if isinstance(value, pd.Timestamp) else str(value)
