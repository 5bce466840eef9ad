"""Workbooks: the same table as the same CSV, one sheet of several, and what is refused with its remedy."""

from __future__ import annotations

import sys
import zipfile
from datetime import datetime
from pathlib import Path

import pytest

from densing.core.errors import InputError, UnavailableError, UnknownNameError
from densing.core.table_io import on_sheet, read_sheet

ROWS = [["Model", "Size", "Released", "MMLU"], ["mine", "3B", datetime(2024, 6, 1), 0.62], ["yours", 7e9, None, 0.71]]


def workbook(path: Path, **sheets: list[list[object]]) -> Path:
    openpyxl = pytest.importorskip("openpyxl", reason="extra xlsx")
    book = openpyxl.Workbook()
    book.remove(book.active)
    for title, rows in sheets.items():
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


def test_a_workbook_is_the_table_that_its_csv_would_be(tmp_path: Path) -> None:
    # A blank row counts, a blank column does not, and what stands to the right of the header has none.
    rows = [[*row[:2], None, *row[2:]] for row in ROWS]
    sheet = read_sheet(workbook(tmp_path / "a.xlsx", Scores=[rows[0], [], *rows[1:]]))
    assert sheet.cells.to_dict("index") == {
        3: {"Model": "mine", "Size": "3B", "Released": "2024-06-01", "MMLU": "0.62"},
        4: {"Model": "yours", "Size": "7000000000", "Released": "", "MMLU": "0.71"},
    }
    assert sheet.notes == () and sheet.name == str(tmp_path / "a.xlsx")


def test_of_several_sheets_the_first_is_read_and_the_others_are_named(tmp_path: Path) -> None:
    other = [["Model", "Score"], ["theirs", 0.1]]
    path = workbook(tmp_path / "a.xlsx", Cover=[], Scores=ROWS, Old=other)
    sheet = read_sheet(path)
    assert sheet.cells["Model"].tolist() == ["mine", "yours"]
    (note,) = sheet.notes
    assert note.severity == "warning" and note.details == {"read": "Scores", "sheets": ["Cover", "Scores", "Old"]}
    assert "only the first sheet, 'Scores', is read; not read: 'Old'" in note.message
    chosen = read_sheet(on_sheet(path, "Old"))
    assert chosen.cells["Model"].tolist() == ["theirs"] and chosen.notes == ()
    with pytest.raises(UnknownNameError, match=r"'Olds'.*Old"):
        read_sheet(f"{path}#Olds")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "empty"),
        ([["Model", "MMLU"]], "has a header but no data row"),
        (
            [["My models"], ["Model", "Size", "MMLU"], ["a", 1, 2]],
            "row 1 is read as the header, but 2 of its columns",
        ),
        ([["a", "a"], [1, 2]], "header repeats a"),
        ([["Model", "MMLU"], ["a", "=B3/100"]], "row 2, column 2: the formula =B3/100 was never computed"),
    ],
)
def test_what_is_no_table_is_refused_with_its_remedy(tmp_path: Path, rows: list[list[object]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_sheet(workbook(tmp_path / "a.xlsx", Scores=rows))


def test_other_archives_are_told_from_workbooks(tmp_path: Path) -> None:
    for member, words in (("content.xml", r"an OpenDocument file \(\.ods\)"), ("a.csv", "an archive of a.csv, not a")):
        with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
            archive.writestr(member, "x")
        with pytest.raises(InputError, match=words):
            read_sheet(tmp_path / "x.zip")
    (tmp_path / "old.xls").write_bytes(b"\xd0\xcf\x11\xe0" + bytes(600))
    with pytest.raises(InputError, match=r"an old workbook \(\.xls\).*or \.xlsx"):
        read_sheet(tmp_path / "old.xls")
    (tmp_path / "mine.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"has no sheets, as it is not a workbook; leave out .* \(Scores\)"):
        read_sheet(on_sheet(tmp_path / "mine.csv", "Scores"))


def test_without_openpyxl_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(UnavailableError, match=r"pip install .*\[xlsx\].*or save its sheet as CSV"):
        read_sheet(tmp_path / "a.xlsx")


def test_a_damaged_workbook_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl", reason="extra xlsx")
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    with pytest.raises(InputError, match=r"a\.xlsx: not readable as a workbook .* save it again"):
        read_sheet(tmp_path / "a.xlsx")
