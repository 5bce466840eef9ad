"""The careful way through the array of events: one at a time, what is damaged repaired or left out, and told."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Protocol

from densing.core import Note, Severity
from densing.efficiency.traces.kineto.text import BOUNDARY, DECODER, END, START, TextBuffer, TooLong, scan_value

MAX_LOST = 100_000
"""Elements that are no events or cannot be read; a file with more is not read to its end."""
SHOWN = 5
"""Places told per reason."""

# Text that may be tried again with more of it, beyond four times what was read: damage must not make reading quadratic.
_PATIENCE = 1 << 26
_REPAIRABLE = 1 << 18
_OVERLAP = 1 << 12
_NAME_WIDTH = 80
_NEXT = re.compile(rb"\s*,\s*(?=\{)")
_CLOSE, _BRACE = ord("]"), ord("{")

Location = tuple[int, int] | Callable[[], tuple[int, int]]
"""Number and byte of an event, or a function that finds them."""


class Damage:
    """What was damaged in a trace, counted by reason, with the first places.

    Attributes
    ----------
    source : str
        The file, as messages name it.
    skipped, repaired : int
        Events left out; events kept after repair.

    Examples
    --------
    >>> damage = Damage("rank0.json")
    >>> damage.skip("duration is negative", (3, 812), "gemm")
    >>> damage.skipped, damage.notes()[0].severity
    (1, 'error')
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.skipped = self.repaired = 0
        self._skips: dict[str, dict[str, Any]] = {}
        self._repairs: dict[str, dict[str, Any]] = {}

    def skip(self, reason: str, location: Location, name: str = "") -> None:
        """Count an event that was left out."""
        self.skipped += 1
        _count(self._skips, reason, location, name)

    def repair(self, reason: str, location: Location, name: str = "") -> None:
        """Count an event that was kept after repair."""
        self.repaired += 1
        _count(self._repairs, reason, location, name)

    def notes(self) -> list[Note]:
        """Return one note per reason."""
        skips = [self._note("skipped", "error", reason, row) for reason, row in self._skips.items()]
        return skips + [self._note("repaired", "warning", reason, row) for reason, row in self._repairs.items()]

    def _note(self, verb: str, severity: Severity, reason: str, row: dict[str, Any]) -> Note:
        first, count = row["first"][0], row["count"]
        events = f"{count} events" if count > 1 else "1 event"
        where = f"event {first['event']}, byte {first['byte']}" + (f", {first['name']!r}" if first["name"] else "")
        message = f"{self.source}: {events} {verb}: {reason} ({'first: ' if count > 1 else ''}{where})"
        return Note(f"event-{verb}", severity, message, {"reason": reason, "file": self.source, **row})


def _count(table: dict[str, dict[str, Any]], reason: str, location: Location, name: str) -> None:
    row = table.setdefault(reason, {"count": 0, "first": []})
    row["count"] += 1
    if len(row["first"]) < SHOWN:
        # Finding a place takes a while; a file may be damaged in a million of them.
        event, byte = location() if callable(location) else location
        row["first"].append({"event": event, "byte": byte, "name": name[:_NAME_WIDTH]})


class Taker(Protocol):
    """What takes elements once they are understood."""

    count: int

    def take_one(self, value: dict[str, Any], used: int, reason: str) -> None:
        """Take an event, the next ``used`` bytes; ``reason`` says what was repaired."""


class Salvage:
    """Reads elements one at a time from a buffer.

    Attributes
    ----------
    cut_short : str
        Why reading ended before the array did; empty if it did not.
    owed : int or None
        Commas that belong before the element to come: none before the first, or where the comma is passed already;
        None after damage, where nobody knows.
    """

    def __init__(self, buffer: TextBuffer, taker: Taker, damage: Damage) -> None:
        self._buffer, self._taker, self._damage = buffer, taker, damage
        self.cut_short = ""
        self.owed: int | None = 0
        self._retried = self._lost = 0

    def one(self) -> bool:
        """Take one element; False at the end of the array or where reading must end."""
        buffer = self._buffer
        byte, commas = buffer.next_byte()
        if byte is None:
            return self._stop("ends early, inside traceEvents")
        location = (self._taker.count, buffer.position)
        if byte == _CLOSE:
            if commas or (self.owed == 0 and self._taker.count):
                self._damage.repair("comma after the last event", location)
            buffer.lo += 1
            return False
        if self.owed is not None and commas != self.owed:
            self._damage.repair("no comma before it" if commas < self.owed else "a comma too many before it", location)
        self.owed = 1
        try:
            going_on = self._element(byte == _BRACE)
        except TooLong:
            going_on = self._overlong(f"longer than {buffer.limit} bytes (Limits.event_bytes)")
        if going_on and self._lost > MAX_LOST:
            return self._stop(f"has more than {MAX_LOST} damaged places; the rest was not read")
        return going_on

    def pass_comma(self) -> None:
        """Pass over the comma after an element, so that a chunk may begin with the next."""
        buffer = self._buffer
        if match := _NEXT.match(buffer.data, buffer.lo, buffer.hi):
            buffer.lo, self.owed = match.end(), 0

    def _stop(self, reason: str) -> bool:
        self.cut_short = reason
        return False

    def _element(self, is_object: bool) -> bool:
        buffer = self._buffer
        try:
            value, used = scan_value(buffer, self._may_widen)
        except RecursionError:
            return self._damaged("nested too deeply")
        except json.JSONDecodeError as error:
            if is_object:
                return self._damaged(error.msg)
            # No value at all: pass over it, to what looks like an event.
            reason = "damaged (text between events)"
            start = START.search(buffer.data, buffer.lo, buffer.hi)
            return self._leave(reason, start.start()) if start else self._overlong(reason)
        if isinstance(value, dict):
            self._taker.take_one(value, used, "")
            buffer.lo += used
            return True
        return self._leave("it is no event", buffer.lo + used)

    def _may_widen(self, length: int) -> bool:
        """Whether an element that seemed to be cut short may be tried again with more text."""
        self._retried += length
        return self._retried <= _PATIENCE + 4 * self._buffer.position

    def _damaged(self, problem: str) -> bool:
        """Repair an event that cannot be read, or leave it out."""
        buffer = self._buffer
        while True:
            if self._repaired():
                return True
            after = BOUNDARY.search(buffer.data, buffer.lo, buffer.hi)
            if after:
                return self._leave(f"damaged ({problem})", after.start(1))
            last = END.search(buffer.data, buffer.lo, buffer.hi) if buffer.ended else None
            if last:
                return self._leave(f"damaged ({problem})", last.end())
            if not buffer.more():
                self._leave(f"the file ends early, at byte {buffer.position + buffer.hi - buffer.lo}", buffer.hi)
                return self._stop("ends early, inside traceEvents")

    def _repaired(self) -> bool:
        """Take an event up to one of the first places where it may end, if it can be repaired."""
        buffer = self._buffer
        for match, _ in zip(END.finditer(buffer.data, buffer.lo, buffer.hi), range(4), strict=False):
            length = match.end() - buffer.lo
            mended = repair(bytes(buffer.data[buffer.lo : match.end()])) if length < _REPAIRABLE else None
            if mended:
                self._taker.take_one(mended[0], length, mended[1])
                buffer.lo += length
                return True
        return False

    def _leave(self, reason: str, end: int) -> bool:
        self._damage.skip(reason, (self._taker.count, self._buffer.position))
        self._taker.count += 1
        self._lost += 1
        self._buffer.lo = end
        self.owed = None
        return True

    def _overlong(self, reason: str) -> bool:
        """Pass over text without end, holding little of it, to the next event."""
        buffer = self._buffer
        self._leave(reason, buffer.lo)
        while True:
            boundary = BOUNDARY.search(buffer.data, buffer.lo, buffer.hi)
            if boundary:
                buffer.lo = boundary.end()
                return True
            buffer.lo = max(buffer.lo, buffer.hi - _OVERLAP)
            if not buffer.more():
                buffer.lo = buffer.hi
                return self._stop("ends early, inside traceEvents")


_ESCAPE = re.compile(r'\\(u[0-9a-fA-F]{4}|["\\/bfnrt])|\\')
_NAME = re.compile(r'("name"\s*:\s*")(.*?)("\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:|\}))', re.S)
_TRAILING = re.compile(r",\s*([}\]])")
_QUOTE = re.compile(r'(?<!\\)"')

_REPAIRS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("backslash that escapes nothing", lambda text: _ESCAPE.sub(lambda m: m[0] if m[1] else r"\\", text)),
    (
        "quotes inside a name",
        lambda text: _NAME.sub(lambda m: m[1] + _QUOTE.sub(r"\\" + '"', m[2]) + m[3], text, count=1),
    ),
    ("trailing comma", lambda text: _TRAILING.sub(r"\1", text)),
)


def repair(data: bytes) -> tuple[Any, str] | None:
    """Make sense of the text of one damaged event.

    Returns
    -------
    value, reason
        None where nothing helps.

    Examples
    --------
    >>> repair(rb'{"name": "C:\\Users", "ts": 1}')
    ({'name': 'C:\\\\Users', 'ts': 1}, 'backslash that escapes nothing')
    """
    text = str(data, "utf-8", "surrogateescape")
    reasons: list[str] = []
    for reason, change in _REPAIRS:
        changed = change(text)
        if changed == text:
            continue
        text = changed
        reasons.append(reason)
        try:
            value = DECODER.decode(text)
        except (ValueError, RecursionError):
            continue
        return (value, ", ".join(reasons)) if isinstance(value, dict) else None
    return None


def oddity(data: bytes) -> str:
    """Say why an event that can be read is no strict JSON."""
    if re.search(rb"[\x00-\x1f]", re.sub(rb"[\r\n\t]", b"", data)):
        return "control character in a text"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes that are no UTF-8"
    return "not strict JSON"
