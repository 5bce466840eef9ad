"""`make gpu`: what its stages leave, whatever happens to them; and each of them in its small size."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import device, page, record
from benchmarks.gpu.device import Device
from benchmarks.gpu.record import OutOfTime, Record, Session
from densing.core import ArtefactError, InputError
from tests.support.folders import ROOT

H200 = Device("NVIDIA H200", 150.1, 149.0, "575.57", "12.8", 132, 700.0)
DRIVER = "The NVIDIA driver on your system is too old (found version 11040)."
NUMBERED = ("tests", "traces", "constants", "contention", "host-memory", "evaluation", "yardstick")


def session(out: Path, stage: str = "constants", limit_s: float = 540.0) -> Session:
    return Session(stage, out, out / "work", dry=True, limit_s=limit_s, device={})


def stub(monkeypatch: pytest.MonkeyPatch, **stages: Any) -> None:
    """Put functions in the place of stages' modules."""
    for name, run in stages.items():
        monkeypatch.setitem(sys.modules, f"benchmarks.gpu.{name}", SimpleNamespace(run=run))


def read(out: Path, stage: str) -> Record:
    found = record.read(out, stage)
    assert found is not None
    return found


def test_a_stage_killed_at_its_limit_keeps_what_it_measured(tmp_path: Path) -> None:
    child = (
        "import sys, time; from pathlib import Path; from benchmarks.gpu.record import Session\n"
        f"s = Session('traces', Path({str(tmp_path)!r}), Path('w'), dry=False, limit_s=1, device={{'name': 'H200'}})\n"
        "s.add('pieces', scene='stall', error_us=1.5); print('measured', flush=True); time.sleep(60)"
    )
    began = time.monotonic()
    end = command.supervise([sys.executable, "-c", child], "traces", tmp_path, 1.5)
    assert time.monotonic() - began < 30
    assert end == read(tmp_path, "traces")
    assert (end.status, end.reason) == ("partial", "killed at its limit of 1.5 s")
    assert end.figures == {"pieces": [{"scene": "stall", "error_us": 1.5}]} and end.device == {"name": "H200"}
    assert (tmp_path / end.log).read_text() == "measured\n"
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize(
    ("ending", "status", "reason"),
    [("raise SystemExit(3)", "failed", "exit code 3"), ("import os; os.kill(os.getpid(), 9)", "partial", "signal 9")],
)
def test_a_process_that_ends_without_a_record_gets_one(tmp_path: Path, ending: str, status: str, reason: str) -> None:
    # Of an earlier call, and no answer to this one.
    Record("traces", "ok", "").write(tmp_path)
    end = command.supervise([sys.executable, "-S", "-c", ending], "traces", tmp_path, 30)
    assert end.status == status and reason in end.reason and read(tmp_path, "traces") == end


def test_a_stage_that_fails_leaves_its_log_and_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(one: Session) -> None:
        one.add("products", us=3.0, ratio=float("inf"))
        raise ValueError("no such kernel\nand more")

    stub(monkeypatch, constants=breaks, traces=lambda one: one.add("pieces", error_us=0.0))
    assert command.main(["constants", "traces", "--dry", "--out", str(tmp_path)]) == 1
    failed, done = read(tmp_path, "constants"), read(tmp_path, "traces")
    assert (failed.status, failed.reason) == ("failed", "ValueError: no such kernel")
    # No JSON has infinity.
    assert failed.figures == {"products": [{"us": 3.0, "ratio": None}]}
    assert "Traceback" in (tmp_path / failed.log).read_text()
    assert done.status == "ok" and done.dry and done.reason == ""
    assert done.versions["python"] == sys.version.split()[0] and done.began.endswith("Z")
    assert capsys.readouterr().out.splitlines()[0].startswith("constants: failed, ValueError: no such kernel")


def test_a_stage_whose_time_is_over_ends_by_itself_and_is_partial(tmp_path: Path) -> None:
    early, late = session(tmp_path), session(tmp_path, limit_s=record.SPARE_S - 1)
    early.check_time()
    with pytest.raises(OutOfTime):
        late.check_time()


def test_a_stage_out_of_time_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(monkeypatch, yardstick=lambda one: one.check_time())
    assert command.main(["yardstick", "--dry", "--limit", "1", "--out", str(tmp_path)]) == 0
    end = read(tmp_path, "yardstick")
    assert end.status == "partial" and "goes on where it was" in end.reason


@pytest.mark.parametrize(
    ("problem", "parts"),
    [("Torch not compiled with CUDA enabled", ("no CUDA device", "--dry")), (DRIVER, ("too old", "update the driver"))],
)
def test_without_a_device_one_sentence_and_exit_1(
    problem: str, parts: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(device, "query", lambda: Device(problem=problem, cuda="12.8"))
    assert command.main(["constants", "traces", "--out", str(tmp_path)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and all(part in line for part in parts)
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize(
    ("found", "refused", "parts"),
    [
        (Device("NVIDIA L4", 24.0, 22.9, "575.57", "12.8", 58), {"traces", "yardstick"}, ("GB", "23 of 24 are free")),
        (Device("NVIDIA H200 MIG 1g.18gb", 150.0, 149.0, "575.57", "12.8", 16, 700.0, slice=True),
         {"traces", "constants", "contention", "host-memory"}, ("slice (MIG)", "a whole one")),
    ],
)  # fmt: skip
def test_a_device_that_a_stage_cannot_have_leaves_a_record_and_the_others_run(
    found: Device, refused: set[str], parts: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def supervise(_: Any, name: str, out: Path, limit_s: float) -> Record:
        started.append(name)
        return Record(name, "ok", "")

    monkeypatch.setattr(device, "query", lambda: found)
    monkeypatch.setattr(command, "supervise", supervise)
    assert command.main([*NUMBERED, "--out", str(tmp_path)]) == 1
    assert set(NUMBERED) - set(started) == refused
    for name in refused:
        end = read(tmp_path, name)
        assert end.status == "not run" and all(part in end.reason for part in (name, *parts))
        assert end.device == asdict(found)


def test_a_device_large_enough_refuses_no_stage() -> None:
    assert device.no_device(H200) == ""
    assert not any(device.refusal(H200, name, one.memory_gb, one.whole) for name, one in command.STAGES.items())


def test_an_unknown_stage_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["constant"])
    assert "no stage 'constant'; stages: install, tests, traces" in capsys.readouterr().err


def test_the_page_says_nothing_but_that_no_stage_has_run() -> None:
    text = page.page_text([])
    assert text.splitlines()[-1] == page.NOT_RUN and "##" not in text


def test_the_page_is_that_of_the_committed_records() -> None:
    written = (ROOT / "docs" / "results" / "gpu.md").read_text(encoding="utf-8")
    assert written == page.page_text(page.read_records(page.committed()))


def measured(**changes: Any) -> Record:
    """A record as a device would leave it, with what a faulty data sheet would show."""
    figures: dict[str, Any] = {
        "data sheet": [
            {"figure": "units", "row": 132.0, "driver": 132},
            {"figure": "memory_gb", "row": 141.0, "driver": 150.1},
        ],
        "constants": [
            {"constant": "products", "measured": 0.7, "fitted": 0.78},
            {"constant": "memory", "measured": 0.9, "fitted": 0.92},
        ],
        **changes,
    }  # fmt: skip
    return Record("constants", "ok", "", device=asdict(H200), figures=figures)


@pytest.mark.parametrize(
    ("changes", "doubts"),
    [
        ({}, []),
        ({"data sheet": [{"figure": "units", "row": 132.0, "driver": 114}]}, ["units is 132 there and 114"]),
        ({"constants": [{"constant": "products", "measured": 1.25, "fitted": 0.78}]}, ["products reached 125 %"]),
        ({"constants": [{"constant": "launch_s", "measured": 3.0, "fitted": 1e-3}]}, []),
    ],
)
def test_a_row_of_the_cost_model_that_the_device_contradicts_is_named(
    changes: dict[str, Any], doubts: list[str]
) -> None:
    found = page.sheet_doubts(measured(**changes))
    assert len(found) == len(doubts) and all(part in text for part, text in zip(doubts, found, strict=True))
    assert ("contradicted" if doubts else "contradict nothing") in page.page_text([measured(**changes)])


def test_the_page_names_device_commit_and_the_worst_error_of_what_was_planted() -> None:
    rows = [
        {"scene": "stall", "what": "idle", "error_us": -40.0, "planted_us": 20000.0},
        {"scene": "copies", "what": "hidden", "error_us": 3.0, "planted_us": 0.0},
        {"scene": "training", "what": "busy", "error_us": 900.0},
    ]
    one = Record("traces", "partial", "killed at its limit of 540 s", device=asdict(H200), commit="abc" * 8,
                 versions={"torch": "2.9.1"}, figures={"pieces": rows})  # fmt: skip
    text = page.page_text([one])
    for part in ("NVIDIA H200", "driver 575.57", "torch 2.9.1", "commit abcabcabcabc", "## traces: partial",
                 "Partial: killed at its limit of 540 s.", "-40.0 µs a step (idle, stall)"):  # fmt: skip
        assert part in text, part


def test_records_of_a_small_size_and_damaged_ones_stay_off_the_page(tmp_path: Path) -> None:
    Record("constants", "ok", "", dry=True).write(tmp_path)
    with pytest.raises(InputError, match="a record of --dry"):
        page.write_page(tmp_path / "page.md", tmp_path)
    (tmp_path / "constants.json").write_text(json.dumps({"stage": "constants", "status": "good"}))
    with pytest.raises(ArtefactError, match=r"status: 'good' is not one of"):
        page.write_page(tmp_path / "page.md", tmp_path)
    assert not (tmp_path / "page.md").exists()


@pytest.mark.slow
def test_what_events_say_is_planted_to_the_nanosecond() -> None:
    pytest.importorskip("torch", reason="needs the extra 'evals'")
    from benchmarks.gpu.traces import by_events

    # A copy half behind a product, a second one within another product, twenty of nothing; in no order.
    pieces = [("compute", 40, 60), ("copy", 45, 55), ("copy", 5, 20), ("compute", 0, 10)]
    assert by_events(pieces) == {"busy": 40, "idle": 20, "hidden": 15}
    assert by_events([("compute", 7, 9)]) == {"busy": 2, "idle": 0, "hidden": 0}


EXPECTED = {
    "install": ("packages",), "tests": ("tests", "outcomes"), "traces": ("pieces",),
    "constants": ("data sheet", "products", "attention", "memory", "launches", "constants"),
    "contention": ("kappa", "exchange"), "host-memory": ("gathers", "steps"), "evaluation": ("pace", "agreement"),
    "yardstick": ("estimate of the cost model", "tuned", "losses"),
}  # fmt: skip


@pytest.mark.slow
def test_every_stage_runs_in_its_small_size_and_needs_no_other(tmp_path: Path) -> None:
    """In one process, which loads torch once; the last stage first."""
    pytest.importorskip("torch", reason="needs the extra 'evals'")
    pytest.importorskip("lm_eval", reason="needs the extra 'evals'")
    words = ["--dry", "--out", str(tmp_path), "--work", str(tmp_path / "work"), *reversed(NUMBERED), "install"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr + "".join(log.read_text() for log in tmp_path.glob("*.log"))
    ends = {name: read(tmp_path, name) for name in command.STAGES}
    for name, end in ends.items():
        assert (end.status, end.reason, end.dry) == ("ok", "", True), name
        assert set(EXPECTED[name]) <= set(end.figures), name
    pieces = ends["traces"].figures["pieces"]
    scenes = {row["scene"] for row in pieces}
    assert len(scenes) == 5 and all(ends["traces"].inputs[scene] for scene in scenes)
    [stall] = [row for row in pieces if row["scene"] == "a planted stall" and row["what"] == "idle"]
    # Both see at least the sleep; how close they are is for the device to say.
    assert min(stall["profile_us"], stall["events_us"]) > 0.9 * stall["planted_us"]
    assert all(row["equal"] for row in ends["host-memory"].figures["gathers"])
    [agreement] = ends["evaluation"].figures["agreement"]
    assert agreement["scores"] > 0 and agreement["worst_difference"] == 0
    [outcomes] = ends["tests"].figures["outcomes"]
    assert outcomes["passed"] >= 8 and "failure" not in outcomes
    yardstick = ends["yardstick"]
    assert [row["method"] for row in yardstick.figures["losses"]] == ["co2"] * 2 and "PSF" in next(
        iter(yardstick.inputs)
    )
    [tuned] = yardstick.figures["tuned"]
    assert tuned["trials"] >= 2 and tuned["loss"] <= tuned["given_loss"]
