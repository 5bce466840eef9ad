"""Numbers in words: digits kept, any value writable, limits and missing ones said."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.core import formatting
from densing.core.formatting import duration, percent, ranks_of, volume


@given(st.floats(allow_nan=True, allow_infinity=True), st.floats(allow_nan=True, allow_infinity=True))
def test_intervals_are_words_for_any_ends(lo: float, hi: float) -> None:
    for phrase in (formatting.interval(lo, hi), formatting.short_interval(lo, hi), formatting.doubling(lo, lo, hi)):
        assert phrase and "nan" not in phrase and "inf" not in phrase


@given(st.floats(min_value=1e-4, max_value=9.9e5), st.integers(min_value=1, max_value=6))
def test_numbers_keep_their_digits(value: float, digits: int) -> None:
    assert float(formatting.number(value, digits)) == pytest.approx(value, rel=0.51 * 10 ** (1 - digits))


@given(st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.integers(-(10**20), 10**20)))
@settings(max_examples=300)
def test_words_for_any_number(value: Any) -> None:
    for phrase in (duration(value), percent(value), volume(value), formatting.digits(value)):
        assert phrase and "nan" not in phrase and "inf" not in phrase and "e+" not in phrase


@pytest.mark.parametrize(
    ("ns", "words"),
    [(999, "999 ns"), (999_500, "1.00 ms"), (59_999, "60.0 µs"), (1_500_000_000, "1.50 s"), (0.4, "0.400 ns")],
)
def test_durations(ns: float, words: str) -> None:
    assert duration(ns) == words


def test_lists_of_ranks() -> None:
    assert ranks_of([]) == "no rank" and ranks_of([0, 1]) == "ranks 0, 1"
    assert ranks_of(range(4096)) == "ranks 0–4095"
    assert volume(-1) == "–" and volume(999) == "999 B"


@pytest.mark.parametrize(
    ("count", "phrase"),
    [(999.4e6, "999 M"), (999.7e6, "1 B"), (70.6e9, "70.6 B"), (15e12, "15 T"), (812, "812"), (float("inf"), "∞")],
)
def test_sizes(count: float, phrase: str) -> None:
    assert formatting.size(count) == phrase


def test_limits_are_marked() -> None:
    assert formatting.bounded(1.5, "upper") == "≤ 1.5" and formatting.bounded(1.5, "lower") == "≥ 1.5"
    assert (
        formatting.bounded(1.5, "") == formatting.bounded(1.5, None) == "1.5"
        and formatting.bounded(None, "upper") == "–"
    )


def test_lists_are_cut_after_the_first() -> None:
    assert formatting.listed([]) == "" and formatting.listed("ab") == "a, b"
    assert formatting.listed(range(7), most=5) == "0, 1, 2, 3, 4 and 2 more"


def test_loads_neither_pandas_nor_plotly() -> None:
    code = (
        "import sys; from densing.core import formatting as f; f.size(7e9), f.duration(12), f.is_missing(None);"
        "print(sorted({'pandas', 'plotly', 'numpy', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
