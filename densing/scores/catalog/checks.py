"""Checks that need more than one table: does everything a row refers to exist, and do its sizes agree?"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

import pandas as pd

from densing.core import SHOWN_PROBLEMS, TableError
from densing.scores.catalog.store import Catalog

# Sizes without embeddings are often rounded up in vendors' tables, totals rounded down.
ROUNDING = 1.02


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
    for place, (number, value) in enumerate(cells.items()):
        yield number, value, _nearest(source_id(value), known) if place < SHOWN_PROBLEMS else ""


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f" (nearest: {near[0]!r})" if near else ""
