"""Times split into parts, one bar each: of a rank, of a step, or of many ranks together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from densing.plots import style, text
from densing.plots.efficiency_style import Look
from densing.plots.efficiency_text import duration, percent

BARS = 40
"""Up to so many bars bear a name each; more are drawn in order of size, some of them together."""
COLUMNS = 200
ROW_HEIGHT = 22


@dataclass(frozen=True)
class Bar:
    """A time split into parts.

    Attributes
    ----------
    label : str
        As it stands; escaped when drawn.
    ns : mapping of str to int
        Nanoseconds by part; parts may be absent.
    whole_ns : int
        What the parts are shares of.
    """

    label: str
    ns: Mapping[str, int]
    whole_ns: int

    def share(self, key: str) -> float:
        """Return a part in percent of the whole; 0 for an empty whole."""
        return 100 * self.ns.get(key, 0) / self.whole_ns if self.whole_ns else 0.0


def plot_shares(
    bars: Sequence[Bar], looks: Sequence[Look], title: str, nothing: str, first: Look | None = None
) -> go.Figure:
    """Draw each bar's parts as shares of its whole.

    Up to :data:`BARS` bars lie one under the other, each with its name. More stand side by side, those with
    most of one part first, at most :data:`COLUMNS` wide: then a column is the mean of several.

    Parameters
    ----------
    bars : sequence of Bar
    looks : sequence of Look
        The parts, in the order in which they are stacked.
    title : str
        Title of the axis of shares.
    nothing : str
        What to say where there is nothing to draw.
    first : Look, optional
        The part by which many bars are ordered; all parts together when left out.

    Examples
    --------
    >>> from densing.plots.efficiency_style import COMPUTE, IDLE
    >>> figure = plot_shares([Bar("rank 0", {"compute": 3, "idle": 1}, 4)], (COMPUTE, IDLE), "% of the window", "")
    >>> [list(trace.x) for trace in figure.data]
    [[75.0], [25.0]]
    """
    if not any(bar.whole_ns > 0 for bar in bars):
        return style.empty(nothing)
    used = [look for look in looks if any(bar.ns.get(look.key) for bar in bars)]
    if len(bars) > BARS:
        return _columns(bars, used, title, first)
    fig = style.figure(96 + 24 * legend_rows(used) + ROW_HEIGHT * max(len(bars), 2), barmode="stack", bargap=0.22)
    fig.update_layout(legend_traceorder="normal", showlegend=True)
    for look in used:
        fig.add_bar(
            y=list(range(len(bars))), x=[bar.share(look.key) for bar in bars], orientation="h", name=look.label,
            marker=look.marker(), hoverinfo="text", textposition="none",
            hovertext=[_words(bar.label, look, bar.share(look.key), bar.ns.get(look.key, 0)) for bar in bars],
        )  # fmt: skip
    labels = [text.figure_text(bar.label, 40) for bar in bars]
    ticks = {"tickmode": "array", "tickvals": list(range(len(bars))), "ticktext": labels, "showgrid": False}
    return style.axes(fig, {"title": title, **_reach(bars, used)}, {**ticks, "range": [len(bars) - 0.5, -0.5]})


def legend_rows(looks: Sequence[Look], width: int = 110) -> int:
    """Return about how many lines the legend of some parts takes on a wide page.

    Examples
    --------
    >>> from densing.plots.efficiency_style import PARTS
    >>> legend_rows(PARTS), legend_rows(PARTS[:1])
    (1, 1)
    """
    return 1 + sum(len(look.label) + 6 for look in looks) // width


def _words(label: str, look: Look, share: float, ns: float) -> str:
    return f"<b>{text.figure_text(label, 90)}</b><br>{look.label}: {percent(share)} ({duration(ns)})"


def _reach(bars: Sequence[Bar], looks: Sequence[Look]) -> dict[str, list[float]]:
    """Show 0 to 100 % where the parts fill their whole, else as far as they go."""
    most = max(sum(bar.share(look.key) for look in looks) for bar in bars)
    # A little more than 100: on a narrow page the last label needs the room.
    return {"range": [0, 102 if most > 60 else most * 1.05 or 1]}


def _columns(bars: Sequence[Bar], looks: Sequence[Look], title: str, first: Look | None) -> go.Figure:
    shares = np.array([[bar.share(look.key) for bar in bars] for look in looks])
    by = shares.sum(axis=0) if first is None else np.array([bar.share(first.key) for bar in bars])
    order = np.argsort(-by, kind="stable")
    groups = np.array_split(order, min(len(bars), COLUMNS))
    fig = style.figure(360, barmode="stack", bargap=0)
    fig.update_layout(legend_traceorder="normal", showlegend=True)
    for look, row in zip(looks, shares, strict=True):
        marker = {**look.marker(), "line": {"width": 0}}
        words = [
            _words(_several([bars[at].label for at in group]), look, float(row[group].mean()),
                   float(np.mean([bars[at].ns.get(look.key, 0) for at in group])))
            for group in groups
        ]  # fmt: skip
        fig.add_bar(
            x=list(range(len(groups))), y=[float(row[group].mean()) for group in groups], name=look.label,
            marker=marker, hovertext=words, hoverinfo="text", textposition="none",
        )  # fmt: skip
    most = f"from most to least {first.label}" if first else "from most to least in all"
    sideways = {"title": f"{len(bars)} ranks, {most}", "showticklabels": False, "ticks": ""}
    return style.axes(fig, {**sideways, "showgrid": False}, {"title": title, **_reach(bars, looks)})


def _several(labels: Sequence[str], shown: int = 6) -> str:
    """Name the members of a column."""
    if len(labels) == 1:
        return labels[0]
    more = f" and {len(labels) - shown} more" if len(labels) > shown else ""
    return f"mean of {len(labels)}: {', '.join(labels[:shown])}{more}"
