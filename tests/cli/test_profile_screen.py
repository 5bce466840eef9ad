"""What ``densing profile`` shows on a terminal: names stay text, lines fit, figures do not contradict."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from densing.cli.output import show_notes, timed_bar
from densing.cli.profile import _across
from densing.core.notes import Note, severest_first, worst
from densing.efficiency.profile.run import merge_run
from tests.support.profile_command import densing, event, profile, write
from tests.support.straggler_runs import profiles

HOSTILE = "\x1b[31mred\x1b[0m [bold]x[/] \u202ertl \x9b1m\rover\nerror: forged \x07<b>"
OBEYED = ("\x1b", "\u202e", "\x9b", "\x07", "\r", "\nerror: forged")


def grouped(rank: int, name: str, steps: int = 4, clock: float = 0.0, unit: float = 1.0) -> dict[str, Any]:
    """Steps of 100 units: a product, and beside it an all-reduce of a group with this name; both launched in time."""
    rows = []
    for step in range(1, steps + 1):
        at = 100.0 * step + clock / unit
        sizes = {"Process Group Name": name, "Process Group Ranks": "[0, 1]", "Group size": 2, "Seq": step}
        rows += [
            event("user_annotation", f"ProfilerStep#{step}", at, 100),
            event("cpu_op", f"aten::mm {name}", at + 1, 30),
            event("cuda_runtime", "cudaLaunchKernel", at + 2, 3, correlation=10 * step),
            event("cuda_runtime", "cudaLaunchKernel", at + 20, 3, correlation=10 * step + 1),
            event("kernel", f"gemm {name}", at + 10, 50, stream=7, device=0, correlation=10 * step),
            event("kernel", "ncclDevKernel_AllReduce(x)", at + 40, 40, stream=20, device=0, correlation=10 * step + 1,
                  **{"Collective name": "allreduce", **sizes}),
        ]  # fmt: skip
    for row in rows:
        row["ts"], row["dur"] = round(row["ts"] * unit, 3), round(row["dur"] * unit, 3)
    device = {"id": 0, "name": f"H100 {name}"}
    info = {"backend": f"nccl {name}", "rank": rank, "world_size": 2}
    return {"deviceProperties": [device], "distributedInfo": info, "traceEvents": rows}


def run_of_two(folder: Path, name: str, late_clock: float = 0.0, **more: Any) -> Path:
    for rank in (0, 1):
        write(folder / f"rank{rank}.json", grouped(rank, name, clock=late_clock * rank, **more))
    return folder


def on_a_terminal(*arguments: object) -> str:
    """Return what the command writes where its output is a terminal: there, escapes are not taken out for us."""
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "densing", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            # How Linux says that the other end was closed.
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait() == 0
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals")
@pytest.mark.parametrize("flags", [(), ("--mfu", "params=1e6,tokens=1"), ("--detail", "host")])
def test_names_from_a_trace_are_not_obeyed_by_a_terminal(tmp_path: Path, flags: tuple[str, ...]) -> None:
    folder = run_of_two(tmp_path / "run", HOSTILE)
    shown = on_a_terminal("profile", folder, *flags)
    assert "\\x1b" in shown
    assert not [sign for sign in OBEYED if sign in shown]


@pytest.mark.slow
def test_names_without_end_leave_room_on_the_screen_and_stay_whole_in_json(tmp_path: Path) -> None:
    name = "n" * 200_000
    folder = run_of_two(tmp_path / "run", name)
    page = tmp_path / "page.html"
    done = densing("profile", folder, "--detail", "host", "--html", page)
    assert len(done.stdout) < 6000 and len(done.stderr) < 6000
    assert "all_reduce" in done.stdout
    densing("profile", run_of_two(tmp_path / "short", "n"), "--detail", "host", "--html", tmp_path / "short.html")
    assert page.stat().st_size < (tmp_path / "short.html").stat().st_size + 50_000
    assert profile(folder)["collectives"][0]["group"] == name


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes")
def test_a_file_whose_name_is_no_text_is_reported_too(tmp_path: Path) -> None:
    write(tmp_path / "run" / os.fsdecode(b"\xff.json"), grouped(0, "g"))
    page = tmp_path / "page.html"
    densing("profile", tmp_path / "run", "--html", page)
    assert "\\udcff.json" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("columns", [80, 100])
def test_the_summary_fits_a_terminal(tmp_path: Path, columns: int) -> None:
    command = [sys.executable, "-m", "densing", "profile", str(run_of_two(tmp_path / "run", "data_parallel"))]
    environment = {**os.environ, "COLUMNS": str(columns)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    assert len(lines) <= {80: 28, 100: 24}[columns]


def test_into_a_pipe_sentences_go_unfolded(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "densing", "profile", str(run_of_two(tmp_path / "run", "g" * 40))]
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert any(line.startswith(("1. ", "   try: ")) and len(line) > 100 for line in done.stdout.splitlines())


def test_the_screen_says_how_clocks_compare(tmp_path: Path) -> None:
    assert "Clocks: the ranks' agree" in densing("profile", run_of_two(tmp_path / "same", "g")).stdout
    apart = densing("profile", run_of_two(tmp_path / "apart", "g", late_clock=5000.0)).stdout
    assert "Clocks: aligned on ends of collectives, up to 5.00 ms taken out" in apart
    few = densing("profile", run_of_two(tmp_path / "few", "g", steps=2)).stdout
    assert "Clocks: not comparable" in few
    assert "Clocks" not in densing("profile", tmp_path / "same" / "rank0.json").stdout


def test_nobody_is_waited_for_in_none_of_the_steps() -> None:
    run = merge_run(profiles((0, 50_000, 100_000)))
    assert run.together is not None
    assert "Waited for most: rank 2, in 4 of 4 steps; " in " ".join(_across(run))
    stragglers = dataclasses.replace(run.together.stragglers, led=0)
    together = dataclasses.replace(run.together, stragglers=stragglers)
    assert together.worst == "rank 2 most"
    text = " ".join(_across(replace(run, together=together)))
    assert "Waited for most: rank 2; " in text and "in 0 of" not in text


def test_what_costs_something_never_reads_as_nothing(tmp_path: Path) -> None:
    text = densing("profile", run_of_two(tmp_path / "run", "g", unit=0.01)).stdout
    assert "0.0002 ms per step" in text
    assert "0.00 ms per" not in text


def test_communications_at_the_same_time_are_not_to_be_added_up(tmp_path: Path) -> None:
    content = grouped(0, "g")
    both = [{**row, "args": {**row["args"], "stream": 21, "Process Group Name": "h"}}
            for row in content["traceEvents"] if row["name"].startswith("nccl")]  # fmt: skip
    alone = densing("profile", write(tmp_path / "alone.json", content)).stdout
    assert "same time" not in alone
    content["traceEvents"] += both
    text = densing("profile", write(tmp_path / "both.json", content)).stdout
    assert "all kinds together expose 0.02 ms, not their sum" in text


def test_notes_come_severest_first_once_and_not_by_the_thousand(capsys: pytest.CaptureFixture[str]) -> None:
    notes = [
        *(Note("told", "info", f"rank {rank} is fine") for rank in range(50)),
        Note("named", "warning", "odd name\nerror: forged " + "x" * 5000 + " its end"),
        Note("lost", "error", "rank 7 is lost"),
        Note("lost", "error", "rank 7 is lost"),
    ]
    assert [note.severity for note in severest_first(notes)[:3]] == ["error", "error", "warning"]
    assert worst(notes) == "error" and worst([]) is None
    show_notes(notes, most=4)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: rank 7 is lost" and lines[1] == "warning: odd name"
    assert lines[2].startswith("  error: forged") and lines[2].endswith("its end") and len(lines[2]) < 700
    assert lines[3:] == ["info: rank 0 is fine", "info: rank 1 is fine", "... and 48 more notes; all of them: --json"]


def test_the_name_beside_the_bar_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    from densing.cli import output

    drawn: list[str] = []
    monkeypatch.setattr(output, "_terminal", lambda: True)
    monkeypatch.setattr("rich.progress.Progress.add_task", lambda bar, label, **more: drawn.append(label))
    monkeypatch.setattr(
        "rich.progress.Progress.update", lambda bar, task, description, **more: drawn.append(description)
    )
    with timed_bar(False, HOSTILE) as show:
        show("n" * 5000, 1.0, 2.0)
    assert drawn[0].startswith("\\x1b[31mred") and len(drawn[1]) <= 60


def test_the_document_is_strict_json(tmp_path: Path) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    done = densing("profile", run_of_two(tmp_path / "run", HOSTILE), "--mfu", "params=1e6,tokens=1", "--json")
    assert done.stderr == ""
    found = json.loads(done.stdout, parse_constant=refuse)
    assert found["utilisation"]["mfu_pct"] is None
    assert set(found["ranks"][0]) >= {
        *("rank", "window_ns", "span_ns", "compute_ns", "comm_ns", "memcpy_ns", "overlap_ns", "exposed_comm_ns"),
        *("exposed_memcpy_ns", "idle_ns", "overlap_pct"),
    }
    for rank in found["ranks"]:
        assert all(type(value) is int for key, value in rank.items() if key.endswith("_ns") and value is not None)
