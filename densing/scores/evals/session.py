"""What the units of a run share: the plan after its safety checks, the store, the index of tasks, and what is to do.

While it lasts, lm-eval's own output goes into a file, and what lm-eval does again for every task is done once.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO, cast

from densing.core import Note, UnavailableError, mask, secrets_of, storage_errors
from densing.scores.evals.evaluate import Work, failed, task_metadata
from densing.scores.evals.identity import (
    ModelIdentity,
    TaskIdentity,
    identify_model,
    identify_task,
    of_one_model,
    unit_key,
)
from densing.scores.evals.models import model_class, seed_all
from densing.scores.evals.plan import Loading, ModelSpec, Plan, TaskSpec
from densing.scores.evals.progress import UnitOutcome
from densing.scores.evals.safety import check_model, check_tasks, guarded, substitute
from densing.scores.evals.sources import TaskSource, include_paths
from densing.scores.evals.store import RunStore

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
            failures = [failed(spec.name, task.name, "", error) for task in self.plan.tasks]
            return ModelWork(spec, loading, None, (), tuple(failures))
        works, failures = [], []
        for task in self.tasks:
            try:
                works.append(self._work(spec, identity, task))
            except Exception as error:
                failures.append(failed(spec.name, task.name, "", error))
        return ModelWork(spec, loading, identity, tuple(works), tuple(failures))

    def _work(self, spec: ModelSpec, identity: ModelIdentity, task: TaskSpec) -> Work:
        settings = self.plan.settings_for(spec, task)
        request = (task.name, repr(settings))
        known = self._identities.get(request)
        if known is None:
            metadata = task_metadata(self.plan, spec)
            # Documents may be drawn; lm-eval seeds before it loads them.
            seed_all(settings.seed)
            loaded = self.source.load(task.name, metadata)
            known = identify_task(loaded, settings, metadata)
            if not of_one_model(loaded):
                self._identities[request] = known
        key = unit_key(identity.key, known, settings, self.plan.metadata, spec.name)
        return Work(task, known, settings, key, self.store.unit(key))


@contextmanager
def output_into(log: Path, secrets: tuple[str, ...] = ()) -> Iterator[None]:
    """Send everything that is printed, by this process or its children, to a file while the context lasts.

    Parameters
    ----------
    log : path
        The file; appended to.
    secrets : tuple of str
        Credentials to mask.
    """
    with storage_errors(log):
        log.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    with ExitStack() as stack:
        stack.callback(os.close, handle)
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            stream.flush()
            saved = os.dup(number)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, number)
            os.dup2(handle, number)
        writer = _Masked(os.fdopen(os.dup(handle), "w", encoding="utf-8", errors="backslashreplace"), secrets)
        stack.callback(writer.close)
        streams = sys.stdout, sys.stderr
        _hand_over(streams, writer)
        sys.stdout = sys.stderr = cast("TextIO", writer)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = streams
            # Handlers that came up meanwhile hold the writer too.
            _hand_over((writer,), streams[1])


def _hand_over(streams: Sequence[Any], target: Any) -> None:
    """Let every log handler that writes to one of the streams write to the target."""
    loggers = [logging.getLogger(), *map(logging.getLogger, tuple(logging.root.manager.loggerDict))]
    for handler in {handler for logger in loggers for handler in logger.handlers}:
        # The handler of last resort looks the stream up each time: it has none of its own.
        if any(vars(handler).get("stream") is stream for stream in streams):
            vars(handler)["stream"] = target


class _Masked:
    """A text stream that writes line by line, without credentials.

    Libraries loaded meanwhile keep hold of it: once closed, it passes on to standard error.
    """

    encoding, errors = "utf-8", "backslashreplace"

    def __init__(self, stream: TextIO, secrets: tuple[str, ...]) -> None:
        self._stream: TextIO | None = stream
        self._secrets, self._line = secrets, ""

    def write(self, text: str) -> int:
        if self._stream is None:
            return sys.__stderr__.write(text) if sys.__stderr__ else 0
        # Progress bars overwrite their line; in a file that would be one line of megabytes.
        *lines, self._line = (self._line + text).replace("\r", "\n").split("\n")
        if lines:
            self._stream.write(mask("\n".join(lines) + "\n", self._secrets))
            self._stream.flush()
        return len(text)

    def flush(self) -> None:
        if self._stream is not None:
            self._stream.flush()

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return 2 if self._stream is None else self._stream.fileno()

    def close(self) -> None:
        if self._line:
            self.write("\n")
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


@contextmanager
def shared_work() -> Iterator[None]:
    """Let lm-eval find out about the machine once, and read each data set once, while the context lasts.

    The machine's description spawns ``pip list`` and takes seconds for every task; a data set is read once for the
    identity of a unit, once for its evaluation, and again for every model.
    """
    import datasets

    load, loaded = datasets.load_dataset, dict[str, Any]()

    @functools.wraps(load)
    def load_dataset(*args: Any, **kwargs: Any) -> Any:
        try:
            request = json.dumps([args, kwargs], sort_keys=True)
        except TypeError:
            return load(*args, **kwargs)
        if request not in loaded:
            loaded[request] = load(*args, **kwargs)
        # A task may add splits to its own dictionary of them; the data below never change.
        return copy.copy(loaded[request])

    with ExitStack() as stack:
        substitute(stack, datasets, "load_dataset", load_dataset)
        try:
            from torch.utils import collect_env
        except ImportError:
            pass
        else:
            describe = functools.partial(_once, collect_env.get_pretty_env_info)
            substitute(stack, collect_env, "get_pretty_env_info", describe)
        yield


@functools.cache
def _once(ask: Callable[[], str]) -> str:
    return ask()
