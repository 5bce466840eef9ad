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
SUITE_PREFIXES = {"olmo_ladder": "olmo-ladder"}


@dataclass
class TaskSource:
    """An index of tasks, built once: lm-eval's own 14,000 files are read only when a name needs them.

    Parameters
    ----------
    paths : sequence of str
        Folders of task files.
    """

    paths: Sequence[str]
    _manager: Any = None
    _complete: bool = False

    @classmethod
    def of(cls, plan: Plan) -> TaskSource:
        """Return the source for a plan: its folders and the suites it names."""
        return cls(tuple(include_paths(plan)))

    def manager(self, metadata: Mapping[str, Any]) -> Any:
        """Return lm-eval's task manager over this index, with one model's metadata."""
        from lm_eval.tasks._factory import TaskFactory

        made = copy.copy(self._index())
        made.metadata = dict(metadata)
        made._factory = TaskFactory(meta=dict(metadata))
        return made

    def _index(self) -> Any:
        if self._manager is None:
            self._read(complete=not self.paths)
        return self._manager

    def _read(self, *, complete: bool) -> None:
        from lm_eval.tasks import TaskManager

        self._manager = TaskManager(include_path=list(self.paths), include_defaults=complete)
        self._complete = complete

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
        if names and not self._complete and not all(self._resolves_here(name) for name in names):
            self._read(complete=True)
        found: dict[str, TaskSpec] = {}
        for spec in requested:
            for name in self._members(spec.name):
                found.setdefault(name, TaskSpec(name, spec.overrides))
        return list(found.values())

    def _refuse_unknown(self, names: Sequence[str]) -> None:
        """Refuse a name that stands in no task file: reading them as text takes a moment, indexing them a minute."""
        import lm_eval.tasks

        folders = [*self.paths, str(Path(lm_eval.tasks.__file__).parent)]
        wanted = {name for name in names if WORD.fullmatch(name.encode()) and not set(name) & set("*?")}
        if not wanted:
            return
        known: set[str] = set()
        for folder in folders:
            for file in Path(folder).rglob("*.y*ml"):
                text = file.read_bytes()
                wanted.difference_update(word.decode(errors="replace") for word in WORD.findall(text))
                if not wanted:
                    return
                known.update(name.decode(errors="replace").strip("\"'") for name in NAMED.findall(text))
        raise UnknownNameError("task", min(wanted), known)

    def _resolves_here(self, name: str) -> bool:
        # A name of the user's folder hides lm-eval's own of that name, but a pattern may match more among those.
        return name in self._index().all_tasks

    def _members(self, name: str) -> list[str]:
        if is_file(name):
            if not Path(name).is_file():
                raise InputError(f"--tasks {name}: no such file; name a task, a group or an existing YAML file")
            return [str(Path(name).absolute())]
        index = self._index()
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
        self._read(complete=True)
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
    suites = {suite for task in plan.tasks for prefix, suite in SUITE_PREFIXES.items() if task.name.startswith(prefix)}
    if not suites:
        return list(plan.include_path)
    from densing.scores.evals.tasks import suite_folder

    return [*plan.include_path, *(str(suite_folder(suite)) for suite in sorted(suites))]
