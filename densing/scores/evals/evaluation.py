"""lm-eval: what surrounds it while it works, and one unit through the same calls that its command line makes."""

from __future__ import annotations

import copy
import functools
import json
import logging
import operator
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO, cast

from densing.core import InputError, mask, read_json, secrets_of, storage_errors
from densing.scores.evals.journal import Journal, recorded
from densing.scores.evals.models import LoadedModel
from densing.scores.evals.safety import guarded, substitute
from densing.scores.evals.session import Session, UnitOutcome, Work
from densing.scores.evals.store import utc_now

LOG = "lm-eval.log"
# What a function without arguments answers, asked once per process.
ONCE = functools.cache(operator.call)


@contextmanager
def environment(session: Session) -> Iterator[None]:
    """Run lm-eval guarded, its output in the run's log, and what it does again for every task done once."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    secrets = tuple(secret for model in session.plan.models for secret in secrets_of(model.args))
    flags = {name: getattr(session.plan, name) for name in ("trust_remote_code", "confirm_run_unsafe_code")}
    with output_into(session.store.folder / LOG, secrets), guarded(**flags), shared_work():
        yield


def evaluate_unit(session: Session, model: LoadedModel, work: Work, on_count: Callable[[int], object]) -> UnitOutcome:
    """Evaluate one unit into its store, taking up what a killed run has answered already.

    The unit's lock must be free; when another process has locked it, this waits, and finds the unit done.

    Parameters
    ----------
    session : Session
        Its plan has the flags that allow code, its source the task.
    model : LoadedModel
        What answers.
    work : Work
        The unit.
    on_count : callable
        Told how many requests have an answer.
    """
    with work.unit.lock():
        if work.unit.status == "done":
            return work.outcome("skipped")
        with Journal(work.unit.journal_path, work.key.digest) as journal:
            before, size = journal.count, model.loading.batch_size
            caveats = list(model.facts["caveats"])
            earlier = journal.fact("batch_size")
            journal.add([], {"batch_size": size})
            if before and earlier not in (None, size):
                caveats.append(
                    f"begun with batch_size {earlier}, resumed with {size}: equal to one run up to floating-point noise"
                )
            tokenizer: dict[str, Any] = {}
            if model.facts["vocab"] and hasattr(model.lm, "tok_encode"):
                tokenizer["tokenizer"] = functools.partial(model.lm.tok_encode, add_special_tokens=False)
                tokenizer["tokenizer_name"] = str(model.spec.args.get("tokenizer") or model.spec.name)
            started, clock = utc_now(), time.monotonic()
            with work.unit.stage() as staged:
                with recorded(model.lm, journal, on_count) as recorder:
                    results, samples, tracker = simple_evaluate(session, model, work, staged)
                write_files(tracker, results, samples, staged)
                facts = {
                    "model": dict(model.facts),
                    "task": dict(work.key.task),
                    "versions": versions(),
                    "started": started,
                    "seconds": round(time.monotonic() - clock, 3),
                    "requests": recorder.fresh,
                    "counts": {"answered": journal.count, "taken_up": before, "documents": dict(work.identity.docs)},
                    "caveats": caveats,
                }
                journal.close()
                work.unit.finish(staged, facts, **tokenizer)
    return work.outcome("resumed" if before else "evaluated", recorder.fresh)


def simple_evaluate(
    session: Session, model: LoadedModel, work: Work, staged: Path
) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Call lm-eval's ``simple_evaluate`` as its command line does, with a model that is loaded already.

    Returns
    -------
    results, samples : dict
        As the command line has them before it writes them.
    tracker : lm_eval.loggers.EvaluationTracker
        Writes into ``staged``.
    """
    from lm_eval import simple_evaluate as evaluate
    from lm_eval.loggers import EvaluationTracker

    plan, task, settings = session.plan, work.requested.name, work.settings
    metadata = plan.metadata_for(model.spec)
    tracker = EvaluationTracker(output_path=str(staged))
    python, numpy, torch, fewshot = settings.seed
    results = evaluate(
        model=model.lm,
        model_args=model.spec.public_args,
        tasks=[task],
        num_fewshot=settings.num_fewshot,
        batch_size=model.loading.batch_size,
        max_batch_size=model.loading.max_batch_size,
        device=model.loading.device,
        limit=settings.limit,
        samples={name: list(ids) for name, ids in settings.samples.items()} if settings.samples else None,
        bootstrap_iters=settings.bootstrap_iters,
        log_samples=True,
        evaluation_tracker=tracker,
        system_instruction=settings.system_instruction,
        apply_chat_template=settings.apply_chat_template,
        fewshot_as_multiturn=settings.multiturn,
        gen_kwargs=dict(settings.gen_kwargs),
        task_manager=session.source.manager(metadata),
        predict_only=settings.predict_only,
        random_seed=python,
        numpy_random_seed=numpy,
        torch_random_seed=torch,
        fewshot_random_seed=fewshot,
        confirm_run_unsafe_code=plan.confirm_run_unsafe_code,
        metadata=metadata,
    )
    if results is None:
        raise InputError(f"{task}: only the first process of a launcher writes results; run densing without one")
    # A loaded model object hides its type from lm-eval.
    results["config"]["model"] = tracker.general_config_tracker.model_source = model.spec.type
    return results, results.pop("samples"), tracker


def write_files(tracker: Any, results: dict[str, Any], samples: dict[str, Any], staged: Path) -> None:
    """Let lm-eval write its own files.

    Raises
    ------
    InputError
        When a file is missing or cut short afterwards, as on a full disk: lm-eval only logs such trouble.
    """
    tracker.save_results_aggregated(results=results, samples=samples)
    for name in results["configs"]:
        tracker.save_results_samples(task_name=name, samples=samples[name])
    written = {path.name.rpartition("_")[0]: path for path in staged.rglob("*.json*")}
    free = f"{shutil.disk_usage(staged).free / 1e6:,.0f} MB free on its disk"
    for name, rows in (("results", None), *((f"samples_{name}", samples[name]) for name in results["configs"])):
        path = written.get(name)
        if path is None:
            raise InputError(
                f"{staged}: lm-eval did not write {name} ({free}); see lm-eval.log beside the units for why"
            )
        if rows is None:
            read_json(path)
        elif (lines := path.read_bytes().count(b"\n")) != len(rows):
            raise InputError(f"{path}: {lines} of {len(rows)} samples were written ({free}); answers so far are kept")


def versions() -> dict[str, str]:
    """Return the versions a result depends on."""
    from densing import __version__

    installed = {"densing": __version__, "lm_eval": version("lm_eval"), "datasets": version("datasets")}
    for name in ("torch", "transformers", "tokenizers", "vllm"):
        with suppress(ModuleNotFoundError):
            installed[name] = version(name)
    return installed


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
            describe = functools.partial(ONCE, collect_env.get_pretty_env_info)
            substitute(stack, collect_env, "get_pretty_env_info", describe)
        yield
