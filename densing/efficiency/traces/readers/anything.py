"""Events that fit no typed struct: without category, of a new category, with odd types, or repaired."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import msgspec

from densing.efficiency.traces.readers.categories import ROLES, Role, category_of, role
from densing.efficiency.traces.readers.rows import Locate, Rows
from densing.efficiency.traces.readers.structs import ANY_EVENTS, ARGS, AnyEvent, Decoders, struct_of
from densing.efficiency.traces.readers.text import Strange, clean

_SHOWN = 20

# A file of endless new categories must not make endless new types.
_FALLBACK = {
    Role.DEVICE: "kernel",
    Role.SYNC: "cuda_sync",
    Role.LAUNCH: "cuda_runtime",
    Role.UNKNOWN: "(other categories)",
}


class Anything:
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
        typed, origin = [], {}
        for event in events:
            if event.ph == "M":
                self._remember(event)
            elif event.ph in ("B", "E"):
                self.halves += 1
            elif event.ph == "X":
                made = self._typed(event)
                if made is not None:
                    typed.append(made)
                    origin[id(made)] = event
        lost = self._rows.add(typed, lambda made: locate(origin[id(made)]), text=True)
        return [origin[id(made)] for made in lost]

    def announce(self, raw: bytes) -> None:
        """Take an operator's text for what it says of a communication."""
        try:
            (event,) = ANY_EVENTS.decode(b"[" + raw + b"]")
        except (ValueError, msgspec.DecodeError, RecursionError):
            return
        if event.ph == "X" and role(event.cat) is Role.OP:
            self._rows.announce(_make(event, event.cat))

    def _remember(self, event: AnyEvent) -> None:
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
        category = event.cat or category_of(event.pid)
        if not category:
            known = str(event.pid) in self.uncategorised or len(self.uncategorised) < _SHOWN
            self.uncategorised[str(event.pid) if known else "..."] += 1
            return None
        what = role(category)
        if what is Role.SKIP:
            if len(self.skipped) < _SHOWN or category in ROLES:
                self.skipped.add(category)
            return None
        if category not in ROLES and category not in self._decoders.learned:
            category = _FALLBACK[what]
        if what is Role.OP and not self._decoders.operators:
            self._rows.announce(_make(event, category))
            return None
        return _make(event, category)


def _make(event: AnyEvent, category: str) -> Any:
    kind = struct_of(category, True, True)
    args = _arguments(event.args or {}, ARGS[role(category)])
    return kind(name=event.name, ts=event.ts, dur=event.dur, pid=event.pid, tid=event.tid, args=args)


def _arguments(given: dict[str, Any], kind: type[msgspec.Struct]) -> Any:
    """Convert arguments, each that is of an impossible type left out."""
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError:
        fitting = {key: value for key, value in given.items() if _fits(key, value, kind)}
        return msgspec.convert(fitting, kind, strict=False)


def _fits(key: str, value: Any, kind: type[msgspec.Struct]) -> bool:
    try:
        msgspec.convert({key: value}, kind, strict=False)
    except msgspec.ValidationError:
        return False
    return True


def from_value(value: dict[str, Any]) -> AnyEvent:
    """Make an event of a leniently parsed object; fields of impossible type count as absent.

    Examples
    --------
    >>> event = from_value({"ph": "X", "name": 7, "ts": Decimal("1.5"), "cat": "kernel"})
    >>> event.name, bytes(event.ts)
    ('7', b'1.5')
    """
    args = value.get("args")
    return AnyEvent(
        ph=_word(value.get("ph", "X")),
        cat=_word(value.get("cat", "")),
        name=_word(value.get("name", "")),
        ts=_time(value.get("ts")),
        dur=_time(value.get("dur")),
        pid=_id(value.get("pid", 0)),
        tid=_id(value.get("tid", 0)),
        args={clean(k): _plain(v) for k, v in args.items()} if isinstance(args, dict) else None,
    )


def _word(value: Any) -> str:
    return clean(value) if isinstance(value, str) else clean(str(_plain(value)))


def _id(value: Any) -> int | str:
    return value if type(value) is int else _word(value)


def _time(value: Any) -> msgspec.Raw:
    if isinstance(value, str):
        return msgspec.Raw(b'"' + clean(value).encode() + b'"')
    if isinstance(value, Strange):
        return msgspec.Raw(value.word.encode())
    return msgspec.Raw(b"" if value is None else str(value).encode("utf-8", "replace"))


def _plain(value: Any) -> Any:
    if isinstance(value, Strange):
        return None
    if isinstance(value, Decimal):
        return float(value) if abs(value.adjusted()) < 300 else None
    return clean(value) if isinstance(value, str) else value
