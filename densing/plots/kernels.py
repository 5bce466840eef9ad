"""Kernels: what products and attention reach against what the device allows (roofline), and time by module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import plotly.graph_objects as go

from densing.core import formatting
from densing.efficiency.timeline import OUTSIDE
from densing.plots import style

if TYPE_CHECKING:
    from densing.efficiency.timeline import ModuleTime

DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


class Rate(NamedTuple):
    """What a kernel reaches: FLOP per byte (bytes at their least), FLOP/s, its time in ns, and in what arithmetic."""

    name: str
    intensity: float
    flops: float
    total_ns: int
    dtype: str


def plot_modules(rows: Sequence[ModuleTime]) -> go.Figure:
    """Draw time by module as an icicle: each module's width is its total, those within it lie below.

    Parameters
    ----------
    rows : sequence of ModuleTime
        Modules before those within them; totals hold those of all within.
    """
    if not rows:
        return style.empty("No module and no named range was recorded.")
    every = sum(row.own_ns for row in rows)
    names = [style.figure_text(formatting.middle_cut(row.path[-1], 60)) for row in rows]
    fig = style.figure(min(150 + 44 * max(len(row.path) for row in rows), 700))
    fig.add_trace(
        go.Icicle(
            ids=[_SLASH.join(row.path) for row in rows],
            parents=[_SLASH.join(row.path[:-1]) for row in rows],
            labels=names,
            values=[row.total_ns for row in rows],
            branchvalues="total",
            tiling={"orientation": "v"},
            marker={
                "colors": [style.MUTED if row.path == (OUTSIDE,) else style.CYCLE[len(row.path) % 5] for row in rows],
                "line": {"color": style.PAPER, "width": 1},
            },
            hovertext=[
                style.hover(
                    name,
                    f"{formatting.duration(row.total_ns)} in all ({formatting.percent(100 * row.total_ns / every)})",
                    f"{formatting.duration(row.own_ns)} of its own",
                    formatting.plural(row.count, "launch", "launches"),
                )
                for name, row in zip(names, rows, strict=True)
            ],
            hoverinfo="text",
            textfont={"color": style.PAPER},
        )
    )
    return fig


_SLASH = "\x1f"
"""Between the modules of a path, in what tells marks apart: no name holds it."""


def plot_roofline(rates: Sequence[Rate], peaks: Mapping[str, float], bandwidth: float | None) -> go.Figure:
    """Draw FLOP/s against arithmetic intensity, on logarithmic axes, under min(peak, intensity × bandwidth).

    Parameters
    ----------
    rates : sequence of Rate
        Marks, larger for more time.
    peaks : mapping of str to float
        Dense peak of the device by data type, FLOP/s.
    bandwidth : float or None
        Of the device's memory, bytes per second; without it a roof is its flat part.

    Notes
    -----
    Source: Williams, Waterman and Patterson, Roofline, CACM 52(4), 2009.
    """
    if not rates:
        return style.empty("No shapes of products were recorded, so nothing tells what kernels compute.")
    knees = [peak / bandwidth for peak in peaks.values()] if bandwidth else []
    across = style.log_range([*(rate.intensity for rate in rates), *knees], pad=0.15)
    fig = style.figure(380, showlegend=bool(peaks))
    roofs: list[float] = []
    for (dtype, peak), dash in zip(sorted(peaks.items()), DASHES, strict=False):
        at = np.geomspace(*across, 120)
        roof = np.minimum(peak, at * bandwidth) if bandwidth else np.full(len(at), peak)
        roofs += [float(roof.min()), float(roof.max())]
        line = {"color": style.MUTED, "dash": dash}
        fig.add_scatter(x=at, y=roof, mode="lines", name=f"roof in {dtype}", line=line, hoverinfo="skip")
    longest = max(rate.total_ns for rate in rates)
    fig.add_scatter(
        x=[rate.intensity for rate in rates],
        y=[rate.flops for rate in rates],
        mode="markers",
        showlegend=False,
        marker={
            "color": style.BLUE,
            "size": [7 + 15 * (rate.total_ns / longest) ** 0.5 for rate in rates],
            "line": {"color": style.PAPER, "width": 1},
        },
        hovertext=[
            style.hover(
                style.figure_text(formatting.middle_cut(rate.name, 80)),
                f"{formatting.digits(rate.flops / 1e12)} TFLOP/s in {style.figure_text(rate.dtype)}",
                f"{formatting.digits(rate.intensity)} FLOP per byte",
                f"{formatting.duration(rate.total_ns)} in all",
            )
            for rate in rates
        ],
        hoverinfo="text",
    )
    up = style.log_range([*(rate.flops for rate in rates), *roofs])
    return style.axes(
        fig,
        {"title": "FLOP per byte, at the least bytes (log scale)", **style.log_axis(*across)},
        {"title": "FLOP/s (log scale)", **style.log_axis(*up)},
    )
