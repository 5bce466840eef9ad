"""The figure of gains: two ratios an arm, open ends, bounds, names as text."""

from __future__ import annotations

import json
from pathlib import Path

from densing.plots import plot_gain
from densing.plots.style import HAIR
from densing.tradeoff import GainRecord
from tests.support.gain_records import arm, record, written

HOSTILE = "<img src=x onerror=alert(1)>"


def test_each_arm_has_both_ratios_and_the_limit_of_no_loss_is_drawn(tmp_path: Path) -> None:
    figure = plot_gain(written(tmp_path, record(arm("co2", 0.5, 100.0), arm("flat", 0.9, 10.0, status="flat"))))
    marks = figure.data[-1]
    assert list(marks.x) == [0.5, 1.0, 0.9, 1.0]
    assert list(marks.marker.symbol) == ["circle", "diamond", "circle-open", "diamond"]
    assert list(figure.layout.yaxis.ticktext) == ["co2, density", "co2, tokens", "flat, density", "flat, tokens"]
    positions = [trace.x[0] for trace in figure.data if trace.name and trace.mode == "lines"]
    assert positions == [1.0, 0.97]
    assert figure.layout.xaxis.type == "log"


def test_ends_that_are_open_run_to_the_edge_and_a_lone_bound_is_a_triangle() -> None:
    at_most = arm("at most", 0.1, 10.0, status="flat", density_lo=None, density_hi=0.6)
    at_least = arm("at least", None, 10.0, status="above_ceiling", density_lo=2.0, token_ratio=None, token_lo=None,
                   token_hi=None)  # fmt: skip
    figure = plot_gain(GainRecord(**{**record(at_most, at_least), "kind": "gain"}))
    low, high = figure.layout.xaxis.range
    marks, edge = figure.data[-1], [10 ** (low + HAIR), 10 ** (high - HAIR)]
    assert marks.marker.symbol[2] == "triangle-right-open" and marks.x[2] == 2.0
    assert "at most 0.60" in marks.hovertext[0] and "unknown (at least 2.0)" in marks.hovertext[2]
    lines = [trace for trace in figure.data if trace.mode == "lines" and not trace.name]
    assert abs(lines[0].x[0] - edge[0]) < 1e-9 and lines[0].x[1] == 0.6
    assert abs(lines[2].x[1] - edge[1]) < 1e-9 and lines[2].x[0] == 2.0
    heads = {trace.marker.symbol: list(trace.y) for trace in figure.data[:-1] if trace.mode == "markers"}
    assert heads == {"triangle-left": [0], "triangle-right": [2]}
    # Of whose tokens nothing is known there is a row without a mark.
    assert len(figure.layout.yaxis.ticktext) == 4


def test_few_pairs_decide_neither_ratio() -> None:
    figure = plot_gain(GainRecord(**record(arm("x", 0.5, 1.0, status="few_pairs"))))
    assert list(figure.data[-1].marker.symbol) == ["circle-open", "diamond-open"]
    assert "few pairs" in figure.data[-1].hovertext[1]


def test_names_are_text_and_a_record_without_arms_says_so() -> None:
    text = json.dumps(json.loads(plot_gain(GainRecord(**record(arm(HOSTILE, 0.5, 1.0)))).to_json()), ensure_ascii=False)
    assert "<img" not in text and "&lt;img" in text
    nothing = plot_gain(GainRecord(**record()))
    assert len(nothing.data) == 0 and "No arm" in nothing.layout.annotations[0].text
