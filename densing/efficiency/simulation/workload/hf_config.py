"""A transformer's shape from the ``config.json`` of a Hugging Face model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from densing.core import InputError
from densing.efficiency.simulation.workload.workload import Transformer

_LLAMAS = {"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "olmo", "olmo2", "granite", "smollm3", "minicpm"}
GATED = frozenset(_LLAMAS | {"phi3", "internlm2", "baichuan"})
PLAIN = frozenset({"gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "phi", "bloom", "starcoder2"})
TIED = frozenset({"gpt2", "gpt_neo", "opt", "bloom", "gemma", "gemma2"})
NAMES: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim"),
    "vocabulary": ("vocab_size",),
}
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
MOST = 10**9


def read_config(path: Path) -> Transformer:
    """Read ``config.json``, or that of a model's folder.

    Raises
    ------
    InputError
        When it cannot be read, a field is missing or no positive whole number, or the architecture is not one of
        dense decoders.
    """
    import msgspec

    from densing.core import read_text

    file = path / "config.json" if path.is_dir() else path
    try:
        data = msgspec.json.decode(read_text(file, str(file)))
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise InputError(f"{file}: no readable JSON ({error}); give a model's config.json") from error
    if not isinstance(data, dict):
        raise InputError(f"{file}: holds no object; give a model's config.json")
    return transformer_of(data, str(file), file.resolve().parent.name)


def transformer_of(config: Mapping[str, Any], where: str, name: str = "") -> Transformer:
    """Take a shape from a configuration's fields.

    Raises
    ------
    InputError
        As :func:`read_config`.

    Examples
    --------
    >>> config = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257}
    >>> found = transformer_of(config, "config.json")
    >>> found.ffn, found.kv_heads, found.head_dim, found.gated, found.tied
    (3072, 12, 64, False, True)
    >>> transformer_of({"model_type": "llama", "hidden_size": 64}, "config.json")
    Traceback (most recent call last):
    ...
    densing.core.errors.InputError: config.json: num_hidden_layers: missing; a llama configuration needs it
    """
    kind = config.get("model_type")
    if kind not in GATED | PLAIN:
        raise InputError(
            f"{where}: model_type: {kind!r} is not known; known are {', '.join(sorted(GATED | PLAIN))} (dense decoders)"
        )
    _dense(config, where)
    layers, hidden, heads = (_whole(config, field, where) for field in ("layers", "hidden", "heads"))
    if "head_dim" not in config and hidden % heads:
        raise InputError(f"{where}: {hidden} columns cannot be divided by {heads} heads; give head_dim")
    return Transformer(
        str(config.get("_name_or_path") or name or kind),
        layers,
        hidden,
        heads,
        _whole(config, "kv_heads", where, heads),
        _whole(config, "head_dim", where, max(hidden // heads, 1)),
        _whole(config, "ffn", where, None if kind in GATED else 4 * hidden),
        _whole(config, "vocabulary", where),
        gated=kind in GATED,
        tied=_flag(config, "tie_word_embeddings", kind in TIED, where),
        source=where,
        evidence="first-hand",
    )


def _dense(config: Mapping[str, Any], where: str) -> None:
    for field in EXPERTS:
        if config.get(field) not in (None, 0, 1):
            raise InputError(f"{where}: {field}: {config[field]!r}: a mixture of experts; give a dense model")


def _whole(config: Mapping[str, Any], field: str, where: str, default: int | None = None) -> int:
    """The first spelling that is there; null counts as absent."""
    found = [key for key in NAMES[field] if config.get(key) is not None]
    if not found:
        if default is None:
            raise InputError(f"{where}: {NAMES[field][0]}: missing; a {config['model_type']} configuration needs it")
        return default
    value = config[found[0]]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise InputError(f"{where}: {found[0]}: {value!r} is out of range; give a whole number from 1 to {MOST}")
    return value


def _flag(config: Mapping[str, Any], field: str, default: bool, where: str) -> bool:
    value = config.get(field)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InputError(f"{where}: {field}: {value!r} is neither true nor false")
    return value
