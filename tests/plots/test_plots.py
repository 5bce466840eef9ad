"""Figures: the right traces for ordinary, empty, hostile and unbounded input."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing import plots
from densing.plots import style
from densing.plots.density import drawable, hover
from densing.plots.estimates import specifications
from densing.plots.forest import cut
from densing.scores.trend import Checks
from tests.support import report_fixture as fixture
from tests.support import report_frames as frames
from tests.support.colours import contrast


@pytest.fixture(scope="module")
def study() -> Any:
    return fixture.study()


def named(figure: go.Figure, words: str) -> Any:
    return next(trace for trace in figure.data if words in (trace.name or ""))


def every_figure(study: Any) -> dict[str, go.Figure]:
    return {
        "density": plots.plot_density(study.density, study.trend, study.apart, study.forecast),
        "reference": plots.plot_reference(study.reference, study.density),
        "multiverse": plots.plot_multiverse(study.multiverse),
        "estimates": plots.plot_estimates(study.trend),
        "permutation": plots.plot_permutation(study.trend.checks),
        "leave-one-out": plots.plot_leave_one_out(study.trend.checks),
        "skills": plots.plot_skills(study.skills),
        "sensitivity": plots.plot_sensitivity(study.sensitivity),
    }


def test_no_markup_from_data_reaches_plotly(study: Any) -> None:
    for name, figure in every_figure(study).items():
        text = json.dumps(json.loads(figure.to_json()), ensure_ascii=False)
        for hostile in (frames.HOSTILE, fixture.BREAKOUT, fixture.LINKED):
            assert hostile not in text, name
        assert "<img" not in text and "<a " not in text, name
    density = plots.plot_density(study.density).to_json()
    assert "\\u0026lt;img src=x" in density or "&lt;img src=x" in density  # it is there, as text


def test_hover_text_never_goes_through_a_template(study: Any) -> None:
    for figure in every_figure(study).values():
        for trace in figure.data:
            assert trace.hoverinfo in ("text", "skip")
            assert trace.hovertemplate is None


def test_every_figure_is_readable_without_colour(study: Any) -> None:
    density = every_figure(study)["density"]
    # One entry of the legend stands for all kinds of models shown apart and marks none of them itself.
    marks = [trace for trace in density.data if trace.mode == "markers" and trace.name != "shown apart"]
    assert len({trace.marker.symbol for trace in marks}) == len(marks)
    lines = [trace for trace in density.data if trace.mode == "lines" and trace.showlegend is not False]
    looks = {(trace.line.dash, trace.line.shape, trace.fill, trace.line.width) for trace in lines}
    assert len(looks) == len(lines)


def test_density_separates_records_limits_and_strata(study: Any) -> None:
    figure = plots.plot_density(study.density, study.trend, study.apart, study.forecast)
    table = study.density.table.sort_values("released", kind="stable")
    seen = table[table["bound"] == ""]
    records = int((seen["density"] > seen["density"].cummax().shift(fill_value=0.0)).sum())
    assert len(named(figure, "record when released").x) == records
    assert len(named(figure, "▽").x) == 1 and named(figure, "▽").marker.symbol == "triangle-down-open"
    assert len(named(figure, "△").x) == 2 and named(figure, "△").marker.symbol == "triangle-up-open"
    apart = [trace for trace in figure.data if (trace.name or "").startswith("apart")]
    assert sum(len(trace.x) for trace in apart) == len(study.apart.table)
    assert {(trace.marker.color, trace.legendgroup) for trace in apart} == {(style.MUTED, "apart")}
    entries = [trace.name for trace in figure.data if trace.showlegend is not False]
    assert "shown apart" in entries and not any(name.startswith("apart:") for name in entries)


def test_records_are_named_and_labels_do_not_cover_each_other(study: Any) -> None:
    figure = plots.plot_density(study.density, study.trend, study.apart)
    labels = {note.text for note in figure.layout.annotations}
    table = study.density.table.sort_values("released", kind="stable")
    seen = table[table["bound"] == ""]
    records = seen[seen["density"] > seen["density"].cummax().shift(fill_value=0.0)]
    assert style.figure_text(records["model"].iloc[-1], 26) in labels, "the latest record always has room"
    assert labels <= {style.figure_text(model, 26) for model in records["model"]}
    assert {note.name for note in figure.layout.annotations} <= {"wide", "narrow"}
    again = plots.plot_density(SimpleNamespace(table=pd.concat([study.density.table] * 2), options={}))
    assert len({(note.x, note.y) for note in again.layout.annotations}) == len(again.layout.annotations)


def test_models_shown_apart_do_not_stretch_the_axes(study: Any) -> None:
    old = study.apart.table.head(1).assign(released=pd.Timestamp("2019-01-01"), density=1e-9)
    table = pd.concat([study.apart.table, old], ignore_index=True)
    both = study.apart, SimpleNamespace(table=table)
    usual, wider = (plots.plot_density(study.density, study.trend, apart).layout for apart in both)
    assert (usual.xaxis.range, usual.yaxis.range) == (wider.xaxis.range, wider.yaxis.range)


def test_headline_line_is_drawn_as_density_not_its_logarithm(study: Any) -> None:
    line = named(plots.plot_density(study.density, study.trend), "headline curve")
    first = pd.Timestamp(study.trend.data.released.min())
    expected = np.exp(study.trend.predict([first])["mid"].iloc[0])
    assert line.y[0] == pytest.approx(expected)


def test_models_outside_the_window_are_marked(study: Any) -> None:
    keep = study.density.table["released"] < pd.Timestamp("2024-01-01")
    trend = fixture.FakeTrend(study.density.table[keep], study.trend.estimates, Checks(), 0.006)
    outside = named(plots.plot_density(study.density, trend), "outside the window")
    assert min(pd.to_datetime(outside.x)) >= pd.Timestamp("2024-01-01")


def test_censored_rows_stand_at_their_finite_end() -> None:
    table = pd.DataFrame(
        {
            "model": ["a", "b", "c", "d"],
            "released": ["2024-01-01", "2024-02-01", None, "2024-03-01"],
            "density": [np.nan, np.inf, 1.0, np.nan],
            "density_lo": [0.0, 4.0, 1.0, np.nan],
            "density_hi": [0.2, np.inf, 1.0, np.nan],
        }
    )
    assert drawable(table)[["model", "at"]].to_numpy().tolist() == [["a", 0.2], ["b", 4.0]]


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_small_and_empty_tables_make_figures(study: Any, rows: int) -> None:
    small = SimpleNamespace(table=study.density.table.head(rows), options={})
    assert isinstance(plots.plot_density(small), go.Figure)
    assert isinstance(plots.plot_reference(study.reference, small), go.Figure)
    assert isinstance(plots.plot_multiverse(study.multiverse.head(rows)), go.Figure)
    assert isinstance(plots.plot_skills(study.skills.head(rows)), go.Figure)


def test_empty_input_says_so(study: Any) -> None:
    nothing = SimpleNamespace(table=study.density.table.head(0), options={})
    blank = SimpleNamespace(points=study.reference.points.head(0))
    for figure in (
        plots.plot_density(nothing),
        plots.plot_reference(blank),
        plots.plot_multiverse(study.multiverse.head(0)),
        plots.plot_multiverse(study.multiverse.assign(doubling_months=np.nan)),
        plots.plot_skills(study.skills.head(0)),
        plots.plot_skills(study.skills.assign(density=np.nan)),
        plots.plot_permutation(Checks()),
        plots.plot_leave_one_out(Checks()),
        plots.plot_estimates(SimpleNamespace(estimates=study.trend.estimates.tail(1))),
    ):
        assert len(figure.data) == 0 and len(figure.layout.annotations) == 1


def test_unbounded_ends_run_to_the_edge_with_an_arrow(study: Any) -> None:
    figure = plots.plot_estimates(study.trend)
    high = 10 ** figure.layout.xaxis.range[1]
    arrows = [trace for trace in figure.data if trace.marker.symbol == "triangle-right"]
    assert len(arrows) == 1 and arrows[0].x[0] == pytest.approx(high * 10**-style.HAIR)
    assert float(f"{arrows[0].x[0]:.7g}") < high, "plotly hides what lies beyond the axis, if by rounding alone"
    markers = figure.data[-1].marker.symbol
    assert "triangle-right-open" in markers  # the estimator whose slope is not positive
    assert "diamond" in markers
    ticks = figure.layout.yaxis.ticktext
    assert not {"envelope", "running-max"} & set(ticks), "the paper's own stand beside its replication"
    assert "mixedlm" not in ticks and len(ticks) == 4  # not estimable: in the table, not in the figure


def test_one_barely_bounded_interval_does_not_flatten_the_others() -> None:
    frame = pd.DataFrame({"doubling_months": [3.0, 4.0], "lo": [2.0, 2.5], "hi": [1e6, 6.0]})
    ends = cut(frame, "doubling_months")
    assert ends.high < 100 and ends.open_hi.tolist() == [True, False]


def test_intervals_without_ends_have_no_arrow() -> None:
    ends = cut(pd.DataFrame({"doubling_months": [3.0], "lo": [np.nan], "hi": [np.nan]}), "doubling_months")
    assert not ends.open_lo[0] and not ends.open_hi[0] and ends.lo[0] == ends.hi[0] == 3.0


def test_multiverse_is_sorted_and_marks_the_headline(study: Any) -> None:
    rows = specifications(study.multiverse)
    assert len(rows) == len(study.multiverse) - 1
    assert rows["doubling_months"].is_monotonic_increasing
    figure = plots.plot_multiverse(study.multiverse)
    chosen = named(figure, "headline")
    assert len(chosen.x) == 1 and rows["headline"].iloc[int(chosen.x[0])]
    matrix = [trace for trace in figure.data if trace.yaxis == "y2"]
    assert len(matrix) == 6 and all(len(trace.x) == len(rows) for trace in matrix)


def test_every_specification_has_a_mark_on_the_line_of_its_choice(study: Any) -> None:
    figure = plots.plot_multiverse(study.multiverse)
    rows, lines = specifications(study.multiverse), list(figure.layout.yaxis2.ticktext)
    matrix = [trace for trace in figure.data if trace.yaxis == "y2"]
    for column, trace in zip(
        ("reference", "benchmark", "evaluator", "window", "denominator", "method"), matrix, strict=True
    ):
        assert [lines[int(y)] for y in trace.y] == rows[column].tolist()


def test_shuffled_slopes_are_drawn_as_a_range(study: Any) -> None:
    figure = plots.plot_permutation(study.trend.checks)
    null = study.trend.checks.permutation.headline_family_blocks.null_slopes
    assert list(named(figure, "90 %").x) == pytest.approx(list(np.quantile(null, [0.05, 0.95])))


def test_a_multiverse_of_one_choice_has_no_matrix(study: Any) -> None:
    figure = plots.plot_multiverse(study.multiverse.iloc[[10]])
    assert not [trace for trace in figure.data if trace.yaxis == "y2"]


def test_paper_figures_carry_their_evidence(study: Any) -> None:
    for figure in (plots.plot_estimates(study.trend), plots.plot_multiverse(study.multiverse)):
        assert "second-hand" in named(figure, "3.5 months").name
        assert "second-hand" not in named(figure, "3.3 months").name


def test_held_out_points_are_marked(study: Any) -> None:
    figure = plots.plot_reference(study.reference, study.density)
    assert len(named(figure, "held out").x) == 1
    assert len(named(figure, "fitted)").x) == 5
    limits = named(figure, "at a limit")
    assert set(limits.marker.symbol) == {"triangle-left-open", "triangle-right-open"}


def test_missing_held_out_flags_count_as_fitted(study: Any) -> None:
    points = study.reference.points.assign(held_out=[None, np.nan, False, False, False, False])
    reference = SimpleNamespace(**{**vars(study.reference), "points": points})
    assert not [trace for trace in plots.plot_reference(reference).data if "held out" in (trace.name or "")]


def test_leave_one_out_puts_no_doubling_at_the_edge(study: Any) -> None:
    figure = plots.plot_leave_one_out(study.trend.checks)
    assert figure.data[-1].marker.symbol[-1] == "triangle-right-open"
    assert figure.layout.yaxis.ticktext[-1] == "without &lt;img src=x onerror=alert(1)&gt;"


def test_hover_tells_what_the_issue_asks_for(study: Any) -> None:
    words = hover(study.density.table.iloc[4].to_dict())
    for wanted in ("released", "size", "effective size", "score", "status", "source"):
        assert f"<br>{wanted}" in words
    recipe = {"density": 1.0, "density_lo": 0.8, "density_hi": 1.2, "density_lo_recipe": 0.5, "density_hi_recipe": 2.0}
    assert "density: 1.0 (measured 0.80 to 1.2)<br>its recipe's: 0.50 to 2.0, with model-to-model scatter" in hover(
        recipe
    )


@pytest.mark.parametrize("dark", [False, True])
def test_every_colour_stands_out_from_its_paper(dark: bool) -> None:
    exchange = style.DARK if dark else {}
    paper = exchange.get(style.PAPER, style.PAPER)
    for colour in (*style.CYCLE, style.INK):
        # Names are written in some of them, and what is written needs more than a mark (WCAG 2.1, 1.4.3).
        assert contrast(exchange.get(colour, colour), paper) >= 4.5


def test_ones_own_models_among_others_are_stars_in_front_each_with_a_name(study: Any) -> None:
    table = study.density.table.copy()
    dated = table["released"].notna() & table["bound"].eq("")
    own = table[dated].head(3)["model"].tolist()
    table["evaluator"] = ["user" if model in own else "lab" for model in table["model"]]
    figure = plots.plot_density(SimpleNamespace(table=table), study.trend, study.apart)
    star = figure.data[-1]
    assert (star.name, star.marker.symbol, len(star.x)) == ("your models", "star", 3)
    assert {style.figure_text(model, 26) for model in own} <= {note.text for note in figure.layout.annotations}
    grey = study.apart.table.assign(evaluator="user")
    hidden = plots.plot_density(study.density, study.trend, SimpleNamespace(table=grey))
    assert not [trace for trace in hidden.data if str(trace.name).startswith("apart: ")], "they are stars, not grey"
    assert named(hidden, "your models").marker.symbol == "star"


def test_a_stars_name_stands_where_it_covers_no_mark() -> None:
    rows = [("mine", "2024-07-01", 1.0), ("last", "2025-07-01", 0.9), ("first", "2023-01-01", 3.0)]
    # Below the star, where its name would be first, and left above it stand others.
    rows += [(f"m{i}", f"2024-0{6 + i // 4}-{8 + 5 * (i % 4):02}", 0.93) for i in range(8)]
    rows += [(f"n{i}", f"2024-06-{8 + 5 * (i % 4):02}", 1.07) for i in range(4)]
    table = pd.DataFrame(rows, columns=["model", "released", "density"]).assign(
        density_lo=0.5, density_hi=4.0, bound="", status="ok"
    )
    table["evaluator"] = np.where(table["model"].eq("mine"), "user", "lab")
    figure = plots.plot_density(SimpleNamespace(table=table))
    [note] = [note for note in figure.layout.annotations if note.text == "mine"]
    assert note.xanchor == "left" and note.yshift > 0


def test_a_record_whose_name_would_cover_another_record_has_none() -> None:
    # Two records of one day, the second a little above the first.
    rows = [("old", "2023-01-01", 0.1), ("lower", "2024-06-01", 1.0), ("higher", "2024-06-01", 1.15)]
    rows += [("last", "2025-06-01", 0.5)]
    table = pd.DataFrame(rows, columns=["model", "released", "density"]).assign(
        density_lo=0.05, density_hi=4.0, bound="", status="ok"
    )
    figure = plots.plot_density(SimpleNamespace(table=table))
    assert {note.text for note in figure.layout.annotations} == {"old", "higher"}


def test_stars_beside_each_other_are_all_named() -> None:
    rows = [("first", "2023-01-01", 3.0), *((f"mine {i}", f"2024-06-{10 + 4 * i}", 1.0) for i in range(4))]
    table = pd.DataFrame(rows, columns=["model", "released", "density"]).assign(
        density_lo=0.5, density_hi=4.0, bound="", status="ok"
    )
    table["evaluator"] = np.where(table["model"].eq("first"), "lab", "user")
    figure = plots.plot_density(SimpleNamespace(table=table))
    assert {f"mine {i}" for i in range(4)} <= {note.text for note in figure.layout.annotations}


def test_points_are_the_rows_of_a_figure_each_with_its_group(study: Any) -> None:
    points = plots.density_points(study.density, study.apart)
    assert len(points) == len(study.density.table) + len(study.apart.table)
    groups = set(points["group"])
    assert "headline" in groups and set(study.apart.table["stratum"]) <= groups


@pytest.mark.parametrize(("guard", "factor"), [(3.0, 3.0), (10.0, 10.0), (float("inf"), 3.0)])
def test_the_guard_drawn_is_the_guard_used_around_the_sizes_fitted(study: Any, guard: float, factor: float) -> None:
    """The fixture's largest point, 72e9, is held out: it widens the axis and not the guard."""
    density = SimpleNamespace(**{**vars(study.density), "options": {"guard": guard}})
    figure = plots.plot_reference(study.reference, density)
    assert [shape.x0 for shape in figure.layout.shapes] == pytest.approx([0.5e9 / factor, 14e9 * factor])
    curve = next(trace for trace in figure.data if "curve" in (trace.name or "") and trace.mode == "lines")
    assert max(curve.x) >= 72e9


def test_the_strip_sets_both_means_of_a_choice_beside_its_one_label() -> None:
    first = ("the headline", 6.7, 4.9, 10.9, 20.5, 5.6, np.inf, True)
    others = [("a range that needs two lines to be said", 7.3, 5.2, 12.8, np.inf, 17.0, np.inf, False),
              ("no last year", 9.2, 5.8, 26.8, np.nan, np.nan, np.nan, False)]  # fmt: skip
    names = ["choice", "doubling_months", "lo", "hi", "year_months", "year_lo", "year_hi", "headline"]
    figure = plots.plot_sensitivity(pd.DataFrame([first, *others], columns=names))
    labels = list(figure.layout.yaxis.ticktext)
    assert [label.replace("<br>", " ") for label in labels] == [first[0], *(choice for choice, *_ in others)]
    assert [label.count("<br>") for label in labels] == [0, 1, 0]
    dots = next(trace for trace in figure.data if trace.hovertext is not None)
    assert np.round(dots.y).tolist() == [0, 0, 1, 1, 2] and list(figure.layout.yaxis.tickvals) == [0, 1, 2]
    assert dots.x[:2] == pytest.approx([6.7, 20.5]) and dots.x[4] == pytest.approx(9.2)
    # A pace without a doubling is an open triangle at the edge; the headline a diamond, its last year a hollow one.
    symbols = list(dots.marker.symbol)
    assert symbols == ["diamond", "diamond-open", "circle", "triangle-right-open", "circle"]
    assert dots.x[3] == pytest.approx(10 ** (figure.layout.xaxis.range[1] - style.HAIR))
    assert "last twelve months" in dots.hovertext[1] and "mean over the window" in dots.hovertext[0]
    assert len({*dots.marker.color}) == 2, "the headline has a colour of its own"
    assert {"mean over the window", "last twelve months"} <= {trace.name for trace in figure.data}


def test_a_pace_near_zero_does_not_stretch_the_strip() -> None:
    first = ("the headline", 6.7, 4.9, 10.9, 2156.0, 5.6, np.inf, True)
    rows = [first, ("slope since 2024", 7.4, 5.3, 12.5, 20.0, 5.9, np.inf, False)]
    names = ["choice", "doubling_months", "lo", "hi", "year_months", "year_lo", "year_hi", "headline"]
    figure = plots.plot_sensitivity(pd.DataFrame(rows, columns=names))
    assert 10 ** figure.layout.xaxis.range[1] < 100
    dots = next(trace for trace in figure.data if trace.hovertext is not None)
    assert dots.marker.symbol[1] == "triangle-right-open" and "2156" in dots.hovertext[1]


def test_a_strip_without_last_years_needs_no_legend(study: Any) -> None:
    alone = study.sensitivity.drop(columns=["year_months", "year_lo", "year_hi"], errors="ignore")
    figure = plots.plot_sensitivity(alone)
    assert "last twelve months" not in {trace.name for trace in figure.data}
    assert plots.plot_sensitivity(alone.head(0)).layout.annotations[0].text.startswith("Nothing")


@given(st.text())
def test_figure_text_has_no_tag_left(value: str) -> None:
    shown = style.figure_text(value)
    assert "<" not in shown and ">" not in shown and "\n" not in shown
