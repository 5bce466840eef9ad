"""``densing scaling``: runs of different size, and what is refused or lacking."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.command import printed
from tests.support.profile_command import cut, densing, run_of, trace, two, write

__all__ = ["two"]


def test_scaling_over_runs_of_different_size(two: Path, tmp_path: Path) -> None:
    for rank in range(4):
        content = trace(rank)
        content["distributedInfo"]["world_size"] = 4
        write(tmp_path / "four" / f"rank{rank}.json", content)
    found = printed(densing("scaling", two, tmp_path / "four", "--kind", "strong", "--json").stdout)
    assert [row["devices"] for row in found["rows"]] == [2, 4]
    assert found["rows"][1]["efficiency"] == pytest.approx(0.5)


def test_a_zip_of_traces_is_the_run_that_its_folder_is(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / str(count), count) for count in (2, 4)]
    zips = [shutil.make_archive(str(tmp_path / f"zip{run.name}"), "zip", tmp_path, run.name) for run in runs]
    from_folders, from_zips = (printed(densing("scaling", *each, "--json").stdout)["rows"] for each in (runs, zips))
    assert [{**row, "name": ""} for row in from_folders] == [{**row, "name": ""} for row in from_zips]


def test_damage_of_a_run_is_not_passed_over_in_scaling(tmp_path: Path) -> None:
    small, large = run_of(tmp_path / "two", 2), run_of(tmp_path / "four", 4)
    assert printed(densing("scaling", small, large, "--json").stdout)["notes"] == []
    cut(large / "rank3.json")
    assert f"error: {large}: " in densing("scaling", small, large, code=3).stderr
    notes = printed(densing("scaling", small, large, "--json", code=3).stdout)["notes"]
    assert any(note["severity"] == "error" and "rank3.json" in note["message"] for note in notes)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "other", "--kind", "stron"), "did you mean 'strong'"),
        (("run",), "at least two sizes"),
        (("run", "run"), "run: named twice"),
        (("run", "absent"), "absent: no such file"),
        (("run", "absent.parquet"), "absent.parquet: no such file"),
        (("run", "other", "--work", "1"), "--work was given 1 times"),
        (("run", "other", "--work", "nan", "--work", "2"), "--work nan"),
        (("run", "other", "--kind", "throughput"), "needs --work"),
    ],
)
def test_scaling_refuses_before_a_trace_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    for name in ("run", "other"):
        write(tmp_path / name / "rank0.json", {"traceEvents": []})
    monkeypatch.chdir(tmp_path)
    message = densing("scaling", *arguments, code=1).stderr
    assert words in message and len(message.splitlines()) == 1
