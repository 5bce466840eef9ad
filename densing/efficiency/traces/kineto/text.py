"""The text of a trace: its marks, a sliding buffer over it, where events begin and end, values read leniently, salvage.

Salvage is the careful way through the array of events: one at a time, what is damaged repaired or left out, and told.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple, Protocol

from densing.core import Note, Severity, formatting

SUFFIXES: tuple[str, ...] = (".json",)
"""Suffixes of such traces, before compression."""
_MARKS = (b'"traceEvents"', b'"ph"', b'"deviceProperties"')


def recognise(head: bytes) -> bool:
    """Return whether the first bytes of a text look like a Kineto or Chrome trace.

    Examples
    --------
    >>> recognise(b'{"schemaVersion": 1, "deviceProperties": ['), recognise(b'{"results": {}}')
    (True, False)
    """
    return any(key in head for key in _MARKS)


CHUNK = 1 << 20
_SPACE = re.compile(rb"[\s,]*")


class TooLong(Exception):
    """What is looked for does not fit into the largest buffer allowed."""


class TextBuffer:
    """The text from ``lo`` to ``hi`` of ``data``; it grows on demand up to a limit.

    Parameters
    ----------
    read : callable
        Fills a memoryview and returns how many bytes it wrote, 0 at the end.
    size, limit : int
        Usual and largest number of bytes held.

    Examples
    --------
    >>> import io
    >>> buffer = TextBuffer(io.BytesIO(b"0123456789").readinto, size=4, limit=8)
    >>> buffer.fill(3), bytes(buffer.data[buffer.lo : buffer.hi][:3])
    (True, b'012')
    """

    # One byte stays free before the text: a decoder wants a bracket in front of the first event.
    _FRONT = 1

    def __init__(self, read: Callable[[memoryview], int | None], size: int = CHUNK, limit: int = 8 << 20) -> None:
        self._read, self.size, self.limit = read, size, max(limit, size)
        self.data = bytearray(size + self._FRONT)
        self.lo = self.hi = self._FRONT
        self.ended = False
        self._before = -self._FRONT

    @property
    def position(self) -> int:
        """Offset of ``lo`` in the text of the file."""
        return self._before + self.lo

    def fill(self, count: int) -> bool:
        """Have at least ``count`` bytes from ``lo`` on, or all there are; True if so many are there.

        Raises
        ------
        TooLong
            When ``count`` passes the limit.
        """
        if count > self.limit:
            raise TooLong
        while self.hi - self.lo < count and not self.ended:
            if self.lo + count > len(self.data) or self.hi == len(self.data):
                # What is held moves to the front, of a larger buffer where it must.
                length = self.hi - self.lo
                room = max(count, self.size) + self._FRONT
                target = self.data if room <= len(self.data) else bytearray(room)
                target[self._FRONT : self._FRONT + length] = self.data[self.lo : self.hi]
                self._before += self.lo - self._FRONT
                self.data, self.lo, self.hi = target, self._FRONT, self._FRONT + length
            with memoryview(self.data) as view, view[self.hi :] as free:
                count_read = self._read(free) or 0
            self.hi += count_read
            self.ended = count_read == 0
        return self.hi - self.lo >= count

    def next_byte(self) -> tuple[int | None, int]:
        """Move to the next byte that is not a space or comma; return it (None at the end) and the commas passed."""
        commas = 0
        while True:
            match = _SPACE.match(self.data, self.lo, self.hi)
            end = match.end() if match else self.lo
            commas += self.data.count(b",", self.lo, end)
            self.lo = end
            if self.lo < self.hi:
                return self.data[self.lo], commas
            if not self.more():
                return None, commas

    def more(self) -> bool:
        """Have more text than now; False at the end of the file.

        Raises
        ------
        TooLong
            When the buffer is as large as it may be.
        """
        length = self.hi - self.lo
        if length >= self.limit:
            raise TooLong
        self.fill(min(max(2 * length, self.size), self.limit))
        return self.hi - self.lo > length


_KEYS = rb'"(?:ph|name|cat|pid|tid|ts|dur|args|id|s|bp|tts|tdur|sf|cname|scope)"\s*:'

START = re.compile(rb"\{\s*" + _KEYS)
"""An opening brace and a key that events have."""

BOUNDARY = re.compile(rb"\}\s*(,)\s*(?=\{\s*" + _KEYS + rb")")
"""The end of an event and the beginning of the next; inside strings and nested objects it may match by chance."""

_ANY_BOUNDARY = re.compile(rb"\}\s*(,)\s*(?=\{)")

END = re.compile(rb"\}(?=\s*(?:,\s*\{\s*" + _KEYS + rb'|\]\s*(?:\}|,\s*"|\Z)))')
"""The end of an event before the next or before the array's end; may match by chance too."""

FINE_TIME = re.compile(rb'"(?:ts|dur)"\s*:\s*-?\d+\.\d{4}')
"""A time with more than three decimals."""

_LOOK = 1 << 12
# "-Infinity" or an escape, broken off.
_LONGEST_WORD = 12
_SURROGATE = re.compile("[\ud800-\udfff]")


class Cut(NamedTuple):
    """Between two events: the first ends before ``comma``, the second begins at ``start``."""

    comma: int
    start: int


def last_boundary(data: bytearray, lo: int, hi: int) -> Cut | None:
    """Return the last place in ``[lo, hi)`` where one event seems to end and another to begin."""
    for pattern in (BOUNDARY, _ANY_BOUNDARY):
        begin, look = hi, _LOOK
        while begin > lo:
            # Patterns cannot be searched backwards: ever longer ends of the text are, and their last match counts.
            begin = max(lo, hi - look)
            matches = deque(pattern.finditer(data, begin, hi), maxlen=1)
            if matches:
                return Cut(matches[0].start(1), matches[0].end())
            look *= 8
    return None


class NoNumber:
    """A number that JSON has no word for: NaN, Infinity or -Infinity."""

    def __init__(self, text: str) -> None:
        self.text = text


def _decimal(text: str) -> Decimal | NoNumber:
    try:
        return Decimal(text)
    except InvalidOperation:
        # An exponent that not even decimals have.
        return NoNumber("Infinity")


DECODER = json.JSONDecoder(parse_float=_decimal, parse_constant=NoNumber, strict=False)


def scan(data: bytes | bytearray | memoryview) -> tuple[Any, int]:
    """Read one JSON value at the start of some bytes, tolerating control characters, NaN and bad UTF-8.

    Returns
    -------
    value, end
        The value, numbers with decimals as ``Decimal``; how many bytes it took.

    Raises
    ------
    json.JSONDecodeError
        When there is none; ``pos`` counts characters.
    RecursionError
        When it is nested beyond reason.

    Examples
    --------
    >>> scan(b'{"dur": 1.5}, {')
    ({'dur': Decimal('1.5')}, 12)
    """
    text = str(data, "utf-8", "surrogateescape")
    try:
        value, end = DECODER.raw_decode(text)
    except ValueError as error:
        # A number of more than 4300 digits is refused by int() itself.
        raise error if isinstance(error, json.JSONDecodeError) else json.JSONDecodeError(str(error), text, 0) from error
    return value, end if text.isascii() else len(text[:end].encode("utf-8", "surrogateescape"))


def scan_value(buffer: TextBuffer, may_widen: Callable[[int], bool]) -> tuple[Any, int]:
    """Read the value that begins where a buffer stands, without moving it, with as little text as it takes.

    Parameters
    ----------
    buffer : TextBuffer
    may_widen : callable
        Asked, with the number of bytes just tried, whether more may be.

    Raises
    ------
    json.JSONDecodeError, RecursionError
        When there is no value.
    TooLong
        When it is longer than the buffer may hold.
    """
    window = _LOOK
    while True:
        length = min(window, buffer.hi - buffer.lo)
        try:
            value, used = scan(buffer.data[buffer.lo : buffer.lo + length])
            # A number at the end of what is held may go on.
            if used < length or isinstance(value, dict | list | str) or not _extend(buffer, length):
                return value, used
        except json.JSONDecodeError as error:
            # Reading failed near the very end of the text: the value may only have been cut short.
            ran_off = error.msg.startswith("Unterminated string") or error.pos >= len(error.doc) - _LONGEST_WORD
            if not (ran_off and may_widen(length) and _extend(buffer, length)):
                raise
        window *= 8


def _extend(buffer: TextBuffer, length: int) -> bool:
    """Whether there is more text than was tried."""
    return length < buffer.hi - buffer.lo or buffer.more()


def clean(text: str) -> str:
    """Return a text without halves of surrogate pairs, stand-ins of undecodable bytes among them: U+FFFD instead."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


# Salvage: what is damaged, repaired or left out.

MAX_LOST = 100_000
"""Most elements that are not events or cannot be read; a file with more is not read to its end."""
SHOWN = 5
"""Most places named per reason."""

# Text that may be tried again with more of it, beyond four times what was read: damage must not make reading quadratic.
_PATIENCE = 1 << 26
_REPAIRABLE = 1 << 18
_OVERLAP = 1 << 12
_NAME_WIDTH = 80
_NEXT = re.compile(rb"\s*,\s*(?=\{)")
_CLOSE, _BRACE = ord("]"), ord("{")

Location = tuple[int, int] | Callable[[], tuple[int, int]]
"""Number and byte offset of an event, or a function that finds them."""


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
        location = f"event {first['event']}, byte {first['byte']}" + (f", {first['name']!r}" if first["name"] else "")
        events = formatting.plural(count, "event")
        message = f"{self.source}: {events} {verb}: {reason} ({'first: ' if count > 1 else ''}{location})"
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
            self._damage.repair("no comma before it" if commas < self.owed else "an extra comma before it", location)
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
        return self._leave("it is not an event", buffer.lo + used)

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
                if end := END.search(buffer.data, buffer.lo, buffer.hi):
                    # It was the array's last.
                    buffer.lo = end.end()
                    return True
                buffer.lo = buffer.hi
                return self._stop("ends early, inside traceEvents")


_ESCAPE = re.compile(r'\\(u[0-9a-fA-F]{4}|["\\/bfnrt])|\\')
_NAME = re.compile(r'("name"\s*:\s*")(.*?)("\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:|\}))', re.S)
_TRAILING = re.compile(r",\s*([}\]])")
_QUOTE = re.compile(r'(?<!\\)"')

_REPAIRS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("backslash without a valid escape", lambda text: _ESCAPE.sub(lambda m: m[0] if m[1] else r"\\", text)),
    (
        "unescaped quotes inside a name",
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
    ({'name': 'C:\\\\Users', 'ts': 1}, 'backslash without a valid escape')
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
    """Say why an event that can be read is not strict JSON."""
    if re.search(rb"[\x00-\x1f]", re.sub(rb"[\r\n\t]", b"", data)):
        return "control character in a string"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes that are not UTF-8"
    return "not strict JSON"
