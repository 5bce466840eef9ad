"""What runs on the node: a job's command, started again when it crashes, requeued by Slurm when time runs out."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from densing.jobs.base import NO_RETRY, Job
from densing.jobs.process import Attempt, describe

POLL_SECONDS = 0.2

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
            time.sleep(POLL_SECONDS)
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
