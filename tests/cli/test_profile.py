"""``densing profile`` through its real entry point, on traces written here and on the recorded ones where they are."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import folders
from tests.support.profile_command import densing, profile, trace, two, write

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
    assert "waiting-for-ranks" in codes and "idle-host-bound" in codes


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
    assert len(lines) <= 24
    assert "window steps" in text and "50.0" in text
    assert any(line.lstrip().startswith("try:") for line in lines)


def test_a_condition_that_holds_gives_exit_code_4(two: Path) -> None:
    assert profile(two, "--fail-if", "exposed_pct>10", code=4)["fail_if"]
    assert profile(two, "--fail-if", "exposed_pct>90")["fail_if"] == []
    assert "exposed" in densing("profile", two, "--fail-if", "exposd_pct>1", code=1).stderr


def test_explain_names_the_rule() -> None:
    found = json.loads(densing("profile", "--explain", "ncclDevKernel_Generic(4096)", "--json").stdout)
    assert (found["kind"], found["rule"], found["known"]) == ("comm", "nccl", True)
    assert "kernel-default" in densing("profile", "--explain", "frobnicate<int>").stdout
    mine = json.loads(densing("profile", "--explain", "my_ring", "--comm-pattern", "my_", "--json").stdout)
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
        (("--html", "/dev/null"), "no regular file"),
        (("--html", "run"), "no regular file"),
        (("--perfetto", "o.zip"), ".json.gz"),
        (("--jobs", "-1"), "--jobs -1"),
        (("--device-hours", "5"), "--density"),
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


def test_density_and_device_hours_are_joined(two: Path, tmp_path: Path) -> None:
    rows = [{"model": "m", "benchmark": "mmlu", "density": 1.5, "density_lo": 1.2, "density_hi": 2.0, "n_eff": 3e9}]
    write(tmp_path / "density.json", rows)  # type: ignore[arg-type]
    found = profile(two, "--density", tmp_path / "density.json", "--device-hours", 3000)["joined"]
    assert found["per_1000_device_hours"] == 0.5
    told = densing("profile", two, "--density", tmp_path / "density.json", "--device-hours", 3000).stdout
    words = "m has density 1.5 (1.2 to 2.0) on mmlu after 3,000 device hours: 0.50 per parameter"
    assert words in " ".join(told.split())
    assert "--device-hours" in densing("profile", two, "--density", tmp_path / "density.json", code=1).stderr


def test_scaling_over_runs_of_different_size(two: Path, tmp_path: Path) -> None:
    for rank in range(4):
        content = trace(rank)
        content["distributedInfo"]["world_size"] = 4
        write(tmp_path / "four" / f"rank{rank}.json", content)
    found = json.loads(densing("scaling", two, tmp_path / "four", "--kind", "strong", "--json").stdout)
    assert [row["devices"] for row in found["rows"]] == [2, 4]
    assert found["rows"][1]["efficiency"] == pytest.approx(0.5)


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
