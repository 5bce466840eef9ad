"""Files that other processes read while we write: whole or absent, synced, and one writer at a time."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densing.core import DensingError, InputError, read_text, replacing, storage_errors

if TYPE_CHECKING:
    from filelock import FileLock


class BusyError(DensingError):
    """Another process is writing the same thing; the message names it."""


def utc_now() -> str:
    """Return the present moment as ISO text in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def parse_json(text: str, name: str) -> Any:
    """Read a JSON text that says everything once.

    Raises
    ------
    InputError
        When it is no JSON, is nested too deeply or repeats a key; the message says where.

    Examples
    --------
    >>> parse_json('{"a": 1, "a": 2}', "x.json")
    Traceback (most recent call last):
        ...
    densing.core.errors.InputError: x.json: key 'a' stands twice in one object; keep one
    """
    try:
        return json.loads(text, object_pairs_hook=functools.partial(_object, name))
    except json.JSONDecodeError as error:
        end = "; the file ends too early" if error.pos >= len(text.rstrip()) else ""
        raise InputError(f"{name}: line {error.lineno}, column {error.colno}: not JSON ({error.msg}){end}") from error
    except (RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else "a number of absurd length"
        raise InputError(f"{name}: {reason}; it is no results file") from error


def _object(name: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise InputError(f"{name}: key {repeated[:60]!r} stands twice in one object; keep one")
    return content


def read_json(path: Path) -> Any:
    """Read a JSON file of bounded size; the errors of :func:`parse_json` and :func:`densing.core.read_text`."""
    return parse_json(read_text(path, str(path)), str(path))


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a JSON file atomically and durably."""
    text = json.dumps(data, indent=1, ensure_ascii=True) + "\n"
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("ascii"))


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def new_lock(path: Path) -> FileLock:
    """Return a lock on a file; the same object may be taken again by whoever holds it."""
    from filelock import FileLock

    return FileLock(path, thread_local=False)


@contextmanager
def locked(lock: FileLock, timeout: float, subject: str) -> Iterator[None]:
    """Hold a lock; beside it stands who holds it.

    Parameters
    ----------
    lock : FileLock
        From :func:`new_lock`.
    timeout : float
        Seconds to wait; below zero for ever.
    subject : str
        What is locked, for the message.

    Raises
    ------
    BusyError
        When another process still holds it after ``timeout``.
    """
    from filelock import Timeout

    path = Path(lock.lock_file)
    owner = path.with_suffix(".owner")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=timeout)
        except Timeout:
            raise BusyError(f"{subject}: {_holder(owner)}; wait for it, or end it and try again") from None
    try:
        if lock.lock_counter == 1:
            write_json(owner, {"pid": os.getpid(), "host": socket.gethostname(), "since": utc_now()})
        yield
    finally:
        if lock.lock_counter == 1:
            owner.unlink(missing_ok=True)
        lock.release()


def _holder(owner: Path) -> str:
    # The holder writes its name right after it took the lock: a moment later it is there.
    for _ in range(10):
        with suppress(InputError):
            data = read_json(owner)
            if isinstance(data, Mapping):
                return f"process {data.get('pid')} on {data.get('host')} holds it since {data.get('since')}"
        time.sleep(0.02)
    return "another process holds it"
