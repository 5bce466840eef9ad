"""Reads a trace's JSON: header keys before and after the events, events in chunks, damage one event at a time."""

from __future__ import annotations

import json
from typing import Any

from densing.core import InputError, Note, Severity
from densing.efficiency.timeline import RECORDER
from densing.efficiency.traces.readers.events import Events
from densing.efficiency.traces.readers.feed import Feed, TooLong
from densing.efficiency.traces.readers.text import scan_value, skip_space

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

    def __init__(self, feed: Feed, events: Events, label: str) -> None:
        self._feed, self._events, self._label = feed, events, label
        self.header: dict[str, Any] = {}
        self.has_events = self._lone = False
        self.notes: list[Note] = []

    def read(self) -> None:
        """Read the whole file.

        Raises
        ------
        InputError
            When it is no trace at all.
        """
        feed = self._feed
        feed.fill(4)
        head = bytes(feed.data[feed.lo : min(feed.hi, feed.lo + 3)])
        if head[:2] in _BOMS or b"\x00" in head:
            raise InputError(f"{self._label}: is no UTF-8 text (UTF-16 or binary); save it as UTF-8")
        if head == b"\xef\xbb\xbf":
            feed.lo += 3
        first = self._next()
        if first is None:
            raise InputError(f"{self._label}: is empty; record it again")
        if first == ord("["):
            self._array()
            if not self._events.cut_short:
                self._rest()
        elif first == ord("{"):
            feed.lo += 1
            self._members()
        else:
            raise InputError(f"{self._label}: is not JSON (begins with {head!r}); a Kineto or Chrome trace is expected")
        if not self.has_events:
            raise InputError(f"{self._label}: has no traceEvents{self._why()}; a Kineto or Chrome trace is expected")

    def _why(self) -> str:
        """What is known of why there are no events."""
        if self._lone:
            return " (an event stands alone; put [ and ] around the events, and commas between them)"
        return f" ({self.notes[0].message.removeprefix(self._label + ': ')})" if self.notes else ""

    def _next(self) -> int | None:
        """Return the next byte that is no space or comma, without taking it; None at the end."""
        feed = self._feed
        while True:
            feed.lo, _ = skip_space(feed.data, feed.lo, feed.hi)
            if feed.lo < feed.hi:
                return feed.data[feed.lo]
            if not feed.more():
                return None

    def _array(self) -> None:
        self._feed.lo += 1
        self.has_events = True
        self._events.read_array()

    def _rest(self) -> None:
        """Tell what follows the trace's end, other than space and padding; none of it is read."""
        feed = self._feed
        while not (held := bytes(feed.data[feed.lo : feed.hi]).lstrip(b"\x00 \t\r\n")):
            feed.lo = feed.hi
            if not feed.more():
                return
        at = feed.position + feed.hi - feed.lo - len(held)
        if held[:1] in (b"{", b"["):
            self._warn(
                "text-after-end", f"a second document begins at byte {at} and was not read; split it off", "error"
            )
        else:
            self._warn("text-after-end", f"the text from byte {at} on is no part of the trace and was not read")

    def _members(self) -> None:
        while (byte := self._next()) is not None and byte != ord("}"):
            try:
                self._member()
            except _Unreadable as problem:
                if self.has_events or not self._find_events():
                    self._warn("header-unreadable", f"unreadable text at byte {self._feed.position} ({problem})")
                    return
                self._warn("header-unreadable", f"the header is unreadable ({problem}); only the events were read")
                self._array()
        if byte is not None:
            self._feed.lo += 1
            self._rest()
        elif not self._events.cut_short:
            self._warn("file-ends-early", f"ends early, at byte {self._feed.position}")

    def _member(self) -> None:
        feed = self._feed
        key = self._value()
        colon = self._next()
        if not isinstance(key, str) or colon != ord(":"):
            raise _Unreadable("no key")
        feed.lo += 1
        first = self._next()
        if key == "traceEvents" and first == ord("["):
            return self._array()
        value = self._value()
        self._lone = self._lone or key in _OF_EVENTS
        if key in HEADER:
            self.header[key] = value
        return None

    def _value(self) -> Any:
        """Read one value of the header, however it lies over the chunks."""
        try:
            value, used = scan_value(self._feed, lambda _: True)
        except json.JSONDecodeError as error:
            raise _Unreadable(error.msg) from error
        except RecursionError as error:
            raise _Unreadable("nested too deeply") from error
        except TooLong as error:
            raise _Unreadable(f"longer than {self._feed.limit} bytes") from error
        self._feed.lo += used
        return value

    def _find_events(self) -> bool:
        """Go to the array of events without understanding what comes before it."""
        feed = self._feed
        while True:
            at = feed.data.find(_EVENTS, feed.lo, feed.hi)
            if at >= 0:
                feed.lo = at + len(_EVENTS)
                if self._next() == ord(":"):
                    feed.lo += 1
                    if self._next() == ord("["):
                        return True
                continue
            feed.lo = max(feed.lo, feed.hi - len(_EVENTS))
            if not feed.more():
                return False

    def _warn(self, code: str, what: str, severity: Severity = "warning") -> None:
        self.notes.append(Note(code, severity, f"{self._label}: {what}", {"file": self._label}))
