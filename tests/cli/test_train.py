"""``densing train`` through its real entry point, with real techniques on real ranks."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from densing.cli.train import RunOptions, ShapeOptions
from densing.core.errors import InputError, UnavailableError, UnknownNameError
from densing.efficiency.parallel import named_shape
from densing.efficiency.parallel.distributed import folder, launch, network
from densing.efficiency.parallel.distributed.launch import RunFailedError
from densing.efficiency.parallel.distributed.spec import RunSpec
from densing.efficiency.simulation import parse_delay
from tests.support import command
from tests.support.command import printed

pytestmark = pytest.mark.slow

SHAPED = network.available() is None
LINK = "200mbit" if SHAPED else "emulated:200mbit"


def densing(*arguments: object, code: int = 0) -> CompletedProcess[str]:
    done = command.densing(*arguments, columns=120)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return the folder of a run of 24 steps, the last 4 of them recorded, and what the command prints of it."""
    out = tmp_path_factory.mktemp("runs") / "run"
    done = densing(
        "train", "--technique", "co2", "--nproc", 2, "--tau", 4, "--link", LINK, "--steps", 24, "--model", "tiny",
        "--seed", 7, "--trace-steps", 4, "--out", out, "--json",
    )  # fmt: skip
    return out, printed(done.stdout)


def test_a_run_record_whose_traces_profile_reads(unbroken: tuple[Path, dict[str, Any]]) -> None:
    out, run = unbroken
    assert run["technique"] == "co2" and run["knobs"]["tau"] == 4
    assert run["link"]["kind"] == ("shaped" if SHAPED else "emulated")
    assert len(run["losses"]) == 24 and run["losses"][-1] < run["losses"][0]
    # Five rounds before the recorded steps, the first of them left out.
    assert run["timed_steps"] == 16 and 0 <= run["wait_s"] <= run["step_s"]
    assert run["traces"] == "traces" and run["out"] == str(out)
    assert bool([note for note in run["notes"] if note["code"] != "busy-machine"]) is not SHAPED
    assert run["others"] is None or run["others"] >= 0
    recorded = json.loads((out / "run.json").read_text())
    assert {key: run[key] for key in recorded} == recorded
    profile = printed(densing("profile", out, "--json").stdout)
    assert [rank["rank"] for rank in profile["ranks"]] == [0, 1]
    assert not [note for note in profile["notes"] if note["severity"] == "error"]


def test_several_techniques_beside_their_prediction(tmp_path: Path) -> None:
    out, page = tmp_path / "runs", tmp_path / "report.html"
    options = ["--technique", "local-sgd,ladder", "--tau", 2, "--steps", 4, "--model", "tiny", "--trace-steps", 2,
               "--predict", "cpu2", "--out", out, "--html", page]  # fmt: skip
    shown = densing("train", *options).stdout
    assert "local-sgd" in shown and "ladder" in shown and "predicted" in shown
    summary = json.loads((out / "summary.json").read_text())
    assert [row["technique"] for row in summary["rows"]] == ["local-sgd", "ladder"]
    assert all(row["predicted_step_s"] > 0 and row["step_s"] > 0 for row in summary["rows"])
    assert all((out / name / "run.json").exists() for name in ("local-sgd-seed0", "ladder-seed0"))
    assert "ladder" in page.read_text()
    # Finished runs are read, not repeated.
    again = printed(densing("train", *options, "--resume", "--json").stdout)
    assert again["rows"] == summary["rows"]


def test_a_killed_run_goes_on_with_the_same_losses(unbroken: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    # The link, the recorded steps and the checkpoints change no weight.
    options = RunOptions("co2", tmp_path / "broken", seeds="7", tau=4, steps=24, model="tiny", checkpoint_every=3,
                         trace_steps=2)  # fmt: skip
    (broken,) = options.specifications(ShapeOptions())
    out = Path(broken.out)

    def kill() -> None:
        until = time.monotonic() + 100
        while folder.newest_checkpoint(out, 2) < 3 and time.monotonic() < until:
            time.sleep(0.005)
        os.kill(int(folder.pid_file(out, 1).read_text()), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    with pytest.raises(RunFailedError, match="--resume continues from step"):
        launch.launch(broken)
    resumed = launch.launch(broken, resume=True)
    assert resumed.resumed_from in range(3, 24, 3)
    _, run = unbroken
    assert list(resumed.losses) == run["losses"]
    assert resumed.final_loss == run["final_loss"]


def test_a_server_and_its_workers_with_injected_delays_beside_the_plan_that_draws_the_same(tmp_path: Path) -> None:
    delay, steps = "shifted-exp:a=0.02,mu=20,lasts=step", 6
    done = densing(
        "train", "-t", "ddp,gradient-coding", "--nproc", 3, "--set", "r=2", "--delay", delay, "--model", "tiny",
        "--sequence", 32, "--steps", steps, "--trace-steps", 0, "--seed", 3, "--predict", "a800x4-nvlink", "--out",
        tmp_path / "late", "--json",
    )  # fmt: skip
    document = printed(done.stdout)
    ddp, coded = document["runs"]
    drawn = parse_delay(delay)
    slept = [drawn.draw(3, step) for step in range(steps)]
    # Ranks of a data-parallel run sleep what is drawn for them, a step's all-reduce waits for the latest.
    assert ddp["extra"]["delay_s"] == pytest.approx(np.mean(slept))
    assert ddp["step_s"] >= np.mean([max(row) for row in slept[-ddp["timed_steps"] :]])
    for run in document["runs"]:
        assert run["predicted"]["step_s"] > 0.02
        assert run["delay"] == delay
    assert coded["extra"]["messages"] >= 1
    codes = [note["code"] for note in document["notes"]]
    assert {"injected-delays", "server"} <= set(codes)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--technique", "co3"], "unknown technique 'co3'; did you mean 'co2'?"),
        (["--technique", "zero3"], "zero3: can only be simulated"),
        (["--technique", "pipeline", "--nproc", "5"], "pp: 5 stages for 4 layers"),
        (["--technique", "pipeline", "--batch", "6"], "batch: 6 cannot be divided by micro_batches 4"),
        (["--technique", "pipeline", "--set", "cuts=4"], "leave a stage without layers"),
        (["--technique", "pipeline", "--set", "codec=zip"], "choose one"),
        (["--technique", "pipeline", "--set", "share=1.5"], "give a number from"),
        (["--technique", "ddp", "--steps", "0"], "steps=0"),
        (["--technique", "ddp,iso", "--delay", "shifted-exp:mu=10"], "iso: delays can only be injected into data"),
        (["--technique", "pipeline", "--delay", "shifted-exp:mu=10"], "leave --delay out"),
        (["--technique", "uc-mmc", "--nproc", "5", "--set", "r=5"], "there are 4 partitions: give 1 to 4"),
        (["--technique", "gradient-coding"], "gradient-coding: a code needs 2 workers or more; there are 1"),
        (["--technique", "uc-mmc", "--nproc", "3", "--delay", "normal:mu=10"], "normal"),
        (["--technique", "ddp", "--link", "fast"], "link 'fast'"),
        (["--technique", "ddp", "--corpus", "/nowhere/at/all.txt"], "/nowhere/at/all.txt"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_sentence(options: list[str], said: str, tmp_path: Path) -> None:
    done = densing("train", *options, "--out", tmp_path / "run", "--json", code=1)
    assert said in done.stderr and said in printed(done.stdout)["error"]["message"]


def specs(techniques: str, seeds: str = "0", tau: int | None = None, *settings: str) -> list[Any]:
    options = RunOptions(techniques, Path("out"), seeds=seeds, tau=tau, settings=[*settings])
    return options.specifications(ShapeOptions())


def test_one_specification_per_technique_and_seed() -> None:
    found = specs("co2,ddp", "0,3", 8, "co2.outer_lr=0.8")
    assert [(spec.technique, spec.seed, spec.out) for spec in found] == [
        ("co2", 0, "out/co2-seed0"),
        ("co2", 3, "out/co2-seed3"),
        ("ddp", 0, "out/ddp-seed0"),
        ("ddp", 3, "out/ddp-seed3"),
    ]
    assert (found[0].knobs["tau"], found[0].knobs["outer_lr"]) == (8, 0.8)
    assert "tau" not in found[2].knobs
    assert specs("ddp")[0].out == "out"


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (("",), InputError, "name at least one"),
        (("ddp,ddp",), InputError, "named twice"),
        (("ddp", "0,0"), InputError, "once"),
        (("ddp", "-1"), InputError, "whole numbers"),
        (("ddp", "1e3"), InputError, "whole numbers"),
        (("ddp", "0", 8), UnknownNameError, "tau"),
        (("co2", "0", 0), InputError, "tau"),
        (("co2", "0", 8, "tau=4"), InputError, "twice"),
        (("co2", "0", None, "outer_lr=nan"), InputError, "outer_lr"),
        (("co2", "0", None, "slowmo.tau=4"), InputError, "not among the techniques"),
        (("ddp,co2", "0", None, "inner=adamw"), InputError, "changes plans only"),
        (("co2", "0", None, "co2.bucket_mb=5"), InputError, "changes plans only"),
        (("co2", "0", None, "co2.nonsense=5"), UnknownNameError, "nonsense"),
    ],
)
def test_settings_that_make_no_sense_are_refused(arguments: tuple[Any, ...], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        specs(*arguments)


def test_heads_must_share_the_width() -> None:
    with pytest.raises(InputError, match="multiple of twice the heads"):
        named_shape("tiny", heads=3)
    with pytest.raises(UnknownNameError, match="small"):
        named_shape("smal")


def test_missing_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"pip install .*\[train\]"):
        launch.launch(RunSpec("ddp", out=str(tmp_path / "run")))


def test_a_table_is_gathered_ahead_and_what_needs_a_device_is_left_out(tmp_path: Path) -> None:
    pytest.importorskip("bokeh_sampledata")
    options = ["--technique", "host-gather,zero-copy", "--set", "seeds=8", "--set", "width=16", "--nproc", 1,
               "--steps", 6, "--trace-steps", 2, "--out", tmp_path / "runs"]  # fmt: skip
    done = densing("train", *options)
    assert "left out: zero-copy needs a CUDA device" in done.stderr and "no PCIe here" in done.stderr
    assert "prefetched rows gave bitwise identical weights" in done.stdout and "8 nodes per step" in done.stdout
    run = json.loads((tmp_path / "runs" / "host-gather-seed0" / "run.json").read_text())
    assert run["extra"]["equal"] == 1 and run["extra"]["predicted_step_s"] > 0 and run["traces"] == "traces"
    alone = densing("train", "-t", "zero-copy", "--nproc", 1, "--out", tmp_path / "alone", code=1)
    assert "zero-copy needs a CUDA device" in alone.stderr
