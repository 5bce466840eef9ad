"""Techniques side by side: what a step consists of, and what stays exposed as a period grows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from densing.core import InputError
from densing.plots import style, text
from densing.plots.efficiency_bars import ROW_HEIGHT
from densing.plots.efficiency_style import COMPUTE, EXPOSED
from densing.plots.efficiency_text import digits, duration, percent, unit_of

MOST_BARS = 60
MOST_LINES = 12
COVERED = COMPUTE._replace(key="covered", label="the rest of the step")
Row = dict[str, Any]


def rows_of(table: Any, needed: Sequence[str], what: str) -> list[Row]:
    """Return a table's rows as plain mappings.

    Parameters
    ----------
    table : DataFrame, or iterable of mapping or Record
    needed : sequence of str
        Columns without which nothing can be drawn.
    what : str
        Name of the table, for the message.

    Raises
    ------
    InputError
        When a row lacks a column.

    Examples
    --------
    >>> rows_of([{"technique": "ddp", "step_s": 0.5}], ("technique", "step_s"), "compare")
    [{'technique': 'ddp', 'step_s': 0.5}]
    """
    plain: Iterable[Any] = table.to_dict("records") if hasattr(table, "columns") else table
    rows = [dict(row) if isinstance(row, Mapping) else row.to_dict() for row in plain]
    for number, row in enumerate(rows):
        lacks = [name for name in needed if name not in row]
        if lacks:
            raise InputError(f"{what}, row {number + 1}: has no column {lacks[0]!r}; it needs {', '.join(needed)}")
    return rows


_MOST = 1e300


def known(value: Any) -> float | None:
    """Return a finite number, or None; one that leaves an axis no room beside it, or its inverse none, counts as none.

    Examples
    --------
    >>> [known(value) for value in (1, "2.5", 0, float("nan"), 1e308, 5e-324, None, "two")]
    [1.0, 2.5, 0.0, None, None, None, None, None]
    """
    try:
        real = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return real if real == 0 or 1 / _MOST < abs(real) < _MOST else None


def times(speedup: Any) -> str:
    """Return a speed-up as a factor.

    Examples
    --------
    >>> times(1.234), times(None)
    ('1.23×', '–')
    """
    value = known(speedup)
    return text.MISSING if value is None else f"{digits(value)}×"


def plot_compare(table: Any) -> go.Figure:
    """Draw each technique's step: what is exposed communication, and the rest.

    Parameters
    ----------
    table : DataFrame, or iterable of mapping or Record
        technique, step_s, exposed_comm_s; optionally overlap_ratio, speedup, status and changes_loss. Rows without a
        step are left out; those that do not fit in memory are pale.

    Raises
    ------
    InputError
        When a column is missing.

    Examples
    --------
    >>> figure = plot_compare([{"technique": "ddp", "step_s": 0.5, "exposed_comm_s": 0.2}])
    >>> [list(trace.x) for trace in figure.data if trace.type == "bar"]
    [[300.0], [200.0]]
    """
    rows = rows_of(table, ("technique", "step_s", "exposed_comm_s"), "compare")
    drawn = [row for row in rows if (known(row["step_s"]) or -1) >= 0][:MOST_BARS]
    if not drawn:
        return style.empty("No technique's step is known.")
    steps = [known(row["step_s"]) or 0.0 for row in drawn]
    bare = [min(max(known(row["exposed_comm_s"]) or 0.0, 0.0), step) for row, step in zip(drawn, steps, strict=True)]
    scale, unit = unit_of(1e9 * max(steps))
    fig = style.figure(140 + ROW_HEIGHT * max(len(drawn), 2), barmode="stack", bargap=0.22)
    fig.update_layout(legend_traceorder="normal", showlegend=True)
    parts = ((COVERED, [step - part for step, part in zip(steps, bare, strict=True)]), (EXPOSED, bare))
    for look, seconds in parts:
        fig.add_bar(
            y=list(range(len(drawn))), x=[1e9 * value / scale for value in seconds], orientation="h", name=look.label,
            marker={**look.marker(), "opacity": [0.3 if _misfit(row) else 1.0 for row in drawn]},
            hoverinfo="text", textposition="none",
            hovertext=[_words(row, look.label, value) for row, value in zip(drawn, seconds, strict=True)],
        )  # fmt: skip
    fig.add_scatter(
        y=list(range(len(drawn))), x=[1e9 * step / scale for step in steps], mode="text", showlegend=False,
        text=[f" {_end(row)}" for row in drawn],
        textposition="middle right", textfont={"size": 12, "color": style.INK}, hoverinfo="skip", cliponaxis=False,
    )  # fmt: skip
    names = [text.figure_text(row["technique"], 28) for row in drawn]
    ticks = {"tickmode": "array", "tickvals": list(range(len(drawn))), "ticktext": names, "showgrid": False}
    longest = max(len(_end(row)) for row in drawn)
    reach = {"range": [0, (1.1 + 0.015 * longest) * 1e9 * max(steps) / scale or 1]}
    return style.axes(fig, {"title": f"step, {unit}", **reach}, {**ticks, "range": [len(drawn) - 0.5, -0.5]})


def _misfit(row: Mapping[str, Any]) -> bool:
    return row.get("status") == "does not fit"


def _end(row: Mapping[str, Any]) -> str:
    """What stands at the end of a bar."""
    if _misfit(row):
        return "does not fit"
    if not known(row.get("speedup")):
        return ""
    return times(row["speedup"]) + (", loss changes" if row.get("changes_loss") else "")


def _words(row: Mapping[str, Any], label: str, seconds: float) -> str:
    step = 1e9 * (known(row["step_s"]) or 0.0)
    hidden = known(row.get("overlap_ratio"))
    more = "" if hidden is None else f"<br>{percent(100 * hidden)} of its communication is hidden"
    name = text.figure_text(row["technique"], 60)
    return f"<b>{name}</b><br>{label}: {duration(1e9 * seconds)} of {duration(step)}{more}"


def plot_exposed(table: Any) -> go.Figure:
    """Draw what stays exposed as a step communicates more seldom: a line per technique and link.

    Measured points are filled and joined by a solid line, predicted ones open on a dashed line.

    Parameters
    ----------
    table : DataFrame, or iterable of mapping or Record
        technique, tau, exposed_s; optionally link, step_s and predicted (true: of the simulator).

    Raises
    ------
    InputError
        When a column is missing.

    Examples
    --------
    >>> figure = plot_exposed([{"technique": "co2", "tau": tau, "exposed_s": 1 / tau} for tau in (1, 2, 4)])
    >>> figure.data[0].name
    'co2, measured'
    """
    lines: dict[tuple[str, str, bool], list[Row]] = {}
    for row in rows_of(table, ("technique", "tau", "exposed_s"), "tau"):
        if (known(row["tau"]) or 0) > 0 and known(row["exposed_s"]) is not None:
            key = (str(row["technique"]), str(row.get("link") or ""), bool(row.get("predicted")))
            lines.setdefault(key, []).append(row)
    if not lines:
        return style.empty("Nothing was measured or predicted at several periods.")
    shown = [row for rows in list(lines.values())[:MOST_LINES] for row in rows]
    scale, unit = unit_of(1e9 * max(known(row["exposed_s"]) or 0.0 for row in shown))
    fig = style.figure(380, showlegend=True)
    looks = {pair: number for number, pair in enumerate(dict.fromkeys(key[:2] for key in lines))}
    for key, rows in list(lines.items())[:MOST_LINES]:
        _line(fig, key, sorted(rows, key=lambda row: float(row["tau"])), looks[key[:2]], scale)
    low, high = style.log_range([float(row["tau"]) for row in shown])
    x_axis = {"title": "steps from one exchange to the next (tau)", **style.log_axis(low, high)}
    return style.axes(fig, x_axis, {"title": f"exposed per step, {unit}", "rangemode": "tozero"})


def _line(fig: go.Figure, key: tuple[str, str, bool], rows: Sequence[Row], number: int, scale: float) -> None:
    technique, link, predicted = key
    name = ", ".join(part for part in (technique, link, "predicted" if predicted else "measured") if part)
    colour = style.CYCLE[number % len(style.CYCLE)]
    symbol = style.SYMBOLS[number % len(style.SYMBOLS)]
    fig.add_scatter(
        x=[float(row["tau"]) for row in rows], y=[1e9 * float(row["exposed_s"]) / scale for row in rows],
        mode="lines+markers", name=text.figure_text(name, 40), hoverinfo="text",
        line={"color": colour, "width": 2, "dash": "dash" if predicted else "solid"},
        marker={"color": style.PAPER if predicted else colour, "symbol": symbol, "size": 9,
                "line": {"color": colour, "width": 1.5}},
        hovertext=[_point(name, row) for row in rows],
    )  # fmt: skip


def _point(name: str, row: Row) -> str:
    step = known(row.get("step_s"))
    of = "" if step is None else f" of a step of {duration(1e9 * step)}"
    where = f"<b>{text.figure_text(name, 60)}</b><br>tau {float(row['tau']):g}"
    return f"{where}: {duration(1e9 * float(row['exposed_s']))}{of}"
