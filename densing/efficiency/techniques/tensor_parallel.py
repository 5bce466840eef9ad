"""Tensor parallelism as in Megatron-LM: a blocking sum after attention and after the MLP."""

from __future__ import annotations

from densing.efficiency.techniques.planner import Sliced, TensorParallelRun


class TensorParallel(TensorParallelRun, Sliced):
    """Blocking sums."""

    name = "tensor-parallel"
    role = "baseline"
    paper = "Shoeybi et al. 2019, arXiv 1909.08053"
    summary = "every matrix split over the group; a blocking all-reduce after attention and after the MLP"


TENSOR_PARALLEL = TensorParallel()
