"""The catalog as one frozen value, groups of families, which models a figure is about, how well sizes are known."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from densing.core import Card, InputError, Note, Readable, UnknownNameError, cell_text, read_table
from densing.scores.catalog.schema import ARCHITECTURES, DERIVATIONS, DOMAINS, GROUPS, KINDS, SIZE_BASES, SIZED_KINDS

DATA = Path(__file__).parent / "data"
FRAMES = ("models", "scores", "benchmarks", "evaluators", "sources")
Day: TypeAlias = "str | pd.Timestamp | None"
HEADLINE = "headline"
MAKERS_OWN = "maker's own figures"
"""Stratum of densities that use only scores that a maker measured of its own model."""
WIDENINGS = ("continued", "compressed", "instruct", "moe", "domain", "unverified", "vendors")
"""What a selection can include beyond the headline."""

# A size in a name: its digits, and whether they count billions or millions.
_IN_NAME = re.compile(r"(?<![\d.])(\d+(?:\.(\d+))?)([BM])(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True, eq=False, repr=False)
class Catalog(Readable):
    """Models, scores and where every figure comes from.

    Parameters
    ----------
    models, scores, benchmarks, evaluators, sources : pandas.DataFrame
        One row per model, per (model, benchmark, evaluator), per benchmark, evaluator and source; columns as
        declared in :mod:`densing.scores.catalog.schema`. Missing text is None, sizes are in billions.
    notes : tuple of Note
        What happened while tables were merged.

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> catalog = load_catalog()
    >>> len(catalog.models) >= 200, len(catalog.benchmarks) >= 12
    (True, True)

    See Also
    --------
    load_catalog
    """

    models: pd.DataFrame
    scores: pd.DataFrame
    benchmarks: pd.DataFrame
    evaluators: pd.DataFrame
    sources: pd.DataFrame
    notes: tuple[Note, ...] = field(default=())

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the content of the five tables, whatever the order of their rows and columns."""
        digest = hashlib.sha256()
        for name in FRAMES:
            frame: pd.DataFrame = getattr(self, name)
            columns = sorted(map(str, frame.columns))
            cells = zip(*(map(_canonical, frame[column]) for column in columns), strict=True)
            lines = sorted("\x1f".join(row) for row in cells)
            digest.update("\x1e".join([name, "\x1f".join(columns), *lines, ""]).encode())
        return digest.hexdigest()

    def card(self) -> Card:
        """Return what is shown: how much there is, from when to when, and the start of the digest."""
        dates = pd.to_datetime(self.models["released"]).dropna()
        facts = {
            "benchmarks": str(self.scores["benchmark"].nunique()),
            "evaluators": str(self.scores["evaluator"].nunique()),
            "released": f"{dates.min().date()} to {dates.max().date()}" if len(dates) else "",
            "digest": self.digest[:12],
        }
        return Card(f"Catalog of {len(self.models)} models and {len(self.scores)} scores", facts, notes=self.notes)


def _canonical(cell: Any) -> str:
    # 7 and 7.0 are one fact, whichever the dtype of the column made of it.
    number = isinstance(cell, int | float) and not isinstance(cell, bool) and cell == cell
    return repr(float(cell)) if number else cell_text(cell)


@cache
def family_groups() -> Mapping[str, tuple[str, ...]]:
    """Return the families of every named group: they share a reason to differ, and trends are shown without them too.

    Examples
    --------
    >>> family_groups()["research suites"]
    ('Cerebras-GPT', 'Pythia')
    """
    table = read_groups()
    return {str(name): tuple(rows["family"]) for name, rows in table.groupby("group")}


def read_groups() -> pd.DataFrame:
    """Return the table behind :func:`family_groups`: group, family, reason, source."""
    return read_table(DATA / "groups.csv", GROUPS, "groups.csv")


@dataclass(frozen=True)
class Selection:
    """Which models to take; the default is what headline figures use.

    Parameters
    ----------
    kinds, architectures, domains, derivations : tuple of str
        Values allowed in the column of that name. ``distilled`` models (own initialisation, trained on a
        teacher's outputs: Gemma 2 of 2 and 9 B, Gemma 3) are in; pruned or continued weights are not.
    verified_only : bool
        Leave out release dates that rest on general knowledge only.
    one_size : bool
        Leave out dense models that use fewer parameters per token than they hold (per-layer embeddings, as in
        Gemma 3n): total and effective size differ by a factor of two, and no convention says which counts.
    vendors : bool
        Let what makers measured of their own models count: the joint scale reads it, and models that nobody else
        measured are in the headline.
    since, until : str or Timestamp, optional
        First and last release date, both included.

    Examples
    --------
    >>> print(Selection().describe())
    dense, general, from-scratch or distilled base models with a sourced release date

    See Also
    --------
    strata
    """

    kinds: tuple[str, ...] = ("base",)
    architectures: tuple[str, ...] = ("dense",)
    domains: tuple[str, ...] = ("general",)
    derivations: tuple[str, ...] = ("scratch", "distilled")
    verified_only: bool = True
    one_size: bool = True
    vendors: bool = False
    since: Day = None
    until: Day = None

    def __post_init__(self) -> None:
        """Check names and dates."""
        vocabularies = {
            "kind": KINDS,
            "architecture": ARCHITECTURES,
            "domain": DOMAINS,
            "derivation": DERIVATIONS,
        }
        for name, vocabulary in vocabularies.items():
            for value in getattr(self, f"{name}s"):
                if value not in vocabulary:
                    raise UnknownNameError(name, value, vocabulary)
        since, until = _day(self.since, "since"), _day(self.until, "until")
        if since is not None and until is not None and since > until:
            raise InputError(f"since {since.date()} is after until {until.date()}; swap them")

    def describe(self) -> str:
        """Return the selection as a phrase for titles and captions."""
        terms = [_listed(self.architectures, ARCHITECTURES), _listed(self.domains, DOMAINS)]
        if self.kinds == ("base",) and set(self.derivations) <= {"scratch", "distilled"}:
            terms.append(" or ".join(f"from-{name}" if name == "scratch" else name for name in self.derivations))
        phrase = ", ".join(term for term in terms if term)
        phrase = f"{phrase} {_listed(self.kinds, SIZED_KINDS)} models".replace("  ", " ").strip()
        phrase += " with a sourced release date" if self.verified_only else " with any release date"
        phrase += ", makers' own figures included" if self.vendors else ""
        since, until = _day(self.since, "since"), _day(self.until, "until")
        phrase += f" from {since.date()}" if since is not None else ""
        return phrase + (f" to {until.date()}" if until is not None else "")


def selection_of(include: list[str] | None) -> Selection:
    """Return the headline selection widened by the named kinds of models: what ``--include`` takes.

    Raises
    ------
    UnknownNameError
        For a name that is none of :data:`WIDENINGS`.

    Examples
    --------
    >>> selection_of(["moe"]).architectures
    ('dense', 'moe')
    """
    names = set(include or [])
    for name in sorted(names):
        if name not in WIDENINGS:
            raise UnknownNameError("--include", name, WIDENINGS)
    headline = Selection()
    kinds = tuple(kind for kind in ("continued", "compressed", "instruct") if kind in names)
    derivations = {
        "continued": ("continued", "long_context", "upscaled", "upcycled"),
        "compressed": ("pruned", "pruned+distilled", "compressed", "quantised"),
        "instruct": ("instruct_tuned",),
    }
    return Selection(
        kinds=headline.kinds + kinds,
        architectures=headline.architectures + (("moe",) if "moe" in names else ()),
        domains=headline.domains + (("code", "math") if "domain" in names else ()),
        derivations=headline.derivations + tuple(d for kind in kinds for d in derivations[kind]),
        verified_only="unverified" not in names,
        vendors="vendors" in names,
    )


def select(catalog: Catalog, selection: Selection | None = None) -> pd.DataFrame:
    """Return the models of a selection: those that :func:`strata` calls ``headline``, sorted by date and name.

    Parameters
    ----------
    catalog : Catalog
        Where the models are.
    selection : Selection, optional
        Which to take; the headline selection by default.

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> chosen = select(load_catalog(), Selection(until="2024-07-31"))
    >>> set(chosen["architecture"]), "Yi-1.5-9B" in set(chosen["model"])
    ({'dense'}, False)
    """
    labels = strata(catalog, selection).set_index("model")["stratum"]
    chosen = catalog.models[catalog.models["model"].map(labels) == HEADLINE]
    return chosen.sort_values(["released", "model"], ignore_index=True)


def strata(catalog: Catalog, selection: Selection | None = None) -> pd.DataFrame:
    """Return for every model whether the selection takes it and, if not, why.

    Parameters
    ----------
    catalog, selection
        As in :func:`select`.

    Returns
    -------
    pandas.DataFrame
        Sorted by model; columns model, stratum (``headline`` or the first reason against), reasons (all of
        them, separated by ``;``). Reasons in order: no size, no date, instruct, compressed, continued, the
        derivation (``checkpoint`` for an intermediate or preview state), moe, effective size, code, math,
        unverified date, outside the window.

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> labels = strata(load_catalog()).set_index("model")["stratum"]
    >>> labels[["Yi-1.5-9B", "Mixtral-8x7B", "Llama-3-8B"]].tolist()
    ['continued', 'moe', 'headline']

    See Also
    --------
    Selection
    """
    return _strata(catalog, selection or Selection()).copy()


@lru_cache(maxsize=16)
def _strata(catalog: Catalog, selection: Selection) -> pd.DataFrame:
    since, until = _day(selection.since, "since"), _day(selection.until, "until")
    rows = []
    for model in catalog.models.sort_values("model").to_dict("records"):
        reasons = _reasons(model, selection)
        released = model["released"]
        early = since is not None and released < since
        late = until is not None and released > until
        # A model without a date is outside for that reason alone: its comparisons are false.
        if early or late:
            reasons.append("outside the window")
        rows.append((model["model"], reasons[0] if reasons else HEADLINE, ";".join(reasons)))
    return pd.DataFrame(rows, columns=["model", "stratum", "reasons"])


def _reasons(model: Mapping[Any, Any], selection: Selection) -> list[str]:
    reasons = []
    if pd.isna(model["params_total_b"]):
        reasons.append("no size")
    if pd.isna(model["released"]):
        reasons.append("no date")
    if model["kind"] not in selection.kinds:
        reasons.append(model["kind"])
    elif isinstance(model["derivation"], str) and model["derivation"] not in selection.derivations:
        reasons.append(model["derivation"])
    if model["architecture"] not in selection.architectures:
        reasons.append(model["architecture"])
    if selection.one_size and model["architecture"] == "dense" and model["params_active_b"] < model["params_total_b"]:
        reasons.append("effective size")
    if model["domain"] not in selection.domains:
        reasons.append(model["domain"])
    if selection.verified_only and model["released_basis"] == "unverified":
        reasons.append("unverified date")
    return reasons


def _day(day: Day, name: str) -> pd.Timestamp | None:
    if day is None:
        return None
    try:
        return pd.Timestamp(day)
    except ValueError as error:
        raise InputError(f"{name} {day!r} is not a date; write it as 2024-02-29") from error


def _listed(values: tuple[str, ...], everything: tuple[str, ...]) -> str:
    return "" if set(values) == set(everything) else " or ".join(values)


def size_intervals(models: pd.DataFrame) -> pd.DataFrame:
    """Return between which sizes a model lies, given the digits in which its size is printed.

    Half a unit of the last digit on either side: a 7B is 6.5 to 7.5 B, a 1.5B is 1.45 to 1.55 B, a 500M is 499.5 to
    500.5 M. A count is printed to two digits at least, so 12 B counted is 11.5 to 12.5 B and 4.3 B is 4.25 to 4.35 B.

    Makers do not only round: of the catalog's 78 dense models with a label and a count of another value, 52 counts lie
    in the interval of the label. It is the least that a label leaves open.

    Parameters
    ----------
    models : pandas.DataFrame
        Columns ``model, params_label_b, params_total_b, params_basis`` of the catalog.

    Returns
    -------
    pandas.DataFrame
        Aligned with the models; ``params_lo, params_hi``, counts. Missing where the basis is: a user's own size is
        taken as it is.

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> models = load_catalog().models
    >>> size_intervals(models)[models["model"].eq("Falcon-H1-7B").to_numpy()].iloc[0].tolist()
    [6500000000.0, 7500000000.0]
    """
    rows = [
        _size_interval(str(row["model"]), float(row["params_total_b"]), float(row["params_label_b"]), basis)
        if (basis := row.get("params_basis")) in SIZE_BASES and row["params_total_b"] > 0
        else (np.nan, np.nan)
        for row in models.to_dict("records")
    ]
    return pd.DataFrame(rows, columns=["params_lo", "params_hi"], index=models.index)


@lru_cache(maxsize=4096)
def _size_interval(name: str, total: float, label: float, basis: str) -> tuple[float, float]:
    if basis != "count" and (total == label or np.isnan(label)):
        half = _half_of_label(name, total)
    else:
        half = 0.5 * 10.0 ** -max(_decimals(total), 1 - int(np.floor(np.log10(total))))
    return (total - half) * 1e9, (total + half) * 1e9


def _half_of_label(name: str, billions: float) -> float:
    for digits, decimals, unit in _IN_NAME.findall(name):
        scale = 1.0 if unit in "bB" else 1e-3
        if np.isclose(float(digits) * scale, billions):
            return float(0.5 * 10.0 ** -len(decimals) * scale)
    return float(0.5 * 10.0 ** -_decimals(billions))


def _decimals(number: float) -> int:
    return len(np.format_float_positional(number, trim="-").partition(".")[2])
