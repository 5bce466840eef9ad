"""Density against what it cost, with the frontier: a figure for each scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from densing.core import formatting
from densing.plots import style
from densing.tradeoff import COSTS

if TYPE_CHECKING:
    from densing.tradeoff import Frontier

SYMBOLS = {"catalog": "circle", "profile": "star", "arm": "square"}
# So few rows that the intervals of all can be seen; of more only the frontier's are drawn.
FEW = 12
# Room of a name above its mark, as shares of a wide page's figure.
LABEL_HEIGHT, LETTER_WIDTH = 0.05, 0.0075


def plot_frontier(result: Frontier, scale: str | None = None) -> go.Figure:
    """Draw the densities of one scale against their cost, and the frontier as steps.

    rho and cost on logarithmic axes (the cost's is linear where something costs nothing). Filled marks take part in the
    frontier, triangles are limits; intervals, shares of draws and what a cost rests on stand in the hover text.

    Parameters
    ----------
    result : Frontier
    scale : str, optional
        One of ``result.scales``; the first by default.

    See Also
    --------
    densing.frontier

    Examples
    --------
    >>> import densing
    >>> from densing.tradeoff import DensityCost
    >>> runs = [DensityCost(name, 1.0, None, None, "mmlu", None, hours) for name, hours in (("a", 100.0), ("b", 50.0))]
    >>> [trace.name for trace in plot_frontier(densing.frontier(cost="device_hours", profiles=runs)).data]
    ['frontier', 'own runs', 'on the frontier']
    """
    cost = COSTS[result.cost]
    if scale is None and not result.scales:
        return style.empty(f"Nothing has both a density and known {cost.label}.")
    scale = scale or result.scales[0]
    rows = result.table[result.table["scale"].eq(scale) & np.isfinite(result.table[result.cost])]
    rows = rows.assign(paid=rows[result.cost], at=_heights(rows)).dropna(subset=["at"])
    placed, front = rows[rows["status"].eq("ok")], result.front(scale)
    front = front.assign(paid=front[result.cost], at=front["density"])
    linear = bool((rows["paid"] <= 0).any())
    fig = style.figure(480)
    across = _span(rows["paid"], linear)
    if len(front):
        fig.add_scatter(
            x=[*front["paid"], across[1]], y=[*front["at"], front["at"].iloc[-1]], mode="lines", name="frontier",
            line={"color": style.VERMILLION, "width": 1.5, "shape": "hv"}, hoverinfo="skip", showlegend=False,
        )  # fmt: skip
    off = placed[~placed["on_frontier"]]
    for source, group in off.groupby("source", sort=False):
        _marks(fig, group, result.cost, NAMES[source], SYMBOLS[source], style.BLUE, 8, bars=len(placed) <= FEW)
    for (source, bound), group in rows[rows["status"].ne("ok")].groupby(["source", "bound"], sort=False):
        symbol = style.BOUND_SYMBOLS.get(bound, f"{SYMBOLS[source]}-open")
        name = {"upper": "limit ▽", "lower": "limit △"}.get(bound, "not decided")
        _marks(fig, group, result.cost, name, symbol, style.ORANGE, 8)
    _marks(fig, front, result.cost, "on the frontier", "diamond", style.VERMILLION, 11, bars=True)
    barred = placed if len(placed) <= FEW else front
    up = style.log_range(np.concatenate([rows["at"], barred["density_lo"], barred["density_hi"]]))
    _label(fig, front, across, up, linear)
    ratio = placed["source"].eq("arm").all()
    title = "ratio of density to the baseline's (log scale)" if ratio else "density ρ (log scale)"
    x_axis: dict[str, Any] = {"range": list(across)} if linear else style.log_axis(*across)
    if not linear:
        x_axis["ticktext"] = [cost.show(value).replace(".0·", "·").removeprefix("1·") for value in x_axis["tickvals"]]
    label = cost.label if linear else f"{cost.label} (log scale)"
    return style.axes(fig, {"title": label, **x_axis}, {"title": title, **style.log_axis(*up)})


NAMES = {"catalog": "catalog models", "profile": "own runs", "arm": "arms"}


def _heights(rows: pd.DataFrame) -> pd.Series:
    """Return where rows stand: a limit at the end of its interval that is known."""
    ends = {"upper": rows["density_hi"], "lower": rows["density_lo"]}
    at = rows["density"]
    for bound, end in ends.items():
        at = at.mask(rows["bound"].eq(bound) & np.isfinite(end) & end.gt(0), end)
    return at.where(at.gt(0) & np.isfinite(at))


def _span(paid: pd.Series, linear: bool) -> tuple[float, float]:
    """Return the range of an axis of costs."""
    if not linear:
        return style.log_range(paid)
    high = float(paid.max()) or 1.0
    return -0.04 * high, 1.06 * high


def _marks(
    fig: go.Figure, rows: pd.DataFrame, cost: str, name: str, symbol: str, colour: str, size: int, bars: bool = False
) -> None:
    if rows.empty:
        return
    error: dict[str, Any] = {}
    if bars:
        sides = {"array": rows["density_hi"] - rows["at"], "arrayminus": rows["at"] - rows["density_lo"]}
        spread = {key: side.where(np.isfinite(side) & side.gt(0), 0.0).tolist() for key, side in sides.items()}
        error = {"error_y": {"type": "data", **spread, "thickness": 0.8, "width": 0, "color": style.MUTED}}
    bare = symbol.endswith("-open")
    line = {"width": 1.6 if bare else 0.8, "color": colour if bare else style.PAPER}
    records = rows.to_dict("records")
    fig.add_scatter(
        x=rows["paid"].tolist(), y=rows["at"].tolist(), mode="markers", name=name, hoverinfo="text",
        marker={"symbol": symbol, "color": colour, "size": size, "line": line},
        hovertext=[_hover(row, cost) for row in records],
        customdata=[[style.figure_text(row["name"].lower(), 400), style.figure_text(row["name"], 40)]
                    for row in records], **error,
    )  # fmt: skip


def _hover(row: Mapping[str, Any], cost: str) -> str:
    """Return what a mark says: density, cost, what it rests on, and how sure its place is."""
    ends = [row["density_lo"], row["density_hi"]]
    known = (
        ""
        if all(map(formatting.is_missing, ends))
        else f" ({formatting.number(ends[0])} to {formatting.number(ends[1])})"
    )
    kind = "ratio to the baseline" if row["source"] == "arm" else "density"
    lines = [f"{kind}: {formatting.bounded(row['density'], row['bound'])}{known}",
             f"{COSTS[cost].label}: {COSTS[cost].show(row[cost])}",
             "" if formatting.is_missing(row["share"]) else "on the frontier in "
                                                            f"{formatting.percentage(row['share'])} of draws",
             "" if row["status"] == "ok" else f"status: {style.figure_text(row['status'], 40)}",
             style.figure_text(row["evidence"], 160)]  # fmt: skip
    return style.hover(style.figure_text(row["name"], 60), *lines)


def _label(
    fig: go.Figure, front: pd.DataFrame, across: tuple[float, float], up: tuple[float, float], linear: bool
) -> None:
    """Write the names of the frontier beside their marks, the densest first, as far as none covers another."""

    def share(value: float, span: tuple[float, float], log: bool) -> float:
        if log:
            return float(np.log(value / span[0]) / np.log(span[1] / span[0]))
        return (value - span[0]) / (span[1] - span[0])

    drawn: list[tuple[float, float, float, float]] = []
    for row in front[::-1].to_dict("records"):
        x, y = share(row["paid"], across, not linear), share(row["at"], up, True)
        width = LETTER_WIDTH * len(formatting.clean(row["name"], 26))
        # Above and to the left of the frontier there is nothing.
        left = x > width
        box = (x - width, x, y, y + LABEL_HEIGHT) if left else (x, x + width, y, y + LABEL_HEIGHT)
        clear = all(box[1] <= o[0] or o[1] <= box[0] or box[3] <= o[2] or o[3] <= box[2] for o in drawn)
        if not clear or box[1] > 1:
            continue
        drawn.append(box)
        fig.add_annotation(
            x=row["paid"] if linear else float(np.log10(row["paid"])), y=float(np.log10(row["at"])),
            text=style.figure_text(row["name"], 26), showarrow=False, xanchor="right" if left else "left",
            xshift=-4 if left else 4, yanchor="bottom", yshift=4, name="wide",
            font={"size": 12, "color": style.VERMILLION},
        )  # fmt: skip
