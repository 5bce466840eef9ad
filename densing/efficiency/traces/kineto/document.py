"""A trace's JSON document: keys before and after the events, what they say of the run, and the array of events.

The array is read in chunks: whole ones through the typed decoder, what fits no type or is damaged one event at a time.
The rest is read value by value; damage costs one value or one event.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from itertools import compress
from typing import Any

import msgspec

from densing.core import InputError, Note, Severity
from densing.efficiency.timeline import PRODUCTS, RECORDER, Origin
from densing.efficiency.traces.kineto.communications import groups_of
from densing.efficiency.traces.kineto.events import (
    ANY_EVENT,
    ANY_EVENTS,
    BLUNT_NS,
    CATEGORY,
    KERNEL,
    MEMCPY,
    MEMSET,
    MODULE,
    ROLES,
    SHAPED_EVENT,
    AnyEvent,
    Decoders,
    NeedsText,
    Role,
    ShapedEvent,
    category_of,
    from_text,
    from_value,
    role,
    tag_of,
    typed,
)
from densing.efficiency.traces.kineto.rows import ANNOUNCER, Locate, Rows
from densing.efficiency.traces.kineto.text import (
    BOUNDARY,
    FINE_TIME,
    Cut,
    Damage,
    Salvage,
    TextBuffer,
    TooLong,
    last_boundary,
    oddity,
    scan_value,
)
from densing.efficiency.traces.source import TraceFile

HEADER = ("distributedInfo", "deviceProperties", "baseTimeNanoseconds", "host_name", "hostname", "schemaVersion",
          RECORDER)  # fmt: skip
# A key of the document that is one of these belongs to an event that stands alone.
_OF_EVENTS = ("ph", "cat", "name", "ts", "pid", "tid")
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

    def __init__(self, buffer: TextBuffer, events: EventArray, label: str) -> None:
        self._buffer, self._events, self._label = buffer, events, label
        self.header: dict[str, Any] = {}
        self.has_events = self._is_lone_event = False
        self.notes: list[Note] = []

    def read(self) -> None:
        """Read the whole file.

        Raises
        ------
        InputError
            When it is not a trace at all.
        """
        buffer = self._buffer
        buffer.fill(4)
        head = bytes(buffer.data[buffer.lo : min(buffer.hi, buffer.lo + 3)])
        if head[:2] in _BOMS or b"\x00" in head:
            raise InputError(f"{self._label}: is not UTF-8 text (UTF-16 or binary); save it as UTF-8")
        if head == b"\xef\xbb\xbf":
            buffer.lo += 3
        first, _ = buffer.next_byte()
        if first is None:
            raise InputError(f"{self._label}: is empty; record it again")
        if first == ord("["):
            self._array()
            if not self._events.cut_short:
                self._after_end()
        elif first == ord("{"):
            buffer.lo += 1
            self._members()
        else:
            raise InputError(f"{self._label}: is not JSON (begins with {head!r}); a Kineto or Chrome trace is expected")
        if not self.has_events:
            reason = f" ({self.notes[0].message.removeprefix(self._label + ': ')})" if self.notes else ""
            if self._is_lone_event:
                reason = " (events stand alone; put them in [ ], separated by commas)"
            raise InputError(f"{self._label}: has no traceEvents{reason}; a Kineto or Chrome trace is expected")

    def _array(self) -> None:
        self._buffer.lo += 1
        self.has_events = True
        self._events.read()

    def _after_end(self) -> None:
        """Tell what follows the trace's end, other than space and padding; none of it is read."""
        buffer = self._buffer
        while not (text := bytes(buffer.data[buffer.lo : buffer.hi]).lstrip(b"\x00 \t\r\n")):
            buffer.lo = buffer.hi
            if not buffer.more():
                return
        at = buffer.position + buffer.hi - buffer.lo - len(text)
        if text[:1] in (b"{", b"["):
            self._warn(
                "text-after-end",
                f"a second document begins at byte {at} and was not read; move it to a file of its own",
                "error",
            )
        else:
            self._warn("text-after-end", f"the text after byte {at} is not part of the trace and was not read")

    def _members(self) -> None:
        while (byte := self._buffer.next_byte()[0]) is not None and byte != ord("}"):
            try:
                self._member()
            except _Unreadable as problem:
                if self.has_events or not self._find_events():
                    self._warn("header-unreadable", f"unreadable text at byte {self._buffer.position} ({problem})")
                    return
                self._warn("header-unreadable", f"the header is unreadable ({problem}); only the events were read")
                self._array()
        if byte is not None:
            self._buffer.lo += 1
            self._after_end()
        elif not self._events.cut_short:
            self._warn("file-ends-early", f"ends early, at byte {self._buffer.position}")

    def _member(self) -> None:
        buffer = self._buffer
        key = self._value()
        colon, _ = buffer.next_byte()
        if not isinstance(key, str) or colon != ord(":"):
            raise _Unreadable("no key")
        buffer.lo += 1
        first, _ = buffer.next_byte()
        if key == "traceEvents" and first == ord("["):
            if self.has_events:
                self._warn("events-twice", "has the key traceEvents twice; the events of both were read")
            self._array()
            return
        value = self._value()
        self._is_lone_event = self._is_lone_event or key in _OF_EVENTS
        if key in HEADER:
            self.header[key] = value

    def _value(self) -> Any:
        """Read one value of the header, however it lies over the chunks."""
        try:
            value, used = scan_value(self._buffer, lambda _: True)
        except json.JSONDecodeError as error:
            raise _Unreadable(error.msg) from error
        except RecursionError as error:
            raise _Unreadable("nested too deeply") from error
        except TooLong as error:
            raise _Unreadable(f"longer than {self._buffer.limit} bytes") from error
        self._buffer.lo += used
        return value

    def _find_events(self) -> bool:
        """Go to the array of events without understanding what comes before it."""
        buffer = self._buffer
        while True:
            at = buffer.data.find(_EVENTS, buffer.lo, buffer.hi)
            if at >= 0:
                buffer.lo = at + len(_EVENTS)
                if buffer.next_byte()[0] == ord(":"):
                    buffer.lo += 1
                    if buffer.next_byte()[0] == ord("["):
                        return True
                continue
            buffer.lo = max(buffer.lo, buffer.hi - len(_EVENTS))
            if not buffer.more():
                return False

    def _warn(self, code: str, message: str, severity: Severity = "warning") -> None:
        self.notes.append(Note(code, severity, f"{self._label}: {message}", {"file": self._label}))


def rank_of(trace: TraceFile, header: Mapping[str, Any]) -> tuple[int, str, list[Note]]:
    """Return the rank of a trace, where that is known from, and a note unless the trace itself says it.

    Order: the user's word, ``distributedInfo``, the file's name, 0.

    Examples
    --------
    >>> from pathlib import Path
    >>> rank_of(TraceFile(Path("rank3.json")), {"distributedInfo": {"rank": 1}})[:2]
    (1, 'distributedInfo')
    >>> rank_of(TraceFile(Path("rank3.json")), {})[:2]
    (3, 'file name')
    """
    recorded = _count(_info(header).get("rank"))
    in_name = trace.rank_in_name()
    if trace.rank is not None:
        rank, source = trace.rank, "option"
    elif recorded is not None:
        return recorded, "distributedInfo", []
    elif in_name is not None:
        rank, source = in_name, "file name"
    else:
        rank, source = 0, "default"
    message = f"{trace.label}: rank {rank} was taken from: {source}"
    if source == "default":
        message = f"{trace.label}: neither the trace nor its name states the rank; rank 0 is assumed"
    return rank, source, [Note("rank-source", "info", message, {"rank": rank, "source": source})]


def origin_of(trace: TraceFile, rank_from: str, header: Mapping[str, Any]) -> Origin:
    """Return where a timeline came from and what its header says."""
    info = _info(header)
    size = _count(info.get("world_size"))
    devices = header.get("deviceProperties")
    names = [d.get("name") for d in devices if isinstance(d, dict)] if isinstance(devices, list) else []
    return Origin(
        source=trace.label,
        rank_from=rank_from,
        world_size=-1 if size is None else size,
        backend=_text(info.get("backend")),
        devices=tuple(name for name in names if isinstance(name, str)),
        host=_text(header.get("host_name") or header.get("hostname")),
        groups=groups_of(info),
        recorder=_text(header.get(RECORDER)),
    )


def _info(header: Mapping[str, Any]) -> Mapping[str, Any]:
    info = header.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def _count(value: Any) -> int | None:
    """A rank or size: a whole number from 0 on, perhaps written as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    return value if type(value) is int and 0 <= value < 2**31 else None


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(_text(part) for part in value)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


# The array of events.

_SMALL = 1 << 12
_LOOSE = 1 << 15
_MANY = 64
_SAMPLE, _CHECKED = 1 << 16, 1 << 18
_SHOWN = 20
_ANNOUNCER, _SHAPES = ANNOUNCER.encode(), b'"Input Dims"'
_MODULE = f'"{MODULE}'.encode()
_PRODUCT = re.compile(b'"(?:' + b"|".join(map(str.encode, PRODUCTS)) + b')"')
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
        self._salvage.owed = 0
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
            mended = [event for event, _, _ in self._mended]
            locations = {id(event): location for event, location, _ in self._mended}
            left_out = {id(event) for event in self.loose.add(mended, lambda event: locations[id(event)])}
            for event, location, reason in self._mended:
                if id(event) not in left_out:
                    self._damage.repair(reason, location, event.name)
            self._mended.clear()
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
            self._modules(start, end)
            self.loose.skipped |= {tag_of(kind) for kind in set(map(type, events)) - CATEGORY.keys()}
            kept_kinds = map(CATEGORY.__contains__, map(type, events))
            self._rows.add(list(compress(events, kept_kinds)), locate)
        else:
            self.loose.add(events, locate)
        self.count += len(events)

    def _announced(self, lo: int, hi: int) -> None:
        """Read the few operators that tell what communications move and products compute, and no others."""
        data = self._buffer.data
        at = data.find(_ANNOUNCER, lo, hi)
        while at >= 0:
            event, end = self._around(lo, at, hi, ANY_EVENT)
            if event is not None:
                self.loose.announce(event)
            at = data.find(_ANNOUNCER, end, hi)
        # The names of products are looked for only where shapes were recorded.
        match = _PRODUCT.search(data, lo, hi) if data.find(_SHAPES, lo, hi) >= 0 else None
        while match:
            shaped, end = self._around(lo, match.start(), hi, SHAPED_EVENT)
            if shaped is not None:
                self.loose.shape(shaped)
            match = _PRODUCT.search(data, end, hi)

    def _modules(self, lo: int, hi: int) -> None:
        """Read the Python frames that are calls of modules, without reading all frames."""
        data, modules = self._buffer.data, list[AnyEvent]()
        at = data.find(_MODULE, lo, hi)
        while at >= 0:
            event, end = self._around(lo, at, hi, ANY_EVENT)
            if event is not None and event.name.startswith(MODULE):
                modules.append(event)
            at = data.find(_MODULE, end, hi)
        place = (self.count, self._buffer.position)
        self.loose.add(modules, lambda _: place)

    def _around(self, lo: int, at: int, hi: int, decoder: msgspec.json.Decoder[Any]) -> tuple[Any, int]:
        """Return the event around a place in the text, None if it cannot be read, and where the rest begins."""
        data = self._buffer.data
        after = BOUNDARY.search(data, at, min(hi + 64, self._buffer.hi))
        end = after.start(1) if after else hi
        try:
            # Mostly the brace before a name opens its event; where arguments come first, the long way finds it.
            return decoder.decode(data[max(data.rfind(b"{", lo, at), lo) : end]), max(end, at + 1)
        except _BROKEN:
            before = last_boundary(data, lo, at)
        try:
            return decoder.decode(data[before.start if before else lo : end]), max(end, at + 1)
        except _BROKEN:
            return None, max(end, at + 1)

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
        Events that only begin or only end something (phases B and E) and have no partner.
    """

    def __init__(self, rows: Rows, decoders: Decoders) -> None:
        self._rows, self._decoders = rows, decoders
        self.threads: dict[tuple[int | str, int | str], list[str]] = {}
        self.processes: dict[int | str, dict[str, str]] = {}
        self.uncategorised: Counter[str] = Counter()
        self.skipped: set[str] = set()
        self._begun: dict[tuple[int | str, int | str], list[AnyEvent]] = {}
        self._lone_ends = 0

    def add(self, events: list[AnyEvent], locate: Locate) -> list[AnyEvent]:
        """Take events; return those that were left out because of their times."""
        self._decoders.learn({event.cat for event in events if event.cat and event.ph in ("X", "B")})
        structs, source = [], {}
        event: AnyEvent | None
        for event in events:
            if event.ph == "M":
                self._remember(event)
            elif event.ph in ("B", "E"):
                event = self._joined(event)
            if event is not None and event.ph == "X":
                struct = self._typed(event)
                if struct is not None:
                    structs.append(struct)
                    source[id(struct)] = event
        untimed = self._rows.add(structs, lambda struct: locate(source[id(struct)]), text=True)
        return [source[id(struct)] for struct in untimed]

    @property
    def halves(self) -> int:
        """Events of phase B or E without a partner."""
        return self._lone_ends + sum(map(len, self._begun.values()))

    def _joined(self, event: AnyEvent) -> AnyEvent | None:
        """Return the complete event that an end (E) makes of the last beginning (B) of its thread.

        Source: "Trace Event Format" (Google, 2016), duration events: they nest, in order of time on each thread; the
        arguments of both are merged.
        """
        open_events = self._begun.setdefault((event.pid, event.tid), [])
        if event.ph == "B":
            # Times point into a buffer that moves on.
            open_events.append(msgspec.structs.replace(event, ts=msgspec.Raw(bytes(event.ts))))
            self._rows.keep(1)
            return None
        if not open_events:
            self._lone_ends += 1
            return None
        begin = open_events.pop()
        try:
            took = from_text(bytes(event.ts)) - from_text(bytes(begin.ts))
        except ValueError:
            took = -1
        sign, took = ("-" if took < 0 else ""), abs(took)
        duration = msgspec.Raw(f"{sign}{took // 1000}.{took % 1000:03d}".encode())
        args = {**(begin.args or {}), **(event.args or {})}
        return msgspec.structs.replace(begin, ph="X", dur=duration, args=args)

    def announce(self, event: AnyEvent) -> None:
        """Take what an operator says of a communication."""
        if event.ph == "X" and role(event.cat) is Role.OP:
            self._rows.announce(typed(event, event.cat))

    def shape(self, event: ShapedEvent) -> None:
        """Take the shapes of what an operator computes."""
        if event.ph == "X" and role(event.cat) is Role.OP and event.name in PRODUCTS:
            args = event.args
            self._rows.shape(args.external, event.name, *(bytes(part) for part in (args.dims, args.types, args.values)))

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
        process = self.processes.get(event.pid, {}).get("name", "") if not category else ""
        if process.startswith(("/device:", "/host:")):
            thread = (self.threads.get((event.pid, event.tid)) or [""])[-1]
            name, category = xla_category(event.name, process, thread)
            event = msgspec.structs.replace(event, name=name)
        if not category:
            is_shown = str(event.pid) in self.uncategorised or len(self.uncategorised) < _SHOWN
            self.uncategorised[str(event.pid) if is_shown else "..."] += 1
            return None
        if category == "python_function" and event.name.startswith(MODULE):
            category = MODULE
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


def xla_category(name: str, process: str, thread: str) -> tuple[str, str]:
    """Return name and category of an event of XLA's profiler, which writes no category: process and thread tell it.

    Source: JAX's ``trace.json.gz``: processes ``/device:GPU:0``, ``/device:TPU:0`` and ``/host:CPU``; of a device the
    threads ``Stream #...`` or ``XLA Ops`` hold its work, ``Steps`` one event per step; Python's frames begin with $.

    Examples
    --------
    >>> xla_category("3", "/device:TPU:0", "Steps"), xla_category("fusion.7", "/device:TPU:0", "XLA Ops")
    (('ProfilerStep#3', 'user_annotation'), ('fusion.7', 'kernel'))
    """
    if not process.startswith("/device:"):
        return name, "python_function" if name.startswith("$") else "user_annotation"
    if thread == "Steps":
        return f"ProfilerStep#{name}", "user_annotation"
    if not thread.startswith("Stream") and thread != "XLA Ops":
        return name, "Trace"
    return name, next((kind for word, kind in _XLA_COPIES.items() if name.lower().startswith(word)), KERNEL)


_XLA_COPIES = {"memcpy": MEMCPY, "memset": MEMSET}
