"""The small decoder: against transformers' Llama, against its own definition, and its seeds."""

from __future__ import annotations

import pytest
import torch

from densing.core.errors import InputError, UnknownNameError
from densing.efficiency.parallel.distributed.lm import Decoder, build_lm, wirings
from densing.efficiency.parallel.distributed.spec import LmShape

SHAPE = LmShape(layers=3, hidden=32, heads=4, ffn=48, vocabulary=64)
WIRINGS = ("standard", "ladder", "parallel-attention")


def tokens(rows: int = 2, count: int = 12) -> torch.Tensor:
    return torch.randint(0, SHAPE.vocabulary, (rows, count), generator=torch.Generator().manual_seed(7))


def as_llama(model: Decoder, tied: bool) -> torch.nn.Module:
    """transformers' own Llama with the same weights."""
    transformers = pytest.importorskip("transformers", reason="the oracle is transformers' LlamaForCausalLM")
    config = transformers.LlamaConfig(
        vocab_size=SHAPE.vocabulary,
        hidden_size=SHAPE.hidden,
        intermediate_size=SHAPE.ffn,
        num_hidden_layers=SHAPE.layers,
        num_attention_heads=SHAPE.heads,
        max_position_embeddings=12,
        tie_word_embeddings=tied,
    )
    names = {
        "attention_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
        "attention.row": "self_attn.o_proj",
        "mlp.row": "mlp.down_proj",
        **{f"attention.{x}": f"self_attn.{x}_proj" for x in "qkv"},
        **{f"mlp.{x}": f"mlp.{x}_proj" for x in ("gate", "up")},
    }
    outer = {"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    state = {}
    for name, value in model.state_dict().items():
        if name.startswith("blocks."):
            _, layer, *rest, _ = name.split(".")
            name = f"model.layers.{layer}.{names['.'.join(rest)]}.weight"
        state[outer.get(name, "lm_head.weight" if name == "head.weight" else name)] = value
    llama = transformers.LlamaForCausalLM(config)
    missing, unexpected = llama.load_state_dict(state, strict=False)
    assert not missing
    assert not unexpected
    return llama.eval()


@pytest.mark.parametrize("tied", [False, True])
def test_equals_llama_of_transformers(tied: bool) -> None:
    model = build_lm(SHAPE, 12, seed=1, tied=tied)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.rand_like(weight))
    llama = as_llama(model, tied)
    x = tokens()
    ours, theirs = model(x), llama(input_ids=x).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    torch.testing.assert_close(
        model.blocks[0].attention.k.weight.grad,
        llama.model.layers[0].self_attn.k_proj.weight.grad,
        rtol=1e-3,
        atol=1e-4,
    )


@pytest.mark.parametrize("wiring", WIRINGS)
def test_no_token_sees_a_later_one(wiring: str) -> None:
    model = build_lm(SHAPE, 12, 0, wiring)
    x = tokens()
    changed = x.clone()
    changed[:, 8:] = (changed[:, 8:] + 1) % SHAPE.vocabulary
    before, after = model(x), model(changed)
    assert torch.equal(before[:, :8], after[:, :8])
    assert not torch.equal(before[:, 8:], after[:, 8:])


def by_definition(model: Decoder, x: torch.Tensor, wiring: str) -> torch.Tensor:
    """The residual stream written from the papers' recurrences: module i reads x_i (standard) or x_{i-1} (ladder)."""
    streams = [model.embed(x)]
    outputs: list[torch.Tensor] = []
    for block in model.blocks:
        if wiring == "parallel-attention":
            read = block.attention_norm(streams[-1])
            streams.append(streams[-1] + block.attention(read) + block.mlp(read))
            continue
        for norm, module in ((block.attention_norm, block.attention), (block.mlp_norm, block.mlp)):
            missing = outputs[-1] if outputs and block.wiring == "ladder" else 0.0
            outputs.append(module(norm(streams[-1] - missing)))
            streams.append(streams[-1] + outputs[-1])
            if block.wiring != "ladder":
                outputs.clear()
    return model.predict(streams[-1])


@pytest.mark.parametrize(
    ("wiring", "ladder_layers"), [("standard", None), ("ladder", None), ("ladder", 2), ("parallel-attention", None)]
)
def test_wiring_is_the_papers_recurrence(wiring: str, ladder_layers: int | None) -> None:
    model = build_lm(SHAPE, 12, 3, wiring, ladder_layers)
    torch.testing.assert_close(model(tokens()), by_definition(model, tokens(), wiring), rtol=1e-4, atol=1e-6)


def test_ladder_over_no_layer_is_standard() -> None:
    ladder, standard = build_lm(SHAPE, 12, 3, "ladder", 0), build_lm(SHAPE, 12, 3)
    assert torch.equal(ladder(tokens()), standard(tokens()))
    assert not torch.allclose(build_lm(SHAPE, 12, 3, "ladder")(tokens()), standard(tokens()), atol=1e-6)


def test_seed_alone_decides_the_weights() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = build_lm(SHAPE, 12, seed=5)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(2)
    second, third = build_lm(SHAPE, 12, seed=5), build_lm(SHAPE, 12, seed=6)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.head.weight, third.head.weight)


def test_first_loss_is_that_of_guessing() -> None:
    x = tokens(8, 12)
    loss = torch.nn.functional.cross_entropy(build_lm(SHAPE, 12, 0)(x).flatten(0, 1), x.flatten())
    assert float(loss.detach()) == pytest.approx(torch.tensor(64.0).log().item(), abs=0.1)


@pytest.mark.parametrize(
    ("shape", "sequence", "parts", "word"),
    [
        (LmShape(hidden=30, heads=4), 8, 1, "multiple of 8"),
        (LmShape(layers=0), 8, 1, "layers"),
        (LmShape(), 0, 1, "sequence"),
        (LmShape(heads=4), 8, 3, "heads 4 cannot be shared by 3"),
        (LmShape(heads=4, ffn=705), 8, 2, "ffn 705"),
    ],
)
def test_impossible_shapes_are_refused(shape: LmShape, sequence: int, parts: int, word: str) -> None:
    with pytest.raises(InputError, match=word):
        build_lm(shape, sequence, 0, parts=parts)


def test_unknown_wiring_and_layers_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'ladder'"):
        build_lm(SHAPE, 8, 0, "lader")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="ladder_layers is 4"):
        wirings(3, "ladder", 4)
    with pytest.raises(InputError, match="13 tokens"):
        build_lm(SHAPE, 12, 0)(tokens(1, 13))
