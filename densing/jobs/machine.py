"""What this machine has: memory in units of 10^9 bytes, and accelerators."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

GB = 1e9
NO_LIMIT = float("inf")
MEMINFO = Path("/proc/meminfo")
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
ASK_SECONDS = 20.0


def total_memory_gb() -> float:
    """Return the memory this process may use: the machine's, or its container's when that is less.

    Examples
    --------
    >>> total_memory_gb() > 0
    True
    """
    return min(_meminfo("MemTotal"), _installed(), *map(_limit, CGROUP_LIMITS))


def available_memory_gb() -> float:
    """Return the memory that is free or can be freed now; infinite where the system does not say."""
    return _meminfo("MemAvailable")


def accelerators() -> list[str]:
    """Return the ids of the accelerators this process may use, as ``CUDA_VISIBLE_DEVICES`` takes them.

    The variable decides when it is set; otherwise the driver is asked, without loading torch.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [part.strip() for part in visible.split(",") if part.strip() not in ("", "-1", "NoDevFiles")]
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        answer = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=ASK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if answer.returncode:
        return []
    # A line per GPU; those of its MIG instances are indented.
    count = sum(line.startswith("GPU ") for line in answer.stdout.splitlines())
    return [str(index) for index in range(count)]


def _meminfo(field: str) -> float:
    try:
        lines = MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return NO_LIMIT
    for line in lines:
        if line.startswith(f"{field}:"):
            return float(line.split()[1]) * 1024 / GB
    return NO_LIMIT


def _installed() -> float:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GB
    except (ValueError, OSError, AttributeError):
        return NO_LIMIT


def _limit(file: Path) -> float:
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return NO_LIMIT
    return NO_LIMIT if text == "max" else float(text) / GB
