"""A random model of four layers on disk, whose exits differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.evals_toys import write_tokenizer

LAYERS = 4
TEXTS = [f"the {word} of number {n} is {n * 37 % 101}, not {n * 11 % 17}. " * 3 for n in range(90)
         for word in ("cedar", "haven", "lunar")]  # fmt: skip


def write_deep_model(folder: Path, kind: str = "Llama", seed: int = 0, **changes: Any) -> Path:
    """Save a random model of four layers with a tokenizer of bytes."""
    import torch
    import transformers

    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "vocab_size": 257,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "max_position_embeddings": 128,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "initializer_range": 0.2,
        **changes,
    }
    made = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**shape))
    made.save_pretrained(folder)
    write_tokenizer(folder)
    return folder
