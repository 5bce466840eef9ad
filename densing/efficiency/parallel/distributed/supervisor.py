"""The ranks of a run seen from outside: who has come, who has gone, whether all ended well, and if not, why."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from densing.core import DensingError, InputError, processes
from densing.efficiency.parallel.distributed import folder

_TICK_S = 0.05
# torchrun notices a dead rank within 0.1 s and then says how it died; this is how long it may take over it.
_GRACE_S = 3.0
# How torchrun reports a process: "exitcode : -9 (pid: 123)".
_EXIT = re.compile(r"exitcode\s*:\s*(-?\d+)\s*\(pid:\s*(\d+)\)")
_LOG_BYTES = 1 << 16


class RunFailedError(DensingError):
    """A run that did not come to its end; the message says which rank, why, where its log is and how to go on."""


class Supervisor:
    """What is seen of the ranks of a run.

    Parameters
    ----------
    out : Path
    nproc : int
    agents : sequence of subprocess.Popen
        torchrun: one for all ranks, or one per rank.

    Attributes
    ----------
    codes : list of int or None
        Of the agents, when last looked at; negative: killed by that signal.
    pids : dict of int to int
        Process of each rank that has come.
    dead : list of int
        Ranks that have gone without a record, in the order in which that was seen.
    """

    def __init__(self, out: Path, nproc: int, agents: Sequence[subprocess.Popen[bytes]]) -> None:
        self.out, self.nproc = out, nproc
        self.codes: list[int | None] = [None] * len(agents)
        self.pids: dict[int, int] = {}
        self.dead: list[int] = []
        self._agents = agents
        self._started: dict[int, str] = {}

    def wait(self, on_step: Callable[[int], None] = lambda step: None) -> bool:
        """Return True once all agents have ended well, or False soon after something has gone wrong."""
        failed_at: float | None = None
        while True:
            self.codes = [agent.poll() for agent in self._agents]
            self._look()
            on_step(folder.read_progress(self.out))
            if all(code == 0 for code in self.codes):
                return True
            if failed_at is None and (self.dead or any(self.codes)):
                failed_at = time.monotonic()
            if failed_at is not None and self._explained(time.monotonic() - failed_at):
                return False
            time.sleep(_TICK_S)

    def _look(self) -> None:
        """Note which ranks have come, and which have gone since the last look."""
        for rank in range(self.nproc):
            if rank not in self.pids:
                with suppress(OSError, ValueError):
                    pid, _, started = folder.pid_file(self.out, rank).read_text().partition(" ")
                    self.pids[rank], self._started[rank] = int(pid), started
            elif rank not in self.dead:
                started = self._started[rank]
                # Where the kernel tells no starting times, only the agents can know.
                gone = started != "None" and processes.started_at(self.pids[rank]) != started
                # In this order: a rank that is done leaves its record before it goes.
                if gone and not folder.record_file(self.out, rank).exists():
                    self.dead.append(rank)

    def _explained(self, since_s: float) -> bool:
        """Return whether all that could say why has ended: the agent of each dead rank, or time is up."""
        if since_s > _GRACE_S:
            return True
        agents = {rank if len(self.codes) > 1 else 0 for rank in self.dead}
        return since_s > _GRACE_S / 6 and any(self.codes) and all(self.codes[agent] is not None for agent in agents)


def diagnose(supervisor: Supervisor) -> DensingError:
    """Return the error to raise, once every process of the run has ended.

    What a rank says itself comes before what torchrun says of it; a rank that only lost its peers comes last.
    """
    errors: dict[int, dict[str, Any]] = {}
    for rank in range(supervisor.nproc):
        with suppress(DensingError):
            errors[rank] = folder.read_json(folder.error_file(supervisor.out, rank))
    for error in errors.values():
        if error["fault"] == "input":
            return InputError(str(error["message"]))
    cause = next(_causes(supervisor, errors), "torchrun ended without a word")
    step = folder.newest_checkpoint(supervisor.out, supervisor.nproc)
    if step >= 0:
        remedy = f"The same command with --resume goes on from step {step}"
    else:
        remedy = "The same command with --resume starts anew; --checkpoint-every N would let it go on from a step"
    return RunFailedError(f"{cause}; all ranks were stopped. {remedy}")


def _causes(supervisor: Supervisor, errors: dict[int, dict[str, Any]]) -> Iterator[str]:
    """Give explanations, the surest first."""
    logs = [_tail(folder.agent_log(supervisor.out, number)) for number in range(len(supervisor.codes))]
    codes = {int(pid): int(code) for log in logs for code, pid in _EXIT.findall(log)}
    silent = [rank for rank in supervisor.dead if rank not in errors]
    reported = {rank: codes[supervisor.pids[rank]] for rank in silent if supervisor.pids[rank] in codes}
    deaths = {rank: f"rank {rank} {_ended(code)}{_log(supervisor, rank)}" for rank, code in reported.items()}
    # torchrun ends the others by SIGTERM, and reports that no differently.
    yield from (deaths[rank] for rank, code in reported.items() if code != -signal.SIGTERM)
    yield from _spoken(supervisor, errors, "own", "failed")
    for number, code in enumerate(supervisor.codes):
        if code is not None and code < 0:
            ranks = f"rank {number}" if len(supervisor.codes) > 1 else "all ranks"
            yield f"torchrun, which runs {ranks}, {_ended(code)}"
    yield from _spoken(supervisor, errors, "timeout", "waited in vain for another rank, which hangs or is stopped")
    yield from deaths.values()
    yield from (f"rank {rank} died without a word{_log(supervisor, rank)}" for rank in silent)
    yield from _spoken(supervisor, errors, "peer", "lost another rank")
    for code, log in zip(supervisor.codes, logs, strict=True):
        if code:
            lines = [line for line in log.splitlines() if line.strip()]
            yield f"torchrun ended with code {code}: {lines[-1].strip()[:300] if lines else 'it left no log'}"


def _spoken(supervisor: Supervisor, errors: dict[int, dict[str, Any]], fault: str, verb: str) -> Iterator[str]:
    for rank, error in errors.items():
        if error["fault"] == fault:
            yield f"rank {rank} {verb}: {error['message']}{_log(supervisor, rank)}"


def _log(supervisor: Supervisor, rank: int) -> str:
    return f" (log: {folder.rank_log(supervisor.out, rank)})"


def _ended(code: int) -> str:
    """Say how a process ended.

    Examples
    --------
    >>> _ended(-9), _ended(3)
    ('was killed (SIGKILL)', 'ended with code 3')
    """
    return f"ended with code {code}" if code >= 0 else f"was killed ({processes.signal_name(code)})"


def _tail(log: Path) -> str:
    try:
        return log.read_bytes()[-_LOG_BYTES:].decode(errors="replace")
    except OSError:
        return ""
