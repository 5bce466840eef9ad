"""Tiny models and tasks of our own for tests of evaluation: nothing is downloaded, everything is seeded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

TASKS = ("toy_choice", "toy_text", "toy_long")
WORDS = ["amber", "brick", "cedar", "delta", "ember", "fjord", "grain", "haven", "ivory", "jolly", "kelp", "lunar"]


def write_tokenizer(folder: Path) -> None:
    """Save a tokenizer of single bytes with one special token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<end>": 0, **{letter: n for n, letter in enumerate(letters, start=1)}}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<end>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<end>", bos_token="<end>", pad_token="<end>", unk_token="<end>"
    ).save_pretrained(folder)


def write_model(folder: Path, kind: str, seed: int = 0, width: int = 16) -> Path:
    """Save a random model of 1 layer with its tokenizer: kind ``llama`` or ``neox``."""
    import torch
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "vocab_size": 257,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 96,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    made = LlamaForCausalLM(LlamaConfig(**shape)) if kind == "llama" else GPTNeoXForCausalLM(GPTNeoXConfig(**shape))
    # Larger than the usual start, so that choices differ by more than rounding.
    with torch.no_grad():
        for weight in made.parameters():
            weight.mul_(4.0)
    made.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_models(folder: Path) -> tuple[Path, Path]:
    """Save one Llama and one GPT-NeoX model."""
    return write_model(folder / "toy-llama", "llama", 1), write_model(folder / "toy-neox", "neox", 2)


def write_tasks(folder: Path, documents: int = 14, seed: int = 0) -> Path:
    """Save three tasks of three types over generated documents; returns the folder for ``--include_path``."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)

    def text(low: int, high: int) -> str:
        return " ".join(rng.choice(WORDS, size=int(rng.integers(low, high))))

    rows = {
        "toy_choice": [
            {"question": text(1, 6), "choices": [text(1, 3) for _ in range(3)], "gold": int(rng.integers(3))}
            for _ in range(documents)
        ],
        "toy_text": [{"question": text(1, 4), "answer": text(1, 2)} for _ in range(documents)],
        "toy_long": [{"text": text(2, 40)} for _ in range(documents)],
    }
    # A question asked twice is two requests.
    rows["toy_choice"][-1] = dict(rows["toy_choice"][0])
    for name, docs in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs), encoding="utf-8")
        (folder / f"{name}.yaml").write_text(_YAML[name].format(data=(folder / f"{name}.jsonl").absolute()))
    return folder


_HEAD = """task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {{data}}
test_split: test
metadata:
  version: 1.0
"""
_YAML = {
    "toy_choice": _HEAD.format(name="toy_choice")
    + """fewshot_split: test
output_type: multiple_choice
doc_to_text: "Q: {{{{question}}}} A:"
doc_to_choice: choices
doc_to_target: gold
metric_list:
  - metric: acc
  - metric: acc_norm
""",
    "toy_text": _HEAD.format(name="toy_text")
    + """fewshot_split: test
output_type: generate_until
doc_to_text: "Q: {{{{question}}}} A:"
doc_to_target: answer
generation_kwargs:
  max_gen_toks: 6
  until: ["."]
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
""",
    "toy_long": _HEAD.format(name="toy_long")
    + """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: text
metric_list:
  - metric: word_perplexity
  - metric: bits_per_byte
""",
}
