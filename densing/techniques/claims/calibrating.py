"""Clusters made to agree with a measured step: the device is scaled to its compute, a link to its communication."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from densing.cluster.cluster import Cluster, Link
from densing.errors import InputError
from densing.techniques.measure import Measured, measure
from densing.techniques.registry import get_technique
from densing.workload.workload import Workload

FREE = Link(0.0, 0.0)
"""A link that costs nothing."""


def measured(technique: str, workload: Workload, cluster: Cluster, **knobs: Any) -> Measured:
    """Plan, simulate and measure a technique."""
    return measure(get_technique(technique).plan(workload, cluster, **knobs), cluster)


def device_taking(seconds: float, technique: str, workload: Workload, cluster: Cluster, **knobs: Any) -> Cluster:
    """Return the cluster with its device scaled so that a step takes so long; its links must be free."""
    now = measured(technique, workload, cluster, **knobs).step_s
    device = cluster.device
    faster = now / seconds
    return cluster.change(device=replace(device, flops=device.flops * faster, mem_bw=device.mem_bw * faster))


def link_taking(
    seconds: float, level: str, technique: str, workload: Workload, cluster: Cluster, **knobs: Any
) -> Cluster:
    """Return the cluster with one link's latency and time per byte scaled so that a step takes so long.

    The technique must hide nothing: then the step grows in proportion.

    Raises
    ------
    InputError
        When the step is shorter than its compute, or uses no such link.
    """
    link: Link = getattr(cluster, level)
    compute = measured(technique, workload, cluster.change(**{level: FREE}), **knobs).step_s
    now = measured(technique, workload, cluster, **knobs).step_s
    if now <= compute or seconds < compute:
        raise InputError(
            f"a step of {seconds:g} s leaves no time for the link {level!r} beside {compute:g} s of compute"
        )
    slower = (seconds - compute) / (now - compute)
    return cluster.change(**{level: Link(link.alpha_s * slower, link.beta_s_per_byte * slower, link.shared)})
