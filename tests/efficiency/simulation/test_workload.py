"""Operations, bytes and parameters of transformers against published totals and the formulas people quote."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from densing.core.errors import InputError, UnknownNameError
from densing.efficiency.simulation.models import load_workload, workload_names
from densing.efficiency.simulation.workload import (
    Split,
    Transformer,
    Workload,
    check,
    held_modules,
    memory,
    modules,
    parameter_count,
    stage_bytes,
    stages,
    step_flops,
    tensor_shapes,
)
from densing.efficiency.timeline.utilisation import megatron_flops, mosaicml_flops, palm_flops

PUBLISHED = {
    "llama3-70b": 70.6e9,  # model card of Meta-Llama-3-70B
    "llama3-405b": 405.8e9,  # The Llama 3 Herd of Models: "405B"; configuration of the released weights
    "gpt2": 124.4e6,  # model card of openai-community/gpt2
    "gpt3": 175e9,  # arXiv 2005.14165, table 2.1
    "mega-gpt2": 8.3e9,  # arXiv 1909.08053
    "t-nlg": 17.2e9,  # DeepSpeed's ZeRO announcement
    "qwen3-32b": 32.8e9,  # model card of Qwen3-32B
    "llama-8b": 8.03e9,  # model card of Meta-Llama-3-8B
    "infer-30b": 32.5e9,  # LLaMA, arXiv 2302.13971, table 2
    "infer-70b": 69.0e9,  # model card of Llama-2-70b
}


def gpt(layers: int = 3, hidden: int = 64, heads: int = 4, vocabulary: int = 120) -> Transformer:
    return Transformer("gpt", layers, hidden, heads, heads, hidden // heads, 4 * hidden, vocabulary, False, True)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_agree_with_the_published_totals(name: str) -> None:
    assert math.isclose(parameter_count(load_workload(name).model), PUBLISHED[name], rel_tol=0.01)


def test_every_preset_can_be_planned() -> None:
    assert {"tnl-7b", *PUBLISHED} == set(workload_names())
    for name in workload_names():
        found = modules(load_workload(name))
        assert len(found) == 2 * load_workload(name).model.layers + 2
        assert load_workload(name).model.source and load_workload(name).model.evidence == "recalled"
    assert math.isclose(parameter_count(load_workload("tnl-7b").model), 7e9, rel_tol=0.05)


@given(layers=st.integers(1, 12), width=st.integers(1, 16), heads=st.integers(1, 8), vocabulary=st.integers(1, 50_000),
       batch=st.integers(1, 8), sequence=st.integers(1, 4096))  # fmt: skip
def test_training_agrees_with_megatron(
    layers: int, width: int, heads: int, vocabulary: int, batch: int, sequence: int
) -> None:
    """Korthikanti et al.: 72 B L s h^2 (1 + s/6h + V/12hL), here counted module by module."""
    model = gpt(layers, 8 * width * heads, heads, vocabulary)
    expected = megatron_flops(batch, sequence, layers, model.hidden, vocabulary).model
    assert math.isclose(step_flops(Workload(model, batch=batch, sequence=sequence)), expected, rel_tol=1e-9)


@pytest.mark.parametrize("name", ["gpt3", "llama3-70b", "llama3-405b", "llama-8b", "qwen3-32b"])
def test_training_agrees_with_palm_and_mosaicml(name: str) -> None:
    """6 N + 12 L H Q T; N of the matrices that multiply (an untied embedding does not)."""
    found = load_workload(name, mode="train", tp=1, dp=1, batch=2, sequence=2048)
    model = found.model
    matrices = parameter_count(model) - (0 if model.tied else model.vocabulary * model.hidden)
    per_token = step_flops(found) / (2 * 2048)
    palm = palm_flops(matrices, model.layers, model.heads, model.head_dim, 2048).model
    mosaic = mosaicml_flops(matrices, model.layers, model.heads * model.head_dim, 2048).model
    assert math.isclose(per_token, palm, rel_tol=1e-3) and math.isclose(per_token, mosaic, rel_tol=1e-3)


@given(tp=st.sampled_from([1, 2, 4]), pp=st.integers(1, 3), micro=st.sampled_from([1, 2, 4]), sequence=st.booleans())
def test_splits_conserve_work(tp: int, pp: int, micro: int, sequence: bool) -> None:
    model = replace(gpt(), vocabulary=120)
    whole = Workload(model, batch=8, sequence=32)
    split = replace(whole, split=Split(tp=tp, pp=pp, sequence=sequence), micro_batches=micro)
    assert math.isclose(step_flops(split), step_flops(whole))
    cut = stages(split)
    assert len(cut) == pp and sum(cut, ()) == modules(split)
    per_stage = [sum(module.name == "attention" for module in stage) for stage in cut]
    assert max(per_stage) - min(per_stage) <= 1
    norms = (2 * model.layers + 1) * model.hidden
    shared = 0 if pp == 1 else model.vocabulary // tp * model.hidden
    held = sum(module.parameters for module in modules(split)) - norms - shared
    assert held * tp == parameter_count(model) - norms


@given(st.data())
def test_stages_begin_where_they_are_cut(data: st.DataObject) -> None:
    layers = data.draw(st.integers(1, 9))
    cuts = tuple(sorted(data.draw(st.sets(st.integers(1, layers - 1)) if layers > 1 else st.just(set()))))
    cut = Workload(gpt(layers), split=Split(pp=len(cuts) + 1, cuts=cuts))
    per_stage = stages(cut)
    assert sum(per_stage, ()) == modules(cut)
    assert [next(module.layer for module in stage if module.layer >= 0) for stage in per_stage] == [0, *cuts]
    if cuts == tuple(range(1, layers)):
        assert per_stage == stages(replace(cut, split=Split(pp=layers)))


def test_the_memory_of_an_uneven_split_is_that_of_its_fullest_stage() -> None:
    # The first stage holds three layers of four, and of two micro-batches at once.
    uneven = Workload(gpt(4), split=Split(pp=2, cuts=(3,)), batch=4, sequence=16, micro_batches=4)
    first = stages(uneven)[0]
    assert memory(uneven)["parameters"] == 2 * sum(module.parameters for module in first)
    assert memory(uneven)["activations"] == 2 * sum(module.saved for module in first)
    assert stage_bytes(uneven, first, 2) == sum(memory(uneven).values())


@pytest.mark.parametrize(
    ("split", "told"),
    [
        (Split(pp=3, cuts=(1,)), "2 in all"),
        (Split(cuts=(1,)), "0 in all"),
        (Split(pp=3, cuts=(2, 1)), "give increasing whole numbers from 1 to 3"),
        (Split(pp=3, cuts=(1, 1)), "leave a stage without layers"),
        (Split(pp=2, cuts=(0,)), "leave a stage without layers"),
        (Split(pp=2, cuts=(4,)), "leave a stage without layers"),
        (Split(pp=2, cuts=(1.0,)), "whole numbers"),  # type: ignore[arg-type]
        (Split(pp=3, order=(0, 1)), "each block from 0 to 2 once"),
        (Split(pp=2, order=(0, 0)), "each block from 0 to 1 once"),
        (Split(pp=5), "5 stages for 4 layers"),
    ],
)
def test_impossible_cuts_and_orders_are_refused(split: Split, told: str) -> None:
    with pytest.raises(InputError, match=told):
        stages(Workload(gpt(4), split=split))


@given(tp=st.sampled_from([1, 2, 4, 8]), sequence=st.booleans())
def test_saved_activations_agree_with_korthikanti(tp: int, sequence: bool) -> None:
    """Korthikanti et al., section 4: sbh(10 + 24/t) in 16 bit without scores; 34 sbh/t split by the sequence.

    Of the 10, 2 are dropout masks, which nothing here keeps.
    """
    s, b, h = 128, 2, 64
    found = modules(Workload(gpt(1, h, 8), batch=b, sequence=s, split=Split(tp=tp, sequence=sequence)))
    layer = sum(module.saved for module in found if module.layer == 0)
    assert layer == s * b * h * ((8 + 24) / tp if sequence else 8 + 24 / tp)


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_activations_of_each_recomputation_are_korthikantis(recompute: str, tp: int, sequence: bool) -> None:
    """Korthikanti et al., arXiv 2205.05198, equations 1 to 6 and table 2, with their dropout and unfused attention."""
    s, b, h, a, layers = 128, 2, 64, 8, 3
    model = gpt(layers, h, a)

    def of(count: int, **more: object) -> float:
        split = Split(tp=tp, sequence=sequence)
        found = Workload(replace(model, layers=count), batch=b, sequence=s, split=split, dropout=True, **more)
        return memory(replace(found, fused_attention=False, recompute=recompute))["activations"]

    t = tp
    per_layer = {
        "none": (34 + 5 * a * s / h) / t if sequence else 10 + 24 / t + 5 * a * s / (h * t),
        "selective": 34 / t if sequence else 10 + 24 / t,
        "full": 2 / t if sequence else 2,
    }
    # One more layer is one layer's worth: what is recomputed of a layer at a time does not grow with the layers.
    assert of(layers) - of(layers - 1) == s * b * h * per_layer[recompute]


def test_recomputation_brings_a_whole_layer_back_at_a_time() -> None:
    plain = Workload(gpt(), batch=1, sequence=32)
    layer = sum(module.saved for module in modules(plain) if module.layer == 0)
    ends = sum(module.saved for module in modules(plain) if module.name in ("embedding", "head"))
    full = memory(replace(plain, recompute="full"))["activations"]
    entering = 32 * plain.model.hidden * 2
    assert full == ends + plain.model.layers * entering + layer - entering
    # With fused attention no scores are kept: there is nothing that selective recomputation could drop.
    assert memory(replace(plain, recompute="selective")) == memory(plain)
    unfused = replace(plain, fused_attention=False)
    assert memory(plain)["activations"] < memory(replace(unfused, recompute="selective"))["activations"]
    assert memory(replace(unfused, recompute="selective"))["activations"] < memory(unfused)["activations"]


def test_a_layout_that_ran_in_80_gb_fits_in_80_gb() -> None:
    """Llama 3 405B on 16,384 H100, without recomputation; arXiv 2407.21783, section 3.3.2 and table 4 (recalled)."""
    layout = {"mode": "train", "batch": 16, "micro_batches": 16, "sequence": 8192, "dp": 128, "tp": 8, "pp": 16}
    whole = load_workload("llama3-405b", **layout)
    split = load_workload("llama3-405b", sequence_parallel=True, **layout)
    assert sum(memory(whole, zero=1).values()) == pytest.approx(202.7e9, rel=2e-3)
    # FSDP there shards optimizer state and gradients: ZeRO-2.
    assert sum(memory(split, zero=2).values()) < 80e9
    assert sum(memory(replace(whole, recompute="full"), zero=1).values()) < 80e9


def test_gradients_summed_in_float32_take_four_bytes() -> None:
    found = Workload(gpt(), batch=1, sequence=16, split=Split(dp=4))
    assert memory(found, gradient_bytes=4)["gradients"] == 2 * memory(found)["gradients"]
    assert memory(found, zero=2, gradient_bytes=4)["gradients"] == memory(found)["gradients"] / 2


def test_grouped_queries_and_their_cache() -> None:
    found = load_workload("llama3-70b", mode="decode", batch=4, sequence=1000, tp=8)
    layer = modules(found)[1]
    # 8 of 64 query heads and 1 of 8 key-value heads per rank
    assert layer.parameters == 8192 * 128 * (2 * 8 + 2 * 1) + 8192
    assert layer.flops == 2 * 4 * 8192 * 128 * 18 + 4 * 4 * 1000 * 8 * 128
    assert layer.activation == 4 * 8192 * 2
    cache = 4 * 1000 * 2 * 128 * 2
    assert layer.moved > layer.parameters * 2 + cache and layer.backward_flops == 0 and layer.saved == 0
    assert memory(found)["kv_cache"] == 80 * cache


def test_more_ranks_than_key_value_heads_hold_copies() -> None:
    sixteen = modules(load_workload("llama3-405b", tp=16))[1]
    assert sixteen.parameters == 16384 * 128 * (2 * 8 + 2 * 1) + 16384
    assert modules(load_workload("llama3-405b", tp=32))[1].parameters == 16384 * 128 * (2 * 4 + 2 * 1) + 16384


def test_linear_attention_grows_with_the_sequence() -> None:
    def score(sequence: int) -> float:
        found = load_workload("tnl-7b", batch=1, sequence=sequence)
        attention = modules(found)[1]
        return attention.flops / sequence

    assert score(4096) == score(1024)
    quadratic = replace(load_workload("tnl-7b").model, linear_attention=False)
    short, long = (modules(Workload(quadratic, sequence=s))[1].flops / s for s in (1024, 4096))
    assert long > short


@given(mode=st.sampled_from(["train", "prefill", "decode"]), batch=st.integers(1, 16), sequence=st.integers(1, 512))
def test_numbers_are_finite_and_grow_with_the_batch(mode: str, batch: int, sequence: int) -> None:
    one = modules(Workload(gpt(), mode, batch, sequence))
    two = modules(Workload(gpt(), mode, 2 * batch, sequence))
    for less, more in zip(one, two, strict=True):
        assert math.isfinite(less.flops + less.moved + less.backward_flops + less.backward_moved)
        assert 0 <= less.flops <= more.flops and 0 < less.moved < more.moved
        assert less.parameters == more.parameters and 2 * less.activation == more.activation
        assert (less.backward_flops > 0) == (mode == "train" and less.flops > 0)


def test_a_vocabulary_that_is_not_split() -> None:
    found = modules(Workload(gpt(), sequence=8, split=Split(tp=2, vocabulary=False)))
    assert found[0].parameters == 120 * 64 and found[0].activation == found[-1].activation == 0
    split = modules(Workload(gpt(), sequence=8, split=Split(tp=2)))
    assert split[0].parameters == 60 * 64 and split[0].activation == split[-1].activation == 8 * 64 * 2


@given(zero=st.integers(0, 3), dp=st.integers(1, 64), pp=st.integers(1, 3), micro=st.integers(1, 8))
def test_memory_by_zero_stages(zero: int, dp: int, pp: int, micro: int) -> None:
    """Rajbhandari et al., figure 1: 2 + 2 + 12 bytes per parameter, the latter ones over dp by stages."""
    found = Workload(gpt(), batch=micro, sequence=16, split=Split(dp=dp, pp=pp), micro_batches=micro)
    plain, divided = memory(found), memory(found, zero=zero)
    for purpose, stage in (("optimizer", 1), ("gradients", 2), ("parameters", 3)):
        parts = [memory(found, zero=level)[purpose] for level in (0, stage)]
        assert dp * parts[1] == pytest.approx(parts[0], rel=1e-9) or pp > 1
    assert sum(divided.values()) <= sum(plain.values())
    assert plain["optimizer"] == 6 * plain["parameters"]


def test_pipeline_keeps_as_many_micro_batches_as_are_in_flight() -> None:
    model = gpt(layers=4)
    one = memory(Workload(model, batch=8, sequence=16, micro_batches=8, split=Split(pp=1)))["activations"]
    assert one == sum(module.saved for module in modules(Workload(model, batch=1, sequence=16)))
    two = Workload(model, batch=8, sequence=16, micro_batches=8, split=Split(pp=2))
    first = sum(module.saved for module in stages(two)[0])
    assert memory(two)["activations"] == 2 * first


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"tp": 3}, "heads: 64 cannot be divided by tp 3"),
        ({"tp": 128}, "heads: 64 cannot be divided by tp 128"),
        ({"pp": 81}, "pp: 81 stages for 80 layers"),
        ({"batch": 3, "micro_batches": 2}, "batch: 3 cannot be divided by micro_batches 2"),
        ({"batch": 0}, "batch: 0 is out of range"),
        ({"sequence": -5}, "sequence: -5 is out of range"),
        ({"dp": 10**12}, "dp"),
        ({"batch": 1.5}, "batch: 1.5"),
        ({"batch": math.nan}, "batch: nan"),
        ({"tp": True}, "tp: True"),
        ({"dtype_bytes": 3}, "dtype_bytes: 3"),
        ({"mode": "trian"}, "did you mean 'train'"),
        ({"recompute": "fully"}, "did you mean 'full'"),
        ({"batchsize": 3}, "unknown override 'batchsize'"),
    ],
)
def test_errors_name_the_numbers(change: dict[str, object], told: str) -> None:
    with pytest.raises(InputError) as caught:
        load_workload("llama3-70b", **change)
    assert told in str(caught.value)


def test_impossible_heads() -> None:
    with pytest.raises(InputError, match="heads: 6 cannot be divided by kv_heads 4"):
        modules(Workload(Transformer("odd", 1, 48, 6, 4, 8, 64, 10)))
    with pytest.raises(InputError, match="one must divide the other"):
        modules(Workload(Transformer("odd", 1, 96, 12, 6, 8, 64, 10), split=Split(tp=4)))
    with pytest.raises(InputError, match="zero: 4"):
        memory(Workload(gpt()), zero=4)
    with pytest.raises(InputError, match="optimizer_bytes"):
        memory(Workload(gpt()), optimizer_bytes=-1)
    with pytest.raises(InputError, match="gradient_bytes"):
        memory(Workload(gpt()), gradient_bytes=-1)
    with pytest.raises(UnknownNameError, match="did you mean 'gpt3'"):
        load_workload("gpt-3")


@given(st.data())
def test_any_workload_is_planned_or_refused(data: st.DataObject) -> None:
    small = st.integers(-1, 9)
    model = Transformer("any", *(data.draw(small) for _ in range(7)))
    found = Workload(
        model, batch=data.draw(small), sequence=data.draw(small), split=Split(*(data.draw(small) for _ in "abc"))
    )
    try:
        made = modules(found)
    except InputError:
        return
    assume(made)
    assert all(module.parameters > 0 for module in made if module.name != "head")


TINY = Transformer("tiny", 1, 8, heads=2, kv_heads=1, head_dim=4, ffn=16, vocabulary=32)
# Of four tokens: what goes into a product is read, what comes out written; a norm and a sum each read and write all.
ATTENTION = 4 * 192 * 2 + 4 * 4 * 4 * 8, 2 * (192 + 8 + 2 * 4 * 24 + 2 * 4 * 8 + 4 * 32), 2 * (2 * 32 + 4 * 24)
MLP = 4 * 384 * 2, 2 * (384 + 8 + 2 * 4 * 48 + 2 * 4 * 8 + 4 * 32), 2 * (2 * 32 + 4 * 48)
HEAD = 4 * 256 * 2, 2 * (256 + 4 * (2 * 32 + 3 * 8)), 2 * 2 * 32 + 4 * 32 * 4


def test_operations_bytes_moved_and_kept_of_a_layer_by_hand() -> None:
    embedding, *others = modules(Workload(TINY, batch=1, sequence=4))
    assert (embedding.flops, embedding.backward_flops, embedding.saved) == (0, 0, 4 * 8)
    # Rows are read and written; the gradient of the whole table is.
    assert (embedding.moved, embedding.backward_moved) == (2 * 4 * 8 * 2, 2 * 4 * 8 * 2 + 32 * 8 * 2)
    found = [(module.flops, module.moved, module.saved) for module in others]
    assert found == [ATTENTION, MLP, HEAD]
    assert [(module.backward_flops, module.backward_moved) for module in others] == [
        (2 * flops, 2 * moved) for flops, moved, _ in found
    ]


def test_scores_that_are_written_are_kept_and_with_dropout_a_mask_and_what_is_left() -> None:
    step = Workload(TINY, batch=1, sequence=4, fused_attention=False)
    (_, plain, *_), (_, masked, mlp, _) = modules(step), modules(replace(step, dropout=True))
    assert (plain.scores, plain.saved) == (4 * 4 * 2 * 2, ATTENTION[2] + 4 * 4 * 2 * 2)
    assert (masked.scores, masked.saved) == (4 * 4 * 2 * 5, ATTENTION[2] + 32 + 4 * 4 * 2 * 5)
    assert mlp.saved == MLP[2] + 32


def test_a_mixture_sends_each_token_to_its_experts_and_holds_them_all() -> None:
    mixture = Workload(replace(TINY, experts=4, active=2), batch=1, sequence=4)
    mlp = modules(mixture)[2]
    assert mlp.flops == 2 * (4 * 2 * 384 + 4 * 8 * 4)
    assert (mlp.parameters, mlp.experts, mlp.routed) == (4 * 384 + 32 + 8, 4 * 384, 4 * 2 * 8 * 2)
    # Each of two visits moves what the MLP does, and twice, there and back, what is sent is read and written.
    assert mlp.moved == 2 * (4 * 384 + 32 + 8 + 2 * (2 * 4 * 48 + 2 * 4 * 8) + 4 * 4 * 2 * 8 + 4 * 32)
    assert mlp.saved == 2 * (2 * 32 + 2 * 4 * 48 + 2 * 4 * 2 * 8)


def test_a_decoded_token_reads_all_keys_and_values_before_it() -> None:
    _, attention, _, head = modules(Workload(TINY, "decode", batch=3, sequence=7))
    assert attention.flops == 3 * (2 * 192 + 4 * 7 * 8)
    assert attention.moved == 2 * (192 + 8 + 3 * (2 * 24 + 2 * 8 + 2 * 7 * 4 + 4 * 8))
    assert (head.flops, head.moved) == (2 * 3 * 256, 2 * (256 + 3 * (2 * 32 + 3 * 8)))


@pytest.mark.parametrize("name", workload_names())
@pytest.mark.parametrize("tp", [1, 2])
def test_the_tensors_of_a_module_hold_its_parameters(name: str, tp: int) -> None:
    try:
        step = load_workload(name, tp=tp)
    except InputError as error:
        assert "cannot be divided" in str(error) and tp == 2
        return
    for module in modules(step):
        shapes = tensor_shapes(step, module)
        assert sum(math.prod(shape) for shape in shapes) == module.parameters
        assert any(len(shape) == 1 for shape in shapes) == (module.name != "embedding"), "the norm's"


def test_the_tensors_of_experts_that_are_dealt_out() -> None:
    dealt = Workload(replace(TINY, experts=4, active=2), batch=2, sequence=4, split=Split(dp=2, ep=2))
    mlp = modules(dealt)[2]
    assert tensor_shapes(dealt, mlp) == (*((16, 8), (16, 8), (8, 16)) * 2, (4, 8), (8,))
    assert mlp.parameters == 2 * 384 + 32 + 8
    # States of ZeRO: of what is the same on both ranks each keeps a half, of its own experts all.
    everything = sum(math.prod(shape) for module in modules(dealt) for shape in tensor_shapes(dealt, module))
    assert memory(dealt, 1)["optimizer"] == 12 * ((everything - 2 * 384) / 2 + 2 * 384)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"split": Split(pp=2, virtual=2)}, ""),
        ({"split": Split(pp=4)}, ""),
        ({"split": Split(pp=2, virtual=3)}, "virtual: 2 x 3 stages for 4 layers"),
        ({"split": Split(virtual=2)}, "virtual: 2 stages per device need training in a pipeline"),
        ({"split": Split(pp=2, virtual=2), "mode": "prefill"}, "need training in a pipeline"),
        ({"split": Split(pp=2, virtual=2), "micro_batches": 1}, "micro_batches: 1 cannot be divided by pp 2"),
        ({"split": Split(cp=2)}, ""),
        ({"split": Split(cp=3)}, "sequence: 16 cannot be divided by cp 3"),
        ({"split": Split(cp=2), "mode": "prefill"}, "cp: 2 parts of a sequence with mode prefill"),
        ({"split": Split(ep=2)}, "ep: 2: gpt has no experts"),
        ({"split": Split(dp=2, ep=2), "model": {"experts": 4, "active": 4}}, ""),
        ({"split": Split(dp=2, ep=4), "model": {"experts": 4, "active": 1}}, "dp x cp: 2 cannot be divided by ep 4"),
        ({"split": Split(dp=3, ep=3), "model": {"experts": 4, "active": 1}}, "experts: 4 cannot be divided by ep 3"),
        ({"model": {"experts": 4, "active": 5}}, "active: 5 of 4 experts"),
        ({"model": {"experts": 4, "active": 0}}, "active: 0 of 4 experts"),
        ({"split": Split(ep=0)}, "ep: 0: gpt has no experts"),
        ({"sequence": 10**9}, ""),
        ({"sequence": 10**9 + 1}, "sequence: 1000000001 is out of range"),
        ({"dtype_bytes": 8, "gradient_bytes": 8}, ""),
        ({"gradient_bytes": 3}, "gradient_bytes: 3 is not a valid number"),
    ],
)
def test_the_ends_of_what_goes_together(change: dict[str, Any], told: str) -> None:
    model = replace(gpt(4), **change.pop("model", {}))
    step = replace(Workload(model, batch=4, sequence=16, micro_batches=4), **change)
    if told:
        with pytest.raises(InputError, match=told):
            check(step)
    else:
        check(step)


def test_interleaved_stages_keep_so_many_passes() -> None:
    """Of stage i of p, v pieces a device: (2 (p - i - 1) + (v - 1) p + 1) / v of its micro-batches."""
    step = Workload(gpt(4), batch=8, sequence=16, micro_batches=8, split=Split(pp=2, virtual=2))
    first = held_modules(step)[0]
    assert memory(step)["activations"] == pytest.approx(sum(module.saved for module in first) * (2 * 1 + 2 + 1) / 2)
    inference = load_workload("llama3-70b", mode="prefill", batch=2, sequence=100, tp=8, dp=4)
    assert memory(inference, 3)["parameters"] == memory(inference)["parameters"] / 4
    assert memory(inference, 2)["parameters"] == memory(inference)["parameters"]
    assert memory(inference)["activations"] == 2 * 2 * 100 * 8192 * 2
    linear = load_workload("tnl-7b", mode="decode", batch=2, sequence=100)
    model = linear.model
    assert memory(linear)["kv_cache"] == model.layers * 2 * model.head_dim * model.kv_heads * model.head_dim * 2
    assert (
        memory(Workload(gpt(), dtype_bytes=4))["optimizer"] == 2 * memory(Workload(gpt(), dtype_bytes=4))["parameters"]
    )
    for name in ("optimizer_bytes", "gradient_bytes"):
        assert memory(Workload(gpt()), **{name: 1024}) and memory(Workload(gpt()), **{name: 0})
        with pytest.raises(InputError, match=name):
            memory(Workload(gpt()), **{name: 1025})
