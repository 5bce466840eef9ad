"""One step of several ranks on one axis: what computed, what communicated, and what of it was exposed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from densing.efficiency.timeline import subtract, union
from densing.plots import style, text
from densing.plots.efficiency_style import COMPUTE, COPIES, EXPOSED, Look
from densing.plots.efficiency_text import duration, unit_of

if TYPE_CHECKING:
    from densing.efficiency.timeline import Box, Picture

MOST_BOXES = 6000
"""More rectangles than this make a page slow; neighbours are joined until they are as few."""
ROW, GAP = 15, 9
_COMM = Look("comm", "communication, hidden", style.PURPLE, "/")
_EXPOSED = EXPOSED._replace(pattern="")
# Top to bottom within a rank.
_ROWS = (COMPUTE, _COMM, COPIES._replace(label="copies and fills", pattern=""))
_ROW_OF = {"compute": 0, "comm": 1, "memcpy": 2, "memset": 2}


class Shown(NamedTuple):
    """A rectangle: row within its rank, ends (ns after the axis' zero), spans it stands for, longest name, lane."""

    row: int
    start: int
    end: int
    pieces: int
    name: str
    lane: str
    exposed: bool = False


@dataclass(frozen=True)
class Drawing:
    """A step ready to be drawn.

    Attributes
    ----------
    ranks : tuple of int
        From top to bottom.
    boxes : mapping of int to tuple of Shown
        By rank.
    length_ns : int
        From the earliest start to the latest end of the ranks' steps.
    pixel_ns : int
        Work closer than this is drawn as one; 0 if nothing was joined here.
    """

    ranks: tuple[int, ...]
    boxes: Mapping[int, tuple[Shown, ...]]
    length_ns: int
    pixel_ns: int


def same_step(pictures: Mapping[int, Picture]) -> dict[int, Picture]:
    """Return the pictures of the step that most ranks show, those with nothing in them left out.

    Examples
    --------
    >>> from densing.efficiency.timeline.steps import Box, Picture
    >>> box = (Box("", "compute", 0, 5, 1, "gemm"),)
    >>> list(same_step({0: Picture(3, 0, 9, box), 1: Picture(4, 0, 9, box), 2: Picture(4, 0, 9, box)}))
    [1, 2]
    """
    drawn = {rank: picture for rank, picture in pictures.items() if picture.boxes}
    if not drawn:
        return {}
    [(step, _)] = Counter(picture.step for picture in drawn.values()).most_common(1)
    return {rank: picture for rank, picture in drawn.items() if picture.step == step}


def arrange(pictures: Mapping[int, Picture], offsets: Mapping[int, int] | None) -> Drawing:
    """Put the ranks' steps on one axis.

    Parameters
    ----------
    pictures : mapping of rank to Picture
    offsets : mapping of rank to int or None
        Nanoseconds to subtract from a rank's times; None where clocks cannot be compared: then every rank's step
        begins at zero.
    """
    if not pictures:
        return Drawing((), {}, 0, 0)
    shift = {rank: picture.start_ns if offsets is None else offsets.get(rank, 0) for rank, picture in pictures.items()}
    zero = min(picture.start_ns - shift[rank] for rank, picture in pictures.items())
    length = max(picture.end_ns - shift[rank] for rank, picture in pictures.items()) - zero
    rows = {rank: _rows_of(picture.boxes, shift[rank] + zero) for rank, picture in pictures.items()}
    pixel, drawn = 0, rows
    while sum(map(len, drawn.values())) > MOST_BOXES:
        pixel = max(pixel * 2, length // 2000, 1)
        drawn = {rank: joined(boxes, pixel) for rank, boxes in rows.items()}
    return Drawing(tuple(sorted(pictures)), {rank: tuple(boxes) for rank, boxes in drawn.items()}, length, pixel)


def _rows_of(boxes: Sequence[Box], zero: int) -> list[Shown]:
    """Boxes of one rank, and over its communication the part that no compute covers."""
    shown = [
        Shown(_ROW_OF[box.kind], box.start_ns - zero, box.end_ns - zero, box.count, box.name, box.lane)
        for box in boxes
        if box.kind in _ROW_OF
    ]
    compute, comm = _union([box for box in shown if box.row == 0]), _union([box for box in shown if box.row == 1])
    bare = zip(*(ends.tolist() for ends in subtract(comm, compute)), strict=True)
    return shown + [Shown(1, start, end, 1, "", "", exposed=True) for start, end in bare]


def _union(boxes: Sequence[Shown]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return union(
        np.array([box.start for box in boxes], np.int64),
        np.array([box.end for box in boxes], np.int64),
    )


def joined(boxes: Sequence[Shown], pixel: int) -> list[Shown]:
    """Join rectangles of one row, lane and sort that lie closer than ``pixel`` nanoseconds.

    Examples
    --------
    >>> one, two = Shown(0, 0, 10, 1, "a", "7"), Shown(0, 12, 40, 1, "b", "7")
    >>> joined([one, two], 5)
    [Shown(row=0, start=0, end=40, pieces=2, name='b', lane='7', exposed=False)]
    """
    found: list[Shown] = []
    longest = 0
    for box in sorted(boxes, key=lambda box: (box.row, box.exposed, box.lane, box.start)):
        last = found[-1] if found else None
        if (
            last is None
            or (last.row, last.exposed, last.lane) != (box.row, box.exposed, box.lane)
            or (box.start > last.end + pixel)
        ):
            found.append(box)
            longest = box.end - box.start
            continue
        name = box.name if box.end - box.start > longest else last.name
        longest = max(longest, box.end - box.start)
        found[-1] = last._replace(end=max(last.end, box.end), pieces=last.pieces + box.pieces, name=name)
    return found


def plot_timeline(drawing: Drawing) -> go.Figure:
    """Draw the step: per rank one row of compute, one of communication (exposed parts laid over it), one of copies.

    Parameters
    ----------
    drawing : Drawing
        From :func:`arrange`.
    """
    if not any(drawing.boxes.values()):
        return style.empty("No work was recorded in the step that was to be drawn.")
    depth = 1 + max(box.row for boxes in drawing.boxes.values() for box in boxes)
    band = depth * ROW + GAP
    scale, unit = unit_of(drawing.length_ns)
    fig = style.figure(130 + band * len(drawing.ranks), barmode="overlay", showlegend=True)
    for row, look in enumerate(_ROWS[:depth]):
        _boxes(fig, drawing, look, row, False, band, scale)
        if row == 1:
            _boxes(fig, drawing, _EXPOSED, row, True, band, scale)
    at = [place * band + (depth - 1) * ROW / 2 for place in range(len(drawing.ranks))]
    y_axis: dict[str, object] = {
        "tickmode": "array",
        "tickvals": at,
        "ticktext": [f"rank {rank}" for rank in drawing.ranks],
    }
    y_axis |= {"range": [len(drawing.ranks) * band - ROW / 2, -GAP - ROW / 2], "showgrid": False, "ticks": ""}
    first = "first rank's " if len(drawing.ranks) > 1 else ""
    title = f"time since the {first}step began, {unit}"
    return style.axes(fig, {"title": title, "range": [0, drawing.length_ns / scale]}, y_axis)


def _boxes(fig: go.Figure, drawing: Drawing, look: Look, row: int, exposed: bool, band: int, scale: float) -> None:
    chosen = [
        (place, rank, box)
        for place, rank in enumerate(drawing.ranks)
        for box in drawing.boxes[rank]
        if box.row == row and box.exposed == exposed
    ]
    if not chosen:
        return
    fig.add_bar(
        base=[box.start / scale for _, _, box in chosen], x=[(box.end - box.start) / scale for _, _, box in chosen],
        y=[place * band + row * ROW for place, _, _ in chosen], width=ROW - 3, orientation="h", name=look.label,
        marker={**look.marker(), "line": {"width": 0.8, "color": look.colour}},
        hoverinfo="text", textposition="none", hovertext=[_words(rank, box, look) for _, rank, box in chosen],
    )  # fmt: skip


def _words(rank: int, box: Shown, look: Look) -> str:
    when = f"{duration(box.end - box.start)}, from {duration(box.start)} to {duration(box.end)}"
    if box.exposed:
        return f"<b>rank {rank}: {look.label}</b><br>{when}"
    what = text.figure_text(box.name, 80)
    many = f"{box.pieces} pieces of work, the longest: " if box.pieces > 1 else ""
    lane = f"<br>lane {text.figure_text(box.lane, 60)}" if box.lane else ""
    return f"<b>rank {rank}: {look.label.split(',')[0]}</b><br>{many}{what}<br>{when}{lane}"
