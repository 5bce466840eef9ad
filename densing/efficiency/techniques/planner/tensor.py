"""How the sums of a tensor-parallel group are placed among the modules."""

from __future__ import annotations

from typing import Protocol

from densing.efficiency.techniques.planner.events import Event
from densing.efficiency.techniques.planner.passes import Pass


class TensorSchedule(Protocol):
    """Lays out one pass of one micro-batch over a stage."""

    def lay(self, run: Pass, after: Event) -> Event:
        """Add the pass's tasks, and return when its output is there."""


class Blocking:
    """Each module's sum before the next module; without a tensor-parallel group, just the modules.

    Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3 (recalled).
    """

    def lay(self, run: Pass, after: Event) -> Event:
        """Add the pass's tasks, and return when its output is there."""
        for module in run.modules:
            after = run.compute(module, after)
            if run.reduces(module):
                after = run.reduce(module, after)
        return after
