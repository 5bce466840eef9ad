"""Fits as versioned JSON, read with suspicion: any damage is an ArtefactError that says where."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

import densing
from densing.core import Array, ArtefactError, InputError, Note
from densing.scores.fit.bootstrap import SCHEMES
from densing.scores.fit.lawfit import LawFit, hash_data
from densing.scores.fit.losses import loss_names
from densing.scores.laws import Law, get_law

SCHEMA = "densing-lawfit"
VERSION = 1
DRAW_DIGITS = 9
STATUSES = ("converged", "bound_hit", "max_iter")


def dump(fit: LawFit) -> str:
    """Return a fit as JSON; draws are rounded to 9 significant digits, everything else is exact."""
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "densing": densing.__version__,
        "law": {
            "name": fit.law.name,
            "options": fit.law.options,
            "equation": fit.law.equation,
            "source": fit.law.source,
        },
        "parameters": list(fit.law.parameters),
        "theta": fit.theta.tolist(),
        "objective": fit.objective,
        "status": fit.status,
        "options": dict(fit.options),
        "meta": dict(fit.meta),
        "domain": {name: list(ends) for name, ends in fit.domain.items()},
        "notes": [note.to_dict() for note in fit.notes],
        "data": {"x": {name: values.tolist() for name, values in fit.x.items()}, "y": fit.y.tolist()},
        "residuals": fit.residuals.tolist(),
        "data_hash": fit.data_hash,
        "draws": [[float(f"{value:.{DRAW_DIGITS}g}") for value in row] for row in fit.draws],
    }
    try:
        return json.dumps(document, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"fit of law {fit.law.name}: meta or options cannot be written as JSON ({error})") from error


def load(text: str) -> LawFit:
    """Return the fit of a document written by :func:`dump`.

    Raises
    ------
    ArtefactError
        With the path inside the document of the first thing that is wrong.
    """
    document = _parse(text)
    if document.get("schema") != SCHEMA:
        raise ArtefactError(f"$.schema: {_short(document.get('schema'))} is not {SCHEMA!r}; this is not a stored fit")
    if document.get("version") != VERSION:
        raise ArtefactError(
            f"$.version: {_short(document.get('version'))} is not {VERSION}; fit again or change densing"
        )
    law = _law(document)
    p = len(law.parameters)
    if document.get("parameters") != list(law.parameters):
        raise ArtefactError(f"$.parameters: {_short(document.get('parameters'))} is not {list(law.parameters)}")
    data = _mapping(document, "data", "$")
    y = _numbers(data, "y", "$.data")
    columns = _mapping(data, "x", "$.data")
    x = {name: _numbers(columns, name, "$.data.x", len(y)) for name in columns}
    options = _options(document)
    return LawFit(
        law=law,
        theta=_inside(law, _numbers(document, "theta", "$", p), "$.theta"),
        draws=_inside(law, _draws(document, p), "$.draws"),
        objective=_number(document.get("objective"), "$.objective"),
        status=_status(document),
        x=x,
        y=y,
        residuals=_numbers(document, "residuals", "$", len(y)),
        domain=_domain(document, law),
        options=options,
        data_hash=_verified(document, x, y, options),
        meta=_mapping(document, "meta", "$"),
        notes=tuple(_notes(document)),
    )


def _parse(text: str) -> Mapping[str, Any]:
    try:
        document = json.loads(text, parse_constant=_no_constant)
    except (ValueError, TypeError, RecursionError) as error:
        raise ArtefactError(f"$: not JSON ({str(error)[:80]}); restore the file") from error
    if not isinstance(document, dict):
        raise ArtefactError(f"$: {_short(document)} is not an object; this is not a stored fit")
    return document


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _law(document: Mapping[str, Any]) -> Law:
    entry = _mapping(document, "law", "$")
    options = _mapping(entry, "options", "$.law")
    name = entry.get("name")
    if not isinstance(name, str):
        raise ArtefactError(f"$.law.name: {_short(name)} is not text")
    try:
        return get_law(name, **options)
    except InputError as error:
        raise ArtefactError(f"$.law: {error}") from error


def _options(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, with those that programs read checked."""
    options = _mapping(document, "options", "$")
    for key, known in (("loss", loss_names()), ("scheme", SCHEMES)):
        if options.get(key) not in known:
            raise ArtefactError(f"$.options.{key}: {_short(options.get(key))} is not one of {', '.join(known)}")
    for key in ("n_bootstrap", "seed"):
        if isinstance(options.get(key), bool) or not isinstance(options.get(key), int) or options[key] < 0:
            raise ArtefactError(f"$.options.{key}: {_short(options.get(key))} is not a whole number, 0 or more")
    delta = options.get("delta")
    if delta is not None and _number(delta, "$.options.delta") <= 0:
        raise ArtefactError(f"$.options.delta: {_short(delta)} is not positive")
    return options


def _inside(law: Law, theta: Array, path: str) -> Array:
    """Return parameters if they respect the law's bounds, to the rounding of the draws."""
    for i, parameter in enumerate(law.space):
        values = theta[..., i]
        slack = 1e-8 * np.abs(values)
        if (values < parameter.low - slack).any() or (values > parameter.high + slack).any():
            raise ArtefactError(f"{path}: {parameter.name} outside [{parameter.low:g}, {parameter.high:g}]")
    return theta


def _verified(document: Mapping[str, Any], x: Mapping[str, Array], y: Array, options: Mapping[str, Any]) -> str:
    weights = None if options.get("weights") is None else _numbers(options, "weights", "$.options", len(y))
    clusters = options.get("clusters")
    if clusters is not None and not isinstance(clusters, list):
        raise ArtefactError(f"$.options.clusters: {_short(clusters)} is not a list")
    found = hash_data(x, y, weights, None if clusters is None else np.array([str(v) for v in clusters]))
    if found != document.get("data_hash"):
        raise ArtefactError(
            f"$.data_hash: {_short(document.get('data_hash'))} does not match the data ({found}); fit again"
        )
    return found


def _domain(document: Mapping[str, Any], law: Law) -> dict[str, tuple[float, float]]:
    entry = _mapping(document, "domain", "$")
    missing = [name for name in law.inputs if name not in entry]
    if missing:
        raise ArtefactError(f"$.domain.{missing[0]}: missing")
    ends = {name: _numbers(entry, name, "$.domain", 2) for name in entry}
    return {name: (float(low), float(high)) for name, (low, high) in ends.items()}


def _status(document: Mapping[str, Any]) -> str:
    status = document.get("status")
    if status not in STATUSES:
        raise ArtefactError(f"$.status: {_short(status)} is not one of {', '.join(STATUSES)}")
    return str(status)


def _notes(document: Mapping[str, Any]) -> list[Note]:
    entries = document.get("notes")
    if not isinstance(entries, list):
        raise ArtefactError(f"$.notes: {_short(entries)} is not a list")
    notes = []
    for i, entry in enumerate(entries):
        fine = isinstance(entry, dict) and all(isinstance(entry.get(k), str) for k in ("code", "severity", "message"))
        if not fine or entry["severity"] not in ("info", "warning", "error"):
            raise ArtefactError(f"$.notes[{i}]: {_short(entry)} is not a note")
        notes.append(
            Note(
                entry["code"],
                entry["severity"],
                entry["message"],
                _mapping(entry, "details", f"$.notes[{i}]"),
            )
        )
    return notes


def _draws(document: Mapping[str, Any], p: int) -> Array:
    rows = document.get("draws")
    if not isinstance(rows, list):
        raise ArtefactError(f"$.draws: {_short(rows)} is not a list")
    draws = np.empty((len(rows), p))
    for i, row in enumerate(rows):
        draws[i] = _numbers({str(i): row}, str(i), "$.draws", p)
    return draws


def _mapping(parent: Mapping[str, Any], key: str, path: str) -> dict[str, Any]:
    value = parent.get(key)
    if not isinstance(value, dict):
        raise ArtefactError(f"{path}.{key}: {_short(value)} is not an object")
    return value


def _numbers(parent: Mapping[str, Any], key: str, path: str, length: int | None = None) -> Array:
    values = parent.get(key)
    if not isinstance(values, list):
        raise ArtefactError(f"{path}.{key}: {_short(values)} is not a list of numbers")
    if length is not None and len(values) != length:
        raise ArtefactError(f"{path}.{key}: {len(values)} numbers where {length} belong")
    return np.array([_number(value, f"{path}.{key}[{i}]") for i, value in enumerate(values)], dtype=float)


def _number(value: Any, path: str) -> float:
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise ArtefactError(f"{path}: {_short(value)} is not a finite number")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
