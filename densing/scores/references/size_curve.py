r"""The joint scale as a reference: how ability grows with size within families, and the level of one of them.

.. math:: \theta_{fi} = \alpha_f + b \ln N_{fi} + e_{fi}

The slope b comes from every family of several sizes, each with a level of its own: what is common to recipes is how
much more size buys, not where they begin. The level of the reference is that of one well-measured family, the anchor;
density 1 is its recipe.

The anchor also decides how far the reference reaches. Beyond its sizes the level is not measured: it is carried there
by the slope alone, and a family that is smaller than the anchor cannot vouch for it, since its own level was taken out.
So the guard counts from the anchor's smallest and largest size, as for every other reference, and what lies beyond is a
limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from densing.core import Array, InputError, Note, UnavailableError, formatting, named_stream
from densing.scores.catalog import Catalog, Selection, strata
from densing.scores.fit import LawFit, hash_data
from densing.scores.laws import get_law
from densing.scores.references.reference import Reference

if TYPE_CHECKING:
    # The joint scale loads for half a second, and most references do without.
    from densing.scores.joint import Cells, JointScale

JOINT = "joint"
ANCHOR = "Qwen2.5"
"""Seven sizes of one recipe, measured by more evaluators than any other family."""
MIN_SIZES, MIN_SPAN, MIN_CELLS = 3, 4.0, 3
"""A family says something of the slope with three sizes over a factor of four, each known from three cells."""
# A size whose ability is known exactly still lies beside its family's line by about this much (logits).
SCATTER = 0.15
# Standard deviation of a normal over the median of its absolute values.
NORMAL_MAD = 1.4826
REACHES, SLOPES = ("anchor", "members"), ("within", "random")
RECENT = pd.Timestamp("2024-01-01")
"""Families whose first model came out from this day on give the random-effects slope."""


@dataclass(frozen=True, repr=False, kw_only=True)
class JointReference(Reference):
    """A reference on the joint scale: abilities of all models come with it, as draws.

    Parameters
    ----------
    scale : JointScale
        Whose abilities are read.
    scatter : array, shape (R,)
        Standard deviation of models around their family's line, in logits, by draw.

    See Also
    --------
    joint_reference
    """

    scale: JointScale
    scatter: Array

    @property
    def anchor(self) -> str:
        """Family whose recipe is density 1."""
        return str(self.fit.options["anchor"])


def joint_reference(
    catalog: Catalog,
    basket: str = "mean",
    *,
    scale: JointScale | None = None,
    reach: str = "anchor",
    slope: str = "within",
    seed: int = 0,
) -> JointReference:
    """Return the joint reference on a basket: the line of ability in ln N, its draws, and the scale behind it.

    Parameters
    ----------
    catalog : Catalog
        Whose models are on the scale.
    basket : str
        ``mean`` (knowledge, reasoning, mathematics and code in equal parts), a skill, ``multilingual`` or the code of a
        language.
    scale : JointScale, optional
        A fitted one; that of the catalog by default.
    reach : {"anchor", "members"}
        Whose sizes the guard counts from: the anchor's, or those of all members. The second is there to show what the
        choice changes.
    slope : {"within", "random"}
        One slope for all families, or the mean of slopes that differ from family to family, over those that began in
        2024 or later. The second is there to show what the choice changes.
    seed : int
        Seed of the resampled families.

    Returns
    -------
    JointReference
        ``fit`` is the line with a draw per draw of the scale, families resampled with each; ``points`` are the members,
        moved to the anchor's level.

    Raises
    ------
    UnknownNameError
        When the scale has no such basket.
    InputError
        For another reach or slope.
    UnavailableError
        When no family has several sizes on the scale.

    Notes
    -----
    Weights of members are 1 / (sd^2 + 0.15^2). Source: own; within-family regression with family resampling is the
    fixed-effects estimator with a cluster bootstrap (Cameron and Miller 2015, doi:10.3368/jhr.50.2.317); the random
    slope has the weights of DerSimonian and Laird 1986 (doi:10.1016/0197-2456(86)90046-2) and the same bootstrap.
    """
    for name, value, known in (("reach", reach, REACHES), ("slope", slope, SLOPES)):
        if value not in known:
            raise InputError(f"{name}={value!r}: choose {' or '.join(map(repr, known))}")
    from densing.scores.joint import GENERAL, catalog_scale

    scale = scale or catalog_scale(catalog)
    name = GENERAL if basket == "mean" else basket
    draws = scale.ability(name)
    members = _members(catalog, scale, scale.abilities(name))
    if members.empty:
        raise UnavailableError(
            f"no family of dense base models has {MIN_SIZES} sizes over a factor of {MIN_SPAN:g} on the joint scale, "
            "so the slope of ability in size is unknown; add models, or use another reference"
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
    # Every family's own slope, by draw, and what it counts for in the common one.
    precision = np.bincount(codes, weight * x * x)
    own_slopes = np.stack([np.bincount(codes, weight * x * row) for row in y]) / precision
    share = precision
    if slope == "random":
        recent = members["released"].groupby(codes).min().ge(RECENT).to_numpy()
        if not recent.any():
            raise UnavailableError(f"slope='random': no family of several sizes began in {RECENT.year} or later")
        share = random_weights(own_slopes.mean(axis=0), np.where(recent, precision, 0.0))
    # Families are the clusters: what one of them has of its own, every size of it has.
    counted = np.flatnonzero(share)
    rng = named_stream(seed, "families", JOINT, name)
    copies = rng.multinomial(len(counted), np.full(len(counted), 1 / len(counted)), len(draws)) * share[counted]
    slopes = np.maximum((copies * own_slopes[:, counted]).sum(axis=1) / copies.sum(axis=1), 1e-3)
    anchor = ANCHOR if ANCHOR in set(family) else str(members["family"].value_counts().index[0])
    of_anchor = members["family"].eq(anchor).to_numpy()
    level = np.average(ability[:, of_anchor] - slopes[:, None] * log_n[of_anchor], axis=1, weights=weight[of_anchor])
    theta = np.array([0.0, max(float(np.average(own_slopes.mean(axis=0), weights=share)), 1e-3)])
    middle = np.median(ability, axis=0)
    theta[0] = float(np.average((middle - theta[1] * log_n)[of_anchor], weights=weight[of_anchor]))
    # How far models of one recipe scatter: around their family's own line, so that a family whose slope is another one
    # does not count as scatter. The residuals hold the measurement too; the median speaks for the usual recipe.
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
    within_reach = sizes[of_anchor] if reach == "anchor" else sizes
    evaluators = scale.cells.table["evaluator"].nunique()
    options: Mapping[str, Any] = {
        "loss": "raw",
        "delta": None,
        "scheme": "cluster",
        "n_bootstrap": len(draws),
        "seed": seed,
        "clusters": codes.tolist(),
        "anchor": anchor,
        "reach": reach,
        "slope": slope,
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
        domain={"params": (float(within_reach.min()), float(within_reach.max()))},
        options=options,
        data_hash=hash_data(x_fit, aligned, weight, codes),
        meta={"sources": list(_sources(catalog, scale.cells))},
    )
    notes = list(scale.notes)
    if anchor != ANCHOR:
        message = f"{ANCHOR} is not on this scale: density 1 is the recipe of {anchor}"
        notes.append(Note("other-anchor", "warning", message, {"anchor": anchor}))
    if len(counted) < 6:
        message = (
            f"the slope of ability in size rests on {formatting.plural(len(counted), 'family', 'families')}: "
            "estimated imprecisely"
        )
        notes.append(Note("few-families", "warning", message, {"families": family[counted].tolist()}))
    return JointReference(
        name=JOINT,
        title=f"joint scale of {len(scale)} models, level of {anchor}",
        benchmark=basket,
        benchmarks=(basket,),
        evaluator=formatting.plural(evaluators, "evaluator"),
        fit=fit,
        points=points.sort_values(["params", "model"], ignore_index=True),
        notes=tuple(notes),
        scale=scale,
        scatter=scatter,
    )


def random_weights(slopes: Array, precision: Array) -> Array:
    """Return the weights of families in a mean slope when every family has a slope of its own.

    Parameters
    ----------
    slopes : array, shape (F,)
    precision : array, shape (F,)
        One over the variance with which each slope is known; 0 for a family that does not count.

    Notes
    -----
    Source: DerSimonian and Laird 1986, doi:10.1016/0197-2456(86)90046-2.

    Examples
    --------
    >>> random_weights(np.array([0.4, 0.6]), np.array([100.0, 400.0])).round(2).tolist()
    [42.11, 61.54]
    """
    known = precision > 0
    middle = np.average(slopes, weights=precision)
    excess = float((precision * (slopes - middle) ** 2).sum()) - (int(known.sum()) - 1)
    total = float(precision.sum())
    between = max(excess / max(total - float((precision**2).sum()) / total, 1e-12), 0.0)
    return np.asarray(np.where(known, 1 / (1 / np.where(known, precision, 1.0) + between), 0.0))


def _members(catalog: Catalog, scale: JointScale, abilities: pd.DataFrame) -> pd.DataFrame:
    """Dense base models of families with several sizes: ``model, family, params, released, position``."""
    reasons = strata(catalog, Selection(verified_only=False)).set_index("model")["reasons"]
    facts = catalog.models.set_index("model")
    table = abilities.assign(position=np.arange(len(abilities)))
    # When a model came out has no say in how ability grows with size.
    table = table[table["model"].map(reasons).isin(["", "no date"]) & table["cells"].ge(MIN_CELLS)]
    table = table.assign(
        family=table["model"].map(facts["family"]),
        params=table["model"].map(facts["params_total_b"]).astype(float) * 1e9,
        released=table["model"].map(facts["released"]),
    )
    table = table[table["params"].gt(0) & table["family"].notna()]
    groups = table.groupby("family")["params"]
    several = groups.transform("nunique").ge(MIN_SIZES) & (groups.transform("max") / groups.transform("min")).ge(
        MIN_SPAN
    )
    return table[several].reset_index(drop=True)


@lru_cache(maxsize=4)
def _sources(catalog: Catalog, cells: Cells) -> tuple[str, ...]:
    used = catalog.scores.merge(cells.table[["model", "benchmark", "evaluator"]])
    return tuple(sorted(set(used["source"].str.split("#").str[0])))
