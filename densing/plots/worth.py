"""Link speed against token ratio: where a technique pays, and where it stands."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from densing.core import formatting
from densing.plots import style

if TYPE_CHECKING:
    from densing.tradeoff import Worth

COLOURS = (style.BLUE, style.VERMILLION, style.GREEN, style.MUTED)


def plot_worth(result: Worth) -> go.Figure:
    """Draw, for every technique, the token ratio from which on it pays at each speed of the link, and its own.

    Above its line a technique pays. Its point is at the cluster's link and the token ratio that its ladder gives there,
    with the interval; a technique without one has a line alone.

    Parameters
    ----------
    result : Worth

    See Also
    --------
    densing.worth

    Examples
    --------
    >>> from densing.efficiency.simulation import load_cluster, load_workload
    >>> from densing.tradeoff import worth
    >>> step = load_workload("llama-8b", mode="train", dp=2, tp=8)
    >>> found = worth(["zero1"], step, load_cluster("a100x8-tcp"), 2e10)
    >>> [trace.name for trace in plot_worth(found).data]
    ['zero1', 'zero1 here']
    """
    fig = style.figure(460)
    ratios = [1.0]
    for number, verdict in enumerate(result.verdicts):
        curve = [point for point in result.curves if point["technique"] == verdict.technique]
        if not curve:
            continue
        colour = COLOURS[number % len(COLOURS)]
        ratios += [point["break_even_ratio"] for point in curve]
        fig.add_scatter(
            x=[point["gbps"] for point in curve], y=[point["break_even_ratio"] for point in curve], mode="lines",
            name=verdict.technique, line={"color": colour, "width": 1.5}, hoverinfo="text",
            hovertext=[
                style.hover(
                    verdict.technique, f"{formatting.number(point['gbps'])} Gbit/s",
                    f"pays from {formatting.number(point['break_even_ratio'])} of a plain token",
                )
                for point in curve
            ],
        )  # fmt: skip
        if (span := verdict.token_ratio) is not None:
            ratios += [span.low, span.high]
            fig.add_scatter(
                x=[result.gbps], y=[span.value], mode="markers", name=f"{verdict.technique} here",
                marker={"color": colour, "size": 10, "line": {"width": 0.8, "color": style.PAPER}},
                error_y={"type": "data", "symmetric": False, "array": [span.high - span.value],
                         "arrayminus": [span.value - span.low], "color": colour},
                hoverinfo="text",
                hovertext=[style.hover(
                    verdict.technique, span.words, verdict.status)],
            )  # fmt: skip
    across = [point["gbps"] for point in result.curves] or [result.gbps]
    up = [value for value in ratios if math.isfinite(value) and value > 0]
    return style.axes(
        fig,
        {"title": f"{result.link} link, Gbit/s (log scale)", **style.log_axis(*style.log_range(across))},
        {"title": "worth of a token, over plain's (log scale)", **style.log_axis(*style.log_range(up))},
    )
