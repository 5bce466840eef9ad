"""What goes wrong: a message for people on stderr, an exit code, and with ``--json`` one document on stdout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import densing, printed, single_commands

OUT = ("--out", "out")
WRONG: dict[str, tuple[str, ...]] = {
    "run": ("--no-measure", "--reference", "qwen1"),
    "density": ("--benchmark", "mlu"),
    "trend": ("--reference", "nope.json"),
    "forecast show": ("--months", "0"),
    "forecast backtest": ("--catalog", "nope.csv"),
    "fit": ("nope.csv", "--law", "power"),
    "joint abilities": ("--catalog", "nope.csv"),
    "joint offsets": ("--catalog", "nope.csv"),
    "joint links": ("--catalog", "nope.csv"),
    "joint validate": ("--splits", "pears"),
    "joint recover": ("--catalog", "nope.csv"),
    "compare": ("nope",),
    "frontier": ("--catalog", "nope.csv"),
    "report": ("--catalog", "nope.csv"),
    "catalog list": ("modles",),
    "catalog show": ("Llama-3-8",),
    "catalog sources": ("--catalog", "nope.csv"),
    "catalog erratic": ("--catalog", "nope.csv"),
    "catalog validate": ("a.csv", "b.csv"),
    "catalog add": ("out", "model=A", "params_b=much"),
    "items calibrate": ("nope.csv", *OUT),
    "items show": ("nope.json",),
    "items estimate": ("nope.csv", "--bank", "ikp"),
    "refs list": ("--out", "refs.txt"),
    "refs show": ("lama",),
    "refs build": ("lama",),
    "doctor": ("--refit=yes",),
    "examples": ("--refit",),
    "eval": ("--tasks", "piqa", "--samples", "nope.json"),
    "results list": ("nope",),
    "results show": ("nope",),
    "results merge": ("nope", *OUT),
    "results export": ("nope", *OUT),
    "results explain": ("nope", "--model", "a", "--against", "b"),
    "results targets": ("nope.json", *OUT),
    "results variant": ("nope.yaml", *OUT),
    "ladder train": ("--preset", "cpuu", *OUT),
    "ladder eval": ("nope",),
    "ladder fit": ("nope",),
    "ladder gain": ("nope",),
    "ladder plan": ("--resolve", "0"),
    "distil": ("--teacher", "smollm", "--rounds", "x", *OUT),
    "tune": ("--model", "smollm", *OUT),
    "exits": ("--exits", "x", *OUT),
    "deploy": ("nope",),
    "profile": ("nope",),
    "scaling": ("nope",),
    "worth": ("zero1", "--model", "llama-8b", "--cluster", "a100x8-tcp", "--tokens", "0"),
    "scaling plan": ("--gpu-hours", "0", "--cluster", "h100x8-nvlink"),
    "calibrate": ("nope",),
    "techniques list": ("ddp",),
    "techniques show": ("ladderr",),
    "techniques compare": ("--model", "llama-8b", "--cluster", "a100", "--techniques", "ddp"),
    "techniques plan": ("--model", "llama-8b", "--cluster", "a100"),
    "techniques validate": ("--technique", "co3"),
    "train": ("--technique", "co3", *OUT),
}
"""Every command, and what it cannot take."""


def failure(command: str, *arguments: object, cwd: Path) -> tuple[int, Any, str]:
    done = densing(*command.split(), *arguments, "--json", cwd=cwd)
    document = printed(done.stdout)
    assert set(document) == {"error", "exit_code"} and document["exit_code"] == done.returncode
    assert "Traceback" not in done.stderr and document["error"]["kind"] != "InternalError", done.stderr
    # The message for people is the same, line by line.
    for line in document["error"]["message"].splitlines():
        assert line in done.stderr
    return done.returncode, document["error"], done.stderr


def test_every_command_is_tried() -> None:
    assert set(WRONG) == set(map(" ".join, single_commands()))


@pytest.mark.parametrize("command", WRONG)
def test_json_is_one_document_when_a_command_fails(command: str, tmp_path: Path) -> None:
    code, error, _ = failure(command, *WRONG[command], cwd=tmp_path)
    assert code == (2 if error["kind"] == "UsageError" else 1)
    assert not any(tmp_path.iterdir()), "nothing is written"
    code, error, stderr = failure(command, "--no-such-option", cwd=tmp_path)
    assert (code, error["kind"]) == (2, "UsageError") and "No such option: --no-such-option" in error["message"]
    assert f"densing {command}" in error["remedy"] and f"densing {command}" in stderr


def test_an_error_says_apart_what_it_knows(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("model,params,released,benchmark,score\nA,7,2024-01-01,mmlu,45\n")
    _, error, _ = failure("density", "-b", "mmlu", "--scores", "mine.csv", cwd=tmp_path)
    assert (error["kind"], error["where"]) == ("TableError", "mine.csv")
    assert all("row 2, column" in problem for problem in error["problems"])
    _, error, _ = failure("techniques plan", "--model", "llama-8b", "--cluster", "TCP", cwd=tmp_path)
    assert (error["kind"], error["name"], error["suggestions"]) == ("UnknownNameError", "TCP", ["a100x8-tcp"])
    assert "cpu2" in error["known"]


def test_without_json_nothing_is_on_stdout(tmp_path: Path) -> None:
    for arguments in (("techniques", "show", "ladderr"), ("density", "--level", "3"), ("densty",)):
        done = densing(*arguments, cwd=tmp_path)
        assert done.returncode in (1, 2) and done.stdout == ""
    assert "did you mean 'ladder'?" in densing("techniques", "show", "ladderr").stderr
    assert "Did you mean 'density'?" in densing("densty").stderr


def test_what_a_terminal_obeys_is_written_out_in_usage_errors(tmp_path: Path) -> None:
    code, _, stderr = failure("trend", "--out", "\x1b[31mred", cwd=tmp_path)
    assert code == 2 and "\x1b" not in stderr and "\\x1b[31mred" in stderr


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("densing.efficiency.systems.get_technique", pressed)


@pytest.mark.usefixtures("stopped")
def test_an_interrupt_is_one_line_and_one_document(tmp_path: Path) -> None:
    code, error, stderr = failure("techniques show", "co2", cwd=tmp_path)
    assert (code, stderr) == (130, "stopped\n")
    assert error == {"kind": "StoppedError", "message": "stopped"}


@pytest.mark.parametrize("arguments", [("list",), ("list", "--json"), ("show", "ladderr", "--json")])
def test_a_reader_that_leaves_is_no_error_and_a_full_disk_no_traceback(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "densing", "techniques", *arguments]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing) as closed, Path("/dev/full").open("w") as full:
        for stdout, said in ((closed, ""), (full, "No space left on device")):
            done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
            assert done.returncode == 1
            assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 1
            assert said in done.stderr or "show" in arguments
