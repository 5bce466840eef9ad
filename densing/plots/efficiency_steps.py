"""Steps one after another: what each consisted of, and how long it took on each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from densing.efficiency.timeline import occurrences
from densing.plots import style, text
from densing.plots.efficiency import parts_of
from densing.plots.efficiency_bars import BARS, legend_rows
from densing.plots.efficiency_style import PARTS
from densing.plots.efficiency_text import duration, unit_of

if TYPE_CHECKING:
    from densing.efficiency.timeline import StepPartition

STEP_COLUMNS = 120


def plot_steps(steps: Mapping[int, Sequence[StepPartition]]) -> go.Figure:
    """Draw each step's time by part: the mean over the ranks that recorded it.

    Parameters
    ----------
    steps : mapping of rank to sequence of StepPartition
        More than :data:`STEP_COLUMNS` steps are drawn as means of neighbours.
    """
    table = mean_steps(steps)
    if not table:
        return style.empty("The traces mark no steps, so there is no step to draw.")
    groups = np.array_split(np.arange(len(table)), min(len(table), STEP_COLUMNS))
    means = {look.key: np.array([row[1][look.key] for row in table]) for look in PARTS}
    total = np.sum(list(means.values()), axis=0)
    scale, unit = unit_of(float(np.max(total)))
    used = [look for look in PARTS if means[look.key].any()]
    gap = 0.6 if len(groups) < 4 else 0.18 if len(groups) <= BARS else 0
    fig = style.figure(320 + 24 * legend_rows(used), barmode="stack", bargap=gap)
    fig.update_layout(legend_traceorder="normal", showlegend=True)
    numbers = [[table[at][0] for at in group] for group in groups]
    for look in used:
        heights = np.array([means[look.key][group].mean() for group in groups])
        words = [
            f"<b>{_steps(number)}</b><br>{look.label}: {duration(height)} of {duration(total[group].mean())}"
            for number, height, group in zip(numbers, heights, groups, strict=True)
        ]
        fig.add_bar(
            x=list(range(len(groups))), y=(heights / scale).tolist(), name=look.label, marker=look.marker(),
            hovertext=words, hoverinfo="text", textposition="none",
        )  # fmt: skip
    return style.axes(fig, {"title": "step", **_step_ticks(numbers)}, {"title": f"{unit}, mean over ranks"})


def _step_ticks(numbers: Sequence[Sequence[int]]) -> dict[str, object]:
    every = -(-len(numbers) // 12)
    at = list(range(0, len(numbers), every))
    return {
        "tickmode": "array",
        "tickvals": at,
        "ticktext": [str(numbers[place][0]) for place in at],
        "showgrid": False,
    }


def _steps(numbers: Sequence[int]) -> str:
    return f"step {numbers[0]}" if len(numbers) == 1 else f"steps {numbers[0]} to {numbers[-1]}, mean"


def mean_steps(steps: Mapping[int, Sequence[StepPartition]]) -> list[tuple[int, dict[str, float]]]:
    """Return each step's number and its parts in nanoseconds, the mean over the ranks that recorded it, in order.

    A number that a rank marks again is a step of its own.

    Examples
    --------
    >>> from densing.efficiency.timeline.overlap import Partition
    >>> from densing.efficiency.timeline.steps import StepPartition
    >>> def step(number, idle):
    ...     return StepPartition(number, 0, 100, Partition(100, 100, 100 - idle, 0, 0, 0, 0, 0, idle))
    >>> [(number, parts["idle"]) for number, parts in mean_steps({0: [step(7, 10)], 1: [step(7, 30)]})]
    [(7, 20.0)]
    """
    table: dict[tuple[int, int], list[dict[str, int]]] = {}
    for rows in steps.values():
        for (number, occurrence), row in zip(occurrences(row.number for row in rows), rows, strict=True):
            table.setdefault((occurrence, number), []).append(parts_of(row.partition))
    return [
        (number, {look.key: sum(row[look.key] for row in rows) / len(rows) for look in PARTS})
        for (_, number), rows in sorted(table.items())
    ]


def plot_step_times(times: Mapping[int, Sequence[tuple[int, int]]]) -> go.Figure:
    """Draw the step times: every rank's where ranks are few, else their least, median and most per step.

    Parameters
    ----------
    times : mapping of rank to sequence of (step number, nanoseconds)
    """
    rows = {rank: list(steps) for rank, steps in times.items() if steps}
    if sum(len(steps) for steps in rows.values()) == 0:
        return style.empty("The traces mark no steps, so there are no step times.")
    scale, unit = unit_of(float(np.median([ns for steps in rows.values() for _, ns in steps])))
    fig = style.figure(340, showlegend=True)
    if len(rows) <= len(style.SYMBOLS):
        _each_rank(fig, rows, scale)
    else:
        _band(fig, rows, scale)
    # From zero: a spread of a percent must not look like a doubling.
    numbers = sorted({number for steps in rows.values() for number, _ in steps})
    ticks = numbers[:: -(-len(numbers) // 12)]
    pad = max((numbers[-1] - numbers[0]) * 0.02, 0.2)
    x_axis = {"title": "step", "tickmode": "array", "tickvals": ticks, "ticktext": [str(tick) for tick in ticks]}
    x_axis["range"] = [numbers[0] - pad, numbers[-1] + pad]
    return style.axes(fig, x_axis, {"title": f"step time, {unit}", "rangemode": "tozero"})


def _each_rank(fig: go.Figure, rows: Mapping[int, Sequence[tuple[int, int]]], scale: float) -> None:
    for place, (rank, steps) in enumerate(rows.items()):
        colour = style.CYCLE[place % len(style.CYCLE)]
        words = [f"<b>rank {rank}, step {number}</b><br>{duration(ns)}" for number, ns in steps]
        fig.add_scatter(
            x=[number for number, _ in steps], y=[ns / scale for _, ns in steps], mode="lines+markers",
            name=f"rank {rank}", line={"color": colour, "width": 1},
            marker={"symbol": style.SYMBOLS[place], "size": 8, "color": colour},
            hoverinfo="text", hovertext=words,
        )  # fmt: skip


def _band(fig: go.Figure, rows: Mapping[int, Sequence[tuple[int, int]]], scale: float) -> None:
    found: dict[int, list[tuple[int, int]]] = {}
    for rank, steps in rows.items():
        for number, ns in steps:
            found.setdefault(number, []).append((ns, rank))
    numbers = sorted(found)
    looks = (
        ("slowest rank", lambda times: max(times), "triangle-up", style.VERMILLION, "dot"),
        ("median rank", lambda times: sorted(times)[len(times) // 2], "circle", style.BLUE, "solid"),
        ("fastest rank", lambda times: min(times), "triangle-down", style.GREEN, "dash"),
    )
    for name, choose, symbol, colour, dash in looks:
        chosen = [choose(found[number]) for number in numbers]
        words = [
            f"<b>step {number}</b><br>{name}: {duration(ns)} (rank {rank})"
            for number, (ns, rank) in zip(numbers, chosen, strict=True)
        ]
        fig.add_scatter(
            x=numbers, y=[ns / scale for ns, _ in chosen], mode="lines+markers", name=text.figure_text(name),
            line={"color": colour, "width": 1.5, "dash": dash}, marker={"symbol": symbol, "size": 7, "color": colour},
            hovertext=words, hoverinfo="text",
        )  # fmt: skip
