"""Densities per skill beside the one of the mean score: knowledge, reasoning, mathematics, code."""

from __future__ import annotations

import pandas as pd

from densing.catalog import Catalog, Selection
from densing.density.invert import DEFAULT_GUARD
from densing.density.targets import catalog_densities
from densing.references import SKILLS, available_benchmarks, load_reference

COLUMNS = ["model", "skill", "benchmarks", "n_eff", "density", "density_lo", "density_hi", "status", "bound",
           "interval", "density_lo_measured", "density_hi_measured"]  # fmt: skip


def skill_densities(
    catalog: Catalog,
    reference: str,
    *,
    selection: Selection | None = None,
    denominator: str = "total",
    guard: float = DEFAULT_GUARD,
    seed: int = 0,
) -> pd.DataFrame:
    """Return one density per model and skill, each from one curve on the mean score of that skill's benchmarks.

    Noise of scores and draws of curves are independent between skills.

    Parameters
    ----------
    catalog : Catalog
        Models and scores.
    reference : str
        Name of a reference family. A user's own fit measures one thing and has no skills.
    selection : Selection, optional
        Which models; the headline's by default.
    denominator, guard, seed
        As in :func:`densing.density.estimate_density`.

    Returns
    -------
    pandas.DataFrame
        Columns :data:`COLUMNS`. A skill that no evaluator measured on the family, or on which the family sits at
        chance, has no rows.
    """
    parts = []
    shipped = [] if reference.endswith(".json") else available_benchmarks(reference)
    for skill in (name for name in SKILLS if name in shipped):
        ruler = load_reference(reference, skill)
        table = catalog_densities(
            catalog, ruler, selection=selection, denominator=denominator, guard=guard, seed=seed
        ).table
        table = table[table["stratum"] == "headline"]
        parts.append(table.assign(skill=skill, benchmarks=", ".join(ruler.benchmarks))[COLUMNS])
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=COLUMNS)
