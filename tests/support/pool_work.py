"""Work for the pool's tests: functions that other processes import."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from densing.scores.ladder.workers import each


def square(number: int, tell: Callable[..., object]) -> int:
    """Tell the number and return its square."""
    tell("at", number)
    return number * number


def fail(number: int, _: Callable[..., object]) -> int:
    """Raise for 1."""
    if number == 1:
        raise ValueError("one is not wanted")
    return number


def die(number: int, _: Callable[..., object]) -> int:
    """End as if the system had killed the process for want of memory."""
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def sleep_long(place: str, _: Callable[..., object]) -> None:
    """Leave this process's number and sleep."""
    Path(place).write_text(str(os.getpid()))
    time.sleep(600)


if __name__ == "__main__":
    each(sleep_long, [str(Path(sys.argv[1]) / name) for name in "ab"], 2)
