"""Which model it is: hashes of local weights, commits of the hub, and arguments that change no number left out."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from densing.core import InputError, strip_secrets
from densing.scores.evals.disk import file_digest
from densing.scores.evals.plan import ModelSpec, plain

# Arguments that say where and how fast, not what.
PLACEMENT = frozenset({
    "device", "batch_size", "max_batch_size", "parallelize", "device_map", "max_memory_per_gpu", "max_cpu_memory",
    "offload_folder", "num_concurrent", "max_retries", "timeout", "tensor_parallel_size", "data_parallel_size",
    "gpu_memory_utilization", "pipeline_parallel_size", "swap_space", "tp_plan", "verify_certificate",
    "trust_remote_code",
})  # fmt: skip
PATH_ARGUMENTS = ("pretrained", "tokenizer", "peft", "delta")
DATA_SUFFIXES = frozenset({
    ".json", ".safetensors", ".bin", ".pt", ".pth", ".model", ".txt", ".jinja", ".py", ".gguf", ".tiktoken", ".bpe",
    ".spm", ".vocab",
})  # fmt: skip
# What describes a model, or goes on training it, does not change it.
IGNORED = ("densing.json", "training_args", "trainer_state", "optimizer", "scheduler", "rng_state", "scaler")
BIG = 32 * 1024 * 1024


@dataclass(frozen=True)
class ModelIdentity:
    """What a model is, apart from the name people give it.

    Parameters
    ----------
    key : mapping
        ``type``, ``args``, ``revision`` and ``dtype``: the model's part of a unit's key.
    pinned : bool
        Whether ``revision`` names one content (a hash or a commit) or only a moving name.
    """

    key: Mapping[str, Any]
    pinned: bool


def identify_model(spec: ModelSpec) -> ModelIdentity:
    """Return what makes a model the same one: weights by content, arguments without secrets, paths and placement.

    Raises
    ------
    InputError
        When an argument names a local folder without any file of a model.

    Examples
    --------
    >>> identify_model(ModelSpec.of("dummy", {"seed": 1, "device": "cpu"})).key
    {'type': 'dummy', 'args': {'seed': 1}, 'revision': '', 'dtype': ''}
    """
    args = {name: value for name, value in spec.args.items() if name not in PLACEMENT}
    revision, pinned = "", not any(name in args for name in PATH_ARGUMENTS)
    gguf = args.get("gguf_file")
    for name in PATH_ARGUMENTS:
        if name not in args:
            continue
        place = str(args[name])
        if name == "pretrained" and args.get("subfolder") and Path(place).expanduser().is_dir():
            place = str(Path(place) / str(args["subfolder"]))
        found = content_of(place, gguf if name == "pretrained" else None)
        if found is None:
            found, sure = hub_commit(str(args[name]), str(args.get("revision", "main")))
        else:
            args[name], sure = found, True
        if name == "pretrained":
            revision, pinned = found, sure
    dtype = effective_dtype(spec)
    shown = plain(strip_secrets({name: value for name, value in args.items() if name != "dtype"}))
    return ModelIdentity({"type": spec.type, "args": json.loads(json.dumps(shown, default=str)),
                          "revision": revision, "dtype": dtype}, pinned)  # fmt: skip


def content_of(place: str, gguf_file: str | None = None) -> str | None:
    """Return ``sha256:...`` over the model files of a local folder (or one file), or None when it is not local."""
    path = Path(place).expanduser()
    if path.is_dir():
        files = [path / gguf_file] if gguf_file else list(_model_files(path))
    elif path.is_file():
        files = [path]
    else:
        return None
    missing = [str(file) for file in files if not file.is_file()]
    if missing or not files:
        what = f"{missing[0]} is missing" if missing else "holds no file of a model (config.json, *.safetensors)"
        raise InputError(f"{place}: {what}; check the path")
    lines = [f"{file.relative_to(path) if path.is_dir() else file.name}:{cached_digest(file)}" for file in files]
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _model_files(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.suffix in DATA_SUFFIXES and not file.name.startswith((".", *IGNORED)):
            yield file


def cached_digest(file: Path) -> str:
    """Return a file's SHA-256; of a big file that has not changed since it was last read, from the user's cache."""
    facts = file.stat()
    if facts.st_size < BIG:
        return file_digest(file)
    label = f"{file.resolve()}:{facts.st_size}:{facts.st_mtime_ns}:{facts.st_ino}"
    entry = cache_folder() / "digests" / hashlib.sha256(label.encode()).hexdigest()
    with suppress(OSError, UnicodeDecodeError):
        known = entry.read_text(encoding="ascii")
        if len(known) == 64:
            return known
    digest = file_digest(file)
    with suppress(OSError):
        entry.parent.mkdir(parents=True, exist_ok=True)
        temporary = entry.with_name(f"{entry.name}.{os.getpid()}")
        temporary.write_text(digest, encoding="ascii")
        temporary.replace(entry)
    return digest


def cache_folder() -> Path:
    """Return the user's cache folder for densing."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "densing"


def hub_commit(repository: str, revision: str) -> tuple[str, bool]:
    """Return the commit a hub name stands for and whether it is known: from the local cache, else from the hub.

    Raises
    ------
    InputError
        When there is no such model: a path that does not exist, or a name that neither the cache nor the hub knows.
        Said here, it costs a moment; lm-eval's own attempts take minutes.
    """
    if repository.startswith((".", "/", "~")) or repository.count("/") > 1 or "\\" in repository:
        raise InputError(f"model {repository}: no such file or folder{_beside(repository)}")
    pinned = len(revision) == 40 and all(sign in "0123456789abcdef" for sign in revision)
    try:
        from huggingface_hub import HfApi, constants, try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError
    except ImportError:
        return revision, pinned
    try:
        cached = try_to_load_from_cache(repository, "config.json", revision=revision)
    except HFValidationError as error:
        why = f"and no name that the hub could have: {error}"
        raise InputError(f"model {repository}: no such folder, {why}") from None
    known = isinstance(cached, str)
    if known and (pinned or constants.HF_HUB_OFFLINE):
        return Path(str(cached)).parent.name, True
    if not constants.HF_HUB_OFFLINE:
        try:
            commit = str(HfApi().model_info(repository, revision=revision, timeout=10).sha)
            return (revision if pinned else commit), True
        except (RepositoryNotFoundError, RevisionNotFoundError) as error:
            if not known:
                raise InputError(
                    f"model {repository}: no such folder{_beside(repository)}, and the hub has no model of that name "
                    f"at revision {revision} that you may read"
                ) from error
        except Exception as error:
            why = f"the hub cannot be reached ({type(error).__name__}: {error})"
    else:
        why = "the hub is switched off (HF_HUB_OFFLINE)"
    if known:
        return revision, pinned
    nearby = _beside(repository)
    raise InputError(f"model {repository}: no such folder{nearby}, not in the hub's local cache, and {why}")


def _beside(place: str) -> str:
    """Return what does exist where a folder was looked for, as a hint."""
    parent = Path(place).expanduser().parent
    names = sorted(entry.name for entry in parent.iterdir() if entry.is_dir())[:5] if parent.is_dir() else []
    if place.count("/") == 0 or not names:
        return ""
    return f" ({parent} holds {', '.join(names)})"


def effective_dtype(spec: ModelSpec) -> str:
    """Return the number format of the weights: the one asked for, else the one the model's config names.

    Examples
    --------
    >>> effective_dtype(ModelSpec.of("hf", {"pretrained": "a/b", "dtype": "bfloat16"}))
    'bfloat16'
    """
    asked = str(spec.args.get("dtype", "auto")).removeprefix("torch.")
    if "pretrained" not in spec.args or asked != "auto":
        return asked if "dtype" in spec.args or "pretrained" in spec.args else ""
    config = Path(str(spec.args["pretrained"])).expanduser() / "config.json"
    with suppress(OSError, ValueError):
        stored = json.loads(config.read_text(encoding="utf-8"))
        return str(stored.get("dtype") or stored.get("torch_dtype") or asked)
    return asked
