"""Attention and MLP side by side on the same input: one sum per layer instead of two."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

from densing.efficiency.techniques.planner import Event, Pass, Sliced, TensorParallelRun, TensorSchedule

if TYPE_CHECKING:
    from densing.efficiency.parallel import Schedule
    from densing.efficiency.simulation import Cluster, Workload


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
    summary = "attention and MLP read the same input, so that one all-reduce per layer sums both (another architecture)"
    changes_loss = "another architecture: attention and MLP read the same input"

    def tensor(self, workload: Workload, cluster: Cluster, knobs: Mapping[str, Any]) -> TensorSchedule:
        """Return one sum per layer."""
        return SideBySide()

    def schedule(self, **knobs: Any) -> Schedule:
        """Return one sum per layer."""
        from densing.efficiency import parallel

        return parallel.OneSum(**knobs)


PARALLEL_ATTENTION = ParallelAttention()
