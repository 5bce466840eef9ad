"""Which part of a trace counts: three windows, always named beside a number.

- ``all``: all that keeps the device busy; from the first start to the last end.
- ``steps``: from the start of the first to the end of the last step, device spans cut to it. Steps are the host's
  ``ProfilerStep`` ranges; here every one of them counts, whatever thread marks it.
- ``hta``: the rule of HolisticTraceAnalysis, without its rounding and with the host's markers only: device spans that
  were launched before the last step began; all of them where the markers bear one name or there are none. A span of
  MTIA stands for its own launch.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from densing.core import InputError
from densing.efficiency.timeline.spans import Kind, Spans
from densing.efficiency.timeline.timeline import RankTimeline, Step

WindowName = Literal["steps", "all", "hta"]
WINDOWS: tuple[WindowName, ...] = ("steps", "all", "hta")


class Window(msgspec.Struct, frozen=True, eq=False):
    """A window of one rank: its name, its ends (ns) and the busy work inside, cut to it."""

    name: WindowName
    start: int
    end: int
    work: Spans


def default_window(rank: RankTimeline) -> WindowName:
    """Return ``steps`` where the trace marks steps, else ``all``."""
    return "steps" if rank.steps else "all"


def select(rank: RankTimeline, name: WindowName | None = None) -> Window:
    """Cut a rank's work to a window; that of a rank whose device tells nothing has no length and no work.

    Raises
    ------
    InputError
        When ``steps`` is asked of a trace that marks none.
    """
    name = name or default_window(rank)
    if name == "steps":
        marks = rank.marked
        if marks is None:
            raise InputError(
                f"{rank.origin.source}: marks no ProfilerStep, so there is no window 'steps'; use --window all"
            )
        if rank.blind:
            return Window(name, marks.start, marks.start, Spans.empty())
        return Window(name, marks.start, marks.end, _busy(rank.work.within(marks.start, marks.end)))
    work = Spans.empty() if rank.blind else _busy(_launched_before_last_step(rank) if name == "hta" else rank.work)
    start, end = (int(work.start.min()), int(work.end.max())) if len(work) else (0, 0)
    return Window(name, start, end, work)


def _busy(work: Spans) -> Spans:
    """Leave out what keeps nothing busy: records of synchronisation, and work that no rule knows."""
    chosen = (work.kind <= Kind.MEMSET) | (work.kind == Kind.CALL)
    return work if chosen.all() else work.take(chosen)


def counted_steps(rank: RankTimeline, window: Window) -> tuple[Step, ...]:
    """Return the steps whose work a window holds: all of them, in window ``hta`` those that begin before its cut.

    Examples
    --------
    >>> rank = RankTimeline(0, Spans.empty(), Spans.empty(), (Step(1, 0, 100), Step(2, 100, 200)))
    >>> [step.number for step in counted_steps(rank, select(rank, "hta"))]
    [1]
    """
    if rank.blind:
        return ()
    cut = _cut(rank) if window.name == "hta" else None
    return rank.steps if cut is None else tuple(step for step in rank.steps if step.start < cut)


def _cut(rank: RankTimeline) -> int | None:
    """Where the step begins that window ``hta`` leaves out, ns; None where it leaves out none."""
    marks = rank.marked
    return None if marks is None or marks.names < 2 or rank.on_host else marks.last


def _launched_before_last_step(rank: RankTimeline) -> Spans:
    cut = _cut(rank)
    if cut is None:
        return rank.work
    early = [
        spans.correlation[(spans.start < cut) & (spans.correlation >= 0)] for spans in (rank.host, rank.self_launched)
    ]
    return rank.work.take(np.isin(rank.work.correlation, np.concatenate(early)))
