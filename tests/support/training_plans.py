"""Plans for a budget on a cluster whose speed is planted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from densing.core.errors import InputError
from densing.efficiency.simulation import Cluster, Transformer, load_cluster, parameter_count
from densing.efficiency.throughput import Layout, LayoutPlan
from densing.tradeoff import training_plan

CLUSTER = load_cluster("h100x8-nvlink", n=64)


def planted(
    monkeypatch: pytest.MonkeyPatch, flops: float = 1e15, power: float = 1.0, fits: Callable[[float], bool] = bool
) -> None:
    """Let every size train at this rate of 6 N D per second, N^(1 - power) times it."""

    def plan(model: Transformer, cluster: Cluster, devices: int, *, sequence: int, batch: int, **_: Any) -> LayoutPlan:
        params = parameter_count(model)
        if not fits(params):
            raise InputError(f"gpus: nothing tried fits {devices} devices")
        speed = flops / 6 / params**power
        step = sequence * batch / speed
        layout = Layout(1, 1, 1, devices, 1, 1, 0, "none", speed, step, step, step, 0.4, 1e9, {})
        kind = "several domains"
        return LayoutPlan(model.name, cluster.name, cluster.device.name, params, devices, batch, sequence, 1, 1,
                          (layout,), "", (), "planted", kind)  # fmt: skip

    monkeypatch.setattr(training_plan, "plan_layout", plan)


def hours_of(flops: float, rate: float = 1e15) -> float:
    """GPU hours on 64 devices in which so much is computed."""
    return flops / rate / 3600 * CLUSTER.n
