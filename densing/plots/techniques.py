"""Techniques side by side: what a step consists of, what stays exposed as a period grows, and where each pays off."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from densing.core import InputError, formatting
from densing.plots import style
from densing.plots.partition import COMPUTE, EXPOSED, ROW_HEIGHT

MOST_BARS = 60
MOST_LINES = 12
MOST_ROWS = 120
MOST_WORDS = 12
"""With more bandwidths than this, cells are too narrow for words."""
SIGNS = {"wins": "▲", "ties": "=", "loses": "▼", "does not fit": "✕"}
DIVERGING = [[0, style.VERMILLION], [0.5, style.PAPER], [1, style.BLUE]]
COVERED = COMPUTE._replace(key="covered", label="the rest of the step")
Row = dict[str, Any]


known = formatting.known


def rows_of(table: Any, needed: Sequence[str], name: str) -> list[Row]:
    """Return a table's rows as plain mappings.

    Parameters
    ----------
    table : DataFrame, or iterable of mapping or Record
    needed : sequence of str
        Columns without which nothing can be drawn.
    name : str
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
    records: Iterable[Any] = table.to_dict("records") if hasattr(table, "columns") else table
    rows = [dict(row) if isinstance(row, Mapping) else row.to_dict() for row in records]
    for number, row in enumerate(rows):
        lacks = [column for column in needed if column not in row]
        if lacks:
            raise InputError(f"{name}, row {number + 1}: has no column {lacks[0]!r}; it needs {', '.join(needed)}")
    return rows


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
    rows = [row for row in rows if (known(row["step_s"]) or -1) >= 0][:MOST_BARS]
    if not rows:
        return style.empty("No technique's step is known.")
    steps = [known(row["step_s"]) or 0.0 for row in rows]
    bare = [min(max(known(row["exposed_comm_s"]) or 0.0, 0.0), step) for row, step in zip(rows, steps, strict=True)]
    scale, unit = formatting.unit_of(1e9 * max(steps))
    fig = style.figure(140 + ROW_HEIGHT * max(len(rows), 2), barmode="stack", bargap=0.22)
    fig.update_layout(legend_traceorder="normal", showlegend=True)
    parts = ((COVERED, [step - part for step, part in zip(steps, bare, strict=True)]), (EXPOSED, bare))
    for look, seconds in parts:
        fig.add_bar(
            y=list(range(len(rows))), x=[1e9 * value / scale for value in seconds], orientation="h", name=look.label,
            marker={**look.marker(), "opacity": [0.3 if _misfit(row) else 1.0 for row in rows]},
            hoverinfo="text", textposition="none",
            hovertext=[
                style.hover(
                    style.figure_text(row["technique"], 60),
                    f"{look.label}: {formatting.duration(1e9 * value)} of {formatting.duration(1e9 * step)}",
                    "" if (hidden := known(row.get("overlap_ratio"))) is None
                    else f"{formatting.percent(100 * hidden)} of its communication is hidden",
                )
                for row, value, step in zip(rows, seconds, steps, strict=True)
            ],
        )  # fmt: skip
    fig.add_scatter(
        y=list(range(len(rows))), x=[1e9 * step / scale for step in steps], mode="text", showlegend=False,
        text=[f" {_end(row)}" for row in rows],
        textposition="middle right", textfont={"size": 12, "color": style.INK}, hoverinfo="skip", cliponaxis=False,
    )  # fmt: skip
    names = [style.figure_text(row["technique"], 28) for row in rows]
    longest = max(len(_end(row)) for row in rows)
    reach = {"range": [0, (1.1 + 0.015 * longest) * 1e9 * max(steps) / scale or 1]}
    return style.axes(
        fig, {"title": f"step, {unit}", **reach}, {**style.list_ticks(names), "range": [len(rows) - 0.5, -0.5]}
    )


def _misfit(row: Mapping[str, Any]) -> bool:
    return row.get("status") == "does not fit"


def _end(row: Mapping[str, Any]) -> str:
    """What stands at the end of a bar."""
    if _misfit(row):
        return "does not fit"
    if not known(row.get("speedup")):
        return ""
    return formatting.factor(row["speedup"]) + (", loss changes" if row.get("changes_loss") else "")


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
    drawn_rows = [row for rows in list(lines.values())[:MOST_LINES] for row in rows]
    scale, unit = formatting.unit_of(1e9 * max(known(row["exposed_s"]) or 0.0 for row in drawn_rows))
    fig = style.figure(380, showlegend=True)
    # Measured and predicted points of one technique and link share colour and symbol.
    looks = {pair: number for number, pair in enumerate(dict.fromkeys(key[:2] for key in lines))}
    for key, rows in list(lines.items())[:MOST_LINES]:
        technique, link, predicted = key
        name = ", ".join(part for part in (technique, link, "predicted" if predicted else "measured") if part)
        colour = style.CYCLE[looks[key[:2]] % len(style.CYCLE)]
        symbol = style.SYMBOLS[looks[key[:2]] % len(style.SYMBOLS)]
        points = sorted(rows, key=lambda row: float(row["tau"]))
        fig.add_scatter(
            x=[float(row["tau"]) for row in points], y=[1e9 * float(row["exposed_s"]) / scale for row in points],
            mode="lines+markers", name=style.figure_text(name, 40), hoverinfo="text",
            line={"color": colour, "width": 2, "dash": "dash" if predicted else "solid"},
            marker={"color": style.PAPER if predicted else colour, "symbol": symbol, "size": 9,
                    "line": {"color": colour, "width": 1.5}},
            hovertext=[
                style.hover(
                    style.figure_text(name, 60),
                    f"tau {float(row['tau']):g}: {formatting.duration(1e9 * float(row['exposed_s']))}"
                    + ("" if (s := known(row.get("step_s"))) is None else " of a step of "
                                                                          f"{formatting.duration(1e9 * s)}"),
                )
                for row in points
            ],
        )  # fmt: skip
    low, high = style.log_range([float(row["tau"]) for row in drawn_rows])
    x_axis = {"title": "steps from one exchange to the next (tau)", **style.log_axis(low, high)}
    return style.axes(fig, x_axis, {"title": f"exposed per step, {unit}", "rangemode": "tozero"})


def plot_regime(table: Any) -> go.Figure:
    """Draw each technique's speed-up at each bandwidth (left to right) and batch or number of replicas (a row each).

    Blue and ▲ are faster than the baseline, orange and ▼ slower, = about as fast, ✕: it does not fit in memory; a blank
    cell: it does not apply.

    Parameters
    ----------
    table : DataFrame, or iterable of mapping or Record
        bandwidth_gbps, batch, technique, speedup, verdict; optionally step_s and replicas, which make the rows where
        they differ. A technique whose speed-ups are all exactly 1 is the baseline and is left out.

    Raises
    ------
    InputError
        When a column is missing.

    Examples
    --------
    >>> rows = [{"bandwidth_gbps": gbps, "batch": 1, "technique": "co2", "speedup": up, "verdict": "wins"}
    ...         for gbps, up in ((10, 2.0), (100, 1.25))]
    >>> figure = plot_regime(rows)
    >>> [[round(value, 3) for value in row] for row in figure.data[0].z], list(figure.data[0].text[0])
    ([[1.0, 0.322]], ['▲ 2.00', '▲ 1.25'])
    """
    rows = rows_of(table, ("bandwidth_gbps", "batch", "technique", "speedup", "verdict"), "regime")
    across = "replicas" if len({row.get("replicas") for row in rows}) > 1 else "batch"
    cells = {(str(row["technique"]), known(row[across]), known(row["bandwidth_gbps"])): row for row in rows}
    bandwidths = sorted({key[2] for key in cells if key[2] is not None})
    lines: list[tuple[str, float | None] | None] = []
    for name in dict.fromkeys(str(row["technique"]) for row in contested(rows)):
        sizes = sorted({key[1] for key in cells if key[0] == name and key[1] is not None})
        # A row of each size, and a gap below them.
        lines += [*((name, size) for size in sizes), None]
    lines = lines[: MOST_ROWS + 1]
    if not lines or not bandwidths:
        return style.empty("Nothing is to be compared with the baseline.")
    lines = lines[:-1] if lines[-1] is None else lines
    grid = [[None if line is None else cells.get((*line, gbps)) for gbps in bandwidths] for line in lines]
    # Logarithms of the speed-ups, so that 2 and 1/2 are as strong.
    speedups = [[None if cell is None else known(cell["speedup"]) for cell in row] for row in grid]
    shades = [[math.log2(value) if value is not None and value > 0 else None for value in row] for row in speedups]
    strongest = max((abs(value) for row in shades for value in row if value is not None), default=0.0) or 1.0
    signs = [[_sign(cell) if len(bandwidths) <= MOST_WORDS else "" for cell in row] for row in grid]
    fig = style.figure(150 + 24 * max(len(lines), 3))
    # The ticks of the scale are factors again.
    ends = [-strongest, -strongest / 2, 0.0, strongest / 2, strongest]
    scale = style.bar_of_shades("speed-up")
    scale |= {"tickmode": "array", "tickvals": ends, "ticktext": [formatting.factor(2**value) for value in ends]}
    del scale["nticks"]
    fig.add_heatmap(
        z=shades, x=list(range(len(bandwidths))), y=list(range(len(lines))), text=signs, texttemplate="%{text}",
        hovertext=[[_cell_hover(cell) for cell in row] for row in grid], hoverinfo="text", textfont={"size": 12},
        colorscale=DIVERGING, zmin=-strongest, zmax=strongest, colorbar=scale, xgap=2, ygap=2, hoverongaps=False,
    )  # fmt: skip
    labels = ["" if line is None else f"{style.figure_text(line[0], 20)}, {line[1]:g}" for line in lines]
    y_axis = {**style.list_ticks(labels), "ticks": "", "range": [len(lines) - 0.5, -0.5]}
    every = -(-len(bandwidths) // 10)
    x_axis = {"tickmode": "array", "tickvals": list(range(0, len(bandwidths), every)), "showgrid": False,
              "ticktext": [f"{formatting.digits(gbps)}" for gbps in bandwidths[::every]]}  # fmt: skip
    return style.axes(fig, {"title": "bandwidth of the link, Gbit/s", **x_axis}, y_axis)


def contested(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of all techniques but the baseline, whose speed-ups are all exactly 1.

    Examples
    --------
    >>> [row["technique"] for row in contested([{"technique": "ddp", "speedup": 1.0},
    ...                                         {"technique": "co2", "speedup": 1.2}])]
    ['co2']
    """
    rated: dict[str, list[float | None]] = {}
    for row in rows:
        rated.setdefault(str(row["technique"]), []).append(known(row["speedup"]))
    base = {name for name, values in rated.items() if 1.0 in values and set(values) <= {1.0, None}}
    return [row for row in rows if str(row["technique"]) not in base]


def _sign(cell: Row | None) -> str:
    if cell is None:
        return ""
    if known(cell["speedup"]) is None:
        return SIGNS["does not fit"] if cell["verdict"] == "does not fit" else ""
    return f"{SIGNS.get(str(cell['verdict']), '')} {formatting.digits(float(cell['speedup']))}".strip()


def _cell_hover(cell: Row | None) -> str:
    if cell is None:
        return ""
    step = known(cell.get("step_s"))
    took = "" if step is None else f", step {formatting.duration(1e9 * step)}"
    replicas = known(cell.get("replicas"))
    among = f", {replicas:g} replicas" if replicas and replicas > 1 else ""
    return style.hover(
        style.figure_text(cell["technique"], 60),
        f"{style.figure_text(cell['verdict'], 40)}: {formatting.factor(cell['speedup'])}{took}",
        f"at {known(cell['bandwidth_gbps']) or 0:g} Gbit/s, batch {known(cell['batch']) or 0:g}{among}",
    )


def plot_throughput(table: Any) -> go.Figure:
    """Draw predicted against measured training speeds, a symbol per source, on logarithmic axes.

    Parameters
    ----------
    table : DataFrame, or iterable of mapping or Record
        row_id, source, measured_tokens_per_s, predicted_tokens_per_s; rows without either are left out.

    Raises
    ------
    InputError
        When a column is missing.

    Examples
    --------
    >>> row = {"row_id": "a", "source": "s", "measured_tokens_per_s": 1e6, "predicted_tokens_per_s": 1.1e6}
    >>> plot_throughput([row]).data[-1].name
    's'
    """
    needed = ("row_id", "source", "measured_tokens_per_s", "predicted_tokens_per_s")
    sources: dict[str, list[tuple[float, float, str]]] = {}
    for row in rows_of(table, needed, "throughput"):
        measured, predicted = (
            known(row["measured_tokens_per_s"]),
            known(row["predicted_tokens_per_s"]),
        )
        if measured and predicted and min(measured, predicted) > 0:
            sources.setdefault(str(row["source"]), []).append((measured, predicted, str(row["row_id"])))
    if not sources:
        return style.empty("No row was both predicted and measured.")
    fig = style.figure(520, showlegend=True)
    low, high = style.log_range([value for points in sources.values() for point in points for value in point[:2]])
    fig.add_scatter(
        x=[low, high], y=[low, high], mode="lines", hoverinfo="skip", name="as measured",
        line={"color": style.MUTED, "width": 1},
    )  # fmt: skip
    for number, (source, points) in enumerate(sources.items()):
        fig.add_scatter(
            x=[point[0] for point in points], y=[point[1] for point in points], mode="markers", hoverinfo="text",
            name=style.figure_text(source, 24),
            marker={"color": style.CYCLE[number % len(style.CYCLE)],
                    "symbol": style.SYMBOLS[number % len(style.SYMBOLS)], "size": 9, "opacity": 0.7},
            hovertext=[
                style.hover(style.figure_text(f"{source}, {row_id}", 80),
                            f"measured {formatting.number(measured)} tokens/s, predicted "
                            f"{formatting.number(predicted)}, {formatting.percent(100 * (predicted / measured - 1))}")
                for measured, predicted, row_id in points
            ],
        )  # fmt: skip
    return style.axes(
        fig,
        {"title": "measured, tokens/s", **style.log_axis(low, high)},
        {"title": "predicted, tokens/s", **style.log_axis(low, high)},
    )
