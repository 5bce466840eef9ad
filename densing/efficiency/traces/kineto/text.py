"""The text of a trace: a sliding buffer over it, where events begin and end, and values read leniently."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

SUFFIXES: tuple[str, ...] = (".json",)
"""How the names of such traces end, before they are packed."""
_WORDS = (b'"traceEvents"', b'"ph"', b'"deviceProperties"')


def recognise(head: bytes) -> bool:
    """Return whether the first bytes of a text look like a Kineto or Chrome trace.

    Examples
    --------
    >>> recognise(b'{"schemaVersion": 1, "deviceProperties": ['), recognise(b'{"results": {}}')
    (True, False)
    """
    return any(word in head for word in _WORDS)


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
            self._make_room(count)
            with memoryview(self.data) as view, view[self.hi :] as free:
                count_read = self._read(free) or 0
            self.hi += count_read
            self.ended = count_read == 0
        return self.hi - self.lo >= count

    def _make_room(self, count: int) -> None:
        held = self.hi - self.lo
        if self.lo + count <= len(self.data) and self.hi < len(self.data):
            return
        room = max(count, self.size) + self._FRONT
        target = self.data if room <= len(self.data) else bytearray(room)
        target[self._FRONT : self._FRONT + held] = self.data[self.lo : self.hi]
        self._before += self.lo - self._FRONT
        self.data, self.lo, self.hi = target, self._FRONT, self._FRONT + held

    def next_byte(self) -> tuple[int | None, int]:
        """Stand before the next byte that is no space or comma; return it, None at the end, and the commas passed."""
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
        held = self.hi - self.lo
        if held >= self.limit:
            raise TooLong
        self.fill(min(max(2 * held, self.size), self.limit))
        return self.hi - self.lo > held


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
        held = buffer.hi - buffer.lo
        length = min(window, held)
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
