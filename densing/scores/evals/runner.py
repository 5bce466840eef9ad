"""A plan from beginning to end: what is there already, what is to do, each model loaded once, each unit stored."""

from __future__ import annotations

import dataclasses
import functools
import gc
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densing.core import Note, strip_secrets
from densing.scores.evals.evaluate import Work, evaluate_unit, failed, is_busy
from densing.scores.evals.models import LoadedModel, load_model
from densing.scores.evals.plan import Plan
from densing.scores.evals.progress import OnProgress, Progress, RunSummary, UnitOutcome, ignore
from densing.scores.evals.session import ModelWork, Session

if TYPE_CHECKING:
    from densing.jobs import Executor

__all__ = ["ModelWork", "Session", "outcome_of", "run_model", "run_plan", "survey_plan"]


class _Meter:
    """Adds up progress over the plan; the estimate of a unit gives way to its count when it is done."""

    def __init__(self, surveyed: Sequence[ModelWork], tell: OnProgress) -> None:
        pending = [work for model in surveyed for work in model.pending()]
        self.units = sum(len(model.works) + len(model.failures) for model in surveyed)
        self.units_done = self.units - len(pending)
        self.total = float(sum(work.identity.requests for work in pending))
        self.before = 0.0
        self.tell = tell

    def show(self, model: str, task: str = "", count: float = 0.0) -> None:
        self.tell(Progress(model, task, self.before + count, self.total, self.units_done, self.units))

    def count(self, work: Work, count: int) -> None:
        self.show(work.key.label, work.identity.name, min(count, work.identity.requests))

    def finish(self, work: Work) -> None:
        self.before += work.identity.requests
        self.units_done += 1
        self.show(work.key.label, work.identity.name)


def run_plan(
    plan: Plan, folder: Path, *, executor: Executor | None = None, progress: OnProgress = ignore
) -> RunSummary:
    """Evaluate every model of a plan on every task, and store each unit as soon as it is done.

    Parameters
    ----------
    plan : Plan
        What to evaluate.
    folder : path
        The store; made when missing. Units it holds are not evaluated again.
    executor : Executor, optional
        Runs one worker process per model; in this process when left out.
    progress : callable
        Told how far the run is.

    Returns
    -------
    RunSummary
        One outcome per unit. A unit that failed is an outcome, not an exception.

    Raises
    ------
    InputError, UnknownNameError, UnavailableError
        When nothing can be evaluated: unknown tasks, code without consent, lm-eval not installed.
    """
    started = time.monotonic()
    session = Session(plan, folder)
    with session.environment():
        surveyed = [session.survey(index) for index in range(len(plan.models))]
        session.store.record_plan(strip_secrets(plan.to_dict()))
        if executor is not None:
            from densing.scores.evals.dispatch import run_elsewhere

            outcomes = run_elsewhere(session, surveyed, executor, progress)
        else:
            meter = _Meter(surveyed, progress)
            outcomes = [outcome for model in surveyed for outcome in _run(session, model, meter)]
    return RunSummary(Path(folder), tuple(outcomes), time.monotonic() - started, (*_notes(surveyed), *session.notes))


def survey_plan(plan: Plan, folder: Path) -> list[dict[str, Any]]:
    """Return every unit of a plan with its state in the store and the requests it takes; nothing is evaluated.

    Raises
    ------
    InputError, UnknownNameError, UnavailableError
        As :func:`run_plan`.
    """
    session = Session(plan, folder)
    with session.environment():
        surveyed = [session.survey(index) for index in range(len(plan.models))]
    units = [
        {"model": work.key.label, "task": work.identity.name, "state": work.unit.status,
         "documents": sum(work.identity.docs.values()), "requests": work.identity.requests, "digest": work.key.digest}
        for model in surveyed
        for work in model.works
    ]  # fmt: skip
    lost = [{"state": "failed", **unit.to_dict()} for model in surveyed for unit in model.failures]
    return [*units, *lost]


def run_model(
    plan: Plan, index: int, folder: Path, *, device: str | None = None, progress: OnProgress = ignore
) -> RunSummary:
    """Evaluate the unfinished units of one model of a plan: what a worker process does.

    Parameters
    ----------
    plan, folder, progress
        As in :func:`run_plan`.
    index : int
        Which model.
    device : str, optional
        Where to load it, over the plan's own.
    """
    started = time.monotonic()
    session = Session(plan, folder)
    with session.environment():
        surveyed = session.survey(index)
        if device is not None:
            surveyed = dataclasses.replace(surveyed, loading=dataclasses.replace(surveyed.loading, device=device))
        outcomes = _run(session, surveyed, _Meter([surveyed], progress))
    return RunSummary(Path(folder), tuple(outcomes), time.monotonic() - started, tuple(session.notes))


def _run(session: Session, model: ModelWork, meter: _Meter) -> list[UnitOutcome]:
    pending = model.pending()
    waiting = {work.key.digest for work in pending}
    found = {work.key.digest: outcome_of(work) for work in model.works if work.key.digest not in waiting}
    if pending:
        meter.show(model.spec.name)
        try:
            assert model.identity is not None
            loaded = load_model(model.spec, model.loading, model.identity, session.plan.settings.seed)
        except Exception as error:
            found |= {w.key.digest: failed(w.key.label, w.identity.name, w.key.digest, error) for w in pending}
        else:
            session.notes += [
                Note("model-caveat", "warning", f"model {model.spec.name}: {caveat}") for caveat in loaded.warnings
            ]
            found |= {o.digest: o for o in _evaluate(session, loaded, pending, meter)}
            del loaded
            _free()
    return [*(found[work.key.digest] for work in model.works), *model.failures]


def _evaluate(session: Session, model: LoadedModel, pending: Sequence[Work], meter: _Meter) -> Iterator[UnitOutcome]:
    # Units that another process is at come last: by then it has done most of them.
    queue = [(work, False) for work in pending]
    while queue:
        work, waited = queue.pop(0)
        if not waited and is_busy(work.unit):
            queue.append((work, True))
            continue
        meter.count(work, 0)
        try:
            yield evaluate_unit(session.plan, session.source, model, work, functools.partial(meter.count, work))
        except (Exception, SystemExit) as error:
            yield failed(work.key.label, work.identity.name, work.key.digest, error)
        meter.finish(work)


def outcome_of(work: Work) -> UnitOutcome:
    """Return the outcome of a unit whose result is in the store already."""
    return UnitOutcome(work.key.label, work.identity.name, work.key.digest, "skipped")


def _free() -> None:
    gc.collect()
    try:
        import torch
    except ImportError:
        return
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _notes(surveyed: Sequence[ModelWork]) -> Iterator[Note]:
    for model in surveyed:
        if model.identity is not None and not model.identity.pinned:
            revision: Any = model.identity.key["revision"]
            yield Note(
                "moving-revision",
                "warning",
                f"model {model.spec.name}: its commit could not be found out, so {revision!r} stands in the key; "
                "pass revision=<commit> so that a change is noticed",
                {"model": model.spec.name, "revision": revision},
            )
