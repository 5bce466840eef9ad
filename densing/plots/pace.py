"""The pace of density over time, and what the headline would have been at earlier dates."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from densing.core import formatting
from densing.plots import style

if TYPE_CHECKING:
    from densing.scores.trend import TrendResult

HEIGHT = 270
# Doubling times that have a tick of their own: a pace is drawn in doublings per year, so that none is zero.
TICKS = (math.inf, 24, 12, 6, 4, 3, 2)
PER_YEAR = 365.25 / 30.44
"""Months in a year."""
MARGIN = 0.15
CLOSEST = 0.1
"""Least distance of two ticks, as a share of the axis."""


def plot_pace(trend: TrendResult) -> go.Figure:
    """Draw the pace by month with its band, and both means that the headline states.

    The axis counts doublings per year; its ticks are named by the doubling time in months.

    Parameters
    ----------
    trend : TrendResult

    Returns
    -------
    plotly.graph_objects.Figure

    See Also
    --------
    plot_vintages, plot_density
    """
    table = trend.pace()
    if table.empty or trend.varying is None:
        return style.empty("The data carry no pace that may change.")
    fig = style.figure(HEIGHT)
    edge = {"width": 0, "color": style.MUTED}
    shared = {"x": table["date"], "mode": "lines", "line": edge, "hoverinfo": "skip"}
    fig.add_scatter(**shared, y=table["per_year_hi"], showlegend=False)
    fig.add_scatter(
        **shared,
        y=table["per_year_lo"],
        fill="tonexty",
        fillcolor=style.BAND,
        name=f"{trend.options['level']:.0%} band",
    )
    hover = [
        style.hover(formatting.month(row.date), f"doubling: {formatting.doubling(row.months, row.lo, row.hi)}")
        for row in table.itertuples()
    ]
    fig.add_scatter(
        x=table["date"], y=table["per_year"], mode="lines", line={"color": style.INK, "width": 2.5},
        name="pace", hoverinfo="text", hovertext=hover,
    )  # fmt: skip
    ends = pd.DatetimeIndex([table["date"].iloc[0], table["date"].iloc[-1]])
    year = pd.DatetimeIndex([max(ends[0], ends[1] - pd.DateOffset(years=1)), ends[1]])
    for slope, span, dash, colour, name in (
        (trend.varying.window, ends, "dot", style.MUTED, "mean over the window"),
        (trend.varying.last_year, year, "solid", style.VERMILLION, "mean of the last twelve months"),
    ):
        height = doublings_per_year(slope.doubling_months)
        line = {"color": colour, "width": 2, "dash": dash}
        fig.add_scatter(x=span, y=[height, height], mode="lines", line=line, name=name, hoverinfo="skip")
    low, high = float(table["per_year_lo"].min()), float(table["per_year_hi"].max())
    return style.axes(fig, {"title": ""}, pace_axis(low, high))


def plot_vintages(table: pd.DataFrame) -> go.Figure:
    """Draw what the headline would have said at earlier dates: both means with their intervals.

    Parameters
    ----------
    table : pandas.DataFrame
        Of :func:`densing.scores.study.vintages`.

    Examples
    --------
    >>> row = {"vintage": pd.Timestamp("2024-06-30"), "doubling_months": 4.0, "lo": 3.0, "hi": 6.0, "n": 40,
    ...        "year_months": 5.0, "year_lo": 3.0, "year_hi": np.inf, "reason": ""}
    >>> [trace.name for trace in plot_vintages(pd.DataFrame([row])).data]
    ['mean over the window', 'mean of the last twelve months']

    See Also
    --------
    plot_pace
    """
    rows = table[table["reason"].fillna("").eq("")] if len(table) else table
    if rows.empty:
        return style.empty("No earlier date was asked.")
    fig = style.figure(HEIGHT)
    ends: list[float] = []
    for names, shift, symbol, colour, name in (
        (("doubling_months", "lo", "hi"), -9, "diamond", style.BLUE, "mean over the window"),
        (("year_months", "year_lo", "year_hi"), 9, "circle-open", style.VERMILLION, "mean of the last twelve months"),
    ):
        middle, high, low = (np.array([doublings_per_year(value) for value in rows[part]]) for part in names)
        # Where the interval reaches below zero its doubling time has no end: the bar goes down to none.
        hover = [
            style.hover(f"as of {formatting.day(row['vintage'])}", f"{formatting.count(row['n'])} models",
                        f"{name}: {formatting.doubling(*(row[part] for part in names))}")
            for row in rows.to_dict("records")
        ]  # fmt: skip
        fig.add_scatter(
            x=pd.to_datetime(rows["vintage"]) + pd.Timedelta(days=shift), y=middle, mode="markers", name=name,
            marker={"symbol": symbol, "size": 10, "color": colour}, hoverinfo="text", hovertext=hover,
            error_y={"type": "data", "symmetric": False, "array": high - middle, "arrayminus": middle - low,
                     "color": colour, "thickness": 2, "width": 0},
        )  # fmt: skip
        ends += [*low, *high]
    return style.axes(fig, {"title": "what was known by then"}, pace_axis(min(ends), max(ends)))


def doublings_per_year(months: Any) -> float:
    """Return doublings per year; none where there is no doubling time.

    Examples
    --------
    >>> round(doublings_per_year(6.0), 2), doublings_per_year(math.inf)
    (2.0, 0.0)
    """
    return 0.0 if formatting.is_missing(months) or math.isinf(float(months)) else PER_YEAR / float(months)


def pace_axis(low: float, high: float, ticks: Iterable[float] = TICKS) -> dict[str, Any]:
    """Return an axis of doublings per year, ticks named by doubling times.

    Examples
    --------
    >>> pace_axis(-1.0, 4.0)["ticktext"]
    ['no growth', '12', '6', '4', '3']
    """
    room = MARGIN * max(high - low, 1.0)
    ends = low - room, high + room
    shown = [(doublings_per_year(months), months) for months in ticks]
    shown = [(height, months) for height, months in shown if ends[0] <= height <= ends[1]]
    # Ticks closer than a label is high would cover each other.
    apart = CLOSEST * (ends[1] - ends[0])
    kept = shown[:1]
    for tick in shown[1:]:
        if tick[0] - kept[-1][0] >= apart:
            kept.append(tick)
    shown = kept
    return {
        "title": "months to double",
        "range": list(ends),
        "tickmode": "array",
        "tickvals": [height for height, _ in shown],
        "ticktext": ["no growth" if math.isinf(months) else f"{months:g}" for _, months in shown],
        "zeroline": True,
        "zerolinecolor": style.MUTED,
    }
