"""Ways to serve a model: what they are worth against how long requests take."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from densing.core import formatting
from densing.plots import style

if TYPE_CHECKING:
    from densing.tradeoff import Deployment


def plot_deployment(result: Deployment) -> go.Figure:
    """Draw the density of each way to serve against the 95th percentile of its latency, and what nothing beats.

    Where no density is known, the whole model's bits per byte over its own stands in its place. Filled marks are on the
    front of quality and latency, triangles are upper bounds; the deadline is a dashed line.

    Parameters
    ----------
    result : Deployment

    See Also
    --------
    densing.deploy
    """
    rows = result.choices
    dense = "density" in rows and rows["density"].notna().any()
    height = "density" if dense else "quality"
    fig = style.figure(460)
    bounds = rows["bound"].eq("upper") if "bound" in rows else rows["front"] & False
    for on_front, bound in product((False, True), (False, True)):
        part = rows[rows["front"].eq(on_front) & bounds.eq(bound) & rows[height].notna()]
        if part.empty:
            continue
        mark = style.BOUND_SYMBOLS["upper"] if bound else "circle"
        mark = mark.removesuffix("-open") if on_front else f"{mark.removesuffix('-open')}-open"
        name = ("on the front" if on_front else "beaten by another") + (", at most so dense" if bound else "")
        texts = [
            style.hover(
                row.choice,
                f"{height} {formatting.number(getattr(row, height))}",
                f"{formatting.number(row.bits_per_byte)} bits per byte",
                f"95 %: {formatting.number(row.p95_ms)} ms, median {formatting.number(row.median_ms)} ms",
            )
            for row in part.itertuples()
        ]
        fig.add_scatter(
            x=part["p95_ms"], y=part[height], mode="markers", name=name, hovertext=texts, hoverinfo="text",
            marker={"size": 10, "symbol": mark, "color": style.VERMILLION if on_front else style.BLUE},
        )  # fmt: skip
    deadline = 1e3 * result.service.deadline_s
    fig.add_vline(x=deadline, line={"dash": "dash", "color": style.MUTED})
    # On a logarithmic axis plotly wants a word's place as its logarithm, a line's as it is.
    fig.add_annotation(
        x=math.log10(deadline), y=0, yref="paper", xanchor="left", yanchor="bottom", showarrow=False,
        text=f"deadline {formatting.milliseconds(deadline)}", font={"size": 12, "color": style.MUTED},
    )  # fmt: skip
    ends = [*rows["p95_ms"], deadline]
    label = "density of the kept parameters" if dense else "quality (1: the whole model)"
    return style.axes(
        fig,
        {"title": "latency, 95th percentile (ms)", **style.log_axis(*style.log_range(ends))},
        {"title": label, "rangemode": "tozero"},
    )
