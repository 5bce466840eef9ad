"""Spellings of headers, numbers and dates, read only if unambiguous and always with a note.

A declaration (:mod:`densing.core.tables`) knows one spelling of everything: ``params``, ``0.62``, ``2024-02-29``.
People write ``# Params (B)``, ``0,62`` and ``29.02.2024``. :func:`as_declared` turns the second into the first. What
could be read in two ways (``1,234``; ``03/04/2024`` in a column without a 13th) stays, and the declaration refuses it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date

import pandas as pd

from densing.core.errors import TableError
from densing.core.formatting import listed
from densing.core.notes import Note
from densing.core.table_io import Sheet, each_once
from densing.core.tables import Column, Table, validate

NOTHING = frozenset({"nan", "na", "n/a", "null", "none", "-", "–", "—"})
"""What people write where there is no number and no date."""
# How many places the point of a number moves to the right.
_THOUSANDS = {
    **dict.fromkeys(("k", "thousand", "thousands"), 3),
    **dict.fromkeys(("m", "mn", "million", "millions"), 6),
    **dict.fromkeys(("b", "bn", "billion", "billions"), 9),
    **dict.fromkeys(("t", "tn", "trillion", "trillions"), 12),
}
_PERCENT = {"%": -2, "pct": -2, "percent": -2}
_PLACES: dict[str, dict[str, int]] = {
    "": {},
    "share": _PERCENT,
    "count": _THOUSANDS,
    "billions": {unit: places - 9 for unit, places in _THOUSANDS.items()},
    "trillions": {unit: places - 12 for unit, places in _THOUSANDS.items()},
}
_NUMBER = re.compile(
    r"(?P<sign>[-+]?)(?P<digits>[.,]?\d(?:[\d.,]|[ '’_\u00a0\u202f](?=\d))*)"
    r"(?P<power>[eE][-+]?\d+)?\s*(?P<unit>%|[a-z]*)",
    re.IGNORECASE,
)
_GROUPS = {sign: re.compile(rf"\d{{1,3}}(?:\{sign}\d{{3}})+") for sign in ",."}
_SPACED = re.compile(r"\d{1,3}(?:[ '’_\u00a0\u202f]\d{3})+(?=[.,]|$)")
_MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
           "november", "december")  # fmt: skip
_MIDNIGHT = r"(?:[T ]00:00(?::00(?:\.0+)?)?(?:Z|[+]00:?00)?)?"
_YEAR_FIRST = re.compile(
    rf"(?P<y>\d{{4}})(?:(?P<s>[-/.])(?P<m>\d{{1,2}})(?P=s)(?P<d>\d{{1,2}})|(?P<c>\d{{4}})){_MIDNIGHT}"
)
_DAY_FIRST = re.compile(r"(?P<d>\d{1,2})\.\s?(?P<m>\d{1,2})\.\s?(?P<y>\d{4})")
_EITHER = re.compile(r"(?P<one>\d{1,2})(?P<s>[/-])(?P<two>\d{1,2})(?P=s)(?P<y>\d{4})")
_MONTH_ONLY = re.compile(r"(?P<m>\d{1,2})[/.](?P<y>\d{4})|(?P<y2>\d{4})/(?P<m2>\d{1,2})")
_NAMED = re.compile(
    r"(?:(?P<d>\d{1,2})(?:st|nd|rd|th)?[\s.-]+)?(?P<m>[a-z]{3,9})\.?(?:\s+(?P<d2>\d{1,2})(?:st|nd|rd|th)?,?)?[\s,-]+(?P<y>\d{4})",
    re.IGNORECASE,
)


def as_declared(sheet: Sheet, columns: Iterable[Column], also: Mapping[str, Sequence[str]] | None = None) -> Sheet:
    """Return a sheet whose columns bear their declared names, and whose numbers and dates are spelled as declared.

    A header matches a declared name, or another name that ``also`` lists, whatever its case and separators; a unit
    behind it (``Score (%)``, ``Tokens [B]``) is that of its cells. Read are decimal commas, separated thousands,
    ``7B`` where the column counts, ``45 %`` where it holds shares, and dates in other orders; the column decides, not
    the cell.

    Parameters
    ----------
    sheet : Sheet
        As :func:`densing.core.read_sheet` gives it.
    columns : iterable of Column
        What is declared. Other columns stay as they are.
    also : mapping of str to sequence of str, optional
        Other names of a declared column.

    Returns
    -------
    Sheet
        With a note for every kind of thing that was read otherwise than it stands there. Where two columns mean the
        same one, or a column spells numbers or dates in two ways that contradict each other, it stays as it is and
        ``problems`` says so; :func:`check_sheet` refuses it.

    Examples
    --------
    >>> from io import StringIO
    >>> from densing.core import Column, read_sheet
    >>> score = Column("score", "number", "share correct", unit="share")
    >>> sheet = as_declared(read_sheet(StringIO("Model;MMLU (%)\\na;62,5\\n"), "x.csv"), [score], {"score": ["mmlu"]})
    >>> sheet.cells.to_dict("list"), [note.code for note in sheet.notes]
    ({'Model': ['a'], 'score': ['0.625']}, ['separator', 'columns-matched', 'numbers-read'])
    """
    declared = {column.name: column for column in columns}
    names, problems = _matched(sheet, declared, also or {})
    cells = sheet.cells.rename(columns={header: name for header, (name, _) in names.items()})
    notes = list(sheet.notes)
    if otherwise := [f"{header} as {name}" for header, (name, _) in names.items() if header != name]:
        message = f"{sheet.name}: columns read under their declared names: {listed(otherwise, 12)}"
        notes.append(Note("columns-matched", "info", message, {"columns": {h: n for h, (n, _) in names.items()}}))
    titles = {name: header for header, (name, _) in names.items() if header != name}
    for header, (name, unit) in names.items():
        column = declared[name]
        if column.kind not in ("number", "integer", "date"):
            continue
        distinct = [text for text in dict.fromkeys(map(str.strip, pd.unique(cells[name]))) if text]
        where = _Where(sheet.name, header, cells[name])
        try:
            if column.kind == "date":
                spelled, what = _dates(distinct, where)
            else:
                spelled, what = _numbers(distinct, column.unit, unit, where)
        except TableError as error:
            problems[name] = error.problems
            continue
        changed = {text: new for text, new in spelled.items() if new != text}
        if not changed:
            continue
        stripped = {cell: cell.strip() for cell in pd.unique(cells[name])}
        cells[name] = each_once(cells[name], {cell: changed.get(text, text) for cell, text in stripped.items()}.get)
        text, new = next(iter(changed.items()))
        example = f"row {where.row(text)}: {text[:40]!r} is {new or 'no value'}"
        message = f"{sheet.name}, column {header}: {', '.join(what)} ({example})"
        notes.append(Note(f"{column.kind if column.kind == 'date' else 'number'}s-read", "info", message))
    return dataclasses.replace(
        sheet,
        cells=cells,
        notes=tuple(notes),
        titles={**sheet.titles, **titles},
        problems={**sheet.problems, **problems},
    )


def check_sheet(sheet: Sheet, table: Table, cells: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return a sheet's rows typed; everything that is wrong with them is in one message.

    Parameters
    ----------
    sheet : Sheet
        In declared columns, as of :func:`as_declared`.
    table : Table
        The declaration.
    cells : pandas.DataFrame, optional
        Some of the sheet's rows or columns; all of them by default.

    Raises
    ------
    TableError
        With the problems of the sheet and those that :func:`densing.core.validate` finds in its other columns.

    Examples
    --------
    >>> from densing.core import read_sheet
    >>> toy = Table("toy", (Column("mbit", "number", "bandwidth"), Column("loss", "number", "loss rate")))
    >>> sheet = read_sheet([{"MBit": "1,5", "Loss": "x"}, {"MBit": "2.5", "Loss": "0"}], "link.csv")
    >>> check_sheet(as_declared(sheet, toy.columns), toy)
    Traceback (most recent call last):
        ...
    densing.core.errors.TableError: link.csv: column MBit: row 2 (1,5) and row 3 (2.5) mix decimal ...
    link.csv: row 2, column Loss: 'x' is not a finite number
    """
    cells = sheet.cells if cells is None else cells
    sound = dataclasses.replace(
        table,
        columns=tuple(column for column in table.columns if column.name not in sheet.problems),
        key=() if set(table.key) & set(sheet.problems) else table.key,
    )
    problems = [problem for each in sheet.problems.values() for problem in each]
    try:
        if not problems:
            return validate(cells, table, sheet.name, titles=sheet.titles)
        validate(cells.drop(columns=list(sheet.problems), errors="ignore"), sound, sheet.name, titles=sheet.titles)
    except TableError as error:
        problems += error.problems
    raise TableError(sheet.name, dict.fromkeys(problems))


def as_table(
    sheet: Sheet, table: Table, also: Mapping[str, Sequence[str]] | None = None
) -> tuple[pd.DataFrame, tuple[Note, ...]]:
    """Return the rows of a sheet as a table declares them: the one door for tables that people bring.

    Parameters
    ----------
    sheet : Sheet
        As :func:`densing.core.read_sheet` gives it.
    table : Table
        What is declared; unknown columns are kept as text.
    also : mapping of str to sequence of str, optional
        Other names of a declared column.

    Returns
    -------
    rows : pandas.DataFrame
        As of :func:`densing.core.validate`.
    notes : tuple of Note
        What was read otherwise than it stands there.

    Raises
    ------
    TableError
        With everything that is wrong, as :func:`check_sheet`.

    Examples
    --------
    >>> from io import StringIO
    >>> from densing.core import Column, Table, read_sheet
    >>> link = Table("link", (Column("mbit", "number", "bandwidth", required=True),))
    >>> rows, notes = as_table(read_sheet(StringIO("MBit;s\\n1,5;0\\n"), "link.csv"), link)
    >>> rows["mbit"].tolist(), [note.code for note in notes]
    ([1.5], ['separator', 'columns-matched', 'numbers-read'])
    """
    sheet = as_declared(sheet, table.columns, also)
    return check_sheet(sheet, table), sheet.notes


def plain_name(text: str) -> str:
    """Return a header as what it is told by: its letters and digits, small.

    Examples
    --------
    >>> plain_name("Release date"), plain_name("GSM-8K"), plain_name("HumanEval+")
    ('releasedate', 'gsm8k', 'humanevalplus')
    """
    return "".join(_words(text))


def _words(text: str) -> list[str]:
    text = text.casefold().replace("%", " pct ").replace("+", " plus ")
    return [word for word in re.split(r"[\W_]+", text) if word]


def _matched(
    sheet: Sheet, declared: Mapping[str, Column], also: Mapping[str, Sequence[str]]
) -> tuple[dict[str, tuple[str, str]], dict[str, tuple[str, ...]]]:
    """Return, for every header that means a declared column, that column's name and the unit in the header.

    And by name what several headers mean, which none of them is read as.
    """
    # What a closed list of words describes is another thing in other people's tables (Architecture, Layers).
    guessed = [name for name, column in declared.items() if not column.choices]
    known = {plain_name(other): name for name in guessed for other in also.get(name, ())}
    known |= {plain_name(name): name for name in guessed}
    names: dict[str, tuple[str, str]] = {}
    for header in map(str, sheet.cells.columns):
        if name := header if header in declared else known.get(plain_name(header)):
            names[header] = (name, "")
            continue
        *stem, unit = _words(header) or [""]
        name = known.get("".join(stem[:-1] if stem[-1:] == ["in"] else stem))
        if name and unit in _PLACES[declared[name].unit]:
            names[header] = (name, unit)
    headers: dict[str, list[str]] = {}
    for header, (name, _) in names.items():
        headers.setdefault(name, []).append(header)
    problems: dict[str, tuple[str, ...]] = {
        name: (f"columns {' and '.join(map(repr, several))} both mean {name}; keep one, or rename the other",)
        for name, several in headers.items()
        if len(several) > 1
    }
    return {header: each for header, each in names.items() if each[0] not in problems}, problems


@dataclasses.dataclass(frozen=True)
class _Where:
    """A column of a file, for messages about its cells."""

    file: str
    header: str
    cells: pd.Series

    def row(self, text: str) -> int:
        return int(self.cells.index[each_once(self.cells, str.strip).eq(text)][0])

    def refuse(self, one: str, two: str, problem: str) -> TableError:
        """Return the error of two cells that contradict each other."""
        return TableError(
            self.file,
            [f"column {self.header}: row {self.row(one)} ({one[:40]}) and row {self.row(two)} ({two[:40]}) {problem}"],
        )


def _is_plain(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text and text[-1] not in "nNfFyY"


def _numbers(texts: Sequence[str], kind: str, unit: str, where: _Where) -> tuple[dict[str, str], list[str]]:
    """Return numbers as they are declared by the text that stands there, and what was read otherwise."""
    odd = [text for text in texts if not _is_plain(text)]
    if not odd and not unit:
        return {}, []
    parsed = {text: match for text in texts if (match := _NUMBER.fullmatch(text.replace("−", "-")))}
    signs = {text: _decimal_sign(match["digits"]) for text, match in parsed.items()}
    by_comma = next((text for text, sign in signs.items() if sign == ","), None)
    by_point = next((text for text, sign in signs.items() if sign == "."), None)
    if by_comma is not None and by_point is not None:
        raise where.refuse(by_comma, by_point, "mix decimal commas and decimal points; use points in all rows")
    if (known := by_comma or by_point) is not None and (unsure := _unsure(parsed, signs[known])) is not None:
        raise where.refuse(
            known,
            unsure,
            "leave open whether the second one's sign divides thousands or decimals; write a decimal point and no "
            "separator of thousands in all rows",
        )
    spelled, what = {}, {"the sign of minus is a hyphen"} if any("−" in text for text in parsed) else set()
    for text, match in parsed.items():
        digits = match["digits"]
        if _SPACED.match(digits):
            digits = re.sub(r"[ '’_\u00a0\u202f]", "", digits)
            what.add("separators of thousands are left out")
        if by_comma is not None:
            if "." in digits and not _grouped(digits, "."):
                continue
            if "," in digits or "." in digits:
                what.add("decimal commas are read as points")
            digits = digits.replace(".", "").replace(",", ".")
        elif "," in digits and (by_point is not None or digits.count(",") > 1) and _grouped(digits, ","):
            what.add("separators of thousands are left out")
            digits = digits.replace(",", "")
        own = match["unit"].casefold() or unit
        places = _PLACES[kind].get(own)
        if own and places is None:
            continue
        number = f"{match['sign']}{digits}{match['power'] or ''}"
        if not _is_plain(number):
            continue
        if own:
            what.add(f"{own} behind a number is its unit" if match["unit"] else f"the header's unit is {own}")
            number = repr(float(f"{match['sign']}{digits}e{int((match['power'] or 'e0')[1:]) + (places or 0)}"))
        spelled[text] = number
    if kind == "share" and unit and spelled and all(abs(float(number)) <= 0.01 for number in spelled.values()):
        raise TableError(
            where.file,
            [f"column {where.header}: the header says per cent but no cell is above 1; remove the unit"],
        )
    return spelled | _absent(odd, what), sorted(what)


def _decimal_sign(digits: str) -> str:
    """Return the sign that must be a number's decimal one; empty where it has none, or may be one of thousands."""
    signs = [sign for sign in ".," if sign in digits]
    if not signs:
        return ""
    if len(signs) == 2:
        last = max(signs, key=digits.rfind)
        return last if digits.count(last) == 1 else ""
    sign = signs[0]
    if digits.count(sign) > 1:
        # Groups of thousands: the other sign is the decimal one.
        return {",": ".", ".": ","}[sign] if _grouped(digits, sign) else ""
    whole, _, rest = digits.partition(sign)
    return "" if len(rest) == 3 and 1 <= len(whole) <= 3 and not whole.startswith("0") else sign


def _unsure(parsed: Mapping[str, re.Match[str]], decimal: str) -> str | None:
    """Return a number whose only sign may divide thousands, where no other number shows that this sign does."""
    sign = {",": ".", ".": ","}[decimal]
    digits = {text: match["digits"] for text, match in parsed.items() if sign in match["digits"]}
    if any(decimal in each or each.count(sign) > 1 for each in digits.values()):
        return None
    return next((text for text, each in digits.items() if _grouped(each, sign)), None)


def _grouped(digits: str, sign: str) -> bool:
    """Return whether a sign divides the whole part of a number into groups of three."""
    other = {",": ".", ".": ","}[sign]
    return bool(_GROUPS[sign].fullmatch(digits.partition(other)[0]))


def _dates(texts: Sequence[str], where: _Where) -> tuple[dict[str, str], list[str]]:
    """Return dates in ISO (a month without its day) by the text that stands there, and what was read otherwise."""
    either = {text: match for text in texts if (match := _EITHER.fullmatch(text))}
    day_first = next((text for text, match in either.items() if int(match["one"]) > 12), None)
    month_first = next((text for text, match in either.items() if int(match["two"]) > 12), None)
    if day_first is not None and month_first is not None:
        raise where.refuse(
            day_first, month_first, "mix day-month and month-day order; write the year first in all rows"
        )
    spelled, what = {}, set()
    for text in texts:
        if (match := _YEAR_FIRST.fullmatch(text)) is not None:
            compact = match["c"]
            new = _iso(match["y"], match["m"] or compact[:2], match["d"] or compact[2:])
            order = "dates are written as year-month-day"
        elif (match := _DAY_FIRST.fullmatch(text)) is not None:
            new, order = _iso(match["y"], match["m"], match["d"]), "dates begin with the day"
        elif text in either and (day_first is not None or month_first is not None):
            match = either[text]
            day, month = ("one", "two") if day_first is not None else ("two", "one")
            new = _iso(match["y"], match[month], match[day])
            order = f"dates begin with the {'day' if day_first is not None else 'month'}"
        elif (match := _MONTH_ONLY.fullmatch(text)) is not None:
            new, order = _iso(match["y"] or match["y2"], match["m"] or match["m2"]), "months are written year first"
        elif (match := _NAMED.fullmatch(text)) is not None and not (match["d"] and match["d2"]):
            new, order = _iso(match["y"], _month(match["m"]), match["d"] or match["d2"]), "names of months are read"
        else:
            continue
        if new is not None and new != text:
            spelled[text] = new
            what.add(order)
    return spelled | _absent(texts, what), sorted(what)


def _iso(year: str, month: str, day: str | None = None) -> str | None:
    try:
        found = date(int(year), int(month), int(day or 1))
    except ValueError:
        return None
    return str(found) if day else str(found)[:7]


def _month(name: str) -> str:
    """Return the number of an English month by its name or the beginning of it; 0 for anything else."""
    return str(next((at for at, month in enumerate(_MONTHS, start=1) if month.startswith(name.casefold())), 0))


def _absent(texts: Sequence[str], what: set[str]) -> dict[str, str]:
    """Return blanks for texts that say that nothing is there."""
    absent = {text: "" for text in texts if text.casefold() in NOTHING}
    if absent:
        what.add("what says that there is no value is an empty cell")
    return absent
