"""One step as a picture: per lane and kind, rectangles few enough to draw."""

from __future__ import annotations

import numpy as np

from densing.core import Record
from densing.efficiency.timeline.spans import BUSY, Kind, Spans, used
from densing.efficiency.timeline.timeline import RankTimeline
from densing.efficiency.timeline.windows import Window, counted_steps

PIXELS = 1500


class Box(Record, frozen=True, array_like=True):
    """Work of one kind on one lane, drawn as one: its ends (ns), how many spans, and the longest one's name."""

    lane: str
    kind: str
    start_ns: int
    end_ns: int
    count: int
    name: str


class Picture(Record, frozen=True):
    """One step of one rank (or, without steps, its window).

    Attributes
    ----------
    step : int
        Its number; -1 for the window.
    start_ns, end_ns : int
    boxes : tuple of Box
        Spans closer than a pixel (1/1500 of the step) are drawn as one.
    """

    step: int
    start_ns: int
    end_ns: int
    boxes: tuple[Box, ...]


def picture(rank: RankTimeline, window: Window) -> Picture:
    """Draw the middle one of the steps that a window counts.

    Examples
    --------
    >>> from densing.efficiency.timeline.windows import select
    >>> work = Spans.build([{"start": 0, "end": 5, "kind": Kind.COMPUTE, "name": "a"},
    ...                     {"start": 5, "end": 9, "kind": Kind.COMPUTE, "name": "b"}])
    >>> rank = RankTimeline(0, work, Spans.empty())
    >>> [(box.name, box.count, box.end_ns) for box in picture(rank, select(rank)).boxes]
    [('a', 2, 9)]
    """
    step, start, end = (-1, window.start, window.end)
    if steps := counted_steps(rank, window):
        step, start, end = steps[len(steps) // 2]
    spans = window.work.within(start, end).of(*BUSY)
    boxes = [
        box
        for lane in used(spans.lane)
        for kind in BUSY
        for box in _boxes(spans.take((spans.lane == lane) & (spans.kind == kind)), (end - start) // PIXELS)
    ]
    return Picture(step, start, end, tuple(boxes))


def _boxes(spans: Spans, pixel: int) -> list[Box]:
    if not len(spans):
        return []
    reach = np.maximum.accumulate(spans.end)
    first = np.concatenate(([True], spans.start[1:] > reach[:-1] + pixel))
    begins = np.flatnonzero(first)
    ends = np.append(begins[1:], len(spans))
    lane = spans.lanes[spans.lane[0]]
    label = " ".join(part for part in (lane.process, lane.thread) if part)
    kind = Kind(int(spans.kind[0])).name.lower()
    duration = spans.end - spans.start
    rows = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        longest = begin + int(duration[begin:end].argmax())
        name = spans.names[spans.name[longest]][:200]
        rows.append(Box(label, kind, int(spans.start[begin]), int(reach[end - 1]), end - begin, name))
    return rows
