"""Tables as the page shows them: every cell already words, with the value it sorts by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from densing.plots import text
from densing.report.safe import safe_url


@dataclass(frozen=True)
class Cell:
    """One cell: what it shows, what it sorts by, and an optional link."""

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
        Left out in print, where width is short.
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

    @property
    def classes(self) -> str:
        """CSS classes of the column's cells."""
        return " ".join(name for name, on in (("num", self.numeric), ("minor", self.minor)) if on)


@dataclass(frozen=True)
class ShownTable:
    """A table ready for the template."""

    name: str
    caption: str
    fields: tuple[Field, ...]
    rows: tuple[tuple[Cell, ...], ...]
    sortable: bool = False
    filters: tuple[tuple[str, int, tuple[str, ...]], ...] = ()
    marked: frozenset[int] = frozenset()


def column(name: str, show: Callable[[Any], str] = text.clean) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that shows one column of a row.

    Examples
    --------
    >>> column("n_params", text.size)({"n_params": 7e9})
    '7 B'
    """
    return lambda row: show(row.get(name))


def ranged(name: str, show: Callable[[Any], str]) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that shows ``name_lo`` to ``name_hi``.

    Examples
    --------
    >>> ranged("density", text.number)({"density_lo": 0.5, "density_hi": 2.0})
    '0.50 to 2.0'
    """

    def words(row: Mapping[str, Any]) -> str:
        lo, hi = row.get(f"{name}_lo"), row.get(f"{name}_hi")
        return text.MISSING if text.is_missing(lo) and text.is_missing(hi) else f"{show(lo)} to {show(hi)}"

    return words


def shown(
    name: str,
    caption: str,
    frame: pd.DataFrame | None,
    fields: Sequence[Field],
    filters: Sequence[str] = (),
    mark: str = "",
    sortable: bool = False,
) -> ShownTable:
    """Turn a DataFrame into words.

    Parameters
    ----------
    name : str
        Id of the table on the page.
    caption : str
        One sentence.
    frame : pandas.DataFrame or None
        Rows; None counts as empty.
    fields : sequence of Field
    filters : sequence of str
        Titles of the columns that get a drop-down filter.
    mark : str
        Flag column; its true rows are emphasised.
    sortable : bool
        Whether headers become sort buttons.

    Examples
    --------
    >>> shown("t", "Toy.", pd.DataFrame({"a": [1.5]}), [Field("A", column("a", text.number), "a")]).rows
    ((Cell(shown='1.5', key='1.5', url=''),),)
    """
    records = [] if frame is None else frame.to_dict("records")
    rows = tuple(tuple(_cell(row, field) for field in fields) for row in records)
    titles = [field.title for field in fields]
    choices = tuple(
        (title, titles.index(title), tuple(sorted({row[titles.index(title)].shown for row in rows})))
        for title in filters
    )
    marked = frozenset(number for number, row in enumerate(records) if mark and _flag(row.get(mark)))
    return ShownTable(name, caption, tuple(fields), rows, sortable, choices, marked)


def _cell(row: Mapping[str, Any], field: Field) -> Cell:
    address = safe_url(row.get(field.link)) if field.link else ""
    words = field.show(row)
    return Cell(words, sort_key(row.get(field.key)) if field.key else words.casefold(), address)


def sort_key(value: Any) -> str:
    """Return what a script compares: a number, a date as its ISO form, or nothing where the cell is empty.

    Examples
    --------
    >>> sort_key(1.5), sort_key(float("inf")), sort_key(float("nan")), sort_key(pd.Timestamp("2024-01-02"))
    ('1.5', 'Infinity', '', '19724')
    """
    if text.is_missing(value):
        return ""
    if isinstance(value, pd.Timestamp):
        return str((value - pd.Timestamp("1970-01-01")) // pd.Timedelta(days=1))
    try:
        real = float(value)
    except (TypeError, ValueError):
        return ""
    if math.isinf(real):
        return "Infinity" if real > 0 else "-Infinity"
    return repr(real)


def _flag(value: Any) -> bool:
    return not text.is_missing(value) and value not in ("False", "false") and bool(value)
