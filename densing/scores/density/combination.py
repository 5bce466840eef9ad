"""The other way to combine benchmarks: invert each on its own curve, then average the logarithms of the densities.

The paper's reading is one curve on the mean score. Nonlinear inversion makes the two differ: a density of a mean
score is not a mean of densities.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from densing.core import Array, InputError, Note, formatting
from densing.scores.catalog import Catalog, Selection
from densing.scores.density.inversion import (
    DEFAULT_GUARD,
    MEASURED,
    SCATTER_UNKNOWN,
    DensityResult,
    Scatter,
    joint_scatter,
    over_sizes,
    read_scores,
    size_shifts,
    variance_shares,
)
from densing.scores.density.targets import catalog_densities, joined_protocols
from densing.scores.references import Reference

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

    Noise of scores is independent over benchmarks and averages out. What the family's members have in common on several
    benchmarks, a good or bad recipe, does not: it is estimated from their residuals (:func:`joint_scatter`) and stays
    in the curves' error and in the scatter of models.

    Parameters
    ----------
    catalog : Catalog
        Models and scores.
    mean : Reference
        The family's reference on the mean score, which names the benchmarks.
    parts : list of Reference
        The family's references, one per benchmark.
    selection, denominator, guard, level, seed
        As in :func:`densing.scores.density.catalog_densities`.

    Returns
    -------
    DensityResult
        Models that have every benchmark. Where single densities are bounds, the mean is a bound if they all point
        the same way; models whose bounds point both ways are left out with a note.

    Raises
    ------
    InputError
        When no model has them all.

    See Also
    --------
    catalog_densities

    Examples
    --------
    >>> import densing
    >>> references = [densing.load_reference("qwen1.5", name) for name in densing.load_reference("qwen1.5").benchmarks]
    >>> combined = densing.combined_densities(densing.load_catalog(), densing.load_reference("qwen1.5"), references)
    >>> len(combined.headline) >= 50
    True
    """
    options = {"selection": selection, "denominator": denominator, "guard": guard, "level": level, "seed": seed}
    results = [catalog_densities(catalog, part, **options) for part in parts]  # type: ignore[arg-type]
    return combine_results(results, mean)


def combine_results(results: Sequence[DensityResult], mean: Reference) -> DensityResult:
    """Return the geometric mean of densities that were read on several references of one family.

    Parameters
    ----------
    results : sequence of DensityResult
        One per benchmark, made with the same guard, level and seed.
    mean : Reference
        The reference that the result is filed under.

    Returns
    -------
    DensityResult
        As :func:`combined_densities`.

    Raises
    ------
    InputError
        When no model is in all of them, or every one has bounds that point both ways.
    """
    shared = sorted(set.intersection(*(set(result.table["model"]) for result in results)))
    parts = []
    for result in results:
        positions = pd.Series(range(len(result)), index=result.table["model"])
        parts.append(result.subset(positions[shared].to_numpy()))
    bounds = np.array([part.table["bound"].to_numpy() for part in parts])
    upper, lower = (bounds == "upper").any(axis=0), (bounds == "lower").any(axis=0)
    keep = ~(upper & lower)
    if not keep.any():
        raise InputError(
            f"no model has a density on each of {', '.join(result.reference.benchmark for result in results)}"
        )
    value = np.mean([np.log(part.table["density"].to_numpy(dtype=float)) for part in parts], axis=0)
    size = parts[0].table["n_params"].to_numpy(dtype=float)
    scatter = joint_scatter([part.reference for part in parts])
    # Each part is read again, with the scatter that its benchmarks share.
    with_scatter = []
    for part, own in zip(parts, scatter, strict=True):
        seed = part.options["seed"]
        read = read_scores(part.reference, part.table, part.options["guard"], seed, own)
        shifts = size_shifts(part.table, len(read.model_draws), seed)
        with_scatter.append(over_sizes(read.model_draws, read.limits, shifts) - np.log(size))
    law_draws, draws, model_draws = (
        np.mean(each, axis=0)
        for each in ([part.law_draws for part in parts], [part.draws for part in parts], with_scatter)
    )
    common = (_curve_spread(parts, scatter) - 1) * (law_draws - law_draws.mean(axis=0))
    law_draws, draws, model_draws = law_draws + common, draws + common, model_draws + common
    limits = np.mean([part.log_limits for part in parts], axis=0)
    # A bound lies where its parts put it, not at the ends of the guard.
    limits[upper, 0], limits[lower, 1] = value[upper], value[lower]
    tail = (1 - parts[0].options["level"]) / 2

    def ends(values: Array) -> tuple[Array, Array]:
        low, high = np.quantile(values, [tail, 1 - tail], axis=0)
        return np.where(upper, 0.0, np.exp(low)), np.where(lower, np.inf, np.exp(high))

    scattered = all(own is not None for own in scatter)
    (low, high), recipe = ends(draws), ends(model_draws)
    recipe_low, recipe_high = (end if scattered else np.full(len(end), np.nan) for end in recipe)
    models, protocols = parts[0].table["model"], _protocols(parts)
    table = parts[0].table.assign(
        benchmark=PER_BENCHMARK,
        score=np.mean([part.table["score"].to_numpy(dtype=float) for part in parts], axis=0),
        score_se=np.sqrt(np.sum([part.table["score_se"].to_numpy(dtype=float) ** 2 for part in parts], axis=0))
        / len(parts),
        density=np.exp(value),
        density_lo=low,
        density_hi=high,
        interval=MEASURED if scattered else SCATTER_UNKNOWN,
        density_lo_recipe=recipe_low,
        density_hi_recipe=recipe_high,
        **variance_shares(law_draws, draws, model_draws, scattered),
        n_eff=np.exp(value) * size,
        n_eff_lo=low * size,
        n_eff_hi=high * size,
        status=np.where(upper | lower, "extrapolated", "ok"),
        bound=np.select([upper, lower], ["upper", "lower"], default=""),
        **{name: models.map(protocols[name]) for name in ("protocol", "protocol_detail")},
    )
    options = {**parts[0].options, "combine": PER_BENCHMARK}
    draws, law_draws, model_draws = (
        np.clip(values, limits[:, 0], limits[:, 1]) for values in (draws, law_draws, model_draws)
    )
    notes = list({note.message: note for part in parts for note in part.notes}.values())
    if not keep.all():
        dropped = models[~keep].tolist()
        message = (
            "left out, because above the reference on one benchmark and below it on another: "
            f"{formatting.listed(dropped, 20)}"
        )
        notes.append(Note("bounds-both-ways", "info", message, {"models": dropped}))
    result = DensityResult(table, draws, law_draws, model_draws, limits, mean, options, (*mean.notes, *notes))
    return result.subset(keep)


def _protocols(parts: list[DensityResult]) -> pd.DataFrame:
    """Return by model the worst verdict over the benchmarks, and every detail with its benchmark."""
    tables = []
    for part in parts:
        text = part.table["protocol_detail"].fillna("")
        detail = (part.reference.benchmark + ": " + text).where(text.ne(""), "")
        tables.append(part.table.assign(protocol_detail=detail))
    return joined_protocols(pd.concat(tables)).set_index("model")


def _curve_spread(parts: list[DensityResult], scatter: list[Scatter | None]) -> float:
    """Return by how much the error of the mean over curves exceeds that of the mean over their independent draws.

    Curves are drawn independently. Their members' residuals correlate by c, and the curves' errors with them: the mean
    of B has 1 - c + B c times the variance (Kish's design effect). And each curve is drawn as wide as Student's t on
    its own nu degrees of freedom, while what is not common is known from nu B of them.
    """
    known = [own for own in scatter if own is not None]
    if len(known) < len(parts):
        return 1.0
    count, common, freedom = len(parts), known[0].common, min(own.freedom for own in known)
    fits = [part.reference.fit.options for part in parts]
    surplus = 1.0
    if freedom > 2 and all(fit["scheme"] in ("parametric", "residual") and "steps" not in fit for fit in fits):
        # Variances of Student's t, nu / (nu - 2): on all degrees of freedom over on its own.
        surplus = (freedom * count) / (freedom * count - 2) / (freedom / (freedom - 2))
    return float(np.sqrt((1 - common) * surplus + common * count))
