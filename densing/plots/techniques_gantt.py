"""Timelines under one another on equal axes: techniques beside each other, recorded beside simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from densing.efficiency.timeline import Kind, Window, picture, subtract, union
from densing.plots.efficiency_timeline import Drawing, Shown, arrange, plot_timeline

if TYPE_CHECKING:
    from densing.efficiency.timeline import RankTimeline, Timeline

MOST_RANKS = 8
MOST_SPANS = 240
"""Work of one rank; more is put together, or it would be too narrow to see what is exposed."""
BINS = 200
"""Parts of a step within which work is put together."""
ALIKE = 1.01
"""Steps whose lengths differ by less than this factor are alike."""


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
    """Return which step is drawn: of a recording the middle one; of a simulation the longest of its second half.

    A simulation begins with steps that are not yet steady, and a technique that communicates only now and then has
    steps without: the longest shows what happens. Where steps are alike it is the middle one. None without marks.

    Examples
    --------
    >>> from densing.efficiency.timeline.spans import Spans
    >>> from densing.efficiency.timeline.timeline import RankTimeline, Step, Timeline
    >>> steps = tuple(Step(number, 10 * number, 10 * number + 10) for number in range(5))
    >>> chosen_step(Timeline((RankTimeline(0, Spans.empty(), Spans.empty(), steps=steps),))).number
    2
    """
    ranks = [rank for rank in timeline.ranks[:MOST_RANKS] if rank.steps]
    if not ranks:
        return None
    count = min(len(rank.steps) for rank in ranks)
    lengths = np.mean([[step.end - step.start for step in rank.steps[:count]] for rank in ranks], axis=0)
    first = count // 2 if all(rank.origin.simulated for rank in ranks) else 0
    at = first + (count - first) // 2 if first else count // 2
    if first:
        longest = first + int(np.argmax(lengths[first:]))
        at = longest if lengths[longest] > ALIKE * lengths[at] else at
    return Chosen(at, ranks[0].steps[at].number, float(lengths[at]), float(lengths[first:].mean()))


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
    >>> from densing.efficiency.timeline.spans import Kind, Spans
    >>> from densing.efficiency.timeline.timeline import RankTimeline, Timeline
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
    shown = timeline.ranks[:MOST_RANKS]
    simulated = all(rank.origin.simulated for rank in shown)
    step = chosen_step(timeline)
    windows = {rank.rank: _window(rank, step) for rank in shown}
    pictures = {}
    for rank in shown:
        # Without marks of steps the whole window is drawn.
        bare = msgspec.structs.replace(rank, steps=())
        drawn = picture(bare, windows[rank.rank])
        if drawn.boxes:
            pictures[rank.rank] = msgspec.structs.replace(drawn, step=step.number if step else -1)
    drawing = arrange(pictures, {} if simulated else None)
    first = min((windows[rank].start for rank in pictures), default=0)
    boxes = dict(drawing.boxes)
    for number in pictures:
        window = windows[number]
        if len(window.work) > MOST_SPANS:
            copies = [box for box in boxes[number] if box.row > 1]
            boxes[number] = (*_together(window, first if simulated else window.start), *copies)
    return replace(drawing, boxes=boxes)


def _window(rank: RankTimeline, step: Chosen | None) -> Window:
    if step is not None and step.at < len(rank.steps):
        start, end = rank.steps[step.at].start, rank.steps[step.at].end
    elif len(rank.work):
        start, end = int(rank.work.start.min()), int(rank.work.end.max())
    else:
        start, end = 0, 0
    return Window("all", start, end, rank.work.within(start, end))


def _together(window: Window, zero: int) -> list[Shown]:
    """Rectangles of the work of a window, put together within each part of it."""
    compute, comm = (union(part.start, part.end) for part in (window.work.of(Kind.COMPUTE), window.work.of(Kind.COMM)))
    edges = np.linspace(window.start, window.end, BINS + 1)
    computes, communicates, bare = (np.diff(_covered(ends, edges)) for ends in (compute, comm, subtract(comm, compute)))
    stops = edges[1:] - zero
    rows = (
        (0, False, stops - bare - computes, stops - bare, "compute"),
        (1, False, stops - communicates, stops, "communication"),
        (1, True, stops - bare, stops, ""),
    )
    return [
        Shown(row, start, end, 1, name and f"{name} of this part of the step, put together", "", exposed)
        for row, exposed, starts, ends, name in rows
        for start, end in zip(*(each.tolist() for each in union(_whole(starts), _whole(ends))), strict=True)
    ]


def _whole(values: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(values).astype(np.int64)


def _covered(ends: tuple[NDArray[np.int64], NDArray[np.int64]], at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Time covered by intervals up to each moment."""
    starts, stops = ends
    if not len(starts):
        return np.zeros(len(at))
    total = np.cumsum(stops - starts)
    moments = np.column_stack([starts, stops]).ravel()
    return np.interp(at, moments, np.column_stack([total - (stops - starts), total]).ravel())
