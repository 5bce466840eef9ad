"""A plan handed to an executor: one worker per model, watched through the store."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densing.core import strip_secrets
from densing.scores.evals.disk import write_json
from densing.scores.evals.journal import answered
from densing.scores.evals.models import default_device
from densing.scores.evals.plan import ModelSpec
from densing.scores.evals.progress import OnProgress, Progress, UnitOutcome
from densing.scores.evals.unit import canonical_json
from densing.scores.evals.worker import SECRETS, outcome_file

if TYPE_CHECKING:
    from densing.jobs import Executor, Job, JobResult
    from densing.scores.evals.evaluate import Work
    from densing.scores.evals.runner import ModelWork, Session

PLANS = "plans"
POLL_SECONDS = 1.0
# Python, torch and lm-eval without a model.
BASE_GB = 1.0
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def run_elsewhere(
    session: Session, surveyed: Sequence[ModelWork], executor: Executor, progress: OnProgress
) -> list[UnitOutcome]:
    """Start a worker for every model that has something to do, and return what became of every unit."""
    indices = [index for index, model in enumerate(surveyed) if model.pending()]
    plan = write_plan(session) if indices else Path()
    for index in indices:
        outcome_file(plan, index).unlink(missing_ok=True)
    jobs = [job_of(session, surveyed[index], index, plan) for index in indices]
    with watched(surveyed, progress):
        results = dict(zip(indices, executor.run(jobs), strict=True)) if jobs else {}
    found: list[UnitOutcome] = []
    for index, model in enumerate(surveyed):
        found += _outcomes(model, plan, index, results.get(index))
    return found


def write_plan(session: Session) -> Path:
    """Write the plan, without credentials, where workers read it."""
    content = strip_secrets(session.plan.to_dict())
    name = hashlib.sha256(canonical_json(content).encode("ascii")).hexdigest()[:8]
    path = session.store.folder.absolute() / PLANS / f"{name}.json"
    write_json(path, content)
    return path


def job_of(session: Session, model: ModelWork, index: int, plan: Path) -> Job:
    """Return the job that evaluates one model of the plan."""
    from densing.jobs import Job

    argv = [sys.executable, "-m", "densing.scores.evals.worker", str(session.store.folder.absolute())]
    argv += ["--plan", str(plan), "--model", str(index)]
    argv += [f"--{flag}" for flag in ("trust_remote_code", "confirm_run_unsafe_code") if getattr(session.plan, flag)]
    device = model.loading.device or default_device()
    if device.startswith("cuda"):
        # An executor shows a job its own GPU only, which is the first one there.
        argv += ["--device", "cuda:0"]
    public = strip_secrets(dict(model.spec.args))
    secret = {name: value for name, value in model.spec.args.items() if public[name] != value}
    return Job(
        tuple(argv),
        model.spec.name,
        memory_gb=memory_gb(model.spec),
        devices=0 if device.startswith("cpu") else 1,
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
    stored: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    was = str(stored.get("dtype") or stored.get("torch_dtype") or "float32")
    wanted = str(spec.args.get("dtype", "auto"))
    grown = BYTES.get(wanted if wanted != "auto" else was, 4) / BYTES.get(was, 4)
    return BASE_GB + 1.2 * grown * size / 1e9


@contextmanager
def watched(surveyed: Sequence[ModelWork], progress: OnProgress) -> Iterator[None]:
    """Tell progress from the store while workers write to it."""
    pending = [work for model in surveyed for work in model.pending()]
    units = sum(len(model.works) + len(model.failures) for model in surveyed)
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(POLL_SECONDS):
            progress(seen(pending, units))

    thread = threading.Thread(target=look, name="densing-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        progress(seen(pending, units))


def seen(pending: Sequence[Work], units: int) -> Progress:
    """Return how far the units are, by their folders."""
    done = [work for work in pending if work.unit.done]
    finished = {work.key.digest for work in done}
    open_ = [(work, answered(work.unit.journal_path)) for work in pending if work.key.digest not in finished]
    count = sum(work.identity.requests for work in done) + sum(min(n, w.identity.requests) for w, n in open_)
    running = max(open_, key=lambda pair: pair[1], default=None)
    label, task = (running[0].key.label, running[0].identity.name) if running and running[1] else ("", "")
    total = sum(work.identity.requests for work in pending)
    return Progress(label, task, float(count), float(total), units - len(open_), units)


def _outcomes(model: ModelWork, plan: Path, index: int, result: JobResult | None) -> Iterator[UnitOutcome]:
    told = {} if result is None else _told(outcome_file(plan, index))
    for work in model.works:
        digest = work.key.digest
        if digest in told:
            # What a worker that was started again finds done, it did before.
            again = result is not None and result.attempts > 1 and told[digest].state == "skipped"
            yield dataclasses.replace(told[digest], state="evaluated") if again else told[digest]
        elif work.unit.done:
            # A worker that did its work and died before it could say so.
            state: Any = "skipped" if result is None else "evaluated"
            yield UnitOutcome(work.key.label, work.identity.name, digest, state)
        else:
            yield UnitOutcome(work.key.label, work.identity.name, digest, "failed", error=_reason(result))
    yield from model.failures


def _told(path: Path) -> Mapping[str, UnitOutcome]:
    with suppress(OSError, ValueError):
        return {unit["digest"]: UnitOutcome.from_dict(unit) for unit in json.loads(path.read_text())["units"]}
    return {}


def _reason(result: JobResult | None) -> str:
    if result is None:
        return "no worker was started"
    last = f"; last lines: {' | '.join(result.lines[-3:])}" if result.lines else ""
    return (result.reason or f"worker ended with code {result.returncode}") + last
