"""What the units of a run share: the plan after its safety checks, the store, the index of tasks, and what is to do."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from densing.core import Note, UnavailableError, secrets_of
from densing.scores.evals.evaluate import Work, failed, task_metadata
from densing.scores.evals.identity import TaskIdentity, identify_task, of_one_model, unit_key
from densing.scores.evals.models import model_class, seed_all
from densing.scores.evals.plan import Loading, ModelSpec, Plan, Settings, TaskSpec
from densing.scores.evals.progress import UnitOutcome
from densing.scores.evals.quiet import output_into, shared_work
from densing.scores.evals.safety import check_model, check_tasks, guarded
from densing.scores.evals.sources import TaskSource, include_paths
from densing.scores.evals.store import RunStore
from densing.scores.evals.weights import ModelIdentity, identify_model

LOG = "lm-eval.log"


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
            raise UnavailableError('lm-eval is not installed; pip install "densing[evals]"')
        flags = {"trust_remote_code": plan.trust_remote_code}
        check_tasks(
            include_paths(plan),
            [task.name for task in plan.tasks],
            **flags,
            confirm_run_unsafe_code=plan.confirm_run_unsafe_code,
        )
        checked = (dataclasses.replace(m, args=check_model(m.type, m.args, **flags)) for m in plan.models)
        self.plan = dataclasses.replace(plan, models=tuple(checked))
        self.store = RunStore(folder)
        self.source = TaskSource.of(plan)
        self.notes: list[Note] = []
        self._tasks: list[TaskSpec] | None = None
        self._identities: dict[tuple[str, str], TaskIdentity] = {}

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Run lm-eval guarded, its output in the run's log."""
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        secrets = tuple(secret for model in self.plan.models for secret in secrets_of(model.args))
        flags = {name: getattr(self.plan, name) for name in ("trust_remote_code", "confirm_run_unsafe_code")}
        with output_into(self.store.folder / LOG, secrets), guarded(**flags), shared_work():
            yield

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
        except Exception as error:
            # As they were named: looking their members up would cost a model that is not there an index of all tasks.
            lost = tuple(failed(spec.name, task.name, "", error) for task in self.plan.tasks)
            return ModelWork(spec, loading, None, (), lost)
        works: list[Work] = []
        failures: list[UnitOutcome] = []
        for task in self.tasks:
            try:
                works.append(self._work(spec, identity, task))
            except Exception as error:
                failures.append(failed(spec.name, task.name, "", error))
        return ModelWork(spec, loading, identity, tuple(works), tuple(failures))

    def _work(self, spec: ModelSpec, identity: ModelIdentity, task: TaskSpec) -> Work:
        settings = self.plan.settings_for(spec, task)
        known = self._identity(spec, task, settings)
        key = unit_key(identity.key, known, settings, self.plan.metadata, spec.name)
        return Work(task, known, settings, key, self.store.unit(key))

    def _identity(self, spec: ModelSpec, task: TaskSpec, settings: Settings) -> TaskIdentity:
        asked = (task.name, repr(settings))
        if asked not in self._identities:
            metadata = task_metadata(self.plan, spec)
            # Documents may be drawn; lm-eval seeds before it loads them.
            seed_all(settings.seed)
            loaded = self.source.load(task.name, metadata)
            known = identify_task(loaded, settings, metadata)
            if not of_one_model(loaded):
                self._identities[asked] = known
            return known
        return self._identities[asked]
