"""Declared tables: what is read, what is refused and with which words."""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.errors import DensingError, InputError, TableError
from densing.core.files import write_csv, write_text
from densing.core.table_io import cell_text, text_cells
from densing.core.tables import Column, Table, read_table, validate

TOY = Table(
    "toy",
    (
        Column("name", "text", "who", required=True),
        Column("score", "number", "share correct", low=0, high=1, remedy="write 0.45 for 45 %"),
        Column("shots", "integer", "examples", low=0),
        Column("day", "date", "release", low="2018-01-01", remedy="check the year"),
        Column("open", "flag", "whether open", default="yes"),
        Column("kind", "text", "what", choices=("base", "chat"), default="base"),
    ),
    key=("name",),
)
HEADER = "name,score,shots,day,open,kind\n"


def read(text: str, table: Table = TOY) -> pd.DataFrame:
    return read_table(io.StringIO(text), table, "toy.csv")


def test_cells_become_typed_and_blanks_take_defaults() -> None:
    frame = read(HEADER + "a,0.5,3,2024-02-29,no,chat\nb,,,,,\n")
    assert frame["score"].tolist()[0] == 0.5 and frame["shots"].tolist()[0] == 3.0
    assert frame["day"].tolist()[0] == pd.Timestamp("2024-02-29")
    assert frame["open"].tolist() == [False, True]
    assert frame["kind"].tolist() == ["chat", "base"]
    assert frame.loc[1, ["score", "shots", "day"]].isna().all()


def test_columns_come_in_declared_order_and_unknown_ones_stay() -> None:
    frame = read("extra,score,name\nx,0.1,a\n")
    assert list(frame.columns) == [*TOY.names, "extra"]
    assert frame["extra"].tolist() == ["x"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("a,45,,,,", ["row 2", "column score", "45 is above 1", "write 0.45 for 45 %"]),
        ("a,-1,,,,", ["column score", "-1 is below 0"]),
        ("a,abc,,,,", ["column score", "'abc' is not a finite number"]),
        ("a,inf,,,,", ["'inf' is not a finite number"]),
        ("a,1_0,,,,", ["'1_0' is not a finite number"]),
        ("a,,1.5,,,", ["column shots", "'1.5' is not a whole number"]),
        ("a,,,2024-02-30,,", ["column day", "is not a date like 2024-02-29"]),
        ("a,,,24-2-1,,", ["is not a date like 2024-02-29"]),
        ("a,,,2017-12-31,,", ["2017-12-31 is below 2018-01-01", "check the year"]),
        ("a,,,0001-01-01,,", ["0001-01-01"]),
        ("a,,,,maybe,", ["column open", "'maybe' is not true or false"]),
        ("a,,,,,bass", ["column kind", "'bass' is not one of base, chat"]),
        (",0.5,,,,", ["column name", "empty"]),
    ],
)
def test_a_wrong_cell_is_named_with_row_column_value_and_remedy(row: str, words: list[str]) -> None:
    with pytest.raises(TableError) as caught:
        read(HEADER + row + "\n")
    assert str(caught.value).startswith("toy.csv: ")
    for word in words:
        assert word in str(caught.value)


def test_all_problems_are_told_at_once_up_to_twenty() -> None:
    with pytest.raises(TableError) as caught:
        read(HEADER + "".join(f"m{i},45,,,,\n" for i in range(25)))
    assert len(caught.value.problems) == 25
    assert "and 5 more problems" in str(caught.value)


def test_row_numbers_count_the_lines_of_the_file() -> None:
    with pytest.raises(TableError, match="row 5, column score"):
        read("name,score\n\na,0.1\n\nb,45\n")


def test_a_repeated_key_names_both_rows() -> None:
    with pytest.raises(TableError, match="row 4: the same row again for name a, first in row 2; delete one"):
        read("name,score\na,0.1\nb,0.1\na,0.1\n")
    with pytest.raises(TableError, match="row 3: a second row with other values for name a, first in row 2"):
        read("name,score\na,0.1\na,0.2\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("name,score\n", "no data row"),
        ("name,name\na,b\n", "header repeats name"),
        ("name,score\na\n", "1 cells, but the header has 2"),
        ('name,score\n"a,0.1\n', "not readable as CSV"),
        ("name\n\x00\n", "NUL"),
        ("score\n0.1\n", "column name is missing"),
        ("name\n" + "x" * 40_000 + "\n", "not readable as CSV"),
    ],
)
def test_a_broken_file_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read(text)


def test_unreadable_places_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes(b"name\n\xe9\n")
    with pytest.raises(InputError, match="not UTF-8"):
        read_table(tmp_path / "latin.csv", TOY)
    for place in (tmp_path, tmp_path / "absent.csv", "nul\0byte.csv"):
        with pytest.raises(InputError, match="cannot read"):
            read_table(place, TOY)


def test_a_byte_order_mark_is_no_part_of_the_header(tmp_path: Path) -> None:
    (tmp_path / "excel.csv").write_bytes("name,score\na,0.1\n".encode("utf-8-sig"))
    assert read_table(tmp_path / "excel.csv", TOY)["name"].tolist() == ["a"]


def test_reading_leaves_the_csv_module_as_it_was() -> None:
    before = csv.field_size_limit(98_765)
    try:
        read("name\na\n")
        assert csv.field_size_limit() == 98_765
    finally:
        csv.field_size_limit(before)


def test_validate_accepts_values_as_well_as_text() -> None:
    raw = pd.DataFrame({"name": ["a"], "score": [0.25], "day": [pd.Timestamp("2024-01-02")], "open": [False]})
    frame = validate(raw, TOY, "memory")
    assert frame["score"].tolist() == [0.25] and frame["open"].tolist() == [False]
    assert frame["day"].tolist() == [pd.Timestamp("2024-01-02")]


@pytest.mark.parametrize("cell", [None, float("nan"), np.float32("nan"), pd.NaT, pd.NA, ""])
def test_what_stands_for_nothing_is_an_empty_cell(cell: Any) -> None:
    assert cell_text(cell) == cell_text(cell, times=True) == ""
    assert text_cells([{"cell": cell}]).to_dict("list") == {"cell": [""]}


def test_a_day_is_written_without_a_time_and_an_hour_that_somebody_stated_with_it() -> None:
    noon = pd.Timestamp("2024-02-29 12:00")
    assert cell_text(noon) == cell_text(noon.normalize(), times=True) == "2024-02-29"
    assert cell_text(noon, times=True) == cell_text(noon.to_pydatetime()) == "2024-02-29 12:00:00"
    assert cell_text(noon.normalize().to_pydatetime()) == "2024-02-29"


def test_write_then_read_gives_the_same_table(tmp_path: Path) -> None:
    frame = read(HEADER + 'a,0.1,3,2024-02-29,no,chat\n"b, ""q""",0.30000000000000004,,,yes,\n')
    write_csv(frame, tmp_path / "deep" / "toy.csv")
    again = read_table(tmp_path / "deep" / "toy.csv", TOY)
    pd.testing.assert_frame_equal(frame, again)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["toy.csv"]


def test_writing_where_nothing_can_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        write_text(tmp_path / "file" / "below.txt", "x")


@given(st.text(max_size=300))
def test_any_text_gives_a_table_or_a_named_refusal(text: str) -> None:
    try:
        frame = read(text)
    except DensingError as error:
        assert str(error)
    else:
        assert isinstance(frame, pd.DataFrame)


@given(st.binary(max_size=300))
def test_any_bytes_give_a_table_or_a_named_refusal(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "any.csv"
        place.write_bytes(content)
        try:
            read_table(place, TOY)
        except DensingError as error:
            assert str(error)


CELLS = st.one_of(
    st.text(max_size=8),
    st.floats().map(str),
    st.integers(-(10**20), 10**20).map(str),
    st.dates().map(str),
    st.sampled_from(["", "a", "0.5", "1e400", "nan", "٣", "true", "2024-02-29", "base"]),
)


@given(st.lists(st.lists(CELLS, min_size=6, max_size=6), min_size=1, max_size=4))
def test_any_cells_give_values_in_range_or_a_named_refusal(rows: list[list[str]]) -> None:
    stream = io.StringIO()
    csv.writer(stream).writerows([TOY.names, *rows])
    try:
        frame = read(stream.getvalue())
    except DensingError as error:
        assert str(error)
    else:
        assert frame["score"].dropna().between(0, 1).all()
        assert (frame["day"].dropna() >= pd.Timestamp("2018-01-01")).all()
        assert set(frame["kind"]) <= {"base", "chat"}
        assert frame["name"].is_unique
