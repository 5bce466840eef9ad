"""Sizes of models by name: which row of the catalog a model of somebody else's results is, and how it was matched."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from densing.core import InputError, Note, nearest, once
from densing.scores.catalog.catalog import Catalog
from densing.scores.catalog.identity import AGREEMENT, Identity, identify, identity_notes, kind_of, words_of
from densing.scores.catalog.tables import load_catalog

_SIZES = ("params_total", "params_active", "params_non_embedding")
_ABOUT = ("known_as", "family", "organisation", "kind", "architecture")


def with_sizes(
    models: pd.DataFrame, params: Mapping[str, float] | None = None, *, catalog: Catalog | None = None
) -> tuple[pd.DataFrame, list[Note]]:
    """Return a table of measured models with their sizes filled in: as given, else as stored, else from the catalog.

    Parameters
    ----------
    models : pandas.DataFrame
        ``model`` and ``params_total``, ``params_non_embedding`` as counts; NaN where unknown.
    params : mapping, optional
        Size by name, all parameters, a count. The last part of a path is enough where only one model has it.
    catalog : Catalog, optional
        Where names are looked up; the embedded one by default.

    Returns
    -------
    models : pandas.DataFrame
        With ``params_active`` and ``size_from`` (``--params``, ``results``, ``catalog: ROW (how)`` or empty), and what
        the name says where the results do not: ``known_as`` (the catalog's model that was measured again), ``family``,
        ``organisation``, ``kind`` and ``architecture``.
    notes : list of Note
        Which row was taken for which model, and which models have no size.

    Raises
    ------
    InputError
        For a size of a model that was not measured.
    """
    known = catalog if catalog is not None else load_catalog()
    measured = list(dict.fromkeys(models["model"].astype(str)))
    given: dict[str, float] = {}
    for name, size in (params or {}).items():
        matches = [name] if name in measured else [model for model in measured if model.rpartition("/")[2] == name]
        if len(matches) != 1:
            problem = f"{len(matches)} models of that name" if matches else "no such model"
            raise InputError(
                f"--params {name}={size:g}: {problem} in the results; they contain {', '.join(measured[:20])}"
            )
        given[matches[0]] = float(size)
    sizes = known.models.set_index("model")
    found: dict[str, Identity] = {}
    rows, notes = [], []
    for row in models.to_dict("records"):
        name = str(row["model"])
        stored = {column: _count(row.get(column)) for column in _SIZES}
        origin = "results" if stored["params_total"] else ""
        if name in given:
            stored["params_total"], origin = given[name], "--params"
        identity = identify(known, name, params_b=(stored["params_total"] or 0.0) / 1e9 or None)
        if identity.named is not None:
            listed = {column: _count(sizes.loc[identity.named, f"{column}_b"], 1e9) for column in _SIZES}
            total = stored["params_total"]
            agrees = not total or abs(total / (listed["params_total"] or total) - 1) <= AGREEMENT
            missing = [column for column in _SIZES if not stored[column] and listed[column]] if agrees else []
            stored |= {column: listed[column] for column in missing}
            if "params_total" in missing:
                origin = f"catalog: {identity.named} ({identity.how})"
                message = (
                    f"model {name}: its size, {stored['params_total']:.4g}, is that of {identity.named} in the catalog "
                    f"({identity.how} name); use --params '{name}=COUNT' to give another"
                )
                details = {"model": name, "row": identity.named, "how": identity.how}
                notes.append(Note("size-by-name", "info", message, details))
        if not any(stored.values()):
            notes.append(_unsized(name, sizes.index))
        same = identity.model
        about = {column: sizes.loc[same, column] for column in _ABOUT[1:]} if same else kind_of(name)
        told = {column: about.get(column) for column in _ABOUT[1:]} | {"known_as": same}
        stated = {column: row[column] for column in _ABOUT if isinstance(row.get(column), str)}
        rows.append({**row, **stored, "size_from": origin, **told, **stated})
        if same or any(stored.values()):
            found[name] = identity
    notes += identity_notes(found, "results")
    table = pd.DataFrame(rows, columns=[*dict.fromkeys([*models.columns, *_SIZES, "size_from", *_ABOUT])])
    return table.astype(dict.fromkeys(_SIZES, "float64")), once(notes)


def _count(value: object, unit: float = 1.0) -> float | None:
    number = float(value) * unit if isinstance(value, int | float) else 0.0
    return number if number > 0 else None


def _unsized(name: str, rows: pd.Index) -> Note:
    near = nearest("-".join(words_of(name)), map(str, rows))
    hint = f" (similar names there: {', '.join(near)})" if near else ""
    message = (
        f"model {name}: the results state no size and the catalog has no such name{hint}; give it "
        f"with --params '{name}=13e9' for 13 billion"
    )
    return Note("size-unknown", "warning", message, {"model": name, "near": near})
