"""Tables as they come: forms of files, separators, encodings, and what is refused with which words."""

from __future__ import annotations

import gzip
import io
import tempfile
from datetime import date
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.errors import DensingError, InputError
from densing.core.table_io import Sheet, read_cells, read_sheet, text_cells

ROWS = [{"model": "tiny", "score": "0.31"}, {"model": "big; bigger", "score": "0.62"}]


def read(text: str) -> Sheet:
    return read_sheet(io.StringIO(text, newline=""), "mine.csv")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(("sign", "kind"), [(",", None), (";", "semicolons"), ("\t", "tabs")])
def test_the_separator_is_told_by_the_rows(sign: str, kind: str | None, end: str) -> None:
    sheet = read(end.join(sign.join(cells) for cells in (["model", "score"], ["tiny", "0"], ["big", "1"], [])))
    assert sheet.cells.to_dict("list") == {"model": ["tiny", "big"], "score": ["0", "1"]}
    assert [note.message for note in sheet.notes] == ([f"mine.csv: cells are separated by {kind}"] if kind else [])


def test_decimal_commas_do_not_divide_a_table_of_semicolons() -> None:
    assert read("model;score\na;0,62\nb;0,5\n").cells["score"].tolist() == ["0,62", "0,5"]
    assert read("Model, full;score\na;0,62\nb;1\n").cells.columns.tolist() == ["Model, full", "score"]


def test_two_separators_that_fit_equally_are_both_named_and_a_first_line_decides() -> None:
    text = "a;b,c\n1;2,3\n"
    with pytest.raises(InputError, match=r"commas and semicolons both divide its rows into 2 cells; .*sep="):
        read(text)
    assert read("sep=;\n" + text).cells.to_dict("index") == {3: {"a": "1", "b,c": "2,3"}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a;b\n1;2;3\n", "row 2: 3 cells, but the header has 2; quote cells that contain semicolons"),
        ("a,b\n1\n", "row 2: 1 cells, but the header has 2"),
        ("a,b\n1,2\n\x00,4\n", "row 3 holds a NUL byte"),
        ("a,,\n1,2,3\n", "header repeats a column without a name"),
        ("", "empty"),
        ("a,b\n", "no data row"),
    ],
)
def test_what_is_no_table_is_refused_by_row(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read(text)


def test_empty_columns_and_cells_beyond_the_header_are_dropped() -> None:
    assert read("a,b,,\n1,2,,,,\n").cells.to_dict("index") == {2: {"a": "1", "b": "2"}}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_encodings_of_spreadsheets_are_read(tmp_path: Path, encoding: str) -> None:
    mark = "\ufeff" if encoding in ("utf-16-le", "utf-16-be") else ""
    (tmp_path / "x.csv").write_bytes((mark + "model,score\nMüller,0.5\n").encode(encoding))
    assert read_cells(tmp_path / "x.csv").to_dict("list") == {"model": ["Müller"], "score": ["0.5"]}


def put(folder: Path, suffix: str) -> Path:
    frame, path = pd.DataFrame(ROWS), folder / f"x{suffix}"
    if suffix == ".parquet":
        frame.to_parquet(path, index=False)
        return path
    forms = {
        ".csv": frame.to_csv(index=False),
        ".tsv": frame.to_csv(index=False, sep="\t"),
        ".json": frame.to_json(orient="records"),
        ".jsonl": frame.to_json(orient="records", lines=True),
    }
    text = forms[suffix.removesuffix(".gz")].encode()
    path.write_bytes(gzip.compress(text) if suffix.endswith(".gz") else text)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".json", ".jsonl", ".csv.gz", ".jsonl.gz", ".json.gz"])
def test_every_form_holds_the_same_cells(tmp_path: Path, suffix: str) -> None:
    cells = read_cells(put(tmp_path, suffix))
    assert cells.reset_index(drop=True).equals(text_cells(ROWS).reset_index(drop=True))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.csv", b"PK\x03\x04rest", "save its sheet as CSV"),
        ("x.csv", b"\xd0\xcf\x11\xe0rest", "save its sheet as CSV"),
        ("x.parquet", b"PAR1 and no more", "not readable as Parquet"),
        ("x.csv.gz", b"\x1f\x8b\x08\x00damaged", "damaged gzip"),
        ("x.json", b'{"model": "a"}', r"holds an object; a table in JSON is a list of records"),
        ("x.json", b"[1]", "row 2: 1 where a record is expected"),
        ("x.json", b"[]", "empty"),
        ("x.jsonl", b'{"a": 1}\n\n{"a": [1]}\n', "row 3, field a: holds a list"),
        ("x.jsonl", b'{"a": 1, "a": 2}\n', "line 1: key 'a' occurs twice"),
        ("x.jsonl", b'{"a": 1}\n{"a":\n', "line 2"),
    ],
)
def test_damaged_and_foreign_files_are_refused_in_words(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        read_sheet(tmp_path / name)
    assert name in str(caught.value)


def test_a_small_gzip_of_an_endless_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"a\n" * (40 * 2**20)))
    with pytest.raises(InputError, match="larger than 64 MiB"):
        read_sheet(tmp_path / "x.csv.gz")


def test_an_index_with_a_name_is_a_column_and_short_floats_are_written_as_they_are() -> None:
    frame = pd.DataFrame({"model": ["a"], "score": [0.62]}).astype({"score": "float32"}).set_index("model")
    assert text_cells(frame).to_dict("index") == {2: {"model": "a", "score": "0.62"}}
    with pytest.raises(InputError, match="header repeats a"):
        text_cells(pd.DataFrame([[1, 2]], columns=["a", "a"]))


SUFFIX = st.sampled_from([".csv", ".json", ".jsonl", ".parquet", ".csv.gz"])
START = st.sampled_from([b"", b"\xff\xfe", b"\x1f\x8b", b"PAR1", b"PK\x03\x04", b"[{", b"sep=;\n", b'{"a": '])


@given(SUFFIX, START, st.binary(max_size=200))
def test_any_bytes_under_any_name_give_a_sheet_or_a_named_refusal(suffix: str, start: bytes, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / f"any{suffix}"
        place.write_bytes(start + content)
        try:
            sheet = read_sheet(place)
        except DensingError as error:
            assert f"any{suffix}" in str(error)
        else:
            assert sheet.cells.map(lambda cell: isinstance(cell, str)).all(axis=None)


CELL = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6).map(lambda t: f"x{t}")


@given(st.sampled_from([",", ";", "\t"]), st.lists(st.tuples(CELL, CELL), min_size=1, max_size=4))
def test_what_is_written_with_any_separator_is_read_back(sign: str, rows: list[tuple[str, str]]) -> None:
    frame = pd.DataFrame(rows, columns=["one", "two"], dtype=object)
    assert read(frame.to_csv(index=False, sep=sign)).cells.reset_index(drop=True).equals(frame)


class Spoken:
    """A table that shows one protocol of another's, and nothing else of it."""

    def __init__(self, name: str, table: object) -> None:
        self._table = table
        setattr(type(self), name, lambda self, *args, **kwargs: getattr(self._table, name)(*args, **kwargs))


MIXED = {
    "model": ["a", "b", None],
    "params": [7_000_000_000, None, 9_007_199_254_740_993],
    "released": [date(2024, 2, 29), None, date(2024, 3, 1)],
    "score": [0.62, None, 1e-5],
    "base": [True, False, None],
}
AS_TEXT = {
    "model": ["a", "b", ""],
    "params": ["7000000000", "", "9007199254740993"],
    "released": ["2024-02-29", "", "2024-03-01"],
    "score": ["0.62", "", "1e-05"],
    "base": ["True", "False", ""],
}


@pytest.mark.parametrize("protocol", ["__arrow_c_stream__", "__dataframe__"])
def test_a_table_of_another_library_is_read_by_what_it_speaks(protocol: str) -> None:
    table = pa.table(MIXED)
    # Dates are no part of the interchange protocol's dtypes; timestamps are.
    if protocol == "__dataframe__":
        table = table.set_column(2, "released", table["released"].cast(pa.timestamp("us")))
    cells = text_cells(type("Frame", (Spoken,), {})(protocol, table))
    assert cells.to_dict("list") == AS_TEXT and cells.index.tolist() == [2, 3, 4]
    short = pa.table({"score": pa.array([0.62, None], pa.float32())})
    assert text_cells(short).to_dict("list") == {"score": ["0.62", ""]}


def test_a_frame_of_polars_is_a_table() -> None:
    polars = pytest.importorskip("polars", reason="no part of any extra")
    frame = polars.DataFrame(MIXED)
    assert text_cells(frame).to_dict("list") == AS_TEXT
    short = frame.with_columns(polars.col("score").cast(polars.Float32))
    assert text_cells(short)["score"].tolist() == ["0.62", "", "1e-05"]
    categories = frame.with_columns(polars.col("model").cast(polars.Categorical))
    assert text_cells(categories).to_dict("list") == AS_TEXT
    with pytest.raises(InputError, match=r"collect it|not of type LazyFrame"):
        text_cells(frame.lazy())


def test_what_is_no_table_of_another_library_is_refused_in_words() -> None:
    with pytest.raises(InputError, match="column score: holds lists or records"):
        text_cells(pa.table({"model": ["a"], "score": [[1]]}))
    with pytest.raises(InputError, match=r"of type tests.Broken cannot be read \(no\); collect it"):
        text_cells(Broken())
    with pytest.raises(InputError, match=r"a table is a path, a DataFrame .* not of type int"):
        text_cells(3)  # type: ignore[arg-type]


class Broken:
    """Speaks Arrow and fails."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        raise RuntimeError("no")
