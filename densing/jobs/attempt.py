"""One attempt at a job on this machine: a process group that writes into a pipe and dies with us."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

from densing.core import mask, processes, secrets_of
from densing.jobs.base import LAST_LINES, Job

GRACE_SECONDS = 5.0
CHUNK = 65536
CHUNKS = 4
MAX_LINE = 2000


class Attempt:
    """A running process of a job; only the thread that started it may hold it.

    Parameters
    ----------
    job : Job
    devices : sequence of str, optional
        Accelerators it may see; an empty list hides them all, None leaves that to the environment.
    """

    def __init__(self, job: Job, devices: Sequence[str] | None) -> None:
        self.job = job
        self.devices = tuple(devices or ())
        self.lines: deque[str] = deque(maxlen=LAST_LINES)
        self._secrets = _secrets(job)
        self.silent = False
        self._rest = b""
        # PYTHONSAFEPATH: `python -m` would otherwise import from the folder it is started in before anything else.
        fixed = {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
        visible = {} if devices is None else {"CUDA_VISIBLE_DEVICES": ",".join(devices)}
        self._process = processes.start(
            job.argv, stdout=subprocess.PIPE, cwd=job.workdir, env={**os.environ, **fixed, **visible, **job.env}
        )
        assert self._process.stdout is not None
        self.pipe = self._process.stdout.fileno()
        os.set_blocking(self.pipe, False)

    def read(self) -> list[str]:
        """Return lines written since the last call, secrets removed; not all, when there are very many."""
        new: list[str] = []
        # Bounded: a job that writes without end must not keep us from looking after the others.
        for _ in range(CHUNKS):
            try:
                data = os.read(self.pipe, CHUNK)
            except BlockingIOError:
                break
            if not data:
                self.silent = True
                break
            *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
            self._rest = self._rest[-MAX_LINE:]
            new += [self._text(line) for line in lines if line.strip()]
        self.lines.extend(new)
        return new

    def finished(self) -> int | None:
        """Return the exit code, negative for a signal, or None while it runs."""
        return self._process.poll()

    def close(self) -> list[str]:
        """End what is left of the group, read what is left, and let go of the pipe."""
        processes.signal_group(self._process, signal.SIGKILL)
        new: list[str] = []
        while lines := self.read():
            new += lines
        if self._rest.strip():
            self.lines.append(self._text(self._rest))
            new.append(self.lines[-1])
        if self._process.stdout is not None:
            self._process.stdout.close()
        return new

    def stop(self) -> None:
        """Ask the group to end, and kill it when it has not within ``GRACE_SECONDS``."""
        processes.signal_group(self._process, signal.SIGTERM)
        end = time.monotonic() + GRACE_SECONDS
        while self.finished() is None and time.monotonic() < end:
            # A full pipe would keep it from ending.
            self.read()
            time.sleep(0.02)
        processes.signal_group(self._process, signal.SIGKILL)
        self._process.wait()
        self.close()

    def _text(self, line: bytes) -> str:
        return mask(line[:MAX_LINE].decode("utf-8", "replace").rstrip(), self._secrets)


def describe(returncode: int) -> str:
    """Say how a process ended.

    Examples
    --------
    >>> describe(-9), describe(3)
    ('killed by SIGKILL (out of memory?)', 'exit code 3')
    """
    if returncode >= 0:
        return f"exit code {returncode}"
    name = processes.signal_name(returncode)
    return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def _secrets(job: Job) -> tuple[str, ...]:
    """Return what must not show in the output; a variable may also hold several credentials as JSON."""
    secrets = [*secrets_of(dict(job.env)), *secrets_of(flags(job.argv))]
    for value in job.env.values():
        with suppress(ValueError):
            secrets += secrets_of(json.loads(value))
    return tuple(secrets)


def flags(argv: Sequence[str]) -> dict[str, str]:
    """Return the values after ``--flags`` of a command line."""
    return {flag.lstrip("-"): value for flag, value in pairwise(argv) if flag.startswith("--")}
