"""What makes two evaluations the same one: model, task and settings, each by content, under one digest."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import math
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from densing.core import InputError, strip_secrets
from densing.scores.evals.plan import ModelSpec, Settings, json_like
from densing.scores.evals.served import UNTRANSLATED

# Modules whose functions the task files of this package's suites name.
SUITE_MODULES = "densing.scores.evals.tasks."
# Long enough to read, short enough that model, task and digest stay below the 255 bytes of a file name.
NAME_LENGTH = 80
DIGEST8 = 8
# These say where documents come from; the documents themselves are hashed. Shots are a setting of the unit.
LOCATION = frozenset({"dataset_path", "dataset_name", "dataset_kwargs", "num_fewshot", "metadata"})
# Arguments that say where and how fast, not what.
PLACEMENT = frozenset({
    "device", "batch_size", "max_batch_size", "parallelize", "device_map", "max_memory_per_gpu", "max_cpu_memory",
    "offload_folder", "num_concurrent", "max_retries", "timeout", "tensor_parallel_size", "data_parallel_size",
    "gpu_memory_utilization", "pipeline_parallel_size", "swap_space", "tp_plan", "verify_certificate",
    "trust_remote_code",
})  # fmt: skip
PATH_ARGUMENTS = ("pretrained", "tokenizer", "peft", "delta", "translators", "adapter")
DATA_SUFFIXES = frozenset({
    ".json", ".safetensors", ".bin", ".pt", ".pth", ".model", ".txt", ".jinja", ".py", ".gguf", ".tiktoken", ".bpe",
    ".spm", ".vocab",
})  # fmt: skip
# What describes a model, or goes on training it, does not change it.
IGNORED = ("densing.json", "training_args", "trainer_state", "optimizer", "scheduler", "rng_state", "scaler")
BIG = 32 * 1024 * 1024


# One unit of work.


@dataclass(frozen=True)
class UnitKey:
    """Identity of one unit of work: one model on one requested task under one set of settings.

    Parameters
    ----------
    model : mapping
        ``{"type", "args", "revision", "dtype"}`` without secrets; ``revision`` is a hash of the weights or a commit.
    task : mapping
        ``{"name", "version", "hash"}``; the hash covers configuration and documents.
    settings : mapping
        Everything else that can change a number: shots, seeds, limit, generation options, chat template.
    label : str
        Name of the model for people and folders; not part of the digest.

    Raises
    ------
    InputError
        When a part holds something that JSON cannot say.

    Examples
    --------
    >>> key = UnitKey({"type": "hf"}, {"name": "piqa"}, {"limit": 40}, "models/tiny")
    >>> key.folder == f"models-tiny__piqa__{key.digest[:8]}"
    True
    >>> key.digest == UnitKey({"type": "hf"}, {"name": "piqa"}, {"limit": 40.0}, "another name").digest
    True
    """

    model: Mapping[str, Any]
    task: Mapping[str, Any]
    settings: Mapping[str, Any]
    label: str

    def __post_init__(self) -> None:
        """Check at once that the key has a digest."""
        _ = self.digest

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON of model, task and settings."""
        parts = {"model": self.model, "task": self.task, "settings": self.settings}
        return hashlib.sha256(canonical_json(parts).encode("ascii")).hexdigest()

    @property
    def model_digest(self) -> str:
        """SHA-256 of the model's part alone: two models of one label differ in it."""
        return hashlib.sha256(canonical_json(self.model).encode("ascii")).hexdigest()

    @property
    def task_name(self) -> str:
        """Name of the requested task or group."""
        return str(self.task.get("name", ""))

    @property
    def folder(self) -> str:
        """Name of the unit's folder: readable, safe on every file system, told apart by the digest."""
        return f"{safe_name(self.label)}__{safe_name(self.task_name)}__{self.digest[:DIGEST8]}"

    def to_dict(self) -> dict[str, Any]:
        """Return the key as plain data."""
        parts = {"model": self.model, "task": self.task, "settings": self.settings, "label": self.label}
        return {name: _canonical(part) for name, part in parts.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> UnitKey:
        """Rebuild a key written by :meth:`to_dict`.

        Raises
        ------
        InputError
            When a part is missing or of another type.
        """
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError:
            raise InputError("a unit's key needs mappings model, task and settings, and a text label") from None


def canonical_json(value: Any) -> str:
    """Return JSON that is the same text for the same content: sorted keys, ASCII, 40.0 written as 40.

    Examples
    --------
    >>> canonical_json({"b": 40.0, "a": (1, None)})
    '{"a":[1,null],"b":40}'
    """
    return json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _canonical(value: Any) -> Any:
    """Return plain data of which equal content is equal; refuse what JSON cannot say."""
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        # lm-eval's command line says limit 40.0 where its API says 40; they are one setting.
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    raise InputError(
        f"{str(value)[:60]!r} ({type(value).__name__}) cannot be part of a unit's key; pass plain JSON data"
    )


def safe_name(text: str) -> str:
    """Return a name for a file or folder: ASCII letters, digits, ``.``, ``_``, ``-``; never empty, hidden or a path.

    Examples
    --------
    >>> safe_name("../../etc/passwd"), safe_name("modèle 7B"), safe_name("")
    ('etc-passwd', 'modele-7B', 'unnamed')
    """
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    cleaned = re.sub(r"-*\.\.+-*|[^A-Za-z0-9._-]+", "-", ascii_text)
    return cleaned[:NAME_LENGTH].strip("-.") or "unnamed"


# Models, by the content of their files.


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
        if name not in args or (name == "translators" and args[name] == UNTRANSLATED):
            continue
        path = str(args[name])
        if name == "pretrained" and args.get("subfolder") and Path(path).expanduser().is_dir():
            path = str(Path(path) / str(args["subfolder"]))
        content, fixed = content_of(path, gguf if name == "pretrained" else None), True
        if content is None and name == "adapter":
            raise InputError(f"adapter {path}: no such folder; run densing tune --out {path}")
        if content is None:
            content, fixed = hub_commit(str(args[name]), str(args.get("revision", "main")))
        else:
            # Where a folder lies is not part of what it holds.
            args[name] = content
        if name == "pretrained":
            revision, pinned = content, fixed
    public = json_like(strip_secrets({name: value for name, value in args.items() if name != "dtype"}))
    return ModelIdentity({"type": spec.type, "args": json.loads(json.dumps(public, default=str)),
                          "revision": revision, "dtype": effective_dtype(spec)}, pinned)  # fmt: skip


def content_of(name: str, gguf_file: str | None = None) -> str | None:
    """Return ``sha256:...`` over the model files of a local folder (or one file), or None when it is not local."""
    path = Path(name).expanduser()
    if path.is_dir() and gguf_file:
        files = [path / gguf_file]
    elif path.is_dir():
        data = (file for file in sorted(path.iterdir()) if file.is_file() and file.suffix in DATA_SUFFIXES)
        files = [file for file in data if not file.name.startswith((".", *IGNORED))]
    elif path.is_file():
        files = [path]
    else:
        return None
    missing = [str(file) for file in files if not file.is_file()]
    if missing or not files:
        problem = f"{missing[0]} is missing" if missing else "holds no file of a model (config.json, *.safetensors)"
        raise InputError(f"{name}: {problem}; check the path")
    lines = [f"{file.relative_to(path) if path.is_dir() else file.name}:{cached_digest(file)}" for file in files]
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
        raise InputError(f"model {repository}: no such file or folder{_neighbours(repository)}")
    pinned = len(revision) == 40 and all(sign in "0123456789abcdef" for sign in revision)
    try:
        from huggingface_hub import HfApi, constants, try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError
    except ImportError:
        return revision, pinned
    try:
        cached = try_to_load_from_cache(repository, "config.json", revision=revision)
    except HFValidationError as error:
        message = f"model {repository}: no such folder, and not a valid hub name: {error}"
        raise InputError(message) from None
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
                    f"model {repository}: no such folder{_neighbours(repository)}, and the hub has no model of that "
                    f"name at revision {revision} that you may read"
                ) from error
        except Exception as error:
            reason = f"the hub cannot be reached ({type(error).__name__}: {error})"
    else:
        reason = "the hub is switched off (HF_HUB_OFFLINE)"
    if known:
        return revision, pinned
    hint = _neighbours(repository)
    raise InputError(f"model {repository}: no such folder{hint}, not in the hub's local cache, and {reason}")


def _neighbours(path: str) -> str:
    """Return what does exist where a folder was looked for, as a hint."""
    parent = Path(path).expanduser().parent
    names = sorted(entry.name for entry in parent.iterdir() if entry.is_dir())[:5] if parent.is_dir() else []
    if path.count("/") == 0 or not names:
        return ""
    return f" ({parent} holds {', '.join(names)})"


def effective_dtype(spec: ModelSpec) -> str:
    """Return the number format of the weights: the one asked for, else the one the model's config names.

    Examples
    --------
    >>> effective_dtype(ModelSpec.of("hf", {"pretrained": "a/b", "dtype": "bfloat16"}))
    'bfloat16'
    """
    dtype = str(spec.args.get("dtype", "auto")).removeprefix("torch.")
    if "pretrained" not in spec.args or dtype != "auto":
        return dtype if "dtype" in spec.args or "pretrained" in spec.args else ""
    return stored_dtype(Path(str(spec.args["pretrained"])).expanduser()) or dtype


def stored_dtype(folder: Path) -> str:
    """Return the number format that the configuration in a model's folder names; empty where none does."""
    with suppress(OSError, ValueError):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return str(config.get("dtype") or config.get("torch_dtype") or "")
    return ""


# Tasks, by configuration, code and documents.


@dataclass(frozen=True)
class TaskIdentity:
    """One requested task or group as it would be evaluated.

    Parameters
    ----------
    name : str
        Name of the task or group.
    key : mapping
        ``name``, ``version`` and ``hash``: the task's part of a unit's key.
    shots : mapping of str to int
        Examples in the prompt, by member task.
    docs : mapping of str to int
        Documents to evaluate, by member task.
    requests : int
        Estimate of the model requests this takes, for progress.
    generates : bool
        Whether any member generates text.
    splits : frozenset of str
        Splits of the films that members ask about; empty where none asks about films.
    """

    name: str
    key: Mapping[str, Any]
    shots: Mapping[str, int]
    docs: Mapping[str, int]
    requests: int
    generates: bool
    splits: frozenset[str] = frozenset()


def identify_task(loaded: Mapping[str, Any], settings: Settings, metadata: Mapping[str, Any]) -> TaskIdentity:
    """Hash a loaded task or group: its configuration, the code behind it, and the documents it would ask.

    Parameters
    ----------
    loaded : mapping
        What lm-eval's ``TaskManager.load`` returns for one name.
    settings : Settings
        Shots, limit and samples choose the documents.
    metadata : mapping
        Metadata handed to the task manager (the model's arguments): no part of the task.

    Raises
    ------
    InputError
        When more shots are asked for than a task allows, which lm-eval would ignore.
    """
    tasks, groups = dict(loaded["tasks"]), dict(loaded.get("groups") or {})
    for label in map(str, (*tasks, *groups)):
        if not label.isprintable() or {"/", "\\"} & set(label):
            raise InputError(f"task {label!r}: its name becomes part of a file name; use letters and digits")
    members = {name: _member(task, settings, metadata) for name, task in sorted(tasks.items())}
    inner = {child for group in groups.values() for child in group.child_names}
    name = next((group for group in groups if group not in inner), None) or next(iter(members))
    described = {}
    for label, group in sorted(groups.items()):
        own = {k: v for k, v in (group.metadata or {}).items() if k not in metadata}
        described[label] = [sorted(group.child_names), _description(group.aggregate_metric_list), _description(own)]
    parts = {"members": {n: member.hash for n, member in members.items()}, "groups": described}
    versions = {member.version for member in members.values()}
    version = versions.pop() if len(versions) == 1 else ""
    return TaskIdentity(
        name,
        {"name": name, "version": str(version), "hash": _digest(parts)},
        {n: member.shots for n, member in members.items()},
        {n: member.docs for n, member in members.items()},
        sum(member.requests for member in members.values()),
        any(task.get_config("output_type") == "generate_until" for task in tasks.values()),
        frozenset(split for task in tasks.values() if (split := film_split(task))),
    )


def film_split(task: Any) -> str:
    """Return the split of the films that a task asks about; empty where it asks about something else."""
    maker = task.get_config("custom_dataset")
    if getattr(maker, "__module__", "") != f"{SUITE_MODULES}films":
        return ""
    return str((task.get_config("metadata") or {}).get("split", inspect.signature(maker).parameters["split"].default))


def of_one_model(loaded: Mapping[str, Any]) -> bool:
    """Whether a task's documents may depend on the model, whose arguments lm-eval hands to functions that make them."""
    for task in loaded["tasks"].values():
        maker = task.get_config("custom_dataset")
        bundled = str(getattr(maker, "__module__", "")).startswith(SUITE_MODULES)
        if not type(task).__module__.startswith("lm_eval.api.") or not (maker is None or bundled):
            return True
    return False


def unit_key(
    model: Mapping[str, Any], task: TaskIdentity, settings: Settings, metadata: Mapping[str, Any], label: str
) -> UnitKey:
    """Return the key of a unit: only what can change a number, so that equal work has equal keys."""
    shots = set(task.shots.values())
    entries = {
        "num_fewshot": shots.pop() if len(shots) == 1 else dict(task.shots),
        "seed": list(settings.seed),
        "limit": settings.limit,
        "samples": {n: list(ids) for n, ids in (settings.samples or {}).items() if n in task.docs},
        "gen_kwargs": dict(settings.gen_kwargs) if task.generates else {},
        "chat_template": settings.apply_chat_template,
        "fewshot_as_multiturn": settings.multiturn,
        "system_instruction": settings.system_instruction,
        "predict_only": settings.predict_only,
        "bootstrap_iters": settings.bootstrap_iters,
        # Where the documents lie is not what they say: those are hashed.
        "metadata": {name: value for name, value in metadata.items() if name != "densing_law"},
    }
    changed = {name: value for name, value in entries.items() if value not in (None, {}, False)}
    return UnitKey(model, task.key, json_like(changed), label)


@dataclass(frozen=True)
class _Member:
    """One task of those requested, as :class:`TaskIdentity`."""

    hash: str
    version: Any
    shots: int
    docs: int
    requests: int


def _member(task: Any, settings: Settings, metadata: Mapping[str, Any]) -> _Member:
    from lm_eval.evaluator_utils import get_sample_size

    shots = effective_shots(task, settings.num_fewshot)
    ids = list((settings.samples or {}).get(task.task_name, ())) or None
    if ids and not 0 <= min(ids) <= max(ids) < len(task.eval_docs):
        raise InputError(f"task {task.task_name}: samples {min(ids)} to {max(ids)}, but documents end at "
                         f"{len(task.eval_docs) - 1}")  # fmt: skip
    limit = get_sample_size(task, settings.limit)
    docs = [doc for _, doc in task.doc_iterator(rank=0, limit=limit, world_size=1, samples=ids)]
    if not docs:
        raise InputError(f"task {task.task_name}: no document to evaluate; check its split and --limit")
    examples = task.fewshot_docs() if shots else None
    content = hashlib.sha256()
    for doc in (*docs, *(() if examples is None else examples)):
        content.update(json.dumps(doc, sort_keys=True, ensure_ascii=True, default=_opaque).encode())
    fields = dataclasses.fields(task.config) if task.config is not None else ()
    config = {field.name: getattr(task.config, field.name) for field in fields}
    own = {k: v for k, v in (config.get("metadata") or {}).items() if k != "config_source" and k not in metadata}
    config = {name: value for name, value in config.items() if name not in LOCATION and value is not None}
    version = getattr(task, "VERSION", None)
    # lm-eval's own task classes are the harness, whose version the manifest records.
    code = [] if type(task).__module__.startswith("lm_eval.api.") else _code_of(type(task))
    parts = [_description({**config, "metadata": own}), code, str(version), content.hexdigest()]
    requests = len(docs) * _choices(task, docs[0])
    return _Member(_digest(parts), "" if version is None else version, shots, len(docs), requests)


def effective_shots(task: Any, num_fewshot: int | None) -> int:
    """Return the shots lm-eval will use.

    Raises
    ------
    InputError
        When the task pins 0 and others were asked for: lm-eval would only log that it ignores them.
    """
    own = task.get_config("num_fewshot")
    if num_fewshot is None:
        return int(own or 0)
    if own == 0 and num_fewshot != 0:
        raise InputError(
            f"task {task.task_name}: num_fewshot {num_fewshot} was requested, but the task pins num_fewshot 0 and "
            f"lm-eval would ignore {num_fewshot}; drop --num_fewshot for this task, or define a task without the pin"
        )
    return num_fewshot


def _choices(task: Any, doc: Any) -> int:
    """Return how many requests a document takes."""
    if task.get_config("output_type") != "multiple_choice":
        return int(task.get_config("repeats") or 1)
    try:
        text = task.doc_to_text(doc)
        return len(task.doc_to_choice(doc)) if not isinstance(text, int) else max(1, len(task.doc_to_choice(doc)))
    except Exception:  # a task's own code; the estimate is for the progress bar only
        return 1


def _description(value: Any) -> Any:
    """Return plain data that is the same in every process: functions by their code, never by their address."""
    if isinstance(value, Mapping):
        return {str(name): _description(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_description(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(str(_description(item)) for item in value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _description(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, functools.partial):
        return [_code_of(value.func), _description(value.args), _description(value.keywords)]
    if callable(value):
        return _code_of(value)
    state = sorted(getattr(value, "__dict__", {}).items())
    return [type(value).__qualname__, {name: _description(item) for name, item in state}]


def _code_of(thing: Callable[..., Any]) -> list[str]:
    """Return a function's name and what stands for its code: its whole file, for it may call its neighbours.

    The files of this package's suites move and are commented between releases; they say by ``REVISION`` which code
    theirs is, so that results stay valid as long as the code means the same.
    """
    name = f"{getattr(thing, '__qualname__', type(thing).__qualname__)}"
    target = inspect.unwrap(thing) if inspect.isroutine(thing) or inspect.isclass(thing) else type(thing)
    if str(getattr(target, "__module__", "")).startswith(SUITE_MODULES):
        return [name, str(sys.modules[target.__module__].REVISION)]
    try:
        source = inspect.getsourcefile(target)
    except TypeError:
        source = None
    return [name, file_digest(Path(source)) if source and Path(source).is_file() else ""]


def _opaque(value: Any) -> Any:
    """Return what stands in a document's digest for a value that JSON cannot say."""
    if isinstance(value, bytes | bytearray):
        return hashlib.sha256(bytes(value)).hexdigest()
    if hasattr(value, "tobytes"):  # arrays and images
        return [str(getattr(value, "mode", getattr(value, "dtype", ""))), hashlib.sha256(value.tobytes()).hexdigest()]
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, Iterable):
        return list(value)
    return f"{type(value).__qualname__}"


def _digest(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
