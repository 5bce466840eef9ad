"""The figure of a frontier: steps through its rows, limits as triangles, names as text, and costs of nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import densing
from densing.plots import plot_frontier, style
from densing.tradeoff import DensityCost
from tests.support.gain_records import arm, record, written

HOSTILE = "<img src=x onerror=alert(1)>"


def runs(*points: tuple[str, float, float, str]) -> Any:
    profiles = [DensityCost(name, rho, 0.8 * rho, 1.2 * rho, "mmlu", None, hours, bound=side)
                for name, rho, hours, side in points]  # fmt: skip
    return densing.frontier(cost="device_hours", profiles=profiles)


def test_steps_limits_and_what_is_below() -> None:
    result = runs(("a", 1.0, 10.0, ""), ("b", 2.0, 100.0, ""), ("c", 1.5, 200.0, ""), ("d", 3.0, 50.0, "upper"))
    figure = plot_frontier(result)
    line, *marks = figure.data
    assert (line.line.shape, list(line.x[:2]), list(line.y)) == ("hv", [10.0, 100.0], [1.0, 2.0, 2.0])
    assert line.x[2] >= 200 and figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    symbols = {mark.name: (mark.marker.symbol, list(mark.x)) for mark in marks}
    assert symbols["on the frontier"] == ("diamond", [10.0, 100.0])
    assert symbols["own runs"] == ("star", [200.0])
    assert symbols["limit ▽"] == (style.BOUND_SYMBOLS["upper"], [50.0])
    (limit,) = (mark for mark in marks if mark.name == "limit ▽")
    assert list(limit.y) == [3.0 * 1.2], "a limit stands at the end that is known"
    assert {mark.hoverinfo for mark in marks} == {"text"} and not any(mark.hovertemplate for mark in marks)
    assert {note.text for note in figure.layout.annotations} == {"a", "b"}


def test_arms_are_ratios_on_an_axis_of_their_own_and_may_cost_nothing(tmp_path: Path) -> None:
    gain = written(tmp_path, record(arm("alone", 0.7, 0.0), arm("flat", 0.9, 10.0, status="flat")))
    figure = plot_frontier(densing.frontier(cost="bytes", gains=[gain]))
    assert "ratio" in figure.layout.yaxis.title.text and figure.layout.xaxis.type != "log"
    assert figure.layout.xaxis.range[0] < 0 < 1000 < figure.layout.xaxis.range[1]
    names = {mark.name: mark.marker.symbol for mark in figure.data[1:]}
    assert names == {"not decided": "square-open", "on the frontier": "diamond"}


def test_names_are_text_and_nothing_to_draw_says_so() -> None:
    figure = plot_frontier(runs((HOSTILE, 1.0, 10.0, ""), ("b", 0.5, 20.0, "")))
    text = json.dumps(json.loads(figure.to_json()), ensure_ascii=False)
    assert "<img" not in text and "&lt;img" in text
    nothing = plot_frontier(runs(("a", 1.0, 10.0, "upper")))
    assert len(nothing.data) == 0 and "Nothing has both" in nothing.layout.annotations[0].text
