"""Techniques by name: those of this package, and those other packages register."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

from densing.core import Note, UnavailableError, UnknownNameError
from densing.efficiency.techniques.protocol import Technique

GROUP = "densing.techniques"

BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "sequential": "sequential",
        "ddp": "ddp",
        "ddp-tuned": "ddp",
        "zero1": "zero",
        "zero2": "zero",
        "zero3": "zero",
        "local-sgd": "local_sgd",
        "slowmo": "slowmo",
        "tensor-parallel": "tensor_parallel",
        "parallel-attention": "parallel_attention",
        "pipeline": "pipeline",
        "co2": "co2",
        "ladder": "ladder",
        "iso": "iso",
        "t3": "t3",
        "taccl": "taccl.technique",
    }
)
"""Module below ``densing.efficiency.techniques`` of each name; imported when the technique is asked for."""

# What a command line, a file name and a table can hold without quoting.
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)


def technique_names() -> tuple[str, ...]:
    """Return the names :func:`get_technique` knows: built-in ones in their order, then those of other packages.

    Nothing is imported: a name here may still turn out to be broken when it is asked for (:func:`techniques`).

    Examples
    --------
    >>> technique_names()[:2]
    ('sequential', 'ddp')
    """
    usable, _ = _registered()
    return (*BUILT_IN, *usable)


def get_technique(name: str) -> Technique:
    """Return the technique of a name.

    Raises
    ------
    UnknownNameError
        When nothing is registered under the name.
    UnavailableError
        When it belongs to another package, and that package cannot be loaded or offers no technique.

    Examples
    --------
    >>> get_technique("ddp").name
    'ddp'
    """
    if name in BUILT_IN:
        return _built_in(name)
    usable, _ = _registered()
    if name not in usable:
        raise UnknownNameError("technique", name, technique_names())
    return _load(usable[name])


def techniques() -> tuple[tuple[Technique, ...], tuple[Note, ...]]:
    """Return every technique that can be loaded, and a note for each of another package that cannot.

    Returns
    -------
    techniques : tuple of Technique
        In the order of :func:`technique_names`.
    notes : tuple of Note
        ``broken-technique``, ``technique-name-taken`` or ``technique-name``.

    Examples
    --------
    >>> found, notes = techniques()
    >>> {technique.name for technique in found} >= {"ddp", "co2"}
    True
    """
    usable, refused = _registered()
    notes = list(refused)
    found = [_built_in(name) for name in BUILT_IN]
    for point in usable.values():
        try:
            found.append(_load(point))
        except UnavailableError as error:
            notes.append(Note("broken-technique", "warning", str(error), {"technique": point.name}))
    return tuple(found), tuple(notes)


def _built_in(name: str) -> Technique:
    module = importlib.import_module(f"densing.efficiency.techniques.{BUILT_IN[name]}")
    return next(value for value in vars(module).values() if _lack(value) is None and value.name == name)


def _registered() -> tuple[dict[str, EntryPoint], list[Note]]:
    """Entry points by name, without those whose name is taken or cannot be typed, and why those are left out."""
    usable: dict[str, EntryPoint] = {}
    notes: list[Note] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        trouble = _trouble(point, usable)
        if trouble is None:
            usable[point.name] = point
        elif point.name not in usable or usable[point.name].value != point.value:
            notes.append(trouble)
    return usable, notes


def _trouble(point: EntryPoint, usable: Iterable[str]) -> Note | None:
    details = {"technique": point.name, "value": point.value}
    if not NAME.fullmatch(point.name):
        message = f"{point.value}: {point.name!r} is no name for a technique; use a-z, 0-9, '-', '_' and '.'"
        return Note("technique-name", "warning", message, details)
    if point.name in BUILT_IN or point.name in usable:
        message = f"{point.value}: another technique is called {point.name!r} already; this one is left out"
        return Note("technique-name-taken", "warning", message, details)
    return None


def _load(point: EntryPoint) -> Technique:
    try:
        found = point.load()
        technique: Technique = found() if isinstance(found, type) else found
        lack = _lack(technique)
    except (Exception, SystemExit) as error:
        # Code of another package: whatever it raises, the user needs its name.
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise UnavailableError(
            f"technique {point.name}: {point.value} cannot be loaded ({reason}); repair or remove that package"
        ) from error
    if lack is not None:
        raise UnavailableError(f"technique {point.name}: {point.value} {lack}; it is no technique")
    if technique.name != point.name:
        raise UnavailableError(
            f"technique {point.name}: {point.value} calls itself {technique.name!r}; register it under that name"
        )
    return technique


def _lack(value: Any) -> str | None:
    """Return what a value lacks to be a technique; None when it lacks nothing.

    Not ``isinstance(value, Technique)``, which evaluates ``claims`` and with them their imports.
    """
    if isinstance(value, type):
        return "is a class"
    for text in ("name", "role", "paper", "summary"):
        if not isinstance(getattr(value, text, None), str):
            return f"has no {text}"
    if not isinstance(getattr(value, "knobs", None), tuple):
        return "has no tuple of knobs"
    if not callable(getattr(value, "plan", None)):
        return "has no plan"
    return None if hasattr(type(value), "claims") or "claims" in vars(value) else "has no claims"
