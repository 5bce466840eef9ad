"""Densities per skill beside the one of the mean score: knowledge, reasoning, mathematics, code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from densing.scores.catalog import Catalog, Selection
from densing.scores.density.invert import DEFAULT_GUARD
from densing.scores.density.result import DensityResult
from densing.scores.density.targets import catalog_densities
from densing.scores.references import SKILLS, available_benchmarks, load_reference

COLUMNS = ["model", "skill", "benchmarks", "n_eff", "density", "protocol", "density_lo", "density_hi", "status",
           "bound", "interval", "density_lo_measured", "density_hi_measured", "protocol_detail"]  # fmt: skip


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
        As in :func:`densing.scores.density.estimate_density`.

    Returns
    -------
    pandas.DataFrame
        Columns :data:`COLUMNS`. A skill that no evaluator measured on the family, or on which the family sits at
        chance, has no rows.
    """
    return skill_table(
        skill_results(catalog, reference, selection=selection, denominator=denominator, guard=guard, seed=seed)
    )


def skill_results(catalog: Catalog, reference: str, **options: Any) -> dict[str, DensityResult]:
    """Return the densities of each skill with their draws and notes; arguments as for :func:`skill_densities`."""
    shipped = [] if reference.endswith(".json") else available_benchmarks(reference)
    rulers = {skill: load_reference(reference, skill) for skill in SKILLS if skill in shipped}
    return {skill: catalog_densities(catalog, ruler, **options) for skill, ruler in rulers.items()}


def skill_table(results: Mapping[str, DensityResult]) -> pd.DataFrame:
    """Return the headline models of :func:`skill_results` in one table, columns :data:`COLUMNS`."""
    parts = [
        result.table[result.table["stratum"] == "headline"].assign(
            skill=skill, benchmarks=", ".join(result.reference.benchmarks)
        )[COLUMNS]
        for skill, result in results.items()
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=COLUMNS)
