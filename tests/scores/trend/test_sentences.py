"""What a trend says in words, at and beside each of its limits."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from densing.scores.trend.checks import ByOrganisation, Checks, LeaveOneOut, WithoutGroup
from densing.scores.trend.data import Slope
from densing.scores.trend.sentences import (
    bias,
    broken,
    by_organisation,
    doubling_text,
    left_out,
    now,
    other_test,
    other_tests,
    quoted,
    shuffled,
    size_and_power,
    slope_text,
    title,
    window,
    without_groups,
)
from densing.scores.trend.significance import (
    PAPER,
    BreakTests,
    Effect,
    PermutationTests,
    SearchedBreak,
    ShuffleTest,
    StatedBreak,
)

YEAR = 365.25
DATES = np.array(["2023-02-24", "2024-07-31"], dtype="datetime64[ns]")


def paced(slower: float, months: float = 5.0, lo: float = 4.0, hi: float = 8.0, knots: float = 2 * YEAR) -> Any:
    """Return what ``now`` reads of a fit of pace."""
    last = SimpleNamespace(doubling_months=months, doubling_interval=(lo, hi))
    return SimpleNamespace(last_year=last, knots=np.array([0.0, knots]), slower=slower, interval=0.9)


@pytest.mark.parametrize(
    ("slower", "change"),
    [
        (0.975, "more slowly than before"),
        (0.974, "probably more slowly than before"),
        (0.9, "probably more slowly than before"),
        (0.899, "at a pace not shown to differ from that before"),
        (0.5, "at a pace not shown to differ from that before"),
        (0.101, "at a pace not shown to differ from that before"),
        (0.099, "probably faster than before"),
        (0.026, "probably faster than before"),
        (0.024, "faster than before"),
    ],
)
def test_how_sure_a_change_of_pace_is(slower: float, change: str) -> None:
    assert now(paced(slower), DATES) == (
        f"Over the twelve months to July 2024 density doubled every 5.0 months (90 % interval 4.0 to 8.0), {change}."
    )


def test_the_last_year_by_its_ends() -> None:
    assert now(paced(0.5, knots=YEAR), DATES).startswith("The window is no longer than a year")
    assert now(paced(0.5, knots=YEAR + 1), DATES).startswith("Over the twelve months")
    assert now(paced(0.99, math.inf, math.inf, math.inf), DATES).endswith("to July 2024 density did not grow.")
    assert now(paced(0.99, 119.9, 20.0, math.inf), DATES) == (
        "Over the twelve months to July 2024 density doubled every 119.9 months (90 % interval 20.0 to no doubling), "
        "more slowly than before; the data do not yet say whether it still grows."
    )
    assert now(paced(0.99, 120.0, 20.0, math.inf), DATES) == (
        "Over the twelve months to July 2024 the best guess is no growth (90 % interval 20.0 months to double to no "
        "doubling), slower than before; the data do not yet say whether it still grows."
    )


@pytest.mark.parametrize(
    ("months", "lo", "hi", "said"),
    [
        (math.nan, 1.0, 2.0, "No doubling time could be estimated for models released W"),
        (3.0, math.nan, 4.0, "Capability density doubled every 3.0 months W (no interval available)"),
        (3.0, 2.0, math.nan, "Capability density doubled every 3.0 months W (no interval available)"),
        (3.0, 2.0, 4.0, "Capability density doubled every 3.0 months W (90 % interval 2.0 to 4.0)"),
        (3.0, 2.0, math.inf, "Capability density may have doubled every 3.0 months W (90 % interval: at least 2.0 "
                             "months, upper end unbounded)"),
        (math.inf, 9.0, math.inf, "Models released W show no growth of capability density"),
    ],
)  # fmt: skip
def test_titles(months: float, lo: float, hi: float, said: str) -> None:
    head = {"doubling_months": months, "lo": lo, "hi": hi}
    assert title(head, DATES, 0.9) == said.replace("W", "between February 2023 and July 2024")
    assert title({**head, "doubling_months": None}, DATES).startswith("No doubling time")


def test_doubling_times_in_words() -> None:
    assert doubling_text(math.nan, 1, 2) == "not estimable"
    assert doubling_text(math.inf, math.inf, math.inf).startswith("no doubling: ")
    assert doubling_text(5.0, 4.0, math.nan) == doubling_text(5.0, 4.0, math.inf)
    assert doubling_text(5.0, 4.0, math.inf) == "≥ 4.0 months, upper end unbounded (estimate 5.0)"
    # A doubling in 3 months (2 to 6) as slopes per day of ln density.
    slopes = [math.log(2) / (months * YEAR / 12) for months in (3, 6, 2)]
    assert slope_text(Slope(*slopes, 0.0, 9, 9, "", 0)) == "3.0 months (2.0 to 6.0)"


def test_a_window_of_one_month_has_one_name() -> None:
    assert window(["2024-07-01", "2024-07-31"]) == "in July 2024"
    assert window(["2024-08-01", "2023-07-31", "2024-01-01"]) == "between July 2023 and August 2024"


def test_a_quotation_counts_models_and_families() -> None:
    words = quoted("T", "", models=1, families=2, reference="r" * 99, benchmark="b" * 99)
    of = "T; 1 model of 2 families on the reference"
    assert words.startswith(f"{of} {'r' * 79}…, benchmark {'b' * 79}….") and "  " not in words


def test_size_and_power_are_read_off_the_test() -> None:
    effects = (Effect("a doubling in 12 months", 0.59), Effect("growth stops", 0.31))
    test = ShuffleTest(0.003, 0.006, 0.0, None, (), size=0.0475, power=effects)
    assert size_and_power(test, "without a trend") == (
        "In simulations on its dates and families without a trend, the 5 % test rejects 5 % (size); power: 59 % with a "
        "doubling in 12 months and 31 % where growth stops."
    )
    bare = ShuffleTest(0.003, 0.006, 0.0, None, (), size=0.0475)
    assert size_and_power(bare, "without a trend").endswith("rejects 5 % (size).")
    unknown = ShuffleTest(0.003, 0.006, 0.0, None, (), size=math.nan, power=effects)
    assert size_and_power(unknown, "x") == "Size and power of this test were not simulated."


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (1.0, 2.0, "a doubling in 12.0 months before and in 6.0 months after"),
        (None, 1.0, "no doubling before and a doubling in 12.0 months after"),
        (1.0, -1.0, "a doubling in 12.0 months before and no doubling after"),
    ],
)
def test_a_break_is_said_with_both_paces(before: float | None, after: float, said: str) -> None:
    slopes = [None if pace is None else pace * math.log(2) / YEAR for pace in (before, after)]
    best = SearchedBreak("2023-09-27", 0.015, None, 15, *slopes, 9.0, size=0.07, power=())
    stated = StatedBreak("2022-11-30", 0, 40, None, "no model before the date")
    assert said in broken(Checks(breakpoint=BreakTests(stated, best, PAPER, 199)))
    for unknown in (replace(best, p=None), replace(best, date=None)):
        assert broken(Checks(breakpoint=BreakTests(stated, unknown, PAPER, 199))) == ""


def test_checks_without_a_finding_say_nothing() -> None:
    none = Checks()
    assert [say(none) for say in (shuffled, broken, left_out, by_organisation, bias)] == [""] * 5
    assert without_groups(none, 3.0) == "" and other_tests(none) == {}


def test_what_is_left_out_is_said_of_families_and_organisations() -> None:
    family = LeaveOneOut("family", (), 2.5, 3.1, "A")
    maker = LeaveOneOut("organisation", (), 2.0, math.inf, "M")
    both = left_out(Checks(leave_one_family_out=family, leave_one_organisation_out=maker))
    assert both == (
        "Without one family at a time the straight line moves between 2.5 and 3.1 months (A moves it most), without "
        "one organisation at a time it moves between 2.0 months and no doubling (M moves it most)."
    )
    for nothing in (replace(family, doubling_min=math.inf), replace(family, doubling_max=None)):
        alone = left_out(Checks(leave_one_family_out=nothing, leave_one_organisation_out=maker))
        assert alone == (
            "Without one organisation at a time the straight line moves between 2.0 months and no doubling (M moves it "
            "most)."
        )


def test_groups_and_organisations_are_said_with_their_ends() -> None:
    known = WithoutGroup(group="suites", families=("A", "B"), n=12, doubling_months=4.0, lo=3.0, hi=5.0, reason=None)
    lost = WithoutGroup(group="suites", families=("C",), n=2, reason="too few rows")
    assert without_groups(Checks(without_groups=(known, lost)), 3.5) == (
        "Without suites (A, B) the straight line's doubling time is 4.0 months (3.0 to 5.0) instead of 3.5. "
        "Without suites (C) nothing can be estimated: too few rows."
    )
    assert "instead" not in without_groups(Checks(without_groups=(known,)), math.inf)
    start = "With the 16 organisations taken as independent in place of families, the straight line's 90 % interval is "
    for hi, ends in ((6.0, "3.0 to 6.0 months."), (math.inf, "≥ 3.0 months.")):
        assert by_organisation(Checks(organisations=ByOrganisation(16, 3.0, hi)), 0.9) == start + ends
    assert by_organisation(Checks(organisations=ByOrganisation(16, math.inf, math.inf))) == ""


def test_other_shuffles_leave_out_the_one_that_leads_and_those_that_could_not_run() -> None:
    ran, failed = ShuffleTest(0.0314, 0.006, 0.0, None, ()), ShuffleTest(None, None, None, None, ())
    tests = other_tests(Checks(permutation=PermutationTests(99, ran, failed, ran)))
    assert list(tests.values()) == [ran]
    assert other_test("dates shuffled", ran).startswith("Dates shuffled: p = 0.031. Size and power")
