"""Processes that end with the one that started them, however that one ends.

There are two ways in. :func:`start` starts any command: a short script (:mod:`densing.core.parent_death`) ties itself
to the parent and then becomes the command. :func:`die_with_parent` is for Python processes that something else starts
(a pool of :mod:`concurrent.futures`): they tie themselves.

On Linux the kernel does it (``PR_SET_PDEATHSIG``), even when the parent is killed and cannot clean up; elsewhere a
Python process asks now and then whether its parent is still there, and of other commands the parent's own clean-up has
to do. Neither psutil nor concurrent.futures offers this. The signal is Popen's business only through a script: code of
ours between fork and exec (``preexec_fn``) may hang in a process that has threads.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from densing.core import parent_death

_POLL_SECONDS = 0.5


def start(
    command: Sequence[str],
    *,
    stdout: IO[bytes] | int,
    stderr: int | None = subprocess.STDOUT,
    stdin: int = subprocess.DEVNULL,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command that dies with this process, in a session of its own: Ctrl-C reaches it only through us.

    A command that cannot be run ends with code 127 and a sentence on its standard error.

    Examples
    --------
    >>> start(["echo", "hello"], stdout=subprocess.PIPE).communicate()[0]
    b'hello\\n'
    """
    # -I and -S: nothing of the user's environment or of installed packages may stand between us and the command.
    script = [sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid())]
    return subprocess.Popen(
        [*script, *command], stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, env=env, start_new_session=True
    )


def die_with_parent(parent: int) -> None:
    """End this process when the process ``parent``, which started it, does; at once if that is gone already.

    The kernel's signal comes when the *thread* that started this process ends, and is forgotten when a process changes
    its credentials, as on entering a user namespace: ask after that.
    """
    if sys.platform == "linux":
        parent_death.ask_kernel()
        if os.getppid() != parent:
            os._exit(1)
        return

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal a process of :func:`start` and all in its session that are still there."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def stop(processes: Iterable[subprocess.Popen[bytes]], grace_s: float = 1.0) -> None:
    """Ask processes of :func:`start` and all in their sessions to end, and kill those that do not in ``grace_s``."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        signal_group(process, signal.SIGTERM)
    until = time.monotonic() + grace_s
    for process in running:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
    for process in running:
        signal_group(process, signal.SIGKILL)
        process.wait()


def stopped(pid: int) -> bool:
    """Return whether a process is stopped (SIGSTOP, Ctrl-Z), as far as the kernel tells.

    Examples
    --------
    >>> stopped(os.getpid())
    False
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def signal_name(returncode: int) -> str:
    """Return the name of the signal that a negative exit code stands for.

    Examples
    --------
    >>> signal_name(-9), signal_name(-99)
    ('SIGKILL', 'signal 99')
    """
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


def processors() -> int:
    """Return the processors this process may use, which can be fewer than the machine has.

    Examples
    --------
    >>> processors() >= 1
    True
    """
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        # Not on macOS and Windows.
        return os.cpu_count() or 1
