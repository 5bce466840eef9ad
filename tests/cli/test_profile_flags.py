"""Flags of ``densing profile`` and ``densing scaling``: refused before hours of reading, and nothing said is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from densing.cli.profile import Source, _executor
from densing.efficiency.profile.rank import METRICS
from densing.jobs.local import LocalExecutor
from tests.support import folders
from tests.support.profile_command import densing, profile, trace, two, write

__all__ = ["two"]


def cut(path: Path) -> None:
    """Let a trace end in the middle of its last event."""
    text = path.read_text()
    path.write_text(text[: text.rindex('"args"')])


def run_of(folder: Path, ranks: int) -> Path:
    for rank in range(ranks):
        content = trace(rank)
        content["distributedInfo"]["world_size"] = ranks
        write(folder / f"rank{rank}.json", content)
    return folder


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--compare", "absent"), "absent: no such file"),
        (("--compare", "absent.parquet"), "absent.parquet: no such file"),
        (("--compare", "empty"), "empty: no trace there"),
        (("--html", "file/page.html"), "--html file/page.html: nothing can be written in"),
        (("--perfetto", "file/deep/o.json"), "--perfetto file/deep/o.json: nothing can be written in"),
        (("--out", "file/store"), "--out file/store: nothing can be written in"),
        (("--perfetto", "run/overlay.json.gz"), "one more rank next time"),
        (("--fail-if", "mfu_pct<30"), "mfu_pct is told by --mfu only"),
        (("--fail-if", "idle_pct>99 or hfu_pct<30"), "hfu_pct is told by --mfu only"),
        (("--density", "absent.json", "--device-hours", "3"), "absent.json: cannot read"),
        (("--executor-arg", "partition=cpu"), "--executor-arg without --executor"),
        (("--executor", "local", "--out", "store", "--executor-arg", "workers=none"), "workers=none"),
        (("--executor", "local", "--out", "store", "--executor-arg", "partition=cpu"), "'partition'"),
        (("--executor", "local", "--out", "store", "--executor-arg", "cpu"), "key=value"),
    ],
)
def test_what_cannot_work_is_said_before_a_trace_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], words: str
) -> None:
    # Reading it would end in an error of its own.
    write(tmp_path / "run" / "rank0.json", {"traceEvents": []})
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    message = densing("profile", "run", *flags, code=1).stderr
    assert words in message and len(message.splitlines()) == 1


def test_an_overlay_is_not_put_where_it_would_be_read_as_a_rank(two: Path, tmp_path: Path) -> None:
    # Of a folder without traces all subfolders are read; of one with traces none.
    message = densing("profile", tmp_path, "--perfetto", tmp_path / "more" / "o.json", code=1).stderr
    assert "one more rank next time" in message
    densing("profile", two, "--perfetto", two / "overlay" / "o.json")
    assert len(profile(two)["ranks"]) == 2


@pytest.mark.parametrize(
    ("where", "flags", "told"),
    [
        ("densing.cli.tree.build", (), ""),
        ("densing.cli.profile.read_run", (), ""),
        ("densing.cli.profile.read_run", ("--out", "store"), "stopped; the same command goes on from store\n"),
    ],
)
def test_an_interrupt_leaves_quietly(two: Path, tmp_path: Path, where: str, flags: tuple[str, ...], told: str) -> None:
    module, _, name = where.rpartition(".")
    script = (
        f"import sys, {module} as place, densing.cli.tree as tree\n"
        f"def pressed(*_): raise KeyboardInterrupt\nplace.{name} = pressed\n"
        f"sys.argv = ['densing', 'profile', {str(two)!r}, *{flags!r}]\ntree.main()"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", told)


def test_stored_results_have_no_spans_to_write_back(two: Path, tmp_path: Path) -> None:
    profile(two, "--out", tmp_path / "store")
    message = densing("profile", tmp_path / "store", "--perfetto", tmp_path / "o.json", code=1).stderr
    assert "give the traces instead" in message


def test_arguments_reach_the_executor() -> None:
    made = _executor(Source((), executor="local", executor_args=("workers=3", "retries=0,memory_gb=2.5")))
    assert isinstance(made, LocalExecutor)
    assert (made.workers, made.retries, made.memory_gb) == (3, 0, 2.5)


def test_both_commands_spell_the_executors_arguments_alike() -> None:
    for command in ("eval", "profile"):
        for spelling in ("--executor-arg", "--executor_arg"):
            done = densing(command, "absent" if command == "profile" else "--dry-run", spelling, "a=1", code=1)
            assert "No such option" not in done.stderr


def test_verdicts_travel_as_data(two: Path) -> None:
    found = profile(two, "--fail-if", "exposed_pct > 1e1 %", "--fail-if", "idle_pct>99", code=4)["fail_if"]
    assert [(hit["text"], hit["verdict"], set(hit["values"])) for hit in found] == [
        ("exposed_pct > 1e1 %", "met", {"exposed_pct"})
    ]
    assert found[0]["message"].startswith("exposed_pct > 1e1 %: exposed_pct is ")


def test_a_condition_on_what_is_undefined_does_not_pass(tmp_path: Path) -> None:
    content = trace(0)
    content["traceEvents"] = [row for row in content["traceEvents"] if not row["name"].startswith("nccl")]
    path = write(tmp_path / "t.json", content)
    [hit] = profile(path, "--fail-if", "overlap_pct<50", code=4)["fail_if"]
    assert hit["verdict"] == "undecided" and hit["values"] == {"overlap_pct": None}
    assert profile(path, "--fail-if", "overlap_pct<50 and idle_pct>99")["fail_if"] == []


def test_a_condition_that_holds_outranks_lost_events(two: Path) -> None:
    cut(two / "rank1.json")
    done = densing("profile", two, "--fail-if", "skipped_events>0", code=4)
    assert "error: " in done.stderr and "--fail-if: skipped_events>0: skipped_events is 1" in done.stderr


def test_damage_of_the_baseline_is_not_passed_over(two: Path, tmp_path: Path) -> None:
    cut(run_of(tmp_path / "base", 2) / "rank1.json")
    done = densing("profile", two, "--compare", tmp_path / "base", code=3)
    assert "error: baseline: " in done.stderr and "rank1.json" in done.stderr
    found = profile(two, "--compare", tmp_path / "base", code=3)
    assert found["skipped_events"] == 0
    assert any(n["severity"] == "error" and n["message"].startswith("baseline: ") for n in found["notes"])


def test_damage_of_a_run_is_not_passed_over_in_scaling(tmp_path: Path) -> None:
    small, large = run_of(tmp_path / "two", 2), run_of(tmp_path / "four", 4)
    assert json.loads(densing("scaling", small, large, "--json").stdout)["notes"] == []
    cut(large / "rank3.json")
    assert f"error: {large}: " in densing("scaling", small, large, code=3).stderr
    notes = json.loads(densing("scaling", small, large, "--json", code=3).stdout)["notes"]
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


def test_what_if_names_the_file_that_is_missing(tmp_path: Path) -> None:
    assert "no such file" in densing("what-if", tmp_path / "absent.parquet", code=1).stderr
    assert "no regular file" in densing("what-if", tmp_path, code=1).stderr


def test_every_figure_that_can_be_guarded_is_documented(two: Path) -> None:
    text = (folders.ROOT / "docs" / "profile.md").read_text(encoding="utf-8")
    for name in {**METRICS, **profile(two)["figures"], "mfu_pct": "", "hfu_pct": ""}:
        assert f"`{name}`" in text
