"""lighteval's results and details."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from densing.core.errors import InputError
from densing.scores.evals.readers import read_results
from tests.support.eval_files import cell, lighteval_file


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
    with pytest.raises(InputError, match="not an object of metrics"):
        read_results(lighteval_file(tmp_path, results={"a|b|0": 3}))
