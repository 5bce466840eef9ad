"""Trouble that is data rather than an exception.

A result that can be computed, but should be read with care, carries :class:`Note` objects. They travel with
the result into tables, JSON and the report, and decide the exit code of a command.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

Severity = Literal["info", "warning", "error"]
MILDEST_FIRST: tuple[Severity, ...] = ("info", "warning", "error")


@dataclass(frozen=True)
class Note:
    """One remark on a result.

    Parameters
    ----------
    code : str
        Stable short name, ``kebab-case``; what programs match on.
    severity : {"info", "warning", "error"}
        ``error`` means the number should not be used as it stands.
    message : str
        One sentence for people: where, what value, which remedy.
    details : mapping, optional
        The figures behind the sentence, JSON-serialisable.

    See Also
    --------
    DensingError

    Examples
    --------
    >>> Note("few-families", "warning", "5 families; CRV3 wants 6 or more", {"families": 5}).code
    'few-families'
    """

    code: str
    severity: Severity
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the note as plain JSON-serialisable data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Note:
        """Rebuild a note written by :meth:`to_dict`."""
        return cls(data["code"], data["severity"], data["message"], dict(data.get("details", {})))


def worst(notes: Iterable[Note]) -> Severity | None:
    """Return the highest severity among the notes, or None when there are none.

    Examples
    --------
    >>> worst([Note("a", "info", ""), Note("b", "error", "")])
    'error'
    """
    return max((note.severity for note in notes), key=MILDEST_FIRST.index, default=None)


def severest_first(notes: Iterable[Note]) -> list[Note]:
    """Return notes by severity; those of one severity stay in order.

    Examples
    --------
    >>> [note.code for note in severest_first([Note("a", "info", ""), Note("b", "error", ""), Note("c", "info", "")])]
    ['b', 'a', 'c']
    """
    return sorted(notes, key=lambda note: -MILDEST_FIRST.index(note.severity))


def once(notes: Iterable[Note]) -> list[Note]:
    """Return notes without those that say again what one before said.

    Examples
    --------
    >>> [note.code for note in once([Note("a", "info", "x"), Note("b", "info", "x"), Note("a", "info", "x")])]
    ['a', 'b']
    """
    unique: dict[tuple[str, str], Note] = {}
    for note in notes:
        unique.setdefault((note.code, note.message), note)
    return list(unique.values())


def doubts(notes: Iterable[Note]) -> list[Note]:
    """Return the warnings and errors among notes.

    Examples
    --------
    >>> [note.code for note in doubts([Note("a", "info", ""), Note("b", "warning", ""), Note("c", "error", "")])]
    ['b', 'c']
    """
    return [note for note in notes if note.severity != "info"]


def of_part(part: str, notes: Iterable[Note]) -> list[Note]:
    """Return notes that say to which part of a larger result they belong.

    Examples
    --------
    >>> of_part("baseline", [Note("events-skipped", "error", "rank0.json: 1 event skipped")])[0].message
    'baseline: rank0.json: 1 event skipped'
    """
    return [replace(note, message=f"{part}: {note.message}") for note in notes]
