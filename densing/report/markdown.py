"""Markdown that shows text as it is: cells, tables, notes."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from densing.core import Note, formatting

LONGEST = 600


def literal(text: str) -> str:
    """Return text that Markdown shows as it stands: no markup, no cell's end.

    Examples
    --------
    >>> literal("a|b <i>")
    'a\\\\|b &lt;i&gt;'
    """
    return html.escape(text, quote=False).replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table; cells are written literally.

    Examples
    --------
    >>> print(table(["arm", "bytes"], [["plain", "1"]]))
    | arm | bytes |
    |---|---|
    | plain | 1 |
    """
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(map(literal, row))} |" for row in rows]
    return "\n".join(lines)


def notes(listed: Iterable[Note]) -> str:
    """Return notes as a list."""
    return "\n".join(f"- {note.severity}: {literal(formatting.clean(note.message, LONGEST))}" for note in listed)
