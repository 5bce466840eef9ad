"""Conditions for continuous integration: read as written, decided as Kleene's logic has it, and never run as code."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.conditions import OPERATORS, Hit, Interval, check_conditions, parse_condition
from densing.core.errors import DensingError, InputError, UnknownNameError

METRICS = ("exposed_pct", "idle_ns", "ranks", "overlap_pct")
COMPARISONS = st.tuples(
    st.sampled_from(METRICS), st.sampled_from(sorted(OPERATORS)), st.integers(-5, 5), st.sampled_from(["", " "])
)
VALUES = st.none() | st.integers(-5, 5)


def kleene(comparison: Any, values: dict[str, int | None]) -> float:
    """Return 1 for true, 0 for false, 0.5 for undecided: then ``and`` is the least and ``or`` the largest."""
    metric, op, number, _ = comparison
    value = values[metric]
    return 0.5 if value is None else float(eval(f"{value} {op} {number}"))


@given(
    groups=st.lists(st.lists(COMPARISONS, min_size=1, max_size=3), min_size=1, max_size=3),
    values=st.tuples(*[VALUES] * 4),
)
def test_decisions_are_kleenes(groups: Any, values: tuple[int | None, ...]) -> None:
    """Against three-valued logic as numbers (Kleene 1938)."""
    summary = dict(zip(METRICS, values, strict=True))
    text = " or ".join(
        " and ".join(f"{metric}{gap}{op}{gap}{number}" for metric, op, number, gap in group) for group in groups
    )
    expected = max(min(kleene(comparison, summary) for comparison in group) for group in groups)
    hits = check_conditions([text], summary)
    assert [hit.verdict for hit in hits] == {1.0: ["met"], 0.5: ["undecided"], 0.0: []}[expected]


@pytest.mark.parametrize(
    ("text", "value", "met"),
    [
        ("idle_ns>2ms", 2_000_001, True),
        ("idle_ns>2ms", 2_000_000, False),
        ("idle_ns >= 2e3 us", 2_000_000, True),
        ("idle_ns<.5s", 499_999_999, True),
        ("idle_ns == 7ns", 7, True),
        ("idle_ns!=7", 7, False),
        ("idle_ns<=+1.", 1, True),
        ("  idle_ns>-1  ", 0, True),
    ],
)
def test_numbers_and_units(text: str, value: int, met: bool) -> None:
    assert bool(check_conditions([text], {"idle_ns": value})) is met


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot read ''"),
        ("exposed_pct", "cannot read 'exposed_pct'"),
        ("exposed_pct=10", "cannot read"),
        ("10<exposed_pct", "cannot read"),
        ("5<exposed_pct<10", "cannot read"),
        ("exposed_pct>nan", "cannot read"),
        ("exposed_pct>inf", "cannot read"),
        ("exposed_pct>1e999", "too large a number"),
        ("exposed_pct>10 and", "cannot read"),
        ("exposed_pct>10 xor idle_ns>1", "cannot read"),
        ("(exposed_pct>10)", "cannot read"),
        ("exposed_pct>10; import os", "cannot read"),
        ("__import__('os').system('x')>1", "cannot read"),
        ("exposed_pct>10ms", "unit 'ms' in 'exposed_pct>10ms'; use %, or none"),
        ("idle_ns>10%", "unit '%' in 'idle_ns>10%'; use ns, us, ms, s, or none"),
        ("ranks>10s", "ranks has none"),
        ("exposed_pct>١٠", "cannot read"),
        ("x>1 or " * 1000, "7000 characters"),
    ],
)
def test_what_is_no_condition(text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_condition(text)
    assert words in str(caught.value)


def test_unknown_metrics_list_the_known() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown metric 'exposed'; did you mean 'exposed_pct'\? \(known: exposed_pct"
    ):
        check_conditions(["exposed>10"], {"exposed_pct": 1.0, "window": "steps", "notes": [], "on_host": True})
    # What is no figure cannot be compared.
    for name in ("window", "notes", "on_host", "nan"):
        with pytest.raises(UnknownNameError):
            check_conditions(
                [f"{name}>10"],
                {"exposed_pct": 1.0, "window": "steps", "notes": [], "on_host": True, "nan": float("nan")},
            )
    # Also where the other half has decided already: a typing error must not pass for months.
    with pytest.raises(UnknownNameError):
        check_conditions(["exposed_pct>0 or exposd_pct>10"], {"exposed_pct": 1.0})


def test_the_undefined_is_told() -> None:
    summary = {"overlap_pct": None, "exposed_pct": 0.25}
    [hit] = check_conditions(["overlap_pct<50 and exposed_pct<1"], summary)
    assert (hit.verdict, hit.values) == ("undecided", summary)
    assert hit.message == (
        "overlap_pct<50 and exposed_pct<1: cannot be decided, "
        "overlap_pct is undefined in this run (exposed_pct is 0.25)"
    )
    assert check_conditions(["overlap_pct<50 and exposed_pct>1"], summary) == ()
    assert Hit.from_dict(json.loads(json.dumps(hit.to_dict()))) == hit


@given(st.text(max_size=60) | st.text("idle_ns<>=!and or0.e5%ms ", max_size=60))
def test_any_text_is_a_condition_or_an_error(text: str) -> None:
    try:
        hits = check_conditions([text], {"idle_ns": 5, "exposed_pct": None})
    except DensingError as error:
        assert str(error)
    else:
        assert len(hits) <= 1


@pytest.mark.parametrize(
    ("text", "number"),
    [("step_ms > 1.5s", 1500.0), ("idle_ms_per_step>2 ms", 2.0), ("step_ms<250us", 0.25), ("idle_ns>2us", 2000.0)],
)
def test_times_are_compared_in_the_metrics_own_unit(text: str, number: float) -> None:
    assert parse_condition(text).any_of[0][0].number == pytest.approx(number, rel=1e-15)


ENDS = st.lists(st.integers(-5, 5) | st.sampled_from([float("-inf"), float("inf")]), min_size=2, max_size=2).map(sorted)


@given(ends=ENDS, op=st.sampled_from(sorted(OPERATORS)), number=st.integers(-5, 5))
def test_an_interval_decides_what_all_of_it_says(ends: list[float], op: str, number: int) -> None:
    """Against the comparison at the ends, at the number where it lies inside, and just beside it."""
    low, high = ends
    points = {point for point in (low, high, number - 0.5, number, number + 0.5) if low <= point <= high}
    outcomes = {OPERATORS[op](point, number) for point in points}
    hits = check_conditions([f"density{op}{number}"], {"density": Interval(low, low, high)})
    expected = ["undecided"] if len(outcomes) == 2 else ["met"] if outcomes == {True} else []
    assert [hit.verdict for hit in hits] == expected


def test_an_interval_is_told_with_its_ends() -> None:
    figures = {"density": Interval(0.7, 0.6, 0.9), "n_eff_hi": float("inf")}
    met, undecided = check_conditions(["density<1", "density<0.8 and n_eff_hi>1"], figures)
    assert met.message == "density<1: density is 0.7, between 0.6 and 0.9"
    assert undecided.message == (
        "density<0.8 and n_eff_hi>1: cannot be decided, density is 0.7, between 0.6 and 0.9 (n_eff_hi is inf)"
    )
    assert Hit.from_dict(json.loads(json.dumps(met.to_dict()))) == met


@pytest.mark.parametrize("ends", [(float("nan"), 0.9), (0.6, float("nan")), (float("nan"), float("nan"))])
@pytest.mark.parametrize("op", OPERATORS)
def test_an_interval_without_an_end_guards_nothing_and_fails(op: str, ends: tuple[float, float]) -> None:
    [hit] = check_conditions([f"density{op}0.8"], {"density": Interval(0.7, *ends)})
    assert hit.verdict == "undecided"
