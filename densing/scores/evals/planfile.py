"""A plan as a TOML file, or as the JSON handed to a worker: every key checked, every message names file and key.

::

    tasks = ["arc_easy", { name = "hellaswag", num_fewshot = 10 }]
    limit = 200

    [[models]]
    model_args = { pretrained = "models/a", dtype = "float32" }

    [[models]]
    name = "b, chat"
    model_args = "pretrained=models/b"
    apply_chat_template = true
    batch_size = 8
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from densing.core import InputError, read_text
from densing.scores.evals.pairs import parse_pairs
from densing.scores.evals.plan import (
    LOADING_NAMES,
    SETTING_NAMES,
    Loading,
    ModelSpec,
    Plan,
    Settings,
    TaskSpec,
    known,
    seeds,
)

MODEL_KEYS = ("name", "model", "model_args", "caveats", "tokens", *SETTING_NAMES, *LOADING_NAMES)
TASK_KEYS = ("name", *SETTING_NAMES)
PLAN_KEYS = ("models", "tasks", "include_path", "metadata", *SETTING_NAMES, *LOADING_NAMES)
CODE_FLAGS = ("trust_remote_code", "confirm_run_unsafe_code")


def read_plan(path: Path) -> dict[str, Any]:
    """Read a plan's content from TOML, or from JSON when the name ends so; :func:`plan_of` checks it.

    Raises
    ------
    InputError
        When the file cannot be read or is no TOML; the message has the line.
    """
    text = read_text(path, str(path))
    if path.suffix == ".json":
        from densing.scores.evals.disk import parse_json

        data = parse_json(text, str(path))
        if not isinstance(data, dict):
            raise InputError(f"{path}: a plan is an object with models and tasks")
        return data
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not TOML ({error}); see `densing eval --help` for an example") from error


def plan_of(data: Mapping[str, Any], where: str, **flags: bool) -> Plan:
    """Build a plan from a file's content.

    Parameters
    ----------
    data : mapping
        Keys ``models``, ``tasks`` and settings.
    where : str
        The file, for messages.
    **flags : bool
        ``trust_remote_code`` and ``confirm_run_unsafe_code``; they never come from a file.

    Raises
    ------
    InputError
        When a key is unknown, or a value is of the wrong kind.

    Examples
    --------
    >>> plan = plan_of({"tasks": ["piqa"], "models": [{"model_args": "pretrained=models/a"}]}, "plan.toml")
    >>> plan.models[0].args, plan.tasks[0].name
    ({'pretrained': 'models/a'}, 'piqa')
    >>> plan_of({"tasks": ["piqa"], "modles": []}, "plan.toml")
    Traceback (most recent call last):
        ...
    densing.core.errors.InputError: plan.toml: unknown key 'modles'; did you mean 'models'? (known: ...
    """
    for key in data:
        if key in CODE_FLAGS:
            raise InputError(f"{where}: {key} runs foreign code; give it on the command line as --{key}, not in a file")
        known(key, PLAN_KEYS, where)
    models = [_model(entry, f"{where}: models[{n}]") for n, entry in enumerate(_list(data, "models", where))]
    tasks = [_task(entry, f"{where}: tasks[{n}]") for n, entry in enumerate(_list(data, "tasks", where))]
    try:
        return Plan(
            tuple(models),
            tuple(tasks),
            Settings(**values(data, SETTING_NAMES, where)),
            Loading(**values(data, LOADING_NAMES, where)),
            tuple(_paths(data.get("include_path", []), where)),
            _table(data.get("metadata", {}), f"{where}: metadata"),
            **flags,
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _list(data: Mapping[str, Any], key: str, where: str) -> list[Any]:
    found = data.get(key, [])
    if not isinstance(found, list):
        raise InputError(f"{where}: {key} must be a list; write {key} = [...] or [[{key}]]")
    return found


def _model(entry: Any, where: str) -> ModelSpec:
    if isinstance(entry, str):
        entry = {"model": entry}
    entry = _table(entry, where)
    for key in entry:
        known(key, MODEL_KEYS, where)
    args = entry.get("model_args", {})
    args = (
        parse_pairs([args], f"{where}: model_args") if isinstance(args, str) else _table(args, f"{where}: model_args")
    )
    model, name = _text(entry.get("model", "hf"), f"{where}: model"), entry.get("name")
    spec = resolve_model(model, args, name if name is None else _text(name, f"{where}: name"))
    caveats = (*spec.caveats, *(str(caveat) for caveat in entry.get("caveats", ())))
    overrides = values(entry, (*SETTING_NAMES, *LOADING_NAMES), where)
    tokens = _number(entry["tokens"], f"{where}: tokens") if "tokens" in entry else spec.tokens
    return ModelSpec(spec.name, spec.type, spec.args, overrides, tuple(dict.fromkeys(caveats)), tokens)


def resolve_model(model: str, args: Mapping[str, Any], name: str | None = None) -> ModelSpec:
    """Return a model by lm-eval type and arguments, or by the name of one that an installed package carries."""
    from densing.scores.evals import bundled

    found = bundled.resolve(model)
    if found is None:
        return ModelSpec.of(model, args, name)
    type_, own = found
    return ModelSpec(name or model, type_, {**own, **args}, {}, bundled.caveats(model), bundled.tokens(model))


def _task(entry: Any, where: str) -> TaskSpec:
    if isinstance(entry, str):
        return TaskSpec(entry)
    entry = _table(entry, where)
    for key in entry:
        known(key, TASK_KEYS, where)
    if "name" not in entry:
        raise InputError(f'{where}: name is missing; write name = "..."')
    return TaskSpec(_text(entry["name"], f"{where}: name"), values(entry, SETTING_NAMES, where))


def values(data: Mapping[str, Any], names: tuple[str, ...], where: str) -> dict[str, Any]:
    """Return the settings among a table's keys, each checked and converted."""
    return {name: _READERS[name](data[name], f"{where}: {name}") for name in names if name in data}


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: {str(value)[:60]!r} is no table; write {{ key = value }}")
    return dict(value)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: {str(value)[:60]!r} is no text; put it in quotes")
    return value


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{where}: {str(value)[:60]!r} is neither true nor false")
    return value


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{where}: {str(value)[:60]!r} is no whole number")
    return value


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{where}: {str(value)[:60]!r} is no number")
    return float(value)


def _samples(value: Any, where: str) -> dict[str, tuple[int, ...]]:
    table = _table(value, where)
    if not all(isinstance(ids, list | tuple) and ids for ids in table.values()):
        raise InputError(f"{where}: expected document numbers by task, e.g. {{ piqa = [0, 1, 2] }}")
    return {task: tuple(sorted({_whole(n, f"{where}.{task}") for n in ids})) for task, ids in table.items()}


def _options(value: Any, where: str) -> dict[str, Any]:
    return parse_pairs([value], where) if isinstance(value, str) else _table(value, where)


def _batch(value: Any, where: str) -> str:
    text = str(value)
    if isinstance(value, bool) or not (text.partition(":")[0] == "auto" or (text.isdecimal() and int(text) > 0)):
        raise InputError(f"{where}: {text[:60]!r} is neither a number above 0 nor auto or auto:N")
    return text


def _paths(value: Any, where: str) -> list[str]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(path, str) for path in found):
        raise InputError(f"{where}: include_path must be a folder or a list of folders")
    return found


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "num_fewshot": _whole,
    "limit": _number,
    "samples": _samples,
    "seed": lambda value, where: seeds(value),
    "gen_kwargs": _options,
    "apply_chat_template": lambda value, where: value if isinstance(value, bool) else _text(value, where),
    "fewshot_as_multiturn": _flag,
    "system_instruction": _text,
    "predict_only": _flag,
    "bootstrap_iters": _whole,
    "batch_size": _batch,
    "max_batch_size": _whole,
    "device": _text,
}
