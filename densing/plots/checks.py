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


def plot_permutation(checks: Mapping[str, Any]) -> go.Figure:
    """Draw the slope found in the data beside the slopes found after shuffling the dates of whole families.

    Parameters
    ----------
    checks : mapping
        ``TrendResult.checks``; of its entry ``permutation`` the one valid test is drawn, with ``p``, ``slope``,
        ``null_median_slope`` and, where kept, ``null_slopes``, ``size`` and ``power``.

    Examples
    --------
    >>> row = {"slope": 0.006, "null_median_slope": 0.001, "p": 0.03}
    >>> [trace.name for trace in plot_permutation({"permutation": {"headline_family_blocks": row}}).data]
    ['shuffled dates, median', 'the data']
    """
    row = (checks.get("permutation") or {}).get("headline_family_blocks") or {}
    if text.is_missing(row.get("slope")):
        return style.empty("No slope was estimated, so there is nothing to shuffle.")
    fig = style.figure(140 + ROW_HEIGHT)
    _add_spread(fig, row.get("null_slopes") or [])
    looks = (
        (row.get("null_median_slope"), "shuffled dates, median", "circle-open", style.MUTED),
        (row["slope"], "the data", "diamond", style.VERMILLION),
    )
    for value, name, symbol, colour in looks:
        words = f"{name}: {text.number(value)} per day"
        marker = {"symbol": symbol, "size": 13, "color": colour, "line": {"width": 2, "color": colour}}
        fig.add_scatter(x=[value], y=[0], mode="markers", name=name, marker=marker, hovertext=words, hoverinfo="text")
    size = "" if row.get("size") is None else f"<br>size {text.percentage(row['size'])}"
    label = f"whole families shuffled<br>{text.p_value(row.get('p'))}{size}"
    y_axis = {"tickmode": "array", "tickvals": [0], "ticktext": [label], "range": [0.6, -0.6]}
    return style.axes(fig, {"title": "slope of ln ρ per day"}, {**y_axis, "showgrid": False})


def _add_spread(fig: go.Figure, draws: list[float]) -> None:
    """Add a bar from the 5 to the 95 % point of the shuffled slopes."""
    if not draws:
        return
    ends = np.quantile(draws, [0.05, 0.95])
    words = f"90 % of the shuffles: {text.number(ends[0])} to {text.number(ends[1])} per day"
    fig.add_scatter(
        x=ends, y=[0, 0], mode="lines+markers", line={"color": style.MUTED, "width": 5}, hovertext=words,
        marker={"symbol": "line-ns-open", "size": 12, "color": style.MUTED, "line": {"width": 3}},
        hoverinfo="text", name="90 % of the shuffles",
    )  # fmt: skip


def plot_leave_one_out(checks: Mapping[str, Any]) -> go.Figure:
    """Draw the headline doubling time without each named group, organisation and family.

    Parameters
    ----------
    checks : mapping
        ``TrendResult.checks``; ``without_groups`` (diamonds, with their interval), ``leave_one_organisation_out``
        (squares, where an organisation has several families) and ``leave_one_family_out`` (circles).
    """
    frame = leave_one_out(checks)
    if frame.empty:
        return style.empty("No family could be left out.")
    words = [
        f"<b>without {text.figure_text(row['name'], 60)}</b> ({row['kind']}, {text.plural(int(row['n']), 'model')})<br>"
        f"doubling time {text.months(row['doubling_months'])} months"
        for row in frame.to_dict("records")
    ]
    frame = frame.assign(label="without " + frame["name"].astype(str), words=words)
    colours, symbols = ([look[place] for look in frame["kind"].map(_LOOKS)] for place in (0, 1))
    return forest(frame, colours, symbols, "doubling time, months (log scale)", row_height=24)


_LOOKS = {
    "group": (style.VERMILLION, "diamond"),
    "organisation": (style.GREEN, "square"),
    "family": (style.BLUE, "circle"),
}


def leave_one_out(checks: Mapping[str, Any]) -> pd.DataFrame:
    """Return what is left out (kind, name, n) and the doubling time without it; groups first, then fastest first.

    A slope that is not positive never doubles. Organisations of a single family repeat it and are left out.

    Examples
    --------
    >>> rows = [{"family": "a", "n": 3, "slope_per_day": -0.001, "doubling_months": None},
    ...         {"family": "b", "n": 2, "slope_per_day": 0.0076, "doubling_months": 3.0}]
    >>> leave_one_out({"leave_one_family_out": {"table": rows}})["doubling_months"].tolist()
    [3.0, inf]
    """
    rows: list[dict[str, Any]] = []
    single: set[tuple[Any, Any]] = set()
    for kind in ("family", "organisation"):
        table = (checks.get(f"leave_one_{kind}_out") or {}).get("table") or []
        effects = [(row["n"], text.number(row["slope_per_day"], 6)) for row in table]
        fresh = [row for row, effect in zip(table, effects, strict=True) if effect not in single]
        single = set(effects)
        rows += [{**row, "kind": kind, "name": row[kind]} for row in fresh]
    rows += [{**row, "kind": "group", "name": row["group"]} for row in checks.get("without_groups") or []]
    names = ["kind", "name", "n", "slope_per_day", "doubling_months", "lo", "hi"]
    frame = pd.DataFrame(rows, columns=names)
    frame = frame[frame["slope_per_day"].notna()]
    doubling = pd.to_numeric(frame["doubling_months"], errors="coerce").fillna(np.inf)
    ends = {name: pd.to_numeric(frame[name], errors="coerce") for name in ("lo", "hi")}
    ends["hi"] = ends["hi"].where(ends["hi"].notna() | ends["lo"].isna(), np.inf)
    order = frame["kind"].map({kind: place for place, kind in enumerate(_LOOKS)})
    frame = frame.assign(doubling_months=doubling, **ends, order=order)
    return frame.sort_values(["order", "doubling_months"], kind="stable").drop(columns="order").reset_index(drop=True)
