"""Figures of the checks that come with a headline: shuffled dates and one family at a time left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from densing.plots import style, text
from densing.plots.forest import forest

if TYPE_CHECKING:
    from densing.scores.trend import Checks

ROW_HEIGHT = 56


def plot_permutation(checks: Checks) -> go.Figure:
    """Draw the slope found in the data beside the slopes found after shuffling the dates of whole families.

    Parameters
    ----------
    checks : Checks
        ``TrendResult.checks``; of its tests ``permutation`` the one valid one is drawn.

    Examples
    --------
    >>> from densing.scores.trend import Checks, PermutationTests, ShuffleTest
    >>> test = ShuffleTest(0.03, 0.006, 0.001, None, ())
    >>> [trace.name for trace in plot_permutation(Checks(permutation=PermutationTests(99, test, test, test))).data]
    ['shuffled dates, median', 'the data']
    """
    test = None if checks.permutation is None else checks.permutation.headline_family_blocks
    if test is None or text.is_missing(test.slope):
        return style.empty("No slope was estimated, so there is nothing to shuffle.")
    fig = style.figure(140 + ROW_HEIGHT)
    _add_spread(fig, test.null_slopes)
    looks = (
        (test.null_median_slope, "shuffled dates, median", "circle-open", style.MUTED),
        (test.slope, "the data", "diamond", style.VERMILLION),
    )
    for value, name, symbol, colour in looks:
        words = f"{name}: {text.number(value)} per day"
        marker = {"symbol": symbol, "size": 13, "color": colour, "line": {"width": 2, "color": colour}}
        fig.add_scatter(x=[value], y=[0], mode="markers", name=name, marker=marker, hovertext=words, hoverinfo="text")
    size = "" if text.is_missing(test.size) else f"<br>size {text.percentage(test.size)}"
    label = f"whole families shuffled<br>{text.p_value(test.p)}{size}"
    y_axis = {"tickmode": "array", "tickvals": [0], "ticktext": [label], "range": [0.6, -0.6]}
    return style.axes(fig, {"title": "slope of ln ρ per day"}, {**y_axis, "showgrid": False})


def _add_spread(fig: go.Figure, draws: Sequence[float]) -> None:
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


def plot_leave_one_out(checks: Checks) -> go.Figure:
    """Draw the headline doubling time without each named group, organisation and family.

    Parameters
    ----------
    checks : Checks
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


def leave_one_out(checks: Checks) -> pd.DataFrame:
    """Return what is left out (kind, name, n) and the doubling time without it; groups first, then fastest first.

    A slope that is not positive never doubles. Organisations of a single family repeat it and are left out.

    Examples
    --------
    >>> from densing.scores.trend import Checks, LeaveOneOut, LeftOut
    >>> rows = (LeftOut("a", 3, -0.001, np.inf), LeftOut("b", 2, 0.0076, 3.0))
    >>> leave_one_out(Checks(leave_one_family_out=LeaveOneOut("family", rows)))["doubling_months"].tolist()
    [3.0, inf]
    """
    rows: list[dict[str, Any]] = []
    single: set[tuple[Any, Any]] = set()
    for check in (checks.leave_one_family_out, checks.leave_one_organisation_out):
        table = () if check is None else check.rows
        effects = [(row.n, text.number(row.slope_per_day, 6)) for row in table]
        fresh = [row for row, effect in zip(table, effects, strict=True) if effect not in single]
        single = set(effects)
        rows += [{**asdict(row), "kind": check.kind} for row in fresh if check is not None]
    rows += [{**asdict(group), "kind": "group", "name": group.group} for group in checks.without_groups]
    names = ["kind", "name", "n", "slope_per_day", "doubling_months", "lo", "hi"]
    frame = pd.DataFrame(rows, columns=names)
    frame = frame[frame["slope_per_day"].notna()]
    doubling = pd.to_numeric(frame["doubling_months"], errors="coerce").fillna(np.inf)
    ends = {name: pd.to_numeric(frame[name], errors="coerce") for name in ("lo", "hi")}
    ends["hi"] = ends["hi"].where(ends["hi"].notna() | ends["lo"].isna(), np.inf)
    order = frame["kind"].map({kind: place for place, kind in enumerate(_LOOKS)})
    frame = frame.assign(doubling_months=doubling, **ends, order=order)
    return frame.sort_values(["order", "doubling_months"], kind="stable").drop(columns="order").reset_index(drop=True)
