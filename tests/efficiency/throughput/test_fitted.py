"""A step with the cost model's figures: what modules take, what links reach, whose ways, and where nothing is known."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from densing.efficiency.simulation import Cluster, Figure, Workload, load_cluster, load_workload, modules
from densing.efficiency.throughput import fitted_step, frozen, step_seconds
from densing.efficiency.throughput.fitted import constants_on, runs_of

A100 = load_cluster("a100x8-rdma")
H100 = load_cluster("h100x8-nvlink")


def step(recompute: str = "none", **options: int) -> Workload:
    return load_workload(
        "llama-8b", mode="train", batch=4, sequence=4096, micro_batches=2, recompute=recompute, **options
    )


def taken(work: Workload, cluster: Cluster) -> float:
    """Seconds of all passes of one device."""
    device = cluster.device
    passes = [
        device.seconds(*figures)
        for module in modules(work)
        if module.flops
        for figures in ((module.flops, module.moved), (module.backward_flops, module.backward_moved))
    ]
    return work.micro_batches * sum(passes)


@pytest.mark.parametrize("cluster", [A100, H100], ids=["A100", "H100"])
@pytest.mark.parametrize("tp", [1, 2, 8])
def test_modules_take_together_what_the_closed_form_says(cluster: Cluster, tp: int) -> None:
    work = step(dp=1, tp=tp)
    found = fitted_step(work, cluster)
    assert found is not None
    runs = runs_of(work.model, cluster, 4096, [(tp, 1, 1, 1, 2, 2, 0, 0, 1, 1)])
    # Nothing but the modules: links and messages that cost nothing.
    free = constants_on(cluster, frozen()) | {"link": np.array([1e9]), "hop_s": np.array([0.0])}
    runs = runs.take(np.array([0]))
    runs.split_sequence[:] = 0.0
    parts = step_seconds(runs, free)
    assert taken(work, found.cluster) == pytest.approx(float(parts.compute[0] + parts.head[0]), rel=1e-6)
    assert found.cluster.device.step_s == pytest.approx(float(parts.fixed[0]))


def test_selective_recomputation_repeats_the_core_of_attention() -> None:
    plain, again = (fitted_step(step(how), A100) for how in ("none", "selective"))
    assert plain is not None and again is not None
    more = taken(step("selective"), again.cluster) - taken(step(), plain.cluster)
    runs = [runs_of(step().model, A100, 4096, [(1, 1, 1, 1, 2, 2, 0, how, 1, 1)]) for how in (0, 1)]
    compute = [float(step_seconds(each, constants_on(A100, frozen())).compute[0]) for each in runs]
    assert more == pytest.approx(compute[1] - compute[0], rel=1e-6)
    assert more > 0


def test_links_have_the_shares_that_collectives_reach_and_latencies_no_less_than_their_own() -> None:
    slow = A100.change(inter=replace(A100.inter, alpha_s=1e-3))
    found, late = (fitted_step(step(dp=2), each) for each in (A100, slow))
    assert found is not None and late is not None
    known = frozen().constants["A100"]
    assert found.cluster.intra.beta_s_per_byte == pytest.approx(A100.intra.beta_s_per_byte / known.link)
    assert found.cluster.inter.beta_s_per_byte == pytest.approx(A100.inter.beta_s_per_byte / known.nic)
    assert (found.cluster.inter.alpha_s, late.cluster.inter.alpha_s) == (known.far_hop_s, 1e-3)
    assert found.cluster.inter.shared == A100.inter.shared
    assert found.cluster.host == A100.host


def test_what_was_measured_stays_as_it_is() -> None:
    figure = Figure("a calibration", "measured")
    linked = A100.change(sources={**A100.sources, "inter.beta_s_per_byte": figure})
    found = fitted_step(step(dp=2), linked)
    assert found is not None
    assert found.cluster.inter == A100.inter
    assert found.cluster.intra != A100.intra
    assert fitted_step(step(), A100.change(sources={"device.flops": figure})) is None
    assert fitted_step(step(), A100.change(device=replace(A100.device, measured=((1.0, 1.0, 1.0),)))) is None


def test_the_frameworks_ways_are_taken_where_the_workload_does_not_say() -> None:
    own = replace(step(tp=2), gradient_bytes=2, overlap_weight_gradients=True)
    usual, said = (fitted_step(each, A100) for each in (step(tp=2), own))
    assert usual is not None and said is not None
    assert (usual.workload.gradient_bytes, usual.workload.exposed_sums) == (4, 0.3)
    assert (said.workload.gradient_bytes, said.workload.exposed_sums) == (2, 1.0)


def test_fp8_products_are_faster_where_the_device_has_them() -> None:
    wide, narrow = (fitted_step(step(), H100, precision=each) for each in ("bf16", "fp8"))
    assert wide is not None and narrow is not None
    assert 0.5 < taken(step(), narrow.cluster) / taken(step(), wide.cluster) < 0.95


def test_nothing_is_said_where_nothing_like_it_was_measured() -> None:
    assert fitted_step(step(), load_cluster("cpu2")) is None
    assert fitted_step(step(), load_cluster("geo48")) is None
    assert fitted_step(load_workload("llama-8b", mode="prefill"), A100) is None
    assert fitted_step(load_workload("tnl-7b"), A100) is None
    assert fitted_step(step(), A100.change(inter=replace(A100.inter, beta_s_per_byte=0.0))) is None
    mixture = replace(step(), model=replace(step().model, experts=8, active=2))
    assert fitted_step(mixture, H100) is None
