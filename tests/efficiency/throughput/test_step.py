"""What a step takes: closed forms by hand, bounds, and the simulator's collectives as oracle."""

from __future__ import annotations

import dataclasses
import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.efficiency.simulation import Cluster, Device, Link, collective_seconds
from densing.efficiency.throughput import NAMES, RANGES, read_runs, step_seconds
from densing.efficiency.throughput.step import _Step
from densing.efficiency.throughput.table import Runs
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


@pytest.fixture(scope="module")
def many() -> Runs:
    """Steps of every split, sharding and software, read once."""
    splits = itertools.product((1, 2, 8, 16), (1, 4), ("ddp", "zero1", "fsdp"),
                               ("nanotron", "Megatron-LM", "Megatron-Core", "llm-foundry"))  # fmt: skip
    return runs_of(
        *(
            {
                "tp": tp,
                "pp": pp,
                "dp": 64 // tp // pp,
                "gbs": 512 // tp // pp,
                "dp_shard": shard,
                "framework": framework,
            }
            for tp, pp, shard, framework in splits
        )
    )


@given(name=st.sampled_from(["products", "memory", "attention", "link", "nic"]), share=st.floats(0.1, 0.45))
def test_nothing_gets_slower_with_a_better_device(many: Runs, name: str, share: float) -> None:
    slow = step_seconds(many, constants(**{name: share})).step
    fast = step_seconds(many, constants(**{name: 2 * share})).step
    assert (fast <= slow * (1 + 1e-12)).all()
    # More operations per second than the device has, never.
    flops = many.flops_per_token - 12 * many.layers * many.hidden * many.sequence / 2
    assert (many.tokens / fast * flops <= many.devices * many.flops * 1.001).all()


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


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "pipeline of uneven stages": {"pp": 5, "dp": 4, "gpus": 80, "gbs": 64},
    "interleaved": {"pp": 4, "dp": 4, "vpp": 3, "gbs": 64},
    "filled pipeline": {"pp": 4, "dp": 4, "gbs": 64, "pp_schedule": "zero-bubble"},
    "core": {"framework": "Megatron-Core", "pp": 4, "dp": 4, "gbs": 64, "mlp": "swiglu", "kv_heads": 4},
    "eight bits": {"framework": "Megatron-Core", "gpu": "H100", "precision": "fp8", "recompute": "none"},
    "eight bits, others' attention": {"gpu": "H100", "precision": "fp8", "other_options": "flash attention"},
    "rows of eight bits": {"gpu": "B200", "precision": "fp8 rowwise", "recompute": "selective"},
    "eager": {"framework": "nanotron", "dp_shard": "zero1", "pp": 4, "dp": 4, "gbs": 64},
    "eager, one stage": {"framework": "nanotron", "dp_shard": "zero2", "pp": 1, "dp": 16, "gbs": 256},
    "states in shards": {"framework": "torchtitan", "dp_shard": "fsdp", "tp": 1, "pp": 1, "dp": 64,
                         "recompute": "selective"},
    "fused": {"other_options": "flash attention, torch.compile, async TP", "recompute": "none"},
    "written scores": {"seq": 4096, "recompute": "selective"},
    "long": {"framework": "Megatron-Core", "cp": 4, "dp": 2, "seq": 16384, "gbs": 16, "tied_embeddings": 1},
    "mixture": {"framework": "Megatron-Core", "moe": "16 experts, top 2, expert ffn 1536", "ep": 4, "tp": 2, "dp": 16,
                "gbs": 256, "mlp": "swiglu"},
    "mixture across nodes": {"moe": "64 experts, top 4, expert ffn 512", "ep": 16, "tp": 1, "pp": 1, "dp": 64,
                             "gbs": 256},
    "one device": {"gpus": 1, "tp": 1, "pp": 1, "dp": 1, "gbs": 8, "vocab": 50257},
    "tied, wide groups": {"tp": 16, "pp": 1, "dp": 4, "tied_embeddings": 1, "sequence_parallel": 1, "hidden": 6144,
                          "heads": 48},
    "small": {"layers": 4, "hidden": 256, "heads": 4, "seq": 128, "mbs": 1, "gbs": 64, "framework": "Megatron-Core"},
}  # fmt: skip


def by_hand(runs: Any, c: dict[str, float]) -> list[float]:
    """The parts of one step in plain numbers, from what the module says of each."""
    r = SimpleNamespace(**{field.name: float(getattr(runs, field.name)[0]) for field in dataclasses.fields(runs)})
    ceil, devices, n = math.ceil, runs.devices[0], r.dp * r.cp
    peak, pace = r.flops * r.power * c["products"], r.bandwidth * c["memory"]
    tokens, keys = r.micro_batch * r.sequence / r.cp, r.hidden * r.kv_heads / r.heads
    fused, vendor, sparse = r.fused > 0, r.vendor > 0, r.experts > 0

    def product(a: float, b: float, d: float, wide: bool = False) -> float:
        tiles, low = ceil(a / 128) * ceil(d / 128), r.eight_bits > 0 and not wide
        whole = 128**2 * ceil(tiles / r.units) * r.units / (a * d)  # tiles of whole waves beside those of the product
        cast = (2 if vendor else 3) * (a * b + b * d) if low else 0
        return (
            2 * a * b * d * whole / (peak * (r.flops_low / r.flops if low else 1))
            + (2 * (a * b + b * d + a * d) + cast) / pace
        )

    def collective(op: str, count: float, n: float, stride: float, waits: bool = False) -> float:
        inside = min(max(math.floor(r.node / stride), 1), n)
        nodes, times = n / inside, 2 if op == "all_reduce" else 1
        seconds = 0.0
        if inside > 1:
            seconds += times * ((inside - 1) * c["hop_s"] + (inside - 1) / inside * count / (r.link * c["link"]))
        if nodes > 1:
            shard = count if op == "all_to_all" else count / inside
            hops = n - 1 if waits else nodes - 1
            seconds += times * (hops * c["far_hop_s"] + (nodes - 1) / nodes * shard / (r.nic * c["nic"]))
        return seconds

    ffn = r.expert_ffn if sparse else r.ffn
    routed, held = (tokens * r.top * r.ep / r.experts, r.experts / r.ep) if sparse else (tokens, 1.0)
    shapes = [
        (1, tokens, r.hidden, (r.hidden + 2 * keys) / r.tp), (1, tokens, r.hidden / r.tp, r.hidden),
        (held, routed, r.hidden, ffn * (1 + r.gated) / r.tp), (held, routed, ffn / r.tp, r.hidden),
    ]  # fmt: skip
    ahead = [times * product(a, b, d) for times, a, b, d in shapes]
    behind = [times * (product(a, d, b) + product(b, a, d)) for times, a, b, d in shapes]
    operations = 4 * tokens * r.sequence * r.hidden / r.tp
    if r.written:
        scores = 2 * tokens * r.sequence * r.heads / r.tp / pace
        attention, attention_back = operations / peak + 6 * scores, 2 * operations / peak + 8 * scores
    else:
        share = min(c["attention"] * (2 if vendor else 1), 0.58) * r.sequence / (r.sequence + 1024)
        attention = operations / 2 / (r.flops * r.power * share)
        attention_back = 2.5 * attention
    columns = r.hidden / r.tp if r.split_sequence else r.hidden
    moved = 8 * columns + 4 * (r.hidden + 2 * keys) / r.tp
    moved_mlp = 8 * columns + (4 + 2 * r.gated) * ffn * (r.top if sparse else 1) / r.tp
    moved_mlp += 8 * r.top * r.hidden if sparse else 0
    moved, moved_mlp = (2 * tokens * each * (0.6 if fused else 1) / pace for each in (moved, moved_mlp))
    whole = collective("all_reduce", 2 * tokens * r.hidden, r.tp, 1, waits=True)
    crossing = 2 * (r.tp - 1) * c["crossing_s"] if r.eager and r.pp > 1 else 0

    def exposed(module: float) -> float:
        return crossing + (max(0.3 * whole, whole - module) if r.hidden_sums else whole)

    routing = 2 * collective("all_to_all", tokens * r.top * r.hidden * 2, r.ep, r.tp) if sparse else 0
    least = c["launch_s"] * (0.5 if fused else 1)
    forwards = (sum(ahead[:2]) + attention + moved, sum(ahead[2:]) + moved_mlp)
    backwards = (sum(behind[:2]) + attention_back + 1.6 * moved, sum(behind[2:]) + 1.6 * moved_mlp)
    forward = max(sum(forwards) + sum(map(exposed, forwards)) + routing, least)
    backward = max(sum(backwards) + sum(map(exposed, backwards)) + routing, 2 * least)
    backward += {0: 0.0, 1: attention, 2: forward, 3: forward / 2}[int(r.recompute)]
    layers = ceil(r.layers / r.pp)
    stage, mean = layers * (forward + backward), r.layers / r.pp * (forward + backward)
    far = devices / r.pp >= r.node
    count = 2 * tokens * r.hidden / (r.tp if r.split_sequence else 1)
    handed = c["far_hop_s"] + count / (r.nic * c["nic"] if far else r.link * c["link"]) if r.pp > 1 else 0
    logits = r.vocabulary / r.tp
    head = 3 * product(tokens, r.hidden, logits, wide=True) + 24 * tokens * logits / pace
    fill = (r.pp - 1) * (r.bubble * mean / r.virtual + 2 * handed)
    mlp = r.experts * r.expert_ffn / r.ep if sparse else r.ffn
    own = layers * (2 * r.hidden**2 + 2 * r.hidden * keys + mlp * r.hidden * (2 + r.gated))
    own = (own + (2 if r.pp == 1 and not r.tied else 1) * r.vocabulary * r.hidden) / r.tp
    gradients, weights = own * r.gradient_bytes, 2 * own
    scattered = collective("reduce_scatter", gradients, n, r.tp)
    if r.zero == 3:
        full = 2 * collective("all_gather", weights / layers, n, r.tp)
        full = r.parts * layers * (full + collective("reduce_scatter", gradients / layers, n, r.tp))
        exchange = max(full - 0.9 * r.parts * stage, 0) + 0.05 * full
    else:
        often = r.parts if r.zero == 2 and r.pp == 1 else 1
        exchange = collective("all_gather", weights, n, r.tp) + often * scattered
        if r.zero == 0:
            exchange = collective("all_reduce", gradients, n, r.tp)
        if r.hidden_gradients:
            exchange = max(exchange - 0.8 * often * layers * backward, 0.1 * exchange)
    if r.cp > 1:
        passed = 2 * 2 * tokens * 2 * keys * r.cp
        exchange += 0.3 * 2 * r.parts * layers * collective("all_gather", passed, r.cp, r.tp)
    optimizer = own / (n if r.zero >= 1 else 1) * (240 if r.eager else r.gradient_bytes + 2 + 2 * 12) / pace
    return [r.parts * (stage + 2 * handed * r.virtual), r.parts * head, fill, exchange, optimizer, c["step_s"]]


@pytest.mark.parametrize("slow", [1.0, 0.02], ids=["as usual", "slow links"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_step_is_what_its_parts_are_by_hand(shape: str, slow: float) -> None:
    found = read_runs(pd.DataFrame([{**ROW, "row_id": shape, **SHAPES[shape]}]))
    assert found.about.reason.tolist() == [""]
    own = {"link": 0.7 * slow, "nic": 0.6 * slow, "attention": 0.35 if slow == 1 else 0.2, "crossing_s": 3e-4}
    c = {name: float(value) for name, value in constants(**own).items()}
    parts = step_seconds(found.runs, {name: np.asarray(value) for name, value in c.items()})
    assert [float(part[0]) for part in parts[1:]] == pytest.approx(by_hand(found.runs, c), rel=1e-9)
    assert parts.step[0] == pytest.approx(sum(by_hand(found.runs, c)))
