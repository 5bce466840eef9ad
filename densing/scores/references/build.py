"""Fitting the rulers, from the catalog and the ladder table that the package ships."""

from __future__ import annotations

import dataclasses
from typing import Any

import pandas as pd

from densing.core import Note, UnavailableError, UnknownNameError, named_seed
from densing.scores.catalog import DIFFERS, Catalog, Protocol, compare, evaluator_protocol, known_protocol, load_catalog
from densing.scores.fit import LawFit, fit_law
from densing.scores.laws import get_law
from densing.scores.references.families import Family, get_family, refuse_unpublished
from densing.scores.references.ladder import Ladder, get_ladder, ladder_data, load_ladder
from densing.scores.references.members import SKILLS, Members, group_members, ladder_members, ruler_members
from densing.scores.references.ruler import Reference
from densing.scores.references.two_step import fit_ladder

DRAWS = 1000
FEW_POINTS = 6


def build_reference(
    catalog: Catalog, name: str, benchmark: str = "mean", *, draws: int = DRAWS, seed: int = 0
) -> Reference:
    """Fit a ruler from the catalog (or from the ladder's runs).

    Parameters
    ----------
    catalog : Catalog
        Models and scores of the family.
    name : str
        A reference family, see :func:`densing.scores.references.family_names`.
    benchmark : str
        Benchmark id, ``mean`` or a skill.
    draws : int
        Bootstrap draws kept with the fit.
    seed : int
        Seed of the draws; each family and set of benchmarks has a stream of its own within it.

    Returns
    -------
    Reference

    Raises
    ------
    UnknownNameError, UnavailableError
        When there is no such family or benchmark, or nothing to fit.

    Notes
    -----
    One step: S = floor + c sigma(g (ln N - x0)), least squares on scores, Gaussian draws whose scale carries the few
    degrees of freedom. Two steps (ladder): Chinchilla on bits per byte, then a sigmoid of accuracy in bits per byte.
    """
    family = get_family(name)
    refuse_unpublished(family)
    if family.kind == "two-step":
        return _ladder_reference(catalog, family, benchmark, draws, seed)
    return _family_reference(catalog, family, benchmark, draws, seed)


def _family_reference(catalog: Catalog, family: Family, benchmark: str, draws: int, seed: int) -> Reference:
    members = ruler_members(catalog, family, benchmark)
    points = members.points
    fit = fit_law(
        get_law("logistic", floor=members.floor),
        {"params": points["params"].to_numpy()},
        points["score"].to_numpy(),
        loss="raw",
        bootstrap=draws,
        scheme="parametric",
        # A benchmark's noise says nothing about another's; what members have in common on several benchmarks (a good
        # recipe) is estimated where benchmarks are combined: densing.scores.density.scatter.
        seed=named_seed(seed, "law", family.name, *sorted(members.benchmarks)),
        meta=_meta(
            catalog,
            family,
            (benchmark, members.evaluator, members.benchmarks),
            points,
            {},
            _member_notes(family, members),
        ),
    )
    return from_fit(fit)


def _ladder_reference(catalog: Catalog, family: Family, benchmark: str, draws: int, seed: int) -> Reference:
    ladder = get_ladder(family.name)
    evaluator, tasks = ladder_members(catalog, ladder, benchmark)
    return _fitted(catalog, family, ladder, (benchmark, evaluator, tasks), draws, seed)


def ladder_reference(
    name: str, tasks: tuple[str, ...], *, tokens: float | None = None, draws: int = DRAWS, seed: int = 0
) -> Reference:
    """Fit a ladder's ruler on the mean over any of its tasks: one curve on the mean, as the paper's AVERAGE.

    Parameters
    ----------
    name : str
        A ladder.
    tasks : tuple of str
        Tasks that enter the mean.
    tokens : float, optional
        D0; the ladder's own by default.
    draws, seed
        As for :func:`build_reference`.

    Raises
    ------
    UnknownNameError
        When the ladder has no such task.
    """
    ladder = get_ladder(name)
    for task in tasks:
        if task not in ladder.tasks:
            raise UnknownNameError(f"benchmark of reference {name}", task, ladder.tasks)
    return _fitted(load_catalog(), get_family(name), ladder, ("+".join(tasks), "", tasks), draws, seed).at_tokens(
        tokens
    )


def _fitted(
    catalog: Catalog,
    family: Family,
    ladder: Ladder,
    measured: tuple[str, str, tuple[str, ...]],
    draws: int,
    seed: int,
) -> Reference:
    data = ladder_data(load_ladder(ladder.name), measured[2])
    fit, points = fit_ladder(data, draws, named_seed(seed, "law", family.name), ladder.scheme, measured[2])
    notes = _ladder_notes(catalog, family, measured[1], measured[2]) if measured[1] else []
    meta = _meta(catalog, family, measured, points, {"tokens": ladder.tokens}, notes)
    return from_fit(dataclasses.replace(fit, meta=meta))


def from_fit(fit: LawFit) -> Reference:
    """Rebuild a ruler from a fit that carries its description in ``meta["reference"]``."""
    about: dict[str, Any] = dict(fit.meta["reference"])
    # Where several rulers speak, a note on a curve says which.
    own = (
        dataclasses.replace(note, message=f"{about['name']}, {about['benchmark']}: {note.message}")
        for note in fit.notes
    )
    return Reference(
        name=about["name"],
        title=about["title"],
        benchmark=about["benchmark"],
        benchmarks=tuple(about["benchmarks"]),
        evaluator=about["evaluator"],
        fit=fit,
        points=pd.DataFrame(about["points"]),
        given=dict(about["given"]),
        notes=(*own, *(Note.from_dict(note) for note in about.get("notes", []))),
        protocols={name: Protocol.from_dict(parts) for name, parts in about.get("protocols", {}).items()},
    )


def _meta(
    catalog: Catalog,
    family: Family,
    measured: tuple[str, str, tuple[str, ...]],
    points: pd.DataFrame,
    given: dict[str, float],
    notes: list[Note],
) -> dict[str, Any]:
    benchmark, evaluator, benchmarks = measured
    source_ids = _source_ids(catalog, family, evaluator, benchmarks)
    sources = catalog.sources[catalog.sources["id"].isin(source_ids)]
    return {
        "reference": {
            "name": family.name,
            "title": family.title,
            "benchmark": benchmark,
            "benchmarks": list(benchmarks),
            "evaluator": evaluator,
            "protocols": {name: part.to_dict() for name, part in _protocols(catalog, family, evaluator, benchmarks)},
            "points": points.to_dict("records"),
            "given": given,
            "notes": [note.to_dict() for note in notes],
        },
        "licence": "; ".join(sorted(sources["licence"].dropna().unique())),
        "sources": sorted(source_ids),
    }


def _protocols(
    catalog: Catalog, family: Family, evaluator: str, benchmarks: tuple[str, ...]
) -> list[tuple[str, Protocol]]:
    """Return how each benchmark was measured on the family: a ladder by its authors, others by the evaluator."""
    if family.kind == "two-step":
        return [(name, known_protocol(family.name, name)) for name in benchmarks]
    return [(name, evaluator_protocol(catalog, evaluator, name)) for name in benchmarks]


def _source_ids(catalog: Catalog, family: Family, evaluator: str, benchmarks: tuple[str, ...]) -> set[str]:
    if family.kind == "two-step":
        return {get_ladder(family.name).source}
    rows = catalog.scores
    used = rows[
        rows["evaluator"].eq(evaluator) & rows["benchmark"].isin(benchmarks) & rows["model"].isin(family.models)
    ]
    return set(used["source"].str.split("#").str[0])


def _member_notes(family: Family, members: Members) -> list[Note]:
    count = len(members.points)
    if count > FEW_POINTS:
        return []
    message = f"reference {family.name} rests on {count} sizes: its curve is loosely known beyond them"
    return [Note("few-points", "warning", message, {"points": count})]


def _ladder_notes(catalog: Catalog, family: Family, evaluator: str, benchmarks: tuple[str, ...]) -> list[Note]:
    """Name the benchmarks on which the ladder and the catalog score answers of another form."""
    notes = []
    for name in benchmarks:
        ladder, theirs = known_protocol(family.name, name), evaluator_protocol(catalog, evaluator, name)
        if compare(theirs, ladder)["form"] == DIFFERS:
            message = (
                f"{name} on {family.name} scores answers as {ladder.form}, the catalog's ({evaluator}) as "
                f"{theirs.form}: two measurements that must not be compared; densities of the catalog's models on "
                "this ruler are not meaningful"
            )
            notes.append(Note("protocol-differs", "error", message, {"benchmark": name}))
    return notes


def buildable_benchmarks(catalog: Catalog, family: Family) -> list[str]:
    """Return what a family can be fitted on: single benchmarks, skills and the mean."""
    if family.kind == "described":
        return []
    if family.kind == "two-step":
        return ["mean", *get_ladder(family.name).tasks]
    found = ["mean"]
    for group in (*catalog.benchmarks["id"], *SKILLS):
        try:
            if group in SKILLS:
                group_members(catalog, family, group)
            else:
                ruler_members(catalog, family, group)
        except UnavailableError:
            continue
        found.append(str(group))
    return found
