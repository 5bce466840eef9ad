"""What every page is made of: a template filled, tables, figures and notes as words, and data made harmless.

The templates ``base.html`` and ``parts.html`` lay it out. Text and attributes are escaped by jinja2's autoescape; links
are checked here. Figures and what draws them are packed (gzip in base 85), which no name can leave and a browser
unpacks: plotly.js is 4.8 MB as it comes and 1.8 MB packed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shlex
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

import jinja2
import numpy as np
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from densing import __version__
from densing.core import Note, doubts, formatting, once, severest_first, strip_secrets
from densing.plots import DARK
from densing.report import markdown

MOST_COLUMNS = 30
MOST_NOTES = 60
# A number as report.js reads it from a cell: "1.5", "≤ 0.23", "258 M to 8.88 B", "0.43 ± 0.05".
_SHOWN = re.compile(r"(?:[≤≥] )?(−?\d+(?:\.(\d+))?)(?: ([MBT%]))?(?: (?:to|±) .*)?")
_UNITS = {None: 1.0, "M": 1e6, "B": 1e9, "T": 1e12, "%": 0.01}


def fill(template: str, context: Mapping[str, Any], inputs: Mapping[str, str] | None = None) -> str:
    """Return a page as text: one HTML file that needs no network.

    Everything in ``context`` is escaped, a missing value is an error; the page's own policy forbids every request and
    every script but the two that the file brings.

    Parameters
    ----------
    template : str
        File under ``densing/report/templates``.
    context : mapping
        Values by name, ready to show; ``headline`` and ``sections`` are of every page.
    inputs : mapping of str to str, optional
        SHA-256 of what the page was made of, by name; its footer holds their first digits.
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
    environment.filters["packed"] = packed
    # Line ends as an HTML parser sees them, so that its hash fits.
    script = script_text(static("report.js"))
    code, plotly = _plotly()
    # Markup is for our own code; it is never called with data.
    frame = {
        "policy": policy([script, code]),
        "script": Markup(script),
        "plotly": plotly,
        "css": Markup(static("report.css")),
        "columns": range(1, MOST_COLUMNS + 1),
        "palette": Markup(json.dumps(DARK)),
        "version": __version__,
        "made": made(inputs or {}),
    }
    return str(environment.get_template(template).render(**context, **frame))


@cache
def _plotly() -> tuple[str, str]:
    """Return plotly.js as the browser will run it, and packed: half a second once for all pages of a process."""
    code = get_plotlyjs()
    return code, packed(code)


@dataclass(frozen=True)
class Made:
    """How a page came about: the day (UTC), the command if one made it, and first digits of its inputs' hashes."""

    day: str
    command: str
    inputs: tuple[tuple[str, str], ...]


def made(inputs: Mapping[str, str]) -> Made:
    """Return what a page's footer says of its making; secrets in the command line are masked."""
    digests = tuple((formatting.clean(name), formatting.clean(digest)[:12]) for name, digest in inputs.items())
    return Made(f"{datetime.now(UTC):%Y-%m-%d}", command_line(sys.argv), digests)


def command_line(argv: Sequence[str]) -> str:
    """Return the command that this process runs; empty where it is not ``densing`` itself.

    Parameters
    ----------
    argv : sequence of str
        As in :data:`sys.argv`.

    Examples
    --------
    >>> command_line(["/usr/bin/densing", "profile", "my traces", "--html", "p.html"])
    "densing profile 'my traces' --html p.html"
    >>> command_line(["/usr/lib/python3/densing/__main__.py", "run"]), command_line(["notebook.py"])
    ('densing run', '')
    """
    program = PurePath(argv[0]) if argv else PurePath()
    # `python -m densing` and `python cli.py` of a checkout are the same program.
    if program.stem != "densing" and program.parts[-2:] != ("densing", "__main__.py") and program.name != "cli.py":
        return ""
    return formatting.clean(strip_secrets(shlex.join(["densing", *argv[1:]])), 600)


@dataclass(frozen=True)
class Headline:
    """The first screen: title, lead sentence, key facts (term, value) and caveats as plain text, and the figure.

    ``now`` stands below the title: the second number of a headline of two.
    """

    title: str
    lead: str
    facts: tuple[tuple[str, str], ...]
    caveats: tuple[str, ...]
    figure: ShownFigure | None = None
    now: str = ""


@dataclass(frozen=True)
class ShownFigure:
    """A figure ready for the page: id, JSON, height in pixels, caption (also its text alternative)."""

    name: str
    json: str
    height: int
    caption: str


def shown_figure(name: str, figure: go.Figure, caption: str) -> ShownFigure:
    """Serialise a figure.

    Examples
    --------
    >>> shown_figure("toy", go.Figure(layout={"height": 300}), "A toy.").height
    300
    """
    plain = json.loads(figure.to_json(engine="json"), parse_float=_short, object_hook=_listed)
    text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    return ShownFigure(name, text, int(figure.layout.height or 480), caption)


def _short(number: float | str) -> float:
    """Return seven digits of a number: more than a screen shows, of a figure drawn a thousand times as large too."""
    return float(f"{float(number):.7g}")


def _listed(entry: dict[str, Any]) -> Any:
    """Return an array as numbers: plotly writes its bytes in base64, all digits of them, which pack badly."""
    if "bdata" not in entry:
        return entry
    array = np.frombuffer(base64.b64decode(entry["bdata"]), entry["dtype"])
    numbers = np.array([_short(each) if math.isfinite(each) else None for each in array.tolist()], dtype=object)
    shape = [int(length) for length in str(entry.get("shape", array.size)).split(",")]
    return numbers.reshape(shape).tolist()


def packed(text: str) -> Markup:
    """Return a text as gzip in base 85: letters that cannot leave a ``<script>`` element.

    They are those of :func:`base64.b85encode`, with a comma for its ``<``.

    Examples
    --------
    >>> import gzip
    >>> gzip.decompress(base64.b85decode(str(packed("</script>")).replace(",", "<")))
    b'</script>'
    """
    # 31: with the head and tail of gzip; without a time, so that equal texts are packed alike.
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    letters = base64.b85encode(packer.compress(text.encode("utf-8")) + packer.flush())
    return Markup(letters.decode("ascii").replace("<", ","))


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
class ShownTable:
    """A table ready for the template."""

    name: str
    caption: str
    fields: tuple[Field, ...]
    rows: tuple[tuple[Cell, ...], ...]
    sortable: bool = False
    filters: tuple[tuple[str, int, tuple[str, ...]], ...] = ()
    marked: frozenset[int] = frozenset()

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

    def markdown(self) -> str:
        """Return it as a table of Markdown."""
        return markdown.table(
            [field.title for field in self.fields], ([cell.shown for cell in row] for row in self.rows)
        )


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

    Examples
    --------
    >>> shown_table("t", "Toy.", pd.DataFrame({"a": [1.5]}), [Field("A", column("a", formatting.number), "a")]).rows
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
    return ShownTable(name, caption, tuple(fields), cells, sortable, choices, marked)


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


def doubtful(notes: Iterable[Note]) -> tuple[str, ...]:
    """Return the warnings and errors among notes as sentences: what to know before quoting."""
    return tuple(dict.fromkeys(formatting.sentence(note.message) for note in doubts(severest_first(notes))))


def sentences(notes: Iterable[Note], names: Iterable[str] = ()) -> list[Note]:
    """Return notes as sentences without repeats, the severest first; ``names`` keep their small letters."""
    own = set(names)
    return severest_first(
        once(Note(note.code, note.severity, formatting.sentence(note.message, own)) for note in notes)
    )


def first_notes(notes: Iterable[Note], names: Iterable[str] = ()) -> dict[str, Any]:
    """Return the notes that a page shows, and a sentence on those that it leaves out."""
    every = sentences(notes, names)
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
