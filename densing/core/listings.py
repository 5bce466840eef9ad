"""Tables as people read them: columns declared once, with title and form, for terminal, page, notebook and paper.

Loads no pandas: commands that answer in a fraction of a second print tables too.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from densing.core import formatting

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]
# Text folds, down to this width; figures and dates never do.
TEXT_WIDTH = 16
WIDEST_TEXT = 60
GAP = "  "


@dataclass(frozen=True)
class Field:
    """One column of a table.

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
    optional : bool
        Left out where no row has anything to show.
    short : str
        Header where room is scarce: on a terminal, at a prompt.
    """

    title: str
    show: Callable[[Row], str]
    key: str = ""
    link: str = ""
    hint: str = ""
    minor: bool = False
    optional: bool = False
    short: str = ""

    @property
    def numeric(self) -> bool:
        """Whether the column sorts, and is set, as numbers."""
        return bool(self.key)

    @property
    def head(self) -> str:
        """The header where room is scarce."""
        return self.short or self.title


@dataclass(frozen=True)
class Listing:
    """A table as people read it.

    Parameters
    ----------
    title : str
        One line: what it lists.
    rows : pandas.DataFrame, iterable of mappings, Records or dataclasses, or None
        None counts as empty.
    columns : sequence of Field
        The most important first: a narrow terminal leaves out columns from the end.
    mark : str
        Flag column; a page emphasises its true rows.

    Examples
    --------
    >>> listing = Listing("Sizes.", [{"model": "a", "n": 7e9}, {"model": "b"}],
    ...                   [Field("Model", column("model")), numeric("Size", "n", formatting.size)])
    >>> print("\\n".join(listing.lines()))
    Model  Size
    a       7 B
    b         –
    """

    title: str
    rows: pd.DataFrame | Iterable[Any] | None
    columns: Sequence[Field]
    mark: str = ""

    @cached_property
    def records(self) -> list[Row]:
        """The rows as mappings: a cell may need several columns of its row."""
        rows: Any = self.rows
        # Without asking what it is: pandas may not be loaded.
        if hasattr(rows, "to_dict"):
            records: list[Row] = rows.to_dict("records")
            return records
        return [as_row(row) for row in rows or ()]

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The columns that this table has: of optional ones those with something to show."""
        empty = ("", formatting.MISSING)
        return tuple(
            field
            for field in self.columns
            if not field.optional or any(field.show(row) not in empty for row in self.records)
        )

    def without(self, *titles: str) -> Listing:
        """Return the table without some columns, whose words stand elsewhere."""
        return replace(self, columns=[field for field in self.columns if field.title not in titles])

    def main(self, every: bool = False) -> tuple[Field, ...]:
        """Return the columns that are shown at first; with ``every`` all."""
        return tuple(field for field in self.fields if every or not field.minor)

    def cells(self, most: int | None = None, every: bool = False) -> list[list[str]]:
        """Return the words of the first ``most`` rows."""
        return [[field.show(row) for field in self.main(every)] for row in self.records[:most]]

    def lines(self, most: int | None = None, every: bool = False) -> list[str]:
        """Return the whole table, or its first ``most`` rows, as aligned text, its header first."""
        return self.laid_out(None, most, every)[0]

    def laid_out(self, room: int | None, most: int | None = None, every: bool = False) -> tuple[list[str], list[str]]:
        """Return the table as aligned text, its header first, and the headers of the columns that have no room.

        Parameters
        ----------
        room : int or None
            Columns of the terminal: text folds, and fields that do not fit beside each other are left out, the first
            never. None sets the whole table.
        most : int, optional
            Rows.
        every : bool
            Minor columns too.
        """
        fields, rows = self.main(every), self.cells(most, every)
        used, fit = 0, len(fields)
        if room is not None:
            for at, (field, *words) in enumerate(zip(fields, *rows, strict=True)):
                wide = max(map(_width, (field.head, *words)))
                used += wide if field.numeric else min(wide, TEXT_WIDTH)
                if at and used > room:
                    fit = at
                    break
                used += len(GAP)
        heads, figures = [field.head for field in fields], [field.numeric for field in fields]
        return aligned(heads[:fit], [row[:fit] for row in rows], figures[:fit], room), heads[fit:]

    def texts(self, most: int | None = None) -> pd.DataFrame:
        """Return the table, or its first ``most`` rows, as a frame of texts under its headers."""
        import pandas as pd

        return pd.DataFrame(self.cells(most), columns=[field.title for field in self.main()], dtype=object)


def aligned(
    heads: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool] = (), room: int | None = None
) -> list[str]:
    """Return lines with aligned columns: text to the left, and folded where it has no room; figures to the right.

    Parameters
    ----------
    heads : sequence of str
    rows : sequence of sequence of str
    numeric : sequence of bool
        Which columns are figures; all but the first when empty.
    room : int, optional
        Columns of the terminal. None folds nothing.

    Examples
    --------
    >>> print("\\n".join(aligned(("rank", "idle"), [("0", "12.5 %"), ("10", "3.1 %")])))
    rank    idle
    0     12.5 %
    10     3.1 %
    """
    right = numeric or [at > 0 for at in range(len(heads))]
    table = [[formatting.visible(cell) for cell in row] for row in (heads, *rows)]
    widths = [max(map(_width, column)) for column in zip(*table, strict=True)]
    if room is not None:
        spare = room - sum(width if figures else 0 for width, figures in zip(widths, right, strict=True))
        spare -= len(GAP) * (len(widths) - 1)
        texts = sorted(width for width, figures in zip(widths, right, strict=True) if not figures)
        # What narrow texts leave goes to the wide ones.
        limit = WIDEST_TEXT
        for left, width in enumerate(texts):
            limit = max(spare // (len(texts) - left), TEXT_WIDTH)
            if width > limit:
                break
            spare -= width
        widths = [width if figures else min(width, limit) for width, figures in zip(widths, right, strict=True)]
    lines = []
    for row in table:
        parts = [
            [cell] if figures or _width(cell) <= width else textwrap.wrap(cell, width)
            for cell, width, figures in zip(row, widths, right, strict=True)
        ]
        for at in range(max(map(len, parts), default=0)):
            cells = [part[at] if at < len(part) else "" for part in parts]
            padded = (
                f"{' ' * (width - _width(cell))}{cell}" if figures else f"{cell}{' ' * (width - _width(cell))}"
                for cell, width, figures in zip(cells, widths, right, strict=True)
            )
            lines.append(GAP.join(padded).rstrip())
    return lines


def _width(text: str) -> int:
    """Return the columns that a text takes: a wide character two, a combining one none."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(0 if unicodedata.combining(sign) else 1 + (unicodedata.east_asian_width(sign) in "WF") for sign in text)


def listing_of(title: str, frame: pd.DataFrame, **forms: Callable[[Any], str]) -> Listing:
    """Return a table of a frame's columns under their own names, each in the form of its values.

    Parameters
    ----------
    title : str
    frame : pandas.DataFrame
    **forms : callable
        How a column is written where three digits, days and words are not its form: ``n_params=formatting.size``.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"model": ["a"], "n_params": [7e9], "score": [0.61234]})
    >>> listing_of("Scores.", frame, n_params=formatting.size).cells()
    [['a', '7 B', '0.612']]
    """
    return Listing(title, frame, [_field(frame, name, forms.get(name, written)) for name in map(str, frame.columns)])


def _field(frame: pd.DataFrame, name: str, form: Callable[[Any], str]) -> Field:
    return Field(name, column(name, form), name if frame[name].dtype.kind in "fiu" else "")


def written(value: Any) -> str:
    """Return a value of any kind in words: three digits, thousands apart, days, yes and no.

    Examples
    --------
    >>> written(0.61234), written(12345.6), written(12), written(True), written(None), written("a")
    ('0.612', '12,346', '12', 'yes', '–', 'a')
    """
    if formatting.is_missing(value):
        return formatting.MISSING
    # By their names: numpy's own values are not subclasses, and neither numpy nor pandas may be loaded.
    kind = type(value).__name__
    if kind == "Timestamp":
        return formatting.day(value)
    if kind.startswith("bool"):
        return "yes" if value else "no"
    if kind.startswith("float"):
        return formatting.fixed(value, 0) if 1000 <= abs(value) < 1e15 else formatting.number(value, 3)
    return formatting.clean(value)


def as_row(value: Any) -> Row:
    """Return a mapping as it is, a Record or a dataclass as its fields by name."""
    if isinstance(value, Mapping):
        return value
    fields: Row = value.to_dict() if hasattr(value, "to_dict") else asdict(value)
    return fields


def column(name: str, show: Callable[[Any], str] = formatting.clean) -> Callable[[Row], str]:
    """Return a function that shows one column of a row.

    Examples
    --------
    >>> column("n_params", formatting.size)({"n_params": 7e9})
    '7 B'
    """
    return lambda row: show(row.get(name))


def ranged(name: str, show: Callable[[Any], str], of: str = "") -> Callable[[Row], str]:
    """Return a function that shows ``name_lo`` to ``name_hi``, or ``name_lo_OF`` to ``name_hi_OF``.

    Examples
    --------
    >>> ranged("density", formatting.number)({"density_lo": 0.5, "density_hi": 2.0})
    '0.50 to 2.0'
    """

    def show_ends(row: Row) -> str:
        lo, hi = (row.get("_".join(filter(None, (name, end, of)))) for end in ("lo", "hi"))
        return (
            formatting.MISSING
            if formatting.is_missing(lo) and formatting.is_missing(hi)
            else f"{show(lo)} to {show(hi)}"
        )

    return show_ends


def numeric(
    title: str,
    key: str,
    show: Callable[[Any], str] = formatting.number,
    hint: str = "",
    minor: bool = False,
    optional: bool = False,
    short: str = "",
) -> Field:
    """Return a column that shows one figure of a row and sorts by it."""
    return Field(title, column(key, show), key, hint=hint, minor=minor, optional=optional, short=short)


def times(title: str, key: str, hint: str = "", minor: bool = False) -> Field:
    """Return a column of nanoseconds, shown in the unit that suits each."""
    return numeric(title, key, formatting.duration, hint, minor)


def seconds(title: str, key: str, hint: str = "", minor: bool = False) -> Field:
    """Return a column of seconds, shown in the unit that suits each."""
    return numeric(title, key, formatting.seconds, hint, minor)


def shares(title: str, key: str, hint: str = "", minor: bool = False) -> Field:
    """Return a column of percentages."""
    return numeric(title, key, formatting.percent, hint, minor)


def flag(value: Any) -> bool:
    """Return whether a cell says yes; a missing one does not.

    Examples
    --------
    >>> flag(1), flag("False"), flag(float("nan"))
    (True, False, False)
    """
    return not formatting.is_missing(value) and value not in ("False", "false") and bool(value)
