"""Become a command that dies with its parent: run as a script, ``parent_death.py PARENT_PID COMMAND...``.

:func:`densing.core.processes.start` runs it before every command, so it imports next to nothing.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
NOT_FOUND = 127


def ask_kernel() -> None:
    """Have the kernel kill this process when its parent ends, even if that is killed itself (Linux only)."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main(arguments: Sequence[str]) -> int:
    """Tie this process to its parent and replace it by the command; returns only when that fails."""
    parent, command = int(arguments[0]), list(arguments[1:])
    if sys.platform == "linux":
        ask_kernel()
        if os.getppid() != parent:
            # It died before the signal was set.
            return -signal.SIGKILL
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: cannot run ({error.strerror})\n")
    return NOT_FOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
