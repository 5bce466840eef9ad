"""OpenCompass's summaries."""

from __future__ import annotations

from pathlib import Path

import pytest

from densing.core.errors import InputError, TableError
from densing.scores.evals.readers import read_results

SUMMARY = """dataset,version,metric,mode,opt-125m,opt-350m
######## Knowledge ########,-,-,-,-,-
mmlu,-,naive_average,ppl,26.02,25.10
hellaswag,a6e128,accuracy,ppl,-,32.10
lcsts,8ee1fe,rouge1,gen,1.20,3.40
"""


def test_opencompass_summary(tmp_path: Path) -> None:
    path = tmp_path / "summary_20261121_130722.csv"
    path.write_text(SUMMARY)
    read = read_results(path)
    table = read.measurements
    assert table["value"].tolist() == pytest.approx([0.2602, 0.2510, 0.3210, 1.20, 3.40])
    assert table["unit"].tolist() == ["share", "share", "share", "", ""]
    assert table["is_group"].tolist() == [True, True, False, False, False]
    assert table["date"].unique().tolist() == ["2026-11-21"]
    assert table["task_version"].tolist() == ["", "", "a6e128", "8ee1fe", "8ee1fe"]
    assert read.models["model"].tolist() == ["opt-125m", "opt-350m"]
    assert [note.code for note in read.notes] == ["percent"]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("a,b\n1,2\n", InputError, "an OpenCompass summary has dataset, version, metric, mode"),
        (
            "dataset,version,metric,mode,m\na,-,accuracy,gen,132.0\n",
            TableError,
            "row 2, column m: '132.0' is not a score",
        ),
        ("dataset,version,metric,mode,m\na,-,accuracy,gen,high\n", TableError, "'high' is not a score"),
        ("dataset,version,metric,mode,m\na,-,accuracy,gen,-\n", InputError, "no score in the table"),
        ("dataset,version,metric,mode,m\na,-\n", TableError, "2 cells, but the header has 5"),
    ],
)
def test_wrong_summaries(tmp_path: Path, text: str, error: type[Exception], message: str) -> None:
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(error, match=message):
        read_results(tmp_path / "s.csv")
