"""The careful way through the array of events: one element at a time, what is damaged repaired or left out."""

from __future__ import annotations

import json
import re
from typing import Any, Protocol

from densing.efficiency.traces.readers.feed import Feed, TooLong
from densing.efficiency.traces.readers.text import BOUNDARY, END, START, repair, scan_value, skip_space
from densing.efficiency.traces.readers.troubles import Troubles

MAX_LOST = 100_000
"""Elements that are no events or cannot be read; a file with more is not read to its end."""

_PATIENCE = 1 << 26
_REPAIRABLE = 1 << 18
_OVERLAP = 1 << 12
_COMMA = re.compile(rb"\s*,\s*(?=\{)")
_CLOSE, _BRACE = ord("]"), ord("{")


class Taker(Protocol):
    """What takes elements once they are understood."""

    count: int

    def take_one(self, value: dict[str, Any], used: int, reason: str) -> None:
        """Take an event, the next ``used`` bytes; ``reason`` says what was repaired."""


class Salvage:
    """Reads elements one at a time from a feed.

    Attributes
    ----------
    cut_short : str
        Why reading ended before the array did; empty if it did not.
    owed : int or None
        Commas that belong before the element to come: none before the first, or where the comma is passed already;
        None after damage, where nobody knows.
    """

    def __init__(self, feed: Feed, taker: Taker, troubles: Troubles) -> None:
        self._feed, self._taker, self._troubles = feed, taker, troubles
        self.cut_short = ""
        self.owed: int | None = 0
        self._spent = self._lost = 0

    def one(self) -> bool:
        """Take one element; False at the end of the array or where reading must end."""
        feed = self._feed
        commas = self._gap()
        if commas is None:
            return self._stop("ends early, inside traceEvents")
        byte = feed.data[feed.lo]
        if byte == _CLOSE:
            if commas or (self.owed == 0 and self._taker.count):
                self._troubles.repair("comma after the last event", (self._taker.count, feed.position))
            feed.lo += 1
            return False
        if self.owed is not None and commas != self.owed:
            what = "no comma before it" if commas < self.owed else "a comma too many before it"
            self._troubles.repair(what, (self._taker.count, feed.position))
        self.owed = 1
        try:
            going_on = self._element(byte == _BRACE)
        except TooLong:
            going_on = self._overlong(f"longer than {feed.limit} bytes (Limits.event_bytes)")
        if going_on and self._lost > MAX_LOST:
            return self._stop(f"has more than {MAX_LOST} damaged places; the rest was not read")
        return going_on

    def pass_comma(self) -> None:
        """Pass over the comma after an element, so that a chunk may begin with the next."""
        feed = self._feed
        match = _COMMA.match(feed.data, feed.lo, feed.hi)
        if match:
            feed.lo, self.owed = match.end(), 0

    def _stop(self, reason: str) -> bool:
        self.cut_short = reason
        return False

    def _gap(self) -> int | None:
        """Pass over space and commas; return the number of commas, None at the end of the file."""
        feed, commas = self._feed, 0
        while True:
            feed.lo, found = skip_space(feed.data, feed.lo, feed.hi)
            commas += found
            if feed.lo < feed.hi:
                return commas
            if not feed.more():
                return None

    def _element(self, is_object: bool) -> bool:
        try:
            value, used = scan_value(self._feed, self._may_widen)
        except RecursionError:
            return self._damaged("nested too deeply")
        except json.JSONDecodeError as error:
            return self._damaged(error.msg) if is_object else self._debris()
        if isinstance(value, dict):
            self._taker.take_one(value, used, "")
            self._feed.lo += used
            return True
        return self._leave("it is no event", self._feed.lo + used)

    def _may_widen(self, length: int) -> bool:
        """Whether an element that seemed to be cut short may be tried again with more text."""
        self._spent += length
        return self._spent <= _PATIENCE + 4 * self._feed.position

    def _damaged(self, problem: str) -> bool:
        """Repair an event that cannot be read, or leave it out."""
        feed = self._feed
        while True:
            if self._repaired():
                return True
            after = BOUNDARY.search(feed.data, feed.lo, feed.hi)
            if after:
                return self._leave(f"damaged ({problem})", after.start(1))
            last = END.search(feed.data, feed.lo, feed.hi) if feed.ended else None
            if last:
                return self._leave(f"damaged ({problem})", last.end())
            if not feed.more():
                self._leave(f"the file ends early, at byte {feed.position + feed.hi - feed.lo}", feed.hi)
                return self._stop("ends early, inside traceEvents")

    def _repaired(self) -> bool:
        feed = self._feed
        for match, _ in zip(END.finditer(feed.data, feed.lo, feed.hi), range(4), strict=False):
            length = match.end() - feed.lo
            mended = repair(bytes(feed.data[feed.lo : match.end()])) if length < _REPAIRABLE else None
            if mended:
                self._taker.take_one(mended[0], length, mended[1])
                feed.lo += length
                return True
        return False

    def _leave(self, reason: str, to: int) -> bool:
        self._troubles.skip(reason, (self._taker.count, self._feed.position))
        self._taker.count += 1
        self._lost += 1
        self._feed.lo = to
        self.owed = None
        return True

    def _debris(self) -> bool:
        """Pass over what is no value at all."""
        start = START.search(self._feed.data, self._feed.lo, self._feed.hi)
        reason = "damaged (text between events)"
        return self._leave(reason, start.start()) if start else self._overlong(reason)

    def _overlong(self, reason: str) -> bool:
        """Pass over text without end, holding little of it, to the next event."""
        feed = self._feed
        self._leave(reason, feed.lo)
        while True:
            boundary = BOUNDARY.search(feed.data, feed.lo, feed.hi)
            if boundary:
                feed.lo = boundary.end()
                return True
            feed.lo = max(feed.lo, feed.hi - _OVERLAP)
            if not feed.more():
                feed.lo = feed.hi
                return self._stop("ends early, inside traceEvents")
