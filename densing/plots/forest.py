"""Estimates with their intervals, one line each; an open end runs to the axis edge and ends in an arrow."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from densing.core import formatting
from densing.plots import style

ROW_HEIGHT = 34
LABEL = 48
"""Letters of a label that are shown."""
REACH = 3.0


@dataclass(frozen=True)
class Ends:
    """Intervals cut to the drawn range of a logarithmic axis.

    Parameters
    ----------
    value, lo, hi : numpy.ndarray, shape (n,)
        Positions within ``[low, high]``.
    open_lo, open_hi, off : numpy.ndarray of bool, shape (n,)
        Whether the lower end, the upper end or the estimate itself lies beyond the axis.
    low, high : float
        Ends of the axis.
    """

    value: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    open_lo: np.ndarray
    open_hi: np.ndarray
    off: np.ndarray
    low: float
    high: float


def cut(frame: pd.DataFrame, value: str, also: tuple[float, ...] = ()) -> Ends:
    """Return the intervals of a table (column ``value``, lo, hi) cut to a range worth drawing.

    The axis covers the finite ends, but no more than ``REACH`` times beyond the outermost estimate: one
    interval that is barely bounded must not flatten all others.

    Examples
    --------
    >>> ends = cut(pd.DataFrame({"months": [3.0], "lo": [2.0], "hi": [float("inf")]}), "months")
    >>> bool(ends.open_hi[0]), bool(ends.hi[0] == ends.high)
    (True, True)
    """
    middle, lo, hi = (pd.to_numeric(frame[name], errors="coerce").to_numpy(float) for name in (value, "lo", "hi"))
    finite = np.concatenate([middle[np.isfinite(middle) & (middle > 0)], np.asarray(also, dtype=float)])
    base = finite if len(finite) else np.concatenate([lo, hi])
    inner_low, inner_high = style.log_range(base, pad=0.0)
    ends = np.clip(
        np.concatenate([base, lo[np.isfinite(lo)], hi[np.isfinite(hi)]]),
        inner_low / REACH,
        inner_high * REACH,
    )
    low, high = style.log_range(ends, pad=0.05)
    bare_lo, bare_hi = np.isnan(lo), np.isnan(hi)
    lo, hi = np.where(bare_lo, middle, lo), np.where(bare_hi, middle, hi)
    return Ends(
        value=np.clip(middle, low, high),
        lo=np.clip(lo, low, high),
        hi=np.clip(hi, low, high),
        open_lo=(lo < low) & ~bare_lo,
        open_hi=(hi > high) & ~bare_hi,
        off=middle > high,
        low=low,
        high=high,
    )


def forest(
    frame: pd.DataFrame,
    value: str,
    colours: Sequence[str],
    symbols: Sequence[str],
    x_title: str,
    lines: Sequence[tuple[float, str, str]],
    row_height: int = ROW_HEIGHT,
    places: Sequence[float] | None = None,
    letters: int = LABEL,
) -> go.Figure:
    """Draw one line per row of a table: label, column ``value``, lo, hi and the hover text ``hover``.

    Parameters
    ----------
    frame : pandas.DataFrame
        Rows from top to bottom; ``label`` is escaped here, ``hover`` must be safe already.
    value : str
        Column of the estimates; positive.
    colours, symbols : sequence of str
        One per row.
    x_title : str
        Title of the axis.
    lines : sequence of (float, str, str)
        Upright lines to read against: position, dash and name, which may be empty.
    row_height : int
        Pixels per label.
    places : sequence of float, optional
        Where each row stands, counted in labels from the top; rows around a whole number share its label, that of the
        first of them. A label each by default.
    letters : int
        In a line of a label.
    """
    ends = cut(frame, value, tuple(position for position, _, _ in lines))
    rows = np.arange(len(frame)) if places is None else np.asarray(places)
    ticks, first = np.unique(rows.round().astype(int), return_index=True)
    fig = style.figure(130 + row_height * max(len(ticks), 3))
    for position, dash, name in lines:
        line = {"color": style.MUTED, "width": 1.5, "dash": dash}
        ends_of_line = {"x": [position, position], "y": [-0.6, len(ticks) - 0.4]}
        fig.add_scatter(**ends_of_line, mode="lines", line=line, name=name, hoverinfo="skip", showlegend=bool(name))
    for row, place in enumerate(rows.tolist()):
        line = {"color": colours[row], "width": 2.2}
        fig.add_scatter(
            x=[ends.lo[row], ends.hi[row]],
            y=[place, place],
            mode="lines",
            line=line,
            hoverinfo="skip",
            showlegend=False,
        )
    arrows(fig, ends, rows, "x", colours)
    fig.add_scatter(
        x=ends.value.tolist(), y=rows.tolist(), mode="markers", hoverinfo="text", hovertext=list(frame["hover"]),
        showlegend=False, cliponaxis=False,
        marker={
            "symbol": np.where(ends.off, "triangle-right-open", symbols).tolist(),
            "color": colours, "size": 12, "line": {"width": 1.5, "color": colours},
        },
    )  # fmt: skip
    lines_of = (textwrap.wrap(formatting.clean(label, LABEL), letters) for label in frame["label"].iloc[first])
    labels = ["<br>".join(map(style.figure_text, parts)) for parts in lines_of]
    y_axis = {"tickmode": "array", "tickvals": ticks.tolist(), "ticktext": labels, "range": [len(ticks) - 0.4, -0.6]}
    x_axis = {"title": x_title, **style.log_axis(ends.low, ends.high)}
    return style.axes(fig, x_axis, {**y_axis, "showgrid": False})


def arrows(fig: go.Figure, ends: Ends, position: Any, along: str, colours: Sequence[str], **panel: Any) -> None:
    """Add an arrow head at every end that runs off the axis; ``along`` names the estimates' axis, x or y."""
    symbols = {"x": ("triangle-left", "triangle-right"), "y": ("triangle-down", "triangle-up")}[along]
    for open_end, at, symbol in ((ends.open_lo, ends.low, symbols[0]), (ends.open_hi, ends.high, symbols[1])):
        chosen = np.flatnonzero(open_end & ~ends.off)
        if not len(chosen):
            continue
        across = np.asarray(position)[chosen]
        positions = {along: np.full(len(chosen), at), "y" if along == "x" else "x": across}
        marker = {"symbol": symbol, "size": 9, "color": [colours[int(index)] for index in chosen]}
        fig.add_scatter(
            **positions,
            mode="markers",
            marker=marker,
            hoverinfo="skip",
            showlegend=False,
            cliponaxis=False,
            **panel,
        )
