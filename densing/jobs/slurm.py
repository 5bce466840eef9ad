"""Jobs on a Slurm cluster: array jobs through submitit, requeued when a node fails or time runs out.

:class:`SlurmExecutor` submits and watches; :class:`SlurmTask` is what runs on a node.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from densing.core import InputError, UnavailableError, install_command, is_secret_name, mask
from densing.jobs.attempt import Attempt, describe, flags
from densing.jobs.base import (
    LAST_LINES,
    NO_RETRY,
    EventKind,
    Job,
    JobEvent,
    JobResult,
    OnEvent,
    ignore,
    positive_option,
    whole_option,
)

PROGRAMS = ("sbatch", "srun", "squeue", "scancel")
LOST_SECONDS = 20.0
"""How long a task may be neither queued nor finished: shared file systems show new files late."""
ASK_SECONDS = 60.0
MAX_TIMEOUTS = 1000
TASK_POLL_SECONDS = 0.2
WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "SUSPENDED", "STOPPED")


class SlurmExecutor:
    """Run jobs as the tasks of a Slurm array job, one for each number of GPUs that jobs ask for.

    Parameters
    ----------
    partition, account, qos, constraint : str, optional
        As sbatch's options.
    time : int
        Minutes a task may run; when they are over it is requeued and goes on from the store.
    cpus : int
        Cores per task.
    memory_gb : float, optional
        Memory per task, in units of 10^9 bytes; the most any job states when left out, else the cluster's default.
    parallel : int
        Tasks at a time.
    retries : int
        How often a crashed command is started again on its node.
    logs : path, optional
        Where logs go, visible from all nodes; the jobs' own log folder when left out.
    setup : str, optional
        Shell line to run before, such as ``module load cuda``.
    poll : float
        Seconds between looks at the queue.

    Raises
    ------
    UnavailableError
        When submitit or Slurm's programs are not installed here.
    InputError
        When an option makes no sense.
    """

    name = "slurm"

    def __init__(
        self,
        partition: str | None = None,
        account: str | None = None,
        qos: str | None = None,
        constraint: str | None = None,
        time: int | str = 24 * 60,
        cpus: int | str = 1,
        memory_gb: float | str | None = None,
        parallel: int | str = 256,
        retries: int | str = 2,
        logs: str | Path | None = None,
        setup: str | None = None,
        poll: float | str = 5.0,
    ) -> None:
        missing = [program for program in PROGRAMS if shutil.which(program) is None]
        if missing:
            raise UnavailableError(f"--executor slurm: {', '.join(missing)} not found; run on a machine of the cluster")
        try:
            import submitit  # noqa: F401
        except ImportError as error:
            raise UnavailableError(
                f"--executor slurm: submitit is not installed; {install_command('slurm')}"
            ) from error
        texts = {"partition": partition, "account": account, "qos": qos, "constraint": constraint}
        self.options: dict[str, Any] = {key: value for key, value in texts.items() if value}
        self.options |= {
            "time": whole_option("time", time, 1),
            "cpus_per_task": whole_option("cpus", cpus, 1),
            "array_parallelism": whole_option("parallel", parallel, 1),
        }
        if setup:
            self.options["setup"] = [setup]
        self.memory_gb = None if memory_gb is None else positive_option("memory_gb", memory_gb)
        self.retries = whole_option("retries", retries, 0)
        self.logs = None if logs is None else Path(logs)
        self.poll = positive_option("poll", poll)

    def run(self, jobs: Sequence[Job], *, on_event: OnEvent = ignore) -> list[JobResult]:
        """Submit every job, wait for all; see :class:`densing.jobs.Executor`.

        Raises
        ------
        InputError
            When Slurm refuses the submission, with its words.
        """
        if not jobs:
            return []
        # Results come back as pickles: a folder of our own, so that none can lie there beforehand.
        folder = (self.logs or jobs[0].logs or jobs[0].workdir / "logs").resolve() / f"slurm-{uuid.uuid4().hex[:12]}"
        arrays: list[_Array] = []
        tasks: dict[int, _Task] = {}
        try:
            # Tasks of one array ask for the same: a small model would wait for the GPUs of the largest.
            for devices in dict.fromkeys(job.devices for job in jobs):
                indices = [index for index, job in enumerate(jobs) if job.devices == devices]
                handles = self._submit([jobs[index] for index in indices], folder / f"gpus-{devices}")
                arrays.append(_Array([_Task(jobs[i], handle) for i, handle in zip(indices, handles, strict=True)]))
                tasks |= dict(zip(indices, arrays[-1].tasks, strict=True))
            for task in tasks.values():
                on_event(JobEvent(task.job, "queued", f"Slurm job {task.handle.job_id}, logs in {folder}"))
            while any(task.result is None for task in tasks.values()):
                for array in arrays:
                    array.look(on_event)
                time.sleep(self.poll if any(task.result is None for task in tasks.values()) else 0)
        finally:
            for array in arrays:
                array.cancel()
        return [result for index in range(len(jobs)) if (result := tasks[index].result) is not None]

    def _submit(self, jobs: Sequence[Job], folder: Path) -> list[Any]:
        import submitit
        from submitit.core.utils import FailedJobError

        stored = [{name: f"DENSING_JOB_{index}_{name}" for name in job.env} for index, job in enumerate(jobs)]
        tasks = [
            SlurmTask(job.argv, job.name, str(job.workdir.resolve()), names, self.retries)
            for job, names in zip(jobs, stored, strict=True)
        ]
        for job in jobs:
            # Command lines are stored in the log folder: no credential may stand in one.
            for name in filter(is_secret_name, flags(job.argv)):
                raise InputError(f"job {job.name}: --{name} would be written to disk; hand it over in the environment")
        folder.mkdir(parents=True, exist_ok=True)
        executor = submitit.SlurmExecutor(folder=folder, max_num_timeout=MAX_TIMEOUTS)
        memory = self.memory_gb or max((job.memory_gb or 0.0 for job in jobs), default=0.0)
        devices = jobs[0].devices
        executor.update_parameters(
            **self.options,
            job_name="densing",
            **({"mem": f"{max(1, round(memory * 1e9 / 2**20))}M"} if memory else {}),
            **({"gpus_per_node": devices} if devices else {}),
            # Slurm puts the task back into the queue when its node fails.
            additional_parameters={"requeue": True},
        )
        values = {
            variable: job.env[name] for job, names in zip(jobs, stored, strict=True) for name, variable in names.items()
        }
        try:
            with _environment({**values, "PYTHONSAFEPATH": "1"}), executor.batch():
                handles = [executor.submit(task) for task in tasks]
        except (FailedJobError, subprocess.CalledProcessError) as error:
            lines = mask(str(error), tuple(values.values())).strip().splitlines()
            reason = next((line for line in lines if line.startswith("sbatch: error")), lines[-1])
            raise InputError(f"--executor slurm: {reason}; check --executor-arg") from error
        return handles


@dataclass
class _Task:
    """One task of the array: its job, submitit's handle, and what the queue last said."""

    job: Job
    handle: Any
    state: str = ""
    starts: int = 0
    missing_since: float | None = None
    result: JobResult | None = None


@dataclass
class _Array:
    """The tasks that were submitted together, looked at together."""

    tasks: list[_Task]

    @property
    def number(self) -> str:
        return str(self.tasks[0].handle.job_id).split("_")[0]

    def look(self, on_event: OnEvent) -> None:
        """Take in results, and what the queue says of the tasks without one."""
        if all(task.result is not None for task in self.tasks):
            return
        queue = _queue(self.number)
        for task in self.tasks:
            if task.result is not None:
                continue
            task.result = _outcome(task)
            if task.result is None:
                self._follow(task, queue, on_event)
            if task.result is not None:
                kind: EventKind = "finished" if task.result.ok else "failed"
                on_event(JobEvent(task.job, kind, task.result.reason, task.result.attempts))

    def _follow(self, task: _Task, queue: dict[str, tuple[str, str]] | None, on_event: OnEvent) -> None:
        if queue is None:
            # The queue did not answer; that says nothing about the task.
            return
        state, reason = queue.get(str(task.handle.job_id), ("", ""))
        if not state:
            # Neither in the queue nor finished: given up after a while.
            now = time.monotonic()
            task.missing_since = task.missing_since or now
            if now - task.missing_since > LOST_SECONDS:
                log = Path(task.handle.paths.stderr)
                lines = log.read_text("utf-8", "replace").splitlines()[-LAST_LINES:] if log.exists() else []
                reason = (
                    f"Slurm job {task.handle.job_id} left the queue without a result (cancelled, or killed by Slurm)"
                )
                masked = tuple(mask(line, ()) for line in lines)
                task.result = JobResult(task.job, None, max(1, task.starts), masked, reason)
            return
        task.missing_since = None
        if state == "RUNNING" != task.state:
            task.starts += 1
            on_event(JobEvent(task.job, "started" if task.starts == 1 else "restarted", reason, task.starts))
        elif state in WAITING and task.state == "RUNNING":
            on_event(JobEvent(task.job, "queued", f"back in the queue: {reason}", task.starts))
        task.state = state if state in ("RUNNING", *WAITING) else task.state

    def cancel(self) -> None:
        """Cancel what is still in the queue, after Ctrl-C or an error."""
        if any(task.result is None for task in self.tasks):
            subprocess.run(["scancel", self.number], capture_output=True, timeout=ASK_SECONDS, check=False)


def _outcome(task: _Task) -> JobResult | None:
    """Return the result submitit stored for a task, if it has ended."""
    file = Path(task.handle.paths.result_pickle)
    if not file.exists():
        return None
    try:
        kind, value = pickle.loads(file.read_bytes())
    except (OSError, EOFError, pickle.UnpicklingError):
        return None
    if kind != "success":
        lines = str(value).strip().splitlines()[-LAST_LINES:]
        return JobResult(task.job, None, max(1, task.starts), tuple(lines), lines[-1] if lines else "submitit failed")
    code, attempts, lines, reason = value
    return JobResult(task.job, code, attempts, tuple(lines), reason)


def _queue(number: str) -> dict[str, tuple[str, str]] | None:
    """Return state and reason of each task in the queue; None when the queue cannot be asked."""
    command = ["squeue", "--noheader", "--array", "--jobs", number, "--format", "%i|%T|%r"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=ASK_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return None
    if answer.returncode:
        # An array that has left Slurm's memory is an error to squeue, and an answer to us.
        return {} if "Invalid job id" in answer.stderr else None
    rows = [line.split("|") for line in answer.stdout.splitlines() if line.count("|") >= 2]
    return {row[0].strip(): (row[1], row[2] if row[2] != "None" else "") for row in rows}


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables for sbatch, which hands them to the job without writing them into the script."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


Outcome = tuple[int, int, tuple[str, ...], str]
"""Exit code, attempts, last lines, reason."""


@dataclass(frozen=True)
class SlurmTask:
    """A job as submitit stores it on disk: without the values of its variables, which travel in the environment.

    Parameters
    ----------
    argv, name, workdir
        As in :class:`densing.jobs.Job`.
    variables : mapping of str to str
        The job's variables, each by the name under which the environment of the Slurm job holds it.
    retries : int
        How often a crashed command is started again on the node.
    """

    argv: tuple[str, ...]
    name: str
    workdir: str
    variables: Mapping[str, str]
    retries: int

    def __call__(self) -> Outcome:
        """Run the command to its end."""
        env = {name: os.environ[stored] for name, stored in self.variables.items() if stored in os.environ}
        job = Job(self.argv, self.name, workdir=Path(self.workdir), env=env)
        before = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        reasons = [f"requeued by Slurm {before} time(s)"] if before else []
        for number in range(1, self.retries + 2):
            code, lines = _run(job)
            if code:
                reasons.append(f"attempt {before + number}: {describe(code)}")
            if code in (0, NO_RETRY):
                break
        return code, before + number, lines, "; ".join(reasons)

    def checkpoint(self) -> Any:
        """Ask submitit to run the same again in a new slot: the store knows what is done."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _run(job: Job) -> tuple[int, tuple[str, ...]]:
    attempt = Attempt(job, None)
    code: int | None = None
    try:
        while (code := attempt.finished()) is None:
            _forward(attempt.read())
            time.sleep(TASK_POLL_SECONDS)
        _forward(attempt.close())
    finally:
        if code is None:
            # A signal of Slurm's: time is up, or the job makes room for another.
            attempt.stop()
    return code, tuple(attempt.lines)


def _forward(lines: list[str]) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
