"""A run: its plan after the safety checks, its store, its index of tasks, what is to do, and what it tells."""

from __future__ import annotations

import dataclasses
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from densing.core import (
    DensingError,
    InputError,
    Note,
    UnavailableError,
    UnknownNameError,
    install_command,
    strip_secrets,
)
from densing.scores.evals.endpoints import server_failure
from densing.scores.evals.identity import (
    ModelIdentity,
    TaskIdentity,
    UnitKey,
    identify_model,
    identify_task,
    of_one_model,
    unit_key,
)
from densing.scores.evals.models import adapter_of, model_class, seed_all
from densing.scores.evals.plan import Loading, ModelSpec, Plan, Settings, TaskSpec
from densing.scores.evals.safety import check_model, check_tasks, version_notes
from densing.scores.evals.store import RunStore, Unit

ERROR_LENGTH = 1000
State = Literal["evaluated", "resumed", "skipped", "failed"]


@dataclass(frozen=True)
class UnitOutcome:
    """What became of one unit.

    Parameters
    ----------
    model, task, digest : str
        Which one; ``digest`` is empty when it failed before it could be identified.
    state : {"evaluated", "resumed", "skipped", "failed"}
        ``resumed``: a journal held some answers. ``skipped``: the store had the result.
    requests : int
        Requests the model answered now.
    error : str
        Why it failed.
    """

    model: str
    task: str
    digest: str
    state: State
    requests: int = 0
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; ``error`` only when there is one."""
        return {name: value for name, value in asdict(self).items() if name != "error" or value}


@dataclass(frozen=True)
class Work:
    """One unit to do: what was asked for, what it is, and where its result goes."""

    requested: TaskSpec
    identity: TaskIdentity
    settings: Settings
    key: UnitKey
    unit: Unit

    def outcome(self, state: State, requests: int = 0, error: str = "") -> UnitOutcome:
        """Return what became of this unit."""
        return UnitOutcome(self.key.label, self.identity.name, self.key.digest, state, requests, error)


@dataclass(frozen=True)
class ModelWork:
    """What one model has to do: its units, and those that failed before they could be identified."""

    spec: ModelSpec
    loading: Loading
    identity: ModelIdentity | None
    works: tuple[Work, ...]
    failures: tuple[UnitOutcome, ...] = ()

    def pending(self) -> list[Work]:
        """Return the units without a sound result, in the plan's order."""
        return [work for work in self.works if work.unit.status != "done"]


class Session:
    """What the units of a run share: the plan after its safety checks, the store and the index of tasks.

    Parameters
    ----------
    plan : Plan
        What to evaluate.
    folder : path
        The store.

    Raises
    ------
    InputError
        When a task or a model would run code that no flag allows.
    UnavailableError
        When lm-eval is not installed.
    """

    def __init__(self, plan: Plan, folder: Path) -> None:
        if find_spec("lm_eval") is None:
            raise UnavailableError(f"lm-eval is not installed; {install_command('evals')}")
        flags = {"trust_remote_code": plan.trust_remote_code}
        folders = include_paths(plan)
        check_tasks(
            folders,
            [task.name for task in plan.tasks],
            **flags,
            confirm_run_unsafe_code=plan.confirm_run_unsafe_code,
        )
        checked = (dataclasses.replace(m, args=check_model(m.type, m.args, **flags)) for m in plan.models)
        self.plan = dataclasses.replace(plan, models=tuple(checked))
        self.store = RunStore(folder)
        self.source = TaskSource(folders)
        self.notes = version_notes()
        self._tasks: list[TaskSpec] | None = None
        self._identities: dict[tuple[str, str], TaskIdentity] = {}

    @property
    def tasks(self) -> list[TaskSpec]:
        """The requested tasks, patterns and tags replaced by their members."""
        if self._tasks is None:
            self._tasks = self.source.expand(self.plan.tasks)
        return self._tasks

    def survey(self, index: int) -> ModelWork:
        """Return what one model of the plan has to do; nothing is evaluated and no model loaded."""
        spec = self.plan.models[index]
        loading = self.plan.loading_for(spec)
        try:
            model_class(spec)
            identity = identify_model(spec)
            adapter = adapter_of(spec, identity)
        except Exception as error:
            # As they were named: looking their members up would cost a model that is not there an index of all tasks.
            failures = [failed(spec.name, task.name, "", error) for task in self.plan.tasks]
            return ModelWork(spec, loading, None, (), tuple(failures))
        works, failures = [], []
        for task in self.tasks:
            try:
                settings = self.plan.settings_for(spec, task)
                request = (task.name, repr(settings))
                known = self._identities.get(request)
                if known is None:
                    metadata = self.plan.metadata_for(spec)
                    # Documents may be drawn; lm-eval seeds before it loads them.
                    seed_all(settings.seed)
                    loaded = self.source.load(task.name, metadata)
                    known = identify_task(loaded, settings, metadata)
                    if not of_one_model(loaded):
                        self._identities[request] = known
                if adapter is not None:
                    adapter.check_splits(known.splits)
                key = unit_key(identity.key, known, settings, self.plan.metadata, spec.name)
                works.append(Work(task, known, settings, key, self.store.unit(key)))
            except Exception as error:
                failures.append(failed(spec.name, task.name, "", error))
        return ModelWork(spec, loading, identity, tuple(works), tuple(failures))


def failed(model: str, task: str, digest: str, error: BaseException) -> UnitOutcome:
    """Return the outcome of a unit that raised; the traceback goes to the log."""
    traceback.print_exception(error)
    message = str(error).strip() or "no message"
    text = message if isinstance(error, DensingError) else server_failure(error) or f"{type(error).__name__}: {message}"
    if type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError):
        text += "; lower --batch_size or take a smaller dtype"
    return UnitOutcome(model, task, digest, "failed", error=str(strip_secrets(text))[:ERROR_LENGTH])


# Tasks by name.

# Any word of a task file might be a task's name; those behind `task:`, `group:` and `tag:` mostly are.
WORD = re.compile(rb"[^\s\"'\[\]{},#]+")
NAMED = re.compile(rb"^(?:task|group|tag):[ \t]*([^\s#\[]+)", re.M)
# Suites that the package brings, by the beginning of their tasks' names.
SUITES = {"olmo_ladder": "olmo-ladder", "lcbm_films": "lcbm-films", "densing_law": "densing-law"}


@dataclass
class TaskSource:
    """An index of tasks, built once: lm-eval's own 14,000 files are read only when a name needs them.

    Parameters
    ----------
    paths : sequence of str
        Folders of task files.
    """

    paths: Sequence[str]
    _index: Any = None
    _complete: bool = False

    def manager(self, metadata: Mapping[str, Any]) -> Any:
        """Return lm-eval's task manager over this index, with one model's metadata."""
        from lm_eval.tasks import TaskManager

        manager = TaskManager(include_defaults=False, metadata=dict(metadata))
        manager.task_index.update(self.index().task_index)
        return manager

    def index(self, *, complete: bool = False) -> Any:
        """Return the index: of the folders alone, as long as no name needs lm-eval's own tasks (``complete``)."""
        if self._index is None or (complete and not self._complete):
            from lm_eval.tasks import TaskManager

            self._complete = complete or not self.paths
            self._index = TaskManager(include_path=list(self.paths), include_defaults=self._complete)
        return self._index

    def expand(self, requested: Sequence[TaskSpec]) -> list[TaskSpec]:
        """Return the tasks and groups that were asked for: patterns and tags become their members, YAML files stay.

        Raises
        ------
        UnknownNameError
            When nothing has such a name.
        InputError
            When a path is no YAML file.
        """
        names = [spec.name for spec in requested if not is_file(spec.name)]
        if not self._complete:
            self._refuse_unknown(names)
        # A name of the user's folder hides lm-eval's own of that name, but a pattern may match more among those.
        if names and not self._complete and not all(name in self.index().all_tasks for name in names):
            self.index(complete=True)
        specs: dict[str, TaskSpec] = {}
        for spec in requested:
            for name in self._members(spec.name):
                specs.setdefault(name, TaskSpec(name, spec.overrides))
        return list(specs.values())

    def _refuse_unknown(self, names: Sequence[str]) -> None:
        """Refuse a name that stands in no task file: reading them as text takes a moment, indexing them a minute."""
        import lm_eval.tasks

        folders = [*self.paths, str(Path(lm_eval.tasks.__file__).parent)]
        unseen = {name for name in names if WORD.fullmatch(name.encode()) and not set(name) & set("*?")}
        if not unseen:
            return
        known: set[str] = set()
        for folder in folders:
            for file in Path(folder).rglob("*.y*ml"):
                text = file.read_bytes()
                unseen.difference_update(word.decode(errors="replace") for word in WORD.findall(text))
                if not unseen:
                    return
                known.update(name.decode(errors="replace").strip("\"'") for name in NAMED.findall(text))
        raise UnknownNameError("task", min(unseen), known | SUITES.keys())

    def _members(self, name: str) -> list[str]:
        if is_file(name):
            if not Path(name).is_file():
                raise InputError(f"--tasks {name}: no such file; name a task, a group or an existing YAML file")
            return [str(Path(name).absolute())]
        index = self.index()
        if name in index.all_tags:
            return sorted(index.task_index[name].tags) or [name]
        if name in index.all_tasks:
            return [name]
        matches = index.match_tasks([name])
        if not matches:
            raise UnknownNameError("task", name, (*index.all_tasks, *SUITES))
        return [member for match in matches for member in self._members(match)]

    def load(self, name: str, metadata: Mapping[str, Any]) -> Any:
        """Return lm-eval's task dictionary for one name.

        Raises
        ------
        KeyError, ValueError, ...
            What lm-eval raises when the task or its data cannot be loaded.
        """
        try:
            return self.manager(metadata).load([name])
        except KeyError:
            # A group of the user's may list tasks of lm-eval's own.
            if self._complete:
                raise
        self.index(complete=True)
        return self.manager(metadata).load([name])


def is_file(name: str) -> bool:
    """Whether a requested task is a YAML file."""
    return name.endswith((".yaml", ".yml"))


def include_paths(plan: Plan) -> list[str]:
    """Return the task folders of a plan: those asked for and those of the suites it names.

    Raises
    ------
    InputError
        When a folder does not exist.
    """
    for path in plan.include_path:
        if not Path(path).is_dir():
            raise InputError(f"--include_path {path}: no such folder; name one that holds task YAML files")
    suites = {suite for task in plan.tasks for prefix, suite in SUITES.items() if task.name.startswith(prefix)}
    return [*plan.include_path, *(str(suite_folder(suite)) for suite in sorted(suites))]


def suite_folder(name: str) -> Path:
    """Return the folder of a suite's task files, to hand to lm-eval as ``include_path``.

    Raises
    ------
    UnknownNameError
        When there is no such suite.

    Examples
    --------
    >>> suite_folder("olmo-ladder").name
    'olmo-ladder'
    >>> suite_folder("olmo-lader")
    Traceback (most recent call last):
        ...
    densing.core.errors.UnknownNameError: unknown suite 'olmo-lader'; did you mean 'olmo-ladder'? ...
    """
    if name not in SUITES.values():
        raise UnknownNameError("suite", name, SUITES.values())
    return Path(__file__).parent / "tasks" / name


# What a run tells.


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Parameters
    ----------
    model, task : str
        What is being evaluated; ``task`` is empty while a model is loaded.
    done, total : float
        Model requests over the whole plan; ``total`` is an estimate until the last unit has begun.
    units_done, units : int
        Finished units and all of them.
    """

    model: str
    task: str
    done: float
    total: float
    units_done: int
    units: int


OnProgress = Callable[[Progress], object]


def ignore(progress: Progress) -> None:
    """Listen to progress and do nothing."""


@dataclass(frozen=True)
class RunSummary:
    """How a run ended.

    Parameters
    ----------
    folder : path
        The store.
    units : tuple of UnitOutcome
        In the order of the plan.
    seconds : float
        Wall time.
    notes : tuple of Note
        Remarks on models and settings.
    """

    folder: Path
    units: tuple[UnitOutcome, ...]
    seconds: float
    notes: tuple[Note, ...] = ()

    @property
    def requests(self) -> int:
        """Requests the models answered in this run."""
        return sum(unit.requests for unit in self.units)

    @property
    def failed(self) -> tuple[UnitOutcome, ...]:
        """Units without a result."""
        return tuple(unit for unit in self.units if unit.state == "failed")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "run": str(self.folder),
            "units": [unit.to_dict() for unit in self.units],
            "seconds": self.seconds,
            "requests": self.requests,
            "notes": [note.to_dict() for note in self.notes],
        }
