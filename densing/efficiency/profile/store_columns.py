"""How a row of plain data becomes cells of a Parquet file and back: by the name of a column, never by its values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from densing.core import InputError

if TYPE_CHECKING:
    import pyarrow as pa

INTEGERS = ("rank", "world_size", "events", "skipped", "repaired")
TEXTS = ("source", "window", "backend", "host", "detail", "recorder")
_LOW, _HIGH = -(2**63), 2**63 - 1
_decode = msgspec.json.Decoder().decode


def kind_of(column: str) -> str:
    """Return how a column is stored: ``integer``, ``number``, ``text`` or ``json``.

    Examples
    --------
    >>> [kind_of(name) for name in ("rank", "comm_ns", "overlap_pct", "source", "collectives")]
    ['integer', 'integer', 'number', 'text', 'json']
    """
    if column in INTEGERS or column.endswith("_ns"):
        return "integer"
    if column.endswith("_pct"):
        return "number"
    return "text" if column in TEXTS else "json"


def schema_of(columns: Sequence[str], metadata: Mapping[bytes, bytes]) -> pa.Schema:
    """Return the schema of a file with these columns."""
    import pyarrow as pa

    types = {"integer": pa.int64(), "number": pa.float64(), "text": pa.string(), "json": pa.string()}
    return pa.schema([(name, types[kind_of(name)]) for name in columns], dict(metadata))


def encode(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a row's cells.

    Raises
    ------
    InputError
        When a value is not what its column holds (a number that is not finite, a key that is no text).
    """
    try:
        return {name: _cell(name, value) for name, value in row.items()}
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(f"{where}: rank {row.get('rank')!r} cannot be stored: {error}") from error


def decode(name: str, cell: Any) -> Any:
    """Return the value of a cell.

    Raises
    ------
    msgspec.DecodeError
        When JSON text is damaged.
    """
    return cell if cell is None or kind_of(name) != "json" else _decode(cell)


def _cell(name: str, value: Any) -> Any:
    kind = kind_of(name)
    if kind == "json":
        # The standard library's writer refuses NaN and infinity; msgspec's would write null and say nothing.
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    if value is None:
        return None
    if kind == "text":
        return _text(name, value)
    if isinstance(value, bool) or not isinstance(value, int if kind == "integer" else int | float):
        raise TypeError(f"{name} = {value!r} is no {kind}")
    if kind == "integer" and not _LOW <= value <= _HIGH:
        raise OverflowError(f"{name} = {value} is beyond 64 bits")
    if kind == "number" and not abs(value) < float("inf"):
        raise ValueError(f"{name} = {value} is not finite")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} = {value!r} is no text")
    # A file name may hold bytes that are no UTF-8; Parquet text may not.
    return value.encode("utf-8", "backslashreplace").decode("utf-8")
