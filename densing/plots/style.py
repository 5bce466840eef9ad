"""The one style of every figure: colours, symbols, dashes, axes.

Colours are Okabe and Ito's colour-blind-safe set, darkened where needed for contrast; no colour carries a
meaning that a marker symbol, a dash pattern or a label does not carry too, so figures read the same in grey
print. A report that shows figures on a dark page exchanges the colours by :data:`DARK`; both sets keep at
least 4.5:1 contrast with their background, so that text may have any of them (WCAG 2.1, 1.4.3).

Source: M. Okabe and K. Ito, Color Universal Design (2008), the eight-colour set.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from densing.core import formatting

INK = "#1b1f24"
MUTED = "#5b6470"
GRID = "#e3e6ea"
PAPER = "#ffffff"
BLUE = "#0072b2"
ORANGE = "#a86400"  # Okabe–Ito orange darkened: the original has 2.2:1 contrast on white
GREEN = "#00795a"
VERMILLION = "#bf5300"  # darkened, too: names are written in it, and the original has 3.9:1
PURPLE = "#a8487f"
FAN_OUTER = "rgba(0,114,178,0.12)"
FAN_INNER = "rgba(0,114,178,0.22)"
BAND = "rgba(91,100,112,0.18)"

DARK: dict[str, str] = {
    INK: "#e9ecef",
    MUTED: "#a3adb8",
    GRID: "#30363d",
    PAPER: "#14181d",
    BLUE: "#56b4e9",
    ORANGE: "#e69f00",
    GREEN: "#2fc29a",
    VERMILLION: "#ff8a4a",
    PURPLE: "#d98cb8",
    FAN_OUTER: "rgba(86,180,233,0.14)",
    FAN_INNER: "rgba(86,180,233,0.26)",
    BAND: "rgba(163,173,184,0.22)",
}

CYCLE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, MUTED)
SYMBOLS = ("circle", "square", "diamond", "cross", "x", "star", "hourglass", "bowtie")
BOUND_SYMBOLS = {"upper": "triangle-down-open", "lower": "triangle-up-open"}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
SHADES = [[0, PAPER], [1, BLUE]]


def figure_text(value: Any, limit: int = 160) -> str:
    """Return text that plotly shows as it stands: its pseudo-HTML (``<b>``, ``<a href>``) is escaped.

    Examples
    --------
    >>> figure_text("<img src=x onerror=alert(1)>")
    '&lt;img src=x onerror=alert(1)&gt;'
    """
    return html.escape(formatting.clean(value, limit), quote=False)


def hover(name: str, *lines: str) -> str:
    """Return what a mark says under the pointer: its name in bold and a line each; empty lines are left out.

    Parameters
    ----------
    name, *lines : str
        Plotly's pseudo-HTML: what comes from data has been through :func:`figure_text`.

    Examples
    --------
    >>> hover("rank 0", "idle: 12 %", "")
    '<b>rank 0</b><br>idle: 12 %'
    """
    return "<br>".join([f"<b>{name}</b>", *filter(None, lines)])


def figure(height: int = 480, **layout: Any) -> go.Figure:
    """Return an empty figure in the house style.

    Parameters
    ----------
    height : int
        Height in pixels; the width follows the page.
    **layout
        Further entries of plotly's layout.

    Examples
    --------
    >>> figure(300).layout.height
    300
    """
    base: dict[str, Any] = {
        "height": height,
        "autosize": True,
        "font": {"family": FONT, "size": 14, "color": INK},
        "paper_bgcolor": PAPER,
        "plot_bgcolor": PAPER,
        "margin": {"l": 64, "r": 18, "t": 16, "b": 56},
        "hovermode": "closest",
        "hoverlabel": {
            "bgcolor": PAPER,
            "bordercolor": MUTED,
            "align": "left",
            "font": {"family": FONT, "size": 13, "color": INK},
        },
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": MUTED, "activecolor": INK},
        "legend": {
            "orientation": "h",
            "yanchor": "bottom",
            "y": 1.02,
            "xanchor": "left",
            "x": 0,
            # One row on a wide page: no gaps between groups.
            "tracegroupgap": 0,
            "font": {"size": 12},
            "bgcolor": "rgba(0,0,0,0)",
        },
        # Given here, not by plotly's updates of axes: those take eight times as long as the figure.
        "xaxis": _axis(),
        "yaxis": _axis(),
    }
    return go.Figure(layout={"template": "none", **base, **layout})


def _axis() -> dict[str, Any]:
    return {
        "gridcolor": GRID,
        "linecolor": MUTED,
        "zeroline": False,
        "showline": True,
        "ticks": "outside",
        "tickcolor": MUTED,
        "ticklen": 4,
        "automargin": True,
        "title": {"font": {"size": 14}, "standoff": 10},
        "tickfont": {"size": 13},
    }


def axes(fig: go.Figure, x: dict[str, Any], y: dict[str, Any]) -> go.Figure:
    """Set both axes of a figure; ``title`` may be a plain string."""
    for options, update in ((x, fig.update_xaxes), (y, fig.update_yaxes)):
        entries = dict(options)
        title = entries.pop("title", None)
        update(**entries, **({} if title is None else {"title_text": title}))
    return fig


def empty(message: str, height: int = 160) -> go.Figure:
    """Return a figure that says why there is nothing to draw.

    Examples
    --------
    >>> empty("No rows.").layout.annotations[0].text
    'No rows.'
    """
    fig = figure(height)
    fig.update_xaxes(visible=False)
    fig.update_yaxes(visible=False)
    note = {"text": message, "showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}
    return fig.add_annotation(**note, font={"size": 15, "color": MUTED})


MAX_TICKS = 8
_STEPS = ((1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 4, 5, 7), (1, 2, 5), (1,))


def log_ticks(low: float, high: float) -> dict[str, Any]:
    """Return ticks for a logarithmic axis as plain numbers: as many of 1, 2, 3, ... x 10^k as stay readable.

    Examples
    --------
    >>> log_ticks(0.8, 120)["ticktext"]
    ['1', '2', '5', '10', '20', '50', '100']
    >>> log_ticks(1e4, 1e7)["ticktext"]
    ['10⁴', '10⁵', '10⁶', '10⁷']
    """
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks: list[float] = []
    for steps in _STEPS:
        values = [step * 10.0**decade for decade in decades for step in steps]
        ticks = [value for value in values if low <= value <= high]
        if len(ticks) <= MAX_TICKS:
            break
    large = bool(ticks) and ticks[-1] >= 1e6
    texts = [formatting.power(value, 1).removeprefix("1·") if large else f"{value:g}" for value in ticks]
    return {"tickmode": "array", "tickvals": ticks, "ticktext": texts}


def log_range(values: Any, pad: float = 0.06, at_least: float = 2.0) -> tuple[float, float]:
    """Return the range of the positive finite values, widened by a share of its logarithm.

    Parameters
    ----------
    values : array-like
        Any shape; values that are not positive and finite are ignored.
    pad : float
        Share of the logarithmic range added at either end.
    at_least : float
        Smallest ratio of the two ends.

    Examples
    --------
    >>> low, high = log_range([1.0, 100.0, float("inf"), -3])
    >>> low < 1 and high > 100
    True
    """
    array = np.asarray(values, dtype=float).ravel()
    good = array[np.isfinite(array) & (array > 0)]
    if not len(good):
        return 0.1, 10.0
    low, high = float(np.log(good.min())), float(np.log(good.max()))
    short = max(np.log(at_least) - (high - low), 0) / 2
    extra = pad * max(high - low, np.log(at_least))
    return float(np.exp(low - short - extra)), float(np.exp(high + short + extra))


HAIR = 1e-5
"""By how much (log10) an axis is longer: pages keep seven digits, and plotly hides a mark that these put beyond it."""


def log_axis(low: float, high: float) -> dict[str, Any]:
    """Return a logarithmic axis over ``[low, high]`` with plain tick labels."""
    axis = {"type": "log", "range": [float(np.log10(low)) - HAIR, float(np.log10(high)) + HAIR]}
    return {**axis, **log_ticks(low, high), "minor": {"ticks": ""}}


def bar_of_shades(title: str) -> dict[str, Any]:
    """Return the scale of a figure of shades: a narrow one at its right.

    Above the figure it would change the upper margin after plotly has placed the axis' title, which then lands on the
    labels.

    Examples
    --------
    >>> bar_of_shades("ms")["thickness"]
    10
    """
    label = {"text": title, "side": "right", "font": {"size": 13}}
    look = {"thickness": 10, "outlinewidth": 0.5, "outlinecolor": MUTED, "tickfont": {"size": 12}}
    return {"title": label, "x": 1.01, "xpad": 4, "ypad": 0, **look, "nticks": 5}


def list_ticks(labels: Sequence[str], most: int | None = None) -> dict[str, Any]:
    """Return an axis with a label at each whole number from 0 on; of more than ``most`` at every second, third, ...

    Examples
    --------
    >>> list_ticks(["a", "b", "c"], most=2)["ticktext"]
    ['a', 'c']
    """
    every = 1 if most is None else -(-len(labels) // most)
    positions = list(range(0, len(labels), every))
    return {
        "tickmode": "array",
        "tickvals": positions,
        "ticktext": [labels[position] for position in positions],
        "showgrid": False,
    }
