"""What a trend warns of, at and beside each limit."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from densing.scores.trend.checks import Checks
from densing.scores.trend.data import Slope, TrendData
from densing.scores.trend.estimate import _notes
from densing.scores.trend.significance import (
    PAPER,
    BreakTests,
    PermutationTests,
    SearchedBreak,
    ShuffleTest,
    StatedBreak,
)
from tests.support.trend_data import dated

DATA = dated([0, 10, 20, 30], [0.1, 0.5, 0.3, 0.9])
SLOPE = Slope(0.003, 0.001, 0.005, 0.0, 4, 6, "", 0)


def warned(data: TrendData = DATA, checks: Checks | None = None, varying: Any = None, **slope: Any) -> dict[str, str]:
    """Return messages by code; without changes there is nothing to warn of."""
    fit: Any = SimpleNamespace(slope=replace(SLOPE, **slope))
    return {note.code: note.message for note in _notes(data, fit, checks or Checks(), varying)}


def test_nothing_to_warn_of() -> None:
    assert warned() == {}


@pytest.mark.parametrize(
    ("slope", "code", "said"),
    [
        ({"clusters": 5}, "few-families", "5 families; an interval that treats families as independent needs 6"),
        ({"hi": math.inf}, "no-interval", "the slope rests on a single family"),
        ({"lo": 0.0}, "unbounded-doubling", "contains zero"),
        ({"lo": -0.001}, "unbounded-doubling", "contains zero"),
    ],
)
def test_intervals(slope: dict[str, float], code: str, said: str) -> None:
    notes = warned(**slope)
    assert list(notes) == [code] and said in notes[code]


@pytest.mark.parametrize(("p", "code"), [(None, []), (0.04, []), (0.05, []), (0.06, ["permutation"])])
def test_shuffles(p: float | None, code: list[str]) -> None:
    test, other = (ShuffleTest(value, 0.006, 0.0, None, ()) for value in (p, 0.5))
    notes = warned(checks=Checks(permutation=PermutationTests(99, other, other, test)))
    assert list(notes) == code and (not code or "as steep in 6 % of cases" in notes["permutation"])


@pytest.mark.parametrize(("p", "varying", "told"), [(0.05, None, True), (0.051, None, False), (0.01, "fit", False)])
def test_a_searched_break_is_told_where_the_pace_may_not_change(p: float, varying: Any, told: bool) -> None:
    stated = StatedBreak("2022-11-30", 0, 40, None, "no model before the date")
    best = SearchedBreak("2023-09-27", p, None, 15)
    notes = warned(checks=Checks(breakpoint=BreakTests(stated, best, PAPER, 199)), varying=varying)
    assert list(notes) == ["break"] * told and (not told or "2023-09-27, p = 0.050" in notes["break"])


def test_models_beyond_the_reference_that_are_denser_than_the_record() -> None:
    def bounded(*values: float, censor: tuple[int, ...]) -> dict[str, str]:
        data = DATA.replace(log_density=np.array(values), censor=np.array(censor, dtype=np.int8))
        return warned(data)

    assert bounded(0.1, 0.5, 0.5, 0.2, censor=(0, 0, 1, 0)) == {}
    assert bounded(0.1, 0.5, 0.9, 0.2, censor=(0, 0, -1, 0)) == {}
    assert "m2 is beyond" in bounded(0.1, 0.5, 0.6, 0.2, censor=(0, 0, 1, 0))["denser-than-record"]
    both = bounded(0.0, 0.5, 0.6, 0.7, censor=(0, 1, 1, 1))
    assert both["denser-than-record"].startswith("3 models (m1, m2, m3, ...) are beyond") and "(1)" in str(both)
    assert "75 % of the rows" in both["mostly-censored"]
    assert "mostly-censored" not in bounded(0.1, 0.5, 0.6, 0.7, censor=(0, 0, 1, 1))
