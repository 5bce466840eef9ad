"""Tensor parallelism as in Megatron-LM: a blocking sum after attention and after the MLP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from densing.efficiency.techniques.planner import Sliced, TensorParallelRun

if TYPE_CHECKING:
    from densing.efficiency.parallel import Schedule


class TensorParallel(TensorParallelRun, Sliced):
    """Blocking sums."""

    name = "tensor-parallel"
    role = "baseline"
    paper = "Shoeybi et al. 2019, arXiv 1909.08053"
    summary = "every matrix split over the group; a blocking all-reduce after attention and after the MLP"

    def schedule(self, **knobs: Any) -> Schedule:
        """Return sums that are waited for at once."""
        from densing.efficiency import parallel

        return parallel.Schedule(**knobs)


TENSOR_PARALLEL = TensorParallel()
