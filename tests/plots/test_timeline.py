"""The timeline of a step: clocks, exposed parts, and how few boxes stand for many."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from densing.efficiency.timeline.steps import Box, Picture
from densing.plots.timeline import MOST_BOXES, Shown, arrange, joined, plot_timeline, same_step


def test_step_of_most_ranks_is_drawn() -> None:
    box = (Box("7", "compute", 0, 5, 1, "gemm"),)
    pictures = {0: Picture(3, 0, 9, box), 1: Picture(4, 0, 9, box), 2: Picture(4, 0, 9, box), 3: Picture(4, 0, 9, ())}
    assert list(same_step(pictures)) == [1, 2]
    assert same_step({0: Picture(3, 0, 9, ())}) == {}


def test_clocks_shift_the_ranks() -> None:
    unix = 1_700_000_000_000_000_000  # beyond what a float holds to the nanosecond
    pictures = {
        0: Picture(4, unix, unix + 100, (Box("7", "comm", unix + 10, unix + 60, 1, "n"),)),
        1: Picture(4, unix + 1000, unix + 1100, (Box("7", "comm", unix + 1031, unix + 1060, 1, "n"),)),
    }
    together = arrange(pictures, {0: 0, 1: 1000})
    assert [(box.start, box.end) for rank in (0, 1) for box in together.boxes[rank][:1]] == [(10, 60), (31, 60)]
    assert together.length_ns == 100
    recorded = arrange(pictures, {})
    assert recorded.boxes[1][0].start == 1031 and recorded.length_ns == 1100
    alone = arrange(pictures, None)
    assert alone.boxes[1][0].start == 31 and alone.length_ns == 100


@st.composite
def boxes(draw: Any) -> tuple[Box, ...]:
    kinds = st.sampled_from(["compute", "comm", "memcpy", "memset"])
    rows = draw(st.lists(st.tuples(kinds, st.integers(0, 180), st.integers(0, 40), st.sampled_from("78")), max_size=25))
    return tuple(Box(lane, kind, start, start + length, 1, kind) for kind, start, length, lane in rows)


@given(boxes())
def test_exposed_parts_agree_with_counting_every_nanosecond(rows: tuple[Box, ...]) -> None:
    drawing = arrange({0: Picture(1, 0, 220, rows)}, None)
    inside: dict[str, set[int]] = {"compute": set(), "comm": set()}
    for box in rows:
        if box.kind in inside:
            inside[box.kind] |= set(range(box.start_ns, box.end_ns))
    drawn = [tick for box in drawing.boxes[0] if box.exposed for tick in range(box.start, box.end)]
    assert sorted(drawn) == sorted(inside["comm"] - inside["compute"])
    assert [box for box in drawing.boxes[0] if not box.exposed] == [
        Shown({"compute": 0, "comm": 1}.get(box.kind, 2), box.start_ns, box.end_ns, 1, box.name, box.lane)
        for box in rows
    ]


@given(boxes(), st.integers(0, 30))
def test_joined_boxes_cover_the_same_and_no_wider_gap(rows: tuple[Box, ...], pixel: int) -> None:
    own = [Shown(0, box.start_ns, box.end_ns, 1, box.name, box.lane) for box in rows]
    found = joined(own, pixel)
    assert sum(box.pieces for box in found) == len(own)
    for lane in "78":
        before = {tick for box in own if box.lane == lane for tick in range(box.start, box.end)}
        after = sorted((box.start, box.end) for box in found if box.lane == lane)
        covered = {tick for start, end in after for tick in range(start, end)}
        assert before <= covered
        # A piece without length covers no tick, and yet a gap ends at it.
        marks = {tick for box in own if box.lane == lane for tick in (box.start, box.end)}
        longest, run, last = 0, 0, -2
        for tick in sorted(covered - before):
            run = run + 1 if tick == last + 1 and tick not in marks else 1
            longest, last = max(longest, run), tick
        assert longest <= pixel
        assert all(later[0] > earlier[1] + pixel for earlier, later in itertools.pairwise(after))


def test_timeline_has_a_bounded_number_of_boxes() -> None:
    rng = np.random.default_rng(1)
    starts = np.sort(rng.integers(0, 10**6, (16, 1500)))
    pictures = {
        rank: Picture(1, 0, 10**6, tuple(Box("7", "compute", int(at), int(at) + 50, 1, "k") for at in starts[rank]))
        for rank in range(16)
    }
    drawing = arrange(pictures, {})
    assert 0 < sum(map(len, drawing.boxes.values())) <= MOST_BOXES and drawing.pixel_ns > 0
    assert sum(box.pieces for boxes in drawing.boxes.values() for box in boxes) == 16 * 1500
    assert arrange(dict(list(pictures.items())[:2]), {}).pixel_ns == 0


def test_what_is_hidden_is_told_without_a_pattern() -> None:
    # Chromium 156 printed a page with 632 hatched bars in more than two minutes, hollow ones in one second.
    at_once = (Box("7", "compute", 0, 50, 1, "k"), Box("8", "comm", 20, 90, 1, "n"))
    figure = plot_timeline(arrange({0: Picture(1, 0, 100, at_once)}, {}))
    fills = {bar.name: bar.marker.color for bar in figure.data}
    assert set(fills) == {"compute", "communication, hidden", "exposed communication"}
    assert len(set(fills.values())) == 3 and fills["communication, hidden"].endswith(",0)")
    assert all(bar.marker.pattern.shape is None for bar in figure.data)
