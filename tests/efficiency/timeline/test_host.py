"""The host's side: who launched what, how far it ran ahead, and what a thread was doing at every moment."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.efficiency.timeline import intervals
from densing.efficiency.timeline.host import LaunchStats, doing, innermost, launch_of, launch_stats, unbroken
from densing.efficiency.timeline.overlap import select
from densing.efficiency.timeline.timeline import Kind, RankTimeline, Spans
from tests.support.spans import call, mixed_rank, span


def test_launch_figures_by_hand():
    work = [span(100, 5_000, correlation=1), span(8_000, 30_000, correlation=1), span(205_000, 300_000, correlation=2),
            span(400_000, 400_500), span(500_000, 510_000, correlation=3)]  # fmt: skip
    host = [call(0, 60, 1), call(100_000, 160_000, 2), call(500_001, 500_002, 3)]
    rank = RankTimeline(0, Spans.build(work), Spans.build(host))
    window = select(rank)
    got = launch_stats(rank, window)
    queue = (0 + 105_000) / (window.end - window.start)
    assert got == LaunchStats(5, 1, 52_550, 99_755, 105_000, 1, 1, 2, 1, queue, 1)
    assert launch_of(rank.work, rank.host).tolist() == [0, 0, 1, -1, 2]


def test_mean_queue_equals_the_area_under_the_queue():
    rng = np.random.default_rng(1)
    begin = np.sort(rng.integers(0, 1_000, 30))
    start = begin + rng.integers(0, 200, 30)
    work = [span(int(s), int(s) + 1, correlation=i) for i, s in enumerate(start)]
    rank = RankTimeline(0, Spans.build(work), Spans.build([call(int(b), int(b) + 1, i) for i, b in enumerate(begin)]))
    window = select(rank)
    depth = [sum(b <= t < s for b, s in zip(begin, start, strict=True)) for t in range(window.start, window.end)]
    got = launch_stats(rank, window)
    assert got.queue_mean == pytest.approx(np.mean(depth), rel=1e-12)
    early = [sum(b <= t < s for b, s in zip(begin, start, strict=True)) for t in range(window.start)]
    assert got.queue_max == max(depth + early)


@given(st.lists(st.tuples(st.integers(0, 25), st.integers(0, 15)), max_size=9))
def test_innermost_is_the_last_begun_at_every_moment(rows):
    start = np.array([s for s, _ in rows], np.int64)
    end = start + np.array([d for _, d in rows], np.int64)
    found = innermost(start, end)
    held = {t: i for s, e, i in zip(*(c.tolist() for c in found), strict=True) for t in range(s, e)}
    assert sum((found.end - found.start).tolist()) == len(held)
    for moment in range(45):
        running = [i for i in range(len(rows)) if start[i] <= moment < end[i]]
        assert (moment in held) == bool(running)
        if running:
            best = max(running, key=lambda i: (start[i], -end[i]))
            assert (start[held[moment]], end[held[moment]]) == (start[best], end[best])


@pytest.mark.parametrize("seed", range(20))
def test_time_split_part_by_part_is_time_split_at_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    host = mixed_rank(seed).host
    rows = host.lane == 0
    whole = innermost(host.start[rows], host.end[rows])
    expected = sorted(zip(whole.start.tolist(), whole.end.tolist(), np.flatnonzero(rows)[whole.which], strict=True))
    monkeypatch.setattr(intervals, "BLOCK", 5)
    found = []
    for part in unbroken(host, rows):
        split = innermost(host.start[part], host.end[part])
        found += zip(split.start.tolist(), split.end.tolist(), part[split.which], strict=True)
    assert sorted(found) == expected


def test_names_of_any_length_cost_no_time():
    host = Spans.build([call(0, 5, name="x" * 1_000_000, kind=Kind.ANNOTATION)])
    assert doing(host, [(0, (np.array([0]), np.array([9])))])[0].ns == 5
    assert re.fullmatch("x+", doing(host, [(0, (np.array([0]), np.array([5])))])[0].name)
