"""What a run takes: checkpoints and failures held to a simulation of them, the rest to arithmetic by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.errors import InputError
from densing.efficiency.simulation import load_cluster, load_workload
from densing.efficiency.throughput import LayoutPlan, Terms, budget, checkpoint_interval, plan_layout, slowdown


@pytest.fixture(scope="module")
def plan() -> LayoutPlan:
    return plan_layout(load_workload("llama3-70b").model, load_cluster("h100x8-nvlink", n=512), 512)


def simulated(work_s: float, every: float, write: float, between: float, restart: float, seed: int) -> float:
    """Seconds that a run takes where failures come at random; work since the last checkpoint is done again."""
    rng = np.random.default_rng(seed)
    now, done, failure = 0.0, 0.0, rng.exponential(between)
    while done < work_s:
        piece = min(every, work_s - done) + write
        if now + piece <= failure:
            now, done = now + piece, done + piece - write
            continue
        # A failure may come while it restarts; then it begins to restart anew.
        now = failure
        while (failure := now + rng.exponential(between)) < now + restart:
            now = failure
        now += restart
    return now


@pytest.mark.parametrize(("write", "between", "restart"), [(60, 10_000, 600), (30, 3_000, 300), (5, 50_000, 60)])
def test_time_lost_is_that_of_simulated_failures(write: float, between: float, restart: float) -> None:
    every = checkpoint_interval(write, between)
    work = 400 * every
    runs = [simulated(work, every, write, between, restart, seed) / work for seed in range(40)]
    error = np.std(runs, ddof=1) / math.sqrt(len(runs))
    assert np.mean(runs) == pytest.approx(slowdown(every, write, between, restart), abs=4 * error)


@given(write=st.floats(1, 300), hours=st.floats(1, 1000), restart=st.floats(0, 1800))
def test_no_other_interval_loses_less(write: float, hours: float, restart: float) -> None:
    between = 3600 * hours
    best = slowdown(checkpoint_interval(write, between), write, between, restart)
    others = [slowdown(each, write, between, restart) for each in np.geomspace(write / 10, 10 * between, 2000)]
    # Daly's estimate is one: it loses a thousandth more than the best at most.
    assert best <= min(others) * 1.001


def test_a_run_is_its_step_as_often_as_it_takes(plan: LayoutPlan) -> None:
    best = plan.layouts[0]
    found = budget(plan, Terms(1e12, price=2.0, carbon=0.5, draw=0.5, pue=1.5))
    steps = 1e12 / (plan.batch * plan.sequence)
    assert found.days.value == pytest.approx(steps * best.step_s / 86400)
    assert found.device_hours.value == pytest.approx(512 * 24 * found.days.value)
    assert found.days.low / found.days.value == pytest.approx(best.low_s / best.step_s)
    assert found.days.high / found.days.value == pytest.approx(best.high_s / best.step_s)
    assert found.failures == 0 and found.checkpoint_every_s is None
    assert found.cost is not None and found.cost.high == pytest.approx(2 * found.device_hours.high)
    assert found.kwh is not None and found.kwh.value == pytest.approx(found.device_hours.value * 0.7 * 0.5 * 1.5)
    assert found.co2e_kg is not None and found.co2e_kg.value == pytest.approx(found.kwh.value * 0.5)
    assert (found.goodput, found.failures, found.checkpoint_every_s) == (1.0, 0.0, None)


def test_failures_lengthen_a_run_and_are_counted(plan: LayoutPlan) -> None:
    calm = budget(plan, Terms(1e12))
    rough = budget(plan, Terms(1e12, mtbf_hours=50_000))
    assert rough.days.value == pytest.approx(calm.days.value / rough.goodput)
    assert rough.failures == pytest.approx(rough.device_hours.value / 50_000)
    # 14 bytes for each of 70 billion parameters, a 512th from every device at 0.1 GB/s.
    assert rough.write_s == pytest.approx(14 * plan.parameters / 512 / 1e8)
    assert 0.9 < rough.goodput < 1
    slower = budget(plan, Terms(1e12, mtbf_hours=50_000, write_s=300))
    assert slower.goodput < rough.goodput


@pytest.mark.parametrize(
    ("terms", "sentence"),
    [
        (Terms(0), "tokens: 0 is out of range"),
        (Terms(1e12, pue=0.5), "pue: 0.5 is out of range; give 1 to 10"),
        (Terms(1e12, mtbf_hours=0.05, write_s=60), "512 devices fail every 0 s and a checkpoint takes 60 s"),
    ],
)
def test_terms_that_make_no_run(plan: LayoutPlan, terms: Terms, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        budget(plan, terms)


def test_memory_is_told_by_part(plan: LayoutPlan) -> None:
    for each in plan.layouts:
        assert sum(each.memory.values()) == pytest.approx(each.memory_bytes)
        assert set(each.memory) <= {"parameters", "gradients", "optimizer", "activations"}


def test_one_layout_can_be_priced() -> None:
    model, cluster = load_workload("llama-8b").model, load_cluster("a100x8-rdma", n=64)
    every = plan_layout(model, cluster, 64, batch=256, most=10_000)
    chosen = every.layouts[len(every.layouts) // 2]
    only = {name: getattr(chosen, name) for name in ("tp", "pp", "cp", "dp", "zero", "micro_batch", "virtual")}
    found = plan_layout(model, cluster, 64, batch=256, only={**only, "recompute": chosen.recompute})
    assert found.layouts == (chosen,)
    with pytest.raises(InputError, match="layout: tp 3 is not among those that can run; there are 1, 2, 4, 8"):
        plan_layout(model, cluster, 64, batch=256, only={"tp": 3})
    with pytest.raises(InputError, match="part of a layout"):
        plan_layout(model, cluster, 64, only={"depth": 3})


def test_products_of_eight_bits_are_faster_where_the_device_has_them() -> None:
    model = load_workload("llama3-70b").model
    fast, plain = (
        plan_layout(model, load_cluster("h100x8-nvlink", n=64), 64, precision=precision).layouts[0].step_s
        for precision in ("fp8", "bf16")
    )
    assert 0.5 * plain < fast < plain
    with pytest.raises(InputError, match="no products of 8 bits are known of A100"):
        plan_layout(model, load_cluster("a100x8-rdma", n=64), 64, precision="fp8")


def test_a_schedule_without_bubbles_fills_less() -> None:
    model, cluster = load_workload("llama3-70b").model, load_cluster("h100x8-nvlink", n=64)
    only = {"tp": 8, "pp": 8, "virtual": 1}
    usual, filled = (
        plan_layout(model, cluster, 64, batch=16, only=only, schedule=schedule).layouts[0].parts_s["fill"]
        for schedule in ("1f1b", "zero-bubble")
    )
    assert filled < 0.5 * usual
