"""Figures of the checks that come with a headline: shuffled dates and one family at a time left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from densing.plots import style, text
from densing.plots.forest import forest

ROW_HEIGHT = 56
_NAMES = {
    "envelope": "the paper's envelope",
    "headline": "headline",
    "headline_family_blocks": "headline, whole families shuffled",
}


def plot_permutation(checks: Mapping[str, Any]) -> go.Figure:
    """Draw the slope found in the data beside the slopes found after shuffling the release dates.

    Parameters
    ----------
    checks : mapping
        ``TrendResult.checks``; its entry ``permutation`` holds, per method, ``p``, ``slope`` and
        ``null_median_slope`` and, where kept, ``null_slopes``.

    Examples
    --------
    >>> row = {"slope": 0.006, "null_median_slope": 0.001, "p": 0.03}
    >>> [trace.name for trace in plot_permutation({"permutation": {"envelope": row}}).data]
    ['shuffled dates, median', 'the data']
    """
    found = {name: row for name, row in permutations(checks).items() if not text.is_missing(row.get("slope"))}
    if not found:
        return style.empty("No slope was estimated, so there is nothing to shuffle.")
    fig = style.figure(140 + ROW_HEIGHT * len(found))
    rows = np.arange(len(found))
    slopes, null = ([row.get(key) for row in found.values()] for key in ("slope", "null_median_slope"))
    _add_spread(fig, [row.get("null_slopes") or [] for row in found.values()])
    looks = (
        (null, "shuffled dates, median", "circle-open", style.MUTED),
        (slopes, "the data", "diamond", style.VERMILLION),
    )
    for values, name, symbol, colour in looks:
        words = [f"{name}: {text.number(value)} per day" for value in values]
        marker = {"symbol": symbol, "size": 13, "color": colour, "line": {"width": 2, "color": colour}}
        fig.add_scatter(x=values, y=rows, mode="markers", name=name, marker=marker, hovertext=words, hoverinfo="text")
    labels = [f"{permutation_name(name)}<br>{text.p_value(row['p'])}" for name, row in found.items()]
    y_axis = {"tickmode": "array", "tickvals": rows, "ticktext": labels, "range": [len(rows) - 0.4, -0.6]}
    return style.axes(fig, {"title": "slope of ln ρ per day"}, {**y_axis, "showgrid": False})


def _add_spread(fig: go.Figure, draws: list[list[float]]) -> None:
    """Add a bar from the 5 to the 95 % point of each set of shuffled slopes."""
    for row, values in enumerate(draws):
        if not values:
            continue
        ends = np.quantile(values, [0.05, 0.95])
        words = f"90 % of the shuffles: {text.number(ends[0])} to {text.number(ends[1])} per day"
        fig.add_scatter(
            x=ends, y=[row, row], mode="lines+markers", line={"color": style.MUTED, "width": 5}, hovertext=words,
            marker={"symbol": "line-ns-open", "size": 12, "color": style.MUTED, "line": {"width": 3}},
            hoverinfo="text", name="90 % of the shuffles", legendgroup="spread", showlegend=row == 0,
        )  # fmt: skip


def permutations(checks: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the permutation results by method."""
    entry = checks.get("permutation") or {}
    return {str(name): row for name, row in entry.items() if isinstance(row, Mapping) and "p" in row}


def permutation_name(key: str) -> str:
    """Return the name of a permuted estimator for people."""
    return _NAMES.get(key, text.figure_text(key, 40))


def plot_leave_one_out(checks: Mapping[str, Any]) -> go.Figure:
    """Draw the headline doubling time with one family at a time left out.

    Parameters
    ----------
    checks : mapping
        ``TrendResult.checks``; ``leave_one_family_out`` holds ``table``, rows of family, n, slope_per_day
        and doubling_months.
    """
    frame = leave_one_out(checks)
    if frame.empty:
        return style.empty("No family could be left out.")
    words = [
        f"<b>without {text.figure_text(row['family'], 60)}</b> ({text.plural(int(row['n']), 'model')})<br>"
        f"doubling time {text.months(row['doubling_months'])} months"
        for row in frame.to_dict("records")
    ]
    frame = frame.assign(label="without " + frame["family"].astype(str), words=words)
    colours, symbols = [style.BLUE] * len(frame), ["circle"] * len(frame)
    return forest(frame, colours, symbols, "doubling time, months (log scale)", row_height=24)


def leave_one_out(checks: Mapping[str, Any]) -> pd.DataFrame:
    """Return the leave-one-family-out rows, fastest first; a slope that is not positive never doubles.

    Examples
    --------
    >>> rows = [{"family": "a", "n": 3, "slope_per_day": -0.001, "doubling_months": None},
    ...         {"family": "b", "n": 2, "slope_per_day": 0.0076, "doubling_months": 3.0}]
    >>> leave_one_out({"leave_one_family_out": {"table": rows}})["doubling_months"].tolist()
    [3.0, inf]
    """
    rows = (checks.get("leave_one_family_out") or {}).get("table") or []
    frame = pd.DataFrame(list(rows), columns=["family", "n", "slope_per_day", "doubling_months"])
    frame = frame[frame["slope_per_day"].notna()]
    doubling = pd.to_numeric(frame["doubling_months"], errors="coerce").fillna(np.inf)
    frame = frame.assign(doubling_months=doubling, lo=np.nan, hi=np.nan)
    return frame.sort_values("doubling_months", kind="stable").reset_index(drop=True)
