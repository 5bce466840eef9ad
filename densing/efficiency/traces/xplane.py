"""Profiles of JAX and TensorFlow (``*.xplane.pb``): a protocol buffer XSpace, read by hand from its wire format.

Of a device's plane the threads ``Stream #...`` or ``XLA Ops`` hold its work, ``Steps`` one event per step; calls of the
driver stand in planes of the host and carry the ``correlation_id`` of what they launched.

Source: ``xplane.proto`` of openxla/xla (XSpace.planes 1; XPlane.name 2, lines 3, event_metadata 4, stat_metadata 5;
XLine.id 1, name 2, timestamp_ns 3, events 4, display_name 11; XEvent.metadata_id 1, offset_ps 2, duration_ps 3,
stats 4; XStat.metadata_id 1, uint64_value 3, int64_value 4; XEventMetadata.id 1, name 2, display_name 4), and the wire
format of protocol buffers (varints, fields of a length, fixed 4 and 8 bytes).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from densing.core import InputError
from densing.efficiency.timeline import Classifier, RankTimeline
from densing.efficiency.traces.kineto import Activity, assemble, xla_category
from densing.efficiency.traces.source import Detail, Limits, Progress, Source, TraceFile

SUFFIXES: tuple[str, ...] = (".pb",)
"""Suffixes of such profiles."""
_PLANES = (b"/host:", b"/device:", b"Task Environment")
_BLOCK = 1 << 20
_PLANE, _NAME, _LINES, _EVENTS, _STATS = 1, 2, 3, 4, 5
_CORRELATION = "correlation_id"
Value = int | memoryview


class Damaged(ValueError):
    """The bytes are no protocol buffer, or end early."""


def fields(message: memoryview) -> Iterator[tuple[int, Value]]:
    """Yield the fields of a message in order: number, and an integer or the bytes of a field that has a length.

    Raises
    ------
    Damaged
        Where the bytes end within a field, or are none.

    Examples
    --------
    >>> [(number, bytes(value) if isinstance(value, memoryview) else value)
    ...  for number, value in fields(memoryview(bytes([8, 150, 1, 18, 2, 104, 105])))]
    [(1, 150), (2, b'hi')]
    """
    at, size = 0, len(message)
    while at < size:
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        length = {1: 8, 5: 4}.get(wire, -1)
        if wire == 2:
            length, at = _varint(message, at)
        if length < 0 or number == 0:
            raise Damaged("no field of a protocol buffer")
        if at + length > size:
            raise Damaged("it ends early")
        yield number, message[at : at + length]
        at += length


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    try:
        while True:
            byte = message[at]
            value |= (byte & 0x7F) << shift
            at += 1
            if byte < 0x80:
                return value & (1 << 64) - 1, at
            shift += 7
            if shift > 63:
                raise Damaged("a number is longer than 64 bits")
    except IndexError as error:
        raise Damaged("it ends early") from error


def recognise(head: bytes) -> bool:
    """Return whether a file with this beginning is a profile of XLA: its first field is a plane, with a plane's name.

    Examples
    --------
    >>> recognise(bytes([10, 14, 18, 9]) + b"/host:CPU" + bytes([34, 1, 0])), recognise(b"{}")
    (True, False)
    """
    view = memoryview(head)
    try:
        at = _varint(view, 1)[1] if head[:1] == b"\n" else 0
        if at and head[at : at + 1] == b"\x08":
            _, at = _varint(view, at + 1)
        if not at or head[at : at + 1] != b"\x12":
            return False
        _, at = _varint(view, at + 1)
    except Damaged:
        return False
    return head[at : at + 20].startswith(_PLANES)


def read_rank(
    trace: TraceFile,
    *,
    classifier: Classifier | None = None,
    detail: Detail = "auto",
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> RankTimeline:
    """Read one profile; parameters are those of :func:`densing.efficiency.traces.read_rank`.

    Raises
    ------
    InputError
        When the file cannot be read, is damaged or ends early, or passes a limit.
    """
    limits = limits or Limits()
    text, block = bytearray(), memoryview(bytearray(_BLOCK))
    with Source(trace.path, trace.member, trace.label, limits) as source:
        while count := source.readinto(block):
            text += block[:count]
            if progress:
                progress(source.consumed)
    header: dict[str, Any] = {"deviceProperties": []}
    try:
        planes = [_bytes(value) for number, value in fields(memoryview(text)) if number == _PLANE]
        return assemble(trace, _activities(planes), header, classifier=classifier, limits=limits)
    except (Damaged, UnicodeDecodeError) as error:
        raise InputError(
            f"{trace.label}: cannot be read as a profile of XLA ({error}); copy it again, or give its trace.json.gz"
        ) from error


class _Entry(NamedTuple):
    number: int
    name: str


def _bytes(value: Value) -> memoryview:
    if not isinstance(value, memoryview):
        raise Damaged("a number stands for a message")
    return value


def _integer(value: Value) -> int:
    """Return an int64, which the wire holds as an unsigned number."""
    if not isinstance(value, int):
        raise Damaged("a message stands for a number")
    return value - (1 << 64) if value >> 63 else value


def _text(value: Value) -> str:
    return str(_bytes(value), "utf-8", "replace")


def _entry(value: Value) -> _Entry:
    """Return id and name of an entry of a map of metadata; what is shown of an event counts before its full name."""
    key, names = 0, {}
    for number, part in fields(_bytes(value)):
        if number == 1:
            key = _integer(part)
        elif number == 2:
            names = {at: _text(each) for at, each in fields(_bytes(part)) if at in (2, 4)}
    return _Entry(key, names.get(4) or names.get(2) or "")


def _activities(planes: list[memoryview]) -> Iterator[Activity]:
    """Yield the events of every plane of a device or a host."""
    for plane in planes:
        name, lines, names, correlations = "", list[memoryview](), dict[int, str](), set[int]()
        for number, value in fields(plane):
            if number == _NAME:
                name = _text(value)
            elif number == _LINES:
                lines.append(_bytes(value))
            elif number == _EVENTS:
                entry = _entry(value)
                names[entry.number] = entry.name
            elif number == _STATS and (entry := _entry(value)).name == _CORRELATION:
                correlations.add(entry.number)
        if name.startswith(("/device:", "/host:")):
            for line in lines:
                yield from _line(name, line, names, correlations)


def _line(plane: str, line: memoryview, names: dict[int, str], correlations: set[int]) -> Iterator[Activity]:
    """Yield the events of one line; start in ns = timestamp_ns + offset_ps / 1000, rounded down like the end."""
    thread, title, shown, base, events = 0, "", "", 0, list[memoryview]()
    for number, value in fields(line):
        if number == 1:
            thread = _integer(value)
        elif number == 2:
            title = _text(value)
        elif number == 11:
            shown = _text(value)
        elif number == 3:
            base = _integer(value)
        elif number == 4:
            events.append(_bytes(value))
    for event in events:
        key = offset = duration = 0
        correlation = -1
        for number, value in fields(event):
            if number == 1:
                key = _integer(value)
            elif number == 2:
                offset = _integer(value)
            elif number == 3:
                duration = _integer(value)
            elif number == 4:
                stat = dict(fields(_bytes(value)))
                if stat.get(1) in correlations:
                    correlation = _integer(stat.get(4, stat.get(3, 0)))
        name, category = xla_category(names.get(key, ""), plane, shown or title)
        if correlation > 0 and plane.startswith("/host:"):
            category = "cuda_runtime"
        device = plane.removeprefix("/device:")
        lane = shown or title or str(thread)
        start, end = base + offset // 1000, base + (offset + max(duration, 0)) // 1000
        yield Activity(category, name, start, end, device, lane, correlation)
