"""Databases that profilers write (SQLite): opened for reading alone, and what is wrong with one is a sentence."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from densing.core import InputError
from densing.efficiency.traces.source import TraceFile

MAGIC = b"SQLite format 3\x00"
"""How such a file begins."""


@contextmanager
def opened(trace: TraceFile, what: str) -> Iterator[tuple[sqlite3.Connection, set[str]]]:
    """Yield a database and the names of its tables and views; whatever goes wrong while it is read names the file.

    Parameters
    ----------
    trace : TraceFile
    what : str
        What it is to be, in messages.

    Raises
    ------
    InputError
        When the file is packed, damaged or no database.
    """
    try:
        with trace.path.open("rb") as stream:
            packed = stream.read(len(MAGIC)) != MAGIC
    except OSError as error:
        raise InputError(f"{trace.label}: cannot read ({error.strerror}); check the path") from error
    if trace.member is not None or packed:
        raise InputError(f"{trace.label}: is a packed database; unpack it and give the file itself")
    try:
        with closing(sqlite3.connect(f"{trace.path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            names = database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
            yield database, {name for (name,) in names}
    except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{trace.label}: cannot be read as {what} ({error}); write it again") from error
