"""How tables of doubling times are shown: columns and whole tables, on a terminal, in a notebook and on a page."""

from __future__ import annotations

import pandas as pd

from densing.core import Field, Listing, column, flag, formatting, numeric, ranged
from densing.scores.density import RELEASED, limited
from densing.scores.trend.estimators import PAPERS_OWN, held_truth

MONTHS = numeric("Doubling, months", "doubling_months", formatting.months)
MONTHS_INTERVAL = Field("95 % interval", lambda row: formatting.short_interval(row.get("lo"), row.get("hi")), "lo")
YEAR = numeric("Last twelve months", "year_months", formatting.months, optional=True)
YEAR_INTERVAL = Field(
    "Its interval",
    lambda row: formatting.short_interval(row.get("year_lo"), row.get("year_hi")),
    "year_lo",
    optional=True,
)
FAMILIES = numeric("Families", "families", formatting.count)
ESTIMATES = (
    Field("Estimator", lambda row: formatting.clean(row.get("label", row.get("method")))),
    MONTHS,
    MONTHS_INTERVAL,
    Field(
        "Held the truth",
        lambda row: held_truth(str(row.get("method"))) or formatting.MISSING,
        hint="Share of simulated worlds whose truth its 95 % interval held",
    ),
    numeric("Slope per day", "slope_per_day"),
    numeric("Rows", "n", formatting.count),
    numeric("Families", "clusters", formatting.count),
    numeric("Dropped", "dropped", formatting.count, hint="Censored rows the estimator cannot use"),
    Field("Standard error", column("se_type")),
)
RECORDS = (
    Field("Model", column("model")),
    RELEASED,
    Field("Density", limited("density"), "density"),
    Field("Interval", lambda row: f"{formatting.number(row['lo'])} to {formatting.number(row['hi'])}", "lo",
          hint="95 %, as measured"),
    Field("Record", lambda row: "yes" if flag(row["record"]) else "perhaps", hint="By its middle value"),
    numeric("Probability", "probability", formatting.percentage,
            hint="Share of joint draws of all densities in which it was a record when it came"),
)  # fmt: skip
GROUPS = (
    Field("Group", column("label")),
    numeric("Doubling, months", "doubling_months", formatting.months, optional=True),
    MONTHS_INTERVAL,
    numeric("Models", "models", formatting.count, optional=True),
    numeric("Families", "families", formatting.count, optional=True),
    numeric("From", "first", formatting.day, optional=True),
    numeric("Until", "last", formatting.day, optional=True),
    numeric("Estimate", "estimate", optional=True),
    Field("Interval of it", ranged("estimate", formatting.number), "estimate_lo", optional=True),
    numeric("p", "p", optional=True),
    Field("Status", column("status"), optional=True),
)
"""Of :data:`densing.scores.trend.answers.ROW_COLUMNS`."""


def estimates_listing(estimates: pd.DataFrame, title: str) -> Listing:
    """Return the estimators side by side, the headline marked; the paper's own stand by themselves."""
    return Listing(title, estimates[~estimates["method"].isin(PAPERS_OWN)], ESTIMATES, "headline")
