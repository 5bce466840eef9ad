"""Named workloads: the models of the papers, each with the step it was measured on, and models of the user's own.

A model of the user's own is the ``config.json`` of a Hugging Face model.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from math import gcd
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from densing.core import InputError, UnknownNameError, read_text
from densing.efficiency.simulation.workload import Latent, Split, Transformer, Workload, check

FILE = Path(__file__).with_name("models.toml")
SPLIT = {
    "dp": "dp", "tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep", "virtual": "virtual", "sequence_parallel": "sequence",
    "split_vocabulary": "vocabulary",
}  # fmt: skip
OWN: dict[str, Any] = {"batch": 8, "sequence": 2048, "micro_batches": 8}
"""Training step of a model that is not a preset; an assumption, like the presets' training steps."""
STEP = ("mode", "batch", "sequence", "micro_batches", "dtype_bytes", "recompute", "fused_attention", "dropout",
        "gradient_bytes", "overlap_weight_gradients")  # fmt: skip


def workload_names() -> tuple[str, ...]:
    """Return the names of the presets.

    Examples
    --------
    >>> "llama3-70b" in workload_names()
    True
    """
    return tuple(_presets(train=False))


def load_workload(name: str | Path, **overrides: Any) -> Workload:
    """Return a preset by name, or read a Hugging Face ``config.json``.

    Parameters
    ----------
    name : str or path
        Of a preset, of a ``config.json``, or of a folder that holds one.
    **overrides
        ``mode``, ``batch``, ``sequence``, ``micro_batches``, ``dtype_bytes``, ``recompute``, ``fused_attention``,
        ``dropout``, ``gradient_bytes``, ``overlap_weight_gradients``, ``dp``, ``tp``, ``pp``, ``cp``, ``ep``,
        ``virtual``, ``sequence_parallel``, ``split_vocabulary``; None leaves what the preset says. Mode ``train`` takes
        a training step's batch and sequence where the preset's own step is one of inference. Another batch leaves the
        size of the micro-batches as it is, where it can.

    Raises
    ------
    UnknownNameError
        For a name that is neither, or another override.
    InputError
        For a file that cannot be read, and for an inconsistent workload.

    Examples
    --------
    >>> load_workload("llama3-70b", mode="decode", batch=4, tp=8).model.kv_heads
    8
    >>> step = load_workload("llama3-70b", mode="train")
    >>> step.batch, step.sequence, step.micro_batches
    (8, 8192, 8)
    """
    options = {key: value for key, value in overrides.items() if value is not None}
    train = options.get("mode", "train") == "train"
    preset = _presets(train="mode" in options and train).get(str(name))
    if preset is None:
        path = Path(name)
        if path.suffix != ".json" and len(path.parts) < 2 and not path.is_dir():
            raise UnknownNameError("model", str(name), workload_names(), "a config.json")
        preset = Workload(read_config(path), **(OWN if train else {}))
    for key in options:
        if key not in (*STEP, *SPLIT):
            raise UnknownNameError("override", key, (*STEP, *SPLIT))
    if isinstance(batch := options.get("batch"), int) and batch > 0 and "micro_batches" not in options:
        preset = resized(preset, batch)
    split = replace(preset.split, **{SPLIT[key]: value for key, value in options.items() if key in SPLIT})
    changed = replace(preset, split=split, **{key: value for key, value in options.items() if key in STEP})
    check(changed)
    return changed


def resized(workload: Workload, batch: int) -> Workload:
    """Return the step with another batch, in micro-batches of the same size where that divides it, else in as few.

    Examples
    --------
    >>> step = load_workload("llama3-70b", mode="train")
    >>> [resized(step, batch).micro_batches for batch in (1, 4, 64)]
    [1, 4, 64]
    """
    # A micro-batch keeps its size where it can: then memory and the shape of the products stay as they were measured.
    each = max(workload.batch // workload.micro_batches, 1)
    parts = batch // each if workload.micro_batches > 1 and batch % each == 0 else gcd(batch, workload.micro_batches)
    return replace(workload, batch=batch, micro_batches=parts)


@cache
def _presets(train: bool) -> dict[str, Workload]:
    """The presets; of those whose own step is one of inference, on request a training step on the same split."""
    presets: dict[str, Workload] = {}
    for name, table in tomllib.loads(FILE.read_text(encoding="utf-8")).items():
        step = dict(table.pop("step"))
        training = table.pop("train", None)
        if train and training is not None:
            step |= {**training, "mode": "train"}
        split = Split(**{SPLIT[key]: step.pop(key) for key in list(step) if key in SPLIT})
        try:
            model = msgspec.convert({"name": name, **table}, Transformer)
            presets[name] = Workload(model, split=split, **step)
        except (msgspec.ValidationError, TypeError) as error:
            raise InputError(f"preset {name}: {error}") from error
    return presets


_LLAMAS = {"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "olmo", "olmo2", "granite", "smollm3", "minicpm"}
LATENT = frozenset({"deepseek_v2", "deepseek_v3"})
"""Attention through narrower vectors, and first layers without experts."""
MIXTURES: Mapping[str, str] = {
    "mixtral": "intermediate_size", "olmoe": "intermediate_size",
    **dict.fromkeys(("qwen3_moe", *sorted(LATENT)), "moe_intermediate_size"),
}  # fmt: skip
"""Mixtures, and the field that states an expert's width."""
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
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "active": ("num_experts_per_tok",),
}
EXPERTS = NAMES["experts"]
MOST = 10**9


def read_config(path: Path) -> Transformer:
    """Read ``config.json``, or that of a model's folder.

    Raises
    ------
    InputError
        When it cannot be read, a field is missing or no positive whole number, or the architecture is not one of
        dense decoders.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        data = msgspec.json.decode(read_text(file, str(file)))
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise InputError(f"{file}: not readable JSON ({error}); give a model's config.json") from error
    if not isinstance(data, dict):
        raise InputError(f"{file}: holds no JSON object; give a model's config.json")
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
    >>> model = transformer_of(config, "config.json")
    >>> model.ffn, model.kv_heads, model.head_dim, model.gated, model.tied
    (3072, 12, 64, False, True)
    >>> transformer_of({"model_type": "llama", "hidden_size": 64}, "config.json")
    Traceback (most recent call last):
    ...
    densing.core.errors.InputError: config.json: num_hidden_layers: missing; a llama configuration needs it
    """
    kind = config.get("model_type")
    known = GATED | PLAIN | set(MIXTURES)
    if kind not in known:
        raise InputError(f"{where}: model_type: {kind!r} is not known; known are {', '.join(sorted(known))}")
    experts = active = 0
    if kind in MIXTURES:
        experts, active = (_size(config, field, where) for field in ("experts", "active"))
        sparse = (config.get("decoder_sparse_step"), config.get("moe_layer_freq"))
        if any(step not in (None, 1) for step in sparse) or config.get("mlp_only_layers"):
            raise InputError(
                f"{where}: some layers have no experts; use a mixture with experts in every layer after the first ones"
            )
    else:
        for field in EXPERTS:
            if config.get(field) not in (None, 0, 1):
                raise InputError(
                    f"{where}: {field}: {config[field]!r}: unknown kind of mixture of experts; known are "
                    f"{', '.join(sorted(MIXTURES))}"
                )
    layers, hidden, heads = (_size(config, field, where) for field in ("layers", "hidden", "heads"))
    if "head_dim" not in config and hidden % heads and kind not in LATENT:
        raise InputError(f"{where}: {hidden} columns cannot be divided by {heads} heads; give head_dim")
    kv_heads = _size(config, "kv_heads", where, heads)
    latent, first = None, 0
    if kind in LATENT:
        first = _count(config, "first_k_dense_replace", where)
        head_dim = _size(config, "qk_nope_head_dim", where)
        latent = Latent(
            _size(config, "q_lora_rank", where, 0),
            *(_size(config, field, where) for field in ("kv_lora_rank", "qk_rope_head_dim", "v_head_dim")),
        )
    else:
        head_dim = _size(config, "head_dim", where, max(hidden // heads, 1))
    ffn = _size(config, MIXTURES.get(kind, "ffn"), where, 4 * hidden if kind in PLAIN else None)
    vocabulary = _size(config, "vocabulary", where)
    tied = config.get("tie_word_embeddings")
    if not (tied is None or isinstance(tied, bool)):
        raise InputError(f"{where}: tie_word_embeddings: {tied!r} must be true or false")
    return Transformer(
        str(config.get("_name_or_path") or name or kind),
        layers,
        hidden,
        heads,
        kv_heads,
        head_dim,
        ffn,
        vocabulary,
        gated=kind in GATED or kind in MIXTURES,
        experts=experts,
        active=active,
        shared=_count(config, "n_shared_experts", where) if kind in LATENT else 0,
        dense_layers=first,
        dense_ffn=_size(config, "intermediate_size", where) if first else 0,
        latent=latent,
        tied=kind in TIED if tied is None else tied,
        source=where,
        evidence="first-hand",
    )


def _count(config: Mapping[str, Any], field: str, where: str) -> int:
    """A number that may be left out, null or 0."""
    return _size(config, field, where) if config.get(field) else 0


def _size(config: Mapping[str, Any], field: str, where: str, default: int | None = None) -> int:
    """The first spelling that is there; null counts as absent."""
    names = NAMES.get(field, (field,))
    spellings = [key for key in names if config.get(key) is not None]
    if not spellings:
        if default is None:
            raise InputError(f"{where}: {names[0]}: missing; a {config['model_type']} configuration needs it")
        return default
    value = config[spellings[0]]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise InputError(f"{where}: {spellings[0]}: {value!r} is out of range; give a whole number from 1 to {MOST}")
    return value
