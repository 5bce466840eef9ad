"""Processes that do not outlive whoever started them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

RUN_MARK = "DENSING_RUN"
"""Environment variable that every process of a run carries: a word that no other run has."""

_PR_SET_PDEATHSIG = 1
# Loaded here: between fork and exec nothing may be.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, however that ends (Linux; elsewhere nothing)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def orphaned(parent: int) -> bool:
    """Return whether the parent has gone before this process could ask to die with it."""
    return sys.platform == "linux" and os.getppid() != parent


def start(
    command: Sequence[str], *, log: IO[Any] | int, env: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own (Ctrl-C does not reach it), that dies with this process."""
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=log,
        stderr=subprocess.STDOUT if not isinstance(log, int) else None,
        env=env,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


def end(processes: Iterable[subprocess.Popen[bytes]], grace_s: float = 1.0) -> None:
    """Ask processes and all in their sessions to end, and kill those that do not within ``grace_s``."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        _signal_group(process, signal.SIGTERM)
    until = time.monotonic() + grace_s
    for process in running:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
    for process in running:
        _signal_group(process, signal.SIGKILL)
        process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def sweep(mark: str, within_s: float = 5.0) -> int:
    """Kill every process that carries ``mark`` and wait until none is left; return how many were found.

    A worker has a session of its own, so ending its agent's does not reach it; its environment tells it apart.
    """
    found: set[int] = set()
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        alive = [pid for pid in _pids() if pid != os.getpid() and _carries(Path(f"/proc/{pid}"), mark)]
        if not alive:
            break
        found.update(alive)
        for pid in alive:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return len(found)


def started_at(pid: int) -> str | None:
    """Return when a living process was started, as the kernel counts (tells a reused number apart); None if gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name, in brackets, may hold anything; after it come the state and 19 fields until the start.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def _pids() -> list[int]:
    try:
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    except OSError:
        return []


def _carries(folder: Path, mark: str) -> bool:
    try:
        return f"{RUN_MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
