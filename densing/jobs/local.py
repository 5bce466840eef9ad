"""Jobs on this machine: one process per device, the others wait for a device and for memory."""

from __future__ import annotations

import logging
import os
import selectors
import shutil
import subprocess
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from densing.core import InputError
from densing.jobs.attempt import Attempt, describe
from densing.jobs.base import (
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

LOG = logging.getLogger(__name__)
POLL_SECONDS = 0.1
GB = 1e9
NO_LIMIT = float("inf")
MEMINFO = Path("/proc/meminfo")
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
ASK_SECONDS = 20.0


class LocalExecutor:
    """Run jobs as processes of this machine.

    Parameters
    ----------
    workers : int
        Jobs on the processor at a time; those that need accelerators are limited by them alone.
    devices : str or sequence of str, optional
        Accelerators to use, ``"0,1"``; all visible ones when left out.
    memory_gb : float, optional
        Memory to hand out, in units of 10^9 bytes; the machine's when left out.
    retries : int
        How often a crashed job is started again.

    Raises
    ------
    InputError
        When an option makes no sense.

    Examples
    --------
    >>> import sys
    >>> [result] = LocalExecutor().run([Job((sys.executable, "-c", "print('hello')"), "greet")])
    >>> result.ok, result.lines
    (True, ('hello',))
    """

    name = "local"

    def __init__(
        self,
        workers: int | str = 1,
        devices: str | Sequence[str] | None = None,
        memory_gb: float | str | None = None,
        retries: int | str = 2,
    ) -> None:
        self.workers = whole_option("workers", workers, 1)
        self.retries = whole_option("retries", retries, 0)
        self.memory_gb = total_memory_gb() if memory_gb is None else positive_option("memory_gb", memory_gb)
        if devices is None:
            self.devices = accelerators()
        else:
            names = [part.strip() for part in (devices.split(",") if isinstance(devices, str) else devices)]
            if len(set(names)) != len(names):
                raise InputError(f"--executor-arg devices={devices}: a device is named twice")
            self.devices = [name for name in names if name]

    def run(self, jobs: Sequence[Job], *, on_event: OnEvent = ignore) -> list[JobResult]:
        """Run every job to its end; see :class:`densing.jobs.Executor`.

        Raises
        ------
        InputError
            When a job needs more memory or devices than there are, before anything is started.
        """
        for job in jobs:
            if job.memory_gb is not None and job.memory_gb > self.memory_gb:
                raise InputError(
                    f"job {job.name} needs {job.memory_gb:.3g} GB of memory, this machine has {self.memory_gb:.3g} GB; "
                    "choose a smaller model or dtype, or --executor-arg memory_gb=..."
                )
            if job.devices > len(self.devices):
                raise InputError(
                    f"job {job.name} needs {job.devices} device(s), this machine has {len(self.devices)}; "
                    "choose --device cpu, or --executor-arg devices=..."
                )
        queue = _Queue(self, jobs, on_event)
        with queue.processes():
            while queue.unfinished():
                queue.start_what_fits()
                queue.listen()
                queue.collect()
        return queue.results()


@dataclass
class _Slot:
    """A job's place in the queue."""

    job: Job
    attempts: int = 0
    attempt: Attempt | None = None
    result: JobResult | None = None
    reasons: list[str] = field(default_factory=list)


class _Queue:
    """The state of one call of :meth:`LocalExecutor.run`."""

    def __init__(self, executor: LocalExecutor, jobs: Sequence[Job], on_event: OnEvent) -> None:
        self.executor = executor
        self.slots = [_Slot(job) for job in jobs]
        self.waiting = deque(self.slots)
        self.free = list(executor.devices)
        self.on_event = on_event
        self.selector = selectors.DefaultSelector()
        for job in jobs:
            on_event(JobEvent(job, "queued"))

    @property
    def running(self) -> list[_Slot]:
        return [slot for slot in self.slots if slot.attempt is not None]

    def unfinished(self) -> bool:
        return any(slot.result is None for slot in self.slots)

    def results(self) -> list[JobResult]:
        return [slot.result for slot in self.slots if slot.result is not None]

    @contextmanager
    def processes(self) -> Iterator[None]:
        """Leave no process behind, whatever ends the run (an error, Ctrl-C)."""
        try:
            yield
        finally:
            for slot in self.running:
                if slot.attempt is not None:
                    slot.attempt.stop()
            self.selector.close()

    def start_what_fits(self) -> None:
        """Start waiting jobs in order; one that does not fit lets smaller ones pass."""
        for slot in [slot for slot in self.waiting if self._fits(slot.job)]:
            # Again: what was started since may have taken its room.
            if not self._fits(slot.job):
                continue
            self.waiting.remove(slot)
            devices, self.free = self.free[: slot.job.devices], self.free[slot.job.devices :]
            slot.attempts += 1
            slot.attempt = Attempt(slot.job, devices)
            self.selector.register(slot.attempt.pipe, selectors.EVENT_READ, slot)
            kind: EventKind = "started" if slot.attempts == 1 else "restarted"
            LOG.debug("%s %s, attempt %d", kind, slot.job.name, slot.attempts)
            self.on_event(JobEvent(slot.job, kind, "; ".join(slot.reasons[-1:]), slot.attempts))

    def listen(self) -> None:
        """Wait briefly for output and pass it on."""
        for key, _ in self.selector.select(POLL_SECONDS):
            slot: _Slot = key.data
            if slot.attempt is not None:
                self._tell(slot, slot.attempt.read())
                if slot.attempt.silent:
                    # It closed its output; a closed pipe would be reported as readable for ever.
                    self.selector.unregister(slot.attempt.pipe)

    def collect(self) -> None:
        """Take in the processes that have ended."""
        for slot in self.running:
            attempt = slot.attempt
            if attempt is None or (code := attempt.finished()) is None:
                continue
            if not attempt.silent:
                self.selector.unregister(attempt.pipe)
            self._tell(slot, attempt.close())
            slot.attempt = None
            self.free = [name for name in self.executor.devices if name in (*self.free, *attempt.devices)]
            if code:
                slot.reasons.append(f"attempt {slot.attempts}: {describe(code)}")
                if code != NO_RETRY and slot.attempts <= self.executor.retries:
                    self.waiting.appendleft(slot)
                    continue
            slot.result = JobResult(slot.job, code, slot.attempts, tuple(attempt.lines), "; ".join(slot.reasons))
            self.on_event(JobEvent(slot.job, "failed" if code else "finished", slot.result.reason, slot.attempts))

    def _fits(self, job: Job) -> bool:
        if job.devices > len(self.free):
            return False
        if not job.devices and sum(not slot.job.devices for slot in self.running) >= self.executor.workers:
            return False
        if job.memory_gb is None or not self.running:
            # With nothing of ours running, waiting would change nothing.
            return True
        reserved = sum(slot.job.memory_gb or 0.0 for slot in self.running)
        return reserved + job.memory_gb <= self.executor.memory_gb and job.memory_gb <= available_memory_gb()

    def _tell(self, slot: _Slot, lines: Sequence[str]) -> None:
        for line in lines:
            self.on_event(JobEvent(slot.job, "output", line, slot.attempts))


def total_memory_gb() -> float:
    """Return the memory this process may use: the machine's, or its container's when that is less.

    Examples
    --------
    >>> total_memory_gb() > 0
    True
    """
    limits = [_meminfo("MemTotal")]
    # Neither is there on every system: no such name of sysconf, no such file.
    with suppress(ValueError, OSError, AttributeError):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GB)
    for file in CGROUP_LIMITS:
        with suppress(OSError):
            text = file.read_text(encoding="ascii").strip()
            limits.append(NO_LIMIT if text == "max" else float(text) / GB)
    return min(limits)


def available_memory_gb() -> float:
    """Return the memory that is free or can be freed now; infinite where the system does not say."""
    return _meminfo("MemAvailable")


def accelerators() -> list[str]:
    """Return the ids of the accelerators this process may use, as ``CUDA_VISIBLE_DEVICES`` takes them.

    The variable decides when it is set; otherwise the driver is asked, without loading torch.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [part.strip() for part in visible.split(",") if part.strip() not in ("", "-1", "NoDevFiles")]
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        answer = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=ASK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if answer.returncode:
        return []
    # A line per GPU; those of its MIG instances are indented.
    count = sum(line.startswith("GPU ") for line in answer.stdout.splitlines())
    return [str(index) for index in range(count)]


def _meminfo(field: str) -> float:
    try:
        lines = MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return NO_LIMIT
    for line in lines:
        if line.startswith(f"{field}:"):
            return float(line.split()[1]) * 1024 / GB
    return NO_LIMIT
