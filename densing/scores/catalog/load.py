"""The embedded catalog, alone or with a user's tables joined to it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd

from densing.core import read_table
from densing.scores.catalog.extras import read_extra
from densing.scores.catalog.merging import merge
from densing.scores.catalog.schema import BENCHMARKS, EVALUATORS, SCORES, SOURCES, models_table
from densing.scores.catalog.store import Catalog

DATA = Path(__file__).parent / "data"


def load_catalog(*extra: Path | str, replace: bool = False, embedded: bool = True) -> Catalog:
    """Return the embedded catalog with a user's tables joined to it.

    Parameters
    ----------
    *extra : path
        Folders or CSV files: models, scores, or both in one table (see :mod:`densing.scores.catalog.extras`). Rows
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
