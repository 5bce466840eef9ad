"""Timelines under one another on equal axes: techniques beside each other, recorded beside simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import plotly.graph_objects as go

from densing.plots.efficiency_timeline import Drawing, arrange, plot_timeline
from densing.timeline.picture import picture
from densing.timeline.windows import Window

if TYPE_CHECKING:
    from densing.timeline.picture import Picture
    from densing.timeline.timeline import RankTimeline, Timeline

MOST_RANKS = 8
STEPS = 2
MOST_SPANS = 240
"""Work of one rank; more would be too narrow to see what is exposed."""


def plot_gantts(timelines: Sequence[Timeline], steps: int = STEPS) -> list[go.Figure]:
    """Draw the middle steps of several timelines, each a figure, all with the same length of axis.

    Where a rank does more than :data:`MOST_SPANS` things in these steps, only their beginning is drawn.

    Parameters
    ----------
    timelines : sequence of Timeline
        Recorded or simulated. Ranks of a simulation share a clock; of a recording each rank's steps begin at zero.
    steps : int
        Steps drawn of each; without step marks all of it is.

    Examples
    --------
    >>> from densing.timeline.spans import Kind, Spans
    >>> from densing.timeline.timeline import RankTimeline, Timeline
    >>> work = Spans.build([{"start": 0, "end": 5, "kind": Kind.COMPUTE, "name": "gemm"}])
    >>> long = Spans.build([{"start": 0, "end": 20, "kind": Kind.COMPUTE, "name": "gemm"}])
    >>> lines = [Timeline((RankTimeline(0, spans, Spans.empty()),)) for spans in (work, long)]
    >>> [figure.layout.xaxis.range for figure in plot_gantts(lines)]
    [(0, 20.0), (0, 20.0)]
    """
    longest = max((drawn_ns(timeline, steps) for timeline in timelines), default=0)
    drawings = [arranged(timeline, steps, longest) for timeline in timelines]
    return [plot_timeline(replace(drawing, length_ns=longest)) for drawing in drawings]


def drawn_ns(timeline: Timeline, steps: int = STEPS) -> int:
    """Return how long a stretch of a timeline can be drawn, nanoseconds: its middle steps, or less where they are full.

    Examples
    --------
    >>> from densing.timeline.spans import Kind, Spans
    >>> from densing.timeline.timeline import RankTimeline, Timeline
    >>> rows = [{"start": 10 * n, "end": 10 * n + 9, "kind": Kind.COMPUTE, "name": "gemm"} for n in range(1000)]
    >>> drawn_ns(Timeline((RankTimeline(0, Spans.build(rows), Spans.empty()),)))
    2400
    """
    lengths = []
    for rank in timeline.ranks[:MOST_RANKS]:
        start, end, _ = _stretch(rank, steps)
        begins = rank.work.within(start, end).start
        lengths.append((int(begins[MOST_SPANS]) if len(begins) > MOST_SPANS else end) - start)
    return max(lengths, default=0)


def arranged(timeline: Timeline, steps: int, length_ns: int) -> Drawing:
    """Put the middle steps of the first :data:`MOST_RANKS` ranks on one axis, cut to a length."""
    shown = timeline.ranks[:MOST_RANKS]
    simulated = all(rank.origin.simulated for rank in shown)
    stretches = {rank.rank: _stretch(rank, steps) for rank in shown}
    first = min((start for start, _, _ in stretches.values()), default=0)
    pictures: dict[int, Picture] = {}
    for rank in shown:
        start, end, step = stretches[rank.rank]
        stop = min(end, (first if simulated else start) + length_ns)
        drawn = _picture(rank, start, max(stop, start), step)
        pictures |= {rank.rank: drawn} if drawn.boxes else {}
    return arrange(pictures, {} if simulated else None)


def _stretch(rank: RankTimeline, steps: int) -> tuple[int, int, int]:
    """Where the middle steps begin and end, and the number of the first (-1 without)."""
    first = max(0, (len(rank.steps) - steps) // 2)
    chosen = rank.steps[first : first + steps]
    if chosen:
        return chosen[0].start, max(step.end for step in chosen), chosen[0].number
    work = rank.work
    return (int(work.start.min()), int(work.end.max()), -1) if len(work) else (0, 0, -1)


def _picture(rank: RankTimeline, start: int, end: int, step: int) -> Picture:
    # Without marks of steps the whole window is drawn.
    bare = msgspec.structs.replace(rank, steps=())
    drawn = picture(bare, Window("all", start, end, rank.work.within(start, end)))
    return msgspec.structs.replace(drawn, step=step)
