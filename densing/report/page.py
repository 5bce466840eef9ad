"""What every page is made of: a template filled, tables, figures and notes as words, and data made harmless.

The templates ``base.html`` and ``parts.html`` lay it out. Text and attributes are escaped by jinja2's autoescape; the
two places that it does not cover, JSON inside a script element and links, are here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

import jinja2
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from densing import __version__
from densing.core import Note, once, severest_first, words
from densing.plots import DARK
from densing.report import markdown

MOST_NOTES = 60


def fill(template: str, context: Mapping[str, Any], styles: str = "") -> str:
    """Return a page as text: one HTML file that needs no network.

    Everything in ``context`` is escaped, a missing value is an error; the page's own policy forbids every request and
    every script but the two that are inlined.

    Parameters
    ----------
    template : str
        File under ``densing/report/templates``.
    context : mapping
        Values by name, ready to show.
    styles : str
        File under ``densing/report/static`` with the page's own styles; empty: those of all pages only.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("densing.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Not a step of `words`: a terminal and a Markdown page keep the ordinary space.
    environment.filters["prose"] = unbroken
    # Line ends as an HTML parser sees them, so that the hashes fit.
    scripts = [script_text(get_plotlyjs()), script_text(static("report.js"))]
    # Markup is for our own code; it is never called with data.
    frame = {
        "policy": policy(scripts),
        "scripts": [Markup(script) for script in scripts],
        "css": Markup(static("report.css")),
        "own_css": Markup(static(styles)) if styles else "",
        "palette": script_json(json.dumps(DARK)),
        "version": __version__,
    }
    return str(environment.get_template(template).render(**context, **frame))


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

    def markdown(self) -> str:
        """Return it as a table of Markdown."""
        return markdown.table(
            [field.title for field in self.fields], ([cell.shown for cell in row] for row in self.rows)
        )


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


def shown_table(
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
    >>> shown_table("t", "Toy.", pd.DataFrame({"a": [1.5]}), [Field("A", column("a", words.number), "a")]).rows
    ((Cell(shown='1.5', key='1.5', url=''),),)
    """
    # Records rather than cells of the frame: a row's function may need several of its columns.
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
    # Whole days: the script compares numbers, and no table shows a time of day.
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


def unbroken(sentence: str) -> str:
    """Keep a number and its sign on one line.

    Examples
    --------
    >>> unbroken("95 % interval").split(" ")[-1]
    'interval'
    """
    return sentence.replace(" %", "\u00a0%").replace(" = ", "\u00a0=\u00a0").replace(" < ", "\u00a0<\u00a0")


def static(name: str) -> str:
    """Return the text of a file under ``densing/report/static``."""
    return resources.files("densing.report").joinpath("static", name).read_text(encoding="utf-8")


def script_text(code: str) -> str:
    """Return a script that may stand inside ``<script>``: unix line ends and no closing tag.

    Examples
    --------
    >>> script_text('a = "</script>";\\r\\n')
    'a = "<\\\\/script>";\\n'
    """
    return code.replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script")


def policy(scripts: list[str]) -> str:
    """Return a policy that allows exactly these inline scripts and no network request at all.

    Examples
    --------
    >>> policy(["1"]).split(";")[0]
    "default-src 'none'"
    """
    digests = (hashlib.sha256(script.encode("utf-8")).digest() for script in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode('ascii')}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def script_json(document: str) -> Markup:
    """Return a JSON document that cannot leave its ``<script>`` element.

    ``<``, ``>`` and ``&`` become JSON escapes, so neither ``</script>`` nor ``<!--`` can appear; the value
    that a JSON parser reads is unchanged.

    Examples
    --------
    >>> script_json('["</script>"]')
    Markup('["\\\\u003c/script\\\\u003e"]')
    """
    for character, escape in _ESCAPES.items():
        document = document.replace(character, escape)
    return Markup(document)  # every character with a meaning in HTML was just replaced


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
    if words.is_missing(value):
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
