"""Tables as they come: a file of any usual form, a DataFrame or records become text cells by row number.

Read are text separated by commas, semicolons or tabs (UTF-8, or UTF-16 as spreadsheets write it), JSON lines, a JSON
list of records, and Parquet; each of them also compressed with gzip; a sheet of a workbook (``mine.xlsx``, or
``mine.xlsx#Scores`` for another sheet than the first); and runs of Weights & Biases, a row per step. What a cell may
hold is not decided here: see :mod:`densing.core.tables`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import pandas as pd

from densing.core.addresses import is_there
from densing.core.errors import InputError, TableError
from densing.core.files import decode_text, parse_json, read_bytes, read_text
from densing.core.notes import Note
from densing.core.wandb_runs import wandb_files, wandb_history
from densing.core.workbooks import OLE, ZIP, workbook_rows
from densing.core.workbooks import SUFFIXES as WORKBOOKS


class ArrowTable(Protocol):
    """A table of another library that hands out its columns as Arrow arrays: polars, pyarrow, DuckDB, ...

    Source: the Arrow PyCapsule interface, https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html.
    """

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return a stream of record batches."""


class InterchangeTable(Protocol):
    """A table of another library that speaks the DataFrame interchange protocol (cuDF, Modin, Vaex, ...).

    Source: https://data-apis.org/dataframe-protocol/latest/API.html.
    """

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> Any:
        """Return its columns and buffers."""


TableLike: TypeAlias = Path | str | pd.DataFrame | ArrowTable | InterchangeTable | Sequence[Mapping[str, Any]]
"""What functions take for a table: a file, a DataFrame of any library, or records."""
MAX_FIELD = 32 * 1024
# A small Parquet file may stand for a table that fits into no memory.
MAX_CELLS = 100_000_000
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
JSON, JSON_LINES = (".json",), (".jsonl", ".ndjson")
SUFFIXES = (".csv", ".tsv", ".parquet", *JSON_LINES, *JSON, *WORKBOOKS)
"""How names of tables end, with ``.gz`` behind them or not; a name that ends otherwise is read as text in columns."""
_NAMED_SHEET = re.compile(
    rf"(?P<path>.+?(?:{'|'.join(map(re.escape, SUFFIXES))})(?:\.gz)?)#(?P<sheet>.+)", re.IGNORECASE | re.DOTALL
)
_LEADING = 64 * 1024
# Fewer than make Python look for garbage among them.
_ROWS_AT_ONCE = 256
_TOLD_BY_ITSELF = re.compile(r"sep=([^\r\n])\r?\n")


@dataclass(frozen=True)
class Sheet:
    """A table as somebody wrote it.

    Parameters
    ----------
    name : str
        What messages call it.
    cells : pandas.DataFrame
        Text, indexed by row number in the file (the header is row 1).
    notes : tuple of Note
        How it was read, where that was not plain.
    titles : mapping of str to str
        What the file calls a column that bears another name here, for messages.
    problems : mapping of str to tuple of str
        What is wrong in a column, by its name here: refused with what else is wrong (:func:`densing.core.check_sheet`).
    history : bool
        Whether rows are what runs logged step by step (columns ``run`` and ``step``): each holds some of the metrics.
    """

    name: str
    cells: pd.DataFrame
    notes: tuple[Note, ...] = ()
    titles: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    history: bool = False


def read_sheet(source: TableLike | io.TextIOBase, where: str | None = None) -> Sheet:
    """Read a table of any accepted form as text.

    Parameters
    ----------
    source : path, text stream, DataFrame or records
        The form of a file is told by its content and, for JSON, by the end of its name (:data:`SUFFIXES`). Behind the
        name of a workbook, ``#`` and the name of a sheet (:func:`on_sheet`).
    where : str, optional
        Name used in messages; the path, or "the table", by default.

    Raises
    ------
    InputError, TableError
        When it cannot be read or is not a table; the message names the row and the remedy.

    Examples
    --------
    >>> sheet = read_sheet(io.StringIO("model;score\\ntiny;0,31\\n"), "mine.csv")
    >>> sheet.cells.to_dict("index"), sheet.notes[0].message
    ({2: {'model': 'tiny', 'score': '0,31'}}, 'mine.csv: cells are separated by semicolons')
    """
    if not isinstance(source, (str, Path, io.TextIOBase)):
        return Sheet(where or "the table", text_cells(source))
    name = where or str(source)
    if isinstance(source, io.TextIOBase):
        return _of_text(read_text(source, name), name)
    path, tab = _split(source)
    if files := wandb_files(path):
        logged, notes = wandb_history(files)
        return Sheet(name, _record_cells(dict(enumerate(logged, start=2))), notes, history=True)
    data = read_bytes(path, name)
    if data.startswith(b"PAR1"):
        return Sheet(name, _parquet_cells(data, name))
    if data.startswith((ZIP, OLE)):
        rows, notes = workbook_rows(data, str(path) if where is None else name, tab)
        return Sheet(name, _grid_cells(rows, name), notes)
    if tab is not None:
        raise InputError(f"{path}: has no sheets, as it is not a workbook; leave out the sheet name ({tab})")
    text = decode_text(data, name, utf16=True)
    suffix = Path(str(source).lower().removesuffix(".gz")).suffix
    if suffix in JSON_LINES:
        # Lines end at line feeds alone: texts may hold other separators.
        lines = {n: line for n, line in enumerate(text.split("\n"), start=1) if line.strip()}
        return Sheet(name, _json_cells({n: parse_json(line, f"{name}, line {n}") for n, line in lines.items()}, name))
    if suffix in JSON:
        records = parse_json(text, name)
        if not isinstance(records, list):
            kind = "an object" if isinstance(records, dict) else f"a {type(records).__name__}"
            raise InputError(f"{name}: holds {kind}; a table in JSON is a list of records: [{{'model': ...}}, ...]")
        return Sheet(name, _json_cells(dict(enumerate(records, start=2)), name))
    return _of_text(text, name)


def on_sheet(path: Path | str, sheet: str | None) -> Path:
    """Return a path that names a sheet of a workbook; without a sheet the path itself.

    Examples
    --------
    >>> on_sheet("mine.xlsx", "Scores").name, on_sheet("mine.xlsx", None).name
    ('mine.xlsx#Scores', 'mine.xlsx')
    """
    return Path(path if sheet is None else f"{path}#{sheet}")


def _split(source: Path | str) -> tuple[Path, str | None]:
    """Return the path of a file and the sheet named behind it; a file that is called so is one."""
    named = _NAMED_SHEET.fullmatch(str(source))
    if named is None or is_there(source):
        return Path(source), None
    return Path(named["path"]), named["sheet"]


def read_cells(source: TableLike | io.TextIOBase, where: str | None = None) -> pd.DataFrame:
    """Read a table as text cells, indexed by row number in the file (the header is row 1).

    Parameters
    ----------
    source, where
        As in :func:`read_sheet`.

    Raises
    ------
    InputError, TableError
        As :func:`read_sheet`.

    Examples
    --------
    >>> read_cells(io.StringIO("a,b\\n\\n1,2\\n"), "toy.csv").to_dict("index")
    {3: {'a': '1', 'b': '2'}}
    """
    return read_sheet(source, where).cells


def text_cells(rows: pd.DataFrame | ArrowTable | InterchangeTable | Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a table in memory as text cells, indexed as a CSV file of it would be (the header is row 1).

    What is missing (None, NaN, NaT, a key that a record lacks) becomes an empty cell, and a date is written without
    its time, so that a table gives the same result as the file that it would be written to. An index with a name is a
    column.

    Parameters
    ----------
    rows : DataFrame or sequence of mapping
        A table of pandas, or of another library that hands it out (:class:`ArrowTable`, :class:`InterchangeTable`); or
        records with the columns as keys.

    Raises
    ------
    InputError
        When it is neither, or two columns have one name.

    Examples
    --------
    >>> text_cells([{"model": "a", "params": 7e9}, {"model": "b"}]).to_dict("index")
    {2: {'model': 'a', 'params': '7000000000.0'}, 3: {'model': 'b', 'params': ''}}
    """
    if not isinstance(rows, pd.DataFrame) and (hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__dataframe__")):
        return _of_another_library(rows)
    if not isinstance(rows, pd.DataFrame):
        if not isinstance(rows, Sequence) or not all(isinstance(row, Mapping) for row in rows):
            kind = type(rows).__name__
            raise InputError(
                "a table is a path, a DataFrame (pandas, polars, pyarrow and others that speak Arrow or the "
                f"interchange protocol), or a list of records ({{'model': ..., 'params': ...}}), not of type {kind}"
            )
        return _record_cells(dict(enumerate(rows, start=2)))
    if any(name is not None for name in rows.index.names):
        rows = rows.reset_index()
    header = [str(column) for column in rows.columns]
    _refuse_repeated(header, "the table")
    return _frame({title: _texts(rows.iloc[:, at]) for at, title in enumerate(header)}, pd.RangeIndex(2, 2 + len(rows)))


def _of_another_library(rows: Any) -> pd.DataFrame:
    """Return the cells of a table that another library hands out."""
    import pyarrow as pa
    from pyarrow.interchange import from_dataframe

    kind = f"{type(rows).__module__.partition('.')[0]}.{type(rows).__name__}"
    try:
        table = pa.table(rows) if hasattr(rows, "__arrow_c_stream__") else from_dataframe(rows)
        columns = [column.to_pylist() for column in table.columns]
    except Exception as error:
        # Whatever the other library raises.
        raise InputError(
            f"a table of type {kind} cannot be read ({str(error)[:200]}); collect it, or turn it into a DataFrame of "
            "pandas"
        ) from error
    _refuse_repeated(table.column_names, "the table")
    cells = {}
    for field_, values in zip(table.schema, columns, strict=True):
        if pa.types.is_nested(field_.type):
            problem = "holds lists or records; a cell is text, a number, true, false or null"
            raise TableError("the table", [f"column {field_.name}: {problem}"])
        # Short floats are written as they are, not as what they become in eight bytes.
        short = {"halffloat": np.float16, "float": np.float32}.get(str(field_.type), lambda value: value)
        cells[field_.name] = ["" if value is None else cell_text(short(value), times=True) for value in values]
    return _frame(cells, pd.RangeIndex(2, 2 + table.num_rows))


def _texts(column: pd.Series) -> list[str]:
    # Short floats are written as they are, not as what they become in eight bytes.
    short = column.dtype.kind == "f" and column.dtype.itemsize < 8
    values = list(np.asarray(column)) if short else column.astype(object).tolist()
    return [cell_text(value, times=True) for value in values]


def _record_cells(records: Mapping[int, Mapping[Any, Any]]) -> pd.DataFrame:
    names = dict.fromkeys(key for record in records.values() for key in record)
    columns = {str(name): [cell_text(record.get(name), times=True) for record in records.values()] for name in names}
    return _frame(columns, pd.Index(list(records), dtype="int64"))


def _frame(columns: dict[str, list[str]], index: pd.Index) -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series(cells, index=index, dtype=object) for name, cells in columns.items()}, index)


def _json_cells(records: Mapping[int, Any], name: str) -> pd.DataFrame:
    """Return records of a JSON file by row number; a cell is text, a number, true, false or null."""
    problems = [
        f"row {number}: {'a list' if isinstance(record, list) else repr(record)[:60]} where a record is expected; "
        "write {'model': ..., ...}"
        for number, record in records.items()
        if not isinstance(record, dict)
    ]
    problems = problems or [
        f"row {number}, field {key[:60]}: holds {'a list' if isinstance(cell, list) else 'an object'}; "
        "a cell is text, a number, true, false or null"
        for number, record in records.items()
        for key, cell in record.items()
        if isinstance(cell, list | dict)
    ]
    if problems:
        raise TableError(name, problems)
    if not any(records.values()):
        raise InputError(f"{name}: empty; at least one record with the columns as keys is needed")
    return _record_cells(records)


def _parquet_cells(data: bytes, name: str) -> pd.DataFrame:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        about = pq.read_metadata(io.BytesIO(data))
        if about.num_rows * about.num_columns > MAX_CELLS:
            raise InputError(
                f"{name}: {about.num_rows} rows of {about.num_columns} columns are more than {MAX_CELLS} cells; "
                "leave out columns, or split the file"
            )
        rows = pd.read_parquet(io.BytesIO(data), engine="pyarrow")
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{name}: not readable as Parquet ({str(error)[:200]}); write the file again") from error
    if rows.empty:
        raise InputError(f"{name}: has columns but no data row")
    return text_cells(rows)


def each_once(cells: pd.Series, turn: Callable[[Any], Any]) -> pd.Series:
    """Return what a function makes of every cell, called once per distinct cell: long columns repeat themselves.

    Parameters
    ----------
    cells : pandas.Series
        Texts; None and NaN may be among them.
    turn : callable
        Of one cell.

    Examples
    --------
    >>> each_once(pd.Series([" a", "b", " a"]), str.strip).tolist()
    ['a', 'b', 'a']
    """
    codes, distinct = pd.factorize(cells.to_numpy(dtype=object), use_na_sentinel=False)
    turned = np.empty(len(distinct), dtype=object)
    turned[:] = [turn(cell) for cell in distinct]
    return pd.Series(turned[codes], index=cells.index, name=cells.name, dtype=object)


def cell_text(cell: Any, *, times: bool = False) -> str:
    """Return a cell as messages and files write it: a missing one empty, a date without a time.

    Parameters
    ----------
    cell : object
        Text, a number, a date, or what stands for nothing (None, NaN, NaT).
    times : bool
        Whether a timestamp's time of day is written where it is not midnight, so that a table's check sees it.

    Examples
    --------
    >>> cell_text(pd.Timestamp("2024-02-29")), cell_text(7.2), cell_text(None), cell_text(b"tiny")
    ('2024-02-29', '7.2', '', 'tiny')
    """
    if isinstance(cell, bytes):
        # Parquet of some writers holds text as bytes.
        cell = cell.decode("utf-8", "backslashreplace")
    if isinstance(cell, str):
        # Half a character, which JSON can write and no file can hold, stands as its escape.
        return str(cell) if cell.isascii() else cell.encode("utf-8", "backslashreplace").decode()
    if cell is None:
        return ""
    if isinstance(cell, float | int):
        return "" if cell != cell else str(cell)
    if pd.api.types.is_scalar(cell) and pd.isna(cell):
        return ""
    # A column of timestamps holds days; a single datetime that states an hour means it.
    day = isinstance(cell, pd.Timestamp) and not times
    if isinstance(cell, datetime) and (day or cell.time() == datetime.min.time()):
        return str(cell.date())
    return str(cell)


def _of_text(text: str, name: str) -> Sheet:
    separator = _separator(text, name)
    notes = []
    if separator != ",":
        kind = SEPARATORS.get(separator, repr(separator))
        notes = [Note("separator", "info", f"{name}: cells are separated by {kind}", {"separator": separator})]
    return Sheet(name, _text_cells(text, name, separator), tuple(notes))


def _separator(text: str, name: str) -> str:
    """Return the sign that divides the first rows into equally many cells, and into most.

    Raises
    ------
    InputError
        When two of them do it equally well.
    """
    if stated := _TOLD_BY_ITSELF.match(text):
        return stated[1]
    widths: dict[str, list[int]] = {}
    for sign in SEPARATORS:
        lines = csv.reader(io.StringIO(text[:_LEADING], newline=""), delimiter=sign)
        try:
            widths[sign] = [len(line) for line in islice(lines, 50) if any(cell.strip() for cell in line)]
        except csv.Error:
            widths[sign] = []
        if len(text) > _LEADING and len(widths[sign]) < 50:
            # The last line was cut in the middle.
            widths[sign] = widths[sign][:-1]
    several = {sign: found for sign, found in widths.items() if found and found[0] > 1}
    even = {sign: found for sign, found in several.items() if len(set(found)) == 1}
    candidates = even or several
    most = max((found[0] for found in candidates.values()), default=1)
    best = [sign for sign, found in candidates.items() if found[0] == most]
    if len(best) > 1:
        raise InputError(
            f"{name}: {' and '.join(SEPARATORS[sign] for sign in best)} both divide its rows into {most} cells; "
            "quote cells that hold such signs, or begin the file with the line sep=, (or sep=;)"
        )
    return best[0] if best else ","


def _text_cells(text: str, name: str, separator: str) -> pd.DataFrame:
    """Return the filled rows of a text in columns by their numbers in the file.

    Columns without a name and without content, as spreadsheets leave behind, are dropped.
    """
    if "\x00" in text:
        row = text.count("\n", 0, text.index("\x00")) + 1
        raise InputError(f"{name}: row {row} holds a NUL byte: not a CSV file, or one in UTF-16; save it as UTF-8")
    kind = SEPARATORS.get(separator, repr(separator))
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    stated = 1 if _TOLD_BY_ITSELF.match(text) else 0
    header: list[str] = []
    columns: list[list[str]] = []
    numbers: list[int] = []
    ragged: list[str] = []
    # Equal cells are one text: a column of a million cells rarely holds many.
    seen: dict[str, str] = {}
    limit = csv.field_size_limit(MAX_FIELD)
    try:
        first = 1
        # Rows become parts of columns early: a million small lists are slow to keep.
        while part := list(islice(lines, _ROWS_AT_ONCE)):
            filled = {n: line for n, line in enumerate(part, first) if n > stated and "".join(line).strip()}
            first += len(part)
            if not header and filled:
                header = [cell.strip() for cell in filled.pop(next(iter(filled)))]
                columns = [[] for _ in header]
            width = len(header)
            for number, line in filled.items():
                if len(line) == width:
                    continue
                if len(line) > width and not "".join(line[width:]).strip():
                    del line[width:]
                else:
                    ragged.append(
                        f"row {number}: {len(line)} cells, but the header has {width}; quote cells that contain {kind}"
                    )
            if filled and not ragged:
                numbers.extend(filled)
                for column, cells in zip(columns, zip(*filled.values(), strict=True), strict=True):
                    column.extend(map(seen.setdefault, cells, cells))
    except csv.Error as error:
        raise InputError(f"{name}: not readable as CSV ({error}); check quotes and length of cells") from error
    finally:
        csv.field_size_limit(limit)
    if not header:
        raise InputError(f"{name}: empty; a header row and at least one data row are needed")
    if ragged:
        raise TableError(name, ragged)
    held = {at: column for at, column in enumerate(columns) if header[at] or any(cell.strip() for cell in column)}
    header = [header[at] for at in held]
    _refuse_repeated(header, name)
    if not numbers:
        raise InputError(f"{name}: has a header but no data row")
    return _frame(dict(zip(header, held.values(), strict=True)), pd.Index(numbers, dtype="int64"))


def _grid_cells(rows: Mapping[int, Sequence[Any]], name: str) -> pd.DataFrame:
    """Return the rows of a sheet below its header, the first of them; columns without name and content are dropped."""
    texts = {number: [cell_text(cell, times=True) for cell in cells] for number, cells in rows.items()}
    width = max(map(len, texts.values()))
    (first, *numbers), grid = texts, [[*cells, *[""] * (width - len(cells))] for cells in texts.values()]
    held = [at for at in range(width) if any(row[at].strip() for row in grid)]
    header = [grid[0][at].strip() for at in held]
    if header.count("") > 1:
        raise InputError(
            f"{name}: row {first} is read as the header, but {header.count('')} of its columns have no name; delete "
            "rows above the header, or name the columns"
        )
    _refuse_repeated(header, name)
    if not numbers:
        raise InputError(f"{name}: has a header but no data row")
    columns = {title: [row[at] for row in grid[1:]] for title, at in zip(header, held, strict=True)}
    return _frame(columns, pd.Index(numbers, dtype="int64"))


def _refuse_repeated(header: Sequence[str], name: str) -> None:
    if len(set(header)) < len(header):
        repeated = sorted({cell for cell in header if header.count(cell) > 1})
        shown = ", ".join(cell or "a column without a name" for cell in repeated)
        raise InputError(f"{name}: header repeats {shown}; rename one of them")
