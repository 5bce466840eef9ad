"""The embedded catalog, alone or with a user's tables joined to it.

What a user's table leaves out is filled in (source, series, family, active size of dense models); repeated rows are
dropped, other values refused or taken instead; and everything that a row refers to must exist.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from densing.core import SHOWN_PROBLEMS, Note, Table, TableError, TableLike, read_table, words
from densing.scores.catalog.catalog import DATA, Catalog
from densing.scores.catalog.extras import Part, read_extra
from densing.scores.catalog.schema import BENCHMARKS, EVALUATORS, MODELS, SCORES, SOURCES, cell_text, models_table

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
_DERIVATION = {"base": "scratch", "continued": "continued", "instruct": "instruct_tuned"}
_SOURCE_OF = {
    "released": "released_source",
    "params_total_b": "params_source",
    "params_non_embedding_b": "non_embedding_source",
    "tokens_t": "tokens_source",
}
# Sizes without embeddings are often rounded up in vendors' tables, totals rounded down.
ROUNDING = 1.02


def load_catalog(*extra: TableLike, replace: bool = False, embedded: bool = True) -> Catalog:
    """Return the embedded catalog with a user's tables joined to it.

    Parameters
    ----------
    *extra : path, DataFrame or records
        Folders, CSV files or tables in memory: models, scores, or both in one (see
        :func:`densing.scores.catalog.read_extra`). Rows
        without an evaluator count as measured by ``user``; release dates count as sourced, by the user.
    replace : bool
        Let a user's row with another value replace ours; otherwise it is refused.
    embedded : bool
        Whether our models and scores are part of the result. Without them only benchmarks, evaluators and
        sources are, and the user's tables must hold every model they score.

    Raises
    ------
    InputError, TableError
        When a table cannot be read or used; the message names file, row, column, value and remedy.

    Examples
    --------
    >>> load_catalog().models.set_index("model").loc["Llama-3-8B", "params_total_b"].item()
    8.03

    See Also
    --------
    validate_catalog, score_table
    """
    catalog = _embedded()
    keep = slice(None) if embedded else slice(0, 0)
    catalog = Catalog(
        catalog.models.iloc[keep].copy(),
        catalog.scores.iloc[keep].copy(),
        catalog.benchmarks.copy(),
        catalog.evaluators.copy(),
        catalog.sources.copy(),
    )
    for path in extra:
        catalog = merge(catalog, read_extra(path), replace)
    return catalog


@cache
def _embedded() -> Catalog:
    tables = (models_table(), SCORES, BENCHMARKS, EVALUATORS, SOURCES)
    frames: dict[str, pd.DataFrame] = {
        table.name: read_table(DATA / f"{table.name}.csv", table, f"{table.name}.csv") for table in tables
    }
    return Catalog(**frames)


def merge(catalog: Catalog, parts: dict[str, Part], replace: bool = False) -> Catalog:
    """Return the catalog with a user's parts joined to it.

    Parameters
    ----------
    catalog : Catalog
        What is there already.
    parts : dict of str to Part
        The user's tables, from :func:`densing.scores.catalog.read_extra`.
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
    positions = {identity: i for i, identity in enumerate(old[key].itertuples(index=False, name=None))}
    identities = list(part.rows[key].itertuples(index=False, name=None))
    at = [positions.get(identity) for identity in identities]
    new = part.rows[[position is None for position in at]]
    facts = [column for column in _FACTS[name] if column in part.stated and column in old.columns]
    problems: list[str] = []
    repeated: list[str] = []
    replaced: list[str] = []
    result = old.copy()
    for number, position, identity in zip(part.rows.index, at, identities, strict=True):
        if position is None:
            continue
        row, before = part.rows.loc[number], old.iloc[position]
        label = " ".join(map(str, identity))
        differing = [
            column
            for column in facts
            if not (_blank(before[column]) or _blank(row[column]) or _same(before[column], row[column]))
        ]
        if differing and not replace:
            problems += [_refusal(number, column, row, before, label, name) for column in differing]
            continue
        if differing:
            changes = (f"{column} {cell_text(before[column])} → {cell_text(row[column])}" for column in differing)
            replaced.append(f"{label} ({', '.join(changes)})")
        else:
            repeated.append(label)
        _update(result, position, row, part.stated if differing else ())
    if problems:
        raise TableError(part.where, problems)
    notes = list(catalog.notes)
    if repeated:
        message = f"{part.where}: {len(repeated)} rows repeat the catalog's {name} and change nothing"
        notes.append(Note("repeated-rows", "info", message, {"table": name, "rows": repeated}))
    if replaced:
        which = words.listed(replaced, joint="; ")
        message = f"{part.where}: {len(replaced)} rows replace the catalog's {name}: {which}"
        notes.append(Note("replaced-rows", "warning", message, {"table": name, "rows": replaced}))
    return dataclasses.replace(catalog, **{name: _append(result, new)}, notes=tuple(notes))


def _update(result: pd.DataFrame, position: int, row: pd.Series, stated: tuple[str, ...]) -> None:
    """Fill blank cells from the user's row; overwrite the stated ones (and the sources that go with them)."""
    for column in result.columns:
        if column not in row.index or _blank(row[column]):
            continue
        cell = result.columns.get_loc(column)
        overwrite = column in stated or (
            bool(stated) and (column == "source" or column.endswith(("_source", "_basis")))
        )
        if overwrite or _blank(result.iloc[position, cell]):
            result.iloc[position, cell] = row[column]


def _refusal(number: int, column: str, row: pd.Series, old: pd.Series, label: str, name: str) -> str:
    source = str(old.get("source") or old.get("params_source") or "")
    origin = source_id(source)[5:] if source.startswith("user:") else "the embedded catalog"
    remedies = {
        "scores": "name who measured yours in a column evaluator",
        "models": "leave the cell blank or rename it",
    }
    remedy = remedies.get(name, "drop the row or rename it")
    return (
        f"row {number}, column {column}: {cell_text(row[column])} for {label}, "
        f"where {origin} has {cell_text(old[column])}; {remedy}"
    )


def _append(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    if new.empty:
        return old.reset_index(drop=True)
    columns = {}
    for name in old.columns:
        cells = new[name] if name in new.columns else [None] * len(new)
        values = [*old[name], *(None if _blank(cell) else cell for cell in cells)]
        columns[name] = pd.Series(values, dtype=old[name].dtype)
    return pd.DataFrame(columns)


def _blank(cell: Any) -> bool:
    return cell is None or bool(pd.isna(cell))


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, float) and isinstance(two, float):
        return bool(np.isclose(one, two, rtol=1e-9, atol=0.0))
    return bool(one == two)


def user_source(where: str) -> str:
    """Return the source id of a user's file.

    Examples
    --------
    >>> user_source("runs/my scores.csv")
    'user:my scores.csv'
    """
    return "user:" + where.replace("\\", "/").rsplit("/", 1)[-1].replace("#", "_")


def complete_scores(part: Part, catalog: Catalog) -> Part:
    """Return the scores with source and series filled in; a known (benchmark, evaluator) keeps its series."""
    rows = part.rows.copy()
    rows["source"] = _sources(rows["source"], part, catalog)
    known = catalog.scores.drop_duplicates(["benchmark", "evaluator"])
    series = dict(zip(zip(known["benchmark"], known["evaluator"], strict=True), known["series"], strict=True))
    keys = zip(rows["benchmark"], rows["evaluator"], strict=True)
    rows["series"] = _filled(rows["series"], [series.get(key, f"{key[0]}:{key[1]}") for key in keys])
    return dataclasses.replace(part, rows=rows)


def complete_models(part: Part, catalog: Catalog) -> Part:
    """Return the models with family, label, active size, derivation, basis and sources filled in."""
    rows = part.rows.copy()
    rows["family"] = _filled(rows["family"], rows["model"])
    rows["params_label_b"] = rows["params_label_b"].fillna(rows["params_total_b"])
    stated = rows["params_active_b"].notna() | (rows["architecture"] != "dense")
    rows["params_active_b"] = rows["params_active_b"].where(stated, rows["params_total_b"])
    rows["derivation"] = _filled(rows["derivation"], [_DERIVATION.get(kind) for kind in rows["kind"]])
    basis = _filled(rows["released_basis"], ["vendor"] * len(rows))
    rows["released_basis"] = basis.where(rows["released"].notna(), None)
    for fact, column in _SOURCE_OF.items():
        rows[column] = _sources(rows[column], part, catalog).where(rows[fact].notna(), None)
    return dataclasses.replace(part, rows=rows)


def _sources(cells: pd.Series, part: Part, catalog: Catalog) -> pd.Series:
    """Put the file's own id before every source that does not start with a known id."""
    mine, known = user_source(part.where), set(catalog.sources["id"])
    texts = [cell if isinstance(cell, str) else None for cell in cells]
    full = [mine if cell is None else cell if source_id(cell) in known else f"{mine}#{cell}" for cell in texts]
    return pd.Series(full, index=cells.index, dtype=object)


def _filled(cells: pd.Series, default: Any) -> pd.Series:
    values = [new if old is None or pd.isna(old) else old for old, new in zip(cells, default, strict=True)]
    return pd.Series(values, index=cells.index, dtype=object)


def check_models(rows: pd.DataFrame, catalog: Catalog, where: str) -> None:
    """Refuse models whose sizes contradict each other or whose parent is unknown.

    Parameters
    ----------
    rows : pandas.DataFrame
        Models as declared; the index holds row numbers for messages.
    catalog : Catalog
        The catalog that the rows refer to (and are part of).
    where : str
        Name of the table in messages.

    Raises
    ------
    TableError
        With every problem: row, column, value, remedy.
    """
    problems = [
        *_above(rows, "params_active_b", 1.0),
        *_above(rows, "params_non_embedding_b", ROUNDING),
        *_unknown(
            rows,
            "derived_from",
            catalog.models["model"],
            "leave it blank and name the parent in notes, or add the parent",
        ),
    ]
    for column in (name for name in rows.columns if name.endswith("_source")):
        problems += _unknown_sources(rows, column, catalog)
    if problems:
        raise TableError(where, problems)


def check_scores(rows: pd.DataFrame, catalog: Catalog, where: str) -> None:
    """Refuse scores whose model, benchmark, evaluator or source is unknown.

    Parameters
    ----------
    rows, catalog, where
        As in :func:`check_models`.

    Raises
    ------
    TableError
        With every problem: row, column, value, nearest known name, remedy.
    """
    problems = [
        *_unknown(rows, "model", catalog.models["model"], "add it to a table of models first"),
        *_unknown(rows, "benchmark", catalog.benchmarks["id"], "declare it in benchmarks.csv beside the scores"),
        *_unknown(rows, "evaluator", catalog.evaluators["id"], "declare it in evaluators.csv beside the scores"),
        *_unknown_sources(rows, "source", catalog),
    ]
    if problems:
        raise TableError(where, problems)


def check_benchmarks(rows: pd.DataFrame, catalog: Catalog, where: str) -> None:
    """Refuse benchmarks whose sources are unknown; arguments as in :func:`check_models`."""
    problems = [
        *_unknown_sources(rows, "chance_source", catalog),
        *_unknown_sources(rows, "items_source", catalog),
    ]
    if problems:
        raise TableError(where, problems)


def source_id(source: str) -> str:
    """Return the id in front of ``#``.

    Examples
    --------
    >>> source_id("obsscaling#eval_results/base_llm_benchmark_eval.csv")
    'obsscaling'
    """
    return source.split("#", 1)[0]


def _above(rows: pd.DataFrame, column: str, factor: float) -> list[str]:
    wrong = rows[rows[column] > rows["params_total_b"] * factor]
    return [
        f"row {number}, column {column}: {row[column]:g} is above the total of {row['params_total_b']:g}; "
        "the total counts everything, in billions"
        for number, row in wrong.iterrows()
    ]


def _unknown(rows: pd.DataFrame, column: str, known: Iterable[str], remedy: str) -> list[str]:
    names = set(known)
    cells = rows[column].dropna()
    return [
        f"row {number}, column {column}: {value!r} is not in the catalog{hint}; {remedy}"
        for number, value, hint in _strangers(cells[~cells.isin(names)], names)
    ]


def _unknown_sources(rows: pd.DataFrame, column: str, catalog: Catalog) -> list[str]:
    if column not in rows.columns:
        return []
    names = set(catalog.sources["id"])
    cells = rows[column].dropna()
    return [
        f"row {number}, column {column}: {value!r} names no known source{hint}; "
        "declare it in sources.csv beside the table"
        for number, value, hint in _strangers(cells[~cells.map(source_id).isin(names)], names)
    ]


def _strangers(cells: pd.Series, known: set[str]) -> Iterator[tuple[int, str, str]]:
    """Yield row, value and the nearest known name; a search through all names only for problems that are shown."""
    for i, (number, value) in enumerate(cells.items()):
        near = difflib.get_close_matches(source_id(value), sorted(known), n=1) if i < SHOWN_PROBLEMS else []
        yield number, value, f" (nearest: {near[0]!r})" if near else ""
