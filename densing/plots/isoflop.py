"""Loss by size at one budget: what the cost model says of real shapes, and what the law says of one compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from densing.core import formatting
from densing.plots import style

if TYPE_CHECKING:
    from densing.tradeoff import TrainingPlan


def plot_isoflop(plan: TrainingPlan) -> go.Figure:
    """Draw the loss that a budget reaches by the size of the model, the plan, and the smaller model of the same loss.

    Sizes on a logarithmic axis. The band is the interval of each size's loss; errors of the cost model are common to
    all sizes, and move them together.

    Parameters
    ----------
    plan : TrainingPlan

    See Also
    --------
    densing.tradeoff.plan_training

    Examples
    --------
    >>> from densing.efficiency.simulation import load_cluster
    >>> from densing.scores.fit import published_law
    >>> from densing.tradeoff import plan_training
    >>> plan = plan_training(published_law("chinchilla-refit"), load_cluster("h100x8-nvlink", n=64), 2e4)
    >>> [trace.name for trace in plot_isoflop(plan).data]
    ['95 % interval', 'the same GPU hours', 'the same 6 N D', 'plan', '10 x tokens per parameter']
    """
    sizes = [point.params for point in plan.curve]
    fig = style.figure(460)
    fig.add_scatter(
        x=[*sizes, *sizes[::-1]],
        y=[*(point.loss_low for point in plan.curve), *(point.loss_high for point in plan.curve[::-1])],
        fill="toself", fillcolor=style.BAND, line={"width": 0}, hoverinfo="skip",
        name=f"{100 * plan.level:g} % interval",
    )  # fmt: skip
    fig.add_scatter(
        x=sizes, y=[point.loss for point in plan.curve], mode="lines+markers", name="the same GPU hours",
        line={"color": style.BLUE, "width": 1.5}, marker={"color": style.BLUE, "size": 7}, hoverinfo="text",
        hovertext=[
            style.hover(
                f"{formatting.size(point.params)} parameters", f"{formatting.size(point.tokens)} tokens",
                f"loss {point.loss:.3f} ({point.loss_low:.3f} to {point.loss_high:.3f})",
                f"MFU {formatting.percent(100 * point.mfu)}", f"{point.layers} layers of {point.hidden:,}",
            )
            for point in plan.curve
        ],
    )  # fmt: skip
    fig.add_scatter(
        x=[params for params, _ in plan.same_compute], y=[loss for _, loss in plan.same_compute], mode="lines",
        name="the same 6 N D", line={"color": style.MUTED, "width": 1.5, "dash": "dash"}, hoverinfo="skip",
    )  # fmt: skip
    small = plan.overtrained
    for name, params, tokens, colour, symbol in (
        ("plan", plan.params.value, plan.tokens.value, style.VERMILLION, "star"),
        (f"{small.times:g} x tokens per parameter", small.params.value, small.tokens.value, style.GREEN, "diamond"),
    ):
        label = style.hover(name, f"{formatting.size(params)} parameters", f"{formatting.size(tokens)} tokens")
        fig.add_scatter(
            x=[params], y=[plan.loss.value], mode="markers", name=name, hoverinfo="text", hovertext=[label],
            marker={"color": colour, "size": 13, "symbol": symbol, "line": {"width": 0.8, "color": style.PAPER}},
        )  # fmt: skip
    across = style.log_range([*sizes, small.params.value])
    axis = style.log_axis(*across)
    axis["ticktext"] = [formatting.size(value) for value in axis["tickvals"]]
    losses = np.array([(point.loss_low, point.loss_high) for point in plan.curve])
    room = 0.06 * float(np.ptp(losses)) or 0.1
    up = [float(losses.min()) - room, float(losses.max()) + room]
    return style.axes(fig, {"title": "parameters (log scale)", **axis}, {"title": "loss", "range": up})
