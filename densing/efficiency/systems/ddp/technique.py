"""The plans of DDP and of DDP with tuned buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from densing.efficiency.systems.plan import Plan, measure
from densing.efficiency.systems.planner import MEBIBYTE, DataParallelRun, Replicated, parameters_of
from densing.efficiency.systems.registry import Knob, settle

if TYPE_CHECKING:
    from densing.efficiency.parallel import Method, Replica
    from densing.efficiency.simulation import Cluster, Workload


BUCKETS_MB: tuple[float | None, ...] = (None, 0.5, 1.0, 2.0, 4.0, 8.0, 64.0)
"""Bucket sizes of the sweep, MiB; None is torch's default."""


class Ddp(DataParallelRun, Replicated):
    """Buckets of gradients, all-reduced on a stream of their own during the backward pass."""

    name = "ddp"
    role = "baseline"
    plain = True
    paper = "Li et al., VLDB 2020, arXiv 2006.15704"
    summary = "gradients are all-reduced in buckets during the backward pass; the update waits for all of them"

    def method(self, replica: Replica, **knobs: Any) -> Method:
        """Return torch's own buckets, their waits on the run's clock."""
        from densing.efficiency.systems.ddp.run import DDP

        return replica.wrap(DDP, **knobs)


MOST_BUCKETS = 5000
"""Most buckets of a rank; a size that gives more is not tried."""


class TunedDdp(DataParallelRun, Replicated):
    """DDP with the fastest bucket size for model and link."""

    name = "ddp-tuned"
    role = "baseline"
    plain = True
    paper = Ddp.paper
    summary = "ddp with the fastest of a few bucket sizes, including torch's default; a run tries each for some steps"
    knobs: tuple[Knob, ...] = ()

    def plan(self, workload: Workload, cluster: Cluster, **knobs: Any) -> Plan:
        """Return the plan of the bucket size with the shortest steady step."""
        settle(self.name, self.knobs, knobs)
        self.check(workload)
        # Small buckets of a large model would be hundreds of thousands of tasks.
        total = parameters_of(workload) * workload.dtype_bytes
        sizes = [size for size in BUCKETS_MB if size is None or total <= MOST_BUCKETS * size * MEBIBYTE]
        plans = [DDP.plan(workload, cluster, bucket_mb=size) for size in sizes]
        return min(plans, key=lambda plan: measure(plan, cluster).step_s)

    def method(self, replica: Replica, **knobs: Any) -> Method:
        """Return DDP with the bucket size that is fastest on this machine."""
        from densing.efficiency.systems.ddp.run import DDP, fastest_bucket

        return replica.wrap(DDP, bucket_mb=fastest_bucket(replica.model, replica.loss, BUCKETS_MB), **knobs)


DDP, DDP_TUNED = Ddp(), TunedDdp()
