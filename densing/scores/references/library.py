"""The references: fitted from the catalog and the ladders, shipped in ``reference_fits/``, or a user's own fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from densing.core import (
    ArtefactError,
    InputError,
    Note,
    UnavailableError,
    UnknownNameError,
    named_seed,
    shipped_folder,
    write_text,
)
from densing.scores.catalog import DIFFERS, Catalog, compare, evaluator_protocol, known_protocol, load_catalog
from densing.scores.fit import fit_law, read_fit
from densing.scores.laws import get_law
from densing.scores.references.families import (
    SKILLS,
    Family,
    family_names,
    get_family,
    group_members,
    ladder_members,
    reference_members,
    refuse_unpublished,
)
from densing.scores.references.ladder import Ladder, fit_ladder, get_ladder, ladder_data, load_ladder
from densing.scores.references.reference import Description, Reference, from_fit, from_table_fit
from densing.scores.references.size_curve import joint_reference

DRAWS = 1000
FEW_POINTS = 6


def fits_folder() -> Path:
    """Return the folder of shipped fits: inside an installed package, or beside it in a checkout.

    Raises
    ------
    ArtefactError
        When neither exists.
    """
    return shipped_folder("reference_fits")


def load_reference(
    name: str,
    benchmark: str = "mean",
    *,
    tokens: float | None = None,
    catalog: Catalog | None = None,
) -> Reference:
    """Return a reference: shipped, fitted now from the catalog, or read from a user's fit.

    Parameters
    ----------
    name : str
        A family of :func:`densing.scores.references.family_names` (``joint`` for the joint scale), or the path of a
        JSON fit written by ``densing fit --out``.
    benchmark : str
        Benchmark id, ``mean`` (one curve on the mean score) or a skill.
    tokens : float, optional
        D0, the training tokens at which a two-step reference is read; 1e12 by default.
    catalog : Catalog, optional
        For a benchmark that is not shipped, and for the joint scale; the embedded catalog by default.

    Returns
    -------
    Reference

    Raises
    ------
    UnknownNameError
        For an unknown family or benchmark.
    UnavailableError
        For a family whose losses are not published, or that sits at chance on the benchmark.

    Examples
    --------
    >>> load_reference("qwen1.5", "mmlu").evaluator
    'obsscaling'

    See Also
    --------
    family_names, build_reference
    """
    if name.endswith(".json"):
        return _user_reference(Path(name), benchmark).at_tokens(tokens)
    refuse_unpublished(get_family(name))
    if benchmark in available_benchmarks(name):
        return _shipped(fits_folder() / name / f"{benchmark}.json").at_tokens(tokens)
    return build_reference(catalog or load_catalog(), name, benchmark).at_tokens(tokens)


def available_benchmarks(name: str) -> list[str]:
    """Return the benchmarks for which a family's fit is shipped, ``mean`` first.

    Examples
    --------
    >>> available_benchmarks("llama")[0]
    'mean'
    """
    get_family(name)
    shipped = sorted(path.stem for path in (fits_folder() / name).glob("*.json"))
    return sorted(shipped, key=lambda benchmark: benchmark != "mean")


@lru_cache(maxsize=64)
def _shipped(path: Path) -> Reference:
    return from_fit(read_fit(path))


def _user_reference(path: Path, benchmark: str) -> Reference:
    fit = read_fit(path)
    if fit.law.output != "score" or fit.law.inputs[0] != "params":
        raise UnavailableError(
            f"{path}: law {fit.law.name!r} gives {fit.law.output}, not a score in parameters; "
            "fit `logistic` or `two-step`"
        )
    if not len(fit.draws):
        raise InputError(f"{path}: has no bootstrap draws, so no interval; fit again with --bootstrap 1000")
    low, high = fit.domain["params"]
    if not 0 < low <= high:
        raise ArtefactError(f"{path}: $.domain.params: [{low:g}, {high:g}] is not a range of sizes; fit again")
    if "reference" not in fit.meta:
        return from_table_fit(fit, path.stem, benchmark)
    try:
        return from_fit(fit)
    except ArtefactError as error:
        raise ArtefactError(f"{path}: {error}; fit again") from error
    except InputError as error:
        raise ArtefactError(f"{path}: $.meta.reference: cannot be read ({error}); fit again") from error


def build_reference(
    catalog: Catalog, name: str, benchmark: str = "mean", *, draws: int = DRAWS, seed: int = 0
) -> Reference:
    """Fit a reference from the catalog (or from the ladder's runs).

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

    See Also
    --------
    load_reference, family_names

    Examples
    --------
    >>> import densing
    >>> reference = densing.build_reference(densing.load_catalog(), "qwen1.5", "mmlu", draws=50)
    >>> len(reference.fit.draws)
    50
    """
    family = get_family(name)
    refuse_unpublished(family)
    if family.kind == "joint":
        return joint_reference(catalog, benchmark, seed=seed)
    if family.kind == "two-step":
        ladder = get_ladder(family.name)
        evaluator, tasks = ladder_members(catalog, ladder, benchmark)
        return _fitted_ladder(catalog, family, ladder, benchmark, evaluator, tasks, draws, seed)
    members = reference_members(catalog, family, benchmark)
    count = len(members.points)
    notes = []
    if count <= FEW_POINTS:
        message = f"reference {family.name} has only {count} sizes: its curve is imprecise outside their range"
        notes.append(Note("few-points", "warning", message, {"points": count}))
    fit = fit_law(
        get_law("logistic", floor=members.floor),
        {"params": members.points["params"].to_numpy()},
        members.points["score"].to_numpy(),
        loss="raw",
        bootstrap=draws,
        scheme="parametric",
        # A benchmark's noise says nothing about another's; what members have in common on several benchmarks (a good
        # recipe) is estimated where benchmarks are combined: densing.scores.density.model_scatter.
        seed=named_seed(seed, "law", family.name, *sorted(members.benchmarks)),
        meta=_meta(catalog, family, benchmark, members.evaluator, members.benchmarks, members.points, {}, notes),
    )
    return from_fit(fit)


def ladder_reference(
    name: str, tasks: tuple[str, ...], *, tokens: float | None = None, draws: int = DRAWS, seed: int = 0
) -> Reference:
    """Fit a ladder's reference on the mean over any of its tasks: one curve on the mean, as the paper's AVERAGE.

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
    return _ladder_mean(name, tuple(tasks), draws, seed).at_tokens(tokens)


@lru_cache(maxsize=16)
def _ladder_mean(name: str, tasks: tuple[str, ...], draws: int, seed: int) -> Reference:
    family, ladder = get_family(name), get_ladder(name)
    return _fitted_ladder(load_catalog(), family, ladder, "+".join(tasks), "", tasks, draws, seed)


def _fitted_ladder(
    catalog: Catalog,
    family: Family,
    ladder: Ladder,
    benchmark: str,
    evaluator: str,
    tasks: tuple[str, ...],
    draws: int,
    seed: int,
) -> Reference:
    data = ladder_data(load_ladder(ladder.name), tasks)
    fit, points = fit_ladder(data, draws, named_seed(seed, "law", family.name), ladder.scheme, tasks)
    notes = []
    for name in tasks if evaluator else ():
        # The ladder and the catalog may score answers of another form under one name.
        authors, measured = known_protocol(family.name, name), evaluator_protocol(catalog, evaluator, name)
        if compare(measured, authors)["form"] == DIFFERS:
            message = (
                f"{name} on {family.name} scores answers as {authors.form}, the catalog's ({evaluator}) as "
                f"{measured.form}, which are not comparable; densities of the catalog's models on this reference are "
                "not meaningful"
            )
            notes.append(Note("protocol-differs", "error", message, {"benchmark": name}))
    meta = _meta(catalog, family, benchmark, evaluator, tasks, points, {"tokens": ladder.tokens}, notes)
    return from_fit(replace(fit, meta=meta))


def _meta(
    catalog: Catalog,
    family: Family,
    benchmark: str,
    evaluator: str,
    benchmarks: tuple[str, ...],
    points: pd.DataFrame,
    given: dict[str, float],
    notes: list[Note],
) -> dict[str, Any]:
    """Return what a reference's fit carries: its description, and licence and sources of its data."""
    if family.kind == "two-step":
        # A ladder is measured by its authors, whoever measured the catalog's models on the same benchmark.
        protocols = {name: known_protocol(family.name, name) for name in benchmarks}
        source_ids = {get_ladder(family.name).source}
    else:
        protocols = {name: evaluator_protocol(catalog, evaluator, name) for name in benchmarks}
        scores = catalog.scores
        of_family = scores["evaluator"].eq(evaluator) & scores["model"].isin(family.models)
        rows = scores[of_family & scores["benchmark"].isin(benchmarks)]
        source_ids = set(rows["source"].str.split("#").str[0])
    sources = catalog.sources[catalog.sources["id"].isin(source_ids)]
    description = Description(
        name=family.name,
        title=family.title,
        benchmark=benchmark,
        benchmarks=list(benchmarks),
        evaluator=evaluator,
        protocols={name: protocol.to_dict() for name, protocol in protocols.items()},
        points=points.to_dict("records"),
        given=given,
        notes=notes,
    )
    return {
        "reference": asdict(description),
        "licence": "; ".join(sorted(sources["licence"].dropna().unique())),
        "sources": sorted(source_ids),
    }


def buildable_benchmarks(catalog: Catalog, family: Family) -> list[str]:
    """Return what a family can be fitted on: single benchmarks, skills and the mean."""
    if family.kind in ("described", "joint"):
        # The joint scale belongs to its catalog and is fitted there: nothing to ship.
        return []
    if family.kind == "two-step":
        return ["mean", *get_ladder(family.name).tasks]
    groups = ["mean"]
    for group in (*catalog.benchmarks["id"], *SKILLS):
        try:
            if group in SKILLS:
                group_members(catalog, family, group)
            else:
                reference_members(catalog, family, group)
        except UnavailableError:
            continue
        groups.append(str(group))
    return groups


def build_all(catalog: Catalog, folder: Path, names: tuple[str, ...] = ()) -> Iterator[tuple[str, str, Path]]:
    """Refit every reference and write it below ``folder``, yielding family, benchmark and path as it goes."""
    for name in names or tuple(family_names()):
        for benchmark in buildable_benchmarks(catalog, get_family(name)):
            path = folder / name / f"{benchmark}.json"
            write_text(path, build_reference(catalog, name, benchmark).fit.to_json() + "\n")
            yield name, benchmark, path


def stale_fits(catalog: Catalog) -> list[str]:
    """Return the shipped references whose scores or standard errors are not the catalog's, as ``family/benchmark``."""
    stale = []
    for name in family_names():
        for benchmark in available_benchmarks(name):
            fresh, shipped = build_reference(catalog, name, benchmark, draws=0), load_reference(name, benchmark)
            # The hash is of what is fitted, and no curve depends on the standard errors. Their last digits are the
            # machine's.
            same = fresh.points.round(9).equals(shipped.points.round(9))
            if fresh.fit.data_hash != shipped.fit.data_hash or not same:
                stale.append(f"{name}/{benchmark}")
    return stale
