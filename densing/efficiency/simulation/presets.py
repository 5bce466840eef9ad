"""Steps by name or from a TOML file, where they are no transformer's."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from densing.core import InputError, UnknownNameError, read_text

Step = TypeVar("Step", bound=msgspec.Struct)


@cache
def read_presets(kind: type[Step], file: Path) -> dict[str, Step]:
    """Return the steps of a file of this package by name."""
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    return {name: _step(kind, {"name": name, **table}, f"preset {name}") for name, table in tables.items()}


def load_step(kind: type[Step], file: Path, name: str | Path, what: str) -> Step:
    """Return a preset by name, or read a TOML file with the fields of ``kind``.

    Parameters
    ----------
    kind : type
        A record with a ``name``.
    file : Path
        Of the presets.
    name : str or path
    what : str
        The kind in words.

    Raises
    ------
    UnknownNameError
        For a name that is neither.
    InputError
        For a file that cannot be read.
    """
    path, presets = Path(name), read_presets(kind, file)
    if str(name) in presets:
        return presets[str(name)]
    if path.suffix != ".toml":
        raise UnknownNameError(f"{what} (nor a .toml file)", str(name), presets)
    return _step(kind, {"name": path.stem, **read_toml(path)}, str(path))


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a TOML file holds.

    Raises
    ------
    InputError
        When it cannot be read.
    """
    try:
        return tomllib.loads(read_text(path, str(path)))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path}: no readable TOML ({error}); check quotes and brackets") from error


def _step(kind: type[Step], table: dict[str, Any], where: str) -> Step:
    for key in table:
        if key not in kind.__struct_fields__:
            raise InputError(f"{where}: {UnknownNameError('field', key, kind.__struct_fields__)}")
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {error}; correct the field") from error
