"""Estimates with intervals, one line each; an unbounded end runs to the axis edge and ends in an arrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from densing.plots import style, text

ROW_HEIGHT = 34
REACH = 3.0
REFERENCE_LINES = (
    (text.PAPER_MONTHS, "dash", f"{text.PAPER_MONTHS} months (arXiv 2412.04315)"),
    (text.JOURNAL_MONTHS, "dot", f"{text.JOURNAL_MONTHS} months (journal, {text.SECOND_HAND})"),
)


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


def cut(frame: pd.DataFrame, also: tuple[float, ...] = ()) -> Ends:
    """Return the intervals of a table (doubling_months, lo, hi) cut to a range worth drawing.

    The axis covers the finite ends, but no more than ``REACH`` times beyond the outermost estimate: one
    interval that is barely bounded must not flatten all others.

    Examples
    --------
    >>> ends = cut(pd.DataFrame({"doubling_months": [3.0], "lo": [2.0], "hi": [float("inf")]}))
    >>> bool(ends.open_hi[0]), bool(ends.hi[0] == ends.high)
    (True, True)
    """
    value, lo, hi = (pd.to_numeric(frame[name], errors="coerce").to_numpy(float) for name in _COLUMNS)
    finite = np.concatenate([value[np.isfinite(value) & (value > 0)], np.asarray(also, dtype=float)])
    base = finite if len(finite) else np.concatenate([lo, hi])
    inner_low, inner_high = style.log_range(base, pad=0.0)
    ends = np.clip(
        np.concatenate([base, lo[np.isfinite(lo)], hi[np.isfinite(hi)]]),
        inner_low / REACH,
        inner_high * REACH,
    )
    low, high = style.log_range(ends, pad=0.05)
    bare_lo, bare_hi = np.isnan(lo), np.isnan(hi)
    lo, hi = np.where(bare_lo, value, lo), np.where(bare_hi, value, hi)
    return Ends(
        value=np.clip(value, low, high),
        lo=np.clip(lo, low, high),
        hi=np.clip(hi, low, high),
        open_lo=(lo < low) & ~bare_lo,
        open_hi=(hi > high) & ~bare_hi,
        off=value > high,
        low=low,
        high=high,
    )


_COLUMNS = ("doubling_months", "lo", "hi")


def forest(
    frame: pd.DataFrame, colours: list[str], symbols: list[str], x_title: str, row_height: int = ROW_HEIGHT
) -> go.Figure:
    """Draw one line per row of a table: label, doubling_months, lo, hi and the hover text ``words``.

    Parameters
    ----------
    frame : pandas.DataFrame
        Rows from top to bottom; ``label`` is escaped here, ``words`` must be safe already.
    colours, symbols : list of str
        One per row.
    x_title : str
        Title of the axis.
    row_height : int
        Pixels per row.
    """
    marks = tuple(months for months, _, _ in REFERENCE_LINES)
    ends = cut(frame, marks)
    rows = np.arange(len(frame))
    fig = style.figure(130 + row_height * max(len(frame), 3))
    for position, dash, name in REFERENCE_LINES:
        line = {"color": style.MUTED, "width": 1.5, "dash": dash}
        ends_of_line = {"x": [position, position], "y": [-0.6, len(frame) - 0.4]}
        fig.add_scatter(**ends_of_line, mode="lines", line=line, name=name, hoverinfo="skip")
    for row in rows:
        line = {"color": colours[row], "width": 2.2}
        fig.add_scatter(
            x=[ends.lo[row], ends.hi[row]],
            y=[row, row],
            mode="lines",
            line=line,
            hoverinfo="skip",
            showlegend=False,
        )
    arrows(fig, ends, rows, "x", colours)
    fig.add_scatter(
        x=ends.value, y=rows, mode="markers", hoverinfo="text", hovertext=list(frame["words"]),
        showlegend=False, cliponaxis=False,
        marker={
            "symbol": np.where(ends.off, "triangle-right-open", symbols).tolist(),
            "color": colours, "size": 12, "line": {"width": 1.5, "color": colours},
        },
    )  # fmt: skip
    labels = [text.figure_text(label, 48) for label in frame["label"]]
    y_axis = {"tickmode": "array", "tickvals": rows, "ticktext": labels, "range": [len(frame) - 0.4, -0.6]}
    x_axis = {"title": x_title, **style.log_axis(ends.low, ends.high)}
    return style.axes(fig, x_axis, {**y_axis, "showgrid": False})


def arrows(fig: go.Figure, ends: Ends, position: Any, along: str, colours: list[str], **where: Any) -> None:
    """Add an arrow head at every end that runs off the axis; ``along`` names the estimates' axis, x or y."""
    symbols = {"x": ("triangle-left", "triangle-right"), "y": ("triangle-down", "triangle-up")}[along]
    for open_end, at, symbol in ((ends.open_lo, ends.low, symbols[0]), (ends.open_hi, ends.high, symbols[1])):
        chosen = np.flatnonzero(open_end & ~ends.off)
        if not len(chosen):
            continue
        across = np.asarray(position)[chosen]
        places = {along: np.full(len(chosen), at), "y" if along == "x" else "x": across}
        marker = {"symbol": symbol, "size": 9, "color": [colours[index] for index in chosen]}
        fig.add_scatter(
            **places,
            mode="markers",
            marker=marker,
            hoverinfo="skip",
            showlegend=False,
            cliponaxis=False,
            **where,
        )
