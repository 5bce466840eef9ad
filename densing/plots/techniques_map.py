"""Where techniques pay off: shades over bandwidth and batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from densing.plots import style, text
from densing.plots.efficiency import bar_of_shades
from densing.plots.efficiency_text import digits, duration
from densing.plots.techniques import Row, known, rows_of, times

MOST_ROWS = 120
MOST_WORDS = 12
"""With more bandwidths than this, cells are too narrow for words."""
SIGNS = {"wins": "▲", "ties": "=", "loses": "▼", "does not fit": "✕"}
SHADES = [[0, style.VERMILLION], [0.5, style.PAPER], [1, style.BLUE]]
_HEIGHT = 24


def plot_regime(table: Any) -> go.Figure:
    """Draw each technique's speed-up at each bandwidth (left to right) and batch (a row each).

    Blue and ▲ are faster than the baseline, orange and ▼ slower, = about as fast, ✕: it does not fit in memory; a blank
    cell: it does not apply.

    Parameters
    ----------
    table : DataFrame, or iterable of mapping or Record
        bandwidth_gbps, batch, technique, speedup, verdict; optionally step_s. A technique whose speed-ups are all
        exactly 1 is the baseline and is left out.

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
    cells = {(str(row["technique"]), known(row["batch"]), known(row["bandwidth_gbps"])): row for row in rows}
    drawn = list(dict.fromkeys(str(row["technique"]) for row in contested(rows)))
    wide = sorted({key[2] for key in cells if key[2] is not None})
    lines = [place for name in drawn for place in _lines(name, cells)][: MOST_ROWS + 1]
    if not lines or not wide:
        return style.empty("Nothing is to be compared with the baseline.")
    return _draw(cells, wide, lines[:-1] if lines[-1] is None else lines)


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


Place = tuple[str, float | None]


def _lines(name: str, cells: dict[tuple[str, float | None, float | None], Row]) -> list[Place | None]:
    """Rows of a technique, and the gap below them."""
    batches = sorted({key[1] for key in cells if key[0] == name and key[1] is not None})
    return [*((name, batch) for batch in batches), None]


def _draw(cells: dict[Any, Row], wide: Sequence[float], lines: Sequence[Place | None]) -> go.Figure:
    table = [[None if line is None else cells.get((*line, gbps)) for gbps in wide] for line in lines]
    shades = [[_shade(cell) for cell in row] for row in table]
    most = max((abs(value) for row in shades for value in row if value is not None), default=0.0) or 1.0
    words = [[_sign(cell) if len(wide) <= MOST_WORDS else "" for cell in row] for row in table]
    fig = style.figure(150 + _HEIGHT * max(len(lines), 3))
    scale = {**bar_of_shades("speed-up"), **_ticks(most)}
    del scale["nticks"]
    fig.add_heatmap(
        z=shades, x=list(range(len(wide))), y=list(range(len(lines))), text=words, texttemplate="%{text}",
        hovertext=[[_words(cell) for cell in row] for row in table], hoverinfo="text", textfont={"size": 12},
        colorscale=SHADES, zmin=-most, zmax=most, colorbar=scale, xgap=2, ygap=2, hoverongaps=False,
    )  # fmt: skip
    labels = ["" if line is None else f"{text.figure_text(line[0], 20)}, {line[1]:g}" for line in lines]
    y_axis = {"tickmode": "array", "tickvals": list(range(len(lines))), "ticktext": labels, "showgrid": False,
              "ticks": "", "range": [len(lines) - 0.5, -0.5]}  # fmt: skip
    every = -(-len(wide) // 10)
    x_axis = {"tickmode": "array", "tickvals": list(range(0, len(wide), every)), "showgrid": False,
              "ticktext": [f"{digits(gbps)}" for gbps in wide[::every]]}  # fmt: skip
    return style.axes(fig, {"title": "bandwidth of the link, Gbit/s", **x_axis}, y_axis)


def _shade(cell: Row | None) -> float | None:
    value = None if cell is None else known(cell["speedup"])
    return None if value is None or value <= 0 else math.log2(value)


def _ticks(most: float) -> dict[str, Any]:
    """Ticks of the scale as factors; the shades themselves go by the logarithm, so that 2 and 1/2 are as strong."""
    at = [-most, -most / 2, 0.0, most / 2, most]
    return {"tickmode": "array", "tickvals": at, "ticktext": [times(2**value) for value in at]}


def _sign(cell: Row | None) -> str:
    if cell is None:
        return ""
    if known(cell["speedup"]) is None:
        return SIGNS["does not fit"] if cell["verdict"] == "does not fit" else ""
    return f"{SIGNS.get(str(cell['verdict']), '')} {digits(float(cell['speedup']))}".strip()


def _words(cell: Row | None) -> str:
    if cell is None:
        return ""
    step = known(cell.get("step_s"))
    took = "" if step is None else f", step {duration(1e9 * step)}"
    return (
        f"<b>{text.figure_text(cell['technique'], 60)}</b><br>{text.figure_text(cell['verdict'], 40)}: "
        f"{times(cell['speedup'])}{took}<br>at {known(cell['bandwidth_gbps']) or 0:g} Gbit/s, "
        f"batch {known(cell['batch']) or 0:g}"
    )
