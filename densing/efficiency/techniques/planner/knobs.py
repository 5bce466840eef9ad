"""Settings of a technique: parsers that refuse what makes no sense, and defaults for what is not given."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from densing.core import InputError, UnknownNameError
from densing.efficiency.techniques.protocol import Knob


def whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return a parser of integers from ``low`` up to ``high``.

    Examples
    --------
    >>> whole(1)("48")
    48
    """

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise InputError(f"is no whole number; give one {_between(low, high)}") from None
        if value < low or (high is not None and value > high):
            raise InputError(f"is out of range; give a whole number {_between(low, high)}")
        return value

    return parse


def number(low: float, high: float | None = None) -> Callable[[str], float]:
    """Return a parser of finite numbers from ``low`` up to ``high``."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise InputError(f"is no number; give one {_between(low, high)}") from None
        if not math.isfinite(value) or value < low or (high is not None and value > high):
            raise InputError(f"is out of range; give a number {_between(low, high)}")
        return value

    return parse


def above_zero(text: str) -> float:
    """Parse a finite number above 0."""
    value = number(0.0)(text)
    if value == 0:
        raise InputError("is out of range; give a number above 0")
    return value


def choice(names: Sequence[str]) -> Callable[[str], str]:
    """Return a parser that takes one of some words."""

    def parse(text: str) -> str:
        if text not in names:
            raise InputError(f"is none of {', '.join(names)}; choose one")
        return text

    return parse


def optional(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a parser that also takes ``none``.

    Examples
    --------
    >>> optional(whole(1))("none"), optional(whole(1))("16")
    (None, 16)
    """

    def parse(text: str) -> Any:
        return None if text.lower() == "none" else kind(text)

    return parse


def flag(text: str) -> bool:
    """Parse yes or no.

    Examples
    --------
    >>> flag("yes"), flag("False")
    (True, False)
    """
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise InputError("is neither yes nor no; give one of them")
    return words[text.lower()]


def settle(technique: str, knobs: Sequence[Knob], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a technique: those given, parsed and checked, and the defaults of the others.

    Raises
    ------
    UnknownNameError
        When it has no such knob.
    InputError
        When a value is none of the knob's.

    Examples
    --------
    >>> settle("co2", (Knob("tau", 48, "steps per round", whole(1)),), {})
    {'tau': 48}
    """
    known = [knob.name for knob in knobs]
    for name in given:
        if name not in known:
            raise UnknownNameError(f"knob of {technique}:", name, known)
    return {knob.name: _parsed(technique, knob, given.get(knob.name, knob.default)) for knob in knobs}


def _parsed(technique: str, knob: Knob, value: Any) -> Any:
    try:
        return knob.kind(str(value))
    except (InputError, ValueError) as error:
        raise InputError(f"{technique}: {knob.name} = {value!r} {error}") from error


def _between(low: float, high: float | None) -> str:
    return f"from {low} up" if high is None else f"from {low} to {high}"
