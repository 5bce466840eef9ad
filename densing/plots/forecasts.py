"""Forecasts that were tested: what was said of every later model, and what came."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from densing.core import formatting
from densing.plots import style

if TYPE_CHECKING:
    from densing.scores.trend import ForecastBacktest

ROW_HEIGHT = 26


def plot_backtest(result: ForecastBacktest, forecaster: str) -> go.Figure:
    """Draw, for every later model, the density that was forecast with its 90 % interval, and what came (diamond).

    Parameters
    ----------
    result : ForecastBacktest
    forecaster : str
        Whose forecasts; models in order of release, the last date's below.

    Raises
    ------
    UnknownNameError
        For a forecaster that did not take part.

    See Also
    --------
    densing.scores.trend.backtest_forecasts
    """
    rows = result.models(forecaster)
    if rows.empty:
        return style.empty("No forecast could be tested.")
    low, high = style.log_range(rows[["density", "lo90", "hi90"]].to_numpy(dtype=float).ravel())
    fig = style.figure(130 + ROW_HEIGHT * max(len(rows), 3))
    places = np.arange(len(rows))
    # One line through all intervals, broken between them by a gap.
    ends = np.column_stack([rows["lo90"], rows["hi90"], np.full(len(rows), np.nan)]).ravel()
    line = {"color": style.MUTED, "width": 2.2}
    fig.add_scatter(x=ends, y=np.repeat(places, 3), mode="lines", line=line, hoverinfo="skip", name="90 % forecast")
    looks = (
        ("forecast", "middle of the forecast", "line-ns-open", style.MUTED),
        ("density", "what came", "diamond", style.VERMILLION),
    )
    hover = [
        style.hover(
            style.figure_text(row["model"], 60),
            f"released {formatting.day(row['released'])}, {formatting.size(row['params'])}",
            f"forecast from {formatting.day(row['origin'])}: {formatting.number(row['forecast'])} "
            f"({formatting.number(row['lo90'])} to {formatting.number(row['hi90'])})",
            f"came: {formatting.number(row['density'])}",
        )
        for row in rows.to_dict("records")
    ]
    for column, name, symbol, colour in looks:
        marker = {"symbol": symbol, "size": 11, "color": colour, "line": {"width": 2, "color": colour}}
        fig.add_scatter(
            x=rows[column], y=places, mode="markers", marker=marker, name=name, hoverinfo="text", hovertext=hover
        )
    labels = [style.figure_text(name, 48) for name in rows["model"]]
    y_axis = {"tickmode": "array", "tickvals": places, "ticktext": labels, "range": [len(rows) - 0.4, -0.6]}
    x_axis = {"title": "density ρ (log scale)", **style.log_axis(low, high)}
    return style.axes(fig, x_axis, {**y_axis, "showgrid": False})
