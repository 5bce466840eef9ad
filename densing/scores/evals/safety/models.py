"""Model arguments and model folders: what in them would run code, found before anything is loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from densing.core import InputError
from densing.scores.evals.safety.rules import TRUST, refuse, truthy

MAX_CONFIG = 32 * 1024 * 1024
MAX_FOLDERS = 8
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".nemo", ".joblib")
# What Trainer leaves beside the weights (training_args.bin, optimizer.pt).
NEVER_READ = ("training_args", "optimizer", "scheduler", "rng_state", "scaler")
LOADS_PICKLES = ("nemo_lm", "megatron_lm")
TRUSTS_BY_DEFAULT = ("sglang",)
IMPORTS_PYTHON = (
    "custom_generate",
    "kernel_config",
    "kv_transfer_config",
    "logits_processors",
    "scheduler_cls",
    "worker_cls",
    "worker_extension_cls",
)
"""Arguments whose value names Python code to import."""
_KERNEL = re.compile(r"^[^/:]+/[^/:]+(?:@[^/:]+)?(?::[^/:]+)?$")
_TEXT_ONLY = ("tokenizer.json", "vocab.json")


def check_model(
    model_type: str, model_args: Mapping[str, Any] | str | None, *, trust_remote_code: bool = False
) -> dict[str, Any]:
    """Refuse a model that would run code when loaded; return its arguments with consent made explicit.

    Folders among the arguments (model, tokenizer, adapter, delta) are looked into: code named in ``auto_map``,
    kernels to download, weights that are pickles.

    Parameters
    ----------
    model_type : str
        lm-eval's model type, ``hf``, ``vllm``, ...
    model_args : mapping, str or None
        Arguments, or lm-eval's ``key=value,key=value``.
    trust_remote_code : bool
        The user's consent, named as lm-eval's flag.

    Returns
    -------
    dict
        The arguments; ``trust_remote_code`` is there exactly where lm-eval would otherwise decide differently.

    Raises
    ------
    InputError
        Naming argument or file, value and the flag that would allow it.

    Examples
    --------
    >>> check_model("hf", {"pretrained": "gpt2", "dtype": "float32"})
    {'pretrained': 'gpt2', 'dtype': 'float32'}
    """
    if isinstance(model_args, str):
        from lm_eval.utils import simple_parse_args_string

        args: dict[str, Any] = simple_parse_args_string(model_args)
    else:
        args = dict(model_args or {})
    consent = args.pop("trust_remote_code", None)
    if trust_remote_code:
        return {**args, "trust_remote_code": True}
    if truthy(consent):
        refuse("--model_args", "trust_remote_code", consent, "runs Python code that comes with the model", TRUST)
    if model_type in LOADS_PICKLES:
        refuse("--model", "model type", model_type, "reads its weights from pickles, which run what they hold", TRUST)
    for key, value in args.items():
        _check_argument(key, value)
    for folder in _folders(args):
        _check_folder(folder, args)
    return {**args, "trust_remote_code": False} if model_type in TRUSTS_BY_DEFAULT else args


def _check_argument(key: str, value: Any) -> None:
    where = "--model_args"
    if key in IMPORTS_PYTHON and truthy(value):
        refuse(where, key, value, "names Python code to import and run", TRUST)
    if key in ("use_kernels", "allow_all_kernels") and truthy(value):
        refuse(where, key, value, "downloads kernels and runs them", TRUST)
    if key in ("weights_only", "use_safetensors") and value is not None and not truthy(value):
        refuse(where, key, value, "reads weights as pickles, which run what they hold", TRUST)
    _check_kernel(where, key, value)
    if isinstance(value, str) and value.lower().endswith(PICKLES) and Path(value).expanduser().is_file():
        refuse(where, key, value, "is a pickle, and reading it runs what it holds", TRUST)
    if key == "steer_path" and not str(value).lower().endswith(".csv"):
        refuse(where, key, value, "is read as a pickle, which runs what it holds", TRUST)


def _check_kernel(where: str, key: str, value: Any) -> None:
    """transformers takes ``owner/name`` for an attention implementation as a repository of code to download."""
    if not key.endswith(("attn_implementation", "experts_implementation")):
        return
    for name in value.values() if isinstance(value, Mapping) else [value]:
        if isinstance(name, str) and _KERNEL.match(name):
            refuse(where, key, name, "downloads a kernel and runs it", TRUST)


def _folders(args: Mapping[str, Any]) -> list[Path]:
    """List the local folders among the arguments, and those that their adapters build on."""
    texts = [value for value in args.values() if isinstance(value, (str, Path))]
    queue = [Path(text).expanduser() for text in texts if Path(text).expanduser().is_dir()]
    folders: list[Path] = []
    while queue and len(folders) < MAX_FOLDERS:
        folder = queue.pop(0)
        if folder in folders:
            continue
        folders.append(folder)
        if args.get("subfolder") and (folder / str(args["subfolder"])).is_dir():
            queue.append(folder / str(args["subfolder"]))
        base = _config(folder / "adapter_config.json").get("base_model_name_or_path")
        if isinstance(base, str) and Path(base).is_dir():
            queue.append(Path(base))
    return folders


def _check_folder(folder: Path, args: Mapping[str, Any]) -> None:
    """Refuse a model folder whose configuration names code, or whose weights exist as pickles only."""
    for file in sorted(folder.glob("*.json")):
        if file.name in _TEXT_ONLY or file.name.endswith(".index.json"):
            continue
        for key, value in _keys(_config(file)):
            if key == "auto_map" and value:
                hint = "(transformers may know the model without it: delete the key)"
                refuse(str(file), key, value, f"names Python code that comes with the model {hint}", TRUST)
            if key == "transformers_weights" and not str(value).endswith(".safetensors"):
                refuse(str(file), key, value, "names weights that are no safetensors file", TRUST)
            if key in ("custom_generate", "custom_pipelines") and value:
                refuse(str(file), key, value, "names Python code that comes with the model", TRUST)
            _check_kernel(str(file), key, value)
    pickles = [
        file.name
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in PICKLES and not file.name.startswith(NEVER_READ)
    ]
    # A GGUF file among the arguments is loaded instead.
    if not pickles or args.get("gguf_file"):
        return
    variant = f".{args['variant']}" if args.get("variant") else ""
    safe = (f"model{variant}.safetensors", f"model.safetensors.index{variant}.json", "adapter_model.safetensors")
    if not any((folder / name).is_file() for name in safe):
        reason = "is a pickle, and reading it runs what it holds (save the model as safetensors)"
        refuse(str(folder), "weights", pickles[0], reason, TRUST)


def _config(file: Path) -> dict[str, Any]:
    """Read a configuration file of a model folder; what is no JSON will not load as a model either."""
    try:
        if not file.is_file():
            return {}
        if file.stat().st_size > MAX_CONFIG:
            raise InputError(f"{file}: above {MAX_CONFIG} bytes; no configuration of a model is that large")
        data = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _keys(data: Any) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of all objects in a document."""
    stack = [data]
    while stack:
        current = stack.pop()
        if isinstance(current, dict):
            yield from current.items()
            stack.extend(current.values())
        elif isinstance(current, list):
            stack.extend(current)
