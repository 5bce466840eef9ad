"""The ladder's models: Llama decoders of transformers, built from a shape."""

from __future__ import annotations

from typing import Any

import torch

from densing.scores.ladder.presets import Shape


def build_model(shape: Shape, vocabulary: int, block: int, seed: int, device: str = "cpu") -> Any:
    """Return a freshly initialised model.

    Parameters
    ----------
    shape : Shape
        Its proportions.
    vocabulary : int
        Number of tokens; token 0 is beginning, end and padding.
    block : int
        Tokens per training sequence; positions go to four times as many.
    seed : int
        Seed of the initialisation, which is drawn on the CPU whatever the device.
    device : str
        Where it goes.

    Returns
    -------
    transformers.LlamaForCausalLM
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_width,
        max_position_embeddings=4 * block,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return model.to(device)


def count_parameters(model: Any) -> tuple[int, int]:
    """Return a model's parameters in all and without embeddings."""
    total = sum(parameter.numel() for parameter in model.parameters())
    return total, total - model.get_input_embeddings().weight.numel()
