"""The outline of a trace's text, found in one pass of bounded memory: where its events begin, and its clock's base."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 20
HEADER_BYTES = 16 << 20
"""Text of one value beside the events that is still read; a longer one is taken for damage."""
HEADER_KEYS = 10_000

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_REST = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_QUOTE = ord('"')
_PLAIN = bytes(set(range(256)) - set(b'"[]{}'))
_SPACE = b" \t\r\n"
_STEP = np.zeros(256, np.int8)
_STEP[list(b"[{")] = 1
_STEP[list(b"]}")] = -1


class NoOutline(Exception):
    """The text is no whole trace."""


@dataclass(frozen=True)
class Outline:
    """Where a trace's events are.

    Parameters
    ----------
    first : int
        Offset in the text right after the bracket that opens the events.
    empty : bool
        Whether there is no event.
    base_ns : int
        ``baseTimeNanoseconds`` of the header; 0 where it has none.
    bare : bool
        Whether the file is the array alone.
    """

    first: int
    empty: bool
    base_ns: int
    bare: bool


def outline(chunks: Iterator[bytes]) -> Outline:
    """Find the outline of a trace, given as pieces of its text.

    Raises
    ------
    NoOutline
        When brackets do not match, the text ends early, or there is no array of events.

    Examples
    --------
    >>> outline(iter([b'{"a": "traceEvents", "traceEv', b'ents": [ {"ph": "X"}], "baseTimeNanoseconds": 7}']))
    Outline(first=37, empty=False, base_ns=7, bare=False)
    """
    reader = _Reader(chunks)
    first = reader.next_byte()
    if first == b"[":
        reader.take(1)
        begin, empty = reader.offset, reader.next_byte() == b"]"
        reader.skip_array()
        reader.expect_end()
        return Outline(begin, empty, 0, bare=True)
    if first != b"{":
        raise NoOutline("it is neither an object nor an array")
    reader.take(1)
    return _object(reader)


def _object(reader: _Reader) -> Outline:
    begin, empty, base, keys = -1, True, 0, 0
    while reader.next_byte() != b"}":
        key = reader.value()
        keys += 1
        if keys > HEADER_KEYS:
            raise NoOutline(f"more than {HEADER_KEYS} keys beside the events")
        if not isinstance(key, str) or reader.next_byte() != b":":
            raise NoOutline(f"no key at byte {reader.offset}")
        reader.take(1)
        if key == "traceEvents" and reader.next_byte() == b"[" and begin < 0:
            reader.take(1)
            begin, empty = reader.offset, reader.next_byte() == b"]"
            reader.skip_array()
        else:
            value = reader.value()
            base = _base(value) if key == "baseTimeNanoseconds" else base
        if reader.next_byte() == b",":
            reader.take(1)
            if reader.next_byte() == b"}":
                raise NoOutline(f"a comma too many at byte {reader.offset}")
    reader.take(1)
    reader.expect_end()
    if begin < 0:
        raise NoOutline("it has no events")
    return Outline(begin, empty, base, bare=False)


def _base(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str) or not re.fullmatch(r"-?\d{1,19}", str(value)):
        raise NoOutline(f"baseTimeNanoseconds is {value!r}")
    return int(value)


class _Reader:
    """A window on the text that slides forward."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._text = b""
        self.offset = 0

    def take(self, count: int) -> None:
        self._text = self._text[count:]
        self.offset += count

    def _more(self) -> bool:
        piece = next(self._chunks, b"")
        self._text += piece
        return bool(piece)

    def next_byte(self) -> bytes:
        """Return the next byte that is no space, and stand before it."""
        while True:
            rest = self._text.lstrip(_SPACE)
            self.take(len(self._text) - len(rest))
            if rest:
                return rest[:1]
            if not self._more():
                raise NoOutline(f"it ends early, at byte {self.offset}")

    def expect_end(self) -> None:
        """Check that nothing follows."""
        while True:
            if self._text.strip(_SPACE):
                raise NoOutline(f"text after the end, at byte {self.offset}")
            self.take(len(self._text))
            if not self._more():
                return

    def value(self) -> Any:
        """Take one value."""
        self.next_byte()
        while True:
            try:
                # Latin-1 keeps offsets, and keys of interest are plain; other text of the header is not looked at.
                value, used = json.JSONDecoder().raw_decode(self._text.decode("latin-1"))
            except (ValueError, RecursionError) as error:
                if len(self._text) > HEADER_BYTES or not self._more():
                    raise NoOutline(f"no value at byte {self.offset}") from error
                continue
            # A number might go on in the next piece.
            if used < len(self._text) or not self._more():
                self.take(used)
                return value

    def skip_array(self) -> None:
        """Take the text up to and including the bracket that closes an array that is open."""
        depth, inside = 1, 0
        while True:
            # An escape whose second half is in the next piece waits for it.
            backslashes = len(self._text) - len(self._text.rstrip(b"\\"))
            piece = self._text[: len(self._text) - backslashes % 2]
            levels, quotes = _levels(piece, depth, inside)
            if levels.size and levels.min() <= 0:
                self._close(depth, inside)
                return
            depth = int(levels[-1]) if levels.size else depth
            inside = (inside + quotes) % 2
            self.take(len(piece))
            if not self._more():
                raise NoOutline(f"it ends early, at byte {self.offset + len(self._text)}")

    def _close(self, depth: int, inside: int) -> None:
        """Find the closing bracket in this piece."""
        start = 0
        if inside and (rest := _REST.match(self._text)):
            start = rest.end()
        for token in _TOKEN.finditer(self._text, start):
            depth += int(_STEP[token[0][0]])
            if depth == 0:
                if token[0] != b"]":
                    break
                self.take(token.end())
                return
        raise NoOutline(f"brackets do not match, at byte {self.offset}")


def _levels(piece: bytes, depth: int, inside: int) -> tuple[NDArray[np.int64], int]:
    """Return the depth after each bracket of a piece (and after each quote), and how many quotes it has."""
    if b"\\" in piece:
        piece = _ESCAPE.sub(b"", piece)
    marks = np.frombuffer(piece.translate(None, _PLAIN), np.uint8)
    quote = marks == _QUOTE
    outside = (np.cumsum(quote) + inside) % 2 == 0
    return depth + np.cumsum(_STEP[marks] * outside, dtype=np.int64), int(quote.sum())
