"""What a bank of items can measure: information over ability, items by difficulty, and where the models lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from densing.core import formatting
from densing.plots import style

if TYPE_CHECKING:
    from densing.scores.items import ItemBank

WIDEST = 4.0
"""Abilities and difficulties that are drawn, in standard deviations of the calibrated models."""
BINS = 33


def plot_bank(bank: ItemBank) -> go.Figure:
    """Draw the error of ability that all items leave, the items by difficulty, and the calibrated models.

    The error is 1 / sqrt(information). Items beyond the axis stand in its last bars.

    Parameters
    ----------
    bank : ItemBank

    See Also
    --------
    densing.ItemBank

    Examples
    --------
    >>> import densing
    >>> [trace.name for trace in plot_bank(densing.ItemBank.load("ikp")).data]
    ['items by difficulty', 'standard error of ability', 'calibrated models']
    """
    across = np.linspace(-WIDEST, WIDEST, 161)
    error = 1 / np.sqrt(np.maximum(bank.information(across), 1e-6))
    difficulty = np.clip(bank.difficulty[np.isfinite(bank.difficulty)], -WIDEST, WIDEST)
    counts, edges = np.histogram(difficulty, BINS, (-WIDEST, WIDEST))
    fig = style.figure(420)
    fig.add_bar(
        x=(edges[:-1] + edges[1:]) / 2, y=counts, width=edges[1] - edges[0], name="items by difficulty", yaxis="y2",
        marker={"color": style.BAND}, hovertemplate="%{y} items<extra></extra>",
    )  # fmt: skip
    fig.add_scatter(
        x=across, y=error, mode="lines", name="standard error of ability", line={"color": style.BLUE, "width": 2},
        hovertemplate="ability %{x:.2f}: ± %{y:.3f}<extra></extra>",
    )  # fmt: skip
    fig.add_scatter(
        x=bank.models["ability"], y=bank.models["ability_error"], mode="markers", name="calibrated models",
        marker={"color": style.VERMILLION, "size": 6, "symbol": "diamond-open"}, hoverinfo="text",
        hovertext=[
            style.hover(style.figure_text(row.model, 60), f"ability {row.ability:.2f} ± {row.ability_error:.2f}",
                        f"{formatting.percent(100 * row.score)} right")
            for row in bank.models.itertuples()
        ],
    )  # fmt: skip
    fig.update_layout(
        yaxis2={"overlaying": "y", "side": "right", "title": {"text": "items"}, "showgrid": False},
        bargap=0.05, margin={"r": 64},
    )  # fmt: skip
    top = float(np.quantile(error, 0.8)) * 1.2
    return style.axes(
        fig,
        {"title": "ability, difficulty (standard deviations of the calibrated models)", "range": [-WIDEST, WIDEST]},
        {"title": "standard error of ability", "range": [0, top]},
    )
