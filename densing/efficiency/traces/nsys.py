"""Exports of Nsight Systems: ``nsys export --type sqlite REPORT.nsys-rep``, one database per report.

Kernels, copies, fills, runtime calls and NVTX ranges become the same events as of a Kineto trace. Steps are NVTX ranges
named ``ProfilerStep#N``, as torch's ``emit_nvtx`` and the profiler's ``step`` write them.

Source: Nsight Systems user guide, "SQLite Schema Reference" (tables ``CUPTI_ACTIVITY_KIND_*``, ``NVTX_EVENTS``,
``StringIds``, ``TARGET_INFO_GPU``; times in nanoseconds; ``NvtxPushPopRange`` is event type 59, ``NvtxStartEndRange``
60; of ``globalTid`` the lowest 24 bits are the thread, the next 24 the process).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from densing.core import InputError
from densing.efficiency.timeline import Classifier, RankTimeline
from densing.efficiency.traces.database import MAGIC, opened
from densing.efficiency.traces.kineto import Activity, assemble
from densing.efficiency.traces.source import Detail, Limits, Progress, TraceFile

SUFFIXES: tuple[str, ...] = (".sqlite",)
"""Suffixes of such exports."""
_KERNELS, _CALLS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
_DEVICE = {
    _KERNELS: ("kernel", "(SELECT value FROM StringIds WHERE id = demangledName)", "-1"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("gpu_memcpy", "'Memcpy ' || copyKind", "bytes"),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("gpu_memset", "'Memset'", "bytes"),
}
_COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
"""Kinds of copies, CUpti_ActivityMemcpyKind of CUPTI."""
_RANGES = (59, 60)


def recognise(head: bytes) -> bool:
    """Return whether a file with this beginning is a database of SQLite."""
    return head.startswith(MAGIC)


def read_rank(
    trace: TraceFile,
    *,
    classifier: Classifier | None = None,
    detail: Detail = "auto",
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> RankTimeline:
    """Read one export; parameters are those of :func:`densing.efficiency.traces.read_rank`.

    Raises
    ------
    InputError
        When the file is packed, damaged, or no export of Nsight Systems.
    """
    with opened(trace, "an export of Nsight Systems") as (database, tables):
        if not tables & {*_DEVICE, _CALLS}:
            raise InputError(
                f"{trace.label}: is no export of Nsight Systems, or has no CUDA work; use --trace cuda,nvtx"
            )
        header: dict[str, Any] = {"deviceProperties": []}
        if "TARGET_INFO_GPU" in tables:
            names = database.execute("SELECT name FROM TARGET_INFO_GPU ORDER BY id")
            header["deviceProperties"] = [{"name": name} for (name,) in names]
        return assemble(trace, _activities(database, tables), header, classifier=classifier, limits=limits)


def _activities(database: sqlite3.Connection, tables: set[str]) -> Iterator[Activity]:
    """Yield every event of a device, then of the host."""
    for table, (category, name, size) in _DEVICE.items():
        if table in tables:
            query = f"SELECT {name}, start, end, deviceId, streamId, correlationId, {size} FROM {table} ORDER BY start"
            for called, start, end, device, stream, correlation, moved in database.execute(query):
                if category == "gpu_memcpy":
                    kind = int(called.rpartition(" ")[2])
                    called = f"Memcpy {_COPIES.get(kind, kind)}"
                yield Activity(category, called or "unnamed kernel", start, end, device, stream, correlation, moved)
    if _CALLS in tables:
        query = (
            "SELECT (SELECT value FROM StringIds WHERE id = nameId), start, end, globalTid, correlationId "
            f"FROM {_CALLS} ORDER BY start"
        )
        for called, start, end, thread, correlation in database.execute(query):
            # cudaLaunchKernel_v7000: the version of the interface is no part of the call's name.
            name = (called or "").partition("_v")[0]
            yield Activity("cuda_runtime", name, start, end, thread >> 24 & 0xFFFFFF, thread & 0xFFFFFF, correlation)
    if "NVTX_EVENTS" in tables:
        query = (
            "SELECT coalesce(text, (SELECT value FROM StringIds WHERE id = textId)), start, end, globalTid "
            "FROM NVTX_EVENTS WHERE eventType IN (?, ?) AND end IS NOT NULL ORDER BY start"
        )
        for called, start, end, thread in database.execute(query, _RANGES):
            yield Activity("user_annotation", called or "", start, end, thread >> 24 & 0xFFFFFF, thread & 0xFFFFFF)
