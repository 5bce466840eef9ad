"""Words for numbers: intervals, sizes, dates, and text that is safe inside a plotly figure.

Report, command line and plots print the same figure the same way because they all ask here. Infinite and
missing values are part of the vocabulary: a doubling time whose upper end is unbounded is a result, not an
error.
"""

from __future__ import annotations

import html
import math
import re
from typing import Any

import pandas as pd

MISSING = "–"
PAPER_MONTHS = 3.3
JOURNAL_MONTHS = 3.5
SECOND_HAND = "as reported second-hand"
_CONTROL = re.compile(r"[\x00-\x1f\x7f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]+")


def is_missing(value: Any) -> bool:
    """Return whether a cell holds nothing: None, NaN, NaT, NA or an empty string.

    Examples
    --------
    >>> [is_missing(v) for v in (None, float("nan"), pd.NaT, "", 0, "x", float("inf"))]
    [True, True, True, True, False, False, False]
    """
    if value is None or value is pd.NaT or value is pd.NA:
        return True
    if isinstance(value, str):
        return not value.strip()
    try:
        return bool(math.isnan(value))
    except TypeError:
        return False


def clean(value: Any, limit: int = 160) -> str:
    """Return one line of text: control and direction characters removed, cut to ``limit`` characters.

    Examples
    --------
    >>> clean("a\\nb\\u202ec")
    'a b c'
    >>> clean("x" * 9, limit=4)
    'xxx…'
    """
    if is_missing(value):
        return MISSING
    text = " ".join(_CONTROL.sub(" ", str(value)).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def figure_text(value: Any, limit: int = 160) -> str:
    """Return text that plotly shows as it stands: its pseudo-HTML (``<b>``, ``<a href>``) is escaped.

    Examples
    --------
    >>> figure_text("<img src=x onerror=alert(1)>")
    '&lt;img src=x onerror=alert(1)&gt;'
    """
    return html.escape(clean(value, limit), quote=False)


def number(value: Any, digits: int = 2) -> str:
    """Return a number with ``digits`` significant digits and no exponent between 1e-4 and 1e6.

    Examples
    --------
    >>> [number(v) for v in (3.14159, 0.0123, 123.4, 99.9, float("inf"), float("nan"))]
    ['3.1', '0.012', '123', '100', '∞', '–']
    """
    if is_missing(value):
        return MISSING
    real = float(value)
    if math.isinf(real):
        return "∞" if real > 0 else "−∞"
    if real == 0:
        return "0"
    if not 1e-4 <= abs(real) < 1e6:
        return f"{real:.{digits - 1}e}".replace("-", "−")
    rounded = float(f"{real:.{digits - 1}e}")
    decimals = max(digits - 1 - math.floor(math.log10(abs(rounded))), 0)
    return f"{real:.{decimals}f}".replace("-", "−")


def months(value: Any) -> str:
    """Return months to one decimal, or none from 100 on.

    Examples
    --------
    >>> [months(v) for v in (3.25, 104.4, float("inf"))]
    ['3.2', '104', '∞']
    """
    if is_missing(value) or math.isinf(float(value)):
        return number(value)
    return f"{float(value):.1f}" if abs(float(value)) < 100 else f"{float(value):.0f}"


def short_interval(lo: Any, hi: Any) -> str:
    """Return an interval for a table cell.

    Examples
    --------
    >>> short_interval(2.5, 4.1), short_interval(5.2, float("inf")), short_interval(None, None)
    ('2.5 to 4.1', '≥ 5.2', '–')
    """
    if is_missing(lo) and is_missing(hi):
        return MISSING
    words = interval(lo, hi)
    for long, sign in (("at least ", "≥ "), ("at most ", "≤ ")):
        words = words.replace(long, sign)
    return words.split(",")[0]


def interval(lo: Any, hi: Any, unit: str = "") -> str:
    """Return an interval in words; an infinite end is called unbounded.

    Examples
    --------
    >>> interval(2.5, 4.1)
    '2.5 to 4.1'
    >>> interval(5.2, float("inf"), "months")
    'at least 5.2 months, upper end unbounded'
    >>> interval(float("inf"), float("inf"))
    'no doubling'
    """
    unit = f" {unit}" if unit else ""
    if is_missing(lo) and is_missing(hi):
        return "not estimable"
    if is_missing(lo) or float(lo) <= 0:
        return f"at most {months(hi)}{unit}, lower end unbounded"
    if math.isinf(float(lo)):
        return "no doubling"
    if is_missing(hi) or math.isinf(float(hi)):
        return f"at least {months(lo)}{unit}, upper end unbounded"
    return f"{months(lo)} to {months(hi)}{unit}"


def doubling(value: Any, lo: Any, hi: Any, level: float = 0.95) -> str:
    """Return a doubling time with its interval in words.

    Parameters
    ----------
    value, lo, hi : float
        Doubling time and the ends of its interval, months. ``inf`` where the slope (or its lower end) is not
        positive.
    level : float
        Confidence level of the interval.

    Examples
    --------
    >>> doubling(3.1, 2.5, 4.1)
    '3.1 months (95 % interval 2.5 to 4.1)'
    >>> doubling(8.0, 5.2, float("inf"))
    '8.0 months (95 % interval: at least 5.2 months, upper end unbounded)'
    >>> doubling(float("inf"), 5.2, float("inf"))
    'at least 5.2 months (95 % interval, upper end unbounded)'
    """
    if is_missing(value) and is_missing(lo):
        return "not estimable"
    percent = f"{percentage(level)} interval"
    unbounded = is_missing(hi) or math.isinf(float(hi))
    if is_missing(value) or math.isinf(float(value)):
        if is_missing(lo) or math.isinf(float(lo)):
            return "no doubling (density does not rise)"
        return f"at least {months(lo)} months ({percent}, upper end unbounded)"
    if is_missing(lo):
        return f"{months(value)} months (no interval)"
    if unbounded:
        return f"{months(value)} months ({percent}: {interval(lo, hi, 'months')})"
    return f"{months(value)} months ({percent} {interval(lo, hi)})"


def percentage(share: Any) -> str:
    """Return a share as a percentage.

    Examples
    --------
    >>> percentage(0.95), percentage(0.123), percentage(None)
    ('95 %', '12 %', '–')
    """
    return MISSING if is_missing(share) else f"{100 * float(share):.0f} %"


def p_value(value: Any) -> str:
    """Return a p-value with two or three decimals, never zero.

    Examples
    --------
    >>> p_value(0.0312), p_value(0.00004), p_value(float("nan"))
    ('p = 0.031', 'p < 0.001', 'p not available')
    """
    if is_missing(value):
        return "p not available"
    if float(value) < 0.001:
        return "p < 0.001"
    return f"p = {float(value):.2f}" if float(value) >= 0.1 else f"p = {float(value):.3f}"


def size(count: Any) -> str:
    """Return a parameter count with a unit.

    Examples
    --------
    >>> [size(v) for v in (7e9, 124e6, 4.05e11, 5.2e3, float("nan"))]
    ['7 B', '124 M', '405 B', '5200', '–']
    """
    if is_missing(count) or not math.isfinite(float(count)):
        return number(count)
    value = float(count)
    for factor, unit in ((1e12, " T"), (1e9, " B"), (1e6, " M")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{unit}" if value / factor < 1000 else f"{value / factor:.0f}{unit}"
    return f"{value:.0f}"


def day(value: Any) -> str:
    """Return a date in ISO form.

    Examples
    --------
    >>> day(pd.Timestamp("2024-02-29 13:00")), day(None)
    ('2024-02-29', '–')
    """
    if is_missing(value):
        return MISSING
    try:
        stamp = pd.Timestamp(value)
    except (ValueError, OverflowError):
        return clean(value)
    return MISSING if stamp is pd.NaT else str(stamp.date())


def month(value: Any) -> str:
    """Return a date as month and year, for prose.

    Examples
    --------
    >>> month(pd.Timestamp("2024-02-29"))
    'February 2024'
    """
    iso = day(value)
    return f"{_MONTHS[int(iso[5:7]) - 1]} {iso[:4]}" if len(iso) == 10 else iso


_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip


def plural(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun.

    Examples
    --------
    >>> plural(1, "family", "families"), plural(3, "model")
    ('1 family', '3 models')
    """
    return f"{count} {one if count == 1 else many or one + 's'}"
