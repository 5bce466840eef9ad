"""Distributed data parallel: gradients averaged in buckets, from mid-backward on."""

from __future__ import annotations

from densing.techniques.planner.base import DataParallelRun, Replicated


class Ddp(DataParallelRun, Replicated):
    """Buckets of gradients, all-reduced on a stream of their own while the backward pass goes on."""

    name = "ddp"
    role = "baseline"
    paper = "Li et al., VLDB 2020, arXiv 2006.15704"
    summary = "gradients all-reduced in buckets that leave in mid-backward; the update waits for all of them"


DDP = Ddp()
