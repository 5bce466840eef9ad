"""Readers of lighteval's and OpenCompass's results, and what every reader refuses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.errors import InputError, TableError
from densing.scores.evals.measurements import COLUMNS
from densing.scores.evals.readers import read_results
from tests.support.eval_files import cell, lighteval_file, results_of, samples_of, write_json


def test_lighteval_results(tmp_path: Path) -> None:
    read = read_results(lighteval_file(tmp_path))
    table = read.measurements
    assert table["task"].tolist() == ["arc:challenge", "arc:challenge", "mmlu:_average"]
    assert table["is_group"].tolist() == [False, False, True]
    first = table.iloc[0]
    assert first[["model", "value", "stderr", "n_items", "n_shot", "limit"]].tolist() == [
        "org/gpt2",
        0.5,
        0.1,
        2,
        25,
        2,
    ]
    assert first[["task_version", "task_hash", "harness", "date"]].tolist() == ["0", "8517", "lighteval", "2026-11-21"]


@pytest.mark.parametrize("spelling", ["{}", "__{}__"])
@pytest.mark.parametrize("as_text", [False, True])
def test_lighteval_details(tmp_path: Path, spelling: str, as_text: bool) -> None:
    doc = {"query": "q", "choices": [" aa", " b"]}
    answer = {"argmax_logits_eq_gold": [False, True]}
    rows = [
        ({**doc, "gold_index": [0]}, {**answer, "logprobs": [-3.0, -2.0]}, {"acc": 0.0}),
        ({**doc, "gold_index": [1]}, {**answer, "logprobs": [-3.0, -1.0]}, {"acc": 1.0}),
    ]
    names = [spelling.format(name) for name in ("doc", "model_response", "metric")]
    cells = [[str(part) for part in row] if as_text else list(row) for row in rows]
    folder = tmp_path / "details" / "org" / "gpt2" / "2026-11-21T13-07-22.365437"
    folder.mkdir(parents=True)
    frame = pd.DataFrame(cells, columns=names)
    frame.to_parquet(folder / "details_leaderboard|arc:challenge|25_2026-11-21T13-07-22.365437.parquet")
    read = read_results(lighteval_file(tmp_path))
    assert read.items["nll"].tolist() == [3.0, 1.0]
    assert read.items["correct"].tolist() == read.items["metric_acc"].tolist() == [0.0, 1.0]
    assert cell(read, "arc:challenge", "gold_bits_per_byte_pooled") == pytest.approx(4 / 5 / math.log(2))
    frame.rename(columns={names[0]: "example"}).to_parquet(next(folder.iterdir()))
    assert [note.code for note in read_results(lighteval_file(tmp_path)).notes] == ["items-unreadable"]
    next(folder.iterdir()).write_bytes(b"PAR1 no")
    assert [note.code for note in read_results(lighteval_file(tmp_path)).notes] == ["items-unreadable"]


def test_damaged_lighteval(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="acc is 'high', expected a number"):
        read_results(lighteval_file(tmp_path, results={"a|b|0": {"acc": "high"}}))
    with pytest.raises(InputError, match="no object of metrics"):
        read_results(lighteval_file(tmp_path, results={"a|b|0": 3}))


# ---- OpenCompass ---------------------------------------------------------------------------------------------

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
        ("dataset,version,metric,mode,m\na,-,accuracy,gen,132.0\n", TableError, "row 2, column m: '132.0' is no score"),
        ("dataset,version,metric,mode,m\na,-,accuracy,gen,high\n", TableError, "'high' is no score"),
        ("dataset,version,metric,mode,m\na,-,accuracy,gen,-\n", InputError, "no score in the table"),
        ("dataset,version,metric,mode,m\na,-\n", TableError, "2 cells where the header has 5"),
    ],
)
def test_wrong_summaries(tmp_path: Path, text: str, error: type[Exception], message: str) -> None:
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(error, match=message):
        read_results(tmp_path / "s.csv")


# ---- damage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b'{"results": {"a": {"acc,none": 0.1}}, "configs"', "line 1, column 48: not JSON .*ends too early"),
        (b"\xff\xfe{}", "byte 0 is not UTF-8"),
        (b'{"results": {}, "results": {}}', "key 'results' stands twice"),
        (b"[1, 2]", "holds a list; expected lm-eval"),
        (b'{"hidden_size": 8}', "an object with hidden_size; expected lm-eval"),
        (b'{"results": 3, "config": {}}', "no object 'results'"),
        (b'{"results": {"a": 3}, "config": {}}', "results of 'a' are no object of metrics"),
        (b'{"results": {"a": {"acc,none": "high"}}, "config": {}}', "a, acc,none: 'high' is no number"),
        (b'{"results": {"a": {"acc,none": true}}, "config": {}}', "'True' is no number"),
        (
            b'{"results": {"a": {"acc,none": 1e999}}, "config": {}}',
            "no measurement; .*a, acc is inf, no finite number",
        ),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 10_000, "absurd length|holds a"),
    ],
)
def test_damaged_files_are_errors_of_ours(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "results_x.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_results(path)


@pytest.mark.parametrize("path", ["nowhere", "a\x00b", "x" * 5000])
def test_paths_that_are_not_there(tmp_path: Path, path: str) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        read_results(f"{tmp_path}/{path}")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["toy", "acc,none", "metadata", "limit", "effective", "x"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
PARTS = ["results", "groups", "group_subtasks", "configs", "versions", "n-shot", "n-samples", "config", "date",
         "samples", "higher_is_better", "task_hashes", "lm_eval_version", "model_name", "config_general"]  # fmt: skip


@given(st.dictionaries(st.sampled_from(PARTS), JSON))
def test_any_content_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, change: dict[str, Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    write_json(path, results_of({"toy": samples_of("toy")}) | change)
    try:
        read = read_results(path)
    except InputError as error:
        assert str(path) in str(error)
    else:
        assert list(read.measurements.columns) == COLUMNS
