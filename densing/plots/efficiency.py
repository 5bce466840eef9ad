"""Where the time of a run went: by rank, by cause of idleness, along the critical path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from densing.plots import style
from densing.plots.efficiency_bars import Bar, plot_shares
from densing.plots.efficiency_style import EXPOSED, HIDDEN, IDLE_LOOKS, PARTS, Look, looks_of
from densing.plots.efficiency_text import percent

if TYPE_CHECKING:
    from densing.efficiency.timeline import Partition

STRIP_COLUMNS = 256


def parts_of(partition: Partition) -> dict[str, int]:
    """Return the parts of a window, nanoseconds; they sum to it.

    The keys are those of :data:`densing.plots.efficiency_style.PARTS`; compute splits into what hides communication
    and what does not: |K ∩ C| and |K| − |K ∩ C|.

    Examples
    --------
    >>> from densing.efficiency.timeline.overlap import Partition
    >>> parts_of(Partition(100, 90, 50, 40, 0, 20, 20, 5, 25))
    {'compute': 30, 'hidden': 20, 'exposed_comm': 20, 'exposed_memcpy': 5, 'idle': 25}
    """
    return {
        "compute": partition.compute_ns - partition.overlap_ns,
        "hidden": partition.overlap_ns,
        "exposed_comm": partition.exposed_comm_ns,
        "exposed_memcpy": partition.exposed_memcpy_ns,
        "idle": partition.idle_ns,
    }


def plot_partition(partitions: Mapping[int, Partition]) -> go.Figure:
    """Draw how each rank's window splits into compute, exposed communication, exposed copies and idle.

    Parameters
    ----------
    partitions : mapping of rank to Partition
        Any number; from :data:`~densing.plots.efficiency_bars.BARS` on, those with most exposed communication first.
    """
    bars = [Bar(f"rank {rank}", parts_of(part), part.window_ns) for rank, part in partitions.items()]
    return plot_shares(bars, PARTS, "% of the rank's window", "The windows of all ranks are empty.", EXPOSED)


def plot_rank_strip(partitions: Mapping[int, Partition]) -> go.Figure:
    """Draw the same in order of rank, as a strip of shades: neighbours often share a machine.

    Parameters
    ----------
    partitions : mapping of rank to Partition

    Examples
    --------
    >>> from densing.efficiency.timeline.overlap import Partition
    >>> figure = plot_rank_strip({rank: Partition(100, 90, 50, 40, 0, 20, 20, 5, 25) for rank in range(1000)})
    >>> len(figure.data[0].z), len(figure.data[0].z[0])
    (5, 256)
    """
    if not partitions:
        return style.empty("No rank was profiled.")
    ranks = np.array(sorted(partitions))
    bars = [Bar("", parts_of(partitions[rank]), partitions[rank].window_ns) for rank in ranks.tolist()]
    shares = np.array([[bar.share(look.key) for bar in bars] for look in PARTS])
    groups = np.array_split(np.arange(len(ranks)), min(len(ranks), STRIP_COLUMNS))
    table = [[float(row[group].mean()) for group in groups] for row in shares]
    labels = [_short(look.label) for look in PARTS]
    spans = [_span(ranks[group].tolist()) for group in groups]
    words = [
        [f"<b>{span}</b><br>{label}: {percent(value)}" for span, value in zip(spans, row, strict=True)]
        for label, row in zip(labels, table, strict=True)
    ]
    fig = style.figure(230)
    fig.add_heatmap(
        z=table, x=[int(ranks[group[0]]) for group in groups], y=labels, hovertext=words, hoverinfo="text",
        colorscale=SHADES, zmin=0, zmax=max(map(max, table)) or 1, colorbar=bar_of_shades("% of the window"), ygap=2,
    )  # fmt: skip
    y_axis = {"autorange": "reversed", "showgrid": False, "ticks": ""}
    return style.axes(fig, {"title": "rank", "showgrid": False}, y_axis)


SHADES = [[0, style.PAPER], [1, style.BLUE]]


def bar_of_shades(title: str) -> dict[str, object]:
    """Return the scale of a figure of shades: a narrow one at its right.

    Above the figure it would change the upper margin after plotly has placed the axis' title, which then lands on the
    labels.

    Examples
    --------
    >>> bar_of_shades("ms")["thickness"]
    10
    """
    words = {"text": title, "side": "right", "font": {"size": 13}}
    look = {"thickness": 10, "outlinewidth": 0.5, "outlinecolor": style.MUTED, "tickfont": {"size": 12}}
    return {"title": words, "x": 1.01, "xpad": 4, "ypad": 0, **look, "nticks": 5}


def _short(label: str) -> str:
    return "hidden under compute" if label == HIDDEN.label else label


def _span(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}, mean of {len(ranks)}"


def plot_idle(causes: Mapping[int, Mapping[str, int]], windows: Mapping[int, int]) -> go.Figure:
    """Draw each rank's idle time by cause, as shares of its window.

    Parameters
    ----------
    causes : mapping of rank to mapping of str to int
        Nanoseconds by cause (:data:`densing.efficiency.timeline.idle.CAUSES`).
    windows : mapping of rank to int
        Nanoseconds of each rank's window.
    """
    bars = [Bar(f"rank {rank}", dict(row), windows[rank]) for rank, row in causes.items()]
    keys = tuple(dict.fromkeys([*(look.key for look in IDLE_LOOKS), *(key for row in causes.values() for key in row)]))
    if not any(any(row.values()) for row in causes.values()):
        return style.empty("The devices were never idle.")
    return plot_shares(bars, looks_of(keys, IDLE_LOOKS), "% of the rank's window", "The windows are empty.")


def plot_path(bars: Sequence[Bar]) -> go.Figure:
    """Draw what the critical path consists of, one bar per path.

    Parameters
    ----------
    bars : sequence of Bar
        Nanoseconds by kind.
    """
    keys = dict.fromkeys(key for bar in bars for key, ns in bar.ns.items() if ns)
    order = sorted(keys, key=lambda key: -sum(bar.ns.get(key, 0) for bar in bars))
    return plot_shares(bars, looks_of(tuple(order), PATH_LOOKS), "% of the path", "No critical path was found.")


PATH_LOOKS = (
    PARTS[0],
    PARTS[2]._replace(key="communication", label="communication"),
    PARTS[3]._replace(key="memcpy", label="copies"),
    Look("host", "host program", style.PURPLE, "/"),
    Look("launch", "launch latency", style.ORANGE, "\\"),
    PARTS[4]._replace(label="not explained by the trace"),
    PARTS[4]._replace(key="unknown", label="not told by the trace"),
)
"""Kinds of a critical path, the keys of :data:`densing.efficiency.timeline.critical.PATH_KINDS`."""
