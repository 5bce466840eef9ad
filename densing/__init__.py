"""densing: capability per parameter, how fast it grows, and what it costs.

Everything public is named here and imported on first use, so that ``import densing`` costs nothing.

Examples
--------
>>> import densing
>>> ruler = densing.load_reference("qwen1.5", "mmlu")
>>> densing.catalog_densities(densing.load_catalog(), ruler).table["status"].isin(
...     ["ok", "extrapolated", "below_floor", "above_ceiling"]).all()
np.True_
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "catalog": ("Catalog", "Selection", "add_model", "add_score", "load_catalog", "mean_table", "score_table",
                "strata", "validate_catalog"),
    "density": ("DensityResult", "RulerComparison", "RunDensities", "catalog_densities", "combined_densities",
                "compare_rulers", "estimate_density", "model_scatter", "run_densities", "skill_densities",
                "table_densities"),
    "errors": ("DensingError",),
    "evals.plan": ("Plan",),
    "evals.planfile": ("plan_of",),
    "evals.readers": ("read_results",),
    "evals.runner": ("run_plan",),
    "evals.store": ("RunStore",),
    "fit": ("LawFit", "fit_law"),
    "laws": ("get_law", "invert_one", "law_names"),
    "notes": ("Note",),
    "profile.api": ("profile_run",),
    "profile.run": ("RunProfile",),
    "plots": ("plot_density", "plot_estimates", "plot_multiverse", "plot_reference"),
    "references": ("Reference", "build_reference", "family_names", "load_reference"),
    "report": ("build_replication", "build_report"),
    "study": ("Study", "StudyOptions", "run_study"),
    "timeline": ("Timeline", "read_timeline"),
    "trend": ("TrendData", "TrendResult", "estimate_trend"),
    "trend.forecast": ("date_for", "forecast", "when"),
}  # fmt: skip
_HOME_OF = {name: room for room, names in _HOMES.items() for name in names}
# Rooms that users reach by name: densing.timeline.record(...), densing.training.CO2(...).
_ROOMS = frozenset({"profile", "timeline", "training"})

__all__ = [
    "Catalog",
    "DensingError",
    "DensityResult",
    "LawFit",
    "Note",
    "Plan",
    "Reference",
    "RulerComparison",
    "RunDensities",
    "RunProfile",
    "RunStore",
    "Selection",
    "Study",
    "StudyOptions",
    "Timeline",
    "TrendData",
    "TrendResult",
    "__version__",
    "add_model",
    "add_score",
    "build_reference",
    "build_replication",
    "build_report",
    "catalog_densities",
    "combined_densities",
    "compare_rulers",
    "date_for",
    "estimate_density",
    "estimate_trend",
    "family_names",
    "fit_law",
    "forecast",
    "get_law",
    "invert_one",
    "law_names",
    "load_catalog",
    "load_reference",
    "mean_table",
    "model_scatter",
    "plan_of",
    "plot_density",
    "plot_estimates",
    "plot_multiverse",
    "plot_reference",
    "profile_run",
    "read_results",
    "read_timeline",
    "run_densities",
    "run_plan",
    "run_study",
    "score_table",
    "skill_densities",
    "strata",
    "table_densities",
    "validate_catalog",
    "when",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"densing.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'densing' has no attribute {name!r}")
    value = getattr(import_module(f"densing.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
