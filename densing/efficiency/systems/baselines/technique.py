"""Plans of the baselines: sequential, tensor parallelism, parallel attention."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from densing.efficiency.systems.planner import (
    Buckets,
    Event,
    ExchangeMaker,
    Pass,
    Planned,
    Sliced,
    TensorParallelRun,
    TensorSchedule,
)

if TYPE_CHECKING:
    from densing.efficiency.parallel import Schedule
    from densing.efficiency.simulation import Cluster, Workload


class Sequential(Planned):
    """Blocking tensor-parallel sums; gradients exchanged in buckets after the whole backward pass."""

    name = "sequential"
    role = "baseline"
    summary = "every communication blocks: tensor-parallel sums after each module, gradients after the backward pass"

    def exchange(self, knobs: Mapping[str, Any]) -> ExchangeMaker:
        """Return buckets that are exchanged after the backward pass."""
        return partial(Buckets, bucket_mb=knobs["bucket_mb"], early=False)


SEQUENTIAL = Sequential()


class TensorParallel(TensorParallelRun, Sliced):
    """Blocking sums."""

    name = "tensor-parallel"
    role = "baseline"
    plain = True
    paper = "Shoeybi et al. 2019, arXiv 1909.08053"
    summary = "every matrix is split over the group, with a blocking all-reduce after attention and after the MLP"

    def schedule(self, **knobs: Any) -> Schedule:
        """Return sums that are waited for at once."""
        from densing.efficiency.parallel import Schedule

        return Schedule(**knobs)


TENSOR_PARALLEL = TensorParallel()


class SideBySide:
    """One sum for all modules of a layer."""

    def lay(self, run: Pass, after: Event) -> Event:
        """Add the pass's tasks, and return when its output is there."""
        for _, layer in groupby(run.modules, key=lambda module: module.layer):
            modules = list(layer)
            for module in modules:
                after = run.compute(module, after)
            if any(run.reduces(module) for module in modules):
                after = run.reduce(modules[-1], after)
        return after


class ParallelAttention(TensorParallelRun, Sliced):
    """One sum per layer."""

    name = "parallel-attention"
    paper = "Wang and Komatsuzaki, GPT-J-6B, 2021; Chowdhery et al. 2022, arXiv 2204.02311"
    summary = "attention and MLP read the same input, so one all-reduce per layer suffices (another architecture)"
    changes_loss = "another architecture: attention and MLP read the same input"

    def tensor(self, workload: Workload, cluster: Cluster, knobs: Mapping[str, Any]) -> TensorSchedule:
        """Return one sum per layer."""
        return SideBySide()

    def schedule(self, **knobs: Any) -> Schedule:
        """Return one sum per layer."""
        from densing.efficiency.systems.baselines.run import OneSum

        return OneSum(**knobs)


PARALLEL_ATTENTION = ParallelAttention()
