"""What was damaged in a trace, counted by reason, with the first places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from densing.core import Note

Place = tuple[int, int] | Callable[[], tuple[int, int]]

SHOWN = 5
_WIDTH = 80


@dataclass
class Troubles:
    """Collects damage while a file is read.

    Examples
    --------
    >>> troubles = Troubles("rank0.json")
    >>> troubles.skip("duration is negative", (3, 812), "gemm")
    >>> troubles.skipped, troubles.notes()[0].severity
    (1, 'error')
    """

    source: str
    skipped: int = 0
    repaired: int = 0
    _skips: dict[str, dict[str, Any]] = field(default_factory=dict)
    _repairs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def skip(self, reason: str, place: Place, name: str = "") -> None:
        """Count an event that was left out; its place is its number and byte, or a function that finds them."""
        self.skipped += 1
        _count(self._skips, reason, place, name)

    def repair(self, reason: str, place: Place, name: str = "") -> None:
        """Count an event that was kept after repair."""
        self.repaired += 1
        _count(self._repairs, reason, place, name)

    def notes(self) -> list[Note]:
        """Return one note per reason."""
        skips = [self._note("event-skipped", "skipped", why, found) for why, found in self._skips.items()]
        repairs = [self._note("event-repaired", "repaired", why, found) for why, found in self._repairs.items()]
        return skips + repairs

    def _note(self, code: str, done: str, reason: str, found: dict[str, Any]) -> Note:
        first, count = found["first"][0], found["count"]
        what = f"{count} events" if count > 1 else "1 event"
        where = f"event {first['event']}, byte {first['byte']}" + (f", {first['name']!r}" if first["name"] else "")
        severity = "error" if done == "skipped" else "warning"
        message = f"{self.source}: {what} {done}: {reason} ({'first: ' if count > 1 else ''}{where})"
        return Note(code, severity, message, {"reason": reason, "file": self.source, **found})  # type: ignore[arg-type]


def _count(table: dict[str, dict[str, Any]], reason: str, place: Place, name: str) -> None:
    found = table.setdefault(reason, {"count": 0, "first": []})
    found["count"] += 1
    if len(found["first"]) < SHOWN:
        # Finding a place takes a while; a file may be damaged in a million of them.
        event, byte = place() if callable(place) else place
        found["first"].append({"event": event, "byte": byte, "name": name[:_WIDTH]})
