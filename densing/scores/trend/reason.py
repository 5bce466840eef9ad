"""Why the headline is the headline: read from the table of simulations that `make coverage-table` measures."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd

from densing.core import Column, Table, read_table

FILE = Path(__file__).parent / "data" / "coverage.csv"
TABLE = Table(
    "coverage",
    (
        Column("scenario", "text", "simulated world", required=True),
        Column("method", "text", "estimator", required=True),
        Column("reps", "integer", "worlds that gave a slope", required=True, low=1),
        Column("median_doubling_months", "number", "median estimate; the truth is 3.5", required=True),
        Column("coverage", "number", "share of 95 % intervals that hold the truth", required=True, low=0, high=1),
    ),
    key=("scenario", "method"),
)
ORGANISATIONS = "tobit-crv3-organisations"
"""The headline's estimator with organisations in place of families as clusters."""
OTHERS = {"envelope": "record-setters", "ols-crv3": "least squares without the rows beyond the ruler"}


@cache
def measured() -> pd.DataFrame:
    """Return the table of measured coverages: scenario, method, reps, median_doubling_months, coverage."""
    return read_table(FILE, TABLE, FILE.name)


@cache
def why(headline: str) -> str:
    """Return in words how the headline's estimator and its rivals did where the answer was known.

    Examples
    --------
    >>> why("tobit-crv3").startswith("Why this estimator: in simulations with a true 3.5 months")
    True
    """
    table = measured()
    reps = int(table["reps"].max())
    rows = table[table["method"] == headline]
    least = rows.loc[rows["coverage"].idxmin(), "scenario"]
    rivals = "; ".join(f"{name} read {_ranges(table, method)}" for method, name in OTHERS.items())
    by_makers = table.loc[table["method"] == ORGANISATIONS, "coverage"]
    return (
        f"Why this estimator: in simulations with a true 3.5 months ({table['scenario'].nunique()} kinds of world, "
        f"{reps} of each) it read {_ranges(table, headline)}, least often in worlds with {least}"
        f"{f' (where organisations as clusters give {_percent(by_makers)})' if len(by_makers) else ''}; {rivals}."
    )


def held_truth(method: str) -> str:
    """Return how often a method's 95 % interval held the truth over the simulated worlds; empty where not measured.

    Examples
    --------
    >>> held_truth("a method of one's own")
    ''
    """
    rows = measured()
    shares = rows.loc[rows["method"] == method, "coverage"]
    return _percent(shares) if len(shares) else ""


def _ranges(table: pd.DataFrame, method: str) -> str:
    rows = table[table["method"] == method]
    months = rows["median_doubling_months"]
    return (
        f"{months.min():.1f} to {months.max():.1f} months in the median and its 95 % interval held the truth in "
        f"{_percent(rows['coverage'])} of them"
    )


def _percent(shares: pd.Series) -> str:
    low, high = (f"{100 * share:.0f}" for share in (shares.min(), shares.max()))
    return f"{low} %" if low == high else f"{low} to {high} %"
