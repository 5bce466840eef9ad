"""Pipeline parallelism, one forward one backward: stages hand activations on and gradients back."""

from __future__ import annotations

from densing.efficiency.techniques.planner import Planned


class Pipeline(Planned):
    """Micro-batches through stages; blocking sums within a stage, DDP between replicas."""

    name = "pipeline"
    role = "baseline"
    paper = "Narayanan et al., SC 2021, arXiv 2104.04473"
    summary = "layers in stages that work on different micro-batches, one forward one backward in turn"
    needs = ("pp",)


PIPELINE = Pipeline()
