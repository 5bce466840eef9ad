"""Runs of several ranks: what they leave, and that nothing is left of them when something dies."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("torch")

from densing.core import DensingError, InputError
from densing.efficiency.parallel.distributed import folder, network
from densing.efficiency.parallel.distributed.launch import RunFailedError, launch
from densing.efficiency.parallel.distributed.rank import _fault
from densing.efficiency.parallel.distributed.results import timed_steps
from densing.efficiency.parallel.distributed.spec import LmShape, RunSpec

pytestmark = pytest.mark.slow

WHY_NOT = network.available()
shaped = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
REAL = "80mbit" if WHY_NOT is None else "none"


def spec_of(place: Path, **changes: Any) -> RunSpec:
    return replace(RunSpec("toy", nproc=2, steps=4, timeout_s=30.0), **{"out": str(place), **changes})


def toy(spec: RunSpec, **options: Any) -> Any:
    return launch(spec, module="tests.support.train_toy", **options)


def left(out: Path) -> list[int]:
    """Return processes that name the folder, other than this one."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(out).encode() in (entry / "cmdline").read_bytes() and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


def nets(pids: list[int]) -> set[Path]:
    return {Path(f"/proc/{pid}/ns/net").readlink() for pid in pids}


def all_nets() -> set[Path]:
    found = set()
    for place in Path("/proc").glob("[0-9]*/ns/net"):
        with suppress(OSError):
            found.add(place.readlink())
    return found


def eventually(true: Callable[[], bool], seconds: float = 60.0) -> bool:
    until = time.monotonic() + seconds
    while not true() and time.monotonic() < until:
        time.sleep(0.02)
    return true()


def rank_pid(out: Path, rank: int) -> int:
    return int(folder.pid_file(out, rank).read_text())


def kill_later(out: Path, victim: int, seen: set[Path]) -> threading.Thread:
    """Kill a rank once steps are being taken; note the network namespaces that the run has by then."""

    def kill() -> None:
        if eventually(folder.progress_file(out).exists):
            seen.update(nets([rank_pid(out, rank) for rank in range(2)]))
            os.kill(rank_pid(out, victim), signal.SIGKILL)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    return thread


def test_a_run_leaves_one_record_and_is_not_repeated(tmp_path: Path) -> None:
    steps: list[int] = []
    out = tmp_path / "run"
    spec = spec_of(out, knobs={"elements": 10, "pause": 0.25})

    def watch(step: int) -> None:
        if not steps:
            with pytest.raises(InputError, match="another run is using it"):
                toy(spec)
        steps.append(step)

    run = toy(spec, on_step=watch)
    assert run.losses == (0.5,) * 4
    assert (run.link.kind, run.traces, run.resumed_from) == ("none", None, -1)
    assert run.extra["threads"] == run.extra["cores"] == 1
    cores = sorted(os.sched_getaffinity(0))
    assert run.extra["core"] == statistics.fmean(cores[rank % len(cores)] for rank in range(2))
    assert 0 <= run.wait_s <= run.step_s and run.step_s >= 0.25
    assert json.loads((out / folder.RUN).read_text())["step_s"] == run.step_s
    assert max(steps) >= 1
    assert not left(out)
    assert toy(spec, on_step=lambda _: pytest.fail("was run again")).to_dict() == run.to_dict()
    with pytest.raises(InputError, match="--resume"):
        toy(spec_of(out, steps=5))
    kept = (out / folder.RUN).read_text()
    with pytest.raises(InputError, match="seed was 0 and is now 3; resume with the same options"):
        toy(replace(spec, seed=3), resume=True)
    assert (out / folder.RUN).read_text() == kept and toy(spec).to_dict() == run.to_dict()


def test_a_link_that_cannot_be_shaped_is_emulated_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_TOOLS", {"no-such-tool": "nothing"})
    # 1 MB at 10 MB/s: 100 ms, of which 50 ms pass under the pause.
    run = toy(spec_of(tmp_path / "run", link="80mbit", knobs={"elements": 250_000, "pause": 0.05}))
    assert (run.link.rate, run.link.kind) == ("80mbit", "emulated")
    assert "no-such-tool" in run.link.reason
    assert run.step_s >= 0.1
    assert 0.0 < run.wait_s <= run.step_s - 0.05


@shaped
def test_ranks_on_a_shaped_link_wait_for_its_rate(tmp_path: Path) -> None:
    # Each rank sends 2 MB per step; the bucket holds 0.03 MB of them.
    run = toy(spec_of(tmp_path / "run", nproc=3, link="80mbit", knobs={"elements": 375_000}))
    assert run.link.to_dict() | {"reason": ""} == {
        "rate": "80mbit", "kind": "shaped", "bytes_per_s": 1e7, "latency_s": 0.0, "reason": ""
    }  # fmt: skip
    assert run.step_median_s > 0.9 * 2e6 / 1e7


@shaped
def test_the_slowest_of_links_that_differ_is_waited_for(tmp_path: Path) -> None:
    run = toy(spec_of(tmp_path / "run", nproc=3, link="1gbit,80mbit,1gbit", knobs={"elements": 375_000}))
    assert (run.link.rate, run.link.kind, run.link.bytes_per_s) == ("1gbit,80mbit,1gbit", "shaped", 1e7)
    assert run.step_median_s > 0.9 * 2e6 / 1e7


@linux
@pytest.mark.parametrize(("link", "victim"), [("none", 1), (REAL, 0)])
def test_a_killed_process_ends_the_run_at_once_and_all_of_it(link: str, victim: int, tmp_path: Path) -> None:
    out, seen = tmp_path / "run", set[Path]()
    killer = kill_later(out, victim, seen)
    with pytest.raises(RunFailedError, match=r"SIGKILL.*all ranks were stopped.*--resume") as caught:
        toy(spec_of(out, steps=10_000, link=link, timeout_s=600.0, knobs={"pause": 0.05}))
    killer.join()
    assert str(caught.value).startswith(f"rank {victim} ")
    assert "\n" not in str(caught.value)
    assert not left(out)
    assert len(seen) == (1 if link == "none" else 2)
    assert eventually(lambda: not (seen - nets([os.getpid()])) & all_nets(), 10)


@linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_run_ends_with_the_process_that_started_it(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "run"
    spec = spec_of(out, steps=10_000, link=REAL, knobs={"pause": 0.05})
    code = (
        "import sys, msgspec; from densing.efficiency.parallel.distributed.launch import launch;"
        "from densing.efficiency.parallel.distributed.spec import RunSpec;"
        "launch(RunSpec.from_dict(msgspec.json.decode(sys.argv[1])), module='tests.support.train_toy')"
    )
    text = json.dumps(spec.to_dict())
    with subprocess.Popen([sys.executable, "-c", code, text], stderr=subprocess.DEVNULL) as launcher:
        assert eventually(folder.progress_file(out).exists)
        seen = nets([rank_pid(out, rank) for rank in range(2)])
        launcher.send_signal(number)
    assert launcher.returncode != 0
    assert eventually(lambda: not left(out))
    assert eventually(lambda: not (seen - nets([os.getpid()])) & all_nets())
    names = [place.name for place in Path("/sys/class/net").iterdir()]
    assert network.INTERFACE not in names


@linux
def test_ranks_that_stand_still_end_the_run_at_its_time_out_and_all_of_it(tmp_path: Path) -> None:
    out = tmp_path / "run"

    def stop() -> None:
        assert eventually(folder.progress_file(out).exists)
        for rank in range(2):
            os.kill(rank_pid(out, rank), signal.SIGSTOP)

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    began = time.monotonic()
    with pytest.raises(RunFailedError, match=r"^rank [01] was stopped \(SIGSTOP\).* for 3 s"):
        toy(spec_of(out, steps=10_000, timeout_s=3.0, knobs={"pause": 0.05}))
    thread.join()
    assert time.monotonic() - began < 60
    assert eventually(lambda: not left(out), 10)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small disk can be mounted by root alone")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@linux
@pytest.mark.parametrize(("free", "every"), [(3 << 20, 1), (200_000, 0), (100_000, 0), (30_000, 0)])
def test_a_full_disk_is_named(small_disk: Path, free: int, every: int) -> None:
    (small_disk / "other").write_bytes(bytes((3 << 20) - free))
    out = small_disk / "run"
    model = LmShape(layers=2, hidden=96, heads=2, ffn=128)
    spec = replace(
        RunSpec("local-sgd", knobs={"tau": 2}, steps=6, batch=2, sequence=32, timeout_s=30.0, trace_steps=2),
        model=model, checkpoint_every=every, out=str(out),
    )  # fmt: skip
    with pytest.raises(DensingError, match=rf"{out}.*[Nn]o space left on") as caught:
        launch(spec)
    assert "\n" not in str(caught.value)
    assert not left(out)


@pytest.mark.parametrize(
    ("fail", "said"),
    [
        ("raise", r"^rank 1 failed: ValueError: made to fail \(log: .*rank00001.log\); all ranks were stopped"),
        ("hang", "^rank 0 timed out waiting for another rank, which hangs or is stopped: .*[Tt]imed out"),
    ],
)
def test_a_rank_that_fails_is_named_with_its_reason(fail: str, said: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(RunFailedError, match=said):
        toy(spec_of(out, timeout_s=5.0 if fail == "hang" else 60.0, knobs={"fail": fail}))
    assert not left(out)


def test_what_the_user_did_wrong_is_said_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^corpus.txt: made to fail; choose another$"):
        toy(spec_of(tmp_path / "run", knobs={"fail": "input"}))


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"nproc": 0}, "nproc"), ({"steps": 0}, "steps"), ({"batch": -1}, "batch"), ({"lr": float("nan")}, "lr"),
     ({"timeout_s": float("inf")}, "timeout_s"), ({"out": ""}, "--out"), ({"link": "fast"}, "link"),
     ({"link": "1mbit", "nproc": 1}, "nproc")],
)  # fmt: skip
def test_a_specification_that_makes_no_sense_is_refused(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=named):
        toy(spec_of(tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    for resume in (False, True):
        with pytest.raises(InputError, match="choose another --out"):
            toy(spec_of(tmp_path), resume=resume)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (InputError("corpus.txt: not there"), "input"),
        (ValueError("shapes differ"), "own"),
        (RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer"), "peer"),
        (
            RuntimeError("[gloo/unbound_buffer.cc:81] Timed out waiting 1000ms for recv operation to complete"),
            "timeout",
        ),
    ],
)
def test_faults_of_peers_are_told_from_own_ones(error: Exception, fault: str) -> None:
    assert _fault(error) == fault


@pytest.mark.parametrize("tau", [None, 1, 2, 5, 8, 100, 0.5])
@pytest.mark.parametrize("count", [0, 1, 7, 40])
@pytest.mark.parametrize("traced", [0, 3, 8])
def test_timed_steps_are_whole_rounds_without_recorded_steps(tau: Any, count: int, traced: int) -> None:
    chosen = range(count)[timed_steps(count, traced, {} if tau is None else {"tau": tau})]
    assert len(chosen) >= min(count, 1)
    if count > traced:
        assert all(step < count - traced for step in chosen)
        if isinstance(tau, int) and tau <= count - traced:
            assert len(chosen) % tau == 0


def test_a_worker_that_dies_before_all_have_met_ends_a_servers_run_at_once(tmp_path: Path) -> None:
    # With a timeout that no test would see the end of.
    spec = spec_of(tmp_path / "run", nproc=3, knobs={"fail": "early", "rank": 2}, timeout_s=100_000.0)
    with pytest.raises(RunFailedError, match="rank 2 failed: ValueError: made to fail before the others are met"):
        toy(spec, server=True)
