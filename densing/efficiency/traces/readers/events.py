"""The array of events: whole chunks through the typed decoder, damaged places one event at a time."""

from __future__ import annotations

from itertools import compress
from typing import Any

import msgspec

from densing.efficiency.traces.readers.anything import Anything, from_value
from densing.efficiency.traces.readers.exact import BLUNT_NS, NeedsText
from densing.efficiency.traces.readers.feed import Feed
from densing.efficiency.traces.readers.rows import ANNOUNCER, Rows
from densing.efficiency.traces.readers.salvage import Salvage
from densing.efficiency.traces.readers.structs import ANY_EVENTS, CATEGORY, AnyEvent, Decoders, tag_of
from densing.efficiency.traces.readers.text import BOUNDARY, FINE_TIME, Cut, last_boundary, oddity
from densing.efficiency.traces.readers.troubles import Troubles

_SMALL = 1 << 12
_LOOSE = 1 << 15
_MANY = 64
_SAMPLE, _CHECKED = 1 << 16, 1 << 18
_ANNOUNCER = ANNOUNCER.encode()
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_OPEN, _CLOSE = ord("["), ord("]")


class Events:
    """Reads ``traceEvents`` from a feed into rows.

    Attributes
    ----------
    count : int
        Elements met so far, damaged ones included.
    """

    def __init__(self, feed: Feed, decoders: Decoders, rows: Rows, troubles: Troubles) -> None:
        self._feed, self._decoders, self._rows, self._troubles = feed, decoders, rows, troubles
        self._salvage = Salvage(feed, self, troubles)
        self.anything = Anything(rows, decoders)
        self.count = 0
        self._loose = _LOOSE
        self._checked = 0
        self._careful = 1
        self._mended: list[tuple[AnyEvent, tuple[int, int], str]] = []

    @property
    def cut_short(self) -> str:
        """Why reading ended inside the array; empty if it did not."""
        return self._salvage.cut_short

    def read_array(self) -> None:
        """Read up to and including the array's closing bracket."""
        feed = self._feed
        span = feed.size
        while True:
            feed.fill(span)
            # Where a comma is owed, its lack is seen by going one by one only.
            at_event = self._salvage.owed != 1
            cut = last_boundary(feed.data, feed.lo, min(feed.hi, feed.lo + span)) if at_event else None
            if cut and self._chunk(cut):
                feed.lo = cut.start
                self._salvage.owed = 0
                span, self._careful = min(4 * span, feed.size), 1
            elif cut and cut.comma - feed.lo > _SMALL:
                # An event before the cut fits no typed struct or is damaged, or the cut lies inside one: come nearer.
                span = (cut.comma - feed.lo) // 4
            else:
                if not self._one_by_one():
                    return
                # Looking for a cut must cost no more than what it may save.
                span = min(4 * _SMALL, feed.size)

    def _one_by_one(self) -> bool:
        """Take some elements with care, more of them each time in a row; False at the end of the array."""
        going_on = True
        for _ in range(self._careful):
            going_on = going_on and self._salvage.one()
        self._salvage.pass_comma()
        self._careful = min(2 * self._careful, _MANY)
        if not going_on or len(self._mended) >= _MANY:
            self._take_mended()
        return going_on

    def _chunk(self, cut: Cut) -> bool:
        """Take all events before a cut at once; False if that is not possible."""
        feed, data = self._feed, self._feed.data
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
        self._check_times(cut.comma)
        return True

    def _check_times(self, end: int) -> None:
        """Look at the text of late times in some samples: their float64 does not show decimals beyond the third."""
        if self._checked >= _CHECKED or self._rows.text or self._rows.latest < BLUNT_NS:
            return
        lo = self._feed.lo
        sample = min(end, lo + _SAMPLE)
        self._checked += sample - lo
        if FINE_TIME.search(self._feed.data, lo, sample):
            raise NeedsText

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
            self.anything.skipped |= {tag_of(kind) for kind in set(map(type, events)) - CATEGORY.keys()}
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

    def take_one(self, value: dict[str, Any], used: int, reason: str) -> None:
        """Take one event that was read with care, the next ``used`` bytes of the feed."""
        feed = self._feed
        raw = bytes(feed.data[feed.lo : feed.lo + used])
        place = (self.count, feed.position)
        decoded = None if reason else self._decode(b"[" + raw + b"]", used + 2)
        if decoded:
            self._take(*decoded, feed.lo + used)
            return
        self._mended.append((from_value(value), place, reason or oddity(raw)))
        self.count += 1

    def _take_mended(self) -> None:
        places = {id(event): place for event, place, _ in self._mended}
        lost = self.anything.add([event for event, _, _ in self._mended], lambda event: places[id(event)])
        gone = {id(event) for event in lost}
        for event, place, reason in self._mended:
            if id(event) not in gone:
                self._troubles.repair(reason, place, event.name)
        self._mended.clear()
