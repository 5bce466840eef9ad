"""The multiverse: one doubling time per defensible specification, sorted, above the choices that made it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from densing.plots import style, text
from densing.plots.forest import REFERENCE_LINES, Ends, arrows, cut

CHOICES = ("reference", "benchmark", "evaluator", "window", "denominator", "dates", "method")
TOP_HEIGHT = 340
DOT_HEIGHT = 21


def plot_multiverse(multiverse: pd.DataFrame) -> go.Figure:
    """Draw the specification curve of the doubling time.

    Above: estimates in ascending order with their intervals; below: a mark in the row of every choice made.

    Source: Simonsohn, Simmons and Nelson, Nature Human Behaviour 4:1208 (2020), specification curve.

    Parameters
    ----------
    multiverse : pandas.DataFrame
        Columns reference, benchmark, evaluator, window, denominator, method, doubling_months, lo, hi, n,
        permutation_p, headline.
    """
    rows = specifications(multiverse)
    if rows.empty:
        return style.empty("No specification could be estimated.")
    choices = _choice_rows(rows)
    bottom = DOT_HEIGHT * max(len(choices), 1) + 20
    fig = _canvas(bottom)
    ends = cut(rows, tuple(months for months, _, _ in REFERENCE_LINES))
    _add_curve(fig, rows, ends)
    _add_choices(fig, rows, choices)
    fig.update_yaxes(title_text="doubling time, months", **style.log_axis(ends.low, ends.high), row=1, col=1)
    fig.update_xaxes(range=[-1, len(rows)], showticklabels=False, ticks="", showgrid=False)
    names = [
        f"<b>{text.figure_text(column)}</b>" if value is None else text.figure_text(value, 26)
        for column, value in choices
    ]
    ticks = {
        "tickmode": "array",
        "tickvals": list(range(len(choices))),
        "ticktext": names,
        "tickfont": {"size": 12},
    }
    fig.update_yaxes(**ticks, range=[len(choices) - 0.4, -0.6], row=2, col=1)
    fig.update_xaxes(title_text=text.plural(len(rows), "specification"), row=2, col=1)
    return fig


def specifications(multiverse: pd.DataFrame) -> pd.DataFrame:
    """Return the specifications that have an estimate or an interval, fastest doubling first.

    Examples
    --------
    >>> frame = pd.DataFrame({"doubling_months": [np.inf, 2.0, np.nan], "lo": [5.0, 1.0, np.nan]})
    >>> specifications(frame)["doubling_months"].tolist()
    [2.0, inf]
    """
    if multiverse.empty:
        return multiverse
    value = pd.to_numeric(multiverse["doubling_months"], errors="coerce")
    rows = multiverse.assign(doubling_months=value)[~value.isna()]
    return rows.sort_values(["doubling_months", "lo"], kind="stable").reset_index(drop=True)


def _canvas(bottom: int) -> go.Figure:
    height = TOP_HEIGHT + bottom
    shares = [TOP_HEIGHT / height, bottom / height]
    grid = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.02, row_heights=shares)
    fig = style.figure(height + 90)
    axis_style = {"x": fig.layout.xaxis.to_plotly_json(), "y": fig.layout.yaxis.to_plotly_json()}
    grid.update_layout(fig.layout.to_plotly_json() | grid.layout.to_plotly_json() | {"template": "none"})
    for kind, update in (("x", grid.update_xaxes), ("y", grid.update_yaxes)):
        update(**axis_style[kind])
    return grid


def _choice_rows(rows: pd.DataFrame) -> list[tuple[str, str | None]]:
    """Return the lines of the matrix: a heading (value None) and one line per value for every choice that varies."""
    lines: list[tuple[str, str | None]] = []
    for column in CHOICES:
        values = sorted(set(rows[column].map(text.clean))) if column in rows else []
        if len(values) > 1:
            lines += [(column, None), *((column, value) for value in values)]
    return lines


def _colours(rows: pd.DataFrame) -> list[str]:
    headline = rows["headline"].map(lambda cell: cell is True or cell is np.True_ or cell == 1)
    return [style.VERMILLION if chosen else style.BLUE for chosen in headline]


def _add_curve(fig: go.Figure, rows: pd.DataFrame, ends: Ends) -> None:
    place = {"row": 1, "col": 1}
    index = np.arange(len(rows))
    colours = _colours(rows)
    for position, dash, name in REFERENCE_LINES:
        line = {"color": style.MUTED, "width": 1.5, "dash": dash}
        fig.add_scatter(
            x=[-1, len(rows)], y=[position] * 2, mode="lines", line=line, name=name, hoverinfo="skip", **place
        )
    bars_x = np.column_stack([index, index, np.full(len(rows), np.nan)]).ravel()
    bars_y = np.column_stack([ends.lo, ends.hi, np.full(len(rows), np.nan)]).ravel()
    bar = {"color": style.MUTED, "width": 1}
    fig.add_scatter(
        x=bars_x,
        y=bars_y,
        mode="lines",
        line=bar,
        name="95 % interval",
        hoverinfo="skip",
        connectgaps=False,
        **place,
    )
    arrows(fig, ends, index, "y", [style.MUTED] * len(rows), **place)
    chosen = np.array([colour == style.VERMILLION for colour in colours])
    words = [_words(row) for row in rows.to_dict("records")]
    for mask, name, symbol, size in (
        (~chosen, "specification", "circle", 6),
        (chosen, "headline", "diamond", 13),
    ):
        if not mask.any():
            continue
        marks = ["triangle-up-open" if off else symbol for off in ends.off[mask]]
        colour = style.VERMILLION if symbol == "diamond" else style.BLUE
        fig.add_scatter(
            x=index[mask], y=ends.value[mask], mode="markers", name=name, hoverinfo="text",
            hovertext=[word for word, keep in zip(words, mask, strict=True) if keep],
            marker={"symbol": marks, "size": size, "color": colour}, cliponaxis=False, **place,
        )  # fmt: skip


def _add_choices(fig: go.Figure, rows: pd.DataFrame, choices: list[tuple[str, str | None]]) -> None:
    headline = [colour == style.VERMILLION for colour in _colours(rows)]
    columns = list(dict.fromkeys(column for column, _ in choices))
    tall = 11 if len(rows) <= CROWDED else 8
    for number, column in enumerate(columns):
        height = {value: y for y, (name, value) in enumerate(choices) if name == column}
        base = style.INK if number % 2 == 0 else style.BLUE
        marker = {
            "opacity": 1,
            "symbol": ["diamond" if chosen else "line-ns-open" for chosen in headline],
            "size": [9 if chosen else tall for chosen in headline],
            "color": [style.VERMILLION if chosen else base for chosen in headline],
            "line": {"width": 2 if len(rows) <= CROWDED else 1},
        }
        places = [height[value] for value in rows[column].map(text.clean)]
        shared = {"mode": "markers", "hoverinfo": "skip", "showlegend": False, "row": 2, "col": 1}
        fig.add_scatter(x=np.arange(len(rows)), y=places, marker=marker, **shared)


CROWDED = 120


def _words(row: Mapping[str, Any]) -> str:
    made = [f"{name}: {text.figure_text(row[name], 60)}" for name in CHOICES if not text.is_missing(row.get(name))]
    lines = [
        f"<b>{text.doubling(row['doubling_months'], row.get('lo'), row.get('hi'))}</b>",
        *made,
        f"{text.number(row.get('n'), 4)} models; families shuffled {text.p_value(row.get('permutation_p'))}",
    ]
    return "<br>".join(lines)
