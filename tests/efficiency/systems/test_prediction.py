"""Predictions of real runs against arithmetic on the cluster they are made with."""

from __future__ import annotations

import math
import subprocess
import sys

import msgspec
import pytest

from densing.core.errors import InputError, UnknownNameError
from densing.efficiency.parallel.distributed.results import Probed, Timed, Whole
from densing.efficiency.parallel.distributed.spec import LmShape, RunSpec
from densing.efficiency.simulation.cluster import Cluster, Device, Link, load_cluster
from densing.efficiency.simulation.workload import modules, parameter_count, stages
from densing.efficiency.systems.prediction import predict, workload_of_run

SHAPE = LmShape(layers=2, hidden=64, heads=2, ffn=176)


def probed(passes_s: float = 1.1) -> Probed:
    """A processor on which forward passes take 10 ms and backward ones 20 ms, whatever the module; a head 5 and 10."""
    found = []
    for parts, technique in ((1, "ddp"), (2, "tensor-parallel")):
        for module in modules(workload_of_run(RunSpec(technique, model=SHAPE))):
            share = 0.005 if module.name == "head" else 0.01
            if module.flops:
                found.append(Timed(module.name, "forward", parts, 128, module.flops, module.moved, share))
                backward = module.backward_flops, module.backward_moved
                found.append(Timed(module.name, "backward", parts, 128, *backward, 2 * share))
    count = parameter_count(workload_of_run(RunSpec("ddp", model=SHAPE)).model)
    return Probed((), (), tuple(found), Whole(passes_s, 0.032, count), 1.0)


def cluster(alpha: float = 1e-3, beta: float = 1e-8, **fields: object) -> Cluster:
    link = Link(alpha, beta)
    return Cluster("measured", 2, 1, probed().device(), link, link, Link(0, 1e-10)).change(**fields)


def compute_of(spec: RunSpec) -> float:
    """4 modules of 30 ms, a head of 15 ms, 1.1 times; an update of 32 ms; rows of the embedding move bytes only."""
    embedding = modules(workload_of_run(spec))[0]
    looked_up = (embedding.moved + embedding.backward_moved) / cluster().device.mem_bw
    return 1.1 * (4 * 0.03 + 0.015) + 0.032 + looked_up


def test_a_measured_processor_gives_its_modules_back() -> None:
    device = probed().device()
    for technique in ("ddp", "tensor-parallel"):
        for module in modules(workload_of_run(RunSpec(technique, model=SHAPE))):
            if module.flops:
                expected = 1.1 * (0.005 if module.name == "head" else 0.01)
                assert math.isclose(device.seconds(module.flops, module.moved), expected)
                assert math.isclose(device.seconds(module.backward_flops, module.backward_moved), 2 * expected)


def test_a_sequential_step_is_its_modules_its_exchange_and_its_update() -> None:
    """4 modules of 30 ms and a head of 15 ms, 1.1 times; one all-reduce of all gradients; an update of 32 ms."""
    spec = RunSpec("sequential", {"bucket_mb": 1000.0}, model=SHAPE)
    found = predict(spec, cluster())
    gradients = 4 * parameter_count(workload_of_run(spec).model)
    exchange = 2 * 1e-3 + gradients * 1e-8
    assert math.isclose(found.compute_s, compute_of(spec), rel_tol=1e-6)
    assert math.isclose(found.exposed_s, exchange, rel_tol=0.01)
    assert math.isclose(found.step_s, found.compute_s + found.exposed_s, rel_tol=1e-6)
    assert found.tau_min is None


def test_tensor_parallel_runs_sum_attention_and_mlp_only() -> None:
    """2 sums per layer and direction of 4 x 128 x 64 floats: embedding and head are whole on every rank."""
    found = predict(RunSpec("tensor-parallel", model=SHAPE), cluster())
    one = 2 * 1e-3 + 4 * 128 * 64 * 4 * 1e-8
    assert math.isclose(found.exposed_s, 2 * 2 * 2 * one, rel_tol=1e-3)
    assert math.isclose(
        predict(RunSpec("tensor-parallel", {"mode": "prefill"}, model=SHAPE), cluster()).exposed_s,
        4 * one,
        rel_tol=1e-3,
    )


def test_least_tau_is_where_the_exposed_part_ends() -> None:
    """T_AR / T_c; CO2 beyond it exposes nothing, and below it does."""
    slow = cluster(beta=4e-6)
    spec = RunSpec("co2", {"tau": 1}, model=SHAPE)
    least = predict(spec, slow).tau_min
    assert least is not None and least > 2
    gradients = 4 * parameter_count(workload_of_run(spec).model)
    assert math.isclose(least, (2e-3 + gradients * 4e-6) / compute_of(spec), rel_tol=1e-6)
    exposed = {tau: predict(RunSpec("co2", {"tau": tau}, model=SHAPE), slow).exposed_s
               for tau in (max(1, int(least) - 1), int(least) + 2)}  # fmt: skip
    below, beyond = exposed.values()
    assert below > 0.01 and beyond < 1e-6
    contended = predict(spec, slow.change(kappa=1.0, kappa_comm=0.5)).tau_min
    assert contended is not None and math.isclose(contended, least * 1.5 / 2)


def test_a_pipeline_waits_for_neighbours_as_for_packets() -> None:
    """Two stages of a layer each, two micro-batches: of three turns each stage takes two, and stands still in one."""
    free = cluster(0.0, 0.0, kappa=0.0, kappa_comm=0.0)
    spec = RunSpec("pipeline", {"micro_batches": 2}, nproc=2, model=SHAPE)
    found = predict(spec, free)
    (first, last), one = stages(workload_of_run(spec)), free.device
    turns = [
        sum(one.seconds(m.flops, m.moved) + one.seconds(m.backward_flops, m.backward_moved) for m in own)
        for own in (first, last)
    ]
    # The last stage's two turns, with the first one's way in and out around them, and its update.
    update = 24 * sum(module.parameters for module in first) / free.device.mem_bw
    assert found.step_s == pytest.approx(turns[0] + 2 * turns[1] + update, rel=1e-3)
    assert found.exposed_s == pytest.approx(found.step_s - found.compute_s)
    dear = predict(spec, cluster(0.0, 1e-6))
    assert dear.exposed_s > found.exposed_s and dear.compute_s == pytest.approx(found.compute_s, rel=1e-3)
    less = predict(RunSpec("pipeline", {"micro_batches": 2, "codec": "int8"}, nproc=2, model=SHAPE), cluster(0.0, 1e-6))
    assert less.step_s < dear.step_s


def test_links_that_differ_are_the_clusters_own_scaled() -> None:
    """Calibrated over the fastest link: a pipeline whose last rank has a fortieth of it waits for that edge."""
    three = cluster(0.0, 1e-8).change(n=3)
    shape = msgspec.structs.replace(SHAPE, layers=3)
    alike, slow, fast = (
        predict(RunSpec("pipeline", {"micro_batches": 2}, nproc=3, model=shape, link=link), three).step_s
        for link in ("1gbit", "1gbit,1gbit,25mbit", "1gbit,1gbit,999mbit")
    )
    assert slow > alike and fast == pytest.approx(alike, rel=1e-2)
    count = 4 * SHAPE.hidden * 128
    assert slow - alike > 39 * 1e-8 * count


def test_a_run_over_a_link_is_predicted_over_that_link() -> None:
    preset = load_cluster("cpu2")
    steps = {link: predict(RunSpec("ddp", model=SHAPE, link=link), preset) for link in ("50mbit", "100mbit", "400mbit")}
    exposed = [found.exposed_s for found in steps.values()]
    # Gradients of four bytes, all of them sent once by either of two ranks; some of it behind the backward pass.
    sent = 4 * sum(module.parameters for module in modules(workload_of_run(RunSpec("ddp", model=SHAPE))))
    assert exposed[0] - exposed[1] == pytest.approx(8 * sent * (1 / 50e6 - 1 / 100e6), rel=0.1)
    assert exposed[0] > exposed[1] > exposed[2]
    # What was calibrated over about this link stays as it was measured, and so does a cluster without a link.
    assert predict(RunSpec("ddp", model=SHAPE, link="200mbit"), preset) == predict(RunSpec("ddp", model=SHAPE), preset)


def test_knobs_of_the_run_alone_do_not_reach_the_plan() -> None:
    known = predict(RunSpec("ladder", model=SHAPE), cluster())
    assert predict(RunSpec("ladder", {"mode": "train"}, model=SHAPE), cluster()) == known


def test_errors() -> None:
    with pytest.raises(InputError, match="4 ranks, but cluster measured has 2"):
        predict(RunSpec("ddp", nproc=4), cluster())
    with pytest.raises(UnknownNameError, match="did you mean 'ladder'"):
        predict(RunSpec("laddr"), cluster())


def test_any_cluster_will_do() -> None:
    found = predict(RunSpec("ddp"), load_cluster("cpu2"))
    assert found.step_s > 0 and isinstance(load_cluster("cpu2").device, Device)


def test_prediction_needs_no_torch() -> None:
    code = (
        "import sys; from densing.efficiency.systems.prediction import predict;"
        "from densing.efficiency.simulation.cluster import load_cluster;"
        "from densing.efficiency.parallel.distributed.spec import RunSpec;"
        "predict(RunSpec('co2'), load_cluster('cpu2')); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
