"""densing: capability per parameter, how fast it grows, and what it costs.

Everything public is named here and imported on first use, so that ``import densing`` costs nothing.

Examples
--------
>>> import densing
>>> reference = densing.load_reference("qwen1.5", "mmlu")
>>> densing.catalog_densities(densing.load_catalog(), reference).table["status"].isin(
...     ["ok", "extrapolated", "below_floor", "above_ceiling"]).all()
np.True_
"""

import logging
import warnings

import lazy_loader as lazy

# What modules log goes where the program that imports them says; the command line says it by -q and -v.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = "0.2.0"

_imported, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
__all__ += ["__version__"]

RENAMED = {
    "RulerComparison": "ReferenceComparison",
    "compare_rulers": "compare_references",
    "joint_ruler": "joint_reference",
    "rehearse_forecasts": "backtest_forecasts",
    "ruler_by_families": "reference_by_families",
}
"""Names of the last version that go with the next one, and what they are called now."""

GUESSES = {
    "density": "table_densities(scores, reference) gives densities of a table, "
    "catalog_densities(catalog, reference) those of the catalog's models",
    "evaluate": "run_plan(plan, out) evaluates models, read_results(path) reads what was evaluated",
    "fit": "fit_law('chinchilla', runs) fits a law to a table of runs",
    "load_density": "table_densities(scores, reference) reads a table of scores",
    "load_profile": "profile_run(path) reads the traces of a run",
    "load_results": "read_results(path) reads results of lm-eval, lighteval, OpenCompass and densing eval; "
    "run_densities(path) turns them into densities",
    "load_ruler": "load_reference(name, benchmark) loads a reference",
    "load_scores": "load_catalog(path) joins a table of scores to the catalog, table_densities(path, reference) reads "
    "it alone",
    "load_traces": "profile_run(path) profiles traces, read_timeline(paths) reads them",
    "plot": "results draw themselves: density.plot(), trend.plot(); plot_density(density, trend) draws both",
    "plot_trend": "plot_density(density, trend) draws a trend with its models, trend.plot() its estimates",
    "trend": "estimate_trend(TrendData.from_density(density)) estimates a trend",
}
"""What people try first that does not exist, and what does."""


def __getattr__(name: str) -> object:
    """Import a public name on first use; of what is none, say what there is instead."""
    if name in __all__ or name.startswith("_"):
        return _imported(name)
    if name in RENAMED:
        message = f"densing.{name} is now densing.{RENAMED[name]}; the next version removes the old name"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return _imported(RENAMED[name])
    try:
        return _imported(name)
    except AttributeError:
        from densing.core import nearest

        near = [f"densing.{other}" for other in nearest(name, __all__)]
        hint = GUESSES.get(name) or (
            f"did you mean {' or '.join(near)}?" if near else "dir(densing) lists what there is"
        )
        raise AttributeError(f"module 'densing' has no attribute {name!r}; {hint}") from None
