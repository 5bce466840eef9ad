"""A small model on a cluster whose devices only compute, and techniques planned and measured on it."""

from __future__ import annotations

from typing import Any

from densing.efficiency.simulation import Cluster, Device, Link, Split, Transformer, Workload
from densing.efficiency.systems.plan import Plan, SteadyStep, measure
from densing.efficiency.systems.registry import get_technique

TOY = Transformer("toy", layers=3, hidden=64, heads=8, kv_heads=8, head_dim=8, ffn=256, vocabulary=512)


def cluster(
    n: int, alpha: float = 0.0, beta: float = 1e-9, flops: float = 1e12, per_node: int = 1, **fields: Any
) -> Cluster:
    """Return devices that only compute (memory is free), joined by one kind of link."""
    link = Link(alpha, beta)
    return Cluster("toy", n, per_node, Device("toy", flops, 1e30), intra=link, inter=link, host=link, **fields)


def workload(**fields: Any) -> Workload:
    split = Split(**{axis: fields.pop(axis) for axis in ("dp", "tp", "pp", "sequence") if axis in fields})
    return Workload(TOY, split=split, sequence=fields.pop("sequence_length", 32), **fields)


def plan(name: str, work: Workload, on: Cluster, **knobs: Any) -> Plan:
    return get_technique(name).plan(work, on, **knobs)


def measured(name: str, work: Workload, on: Cluster, **knobs: Any) -> SteadyStep:
    return measure(plan(name, work, on, **knobs), on)
