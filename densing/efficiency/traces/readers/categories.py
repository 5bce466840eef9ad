"""Which events of a trace are what: every category Kineto writes, as data.

Sources: libkineto ``ActivityType`` names (output of 2020 to 2026), torch's ``kineto_shim`` (which of them are the
processor's), Intel's PTI plug-in (``collective_comm`` is the host's side of a collective, prefixed ``xccl:``) and
Habana's (``hpu_op`` is the host's). The first exporter of 2020 wrote some of them capitalised.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache


class Role(IntEnum):
    """What a reader does with an event: device work, device waits, host calls, ranges, operators, frames, nothing."""

    DEVICE = 0
    SYNC = 1
    LAUNCH = 2
    RANGE = 3
    OP = 4
    SKIP = 5
    UNKNOWN = 6


KERNEL, MEMCPY, MEMSET, MTIA, SYNC = "kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events", "cuda_sync"

ROLES: dict[str, Role] = {
    KERNEL: Role.DEVICE,
    MEMCPY: Role.DEVICE,
    MEMSET: Role.DEVICE,
    MTIA: Role.DEVICE,
    "Kernel": Role.DEVICE,
    "Memcpy": Role.DEVICE,
    "Memset": Role.DEVICE,
    SYNC: Role.SYNC,
    "xpu_sync": Role.SYNC,
    "cuda_runtime": Role.LAUNCH,
    "cuda_driver": Role.LAUNCH,
    "xpu_runtime": Role.LAUNCH,
    "xpu_driver": Role.LAUNCH,
    "mtia_runtime": Role.LAUNCH,
    "glow_runtime": Role.LAUNCH,
    "privateuse1_runtime": Role.LAUNCH,
    "privateuse1_driver": Role.LAUNCH,
    "hpu_op": Role.LAUNCH,
    "runtime": Role.LAUNCH,
    "driver": Role.LAUNCH,
    "Runtime": Role.LAUNCH,
    "Driver": Role.LAUNCH,
    "user_annotation": Role.RANGE,
    "collective_comm": Role.RANGE,
    "cpu_op": Role.OP,
    "Operator": Role.OP,
    "gpu_user_annotation": Role.SKIP,
    "external_correlation": Role.SKIP,
    "cpu_instant_event": Role.SKIP,
    "python_function": Role.SKIP,
    "overhead": Role.SKIP,
    "mtia_insight": Role.SKIP,
    # Whole workloads, around the events of mtia_ccp_events that do them.
    "mtia_workloadd": Role.SKIP,
    # Our own overlay tracks, written back by `densing profile --perfetto`.
    "densing": Role.SKIP,
    "mtia_counters": Role.SKIP,
    "cuda_event": Role.SKIP,
    "cuda_profiler_range": Role.SKIP,
    "xpu_scope_profiler": Role.SKIP,
    "hardware_counters": Role.SKIP,
    "gpu_pm_counter": Role.SKIP,
    "Trace": Role.SKIP,
    "ac2g": Role.SKIP,
    "fwdbwd": Role.SKIP,
    "async_cpu_to_gpu": Role.SKIP,
    "async_gpu": Role.SKIP,
    "forward_backward": Role.SKIP,
}

# What is left out of a device's side: it shows that there was a device, and tells nothing of its work.
_OF_DEVICE = {
    "gpu_user_annotation",
    "cuda_event",
    "cuda_profiler_range",
    "xpu_scope_profiler",
    "gpu_pm_counter",
    "mtia_insight",
    "mtia_workloadd",
    "mtia_counters",
    "async_cpu_to_gpu",
    "async_gpu",
}

_ALIASES = {"Kernel": KERNEL, "Memcpy": MEMCPY, "Memset": MEMSET, "xpu_sync": SYNC}

# Other makers' plug-ins keep Kineto's pattern under their own prefix (mlu_memcpy, gcu_runtime, supa_sync, ...).
_PATTERNS: tuple[tuple[re.Pattern[str], Role, str], ...] = (
    (re.compile(r"(?i).+_memcpy"), Role.DEVICE, MEMCPY),
    (re.compile(r"(?i).+_memset"), Role.DEVICE, MEMSET),
    (re.compile(r"(?i).+_sync"), Role.SYNC, SYNC),
    (re.compile(r"(?i).+_(runtime|driver)"), Role.LAUNCH, ""),
    (re.compile(r"(?i).+_(user_annotation|profiler_range|counters?|overhead)"), Role.SKIP, ""),
)

# The exporter of autograd's first profiler wrote no category; its processes carry these names.
_PROCESSES = {"CUDA functions": KERNEL, "CPU functions": "cpu_op"}


@lru_cache(maxsize=1024)
def role(category: str) -> Role:
    """Return what to do with the events of a category.

    Examples
    --------
    >>> role("kernel").name, role("mlu_memcpy").name, role("Runtime").name, role("brand_new").name
    ('DEVICE', 'DEVICE', 'LAUNCH', 'UNKNOWN')
    """
    if category in ROLES:
        return ROLES[category]
    return next((role for pattern, role, _ in _PATTERNS if pattern.fullmatch(category)), Role.UNKNOWN)


def marks_device(category: str) -> bool:
    """Return whether events of a category, left out themselves, show that the run used a device.

    Examples
    --------
    >>> marks_device("cuda_profiler_range"), marks_device("gcu_profiler_range"), marks_device("fwdbwd")
    (True, True, False)
    """
    return category in _OF_DEVICE or (category not in ROLES and role(category) is Role.SKIP)


@lru_cache(maxsize=1024)
def canonical(category: str) -> str:
    """Return Kineto's present name of a device category, the category itself where it has no other.

    Examples
    --------
    >>> canonical("Memcpy"), canonical("mlu_memset"), canonical("kernel")
    ('gpu_memcpy', 'gpu_memset', 'kernel')
    """
    if category in ROLES:
        return _ALIASES.get(category, category)
    return next((name for pattern, _, name in _PATTERNS if name and pattern.fullmatch(category)), category)


def category_of(process: int | str) -> str:
    """Return the category of an event that has none, from its process; empty if that does not tell.

    Examples
    --------
    >>> category_of("CUDA functions"), category_of(7)
    ('kernel', '')
    """
    return _PROCESSES.get(process, "") if isinstance(process, str) else ""
