"""What pages consist of: tables, figures, notes and a first screen, every cell and caption already words.

The template ``parts.html`` lays them out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup

from densing.core import Note, once, severest_first, words
from densing.report.page import safe_url, script_json

MOST_NOTES = 60


@dataclass(frozen=True)
class Headline:
    """The first screen: title, lead sentence, key facts (term, value) and caveats, all as plain text."""

    title: str
    lead: str
    facts: tuple[tuple[str, str], ...]
    caveats: tuple[str, ...]


@dataclass(frozen=True)
class ShownFigure:
    """A figure ready for the page: id, JSON, height in pixels, caption (also its text alternative)."""

    name: str
    json: Markup
    height: int
    caption: str


def shown_figure(name: str, figure: go.Figure, caption: str) -> ShownFigure:
    """Serialise a figure for a ``<script type="application/json">`` element.

    Examples
    --------
    >>> shown_figure("toy", go.Figure(layout={"title": {"text": "</script>"}}), "A toy.").json.find("</script>")
    -1
    """
    return ShownFigure(name, script_json(figure.to_json(engine="json")), int(figure.layout.height or 480), caption)


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

    def cell(self, row: Mapping[str, Any]) -> Cell:
        """Return the column's cell of a row; text sorts by its letters, whatever their case."""
        shown = self.show(row)
        key = sort_key(row.get(self.key)) if self.key else shown.casefold()
        return Cell(shown, key, safe_url(row.get(self.link)) if self.link else "")


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


def column(name: str, show: Callable[[Any], str] = words.clean) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that shows one column of a row.

    Examples
    --------
    >>> column("n_params", words.size)({"n_params": 7e9})
    '7 B'
    """
    return lambda row: show(row.get(name))


def ranged(name: str, show: Callable[[Any], str]) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that shows ``name_lo`` to ``name_hi``.

    Examples
    --------
    >>> ranged("density", words.number)({"density_lo": 0.5, "density_hi": 2.0})
    '0.50 to 2.0'
    """

    def show_ends(row: Mapping[str, Any]) -> str:
        lo, hi = row.get(f"{name}_lo"), row.get(f"{name}_hi")
        return words.MISSING if words.is_missing(lo) and words.is_missing(hi) else f"{show(lo)} to {show(hi)}"

    return show_ends


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
    >>> shown("t", "Toy.", pd.DataFrame({"a": [1.5]}), [Field("A", column("a", words.number), "a")]).rows
    ((Cell(shown='1.5', key='1.5', url=''),),)
    """
    records = [] if frame is None else frame.to_dict("records")
    rows = tuple(tuple(field.cell(row) for field in fields) for row in records)
    titles = [field.title for field in fields]
    choices = tuple(
        (title, titles.index(title), tuple(sorted({row[titles.index(title)].shown for row in rows})))
        for title in filters
    )
    marked = frozenset(number for number, row in enumerate(records) if mark and flag(row.get(mark)))
    return ShownTable(name, caption, tuple(fields), rows, sortable, choices, marked)


def sort_key(value: Any) -> str:
    """Return what a script compares: a number, a date as its ISO form, or nothing where the cell is empty.

    Examples
    --------
    >>> sort_key(1.5), sort_key(float("inf")), sort_key(float("nan")), sort_key(pd.Timestamp("2024-01-02"))
    ('1.5', 'Infinity', '', '19724')
    """
    if words.is_missing(value):
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


def flag(value: Any) -> bool:
    """Return whether a cell says yes; a missing one does not.

    Examples
    --------
    >>> flag(1), flag("False"), flag(float("nan"))
    (True, False, False)
    """
    return not words.is_missing(value) and value not in ("False", "false") and bool(value)


def times(name: str, key: str, hint: str = "", minor: bool = False) -> Field:
    """Return a column of nanoseconds, shown in the unit that suits each."""
    return Field(name, column(key, words.duration), key, hint=hint, minor=minor)


def shares(name: str, key: str, hint: str = "", minor: bool = False) -> Field:
    """Return a column of percentages."""
    return Field(name, column(key, words.percent), key, hint=hint, minor=minor)


def records_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a table of objects: a missing number stays None and an integer stays whole."""
    return pd.DataFrame([dict(row) for row in rows], dtype=object)


def record(row: Any) -> dict[str, Any]:
    """Return a result's fields by name."""
    plain: dict[str, Any] = row.to_dict() if hasattr(row, "to_dict") else asdict(row)
    return plain


def pairs(mapping: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names and values as words, by name."""
    return [(words.clean(name), words.clean(value, 400)) for name, value in sorted(mapping.items())]


def sentences(notes: Iterable[Note]) -> list[Note]:
    """Return notes as sentences without repeats, the severest first."""
    return severest_first(once(Note(note.code, note.severity, words.sentence(note.message)) for note in notes))


def first_notes(notes: Iterable[Note]) -> dict[str, Any]:
    """Return the notes that a page shows, and a sentence on those that it leaves out."""
    every = sentences(notes)
    more = f"{len(every) - MOST_NOTES} more notes are in the JSON output." if len(every) > MOST_NOTES else ""
    return {"notes": every[:MOST_NOTES], "more_notes": more}
