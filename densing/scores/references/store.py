"""Finding, reading and writing the fits in ``reference_fits/``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pandas as pd

import densing
from densing.core import ArtefactError, InputError, UnavailableError, read_text, write_text
from densing.scores.catalog import Catalog, Protocol, load_catalog
from densing.scores.fit import LawFit
from densing.scores.laws import D0_PAPER
from densing.scores.references.build import build_reference, buildable_benchmarks, from_fit
from densing.scores.references.families import family_names, get_family, refuse_unpublished
from densing.scores.references.members import known_benchmark
from densing.scores.references.ruler import Reference

_PACKAGE = Path(densing.__file__).parent
_POINT = {"model", "params", "score", "score_se", "held_out"}


def fits_folder() -> Path:
    """Return the folder of shipped fits: inside an installed package, or beside it in a checkout.

    Raises
    ------
    ArtefactError
        When neither exists.
    """
    for folder in (_PACKAGE / "_reference_fits", _PACKAGE.parent / "reference_fits"):
        if folder.is_dir():
            return folder
    raise ArtefactError("reference_fits: not found in the installed package; reinstall densing")


def load_reference(
    name: str,
    benchmark: str = "mean",
    *,
    tokens: float | None = None,
    catalog: Catalog | None = None,
) -> Reference:
    """Return a ruler: shipped, fitted now from the catalog, or read from a user's fit.

    Parameters
    ----------
    name : str
        A family of :func:`densing.scores.references.family_names`, or the path of a JSON fit written by ``densing fit
        --out``.
    benchmark : str
        Benchmark id, ``mean`` (one curve on the mean score) or a skill.
    tokens : float, optional
        D0, the training tokens at which a two-step ruler is read; 1e12 by default.
    catalog : Catalog, optional
        For a benchmark that is not shipped; the embedded catalog by default.

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
    """
    if name.endswith(".json"):
        return _user_reference(Path(name), benchmark).at_tokens(tokens)
    family = get_family(name)
    refuse_unpublished(family)
    if benchmark in available_benchmarks(name):
        return _shipped(fits_folder() / name / f"{benchmark}.json").at_tokens(tokens)
    catalog = catalog or load_catalog()
    if family.kind == "one-step":
        known_benchmark(catalog, benchmark)
    return build_reference(catalog, name, benchmark).at_tokens(tokens)


def available_benchmarks(name: str) -> list[str]:
    """Return the benchmarks for which a family's fit is shipped, ``mean`` first.

    Examples
    --------
    >>> available_benchmarks("llama")[0]
    'mean'
    """
    get_family(name)
    found = sorted(path.stem for path in (fits_folder() / name).glob("*.json"))
    return sorted(found, key=lambda benchmark: benchmark != "mean")


def build_all(catalog: Catalog, folder: Path, names: tuple[str, ...] = ()) -> Iterator[tuple[str, str, Path]]:
    """Refit every ruler and write it below ``folder``, yielding family, benchmark and path as it goes."""
    for name in names or tuple(family_names()):
        for benchmark in buildable_benchmarks(catalog, get_family(name)):
            path = folder / name / f"{benchmark}.json"
            write_text(path, build_reference(catalog, name, benchmark).fit.to_json() + "\n")
            yield name, benchmark, path


def stale_fits(catalog: Catalog) -> list[str]:
    """Return the shipped rulers whose data are no longer those of the catalog, as ``family/benchmark``."""
    stale = []
    for name in family_names():
        for benchmark in available_benchmarks(name):
            fresh = build_reference(catalog, name, benchmark, draws=0)
            if fresh.fit.data_hash != load_reference(name, benchmark).fit.data_hash:
                stale.append(f"{name}/{benchmark}")
    return stale


@lru_cache(maxsize=64)
def _shipped(path: Path) -> Reference:
    return from_fit(read_fit(path))


def read_fit(path: Path) -> LawFit:
    """Read a fit from a JSON file.

    Raises
    ------
    InputError
        When the file cannot be read.
    ArtefactError
        When it is not a fit that this version knows.
    """
    try:
        return LawFit.from_json(read_text(path, str(path)))
    except ArtefactError as error:
        raise ArtefactError(f"{path}: {error}") from error


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
        raise ArtefactError(f"{path}: $.domain.params: [{low:g}, {high:g}] is no range of sizes; fit again")
    if "reference" in fit.meta:
        return _described(fit, path)
    return from_table_fit(fit, path.stem, benchmark)


def _described(fit: LawFit, path: Path) -> Reference:
    """Return the ruler that a fit describes itself, once every part of the description is of its kind."""
    about = fit.meta["reference"]
    needed: dict[str, type] = {"name": str, "title": str, "benchmark": str, "evaluator": str}
    needed |= {"benchmarks": list, "points": list, "given": dict}
    if not isinstance(about, dict):
        raise ArtefactError(f"{path}: $.meta.reference is not an object; fit again")
    for key, kind in needed.items():
        if not isinstance(about.get(key), kind):
            raise ArtefactError(f"{path}: $.meta.reference.{key} is missing or of another type; fit again")
    points = all(isinstance(point, dict) and set(point) >= _POINT for point in about["points"])
    given = all(isinstance(value, int | float) and 0 < value < math.inf for value in about["given"].values())
    if not (points and given and set(about["given"]) == set(fit.law.inputs) - {"params"}):
        raise ArtefactError(f"{path}: $.meta.reference: points or given do not belong to law {fit.law.name}; fit again")
    protocols = about.get("protocols", {})
    if not isinstance(protocols, dict) or not all(isinstance(parts, dict) for parts in protocols.values()):
        raise ArtefactError(f"{path}: $.meta.reference.protocols is not an object of objects; fit again")
    if not about["benchmarks"] or not all(isinstance(name, str) for name in about["benchmarks"]):
        raise ArtefactError(f"{path}: $.meta.reference.benchmarks names no benchmark; fit again")
    try:
        return from_fit(fit)
    except (InputError, KeyError, TypeError, ValueError) as error:
        raise ArtefactError(f"{path}: $.meta.reference: cannot be read ({error}); fit again") from error


def from_table_fit(fit: LawFit, name: str, benchmark: str) -> Reference:
    """Make a ruler of a fit to a user's own table.

    Parameters
    ----------
    fit : LawFit
        Score in parameters (and tokens).
    name : str
        Name of the ruler in results.
    benchmark : str
        The benchmark that the scores belong to.
    """
    count = len(fit.y)
    points = pd.DataFrame(
        {
            "model": [f"point {number + 1}" for number in range(count)],
            "params": fit.x["params"],
            "score": fit.y,
            "score_se": 0.0,
            "held_out": False,
        }
    )
    given = {"tokens": D0_PAPER} if "tokens" in fit.law.inputs else {}
    stated = fit.meta.get("protocol", {})
    if not isinstance(stated, dict):
        raise ArtefactError(f"reference {name}: $.meta.protocol is not an object; fit again")
    return Reference(
        name,
        f"the user's fit {name}",
        benchmark,
        (benchmark,),
        "user",
        fit,
        points,
        given,
        fit.notes,
        {benchmark: Protocol.from_dict(stated)},
    )
