"""Which results stand at a path: folder trees, damaged files, and what every reader refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.errors import InputError
from densing.scores.evals.identity import UnitKey
from densing.scores.evals.measurements import COLUMNS
from densing.scores.evals.readers import read_results
from densing.scores.evals.store import RunStore
from tests.support.eval_files import (
    cell,
    results_of,
    samples_of,
    write_json,
    write_results,
)


def test_newest_file_counts(tmp_path: Path) -> None:
    old = write_results(
        tmp_path / "z", {"toy": samples_of("toy"), "only": samples_of("only")}, "2026-11-20T00-00-00.000001"
    )
    new = write_results(tmp_path / "a", {"toy": samples_of("toy")[::-1]}, "2026-11-21T00-00-00")
    read = read_results(tmp_path)
    assert cell(read, "toy", "acc", "file") == str(new)
    assert cell(read, "only", "acc", "file") == str(old)
    assert [note.code for note in read.notes] == ["measured-twice"]
    assert read.notes[0].details == {"kept": str(new), "dropped": str(old)}
    assert len(read.items) == 8


def test_a_later_try_does_not_replace_a_full_run(tmp_path: Path) -> None:
    config = {"model": "hf", "model_args": "pretrained=models/tiny", "limit": None}
    full = write_results(tmp_path / "full", {"toy": samples_of("toy", 8)}, "2026-01-01T00-00-00", config=config)
    write_results(tmp_path / "try", {"toy": samples_of("toy", 2)}, "2026-02-01T00-00-00")
    assert cell(read_results(tmp_path), "toy", "acc", "file") == str(full)


def test_tree_with_runs_and_other_files(tmp_path: Path) -> None:
    unit = RunStore(tmp_path / "mine").unit(UnitKey({"type": "hf"}, {"name": "toy"}, {}, "ours"))
    with unit.stage() as staged:
        write_results(staged, {"toy": samples_of("toy")})
        unit.finish(staged, {"model": {"params_total": 5e6}})
    write_results(tmp_path / "theirs", {"toy": samples_of("toy")})
    write_json(tmp_path / "theirs" / "config.json", {"hidden_size": 8})
    (tmp_path / "theirs" / "results_broken.json").write_text("{")
    read = read_results(tmp_path)
    assert sorted(read.measurements["model"].unique()) == ["models/tiny", "ours"]
    assert [note.code for note in read.notes] == ["file-unreadable", "no-results"]
    assert read.notes[1].details == {"files": ["theirs/config.json"]}
    assert read.models.set_index("model").loc["ours", "params_total"] == 5e6


def test_folder_without_results(tmp_path: Path) -> None:
    write_json(tmp_path / "a" / "config.json", {"hidden_size": 8})
    with pytest.raises(InputError, match=r"no results found \(looked at a/config\.json\); expected lm-eval"):
        read_results(tmp_path)


# ---- damage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b'{"results": {"a": {"acc,none": 0.1}}, "configs"', "line 1, column 48: not JSON .*ends too early"),
        (b"\xff\xfe{}", "byte 0 is not UTF-8"),
        (b'{"results": {}, "results": {}}', "key 'results' occurs twice"),
        (b"[1, 2]", "holds a list; expected lm-eval"),
        (b'{"hidden_size": 8}', "an object with hidden_size; expected lm-eval"),
        (b'{"results": 3, "config": {}}', "no object 'results'"),
        (b'{"results": {"a": 3}, "config": {}}', "results of 'a' are not an object of metrics"),
        (b'{"results": {"a": {"acc,none": "high"}}, "config": {}}', "a, acc,none: 'high' is not a number"),
        (b'{"results": {"a": {"acc,none": true}}, "config": {}}', "'True' is not a number"),
        (
            b'{"results": {"a": {"acc,none": 1e999}}, "config": {}}',
            "no measurement; .*a, acc is inf, no finite number",
        ),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 10_000, "too many digits|holds a"),
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
