"""Clusters made to agree with a measured step, and what needs no cluster: a null model without a simulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from densing.core import InputError
from densing.efficiency.simulation import Cluster, Link, Workload
from densing.efficiency.techniques.physics import Physics

FREE = Link(0.0, 0.0)
"""A link that costs nothing."""


def device_taking(
    physics: Physics, seconds: float, technique: str, workload: Workload, cluster: Cluster, **knobs: Any
) -> Cluster:
    """Return the cluster with its device scaled so that a step takes so long; its links must be free."""
    now = physics.measure(technique, workload, cluster, **knobs).step_s
    device = cluster.device
    faster = now / seconds
    return cluster.change(device=replace(device, flops=device.flops * faster, mem_bw=device.mem_bw * faster))


def link_taking(
    physics: Physics, seconds: float, level: str, technique: str, workload: Workload, cluster: Cluster, **knobs: Any
) -> Cluster:
    """Return the cluster with one link's latency and time per byte scaled so that a step takes so long.

    The technique must hide nothing: then the step grows in proportion.

    Raises
    ------
    InputError
        When the step is shorter than its compute, or uses no such link.
    """
    link: Link = getattr(cluster, level)
    compute = physics.measure(technique, workload, cluster.change(**{level: FREE}), **knobs).step_s
    now = physics.measure(technique, workload, cluster, **knobs).step_s
    if now <= compute or seconds < compute:
        raise InputError(
            f"a step of {seconds:g} s leaves no time for the link {level!r} beside {compute:g} s of compute"
        )
    slower = (seconds - compute) / (now - compute)
    return cluster.change(**{level: Link(link.alpha_s * slower, link.beta_s_per_byte * slower, link.shared)})


class Published(NamedTuple):
    """What a paper's row says without any simulator, in whatever unit of time.

    Attributes
    ----------
    free : float
        A step whose communication costs nothing.
    blocking : float
        A step that waits for all of it.
    step : float
        A step with the technique.
    """

    free: float
    blocking: float
    step: float


def constant_share(free: float, blocking: float, others: Sequence[Published] = ()) -> float:
    """Return the step of a null model without a simulator: a constant share of the communication stays exposed.

    The share makes the relative errors of the other rows' throughput least squares, as the contention that ours is
    fitted with does; where ours is fitted to no other rows it has none either, and all is hidden.

    Parameters
    ----------
    free, blocking : float
        Of the row to be told, whose own step stays out.
    others : sequence of Published

    Examples
    --------
    >>> constant_share(1.0, 2.0, [Published(1.0, 3.0, 1.5)]), constant_share(1.0, 2.0)
    (1.25, 1.0)
    """
    if not others:
        return free
    from scipy.optimize import minimize_scalar

    def squares(share: float) -> float:
        return sum((row.step / (row.free + share * (row.blocking - row.free)) - 1) ** 2 for row in others)

    found = minimize_scalar(squares, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-9})
    return float(free + round(float(found.x), 6) * (blocking - free))
