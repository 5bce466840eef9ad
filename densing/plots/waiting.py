"""Who keeps whom waiting: a table of shades, rank by step or by communication."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from densing.core import words
from densing.plots import style

if TYPE_CHECKING:
    from densing.efficiency.profile import Stragglers


ROWS, COLUMNS, FEW_RANKS = 48, 160, 16
LABELLED = 240
"""Up to so many cells show their figure too."""
FEW = 40
"""Up to so many communications are shown one by one where no two steps can be compared."""


@dataclass(frozen=True)
class Waiting:
    """Nanoseconds of waiting by rank and column.

    Attributes
    ----------
    ranks : tuple of int
    columns : tuple of str
        What each column is, as it stands.
    ns : int64 (ranks, columns)
    across : str
        What the columns are, for the axis.
    """

    ranks: tuple[int, ...]
    columns: tuple[str, ...]
    ns: NDArray[np.int64]
    across: str


def caused(stragglers: Stragglers) -> Waiting:
    """Return how long the others waited for each rank, step by step.

    Where there are not two steps, and communications are few, the columns are the communications themselves.

    Examples
    --------
    >>> from densing.efficiency.profile.waiting import Late, RankWaits, Stragglers
    >>> late = (Late(0, "all_reduce", "", -1, 0, 1, 5, 70, True),)
    >>> ranks = tuple(RankWaits(rank, 1, 0, 0, 0, 0, 0, 0) for rank in (0, 1))
    >>> waiting = caused(Stragglers("starts", ranks, late, 1, None, 1, 1, None, (-1,), {}))
    >>> waiting.ns.tolist(), waiting.columns
    ([[0], [70]], ('all_reduce 1',))
    """
    ranks = sorted(row.rank for row in stragglers.ranks)
    row_of = {rank: index for index, rank in enumerate(ranks)}
    one_by_one = len(stragglers.steps) < 2 and len(stragglers.late) <= FEW
    if one_by_one:
        columns = [f"{row.op or 'communication'} {number + 1}" for number, row in enumerate(stragglers.late)]
        positions = list(range(len(stragglers.late)))
    else:
        columns = ["not in a step" if step < 0 else str(step) for step in stragglers.steps]
        number = {step: column for column, step in enumerate(stragglers.steps)}
        positions = [number[row.step] for row in stragglers.late]
    table = np.zeros((len(ranks), len(columns)), np.int64)
    for column, late in zip(positions, stragglers.late, strict=True):
        if late.rank in row_of:
            table[row_of[late.rank], column] += late.waited_ns
    return Waiting(tuple(ranks), tuple(columns), table, "communication, in order" if one_by_one else "step")


def suffered(stragglers: Stragglers) -> Waiting:
    """Return how long each rank itself waited, step by step."""
    ranks = sorted(stragglers.wait_by_step_ns)
    table = np.array([stragglers.wait_by_step_ns[rank] for rank in ranks], np.int64)
    columns = ["not in a step" if step < 0 else str(step) for step in stragglers.steps]
    return Waiting(tuple(ranks), tuple(columns), table.reshape(len(ranks), len(columns)), "step")


def plot_waiting(waiting: Waiting, title: str, nothing: str) -> go.Figure:
    """Draw waiting by rank and column.

    Of more than :data:`FEW_RANKS` ranks those with any waiting are drawn, at most :data:`ROWS`; of more than
    :data:`COLUMNS` columns neighbours are added up.

    Parameters
    ----------
    waiting : Waiting
    title : str
        What the shades mean.
    nothing : str
        What to say where nothing was waited for.
    """
    if not waiting.ns.size or not waiting.ns.any():
        return style.empty(nothing)
    rows = _drawn(waiting)
    groups = np.array_split(np.arange(len(waiting.columns)), min(len(waiting.columns), COLUMNS))
    table = np.array([[waiting.ns[row, group].sum() for group in groups] for row in rows])
    scale, unit = words.unit_of(float(table.max()))
    ends = [(waiting.columns[group[0]], waiting.columns[group[-1]]) for group in groups]
    names = [first if first == last else f"{first} to {last}" for first, last in ends]
    ranks = [f"rank {waiting.ranks[row]}" for row in rows]
    hover = [
        [
            f"<b>{rank}, {style.figure_text(name, 60)}</b><br>{words.duration(ns)}"
            for name, ns in zip(names, line, strict=True)
        ]
        for rank, line in zip(ranks, table.tolist(), strict=True)
    ]
    fig = style.figure(90 + max(max(18, min(34, 300 // len(rows))) * len(rows), 150))
    shown = table.size <= LABELLED and len(groups) <= 14
    figures = [[words.digits(ns / scale) if ns else "" for ns in line] for line in table.tolist()]
    fig.add_heatmap(
        z=(table / scale).tolist(), x=list(range(len(groups))), y=list(range(len(rows))), hovertext=hover,
        hoverinfo="text", colorscale=style.SHADES, zmin=0, zmax=float(table.max()) / scale, xgap=1, ygap=1,
        colorbar=style.bar_of_shades(f"{title}, {unit}"),
        **({"text": figures, "texttemplate": "%{text}", "textfont": {"size": 12}} if shown else {}),
    )  # fmt: skip
    x_axis = {"title": waiting.across, **style.list_ticks([style.figure_text(name, 24) for name in names], 14)}
    if len(groups) > 5 and max(map(len, names)) > 8:
        # Leaning to the left: the last label of a narrow page is not cut.
        x_axis["tickangle"] = -30
    return style.axes(fig, x_axis, {**style.list_ticks(ranks, ROWS), "autorange": "reversed"})


def _drawn(waiting: Waiting) -> NDArray[np.int64]:
    """Which ranks are drawn: of more than FEW_RANKS only those with any waiting, of those at most ROWS."""
    total = waiting.ns.sum(axis=1)
    order = np.argsort(-total, kind="stable")[:ROWS]
    return np.sort(order[total[order] > 0] if len(total) > FEW_RANKS else order)


def drawn_words(waiting: Waiting) -> str:
    """Say which ranks are left out of the figure; empty where none is."""
    shown, all_ranks = len(_drawn(waiting)), len(waiting.ranks)
    some = int((waiting.ns.sum(axis=1) > 0).sum())
    if shown == all_ranks:
        return ""
    if shown < some:
        return f" The {shown} ranks with most of it are drawn, of {some} that have any."
    return f" Only ranks that have any are drawn: {shown} of {all_ranks}."
