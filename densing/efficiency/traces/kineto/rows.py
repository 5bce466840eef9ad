"""Events to columns: names, lanes and communications are numbered, objects dropped chunk by chunk."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from densing.core import InputError
from densing.efficiency.timeline import PRODUCTS, Comm, Int, Product, product_of
from densing.efficiency.traces.kineto.communications import comm_of, comm_of_range
from densing.efficiency.traces.kineto.events import (
    CATEGORY,
    LIMIT_NS,
    MISSING,
    Role,
    canonical,
    from_numbers,
    from_text,
    role,
)
from densing.efficiency.traces.kineto.text import Damage

Key = TypeVar("Key", bound=Hashable)
LaneKey = tuple[int | str, int | str, int | str | None, int | str | None, bool]
"""pid, tid, device, stream, and whether the row belongs to a device."""

Locate = Callable[[Any], tuple[int, int]]

ANNOUNCER = "record_param_comms"
"""The operator that records what a communication moves; its kernel carries its ``External id``."""

_MISSING_NS = MISSING * 1000
_ENCODE = msgspec.json.Encoder().encode
_HOST = (Role.LAUNCH, Role.RANGE, Role.OP, Role.FRAME)


class Numbers(dict[Key, int]):
    """Numbers things in order of appearance.

    Examples
    --------
    >>> numbers = Numbers()
    >>> numbers["a"], numbers["b"], numbers["a"]
    (0, 1, 0)
    """

    def __missing__(self, key: Key) -> int:
        number = self[key] = len(self)
        return number


class Names(Numbers[str]):
    """Numbers names, and counts their characters."""

    characters = 0

    def __missing__(self, key: str) -> int:
        self.characters += len(key)
        return super().__missing__(key)


class Lanes(dict[tuple[Any, ...], int]):
    """Numbers of one side's lanes by the fields that tell them apart: a short key is looked up in half the time.

    Examples
    --------
    >>> numbers = Numbers()
    >>> Lanes(numbers, False)[1, 2], Lanes(numbers, True)[0, 7, 0, 7], list(numbers)
    (0, 1, [(1, 2, None, None, False), (0, 7, 0, 7, True)])
    """

    def __init__(self, numbers: Numbers[LaneKey], on_device: bool) -> None:
        self._numbers, self._on_device = numbers, on_device

    def __missing__(self, key: tuple[Any, ...]) -> int:
        pid, tid, device, stream = key if self._on_device else (*key, None, None)
        number = self[key] = self._numbers[pid, tid, device, stream, self._on_device]
        return number


class Columns:
    """Columns that grow in place, held in the narrowest integers that fit.

    Examples
    --------
    >>> columns = Columns()
    >>> columns.add(2, ids=np.array([1, 300]))
    >>> columns.add(1, ids=np.array([7]))
    >>> columns.take("ids")
    array([  1, 300,   7], dtype=int16)
    """

    _BLOCK = 1 << 14

    def __init__(self) -> None:
        self._packed_columns: dict[str, NDArray[Any]] = {}
        self._fresh: dict[str, list[NDArray[Any]]] = defaultdict(list)
        self._packed = self._rows = 0

    def add(self, length: int, **parts: NDArray[Any]) -> None:
        """Append rows."""
        self._rows += length
        for key, part in parts.items():
            self._fresh[key].append(part)
        if self._rows - self._packed >= self._BLOCK:
            self._pack()

    def _pack(self) -> None:
        for key, parts in self._fresh.items():
            part = np.concatenate(parts)
            column = self._packed_columns.pop(key, np.empty(0, np.int8))
            column = column.astype(np.promote_types(column.dtype, _narrowest(part)), copy=False)
            if len(column) < self._rows:
                # Enlarged in place the column never exists twice, as it would if parts were joined at the end.
                column.resize(self._rows + (self._rows >> 3), refcheck=False)
            column[self._packed : self._rows] = part
            self._packed_columns[key] = column
        self._fresh.clear()
        self._packed = self._rows

    def take(self, key: str) -> NDArray[Any]:
        """Return a column and forget it; its type is as narrow as its values allow."""
        self._pack()
        return self._packed_columns.pop(key, np.empty(0, np.int64))[: self._rows]


def _narrowest(column: NDArray[Any]) -> type:
    low, high = int(column.min()), int(column.max())
    fitting = (t for t in (np.int8, np.int16, np.int32) if np.iinfo(t).min <= low and high <= np.iinfo(t).max)
    return next(fitting, np.int64)


def integers(values: list[int]) -> Int:
    """Return a column of int64; what does not fit becomes -1."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except OverflowError:
        return np.array([value if -(2**63) <= value < 2**63 else -1 for value in values], np.int64)


class Rows:
    """Device work, host calls and ranges of a file, in columns.

    Parameters
    ----------
    damage : Damage
        Where damaged times are reported.
    text : bool
        Whether the events' times are text.
    limit : int
        How many may be kept (see :class:`densing.efficiency.traces.Limits`).

    Attributes
    ----------
    latest : int
        The latest start so far, in ns.
    announced, shaped : dict
        By External id, what an operator tells of a communication, and the number of the product that it computes.
    """

    def __init__(self, damage: Damage, text: bool, limit: int) -> None:
        self.damage, self.text, self._limit = damage, text, limit
        self.names = Names()
        self.lanes: Numbers[LaneKey] = Numbers()
        self._device_lanes, self._host_lanes = Lanes(self.lanes, True), Lanes(self.lanes, False)
        self.comms: Numbers[Comm] = Numbers()
        self.categories: Numbers[tuple[str, Role]] = Numbers()
        self.device, self.host = Columns(), Columns()
        self.announced: dict[int, Comm] = {}
        self.products: Numbers[Product] = Numbers()
        self.shaped: dict[int, int] = {}
        self._calls: dict[Any, int] = {}
        self.unknown: dict[str, list[Any]] = {}
        self.latest = 0
        self._spans = 0

    def add(self, events: Sequence[Any], locate: Locate, text: bool | None = None) -> list[Any]:
        """Take typed events of wanted categories; return those that were left out because of their times."""
        groups: dict[type, list[Any]] = defaultdict(list)
        for event in events:
            groups[type(event)].append(event)
        untimed: list[Any] = []
        for kind, group in groups.items():
            category = CATEGORY[kind]
            category_role = role(category)
            if category_role is Role.UNKNOWN:
                # All are counted; those that name a stream or device are listed as unknown work.
                counted = self.unknown.setdefault(category, [0, group[0].name])
                counted[0] += len(group)
                group = [event for event in group if event.args.stream is not None or event.args.device is not None]
            timed, start, duration = self._times(group, locate, self.text if text is None else text)
            if len(timed) < len(group):
                ids = {id(event) for event in timed}
                untimed += [event for event in group if id(event) not in ids]
            if timed:
                add = self._add_host if category_role in _HOST else self._add_device
                add(category, category_role, timed, start, duration)
                self.keep(len(timed))
        return untimed

    def keep(self, count: int) -> None:
        """Count what is kept.

        Raises
        ------
        InputError
            When it is more than the limit.
        """
        self._spans += count
        different = len(self.names) + self.names.characters // 256 + len(self.lanes) + len(self.comms)
        if self._spans + different + len(self.announced) + len(self.shaped) + len(self._calls) > self._limit:
            raise InputError(
                f"{self.damage.source}: holds more than {self._limit} spans and names, which is "
                "the memory limit; record fewer steps, split it, or raise Limits(spans=...)"
            )

    def _times(self, events: list[Any], locate: Locate, text: bool) -> tuple[list[Any], Int, Int]:
        if text:
            events, start, duration = self._text_times(events, locate)
        else:
            start = from_numbers([event.ts for event in events])
            duration = from_numbers([event.dur for event in events])
        self.latest = max(self.latest, int(start.max(initial=0)))
        # That no time is missing, negative or beyond what int64 holds is told by the extremes alone.
        if not len(start) or (
            duration.min() >= 0 and start.min() > _MISSING_NS and int(start.max()) + int(duration.max()) < LIMIT_NS
        ):
            return events, start, duration
        good = (duration >= 0) & (start > -LIMIT_NS) & (start != _MISSING_NS)
        good &= (duration < LIMIT_NS) & (start < LIMIT_NS - np.minimum(duration, LIMIT_NS))
        for i in np.flatnonzero(~good):
            reason = _fault(int(start[i]), int(duration[i]))
            self.damage.skip(reason, partial(locate, events[i]), events[i].name)
        return [event for event, ok in zip(events, good, strict=True) if ok], start[good], duration[good]

    def _text_times(self, events: list[Any], locate: Locate) -> tuple[list[Any], Int, Int]:
        timed, times = [], []
        for event in events:
            start, duration = bytes(event.ts), bytes(event.dur)
            try:
                times.append((_text_ns("time", start), _text_ns("duration", duration)))
            except ValueError as error:
                self.damage.skip(str(error), partial(locate, event), event.name)
                continue
            timed.append(event)
            if b'"' in start or b'"' in duration:
                self.damage.repair("time written as text", partial(locate, event), event.name)
        table = np.array(times, np.int64).reshape(-1, 2)
        return timed, table[:, 0], table[:, 1]

    def _add_device(self, category: str, category_role: Role, events: list[Any], start: Int, duration: Int) -> None:
        args = [event.args for event in events]
        comm = np.full(len(events), -1, np.int32)
        # The lowest bit says whether arguments describe a collective.
        code = np.full(len(events), 2 * self.categories[(canonical(category), category_role)], np.int16)
        for i, a in enumerate(args):
            # A group alone is worth keeping, but only the name of a collective makes a communication of a kernel.
            if a.collective or a.group_size >= 0 or a.group != "":
                comm[i] = self.comms[comm_of(a)]
                code[i] += bool(a.collective)
        lanes = self._device_lanes
        self.device.add(
            len(events),
            start=start,
            duration=duration,
            name=self._named(events),
            category=code,
            lane=np.fromiter([lanes[e.pid, e.tid, e.args.device, e.args.stream] for e in events], np.int32),
            bytes=integers([a.bytes for a in args]),
            correlation=integers([a.correlation for a in args]),
            external=integers([a.external for a in args]),
            comm=comm,
        )

    def _named(self, events: list[Any]) -> NDArray[np.int32]:
        return np.fromiter([self.names[event.name] for event in events], np.int32)

    def _add_host(self, category: str, category_role: Role, events: list[Any], start: Int, duration: Int) -> None:
        lanes, count = self._host_lanes, len(events)
        correlation = external = np.full(count, -1, np.int64)
        comm = np.full(count, -1, np.int32)
        if category_role is Role.LAUNCH:
            correlation = integers([event.args.correlation for event in events])
            external = integers([event.args.external for event in events])
        elif category_role is Role.RANGE:
            comms = [comm_of_range(event.name, event.args.dims, event.args.types) for event in events]
            comm[:] = [-1 if c is None else self.comms[c] for c in comms]
        elif category_role is Role.OP:
            for event in events:
                self.announce(event)
            external = integers([event.args.external for event in events])
        self.host.add(
            count,
            start=start,
            duration=duration,
            name=self._named(events),
            lane=np.fromiter([lanes[event.pid, event.tid] for event in events], np.int32),
            category=np.full(count, self.categories[(category, category_role)], np.int16),
            correlation=correlation,
            external=external,
            comm=comm,
        )

    def announce(self, event: Any) -> None:
        """Remember what an operator says of a communication or of a product."""
        args = event.args
        if event.name == ANNOUNCER and args.collective and args.external >= 0:
            self.announced[args.external] = comm_of(args)
        elif event.name in PRODUCTS:
            self.shape(args.external, event.name, *map(_ENCODE, (args.dims, args.types, args.values)))

    def shape(self, external: int, *call: Any) -> None:
        """Remember what an operator of an External id computes: its name, and its shapes, types and values as text."""
        if call not in self._calls:
            product = product_of(call[0], *(_decoded(text) for text in call[1:]))
            self._calls[call] = -1 if product is None else self.products[product]
        if (number := self._calls[call]) >= 0 and 0 <= external < 2**63:
            self.shaped[external] = number


def _decoded(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text) if text else None
    except (ValueError, msgspec.DecodeError, RecursionError):
        return None


def _text_ns(field: str, text: bytes) -> int:
    text = text.strip(b'"')
    if text in (b"", b"null"):
        return _MISSING_NS
    try:
        return from_text(text)
    except ValueError as error:
        raise ValueError(f"{field} is {error}") from error


def _fault(start: int, duration: int) -> str:
    if start == _MISSING_NS:
        return "it has no time"
    if duration == _MISSING_NS:
        return "it has no duration"
    if duration < 0:
        return "duration is negative"
    return "duration is beyond int64 ns" if duration >= LIMIT_NS else "time is beyond int64 ns"
