"""What makes two evaluations the same one: the key of a unit, from configuration, code and documents."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from densing.core import InputError
from densing.scores.evals.disk import file_digest
from densing.scores.evals.plan import Settings, plain
from densing.scores.evals.unit import UnitKey

# These say where documents come from; the documents themselves are hashed. Shots are a setting of the unit.
LOCATION = frozenset({"dataset_path", "dataset_name", "dataset_kwargs", "num_fewshot", "metadata"})


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
    """

    name: str
    key: Mapping[str, Any]
    shots: Mapping[str, int]
    docs: Mapping[str, int]
    requests: int
    generates: bool


def identify_task(loaded: Mapping[str, Any], settings: Settings, given: Mapping[str, Any]) -> TaskIdentity:
    """Hash a loaded task or group: its configuration, the code behind it, and the documents it would ask.

    Parameters
    ----------
    loaded : mapping
        What lm-eval's ``TaskManager.load`` returns for one name.
    settings : Settings
        Shots, limit and samples choose the documents.
    given : mapping
        Metadata handed to the task manager (the model's arguments): no part of the task.

    Raises
    ------
    InputError
        When more shots are asked for than a task allows, which lm-eval would ignore.
    """
    tasks, groups = dict(loaded["tasks"]), dict(loaded.get("groups") or {})
    for told in (*tasks, *groups):
        if not str(told).isprintable() or {"/", "\\"} & set(str(told)):
            raise InputError(f"task {str(told)!r}: its name would be part of a file's name; take letters and digits")
    members = {name: _member(task, settings, given) for name, task in sorted(tasks.items())}
    inner = {child for group in groups.values() for child in group.child_names}
    name = next((group for group in groups if group not in inner), None) or next(iter(members))
    parts = {"members": {n: m["hash"] for n, m in members.items()}, "groups": _groups(groups, given)}
    versions = {m["version"] for m in members.values()}
    version = versions.pop() if len(versions) == 1 else ""
    return TaskIdentity(
        name,
        {"name": name, "version": str(version), "hash": _digest(parts)},
        {n: m["shots"] for n, m in members.items()},
        {n: m["docs"] for n, m in members.items()},
        sum(m["requests"] for m in members.values()),
        any(task.get_config("output_type") == "generate_until" for task in tasks.values()),
    )


def of_one_model(loaded: Mapping[str, Any]) -> bool:
    """Whether a task's documents may depend on the model, whose arguments lm-eval hands to functions that make them."""
    for task in loaded["tasks"].values():
        maker = task.get_config("custom_dataset")
        ours = str(getattr(maker, "__module__", "")).startswith("densing.scores.evals.tasks")
        if not type(task).__module__.startswith("lm_eval.api.") or not (maker is None or ours):
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
        "metadata": dict(metadata),
    }
    asked = {name: value for name, value in entries.items() if value not in (None, {}, False)}
    return UnitKey(model, task.key, plain(asked), label)


def _member(task: Any, settings: Settings, given: Mapping[str, Any]) -> dict[str, Any]:
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
    seen = hashlib.sha256()
    for doc in (*docs, *(_examples(task) if shots else ())):
        seen.update(_json(doc).encode())
    version = getattr(task, "VERSION", None)
    # lm-eval's own task classes are the harness, whose version the manifest records.
    code = [] if type(task).__module__.startswith("lm_eval.api.") else _code_of(type(task))
    parts = [_description(_config(task, given)), code, str(version), seen.hexdigest()]
    return {"hash": _digest(parts), "version": "" if version is None else version, "shots": shots,
            "docs": len(docs), "requests": len(docs) * _choices(task, docs[0])}  # fmt: skip


def effective_shots(task: Any, asked: int | None) -> int:
    """Return the shots lm-eval will use.

    Raises
    ------
    InputError
        When the task pins 0 and others were asked for: lm-eval would only log that it ignores them.
    """
    own = task.get_config("num_fewshot")
    if asked is None:
        return int(own or 0)
    if own == 0 and asked != 0:
        raise InputError(
            f"task {task.task_name}: num_fewshot {asked} was asked for, but the task pins num_fewshot 0 and lm-eval "
            f"would ignore {asked}; drop --num_fewshot for this task, or make a task without the pin"
        )
    return asked


def _examples(task: Any) -> Iterable[Any]:
    docs = task.fewshot_docs()
    return docs if docs is not None else ()


def _choices(task: Any, doc: Any) -> int:
    if task.get_config("output_type") != "multiple_choice":
        return int(task.get_config("repeats") or 1)
    try:
        text = task.doc_to_text(doc)
        return len(task.doc_to_choice(doc)) if not isinstance(text, int) else max(1, len(task.doc_to_choice(doc)))
    except Exception:  # a task's own code; the estimate is for the progress bar only
        return 1


def _config(task: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    config = task.config
    entries = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)} if config is not None else {}
    own = {k: v for k, v in (entries.get("metadata") or {}).items() if k != "config_source" and k not in given}
    kept = {name: value for name, value in entries.items() if name not in LOCATION and value is not None}
    return {**kept, "metadata": own}


def _groups(groups: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    described = {}
    for name, group in sorted(groups.items()):
        own = {k: v for k, v in (group.metadata or {}).items() if k not in given}
        described[name] = [sorted(group.child_names), _description(group.aggregate_metric_list), _description(own)]
    return described


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
    # The whole file: a function may call its neighbours.
    name = f"{getattr(thing, '__qualname__', type(thing).__qualname__)}"
    target = inspect.unwrap(thing) if inspect.isroutine(thing) or inspect.isclass(thing) else type(thing)
    try:
        source = inspect.getsourcefile(target)
    except TypeError:
        source = None
    return [name, file_digest(Path(source)) if source and Path(source).is_file() else ""]


def _json(doc: Any) -> str:
    return json.dumps(doc, sort_keys=True, ensure_ascii=True, default=_opaque)


def _opaque(value: Any) -> Any:
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
