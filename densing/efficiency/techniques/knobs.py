"""Settings of a technique: what a knob takes, as text of the command line or as a value, and its default."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from densing.core import InputError, UnknownNameError


@dataclass(frozen=True)
class Kind:
    """What a knob takes: a text is parsed once, a value that has its type already is only checked.

    Parameters
    ----------
    parse : callable
        Makes a value of a text, and refuses with an InputError what is none.
    check : callable
        Returns a value of the type, and refuses what is none.
    """

    parse: Callable[[str], Any]
    check: Callable[[Any], Any]

    def __call__(self, text: str) -> Any:
        """Parse a text."""
        return self.parse(text)


@dataclass(frozen=True)
class Knob:
    """An option of a technique, with its default; ``kind`` parses the text of the command line.

    Any function of a text will do as ``kind``; a :class:`Kind` also checks values that are none.
    """

    name: str
    default: Any
    help: str
    kind: Callable[[str], Any] = float


def whole(low: int, high: int | None = None) -> Kind:
    """Return the kind of integers from ``low`` up to ``high``.

    Examples
    --------
    >>> whole(1)("48")
    48
    """
    span = _between(low, high)

    def parse(text: str) -> int:
        try:
            return check(int(text))
        except ValueError:
            raise InputError(f"is no whole number; give one {span}") from None

    def check(given: Any) -> int:
        if isinstance(given, bool) or not isinstance(given, Integral):
            raise InputError(f"is no whole number; give one {span}")
        value = int(given)
        if value < low or (high is not None and value > high):
            raise InputError(f"is out of range; give a whole number {span}")
        return value

    return Kind(parse, check)


def number(low: float, high: float | None = None) -> Kind:
    """Return the kind of finite numbers from ``low`` up to ``high``."""
    span = _between(low, high)

    def parse(text: str) -> float:
        try:
            return check(float(text))
        except ValueError:
            raise InputError(f"is no number; give one {span}") from None

    def check(given: Any) -> float:
        if isinstance(given, bool) or not isinstance(given, Real):
            raise InputError(f"is no number; give one {span}")
        value = float(given)
        if not math.isfinite(value) or value < low or (high is not None and value > high):
            raise InputError(f"is out of range; give a number {span}")
        return value

    return Kind(parse, check)


def _positive(value: float) -> float:
    if value == 0:
        raise InputError("is out of range; give a number above 0")
    return value


above_zero = Kind(lambda text: _positive(number(0.0).parse(text)), lambda value: _positive(number(0.0).check(value)))
"""The kind of finite numbers above 0."""


def choice(names: Sequence[str]) -> Kind:
    """Return the kind of one of some words."""

    def check(value: Any) -> str:
        if value not in names:
            raise InputError(f"is none of {', '.join(names)}; choose one")
        return str(value)

    return Kind(check, check)


def optional(kind: Callable[[str], Any]) -> Kind:
    """Return the kind that is also nothing: ``none`` on the command line.

    Examples
    --------
    >>> optional(whole(1))("none"), optional(whole(1))("16")
    (None, 16)
    """
    inner = _kind(kind)
    return Kind(
        lambda text: None if text.lower() == "none" else inner.parse(text),
        lambda value: None if value is None else inner.check(value),
    )


def _flag(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise InputError("is neither yes nor no; give one of them")
    return words[text.lower()]


flag = Kind(_flag, lambda value: value if isinstance(value, bool) else _flag(str(value)))
"""The kind of yes or no.

Examples
--------
>>> flag("yes"), flag("False")
(True, False)
"""


def settle(technique: str, knobs: Sequence[Knob], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a technique: those given, checked, texts among them parsed, and the others' defaults.

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
    settings = {}
    for knob in knobs:
        value, kind = given.get(knob.name, knob.default), _kind(knob.kind)
        try:
            settings[knob.name] = kind.parse(value) if isinstance(value, str) else kind.check(value)
        except (InputError, ValueError) as error:
            raise InputError(f"{technique}: {knob.name} = {value!r} {error}") from error
    return settings


def _kind(kind: Callable[[str], Any]) -> Kind:
    # Another package's parser may know texts alone.
    return kind if isinstance(kind, Kind) else Kind(kind, lambda value: kind(str(value)))


def _between(low: float, high: float | None) -> str:
    return f"from {low} up" if high is None else f"from {low} to {high}"
