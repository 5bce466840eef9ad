"""Waiting for what other processes do, and looking whether they are still there."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def until(check: Callable[[], object], seconds: float = 30.0) -> bool:
    """Wait for something to become true; return whether it did."""
    end = time.monotonic() + seconds
    while not check() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(check())


def alive(pid: int) -> bool:
    """Whether a process runs (one that only waits to be collected does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
