"""Layouts that are simulated: one number with `compare`, near the closed form that narrows them, ranked by it."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace

from densing.core import InputError
from densing.efficiency.simulation import load_cluster, load_workload
from densing.efficiency.systems import compare, fastest_layouts, measure
from densing.efficiency.systems.layouts import SIMULATED, measured_run, step_of
from densing.efficiency.throughput import LayoutPlan, frozen, plan_layout, read_runs, step_seconds

SMALL = load_workload("llama-8b").model


@cache
def usual() -> LayoutPlan:
    return fastest_layouts(SMALL, load_cluster("a100x8-tcp", n=16), 16, batch=64, most=SIMULATED)


def test_a_layout_takes_what_a_comparison_says_of_it() -> None:
    cluster, found = load_cluster("a100x8-tcp", n=16), usual()
    for layout in found.layouts[:4]:
        work, technique, settings = step_of(layout, SMALL, 4096)
        row = compare(work, cluster, [technique], knobs={technique: settings}).rows[0]
        assert (row.step_s, row.low_s, row.high_s) == (layout.step_s, layout.low_s, layout.high_s)
        assert row.memory_bytes == pytest.approx(layout.memory_bytes, rel=1e-9)
    steps = [layout.step_s for layout in found.layouts]
    assert steps == sorted(steps)
    best = found.layouts[0]
    assert best.tokens_per_s == pytest.approx(64 * 4096 / best.step_s)
    assert sum(best.parts_s.values()) == pytest.approx(best.step_s)


@pytest.mark.parametrize("cluster", ["a100x8-rdma", "a100x8-tcp", "h100x8-nvlink"])
def test_the_closed_form_that_narrows_is_near_the_simulation(cluster: str) -> None:
    machines = load_cluster(cluster, n=16)
    every = plan_layout(SMALL, machines, 16, sequence=1024, batch=64, most=10_000).layouts
    chosen = np.random.default_rng(0).choice(len(every), 16, replace=False)
    ratios = []
    for layout in (every[at] for at in chosen):
        work, technique, settings = step_of(layout, SMALL, 1024)
        row = compare(work, machines, [technique], knobs={technique: settings}).rows[0]
        assert row.step_s is not None
        ratios.append(row.step_s / layout.step_s)
    # What is hidden the closed form takes from rules of thumb; of what blocks it says the same.
    assert np.median(ratios) == pytest.approx(1, abs=0.05)
    assert min(ratios) > 2 / 3 and max(ratios) < 3 / 2


@pytest.mark.parametrize("framework", ["FSDP", "Megatron-LM", "JAX"])
def test_a_layout_of_another_framework_takes_what_a_comparison_says_of_it(framework: str) -> None:
    cluster = load_cluster("a100x8-tcp", n=16)
    found = fastest_layouts(SMALL, cluster, 16, batch=64, framework=framework)
    assert "not-simulated" not in {note.code for note in found.notes}
    assert found.layouts[0].step_s != usual().layouts[0].step_s
    for layout in found.layouts[:2]:
        work, technique, settings = step_of(layout, SMALL, 4096, framework)
        row = compare(work, cluster, [technique], knobs={technique: settings}, framework=framework).rows[0]
        assert (row.step_s, row.low_s, row.high_s) == (layout.step_s, layout.low_s, layout.high_s)


def test_a_framework_that_too_few_sources_measured_is_refused() -> None:
    with pytest.raises(InputError, match="framework nanotron: no published runs by several sources"):
        compare(load_workload("llama-8b", mode="train", dp=16), load_cluster("a100x8-tcp", n=16), ["ddp"],
                framework="nanotron")  # fmt: skip


def test_a_number_of_devices_that_cannot_be_split_names_one_that_can() -> None:
    cluster = load_cluster("a100x8-rdma", n=16)
    with pytest.raises(InputError, match="or give 12 devices"):
        plan_layout(SMALL, cluster, 13, batch=1024)
    assert plan_layout(SMALL, cluster, 12, batch=1024, most=1).layouts


def test_gradients_that_nothing_hides_are_exchanged_after_the_backward_pass() -> None:
    layout = plan_layout(SMALL, load_cluster("a100x8-tcp", n=16), 16, batch=64, only={"zero": 0, "pp": 1}).layouts[0]
    assert [step_of(layout, SMALL, 4096, name)[1] for name in ("Megatron-Core", "Megatron-LM")] == ["ddp", "sequential"]


def test_a_published_run_is_simulated_as_the_closed_form_reads_it() -> None:
    row = {
        "row_id": "one",
        "framework": "Megatron-Core",
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "vocab": 32000,
        "seq": 4096,
        "gpu": "A100",
        "gpus": 32,
        "tp": 4,
        "pp": 2,
        "mbs": 1,
        "gbs": 32,
        "recompute": "none",
    }
    for changes in ({}, {"dp_shard": "zero1"}, {"dp_shard": "zero2"}, {"tp": 1, "pp": 1, "dp_shard": "fsdp"}):
        table = read_runs(pd.DataFrame([row | changes]))
        constants, _ = frozen().of(table.constants)
        technique, workload, cluster, settings = measured_run(table.runs, constants)
        simulated = measure(technique.plan(workload, cluster, **settings), cluster).step_s
        assert simulated == pytest.approx(float(step_seconds(table.runs, constants).step[0]), rel=0.1)


def test_a_run_whose_split_does_not_divide_its_model_is_refused() -> None:
    runs = read_runs().runs
    odd = dataclasses.replace(runs.take(np.array([0])), micro_batch=np.array([1.5]))
    with pytest.raises(InputError, match="does not divide"):
        measured_run(odd, {})


def test_what_cannot_be_simulated_is_ranked_in_closed_form_and_says_so() -> None:
    cluster = load_cluster("h100x8-nvlink", n=16)
    only = {"pp": 4}
    found = fastest_layouts(SMALL, cluster, 16, batch=64, only=only, schedule="zero-bubble")
    assert "not-simulated" in {note.code for note in found.notes}
    closed = plan_layout(SMALL, cluster, 16, batch=64, only=only, schedule="zero-bubble")
    assert [each.step_s for each in found.layouts] == [each.step_s for each in closed.layouts]


def test_devices_whose_times_were_measured_are_ranked_in_closed_form() -> None:
    cluster = load_cluster("a100x8-rdma", n=16)
    own = cluster.change(device=replace(cluster.device, measured=((1e12, 1e9, 0.01),)))
    found = fastest_layouts(SMALL, own, 16, batch=64)
    [note] = [note for note in found.notes if note.code == "not-simulated"]
    assert "the times of A100 SXM 80 GB in cluster a100x8-rdma are its own" in note.message


def test_a_slow_network_moves_the_recommendation_towards_what_sends_less() -> None:
    fast = load_cluster("a100x8-rdma", n=16)
    slow = fast.change(inter=fast.inter.faster(1 / 300))
    best = [fastest_layouts(SMALL, each, 16, batch=64, most=1).layouts[0] for each in (fast, slow)]
    # Between two nodes a pipeline hands on activations; replicas would send gradients.
    assert best[0].pp == 1 and best[1].pp > 1
    assert best[1].step_s > best[0].step_s


def test_progress_is_told_and_the_reason_named() -> None:
    told: list[tuple[int, int]] = []
    found = fastest_layouts(SMALL, load_cluster("a100x8-rdma", n=16), 16, batch=64,
                            progress=lambda done, total: told.append((done, total)))  # fmt: skip
    assert told == [(number + 1, SIMULATED) for number in range(SIMULATED)]
    assert "longer, most of it for" in found.why
