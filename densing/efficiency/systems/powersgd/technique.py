"""The plan of PowerSGD."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any

from densing.efficiency.simulation import sizes, tensor_shapes
from densing.efficiency.systems.planner import (
    FULL_BYTES,
    STREAM,
    DataParallelRun,
    Event,
    Exchange,
    ExchangeMaker,
    Replicated,
    Stage,
    parameters_of,
)
from densing.efficiency.systems.registry import Knob, whole

if TYPE_CHECKING:
    from densing.efficiency.parallel import Method, Replica
    from densing.efficiency.simulation import Workload

PRODUCTS = 3
"""Of a matrix and a thin one: for each factor, and of both factors for what comes out."""


class Factors(Exchange):
    """What is not a matrix summed whole, then the left factors, then the right ones, after the backward pass.

    torch's hook works bucket by bucket and begins in mid-backward; a model that fills one bucket, as those of real runs
    here do, is done as here.

    Parameters
    ----------
    stage : Stage
    rank : int
        Columns of a factor.
    """

    def __init__(self, stage: Stage, rank: int) -> None:
        super().__init__(stage)
        self.rank = rank

    def finish(self, done: Event) -> None:
        """Sum, update."""
        stage, rank = self.stage, self.rank
        shapes = list(chain.from_iterable(tensor_shapes(stage.workload, module) for module in stage.modules))
        thin = [shape for shape in shapes if sizes.factors(shape, rank) < prod(shape)]
        whole_count = sum(prod(shape) for shape in shapes if shape not in thin)
        size = stage.workload.dtype_bytes
        products = 2.0 * rank * PRODUCTS * sum(prod(shape) for shape in thin)
        # Each product reads the gradient once; the residual is read and written beside.
        moved = (PRODUCTS + 3.0) * size * sum(prod(shape) for shape in thin)
        done = stage.compute("factors", stage.device.seconds(0.0, moved) + products / stage.device.flops, done)
        for name, count in (
            ("gradients", whole_count),
            ("left factors", rank * sum(shape[0] for shape in thin)),
            ("right factors", rank * sum(prod(shape[1:]) for shape in thin)),
        ):
            done = stage.collective(f"all_reduce {name}", "all_reduce", float(size * count), "dp", done, STREAM)
        self.update(done)


class PowerSgd(DataParallelRun, Replicated):
    """torch's PowerSGD hook, with error feedback and warm start."""

    name = "powersgd"
    role = "baseline"
    paper = "Vogels et al., NeurIPS 2019, arXiv 1905.13727"
    summary = "sends the gradient of a matrix as two thin factors, with error feedback (torch's own hook)"
    knobs: tuple[Knob, ...] = (
        Knob("rank", 4, "columns of a factor (rank of the approximation)", whole(1)),
        Knob("start", 2, "first steps, whose gradients are averaged in full", whole(2)),
    )
    changes_loss = "gradients are approximated by low-rank matrices; the rest accumulates for later steps"

    def exchange(self, knobs: Mapping[str, Any]) -> ExchangeMaker:
        """Return factors of the steady state."""
        return partial(Factors, rank=knobs["rank"])

    def method(self, replica: Replica, **knobs: Any) -> Method:
        """Return torch's hook around the model."""
        from densing.efficiency.systems.powersgd.run import PowerSGD

        return replica.wrap(PowerSGD, **knobs)

    def extra_bytes(self, workload: Workload, knobs: Mapping[str, Any]) -> float:
        """Return the residuals; the factors are thin. torch's hook may keep the gradients as they were for a while."""
        return parameters_of(workload) * FULL_BYTES


POWERSGD = PowerSgd()
