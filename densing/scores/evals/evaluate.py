"""One unit through lm-eval: the same calls its command line makes, with a journal under the model."""

from __future__ import annotations

import functools
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from densing.core import DensingError, InputError, strip_secrets
from densing.scores.evals.disk import BusyError, utc_now
from densing.scores.evals.identity import TaskIdentity, UnitKey
from densing.scores.evals.journal import Journal
from densing.scores.evals.models import LoadedModel
from densing.scores.evals.plan import ModelSpec, Plan, Settings, TaskSpec
from densing.scores.evals.progress import State, UnitOutcome
from densing.scores.evals.recorder import recorded
from densing.scores.evals.sources import TaskSource
from densing.scores.evals.store import Unit

ERROR_LENGTH = 1000


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


def public_args(spec: ModelSpec) -> dict[str, Any]:
    """Return a model's arguments as they may be written down."""
    return dict(strip_secrets(dict(spec.args)))


def task_metadata(plan: Plan, spec: ModelSpec) -> dict[str, Any]:
    """Return what tasks are told: the model's arguments and the plan's metadata, as lm-eval's command line does."""
    return {**public_args(spec), **plan.metadata}


def evaluate_unit(
    plan: Plan, source: TaskSource, model: LoadedModel, work: Work, on_count: Callable[[int], object]
) -> UnitOutcome:
    """Evaluate one unit into its store, taking up what a killed run has answered already.

    The unit's lock must be free; when another process holds it, this waits, and finds the unit done.

    Parameters
    ----------
    plan : Plan
        Flags that allow code.
    source : TaskSource
        Where the task comes from.
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
                    name, settings = work.requested.name, work.settings
                    results, samples, tracker = simple_evaluate(plan, source, model, name, settings, staged)
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
    plan: Plan, source: TaskSource, model: LoadedModel, task: str, settings: Settings, staged: Path
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

    args = public_args(model.spec)
    metadata = task_metadata(plan, model.spec)
    tracker = EvaluationTracker(output_path=str(staged))
    python, numpy, torch, fewshot = settings.seed
    results = evaluate(
        model=model.lm,
        model_args=args,
        tasks=[source.spec(task)],
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
        task_manager=source.manager(metadata),
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
        When a file is missing afterwards: lm-eval only logs such trouble.
    """
    tracker.save_results_aggregated(results=results, samples=samples)
    for name in results["configs"]:
        tracker.save_results_samples(task_name=name, samples=samples[name])
    written = {path.name.rpartition("_")[0] for path in staged.rglob("*.json*")}
    expected = {"results", *(f"samples_{name}" for name in results["configs"])}
    if missing := sorted(expected - written):
        raise InputError(f"{staged}: lm-eval did not write {missing[0]}; see lm-eval.log beside the units for why")


def versions() -> dict[str, str]:
    """Return the versions a result depends on."""
    from densing import __version__

    installed = {"densing": __version__, "lm_eval": version("lm_eval"), "datasets": version("datasets")}
    for name in ("torch", "transformers", "tokenizers", "vllm"):
        with suppress(ModuleNotFoundError):
            installed[name] = version(name)
    return installed


def failed(model: str, task: str, digest: str, error: BaseException) -> UnitOutcome:
    """Return the outcome of a unit that raised; the traceback goes to the log."""
    traceback.print_exception(error)
    message = str(error).strip() or "no message"
    text = message if isinstance(error, DensingError) else f"{type(error).__name__}: {message}"
    if type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError):
        text += "; lower --batch_size or take a smaller dtype"
    return UnitOutcome(model, task, digest, "failed", error=str(strip_secrets(text))[:ERROR_LENGTH])


def is_busy(unit: Unit) -> bool:
    """Whether another process is evaluating a unit just now."""
    try:
        with unit.lock(timeout=0):
            return False
    except BusyError:
        return True
