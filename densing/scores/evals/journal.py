"""What a model has answered so far in one unit, safe against being killed at any moment.

One SQLite file per unit, with JSON values. Answers of a batch are written in one transaction: a batch is there as a
whole or not at all, because which requests stand together decides the last bits of their results.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from densing.core import InputError

SCHEMA = "1"
Answer = tuple[str, Any, int]
"""Key of a request (or of a batch of windows), its JSON-ready answer, and how many requests it counts for."""


class Journal:
    """Answers of an unfinished unit, in the order they were given.

    Parameters
    ----------
    path : path
        The file; made when missing. One of another unit, another version or damaged is begun anew.
    owner : str
        Digest of the unit.

    Raises
    ------
    InputError
        When the place cannot be written to.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Journal(Path(folder) / "journal.sqlite", "abc") as journal:
    ...         journal.add([("key", [-0.1, True], 1), ("key", [-0.2, False], 1)])
    ...     with Journal(Path(folder) / "journal.sqlite", "abc") as journal:
    ...         journal.answers("key"), journal.count
    ([[-0.1, True], [-0.2, False]], 2)
    """

    def __init__(self, path: Path, owner: str) -> None:
        self.path = Path(path)
        self.restarted = False
        try:
            self._connection = self._open(owner)
        except (sqlite3.DatabaseError, ValueError):
            self.restarted = True
            for suffix in ("", "-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            try:
                self._connection = self._open(owner)
            except sqlite3.Error as error:
                raise InputError(f"{path}: cannot keep a journal ({error}); check space, rights and --out") from error

    def _open(self, owner: str) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=60)
        try:
            # Survives the death of the process without waiting for the disk; a power cut costs batches, never order.
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS answers "
                "(id INTEGER PRIMARY KEY, key TEXT NOT NULL, value TEXT NOT NULL, requests INTEGER NOT NULL)"
            )
            with _transaction(connection):
                for name, value in (("schema", SCHEMA), ("owner", owner)):
                    connection.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, value))
            facts = dict(connection.execute("SELECT name, value FROM facts"))
            if (facts["schema"], facts["owner"]) != (SCHEMA, owner):
                raise ValueError("a journal of another unit or version")
            self._answers: dict[str, list[Any]] = {}
            self.count = 0
            for key, value, requests in connection.execute("SELECT key, value, requests FROM answers ORDER BY id"):
                self._answers.setdefault(key, []).append(json.loads(value))
                self.count += int(requests)
        except BaseException:
            connection.close()
            raise
        return connection

    def answers(self, key: str) -> list[Any]:
        """Return the answers stored under a key, oldest first."""
        return self._answers.get(key, [])

    def add(self, answers: Iterable[Answer], facts: Mapping[str, str] | None = None) -> None:
        """Store the answers of one batch, and facts that go with them, as a whole."""
        batch = list(answers)
        with _transaction(self._connection):
            rows = [(key, json.dumps(value), requests) for key, value, requests in batch]
            self._connection.executemany("INSERT INTO answers (key, value, requests) VALUES (?, ?, ?)", rows)
            self._connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", list((facts or {}).items()))
        for key, value, requests in batch:
            self._answers.setdefault(key, []).append(value)
            self.count += requests

    def fact(self, name: str) -> str | None:
        """Return a stored fact."""
        row = self._connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def close(self) -> None:
        """Close the file; the answers stay."""
        self._connection.close()

    def __enter__(self) -> Journal:
        """Return the journal."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file."""
        self.close()


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Do everything inside, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def answered(path: Path) -> int:
    """Return how many requests a journal holds answers for; 0 when there is none that can be read just now.

    For watching another process: the file is opened for reading only.
    """
    if not path.is_file():
        return 0
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as journal:
        return int(journal.execute("SELECT COALESCE(SUM(requests), 0) FROM answers").fetchone()[0])
    return 0
