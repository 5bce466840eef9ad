"""Results as plain records, results of any kind as plain data, and documents checked against a declared type.

A class made by :mod:`dataclasses` takes about a millisecond to make when its module is loaded, one of
:class:`msgspec.Struct` a fifteenth of that. A command that answers in a fifth of a second and loads forty results
makes them this way.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from densing.core.errors import ArtefactError

if TYPE_CHECKING:
    import pandas as pd
    from msgspec.inspect import Type

T = TypeVar("T")


class Record(msgspec.Struct, frozen=True):
    """A result of named, plain fields; compared by value, and never changed.

    Fields are numbers, texts, None, tuples, mappings, and records of these.

    Examples
    --------
    >>> class Point(Record, frozen=True):
    ...     x: int
    ...     y: int = 0
    >>> Point(3).to_dict()
    {'x': 3, 'y': 0}
    >>> Point.from_dict({"x": 3, "y": 4, "more": "left out"})
    Point(x=3, y=4)
    """

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, to any depth."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @staticmethod
    def frame(records: Iterable[Record]) -> pd.DataFrame:
        """Return records as a table, one row each.

        Examples
        --------
        >>> class Point(Record, frozen=True):
        ...     x: int
        ...     y: int = 0
        >>> Record.frame([Point(3), Point(1, 2)])
           x  y
        0  3  0
        1  1  2
        """
        import pandas as pd

        return pd.DataFrame([record.to_dict() for record in records])

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild what :meth:`to_dict` gave; further keys are left out.

        Raises
        ------
        msgspec.ValidationError
            When a field is missing or of another type.
        """
        return msgspec.convert(data, cls)


OUTPUT = "densing-output/1"
"""The form of what commands print with ``--json``; a change that breaks readers counts it up."""


def printed_data(document: Any) -> Any:
    """Return the answer in what a command printed with ``--json``: in its envelope, or bare as 0.2 printed it.

    Examples
    --------
    >>> printed_data({"schema": "densing-output/1", "command": "density", "notes": [], "data": [1]})
    [1]
    >>> printed_data([1])
    [1]
    """
    return document["data"] if isinstance(document, dict) and document.get("schema") == OUTPUT else document


def plain(value: Any) -> Any:
    """Return a result as JSON-ready data, to any depth.

    Tables become lists of rows, arrays lists, records and notes mappings, timestamps ISO dates, numpy's numbers
    Python's; NaN and infinities, which JSON has none of, null; what is left becomes text. Of a dataclass, what stands
    at its default None does not apply and is left out.

    Examples
    --------
    >>> plain({"hi": float("inf"), "n": 3, "parts": (1, None)})
    {'hi': None, 'n': 3, 'parts': [1, None]}
    >>> import pandas as pd
    >>> plain(pd.DataFrame({"released": [pd.Timestamp("2024-02-29"), pd.NaT]}))
    [{'released': '2024-02-29'}, {'released': None}]
    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Test:
    ...     p: float | None
    ...     reason: str | None = None
    >>> plain((Test(None), Test(None, "too few models")))
    [{'p': None}, {'p': None, 'reason': 'too few models'}]
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        # A lone surrogate is not text in UTF-8: it leaves as its escape.
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    # Neither is imported for this: a value of theirs is there only once they are.
    if pd := sys.modules.get("pandas"):
        if value is pd.NaT or value is pd.NA:
            return None
        if isinstance(value, pd.DataFrame):
            return plain(value.to_dict("records"))
        if isinstance(value, pd.Timestamp):
            return str(value.date())
    if np := sys.modules.get("numpy"):
        if isinstance(value, np.datetime64):
            return None if np.isnat(value) else str(value.astype("datetime64[D]"))
        if isinstance(value, np.ndarray):
            return [plain(item) for item in value]
        if isinstance(value, np.generic):
            return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    # What dataclasses.fields reads: that module is slow to load, and there once a dataclass is.
    if fields := getattr(type(value), "__dataclass_fields__", None):
        stated = {name: (getattr(value, name), field.default) for name, field in fields.items()}
        return {name: plain(part) for name, (part, default) in stated.items() if not (part is None and default is None)}
    return plain(str(value))


def decode(data: Any, kind: type[T], path: str = "$") -> T:
    """Return plain data as a declared type, or say which part of them is not what the type says.

    Parameters
    ----------
    data : object
        What a JSON or TOML reader gave: mappings, lists, text, numbers, None.
    kind : type
        A :class:`msgspec.Struct`, a dataclass, or a type of lists, mappings and literals.
    path : str
        Where the data stand in their document, for the message.

    Raises
    ------
    ArtefactError
        With path, value and what belongs there.

    Examples
    --------
    >>> decode({"mmlu": [1, 2.5]}, dict[str, list[float]])
    {'mmlu': [1.0, 2.5]}
    >>> decode({"mmlu": [1, "x"]}, dict[str, list[float]], "$.scores")
    Traceback (most recent call last):
        ...
    densing.core.errors.ArtefactError: $.scores.mmlu[1]: 'x' is not a finite number
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        from msgspec.inspect import type_info

        # msgspec's own message names neither the value nor a mapping's key.
        raise ArtefactError(next(_faults(data, type_info(kind), path), f"{path}: {error}")) from error


def _faults(value: Any, kind: Type, path: str) -> Iterator[str]:
    """Yield a sentence for each part of a value that is not of its declared kind."""
    from msgspec import inspect

    if isinstance(kind, inspect.StructType | inspect.DataclassType):
        if not isinstance(value, dict):
            yield f"{path}: {short(value)} is not an object"
            return
        for field in kind.fields:
            if field.encode_name in value:
                yield from _faults(value[field.encode_name], field.type, f"{path}.{field.encode_name}")
            elif field.required:
                yield f"{path}.{field.encode_name}: missing"
    elif isinstance(kind, inspect.DictType):
        if not isinstance(value, dict):
            yield f"{path}: {short(value)} is not an object"
            return
        for key, item in value.items():
            yield from _faults(item, kind.value_type, f"{path}.{key}")
    elif isinstance(kind, inspect.ListType | inspect.TupleType | inspect.VarTupleType):
        fixed = kind.item_types if isinstance(kind, inspect.TupleType) else None
        first = kind.item_type if not isinstance(kind, inspect.TupleType) else kind.item_types[0]
        numbers = " of numbers" if isinstance(first, inspect.FloatType) else ""
        if not isinstance(value, list):
            yield f"{path}: {short(value)} is not a list{numbers}"
        elif fixed is not None and len(value) != len(fixed):
            yield f"{path}: {len(value)}{numbers.removeprefix(' of')} where {len(fixed)} belong"
        else:
            for i, item in enumerate(value):
                yield from _faults(item, fixed[i] if fixed else first, f"{path}[{i}]")
    elif isinstance(kind, inspect.UnionType):
        if all(any(_faults(value, member, path)) for member in kind.types):
            yield next(_faults(value, kind.types[0], path))
    elif expected := _expected(value, kind):
        yield f"{path}: {short(value)} is not {expected}"


def _expected(value: Any, kind: Type) -> str:
    """Return in words what belongs where a single value stands; empty where it is that."""
    from msgspec import inspect

    if isinstance(kind, inspect.LiteralType):
        known = kind.values  # noqa: PD011 (no table)
        return "" if type(value) in (str, int) and value in known else f"one of {', '.join(map(str, known))}"
    if isinstance(kind, inspect.IntType):
        fits = isinstance(value, int) and not isinstance(value, bool)
        low = "" if kind.ge is None else f", {kind.ge} or more"
        return "" if fits and (kind.ge is None or value >= kind.ge) else f"a whole number{low}"
    if isinstance(kind, inspect.FloatType):
        try:
            fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        except OverflowError:
            fits = False
        if not fits:
            return "a finite number"
        return "" if kind.gt is None or value > kind.gt else f"above {kind.gt:g}"
    if isinstance(kind, inspect.StrType):
        return "" if isinstance(value, str) else "text"
    if isinstance(kind, inspect.BoolType):
        return "" if isinstance(value, bool) else "true or false"
    if isinstance(kind, inspect.NoneType):
        return "" if value is None else "null"
    return ""


def short(value: Any) -> str:
    """Return a value as a message shows it, 60 characters at most.

    Examples
    --------
    >>> short("x" * 100)[-6:]
    'xxx...'
    """
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
