"""Which part of a trace counts: three windows, always named beside a number.

- ``all``: all that keeps the device busy; from the first start to the last end.
- ``steps``: from the start of the first to the end of the last step, device spans cut to it. Steps are the host's
  ``ProfilerStep`` ranges.
- ``hta``: the rule of HolisticTraceAnalysis, without its rounding and with the host's markers only: device spans that
  were launched before the last step began; all of them where the trace marks one step or none.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from densing.errors import InputError
from densing.timeline.spans import Kind, Spans
from densing.timeline.timeline import RankTimeline

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
    """Cut a rank's work to a window.

    Raises
    ------
    InputError
        When ``steps`` is asked of a trace that marks none.
    """
    name = name or default_window(rank)
    if name == "steps":
        if not rank.steps:
            raise InputError(
                f"{rank.origin.source}: marks no ProfilerStep, so there is no window 'steps'; use --window all"
            )
        start, end = rank.steps[0].start, max(step.end for step in rank.steps)
        return Window(name, start, end, _busy(rank.work.within(start, end)))
    work = _busy(_launched_before_last_step(rank) if name == "hta" else rank.work)
    start, end = (int(work.start.min()), int(work.end.max())) if len(work) else (0, 0)
    return Window(name, start, end, work)


def _busy(work: Spans) -> Spans:
    """Leave out what keeps nothing busy: records of synchronisation, and work that no rule knows."""
    chosen = (work.kind <= Kind.MEMSET) | (work.kind == Kind.CALL)
    return work if chosen.all() else work.take(chosen)


def _launched_before_last_step(rank: RankTimeline) -> Spans:
    if len({step.number for step in rank.steps}) < 2 or rank.on_host:
        return rank.work
    cut = max(step.start for step in rank.steps)
    early = rank.host.correlation[(rank.host.start < cut) & (rank.host.correlation >= 0)]
    return rank.work.take(np.isin(rank.work.correlation, early))
