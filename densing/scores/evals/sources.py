"""Where tasks come from: lm-eval's own, a folder of the user's, or a suite of this package."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from densing.core import InputError, UnknownNameError
from densing.scores.evals.plan import Plan, TaskSpec

# Any word of a task file might be a task's name; those behind `task:`, `group:` and `tag:` mostly are.
WORD = re.compile(rb"[^\s\"'\[\]{},#]+")
NAMED = re.compile(rb"^(?:task|group|tag):[ \t]*([^\s#\[]+)", re.M)
# Suites that the package brings, by the beginning of their tasks' names.
SUITES = {"olmo_ladder": "olmo-ladder"}


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

    @classmethod
    def of(cls, plan: Plan) -> TaskSource:
        """Return the source for a plan: its folders and the suites it names."""
        return cls(tuple(include_paths(plan)))

    def manager(self, metadata: Mapping[str, Any]) -> Any:
        """Return lm-eval's task manager over this index, with one model's metadata."""
        from lm_eval.tasks._factory import TaskFactory

        manager = copy.copy(self.index())
        manager.metadata = dict(metadata)
        manager._factory = TaskFactory(meta=dict(metadata))
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
        raise UnknownNameError("task", min(unseen), known)

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
            raise UnknownNameError("task", name, index.all_tasks)
        return [member for match in matches for member in self._members(match)]

    def load(self, name: str, metadata: Mapping[str, Any]) -> Any:
        """Return lm-eval's task dictionary for one name.

        Raises
        ------
        KeyError, ValueError, ...
            What lm-eval raises when the task or its data cannot be loaded.
        """
        try:
            return self.manager(metadata).load([self.spec(name)])
        except KeyError:
            # A group of the user's may list tasks of lm-eval's own.
            if self._complete:
                raise
        self.index(complete=True)
        return self.manager(metadata).load([self.spec(name)])

    def spec(self, name: str) -> Any:
        """Return a name as lm-eval's loader takes it: itself, or the content of its YAML file."""
        if not is_file(name):
            return name
        from lm_eval.tasks._yaml_loader import load_yaml

        return load_yaml(name, resolve_func=True)


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
    densing.core.errors.UnknownNameError: unknown suite 'olmo-lader'; did you mean 'olmo-ladder'? (known: olmo-ladder)
    """
    if name not in SUITES.values():
        raise UnknownNameError("suite", name, SUITES.values())
    return Path(__file__).parent / "tasks" / name
