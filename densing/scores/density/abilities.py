r"""Densities on the joint scale: abilities of all models, read on the line of ability in ln N.

.. math:: \ln\rho_m = (\theta_m - a) / b - \ln N_m

Abilities, level and slope are drawn together, so what errs for all models at once stays common to them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from densing.core import Array, InputError, Note, formatting, named_stream
from densing.scores.catalog import HEADLINE, MAKERS_OWN, Catalog, Selection, own_figures, strata, verified_dates
from densing.scores.density.inversion import (
    UNGUARDED,
    DensityResult,
    Readings,
    check_options,
    fill_table,
    normals,
    over_sizes,
    size_shifts,
    sizes_of,
    without,
)
from densing.scores.references import JOINT, JointReference, joint_reference

if TYPE_CHECKING:
    from densing.scores.joint import Cells

CARRIED = ("family", "organisation", "released", "kind", "architecture")
FEW_CELLS = 3
"""Below this many cells an ability mostly reflects the prior."""


def joint_densities(
    catalog: Catalog,
    reference: JointReference,
    *,
    selection: Selection | None = None,
    denominator: str = "total",
    guard: float = 3.0,
    level: float = 0.95,
    seed: int = 0,
) -> DensityResult:
    """Return the density of every model on the joint scale.

    Parameters
    ----------
    catalog : Catalog
        The one that the reference's scale was fitted to.
    reference : JointReference
    selection, denominator, guard, level, seed
        As in :func:`densing.scores.density.catalog_densities`.

    Returns
    -------
    DensityResult
        ``score`` and ``score_se`` are the ability (in logits) and its posterior spread; besides the usual columns
        ``cells`` (scores behind the ability) and ``traits`` (how many of the basket's skills were measured). Models
        that nobody but their maker measured had no part in the scale: they are placed on it
        (:func:`~densing.scores.joint.place_makers_own`), have ``own`` set and a ``stratum`` of their own, and so make
        no record, rank or headline.

    Raises
    ------
    InputError
        When no model of the scale has a size.

    See Also
    --------
    catalog_densities
    """
    from densing.scores.joint import GENERAL, catalog_scale, place_makers_own

    check_options(denominator, guard)
    if selection is not None and selection.vendors:
        # Another set of cells is another scale, with a reference of its own.
        scale = catalog_scale(catalog, own="all")
        reference = joint_reference(catalog, reference.benchmark, scale=scale, seed=seed)
    scale = place_makers_own(reference.scale, catalog, seed=seed)
    basket = GENERAL if reference.benchmark == "mean" else reference.benchmark
    abilities, draws = scale.abilities(basket, level), scale.ability(basket)
    models = catalog.models.set_index("model").reindex(abilities["model"])
    labels = strata(catalog, selection).set_index("model")["stratum"]
    behind = _behind(catalog, scale.cells)
    own = abilities["model"].map(behind["own"]).eq(True).to_numpy()
    # A scale that was fitted to such scores was asked to count them.
    apart = own & abilities["model"].isin(scale.placed).to_numpy()
    labels = labels.reindex(abilities["model"]).to_numpy()
    rows = pd.DataFrame(
        {
            "model": abilities["model"],
            **{
                name: models[name].to_numpy() for name in ("family", "organisation", "released", "kind", "architecture")
            },
            "verified": verified_dates(models).to_numpy(),
            "stratum": np.where(apart & (labels == HEADLINE), MAKERS_OWN, labels),
            "n_params": models[f"params_{denominator}_b"].astype(float).to_numpy() * 1e9,
            **sizes_of(models.reset_index(), denominator).to_dict("list"),
            "evaluator": abilities["model"].map(behind["evaluator"]),
            "own": own,
            "score": abilities["ability"],
            "score_se": abilities["sd"],
            "n_sources": abilities["model"].map(behind["evaluators"]),
            "protocol": "joint",
            "protocol_detail": "",
            "source": abilities["model"].map(behind["source"]),
            "cells": abilities["cells"],
            "traits": abilities["traits"],
            "position": np.arange(len(abilities)),
        }
    )
    sized = rows["n_params"].gt(0)
    notes = list(reference.notes)
    if not sized.any():
        raise InputError(f"none of the {len(rows)} models on the joint scale has a size in params_{denominator}_b")
    if not sized.all():
        notes.append(without(rows.loc[~sized, "model"].tolist(), f"{denominator} parameter count"))
    rows = rows[sized].sort_values(["released", "model"], ignore_index=True)
    few = rows.loc[rows["cells"].lt(FEW_CELLS), "model"].tolist()
    if few:
        message = (
            f"{formatting.plural(len(few), 'model')} on the joint scale with fewer than {FEW_CELLS} scores: their "
            f"intervals mostly reflect the prior ({formatting.listed(few)})"
        )
        notes.append(Note("few-cells", "info", message, {"models": few}))
    log_n = np.log(rows["n_params"].to_numpy(dtype=float))
    ability = draws[:, rows["position"].to_numpy()]
    low, high = reference.fit.domain["params"]
    limits = np.log([low / guard, high * guard] if np.isfinite(guard) else UNGUARDED)
    level_draws, slope = reference.fit.draws[:, :1], reference.fit.draws[:, 1:]
    middle = rows["score"].to_numpy(dtype=float)
    point = (middle - reference.fit.theta[0]) / reference.fit.theta[1]
    shift = reference.scatter[:, None] * normals(
        len(draws), seed, ("scatter", JOINT), rows["model"].astype(str).tolist()
    )
    values = Readings(
        point=np.clip(point, *limits),
        status=np.where((point < limits[0]) | (point > limits[1]), "extrapolated", "ok"),
        law_draws=np.clip((middle - level_draws) / slope, *limits),
        draws=np.clip((ability - level_draws) / slope, *limits),
        model_draws=np.clip((ability + shift - level_draws) / slope, *limits),
        limits=limits,
        scattered=True,
    )
    shifts = size_shifts(rows, len(draws), seed)
    table = fill_table(rows.drop(columns="position"), reference, denominator, values, level, shifts)
    table = table.assign(cells=rows["cells"].to_numpy(), traits=rows["traits"].to_numpy())
    options = {"denominator": denominator, "guard": guard, "level": level, "seed": seed}
    return DensityResult(
        table,
        over_sizes(values.draws, limits, shifts) - log_n,
        values.law_draws - log_n,
        over_sizes(values.model_draws, limits, shifts) - log_n,
        limits[None, :] - log_n[:, None],
        reference,
        options,
        (*notes, *catalog.notes),
    )


@lru_cache(maxsize=4)
def _behind(catalog: Catalog, cells: Cells) -> pd.DataFrame:
    """By model, what its cells are: all of its maker's own, evaluators and how many, sources."""
    scores = catalog.scores[["model", "benchmark", "evaluator", "source"]].assign(own=own_figures(catalog))
    by_model = cells.table.merge(scores).groupby("model")
    return pd.DataFrame(
        {
            "own": by_model["own"].all(),
            "evaluator": by_model["evaluator"].agg(_joined),
            "evaluators": by_model["evaluator"].nunique(),
            "source": by_model["source"].agg(_joined),
        }
    )


def reference_by_families(
    catalog: Catalog,
    densities: DensityResult,
    *,
    parts: Sequence[float] = (0.25, 0.5, 1.0),
    further: Sequence[float] = (2.0, 4.0),
    resamples: int = 10,
    seed: int = 0,
) -> pd.DataFrame:
    r"""Say what the reference adds to the spread of densities, with fewer families than it has and with more.

    The slope of ability in ln N is known from families, the level from one anchor: only the first part of the
    reference's variance falls with the number of families F,

    .. math:: \operatorname{var}_m(F) = a_m + b_m / F

    for every model m. References are made from random parts of the families (the anchor is always among them), and the
    line through their variances is continued to more.

    Source: own; the variance of a mean over F clusters falls as 1/F.

    Parameters
    ----------
    catalog : Catalog
        The one that the reference's scale was fitted to.
    densities : DensityResult
        On a joint reference.
    parts, further : sequence of float
        Shares of the families that references are made from, and multiples of them that are projected.
    resamples : int
        References for each share below 1.
    seed : int

    Returns
    -------
    pandas.DataFrame
        ``families, projected, sd`` (of ln density, by the reference), ``share_measured`` and ``share_recipe`` (the
        reference's part of the variance of a measured density, and of a recipe's): means over the models inside the
        reference.

    Raises
    ------
    InputError
        For densities on another reference.

    See Also
    --------
    joint_densities
    """
    reference = densities.reference
    if not isinstance(reference, JointReference):
        raise InputError(
            f"reference {reference.name} is one family: its error by number of families needs a joint reference"
        )
    family = np.unique(reference.points["family"].to_numpy(dtype=str))
    others = family[family != reference.anchor]
    inside = densities.table["bound"].eq("").to_numpy()
    score, log_n = (densities.table.loc[inside, name].to_numpy(dtype=float) for name in ("score", "n_params"))
    limits = densities.log_limits[inside] + np.log(log_n)[:, None]
    ability, scatter = (
        np.maximum(more.var(axis=0) - less.var(axis=0), 0)[inside]
        for more, less in ((densities.draws, densities.law_draws), (densities.model_draws, densities.draws))
    )

    def variance(kept: Array) -> Array:
        """Return the variance of each ln density by a reference of the anchor and these families."""
        left_out = np.setdiff1d(others, kept)
        models = catalog.models.assign(family=catalog.models["family"].mask(catalog.models["family"].isin(left_out)))
        part = joint_reference(replace(catalog, models=models), reference.benchmark, scale=reference.scale, seed=seed)
        read = (score - part.fit.draws[:, :1]) / part.fit.draws[:, 1:]
        return np.asarray(np.clip(read, limits[:, 0], limits[:, 1]).var(axis=0))

    rng = named_stream(seed, "families", "parts")
    counts = np.array([max(round(share * len(family)), 2) for share in parts])
    rows = np.stack(
        [
            np.mean(
                [variance(rng.choice(others, count - 1, replace=False)) for _ in range(resamples)]
                if count < len(family)
                else [variance(others)],
                axis=0,
            )
            for count in counts
        ]
    )
    slope, level = np.polynomial.polynomial.polyfit(1 / counts, rows, 1)[::-1]
    more = np.array([round(factor * len(family)) for factor in further])
    # A line through three noisy points may fall below zero, which a variance does not.
    projected = np.maximum(level, 0) + np.maximum(slope, 0) / more[:, None]
    by_reference = np.concatenate([rows, projected])
    measured, recipe = by_reference + ability, by_reference + ability + scatter
    return pd.DataFrame(
        {
            "families": [*counts, *more],
            "projected": [False] * len(counts) + [True] * len(more),
            "sd": np.sqrt(by_reference.mean(axis=1)),
            "share_measured": (by_reference / measured).mean(axis=1),
            "share_recipe": (by_reference / recipe).mean(axis=1),
        }
    )


NOT_LINKED = "not linked"
ENDS = ("at-ceiling", "at-floor")
# Without a link there is no number, whatever the fit makes of its priors.
NUMBERS = ["n_eff", "n_eff_lo", "n_eff_hi", "density", "density_lo", "density_hi", "density_lo_recipe",
           "density_hi_recipe", "share_ability", "share_ruler", "share_scatter"]  # fmt: skip


def held_densities(result: DensityResult, models: Collection[str]) -> DensityResult:
    """Say of some models, a user's, what ties them to the joint scale; where nothing does, take their numbers away.

    Parameters
    ----------
    result : DensityResult
        Of :func:`joint_densities`.
    models : collection of str

    Returns
    -------
    DensityResult
        Models whose evaluators share neither a model nor a benchmark with the others have the status ``not linked``
        and no density; where all scores lie at one end of their tests it is ``at ceiling`` or ``at floor``.
        The notes tell links, benchmarks and scores of these models, and which of them have no row.
    """
    if not isinstance(result.reference, JointReference):
        return result
    from densing.scores.joint import evaluator_links

    cells = result.reference.scale.cells
    absent = sorted(set(models) - set(result.table["model"]))
    notes = []
    if absent:
        reasons = cells.dropped[cells.dropped["model"].isin(absent)].groupby("model")["reason"].agg(_listed)
        placed = set(cells.table["model"])
        why = [f"{name}: {'no size' if name in placed else reasons.get(name, 'no score')}" for name in absent]
        message = f"not on the joint scale, or without a size: {formatting.listed(why)}"
        notes.append(Note("not-placed", "warning", message, {"models": absent}))
    links = evaluator_links(cells, models)
    main = cells.table["evaluator"].isin(links.table.loc[links.table["component"].eq(0), "evaluator"])
    shared = cells.table["benchmark"].isin(cells.table.loc[main, "benchmark"])
    own = result.table["model"].isin(list(models))
    loose = own & ~result.table["model"].isin(cells.table.loc[shared, "model"])
    table = result.table.assign(status=result.table["status"].mask(loose, NOT_LINKED))
    for note in links.notes:
        if note.code in ENDS and note.severity == "error":
            loose = own
            table["status"] = table["status"].mask(own, note.code.replace("-", " "))
    table.loc[loose, NUMBERS] = np.nan
    table.loc[loose, "bound"] = ""
    undated = table.loc[own & table["released"].isna(), "model"].tolist()
    if undated:
        message = f"{formatting.listed(undated)}: no release date, so not in the trend"
        notes.append(Note("no-date", "info", message, {"models": undated}))
    return replace(result, table=table, notes=(*result.notes, *links.notes, *notes))


def _listed(reasons: pd.Series) -> str:
    return formatting.listed(sorted(set(reasons)))


def _joined(cells: pd.Series) -> str:
    return ";".join(sorted(set(cells)))
