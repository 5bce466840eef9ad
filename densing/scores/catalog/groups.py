"""Groups of families that share a reason to differ from the rest; trends are shown without each of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pandas as pd

from densing.core import Column, Table, read_table

FILE = Path(__file__).parent / "data" / "groups.csv"
GROUPS = Table(
    "groups",
    (
        Column("group", "text", "name of the group, in the plural", required=True),
        Column("family", "text", "a family of the catalog", required=True),
        Column("reason", "text", "why its members differ from the rest", required=True),
        Column("source", "text", "where that is said", required=True),
    ),
    key=("group", "family"),
)


@cache
def family_groups() -> Mapping[str, tuple[str, ...]]:
    """Return the families of every named group.

    Examples
    --------
    >>> family_groups()["research suites"]
    ('Cerebras-GPT', 'Pythia')
    """
    table = read_groups()
    return {str(name): tuple(rows["family"]) for name, rows in table.groupby("group")}


def read_groups() -> pd.DataFrame:
    """Return the table behind :func:`family_groups`: group, family, reason, source."""
    return read_table(FILE, GROUPS, FILE.name)
