"""Execution of a plan: finished and remaining units, run here or by one worker per model.

A worker is one model of a plan in a process: ``python -m densing.scores.evals.runner RUN_FOLDER --plan FILE --model
INDEX``. It evaluates the units that have no result yet, writes what became of them beside the plan and ends; started
again after a crash, it goes on where it was. Exit code 0: all done; 64: a unit failed and would fail again.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import hashlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from densing.core import DensingError, InputError, Note, strip_secrets
from densing.scores.evals.evaluation import environment, evaluate_unit
from densing.scores.evals.identity import canonical_json, stored_dtype
from densing.scores.evals.journal import answered
from densing.scores.evals.models import default_device, load_model
from densing.scores.evals.plan import CODE_FLAGS, ModelSpec, Plan, plan_of, read_plan
from densing.scores.evals.session import (
    ModelWork,
    OnProgress,
    Progress,
    RunSummary,
    Session,
    UnitOutcome,
    Work,
    failed,
    ignore,
)
from densing.scores.evals.store import write_json

if TYPE_CHECKING:
    from densing.jobs import Executor, Job, JobResult

WORKER = "densing.scores.evals.runner"
SECRETS = "DENSING_SECRET_MODEL_ARGS"
"""Environment variable with the credentials among a model's arguments, as JSON; a plan file never holds them."""
PLANS = "plans"
POLL_SECONDS = 1.0
# Python, torch and lm-eval without a model.
BASE_GB = 1.0
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


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
    plan: Plan,
    folder: Path,
    *,
    executor: Executor | None = None,
    devices: int | None = None,
    progress: OnProgress = ignore,
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
    devices : int, optional
        GPUs of each worker's job; by default as :func:`devices_of` reads them from the model.
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

    See Also
    --------
    plan_of, read_results

    Examples
    --------
    A task of one's own, with a model that answers at random:

    >>> import json, tempfile
    >>> from densing.scores.evals import plan_of
    >>> task = {
    ...     "task": "sums", "dataset_path": "json", "test_split": "test", "output_type": "multiple_choice",
    ...     "doc_to_text": "{{question}}", "doc_to_choice": "choices", "doc_to_target": "gold",
    ... }
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = Path(name)
    ...     _ = (folder / "sums.jsonl").write_text('{"question": "2 + 2 =", "choices": ["4", "5"], "gold": 0}')
    ...     task["dataset_kwargs"] = {"data_files": {"test": str(folder / "sums.jsonl")}}
    ...     _ = (folder / "sums.yaml").write_text(json.dumps(task))
    ...     plan = plan_of({"tasks": ["sums"], "models": ["dummy"], "include_path": str(folder)}, "plan.toml")
    ...     runs = [run_plan(plan, folder / "run") for _ in range(2)]
    >>> [(unit.task, unit.state, unit.requests) for run in runs for unit in run.units]
    [('sums', 'evaluated', 2), ('sums', 'skipped', 0)]
    """
    started = time.monotonic()
    session = Session(plan, folder)
    with environment(session):
        surveyed = [session.survey(index) for index in range(len(plan.models))]
        session.store.record_plan(strip_secrets(plan.to_dict()))
        if executor is not None:
            outcomes = run_elsewhere(session, surveyed, executor, progress, devices)
        else:
            meter = _Meter(surveyed, progress)
            outcomes = [outcome for model in surveyed for outcome in _run(session, model, meter)]
    notes = []
    for model in surveyed:
        if model.identity is not None and not model.identity.pinned:
            name, revision = model.spec.name, model.identity.key["revision"]
            message = (
                f"model {name}: its commit is unknown, so the key contains {revision!r}; pass revision=<commit> "
                "so that changes are detected"
            )
            notes.append(Note("moving-revision", "warning", message, {"model": name, "revision": revision}))
    return RunSummary(Path(folder), tuple(outcomes), time.monotonic() - started, (*notes, *session.notes))


def survey_plan(plan: Plan, folder: Path) -> list[dict[str, Any]]:
    """Return every unit of a plan with its state in the store and the requests it takes; nothing is evaluated.

    Raises
    ------
    InputError, UnknownNameError, UnavailableError
        As :func:`run_plan`.
    """
    session = Session(plan, folder)
    with environment(session):
        surveyed = [session.survey(index) for index in range(len(plan.models))]
    units = [
        {"model": work.key.label, "task": work.identity.name, "state": work.unit.status,
         "documents": sum(work.identity.docs.values()), "requests": work.identity.requests, "digest": work.key.digest}
        for model in surveyed
        for work in model.works
    ]  # fmt: skip
    failures = [{"state": "failed", **unit.to_dict()} for model in surveyed for unit in model.failures]
    return [*units, *failures]


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
    with environment(session):
        surveyed = session.survey(index)
        if device is not None:
            surveyed = dataclasses.replace(surveyed, loading=dataclasses.replace(surveyed.loading, device=device))
        outcomes = _run(session, surveyed, _Meter([surveyed], progress))
    return RunSummary(Path(folder), tuple(outcomes), time.monotonic() - started, tuple(session.notes))


def _run(session: Session, model: ModelWork, meter: _Meter) -> list[UnitOutcome]:
    pending = model.pending()
    outcomes = {work.key.digest: work.outcome("skipped") for work in model.works}
    if pending:
        meter.show(model.spec.name)
        try:
            assert model.identity is not None
            loaded = load_model(model.spec, model.loading, model.identity, session.plan.settings.seed)
        except Exception as error:
            outcomes |= {w.key.digest: failed(w.key.label, w.identity.name, w.key.digest, error) for w in pending}
        else:
            session.notes += [
                Note("model-caveat", "warning", f"model {model.spec.name}: {caveat}") for caveat in loaded.warnings
            ]
            # Units that another process is at come last: by then it has done most of them.
            queue = [(work, False) for work in pending]
            while queue:
                work, waited = queue.pop(0)
                if not waited and work.unit.busy:
                    queue.append((work, True))
                    continue
                meter.count(work, 0)
                try:
                    outcome = evaluate_unit(session, loaded, work, functools.partial(meter.count, work))
                except (Exception, SystemExit) as error:
                    outcome = failed(work.key.label, work.identity.name, work.key.digest, error)
                outcomes[work.key.digest] = outcome
                meter.finish(work)
            # The next model needs the memory.
            del loaded
            gc.collect()
            with suppress(ImportError):
                import torch

                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
    return [*(outcomes[work.key.digest] for work in model.works), *model.failures]


def run_elsewhere(
    session: Session,
    surveyed: Sequence[ModelWork],
    executor: Executor,
    progress: OnProgress,
    devices: int | None = None,
) -> list[UnitOutcome]:
    """Start a worker for every model that has something to do, and return what became of every unit."""
    indices = [index for index, model in enumerate(surveyed) if model.pending()]
    plan = write_plan(session) if indices else Path()
    for index in indices:
        outcome_file(plan, index).unlink(missing_ok=True)
    jobs = [job_of(session, surveyed[index], index, plan, devices) for index in indices]
    with watched(surveyed, progress):
        results = dict(zip(indices, executor.run(jobs), strict=True)) if jobs else {}
    outcomes: list[UnitOutcome] = []
    for index, model in enumerate(surveyed):
        outcomes += _outcomes(model, plan, index, results.get(index))
    return outcomes


def write_plan(session: Session) -> Path:
    """Write the plan, without credentials, where workers read it."""
    content = strip_secrets(session.plan.to_dict())
    name = hashlib.sha256(canonical_json(content).encode("ascii")).hexdigest()[:8]
    path = session.store.folder.absolute() / PLANS / f"{name}.json"
    write_json(path, content)
    return path


def outcome_file(plan: Path, index: int) -> Path:
    """Return where a worker says what became of its units."""
    return plan.with_name(f"{plan.stem}-{index}.outcome.json")


GPU_ONLY = ("vllm", "vllm-vlm", "sglang")
"""Types of models that need a GPU, wherever the plan is made."""


def devices_of(spec: ModelSpec, device: str | None = None, devices: int | None = None) -> int:
    """Return the GPUs that the job of one model needs: as given, else as its arguments say.

    Parameters
    ----------
    spec : ModelSpec
    device : str, optional
        Where it is loaded; where a model does not say how many GPUs it takes, this machine's own.
    devices : int, optional
        A number for all models.

    Raises
    ------
    InputError
        When the arguments spread a model over GPUs without saying how many.

    Examples
    --------
    >>> devices_of(ModelSpec.of("vllm", {"pretrained": "m", "tensor_parallel_size": 8, "data_parallel_size": 2}))
    16
    """
    if devices is not None:
        return devices
    # vLLM's names, and SGLang's.
    sizes = ((f"{name}_parallel_size", f"{name[0]}p_size") for name in ("tensor", "data", "pipeline"))
    parts = math.prod(int(spec.args.get(long) or spec.args.get(short) or 1) for long, short in sizes)
    if spec.type in GPU_ONLY or parts > 1:
        return parts
    spread = {"parallelize": "true", "device_map": ("auto", "balanced", "balanced_low_0", "sequential")}
    for name, values in spread.items():
        # accelerate takes what it sees.
        if (value := str(spec.args.get(name, "")).lower()) and value in values:
            raise InputError(
                f"{spec.name}: {name}={value} spreads it over all GPUs of its job; say how many: --devices 8"
            )
    return 0 if (device or default_device()).startswith("cpu") else 1


def job_of(session: Session, model: ModelWork, index: int, plan: Path, devices: int | None = None) -> Job:
    """Return the job that evaluates one model of the plan."""
    from densing.jobs import Job

    argv = [sys.executable, "-m", WORKER, str(session.store.folder.absolute())]
    argv += ["--plan", str(plan), "--model", str(index)]
    argv += [f"--{flag}" for flag in CODE_FLAGS if getattr(session.plan, flag)]
    gpus = devices_of(model.spec, model.loading.device, devices)
    if gpus:
        # An executor shows a job its own GPUs only, the first of which is the first one there.
        argv += ["--device", "cuda:0" if gpus == 1 else "cuda"]
    public = strip_secrets(dict(model.spec.args))
    secret = {name: value for name, value in model.spec.args.items() if public[name] != value}
    return Job(
        tuple(argv),
        model.spec.name,
        memory_gb=memory_gb(model.spec),
        devices=gpus,
        workdir=Path.cwd(),
        logs=session.store.folder.absolute() / "logs",
        env={SECRETS: json.dumps(secret)} if secret else {},
    )


def memory_gb(spec: ModelSpec) -> float | None:
    """Return an estimate of a worker's memory from the size of local weights, or None."""
    folder = Path(str(spec.args.get("pretrained", ""))).expanduser()
    if not spec.args.get("pretrained") or not folder.is_dir():
        return None
    if gguf := spec.args.get("gguf_file"):
        # About four bits per weight in the file, 32 once loaded.
        return BASE_GB + 8 * (folder / str(gguf)).stat().st_size / 1e9
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    stored = stored_dtype(folder) or "float32"
    loaded = str(spec.args.get("dtype", "auto"))
    growth = BYTES.get(loaded if loaded != "auto" else stored, 4) / BYTES.get(stored, 4)
    return BASE_GB + 1.2 * growth * size / 1e9


@contextmanager
def watched(surveyed: Sequence[ModelWork], progress: OnProgress) -> Iterator[None]:
    """Tell progress from the store while workers write to it."""
    pending = [work for model in surveyed for work in model.pending()]
    units = sum(len(model.works) + len(model.failures) for model in surveyed)
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(POLL_SECONDS):
            progress(progress_of(pending, units))

    thread = threading.Thread(target=watch, name="densing-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        progress(progress_of(pending, units))


def progress_of(pending: Sequence[Work], units: int) -> Progress:
    """Return how far the units are, by their folders."""
    done = [work for work in pending if work.unit.done]
    finished = {work.key.digest for work in done}
    open_ = [(work, answered(work.unit.journal_path)) for work in pending if work.key.digest not in finished]
    count = sum(work.identity.requests for work in done) + sum(min(n, w.identity.requests) for w, n in open_)
    running = max(open_, key=lambda pair: pair[1], default=None)
    label, task = (running[0].key.label, running[0].identity.name) if running and running[1] else ("", "")
    total = sum(work.identity.requests for work in pending)
    return Progress(label, task, float(count), float(total), units - len(open_), units)


class _Report(msgspec.Struct):
    """What of a worker's outcome file (:meth:`RunSummary.to_dict`) is read."""

    units: list[UnitOutcome]


def _outcomes(model: ModelWork, plan: Path, index: int, result: JobResult | None) -> Iterator[UnitOutcome]:
    """Yield what became of a model's units: as its worker says, else as the store shows."""
    reported: dict[str, UnitOutcome] = {}
    reason = "no worker was started"
    if result is not None:
        with suppress(OSError, msgspec.DecodeError):
            units = msgspec.json.decode(outcome_file(plan, index).read_bytes(), type=_Report).units
            reported = {unit.digest: unit for unit in units}
        reason = result.reason or f"worker ended with code {result.returncode}"
        if result.lines:
            reason += f"; last lines: {' | '.join(result.lines[-3:])}"
    for work in model.works:
        outcome = reported.get(work.key.digest)
        if outcome is not None:
            # What a worker that was started again finds done, it did before.
            again = result is not None and result.attempts > 1 and outcome.state == "skipped"
            yield dataclasses.replace(outcome, state="evaluated") if again else outcome
        elif work.unit.done:
            # A worker that did its work and died before it could say so.
            yield work.outcome("skipped" if result is None else "evaluated")
        else:
            yield work.outcome("failed", error=reason)
    yield from model.failures


def main(argv: Sequence[str] | None = None) -> int:
    """Run one model of a plan and return the exit code."""
    from densing.jobs import NO_RETRY

    parser = argparse.ArgumentParser(prog=WORKER, description="One model of a plan in a process.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--model", type=int, required=True)
    parser.add_argument("--device")
    for flag in CODE_FLAGS:
        parser.add_argument(f"--{flag}", action="store_true")
    options = parser.parse_args(argv)
    try:
        flags = {name: getattr(options, name) for name in CODE_FLAGS}
        plan = with_secrets(plan_of(read_plan(options.plan), str(options.plan), **flags), options.model)
        summary = run_model(plan, options.model, options.folder, device=options.device)
    except DensingError as error:
        sys.stderr.write(f"error: {error}\n")
        return NO_RETRY
    outcome_file(options.plan, options.model).write_text(json.dumps(summary.to_dict()), encoding="utf-8")
    for unit in summary.failed:
        sys.stderr.write(f"error: {unit.model}, {unit.task}: {unit.error}\n")
    return NO_RETRY if summary.failed else 0


def with_secrets(plan: Plan, index: int) -> Plan:
    """Return the plan with the credentials that the environment holds for one model."""
    secrets = os.environ.get(SECRETS)
    if not secrets:
        return plan
    models = list(plan.models)
    models[index] = dataclasses.replace(models[index], args={**models[index].args, **json.loads(secrets)})
    return dataclasses.replace(plan, models=tuple(models))


if __name__ == "__main__":
    raise SystemExit(main())
