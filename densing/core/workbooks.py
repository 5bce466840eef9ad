"""Workbooks: the cells of one sheet of an ``.xlsx`` file, by openpyxl, which comes with the extra ``xlsx``."""

from __future__ import annotations

import io
import warnings
import zipfile
from typing import Any

from densing.core.errors import InputError, UnavailableError, UnknownNameError
from densing.core.formatting import listed
from densing.core.install import install_command
from densing.core.notes import Note

ZIP, OLE = b"PK\x03\x04", b"\xd0\xcf\x11\xe0"
SUFFIXES = (".xlsx", ".xlsm")
# What the parts of a workbook may take, inflated; a small archive may stand for more than fits into memory.
MAX_INFLATED = 512 * 1024 * 1024


def workbook_rows(data: bytes, name: str, sheet: str | None = None) -> tuple[dict[int, list[Any]], tuple[Note, ...]]:
    """Return the rows of one sheet by their numbers, and how it was chosen.

    Parameters
    ----------
    data : bytes
        The file.
    name : str
        What messages call it.
    sheet : str, optional
        Name of the sheet; the first with anything in it by default.

    Returns
    -------
    rows : dict of int to list
        Values (numbers, dates, texts, None) of the rows that hold any; a formula is what it last gave.
    notes : tuple of Note
        ``sheet-chosen`` where several sheets hold something and none was asked for.

    Raises
    ------
    InputError
        When the file is another kind of archive, is damaged, or a formula was never computed.
    UnavailableError
        When openpyxl is not installed.
    UnknownNameError
        When there is no such sheet.
    """
    _refuse_others(data, name)
    try:
        import openpyxl
    except ImportError as error:
        raise UnavailableError(
            f"{name}: a workbook, read with openpyxl; run: {install_command('xlsx')} (or save its sheet as CSV)"
        ) from error
    try:
        with warnings.catch_warnings():
            # Of styles and validations that are not read.
            warnings.simplefilter("ignore")
            values, formulas = (
                openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=computed)
                for computed in (True, False)
            )
            names = [each.title for each in values.worksheets]
            if sheet is not None and sheet not in names:
                raise UnknownNameError(f"sheet of {name}", sheet, names)
            asked = [sheet] if sheet is not None else names
            filled = {each: rows for each in asked if (rows := _rows(values[each]))}
            if not filled:
                raise InputError(f"{name}: empty ({listed(names)}); a header row and at least one data row are needed")
            first, *others = filled
            rows, written = filled[first], _rows(formulas[first])
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, AttributeError, SyntaxError, OSError) as error:
        raise InputError(f"{name}: not readable as a workbook ({str(error)[:200]}); save it again") from error
    for number, cells in written.items():
        for at, cell in enumerate(cells):
            if isinstance(cell, str) and cell.startswith("=") and (rows.get(number) or [None] * len(cells))[at] is None:
                raise InputError(
                    f"{name}: row {number}, column {at + 1}: the formula {cell[:40]} was never computed; open the "
                    "workbook in a spreadsheet and save it, or put the value there"
                )
    if not others:
        return rows, ()
    message = f"{name}: only the first sheet, {first!r}, is read; not read: {listed(map(repr, others), 20)}"
    return rows, (Note("sheet-chosen", "warning", message, {"read": first, "sheets": names}),)


def _rows(sheet: Any) -> dict[int, list[Any]]:
    # What the file says of its size may be wrong.
    sheet.reset_dimensions()
    rows = {number: list(cells) for number, cells in enumerate(sheet.iter_rows(values_only=True), start=1)}
    return {number: cells for number, cells in rows.items() if any(cell not in (None, "") for cell in cells)}


def _refuse_others(data: bytes, name: str) -> None:
    """Raise for what is not a workbook of this form, and say what it is."""
    if data.startswith(OLE):
        raise InputError(
            f"{name}: an old workbook (.xls), or one with a password; save its sheet as CSV (UTF-8) or .xlsx"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members, size = archive.namelist(), sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise InputError(
            f"{name}: a workbook or another archive, and damaged ({error}); save its sheet as CSV"
        ) from error
    if "xl/workbook.xml" not in members:
        kind = "an OpenDocument file (.ods)" if "content.xml" in members else f"an archive of {listed(members, 3)}"
        raise InputError(f"{name}: {kind}, not a table; save its sheet as CSV (UTF-8) or .xlsx, or unpack it")
    if size > MAX_INFLATED:
        raise InputError(f"{name}: inflates to more than {MAX_INFLATED // 2**20} MiB; save its sheet as Parquet or CSV")
