"""Words for times, shares and volumes of a profile."""

from __future__ import annotations

import math
from typing import Any

from densing.plots import text

_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))


def unit_of(ns: float) -> tuple[float, str]:
    """Return the unit in which a time is read best: nanoseconds in one of it, and its sign.

    Examples
    --------
    >>> unit_of(2_500_000), unit_of(0)
    ((1000000.0, 'ms'), (1.0, 'ns'))
    """
    return next(((size, sign) for size, sign in _UNITS if abs(ns) >= size), _UNITS[-1])


def duration(ns: Any) -> str:
    """Return a time with three digits and the unit that suits it.

    Examples
    --------
    >>> [duration(ns) for ns in (0, 850, 12_345, 1_234_567, 61_000_000_000, 999_999, None)]
    ['0 ms', '850 ns', '12.3 µs', '1.23 ms', '61.0 s', '1.00 ms', '–']
    """
    if text.is_missing(ns) or not math.isfinite(float(ns)):
        return text.MISSING
    if float(ns) == 0:
        return "0 ms"
    size, sign = unit_of(float(f"{float(ns):.3g}"))
    return f"{digits(float(ns) / size)} {sign}"


def milliseconds(ms: Any) -> str:
    """Return a time given in milliseconds, as :func:`duration` does.

    Examples
    --------
    >>> milliseconds(0.0123), milliseconds(None)
    ('12.3 µs', '–')
    """
    return text.MISSING if text.is_missing(ms) else duration(float(ms) * 1e6)


def digits(value: float) -> str:
    """Return three significant digits, whole numbers from 100 on.

    Examples
    --------
    >>> [digits(value) for value in (1.2345, 99.96, 123.4, 0.0456, 12345.6)]
    ['1.23', '100', '123', '0.0456', '12346']
    """
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")
    places = max(2 - math.floor(math.log10(abs(rounded))), 0)
    return f"{value:.{places}f}".replace("-", "−")


def percent(value: Any) -> str:
    """Return a percentage with one decimal; what is not zero never reads as zero.

    Examples
    --------
    >>> [percent(value) for value in (12.34, 0.0, 0.012, 100.0, None)]
    ['12.3 %', '0 %', '< 0.1 %', '100 %', '–']
    """
    if text.is_missing(value) or not math.isfinite(float(value)):
        return text.MISSING
    real = float(value)
    if real == 0 or abs(real) == 100:
        return f"{real:.0f} %"
    return "< 0.1 %" if 0 < real < 0.05 else f"{real:.1f} %".replace("-", "−")


def volume(count: Any) -> str:
    """Return bytes in units of ten.

    Examples
    --------
    >>> [volume(count) for count in (0, 4_000, 25_000_000, 3.2e9, None)]
    ['0 B', '4.00 kB', '25.0 MB', '3.20 GB', '–']
    """
    if text.is_missing(count) or float(count) < 0:
        return text.MISSING
    for size, sign in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if float(count) >= size:
            return f"{digits(float(count) / size)} {sign}"
    return f"{float(count):.0f} B"


def ranks_of(ranks: Any, limit: int = 8) -> str:
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
    shown = [_run(run) for run in runs[:limit]]
    rest = sum(len(run) for run in runs[limit:])
    more = f" and {rest} more" if rest else ""
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {', '.join(shown)}{more}"


def _run(run: list[int]) -> str:
    if len(run) < 3:
        return ", ".join(map(str, run))
    return f"{run[0]}–{run[-1]}"
