"""Tables of a user: a file, a DataFrame and records are one thing, and what is none is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import densing
from densing.core import InputError

ROWS = [
    {"model": "mine", "params": 3e9, "released": "2024-06-01", "benchmark": "mmlu", "score": 0.6},
    {"model": "yours", "params": 7_000_000_000, "released": "2024-07-01", "benchmark": "mmlu", "score": 0.62},
]


def test_a_file_a_frame_and_records_give_the_same_densities(tmp_path: Path) -> None:
    frame = pd.DataFrame(ROWS)
    frame["released"] = pd.to_datetime(frame["released"])
    path = tmp_path / "mine.csv"
    pd.DataFrame(ROWS).to_csv(path, index=False)
    ruler = densing.load_reference("qwen1.5", "mmlu")
    ours, theirs, records = (densing.table_densities(table, ruler) for table in (str(path), frame, ROWS))
    # A file's rows name it as their source.
    columns = ours.table.columns.drop("source")
    pd.testing.assert_frame_equal(ours.table[columns], theirs.table[columns])
    pd.testing.assert_frame_equal(ours.table[columns], records.table[columns])
    assert len(densing.load_catalog(frame).models) == len(densing.load_catalog(path).models)


@pytest.mark.parametrize("table", [7, [1], {"a": 1}, ROWS[0], [], pd.DataFrame(), [{"model": "x"}], b"rows"])
def test_what_is_no_table_is_refused(table: Any) -> None:
    with pytest.raises(InputError, match="table"):
        densing.table_densities(table, densing.load_reference("qwen1.5", "mmlu"))


def test_messages_name_row_and_column_of_a_table_in_memory() -> None:
    wrong = [*ROWS, {**ROWS[0], "model": "x", "score": "sixty"}]
    with pytest.raises(InputError, match=r"(?s)the table.*row 4.*score.*sixty"):
        densing.table_densities(wrong, densing.load_reference("qwen1.5", "mmlu"))
