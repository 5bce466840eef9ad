"""The trend in words that every output shares: its title with its window, and what the leading checks say."""

from __future__ import annotations

import calendar
import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from densing.scores.trend.permutation import BLOCKS
from densing.scores.trend.slopes import doubling_months, doubling_text

SIGNIFICANT = 0.05
TESTS = {
    BLOCKS: "release dates of whole families shuffled",
    "headline": "release dates of single models shuffled",
    "envelope": "release dates shuffled, slope of the paper's record-setters",
}
"""The tests that shuffle dates, the one to read first."""


def title(head: Mapping[str, Any] | pd.Series, released: Any, level: float = 0.95) -> str:
    """Return the headline itself: what was estimated, and for which window.

    Parameters
    ----------
    head : mapping
        ``doubling_months``, ``lo`` and ``hi``.
    released : sequence of dates
        Of the rows behind it.
    level : float

    Examples
    --------
    >>> dates = ["2023-02-24", "2024-07-31"]
    >>> title({"doubling_months": 3.1, "lo": 2.5, "hi": 4.1}, dates)
    'Capability density doubled every 3.1 months between February 2023 and July 2024 (95 % interval 2.5 to 4.1)'
    >>> title({"doubling_months": 8.0, "lo": 5.2, "hi": float("inf")}, dates).split(" (")[0]
    'Capability density may have doubled every 8.0 months between February 2023 and July 2024'
    >>> title({"doubling_months": float("inf"), "lo": 9.0, "hi": float("inf")}, dates)
    'Models released between February 2023 and July 2024 show no growth of capability density'
    """
    months, lo, hi = (float(head[name]) if head[name] is not None else math.nan for name in _ENDS)
    when = window(released)
    if math.isnan(months):
        return f"No doubling time could be estimated for models released {when}"
    if math.isinf(months):
        return f"Models released {when} show no growth of capability density"
    share = f"{100 * level:g} % interval"
    if math.isnan(lo) or math.isnan(hi):
        return f"Capability density doubled every {months:.1f} months {when} (no interval available)"
    if math.isinf(hi):
        ends = f"{share}: at least {lo:.1f} months, upper end unbounded"
        return f"Capability density may have doubled every {months:.1f} months {when} ({ends})"
    return f"Capability density doubled every {months:.1f} months {when} ({share} {lo:.1f} to {hi:.1f})"


_ENDS = ("doubling_months", "lo", "hi")


def window(released: Any) -> str:
    """Return the window of release dates for prose.

    Examples
    --------
    >>> window(["2024-07-31", "2024-07-02"]), window([])
    ('in July 2024', 'on no date')
    """
    stamps = pd.DatetimeIndex(released)
    if not len(stamps):
        return "on no date"
    first, last = (f"{calendar.month_name[stamp.month]} {stamp.year}" for stamp in (stamps.min(), stamps.max()))
    return f"in {first}" if first == last else f"between {first} and {last}"


def shuffled(checks: Mapping[str, Any]) -> str:
    """Say what the one valid shuffle of release dates finds, with its size and power; empty where it could not run.

    Examples
    --------
    >>> power = [{"effect": "a doubling in 12 months", "share": 0.59}]
    >>> print(shuffled({"permutation": {BLOCKS: {"p": 0.003, "size": 0.0475, "power": power}}}))
    With the release dates of whole families shuffled, as steep a slope appears with p = 0.003: the order of release
    alone seldom gives such a slope. At 5 %, in worlds simulated on these dates and families, this test rejects 5 % of
    those without a trend (size) and 59 % with a doubling in 12 months (power).
    """
    row = (checks.get("permutation") or {}).get(BLOCKS) or {}
    if row.get("p") is None:
        return ""
    verdict = "seldom gives such a slope" if row["p"] <= SIGNIFICANT else "could give such a slope by chance"
    return (
        f"With the release dates of whole families shuffled, as steep a slope appears with p = {row['p']:.3f}: the "
        f"order of release alone {verdict}. {size_and_power(row, 'without a trend', 'on these dates and families')}"
    )


def size_and_power(row: Mapping[str, Any], nothing: str, where: str = "on its dates and families") -> str:
    """Say how often a test rejects where there is nothing, and where there is something; of simulated worlds.

    Examples
    --------
    >>> size_and_power({"p": 0.2}, "without a break")
    'How often this test is right was not simulated.'
    """
    if row.get("size") is None:
        return "How often this test is right was not simulated."
    parts = [f"{_percent(entry['share'])} {_with(entry['effect'])}" for entry in row.get("power") or []]
    found = f"At 5 %, in worlds simulated {where}, this test rejects {_percent(row['size'])} of those {nothing} (size)"
    return f"{found} and {_and(parts)} (power)." if parts else f"{found}."


def _with(effect: str) -> str:
    return f"with {effect}" if effect.startswith("a ") else f"where {effect}"


def broken(checks: Mapping[str, Any]) -> str:
    """Say where a search finds the best break and what its p-value is worth; empty where none was searched.

    Examples
    --------
    >>> row = {"date": "2023-09-27", "p": 0.015, "slope_before": 0.02, "slope_after": 0.0008, "size": 0.07, "power": []}
    >>> print(broken({"breakpoint": {"searched": row}}))
    The best break by search, 2023-09-27, has p = 0.015 (search included): a doubling in 1.1 months before and in 28.5
    months after. At 5 %, in worlds simulated on its dates and families, this test rejects 7 % of those without a break
    (size).
    """
    row = (checks.get("breakpoint") or {}).get("searched") or {}
    if row.get("p") is None or row.get("date") is None:
        return ""
    before, after = (_pace(row[name]) for name in ("slope_before", "slope_after"))
    if before.startswith("a "):
        after = after.removeprefix("a doubling ")
    return (
        f"The best break by search, {row['date']}, has p = {row['p']:.3f} (search included): {before} before and "
        f"{after} after. {size_and_power(row, 'without a break')}"
    )


def without_groups(checks: Mapping[str, Any], months: float) -> str:
    """Say what the headline is without each named group of families; empty where none is in the data.

    Examples
    --------
    >>> row = {"group": "research suites", "families": ["A", "B"], "doubling_months": 4.16, "lo": 2.9, "hi": 7.5}
    >>> without_groups({"without_groups": [row]}, 3.71)
    'Without research suites (A, B) the doubling time is 4.2 months (2.9 to 7.5) instead of 3.7.'
    """
    found = []
    for row in checks.get("without_groups") or []:
        name = f"Without {row['group']} ({', '.join(row['families'])})"
        if row.get("reason"):
            found.append(f"{name} nothing can be estimated: {row['reason']}.")
            continue
        ends = (math.inf if row[end] is None else float(row[end]) for end in _ENDS)
        near = f" instead of {months:.1f}" if math.isfinite(months) else ""
        found.append(f"{name} the doubling time is {doubling_text(*ends)}{near}.")
    return " ".join(found)


def left_out(checks: Mapping[str, Any]) -> str:
    """Say how far the headline moves without one family, or one organisation, at a time.

    Examples
    --------
    >>> row = {"doubling_min": 3.4, "doubling_max": None, "most_influential": "A"}
    >>> left_out({"leave_one_family_out": row})
    'Without one family at a time it moves between 3.4 months and no doubling (A moves it most).'
    """
    found = []
    for kind in ("family", "organisation"):
        row = checks.get(f"leave_one_{kind}_out") or {}
        if row.get("doubling_min") is not None:
            upper = "no doubling" if row.get("doubling_max") is None else f"{row['doubling_max']:.1f} months"
            lower = f"{row['doubling_min']:.1f}{' months' if upper == 'no doubling' else ''}"
            moves = f"between {lower} and {upper} ({row['most_influential']} moves it most)"
            found.append(f"one {kind} at a time it moves {moves}")
    return f"Without {', without '.join(found)}." if found else ""


def by_organisation(checks: Mapping[str, Any], level: float = 0.95) -> str:
    """Say what the interval is with organisations in place of families as what is independent.

    Examples
    --------
    >>> by_organisation({"organisations": {"clusters": 16, "lo": 2.67, "hi": 6.08}})
    'With the 16 organisations taken as independent in place of families, the 95 % interval is 2.7 to 6.1 months.'
    """
    row = checks.get("organisations") or {}
    if row.get("lo") is None:
        return ""
    ends = f"{row['lo']:.1f} to {row['hi']:.1f} months" if row.get("hi") is not None else f"≥ {row['lo']:.1f} months"
    return (
        f"With the {row['clusters']} organisations taken as independent in place of families, the {100 * level:g} % "
        f"interval is {ends}."
    )


def other_tests(checks: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the shuffles that do not lead, one row each: test, p, size, power.

    Examples
    --------
    >>> other_tests({"permutation": {"headline": {"p": 0.001, "size": 0.18}}})
    [{'test': 'release dates of single models shuffled', 'p': 0.001, 'size': 0.18, 'power': []}]
    """
    rows = checks.get("permutation") or {}
    return [
        {"test": words, "p": row["p"], "size": row.get("size"), "power": list(row.get("power") or [])}
        for name, words in TESTS.items()
        if name != BLOCKS and (row := rows.get(name) or {}).get("p") is not None
    ]


def other_test(row: Mapping[str, Any]) -> str:
    """Return a row of :func:`other_tests` as a sentence.

    Examples
    --------
    >>> print(other_test({"test": "dates shuffled", "p": 0.001, "size": 0.18, "power": []}))
    Dates shuffled: p = 0.001. At 5 %, in worlds simulated on its dates and families, this test rejects 18 % of those
    without a trend (size).
    """
    name = row["test"]
    return f"{name[:1].upper()}{name[1:]}: p = {row['p']:.3f}. {size_and_power(row, 'without a trend')}"


def _pace(slope: float) -> str:
    months = doubling_months(float(slope))
    return f"a doubling in {months:.1f} months" if math.isfinite(months) else "no doubling"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
