"""Layouts: all that are tried are possible, the first is the fastest, and brute force agrees."""

from __future__ import annotations

import math
import re
import time

import msgspec
import pandas as pd
import pytest

from densing.core.errors import InputError
from densing.efficiency.simulation import load_cluster, load_workload
from densing.efficiency.throughput import check_throughput, framework_names, frozen, plan_layout, step_seconds
from densing.efficiency.throughput.fitted import runs_of
from densing.efficiency.throughput.layouts import REASONS, _layouts

SMALL = load_workload("llama-8b").model


def test_every_candidate_divides_devices_and_batch() -> None:
    cluster = load_cluster("a100x8-rdma", n=24)
    candidates = list(_layouts(SMALL, cluster, 24, 96, 16_384))
    assert len(candidates) == len(set(candidates)) > 50
    assert {candidate[-1] for candidate in candidates} == {1, 2, 4}
    for tp, pp, virtual, dp, micro, parts, zero, _, ep, cp in candidates:
        assert ep == 1
        assert tp * pp * dp * cp == 24
        assert dp * micro * parts == 96
        assert SMALL.heads % tp == 0
        assert tp <= 8
        assert pp * virtual <= SMALL.layers
        assert zero == 0 or dp > 1
        # No framework keeps parameters in shards inside a pipeline, or deals layers unevenly by more than two.
        assert zero < 3 or pp == 1
        assert min(-SMALL.layers % (pp * virtual), SMALL.layers) <= 2


def test_the_first_layout_is_the_fastest_of_a_table_of_all() -> None:
    cluster = load_cluster("a100x8-rdma", n=16)
    found = plan_layout(SMALL, cluster, 16, batch=64, most=10_000)
    speeds = [each.tokens_per_s for each in found.layouts]
    assert speeds == sorted(speeds, reverse=True)
    assert len(speeds) == found.fitting <= found.tried
    assert all(each.memory_bytes <= cluster.device.memory for each in found.layouts)
    assert all(each.low_s < each.step_s < each.high_s for each in found.layouts)
    tokens, device = 64 * 4096, cluster.device
    # PaLM's count: 6 operations per parameter, and 12 L h s of attention.
    matrices = SMALL.hidden * (2 * SMALL.hidden + 2 * SMALL.kv_heads * SMALL.head_dim + 3 * SMALL.ffn)
    counted = (
        6 * (SMALL.layers * matrices + 2 * SMALL.vocabulary * SMALL.hidden) + 12 * SMALL.layers * SMALL.hidden * 4096
    )
    for each in found.layouts:
        assert each.tokens_per_s * each.step_s == pytest.approx(tokens)
        assert sum(each.parts_s.values()) == pytest.approx(each.step_s)
        assert each.mfu == pytest.approx(counted * tokens / each.step_s / (16 * device.flops), rel=1e-6)
    # What the best one saves over the next of another split.
    best = found.layouts[0]
    other = next(each for each in found.layouts if (each.tp, each.pp) != (best.tp, best.pp))
    said = re.fullmatch(r"tp (\d+) and pp (\d+) take ([\d.]+) % longer, most of it for (.+)", found.why)
    assert said is not None and (int(said[1]), int(said[2])) == (other.tp, other.pp)
    assert float(said[3]) == pytest.approx(100 * (other.step_s - best.step_s) / best.step_s, abs=0.051)
    saved = {part: other.parts_s[part] - best.parts_s[part] for part in REASONS}
    assert saved[next(part for part in REASONS if REASONS[part] == said[4])] == max(saved.values())
    # The same layouts as rows of a table, on the same device: the same speeds.
    row = {
        "row_id": "best", "framework": "Megatron-Core", "layers": SMALL.layers, "hidden": SMALL.hidden,
        "heads": SMALL.heads, "kv_heads": SMALL.kv_heads, "ffn_hidden": SMALL.ffn, "vocab": SMALL.vocabulary,
        "mlp": "swiglu", "tied_embeddings": int(SMALL.tied), "seq": 4096, "gpu": "A100-80GB", "gpus": 16,
        "tp": best.tp, "pp": best.pp, "dp": best.dp, "cp": best.cp, "vpp": best.virtual, "mbs": best.micro_batch,
        "grad_acc": best.parts, "dp_shard": f"zero{best.zero}", "recompute": best.recompute,
        "sequence_parallel": int(best.tp > 1), "other_options": "flash attention",
    }  # fmt: skip
    again = check_throughput(pd.DataFrame([row])).rows[0]
    assert again.memory_bytes == pytest.approx(best.memory_bytes)
    # The cluster's network is its own, the table's the data sheet's.
    assert again.predicted_tokens_per_s == pytest.approx(best.tokens_per_s, rel=0.15)


def test_the_layout_of_the_paper_fits_where_it_was_trained() -> None:
    # Llama 3 405B ran in 80 GB (arXiv 2407.21783, table 4); what is recommended needs no more.
    model = load_workload("llama3-405b").model
    found = plan_layout(model, load_cluster("h100x8-nvlink", n=16384), 16384, sequence=8192, batch=2048)
    assert found.layouts[0].tp == 8
    assert found.layouts[0].pp >= 8
    assert [note.code for note in found.notes] == ["data-sheet", "never-measured"]
    assert "recalled" in found.notes[0].message


def test_long_sequences_are_shared_by_devices() -> None:
    # Llama 3 405B at 131,072 tokens on 16,384 devices: published are 380 TFLOP/s each, 38 % (second-hand), cp 16.
    model = load_workload("llama3-405b").model
    found = plan_layout(model, load_cluster("h100x8-nvlink", n=16384), 16384, sequence=131_072, batch=128)
    best = found.layouts[0]
    assert best.cp >= 16
    published = found.batch * found.sequence * (6 * 405.9e9 + 12 * 126 * 16384 * 131_072) / (16384 * 380e12)
    assert best.low_s < published < best.high_s


@pytest.mark.parametrize("cluster", ["a100x8-rdma", "h100x8-nvlink"])
@pytest.mark.parametrize("sequence", [512, 4096, 32_768, 262_144])
@pytest.mark.parametrize("name", ["gpt2", "llama-8b", "llama3-70b"])
def test_no_plan_takes_more_than_the_devices_have(name: str, sequence: int, cluster: str) -> None:
    model = load_workload(name).model
    found = plan_layout(model, load_cluster(cluster, n=64), 64, sequence=sequence, batch=64, most=10_000)
    assert all(0 < each.mfu < 1 and math.isfinite(each.memory_bytes) for each in found.layouts)
    assert all(each.low_s < each.step_s < each.high_s for each in found.layouts)


def test_states_in_shards_pay_latency_for_every_layer() -> None:
    # 2,048 replicas of a small model: a ring over 255 nodes has its latency in each of the layers' collectives.
    model, cluster = load_workload("llama-8b").model, load_cluster("h100x8-nvlink", n=2048)
    runs = runs_of(model, cluster, 4096, [(1, 1, 1, 2048, 1, 1, stage, 0, 1, 1) for stage in (1, 3)])
    own, _ = frozen().of(["H100"] * 2)
    plain, sharded = step_seconds(runs, own).exchange
    hops = 3 * model.layers * (2048 / 8 - 1) * own["far_hop_s"][0]
    layers = step_seconds(runs, own).compute[1]
    assert sharded > hops - layers
    assert sharded > 3 * plain


def test_mixtures_are_not_predicted_from_one_source() -> None:
    mixture = msgspec.structs.replace(SMALL, experts=8, active=2)
    with pytest.raises(
        InputError, match="mixture: not predicted, measured runs come from 1 source and a range takes 2"
    ):
        plan_layout(mixture, load_cluster("h100x8-nvlink", n=64), 64)


def test_what_cannot_be_planned_says_why() -> None:
    with pytest.raises(InputError, match="nothing tried fits 4 devices of 24 GB"):
        plan_layout(load_workload("llama3-70b").model, load_cluster("rtx4090x4-pcie"), 4)
    with pytest.raises(InputError, match="no split of 37 devices divides"):
        plan_layout(SMALL, load_cluster("a100x8-rdma", n=37), 37, batch=5)
    with pytest.raises(InputError, match="unequal devices cannot be planned"):
        plan_layout(SMALL, load_cluster("geo48"), 48)
    with pytest.raises(InputError, match="whole numbers from 1 up"):
        plan_layout(SMALL, load_cluster("a100x8-rdma"), 8, batch=0)


def test_a_thousand_devices_are_planned_at_once() -> None:
    # The limit is 30 s; this takes a tenth of one, so that no machine is too slow for it.
    started = time.process_time()
    plan_layout(load_workload("llama3-70b").model, load_cluster("a100x8-rdma", n=1024), 1024)
    assert time.process_time() - started < 30


def test_a_framework_brings_its_own_kernels_and_gradients() -> None:
    cluster = load_cluster("a100x8-rdma", n=64)
    only = {"tp": 1, "pp": 1, "zero": 2, "micro_batch": 1, "recompute": "full"}
    plans = {
        name: plan_layout(SMALL, cluster, 64, framework=name, only=only)
        for name in framework_names()
        if name != "nanotron"
    }
    best = {name: plan.layouts[0] for name, plan in plans.items()}
    assert {name: plan.framework for name, plan in plans.items()} == {name: name for name in best}
    # Gradients of 32 bits take twice the memory and the wire of those of 16.
    assert best["Megatron-Core"].memory["gradients"] == 2 * best["FSDP"].memory["gradients"]
    assert best["Megatron-Core"].parts_s["exchange"] > best["FSDP"].parts_s["exchange"]
    # Scores that are written take time; so do gradients that wait for the end of the backward pass.
    assert best["Megatron-LM"].parts_s["compute"] > 1.1 * best["FSDP"].parts_s["compute"]
    assert best["Megatron-LM"].parts_s["exchange"] > best["OneFlow"].parts_s["exchange"]
    assert best["JAX"].parts_s["compute"] < best["FSDP"].parts_s["compute"]


def test_half_of_the_layers_is_what_fsdp_means_by_selective() -> None:
    cluster = load_cluster("a100x8-rdma", n=64)
    only: dict[str, int | str] = {"tp": 1, "pp": 1, "zero": 3, "micro_batch": 1}
    times = {
        (name, again): plan_layout(SMALL, cluster, 64, framework=name, only={**only, "recompute": again}).layouts[0]
        for name in ("FSDP", "JAX")
        for again in ("none", "selective", "full")
    }
    assert all(layout.recompute == again for (_, again), layout in times.items())
    compute = {key: layout.parts_s["compute"] for key, layout in times.items()}
    added = {key: compute[key] - compute[key[0], "none"] for key in compute}
    assert added["FSDP", "selective"] == pytest.approx(added["FSDP", "full"] / 2, rel=1e-6)
    assert added["JAX", "selective"] < 0.4 * added["JAX", "full"]


def test_the_plan_of_a_framework_is_a_row_of_that_framework() -> None:
    cluster = load_cluster("a100x8-rdma", n=16)
    found = plan_layout(SMALL, cluster, 16, batch=64, framework="Megatron-LM").layouts[0]
    row = {
        "row_id": "best", "framework": "Megatron-LM", "layers": SMALL.layers, "hidden": SMALL.hidden,
        "heads": SMALL.heads, "kv_heads": SMALL.kv_heads, "ffn_hidden": SMALL.ffn, "vocab": SMALL.vocabulary,
        "mlp": "swiglu", "tied_embeddings": int(SMALL.tied), "seq": 4096, "gpu": "A100-80GB", "gpus": 16,
        "tp": found.tp, "pp": found.pp, "dp": found.dp, "cp": found.cp, "vpp": found.virtual, "mbs": found.micro_batch,
        "grad_acc": found.parts, "dp_shard": f"zero{found.zero}", "recompute": found.recompute,
    }  # fmt: skip
    again = check_throughput(pd.DataFrame([row])).rows[0]
    assert again.memory_bytes == pytest.approx(found.memory_bytes)
    # The cluster's network is its own, the table's the data sheet's.
    assert again.predicted_tokens_per_s == pytest.approx(found.tokens_per_s, rel=0.15)


def test_eager_programs_are_not_predicted_and_unknown_frameworks_are_named() -> None:
    cluster = load_cluster("h100x8-nvlink", n=64)
    with pytest.raises(InputError, match="eager: not predicted, measured runs come from 1 source"):
        plan_layout(SMALL, cluster, 64, framework="nanotron")
    with pytest.raises(InputError, match=r"framework 'megatron core'.*Megatron-Core"):
        plan_layout(SMALL, cluster, 64, framework="megatron core")


def test_every_piece_of_an_interleaved_stage_is_handed_over() -> None:
    # Narayanan et al., arXiv 2104.04473, section 2.2: v pieces per device have v times the communication, and a v-th of
    # the bubble.
    cluster = load_cluster("a100x8-tcp", n=32)
    runs = runs_of(SMALL, cluster, 1024, [(8, 4, pieces, 1, 4, 16, 0, 0, 1, 1) for pieces in (1, 2, 4, 8)])
    own, _ = frozen().of(["A100"] * 4)
    seconds = step_seconds(runs, own)
    handed = own["far_hop_s"] + 4 * 1024 * SMALL.hidden * 2 / 8 / (runs.nic * own["nic"])
    for number, pieces in enumerate((1, 2, 4, 8)):
        more = seconds.compute[number] - seconds.compute[0]
        assert more == pytest.approx(16 * 2 * (pieces - 1) * handed[0])
        bubble = (seconds.fill[number] - 3 * 2 * handed[0]) * pieces
        assert bubble == pytest.approx(seconds.fill[0] - 3 * 2 * handed[0])
