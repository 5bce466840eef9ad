"""Ladder-Residual: a module reads the residual without its predecessor's output, whose sum runs beneath it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from densing.core import InputError
from densing.efficiency.simulation import Module
from densing.efficiency.techniques.planner import (
    BLOCK,
    BUCKET,
    MODE,
    NOTHING,
    Event,
    Pass,
    Sliced,
    TensorParallelRun,
    TensorSchedule,
    optional,
    whole,
)
from densing.efficiency.techniques.protocol import Claim, Knob

if TYPE_CHECKING:
    from densing.efficiency.parallel import Schedule
    from densing.efficiency.simulation import Cluster, Workload


class Late:
    """Each module waits for all sums but the newest; backward likewise, for the gradient skips a module too.

    Parameters
    ----------
    first : int
        Layers from this one on are of this kind; those before sum as usual.
    """

    def __init__(self, first: int = 0) -> None:
        self.first = first

    def lay(self, run: Pass, after: Event) -> Event:
        """Add the pass's tasks, and return when its output is there."""
        # A sum runs after those before it on the same stream: waiting for one is waiting for all up to it.
        ready, newest = after, NOTHING
        for module in run.modules:
            late = self._late(module)
            if not late:
                ready, newest = newest or ready, NOTHING
            done = run.compute(module, ready)
            summed = run.reduce(module, done) if run.reduces(module) else done
            if late:
                ready, newest = newest or ready, summed
            else:
                ready = summed
        return newest or ready

    def _late(self, module: Module) -> bool:
        return module.name in BLOCK and module.layer >= self.first


class Ladder(TensorParallelRun, Sliced):
    """Sums one module late.

    Source: Zhang et al., ICML 2025, arXiv 2501.06589.
    """

    name = "ladder"
    paper = "Zhang et al., ICML 2025, arXiv 2501.06589"
    summary = "each module skips its predecessor's output, whose all-reduce runs beneath it (another architecture)"
    changes_loss = "another architecture: a module reads the residual without its predecessor's output"
    knobs: tuple[Knob, ...] = (
        Knob("ladder_layers", None, "only the last so many layers are of this kind; none: all", optional(whole(1))),
        BUCKET,
        MODE,
    )

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Published figures that the simulator can check."""
        from densing.efficiency.techniques.claims.ladder import CLAIMS

        return CLAIMS

    def tensor(self, workload: Workload, cluster: Cluster, knobs: Mapping[str, Any]) -> TensorSchedule:
        """Return sums one module late, in the layers asked for."""
        many, layers = knobs["ladder_layers"], workload.model.layers
        if many and many > layers:
            raise InputError(f"ladder: ladder_layers = {many} and the model has {layers} layers; give at most so many")
        return Late(layers - many if many else 0)

    def schedule(self, **knobs: Any) -> Schedule:
        """Return sums one module late, in the layers asked for."""
        from densing.efficiency import parallel

        return parallel.Late(**knobs)


LADDER = Ladder()
