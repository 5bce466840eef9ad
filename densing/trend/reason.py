"""Why the headline is the headline: read from the table of simulations that `make coverage-table` measures."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd

from densing.tables import Column, Table, read_table

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
    mine = _ranges(table, headline)
    rivals = "; ".join(f"{name} read {_ranges(table, method)}" for method, name in OTHERS.items())
    return (
        f"Why this estimator: in simulations with a true 3.5 months ({table['scenario'].nunique()} kinds of world, "
        f"{reps} of each) it read {mine}; {rivals}."
    )


def _ranges(table: pd.DataFrame, method: str) -> str:
    rows = table[table["method"] == method]
    months, held = rows["median_doubling_months"], 100 * rows["coverage"]
    return (
        f"{months.min():.1f} to {months.max():.1f} months in the median and its 95 % interval held the truth in "
        f"{held.min():.0f} to {held.max():.0f} % of them"
    )
