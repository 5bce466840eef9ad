"""How people spell headers, numbers and dates: what is read, with which note, and what stays for the declaration."""

from __future__ import annotations

import dataclasses
import re

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.coerce import as_declared, as_table, check_sheet
from densing.core.errors import DensingError, TableError
from densing.core.table_io import Sheet, read_sheet
from densing.core.tables import Column, Table, validate

COLUMNS = (
    Column("model", "text", "who"),
    Column("params", "number", "a count", unit="count"),
    Column("params_b", "number", "billions", unit="billions"),
    Column("released", "date", "day"),
    Column("score", "number", "share", low=0, high=1, unit="share"),
    Column("loss", "number", "nats"),
    Column("architecture", "text", "what", choices=("dense", "moe")),
)
ALSO = {"params": ["parameters", "size"], "released": ["release date"]}


def sheet_of(**columns: list[str]) -> Sheet:
    return read_sheet(pd.DataFrame(columns), "mine.csv")


def spelled(name: str, *cells: str) -> list[str]:
    sheet = as_declared(sheet_of(**{name: list(cells)}), COLUMNS, ALSO)
    if sheet.problems:
        check_sheet(sheet, Table("toy", COLUMNS))
    return sheet.cells[name].tolist()


@pytest.mark.parametrize(
    ("header", "name", "cell", "value"),
    [
        ("Model", "model", "a", "a"),
        ("MODEL ", "model", "a", "a"),
        ("Parameters", "params", "7e9", "7e9"),
        ("Params (B)", "params_b", "7", "7"),
        ("# Parameters (B)", "params", "7.2", "7200000000.0"),
        ("Size in billions", "params", "7", "7000000000.0"),
        ("Size [M]", "params", "135", "135000000.0"),
        ("Release Date", "released", "2024-02-29", "2024-02-29"),
        ("score_pct", "score", "62.5", "0.625"),
        ("Score (%)", "score", "62.5 %", "0.625"),
        ("Architecture", "Architecture", "LlamaForCausalLM", "LlamaForCausalLM"),
        ("Score per day", "Score per day", "1", "1"),
    ],
)
def test_headers_match_whatever_case_signs_and_unit(header: str, name: str, cell: str, value: str) -> None:
    sheet = as_declared(sheet_of(**{header: [cell]}), COLUMNS, ALSO)
    assert sheet.cells.to_dict("list") == {name: [value]}
    assert bool(sheet.notes) == (header != name)


def test_two_columns_of_one_meaning_are_both_named() -> None:
    with pytest.raises(TableError, match=r"columns 'Size' and 'Parameters' both mean params; keep one"):
        as_table(sheet_of(Size=["1"], Parameters=["1"]), Table("toy", COLUMNS), ALSO)


@pytest.mark.parametrize(
    ("column", "cells", "values"),
    [
        ("score", ["0,62", "0,5"], ["0.62", "0.5"]),
        ("score", ["-0,62", "−0.6".replace(".", ",")], ["-0.62", "-0.6"]),
        ("score", ["0,625"], ["0.625"]),
        ("score", ["62 %", "62,5%"], ["0.62", "0.625"]),
        ("score", ["NaN", "n/a", "–", "0.5"], ["", "", "", "0.5"]),
        ("loss", ["1.234,5", "1.234"], ["1234.5", "1234"]),
        ("loss", ["1,234.5", "1,234"], ["1234.5", "1234"]),
        ("params", ["7,000,000,000"], ["7000000000"]),
        ("params", ["7.000.000.000"], ["7000000000"]),
        ("params", ["7 000 000 000", "7'000'000"], ["7000000000", "7000000"]),
        ("params", ["7B", "7 b", "1.1B", "135M", "1,5T"], ["7000000000.0"] * 2 + ["1100000000.0", "135000000.0"]),
        ("params_b", ["7", "7B", "135M"], ["7", "7.0", "0.135"]),
        # Two readings, or none: as it stands.
        ("loss", ["1,234"], ["1,234"]),
        ("params", ["8x7B", "7GB", "1_0"], ["8x7B", "7GB", "1_0"]),
        ("loss", ["inf", "7B"], ["inf", "7B"]),
    ],
)
def test_numbers_are_read_where_one_reading_is_possible(column: str, cells: list[str], values: list[str]) -> None:
    if "1,5T" in cells:
        with pytest.raises(TableError, match="decimal commas and decimal points; use points in all rows"):
            spelled(column, *cells)
        cells = cells[:-1]
    assert spelled(column, *cells) == values


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["2024-02-29", "2024-02"], ["2024-02-29", "2024-02"]),
        (["29.02.2024", "1.3.2024"], ["2024-02-29", "2024-03-01"]),
        (["02/29/2024", "03/04/2024"], ["2024-02-29", "2024-03-04"]),
        (["29/02/2024", "03/04/2024"], ["2024-02-29", "2024-04-03"]),
        (["Feb 2024", "February 2024", "02/2024"], ["2024-02"] * 3),
        (["29 Feb 2024", "Feb 29, 2024", "29-Feb-2024", "February 29th 2024"], ["2024-02-29"] * 4),
        (["2024/02/29", "20240229", "2024-02-29 00:00:00", "2024-02-29T00:00:00Z"], ["2024-02-29"] * 4),
        # Two readings, or none: as it stands.
        (["03/04/2024"], ["03/04/2024"]),
        (["31.02.2024", "29.02.24", "2024", "45351"], ["31.02.2024", "29.02.24", "2024", "45351"]),
        (["2024-02-29 12:00:00"], ["2024-02-29 12:00:00"]),
    ],
)
def test_dates_are_read_where_one_reading_is_possible(cells: list[str], values: list[str]) -> None:
    assert spelled("released", *cells) == values


@pytest.mark.parametrize("cells", [("3,4", "2.345"), ("5.6", "1,234"), ("0,5", "1,5", "-2.345")])
def test_a_sign_that_may_divide_thousands_or_decimals_is_refused_with_both_rows(cells: tuple[str, ...]) -> None:
    last = rf"row {len(cells) + 1} \({re.escape(cells[-1])}\)"
    with pytest.raises(TableError, match=rf"row 2 \({cells[0]}\) and {last} leave open .* write a decimal point"):
        spelled("loss", *cells)


def test_two_orders_of_day_and_month_are_refused_with_both_rows() -> None:
    with pytest.raises(TableError, match=r"row 2 \(29/02/2024\) and row 3 \(02/29/2024\) mix day-month and month-day"):
        spelled("released", "29/02/2024", "02/29/2024")


@pytest.mark.parametrize(
    ("column", "cell", "words"),
    [
        ("loss", "1,234", "write a decimal point and no separator of thousands"),
        ("released", "03/04/2024", "write the year first"),
        ("released", "45351", "a spreadsheet's count of days"),
        ("score", "-0.62", "losses and log-likelihoods do not belong here"),
        ("score", "62", "write 0.62 for 62 % (divide by 100)"),
        ("score", "1043", "not a percentage either"),
    ],
)
def test_what_is_left_is_refused_with_its_remedy(column: str, cell: str, words: str) -> None:
    sheet = as_declared(sheet_of(**{column.title(): [cell]}), COLUMNS, ALSO)
    with pytest.raises(TableError) as caught:
        validate(sheet.cells, Table("toy", COLUMNS), sheet.name, titles=sheet.titles)
    assert f"mine.csv: row 2, column {column.title()}" in str(caught.value) and words in str(caught.value)


def test_a_header_that_says_per_cent_over_shares_is_refused() -> None:
    with pytest.raises(TableError, match="the header says per cent but no cell is above 1"):
        as_table(sheet_of(**{"Score (%)": ["0.62", "0.5"]}), Table("toy", COLUMNS))


VALUES = st.decimals(min_value=0, max_value=10**9, places=2)


@given(st.lists(VALUES, min_size=1, max_size=5), st.sampled_from([(",", "."), (".", ","), (",", " "), (".", " ")]))
def test_written_numbers_are_read_back_or_left_alone(values: list[object], signs: tuple[str, str]) -> None:
    point, group = signs
    cells = [f"{value:,}".replace(",", "g").replace(".", point).replace("g", group) for value in values]
    # Two places behind the sign say which it is.
    assert [float(text) for text in spelled("loss", *cells)] == [float(str(value)) for value in values]


@given(st.lists(st.dates(min_value=pd.Timestamp("1900-01-01").date()), min_size=1, max_size=5))
def test_written_dates_are_read_back(days: list[object]) -> None:
    pattern = ["%d.%m.%Y", "%Y/%m/%d", "%d %B %Y", "%b %d, %Y"]
    for form in pattern:
        assert spelled("released", *(f"{day:{form}}" for day in days)) == [str(day) for day in days]


@given(st.sampled_from(["score", "params", "released", "Params (B)"]), st.lists(st.text(max_size=12), min_size=1))
def test_any_cells_are_spelled_or_refused_in_words(header: str, cells: list[str]) -> None:
    try:
        as_table(sheet_of(**{header: cells}), Table("toy", COLUMNS), ALSO)
    except DensingError as error:
        assert str(error).startswith("mine.csv: ")


def test_all_that_is_wrong_with_a_table_is_one_message() -> None:
    sheet = sheet_of(
        Model=["a", "a"],
        Size=["1", "2"],
        Parameters=["1", "2"],
        Score=["0,5", "0.4"],
        Loss=["1", "much"],
        Released=["2024-01-01", "soon"],
    )
    table = Table("toy", (Column("model", "text", "name", required=True), *COLUMNS), key=("model",))
    required = Column("site", "text", "where", required=True)
    with pytest.raises(TableError) as caught:
        as_table(sheet, dataclasses.replace(table, columns=(*table.columns, required)), ALSO)
    said = ["both mean params", "decimal comma", "'much' is not", "'soon' is not", "site is missing", "a second row"]
    assert len(caught.value.problems) == len(said)
    for words in said:
        assert sum(words in problem for problem in caught.value.problems) == 1, words
