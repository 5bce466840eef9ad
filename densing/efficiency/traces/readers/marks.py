"""Which marks of training steps count: threads may repeat one another's, and marks may nest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from densing.efficiency.timeline import Step


class Mark(NamedTuple):
    """A step as one thread marked it."""

    step: Step
    lane: int


def merge_marks(marks: Sequence[Mark]) -> tuple[Step, ...]:
    """Return each step once, by start.

    Of marks with one number on several threads those of one thread stay: of the thread with most marks, of equals that
    which began first. Then a mark inside a longer one goes. Repeats on one thread stay: a file may hold two recordings.

    Examples
    --------
    >>> outer, nested, other = Step(1, 0, 100), Step(1, 10, 50), Step(1, 3, 103)
    >>> merge_marks([Mark(outer, 0), Mark(other, 1), Mark(nested, 0)])
    (Step(number=1, start=0, end=100),)
    """
    return _outermost(_one_thread_each(marks))


def _one_thread_each(marks: Sequence[Mark]) -> list[Step]:
    """Leave out what a better thread marks too; one order of threads for all numbers, lest steps take turns."""
    lanes: dict[int, list[int]] = {}
    for mark in marks:
        lanes.setdefault(mark.lane, []).append(mark.step.start)
    order = sorted(lanes, key=lambda lane: (-len(lanes[lane]), min(lanes[lane]), lane))
    place = {lane: at for at, lane in enumerate(order)}
    best: dict[int, int] = {}
    for mark in marks:
        number = mark.step.number
        best[number] = min(best.get(number, len(order)), place[mark.lane])
    return [mark.step for mark in marks if best[mark.step.number] == place[mark.lane]]


def _outermost(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Leave out steps that lie inside a longer one; twins stay."""
    kept: list[Step] = []
    reach: Step | None = None
    # Longer first: what holds a step comes before it, and the first to reach furthest holds whatever any of them holds.
    for step in sorted(steps, key=lambda step: (step.start, -step.end)):
        if reach and step.start < reach.end >= step.end and (step.start, step.end) != (reach.start, reach.end):
            continue
        kept.append(step)
        if reach is None or step.end > reach.end:
            reach = step
    return tuple(kept)
