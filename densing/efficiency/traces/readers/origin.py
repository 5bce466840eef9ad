"""What the header of a trace says of the run: rank, size, back-end, devices, groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from densing.core import Note
from densing.efficiency.timeline import RECORDER, Origin
from densing.efficiency.traces.readers.comms import groups_of
from densing.efficiency.traces.readers.files import TraceFile


def rank_of(trace: TraceFile, header: Mapping[str, Any]) -> tuple[int, str, list[Note]]:
    """Return the rank of a trace, where that is known from, and a note unless the trace itself says it.

    Order: the user's word, ``distributedInfo``, the file's name, 0.

    Examples
    --------
    >>> from pathlib import Path
    >>> rank_of(TraceFile(Path("rank3.json")), {"distributedInfo": {"rank": 1}})[:2]
    (1, 'distributedInfo')
    >>> rank_of(TraceFile(Path("rank3.json")), {})[:2]
    (3, 'file name')
    """
    said = _count(_info(header).get("rank"))
    named = trace.rank_in_name()
    if trace.rank is not None:
        rank, source = trace.rank, "option"
    elif said is not None:
        return said, "distributedInfo", []
    elif named is not None:
        rank, source = named, "file name"
    else:
        rank, source = 0, "default"
    message = f"{trace.label}: rank {rank} is known from: {source}"
    if source == "default":
        message = f"{trace.label}: neither the trace nor its name tells the rank; taken for rank 0"
    return rank, source, [Note("rank-source", "info", message, {"rank": rank, "source": source})]


def origin_of(trace: TraceFile, rank_from: str, header: Mapping[str, Any]) -> Origin:
    """Return where a timeline came from and what its header says."""
    info = _info(header)
    size = _count(info.get("world_size"))
    devices = header.get("deviceProperties")
    names = [d.get("name") for d in devices if isinstance(d, dict)] if isinstance(devices, list) else []
    return Origin(
        source=trace.label,
        rank_from=rank_from,
        world_size=-1 if size is None else size,
        backend=_text(info.get("backend")),
        devices=tuple(name for name in names if isinstance(name, str)),
        host=_text(header.get("host_name") or header.get("hostname")),
        groups=groups_of(info),
        recorder=_text(header.get(RECORDER)),
    )


def _info(header: Mapping[str, Any]) -> Mapping[str, Any]:
    info = header.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def _count(value: Any) -> int | None:
    """A rank or size: a whole number from 0 on, perhaps written as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    return value if type(value) is int and 0 <= value < 2**31 else None


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(_text(part) for part in value)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""
