"""What to evaluate: models × tasks under settings, with overrides per model and per task."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from densing.core import InputError, UnknownNameError

# lm-eval's own: python, numpy, torch, few-shot sampling.
SEEDS = (0, 1234, 1234, 1234)


@dataclass(frozen=True)
class Settings:
    """Settings of one unit, named and defaulted as lm-eval's flags.

    Parameters
    ----------
    num_fewshot : int, optional
        Examples in the prompt; the task's own number when left out.
    limit : float, optional
        First documents to evaluate: a number, or a share below 1.
    samples : mapping of str to tuple of int, optional
        Documents to evaluate by task; excludes ``limit``.
    seed : tuple of four
        Seeds of Python, NumPy, torch and few-shot sampling; None leaves one unset.
    gen_kwargs : mapping
        Generation options over the task's own.
    apply_chat_template : bool or str
        The model's chat template, or one by name.
    fewshot_as_multiturn : bool, optional
        Examples as turns of the chat; true by default with a chat template.
    system_instruction : str, optional
        System prompt.
    predict_only : bool
        Store answers without metrics.
    bootstrap_iters : int
        Resamples for the standard error of metrics that have no closed form.
    """

    num_fewshot: int | None = None
    limit: float | None = None
    samples: Mapping[str, tuple[int, ...]] | None = None
    seed: tuple[int | None, ...] = SEEDS
    gen_kwargs: Mapping[str, Any] = field(default_factory=dict)
    apply_chat_template: bool | str = False
    fewshot_as_multiturn: bool | None = None
    system_instruction: str | None = None
    predict_only: bool = False
    bootstrap_iters: int = 100_000

    def __post_init__(self) -> None:
        """Refuse what lm-eval refuses, before anything is loaded."""
        if self.limit is not None and self.samples:
            raise InputError("limit and samples exclude each other; drop one")
        if self.limit is not None and not self.limit > 0:
            raise InputError(f"limit {self.limit:g} leaves nothing to evaluate; drop it to evaluate everything")
        if self.num_fewshot is not None and self.num_fewshot < 0:
            raise InputError(f"num_fewshot {self.num_fewshot} is below 0")
        if self.fewshot_as_multiturn and not self.apply_chat_template:
            raise InputError("fewshot_as_multiturn needs apply_chat_template; add it or drop the other")

    @property
    def multiturn(self) -> bool | None:
        """What lm-eval's command line makes of ``fewshot_as_multiturn``."""
        if self.fewshot_as_multiturn is None and self.apply_chat_template:
            return True
        return self.fewshot_as_multiturn


@dataclass(frozen=True)
class Loading:
    """How a model is loaded and fed; recorded, but no part of what makes two evaluations the same."""

    batch_size: str = "1"
    max_batch_size: int | None = None
    device: str | None = None


SETTING_NAMES = tuple(entry.name for entry in dataclasses.fields(Settings))
LOADING_NAMES = tuple(entry.name for entry in dataclasses.fields(Loading))


@dataclass(frozen=True)
class ModelSpec:
    """One model: lm-eval's type and arguments under a name for people.

    Parameters
    ----------
    name : str
        For people, folders and tables.
    type : str
        lm-eval's model type.
    args : mapping
        lm-eval's model arguments.
    overrides : mapping
        Settings and loading options of this model.
    caveats : tuple of str
        What a reader of its numbers must know.
    tokens : float, optional
        Training tokens, a count.

    Examples
    --------
    >>> ModelSpec.of("hf", {"pretrained": "/data/models/tiny/"}).name
    'tiny'
    """

    name: str
    type: str
    args: Mapping[str, Any]
    overrides: Mapping[str, Any] = field(default_factory=dict)
    caveats: tuple[str, ...] = ()
    tokens: float | None = None

    @classmethod
    def of(
        cls, type_: str, args: Mapping[str, Any], name: str | None = None, overrides: Mapping[str, Any] | None = None
    ) -> ModelSpec:
        """Return a model, named after its path or hub name unless a name is given."""
        return cls(name or default_name(type_, args), type_, dict(args), dict(overrides or {}))


@dataclass(frozen=True)
class TaskSpec:
    """One requested task, group, tag, pattern or YAML file."""

    name: str
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Models × tasks. A task's override beats a model's, which beats the plan's.

    Examples
    --------
    >>> plan = Plan((ModelSpec.of("hf", {"pretrained": "a"}),), (TaskSpec("piqa", {"num_fewshot": 5}), TaskSpec("arc")),
    ...             Settings(limit=10))
    >>> plan.settings_for(plan.models[0], plan.tasks[0])  # doctest: +ELLIPSIS
    Settings(num_fewshot=5, limit=10, ...)
    """

    models: tuple[ModelSpec, ...]
    tasks: tuple[TaskSpec, ...]
    settings: Settings = Settings()
    loading: Loading = Loading()
    include_path: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    trust_remote_code: bool = False
    confirm_run_unsafe_code: bool = False

    def __post_init__(self) -> None:
        """Refuse an empty plan, a name that stands for two models, and settings that no unit could have."""
        if not self.models or not self.tasks:
            missing = "model" if not self.models else "task"
            raise InputError(f"no {missing} to evaluate; name one with --{missing if missing == 'model' else 'tasks'}")
        for what, names in (("model", [m.name for m in self.models]), ("task", [t.name for t in self.tasks])):
            repeated = {name for name in names if names.count(name) > 1}
            if repeated:
                raise InputError(f"{what} {sorted(repeated)[0]!r} is named twice in one plan; give each its own name")
        for model in self.models:
            self.loading_for(model)
            for task in self.tasks:
                self.settings_for(model, task)

    def settings_for(self, model: ModelSpec, task: TaskSpec) -> Settings:
        """Return the settings of one unit."""
        own = {name: value for name, value in model.overrides.items() if name in SETTING_NAMES}
        return dataclasses.replace(self.settings, **{**own, **task.overrides})

    def loading_for(self, model: ModelSpec) -> Loading:
        """Return how one model is loaded."""
        own = {name: value for name, value in model.overrides.items() if name in LOADING_NAMES}
        return dataclasses.replace(self.loading, **own)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data that :func:`plan_of` reads, without the code flags."""
        models = [
            {"name": m.name, "model": m.type, "model_args": dict(m.args), **_about(m), **m.overrides}
            for m in self.models
        ]
        tasks = [{"name": t.name, **t.overrides} for t in self.tasks]
        flat = {**_filled(self.settings), **_filled(self.loading)}
        paths = {"include_path": list(self.include_path), "metadata": dict(self.metadata)}
        return plain({"models": models, "tasks": tasks, **flat, **{k: v for k, v in paths.items() if v}})


def _about(model: ModelSpec) -> dict[str, Any]:
    return {
        **({"caveats": list(model.caveats)} if model.caveats else {}),
        **({"tokens": model.tokens} if model.tokens is not None else {}),
    }


def _filled(part: Settings | Loading) -> dict[str, Any]:
    return {name: value for name, value in vars(part).items() if value is not None and value != {}}


def plain(value: Any) -> Any:
    """Return data as JSON says it: lists and plain mappings."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def default_name(type_: str, args: Mapping[str, Any]) -> str:
    """Return the name people know a model by.

    Examples
    --------
    >>> default_name("hf", {"pretrained": "EleutherAI/pythia-70m"}), default_name("dummy", {})
    ('EleutherAI/pythia-70m', 'dummy')
    """
    for key in ("peft", "delta", "pretrained", "model", "path", "engine"):
        value = str(args.get(key) or "").rstrip("/")
        if value:
            return Path(value).name if Path(value).exists() or value.count("/") != 1 else value
    return type_


def seeds(value: Any) -> tuple[int | None, ...]:
    """Return four seeds from one, three or four numbers (or None), or from ``"0,None,1"`` as lm-eval's flag.

    Raises
    ------
    InputError
        When it is neither.

    Examples
    --------
    >>> seeds("42"), seeds([1, 2, 3])
    ((42, 42, 42, 42), (1, 2, 3, 1234))
    """
    parts = value.split(",") if isinstance(value, str) else value
    parts = parts if isinstance(parts, list | tuple) else [parts]
    try:
        found = tuple(None if str(part).strip().lower() == "none" else int(part) for part in parts)
    except (TypeError, ValueError):
        found = ()
    if len(found) not in (1, 3, 4):
        raise InputError(f"seed {value!r}: expected one number, or four (python, numpy, torch, few-shot) with commas")
    return found * 4 if len(found) == 1 else found + SEEDS[len(found) :]


def known(name: str, names: Iterable[str], where: str) -> str:
    """Return a key of a plan that exists.

    Raises
    ------
    InputError
        When it does not; the message names file, key and the nearest that does.
    """
    choices = tuple(names)
    if name in choices:
        return name
    raise InputError(f"{where}: {UnknownNameError('key', name, choices)}")
