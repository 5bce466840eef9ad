"""Databases of rocprofv3 (ROCm 7): ``rocprofv3 --runtime-trace --marker-trace --output-format rocpd``, one per process.

Kernels, copies, HIP calls and ROCTx ranges become the same events as of a Kineto trace. Steps are ROCTx ranges named
``ProfilerStep#N``. A call and what it launched share the ``stack_id`` of their events.

Source: schema of rocprofiler-sdk (``rocpd_tables.sql``, version 3): the views ``rocpd_kernel_dispatch``,
``rocpd_memory_copy``, ``rocpd_region``, ``rocpd_event``, ``rocpd_string``, ``rocpd_info_*``; times in nanoseconds.
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

SUFFIXES: tuple[str, ...] = (".db", ".rocpd")
"""Suffixes of such databases."""
_NEEDED = {"rocpd_kernel_dispatch", "rocpd_info_kernel_symbol", "rocpd_info_agent", "rocpd_event", "rocpd_string"}
_COPIES = {
    "HOST_TO_DEVICE": "Memcpy HtoD",
    "DEVICE_TO_HOST": "Memcpy DtoH",
    "DEVICE_TO_DEVICE": "Memcpy DtoD",
    "HOST_TO_HOST": "Memcpy HtoH",
}
_AGENT = "coalesce(A.type_index, A.logical_index, A.id)"
_KERNELS = f"""
    SELECT coalesce(S.display_name, S.kernel_name), K.start, K.end, {_AGENT}, K.stream_id, E.stack_id
    FROM rocpd_kernel_dispatch K
    LEFT JOIN rocpd_info_kernel_symbol S ON S.id = K.kernel_id
    LEFT JOIN rocpd_info_agent A ON A.id = K.agent_id
    LEFT JOIN rocpd_event E ON E.id = K.event_id
    ORDER BY K.start"""
_MOVED = f"""
    SELECT S.string, C.start, C.end, {_AGENT}, C.stream_id, E.stack_id, C.size
    FROM rocpd_memory_copy C
    LEFT JOIN rocpd_string S ON S.id = C.name_id
    LEFT JOIN rocpd_info_agent D ON D.id = C.dst_agent_id
    LEFT JOIN rocpd_info_agent A ON A.id = CASE WHEN D.type = 'GPU' THEN C.dst_agent_id ELSE C.src_agent_id END
    LEFT JOIN rocpd_event E ON E.id = C.event_id
    ORDER BY C.start"""
_REGIONS = """
    SELECT N.string, json_extract(E.extdata, '$.message'), T.string, R.start, R.end, R.pid, R.tid, E.stack_id
    FROM rocpd_region R
    LEFT JOIN rocpd_string N ON N.id = R.name_id
    LEFT JOIN rocpd_event E ON E.id = R.event_id
    LEFT JOIN rocpd_string T ON T.id = E.category_id
    ORDER BY R.start"""


def recognise(head: bytes) -> bool:
    """Return whether a file with this beginning is a database of rocprofv3.

    Examples
    --------
    >>> recognise(b"SQLite format 3\\x00 ... CREATE TABLE rocpd_string"), recognise(b"SQLite format 3\\x00")
    (True, False)
    """
    return head.startswith(MAGIC) and b"rocpd_" in head


def read_rank(
    trace: TraceFile,
    *,
    classifier: Classifier | None = None,
    detail: Detail = "auto",
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> RankTimeline:
    """Read one database; parameters are those of :func:`densing.efficiency.traces.read_rank`.

    Raises
    ------
    InputError
        When the file is packed, damaged, no database of rocprofv3, or holds the work of several processes.
    """
    with opened(trace, "a database of rocprofv3") as (database, tables):
        if missing := sorted(_NEEDED - tables):
            raise InputError(f"{trace.label}: has no {missing[0]}; write it with rocprofv3 --output-format rocpd")
        processes = database.execute("SELECT count(DISTINCT guid || ' ' || pid) FROM rocpd_kernel_dispatch").fetchone()
        if processes[0] > 1:
            raise InputError(
                f"{trace.label}: holds the work of {processes[0]} processes; give the database of each process"
            )
        used = "SELECT agent_id FROM rocpd_kernel_dispatch"
        names = database.execute(
            f"SELECT coalesce(product_name, model_name, name) FROM rocpd_info_agent WHERE id IN ({used}) ORDER BY id"
        )
        header: dict[str, Any] = {"deviceProperties": [{"name": name} for (name,) in names]}
        if "rocpd_info_node" in tables and (
            node := database.execute("SELECT hostname FROM rocpd_info_node").fetchone()
        ):
            header["host_name"] = node[0]
        return assemble(trace, _activities(database, tables), header, classifier=classifier, limits=limits)


def _activities(database: sqlite3.Connection, tables: set[str]) -> Iterator[Activity]:
    """Yield every event of a device, then of the host; what no call launched has no correlation."""
    for name, start, end, device, stream, stack in database.execute(_KERNELS):
        yield Activity("kernel", name or "unnamed kernel", start, end, device, stream, stack or -1)
    if "rocpd_memory_copy" in tables:
        for name, start, end, device, stream, stack, size in database.execute(_MOVED):
            kind = (name or "").removeprefix("MEMORY_COPY_")
            lane = -1 if device is None else device
            copy = _COPIES.get(kind, f"Memcpy {kind}")
            yield Activity("gpu_memcpy", copy, start, end, lane, stream or 0, stack or -1, size)
    if "rocpd_region" in tables:
        for name, message, category, start, end, process, thread, stack in database.execute(_REGIONS):
            if (category or "").startswith(("MARKER", "RCCL")):
                yield Activity("user_annotation", message or name or "", start, end, process, thread)
            else:
                yield Activity("cuda_runtime", name or "", start, end, process, thread, stack or -1)
