"""What a step takes: closed forms by hand, bounds, and the simulator's collectives as oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.efficiency.simulation import Cluster, Device, Link, collective_seconds
from densing.efficiency.throughput import NAMES, RANGES, read_runs, step_seconds
from densing.efficiency.throughput.step import _Step
from tests.support.throughput import ROW

PLAIN = {name: values[0] for name, values in RANGES.items()}


def runs_of(*rows: dict[str, Any]):
    return read_runs(pd.DataFrame([{**ROW, "row_id": f"r{n}", **row} for n, row in enumerate(rows)])).runs


def constants(**changes: float) -> dict[str, Any]:
    return {name: np.asarray(changes.get(name, PLAIN[name])) for name in NAMES}


def test_parts_add_up() -> None:
    parts = step_seconds(runs_of({}, {"dp_shard": "fsdp"}, {"cp": 2, "dp": 4, "gbs": 64}), constants())
    assert parts.step == pytest.approx(sum(parts[1:]))
    assert (np.array(parts) >= 0).all()


def test_a_large_step_takes_its_operations_at_the_share_of_the_peak() -> None:
    # One device, no attention to speak of, nothing else that costs: 6 N T operations at half the peak.
    run = runs_of(
        {"gpu": "H100", "gpus": 1, "tp": 1, "pp": 1, "dp": 1, "layers": 4, "hidden": 16384, "heads": 128, "seq": 128,
         "mbs": 1024, "gbs": 1024, "recompute": "none", "framework": "", "vocab": 128}
    )  # fmt: skip
    free = constants(products=0.5, memory=1e9, attention=1e9, step_s=0, launch_s=0)
    counted = 6 * (run.parameters - run.vocabulary * run.hidden) * run.tokens
    assert step_seconds(run, free).step == pytest.approx(counted / (989.4e12 * 0.5), rel=0.02)


def test_the_bubble_is_that_of_the_schedule() -> None:
    # Narayanan et al., arXiv 2104.04473, section 2.2: (p - 1)/m of the ideal time, divided by v.
    rows = [{"pp": 8, "tp": 1, "dp": 8, "gbs": 8 * 2 * 16, "vpp": v, "vocab": 1} for v in (1, 3)]
    quick = constants(step_s=0, far_hop_s=0, nic=1e9, link=1e9)
    parts = step_seconds(runs_of(*rows), quick)
    assert parts.fill / parts.compute == pytest.approx([7 / 16, 7 / 16 / 3], rel=1e-6)


def test_half_of_a_forward_pass_again_is_half_of_all_of_it() -> None:
    said = {"framework": "torchtitan", "tp": 1, "pp": 1, "dp": 64, "gbs": 128}
    step = step_seconds(runs_of(*({**said, "recompute": each} for each in ("none", "selective", "full"))), constants())
    none, half, full = step.compute
    assert half == pytest.approx((none + full) / 2)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize(("n", "stride"), [(8, 1), (4, 2), (32, 8), (16, 4), (2, 1)])
def test_collectives_of_replicas_cost_what_the_simulator_says(op: str, n: int, stride: int) -> None:
    run = runs_of({"gpus": 256, "tp": stride, "pp": 1, "dp": 256 // stride, "gbs": 512 // stride})
    c = constants(link=1.0, nic=1.0)
    cluster = Cluster(
        "oracle", 256, 8, Device("toy", 1, 1), Link(PLAIN["hop_s"], 1 / 300e9), Link(PLAIN["far_hop_s"], 1 / 25e9),
        Link(0, 0),
    )  # fmt: skip
    ours = _Step(run, c).collective(op, np.asarray(1e8), np.asarray(float(n)), np.asarray(float(stride)))
    ranks = range(0, n * stride, stride)
    assert ours == pytest.approx(collective_seconds(op, 1e8, cluster, ranks, "hierarchical"))


@given(
    name=st.sampled_from(["products", "memory", "attention", "link", "nic"]),
    share=st.floats(0.1, 0.45),
    tp=st.sampled_from([1, 2, 8, 16]),
    pp=st.sampled_from([1, 4]),
    shard=st.sampled_from(["ddp", "zero1", "fsdp"]),
    framework=st.sampled_from(["nanotron", "Megatron-LM", "Megatron-Core", "llm-foundry"]),
)
def test_nothing_gets_slower_with_a_better_device(
    name: str, share: float, tp: int, pp: int, shard: str, framework: str
) -> None:
    dp = 64 // tp // pp
    run = runs_of({"tp": tp, "pp": pp, "dp": dp, "gbs": dp * 8, "dp_shard": shard, "framework": framework})
    slow = step_seconds(run, constants(**{name: share})).step
    fast = step_seconds(run, constants(**{name: 2 * share})).step
    assert (fast <= slow * (1 + 1e-12)).all()
    # More operations per second than the device has, never.
    flops = run.flops_per_token - 12 * run.layers * run.hidden * run.sequence / 2
    assert (run.tokens / fast * flops <= run.devices * run.flops * 1.001).all()


def test_a_share_of_a_gpu_year_is_never_negative_for_failed_rows() -> None:
    found = step_seconds(runs_of({"layers": "many"}), constants())
    assert np.isnan(found.step).all()


FREE_LINKS = {"link": 1e9, "nic": 1e9, "hop_s": 0, "far_hop_s": 0}


@pytest.mark.parametrize("ep", [1, 2, 8])
@pytest.mark.parametrize("top", [1, 2])
def test_experts_compute_as_one_mlp_as_wide_as_what_a_token_visits(top: int, ep: int) -> None:
    shape = {"framework": "", "recompute": "none", "hidden": 4096, "seq": 16384, "mbs": 4, "gbs": 32, "tp": 1, "pp": 1}
    dense = runs_of({**shape, "gpus": 8, "dp": 8, "ffn_hidden": 4096 * top})
    mixed = runs_of({**shape, "gpus": 8, "dp": 8, "moe": f"8 experts, top {top}, expert ffn 4096", "ep": ep})
    quick = {"memory": 1e9, "launch_s": 0}
    alone = step_seconds(mixed, constants(**quick, **FREE_LINKS)).compute
    assert alone == pytest.approx(step_seconds(dense, constants(**quick, **FREE_LINKS)).compute, rel=0.01)
    # Forward and backward, each token goes to its experts and comes back: twice top rows of 16 bits per layer and pass.
    rows = 4 * 16384 * top * 4096 * 2
    sent = 24 * 4 * ((ep - 1) * PLAIN["hop_s"] + (ep - 1) / ep * rows / 300e9)
    within = constants(**{**quick, "link": 1})
    assert step_seconds(mixed, within).compute - alone == pytest.approx(sent, rel=1e-6, abs=1e-9)
    # A device holds its share of the experts, and both matrices of the vocabulary.
    held = 24 * (4 * 4096**2 + 8 / ep * 2 * 4096**2) + 2 * 51200 * 4096
    assert _Step(mixed, within).held(np.asarray(24.0)) == pytest.approx(held)


def test_what_is_no_layer_of_a_step_takes_what_a_hand_calculation_says() -> None:
    one = {"framework": "", "recompute": "none", "layers": 4, "hidden": 1024, "seq": 1024, "vocab": 32768, "gpus": 8,
           "tp": 1, "pp": 1, "dp": 8, "mbs": 2, "gbs": 32}  # fmt: skip
    runs = runs_of(*({**one, "dp_shard": shard} for shard in ("ddp", "zero1", "fsdp")))
    slow = {"link": 1e-3, "hop_s": 1e-5}
    parts = step_seconds(runs, constants(**slow, products=0.5, memory=0.5, step_s=0.25))
    bandwidth, held = 0.5 * runs.bandwidth[0], 4 * 12 * 1024**2 + 2 * 32768 * 1024
    assert parts.fixed == pytest.approx([0.25] * 3)
    assert parts.fill.tolist() == [0, 0, 0]
    # Gradient and weight of two bytes, and twelve of Adam's state read and written.
    assert parts.optimizer == pytest.approx([28 * held / bandwidth / shards for shards in (1, 8, 8)])
    # Three products of two micro-batches: 16 x 256, 16 x 8 or 8 x 256 tiles have the same count in whole waves of 108.
    product = 2 * 2048 * 1024 * 32768 / (0.5 * 312e12) * 38 * 108 / 4096
    moved = 2 * (2048 * 1024 + 1024 * 32768 + 2048 * 32768) / bandwidth
    assert parts.head == pytest.approx([2 * (3 * (product + moved) + 24 * 2048 * 32768 / bandwidth)] * 3)
    # A ring of eight over a slow link; what hides behind layers is at most what they take.
    passed = 7 * 1e-5 + 7 / 8 * 2 * held / (300e9 * 1e-3)
    # States in shards travel in three collectives for each of four layers, every one with its latency.
    whole, full = 2 * passed, 2 * 3 * (passed + 3 * 7 * 1e-5)
    layers = parts.compute / 2
    assert (whole - parts.exchange[:2] > 0).all() and (whole - parts.exchange[:2] < layers[:2]).all()
    assert parts.exchange[2] == pytest.approx(full - 0.9 * 2 * layers[2] + 0.05 * full)
    quick = step_seconds(runs, constants(hop_s=0))
    passed = 7 / 8 * 2 * held / (300e9 * PLAIN["link"])
    assert quick.exchange == pytest.approx([0.1 * 2 * passed, 0.1 * 2 * passed, 0.05 * 2 * 3 * passed])
