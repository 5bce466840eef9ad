"""What a user's table leaves out, filled in: source, series, family, active size of dense models."""

from __future__ import annotations

import dataclasses
from typing import Any

import pandas as pd

from densing.scores.catalog.checks import source_id
from densing.scores.catalog.extras import Part
from densing.scores.catalog.store import Catalog

_DERIVATION = {"base": "scratch", "continued": "continued", "instruct": "instruct_tuned"}
_SOURCE_OF = {
    "released": "released_source",
    "params_total_b": "params_source",
    "params_non_embedding_b": "non_embedding_source",
    "tokens_t": "tokens_source",
}


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
    given = rows["params_active_b"].notna() | (rows["architecture"] != "dense")
    rows["params_active_b"] = rows["params_active_b"].where(given, rows["params_total_b"])
    rows["derivation"] = _filled(rows["derivation"], [_DERIVATION.get(kind) for kind in rows["kind"]])
    basis = _filled(rows["released_basis"], ["vendor"] * len(rows))
    rows["released_basis"] = basis.where(rows["released"].notna(), None)
    for fact, column in _SOURCE_OF.items():
        rows[column] = _sources(rows[column], part, catalog).where(rows[fact].notna(), None)
    return dataclasses.replace(part, rows=rows)


def _sources(cells: pd.Series, part: Part, catalog: Catalog) -> pd.Series:
    """Put the file's own id before every source that does not start with a known id."""
    mine, known = user_source(part.where), set(catalog.sources["id"])
    named = [cell if isinstance(cell, str) else None for cell in cells]
    full = [mine if cell is None else cell if source_id(cell) in known else f"{mine}#{cell}" for cell in named]
    return pd.Series(full, index=cells.index, dtype=object)


def _filled(cells: pd.Series, default: Any) -> pd.Series:
    values = [new if old is None or pd.isna(old) else old for old, new in zip(cells, default, strict=True)]
    return pd.Series(values, index=cells.index, dtype=object)
