"""Tables that people bring: one content in every form and spelling gives the same densities, and notes say how."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import date
from operator import itemgetter
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import densing
from densing.cli import main
from densing.core.errors import InputError, TableError
from densing.scores.catalog import MAX_MODELS, load_catalog, read_extra
from densing.scores.fit import read_runs
from densing.scores.joint import joint_cells
from tests.support.command import printed

ROWS = [
    {"model": "mine", "params": 3e9, "released": "2024-06-01", "benchmark": "mmlu", "score": 0.62},
    {"model": "mine", "params": 3e9, "released": "2024-06-01", "benchmark": "gsm8k", "score": 0.5},
    {"model": "yours", "params": 7_000_000_000, "released": None, "benchmark": "mmlu", "score": 0.71},
]
FORMS = [".csv", ".tsv", ".csv.gz", ".parquet", ".jsonl", ".json", ".utf16.csv"]
REFERENCE = densing.load_reference("qwen1.5", "mmlu")
# As people write the same rows.
# As Google Sheets writes them: what a cell shows, quoted where it holds a comma, lines that end as on Windows.
GOOGLE = (
    'Model,Parameters,Release date,Benchmark,Score,Ours\r\nmine,"3,000,000,000","Jun 1, 2024",MMLU,62.00%,TRUE\r\n'
    'mine,"3,000,000,000","Jun 1, 2024",GSM-8K,50.00%,TRUE\r\nyours,"7,000,000,000",,MMLU,71.00%,FALSE\r\n,,,,,\r\n'
)
GERMAN = (
    "Modell-Nr;Model;Parameters;Release date;Benchmark;Score\n"
    "1;mine;3B;01.06.2024;MMLU;0,62\n2;mine;3B;01.06.2024;GSM-8K;0,5\n3;yours;7 000 000 000;;MMLU;0,71\n"
)
WIDE = "Model,Params (B),Release date,MMLU (%),GSM8K,Average\nmine,3,Jun 1 2024,62,50 %,0.6\nyours,7,,71,-,\n"


def put(folder: Path, suffix: str, rows: pd.DataFrame) -> Path:
    path = folder / f"mine{suffix}"
    if suffix == ".parquet":
        rows.to_parquet(path)
    elif suffix in (".jsonl", ".json"):
        rows.to_json(path, orient="records", lines=suffix == ".jsonl", double_precision=15)
    else:
        encoding = "utf-16" if suffix == ".utf16.csv" else "utf-8"
        rows.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",", encoding=encoding)
    return path


def density_of(table: object) -> pd.DataFrame:
    result = densing.table_densities(table, REFERENCE)  # type: ignore[arg-type]
    # A file's rows name it as their source.
    return result.table.drop(columns="source")


def text(folder: Path, content: str, name: str = "mine.csv") -> Path:
    (folder / name).write_text(content, encoding="utf-8")
    return folder / name


def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    monkeypatch.setattr(sys, "argv", ["densing", *arguments])
    with pytest.raises(SystemExit):
        main()
    return capsys.readouterr()


@pytest.mark.parametrize("suffix", FORMS)
def test_every_form_gives_the_densities_of_the_frame(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.DataFrame(ROWS)
    path = put(tmp_path, suffix, frame)
    ours = density_of(frame)
    pd.testing.assert_frame_equal(density_of(path), ours)
    pd.testing.assert_frame_equal(density_of(frame.set_index("model")), ours)
    out, _ = command(monkeypatch, capsys, "density", "-b", "mmlu", "--scores", str(path), "--json")
    assert [row["density"] for row in printed(out)] == ours["density"].tolist()


SIZES, SCORES = st.integers(10**8, 10**11), st.integers(30, 80).map(lambda hundredths: hundredths / 100)
HOSTILE = ["<script>alert(1)</script>", '=HYPERLINK("http://x","y")', "m" * 400, "a,b;c\td", 'say "x"', "NaN", "007"]
NAMES = st.sampled_from(HOSTILE) | st.text(st.characters(exclude_categories=["C"]), min_size=1).map(str.strip)
DAYS = st.none() | st.dates(date(2023, 1, 1), date(2025, 1, 1)).map(str)


def every_form(folder: Path, frame: pd.DataFrame) -> Iterator[Path]:
    """Write a table in the plain forms, and as a spreadsheet with decimal commas does, headers in capitals."""
    for suffix in (".csv", ".tsv", ".parquet", ".jsonl", ".json"):
        yield put(folder, suffix, frame)
    capitals = frame.rename(columns=str.upper)
    for name, encoding in (("semicolons", "utf-16"), ("marked", "utf-8-sig")):
        capitals.to_csv(folder / f"{name}.csv", sep=";", decimal=",", index=False, encoding=encoding)
        yield folder / f"{name}.csv"


# Many rows in few tables: forms are written and read once per table.
@settings(max_examples=8)
@given(st.lists(st.tuples(NAMES.filter(bool), SIZES, DAYS, SCORES), min_size=1, max_size=12, unique_by=itemgetter(0)))
def test_any_rows_are_the_same_in_every_form(tmp_path: Path, rows: list[tuple[str, int, str | None, float]]) -> None:
    frame = pd.DataFrame(rows, columns=["model", "params", "released", "score"]).assign(benchmark="mmlu")
    ours = read_extra(frame)
    for path in every_form(tmp_path, frame):
        # Densities and trends of a table are made from these; rows are numbered as each form counts them.
        theirs = read_extra(path)
        for name in ("models", "scores"):
            mine, other = (parts[name].rows.reset_index(drop=True)[[*ours[name].stated]] for parts in (ours, theirs))
            pd.testing.assert_frame_equal(other, mine)


@settings(max_examples=8)
@given(st.lists(st.tuples(SIZES, SIZES, SCORES), min_size=1, max_size=12))
def test_any_runs_of_a_fit_are_the_same_in_every_form(tmp_path: Path, rows: list[tuple[int, int, float]]) -> None:
    frame, law = pd.DataFrame(rows, columns=["params", "tokens", "loss"]), densing.get_law("chinchilla")
    ours, _ = read_runs(frame, law)
    for path in every_form(tmp_path, frame):
        pd.testing.assert_frame_equal(read_runs(path, law)[0], ours)


@pytest.mark.parametrize("content", [GERMAN, WIDE, GOOGLE], ids=["german", "wide", "google"])
def test_people_s_spellings_give_the_same_densities(tmp_path: Path, content: str) -> None:
    theirs = density_of(text(tmp_path, content))
    columns = theirs.columns.drop("params_source", errors="ignore")
    pd.testing.assert_frame_equal(theirs[columns], density_of(ROWS)[columns])


def test_notes_say_what_was_read_as_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, err = command(monkeypatch, capsys, "density", "-b", "mmlu", "--scores", str(text(tmp_path, GERMAN)))
    for words in (
        "cells are separated by semicolons",
        "Release date as released",
        "decimal commas are read as points (row 2: '0,62' is 0.62)",
        "dates begin with the day (row 2: '01.06.2024' is 2024-06-01)",
        "MMLU as mmlu",
        "columns that are not used: 'Modell-Nr'",
    ):
        assert words in err
    _, err = command(monkeypatch, capsys, "density", "-b", "mmlu", "--scores", str(text(tmp_path, WIDE)))
    assert "one column per benchmark (MMLU (%), GSM8K) was read as one row per score, 3 in all" in err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("Model,Params,MMLU,mmlu\na,7B,0.5,0.6\n", "columns 'MMLU' and 'mmlu' both mean mmlu"),
        ("Model,Params,MMLU\na,7B,62\n", "row 2, column MMLU: 62 is above 1.0; write 0.62 for 62 %"),
        ("Model,Params,MMLU\na,7B,-0.62\n", "row 2, column MMLU: -0.62 is below 0.0; a score is a share"),
        ("Model,Params,MMLU\na,7,0.5\n", "row 2, column Params: 7 is below"),
        ("Model,Params,Params (B),MMLU\na,7e9,7,0.5\n", "columns Params and Params (B) both state the size"),
        ("model,params,mmlu\na,7e9,high\n", "match no known form"),
    ],
)
def test_what_is_wrong_in_a_wide_table_is_told_by_its_own_headers(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises((TableError, InputError)) as caught:
        if "match no" in words:
            content = content.replace("params,", "odd,")
        load_catalog(text(tmp_path, content))
    assert words in str(caught.value) and "mine.csv" in str(caught.value)


def test_a_folder_may_hold_other_forms_and_columns_of_its_own_benchmarks(tmp_path: Path) -> None:
    text(tmp_path, "id,name,chance,items\nours,Our Test,0.5,200\n", "benchmarks.csv")
    (tmp_path / "scores.jsonl").write_text('{"Model": "Llama-3-8B", "Our Test": 0.75}\n')
    assert load_catalog(tmp_path).scores["benchmark"].tolist()[-1] == "ours"
    text(tmp_path, "model,benchmark,score\nLlama-3-8B,ours,0.75\n", "scores.csv")
    with pytest.raises(InputError, match=r"scores\.jsonl: scores\.csv holds scores too; keep one"):
        load_catalog(tmp_path)


def test_rows_are_added_only_to_tables_as_declared(tmp_path: Path) -> None:
    path = text(tmp_path, "model;benchmark;score\nLlama-3-8B;mmlu;0.5\n")
    with pytest.raises(InputError, match=r"commas and declared spellings.*semicolons"):
        densing.add_score(path, model="Llama-3-70B", benchmark="mmlu", score=0.7)


def test_more_models_than_one_table_may_hold_are_refused_with_the_limit(tmp_path: Path) -> None:
    rows = pd.DataFrame({"model": [f"m{at}" for at in range(MAX_MODELS + 1)], "params": 1e9, "score": 0.5})
    with pytest.raises(InputError, match=f"{MAX_MODELS + 1} models exceed the limit of {MAX_MODELS}"):
        densing.load_catalog(rows.assign(benchmark="mmlu"))


def test_a_file_given_twice_changes_nothing_and_a_second_value_is_refused_by_row(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"model": [f"m{at}" for at in range(200)], "params": 1e9, "benchmark": "mmlu"})
    rows["score"] = rng.uniform(0.3, 0.8, len(rows)).round(4)
    once, twice = load_catalog(rows), load_catalog(rows, rows)
    pd.testing.assert_frame_equal(once.scores, twice.scores)
    pd.testing.assert_frame_equal(once.models, twice.models)
    changed = rows.assign(score=rows["score"].where(rows.index != 5, 0.9))
    with pytest.raises(TableError, match=r"row 7, column score: 0\.9 for m5 mmlu user, where the table has"):
        load_catalog(rows, changed)


def test_a_trend_and_the_joint_scale_name_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pd.DataFrame({"model": [f"m{n}" for n in range(1001)], "params": 1e9, "released": "2024-06-01"})
    densities = densing.table_densities(rows.assign(benchmark="mmlu", score=0.6), REFERENCE)
    with pytest.raises(InputError, match="1001 models are more than the 1000 that a trend takes"):
        densing.estimate_trend(densities)
    monkeypatch.setattr("densing.scores.joint.cells.MAX_SCORES", 10)
    with pytest.raises(InputError, match=r"scores exceed the 10 the joint scale accepts.*--reference"):
        joint_cells(load_catalog())


def test_shots_behind_a_benchmark_are_read_from_its_header(tmp_path: Path) -> None:
    rows = "Model,Size,MMLU 5-shot,GSM8K (8 shot) %\nmine,3B,0.62,50\n"
    scores = read_extra(text(tmp_path, rows))["scores"].rows
    assert scores[["benchmark", "score", "shots"]].to_numpy().tolist() == [["mmlu", 0.62, 5.0], ["gsm8k", 0.5, 8.0]]
    with pytest.raises(TableError, match=r"row 2, column Few-shot: '0', where a header says 5 shots; keep one"):
        read_extra(text(tmp_path, "Model,Size,Few-shot,MMLU 5-shot\nmine,3B,0,0.62\n"))
    with pytest.raises(TableError, match=r"'MMLU 3-shot' and 'MMLU 5-shot' both mean mmlu; keep one"):
        read_extra(text(tmp_path, "Model,Size,MMLU 3-shot,MMLU 5-shot\nmine,3B,0.6,0.62\n"))


def test_every_column_that_is_not_read_is_named_and_asked_about_where_it_looks_like_one(tmp_path: Path) -> None:
    many = [f"extra{at}" for at in range(9)]
    header = ",".join(["Model", "Size", "MMLU", "GSM8K pass@1", "Date", *many])
    path = text(tmp_path, f"{header}\nmine,3B,0.62,0.5,2024-03-01{',x' * 9}\n")
    (note,) = [note for note in load_catalog(path).notes if note.code == "columns-not-read"]
    assert note.severity == "warning" and note.details["columns"] == ["GSM8K pass@1", "Date", *many]
    assert note.details["hints"] == {
        "GSM8K pass@1": "did you mean gsm8k?",
        "Date": "name it released if it is the models' release date",
    }
    assert all(repr(name) in note.message for name in many)
    (note,) = [
        n for n in load_catalog(text(tmp_path, "Model,Size,MMLU,Team\nmine,3B,1,x\n")).notes if "columns-not" in n.code
    ]
    assert (note.severity, note.details["hints"]) == ("info", {})


def test_all_that_is_wrong_with_a_table_of_scores_is_one_message(tmp_path: Path) -> None:
    rows = 'Model,Size,Released,Tokens,MMLU,GSM8K\na,3Q,03/04/2024,"1,5",0.62,"0,5"\nb,7B,05/06/2024,1.5,62,0.44\n'
    with pytest.raises(TableError) as caught:
        read_extra(text(tmp_path, rows))
    said = ["column GSM8K: row 2", "row 3, column MMLU: 62", "'3Q' is not", "'03/04/2024' is not", "'05/06/2024'"]
    assert len(caught.value.problems) == len(said)
    for words in said:
        assert sum(words in problem for problem in caught.value.problems) == 1, words


def test_scores_that_the_reference_does_not_read_are_named() -> None:
    notes = {note.code: note for note in densing.table_densities(ROWS, REFERENCE).notes}
    assert notes["scores-not-used"].details == {"benchmarks": {"gsm8k": 1}}
    assert "gsm8k (1 score)" in notes["scores-not-used"].message


def test_a_sheet_of_a_workbook_is_chosen_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("openpyxl", reason="extra xlsx")
    path = tmp_path / "team.xlsx"
    with pd.ExcelWriter(path) as writer:
        pd.DataFrame([["last year"]]).to_excel(writer, sheet_name="Cover", header=False, index=False)
        pd.DataFrame(ROWS).to_excel(writer, sheet_name="Scores", index=False)
    out, _ = command(monkeypatch, capsys, "density", "-b", "mmlu", "--scores", str(path), "--sheet", "Scores")
    assert "mine" in out and "yours" in out
    pd.testing.assert_frame_equal(density_of(f"{path}#Scores"), density_of(ROWS))


def test_a_table_of_pyarrow_gives_the_same_densities() -> None:
    pd.testing.assert_frame_equal(density_of(pa.Table.from_pylist(ROWS)), density_of(ROWS))


def test_a_table_with_an_address_is_fetched_only_where_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = "https://example.org/mine.csv"
    fetched = []

    def fetch(name: str) -> Path:
        fetched.append(name)
        return put(tmp_path, ".csv", pd.DataFrame(ROWS))

    monkeypatch.setattr("densing.core.fetch_file", fetch)
    _, err = command(monkeypatch, capsys, "density", "-b", "mmlu", "--scores", address)
    assert "fetched only with --fetch" in err and fetched == []
    out, err = command(monkeypatch, capsys, "density", "-b", "mmlu", "--scores", address, "--fetch")
    assert "mine" in out and fetched == [address] and f"fetched {address} to" in err


def test_a_benchmark_that_is_missed_is_looked_for_among_the_columns_that_are_not_read(tmp_path: Path) -> None:
    path = text(tmp_path, "Model,Size,MMLU pass@1,GSM8K\nmine,3B,0.5,0.4\n")
    with pytest.raises(InputError, match=r"no score on mmlu.*'MMLU pass@1' \(did you mean mmlu\?\)"):
        densing.table_densities(path, REFERENCE)
