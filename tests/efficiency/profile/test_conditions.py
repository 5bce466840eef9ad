"""Conditions for continuous integration: read as written, decided as Kleene's logic has it, and never run as code."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.errors import DensingError, InputError, UnknownNameError
from densing.efficiency.profile.conditions import OPERATORS, Hit, check, parse

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
    hits = check([text], summary)
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
    assert bool(check([text], {"idle_ns": value})) is met


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
        parse(text)
    assert words in str(caught.value)


def test_unknown_metrics_list_the_known() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown metric 'exposed'; did you mean 'exposed_pct'\? \(known: exposed_pct"
    ):
        check(["exposed>10"], {"exposed_pct": 1.0, "window": "steps", "notes": [], "on_host": True})
    # What is no figure cannot be compared.
    for name in ("window", "notes", "on_host", "nan"):
        with pytest.raises(UnknownNameError):
            check(
                [f"{name}>10"],
                {"exposed_pct": 1.0, "window": "steps", "notes": [], "on_host": True, "nan": float("nan")},
            )
    # Also where the other half has decided already: a typing error must not pass for months.
    with pytest.raises(UnknownNameError):
        check(["exposed_pct>0 or exposd_pct>10"], {"exposed_pct": 1.0})


def test_the_undefined_is_told() -> None:
    summary = {"overlap_pct": None, "exposed_pct": 0.25}
    [hit] = check(["overlap_pct<50 and exposed_pct<1"], summary)
    assert (hit.verdict, hit.values) == ("undecided", summary)
    assert hit.message == (
        "overlap_pct<50 and exposed_pct<1: cannot be decided, "
        "overlap_pct is undefined in this run (exposed_pct is 0.25)"
    )
    assert check(["overlap_pct<50 and exposed_pct>1"], summary) == ()
    assert Hit.from_dict(json.loads(json.dumps(hit.to_dict()))) == hit


@given(st.text(max_size=60) | st.text("idle_ns<>=!and or0.e5%ms ", max_size=60))
def test_any_text_is_a_condition_or_an_error(text: str) -> None:
    try:
        hits = check([text], {"idle_ns": 5, "exposed_pct": None})
    except DensingError as error:
        assert str(error)
    else:
        assert len(hits) <= 1


@pytest.mark.parametrize(
    ("text", "number"),
    [("step_ms > 1.5s", 1500.0), ("idle_ms_per_step>2 ms", 2.0), ("step_ms<250us", 0.25), ("idle_ns>2us", 2000.0)],
)
def test_times_are_compared_in_the_metrics_own_unit(text: str, number: float) -> None:
    assert parse(text).any_of[0][0].number == pytest.approx(number, rel=1e-15)
