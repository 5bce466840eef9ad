"""Recording: a real two-rank run over gloo with an overlap known by construction, and what may go wrong."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from densing.core.errors import InputError
from densing.efficiency.timeline.overlap import partition, select
from densing.efficiency.traces import recording
from densing.efficiency.traces.recording import Schedule, record
from densing.efficiency.traces.run import read_timeline
from tests.support import folders

torch = pytest.importorskip("torch", reason="recording needs PyTorch")
import torch.distributed as dist  # noqa: E402

pytestmark = pytest.mark.slow

SCRIPT = folders.SUPPORT / "trace_runs.py"
STEPS = 3
KINDS = ("overlapped", "blocking")


@pytest.fixture(autouse=True)
def _no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of two real processes."""
    out = tmp_path_factory.mktemp("runs")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folders.ROOT)}
    answer = subprocess.run(
        [*command, str(SCRIPT), str(out)], env=env, capture_output=True, text=True, timeout=110, check=False
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    return out


def load(file: Path) -> dict[str, Any]:
    """Read a trace with the standard library, times as exact decimals."""
    found: dict[str, Any] = json.loads(gzip.decompress(file.read_bytes()), parse_float=Decimal)
    return found


class Oracle:
    """Communication, computation and calls of a gloo trace as sets of nanoseconds' edges, by a sweep in Python."""

    def __init__(self, file: Path) -> None:
        events = load(file)["traceEvents"]
        gloo = {e["tid"] for e in events if e["name"] == "thread_name" and "pt_gloo_runloop" in e["args"]["name"]}
        whole = [e for e in events if e["ph"] == "X"]
        self.steps = [self.edges(e) for e in whole if e["name"].startswith("ProfilerStep#")]
        self.comm = [self.edges(e) for e in whole if e["name"].startswith("gloo:")]
        self.waits = [self.edges(e) for e in whole if e["name"] == "densing::wait"]
        ops = [e for e in whole if e.get("cat") == "cpu_op" and e["tid"] not in gloo]
        self.calls = [self.edges(e) for e in ops if e["name"].startswith("c10d::")]
        self.compute = [self.edges(e) for e in ops if not e["name"].startswith("c10d::")]
        self.dims = [e["args"]["Input Dims"] for e in whole if e["name"].startswith("gloo:all_reduce")]

    @staticmethod
    def edges(event: dict[str, Any]) -> tuple[int, int]:
        start = int(event["ts"] * 1000)
        return start, start + int(event["dur"] * 1000)

    def times(self) -> dict[str, int]:
        """Sweep over all edges inside the steps and add up what holds between two of them."""
        low, high = min(start for start, _ in self.steps), max(end for _, end in self.steps)
        sets = {"comm": self.comm, "compute": self.compute, "calls": self.calls}
        moments = sorted({low, high, *(t for spans in sets.values() for span in spans for t in span if low < t < high)})
        total = dict.fromkeys(("compute_ns", "comm_ns", "overlap_ns", "exposed_comm_ns", "idle_ns"), 0)
        for a, b in itertools.pairwise(moments):
            inside = {name: any(s <= a and b <= e for s, e in spans) for name, spans in sets.items()}
            busy = inside["compute"] and not inside["calls"]
            total["compute_ns"] += (b - a) * busy
            total["comm_ns"] += (b - a) * inside["comm"]
            total["overlap_ns"] += (b - a) * (busy and inside["comm"])
            total["exposed_comm_ns"] += (b - a) * (inside["comm"] and not busy)
            total["idle_ns"] += (b - a) * (not busy and not inside["comm"])
        return total


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_are_read_as_they_ran(runs: Path, kind: str) -> None:
    timeline = read_timeline([runs / kind])
    assert [rank.rank for rank in timeline.ranks] == [0, 1]
    for rank in timeline.ranks:
        assert (rank.origin.world_size, rank.origin.backend, rank.origin.rank_from) == (2, "gloo", "distributedInfo")
        assert rank.on_host and rank.skipped == rank.repaired == 0
        assert [step.number for step in rank.steps] == [2, 3, 4]
        parts = partition(select(rank, "steps"))
        assert parts.compute_ns + parts.exposed_comm_ns + parts.exposed_memcpy_ns + parts.idle_ns == parts.window_ns
        expected = Oracle(runs / kind / f"rank{rank.rank:05d}.pt.trace.json.gz").times()
        assert {name: getattr(parts, name) for name in expected} == expected


def test_overlap_is_what_the_two_loops_were_built_to_have(runs: Path) -> None:
    parts = {
        (kind, rank.rank): partition(select(rank, "steps"))
        for kind in KINDS
        for rank in read_timeline([runs / kind]).ranks
    }
    for rank in (0, 1):
        hidden, open_ = parts["overlapped", rank], parts["blocking", rank]
        # Nothing is computed while the thread stands in a blocking call: exactly nothing.
        assert open_.overlap_ns == 0 and open_.overlap_pct == 0.0
        assert open_.exposed_comm_ns == open_.comm_ns > 0
        # What is not hidden is the way into the call and out of it, and what Python does between two products.
        assert hidden.overlap_pct is not None and hidden.overlap_pct > 60
        assert hidden.exposed_comm_ns < open_.exposed_comm_ns


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_and_waits_are_recorded(runs: Path, kind: str) -> None:
    for rank in (0, 1):
        oracle = Oracle(runs / kind / f"rank{rank:05d}.pt.trace.json.gz")
        assert oracle.dims == [[[1 << 21]]] * STEPS
        assert len(oracle.waits) == STEPS
        if kind == "blocking":
            # The thread waits from right after the call until the collective has ended, and does nothing meanwhile;
            # how much of it the wait is depends on when a busy machine lets the thread go on after the call.
            for call, wait, comm in zip(*map(sorted, (oracle.calls, oracle.waits, oracle.comm)), strict=True):
                assert call[1] <= wait[0] and comm[1] <= wait[1]
                assert not any(call[0] < start < wait[1] for start, _ in oracle.compute)
        else:
            waited, communicated = (sum(end - start for start, end in rows) for rows in (oracle.waits, oracle.comm))
            assert waited < communicated / 2


def loop(out: Path, batches: int, **options: Any) -> Any:
    """Train for some steps and return the recorder."""
    with record(out, **options) as step:
        for _ in range(batches):
            torch.ones(4).sum()
            step()
    return step


def names(folder: Path) -> list[str]:
    """Return what lies in a folder, hidden files included."""
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def steps_of(file: Path) -> list[int]:
    """Return the numbers of the recorded steps."""
    found = (re.fullmatch(r"ProfilerStep#(\d+)", event["name"]) for event in load(file)["traceEvents"])
    return [int(match[1]) for match in found if match]


def test_schedule_says_which_steps_are_kept(tmp_path: Path) -> None:
    step = loop(tmp_path, 9, wait=2, warmup=1, active=2)
    assert steps_of(step.files[0]) == [3, 4]
    assert names(tmp_path) == ["rank00000.pt.trace.json.gz"]
    [note] = step.notes
    assert note.code == "trace-written" and note.details["bytes"] == step.files[0].stat().st_size
    # Long over: further calls are nothing.
    step("anything", at="all")
    step.stop()


def test_repeat_gives_every_cycle_a_folder(tmp_path: Path) -> None:
    step = loop(tmp_path, 8, active=1, repeat=2)
    assert names(tmp_path) == [f"cycle0000{n}/rank00000.pt.trace.json.gz" for n in range(2)]
    assert [steps_of(file) for file in step.files] == [[2], [5]]


@pytest.mark.parametrize(("error", "batch"), [(ZeroDivisionError, 3), (KeyboardInterrupt, 2)])
def test_a_failing_loop_leaves_what_it_recorded(tmp_path: Path, error: type[BaseException], batch: int) -> None:
    recorder = record(tmp_path, active=5)
    with pytest.raises(error), recorder as step:
        for number in range(9):
            torch.ones(4).sum()
            if number == batch:
                raise error
            step()
    assert steps_of(recorder.files[0]) == list(range(2, batch + 1))
    assert [note.code for note in recorder.notes] == ["trace-written", "recording-cut"]


def test_a_failure_before_the_recording_stays_itself(tmp_path: Path) -> None:
    recorder = record(tmp_path)
    with warnings.catch_warnings(), pytest.raises(ZeroDivisionError):
        warnings.simplefilter("error")
        with recorder:
            raise ZeroDivisionError
    assert [note.code for note in recorder.notes] == ["nothing-recorded"] and names(tmp_path) == []


def test_a_loop_too_short_is_told(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match=r"called step\(\) 1 time\(s\), but the first trace needs 5"):
        assert loop(tmp_path / "a", 1).files == ()
    with pytest.warns(RuntimeWarning, match="ended before 3 steps were recorded"):
        assert len(loop(tmp_path / "b", 3).files) == 1


def test_a_full_disk_does_not_end_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recording, "_compress", full)
    with pytest.warns(RuntimeWarning, match="trace of this rank is lost.*No space left"):
        step = loop(tmp_path, 7)
    assert [(note.code, note.severity) for note in step.notes] == [("trace-not-written", "error")]
    assert names(tmp_path) == []


def test_a_profiler_that_breaks_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopping torch's profiler after it failed within a step would crash the process."""

    def fail() -> None:
        raise RuntimeError("out of buffers")

    recorder = record(tmp_path, wait=9)
    with pytest.raises(RuntimeError, match="out of buffers"), recorder as step:
        step()
        monkeypatch.setattr(recorder._profiler, "step", fail)
        step()
    assert recorder.files == () and names(tmp_path) == []
    assert len(loop(tmp_path, 5).files) == 1


def test_traces_of_an_earlier_run_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop(tmp_path, 5)
    with pytest.raises(InputError, match=r"rank00000\.pt\.trace\.json\.gz: is a trace of an earlier run"):
        record(tmp_path).start()
    # Rank 1 of the same run may find rank 0's fresh trace, but not that of a rank it does not have.
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert loop(tmp_path, 5).files == (tmp_path / "rank00001.pt.trace.json.gz",)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    (tmp_path / "rank00000.pt.trace.json.gz").unlink()
    with pytest.raises(InputError, match="rank00001"):
        record(tmp_path).start()


def test_earlier_cycles_are_refused_too(tmp_path: Path) -> None:
    loop(tmp_path, 4, active=1, repeat=2, wait=0)
    with pytest.raises(InputError, match="earlier run"):
        record(tmp_path, repeat=2).start()


def test_a_restarted_worker_writes_beside_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop(tmp_path, 5)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert loop(tmp_path, 5).files == (tmp_path / "restart1" / "rank00000.pt.trace.json.gz",)


def test_two_processes_that_claim_one_rank_lose_nothing(tmp_path: Path) -> None:
    one, two = record(tmp_path), record(tmp_path)
    one.start()
    for _ in range(5):
        one()
    two._destination = recording.find_destination(tmp_path / "elsewhere", None)
    target = recording.Destination(tmp_path, 0, -1, "default")
    second = recording.save(target, 0, lambda path: Path(path).write_text("{}"))
    third = recording.save(target, 0, lambda path: Path(path).write_text("[]"))
    assert [file.name for file in (second, third)] == [f"rank00000.again{n}.pt.trace.json.gz" for n in (1, 2)]
    assert gzip.decompress(third.read_bytes()) == b"[]" and steps_of(one.files[0]) == [2, 3, 4]


def test_without_hard_links_nothing_is_overwritten_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    target = recording.Destination(tmp_path, 7, 8, "default")
    files = [recording.save(target, 0, lambda path: Path(path).write_text("{}")) for _ in range(2)]
    assert names(tmp_path) == sorted(file.name for file in files) and len(set(files)) == 2


@pytest.mark.parametrize("source", ["environment", "option"])
def test_rank_without_torch_distributed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    if source == "environment":
        monkeypatch.setenv("RANK", "3")
        monkeypatch.setenv("WORLD_SIZE", "8")
    step = loop(tmp_path, 5, rank=3 if source == "option" else None)
    assert step.files == (tmp_path / "rank00003.pt.trace.json.gz",)
    [rank] = read_timeline([tmp_path]).ranks
    assert (rank.rank, rank.origin.rank_from) == (3, "distributedInfo")
    assert rank.origin.world_size == (8 if source == "environment" else -1)


def test_nonsense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rank=-1"):
        record(tmp_path, rank=-1).start()
    for option, value in [("active", 0), ("wait", -1), ("repeat", 1.5), ("warmup", True)]:
        with pytest.raises(InputError, match=rf"record\({option}={value}\): must be a whole number"):
            record(tmp_path, **{option: value})
    assert Schedule(0, 0, 1).needed == 1
    recorder = record(tmp_path).start()
    with pytest.raises(InputError, match="has already begun"):
        recorder.start()
    with pytest.warns(RuntimeWarning, match="no trace"):
        recorder.stop()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_the_wait_of_others_is_given_back(tmp_path: Path) -> None:
    before = dist.Work.wait
    with record(tmp_path / "t") as step:
        assert dist.Work.wait is not before
        for _ in range(5):
            dist.all_reduce(torch.ones(8))
            step()
    assert dist.Work.wait is before
    marks = [event for event in load(step.files[0])["traceEvents"] if event["name"] == "densing::wait"]
    assert len(marks) == STEPS
    with pytest.raises(InputError, match=r"rank=1\).*torch.distributed says 0"):
        record(tmp_path / "u", rank=1).start()
    assert dist.Work.wait is before
