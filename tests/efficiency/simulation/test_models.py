"""Shapes from Hugging Face configurations; transformers' own models as the oracle of the parameter counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from densing.core.errors import InputError
from densing.efficiency.simulation.models import load_workload, resized, transformer_of
from densing.efficiency.simulation.workload import parameter_count

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 160,
    "vocab_size": 1000,
}


@pytest.mark.parametrize(
    ("kind", "extra", "apart"),
    [
        ("llama", {}, 0),
        ("mistral", {"head_dim": 16}, 0),
        ("qwen3", {"head_dim": 32}, 3 * 2 * 32),  # norms of queries and keys
        ("qwen2", {}, 3 * (4 + 2 + 2) * 16),  # biases of queries, keys and values
    ],
)
def test_parameters_are_those_of_the_real_model(kind: str, extra: dict[str, int], apart: int) -> None:
    transformers = pytest.importorskip("transformers", reason="the oracle is transformers' own model")
    torch = pytest.importorskip("torch", reason="the oracle is transformers' own model")
    config = {**LLAMA, **extra, "model_type": kind, "tie_word_embeddings": False}
    options = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **options))
    real = sum(weight.numel() for weight in model.parameters())
    assert parameter_count(transformer_of(config, "config.json")) + apart == real


def test_gpt2_small() -> None:
    """124.4e6 parameters (openai-community/gpt2), of which positions and biases are not counted here."""
    found = transformer_of(
        {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_inner": None}, "gpt2"
    )
    positions, biases = 1024 * 768, 12 * (3 * 768 + 768 + 4 * 768 + 768 + 2 * 768) + 768
    assert parameter_count(found) + positions + biases == 124_439_808


def test_a_folder_and_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    for path in (folder, folder / "config.json", str(folder)):
        found = load_workload(path, tp=2, batch=2)
        assert found.model.name == "my-model" and found.model.kv_heads == 2 and found.split.tp == 2


@pytest.mark.parametrize(
    "field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"]
)
def test_missing_fields_are_named(field: str) -> None:
    with pytest.raises(InputError, match=f"{field}: missing"):
        transformer_of({key: value for key, value in LLAMA.items() if key != field}, "config.json")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model_type": "mamba"}, "model_type: 'mamba' is not known"),
        ({"model_type": None}, "model_type"),
        ({"hidden_size": -1}, "hidden_size: -1"),
        ({"hidden_size": "64"}, "hidden_size: '64'"),
        ({"hidden_size": True}, "hidden_size: True"),
        ({"hidden_size": 65}, "65 columns cannot be divided by 4 heads"),
        ({"vocab_size": 1e300}, "vocab_size"),
        ({"num_local_experts": 8}, "mixture of experts"),
        ({"tie_word_embeddings": "yes"}, "must be true or false"),
    ],
)
def test_wrong_fields_are_named(change: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as caught:
        transformer_of({**LLAMA, **change}, "config.json")
    assert told in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '"text"', "\ud800".encode("utf-8", "surrogatepass")])
def test_files_that_are_no_configuration(tmp_path: Path, text: str | bytes) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=r"config\.json"):
        load_workload(file)


ANYTHING = st.one_of(st.none(), st.integers(), st.floats(), st.text(max_size=5), st.just("llama"))


@given(st.dictionaries(st.sampled_from([*LLAMA, "head_dim", "n_layer"]), ANYTHING))
def test_any_configuration_is_read_or_refused(changes: dict[str, Any]) -> None:
    try:
        found = transformer_of({**LLAMA, **changes}, "config.json")
    except InputError:
        return
    assert found.layers > 0 and found.heads > 0


@pytest.mark.parametrize(
    ("batch", "parts", "wanted"),
    [(16, 4, {8: 2, 4: 1, 32: 8, 6: 2, 5: 1, 12: 3}), (16, 1, {8: 1, 32: 1}), (8, 8, {4: 4, 6: 6, 3: 3})],
)
def test_another_batch_keeps_the_size_of_micro_batches_where_that_divides_it(
    batch: int, parts: int, wanted: dict[int, int]
) -> None:
    step = replace(load_workload("gpt2", mode="train"), batch=batch, micro_batches=parts)
    assert {size: resized(step, size).micro_batches for size in wanted} == wanted
    assert all(resized(step, size).batch == size for size in wanted)
