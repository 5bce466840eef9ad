"""The status of an inversion in words: whether a density is a value or a limit, and on which side."""

from __future__ import annotations

from typing import Any

from densing.plots import text

_STATUS = {
    "ok": "inside the ruler's range",
    "extrapolated": "beyond the ruler's range",
    "below_floor": "score at or below the floor",
    "above_ceiling": "score at or above the ceiling",
}
_BOUND = {"upper": "true value at or below", "lower": "true value at or above"}
_SHORT = {"ok": "in range", "below_floor": "below floor", "above_ceiling": "above ceiling"}
_SIGN = {"upper": "≤", "lower": "≥"}


def in_words(value: Any, bound: Any = "") -> str:
    """Return the status of an inversion in words.

    Examples
    --------
    >>> in_words("below_floor", "upper")
    'score at or below the floor: true value at or below'
    """
    words = _STATUS.get(str(value), text.clean(value))
    return words if text.is_missing(bound) else f"{words}: {_BOUND.get(str(bound), text.clean(bound))}"


def in_short(value: Any, bound: Any = "") -> str:
    """Return the status of an inversion for a table cell; ≤ and ≥ say on which side the true value lies.

    Examples
    --------
    >>> in_short("above_ceiling", "lower"), in_short("ok")
    ('above ceiling (≥)', 'in range')
    """
    words = _SHORT.get(str(value), text.clean(value))
    return words if text.is_missing(bound) else f"{words} ({_SIGN.get(str(bound), text.clean(bound))})"


def bounded(value: Any, bound: Any) -> str:
    """Return a number, marked as a limit where it is one.

    Examples
    --------
    >>> bounded(4.5, "lower"), bounded(4.5, "")
    ('≥ 4.5', '4.5')
    """
    sign = "" if text.is_missing(bound) or text.is_missing(value) else f"{_SIGN.get(str(bound), '')} "
    return f"{sign}{text.number(value)}".strip()
