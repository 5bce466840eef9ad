"""The catalog as one frozen value, with a digest of what it holds."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from densing.core import Note

FRAMES = ("models", "scores", "benchmarks", "evaluators", "sources")


@dataclass(frozen=True, eq=False)
class Catalog:
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
        whole = hashlib.sha256()
        for name in FRAMES:
            frame: pd.DataFrame = getattr(self, name)
            columns = sorted(map(str, frame.columns))
            cells = zip(*(map(_canonical, frame[column]) for column in columns), strict=True)
            lines = sorted("\x1f".join(row) for row in cells)
            whole.update("\x1e".join([name, "\x1f".join(columns), *lines, ""]).encode())
        return whole.hexdigest()

    def __repr__(self) -> str:
        """Return counts and the start of the digest."""
        return f"Catalog({len(self.models)} models, {len(self.scores)} scores, digest {self.digest[:12]})"


def _canonical(cell: Any) -> str:
    if cell is None or pd.isna(cell):
        return ""
    if isinstance(cell, pd.Timestamp):
        return str(cell.date())
    if isinstance(cell, bool):
        return str(cell)
    return repr(float(cell)) if isinstance(cell, int | float) else str(cell)
