"""From the options of a command to a ruler and the densities read on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from densing.core import InputError, UnknownNameError

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from densing.core import Note
    from densing.scores.catalog import Catalog
    from densing.scores.density import DensityResult
    from densing.scores.references import Reference

ONE_CURVE, PER_BENCHMARK = "mean-score", "per-benchmark"


def read_densities(
    catalog: Catalog,
    names: tuple[str, str],
    *,
    combine: str,
    tokens: float | None,
    pool: bool,
    **asked: Any,
) -> tuple[Reference, DensityResult]:
    """Return the ruler and the densities of the catalog's models.

    Parameters
    ----------
    catalog : Catalog
        Embedded, or with a user's rows.
    names : tuple of str
        Reference and benchmark.
    combine : {"mean-score", "per-benchmark"}
        One curve on the mean score, or the mean of the logarithms of single densities.
    tokens, pool, **asked
        As the options of the commands.

    Raises
    ------
    InputError
        When the choices do not go together.
    """
    from densing.scores.density import catalog_densities, combined_densities
    from densing.scores.references import load_reference

    reference, benchmark = names
    ruler = load_reference(reference, benchmark, tokens=tokens, catalog=catalog)
    if combine == ONE_CURVE:
        return ruler, catalog_densities(catalog, ruler, pool=pool, **asked)
    if combine != PER_BENCHMARK:
        raise UnknownNameError("--combine", combine, (ONE_CURVE, PER_BENCHMARK))
    if len(ruler.benchmarks) < 2 or pool:
        raise InputError(
            "--combine per-benchmark needs --benchmark mean (or a skill of several benchmarks), and no --pool"
        )
    parts = [load_reference(reference, name, tokens=tokens, catalog=catalog) for name in ruler.benchmarks]
    return ruler, combined_densities(catalog, ruler, parts, **asked)


def curve_name(benchmark: str, combine: str) -> str:
    """Return what densities were read on, for titles.

    Examples
    --------
    >>> curve_name("mean", PER_BENCHMARK)
    'mean, per benchmark'
    """
    return f"{benchmark}, per benchmark" if combine == PER_BENCHMARK else benchmark


def read_runs(paths: list[Path], params: dict[str, float]) -> tuple[pd.DataFrame, pd.DataFrame, tuple[Note, ...]]:
    """Return measurements, models and notes of runs of ``densing eval`` or folders of foreign results.

    Parameters
    ----------
    paths : list of path
        Runs, results files or folders of them.
    params : dict
        Sizes by model; the others are those of the results, else of the catalog by name.

    Raises
    ------
    InputError
        When a path holds no result that is known.
    """
    import pandas as pd

    from densing.scores.catalog import with_sizes
    from densing.scores.evals import read_results

    read = [read_results(path) for path in paths]
    models, sizes = with_sizes(pd.concat([found.models for found in read], ignore_index=True), params)
    return (
        pd.concat([found.measurements for found in read], ignore_index=True),
        models,
        (*(note for found in read for note in found.notes), *sizes),
    )


def parse_params(given: list[str]) -> dict[str, float]:
    """Return the sizes of ``--params NAME=COUNT``.

    Raises
    ------
    InputError
        When one is no name and count.

    Examples
    --------
    >>> parse_params(["meta-llama/Llama-2-13b-hf=13e9"])
    {'meta-llama/Llama-2-13b-hf': 13000000000.0}
    """
    sizes: dict[str, float] = {}
    for text in given:
        name, _, number = text.rpartition("=")
        try:
            size = float(number)
        except ValueError:
            size = 0.0
        if not name or not 1e3 <= size <= 1e15:
            raise InputError(f"--params {text}: write NAME=COUNT with a count of parameters, 13e9 for 13 billion")
        if sizes.setdefault(name, size) != size:
            raise InputError(f"--params {text}: {name} has {sizes[name]:g} already; give one size")
    return sizes
