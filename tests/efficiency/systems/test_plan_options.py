"""What a plan can be asked for beside its split: each option against a formula from its own paper, or by hand."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from typer.testing import CliRunner

from densing.cli import app
from densing.core import InputError
from densing.efficiency.parallel import interleaved, one_forward_one_backward
from densing.efficiency.simulation import (
    Cluster,
    Device,
    Link,
    Split,
    Transformer,
    Workload,
    held_modules,
    memory,
    modules,
    parameter_count,
    tensor_shapes,
)
from densing.efficiency.simulation.models import transformer_of
from densing.efficiency.systems.plan import SteadyStep, measure
from densing.efficiency.systems.planner.base import Planned
from densing.efficiency.systems.planner.stage import product_share
from densing.efficiency.systems.registry import get_technique, technique_names
from tests.support.command import printed

# So small a vocabulary that embedding and head are next to nothing.
LAYERS = Transformer("layers", layers=16, hidden=256, heads=8, kv_heads=8, head_dim=32, ffn=1024, vocabulary=1)
FREE = Link(0.0, 0.0)


def cluster(n: int, link: Link = FREE) -> Cluster:
    return Cluster("toy", n, n, Device("toy", 1e12, 1e30), intra=link, inter=link, host=link)


def measured(name: str, work: Workload, link: Link = FREE, **knobs: Any) -> SteadyStep:
    on = cluster(work.split.ranks, link)
    return measure(get_technique(name).plan(work, on, **knobs), on)


@pytest.mark.parametrize(("pp", "virtual", "micro_batches"), [(2, 2, 4), (4, 2, 8), (4, 4, 4), (4, 1, 8), (8, 2, 8)])
def test_the_bubble_of_interleaved_stages_is_narayanans(pp: int, virtual: int, micro_batches: int) -> None:
    # arXiv 2104.04473, section 2.2.2: the bubble is (p - 1) / (v m) of the ideal time.
    work = Workload(
        LAYERS, batch=micro_batches, sequence=128, micro_batches=micro_batches, split=Split(pp=pp, virtual=virtual)
    )
    ideal = measured("sequential", replace(work, split=Split())).step_s / pp
    step = measured("pipeline", work).step_s
    assert step / ideal - 1 == pytest.approx((pp - 1) / (virtual * micro_batches), rel=0.02)


@given(st.integers(2, 8), st.integers(1, 4), st.integers(1, 4))
def test_interleaved_turns_never_wait_for_one_another_and_hold_what_the_memory_counts(
    pp: int, virtual: int, groups: int
) -> None:
    micro_batches = pp * groups
    turns = [interleaved(device, pp, virtual, micro_batches) for device in range(pp)]
    for device, mine in enumerate(turns):
        assert sorted(mine) == sorted(
            (phase, micro, chunk)
            for phase in ("forward", "backward")
            for micro in range(micro_batches)
            for chunk in range(virtual)
        )
        held = most = 0
        for turn in mine:
            held += 1 if turn.phase == "forward" else -1
            most = max(most, held)
        ahead = 2 * (pp - device - 1) + (virtual - 1) * pp + 1 if virtual > 1 else pp - device
        assert most == min(ahead, micro_batches * virtual)
    # Played by hand: a pass needs the one before it in the model.
    done, last = set[tuple[str, int, int]](), pp * virtual - 1
    at = [0] * pp
    while any(at[device] < len(turns[device]) for device in range(pp)):
        before = list(at)
        for device in range(pp):
            if at[device] == len(turns[device]):
                continue
            phase, micro, chunk = turns[device][at[device]]
            stage = chunk * pp + device
            if phase == "forward":
                ready = stage == 0 or ("forward", micro, stage - 1) in done
            else:
                other = ("forward", micro, last) if stage == last else ("backward", micro, stage + 1)
                ready = other in done
            if ready:
                done.add((phase, micro, stage))
                at[device] += 1
        assert at != before, "a deadlock"


def test_a_single_stage_per_device_keeps_its_turns() -> None:
    assert interleaved(1, 4, 1, 6) == one_forward_one_backward(1, 4, 6)


def test_interleaved_activations_are_korthikantis() -> None:
    # arXiv 2205.05198, section 4.2.3: L (1 + (p - 1) / (p m)) layers' worth on the first device, m stages each.
    plain = Workload(LAYERS, batch=32, sequence=128, micro_batches=32, split=Split(pp=4))
    first = memory(replace(plain, split=Split(pp=4, virtual=2)))["activations"]
    assert first / memory(plain)["activations"] == pytest.approx(1 + 3 / (4 * 2), rel=0.01)


def test_a_device_holds_every_layer_of_its_stages_once() -> None:
    work = Workload(LAYERS, batch=4, sequence=16, micro_batches=4, split=Split(pp=4, virtual=2))
    held = [sorted({module.layer for module in one if 0 <= module.layer < 16}) for one in held_modules(work)]
    assert held == [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]


def test_full_recomputation_computes_a_third_more_and_sums_half_as_often_again() -> None:
    plain = Workload(LAYERS, batch=1, sequence=128, split=Split(tp=4))
    link = Link(0.0, 1e-9)
    before, after = (measured("tensor-parallel", replace(plain, recompute=how), link) for how in ("none", "full"))
    # Forward, backward twice as long, and forward again; two sums forward, two backward, and two again; one of the
    # embedding and one of the head.
    assert after.compute_s / before.compute_s == pytest.approx(4 / 3, rel=0.01)
    assert after.bytes / before.bytes == pytest.approx((6 * 16 + 2) / (4 * 16 + 2))


@pytest.mark.parametrize("name", ["tensor-parallel", "ladder", "iso", "t3"])
def test_every_schedule_of_sums_recomputes(name: str) -> None:
    link = Link(0.0, 1e-12)
    plain = Workload(LAYERS, batch=2, sequence=128, split=Split(tp=4))
    before, after = (measured(name, replace(plain, recompute=how), link) for how in ("none", "full"))
    assert after.compute_s / before.compute_s == pytest.approx(4 / 3, rel=0.02)
    assert after.bytes / before.bytes == pytest.approx(6 / 4, rel=0.02)


def test_selective_recomputation_computes_the_scores_again_where_they_were_written() -> None:
    unfused = Workload(LAYERS, batch=1, sequence=512, fused_attention=False)
    before, after = (measured("sequential", replace(unfused, recompute=how)) for how in ("none", "selective"))
    scores = LAYERS.layers * 4 * 512 * 512 * LAYERS.heads * LAYERS.head_dim / 1e12
    assert after.compute_s - before.compute_s == pytest.approx(scores, rel=0.01)
    fused = replace(unfused, fused_attention=True, recompute="selective")
    assert measured("sequential", fused).compute_s == pytest.approx(before.compute_s)


def test_parts_of_a_sequence_share_its_work_and_gather_its_keys() -> None:
    whole = Workload(LAYERS, batch=2, sequence=256, split=Split(dp=2))
    parts = replace(whole, split=Split(dp=2, cp=4))
    link = Link(0.0, 1e-11)
    one, four = measured("ddp", whole, link), measured("ddp", parts, link)
    # A memory that costs nothing: only operations count, and each rank has a fourth of them.
    assert four.compute_s == pytest.approx(one.compute_s / 4, rel=0.01)
    gradients = 2 * 2 * sum(module.parameters for module in held_modules(whole)[0])
    keys = LAYERS.layers * 2 * 2 * 2 * 256 * LAYERS.kv_heads * LAYERS.head_dim
    # Sums over eight copies; keys and values gathered before either pass, their gradients scattered after one.
    assert four.bytes == pytest.approx(gradients * 7 / 8 + 3 * keys * 3 / 4, rel=1e-6)
    assert memory(parts)["activations"] == pytest.approx(memory(whole)["activations"] / 4, rel=0.01)
    assert memory(parts, zero=1)["optimizer"] == pytest.approx(memory(whole, zero=1)["optimizer"] / 4)


def test_gradients_of_four_bytes_are_twice_as_much_to_send_and_to_keep() -> None:
    half = Workload(LAYERS, batch=1, sequence=128, split=Split(dp=4))
    full = replace(half, gradient_bytes=4)
    link = Link(0.0, 1e-12)
    assert measured("ddp", full, link).bytes == pytest.approx(2 * measured("ddp", half, link).bytes)
    assert memory(full)["gradients"] == 2 * memory(half)["gradients"]


def test_sums_beside_gradients_of_weights_hide_as_much_as_these_take() -> None:
    blocking = Workload(LAYERS, batch=1, sequence=128, split=Split(tp=2))
    beside = replace(blocking, overlap_weight_gradients=True)
    # Fast enough to hide: forward sums alone are exposed, and the embedding's and head's, which are small here.
    link = Link(0.0, 1e-10)
    before, after = (measured("tensor-parallel", work, link) for work in (blocking, beside))
    assert after.compute_s == pytest.approx(before.compute_s) and after.bytes == pytest.approx(before.bytes)
    assert after.exposed_comm_s == pytest.approx(before.exposed_comm_s / 2, rel=0.05)
    # Slow: what is hidden is what the gradients take of the matrices that read the summed input.
    slow = Link(0.0, 1e-7)
    hidden = sum(
        product_share(blocking, module, "backward") * module.backward_flops / 1e12
        for module in held_modules(blocking)[0]
        if module.name in ("attention", "mlp", "head")
    )
    before, after = (measured("tensor-parallel", work, slow) for work in (blocking, beside))
    assert before.step_s - after.step_s == pytest.approx(hidden, rel=0.01)


@pytest.mark.parametrize("sequence", [False, True])
def test_a_sum_beside_products_hides_a_share_of_itself_and_no_more_than_a_module(sequence: bool) -> None:
    blocking = Workload(LAYERS, batch=4, sequence=128, split=Split(tp=2, sequence=sequence))
    beside = replace(blocking, exposed_sums=0.3)
    # Fast: three tenths of the layers' 64 sums are waited for, and up to all of the two of embedding and head.
    before, after = (measured("tensor-parallel", work, Link(0.0, 1e-11)) for work in (blocking, beside))
    assert 0.3 <= after.exposed_comm_s / before.exposed_comm_s <= (0.3 * 64 + 2) / 66
    assert after.bytes == before.bytes
    # Slow: what is hidden is what the modules take that leave a sum.
    hidden = sum(
        (module.flops if phase == "forward" else module.backward_flops) / 1e12
        for module in held_modules(blocking)[0]
        for phase in ("forward", "backward")
        if module.name in ("attention", "mlp") or (module.name, phase) == ("head", "backward")
    )
    before, after = (measured("tensor-parallel", work, Link(0.0, 1e-7)) for work in (blocking, beside))
    assert before.step_s - after.step_s == pytest.approx(hidden, rel=0.01)
    with pytest.raises(InputError, match="exposed_sums: 0 is out of range; give a share above 0, at most 1"):
        measured("tensor-parallel", replace(blocking, exposed_sums=0), Link(0.0, 0.0))


def test_sharded_gradients_travel_in_their_own_size_and_the_optimizer_reads_it() -> None:
    # Layers that hold all parameters but an embedding of one row: states of two bytes, gradients of two or four.
    narrow, wide = (
        measured(
            "zero3", Workload(LAYERS, batch=4, sequence=128, split=Split(dp=4), gradient_bytes=size), Link(0.0, 0.0)
        )
        for size in (2, 4)
    )
    held = sum(module.parameters for module in held_modules(Workload(LAYERS, batch=4, sequence=128))[0])
    assert wide.bytes - narrow.bytes == pytest.approx(2 * held * 3 / 4, rel=0.01)


def test_parameters_that_are_kept_are_gathered_once_a_step() -> None:
    work = Workload(LAYERS, batch=4, sequence=128, micro_batches=4, split=Split(dp=4))
    link = Link(0.0, 1e-12)
    dropped, kept = (measured("zero3", work, link, reshard=each) for each in (True, False))
    weights = 2 * sum(module.parameters for module in held_modules(work)[0])
    # Each of four micro-batches: a gather before either pass, a scatter after one; kept: a single gather.
    assert dropped.bytes == pytest.approx(weights * 3 / 4 * 12, rel=0.01)
    assert kept.bytes == pytest.approx(weights * 3 / 4 * 5, rel=0.01)
    assert kept.memory["parameters"] == pytest.approx(4 * dropped.memory["parameters"])


MIXTURE = replace(LAYERS, experts=8, active=2)


def test_experts_are_dealt_out_and_tokens_travel_to_them() -> None:
    whole = Workload(MIXTURE, batch=1, sequence=128, split=Split(dp=8))
    dealt = replace(whole, split=Split(dp=8, ep=4))
    link = Link(0.0, 1e-11)
    expert = 3 * LAYERS.hidden * LAYERS.ffn * LAYERS.layers
    one, four = (sum(module.parameters for module in held_modules(work)[0]) for work in (whole, dealt))
    assert one - four == 6 * expert
    before, after = measured("ddp", whole, link), measured("ddp", dealt, link)
    assert after.compute_s == pytest.approx(before.compute_s)
    assert before.bytes == pytest.approx(2 * 2 * one * 7 / 8)
    # Two experts are left to a device, whose gradients two devices sum up; tokens go there and back in either pass.
    routed = LAYERS.layers * 4 * 128 * 2 * LAYERS.hidden * 2
    assert after.bytes == pytest.approx(
        2 * 2 * ((one - 8 * expert) * 7 / 8 + 2 * expert / 2) + routed * 3 / 4, rel=1e-6
    )
    states = memory(dealt, zero=1)["optimizer"]
    assert states == pytest.approx(12 * ((one - 8 * expert) / 8 + 2 * expert / 2))
    for name in ("zero1", "zero2", "zero3", "tensor-parallel"):
        split = Split(dp=4, tp=2, ep=4) if name == "tensor-parallel" else Split(dp=8, ep=4)
        assert measured(name, replace(whole, split=split), link).bytes > routed * 3 / 8


DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
    "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "moe_layer_freq": 1, "vocab_size": 129280, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        # Jiang et al., arXiv 2401.04088: 47B parameters, 13B active (46.7 and 12.9 in the announcement).
        (
            {"model_type": "mixtral", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
             "num_key_value_heads": 8, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2,
             "vocab_size": 32000},
            46.7e9, 12.9e9,
        ),
        # Qwen team, arXiv 2505.09388, and the model's card: 30.5B in total, 3.3B active.
        (
            {"model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32,
             "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
             "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936},
            30.5e9, 3.3e9,
        ),
        # DeepSeek-AI, arXiv 2412.19437, abstract: 671B in total, 37B active.
        (DEEPSEEK, 671e9, 37e9),
        # DeepSeek-AI, arXiv 2405.04434, abstract, and appendix B (Lite): 236B and 21B; 15.7B and 2.4B.
        (
            DEEPSEEK | {"model_type": "deepseek_v2", "num_hidden_layers": 60, "hidden_size": 5120,
                        "intermediate_size": 12288, "moe_intermediate_size": 1536, "n_routed_experts": 160,
                        "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1,
                        "vocab_size": 102400},
            236e9, 21e9,
        ),
        (
            DEEPSEEK | {"model_type": "deepseek_v2", "num_hidden_layers": 27, "hidden_size": 2048,
                        "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None,
                        "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64,
                        "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1,
                        "vocab_size": 102400},
            15.7e9, 2.66e9,
        ),
    ],
)  # fmt: skip
def test_mixtures_have_the_parameters_that_their_makers_say(
    config: dict[str, Any], total: float, active: float
) -> None:
    model = transformer_of(config, "config.json", "mixture")
    assert parameter_count(model) == pytest.approx(total, rel=0.005)
    visited = parameter_count(replace(model, experts=model.active))
    assert visited == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize("tp", [1, 2])
def test_attention_through_narrow_vectors_is_counted_by_its_matrices(tp: int) -> None:
    model = transformer_of(DEEPSEEK, "config.json")
    work = Workload(model, sequence=128, split=Split(tp=tp, ep=1))
    for at, module in enumerate(modules(work)[:10]):
        shapes = tensor_shapes(work, module)
        assert sum(math.prod(shape) for shape in shapes) == module.parameters, (at, module.name)
    first, attention, later = modules(work)[2], modules(work)[1], modules(work)[8]
    assert (first.experts, later.experts > 0) == (0, True)
    # A product of every matrix, and scores over queries and keys of 192 columns and values of 128.
    products = 2 * 128 * (attention.parameters - model.hidden)
    assert attention.flops == products + 2 * 128 * 128 * (128 // tp) * (192 + 128)
    # A token keeps 512 + 64 numbers of every layer while it is decoded.
    kept = memory(Workload(model, "decode", batch=2, sequence=1000, split=Split(tp=tp)))["kv_cache"]
    assert kept == 61 * 2 * 1000 * 576 * 2


def test_first_layers_without_experts_need_a_width_and_further_layers() -> None:
    with pytest.raises(InputError, match="dense_layers: 16 of 16 layers, width 64: only for a mixture"):
        memory(Workload(replace(MIXTURE, dense_layers=16, dense_ffn=64)))
    with pytest.raises(InputError, match="some layers have no experts"):
        transformer_of(DEEPSEEK | {"moe_layer_freq": 2}, "config.json")
    with pytest.raises(InputError, match="kv_lora_rank: missing; a deepseek_v3 configuration needs it"):
        transformer_of({key: value for key, value in DEEPSEEK.items() if key != "kv_lora_rank"}, "config.json")


@pytest.mark.parametrize(
    ("fields", "split", "says"),
    [
        ({}, {"virtual": 2}, "virtual: 2 stages per device need training in a pipeline"),
        ({"batch": 3, "micro_batches": 3}, {"pp": 2, "virtual": 2}, "micro_batches: 3 cannot be divided by pp 2"),
        ({"batch": 8, "micro_batches": 8}, {"pp": 8, "virtual": 4}, "8 x 4 stages for 16 layers"),
        ({"sequence": 130}, {"cp": 4}, "sequence: 130 cannot be divided by cp 4"),
        ({"mode": "prefill"}, {"cp": 2}, "cp: 2 parts of a sequence with mode prefill"),
        ({"gradient_bytes": 3}, {}, "gradient_bytes: 3 is not a valid number of bytes"),
        ({}, {"dp": 2, "ep": 2}, "ep: 2: layers has no experts"),
        ({"model": MIXTURE}, {"dp": 8, "ep": 3}, "experts: 8 cannot be divided by ep 3"),
        ({"model": MIXTURE}, {"dp": 6, "ep": 4}, "dp x cp: 6 cannot be divided by ep 4"),
        ({"model": replace(MIXTURE, active=9)}, {}, "active: 9 of 8 experts"),
    ],
)
def test_what_no_schedule_can_take_is_refused(fields: dict[str, Any], split: dict[str, int], says: str) -> None:
    with pytest.raises(InputError, match=says):
        memory(Workload(**{"model": LAYERS, **fields}, split=Split(**split)))


def test_every_technique_plans_interleaved_stages_and_parts_of_sequences_or_says_why_not() -> None:
    base = Workload(LAYERS, batch=4, sequence=64, micro_batches=4, split=Split(dp=2, tp=2, pp=2))
    planned = dict[str, list[str]]()
    for name in technique_names():
        technique = get_technique(name)
        if not isinstance(technique, Planned) or "train" not in technique.modes:
            continue
        for kind, change in (("virtual", {"virtual": 2}), ("cp", {"cp": 2}), ("ep", {"ep": 2})):
            work = replace(base, model=MIXTURE, split=replace(base.split, **change))
            on = cluster(work.split.ranks, Link(1e-6, 1e-10))
            try:
                assert measure(technique.plan(work, on), on).step_s > 0
            except InputError:
                continue
            planned.setdefault(kind, []).append(name)
    plain = {"ddp", "ddp-tuned", "zero1", "zero2", "zero3", "tensor-parallel", "pipeline"}
    assert set(planned["cp"]) == set(planned["ep"]) == plain
    assert set(planned["virtual"]) > plain


def test_the_command_takes_the_options_and_says_them() -> None:
    options = "--virtual 2 --pp 2 --tp 2 --dp 2 --batch 4 --micro-batches 4 --recompute full --gradient-bytes 4"
    words = f"techniques compare --model gpt2 --cluster a100x8-rdma --nodes 1 --techniques ddp,pipeline {options}"
    shown = CliRunner().invoke(app, [*words.split(), "--overlap-weight-gradients"])
    assert shown.exit_code == 0, shown.output
    for said in (
        "2 stages per device",
        "gradients of 4 bytes",
        "recompute full",
        "sums overlapped with weight gradients",
    ):
        assert said in " ".join(shown.output.split())
    document = printed(CliRunner().invoke(app, [*words.split(), "--json"]).stdout)
    assert document["split"]["virtual"] == 2 and document["gradient_bytes"] == 4
    wrong = CliRunner().invoke(app, words.replace("--pp 2", "--pp 1").split())
    assert wrong.exit_code == 1 and "virtual: 2 stages per device" in str(wrong.exception)
