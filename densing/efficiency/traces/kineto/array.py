"""The array of events: whole chunks through the typed decoder, what fits no type or is damaged one event at a time."""

from __future__ import annotations

from collections import Counter
from itertools import compress
from typing import Any

import msgspec

from densing.efficiency.traces.kineto.events import (
    ANY_EVENTS,
    CATEGORY,
    ROLES,
    AnyEvent,
    Decoders,
    Role,
    category_of,
    from_value,
    role,
    tag_of,
    typed,
)
from densing.efficiency.traces.kineto.microseconds import BLUNT_NS, NeedsText
from densing.efficiency.traces.kineto.rows import ANNOUNCER, Locate, Rows
from densing.efficiency.traces.kineto.salvage import Damage, Salvage, oddity
from densing.efficiency.traces.kineto.text import BOUNDARY, FINE_TIME, Cut, TextBuffer, last_boundary

_SMALL = 1 << 12
_LOOSE = 1 << 15
_MANY = 64
_SAMPLE, _CHECKED = 1 << 16, 1 << 18
_SHOWN = 20
_ANNOUNCER = ANNOUNCER.encode()
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_OPEN, _CLOSE = ord("["), ord("]")

# A file of endless new categories must not make endless new types.
_FALLBACK = {
    Role.DEVICE: "kernel",
    Role.SYNC: "cuda_sync",
    Role.LAUNCH: "cuda_runtime",
    Role.UNKNOWN: "(other categories)",
}


class EventArray:
    """Reads ``traceEvents`` from a buffer into rows.

    Attributes
    ----------
    count : int
        Elements met so far, damaged ones included.
    loose : LooseEvents
        What took the events that fit no typed struct.
    """

    def __init__(self, buffer: TextBuffer, decoders: Decoders, rows: Rows, damage: Damage) -> None:
        self._buffer, self._decoders, self._rows, self._damage = buffer, decoders, rows, damage
        self._salvage = Salvage(buffer, self, damage)
        self.loose = LooseEvents(rows, decoders)
        self.count = 0
        self._loose_bytes = _LOOSE
        self._checked = 0
        self._careful = 1
        self._mended: list[tuple[AnyEvent, tuple[int, int], str]] = []

    @property
    def cut_short(self) -> str:
        """Why reading ended inside the array; empty if it did not."""
        return self._salvage.cut_short

    def read(self) -> None:
        """Read up to and including the array's closing bracket."""
        buffer = self._buffer
        span = buffer.size
        while True:
            buffer.fill(span)
            # Where a comma is owed, its lack is seen by going one by one only.
            at_event = self._salvage.owed != 1
            cut = last_boundary(buffer.data, buffer.lo, min(buffer.hi, buffer.lo + span)) if at_event else None
            if cut and self._chunk(cut):
                buffer.lo = cut.start
                self._salvage.owed = 0
                span, self._careful = min(4 * span, buffer.size), 1
            elif cut and cut.comma - buffer.lo > _SMALL:
                # An event before the cut fits no typed struct or is damaged, or the cut lies inside one: come nearer.
                span = (cut.comma - buffer.lo) // 4
            else:
                if not self._one_by_one():
                    return
                # Looking for a cut must cost no more than what it may save.
                span = min(4 * _SMALL, buffer.size)

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
        buffer, data = self._buffer, self._buffer.data
        before, data[buffer.lo - 1], data[cut.comma] = data[buffer.lo - 1], _OPEN, _CLOSE
        try:
            # Times kept as text point into the buffer; they are read before it moves on.
            decoded = self._decode(memoryview(data)[buffer.lo - 1 : cut.comma + 1], self._loose_bytes)
        finally:
            data[buffer.lo - 1], data[cut.comma] = before, ord(",")
        if decoded is None:
            return False
        events, is_typed = decoded
        # Where most events need the slow way, take it in long strides.
        self._loose_bytes = _LOOSE if is_typed else 4 * self._loose_bytes
        self._take(events, is_typed, cut.comma)
        # Look at the text of late times in some samples: their float64 does not show decimals beyond the third.
        if self._checked < _CHECKED and not self._rows.text and self._rows.latest >= BLUNT_NS:
            sample = min(cut.comma, buffer.lo + _SAMPLE)
            self._checked += sample - buffer.lo
            if FINE_TIME.search(data, buffer.lo, sample):
                raise NeedsText
        return True

    def _decode(self, text: memoryview | bytes, loose_bytes: int) -> tuple[list[Any], bool] | None:
        """Decode events by the typed structs, or if they fit none and are not too many, as events of any kind."""
        try:
            return self._decoders.decode(text), True
        except msgspec.ValidationError:
            if len(text) > loose_bytes:
                return None
        except _BROKEN:
            return None
        try:
            return ANY_EVENTS.decode(text), False
        except _BROKEN:
            return None

    def _take(self, events: list[Any], is_typed: bool, end: int) -> None:
        start = self._buffer.lo

        def locate(event: Any) -> tuple[int, int]:
            """Number of an event, and its offset in the file."""
            index = next((i for i, other in enumerate(events) if other is event), 0)
            at = start
            for number, match in enumerate(BOUNDARY.finditer(self._buffer.data, start, end), start=1):
                if number > index:
                    break
                at = match.end()
            return self.count + index, self._buffer.position + at - self._buffer.lo

        if is_typed:
            if not self._decoders.operators:
                self._announced(start, end)
            self.loose.skipped |= {tag_of(kind) for kind in set(map(type, events)) - CATEGORY.keys()}
            wanted = list(compress(events, map(CATEGORY.__contains__, map(type, events))))
            self._rows.add(wanted, locate)
        else:
            self.loose.add(events, locate)
        self.count += len(events)

    def _announced(self, lo: int, hi: int) -> None:
        """Read the few operators that tell what communications move, without reading all operators."""
        data = self._buffer.data
        at = data.find(_ANNOUNCER, lo, hi)
        while at >= 0:
            before = last_boundary(data, lo, at)
            after = BOUNDARY.search(data, at, min(hi + 64, self._buffer.hi))
            end = after.start(1) if after else hi
            self.loose.announce(bytes(data[before.start if before else lo : end]))
            at = data.find(_ANNOUNCER, max(end, at + 1), hi)

    def take_one(self, value: dict[str, Any], used: int, reason: str) -> None:
        """Take one event that was read with care, the next ``used`` bytes of the buffer."""
        buffer = self._buffer
        raw = bytes(buffer.data[buffer.lo : buffer.lo + used])
        location = (self.count, buffer.position)
        decoded = None if reason else self._decode(b"[" + raw + b"]", used + 2)
        if decoded:
            self._take(*decoded, buffer.lo + used)
            return
        self._mended.append((from_value(value), location, reason or oddity(raw)))
        self.count += 1

    def _take_mended(self) -> None:
        locations = {id(event): location for event, location, _ in self._mended}
        lost = {id(event) for event in self.loose.add([row[0] for row in self._mended], lambda e: locations[id(e)])}
        for event, location, reason in self._mended:
            if id(event) not in lost:
                self._damage.repair(reason, location, event.name)
        self._mended.clear()


class LooseEvents:
    """Takes events of any kind: metadata is remembered, wanted ones go to the rows.

    Attributes
    ----------
    threads : dict
        Every name that a thread, a (pid, tid), was given.
    processes : dict
        Name and labels of each pid.
    uncategorised : Counter
        Complete events without category, by process.
    skipped : set of str
        Categories met whose events are left out.
    halves : int
        Events that only begin or only end something (phases B and E), as no Kineto writes them.
    """

    def __init__(self, rows: Rows, decoders: Decoders) -> None:
        self._rows, self._decoders = rows, decoders
        self.threads: dict[tuple[int | str, int | str], list[str]] = {}
        self.processes: dict[int | str, dict[str, str]] = {}
        self.uncategorised: Counter[str] = Counter()
        self.skipped: set[str] = set()
        self.halves = 0

    def add(self, events: list[AnyEvent], locate: Locate) -> list[AnyEvent]:
        """Take events; return those that were left out because of their times."""
        self._decoders.learn({event.cat for event in events if event.cat and event.ph == "X"})
        structs, source = [], {}
        for event in events:
            if event.ph == "M":
                self._remember(event)
            elif event.ph in ("B", "E"):
                self.halves += 1
            elif event.ph == "X":
                struct = self._typed(event)
                if struct is not None:
                    structs.append(struct)
                    source[id(struct)] = event
        lost = self._rows.add(structs, lambda struct: locate(source[id(struct)]), text=True)
        return [source[id(struct)] for struct in lost]

    def announce(self, raw: bytes) -> None:
        """Take an operator's text for what it says of a communication."""
        try:
            (event,) = ANY_EVENTS.decode(b"[" + raw + b"]")
        except (ValueError, msgspec.DecodeError, RecursionError):
            return
        if event.ph == "X" and role(event.cat) is Role.OP:
            self._rows.announce(typed(event, event.cat))

    def _remember(self, event: AnyEvent) -> None:
        """Take what metadata says of threads and processes."""
        args = event.args or {}
        if event.name == "thread_name" and isinstance(args.get("name"), str):
            names = self.threads.setdefault((event.pid, event.tid), [])
            # The last name is the thread's; what it was called before is told too, each once.
            if args["name"] in names:
                names.remove(args["name"])
            names.append(args["name"])
            self._rows.keep(1 + len(args["name"]) // 256)
        for name, key in (("process_name", "name"), ("process_labels", "labels")):
            if event.name == name and isinstance(args.get(key), str):
                self.processes.setdefault(event.pid, {})[key] = args[key]

    def _typed(self, event: AnyEvent) -> Any:
        """Return a complete event as a typed struct; None where it is left out."""
        category = event.cat or category_of(event.pid)
        if not category:
            is_shown = str(event.pid) in self.uncategorised or len(self.uncategorised) < _SHOWN
            self.uncategorised[str(event.pid) if is_shown else "..."] += 1
            return None
        category_role = role(category)
        if category_role is Role.SKIP:
            if len(self.skipped) < _SHOWN or category in ROLES:
                self.skipped.add(category)
            return None
        if category not in ROLES and category not in self._decoders.learned:
            category = _FALLBACK[category_role]
        if category_role is Role.OP and not self._decoders.operators:
            self._rows.announce(typed(event, category))
            return None
        return typed(event, category)
