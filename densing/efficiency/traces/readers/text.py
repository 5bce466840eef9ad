"""Where events begin and end in text, and what can be done for one that is no strict JSON."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from densing.efficiency.traces.readers.feed import Feed

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
_SPACE = re.compile(rb"[\s,]*")


class Cut(NamedTuple):
    """Between two events: the first ends before ``comma``, the second begins at ``start``."""

    comma: int
    start: int


def last_boundary(data: bytearray, lo: int, hi: int) -> Cut | None:
    """Return the last place in ``[lo, hi)`` where one event seems to end and another to begin."""
    return _last(BOUNDARY, data, lo, hi) or _last(_ANY_BOUNDARY, data, lo, hi)


def _last(pattern: re.Pattern[bytes], data: bytearray, lo: int, hi: int) -> Cut | None:
    look = _LOOK
    while True:
        begin = max(lo, hi - look)
        found = deque(pattern.finditer(data, begin, hi), maxlen=1)
        if found:
            return Cut(found[0].start(1), found[0].end())
        if begin == lo:
            return None
        look *= 8


def skip_space(data: bytearray, lo: int, hi: int) -> tuple[int, int]:
    """Return where space and commas from ``lo`` on end, and how many commas there were."""
    match = _SPACE.match(data, lo, hi)
    end = match.end() if match else lo
    return end, data.count(b",", lo, end)


class Strange:
    """A number that JSON has no word for: NaN, Infinity or -Infinity."""

    def __init__(self, word: str) -> None:
        self.word = word


def _decimal(text: str) -> Decimal | Strange:
    try:
        return Decimal(text)
    except InvalidOperation:
        # An exponent that not even decimals have.
        return Strange("Infinity")


DECODER = json.JSONDecoder(parse_float=_decimal, parse_constant=Strange, strict=False)


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


def _ran_off(error: json.JSONDecodeError) -> bool:
    """Whether a value may only have been cut short: reading failed near the very end of the text."""
    return error.msg.startswith("Unterminated string") or error.pos >= len(error.doc) - _LONGEST_WORD


def scan_value(feed: Feed, may_widen: Callable[[int], bool]) -> tuple[Any, int]:
    """Read the value that begins where a feed stands, without moving it, with as little text as it takes.

    Parameters
    ----------
    feed : Feed
    may_widen : callable
        Asked, with the number of bytes just tried, whether more may be.

    Raises
    ------
    json.JSONDecodeError, RecursionError
        When there is no value.
    TooLong
        When it is longer than the feed allows.
    """
    window = _LOOK
    while True:
        held = feed.hi - feed.lo
        length = min(window, held)
        try:
            value, used = scan(feed.data[feed.lo : feed.lo + length])
            # A number at the end of what is held may go on.
            if used < length or isinstance(value, dict | list | str) or not _extend(feed, length):
                return value, used
        except json.JSONDecodeError as error:
            if not (_ran_off(error) and may_widen(length) and _extend(feed, length)):
                raise
        window *= 8


def _extend(feed: Feed, length: int) -> bool:
    """Whether there is more text than was tried."""
    return length < feed.hi - feed.lo or feed.more()


def clean(text: str) -> str:
    """Return a text without halves of surrogate pairs, stand-ins of undecodable bytes among them: U+FFFD instead."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


_ESCAPE = re.compile(r'\\(u[0-9a-fA-F]{4}|["\\/bfnrt])|\\')
_NAME = re.compile(r'("name"\s*:\s*")(.*?)("\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:|\}))', re.S)
_COMMA = re.compile(r",\s*([}\]])")


def _backslashes(text: str) -> str:
    return _ESCAPE.sub(lambda m: m.group(0) if m.group(1) else r"\\", text)


def _quotes(text: str) -> str:
    return _NAME.sub(lambda m: m.group(1) + re.sub(r'(?<!\\)"', r"\\" + '"', m.group(2)) + m.group(3), text, count=1)


_REPAIRS = (
    ("backslash that escapes nothing", _backslashes),
    ("quotes inside a name", _quotes),
    ("trailing comma", lambda text: _COMMA.sub(r"\1", text)),
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
