"""Declared tables: every table that crosses a room has its columns, units and ranges written down once.

A :class:`Column` says what may stand in a cell; a :class:`Table` is a list of columns and a key. One reader
and one validator serve every CSV file, and their messages name file, row, column, value and remedy.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from densing.core.errors import TableError
from densing.core.table_io import cell_text, read_cells

Kind = Literal["text", "number", "integer", "date", "flag"]
Unit = Literal["", "share", "count", "billions", "trillions"]

_TRUE, _FALSE = {"true", "1", "yes"}, {"false", "0", "no"}


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Parameters
    ----------
    name : str
        Column header.
    kind : {"text", "number", "integer", "date", "flag"}
        What a cell holds. Dates are ISO (``2024-02-29``).
    meaning : str
        One line for people, with the unit.
    required : bool
        Whether the column must be present and every cell filled.
    low, high : float or str, optional
        Inclusive range; ISO strings for dates.
    choices : tuple of str
        Closed vocabulary of a text column.
    default : str, optional
        Cell value where the column or the cell is missing.
    remedy : str
        What to do about a value outside the range.
    unit : {"", "share", "count", "billions", "trillions"}
        What a number counts: decides how ``45 %`` and ``7B`` are read (:func:`densing.core.as_declared`), and what is
        said of a share outside 0 to 1.
    """

    name: str
    kind: Kind
    meaning: str
    required: bool = False
    low: float | str | None = None
    high: float | str | None = None
    choices: tuple[str, ...] = ()
    default: str | None = None
    remedy: str = ""
    unit: Unit = ""


@dataclass(frozen=True)
class Table:
    """A named list of columns with a key that may not repeat."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Column names in declared order."""
        return [column.name for column in self.columns]


def read_table(source: Path | str | io.TextIOBase, table: Table, where: str | None = None) -> pd.DataFrame:
    """Read a table against its declaration.

    Parameters
    ----------
    source : path or text stream
        A table with a header row, see :func:`densing.core.read_sheet`. Its columns and cells are spelled as declared;
        what people spell otherwise goes through :func:`densing.core.as_declared`.
    table : Table
        What the file must look like. Unknown columns are kept as text.
    where : str, optional
        Name used in messages; the path by default.

    Returns
    -------
    pandas.DataFrame
        One typed column per declared column, in declared order.

    Raises
    ------
    TableError
        With every problem found (row, column, value, remedy).
    InputError
        When the file cannot be read at all.

    Examples
    --------
    >>> toy = Table("toy", (Column("score", "number", "share correct", required=True, low=0, high=1,
    ...                            remedy="write 0.45 for 45 %"),))
    >>> read_table(io.StringIO("score\\n0.5\\n"), toy, "toy.csv")["score"].tolist()
    [0.5]
    >>> read_table(io.StringIO("score\\n45\\n"), toy, "toy.csv")
    Traceback (most recent call last):
        ...
    densing.core.errors.TableError: toy.csv: row 2, column score: 45 is above 1; write 0.45 for 45 %
    """
    name = where or str(source)
    return validate(read_cells(source, name), table, name)


def validate(
    raw: pd.DataFrame, table: Table, where: str, first_row: int = 0, titles: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """Check a table of raw cells and return it typed.

    Parameters
    ----------
    raw : pandas.DataFrame
        Cells as text or as values.
    table : Table
        The declaration.
    where : str
        Name used in messages.
    first_row : int
        Added to the index of ``raw`` to give row numbers in messages (2 for an index from 0 below a header).
    titles : mapping of str to str, optional
        What messages call a column, where the file calls it otherwise.

    Raises
    ------
    TableError
        With every problem found.
    """
    header = ", ".join(map(str, raw.columns)) or "none"
    problems = [
        f"column {column.name} is missing ({column.meaning}); found: {header}"
        for column in table.columns
        if column.required and column.default is None and column.name not in raw.columns
    ]
    counted = raw.index if pd.api.types.is_integer_dtype(raw.index.dtype) else range(len(raw))
    numbers = [int(number) + first_row for number in counted]
    typed: dict[str, pd.Series] = {}
    sound = set(table.key)
    for column in table.columns:
        if column.name in raw.columns:
            title = (titles or {}).get(column.name, column.name)
            before = len(problems)
            typed[column.name] = _typed_column(raw[column.name], column, title, numbers, problems)
            sound -= {column.name} if len(problems) > before else set()
        else:
            sound -= {column.name} if column.required and column.default is None else set()
            value = None if column.default is None else _CONVERTERS[column.kind](column.default)
            typed[column.name] = pd.Series(value, index=range(len(raw)), dtype=_DTYPES[column.kind])
    for extra in raw.columns:
        if extra not in typed:
            typed[str(extra)] = raw[extra].reset_index(drop=True)
    frame = pd.DataFrame(typed)
    if sound.issuperset(table.key):
        problems += _repeated(frame, table, numbers)
    if problems:
        raise TableError(where, problems)
    return frame


def _typed_column(
    cells: pd.Series, column: Column, title: str, numbers: Sequence[int], problems: list[str]
) -> pd.Series:
    if pd.api.types.infer_dtype(cells, skipna=False) != "string":
        cells = pd.Series([cell_text(cell) for cell in cells.tolist()], dtype=object)
    # Columns repeat themselves: every distinct text is converted and checked once.
    codes, texts = pd.factorize(cells.to_numpy(dtype=object))
    checked = [_typed_cell(text.strip(), column) for text in texts]
    if wrong := {code: problem for code, (_, problem) in enumerate(checked) if problem}:
        at = np.flatnonzero(np.isin(codes, list(wrong))).tolist()
        problems += [f"row {numbers[row]}, column {title}: {wrong[codes[row]]}" for row in at]
    values = pd.Series([value for value, _ in checked], dtype=_DTYPES[column.kind], name=column.name)
    return values.take(codes).reset_index(drop=True)


def _typed_cell(text: str, column: Column) -> tuple[Any, str | None]:
    """Return the value of a cell (None where there is none) and what is wrong with it."""
    if text == "" and column.default is not None:
        text = column.default
    if text == "":
        return None, f"empty; {column.meaning}" if column.required else None
    try:
        value = _CONVERTERS[column.kind](text)
    except ValueError:
        expected = "; ".join(filter(None, (_EXPECTED[column.kind], _reading(text, column.kind), column.remedy)))
        return None, f"{text[:60]!r} is not {expected}"
    return value, _range_problem(value, text, column)


def _range_problem(value: Any, text: str, column: Column) -> str | None:
    remedy = f"; {column.remedy}" if column.remedy else ""
    if column.choices and value not in column.choices:
        return f"{text[:60]!r} is not one of {', '.join(column.choices)}{remedy}"
    for bound, below in ((column.low, True), (column.high, False)):
        if bound is None:
            continue
        limit = pd.Timestamp(bound) if column.kind == "date" else bound
        if (value < limit) if below else (value > limit):
            remedy = f"; {_of_share(value)}" if column.unit == "share" else remedy
            return f"{text[:60]} is {'below' if below else 'above'} {bound}{remedy}"
    return None


def _of_share(value: float) -> str:
    """Return what a number outside 0 to 1 may be, in a column of shares."""
    if value < 0:
        return "a score is a share of the full score, 0 to 1; losses and log-likelihoods do not belong here"
    if value <= 100:
        return f"write {value / 100:.6g} for {value:.6g} % (divide by 100)"
    return "a score is a share of the full score, 0 to 1; this is not a percentage either"


def _reading(text: str, kind: Kind) -> str:
    """Return how to write a cell that may be read in two ways, or that a spreadsheet wrote in its own."""
    if kind in ("number", "integer") and re.fullmatch(r"[-+]?[\d.,]+", text) and "," in text:
        return "write a decimal point and no separator of thousands"
    if kind == "date" and re.fullmatch(r"\d{1,2}([/.-])\d{1,2}\1(\d{2}|\d{4})", text):
        return "day, month and year are ambiguous; write the year first"
    if kind == "date" and re.fullmatch(r"[34]\d{4}", text):
        return "it looks like a spreadsheet's count of days; format the column as a date"
    return ""


def _repeated(frame: pd.DataFrame, table: Table, numbers: Sequence[int]) -> list[str]:
    """Return what is wrong with rows whose key stood in a row before."""
    key = list(table.key)
    if not key or not (again := frame.duplicated(key)).any():
        return []
    groups = frame.groupby(key, sort=False, dropna=False).ngroup().to_numpy()
    at = again.to_numpy().nonzero()[0]
    first = np.unique(groups, return_index=True)[1][groups[at]]
    rows, before = (frame.iloc[which].reset_index(drop=True) for which in (at, first))
    same = ((rows == before) | (rows.isna() & before.isna())).all(axis="columns")
    return [
        f"row {numbers[row]}: {'the same row again' if equal else 'a second row with other values'} for "
        f"{', '.join(f'{name} {value}' for name, value in zip(key, values, strict=True))}, "
        f"first in row {numbers[start]}; delete one"
        for row, start, equal, *values in zip(at, first, same, *(rows[name] for name in key), strict=True)
    ]


def _to_number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or "_" in text:
        raise ValueError(text)
    return value


def _to_integer(text: str) -> int:
    value = _to_number(text)
    if value != int(value):
        raise ValueError(text)
    return int(value)


def to_date(text: str) -> pd.Timestamp:
    """Return an ISO date; ValueError for anything else."""
    day = datetime.strptime(text, "%Y-%m-%d")
    # Years beyond these do not fit nanoseconds, and pandas would fail later and less clearly.
    if len(text) != 10 or not 1700 <= day.year <= 2200:
        raise ValueError(text)
    return pd.Timestamp(day)


def _to_flag(text: str) -> bool:
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise ValueError(text)


_CONVERTERS: dict[str, Callable[[str], Any]] = {
    "text": str,
    "number": _to_number,
    "integer": _to_integer,
    "date": to_date,
    "flag": _to_flag,
}
_DTYPES = {"text": "object", "number": "float64", "integer": "float64", "date": "datetime64[ns]", "flag": "object"}
_EXPECTED: dict[str, str] = {
    "text": "text",
    "number": "a finite number",
    "integer": "a whole number",
    "date": "a date like 2024-02-29",
    "flag": "true or false",
}
