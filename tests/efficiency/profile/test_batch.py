"""Many ranks: here, over processes, over a cluster; killed and gone on; and who is to blame when one dies."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.errors import InputError
from densing.core.processes import processors
from densing.efficiency.profile import batch
from densing.efficiency.profile.batch import (
    Progress,
    identity,
    profile_ranks,
    read_list,
    result_file,
    shares,
    text_bytes,
    write_list,
)
from densing.efficiency.profile.store import read_profiles, store_files
from densing.efficiency.traces.source import TraceFile
from densing.jobs import get_executor, in_processes
from tests.support import folders
from tests.support.trace_work import Toy, work

OPTIONS = {"window": "all"}


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new processes find the work."""
    monkeypatch.setenv("PYTHONPATH", str(folders.ROOT))


def toys(folder: Path, *kinds: str) -> list[Any]:
    """Write a trace per kind of work, rank after rank."""
    folder.mkdir(exist_ok=True)
    for rank, kind in enumerate(kinds):
        (folder / f"rank{rank}.json").write_text(f"{kind} {rank} " + "x" * rank)
    return [Toy(folder / f"rank{rank}.json") for rank in range(len(kinds))]


def done_in(folder: Path) -> list[int]:
    """Return the ranks that were worked on, as often as they were."""
    log = folder / "log"
    return sorted(int(line.split()[0]) for line in log.read_text().splitlines()) if log.exists() else []


@pytest.fixture(params=["here", pytest.param("processes", marks=pytest.mark.slow)])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of working on this machine."""
    if request.param == "processes":
        monkeypatch.setattr(batch, "SMALL_BYTES", 0)
    return str(request.param)


def test_rows_are_the_same_whichever_way(tmp_path: Path, way: str) -> None:
    traces = toys(tmp_path, "ok", "ok", "ok")
    seen: list[Progress] = []
    rows = sorted(profile_ranks(traces, work, jobs=2, progress=seen.append), key=lambda row: row["rank"])
    assert [(row["rank"], row["comm_ns"]) for row in rows] == [(0, 0), (1, 10), (2, 20)]
    assert [row["input"] for row in rows] == [identity(trace) for trace in traces]
    total = sum(trace.size for trace in traces)
    assert seen[-1].done == seen[-1].total == 3 and seen[-1].done_bytes == seen[-1].total_bytes == total
    amounts = [progress.done_bytes for progress in seen]
    # Also what was told in the middle of a file.
    assert amounts == sorted(amounts) and len(amounts) >= 6
    pids = {line.split()[1] for line in (tmp_path / "log").read_text().splitlines()}
    assert (pids == {str(os.getpid())}) == (way == "here")


@pytest.mark.usefixtures("way")
def test_one_bad_trace_does_not_cost_the_others(tmp_path: Path) -> None:
    traces = toys(tmp_path, "ok", "refuse", "ok")
    got: list[dict[str, Any]] = []
    with pytest.raises(InputError) as caught:
        got.extend(profile_ranks(traces, work, jobs=2, out=tmp_path / "out"))
    assert str(caught.value) == (f"1 of 3 traces have no result:\n{traces[1].label}: no events; check the file")
    assert sorted(row["rank"] for row in read_profiles(tmp_path / "out")) == [0, 2]
    heard: list[tuple[str, str]] = []
    rows = profile_ranks(traces, work, on_failure=lambda trace, why: heard.append((trace.label, why)))
    assert len(list(rows)) == 2 and heard == [(traces[1].label, f"{traces[1].label}: no events; check the file")]


@pytest.mark.usefixtures("way")
def test_a_defect_is_no_failure_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="in 1"):
        list(profile_ranks(toys(tmp_path, "ok", "bug"), work, jobs=2))


@pytest.mark.slow
def test_a_killed_process_is_known_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "SMALL_BYTES", 0)
    traces = toys(tmp_path, "ok", "die", "ok", "exit", "ok")
    heard: dict[str, str] = {}
    rows = list(profile_ranks(traces, work, jobs=2, on_failure=lambda trace, why: heard.update({trace.path.name: why})))
    assert sorted(row["rank"] for row in rows) == [0, 2, 4]
    assert heard == {
        "rank1.json": "its process was killed by SIGKILL (out of memory?)",
        "rank3.json": "its process was ended early (exit code 7)",
    }
    with pytest.raises(InputError, match=r"rank1\.json: its process was killed by SIGKILL"):
        list(profile_ranks(traces, work, jobs=2))


@pytest.mark.slow
def test_who_stops_listening_leaves_no_process(tmp_path: Path) -> None:
    rows = in_processes(work, toys(tmp_path, "ok", "hang", "hang"), 3, lambda *_: None)
    assert next(rows).item.path.name == "rank0.json"
    end = time.monotonic() + 20
    while len(done_in(tmp_path)) < 3 and time.monotonic() < end:
        time.sleep(0.05)
    pids = [int(line.split()[1]) for line in (tmp_path / "log").read_text().splitlines()]
    rows.close()  # type: ignore[attr-defined]
    assert len(pids) == 3 and not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.usefixtures("way")
def test_what_is_stored_is_not_read_again(tmp_path: Path) -> None:
    traces, out = toys(tmp_path, "ok", "ok", "ok"), tmp_path / "out"

    def run(options: dict[str, Any] = OPTIONS) -> list[int]:
        shutil.move(tmp_path / "log", tmp_path / "old") if (tmp_path / "log").exists() else None
        rows = list(profile_ranks(traces, work, jobs=2, out=out, options=options))
        assert sorted(row["rank"] for row in rows) == [0, 1, 2]
        return done_in(tmp_path)

    assert run() == [0, 1, 2]
    assert run() == []
    # Another content, another time, another option, a damaged or a missing result: read again.
    traces[1].path.write_text("ok 1 yy")
    assert run() == [1]
    os.utime(traces[2].path, ns=(1, 1))
    assert run() == [2]
    result_file(out, traces[0]).write_bytes(b"PAR1")
    assert run() == [0]
    result_file(out, traces[0]).unlink()
    assert run() == [0]
    assert run({"window": "steps"}) == [0, 1, 2]
    assert run() == [0, 1, 2] and run() == []


def test_another_version_profiles_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = toys(tmp_path, "ok")
    list(profile_ranks(traces, work, out=tmp_path / "out"))
    monkeypatch.setattr("densing.__version__", "99")
    list(profile_ranks(traces, work, out=tmp_path / "out"))
    assert done_in(tmp_path) == [0, 0]


def test_equal_names_in_two_folders_have_a_result_each(tmp_path: Path) -> None:
    traces = [*toys(tmp_path / "a", "ok"), *toys(tmp_path / "b", "ok")]
    list(profile_ranks(traces, work, out=tmp_path / "out"))
    assert len(store_files(tmp_path / "out")) == 2
    hostile = Toy(tmp_path / "..  $(rm -rf) \n<b>.json")
    assert result_file(tmp_path, hostile).name.startswith("____rm_-rf____b_.json-")
    # As much of a long name as leaves room for the rest; what is cut off still tells results apart.
    long, longer = (result_file(tmp_path, TraceFile(tmp_path / ("x" * length + ".json"))) for length in (60, 61))
    assert long.name.rpartition("-")[0] == longer.name.rpartition("-")[0] == "x" * 60
    assert long != longer and len(long.name.rpartition("-")[2].partition(".")[0]) == 12
    members = {result_file(tmp_path, TraceFile(tmp_path / "a.zip", name, rank)) for name in "ab" for rank in (0, 1)}
    assert len(members) == 4 and {file.name[:2] for file in members} == {"a-", "b-"}


def test_identity_sees_both_ends(tmp_path: Path) -> None:
    file = tmp_path / "big.json"
    content = bytearray(1 << 20)
    seen = set()
    for position in (0, 5, (1 << 20) - 1):
        content[position] = 1
        file.write_bytes(content)
        os.utime(file, ns=(1, 1))
        seen.add(identity(Toy(file))["hash"])
    assert len(seen) == 3
    with pytest.raises(InputError, match=r"none\.json: cannot read"):
        identity(Toy(tmp_path / "none.json"))


def test_nonsense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--jobs 0"):
        list(profile_ranks([], work, jobs=0))
    with pytest.raises(InputError, match="--executor local: needs a store for its results"):
        list(profile_ranks([], work, executor=get_executor("local")))
    assert list(profile_ranks([], work)) == [] and processors() >= 1


@given(sizes=st.lists(st.integers(0, 1000), max_size=30), count=st.integers(1, 8))
def test_shares_hold_everything_once_and_are_even(sizes: list[int], count: int) -> None:
    class File:
        def __init__(self, size: int) -> None:
            self.size = size

    files: list[Any] = [File(size) for size in sizes]
    parts = shares(files, count)
    assert sorted(id(file) for part in parts for file in part) == sorted(map(id, files))
    assert len(parts) == min(count, len(files))
    loads = [sum(file.size for file in part) for part in parts]
    # Longest processing time first: no part exceeds the least by more than one file (Graham 1969).
    assert not loads or max(loads) - min(loads) <= max(sizes)


def test_compressed_bytes_count_as_the_text_they_hold(tmp_path: Path) -> None:
    for name in ("a.json", "b.json.gz", "c.zip"):
        (tmp_path / name).write_bytes(b"x" * 100)
    files = [TraceFile(tmp_path / name) for name in ("a.json", "b.json.gz", "c.zip")]
    assert [text_bytes([file]) for file in files] == [100, 1200, 1200]
    assert text_bytes(files) == 2500


def test_lists_of_traces(tmp_path: Path) -> None:
    traces = [TraceFile(tmp_path / "a.zip", "x/rank1.json", None), TraceFile(tmp_path / "b.json", None, 7)]
    path = write_list(traces, tmp_path)
    assert read_list(path) == traces and write_list(traces, tmp_path) == path
    for text in (
        "",
        "{}",
        "[1]",
        '[{"path": 5, "member": null, "rank": null}]',
        '[{"path": "a", "member": 1, "rank": 1}]',
    ):
        bad = tmp_path / "bad.json"
        bad.write_text(text)
        if text == "{}":
            assert read_list(bad) == []
            continue
        with pytest.raises(InputError, match=r"bad\.json: not a list of traces"):
            read_list(bad)
    with pytest.raises(InputError, match="not a list of traces"):
        read_list(tmp_path / "none.json")


def command(listed: Path, out: Path) -> list[str]:
    """Return what a job runs in these tests."""
    return [sys.executable, str(folders.SUPPORT / "trace_work.py"), str(listed), str(out)]


@pytest.fixture(params=["local", "slurm"])
def executor(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The executors of this package; Slurm where its cluster is up (`.ci/slurm` starts one)."""
    if request.param == "slurm":
        pytest.importorskip("submitit", reason="needs the extra slurm: pip install 'densing[slurm]'")
        if not shutil.which("sinfo"):
            pytest.skip("no Slurm here (sbatch, sinfo); run .ci/slurm as root")
        asked = ["sinfo", "--noheader", "--format", "%T"]
        states = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False).stdout.split()
        if not {"idle", "mixed", "allocated"} & set(states):
            pytest.skip("no node of the cluster is up; run .ci/slurm as root")
    yield get_executor(request.param, retries=1, **({"poll": 0.3} if request.param == "slurm" else {"workers": 2}))


@pytest.mark.slow
def test_jobs_fill_the_store(tmp_path: Path, executor: Any) -> None:
    toys(tmp_path, "ok", "once", "ok", "refuse", "die")
    traces = [TraceFile(tmp_path / f"rank{rank}.json", None, None) for rank in range(5)]
    heard: dict[str, str] = {}
    seen: list[Progress] = []
    rows = profile_ranks(
        traces,
        work,
        executor=executor,
        jobs=5,
        command=command,
        out=tmp_path / "out",
        options=OPTIONS,
        progress=seen.append,
        on_failure=lambda trace, why: heard.update({trace.path.name: why}),
    )
    assert sorted(row["rank"] for row in rows) == [0, 1, 2]
    assert sorted(heard) == ["rank3.json", "rank4.json"] and "SIGKILL" in heard["rank4.json"]
    assert "no events; check the file" in heard["rank3.json"] and seen[-1].done == 5
    # A job that crashed was started again; here no work was done.
    assert done_in(tmp_path) == [0, 1, 1, 2, 3, 3, 4, 4]
    # What failed is tried again, and nothing else.
    toys(tmp_path / "x")
    for rank in (3, 4):
        traces[rank].path.write_text(f"ok {rank}")
    again = profile_ranks(
        traces, work, executor=executor, command=command, out=tmp_path / "out", options=OPTIONS, jobs=1
    )
    assert sorted(row["rank"] for row in again) == [0, 1, 2, 3, 4]
    assert done_in(tmp_path) == [0, 1, 1, 2, 3, 3, 3, 4, 4, 4]


def test_default_command_is_densing_itself(tmp_path: Path) -> None:
    argv = batch.default_command(["--window", "hta"])(tmp_path / "l", tmp_path / "o")
    assert argv[0] == sys.executable and argv[-2:] == ["--window", "hta"]


KILLED = """
import sys
from pathlib import Path
from densing.efficiency.profile import batch
from tests.support.trace_work import Toy, work
batch.SMALL_BYTES = 0
folder = Path(sys.argv[1])
if __name__ == "__main__":
    traces = [Toy(folder / f"rank{n}.json") for n in range(8)]
    for row in batch.profile_ranks(traces, work, jobs=2, out=folder / "out"):
        print(row["rank"], flush=True)
"""


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on(tmp_path: Path) -> None:
    traces = toys(tmp_path, *["slow"] * 8)
    script = tmp_path / "run.py"
    script.write_text(KILLED)
    with subprocess.Popen([sys.executable, str(script), str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = [process.stdout.readline().strip() for _ in range(3)]
        process.send_signal(signal.SIGKILL)
        # Its workers notice; the last of them to end closes the pipe. What they were at is done again.
        process.stdout.read()
    assert all(first)
    stored = {row["rank"] for row in read_profiles(tmp_path / "out")}
    (tmp_path / "log").unlink()
    rows = list(profile_ranks(traces, work, out=tmp_path / "out"))
    assert sorted(row["rank"] for row in rows) == list(range(8))
    assert 3 <= len(stored) < 8 and done_in(tmp_path) == sorted(set(range(8)) - stored)
