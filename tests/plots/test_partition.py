"""Figures of a profile: the right lengths for ordinary, many, empty and hostile input; readable without colour."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.efficiency.profile.rank import ProfileOptions, profile_trace
from densing.efficiency.profile.run import RunProfile, merge_run
from densing.efficiency.timeline.overlap import Partition
from densing.efficiency.timeline.steps import Picture, StepPartition
from densing.plots import style
from densing.plots.partition import (
    BARS,
    COLUMNS,
    IDLE_LOOKS,
    PARTS,
    Bar,
    caused,
    drawn_words,
    looks_of,
    mean_steps,
    parts_of,
    plot_idle,
    plot_partition,
    plot_path,
    plot_rank_strip,
    plot_step_times,
    plot_steps,
    plot_waiting,
    suffered,
)
from densing.plots.timeline import arrange, plot_timeline
from tests.support import efficiency_runs as runs
from tests.support import folders
from tests.support.colours import contrast


@pytest.fixture(scope="module")
def run() -> RunProfile:
    return runs.run()


def every_figure(run: RunProfile) -> dict[str, go.Figure]:
    parts = {rank.rank: rank.partition for rank in run.ranks}
    steps = {rank.rank: rank.steps for rank in run.ranks}
    assert run.together is not None
    stragglers = run.together.stragglers
    return {
        "partition": plot_partition(parts),
        "strip": plot_rank_strip(parts),
        "timeline": plot_timeline(arrange({rank.rank: rank.picture for rank in run.ranks}, {})),
        "caused": plot_waiting(caused(stragglers), "waiting caused", ""),
        "suffered": plot_waiting(suffered(stragglers), "waiting suffered", ""),
        "idle": plot_idle(
            {rank.rank: rank.idle.causes for rank in run.ranks},
            {rank.rank: rank.partition.window_ns for rank in run.ranks},
        ),
        "path": plot_path([Bar(runs.HOSTILE, dict(rank.path.totals), 6_000_000) for rank in run.ranks]),
        "steps": plot_steps(steps),
        "times": plot_step_times({rank: [(s.number, s.end_ns - s.start_ns) for s in steps[rank]] for rank in steps}),
    }


def colours(value: Any) -> set[str]:
    return set(re.findall(r"#[0-9a-fA-F]{6}\b|rgba\([^)]*\)", json.dumps(value)))


def test_no_markup_from_data_reaches_plotly(run: RunProfile) -> None:
    shown = ""
    for name, figure in every_figure(run).items():
        document = json.dumps(json.loads(figure.to_json()), ensure_ascii=False)
        shown += document
        for hostile in (runs.HOSTILE, runs.BREAKOUT):
            assert hostile not in document, name
        assert "<img" not in document and "<a " not in document and "<script" not in document, name
    assert "&lt;img src=x" in shown and "&lt;/script&gt;" in shown  # they are there, as text


def test_hover_text_never_goes_through_a_template(run: RunProfile) -> None:
    for name, figure in every_figure(run).items():
        for trace in figure.data:
            assert trace.hoverinfo in ("text", "skip"), name
            assert trace.hovertemplate is None, name
            assert getattr(trace, "texttemplate", None) in (None, "%{text}"), name


def test_a_dark_page_can_exchange_every_colour(run: RunProfile) -> None:
    for name, figure in every_figure(run).items():
        used = colours(json.loads(figure.to_json())) - {"rgba(0,0,0,0)"}
        assert used <= set(style.DARK), name


@pytest.mark.parametrize("looks", [PARTS, IDLE_LOOKS, looks_of(tuple("abcdefgh"), ())])
def test_parts_differ_without_colour(looks: Any) -> None:
    for one, other in itertools.combinations(looks, 2):
        grey = min(contrast(one.colour, other.colour), contrast(style.DARK[one.colour], style.DARK[other.colour]))
        assert one.pattern != other.pattern or grey >= 2.5, (one.key, other.key)
    assert len({look.label for look in looks}) == len(looks)


@given(st.lists(st.tuples(st.integers(0, 10**15), *[st.integers(0, 10**15)] * 4), min_size=1, max_size=5))
def test_parts_of_a_window_sum_to_it(rows: list[tuple[int, ...]]) -> None:
    for alone, hidden, exposed, copies, idle in rows:
        window = alone + hidden + exposed + copies + idle
        part = Partition(window, window, alone + hidden, hidden + exposed, copies, hidden, exposed, copies, idle)
        assert sum(parts_of(part).values()) == window


def test_bars_show_the_shares_of_a_known_run(run: RunProfile) -> None:
    figure = plot_partition({rank.rank: rank.partition for rank in run.ranks})
    shown = {trace.name: list(trace.x) for trace in figure.data}
    # 500 µs compute of 1000; the all-reduce ends at 700 and begins at 300, on the late rank at 450; a copy of 40.
    assert shown["compute"] == pytest.approx([30, 45, 30, 30])
    assert shown["compute that hides communication"] == pytest.approx([20, 5, 20, 20])
    assert shown["exposed communication"] == pytest.approx([20] * 4)
    assert shown["exposed copies"] == pytest.approx([4] * 4)
    assert shown["idle"] == pytest.approx([26] * 4)
    assert np.sum(list(shown.values()), axis=0) == pytest.approx([100] * 4)


def test_thousands_of_ranks_become_columns_with_the_same_mean() -> None:
    rng = np.random.default_rng(0)
    parts = {}
    for rank in range(4096):
        exposed = int(rng.integers(0, 900))
        parts[rank] = Partition(1000, 1000, 100, exposed, 0, 0, exposed, 0, 900 - exposed)
    figure = plot_partition(parts)
    bars = {trace.name: np.array(trace.y) for trace in figure.data}
    exposed = bars["exposed communication"]
    assert len(exposed) == COLUMNS and np.all(np.diff(exposed) <= 0)  # the worst first
    sizes = [len(group) for group in np.array_split(np.arange(4096), COLUMNS)]
    mean = np.mean([part.exposed_comm_ns / 10 for part in parts.values()])
    assert np.average(exposed, weights=sizes) == pytest.approx(mean)
    assert sum(bars.values()) == pytest.approx(np.full(COLUMNS, 100.0))
    assert len(figure.to_json()) < 500_000
    strip = plot_rank_strip(parts)
    table = np.array(strip.data[0].z)
    assert table.shape == (5, 256) and table.sum(axis=0) == pytest.approx(np.full(256, 100.0))


def test_named_bars_up_to_a_limit() -> None:
    part = Partition(100, 100, 50, 0, 0, 0, 0, 0, 50)
    assert len(plot_partition(dict.fromkeys(range(BARS), part)).data[0].y) == BARS
    assert plot_partition(dict.fromkeys(range(BARS + 1), part)).data[0].orientation is None


def test_waiting_of_a_known_run(run: RunProfile) -> None:
    assert run.together is not None
    by_rank, own = caused(run.together.stragglers), suffered(run.together.stragglers)
    # Three ranks wait 150 µs for rank 1 in each of six steps.
    assert by_rank.ns.tolist() == [[0] * 6, [450_000] * 6, [0] * 6, [0] * 6]
    assert own.ns.tolist() == [[150_000] * 6, [0] * 6, [150_000] * 6, [150_000] * 6]
    assert by_rank.columns == tuple(map(str, range(10, 16))) and drawn_words(by_rank) == ""
    assert int(by_rank.ns.sum()) == int(own.ns.sum())
    [trace] = plot_waiting(by_rank, "waiting caused", "").data
    assert trace.z[1] == (450.0,) * 6 or list(trace.z[1]) == [450.0] * 6


def test_of_many_ranks_only_those_waited_for_are_drawn() -> None:
    run = runs.run(40, 3)
    assert run.together is not None
    by_rank = caused(run.together.stragglers)
    [trace] = plot_waiting(by_rank, "waiting caused", "").data
    assert len(trace.z) == 1 and "1 of 40" in drawn_words(by_rank)


def test_single_step_shows_communications() -> None:
    run = runs.run(4, 1)
    assert run.together is not None
    found = caused(run.together.stragglers)
    assert found.columns == ("all_reduce 1",) and found.ns[:, 0].tolist() == [0, 450_000, 0, 0]


def step(number: int, idle: int) -> StepPartition:
    return StepPartition(number, 0, 100, Partition(100, 100, 100 - idle, 0, 0, 0, 0, 0, idle))


def test_steps_are_means_over_the_ranks_that_have_them() -> None:
    rows = {0: [step(7, 10), step(8, 0)], 1: [step(7, 30)]}
    assert [(number, parts["idle"]) for number, parts in mean_steps(rows)] == [(7, 20.0), (8, 0.0)]
    again = mean_steps({0: [step(7, 10), step(7, 50)], 1: [step(7, 30), step(7, 50)]})
    assert [(number, parts["idle"]) for number, parts in again] == [(7, 20.0), (7, 50.0)]


def test_many_steps_become_means_of_neighbours() -> None:
    figure = plot_steps({0: [step(number, 0) for number in range(1000)]})
    assert len(figure.data[0].y) == 120 and figure.data[0].y[0] == pytest.approx(100.0)


def test_step_times_of_many_ranks_are_a_band() -> None:
    times = {rank: [(number, 1000 * (rank + 1)) for number in range(4)] for rank in range(30)}
    slow, middle, fast = plot_step_times(times).data
    assert list(slow.y) == [30.0] * 4 and list(fast.y) == [1.0] * 4 and 15 <= middle.y[0] <= 16
    assert "rank 29" in slow.hovertext[0]
    few = plot_step_times({rank: times[rank] for rank in range(3)})
    assert [trace.name for trace in few.data] == ["rank 0", "rank 1", "rank 2"]
    assert len({trace.marker.symbol for trace in few.data}) == 3


def test_nothing_to_draw_is_said() -> None:
    nothing = Partition(*[0] * 9)
    empty = [
        plot_partition({}), plot_partition({0: nothing}), plot_rank_strip({}), plot_idle({0: {"unknown": 0}}, {0: 9}),
        plot_path([]), plot_steps({0: []}), plot_step_times({}), plot_timeline(arrange({}, {})),
        plot_timeline(arrange({0: Picture(1, 0, 0, ())}, None)),
    ]  # fmt: skip
    for figure in empty:
        assert not figure.data and figure.layout.annotations[0].text


def test_figures_hold_finite_numbers(run: RunProfile) -> None:
    for figure in every_figure(run).values():
        assert not re.search(r"\b(NaN|Infinity)\b", json.dumps(json.loads(figure.to_json())))


def test_waits_of_the_golden_run() -> None:
    """Golden README: waited for are rank 7 in collectives 0–4, 5 in 5 and 6, 4 in 7; rank 1 waits 11.1 ms, 7 1.5."""
    from densing.efficiency.traces.run import find_traces

    traces = find_traces([folders.TRACES / "param_dlrm_8rank"])
    run = merge_run([profile_trace(trace, ProfileOptions()) for trace in traces])
    assert run.together is not None
    found = caused(run.together.stragglers)
    assert [found.ranks[row] for row in found.ns.argmax(axis=0)] == [7, 7, 7, 7, 7, 5, 5, 4]
    own = suffered(run.together.stragglers)
    waited = dict(zip(own.ranks, own.ns.sum(axis=1).tolist(), strict=True))
    assert round(waited[1] / 1e6, 1) == 11.1 and round(waited[7] / 1e6, 1) == 1.5
