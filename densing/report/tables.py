"""Tables of a page: columns declared once, with title, form and sort key; each cell as words, safe links apart."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pandas as pd

from densing.core import formatting
from densing.report import markdown

# A number as report.js reads it from a cell: "1.5", "≤ 0.23", "258 M to 8.88 B", "0.43 ± 0.05".
_SHOWN = re.compile(r"(?:[≤≥] )?(−?\d+(?:\.(\d+))?)(?: ([MBT%]))?(?: (?:to|±) .*)?")
_UNITS = {None: 1.0, "M": 1e6, "B": 1e9, "T": 1e12, "%": 0.01}


@dataclass(frozen=True)
class Cell:
    """One cell: what it shows, what it sorts by where that is not what it shows, and an optional link."""

    shown: str
    key: str = ""
    url: str = ""


@dataclass(frozen=True)
class Field:
    """One column of a shown table.

    Parameters
    ----------
    title : str
        Header.
    show : callable
        Row (a mapping) to the words of the cell.
    key : str
        Column to sort by as a number; empty for text order.
    link : str
        Column that holds a web address.
    hint : str
        Tooltip of the header.
    minor : bool
        Shown only where every column is asked for.
    """

    title: str
    show: Callable[[Mapping[str, Any]], str]
    key: str = ""
    link: str = ""
    hint: str = ""
    minor: bool = False

    @property
    def numeric(self) -> bool:
        """Whether the column sorts, and is set, as numbers."""
        return bool(self.key)

    def cell(self, row: Mapping[str, Any]) -> Cell:
        """Return the column's cell of a row; text, and a number that can be read, sort by what they show."""
        shown = self.show(row)
        key = sort_key(row.get(self.key)) if self.key else ""
        return Cell(shown, "" if _reads(shown, key) else key, safe_url(row.get(self.link)) if self.link else "")


@dataclass(frozen=True)
class Filters:
    """What narrows a table: a search, and columns (title, number, values) to choose by.

    ``rows`` is what the table's rows are called, ``hint`` what stands in the empty field.
    """

    choices: tuple[tuple[str, int, tuple[str, ...]], ...]
    rows: str = "models"
    hint: str = "name, family, source …"


@dataclass(frozen=True)
class ShownTable:
    """A table ready for the template."""

    name: str
    caption: str
    fields: tuple[Field, ...]
    rows: tuple[tuple[Cell, ...], ...]
    sortable: bool = False
    filters: Filters | None = None
    marked: frozenset[int] = frozenset()
    kind: ClassVar[str] = "table"

    @property
    def has_minor(self) -> bool:
        """Whether some columns are shown only where asked for."""
        return any(field.minor for field in self.fields)

    @property
    def classes(self) -> str:
        """CSS classes of the table, which say what each column is: its cells, thousands of them, carry none."""
        columns = [f"num{at}" for at, field in enumerate(self.fields, 1) if field.numeric]
        columns += [f"minor{at}" for at, field in enumerate(self.fields, 1) if field.minor]
        return " ".join([*(["sortable"] if self.sortable else []), *columns])

    def markdown(self, level: int = 2) -> str:
        """Return it in Markdown, its caption first."""
        titles = [field.title for field in self.fields]
        lines = markdown.table(titles, ([cell.shown for cell in row] for row in self.rows)) if self.rows else ""
        return "\n\n".join(filter(None, (markdown.literal(self.caption), lines or "There are no rows.")))


def column(name: str, show: Callable[[Any], str] = formatting.clean) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that shows one column of a row.

    Examples
    --------
    >>> column("n_params", formatting.size)({"n_params": 7e9})
    '7 B'
    """
    return lambda row: show(row.get(name))


def ranged(name: str, show: Callable[[Any], str], of: str = "") -> Callable[[Mapping[str, Any]], str]:
    """Return a function that shows ``name_lo`` to ``name_hi``, or ``name_lo_OF`` to ``name_hi_OF``.

    Examples
    --------
    >>> ranged("density", formatting.number)({"density_lo": 0.5, "density_hi": 2.0})
    '0.50 to 2.0'
    """

    def show_ends(row: Mapping[str, Any]) -> str:
        lo, hi = (row.get("_".join(filter(None, (name, end, of)))) for end in ("lo", "hi"))
        return (
            formatting.MISSING
            if formatting.is_missing(lo) and formatting.is_missing(hi)
            else f"{show(lo)} to {show(hi)}"
        )

    return show_ends


def shown_table(
    name: str,
    caption: str,
    rows: pd.DataFrame | Iterable[Mapping[str, Any]] | None,
    fields: Sequence[Field],
    filters: Sequence[str] = (),
    mark: str = "",
    sortable: bool = False,
    called: tuple[str, str] = (Filters.rows, Filters.hint),
) -> ShownTable:
    """Turn rows into words.

    Parameters
    ----------
    name : str
        Id of the table on the page.
    caption : str
        One sentence.
    rows : pandas.DataFrame, iterable of mappings, or None
        None counts as empty.
    fields : sequence of Field
    filters : sequence of str
        Titles of the columns that get a drop-down filter.
    mark : str
        Flag column; its true rows are emphasised.
    sortable : bool
        Whether headers become sort buttons.
    called : (str, str)
        As in :class:`Filters`: what the rows are called, and the hint of the search field.

    Examples
    --------
    >>> shown_table("t", "Toy.", pd.DataFrame({"a": [1.5]}), [numeric("A", "a")]).rows
    ((Cell(shown='1.5', key='', url=''),),)
    """
    # Records rather than cells of a frame: a row's function may need several of its columns.
    records = rows.to_dict("records") if isinstance(rows, pd.DataFrame) else list(rows or ())
    cells = tuple(tuple(field.cell(row) for field in fields) for row in records)
    titles = [field.title for field in fields]
    choices = tuple(
        (title, titles.index(title), tuple(sorted({row[titles.index(title)].shown for row in cells})))
        for title in filters
    )
    marked = frozenset(number for number, row in enumerate(records) if mark and flag(row.get(mark)))
    narrowed = Filters(choices, *called) if filters else None
    return ShownTable(name, caption, tuple(fields), cells, sortable, narrowed, marked)


def sort_key(value: Any) -> str:
    """Return what a script compares: a number, a date as its ISO form, or nothing where the cell is empty.

    Examples
    --------
    >>> sort_key(1.5), sort_key(float("inf")), sort_key(float("nan")), sort_key(pd.Timestamp("2024-01-02"))
    ('1.5', 'Infinity', '', '19724')
    """
    if formatting.is_missing(value):
        return ""
    # Whole days: the script compares numbers, and no table shows a time of day.
    if isinstance(value, pd.Timestamp):
        return str((value - pd.Timestamp("1970-01-01")) // pd.Timedelta(days=1))
    try:
        real = float(value)
    except (TypeError, ValueError):
        return ""
    if math.isinf(real):
        return "Infinity" if real > 0 else "-Infinity"
    return f"{real:.9g}"


def _reads(shown: str, key: str) -> bool:
    """Return whether report.js reads a cell's sort key from what it shows, as exactly as that is shown."""
    match = _SHOWN.fullmatch(shown)
    if not match or not key:
        return False
    number, decimals, unit = match.groups()
    scale = _UNITS[unit]
    half = 0.51 * scale * 10.0 ** -len(decimals or "")
    return abs(float(number.replace("−", "-")) * scale - float(key)) <= half


def flag(value: Any) -> bool:
    """Return whether a cell says yes; a missing one does not.

    Examples
    --------
    >>> flag(1), flag("False"), flag(float("nan"))
    (True, False, False)
    """
    return not formatting.is_missing(value) and value not in ("False", "false") and bool(value)


def numeric(
    title: str, key: str, show: Callable[[Any], str] = formatting.number, hint: str = "", minor: bool = False
) -> Field:
    """Return a column that shows one figure of a row and sorts by it."""
    return Field(title, column(key, show), key, hint=hint, minor=minor)


def times(title: str, key: str, hint: str = "", minor: bool = False) -> Field:
    """Return a column of nanoseconds, shown in the unit that suits each."""
    return numeric(title, key, formatting.duration, hint, minor)


def shares(title: str, key: str, hint: str = "", minor: bool = False) -> Field:
    """Return a column of percentages."""
    return numeric(title, key, formatting.percent, hint, minor)


def record(row: Any) -> dict[str, Any]:
    """Return a result's fields by name."""
    plain: dict[str, Any] = row.to_dict() if hasattr(row, "to_dict") else asdict(row)
    return plain


def pairs(mapping: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names and values as words, by name."""
    return [(formatting.clean(name), formatting.clean(value, 400)) for name, value in sorted(mapping.items())]


def site(value: Any) -> str:
    """Return the host of a web address, which a link on it shows; other text as it is.

    Examples
    --------
    >>> site("https://arxiv.org/abs/2412.04315"), site("a letter")
    ('arxiv.org', 'a letter')
    """
    address = safe_url(value)
    return formatting.clean(urlsplit(address).hostname) if address else formatting.clean(value)


def safe_url(value: Any) -> str:
    """Return a web address that may become a link, or an empty string.

    Only absolute http and https addresses without credentials or white space pass.

    Examples
    --------
    >>> safe_url("https://arxiv.org/abs/2412.04315")
    'https://arxiv.org/abs/2412.04315'
    >>> safe_url("javascript:alert(1)"), safe_url("https://a b"), safe_url("https://user@host/")
    ('', '', '')
    """
    if formatting.is_missing(value):
        return ""
    address = str(value).strip()
    # Browsers drop tabs and line ends within an address, so "java\nscript:" would be one.
    if any(character.isspace() or ord(character) < 32 for character in address):
        return ""
    try:
        parts = urlsplit(address)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        return ""
    return address if usable else ""
