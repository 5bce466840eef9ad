"""Density: effective parameters per parameter, with a status and an interval for every model."""

from densing.density.combine import combined_densities
from densing.density.invert import DEFAULT_GUARD, DENOMINATORS, estimate_density
from densing.density.result import DensityResult
from densing.density.rulers import RulerComparison, compare_rulers
from densing.density.runs import RunDensities, run_densities
from densing.density.scatter import Scatter, model_scatter
from densing.density.skills import skill_densities
from densing.density.targets import catalog_densities, table_densities

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
