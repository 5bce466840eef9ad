"""One pass of one micro-batch over a stage's modules, forward or backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from densing.efficiency.simulation import Module
from densing.efficiency.techniques.planner.events import NOTHING, Event, join
from densing.efficiency.techniques.planner.stage import Stage
from densing.efficiency.techniques.planner.work import WHOLE, Piece, module_seconds

if TYPE_CHECKING:
    from densing.efficiency.techniques.planner.exchange import Exchange

BLOCK = ("attention", "mlp")


class Pass:
    """A pass, as a schedule lays it.

    Parameters
    ----------
    stage : Stage
    exchange : Exchange
        Told of every module as it begins and ends.
    phase : {"forward", "backward"}
    last : bool
        Of the step's micro-batches.
    """

    def __init__(self, stage: Stage, exchange: Exchange, phase: str, last: bool) -> None:
        self.stage, self.exchange, self.phase, self.last = stage, exchange, phase, last
        self.modules = stage.modules if phase == "forward" else stage.modules[::-1]

    def seconds(self, module: Module, piece: Piece = WHOLE) -> float:
        """Return what this pass takes over a module, or a piece of its tokens."""
        return module_seconds(self.stage.workload, self.stage.device, module, self.phase, piece)

    def compute(
        self,
        module: Module,
        after: Event,
        seconds: float | None = None,
        *,
        opens: bool = True,
        closes: bool = True,
        label: str = "",
    ) -> Event:
        """Add a module's computation, or a part of it: its first part ``opens`` it, its last one ``closes`` it."""
        gate = self.exchange.before(self, module) if opens else NOTHING
        name = f"{self.phase} {module.name}{label}" + ("" if module.name not in BLOCK else f" {module.layer}")
        cost = self.seconds(module) if seconds is None else seconds
        done = self.stage.compute(name, cost, join(after, gate))
        if closes:
            self.exchange.after(self, module, done)
        return done

    def reduces(self, module: Module) -> bool:
        """Return whether the tensor-parallel group must sum up what this module leaves.

        Attention and MLP in both directions; in training, if embedding and head are split over the vocabulary, the
        embedding's output and the gradient of the head's input too. Source: Shoeybi et al. 2019, section 3 (recalled).
        """
        if self.stage.size("tp") == 1:
            return False
        edge = "embedding" if self.phase == "forward" else "head"
        return module.name in BLOCK or (module.name == edge and self.stage.workload.mode == "train")

    def reduce(self, module: Module, after: Event, share: float = 1.0, label: str = "") -> Event:
        """Add the sum over the tensor-parallel group of a module's output, or of its input's gradient.

        Where the sequence is split between such sums, a reduce-scatter and, before the next module, an all-gather.
        """
        count, name = module.activation * share, f"{module.name}{label}"
        if not self.stage.workload.split.sequence:
            return self.stage.collective(f"all_reduce {name}", "all_reduce", count, "tp", after)
        scattered = self.stage.collective(f"reduce_scatter {name}", "reduce_scatter", count, "tp", after)
        return self.stage.collective(f"all_gather {name}", "all_gather", count, "tp", scattered)
