r"""The joint scale as a ruler: how ability grows with size within families, and the level of one of them.

.. math:: \theta_{fi} = \alpha_f + b \ln N_{fi} + e_{fi}

The slope b comes from every family of several sizes, each with a level of its own: what is common to recipes is how
much more size buys, not where they begin. The level of the ruler is that of one well-measured family, the anchor;
density 1 is its recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from densing.core import Array, Note, UnavailableError, named_stream, words
from densing.scores.catalog import Catalog, Selection, strata
from densing.scores.fit import LawFit, hash_data
from densing.scores.joint import GENERAL, JointScale, catalog_scale
from densing.scores.laws import get_law
from densing.scores.references.reference import Reference

JOINT = "joint"
ANCHOR = "Qwen2.5"
"""Seven sizes of one recipe, measured by more evaluators than any other family."""
MIN_SIZES, MIN_SPAN, MIN_CELLS = 3, 4.0, 3
"""A family says something of the slope with three sizes over a factor of four, each known from three cells."""
# A size whose ability is known exactly still lies beside its family's line by about this much (logits).
SCATTER = 0.15
# Standard deviation of a normal over the median of its absolute values.
NORMAL_MAD = 1.4826


@dataclass(frozen=True, repr=False, kw_only=True)
class JointRuler(Reference):
    """A ruler on the joint scale: abilities of all models come with it, as draws.

    Parameters
    ----------
    scale : JointScale
        Whose abilities are read.
    scatter : array, shape (R,)
        Standard deviation of models around their family's line, in logits, by draw.

    See Also
    --------
    joint_ruler
    """

    scale: JointScale
    scatter: Array

    @property
    def anchor(self) -> str:
        """Family whose recipe is density 1."""
        return str(self.fit.options["anchor"])


def joint_ruler(
    catalog: Catalog, basket: str = "mean", *, scale: JointScale | None = None, seed: int = 0
) -> JointRuler:
    """Return the joint ruler on a basket: the line of ability in ln N, its draws, and the scale behind it.

    Parameters
    ----------
    catalog : Catalog
        Whose models are on the scale.
    basket : str
        ``mean`` (knowledge, reasoning, mathematics and code in equal parts), a skill, ``multilingual`` or the code of a
        language.
    scale : JointScale, optional
        A fitted one; that of the catalog by default.
    seed : int
        Seed of the resampled families.

    Returns
    -------
    JointRuler
        ``fit`` is the line with a draw per draw of the scale, families resampled with each; ``points`` are the members,
        moved to the anchor's level.

    Raises
    ------
    UnknownNameError
        When the scale has no such basket.
    UnavailableError
        When no family has several sizes on the scale.

    Notes
    -----
    Weights of members are 1 / (sd^2 + 0.15^2). Source: own; within-family regression with family resampling is the
    fixed-effects estimator with a cluster bootstrap (Cameron and Miller 2015, doi:10.3368/jhr.50.2.317).
    """
    scale = scale or catalog_scale(catalog)
    name = GENERAL if basket == "mean" else basket
    draws = scale.ability(name)
    members = _members(catalog, scale, scale.abilities(name))
    if members.empty:
        raise UnavailableError(
            f"no family of dense base models has {MIN_SIZES} sizes over a factor of {MIN_SPAN:g} on the joint scale, "
            "so how ability grows with size is not known; add models, or use another reference"
        )
    family, codes = np.unique(members["family"].to_numpy(dtype=str), return_inverse=True)
    sizes = members["params"].to_numpy(dtype=float)
    ability = draws[:, members["position"].to_numpy()]
    weight = 1 / (ability.var(axis=0) + SCATTER**2)
    total = np.bincount(codes, weight)

    def within(values: Array) -> Array:
        """Take the weighted mean of each family off, along the last axis."""
        means = np.stack([np.bincount(codes, weight * row) for row in np.atleast_2d(values)]) / total
        return np.asarray(np.atleast_2d(values) - means[:, codes])

    log_n = np.log(sizes)
    x, y = within(log_n)[0], within(ability)
    # Families are the clusters: what one of them has of its own, every size of it has.
    spread = np.bincount(codes, weight * x * x)
    cross = np.stack([np.bincount(codes, weight * x * row) for row in y])
    rng = named_stream(seed, "families", JOINT, name)
    copies = rng.multinomial(len(family), np.full(len(family), 1 / len(family)), len(draws))
    if len(family) == 1:
        copies = np.ones((len(draws), 1), dtype=int)
    slopes = np.maximum((copies * cross).sum(axis=1) / np.maximum((copies * spread).sum(axis=1), 1e-12), 1e-3)
    anchor = ANCHOR if ANCHOR in set(family) else str(members["family"].value_counts().index[0])
    of_anchor = members["family"].eq(anchor).to_numpy()
    level = np.average(ability[:, of_anchor] - slopes[:, None] * log_n[of_anchor], axis=1, weights=weight[of_anchor])
    theta = np.array([0.0, max(float((cross.mean(axis=0)).sum() / spread.sum()), 1e-3)])
    middle = np.median(ability, axis=0)
    theta[0] = float(np.average((middle - theta[1] * log_n)[of_anchor], weights=weight[of_anchor]))
    # How far models of one recipe scatter: around their family's own line, so that a family whose slope is another one
    # does not count as scatter. The residuals hold the measurement too; the median speaks for the usual recipe.
    own_slopes = cross / spread
    residual = y - own_slopes[:, codes] * x
    freedom = max(len(members) - 2 * len(family), 1)
    observed = (np.median(np.abs(residual), axis=1) * NORMAL_MAD) ** 2 * len(members) / freedom
    noise = float(np.median(y.var(axis=0)))
    chi = freedom / named_stream(seed, "scale", JOINT, name).chisquare(freedom, len(draws))
    scatter = np.sqrt(np.maximum(observed * chi - noise, 0.0))
    levels = np.stack([np.bincount(codes, weight * (middle - theta[1] * log_n))])[0] / total
    aligned = middle - levels[codes] + theta[0]
    x_fit = {"params": sizes}
    law = get_law("log-linear")
    points = pd.DataFrame(
        {
            "model": members["model"].to_numpy(),
            "params": sizes,
            "score": aligned,
            "score_se": ability.std(axis=0),
            "held_out": False,
            "family": members["family"].to_numpy(),
            "ability": middle,
        }
    )
    evaluators = scale.cells.table["evaluator"].nunique()
    options: Mapping[str, Any] = {
        "loss": "raw",
        "delta": None,
        "scheme": "cluster",
        "n_bootstrap": len(draws),
        "seed": seed,
        "clusters": codes.tolist(),
        "anchor": anchor,
    }
    fit = LawFit(
        law=law,
        theta=theta,
        draws=np.column_stack([level, slopes]),
        objective=float(((aligned - law.predict(theta, x_fit)) ** 2).sum()),
        status="converged",
        x=x_fit,
        y=aligned,
        residuals=aligned - law.predict(theta, x_fit),
        domain={"params": (float(sizes.min()), float(sizes.max()))},
        options=options,
        data_hash=hash_data(x_fit, aligned, weight, codes),
        meta={"sources": sorted(_sources(catalog, scale))},
    )
    notes = list(scale.notes)
    if anchor != ANCHOR:
        message = f"{ANCHOR} is not on this scale: density 1 is the recipe of {anchor}"
        notes.append(Note("other-anchor", "warning", message, {"anchor": anchor}))
    if len(family) < 6:
        message = (
            f"the slope of ability in size rests on {words.plural(len(family), 'family', 'families')}: loosely known"
        )
        notes.append(Note("few-families", "warning", message, {"families": family.tolist()}))
    return JointRuler(
        name=JOINT,
        title=f"joint scale of {len(scale)} models, level of {anchor}",
        benchmark=basket,
        benchmarks=(basket,),
        evaluator=words.plural(evaluators, "evaluator"),
        fit=fit,
        points=points.sort_values(["params", "model"], ignore_index=True),
        notes=tuple(notes),
        scale=scale,
        scatter=scatter,
    )


def _members(catalog: Catalog, scale: JointScale, abilities: pd.DataFrame) -> pd.DataFrame:
    """Dense base models of families with several sizes: ``model, family, params, position``."""
    reasons = strata(catalog, Selection(verified_only=False)).set_index("model")["reasons"]
    facts = catalog.models.set_index("model")
    table = abilities.assign(position=np.arange(len(abilities)))
    # When a model came out has no say in how ability grows with size.
    table = table[table["model"].map(reasons).isin(["", "no date"]) & table["cells"].ge(MIN_CELLS)]
    table = table.assign(
        family=table["model"].map(facts["family"]),
        params=table["model"].map(facts["params_total_b"]).astype(float) * 1e9,
    )
    table = table[table["params"].gt(0) & table["family"].notna()]
    groups = table.groupby("family")["params"]
    several = groups.transform("nunique").ge(MIN_SIZES) & (groups.transform("max") / groups.transform("min")).ge(
        MIN_SPAN
    )
    return table[several].reset_index(drop=True)


def _sources(catalog: Catalog, scale: JointScale) -> set[str]:
    cells = catalog.scores.merge(scale.cells.table[["model", "benchmark", "evaluator"]])
    return set(cells["source"].str.split("#").str[0])
