"""Tables of a page: a listing's cells with their sort keys, safe links apart, and what narrows them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pandas as pd

from densing.core import Field, Listing, flag, formatting
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


def page_table(
    name: str,
    listing: Listing,
    caption: str = "",
    filters: Sequence[str] = (),
    sortable: bool = False,
    called: tuple[str, str] = (Filters.rows, Filters.hint),
) -> ShownTable:
    """Turn a result's table into one of a page.

    Parameters
    ----------
    name : str
        Id of the table on the page.
    listing : Listing
    caption : str
        One sentence; the listing's title when empty.
    filters : sequence of str
        Titles of the columns that get a drop-down filter.
    sortable : bool
        Whether headers become sort buttons.
    called : (str, str)
        As in :class:`Filters`: what the rows are called, and the hint of the search field.

    Examples
    --------
    >>> from densing.core import numeric
    >>> page_table("t", Listing("Toy.", pd.DataFrame({"a": [1.5]}), [numeric("A", "a")])).rows
    ((Cell(shown='1.5', key='', url=''),),)
    """
    cells = tuple(tuple(_cell(field, row) for field in listing.fields) for row in listing.records)
    titles = [field.title for field in listing.fields]
    choices = tuple(
        (title, titles.index(title), tuple(sorted({row[titles.index(title)].shown for row in cells})))
        for title in filters
    )
    mark = listing.mark
    marked = frozenset(number for number, row in enumerate(listing.records) if mark and flag(row.get(mark)))
    narrowed = Filters(choices, *called) if filters else None
    return ShownTable(name, caption or listing.title, listing.fields, cells, sortable, narrowed, marked)


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
    """Return a table that only a page has; parameters as those of :class:`Listing` and :func:`page_table`."""
    return page_table(name, Listing(caption, rows, fields, mark), "", filters, sortable, called)


def _cell(field: Field, row: Mapping[str, Any]) -> Cell:
    """Return a column's cell of a row; text, and a number that can be read, sort by what they show."""
    shown = field.show(row)
    key = sort_key(row.get(field.key)) if field.key else ""
    return Cell(shown, "" if _reads(shown, key) else key, safe_url(row.get(field.link)) if field.link else "")


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
