"""The array of events: whole chunks through the typed decoder, damaged places one event at a time."""

from __future__ import annotations

import json
from itertools import compress
from typing import Any

import msgspec

from densing.timeline.readers.anything import Anything, from_value
from densing.timeline.readers.exact import NeedsText
from densing.timeline.readers.feed import Feed, TooLong
from densing.timeline.readers.rows import ANNOUNCER, Rows
from densing.timeline.readers.structs import ANY_EVENTS, CATEGORY, Decoders
from densing.timeline.readers.text import (
    BOUNDARY,
    END,
    FINE_TIME,
    START,
    Cut,
    clean,
    last_boundary,
    oddity,
    ran_off,
    repair,
    scan,
    skip_space,
)
from densing.timeline.readers.troubles import Troubles

_SMALL = 1 << 12
_LOOSE = 1 << 15
_PATIENCE = 1 << 26
_CHECKED = 1 << 20
_REPAIRABLE = 1 << 18
_ANNOUNCER = ANNOUNCER.encode()
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_OPEN, _CLOSE, _BRACE = ord("["), ord("]"), ord("{")


class Events:
    """Reads ``traceEvents`` from a feed into rows.

    Attributes
    ----------
    count : int
        Elements met so far, damaged ones included.
    cut_short : bool
        Whether the file ended inside the array.
    """

    def __init__(self, feed: Feed, decoders: Decoders, rows: Rows, troubles: Troubles) -> None:
        self._feed, self._decoders, self._rows, self._troubles = feed, decoders, rows, troubles
        self.anything = Anything(rows, decoders)
        self.count = 0
        self.cut_short = False
        self._spent = 0
        self._loose = _LOOSE
        self._checked = 0

    def read_array(self) -> None:
        """Read up to and including the array's closing bracket."""
        feed = self._feed
        span = feed.size
        while True:
            feed.fill(span)
            cut = last_boundary(feed.data, feed.lo, min(feed.hi, feed.lo + span))
            if cut and self._chunk(cut):
                feed.lo = cut.start
                span = min(4 * span, feed.size)
            elif cut and cut.comma - feed.lo > _SMALL:
                # An event before the cut fits no typed struct or is damaged, or the cut lies inside one: come nearer.
                span = (cut.comma - feed.lo) // 4
            else:
                if not self._one():
                    return
                span = min(4 * span, feed.size)

    def _chunk(self, cut: Cut) -> bool:
        """Take all events before a cut at once; False if that is not possible."""
        feed, data = self._feed, self._feed.data
        if self._checked < _CHECKED and not self._rows.text:
            # Beyond 2⁴² µs a float64 does not show that its text had more than three decimals.
            self._checked += cut.comma - feed.lo
            if FINE_TIME.search(data, feed.lo, cut.comma):
                raise NeedsText
        before, data[feed.lo - 1], data[cut.comma] = data[feed.lo - 1], _OPEN, _CLOSE
        try:
            # Times kept as text point into the buffer; they are read before it moves on.
            typed = self._decode(memoryview(data)[feed.lo - 1 : cut.comma + 1], self._loose)
        finally:
            data[feed.lo - 1], data[cut.comma] = before, ord(",")
        if typed is None:
            return False
        events, is_typed = typed
        # Where most events need the slow way, take it in long strides.
        self._loose = _LOOSE if is_typed else 4 * self._loose
        self._take(events, is_typed, cut.comma)
        return True

    def _decode(self, text: memoryview | bytes, loose: int) -> tuple[list[Any], bool] | None:
        """Decode events by the typed structs, or if they fit none and are not too many, as events of any kind."""
        try:
            return self._decoders.decode(text), True
        except msgspec.ValidationError:
            if len(text) > loose:
                return None
        except _BROKEN:
            return None
        try:
            return ANY_EVENTS.decode(text), False
        except _BROKEN:
            return None

    def _take(self, events: list[Any], typed: bool, end: int) -> None:
        start = self._feed.lo

        def locate(event: Any) -> tuple[int, int]:
            index = next((i for i, e in enumerate(events) if e is event), 0)
            return self.count + index, self._byte_of(index, start, end)

        if typed:
            if not self._decoders.operators:
                self._announced(start, end)
            wanted = list(compress(events, map(CATEGORY.__contains__, map(type, events))))
            self._rows.add(wanted, locate)
        else:
            self.anything.add(events, locate)
        self.count += len(events)

    def _byte_of(self, index: int, lo: int, hi: int) -> int:
        """Offset in the file of the event of some index in a chunk."""
        at = lo
        for number, match in enumerate(BOUNDARY.finditer(self._feed.data, lo, hi), start=1):
            if number > index:
                break
            at = match.end()
        return self._feed.position + at - self._feed.lo

    def _announced(self, lo: int, hi: int) -> None:
        """Read the few operators that tell what communications move, without reading all operators."""
        data = self._feed.data
        at = data.find(_ANNOUNCER, lo, hi)
        while at >= 0:
            before = last_boundary(data, lo, at)
            after = BOUNDARY.search(data, at, min(hi + 64, self._feed.hi))
            end = after.start(1) if after else hi
            self.anything.announce(bytes(data[before.start if before else lo : end]))
            at = data.find(_ANNOUNCER, max(end, at + 1), hi)

    def _one(self) -> bool:
        """Take one element with care; False at the end of the array."""
        feed = self._feed
        commas = self._gap()
        if commas is None:
            self.cut_short = True
            return False
        byte = feed.data[feed.lo]
        if byte == _CLOSE:
            if commas:
                self._troubles.repair("comma after the last event", self.count, feed.position)
            feed.lo += 1
            return False
        if byte != _BRACE:
            return self._stray()
        try:
            return self._event()
        except TooLong:
            return self._overlong()

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

    def _event(self) -> bool:
        feed = self._feed
        stop = BOUNDARY.search(feed.data, feed.lo, feed.hi)
        length = (stop.start(1) if stop else feed.hi) - feed.lo
        while True:
            try:
                value, used = scan(feed.data[feed.lo : feed.lo + length])
                return self._single(value, used)
            except RecursionError:
                return self._damaged("nested too deeply")
            except json.JSONDecodeError as error:
                self._spent += length
                wider = self._wider(length) if ran_off(error) else length
                if wider == length:
                    return self._damaged(error.msg)
                length = wider

    def _wider(self, length: int) -> int:
        """Return a greater length for an event that seemed to be cut short: the cut may have been no boundary."""
        feed = self._feed
        if self._spent > _PATIENCE + 4 * feed.position:
            return length
        if feed.lo + length >= feed.hi and not feed.more():
            return length
        stop = BOUNDARY.search(feed.data, feed.lo + min(2 * length, feed.hi - feed.lo), feed.hi)
        return (stop.start(1) if stop else feed.hi) - feed.lo

    def _single(self, value: Any, used: int, reason: str = "") -> bool:
        feed = self._feed
        raw = bytes(feed.data[feed.lo : feed.lo + used])
        place = (self.count, feed.position)
        if not isinstance(value, dict):
            self._troubles.skip("it is no event", *place)
            self.count += 1
        elif not reason and (decoded := self._decode(b"[" + raw + b"]", len(raw) + 2)):
            self._take(*decoded, feed.lo + used)
        else:
            kept = self.anything.add([from_value(value)], lambda _: place)
            if kept:
                self._troubles.repair(reason or oddity(raw), *place, clean(str(value.get("name", ""))))
            self.count += 1
        feed.lo += used
        return True

    def _damaged(self, problem: str) -> bool:
        """Repair an event that cannot be read, or leave it out."""
        feed = self._feed
        while True:
            for match, _ in zip(END.finditer(feed.data, feed.lo, feed.hi), range(4), strict=False):
                length = match.end() - feed.lo
                mended = repair(bytes(feed.data[feed.lo : match.end()])) if length < _REPAIRABLE else None
                if mended:
                    return self._single(mended[0], length, mended[1])
            next_event = BOUNDARY.search(feed.data, feed.lo, feed.hi)
            if next_event:
                return self._leave(f"damaged ({problem})", next_event.start(1))
            last = None if not feed.ended else END.search(feed.data, feed.lo, feed.hi)
            if last:
                return self._leave(f"damaged ({problem})", last.end())
            if not feed.more():
                self._leave(f"the file ends early, at byte {feed.position + feed.hi - feed.lo}", feed.hi)
                self.cut_short = True
                return False

    def _leave(self, reason: str, to: int) -> bool:
        self._troubles.skip(reason, self.count, self._feed.position)
        self.count += 1
        self._feed.lo = to
        return True

    def _stray(self) -> bool:
        """Pass over what is no event: a value of another type, or debris."""
        feed = self._feed
        start = START.search(feed.data, feed.lo, feed.hi)
        try:
            value, used = scan(feed.data[feed.lo : start.start() if start else feed.hi])
            if not isinstance(value, dict) and (start or feed.lo + used < feed.hi):
                return self._single(value, used)
        except (json.JSONDecodeError, RecursionError):
            pass
        if start:
            return self._leave("damaged (text between events)", start.start())
        return self._overlong("damaged (text between events)")

    def _overlong(self, reason: str = "") -> bool:
        """Pass over text without end, holding little of it, to the next event."""
        feed = self._feed
        limit = feed.limit
        self._troubles.skip(reason or f"longer than {limit} bytes (Limits.event_bytes)", self.count, feed.position)
        self.count += 1
        while True:
            boundary = BOUNDARY.search(feed.data, feed.lo, feed.hi)
            if boundary:
                feed.lo = boundary.end()
                return True
            feed.lo = max(feed.lo, feed.hi - _SMALL)
            if not feed.more():
                feed.lo = feed.hi
                self.cut_short = True
                return False
