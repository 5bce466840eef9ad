"""One step of several ranks on one axis: what computed, what communicated, and what of it was exposed.

Of several timelines the axes are equal: techniques beside each other, recorded beside simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from densing.core import formatting
from densing.efficiency.timeline import Kind, Window, picture, subtract, union
from densing.plots import style
from densing.plots.partition import COMPUTE, COPIES, EXPOSED, Look

if TYPE_CHECKING:
    from densing.efficiency.timeline import Picture, Timeline


MOST_BOXES = 6000
"""More rectangles than this make a page slow; neighbours are joined until they are as few."""
MOST_RANKS = 8
MOST_SPANS = 240
"""Work of one rank; more is put together, or it would be too narrow to see what is exposed."""
BINS = 200
"""Parts of a step within which work is put together."""
ALIKE = 1.01
"""Steps whose lengths differ by less than this factor are alike."""
ROW, GAP = 15, 9
HOLLOW = "rgba(0,0,0,0)"
_COMM = Look("comm", "communication, hidden", style.PURPLE)
# Top to bottom within a rank.
_ROWS = (COMPUTE, _COMM, COPIES._replace(label="copies and fills"))
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
    >>> from densing.efficiency.timeline import Box, Picture
    >>> box = (Box("", "compute", 0, 5, 1, "gemm"),)
    >>> list(same_step({0: Picture(3, 0, 9, box), 1: Picture(4, 0, 9, box), 2: Picture(4, 0, 9, box)}))
    [1, 2]
    """
    filled = {rank: picture for rank, picture in pictures.items() if picture.boxes}
    if not filled:
        return {}
    [(step, _)] = Counter(picture.step for picture in filled.values()).most_common(1)
    return {rank: picture for rank, picture in filled.items() if picture.step == step}


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
    rows: dict[int, list[Shown]] = {}
    for rank, recorded in pictures.items():
        start = shift[rank] + zero
        work = [
            Shown(_ROW_OF[box.kind], box.start_ns - start, box.end_ns - start, box.count, box.name, box.lane)
            for box in recorded.boxes
            if box.kind in _ROW_OF
        ]
        # Over a rank's communication lies the part of it that no compute covers.
        compute, comm = (_union([box for box in work if box.row == row]) for row in (0, 1))
        bare = zip(*(ends.tolist() for ends in subtract(comm, compute)), strict=True)
        rows[rank] = work + [Shown(1, start, end, 1, "", "", exposed=True) for start, end in bare]
    pixel, boxes = 0, rows
    while sum(map(len, boxes.values())) > MOST_BOXES:
        # A page has about so many pixels across; closer than one of them nothing can be told apart anyway.
        pixel = max(pixel * 2, length // 2000, 1)
        boxes = {rank: joined(row, pixel) for rank, row in rows.items()}
    return Drawing(tuple(sorted(pictures)), {rank: tuple(row) for rank, row in boxes.items()}, length, pixel)


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
    merged: list[Shown] = []
    longest = 0
    for box in sorted(boxes, key=lambda box: (box.row, box.exposed, box.lane, box.start)):
        last = merged[-1] if merged else None
        if (
            last is None
            or (last.row, last.exposed, last.lane) != (box.row, box.exposed, box.lane)
            or (box.start > last.end + pixel)
        ):
            merged.append(box)
            longest = box.end - box.start
            continue
        name = box.name if box.end - box.start > longest else last.name
        longest = max(longest, box.end - box.start)
        merged[-1] = last._replace(end=max(last.end, box.end), pieces=last.pieces + box.pieces, name=name)
    return merged


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
    scale, unit = formatting.unit_of(drawing.length_ns)
    fig = style.figure(130 + band * len(drawing.ranks), barmode="overlay", showlegend=True)
    for row, look in enumerate(_ROWS[:depth]):
        _boxes(fig, drawing, look, row, False, band, scale)
        if row == 1:
            _boxes(fig, drawing, EXPOSED, row, True, band, scale)
    y_axis: dict[str, object] = {
        "tickmode": "array",
        "tickvals": [index * band + (depth - 1) * ROW / 2 for index in range(len(drawing.ranks))],
        "ticktext": [f"rank {rank}" for rank in drawing.ranks],
    }
    y_axis |= {"range": [len(drawing.ranks) * band - ROW / 2, -GAP - ROW / 2], "showgrid": False, "ticks": ""}
    first = "first rank's " if len(drawing.ranks) > 1 else ""
    title = f"time since the {first}step began, {unit}"
    return style.axes(fig, {"title": title, "range": [0, drawing.length_ns / scale]}, y_axis)


def _boxes(fig: go.Figure, drawing: Drawing, look: Look, row: int, exposed: bool, band: int, scale: float) -> None:
    chosen = [
        (index, rank, box)
        for index, rank in enumerate(drawing.ranks)
        for box in drawing.boxes[rank]
        if box.row == row and box.exposed == exposed
    ]
    if not chosen:
        return
    hover = []
    for _, rank, box in chosen:
        when = (
            f"{formatting.duration(box.end - box.start)}, from {formatting.duration(box.start)} to "
            f"{formatting.duration(box.end)}"
        )
        if exposed:
            hover.append(style.hover(f"rank {rank}: {look.label}", when))
            continue
        count = f"{box.pieces} pieces of work, the longest: " if box.pieces > 1 else ""
        lane = f"lane {style.figure_text(box.lane, 60)}" if box.lane else ""
        name = style.figure_text(box.name, 80)
        hover.append(style.hover(f"rank {rank}: {look.label.split(',')[0]}", count + name, when, lane))
    # What is hidden is hollow. A pattern would say so, too, but a browser prints thousands of them for minutes.
    marker = {"color": HOLLOW if look is _COMM else look.colour, "line": {"width": 0.8, "color": look.colour}}
    fig.add_bar(
        base=[box.start / scale for _, _, box in chosen], x=[(box.end - box.start) / scale for _, _, box in chosen],
        y=[index * band + row * ROW for index, _, _ in chosen], width=ROW - 3, orientation="h", name=look.label,
        marker=marker,
        hoverinfo="text", textposition="none", hovertext=hover,
    )  # fmt: skip


class Chosen(NamedTuple):
    """The step that is drawn.

    Attributes
    ----------
    at : int
        Its place among the marked steps of each rank.
    number : int
    length_ns, mean_ns : float
        Its own length, and the mean one of the steps it was chosen from; means of the ranks.
    """

    at: int
    number: int
    length_ns: float
    mean_ns: float


def chosen_step(timeline: Timeline) -> Chosen | None:
    """Return which step is drawn: of a recording the middle one; of a simulation, whose steps are steady, the longest.

    A technique that communicates only now and then has steps without: the longest shows what happens, the last of
    several. Where steps are alike it is the middle one. None without marks.

    Examples
    --------
    >>> from densing.efficiency.timeline import RankTimeline, Spans, Step, Timeline
    >>> steps = tuple(Step(number, 10 * number, 10 * number + 10) for number in range(5))
    >>> chosen_step(Timeline((RankTimeline(0, Spans.empty(), Spans.empty(), steps=steps),))).number
    2
    """
    ranks = [rank for rank in timeline.ranks[:MOST_RANKS] if rank.steps]
    if not ranks:
        return None
    count = min(len(rank.steps) for rank in ranks)
    lengths = np.mean([[step.end - step.start for step in rank.steps[:count]] for rank in ranks], axis=0)
    at = count // 2
    if all(rank.origin.simulated for rank in ranks):
        longest = count - 1 - int(np.argmax(lengths[::-1]))
        at = longest if lengths[longest] > ALIKE * lengths[at] else at
    return Chosen(at, ranks[0].steps[at].number, float(lengths[at]), float(lengths.mean()))


def plot_gantts(timelines: Sequence[Timeline]) -> list[go.Figure]:
    """Draw one whole step of several timelines, each a figure, all with the same length of axis.

    Where a rank does more than :data:`MOST_SPANS` things in it, work is put together within each 1/200 of the step:
    idle time first, then compute, then exposed communication, so that every share of time is right and only the order
    within a part is not.

    Parameters
    ----------
    timelines : sequence of Timeline
        Recorded or simulated. Ranks of a simulation share a clock; of a recording each rank's step begins at zero.
        Without step marks all of it is drawn.

    Examples
    --------
    >>> from densing.efficiency.timeline import Kind, RankTimeline, Spans, Timeline
    >>> work = Spans.build([{"start": 0, "end": 5, "kind": Kind.COMPUTE, "name": "gemm"}])
    >>> long = Spans.build([{"start": 0, "end": 20, "kind": Kind.COMPUTE, "name": "gemm"}])
    >>> lines = [Timeline((RankTimeline(0, spans, Spans.empty()),)) for spans in (work, long)]
    >>> [figure.layout.xaxis.range for figure in plot_gantts(lines)]
    [(0, 20.0), (0, 20.0)]
    """
    drawings = [arranged(timeline) for timeline in timelines]
    longest = max((drawing.length_ns for drawing in drawings), default=0)
    return [plot_timeline(replace(drawing, length_ns=longest)) for drawing in drawings]


def arranged(timeline: Timeline) -> Drawing:
    """Put the chosen step of the first :data:`MOST_RANKS` ranks on one axis."""
    ranks = timeline.ranks[:MOST_RANKS]
    simulated = all(rank.origin.simulated for rank in ranks)
    step = chosen_step(timeline)
    windows = {}
    pictures = {}
    for rank in ranks:
        if step is not None and step.at < len(rank.steps):
            start, end = rank.steps[step.at].start, rank.steps[step.at].end
        elif len(rank.work):
            start, end = int(rank.work.start.min()), int(rank.work.end.max())
        else:
            start, end = 0, 0
        windows[rank.rank] = Window("all", start, end, rank.work.within(start, end))
        # Without marks of steps the picture is of the whole window.
        bare = msgspec.structs.replace(rank, steps=())
        step_picture = picture(bare, windows[rank.rank])
        if step_picture.boxes:
            pictures[rank.rank] = msgspec.structs.replace(step_picture, step=step.number if step else -1)
    drawing = arrange(pictures, {} if simulated else None)
    first = min((windows[rank].start for rank in pictures), default=0)
    boxes = dict(drawing.boxes)
    for number in pictures:
        window = windows[number]
        if len(window.work) > MOST_SPANS:
            copies = [box for box in boxes[number] if box.row > 1]
            boxes[number] = (*_binned(window, first if simulated else window.start), *copies)
    return replace(drawing, boxes=boxes)


def _binned(window: Window, zero: int) -> list[Shown]:
    """Rectangles of the work of a window, put together within each part of it."""

    def covered(ends: tuple[NDArray[np.int64], NDArray[np.int64]], moments: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the time that intervals cover up to each moment."""
        starts, stops = ends
        if not len(starts):
            return np.zeros(len(moments))
        # It rises along each interval and is level between them, so its values at the corners tell all of it.
        total = np.cumsum(stops - starts)
        corners = np.column_stack([starts, stops]).ravel()
        return np.interp(moments, corners, np.column_stack([total - (stops - starts), total]).ravel())

    compute, comm = (union(part.start, part.end) for part in (window.work.of(Kind.COMPUTE), window.work.of(Kind.COMM)))
    edges = np.linspace(window.start, window.end, BINS + 1)
    computes, communicates, bare = (np.diff(covered(ends, edges)) for ends in (compute, comm, subtract(comm, compute)))
    stops = edges[1:] - zero
    # Each part of the step is stacked from its right end: bare communication last, compute before it.
    rows = (
        (0, False, stops - bare - computes, stops - bare, "compute"),
        (1, False, stops - communicates, stops, "communication"),
        (1, True, stops - bare, stops, ""),
    )
    return [
        Shown(row, start, end, 1, name and f"{name} of this part of the step, put together", "", exposed)
        for row, exposed, starts, ends, name in rows
        for start, end in zip(
            *(each.tolist() for each in union(*(np.rint(edge).astype(np.int64) for edge in (starts, ends)))),
            strict=True,
        )
    ]
