"""The other way to combine benchmarks: invert each on its own curve, then average the logarithms of the densities.

The paper's reading is one curve on the mean score. Nonlinear inversion makes the two differ: a density of a mean
score is not a mean of densities.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from densing.catalog import Catalog, Selection
from densing.density.invert import DEFAULT_GUARD
from densing.density.result import DensityResult
from densing.density.targets import catalog_densities, joined_protocols
from densing.errors import InputError
from densing.notes import Note
from densing.references import Reference

PER_BENCHMARK = "per-benchmark"


def combined_densities(
    catalog: Catalog,
    mean: Reference,
    parts: list[Reference],
    *,
    selection: Selection | None = None,
    denominator: str = "total",
    guard: float = DEFAULT_GUARD,
    level: float = 0.95,
    seed: int = 0,
) -> DensityResult:
    """Return the geometric mean over benchmarks of each model's densities.

    .. math:: \\ln\\rho(M) = \\frac{1}{B} \\sum_b \\ln\\rho_b(M)

    Parameters
    ----------
    catalog : Catalog
        Models and scores.
    mean : Reference
        The family's ruler on the mean score, which names the benchmarks.
    parts : list of Reference
        The family's rulers, one per benchmark.
    selection, denominator, guard, level, seed
        As in :func:`densing.density.catalog_densities`.

    Returns
    -------
    DensityResult
        Models that have every benchmark. Where single densities are bounds, the mean is a bound if they all point
        the same way; models whose bounds point both ways are left out with a note.

    Raises
    ------
    InputError
        When no model has them all.
    """
    options = {"selection": selection, "denominator": denominator, "guard": guard, "level": level, "seed": seed}
    results = [catalog_densities(catalog, part, **options) for part in parts]  # type: ignore[arg-type]
    shared = sorted(set.intersection(*(set(result.table["model"]) for result in results)))
    aligned = [_in_order(result, shared) for result in results]
    bounds = np.array([result.table["bound"].to_numpy() for result in aligned])
    upper, lower = (bounds == "upper").any(axis=0), (bounds == "lower").any(axis=0)
    keep = ~(upper & lower)
    if not keep.any():
        raise InputError(f"no model has a density on each of {', '.join(part.benchmark for part in parts)}")
    merged = _merge(aligned, mean, upper, lower, level)
    told = joined_protocols(pd.concat([part.table.assign(protocol_detail=_named(part)) for part in aligned]))
    for column in ("protocol", "protocol_detail"):
        merged.table[column] = merged.table["model"].map(told.set_index("model")[column])
    notes = (*mean.notes, *_notes(aligned), *_left_out(merged.table["model"][~keep].tolist()))
    return dataclasses.replace(merged.subset(keep), notes=notes)


def _named(part: DensityResult) -> pd.Series:
    text = part.table["protocol_detail"].fillna("")
    return (part.reference.benchmark + ": " + text).where(text.ne(""), "")


def _in_order(result: DensityResult, models: list[str]) -> DensityResult:
    positions = pd.Series(range(len(result)), index=result.table["model"])
    return result.subset(positions[models].to_numpy())


def _merge(
    parts: list[DensityResult], mean: Reference, upper: np.ndarray, lower: np.ndarray, level: float
) -> DensityResult:
    value = np.mean([np.log(part.table["density"].to_numpy(dtype=float)) for part in parts], axis=0)
    draws = np.mean([part.draws for part in parts], axis=0)
    law_draws = np.mean([part.law_draws for part in parts], axis=0)
    limits = np.mean([part.log_limits for part in parts], axis=0)
    # A bound lies where its parts put it, not at the ends of the guard.
    limits[upper, 0], limits[lower, 1] = value[upper], value[lower]
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    low, high = np.where(upper, -np.inf, low), np.where(lower, np.inf, high)
    first = parts[0].table
    size = first["n_params"].to_numpy(dtype=float)
    table = first.assign(
        benchmark=PER_BENCHMARK,
        score=np.mean([part.table["score"].to_numpy(dtype=float) for part in parts], axis=0),
        score_se=np.sqrt(np.sum([part.table["score_se"].to_numpy(dtype=float) ** 2 for part in parts], axis=0))
        / len(parts),
        density=np.exp(value),
        density_lo=np.exp(low),
        density_hi=np.exp(high),
        n_eff=np.exp(value) * size,
        n_eff_lo=np.exp(low) * size,
        n_eff_hi=np.exp(high) * size,
        status=np.where(upper | lower, "extrapolated", "ok"),
        bound=np.select([upper, lower], ["upper", "lower"], default=""),
    )
    options = {**parts[0].options, "combine": PER_BENCHMARK}
    draws, law_draws = (np.clip(values, limits[:, 0], limits[:, 1]) for values in (draws, law_draws))
    return DensityResult(table, draws, law_draws, limits, mean, options)


def _notes(parts: list[DensityResult]) -> list[Note]:
    return list({note.message: note for part in parts for note in part.notes}.values())


def _left_out(models: list[str]) -> list[Note]:
    if not models:
        return []
    message = f"{len(models)} models lie above the ruler on one benchmark and below it on another; they are left out"
    return [Note("bounds-both-ways", "info", message, {"models": models})]
