"""Figures of techniques: lengths, shades and words for ordinary, empty, hostile and broken tables."""

from __future__ import annotations

import json
import re
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from densing.core.errors import InputError
from densing.core.records import Record
from densing.efficiency.simulation.engine import simulate
from densing.efficiency.simulation.tasks import Graph
from densing.efficiency.timeline.overlap import partition, select
from densing.efficiency.timeline.timeline import Kind, RankTimeline, Spans, Timeline
from densing.plots import style
from densing.plots.techniques import MOST_BARS, MOST_ROWS, known, plot_compare, plot_exposed, plot_regime, rows_of
from densing.plots.timeline import BINS, MOST_RANKS, MOST_SPANS, arranged, chosen_step, plot_gantts
from tests.support.report_techniques import COMPARE, REGIME, TAU, simulated


def every_figure() -> dict[str, go.Figure]:
    gantts = plot_gantts([simulated(), simulated(3, 0.3)])
    return {"compare": plot_compare(COMPARE), "regime": plot_regime(REGIME), "tau": plot_exposed(TAU),
            **{f"gantt {at}": figure for at, figure in enumerate(gantts)}}  # fmt: skip


def test_no_markup_from_data_reaches_plotly() -> None:
    shown = ""
    for name, figure in every_figure().items():
        document = json.dumps(json.loads(figure.to_json()), ensure_ascii=False)
        shown += document
        assert "<img" not in document and "<a " not in document, name
        for trace in figure.data:
            assert trace.hoverinfo in ("text", "skip") and trace.hovertemplate is None, name
            assert getattr(trace, "texttemplate", None) in (None, "%{text}"), name
        used = set(re.findall(r"#[0-9a-fA-F]{6}\b|rgba\([^)]*\)", document)) - {"rgba(0,0,0,0)"}
        assert used <= set(style.DARK), name
    assert "&lt;img src=x" in shown


def test_bars_are_steps_split_into_exposed_and_the_rest() -> None:
    figure = plot_compare(COMPARE)
    rest, bare, words = figure.data
    assert list(rest.x) == pytest.approx([300.0, 250.0]) and list(bare.x) == pytest.approx([200.0, 0.0])
    assert [word.strip() for word in words.text] == ["1.00×", "2.00×"]
    assert figure.layout.xaxis.title.text == "step, ms"
    assert "50.0 % of its communication is hidden" in rest.hovertext[0]
    assert len(plot_compare(COMPARE[:1] * 500).data[0].x) == MOST_BARS


def test_map_shows_every_verdict_and_leaves_the_baseline_out() -> None:
    figure = plot_regime(REGIME)
    [shades] = figure.data
    assert [list(row) for row in shades.z] == [[1.0, -1.0], [pytest.approx(0.01435, abs=1e-4), None]]
    assert [list(row) for row in shades.text] == [["▲ 2.00", "▼ 0.500"], ["= 1.01", ""]]
    assert (shades.zmin, shades.zmax) == (-1.0, 1.0)
    assert list(figure.layout.xaxis.ticktext) == ["10.0", "100"]
    assert [label.rsplit(", ", 1)[1] for label in figure.layout.yaxis.ticktext] == ["1", "4"]
    assert "wins: 2.00×, step 100 ms<br>at 10 Gbit/s, batch 1" in shades.hovertext[0][0]
    many = [{**REGIME[4], "technique": f"t{n}", "batch": b} for n in range(30) for b in range(1, 20)]
    assert len(plot_regime(many).data[0].z) <= MOST_ROWS + 1
    wide = [{**REGIME[4], "bandwidth_gbps": float(gbps)} for gbps in range(1, 40)]
    assert set(plot_regime(wide).data[0].text[0]) == {""}


def test_predictions_are_told_from_measurements_without_colour() -> None:
    predicted, measured = sorted(plot_exposed(TAU).data, key=lambda trace: trace.name, reverse=True)
    assert (predicted.line.dash, measured.line.dash) == ("dash", "solid")
    assert predicted.marker.color == style.PAPER != measured.marker.color
    assert list(measured.y) == [400.0, 100.0, 25.0] and list(measured.x) == [1, 4, 16]
    assert "tau 4: 100 ms of a step of 1.00 s" in measured.hovertext[1]


def test_timelines_have_axes_of_equal_length_and_few_ranks() -> None:
    short, long = plot_gantts([simulated(), simulated(20, 0.3)])
    assert short.layout.xaxis.range == long.layout.xaxis.range
    assert len(long.layout.yaxis.ticktext) == MOST_RANKS
    # One whole step of two ranks.
    compute = next(trace for trace in short.data if trace.name == "compute")
    assert sum(compute.x) == pytest.approx(2 * 100.0)
    assert plot_gantts([]) == []
    [empty] = plot_gantts([Timeline(())])
    assert "No work" in empty.layout.annotations[0].text


def drawn_seconds(figure: go.Figure, name: str) -> float:
    return sum(sum(trace.x) for trace in figure.data if trace.name == name)


@pytest.mark.parametrize("many", [100, 1000])
def test_a_full_step_is_drawn_whole_with_every_share_of_time_right(many: int) -> None:
    """Alternating 1 ms of compute and 0.1 ms of exposed communication, few enough to draw one by one and too many."""
    graph = Graph()
    graph.step = 0
    for _ in range(many):
        gemm = graph.add("gemm", Kind.COMPUTE, (0,), "compute", 1e-3)
        graph.add("all_reduce", Kind.COMM, (0,), "comm", 1e-4, after=[gemm])
        graph.add("wait", Kind.ANNOTATION, (0,), "compute", 1e-4)
    assert (2 * many > MOST_SPANS) == (many == 1000)
    full = simulate(graph).timeline
    [figure] = plot_gantts([full])
    unit = figure.layout.xaxis.range[1] / (many * 1.1e-3)
    assert 1.1e-3 * many == pytest.approx({"s": 1, "ms": 1e-3}[figure.layout.xaxis.title.text.rsplit(" ", 1)[1]]
                                          * figure.layout.xaxis.range[1], rel=1e-3)  # fmt: skip
    assert drawn_seconds(figure, "compute") == pytest.approx(1e-3 * many * unit, rel=1e-3)
    assert drawn_seconds(figure, "exposed communication") == pytest.approx(1e-4 * many * unit, rel=1e-2)
    few, cut = plot_gantts([simulated(), full])
    assert few.layout.xaxis.range == cut.layout.xaxis.range


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50), st.integers(0, 20)), min_size=150, max_size=300))
def test_work_put_together_keeps_exposed_and_hidden_time(pieces: list[tuple[int, int, int]]) -> None:
    """Each piece: compute, communication beside it from its end on, a pause."""
    rows, at = [], 0
    for compute, comm, pause in pieces:
        rows.append({"start": at, "end": at + compute, "kind": Kind.COMPUTE, "name": "gemm"})
        at += compute
        if comm:
            rows.append({"start": at - 1, "end": at - 1 + comm, "kind": Kind.COMM, "name": "sum"})
        at += pause
    # As in a trace, in nanoseconds: rounding to whole ones is small beside a part of the step.
    rows = [{**row, "start": 1000 * row["start"], "end": 1000 * row["end"]} for row in rows]
    rank = RankTimeline(0, Spans.build(rows), Spans.empty())
    part = partition(select(rank))
    boxes = arranged(Timeline((rank,))).boxes[0]
    drawn = {(box.row, box.exposed): 0 for box in boxes}
    for box in boxes:
        drawn[box.row, box.exposed] += box.end - box.start
    slack = 2 * BINS
    assert drawn[0, False] == pytest.approx(part.compute_ns, abs=slack)
    if part.comm_ns:
        assert drawn[1, False] == pytest.approx(part.comm_ns, abs=slack)
        assert drawn.get((1, True), 0) == pytest.approx(part.exposed_comm_ns, abs=slack)


def test_the_step_that_is_drawn_is_the_one_in_which_something_happens() -> None:
    """Local steps with an exchange at the end of every eighth: the middle step would show none."""
    graph = Graph()
    for step in range(16):
        graph.step = step
        graph.add("update", Kind.COMPUTE, (0,), "compute", 0.1)
        if step % 8 == 7:
            sent = graph.add("all_reduce", Kind.COMM, (0,), "comm", 1.0, after=[len(graph) - 1])
            graph.add("apply", Kind.COMPUTE, (0,), "compute", 0.1, after=[sent])
    found = chosen_step(simulate(graph).timeline)
    assert found.number == 15
    assert found.length_ns == pytest.approx(1.2e9)
    assert found.mean_ns == pytest.approx((8 * 0.1 + 1.1) / 8 * 1e9)
    assert chosen_step(Timeline(())) is None


def test_what_does_not_fit_is_pale_and_says_so() -> None:
    rows = [COMPARE[0], {**COMPARE[1], "status": "does not fit"}, {**COMPARE[1], "changes_loss": "late"}]
    rest, _, words = plot_compare(rows).data
    assert list(rest.marker.opacity) == [1.0, 0.3, 1.0]
    assert [word.strip() for word in words.text] == ["1.00×", "does not fit", "2.00×, loss changes"]


def test_a_cell_that_does_not_fit_is_marked_and_the_baseline_stays_out() -> None:
    unfit = [{**row, "speedup": None, "verdict": "does not fit"} if row["batch"] == 4 else row for row in REGIME]
    [shades] = plot_regime(unfit).data
    assert [list(row) for row in shades.text] == [["▲ 2.00", "▼ 0.500"], ["✕", "✕"]]
    assert list(shades.z[1]) == [None, None]


@pytest.mark.parametrize("plot", [plot_compare, plot_regime, plot_exposed])
def test_little_or_broken_tables(plot: Any) -> None:
    assert plot([]).layout.annotations[0].text
    with pytest.raises(InputError, match=r"row 1: has no column 'technique'|row 1: has no column 'bandwidth_gbps'"):
        plot([{"nothing": 1}])


def test_tables_of_any_sort_are_read_alike() -> None:
    class One(Record, frozen=True):
        technique: str
        step_s: float

    needed = ("technique", "step_s")
    rows = [{"technique": "a", "step_s": 1.0}]
    for table in (rows, pd.DataFrame(rows), iter(rows), [One("a", 1.0)]):
        assert rows_of(table, needed, "t") == rows


ANYTHING = st.one_of(st.none(), st.text(max_size=4), st.floats(), st.integers(-(10**30), 10**30))


@pytest.mark.slow
@settings(max_examples=80)
@example([(None, 1.2193791430886946e308, 0.0, None)])
@example([(None, 1.7976931348623157e308, None, None)])
@example([(None, 5e-324, 5e-324, 5e-324)])
@example([(None, 10**400, 10**400, 10**400)])
@given(st.lists(st.tuples(ANYTHING, ANYTHING, ANYTHING, ANYTHING), max_size=6))
def test_any_values_draw_a_valid_figure(values: list[tuple[Any, ...]]) -> None:
    keys = (("technique", "step_s", "exposed_comm_s", "speedup"), ("technique", "tau", "exposed_s", "link"))
    map_keys = ("technique", "bandwidth_gbps", "batch", "speedup")
    for plot, names in ((plot_compare, keys[0]), (plot_exposed, keys[1]), (plot_regime, map_keys)):
        rows = [{**dict(zip(names, row, strict=True)), "verdict": "wins"} for row in values]
        document = plot(rows).to_json()
        assert "NaN" not in document and "Infinity" not in document


def test_known_numbers() -> None:
    assert known(float("nan")) is None and known("3") == 3.0 and known(True) == 1.0
