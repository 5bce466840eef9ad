"""Vintages: the headline recomputed at earlier dates.

At each half-year the catalog is frozen, the joint scale and its reference are fitted to what was known then, and the
pace is fitted to the densities that they give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from densing.core import DensingError, Field, Listing, column, formatting, numeric
from densing.scores.catalog import Catalog, Selection
from densing.scores.density import DEFAULT_GUARD, catalog_densities
from densing.scores.joint import JointScale, catalog_scale
from densing.scores.references import joint_reference
from densing.scores.trend import (
    FAMILIES,
    MONTHS,
    MONTHS_INTERVAL,
    YEAR,
    YEAR_INTERVAL,
    TrendData,
    doubling_text,
    fit_pace,
    freeze,
)

SINCE = "2023-02-24"
FIRST = "2023-12-31"
COLUMNS = [
    "vintage",
    "n",
    "families",
    "doubling_months",
    "lo",
    "hi",
    "year_months",
    "year_lo",
    "year_hi",
    "growing",
    "reason",
]
Step = Callable[[str, float], object]


def half_years(catalog: Catalog, first: str = FIRST) -> list[pd.Timestamp]:
    """Return the ends of half-years from ``first`` on that lie before the newest release, and that release.

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> dates = half_years(load_catalog())
    >>> str(dates[0].date()), str(dates[1].date())
    ('2023-12-31', '2024-06-30')
    """
    last = pd.Timestamp(catalog.models["released"].max()).normalize()
    ends = pd.date_range(first, last, freq="6ME")
    return [*ends[ends < last], last]


def vintages_listing(table: pd.DataFrame) -> Listing:
    """Return what the headline would have said at earlier dates, of :func:`vintages`, as people read it."""
    fields = (
        numeric("As of", "vintage", formatting.day),
        MONTHS,
        MONTHS_INTERVAL,
        YEAR,
        YEAR_INTERVAL,
        numeric("Grew", "growing", formatting.percentage, hint="Probability, over these twelve months"),
        numeric("Models", "n", formatting.count),
        FAMILIES,
        Field("Why not", column("reason"), minor=True, optional=True),
    )
    return Listing("What the headline would have said, in months.", table, fields)


def vintages(
    catalog: Catalog,
    dates: Iterable[Any] | None = None,
    *,
    since: str | None = SINCE,
    selection: Selection | None = None,
    guard: float = DEFAULT_GUARD,
    scale: Callable[[Catalog], JointScale] = catalog_scale,
    seed: int = 0,
    step: Step = lambda label, share: None,
) -> pd.DataFrame:
    """Return the headline at earlier dates, everything refitted on what was known then.

    Parameters
    ----------
    catalog : Catalog
    dates : iterable of date-like, optional
        Cut-off dates; the ends of half-years since 2023 and the newest release by default.
    since : str, optional
        Beginning of the window.
    selection : Selection, optional
        Models of the headline.
    guard : float
        See :func:`densing.scores.density.estimate_density`.
    scale : callable
        Fits the joint scale of a catalog; kept on disk by default, a minute or two each the first time.
    seed : int
    step : callable
        Called with a label and the share done, for progress bars.

    Returns
    -------
    pandas.DataFrame
        A row per date: ``vintage``, models and families known then (``n, families``), the doubling time over the window
        (``doubling_months, lo, hi``) and over its last twelve months (``year_months, year_lo, year_hi``), the
        probability that density grew over these (``growing``), and where nothing could be estimated the ``reason``.

    Examples
    --------
    A chain of forty sweeps is enough for an example, not for figures.

    >>> from densing.scores.catalog import load_catalog
    >>> from densing.scores.joint import fit_joint, joint_cells
    >>> short = lambda catalog: fit_joint(joint_cells(catalog), chains=1, sweeps=9, burn=6, draws=9)
    >>> vintages(load_catalog(), ["2022-12-31", "2023-12-31"], scale=short)["reason"].eq("").tolist()
    [False, True]
    """
    last = pd.Timestamp(catalog.models["released"].max()).normalize()
    chosen = half_years(catalog) if dates is None else [pd.Timestamp(date) for date in dates]
    rows = []
    for turn, date in enumerate(chosen):
        step(f"as of {formatting.day(date)}", turn / len(chosen))
        # As of the newest release everything is known, undated models too: that is the headline itself.
        known = catalog if date >= last else freeze(catalog, date)
        row: dict[str, Any] = {"vintage": date, "reason": ""}
        try:
            reference = joint_reference(known, scale=scale(known), seed=seed)
            result = catalog_densities(known, reference, selection=selection or Selection(), guard=guard, seed=seed)
            data = TrendData.from_density(result.headline).window(since, None)
            fit = fit_pace(data, seed=seed)
            for names, slope in ((COLUMNS[3:6], fit.window), (COLUMNS[6:9], fit.last_year)):
                row |= dict(zip(names, slope.doubling, strict=True))
            row |= {"n": fit.models, "families": fit.families, "growing": fit.growing}
        except DensingError as error:
            row["reason"] = str(error)
        rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS).astype({"n": "Int64", "families": "Int64"})


def vintage_sentence(table: pd.DataFrame) -> str:
    """Say how the headline changed from the first vintage to the last; empty if fewer than two have one.

    Examples
    --------
    >>> row = {"vintage": pd.Timestamp("2023-12-31"), "doubling_months": 2.0, "lo": 1.0, "hi": 9.0, "reason": ""}
    >>> later = {**row, "vintage": pd.Timestamp("2024-06-30"), "doubling_months": 4.0, "lo": 3.0}
    >>> vintage_sentence(pd.DataFrame([row, later])).split(";")[0]
    'Asked at the end of December 2023 the headline would have been 2.0 months (1.0 to 9.0)'
    """
    if table.empty:
        return ""
    known = table[table["reason"].fillna("").eq("") & np.isfinite(table["doubling_months"].astype(float))]
    if len(known) < 2:
        return ""
    texts = [
        f"at the end of {formatting.month(row.vintage)} {'the headline would have been ' if not at else ''}"
        f"{doubling_text(row.doubling_months, row.lo, row.hi)}"
        for at, row in enumerate(known.itertuples())
    ]
    return f"Asked {'; '.join(texts)}."
