"""The trend in sentences that every output shares: its title with its window, and what the checks say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from densing.core import formatting
from densing.scores.trend.checks import Checks
from densing.scores.trend.data import DAYS_PER_YEAR, Slope, doubling_months
from densing.scores.trend.pace import LIKELY, SURE, PaceFit
from densing.scores.trend.significance import BLOCKS, SIGNIFICANT, SearchedBreak, ShuffleTest, StatedBreak

STILL = 120.0
"""Months to double from which on a pace is called no growth."""
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
    ends = ("doubling_months", "lo", "hi")
    months, lo, hi = (float(head[name]) if head[name] is not None else math.nan for name in ends)
    when = window(released)
    if math.isnan(months):
        return f"No doubling time could be estimated for models released {when}"
    if math.isinf(months):
        return f"Models released {when} show no growth of capability density"
    interval = f"{100 * level:g} % interval"
    if math.isnan(lo) or math.isnan(hi):
        return f"Capability density doubled every {months:.1f} months {when} (no interval available)"
    if math.isinf(hi):
        limit = f"{interval}: at least {lo:.1f} months, upper end unbounded"
        return f"Capability density may have doubled every {months:.1f} months {when} ({limit})"
    return f"Capability density doubled every {months:.1f} months {when} ({interval} {lo:.1f} to {hi:.1f})"


def slope_text(slope: Slope) -> str:
    """Put a slope with its interval into words, as a doubling time."""
    return doubling_text(slope.doubling_months, *slope.doubling_interval)


def quoted(title: str, now: str, *, models: int, families: int, reference: str, benchmark: str) -> str:
    """Return a trend in one paragraph that says all it needs to be quoted.

    Examples
    --------
    >>> print(quoted("Density doubled every 5 months", "Now it rests.", models=9, families=1, reference="llama",
    ...              benchmark="mmlu"))
    Density doubled every 5 months; 9 models of 1 family on the reference llama, benchmark mmlu. Now it rests. Another
    reference or other models give another pace.
    """
    of = f"{formatting.plural(models, 'model')} of {formatting.plural(families, 'family', 'families')}"
    parts = (f"{title}; {of} on the reference {formatting.clean(reference, 80)}, benchmark "
             f"{formatting.clean(benchmark, 80)}.", now,
             "Another reference or other models give another pace.")  # fmt: skip
    return " ".join(filter(None, parts))


def now(fit: PaceFit, released: Any) -> str:
    """Say what the pace of the last twelve months was, whether it changed, and whether density still grows.

    Examples
    --------
    >>> from densing.scores.trend.coverage import Scenario, simulate
    >>> from densing.scores.trend.pace import fit_pace
    >>> data = simulate(Scenario(doubling_months=3.5, months=36), seed=4)
    >>> now(fit_pace(data, sweeps=100, burn=50), data.released).split(" density doubled")[0]
    'Over the twelve months to February 2026'
    """
    slope, last = fit.last_year, formatting.month(pd.DatetimeIndex(released).max())
    if fit.knots[-1] - fit.knots[0] <= DAYS_PER_YEAR:
        return "The window is no longer than a year: its last twelve months are all of it."
    if fit.slower >= SURE or fit.slower <= 1 - SURE:
        change = "more slowly" if fit.slower > 0.5 else "faster"
        change = f"{change} than before"
    elif fit.slower >= LIKELY or fit.slower <= 1 - LIKELY:
        change = f"probably {'more slowly' if fit.slower > 0.5 else 'faster'} than before"
    else:
        change = "at a pace not shown to differ from that before"
    low, high = slope.doubling_interval
    if math.isinf(low):
        return f"Over the twelve months to {last} density did not grow."
    grew = slope.doubling_months < STILL
    change = change if grew else change.replace("more slowly", "slower")
    verb = f"density doubled every {slope.doubling_months:.1f} months" if grew else "the best guess is no growth"
    upper = f"{high:.1f}" if math.isfinite(high) else "no doubling"
    unit = "" if grew else " months to double"
    still = "" if math.isfinite(high) else "; the data do not yet say whether it still grows"
    return (
        f"Over the twelve months to {last} {verb} ({100 * fit.interval:g} % interval {low:.1f}{unit} to {upper}), "
        f"{change}{still}."
    )


def doubling_text(months: float, lo: float, hi: float) -> str:
    """Put a doubling time and its interval into words.

    Examples
    --------
    >>> doubling_text(3.5, 2.9, 4.4)
    '3.5 months (2.9 to 4.4)'
    >>> doubling_text(9.0, 4.2, math.inf)
    '≥ 4.2 months, upper end unbounded (estimate 9.0)'
    >>> doubling_text(math.inf, 20.0, math.inf)
    '≥ 20.0 months, upper end unbounded (the estimated slope is not positive)'
    """
    if math.isnan(months):
        return "not estimable"
    if math.isinf(lo):
        return "no doubling: the whole interval of the slope is zero or below"
    if math.isinf(hi) or math.isnan(hi):
        estimate = f"estimate {months:.1f}" if math.isfinite(months) else "the estimated slope is not positive"
        return f"≥ {lo:.1f} months, upper end unbounded ({estimate})"
    return f"{months:.1f} months ({lo:.1f} to {hi:.1f})"


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
    first, last = (formatting.month(stamp) for stamp in (stamps.min(), stamps.max()))
    return f"in {first}" if first == last else f"between {first} and {last}"


def shuffled(checks: Checks) -> str:
    """Say what the one valid shuffle of release dates finds, with its size and power; empty where it could not run.

    Examples
    --------
    >>> from densing.scores.trend.significance import Effect, PermutationTests
    >>> power = (Effect("a doubling in 12 months", 0.59),)
    >>> test = ShuffleTest(0.003, 0.006, 0.0, None, (), size=0.0475, power=power)
    >>> print(shuffled(Checks(permutation=PermutationTests(999, test, test, test))))
    With the release dates of whole families shuffled, as steep a slope appears with p = 0.003: the order of release
    alone seldom gives such a slope. In simulations on these dates and families without a trend, the 5 % test rejects 5
    % (size); power: 59 % with a doubling in 12 months.
    """
    test = None if checks.permutation is None else checks.permutation.headline_family_blocks
    if test is None or test.p is None:
        return ""
    verdict = "seldom gives such a slope" if test.p <= SIGNIFICANT else "could give such a slope by chance"
    return (
        f"With the release dates of whole families shuffled, as steep a slope appears with p = {test.p:.3f}: the "
        f"order of release alone {verdict}. {size_and_power(test, 'without a trend', 'on these dates and families')}"
    )


def size_and_power(
    test: ShuffleTest | StatedBreak | SearchedBreak, nothing: str, where: str = "on its dates and families"
) -> str:
    """Say how often a test rejects where there is nothing, and where there is something; of simulated worlds.

    Examples
    --------
    >>> size_and_power(ShuffleTest(0.2, 0.006, 0.0, None, ()), "without a trend")
    'Size and power of this test were not simulated.'
    """
    if test.size is None or math.isnan(test.size):
        return "Size and power of this test were not simulated."
    effects = [
        f"{formatting.percentage(effect.share)} {'with' if effect.effect.startswith('a ') else 'where'} {effect.effect}"
        for effect in test.power or ()
    ]
    share = formatting.percentage(test.size)
    size = f"In simulations {where} {nothing}, the 5 % test rejects {share} (size)"
    if not effects:
        return f"{size}."
    *others, last = effects
    return f"{size}; power: {', '.join(others)}{' and ' if others else ''}{last}."


def broken(checks: Checks) -> str:
    """Say where a search finds the best break and what its p-value is worth; empty where none was searched.

    Examples
    --------
    >>> from densing.scores.trend import PAPER, BreakTests
    >>> best = SearchedBreak("2023-09-27", 0.015, None, 15, 0.02, 0.0008, 9.0, size=0.07, power=())
    >>> stated = StatedBreak("2022-11-30", 0, 40, None, "no model before the date")
    >>> print(broken(Checks(breakpoint=BreakTests(stated, best, PAPER, 199))))
    The best break by search, 2023-09-27, has p = 0.015 (search included): a doubling in 1.1 months before and in 28.5
    months after. In simulations on its dates and families without a break, the 5 % test rejects 7 % (size).
    """
    best = None if checks.breakpoint is None else checks.breakpoint.searched
    if best is None or best.p is None or best.date is None:
        return ""

    def pace(slope: float | None) -> str:
        months = doubling_months(math.nan if slope is None else slope)
        return f"a doubling in {months:.1f} months" if math.isfinite(months) else "no doubling"

    before, after = pace(best.slope_before), pace(best.slope_after)
    if before.startswith("a "):
        after = after.removeprefix("a doubling ")
    return (
        f"The best break by search, {best.date}, has p = {best.p:.3f} (search included): {before} before and "
        f"{after} after. {size_and_power(best, 'without a break')}"
    )


def without_groups(checks: Checks, months: float) -> str:
    """Say what the straight line is without each named group of families; empty where none is in the data.

    Examples
    --------
    >>> from densing.scores.trend import WithoutGroup
    >>> others = {"slope_per_day": 0.0055, "doubling_months": 4.16, "lo": 2.9, "hi": 7.5, "reason": None}
    >>> group = WithoutGroup(group="research suites", families=("A", "B"), n=12, **others)
    >>> without_groups(Checks(without_groups=(group,)), 3.71)
    "Without research suites (A, B) the straight line's doubling time is 4.2 months (2.9 to 7.5) instead of 3.7."
    """
    parts = []
    for group in checks.without_groups:
        name = f"Without {group.group} ({', '.join(group.families)})"
        if group.doubling_months is None or group.lo is None or group.hi is None:
            parts.append(f"{name} nothing can be estimated: {group.reason}.")
            continue
        doubling = doubling_text(group.doubling_months, group.lo, group.hi)
        headline = f" instead of {months:.1f}" if math.isfinite(months) else ""
        parts.append(f"{name} the straight line's doubling time is {doubling}{headline}.")
    return " ".join(parts)


def left_out(checks: Checks) -> str:
    """Say how far the straight line moves without one family, or one organisation, at a time.

    Examples
    --------
    >>> from densing.scores.trend import LeaveOneOut
    >>> left_out(Checks(leave_one_family_out=LeaveOneOut("family", (), 3.4, math.inf, "A")))
    'Without one family at a time the straight line moves between 3.4 months and no doubling (A moves it most).'
    """
    parts: list[str] = []
    for check in (checks.leave_one_family_out, checks.leave_one_organisation_out):
        if check is None or check.doubling_min is None or check.doubling_max is None:
            continue
        if math.isinf(check.doubling_min):
            continue  # no slope is positive: there is no range of doubling times
        lower, upper = f"{check.doubling_min:.1f}", f"{check.doubling_max:.1f} months"
        if math.isinf(check.doubling_max):
            lower, upper = f"{lower} months", "no doubling"
        ends = f"between {lower} and {upper} ({check.most_influential} moves it most)"
        parts.append(f"one {check.kind} at a time {'it' if parts else 'the straight line'} moves {ends}")
    return f"Without {', without '.join(parts)}." if parts else ""


def by_organisation(checks: Checks, level: float = 0.95) -> str:
    """Say what the interval is with organisations in place of families as what is independent.

    Examples
    --------
    >>> from densing.scores.trend import ByOrganisation
    >>> by_organisation(Checks(organisations=ByOrganisation(16, 2.67, 6.08)))
    "With the 16 organisations taken as independent in place of families, the straight line's 95 % interval is 2.7 to
    6.1 months."
    """
    interval = checks.organisations
    if interval is None or not math.isfinite(interval.lo):
        return ""
    bounded = math.isfinite(interval.hi)
    ends = f"{interval.lo:.1f} to {interval.hi:.1f} months" if bounded else f"≥ {interval.lo:.1f} months"
    return (
        f"With the {interval.clusters} organisations taken as independent in place of families, the straight "
        f"line's {100 * level:g} % interval is {ends}."
    )


def bias(checks: Checks) -> str:
    """Say what the paper's envelope reports where nothing grows."""
    null = None if checks.record_setter_bias is None else checks.record_setter_bias.no_trend
    if null is None or null.median_doubling_months is None:
        return ""
    # The share of such series that look as steep is a test without power; it stands in the details with its size.
    return f"The envelope would report a doubling in {null.median_doubling_months:.1f} months even without any trend."


def other_tests(checks: Checks) -> dict[str, ShuffleTest]:
    """Return the shuffles that do not lead, by what they shuffle; without those that could not run.

    Examples
    --------
    >>> other_tests(Checks())
    {}
    """
    if checks.permutation is None:
        return {}
    tests = {name: getattr(checks.permutation, key) for key, name in TESTS.items() if key != BLOCKS}
    return {name: test for name, test in tests.items() if test.p is not None}


def other_test(name: str, test: ShuffleTest) -> str:
    """Return one of :func:`other_tests` as a sentence.

    Examples
    --------
    >>> print(other_test("dates shuffled", ShuffleTest(0.001, 0.006, 0.0, None, (), size=0.18, power=())))
    Dates shuffled: p = 0.001. In simulations on its dates and families without a trend, the 5 % test rejects 18 %
    (size).
    """
    return f"{name[:1].upper()}{name[1:]}: p = {test.p:.3f}. {size_and_power(test, 'without a trend')}"
