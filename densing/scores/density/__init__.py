"""Density: effective parameters per parameter, with a status and an interval for every model."""

from densing.scores.density.combine import combined_densities
from densing.scores.density.invert import DEFAULT_GUARD, DENOMINATORS, estimate_density
from densing.scores.density.result import DensityResult
from densing.scores.density.rulers import RulerComparison, compare_rulers
from densing.scores.density.runs import RunDensities, run_densities
from densing.scores.density.scatter import Scatter, model_scatter
from densing.scores.density.skills import skill_densities
from densing.scores.density.targets import catalog_densities, table_densities

__all__ = [
    "DEFAULT_GUARD",
    "DENOMINATORS",
    "DensityResult",
    "RulerComparison",
    "RunDensities",
    "Scatter",
    "catalog_densities",
    "combined_densities",
    "compare_rulers",
    "estimate_density",
    "model_scatter",
    "run_densities",
    "skill_densities",
    "table_densities",
]
