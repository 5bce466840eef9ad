"""The command line and its readers against input that means no good: one message, an exit code, nothing lost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from densing.cli import main
from densing.core.errors import DensingError
from densing.core.files import write_csv
from densing.core.table_io import read_cells
from densing.scores.density import table_densities
from densing.scores.density.listing import MODELS
from densing.scores.fit import LawFit, fit_law, fit_runs, read_runs
from densing.scores.laws import get_law
from densing.scores.references import load_reference
from tests.support.command import printed

HEADER = "model,params,released,benchmark,score\n"
GOOD = "Mine-3B,3.1e9,2024-03-01,mmlu,0.62\n"
NAMES = ["\x1b[31mred", "\u202eright to left", "two\nlines", "a\rb", "[red]x[/red]", "<b>&amp;", "x" * 3000, "bell\x07"]
Call = Callable[..., tuple[int, str, str]]
fuzz = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture
def densing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Call the program in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["densing", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err and "internal error" not in err
        code = left.value.code
        return (code if isinstance(code, int) else 0), out, err

    return call


def table(rows: str, header: str = HEADER, name: str = "mine.csv") -> str:
    Path(name).write_bytes((header + rows).encode())
    return name


def reference(draws: int = 20) -> LawFit:
    sizes = [5e8, 2e9, 4e9, 7e9, 3e10, 7e10]
    shares = [0.40, 0.47, 0.55, 0.61, 0.73, 0.77]
    return fit_law(get_law("logistic", floor=0.25), {"params": sizes}, shares, loss="raw", bootstrap=draws)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("M,7,2024-01-01,mmlu,0.5", "write 7e9"),
        ("M,8x7B,2024-01-01,mmlu,0.5", "write 7e9"),
        ("M,-7e9,2024-01-01,mmlu,0.5", "write 7e9"),
        ("M,7e9,01/02/2024,mmlu,0.5", "are ambiguous"),
        ("M,7e9,2023-02-29,mmlu,0.5", "as 2024-02-29"),
        ("M,7e9,2999-01-01,mmlu,0.5", "and today"),
        ("M,7e9,2024-01-01,mmlu,62", "write 0.62 for 62 % (divide by 100)"),
        ("M,7e9,2024-01-01,mmlu,-0.62", "losses and log-likelihoods do not belong here"),
        ("M,7e9,2024-01-01,mmlu,1e400", "write 0.45"),
        ("M,7e9,2024-01-01,MNLU,0.5", "benchmarks.csv"),
        ("M,7e9,2024-01-01,mmlu", "4 cells"),
    ],
)
def test_every_wrong_cell_has_its_remedy(densing: Call, row: str, words: str) -> None:
    code, out, err = densing("density", "-b", "mmlu", "--scores", table(row + "\n"), "--json")
    assert (code, printed(out)["error"]["where"]) == (1, "mine.csv")
    assert "mine.csv: row 2" in err and words in err


def test_scores_without_sizes_and_foreign_files_are_refused(densing: Call) -> None:
    bare = table("Llama-3-8B,mmlu,0.6\n", "model,benchmark,score\n")
    assert "states no sizes" in densing("density", "-b", "mmlu", "--scores", bare)[2]
    for content in (b"", b"\xff\xfem\x00", b"\x00" * 100, b"PK\x03\x04\x80"):
        Path("bad.csv").write_bytes(content)
        for command in (("density", "--scores"), ("trend", "--catalog"), ("catalog", "validate"), ("fit",)):
            code, out, err = densing(*command, "bad.csv")
            assert (code, out) == (1, "") and "bad.csv" in err
    assert densing("density", "--scores", ".")[0] == 1


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no endless device on this system")
def test_an_endless_file_is_refused(densing: Call) -> None:
    code, _, err = densing("density", "-b", "mmlu", "--catalog", "/dev/zero")
    assert code == 1 and "larger than" in err


def test_names_stay_text_on_the_terminal_and_whole_in_json(densing: Call) -> None:
    frame = pd.DataFrame({"model": NAMES, "params": "7e9", "released": "2024-01-01", "benchmark": "mmlu", "score": 0.5})
    write_csv(frame, Path("mine.csv"))
    code, out, err = densing("density", "-b", "mmlu", "--scores", "mine.csv")
    assert code == 0
    for sign in ("\x1b", "\u202e", "\r", "\x07"):
        assert sign not in out + err
    for text in ("[31mred", "[red]x[/red]", "<b>&amp;", "two lines"):
        assert text in out
    code, out, _ = densing("density", "-b", "mmlu", "--scores", "mine.csv", "--json")
    assert {row["model"] for row in printed(out)} == set(NAMES)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_narrow_tables_keep_whole_figures_and_name_what_is_hidden(
    densing: Call, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, err = densing("density", "-b", "mmlu", "--scores", table(GOOD))
    assert max(map(len, out.splitlines())) <= width
    assert "…" not in out
    hidden = err.split("No room for ")[1].split(":")[0].split(", ")
    shown = next(line for line in out.splitlines() if line.startswith("Model "))
    # None of these is a model that the catalog knows.
    columns = [field for field in MODELS if not field.minor and field.title != "Known as"]
    assert re.split(r" {2,}", shown) + hidden == [field.head for field in columns]


def test_sizes_are_readable(densing: Call) -> None:
    assert "3.1 B" in densing("density", "-b", "mmlu", "--scores", table(GOOD))[1]


def test_rows_that_are_not_used_are_told(densing: Call) -> None:
    twice = table(GOOD.replace("\n", ",a\n") + GOOD.replace("0.62\n", "0.64,b\n"), HEADER.replace("\n", ",evaluator\n"))
    assert (
        "Mine-3B on mmlu: 0.62 (a) is used, 0.64 (b) is not, +0.02"
        in densing("density", "-b", "mmlu", "--scores", twice)[2]
    )
    assert (
        "of your models are left out: Mine-3B; the reference needs a score on each of mmlu"
        in densing("density", "-b", "mmlu", "--catalog", twice)[2]
    )
    undated = table("Mine-3B,3e9,,mmlu,0.5\n")
    assert "Mine-3B (no date)" in densing("density", "-b", "mmlu", "--catalog", undated)[2]


def test_many_repeated_rows_are_all_counted(densing: Call) -> None:
    code, out, _ = densing("catalog", "validate", table(GOOD * 5000), "--json")
    assert code == 1
    problems = printed(out)["notes"]
    assert len(problems) == 4999
    assert all("the same row again" in note["message"] and "first in row 2" in note["message"] for note in problems)


@pytest.mark.parametrize(
    "arguments",
    [
        ("density", "--out", "x.txt"),
        ("trend", "--out", "x"),
        ("fit", "mine.csv", "--out", "x.csv"),
        ("run", "--out", "mine.csv"),
        ("trend", "--since", "9999-01-01"),
        ("trend", "--when", "often"),
        ("density", "--level", "nan"),
        ("density", "--skills", "-r", "x.json"),
    ],
)
def test_usage_errors_come_before_the_work(densing: Call, arguments: tuple[str, ...]) -> None:
    table(GOOD)
    code, out, _ = densing(*arguments)
    assert (code, out) == (2, "")
    assert [path.name for path in Path().iterdir()] == ["mine.csv"]


def test_a_benchmark_is_no_path(densing: Call) -> None:
    code, _, err = densing("density", "-r", "qwen1.5", "-b", "../llama/mmlu")
    assert code == 1 and "unknown benchmark" in err


def test_a_reference_without_draws_and_one_without_scores_are_refused(densing: Call) -> None:
    Path("bare.json").write_text(reference(draws=0).to_json(), encoding="utf-8")
    assert "--bootstrap" in densing("density", "-r", "bare.json", "-b", "mmlu")[2]
    Path("mine.json").write_text(reference().to_json(), encoding="utf-8")
    for command in (("density",), ("trend",), ("density", "--pool")):
        code, _, err = densing(*command, "-r", "mine.json", "-b", "mmlu")
        assert code == 1 and "mmlu score" in err


def test_diagnostics_that_data_do_not_allow_leave_the_fit(densing: Call) -> None:
    rows = [(1e8, 1e10, 3.1), (3e8, 2e10, 2.8), (1e9, 1e10, 2.7), (3e9, 5e10, 2.4), (1e10, 3e10, 2.3)]
    text = "".join(f"{n},{d},{loss}\n" for n, d, loss in rows)
    code, out, _ = densing("fit", table(text, "params,tokens,loss\n"), "--bootstrap", "5", "--explain", "--json")
    assert code in (0, 3)
    assert "not available" in printed(out)["influence"]


AT_WORK = """
import sys
import densing.scores.study.study as study
from densing.cli import main
estimate = study.estimate_trend
def told(*arguments, **options):
    print("at work", file=sys.stderr, flush=True)
    return estimate(*arguments, **options)
study.estimate_trend = told
sys.argv = ["densing", "run", "--no-measure", "--out", sys.argv[1]]
main()
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_interrupted_run_leaves_quietly_and_writes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", AT_WORK, str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None and process.stderr.readline() == "at work\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == "" and "Traceback" not in err
    assert not (tmp_path / "out").exists()


cells = st.one_of(
    st.sampled_from(["", "0.5", "7e9", "45", "nan", "-1", "2024-02-29", "mmlu", "mean", "x", "1e-320", "9e99"]),
    st.floats(allow_nan=True).map(str),
    st.text(max_size=8),
)


@fuzz
@given(st.lists(st.lists(cells, min_size=5, max_size=5), min_size=1, max_size=4))
def test_any_table_of_scores_is_read_or_refused(tmp_path: Path, rows: list[list[str]]) -> None:
    path = tmp_path / "fuzz.csv"
    columns = HEADER.strip().split(",")
    try:
        write_csv(pd.DataFrame([["Mine-3B", "3.1e9", "2024-03-01", "mmlu", "0.6"], *rows], columns=columns), path)
        assert len(table_densities(path, load_reference("qwen1.5", "mmlu"))) >= 1
    except DensingError as error:
        assert str(error)


@fuzz
@given(
    st.sampled_from(["power", "power-offset", "chinchilla", "sigmoid-fixed", "logistic", "two-step"]),
    st.lists(st.lists(cells, min_size=4, max_size=4), min_size=1, max_size=4),
)
def test_any_table_of_runs_is_read_or_refused(tmp_path: Path, law: str, rows: list[list[str]]) -> None:
    path = tmp_path / "fuzz.csv"
    try:
        write_csv(pd.DataFrame(rows, columns=["params", "tokens", "loss", "score"]), path)
        options: dict[str, Any] = {"loss": None, "delta": 1e-3, "bootstrap": 3, "scheme": "case", "seed": 0}
        json.loads(fit_runs(read_runs(path, get_law(law))[0], get_law(law), **options).to_json())
    except DensingError as error:
        assert str(error)


@fuzz
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1), min_size=1))
def test_written_cells_are_read_back(tmp_path: Path, texts: list[str]) -> None:
    path = tmp_path / "cells.csv"
    write_csv(pd.DataFrame({"first": "x", "text": texts}), path)
    assert read_cells(path)["text"].tolist() == texts


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 10**18),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
)
DOCUMENT = json.dumps({**json.loads(reference().to_json()), "meta": {}})
DESCRIBED = json.loads(load_reference("qwen1.5", "mmlu").fit.to_json())
DESCRIBED["draws"] = DESCRIBED["draws"][:20]


@fuzz
@given(st.data())
def test_any_damaged_reference_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    document = json.loads(data.draw(st.sampled_from([DOCUMENT, json.dumps(DESCRIBED)])))
    place: Any = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not (isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans())):
            break
        place = place[key]
    if data.draw(st.booleans()):
        place[key] = data.draw(values)
    else:
        del place[key]
    ruled, scores = tmp_path / "fuzz.json", tmp_path / "scores.csv"
    ruled.write_text(json.dumps(document), encoding="utf-8")
    scores.write_text(HEADER + GOOD, encoding="utf-8")
    try:
        reference = load_reference(str(ruled), "mmlu")
        assert table_densities(scores, reference).table["density"].notna().all()
    except DensingError as error:
        assert str(error)
