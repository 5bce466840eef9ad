"""One rank that stands for many, all of them, and one that is slow: every technique planned either way."""

from __future__ import annotations

from typing import Any

import pytest

from densing.efficiency.simulation.workload import Workload
from densing.efficiency.systems.plan import measure
from densing.efficiency.timeline.timeline import Kind
from tests.support.plans import cluster, measured, plan, workload

EVERY = {
    "sequential": {"dp": 2, "tp": 2},
    "ddp": {"dp": 4, "tp": 2, "bucket_mb": 0.05},
    "ddp-tuned": {"dp": 4},
    "zero1": {"dp": 4, "bucket_mb": 0.05},
    "zero2": {"dp": 2, "tp": 2, "batch": 2, "micro_batches": 2},
    "zero3": {"dp": 4},
    "local-sgd": {"dp": 4, "tau": 3},
    "slowmo": {"dp": 2, "tp": 2, "tau": 2},
    "diloco": {"dp": 2, "tp": 2, "tau": 4, "fragments": 2, "delay": 1},
    "fedft": {"dp": 4, "tau": 3},
    "topk-delta": {"dp": 2, "tp": 2, "tau": 2},
    "spafl": {"dp": 4, "tau": 2},
    "co2": {"dp": 4, "tau": 2, "inner": 2},
    "tensor-parallel": {"tp": 4, "dp": 2},
    "parallel-attention": {"tp": 2, "dp": 2},
    "ladder": {"tp": 4, "dp": 2},
    "iso": {"tp": 4, "dp": 2},
    "t3": {"tp": 4, "dp": 2},
    "pipeline": {"pp": 2, "dp": 2, "tp": 2, "batch": 4, "micro_batches": 4},
}


def _case(name: str) -> tuple[Workload, dict[str, Any]]:
    fields = dict(EVERY[name])
    knobs = {knob: fields.pop(knob) for knob in ("tau", "inner", "bucket_mb", "fragments", "delay") if knob in fields}
    return workload(**fields), knobs


@pytest.mark.parametrize("name", EVERY)
def test_one_rank_stands_for_all_when_all_are_equal(name: str) -> None:
    work, knobs = _case(name)
    alone = cluster(work.split.ranks, 1e-5, 1e-9, per_node=2)
    every = alone.change(speed=(1.0,) * work.split.ranks)
    one, all_of_them = plan(name, work, alone, **knobs), plan(name, work, every, **knobs)
    assert one.ranks == work.split.pp and all_of_them.ranks == work.split.ranks
    assert not all_of_them.stands_for and sum(one.stands_for.values()) == work.split.ranks
    assert measure(one, alone).step_s == pytest.approx(measure(all_of_them, every).step_s, rel=1e-6)


@pytest.mark.parametrize("name", EVERY)
def test_a_slow_rank_slows_all_but_not_more_than_itself(name: str) -> None:
    work, knobs = _case(name)
    even = cluster(work.split.ranks, 0.0, 1e-11, per_node=2).change(speed=(1.0,) * work.split.ranks)
    uneven = even.change(speed=(*even.speed[:-1], 0.5))
    whole = measured(name, work, even, **knobs).step_s
    slowed = measured(name, work, uneven, **knobs).step_s
    assert whole * 1.1 < slowed < whole * 2.001


@pytest.mark.parametrize("name", EVERY)
def test_plans_are_the_same_every_time_and_carry_their_steps(name: str) -> None:
    work, knobs = _case(name)
    on = cluster(work.split.ranks, 1e-5, 1e-9, per_node=2)
    one, other = plan(name, work, on, **knobs), plan(name, work, on, **knobs)
    assert one.graph.tasks == other.graph.tasks
    assert {task.step for task in one.graph.tasks} == set(range(one.warmup + one.steps))
    assert all(count >= 0 for count in one.memory.values()) and sum(one.memory.values()) > 0
    assert all(task.comm is not None and task.bytes > 0 for task in one.graph.tasks if task.kind is Kind.COMM)
