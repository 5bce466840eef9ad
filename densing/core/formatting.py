"""Formatting of sizes, shares, times, dates, intervals and limits, the same everywhere.

Commands, figures and reports print the same figure the same way because they all ask here. Infinite and missing values
are part of the vocabulary: a doubling time whose upper end is unbounded is a result, not an error.

Loads no pandas and no plotly: commands that answer in a fraction of a second write numbers too.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable
from typing import Any

MISSING = "–"
_CONTROL = re.compile(r"[\x00-\x1f\x7f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]+")


def is_missing(value: Any) -> bool:
    """Return whether a cell holds nothing: None, NaN, NaT, NA or an empty string.

    Examples
    --------
    >>> import pandas as pd
    >>> [is_missing(v) for v in (None, float("nan"), pd.NaT, "", 0, "x", float("inf"))]
    [True, True, True, True, False, False, False]
    """
    # Where pandas is not loaded, no value is one of its own.
    pandas = sys.modules.get("pandas")
    if value is None or (pandas is not None and (value is pandas.NaT or value is pandas.NA)):
        return True
    if isinstance(value, str):
        return not value.strip()
    try:
        return bool(math.isnan(value))
    except TypeError:
        return False


def known(value: Any) -> float | None:
    """Return a finite number, or None; one that leaves an axis no room beside it, or its inverse none, counts as none.

    Examples
    --------
    >>> [known(value) for value in (1, "2.5", 0, float("nan"), 1e308, 5e-324, None, "two")]
    [1.0, 2.5, 0.0, None, None, None, None, None]
    """
    try:
        real = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return real if real == 0 or 1e-300 < abs(real) < 1e300 else None


def visible(text: str) -> str:
    """Return text with what a terminal would obey (escapes, direction marks, line ends) written out.

    Examples
    --------
    >>> print(visible("\\x1b[31mred"))
    \\x1b[31mred
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


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


def number(value: Any, count: int = 2) -> str:
    """Return a number with ``count`` significant digits and no exponent between 1e-4 and 1e6.

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
        return f"{real:.{count - 1}e}".replace("-", "−")
    return digits(real, count)


def three_digits(value: Any) -> str:
    """Return a number with three significant digits.

    Examples
    --------
    >>> three_digits(0.61234), three_digits(None)
    ('0.612', '–')
    """
    return number(value, 3)


def whole(value: Any) -> str:
    """Return a whole number with commas between thousands.

    Examples
    --------
    >>> whole(67542.3), whole(None)
    ('67,542', '–')
    """
    return MISSING if is_missing(value) else f"{float(value):,.0f}"


def digits(value: Any, count: int = 3) -> str:
    """Return so many significant digits and never an exponent: whole numbers from 100 on, of three.

    Examples
    --------
    >>> [digits(value) for value in (1.2345, 99.96, 123.4, 0.0456, 12345.6, None)]
    ['1.23', '100', '123', '0.0456', '12346', '–']
    """
    if is_missing(value) or math.isinf(value):
        return number(value)
    if value == 0:
        return "0"
    # Rounding first: 99.96 has one digit more before the point than it seems.
    exponent = int(f"{value:.{count - 1}e}".partition("e")[2])
    decimals = max(count - 1 - exponent, 0)
    return f"{float(value):.{decimals}f}".replace("-", "−")


def thousands(value: Any) -> str:
    """Return three significant digits with commas between thousands.

    Examples
    --------
    >>> [thousands(value) for value in (1234567.0, 999.6, 12.34, 0.0123, None)]
    ['1,230,000', '1,000', '12.3', '0.0123', '–']
    """
    if is_missing(value) or math.isinf(value) or abs(value) < 100:
        return digits(value)
    return f"{float(f'{value:.3g}'):,.0f}"


def with_error(value: Any, error: Any) -> str:
    """Return a score with its standard error, where that is known.

    Examples
    --------
    >>> with_error(0.6123, 0.0104), with_error(0.6123, None)
    ('0.612 ± 0.010', '0.612')
    """
    return number(value, 3) + ("" if is_missing(error) else f" ± {number(error)}")


def fixed(value: float | None, decimals: int = 1) -> str:
    """Return a figure with fixed decimals and its thousands apart, a dash for none: for columns of a terminal.

    Examples
    --------
    >>> fixed(12.345), fixed(1234.5), fixed(None)
    ('12.3', '1,234.5', '–')
    """
    return MISSING if value is None else f"{value:,.{decimals}f}"


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
    phrase = interval(lo, hi)
    for limit, sign in (("at least ", "≥ "), ("at most ", "≤ ")):
        phrase = phrase.replace(limit, sign)
    return phrase.split(",")[0]


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


def percent(value: Any) -> str:
    """Return a percentage with one decimal; what is not zero never reads as zero.

    Examples
    --------
    >>> [percent(value) for value in (12.34, 0.0, 0.012, 100.0, None)]
    ['12.3 %', '0 %', '< 0.1 %', '100 %', '–']
    """
    if is_missing(value) or not math.isfinite(float(value)):
        return MISSING
    real = float(value)
    if real == 0 or abs(real) == 100:
        return f"{real:.0f} %"
    return "< 0.1 %" if 0 < real < 0.05 else f"{real:.1f} %".replace("-", "−")


def share(value: Any) -> str:
    """Return a share as a percentage with one decimal.

    Examples
    --------
    >>> share(0.1234), share(None)
    ('12.3 %', '–')
    """
    real = known(value)
    return MISSING if real is None else percent(100 * real)


def figure(value: Any, unit: Any = "") -> str:
    """Return a number with three digits and its unit, words as they stand.

    Examples
    --------
    >>> figure(304736.2, "tokens/s"), figure("4090 > A800"), figure(None), figure(0.5, "s")
    ('304736 tokens/s', '4090 > A800', '–', '500 ms')
    """
    if isinstance(value, str):
        return clean(value, 200)
    real = known(value)
    if real is None:
        return MISSING
    if unit == "s":
        return seconds(real)
    return f"{digits(real)} {'' if is_missing(unit) else clean(unit, 60)}".strip()


def deviation(value: Any) -> str:
    """Return a relative error as a percentage with its sign.

    Examples
    --------
    >>> deviation(0.051), deviation(-0.25), deviation(None)
    ('+5.1 %', '−25.0 %', '–')
    """
    real = known(value)
    return MISSING if real is None else f"{'+' if real > 0 else ''}{percent(100 * real)}"


def factor(value: Any) -> str:
    """Return a ratio, such as a speed-up, as a factor.

    Examples
    --------
    >>> factor(1.234), factor(None)
    ('1.23×', '–')
    """
    real = known(value)
    return MISSING if real is None else f"{digits(real)}×"


def signed(value: Any) -> str:
    """Return a difference with its sign and three decimals.

    Examples
    --------
    >>> signed(0.0125), signed(-1.5), signed(None)
    ('+0.013', '−1.500', '–')
    """
    return MISSING if is_missing(value) else f"{float(value):+.3f}".replace("-", "−")


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


_SIZES = ((1e12, "T"), (1e9, "B"), (1e6, "M"))


def size(count: Any) -> str:
    """Return a number of parameters or tokens with a unit: M, B (10⁹), T.

    Examples
    --------
    >>> [size(v) for v in (7e9, 124e6, 4.05e11, 999.7e6, 5.2e3, float("nan"))]
    ['7 B', '124 M', '405 B', '1 B', '5200', '–']
    """
    if is_missing(count) or not math.isfinite(float(count)):
        return number(count)
    value = float(count)
    for factor, unit in _SIZES:
        # What rounds to a thousand of one unit is one of the next.
        if abs(value) >= factor * (1 - 5e-4):
            return f"{value / factor:.3g} {unit}" if abs(value) < 1000 * factor else f"{value / factor:.0f} {unit}"
    return f"{value:.0f}"


def power(value: Any, count: int = 2) -> str:
    """Return a number too large for a name of its own, with a power of ten.

    Examples
    --------
    >>> power(8.09e22), power(9.99e24), power(123.4), power(None)
    ('8.1·10²²', '1.0·10²⁵', '123', '–')
    """
    if is_missing(value) or not 1e4 <= abs(float(value)) < math.inf:
        return number(value, count)
    mantissa, _, exponent = f"{float(value):.{count - 1}e}".partition("e")
    return f"{mantissa}·10{str(int(exponent)).translate(_RAISED)}"


_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def count(value: Any) -> str:
    """Return a number of things as a whole number.

    Examples
    --------
    >>> count(12.0), count(None)
    ('12', '–')
    """
    return MISSING if is_missing(value) else f"{float(value):.0f}"


_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))


def unit_of(ns: float) -> tuple[float, str]:
    """Return the unit in which a time is read best: nanoseconds in one of it, and its sign.

    Examples
    --------
    >>> unit_of(2_500_000), unit_of(0)
    ((1000000.0, 'ms'), (1.0, 'ns'))
    """
    return next(((size, sign) for size, sign in _TIMES if abs(ns) >= size), _TIMES[-1])


def duration(ns: Any) -> str:
    """Return a time with three digits and the unit that suits it.

    Examples
    --------
    >>> [duration(ns) for ns in (0, 850, 12_345, 1_234_567, 61_000_000_000, 999_999, None)]
    ['0 ms', '850 ns', '12.3 µs', '1.23 ms', '61.0 s', '1.00 ms', '–']
    """
    if is_missing(ns) or not math.isfinite(float(ns)):
        return MISSING
    if float(ns) == 0:
        return "0 ms"
    size, sign = unit_of(float(f"{float(ns):.3g}"))
    return f"{digits(float(ns) / size)} {sign}"


def seconds(value: Any) -> str:
    """Return a time given in seconds, as :func:`duration` does.

    Examples
    --------
    >>> seconds(0.0123), seconds(None)
    ('12.3 ms', '–')
    """
    real = known(value)
    return MISSING if real is None else duration(1e9 * real)


def signed_duration(ns: Any) -> str:
    """Return a difference of times with its sign.

    Examples
    --------
    >>> signed_duration(12_345), signed_duration(-2e6), signed_duration(0), signed_duration(None)
    ('+12.3 µs', '−2.00 ms', '0 ms', '–')
    """
    if is_missing(ns):
        return MISSING
    return f"{'+' if ns > 0 else '−' if ns < 0 else ''}{duration(abs(ns))}"


def milliseconds(ms: Any) -> str:
    """Return a time given in milliseconds, as :func:`duration` does.

    Examples
    --------
    >>> milliseconds(0.0123), milliseconds(None)
    ('12.3 µs', '–')
    """
    return MISSING if is_missing(ms) else duration(float(ms) * 1e6)


def milliseconds_of(value: float | None) -> str:
    """Return milliseconds without their unit, with two decimals: for columns of a terminal.

    Below one with three digits, so that what is not zero never reads as zero.

    Examples
    --------
    >>> milliseconds_of(1234.567), milliseconds_of(0.0021), milliseconds_of(0.0), milliseconds_of(None)
    ('1,234.57', '0.0021', '0.00', '–')
    """
    return fixed(value, 2) if not value or abs(value) >= 1 else f"{value:.3g}"


def volume(count: Any) -> str:
    """Return bytes in units of ten.

    Examples
    --------
    >>> [volume(count) for count in (0, 4_000, 25_000_000, 3.2e9, None)]
    ['0 B', '4.00 kB', '25.0 MB', '3.20 GB', '–']
    """
    if is_missing(count) or not 0 <= float(count) < math.inf:
        return MISSING
    for size, sign in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if float(count) >= size:
            return f"{digits(float(count) / size)} {sign}"
    return f"{float(count):.0f} B"


def day(value: Any) -> str:
    """Return a date in ISO form.

    Examples
    --------
    >>> import pandas as pd
    >>> day(pd.Timestamp("2024-02-29 13:00")), day(None)
    ('2024-02-29', '–')
    """
    if is_missing(value):
        return MISSING
    import pandas as pd

    try:
        stamp = pd.Timestamp(value)
    except (ValueError, OverflowError):
        return clean(value)
    return MISSING if stamp is pd.NaT else str(stamp.date())


_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip


def month(value: Any) -> str:
    """Return a date as month and year, for prose.

    Examples
    --------
    >>> month("2024-02-29")
    'February 2024'
    """
    iso = day(value)
    return f"{_MONTHS[int(iso[5:7]) - 1]} {iso[:4]}" if len(iso) == 10 else iso


def plural(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun.

    Examples
    --------
    >>> plural(1, "family", "families"), plural(3, "model")
    ('1 family', '3 models')
    """
    return f"{count} {one if count == 1 else many or one + 's'}"


def listed(items: Iterable[object], most: int = 5, joint: str = ", ") -> str:
    """Return the first of many, and how many more there are.

    Examples
    --------
    >>> listed("abc"), listed("abcdefg"), listed(["x: 1", "y: 2"], most=1, joint="; ")
    ('a, b, c', 'a, b, c, d, e and 2 more', 'x: 1 and 1 more')
    """
    names = [str(item) for item in items]
    ending = f" and {len(names) - most} more" if len(names) > most else ""
    return joint.join(names[:most]) + ending


def ranks_of(ranks: Iterable[int], limit: int = 8) -> str:
    """Return ranks as words, runs of numbers joined, long lists cut.

    Examples
    --------
    >>> ranks_of([0, 1, 2, 5]), ranks_of([3]), ranks_of(range(0, 40, 2), limit=3)
    ('ranks 0–2, 5', 'rank 3', 'ranks 0, 2, 4 and 17 more')
    """
    ordered = sorted(set(ranks))
    if not ordered:
        return "no rank"
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    joined = [", ".join(map(str, run)) if len(run) < 3 else f"{run[0]}–{run[-1]}" for run in runs[:limit]]
    # What is left out is counted in ranks, not in runs.
    left_out = sum(len(run) for run in runs[limit:])
    ending = f" and {left_out} more" if left_out else ""
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {', '.join(joined)}{ending}"


def cut(text: str, width: int) -> str:
    """Return a text cut to a width, with a mark where it was.

    Examples
    --------
    >>> cut("ncclDevKernel_AllReduce", 12)
    'ncclDevKern…'
    """
    return text if len(text) <= width else text[: width - 1] + "…"


def middle_cut(text: str, width: int) -> str:
    """Return a sentence cut to a width in its middle: an endless name in it takes neither its subject nor its end.

    Examples
    --------
    >>> middle_cut("all_reduce in group pgpgpgpgpgpgpg: 8 calls", 32)
    'all_reduce in group p…g: 8 calls'
    """
    if len(text) <= width:
        return text
    tail = width // 3
    return f"{text[: width - tail - 1]}…{text[-tail:]}"


def sentence(text: Any, names: Iterable[str] = ()) -> str:
    """Return words as a sentence; a name that begins it stays as it is written.

    What has a digit, a sign or a capital in it is taken for a name, and so are one word before a colon and one letter
    (p, n).

    Parameters
    ----------
    text : object
        The words.
    names : iterable of str
        Names that look like words (``ddp``).

    Examples
    --------
    >>> sentence("no upper end"), sentence("lm-eval is not installed"), sentence("co2: replicas train apart")
    ('No upper end.', 'lm-eval is not installed.', 'co2: replicas train apart.')
    >>> sentence("ddp does not fit", names=["ddp"]), sentence("p of both is corrected"), sentence("a step is long")
    ('ddp does not fit.', 'p of both is corrected.', 'A step is long.')
    """
    line = clean(text, 600).rstrip(".")
    first = line.partition(" ")[0].rstrip(",;")
    symbol = len(first) == 1 and first != "a"
    named = symbol or not first.isalpha() or not first.islower() or first in set(names)
    return f"{line if named else line[:1].upper() + line[1:]}."


_STATUS = {
    "ok": "inside the reference's range",
    "extrapolated": "beyond the reference's range",
    "below_floor": "score at or below the floor",
    "above_ceiling": "score at or above the ceiling",
}
_BOUND = {"upper": "true value at or below", "lower": "true value at or above"}
_SHORT = {"ok": "in range", "below_floor": "below floor", "above_ceiling": "above ceiling"}
_SIGN = {"upper": "≤", "lower": "≥"}


def sign(bound: Any) -> str:
    """Return what stands before a value that is only a limit; nothing before another.

    Examples
    --------
    >>> sign("upper") + "1.237", sign("") + "0.71"
    ('≤ 1.237', '0.71')
    """
    return f"{_SIGN[str(bound)]} " if str(bound) in _SIGN else ""


def bounded(value: Any, bound: Any) -> str:
    """Return a number, marked as a limit where it is one.

    Examples
    --------
    >>> bounded(4.5, "lower"), bounded(4.5, "")
    ('≥ 4.5', '4.5')
    """
    return number(value) if is_missing(value) else f"{sign(bound)}{number(value)}"


def status(value: Any, bound: Any = "") -> str:
    """Return the status of an inversion in words.

    Examples
    --------
    >>> status("below_floor", "upper")
    'score at or below the floor: true value at or below'
    """
    phrase = _STATUS.get(str(value), clean(value))
    return phrase if is_missing(bound) else f"{phrase}: {_BOUND.get(str(bound), clean(bound))}"


def short_status(value: Any, bound: Any = "") -> str:
    """Return the status of an inversion for a table cell; ≤ and ≥ say on which side the true value lies.

    Examples
    --------
    >>> short_status("above_ceiling", "lower"), short_status("ok")
    ('above ceiling (≥)', 'in range')
    """
    phrase = _SHORT.get(str(value), clean(value))
    return phrase if is_missing(bound) else f"{phrase} ({_SIGN.get(str(bound), clean(bound))})"
