"""``densing profile`` through its real entry point, on traces written here and on the recorded ones where they are."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from densing.cli import app
from densing.cli.profile import Source, _across, _executor
from densing.efficiency.profile.rank import METRICS
from densing.efficiency.profile.run import merge_run
from densing.jobs.local import LocalExecutor
from tests.support import folders, trace_make
from tests.support.command import printed
from tests.support.profile_command import cut, densing, event, profile, run_of, trace, two, write
from tests.support.straggler_runs import profiles

JOBS = next(folder for folder in (folders.RECORDED / "straggler", folders.TRACES / "straggler") if folder.exists())

__all__ = ["two"]

# Whole public sets where they are; those that travel with the tests elsewhere.
RECORDED = folders.RECORDED if folders.RECORDED.exists() else folders.TRACES
KEYS = ("window_ns", "span_ns", "compute_ns", "comm_ns", "memcpy_ns", "overlap_ns", "exposed_comm_ns",
        "exposed_memcpy_ns", "idle_ns")  # fmt: skip


def test_the_json_contract(two: Path) -> None:
    found = profile(two)
    assert found["window"] == "steps"
    assert found["skipped_events"] == 0
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    first = found["ranks"][0]
    expected = (300_000, 270_000, 150_000, 120_000, 0, 60_000, 60_000, 0, 90_000)
    assert tuple(first[key] for key in KEYS) == expected
    assert first["overlap_pct"] == 50
    for rank in found["ranks"]:
        parts = ("compute_ns", "exposed_comm_ns", "exposed_memcpy_ns", "idle_ns")
        assert sum(rank[key] for key in parts) == rank["window_ns"]
        assert sum(rank["idle"]["causes"].values()) == rank["idle_ns"]


def test_every_window_is_named_and_an_unknown_one_is_refused(two: Path) -> None:
    for window in ("steps", "all", "hta"):
        assert profile(two, "--window", window)["window"] == window
    assert "did you mean 'steps'" in densing("profile", two, "--window", "step", code=1).stderr


def test_two_ranks_tell_who_is_waited_for(two: Path) -> None:
    found = profile(two)
    assert found["stragglers"]["worst"] == 1
    assert found["what_if"]["slowdown"] is not None
    assert found["critical_path"] is not None
    [row] = found["collectives"]
    assert (row["op"], row["count"], row["bytes"]) == ("all_reduce", 6, 0)
    codes = [cause["code"] for cause in found["causes"]]
    # The launch behind a pause that ends with the transfer waits for it.
    assert codes == ["blocking-wait", "host-bound", "exposed-communication"]
    assert found["replay"]["status"] == "ok" and found["replay"]["replayed_ns"] == 300_000


def test_changes_are_replayed_one_by_one(two: Path) -> None:
    found = profile(two, "--what-if", "hide=all_reduce", "--what-if", "drop-rank=1,link=2x")
    free, other = found["planned"]
    assert free["change"] == "hide=all_reduce" and free["before_ms"] == other["before_ms"] == pytest.approx(0.1)
    assert 0 < free["gain_pct"] < 100 and free["after_ms"] < 0.1
    shown = densing("profile", two, "--what-if", "hide=all_reduce").stdout
    assert f"{free['gain_pct']:.1f} % less; bound by" in shown
    assert profile(two)["planned"] == []
    # Refused before a trace is read, where no run is needed to know.
    made = two / ".." / "made.json"
    assert "the run with link=2x" in densing("profile", two, "--what-if", "link=2x", "--what-if-trace", made).stderr
    kinds = {event.get("name") for event in json.loads(made.read_text())["traceEvents"]}
    assert {"all_reduce", "compute"} <= kinds
    assert "belongs to one --what-if" in densing("profile", two, "--what-if-trace", made, code=1).stderr
    assert "link=2x" in densing("profile", "--what-if", "link=fast", "no-such-folder", code=1).stderr
    assert "no such rank" in densing("profile", two, "--what-if", "drop-rank=7", code=1).stderr


def test_a_process_that_drives_several_devices_gives_a_rank_for_each(tmp_path: Path) -> None:
    """The second device is idle for half of the first one's work; a copy of a third one counts to the first."""
    lane = {"ph": "X", "cat": "kernel", "name": "gemm", "tid": 7}
    spans = [(0, 0, 80), (0, 100, 80), (10, 0, 40), (10, 100, 40)]
    events = [
        {**lane, "pid": device, "ts": ts, "dur": dur, "args": {"stream": 7, "device": device}}
        for device, ts, dur in spans
    ]
    copy = {
        "cat": "gpu_memcpy",
        "name": "Memcpy PtoP",
        "pid": 5,
        "ts": 80,
        "dur": 5,
        "args": {"stream": 7, "device": 5},
    }
    content = {"traceEvents": [*events, {**lane, **copy}]}
    path = write(tmp_path / "t.json", content)
    found = profile(path)
    assert [(rank["rank"], rank["compute_ns"], rank["memcpy_ns"]) for rank in found["ranks"]] == [
        (0, 160_000, 5_000), (1, 80_000, 0)
    ]  # fmt: skip
    assert [rank["events"] for rank in found["ranks"]] == [5, 0] and found["ranks"][0]["world_size"] == 2
    assert "device-ranks" in {note["code"] for note in found["notes"]}
    [planned] = profile(path, "--what-if", "fuse=gemm")["planned"]
    assert planned["before_ms"] == pytest.approx(0.18)
    # Into a store a file goes as one rank, and one of several ranks stays one; both are told what to do.
    stored = next(note for note in profile(path, "--out", tmp_path / "s")["notes"] if note["code"] == "several-devices")
    assert stored["message"].endswith("or give this one alone and without --out: then every device is a rank")
    write(tmp_path / "t.json", {**content, "distributedInfo": {"rank": 1, "world_size": 4}})
    several = next(note for note in profile(path)["notes"] if note["code"] == "several-devices")
    assert several["message"].endswith("record one trace per rank and device to separate them")


def test_kernels_are_read_again_to_be_fused(two: Path, tmp_path: Path) -> None:
    content = trace(0)
    for step in (1, 2, 3):
        at = 100.0 * step
        content["traceEvents"] += [
            event("cuda_runtime", "cudaLaunchKernel", at + 62 + 6 * n, 3, correlation=10 * step + 2 + n)
            for n in range(5)
        ] + [
            event("kernel", "add<float>", at + 66 + 6 * n, 1, stream=7, device=0, correlation=10 * step + 2 + n)
            for n in range(5)
        ]  # fmt: skip
    [found] = profile(write(tmp_path / "rank0.json", content), "--what-if", "fuse=add<")["planned"]
    assert "5 kernels a rank and step become 1 launch" in found["model"] and found["gain_pct"] > 10
    [alone] = profile(two, "--what-if", "fuse=sgemm")["planned"]
    assert alone["gain_pct"] == 0
    store = tmp_path / "store"
    profile(two, "--out", store)
    refused = densing("profile", store, "--what-if", "fuse=sgemm", code=1).stderr
    assert "stored results hold no single kernels" in refused
    assert "no computation's name holds it" in densing("profile", two, "--what-if", "fuse=Sgemm", code=1).stderr


def test_one_rank_says_nothing_of_others(two: Path) -> None:
    found = profile(two / "rank0.json")
    assert found["stragglers"] is None and found["clocks"] is None


def test_without_communication_ratios_are_null(tmp_path: Path) -> None:
    content = trace(0)
    content["traceEvents"] = [row for row in content["traceEvents"] if not row["name"].startswith("nccl")]
    found = profile(write(tmp_path / "t.json", content))
    assert found["ranks"][0]["overlap_pct"] is None
    assert found["figures"]["overlap_pct"] is None


def test_a_summary_fits_a_screen(two: Path) -> None:
    text = densing("profile", two).stdout
    lines = text.splitlines()
    # What was found stands on the first screen; single names follow.
    assert lines.index(next(line for line in lines if line.startswith("Name "))) <= 24
    assert "window steps" in text and "50.0" in text
    assert any(line.lstrip().startswith("try:") for line in lines)


def test_a_condition_that_holds_gives_exit_code_4(two: Path) -> None:
    assert profile(two, "--fail-if", "exposed_pct>10", code=4)["fail_if"]
    assert profile(two, "--fail-if", "exposed_pct>90")["fail_if"] == []
    assert "exposed" in densing("profile", two, "--fail-if", "exposd_pct>1", code=1).stderr


def test_explain_names_the_rule() -> None:
    found = printed(densing("profile", "--explain", "ncclDevKernel_Generic(4096)", "--json").stdout)
    assert (found["kind"], found["rule"], found["known"]) == ("comm", "nccl", True)
    assert "kernel-default" in densing("profile", "--explain", "frobnicate<int>").stdout
    mine = printed(densing("profile", "--explain", "my_ring", "--comm-pattern", "my_", "--json").stdout)
    assert mine["kind"] == "comm"


def test_a_users_pattern_turns_compute_into_communication(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", trace(0, comm="mylib_ring_sum"))
    plain, told = profile(path), profile(path, "--comm-pattern", "mylib_")
    assert plain["ranks"][0]["comm_ns"] == 0 and told["ranks"][0]["comm_ns"] == 120_000
    assert [row["name"] for row in plain["ranks"][0]["unrecognised"]] == ["mylib_ring_sum"]


def test_two_files_of_one_rank_are_refused_until_told_apart(tmp_path: Path) -> None:
    one, other = write(tmp_path / "a.json", trace(0)), write(tmp_path / "b.json", trace(0))
    message = densing("profile", one, other, code=1).stderr
    assert "a.json" in message and "b.json" in message and "rank 0" in message
    found = profile(one, other, "--rank", "a.json=0", "--rank", "b.json=1")
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]


def test_a_truncated_rank_is_read_as_far_as_it_goes(two: Path) -> None:
    text = (two / "rank1.json").read_text()
    (two / "rank1.json").write_text(text[: text.rindex('"args"')])
    found = profile(two, code=3)
    assert found["skipped_events"] == 1
    assert any("rank1.json" in note["message"] and note["severity"] == "error" for note in found["notes"])


def test_a_rank_that_is_no_trace_is_left_out_and_said_so(two: Path) -> None:
    (two / "rank2.json").write_text("this is no trace")
    found = profile(two, code=3)
    assert len(found["ranks"]) == 2
    assert any("rank2.json" in note["message"] and note["severity"] == "error" for note in found["notes"])


def test_nothing_to_read_is_one_sentence(tmp_path: Path) -> None:
    for paths in ((), (tmp_path,), (tmp_path / "absent.json",)):
        assert len(densing("profile", *paths, code=1).stderr.strip().splitlines()) == 1


def test_results_are_stored_merged_and_resumed(two: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    direct = profile(two, "--out", store)
    files = sorted(store.glob("*.parquet"))
    assert len(files) == 2
    before = [path.stat().st_mtime_ns for path in files]
    again = profile(two, "--out", store)
    assert [path.stat().st_mtime_ns for path in files] == before, "what is stored is not read again"
    merged = profile(store)
    for key in ("figures", "ranks", "collectives", "stragglers", "causes", "critical_path"):
        assert direct[key] == again[key] == merged[key]


def test_ranks_spread_over_jobs_give_the_same_answer(two: Path, tmp_path: Path) -> None:
    jobs = profile(two, "--out", tmp_path / "store", "--executor", "local", "--jobs", 2)
    direct = profile(two)
    assert jobs["figures"] == direct["figures"] and jobs["stragglers"] == direct["stragglers"]
    assert jobs["options"] == profile(tmp_path / "store")["options"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--perfetto", "run/rank0.json"), "one of the files to be read"),
        (("--html", "run/rank1.json"), "one of the files to be read"),
        (("--html", "base/rank0.json", "--compare", "base"), "one of the files to be read"),
        (("--html", "o.html", "--perfetto", "o.html"), "name one file"),
        (("--html", "/dev/null"), "not a regular file"),
        (("--html", "run"), "not a regular file"),
        (("--perfetto", "o.zip"), ".json.gz"),
        (("--jobs", "-1"), "--jobs -1"),
        (("--fail-if", "foo>1"), "foo"),
        (("--mfu", "params=x"), "params"),
        (("--comm-pattern", "("), "--comm-pattern"),
        (("--rank", "rank0.json=99999999999999999999"), "--rank"),
        (("--rank", "rank0.json=٣"), "--rank"),
        (("--out", "run"), "holds traces"),
    ],
)
def test_flags_that_cannot_work_are_refused_before_anything_is_touched(
    two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], words: str
) -> None:
    write(tmp_path / "base" / "rank0.json", trace(0))
    monkeypatch.chdir(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    done = densing("profile", "run", *flags, code=1)
    assert words in done.stderr and "internal error" not in done.stderr
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_store_answers_only_what_it_holds(two: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    profile(two, "--out", store)
    assert profile(store, "--window", "steps")["window"] == "steps"
    for flags in (("--window", "all"), ("--comm-pattern", "x"), ("--rank", "a=1"), ("--executor", "local")):
        assert "stored" in densing("profile", store, *flags, code=1).stderr
    for rank in (2, 3):
        write(tmp_path / "other" / f"rank{rank}.json", trace(rank))
    assert "results of other traces" in densing("profile", tmp_path / "other", "--out", store, code=1).stderr
    (two / "x.parquet").write_bytes(b"")
    assert "traces and stored results" in densing("profile", two, code=1).stderr


def test_runs_of_different_windows_are_not_compared(two: Path, tmp_path: Path) -> None:
    profile(two, "--window", "all", "--out", tmp_path / "store")
    assert "stored with all" in densing("profile", two, "--compare", tmp_path / "store", code=1).stderr


def test_a_closed_stderr_is_no_error(two: Path) -> None:
    command = f"exec 2>&-; {sys.executable} -m densing profile {two}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "window steps" in done.stdout


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_pipe_is_refused_rather_than_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "regular file" in densing("profile", tmp_path / "pipe", code=1).stderr


def test_the_same_run_compares_as_unchanged(two: Path) -> None:
    comparison = profile(two, "--compare", two)["comparison"]
    assert comparison is not None
    assert "slower" not in json.dumps(comparison)


def test_the_report_and_the_overlay_are_written(two: Path, tmp_path: Path) -> None:
    page, overlay = tmp_path / "p.html", tmp_path / "o.json.gz"
    said = densing("profile", two, "--html", page, "--perfetto", overlay).stderr
    assert "--detail host draws them" in " ".join(said.split())
    assert "<html" in page.read_text()
    events = json.loads(gzip.decompress(overlay.read_bytes()))["traceEvents"]
    assert len(events) > 2 * len(trace(0)["traceEvents"])


def test_utilisation_names_its_formula_and_refuses_above_100(two: Path) -> None:
    found = profile(two, "--mfu", "params=1e6,tokens=1,peak=1")["utilisation"]
    # 6 N FLOPs per token, one token per 100 µs, two devices of 1 TFLOP/s.
    assert found["mfu_pct"] == pytest.approx(100 * 6e6 / 100e-6 / 2e12)
    assert found["mfu"]["flops"]["formula"] == "palm"
    assert "100 %" in densing("profile", two, "--mfu", "params=1e12,tokens=1,peak=1", code=1).stderr


def test_utilisation_stands_in_the_report(two: Path, tmp_path: Path) -> None:
    page = tmp_path / "p.html"
    densing("profile", two, "--mfu", "params=1e6,tokens=1,peak=1", "--html", page)
    assert "Model FLOPs utilisation is 3.00" in page.read_text()


def test_a_trace_of_a_jobs_operations_says_what_slow_workers_cost() -> None:
    path = next(JOBS.glob("trace-*.parquet"))
    found, shown = profile(path), densing("profile", path).stdout
    assert found["slowdown"]["mean"] > 1 and f"slow workers {found['slowdown']['mean']:.3f}" in shown
    assert "explained by the last stage" in shown
    assert "no option but --json" in densing("profile", path, "--what-if", "link=2x", code=1).stderr


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", trace(0, comm="nccl\x1b[31m<script>alert(1)</script>"))
    done = densing("profile", path)
    assert "\x1b" not in done.stdout + done.stderr
    page = tmp_path / "p.html"
    densing("profile", path, "--html", page)
    assert "<script>alert(1)" not in page.read_text()


def test_all_golden_partitions_through_the_command() -> None:
    windows = {"all": "all", "launched_before_last_step": "hta", "clipped_to_steps": "steps"}
    names = {"window_ns": "window_ns", "span_ns": "span_ns", "compute_ns": "compute_ns", "comm_ns": "comm_ns",
             "memcpy_ns": "memory_ns", "overlap_ns": "overlap_ns", "exposed_comm_ns": "exposed_comm_ns",
             "exposed_memcpy_ns": "exposed_mem_ns", "idle_ns": "idle_in_window_ns"}  # fmt: skip
    files = {path.name.removesuffix(".gz"): path for path in RECORDED.rglob("*.gz")}
    rows = list(csv.DictReader((folders.TRACES / "golden" / "exact_reference.csv").read_text().splitlines()))
    chosen = [row for row in rows if row["file"] in files and (row["set"] != "dlrm_kineto" or row["rank"] in "07")]
    assert chosen
    for row in chosen:
        [rank] = profile(files[row["file"]], "--window", windows[row["window"]])["ranks"]
        assert {ours: rank[ours] for ours in names} == {ours: int(row[theirs]) for ours, theirs in names.items()}


GOOD, LOST = (50_000, 40_000, 20_000, 20_000), (0, 40_000, 0, 40_000)
# What EXPECTED.md beside the files asks: exit code, compute, communication, overlap, exposed; skipped, repaired.
MALFORMED = {
    "good_indent": (0, GOOD, 0, 0),
    "good_minified": (0, GOOD, 0, 0),
    "two_min": (0, GOOD, 0, 0),
    "string_pid": (0, GOOD, 0, 0),
    "bare_array": (0, GOOD, 0, 0),
    "trailing_comma": (0, GOOD, 0, 1),
    "ctrl_char": (0, GOOD, 0, 1),
    "utf8_bad": (0, GOOD, 0, 1),
    "bad_backslash": (0, GOOD, 0, 1),
    "string_ts": (0, (50_000, 40_000, 20_500, 19_500), 0, 1),
    "nan_dur": (3, LOST, 1, 0),
    "infinity": (3, LOST, 1, 0),
    "neg_dur": (3, LOST, 1, 0),
    "huge_dur": (3, LOST, 1, 0),
    "truncated": (3, (50_000, 0, 0, 0), 1, 0),
}


@pytest.mark.parametrize("name", sorted(MALFORMED))
def test_a_damaged_file_gives_what_can_be_had(name: str) -> None:
    code, numbers, skipped, repaired = MALFORMED[name]
    found = profile(folders.TRACES / "malformed" / name, code=code)
    assert (found["skipped_events"], found["repaired_events"]) == (skipped, repaired)
    for rank in found["ranks"]:
        assert tuple(rank[key] for key in ("compute_ns", "comm_ns", "overlap_ns", "exposed_comm_ns")) == numbers
    noted = [note["severity"] for note in found["notes"] if rf"{name}/rank" in note["message"]]
    assert ("error" in noted) == bool(skipped) and ("warning" in noted) == bool(repaired)
    if name == "truncated":
        assert found["ranks"][0]["overlap_pct"] is None


@pytest.mark.parametrize("name", ["empty_events", "dup_rank"])
def test_a_file_without_an_answer_is_an_error_of_one_line(name: str) -> None:
    message = densing("profile", folders.TRACES / "malformed" / name, code=1).stderr.strip()
    assert len(message.splitlines()) == 1 and "rank0.json" in message


# Flags: refused before hours of reading, and nothing said is lost.
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--compare", "absent"), "absent: no such file"),
        (("--compare", "absent.parquet"), "absent.parquet: no such file"),
        (("--compare", "empty"), "empty: contains no trace"),
        (("--html", "file/page.html"), "--html file/page.html: nothing can be written in"),
        (("--perfetto", "file/deep/o.json"), "--perfetto file/deep/o.json: nothing can be written in"),
        (("--out", "file/store"), "--out file/store: nothing can be written in"),
        (("--perfetto", "run/overlay.json.gz"), "another rank next time"),
        (("--fail-if", "mfu_pct<30"), "mfu_pct needs --mfu"),
        (("--fail-if", "idle_pct>99 or hfu_pct<30"), "hfu_pct needs --mfu"),
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
    assert "another rank next time" in message
    densing("profile", two, "--perfetto", two / "overlay" / "o.json")
    assert len(profile(two)["ranks"]) == 2


@pytest.mark.parametrize(
    ("where", "flags", "told"),
    [
        ("densing.cli.build", (), "stopped\n"),
        ("densing.cli.profile.read_run", (), "stopped\n"),
        ("densing.cli.profile.read_run", ("--out", "store"), "stopped; the same command resumes from store\n"),
    ],
)
def test_an_interrupt_is_one_line(two: Path, tmp_path: Path, where: str, flags: tuple[str, ...], told: str) -> None:
    module, _, name = where.rpartition(".")
    script = (
        f"import sys, {module} as place, densing.cli as cli\n"
        f"def pressed(*_): raise KeyboardInterrupt\nplace.{name} = pressed\n"
        f"sys.argv = ['densing', 'profile', {str(two)!r}, *{flags!r}]\ncli.main()"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", told)


def test_stored_results_have_no_spans_to_write_back(two: Path, tmp_path: Path) -> None:
    profile(two, "--out", tmp_path / "store")
    message = densing("profile", tmp_path / "store", "--perfetto", tmp_path / "o.json", code=1).stderr
    assert "give the traces instead" in message


def test_arguments_reach_the_executor() -> None:
    made = _executor(Source(executor="local", executor_arg=["workers=3", "retries=0,memory_gb=2.5"]))
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


def test_every_figure_that_can_be_guarded_is_documented(two: Path) -> None:
    text = (folders.ROOT / "docs" / "explanation" / "profile.md").read_text(encoding="utf-8")
    for name in {**METRICS, **profile(two)["figures"], "mfu_pct": "", "hfu_pct": ""}:
        assert f"`{name}`" in text


# The screen.
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
    assert "[31m" in shown
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
    above = lines.index(next(line for line in lines if line.startswith("Name ")))
    assert above <= {80: 28, 100: 24}[columns]


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
    assert re.search(r"1\. 0\.000\d+ ms per step", text)
    assert "0.00 ms per" not in text


def test_communications_at_the_same_time_are_not_to_be_added_up(tmp_path: Path) -> None:
    content = grouped(0, "g")
    both = [{**row, "args": {**row["args"], "stream": 21, "Process Group Name": "h"}}
            for row in content["traceEvents"] if row["name"].startswith("nccl")]  # fmt: skip
    alone = densing("profile", write(tmp_path / "alone.json", content)).stdout
    assert "same time" not in alone
    content["traceEvents"] += both
    text = densing("profile", write(tmp_path / "both.json", content)).stdout
    assert "all kinds together expose 20.0 µs, less than their sum" in text


def test_the_document_is_strict_json(tmp_path: Path) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    done = densing("profile", run_of_two(tmp_path / "run", HOSTILE), "--mfu", "params=1e6,tokens=1", "--json")
    assert done.stderr == ""
    found = json.loads(done.stdout, parse_constant=refuse)["data"]
    assert found["utilisation"]["mfu_pct"] is None
    assert set(found["ranks"][0]) >= {
        *("rank", "window_ns", "span_ns", "compute_ns", "comm_ns", "memcpy_ns", "overlap_ns", "exposed_comm_ns"),
        *("exposed_memcpy_ns", "idle_ns", "overlap_pct"),
    }
    for rank in found["ranks"]:
        assert all(type(value) is int for key, value in rank.items() if key.endswith("_ns") and value is not None)


# A device whose kernels the trace does not hold.
DEVICES = {"deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}]}
GLOO = {"distributedInfo": {"backend": "gloo", "rank": 0, "world_size": 2}}
OPERATORS = [
    trace_make.event("user_annotation", "ProfilerStep#1", 0, 100),
    trace_make.event("cpu_op", "aten::mm", 1, 98),
]
LAUNCHES = [trace_make.event("cuda_runtime", "cudaLaunchKernel", 3 + at, 1, correlation=at) for at in range(5)]
RANGES = [trace_make.event("cuda_profiler_range", "model step", 5, 20)]
SYNC = [trace_make.event("cuda_runtime", "cudaDeviceSynchronize", 99, 1, correlation=9)]
COPIES = [{**trace_make.kernel("Memcpy HtoD (Pageable -> Device)", 5, 3), "cat": "gpu_memcpy"}]


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("events", "header", "seen"),
    [
        (LAUNCHES + RANGES, DEVICES, "calls of cudaLaunchKernel"),
        (LAUNCHES, GLOO, "calls of cudaLaunchKernel"),
        (LAUNCHES + COPIES, {}, "calls of cudaLaunchKernel"),
        (RANGES, {}, "events of cuda_profiler_range"),
        (SYNC, {}, "events of cuda_runtime"),
        ([], DEVICES, "NVIDIA A100-SXM4-40GB"),
    ],
)
def test_a_device_without_kernels_is_no_processor(
    tmp_path: Path, events: list[trace_make.Event], header: dict[str, Any], seen: str
) -> None:
    path = trace_make.write(tmp_path / "rank0.json", OPERATORS + events, **header)
    rank = trace_make.read(path)
    [note] = [note for note in rank.notes if note.code == "no-device-work"]
    assert rank.blind and not rank.on_host and note.severity == "error" and seen in note.message

    result = invoke("profile", path, "--json")
    assert result.exit_code == 3
    document = printed(result.stdout)
    figures = document["figures"]
    assert {key: value for key, value in figures.items() if value is not None} == {
        "ranks": 1, "steps": 0, "skipped_events": 0, "repaired_events": 0}  # fmt: skip
    assert document["causes"] == [] and document["ranks"][0]["window_ns"] == 0


@pytest.mark.parametrize(
    ("events", "header"),
    [
        ([], {}),
        ([], GLOO),
        ([], {**GLOO, **DEVICES}),
        (SYNC, {**GLOO, **DEVICES}),
        ([], {"distributedInfo": {"backend": "cpu:gloo,cuda:gloo", "rank": 0, "world_size": 2}, **DEVICES}),
    ],
)
def test_a_processors_run_stays_one_whatever_the_machine_has(
    tmp_path: Path, events: list[trace_make.Event], header: dict[str, Any]
) -> None:
    rank = trace_make.read(trace_make.write(tmp_path / "rank0.json", OPERATORS + events, **header))
    assert rank.on_host and not rank.blind and len(rank.work)


def test_copies_alone_are_a_profile(tmp_path: Path) -> None:
    assert not trace_make.read(trace_make.write(tmp_path / "rank0.json", OPERATORS + COPIES, **DEVICES)).blind


def test_conditions_cannot_be_decided_and_no_share_is_printed(tmp_path: Path) -> None:
    path = trace_make.write(tmp_path / "rank0.json", OPERATORS + LAUNCHES, **DEVICES)
    for condition in ("exposed_pct>10", "idle_pct<1", "step_ms>5", "idle_ms_per_step>0"):
        result = invoke("profile", path, "--fail-if", condition)
        assert result.exit_code == 4 and "cannot be decided" in result.stderr
    page = tmp_path / "page.html"
    result = invoke("profile", path, "--html", page)
    assert result.exit_code == 3 and "no work was recorded" in result.stdout and "has no kernels" in result.stderr
    assert "99." not in result.stdout and "98" not in result.stdout
    written = page.read_text(encoding="utf-8")
    assert "Nothing can be said of the time: the work of the devices was not recorded" in written
    assert "Before you quote it" in written.split("has no kernels")[0], "the reason stands among the caveats"
    assert invoke("profile", path, "--mfu", "params=1e6,tokens=10").exit_code == 1


def test_a_blind_rank_among_others_takes_no_part(tmp_path: Path) -> None:
    alone, both = tmp_path / "alone", tmp_path / "both"
    info = trace_make.HEADER["distributedInfo"]
    for folder in (alone, both):
        trace_make.write(folder / "rank0.json", trace_make.good(), distributedInfo=info)
    trace_make.write(both / "rank1.json", OPERATORS + LAUNCHES, distributedInfo={**info, "rank": 1})
    one, two = (invoke("profile", folder, "--json", "--fail-if", "idle_pct>90") for folder in (alone, both))
    assert (one.exit_code, two.exit_code) == (0, 3)
    figures = [printed(result.stdout)["figures"] for result in (one, two)]
    different = {key for key in figures[0] if figures[0][key] != figures[1][key]}
    assert different == {"ranks"}
    assert "mixed-steps" not in {note["code"] for note in printed(two.stdout)["notes"]}


def test_totals_of_names_are_totals_however_many_there_are(tmp_path: Path) -> None:
    lane = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "args": {"stream": 7, "device": 0}}
    events = [{**lane, "name": f"frob_{i}", "ts": 10 * i, "dur": 2} for i in range(1000)]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    shown = densing("profile", path).stdout
    assert "No rule knows 1000 kernels (2.00 ms in all;" in shown
    row = profile(path)["ranks"][0]["names"][-1]
    assert (row["name"], row["names"], row["count"], row["total_ns"]) == ("", 900, 900, 1_800_000)


def test_a_slice_is_a_small_trace_and_needs_a_gap(tmp_path: Path) -> None:
    lane = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "args": {"stream": 7, "device": 0}}
    path, out = tmp_path / "rank0.json", tmp_path / "slice" / "gap.json"
    path.write_text(json.dumps({"traceEvents": [{**lane, "ts": ts, "dur": 10} for ts in (0, 50_000, 80_000)]}))
    shown = densing("profile", path, "--slice", out)
    assert "rank 0  50.0 ms" in shown.stdout and "around its gap of 50.0 ms" in shown.stderr
    assert "around its gap of 30.0 ms" in densing("profile", path, "--slice", out, "--gap", 2).stderr
    rows = [event for event in json.loads(out.read_text())["traceEvents"] if event.get("name") == "gap"]
    assert [row["dur"] for row in rows] == [29_990]
    assert "only 2 gaps are known" in densing("profile", path, "--slice", out, "--gap", 3, code=1).stderr
    assert "which gap --slice writes" in densing("profile", path, "--gap", 2, code=1).stderr
    assert any(event.get("name") == "gap" for event in json.loads(out.read_text())["traceEvents"])
    path.write_text(json.dumps({"traceEvents": [{**lane, "ts": 0, "dur": 10}]}))
    assert "no gap was recorded" in densing("profile", path, "--slice", out, code=1).stderr
    assert "needs a baseline" in densing("profile", path, "--fail-if", "item_change_pct[gemm]>1", code=1).stderr
    assert profile(path, "--fail-if", "item_ms[gemm]>0.005", code=4)["fail_if"]


def test_work_is_listed_by_module_where_modules_were_recorded(tmp_path: Path) -> None:
    content = trace(0)
    content["traceEvents"].append(event("python_function", "nn.Module: Net_0", 100, 15))
    lines = densing("profile", write(tmp_path / "rank0.json", content), "--by", "module").stdout.splitlines()
    table = lines[next(at for at, line in enumerate(lines) if line.startswith("Module")) :]
    assert table[1].split()[:2] == ["(in", "no"] and table[2].split()[0] == "Net_0"
    assert "record_function" in densing("profile", write(tmp_path / "rank1.json", trace(1)), "--by", "module").stdout
    assert "unknown --by" in densing("profile", tmp_path / "rank0.json", "--by", "modul", code=1).stderr
