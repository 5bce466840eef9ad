"""Reading tables of training runs: what a row says, what is assumed, and why a row cannot be expressed."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from densing.core.errors import InputError
from densing.efficiency.throughput import device_names, read_runs
from densing.efficiency.throughput.table import SAMPLE, Runs
from tests.support.throughput import ROW


def read(*rows: dict[str, Any]):
    return read_runs(pd.DataFrame([{**ROW, "row_id": f"r{number}", **row} for number, row in enumerate(rows)]))


def test_a_row_becomes_numbers() -> None:
    table = read({})
    runs = table.runs
    assert table.about.reason.tolist() == [""]
    assert (runs.parts[0], runs.devices[0], runs.tokens[0]) == (8, 64, 128 * 2048)
    # Megatron-LM of that time wrote its scores, and this row recomputes whole layers.
    assert (runs.written[0], runs.recompute[0], runs.zero[0], runs.ffn[0]) == (1, 2, 0, 4 * 2048)
    # 12 L h^2 and the two matrices of the vocabulary, as no row says that they are one.
    assert runs.parameters[0] == 12 * 24 * 2048**2 + 2 * 51200 * 2048
    assert runs.flops_per_token[0] == 6 * runs.parameters[0] + 12 * 24 * 2048 * 2048


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpus": 63}, "gpus: not tp * pp * dp * cp = 64"),
        ({"gpu": "Abacus"}, "gpu: no data sheet for Abacus is known"),
        ({"gpu": ""}, "gpu: not stated"),
        ({"layers": "many"}, "layers: many is not a whole number from 1 up"),
        ({"layers": 1_000_000}, "layers: more than 10,000"),
        ({"tokens_per_s": "fast"}, "tokens_per_s: fast is not a number from 0 up"),
        ({"tp": 0}, "tp: 0 is not a whole number from 1 up"),
        ({"hidden": ""}, "hidden: not stated"),
        ({"layers": float("nan")}, "layers: not stated"),
        ({"seq": "1e400"}, "seq: 1e400 is not a whole number from 1 up"),
        ({"pp": 32, "gpus": 1024}, "pp: more stages than layers"),
        ({"gbs": 100}, "gbs: not mbs * dp times a whole number"),
        ({"gbs": ""}, "gbs: not stated"),
        ({"seq": "", "gbs": "", "gpu": "MI300X"}, "seq, gbs: not stated"),
        ({"pp": 4, "vpp": 1000, "dp": 4}, "vpp: more pieces than layers"),
        ({"dp_shard": "sharded"}, "dp_shard: sharded is not known; write ddp, zero1, zero2, zero3, fsdp or hsdp"),
        ({"recompute": "somewhat"}, "recompute: somewhat is not known; write none, selective or full"),
        ({"precision": "fp32"}, "precision: fp32 is not known; write bf16, fp16, fp8 or fp4"),
        ({"model": "BERT-large"}, "model: not a decoder"),
        ({"workload": "lora"}, "workload: lora"),
        ({"moe": "sparse somehow"}, "moe: the experts' shape is not stated"),
        ({"dp_shard": "zero3 + full CPU offload"}, "dp_shard: states in the host's memory"),
    ],
)
def test_what_cannot_be_expressed_says_why(change: dict[str, Any], reason: str) -> None:
    table = read(change, {})
    assert table.about.reason.tolist() == [reason, ""]
    assert table.usable.tolist() == [False, True]


def test_layouts_and_ways_of_software() -> None:
    table = read(
        {"dp_shard": "fsdp-full-shard"},
        {"dp_shard": "zero1", "framework": "nanotron", "recompute": "selective + sequence parallel"},
        {"framework": "Megatron-Bridge (Megatron-Core)", "pp_schedule": "interleaved 1f1b", "precision": "FP8"},
        {"framework": "something new", "other_options": "torch.compile, async TP", "grad_acc": 8, "mbs": "", "gbs": 64},
        {"moe": "128 experts, top 8, expert ffn 768", "ep": 8},
    )
    runs = table.runs
    assert table.about.reason.tolist() == [""] * 5
    assert runs.zero.tolist() == [3, 1, 0, 0, 0]
    assert runs.recompute.tolist() == [2, 1, 2, 2, 2]
    # Megatron-Core's recipes split the sequence over their tensor-parallel groups.
    assert runs.split_sequence.tolist() == [0, 1, 1, 0, 0]
    assert runs.eager.tolist() == [0, 1, 0, 0, 0]
    assert runs.vendor.tolist() == [0, 0, 1, 0, 0]
    assert runs.eight_bits.tolist() == [0, 0, 1, 0, 0]
    assert runs.virtual.tolist() == [1, 1, 2, 1, 1]
    assert (runs.fused[3], runs.hidden_sums[3], runs.micro_batch[3]) == (1, 1, 1)
    assert (runs.experts[4], runs.top[4], runs.expert_ffn[4]) == (128, 8, 768)


@pytest.mark.parametrize(
    ("words", "stage"),
    [
        ("|ddp|none|No|DP|zero-0|data parallel", 0),
        ("zero1|ZeRO-1|zero_1|ZeRO stage 1|ddp + distributed optimizer|Distributed Optimizer", 1),
        ("zero2|ZeRO stage 2|fsdp-shard-grad-op|SHARD_GRAD_OP", 2),
        ("fsdp|fsdp 256|FSDP2|full_shard|zero_3|ZeRO stage 3|fully sharded|Fully Sharded Data Parallel|HSDP|"
         "hybrid_shard|megatron-fsdp (group 8)|DeepSpeed ZeRO-3", 3),
    ],
)  # fmt: skip
def test_every_spelling_of_a_sharding_is_that_sharding(words: str, stage: int) -> None:
    table = read(*({"dp_shard": word} for word in words.split("|")))
    assert set(table.about.reason) == {""}
    assert set(table.runs.zero) == {stage}


def test_a_module_that_is_computed_again_is_not_taken_for_none() -> None:
    words = ("none", "no", "not said (see recipe)", "norm", "core_attn", "full", "selective")
    assert read(*({"recompute": word} for word in words)).runs.recompute.tolist() == [0, 0, 0, 1, 1, 2, 1]


def test_links_of_a_rack_reach_beyond_its_hosts() -> None:
    rows = ({"gpu": "GB200", "gpus_per_node": 4}, {"gpu": "B200", "gpus_per_node": 4}, {"gpu": "GB300"})
    assert read(*rows).runs.node.tolist() == [64, 4, 64]


def test_what_selective_means_depends_on_the_software() -> None:
    said = {"framework": "torchtitan", "dp_shard": "fsdp2"}
    rows = ({"recompute": "selective"}, {**said, "recompute": "selective"}, {"recompute": "selective per op"},
            {**said, "recompute": "none"})  # fmt: skip
    runs = read(*rows).runs
    assert runs.recompute.tolist() == [1, 3, 3, 0]
    # PyTorch's loss keeps logits in 16 and 32 bits, and their logarithms; Megatron's one copy in 32 bits.
    assert runs.logit_bytes.tolist() == [4, 10, 4, 10]


def test_numbers_of_few_bits_have_the_pace_of_their_products() -> None:
    widths = ("bf16", "fp8 tensorwise", "fp8 rowwise", "nvfp4")
    runs = read(*({"gpu": "B200", "precision": width} for width in widths)).runs
    assert runs.eight_bits.tolist() == [0, 1, 1, 1]
    assert (runs.flops_low / runs.flops).tolist() == [2, 2, 1, 4]


def test_schedules_without_bubbles() -> None:
    runs = read(*({"pp_schedule": name} for name in ("1f1b", "zero-bubble", "ZB-V", "DualPipe"))).runs
    assert runs.bubble.tolist() == [1, 1 / 3, 0, 0]


def test_the_network_is_as_the_row_says() -> None:
    said = ("", "RoCE, 1600 Gbps node-node", "RDMA 400 Gb/s per GPU", "EFA", "NVLink 600 GB/s; 8x400Gb/s IB")
    runs = read(*({"interconnect_said": text} for text in said)).runs
    assert runs.nic.tolist() == [25e9, 25e9, 50e9, 25e9, 50e9]


def test_tables_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="columns layers, gpu missing"):
        read_runs(pd.DataFrame([{key: value for key, value in ROW.items() if key not in ("layers", "gpu")}]))
    with pytest.raises(InputError, match=r"row 3, row_id: 'a' occurs twice"):
        read_runs(pd.DataFrame([ROW, ROW]))
    torn = tmp_path / "torn.csv"
    torn.write_text("row_id,layers\na")
    with pytest.raises(InputError, match="row 2: 1 cells, but the header has 2"):
        read_runs(torn)


def test_our_selection_says_where_every_row_is_from() -> None:
    cells = pd.read_csv(SAMPLE, dtype=str, keep_default_na=False)
    assert (cells[["source", "licence", "evidence"]] != "").all().all()
    assert set(cells.evidence.str.partition(" ")[0]) <= {"first-hand", "second-hand"}
    assert read_runs().usable.mean() > 0.9


def test_data_sheets_agree_with_those_of_clusters() -> None:
    from densing.efficiency.simulation.cluster import FILE, read_toml

    runs = read({"gpu": "A100-80GB"}, {"gpu": "H100"}).runs
    for number, name in enumerate(("a100-80g", "h100")):
        device = read_toml(FILE)["devices"][name]
        assert runs.flops[number] == pytest.approx(device["flops"], rel=1e-3)
        assert (runs.bandwidth[number], runs.memory[number]) == (device["mem_bw"], device["memory"])
    assert len(device_names()) == len(set(device_names()))
    assert np.isfinite(runs.units).all()


def test_what_a_row_does_not_say_is_assumed() -> None:
    bare = {"row_id": "a", "layers": 24, "hidden": 1920, "seq": 2048, "gpu": "A100", "gpus": 16, "mbs": 2, "gbs": 64}
    runs = read_runs(pd.DataFrame([bare])).runs
    assert {field.name: float(getattr(runs, field.name)[0]) for field in fields(Runs)} == {
        "layers": 24, "hidden": 1920, "heads": 15, "kv_heads": 15, "ffn": 7680, "gated": 0, "vocabulary": 50304,
        "tied": 0, "experts": 0, "top": 1, "expert_ffn": 0, "sequence": 2048, "micro_batch": 2, "parts": 2, "dp": 16,
        "tp": 1, "pp": 1, "cp": 1, "ep": 1, "virtual": 1, "bubble": 1, "split_sequence": 0, "zero": 0, "recompute": 0,
        "written": 0, "vendor": 0, "fused": 0, "hidden_gradients": 1, "gradient_bytes": 2, "eager": 0,
        "logit_bytes": 4, "hidden_sums": 0, "kept_gradient_bytes": 2, "bucket_numbers": 0,
        "eight_bits": 0, "flops": 312e12,
        "flops_low": 312e12,
        "bandwidth": 2.039e12, "memory": 80e9, "units": 108, "link": 300e9, "nic": 25e9, "node": 8, "power": 1,
    }  # fmt: skip


def test_what_a_row_says_is_taken() -> None:
    said = {
        "row_id": "a", "source_file_id": "paper/table 3", "layers": 16, "hidden": 2048, "seq": 1024,
        "gpu": "H100 HBM2e", "gpus": 64, "heads": 32, "kv_heads": 8, "ffn_hidden": 5504, "mlp": "SwiGLU",
        "vocab": 32000, "tied_embeddings": "yes", "tp": 4, "pp": 2, "cp": 2, "dp": 4, "vpp": 4, "mbs": 3, "gbs": 48,
        "gpu_mem_gb": 94.5, "gpus_per_node": 4, "sequence_parallel": "true", "mem_gb_said": 61.5,
        "tokens_per_s_per_gpu_from_tflops": 1000.5, "other_options": "tp-comm-overlap; compiled",
    }  # fmt: skip
    table = read_runs(pd.DataFrame([said]))
    found = {field.name: float(getattr(table.runs, field.name)[0]) for field in fields(Runs)}
    wanted = {
        "heads": 32, "kv_heads": 8, "ffn": 5504, "gated": 1, "vocabulary": 32000, "tied": 1, "tp": 4, "pp": 2,
        "cp": 2, "dp": 4, "virtual": 4, "micro_batch": 3, "parts": 4, "memory": 94.5e9, "node": 4,
        "split_sequence": 1, "fused": 1, "hidden_sums": 1, "power": (500 / 700) ** (1 / 3), "flops": 989.4e12,
        "flops_low": 1978.9e12,
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == pytest.approx(wanted)
    assert table.runs.parameters[0] == 16 * (2048 * (2 * 2048 + 2 * 512) + 3 * 5504 * 2048) + 32000 * 2048
    assert (table.runs.devices[0], table.runs.tokens[0]) == (64, 48 * 1024)
    (about,) = table.about.to_dict("records")
    assert (about["source"], about["tokens_per_s"], about["memory_gb"]) == ("paper", 64_032.0, 61.5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"layers": 10_000}, ""),
        ({"layers": 10_001}, "layers: more than 10,000"),
        ({"pp": 24, "tp": 1, "gpus": 192, "dp": 8}, ""),
        ({"pp": 25, "tp": 1, "gpus": 200, "dp": 8}, "pp: more stages than layers"),
        ({"vpp": 13}, ""),
        ({"vpp": 14}, "vpp: more pieces than layers"),
        ({"seq": 0.5}, "seq: 0.5 is not a whole number from 1 up"),
        ({"seq": 1e9}, ""),
        ({"tokens_per_s": 0}, ""),
        ({"tokens_per_s": -1}, "tokens_per_s: -1 is not a number from 0 up"),
        ({"tokens_per_s": 0.5}, ""),
    ],
)
def test_the_ends_of_what_a_row_may_say(change: dict[str, Any], reason: str) -> None:
    assert read(change).about.reason.tolist() == [reason]


def test_the_ends_of_kinds() -> None:
    table = read({"seq": 32_768}, {"seq": 32_769}, {"gpus": 8, "tp": 1, "pp": 1, "dp": 8}, {"gpus": 16, "dp": 2})
    assert table.runs.kinds().tolist() == ["several domains", "long sequences", "one domain", "several domains"]
    assert table.runs.kinds(False).tolist() == ["new generation"] * 4
    assert table.runs.kinds(np.array([True, True, False, True]))[2] == "new generation"
