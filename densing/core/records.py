"""Results as plain records.

A class made by :mod:`dataclasses` takes about a millisecond to make when its module is loaded, one of
:class:`msgspec.Struct` a fifteenth of that. A command that answers in a fifth of a second and loads forty results
makes them this way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

import msgspec

if TYPE_CHECKING:
    import pandas as pd


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
