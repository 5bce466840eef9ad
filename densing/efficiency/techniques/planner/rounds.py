"""Rounds of local steps: what techniques that exchange only now and then share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from densing.efficiency.techniques.knobs import Knob, above_zero, whole
from densing.efficiency.techniques.planner.base import DataParallelRun, Replicated
from densing.efficiency.techniques.planner.exchange import Exchange
from densing.efficiency.techniques.planner.stage import Stage

STATE = 6
"""Numbers of four bytes beside an average: in a run, three of eight tell the others what a rank is about to do."""
TAU = Knob("tau", 48, "steps per round (48: outer_frequency of CO2's released class)", whole(1))
PIECE = Knob("bucket_mb", 25.0, "mebibytes sent together where tensor-parallel groups use the same link", above_zero)


class Rounds(Exchange):
    """Every ``tau`` steps the replicas agree.

    Parameters
    ----------
    stage : Stage
    tau : int
    bucket_mb : float
        Pieces of the average, where another group needs the link too.
    """

    def __init__(self, stage: Stage, tau: int, bucket_mb: float = 25.0) -> None:
        super().__init__(stage)
        self.tau, self.bucket_mb = tau, bucket_mb

    @property
    def ends(self) -> bool:
        """Whether the step being planned is a round's last."""
        return self._ends(self.stage.graph.step)

    @property
    def repeats(self) -> bool:
        """Whether neither this step nor the two before are a round's last."""
        step = self.stage.graph.step
        return not any(self._ends(each) for each in (step, step - 1, step - 2))

    def _ends(self, step: int) -> bool:
        return (step + 1) % self.tau == 0


class Local(DataParallelRun, Replicated):
    """A technique of rounds."""

    def window(self, knobs: Mapping[str, Any]) -> tuple[int, int]:
        """Return one round of warm-up and one measured."""
        return knobs["tau"], knobs["tau"]
