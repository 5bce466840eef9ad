"""Toy traces and work on them: functions that other processes import, and a command that a job runs."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from densing.core.errors import InputError
from densing.efficiency.profile.batch import profile_ranks, read_list

Tell = Callable[[int], object]


@dataclass(frozen=True)
class Toy:
    """A file that stands for a trace; what it says is what its worker does."""

    path: Path
    member: str | None = None
    rank: int | None = None

    @property
    def label(self) -> str:
        """Name of the file."""
        return str(self.path)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size


def work(trace: Any, tell: Tell) -> dict[str, Any]:
    """Do what the file says, and leave a line in ``log`` beside it."""
    kind, rank = trace.path.read_text().split()[:2]
    with (trace.path.parent / "log").open("a") as log:
        log.write(f"{rank} {os.getpid()}\n")
    tell(trace.size // 2)
    if kind == "refuse":
        raise InputError(f"{trace.label}: no events; check the file")
    if kind == "bug":
        raise ZeroDivisionError(f"in {rank}")
    if kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "exit":
        os._exit(7)
    if kind == "once":
        # Dies the first time it is tried.
        mark = trace.path.with_suffix(".tried")
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if kind == "slow":
        time.sleep(0.3)
    if kind == "hang":
        time.sleep(600)
    return {"rank": int(rank), "source": trace.label, "comm_ns": 10 * int(rank), "steps": {"number": [1, 2]}}


def main(arguments: list[str]) -> None:
    """Profile a list of traces into a store: what ``densing profile --rank-files LIST --out STORE`` does."""
    listed, out = arguments
    for _ in profile_ranks(read_list(listed), work, jobs=1, out=out, options={"window": "all"}):
        pass


if __name__ == "__main__":
    main(sys.argv[1:])
