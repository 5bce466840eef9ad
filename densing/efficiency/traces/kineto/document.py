"""A trace's JSON document: keys before and after the events, and what they say of the run.

The array of events is read in chunks, the rest value by value; damage costs one value or one event.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from densing.core import InputError, Note, Severity
from densing.efficiency.timeline import RECORDER, Origin
from densing.efficiency.traces.kineto.array import EventArray
from densing.efficiency.traces.kineto.communications import groups_of
from densing.efficiency.traces.kineto.text import TextBuffer, TooLong, scan_value
from densing.efficiency.traces.source import TraceFile

_OF_EVENTS = ("ph", "cat", "name", "ts", "pid", "tid")

HEADER = ("distributedInfo", "deviceProperties", "baseTimeNanoseconds", "host_name", "hostname", "schemaVersion",
          RECORDER)  # fmt: skip
_EVENTS = b'"traceEvents"'
_BOMS = (b"\xff\xfe", b"\xfe\xff")


class _Unreadable(Exception):
    """A value of the header makes no sense."""


class Document:
    """A trace file: ``{"key": value, "traceEvents": [...], "key": value}``, or the array alone.

    Attributes
    ----------
    header : dict
        The keys of ``HEADER`` that the file has.
    has_events : bool
        Whether an array of events was found.
    notes : list of Note
        What is wrong with the file as a whole.
    """

    def __init__(self, buffer: TextBuffer, events: EventArray, label: str) -> None:
        self._buffer, self._events, self._label = buffer, events, label
        self.header: dict[str, Any] = {}
        self.has_events = self._is_lone_event = False
        self.notes: list[Note] = []

    def read(self) -> None:
        """Read the whole file.

        Raises
        ------
        InputError
            When it is no trace at all.
        """
        buffer = self._buffer
        buffer.fill(4)
        head = bytes(buffer.data[buffer.lo : min(buffer.hi, buffer.lo + 3)])
        if head[:2] in _BOMS or b"\x00" in head:
            raise InputError(f"{self._label}: is no UTF-8 text (UTF-16 or binary); save it as UTF-8")
        if head == b"\xef\xbb\xbf":
            buffer.lo += 3
        first, _ = buffer.next_byte()
        if first is None:
            raise InputError(f"{self._label}: is empty; record it again")
        if first == ord("["):
            self._array()
            if not self._events.cut_short:
                self._after_end()
        elif first == ord("{"):
            buffer.lo += 1
            self._members()
        else:
            raise InputError(f"{self._label}: is not JSON (begins with {head!r}); a Kineto or Chrome trace is expected")
        if not self.has_events:
            reason = f" ({self.notes[0].message.removeprefix(self._label + ': ')})" if self.notes else ""
            if self._is_lone_event:
                reason = " (an event stands alone; put [ and ] around the events, and commas between them)"
            raise InputError(f"{self._label}: has no traceEvents{reason}; a Kineto or Chrome trace is expected")

    def _array(self) -> None:
        self._buffer.lo += 1
        self.has_events = True
        self._events.read()

    def _after_end(self) -> None:
        """Tell what follows the trace's end, other than space and padding; none of it is read."""
        buffer = self._buffer
        while not (text := bytes(buffer.data[buffer.lo : buffer.hi]).lstrip(b"\x00 \t\r\n")):
            buffer.lo = buffer.hi
            if not buffer.more():
                return
        at = buffer.position + buffer.hi - buffer.lo - len(text)
        if text[:1] in (b"{", b"["):
            self._warn(
                "text-after-end", f"a second document begins at byte {at} and was not read; split it off", "error"
            )
        else:
            self._warn("text-after-end", f"the text from byte {at} on is no part of the trace and was not read")

    def _members(self) -> None:
        while (byte := self._buffer.next_byte()[0]) is not None and byte != ord("}"):
            try:
                self._member()
            except _Unreadable as problem:
                if self.has_events or not self._find_events():
                    self._warn("header-unreadable", f"unreadable text at byte {self._buffer.position} ({problem})")
                    return
                self._warn("header-unreadable", f"the header is unreadable ({problem}); only the events were read")
                self._array()
        if byte is not None:
            self._buffer.lo += 1
            self._after_end()
        elif not self._events.cut_short:
            self._warn("file-ends-early", f"ends early, at byte {self._buffer.position}")

    def _member(self) -> None:
        buffer = self._buffer
        key = self._value()
        colon, _ = buffer.next_byte()
        if not isinstance(key, str) or colon != ord(":"):
            raise _Unreadable("no key")
        buffer.lo += 1
        first, _ = buffer.next_byte()
        if key == "traceEvents" and first == ord("["):
            self._array()
            return
        value = self._value()
        self._is_lone_event = self._is_lone_event or key in _OF_EVENTS
        if key in HEADER:
            self.header[key] = value

    def _value(self) -> Any:
        """Read one value of the header, however it lies over the chunks."""
        try:
            value, used = scan_value(self._buffer, lambda _: True)
        except json.JSONDecodeError as error:
            raise _Unreadable(error.msg) from error
        except RecursionError as error:
            raise _Unreadable("nested too deeply") from error
        except TooLong as error:
            raise _Unreadable(f"longer than {self._buffer.limit} bytes") from error
        self._buffer.lo += used
        return value

    def _find_events(self) -> bool:
        """Go to the array of events without understanding what comes before it."""
        buffer = self._buffer
        while True:
            at = buffer.data.find(_EVENTS, buffer.lo, buffer.hi)
            if at >= 0:
                buffer.lo = at + len(_EVENTS)
                if buffer.next_byte()[0] == ord(":"):
                    buffer.lo += 1
                    if buffer.next_byte()[0] == ord("["):
                        return True
                continue
            buffer.lo = max(buffer.lo, buffer.hi - len(_EVENTS))
            if not buffer.more():
                return False

    def _warn(self, code: str, message: str, severity: Severity = "warning") -> None:
        self.notes.append(Note(code, severity, f"{self._label}: {message}", {"file": self._label}))


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
    recorded = _count(_info(header).get("rank"))
    in_name = trace.rank_in_name()
    if trace.rank is not None:
        rank, source = trace.rank, "option"
    elif recorded is not None:
        return recorded, "distributedInfo", []
    elif in_name is not None:
        rank, source = in_name, "file name"
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
