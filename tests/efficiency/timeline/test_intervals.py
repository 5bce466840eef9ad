"""Columns of numbers and sets of intervals: as numpy has them, and against sets of single nanoseconds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.efficiency.timeline import intervals as module
from densing.efficiency.timeline.intervals import (
    blocks,
    clip,
    covered,
    distinct,
    intersect,
    length,
    median,
    outside,
    quantile,
    subtract,
    union,
    used,
)
from tests.support.spans import interval, ticks

intervals = st.lists(interval, max_size=12)


def merged(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return union(np.array([p[0] for p in pairs], np.int64), np.array([p[1] for p in pairs], np.int64))


def as_set(result: tuple[np.ndarray, np.ndarray]) -> set[int]:
    return ticks(list(zip(result[0].tolist(), result[1].tolist(), strict=True)))


@given(intervals)
def test_a_union_covers_what_its_intervals_cover_and_is_canonical(pairs):
    starts, ends = merged(pairs)
    assert as_set((starts, ends)) == ticks(pairs)
    assert length((starts, ends)) == len(ticks(pairs))
    assert np.all(starts[1:] > ends[:-1]), "neighbours must not touch"
    assert np.all(ends > starts)


@given(intervals, intervals)
def test_intersection_and_difference_are_those_of_sets(a, b):
    assert as_set(intersect(merged(a), merged(b))) == ticks(a) & ticks(b)
    assert as_set(subtract(merged(a), merged(b))) == ticks(a) - ticks(b)


@given(intervals, interval)
def test_a_clip_is_the_part_inside(pairs, window):
    assert as_set(clip(merged(pairs), *window)) == ticks(pairs) & ticks([window])


@given(intervals, st.lists(interval, min_size=1, max_size=5))
def test_covered_counts_each_interval_by_itself(pairs, asked):
    starts, ends = np.array([a[0] for a in asked], np.int64), np.array([a[1] for a in asked], np.int64)
    expected = [len(ticks(pairs) & ticks([one])) for one in asked]
    assert covered(merged(pairs), starts, ends).tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=12))
def test_the_gaps_are_what_a_subtraction_leaves(pairs: list[tuple[int, int]]) -> None:
    table = np.array(pairs, np.int64).reshape(-1, 2)
    merged = union(table[:, 0], table.sum(axis=1))
    whole = (np.array([0]), np.array([70]))
    for found, wanted in zip(outside(merged, 0, 70), subtract(whole, merged), strict=True):
        assert found.tolist() == wanted.tolist()


@given(st.lists(st.integers(-(2**60), 2**60), min_size=1, max_size=30), st.sampled_from((0, 5, 50, 95, 99.5, 100)))
def test_median_and_quantiles_are_numpys(values: list[int], percent: float) -> None:
    for column in (np.array(values), np.array(values) / 7):
        assert median(column) == np.median(column)
        assert quantile(column, percent / 100) == np.percentile(column, percent)


@given(st.lists(st.integers(0, 9), max_size=12))
def test_distinct_and_used_are_numpys_unique(values: list[int]) -> None:
    column = np.array(values, np.int64)
    assert distinct(column).tolist() == used(column) == np.unique(column).tolist()


def test_blocks_cover_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 4)
    for count in (0, 1, 4, 9):
        for last_first in (False, True):
            parts = list(blocks(count, last_first))
            assert sorted(row for part in parts for row in range(part.start, part.stop)) == list(range(count))
    assert [part.start for part in blocks(9, last_first=True)] == [8, 4, 0]
