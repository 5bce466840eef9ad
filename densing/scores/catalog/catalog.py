"""The catalog as one frozen value with a digest of what it holds, and the groups of families beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from densing.core import Card, Note, Readable, read_table
from densing.scores.catalog.schema import GROUPS

DATA = Path(__file__).parent / "data"
FRAMES = ("models", "scores", "benchmarks", "evaluators", "sources")


@dataclass(frozen=True, eq=False, repr=False)
class Catalog(Readable):
    """Models, scores and where every figure comes from.

    Parameters
    ----------
    models, scores, benchmarks, evaluators, sources : pandas.DataFrame
        One row per model, per (model, benchmark, evaluator), per benchmark, evaluator and source; columns as
        declared in :mod:`densing.scores.catalog.schema`. Missing text is None, sizes are in billions.
    notes : tuple of Note
        What happened while tables were merged.

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> catalog = load_catalog()
    >>> len(catalog.models) >= 200, len(catalog.benchmarks) >= 12
    (True, True)

    See Also
    --------
    load_catalog
    """

    models: pd.DataFrame
    scores: pd.DataFrame
    benchmarks: pd.DataFrame
    evaluators: pd.DataFrame
    sources: pd.DataFrame
    notes: tuple[Note, ...] = field(default=())

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the content of the five tables, whatever the order of their rows and columns."""
        digest = hashlib.sha256()
        for name in FRAMES:
            frame: pd.DataFrame = getattr(self, name)
            columns = sorted(map(str, frame.columns))
            cells = zip(*(map(_canonical, frame[column]) for column in columns), strict=True)
            lines = sorted("\x1f".join(row) for row in cells)
            digest.update("\x1e".join([name, "\x1f".join(columns), *lines, ""]).encode())
        return digest.hexdigest()

    def card(self) -> Card:
        """Return what is shown: how much there is, from when to when, and the start of the digest."""
        dates = pd.to_datetime(self.models["released"]).dropna()
        facts = {
            "benchmarks": str(self.scores["benchmark"].nunique()),
            "evaluators": str(self.scores["evaluator"].nunique()),
            "released": f"{dates.min().date()} to {dates.max().date()}" if len(dates) else "",
            "digest": self.digest[:12],
        }
        return Card(f"Catalog of {len(self.models)} models and {len(self.scores)} scores", facts, notes=self.notes)


def _canonical(cell: Any) -> str:
    if cell is None or pd.isna(cell):
        return ""
    if isinstance(cell, pd.Timestamp):
        return str(cell.date())
    if isinstance(cell, bool):
        return str(cell)
    return repr(float(cell)) if isinstance(cell, int | float) else str(cell)


@cache
def family_groups() -> Mapping[str, tuple[str, ...]]:
    """Return the families of every named group: they share a reason to differ, and trends are shown without them too.

    Examples
    --------
    >>> family_groups()["research suites"]
    ('Cerebras-GPT', 'Pythia')
    """
    table = read_groups()
    return {str(name): tuple(rows["family"]) for name, rows in table.groupby("group")}


def read_groups() -> pd.DataFrame:
    """Return the table behind :func:`family_groups`: group, family, reason, source."""
    return read_table(DATA / "groups.csv", GROUPS, "groups.csv")
