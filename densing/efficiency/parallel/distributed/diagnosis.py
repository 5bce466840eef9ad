"""Why a run failed, in one sentence: which rank, what it said or which signal killed it, where to read more."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from densing.core import DensingError, InputError
from densing.efficiency.parallel.distributed import folder
from densing.efficiency.parallel.distributed.watch import Watch

# How torchrun reports a process: "exitcode : -9 (pid: 123)".
_EXIT = re.compile(r"exitcode\s*:\s*(-?\d+)\s*\(pid:\s*(\d+)\)")
_LOG_BYTES = 1 << 16


class RunFailedError(DensingError):
    """A run that did not come to its end; the message says which rank, why, where its log is and how to go on."""


def diagnose(seen: Watch) -> DensingError:
    """Return the error to raise, once every process of the run has ended.

    What a rank says itself comes before what torchrun says of it; a rank that only lost its peers comes last.
    """
    errors = _errors(seen)
    for error in errors.values():
        if error["fault"] == "input":
            return InputError(str(error["message"]))
    what = next(_causes(seen, errors), "torchrun ended without a word")
    return RunFailedError(f"{what}; all ranks were stopped. {_way_on(seen)}")


def _causes(seen: Watch, errors: dict[int, dict[str, Any]]) -> Iterator[str]:
    """Give explanations, the surest first."""
    silent = [rank for rank in seen.dead if rank not in errors]
    codes = _exit_codes(seen)
    known = {rank: codes[seen.pids[rank]] for rank in silent if seen.pids[rank] in codes}
    # torchrun ends the others by SIGTERM, and reports that no differently.
    yield from (f"rank {rank} {_ended(code)}{_log(seen, rank)}" for rank, code in known.items() if code != -15)
    yield from _spoken(seen, errors, "own", "failed")
    yield from _agents(seen)
    yield from _spoken(seen, errors, "timeout", "waited in vain for another rank, which hangs or is stopped")
    yield from (f"rank {rank} {_ended(code)}{_log(seen, rank)}" for rank, code in known.items())
    yield from (f"rank {rank} died without a word{_log(seen, rank)}" for rank in silent)
    yield from _spoken(seen, errors, "peer", "lost another rank")
    for number, code in enumerate(seen.codes):
        if code:
            yield f"torchrun ended with code {code}: {_last_line(folder.agent_log(seen.out, number))}"


def _agents(seen: Watch) -> Iterator[str]:
    for number, code in enumerate(seen.codes):
        if code is not None and code < 0:
            ranks = f"rank {number}" if len(seen.codes) > 1 else "all ranks"
            yield f"torchrun, which runs {ranks}, {_ended(code)}"


def _spoken(seen: Watch, errors: dict[int, dict[str, Any]], fault: str, what: str) -> Iterator[str]:
    for rank, error in errors.items():
        if error["fault"] == fault:
            yield f"rank {rank} {what}: {error['message']}{_log(seen, rank)}"


def _log(seen: Watch, rank: int) -> str:
    return f" (log: {folder.rank_log(seen.out, rank)})"


def _errors(seen: Watch) -> dict[int, dict[str, Any]]:
    found = {}
    for rank in range(seen.nproc):
        with suppress(DensingError):
            found[rank] = folder.read_json(folder.error_file(seen.out, rank))
    return found


def _exit_codes(seen: Watch) -> dict[int, int]:
    """Return how processes ended, as torchrun tells."""
    texts = [_tail(folder.agent_log(seen.out, number)) for number in range(len(seen.codes))]
    return {int(pid): int(code) for text in texts for code, pid in _EXIT.findall(text)}


def _ended(code: int) -> str:
    """Say how a process ended.

    Examples
    --------
    >>> _ended(-9), _ended(3)
    ('was killed (SIGKILL)', 'ended with code 3')
    """
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed ({signal.Signals(-code).name})"
    except ValueError:
        return f"was killed (signal {-code})"


def _way_on(seen: Watch) -> str:
    step = folder.newest_checkpoint(seen.out, seen.nproc)
    if step >= 0:
        return f"The same command with --resume goes on from step {step}"
    return "The same command with --resume starts anew; --checkpoint-every N would let it go on from a step"


def _last_line(log: Path) -> str:
    lines = [line for line in _tail(log).splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "it left no log"


def _tail(log: Path) -> str:
    try:
        return log.read_bytes()[-_LOG_BYTES:].decode(errors="replace")
    except OSError:
        return ""
