"""Weights & Biases runs read from disk: their configuration and logged history.

A run's folder holds ``run-ID.wandb``, a log in LevelDB's format (``log_format.md`` of LevelDB) behind W&B's own header
of seven bytes. Its entries are protocol buffers (``wandb_internal.proto``, W&B 0.31): a run has its configuration
(field 17), a history entry a list of keys and values in JSON (field 2). Only these are read, and wandb need not be
installed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from densing.core.addresses import is_there
from densing.core.errors import InputError
from densing.core.formatting import listed
from densing.core.notes import Note

SUFFIX = ".wandb"
_MAGIC, _HEADER, _BLOCK = b":W&B", 7, 32768
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY, _CONFIG, _RUN = 2, 5, 17
# Of an item (of a run's configuration or history): its key, whole or in parts, and its value.
_KEY, _NESTED, _NUMBER, _JSON = 1, 2, 6, 16
MAX_FILE = 1 << 30


def wandb_files(path: Path) -> list[Path]:
    """Return the logs of a run's folder, of the folder ``wandb`` that holds runs or of the folder above it, each once.

    Parameters
    ----------
    path : path
        A folder, or a log itself; none are found in anything else.
    """
    if path.suffix == SUFFIX:
        return [path]
    if not is_there(path) or not path.is_dir():
        return []
    places = ("run-*", "*run-*/run-*", "wandb/*run-*/run-*")
    found = (sorted(path.glob(f"{place}{SUFFIX}")) for place in places)
    # The folder latest-run is a link to one of the others.
    return next(
        (list({file.resolve(): file for file in reversed(files)}.values())[::-1] for files in found if files), []
    )


def wandb_history(files: Iterable[Path]) -> tuple[list[dict[str, Any]], tuple[Note, ...]]:
    """Return what runs logged: a row per step with ``run``, ``step``, the metrics and the run's configuration.

    Parameters
    ----------
    files : iterable of path
        As of :func:`wandb_files`.

    Returns
    -------
    rows : list of dict
        Texts, numbers and flags by key; what is nested has its keys joined by points. A metric stands before a
        configuration of its name.
    notes : tuple of Note
        Which runs logged nothing or break off, and which keys hold no single value.

    Raises
    ------
    InputError
        When a file is not such a log, or none of them logged anything.
    """
    rows: list[dict[str, Any]] = []
    empty, broken, skipped = [], [], dict[str, None]()
    names = [str(file) for file in files]
    for name in names:
        config, history, whole = _read(Path(name), skipped)
        if not whole:
            broken.append(name)
        if not history:
            empty.append(name)
        rows += [{**config, **each} for each in history]
    if not rows:
        raise InputError(f"{listed(names, 3)}: nothing was logged; give runs whose script calls wandb.log")
    notes = []
    if broken:
        message = f"end in the middle of an entry; earlier entries are read: {listed(broken, 20)}"
        notes.append(Note("runs-broken-off", "warning", message, {"files": broken}))
    if empty:
        notes.append(Note("runs-empty", "warning", f"logged nothing: {listed(empty, 20)}", {"files": empty}))
    if skipped:
        message = f"keys without a number, text or flag are skipped: {listed(skipped, 20)}"
        notes.append(Note("keys-not-read", "info", message, {"keys": list(skipped)}))
    return rows, tuple(notes)


def _read(path: Path, skipped: dict[str, None]) -> tuple[dict[str, Any], list[dict[str, Any]], bool]:
    """Return a run's configuration with its name, its rows, and whether its file is whole."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise InputError(f"{path}: larger than {MAX_FILE >> 30} GiB; export its history as CSV")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot read ({error.strerror}); check the path") from error
    if not data.startswith(_MAGIC):
        raise InputError(f"{path}: not a Weights & Biases log, which begins with {_MAGIC.decode()}; check the path")
    config: dict[str, Any] = {}
    history: list[dict[str, Any]] = []
    run, whole = path.stem.removeprefix("run-"), True
    try:
        for entry in _entries(data):
            if entry is None:
                whole = False
                continue
            for field, value in _fields(entry):
                if field == _HISTORY:
                    row = dict(_items(value, skipped))
                    step = row.pop("_step", len(history))
                    history.append({"step": step} | {key: cell for key, cell in row.items() if key[:1] != "_"})
                elif field == _CONFIG:
                    config |= dict(_items(value, skipped))
                elif field == _RUN:
                    for part, inner in _fields(value):
                        config |= dict(_items(inner, skipped)) if part == 4 else {}
                        run = inner.decode("utf-8", "backslashreplace") if part == 8 and inner else run
    except (IndexError, struct.error, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: damaged, or of another version of W&B; export its history as CSV") from error
    config = {key: cell for key, cell in config.items() if key[:1] != "_"}
    return {"run": run, **config}, [{"run": run, **row} for row in history], whole


def _entries(data: bytes) -> Iterator[bytes | None]:
    """Yield the entries of a log, joined where they go over blocks; None last where the file breaks off."""
    at, held = _HEADER, b""
    while at + 7 <= len(data):
        if (left := _BLOCK - at % _BLOCK) < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        if not kind and not size:
            return
        body = data[at + 7 : at + 7 + size]
        if len(body) < size:
            yield None
            return
        at += 7 + size
        held = body if kind in (_FULL, _FIRST) else held + body
        if kind in (_FULL, _LAST):
            yield held
            held = b""
    if held or at < len(data):
        yield None


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a protocol buffer: numbers as they are, everything else as bytes.

    Source: https://protobuf.dev/programming-guides/encoding/.
    """
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    while at < len(data):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
            continue
        size = {1: 8, 5: 4, 2: -1}[key & 7] if key & 7 in (1, 2, 5) else None
        if size is None:
            raise ValueError(key)
        size = number() if size < 0 else size
        if at + size > len(data):
            raise IndexError(at)
        yield key >> 3, data[at : at + size]
        at += size


def _items(record: bytes, skipped: dict[str, None]) -> Iterator[tuple[str, Any]]:
    """Yield the keys and single values of a record's items; the keys of others are noted."""
    for field, item in _fields(record):
        if field != 1:
            continue
        parts: list[str] = []
        value: Any = None
        for part, cell in _fields(item):
            if part in (_KEY, _NESTED):
                parts.append(cell.decode("utf-8", "backslashreplace"))
            elif part == _JSON:
                value = json.loads(cell)
            elif part == _NUMBER:
                value = struct.unpack("<d", cell)[0]
        yield from _flat(".".join(parts), value, skipped)


def _flat(key: str, value: Any, skipped: dict[str, None]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and "_type" not in value:
        # W&B's own configuration is in keys that begin with a line.
        for name, inner in value.items() if not key.startswith("_") else ():
            yield from _flat(f"{key}.{name}", inner, skipped)
    elif isinstance(value, dict | list):
        skipped.setdefault(key)
    else:
        yield key, value
