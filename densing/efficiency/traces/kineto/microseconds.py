"""Microseconds as a trace writes them, to integer nanoseconds, exactly.

Traces hold times as decimal microseconds, mostly with three decimals. A float64 resolves them only below 2⁴³ µs
(101.8 days); Kineto's times since its own base stay below that, Unix times do not.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation, localcontext

import numpy as np
from numpy.typing import NDArray

from densing.efficiency.timeline import Int

MISSING = -(2**40)
"""Stands for a time that an event does not give; nobody measures -12.7 days to the microsecond."""

LIMIT_NS = 2**62
"""Times at or beyond this (146 years) are damage: with the base time added they would leave int64."""

BLUNT_NS = 2**42 * 1000
"""From here on (2⁴² µs) a float64 does not show whether its text had more than three decimals."""

_PLAIN, _RESOLVED = 2.0**42, 2.0**43
_BEYOND = float(LIMIT_NS // 1000)


class NeedsText(Exception):
    """The times of this file are finer than float64 holds: its decimal text must be read."""


def from_numbers(values: list[int | float]) -> Int:
    """Convert parsed numbers of microseconds to nanoseconds.

    With x the number, ns = 1000·⌊x⌋ + rint(1000·(x − ⌊x⌋)), which is exact below 2⁴³ µs for three decimals;
    integers are exact anyhow.

    Parameters
    ----------
    values : list of int or float
        Microseconds as a JSON parser gives them; ``MISSING`` for none.

    Returns
    -------
    int64 (n,)
        Nanoseconds; what lies beyond ``LIMIT_NS`` becomes ``LIMIT_NS`` or ``-LIMIT_NS``.

    Raises
    ------
    NeedsText
        When the numbers have more digits than float64 holds, or more than three decimals.

    Examples
    --------
    >>> from_numbers([4458676522690.655, 156.777, 3]).tolist()
    [4458676522690655, 156777, 3000]
    """
    try:
        array = np.fromiter(values, np.float64, len(values))
    except OverflowError:
        # Whole numbers that float64 does not hold.
        values = [max(min(value, 2**80), -(2**80)) for value in values]
        array = np.array(values, np.float64)
    top = np.abs(array).max(initial=0.0)
    if top >= _RESOLVED:
        return _from_large(array, values)
    if top < _PLAIN:
        ns = np.rint(array * 1000)
    else:
        whole = np.floor(array)
        ns = whole * 1000 + np.rint((array - whole) * 1000)
    # Of all numbers with three decimals, ns/1000 is the nearest to the float read; if it is not the float itself,
    # the text had more decimals.
    if not (ns / 1000 == array).all():
        raise NeedsText
    return ns.astype(np.int64)


def _from_large(array: NDArray[np.float64], values: list[int | float]) -> Int:
    """Convert numbers of which some reach 2⁴³: from there on only whole numbers that were written as such are exact."""
    whole = np.array(values)
    if whole.dtype == np.int64:
        beyond = LIMIT_NS // 1000 + 1
        return np.asarray(whole.clip(-beyond, beyond) * 1000).clip(-LIMIT_NS, LIMIT_NS)
    size = np.abs(array)
    sane, fine = size < _BEYOND, size < _RESOLVED
    large = np.flatnonzero(sane & ~fine)
    if len(large):
        if fine.any() or any(isinstance(values[i], float) for i in large):
            raise NeedsText
        return np.array([min(max(int(v) * 1000, -LIMIT_NS), LIMIT_NS) for v in values], np.int64)
    ns = from_numbers(np.where(sane, array, 0.0).tolist())
    return np.where(sane, ns, np.where(array > 0, LIMIT_NS, -LIMIT_NS))


def from_text(text: bytes | str | int | Decimal) -> int:
    """Convert the decimal text of microseconds to nanoseconds; digits below are rounded half to even.

    Returns
    -------
    int
        Nanoseconds; ``LIMIT_NS`` or ``-LIMIT_NS`` for what lies beyond.

    Raises
    ------
    ValueError
        When it is no finite number.

    Examples
    --------
    >>> from_text(b"1682725898236567.0625"), from_text("12"), from_text(b"0.0005"), from_text(b"1e3")
    (1682725898236567062, 12000, 0, 1000000)
    """
    if isinstance(text, bytes):
        whole, point, fraction = text.partition(b".")
        if len(fraction) <= 3 and len(whole) < 17 and whole.isdigit() and (fraction.isdigit() or not point):
            return min(int(whole) * 1000 + (int(fraction) * 10 ** (3 - len(fraction)) if fraction else 0), LIMIT_NS)
        text = text.decode("ascii", "replace")
    try:
        number = Decimal(text)
    except (InvalidOperation, ValueError) as error:
        raise ValueError("not a number") from error
    if not number.is_finite():
        raise ValueError("not a number" if number.is_nan() else "not finite")
    if number.adjusted() >= 17:
        return LIMIT_NS if number > 0 else -LIMIT_NS
    if number.adjusted() < -30:
        return 0
    with localcontext() as context:
        # Digits that no clock wrote must not be rounded twice, nor a million of them be computed with.
        context.prec = max(40, min(len(number.as_tuple().digits) + 4, 4000))
        ns = int((number * 1000).to_integral_value(rounding=ROUND_HALF_EVEN))
    return min(max(ns, -LIMIT_NS), LIMIT_NS)
