"""Tables of runs that people bring to a fit: forms, spellings, and how many rows it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from densing.core import Sheet, read_sheet
from densing.core.errors import InputError, TableError
from densing.scores.fit import fit_runs, read_runs
from densing.scores.fit.bootstrap import resample_cases
from densing.scores.fit.table import MAX_RUNS, _as_named, _logged
from densing.scores.laws import get_law

LAW = get_law("power")
PLAIN = "params,loss\n1e8,3.16\n1e9,2.51\n7e9,2.05\n"
SPELLED = "Model size;Validation loss;run\n100M;3,16;a\n1 000 000 000;2,51;b\n7B;2,05;c\n"


def runs(folder: Path, text: str, name: str = "runs.csv") -> pd.DataFrame:
    (folder / name).write_text(text, encoding="utf-8")
    return read_runs(folder / name, LAW)[0]


def test_spelled_runs_and_plain_ones_are_the_same(tmp_path: Path) -> None:
    plain, spelled = runs(tmp_path, PLAIN), runs(tmp_path, SPELLED)
    pd.testing.assert_frame_equal(plain, spelled[["params", "loss"]])
    notes = read_runs(tmp_path / "runs.csv", LAW)[1]
    assert [note.code for note in notes] == ["separator", "columns-matched", "numbers-read", "numbers-read"]


def test_a_frame_records_and_files_give_the_same_fit(tmp_path: Path) -> None:
    frame = runs(tmp_path, PLAIN)
    frame.to_parquet(tmp_path / "runs.parquet")
    frame.to_json(tmp_path / "runs.jsonl", orient="records", lines=True)
    whole = fit_runs(frame, LAW, bootstrap=0).to_json()
    for source in (frame, frame.to_dict("records"), tmp_path / "runs.parquet", tmp_path / "runs.jsonl"):
        assert fit_runs(read_runs(source, LAW)[0], LAW, bootstrap=0).to_json() == whole


def test_a_wrong_cell_is_told_by_its_own_header(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"runs\.csv: row 2, column Validation loss: -3\.16 is below"):
        runs(tmp_path, SPELLED.replace("3,16", "-3,16"))


def test_more_runs_than_a_fit_takes_are_refused_before_their_cells_are_read() -> None:
    rows = pd.DataFrame({"params": np.full(MAX_RUNS + 1, "x"), "loss": "y"})
    with pytest.raises(InputError, match=f"{MAX_RUNS + 1} rows are more than the {MAX_RUNS} runs"):
        read_runs(rows, LAW)


def test_resamples_of_many_runs_fit_into_memory() -> None:
    """A table of runs by points would hold 30,000 x 30,000 numbers here."""
    rows = 30_000
    label = np.arange(rows)
    drawn = resample_cases(np.random.default_rng(0), np.ones(rows), np.ones(rows), label, label, 4, 5)
    assert drawn.weights.shape == (4, rows) and (drawn.weights.sum(axis=1) == rows).all() and not drawn.redrawn


@pytest.mark.parametrize(
    ("law", "column", "most"), [("power", "params", 1e15), ("power", "loss", 1e3), ("chinchilla", "tokens", 1e18)]
)
def test_the_largest_numbers_that_a_fit_takes(law: str, column: str, most: float) -> None:
    rows = pd.DataFrame({"params": [1e8, 1e9, 7e9], "tokens": [1e9, 2e9, 3e9], "loss": [3.2, 2.5, 2.1]})
    shape = get_law(law)
    rows[column] = [*rows[column][:2], most]
    assert read_runs(rows, shape)[0][column].iloc[-1] == most
    rows[column] = [*rows[column][:2], 1.01 * most]
    with pytest.raises(TableError, match=f"column {column}"):
        read_runs(rows, shape)


def history(rows: list[dict[str, str]], **options: object) -> Sheet:
    cells = pd.DataFrame(rows).fillna("").astype(str)
    return replace(read_sheet(cells), cells=cells, name="logs", history=True, **options)  # type: ignore[arg-type]


def test_steps_that_logged_the_output_have_the_inputs_that_their_run_logged_last() -> None:
    rows = [
        {"run": "a", "params": "1e8", "tokens": "1e9"},
        {"run": "a", "loss": "3"},
        {"run": "b", "loss": "9"},
        {"run": "a", "tokens": "2e9", "loss": " "},
        {"run": "a", "loss": "2.5"},
    ]
    logged = _logged(history(rows), ["params", "tokens", "loss"])
    assert logged.cells[["run", "params", "tokens", "loss"]].to_numpy().tolist() == [
        ["a", "1e8", "1e9", "3"],
        ["b", "", "", "9"],
        ["a", "1e8", "2e9", "2.5"],
    ]
    (note,) = logged.notes
    assert note.details == {"steps": 3, "logged": 5, "runs": ["a", "b"]}
    assert note.message.startswith("logs: 3 steps of 2 runs logged loss, of 5 that were logged;")
    with pytest.raises(
        TableError, match=r"tokens and loss neither logged nor configured; found: run, params.*--column tokens="
    ):
        _logged(history([{"run": "a", "params": "1"}]), ["params", "tokens", "loss"])
    with pytest.raises(TableError, match=r"two of them .--column NAME=HEADER says which counts"):
        _logged(history(rows, problems={"loss": ["two of them"]}), ["params", "tokens", "loss"])


def test_a_column_that_is_named_takes_the_place_of_one_that_bears_the_name() -> None:
    sheet = read_sheet(pd.DataFrame({"loss": [1], "eval": [2], "N": [3]}))
    named = _as_named(sheet, {"loss": "eval", "params": "N"}, ["params", "loss"])
    assert {name: [str(cell) for cell in named.cells[name]] for name in named.cells} == {"loss": ["2"], "params": ["3"]}
    assert named.titles["loss"] == "eval" and named.titles["params"] == "N"
    # A name that is the header of another column is no column to drop.
    swapped = _as_named(
        read_sheet(pd.DataFrame({"loss": [1], "params": [2]})), {"loss": "params", "params": "loss"}, ["params", "loss"]
    )
    assert {name: [str(cell) for cell in swapped.cells[name]] for name in swapped.cells} == {
        "params": ["1"],
        "loss": ["2"],
    }


def test_as_many_runs_as_a_fit_takes_are_read_on() -> None:
    rows = pd.DataFrame({"params": np.full(MAX_RUNS, "x"), "loss": "y"})
    with pytest.raises(TableError):
        read_runs(rows, LAW)


@pytest.mark.parametrize(("law", "column", "value", "ok"), [
    ("power", "params", 1.0, True), ("power", "params", 0.9, False), ("power", "loss", 1e-9, True),
    ("power", "loss", 0.9e-9, False),
    ("chinchilla", "tokens", 1.0, True), ("chinchilla", "tokens", 0.5, False),
    ("logistic", "score", 0.0, True), ("logistic", "score", 1.0, True), ("logistic", "score", -0.01, False),
])  # fmt: skip
def test_the_smallest_numbers_that_a_fit_takes(law: str, column: str, value: float, ok: bool) -> None:
    rows = pd.DataFrame(
        {"params": [1e8, 1e9, 7e9], "tokens": [1e9, 2e9, 3e9], "loss": [3.2, 2.5, 2.1], "score": [0.3, 0.4, 0.5]}
    )
    rows[column] = [*rows[column][:2], value]
    if ok:
        assert read_runs(rows, get_law(law))[0][column].iloc[-1] == value
    else:
        with pytest.raises(TableError, match=f"column {column}"):
            read_runs(rows, get_law(law))


def test_groups_are_a_column_that_has_to_be_there() -> None:
    rows = [{"params": 1e8, "loss": 3.0, "family": "a"}, {"params": 1e9, "loss": 2.0, "family": "b"}]
    runs, _ = read_runs([*rows, {"params": 7e9, "loss": 1.8, "family": "b"}], LAW, cluster="family")
    assert fit_runs(runs, LAW, cluster="family", bootstrap=3).options["clusters"] == ["a", "b", "b"]
    with pytest.raises(TableError, match="vendor"):
        read_runs(rows, LAW, cluster="vendor")
