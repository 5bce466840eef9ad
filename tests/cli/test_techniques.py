"""``densing techniques`` through its real entry point."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from densing.cli import main
from tests.support import profile_command
from tests.support.command import printed

KEYS = {"technique", "step_s", "exposed_comm_s", "overlap_ratio", "bytes", "speedup"}
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 2048,
    "vocab_size": 1000,
}


def densing(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    return profile_command.densing("techniques", *arguments, code=code)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small model's config.json, as a hub has it."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def compare(model: object, cluster: str, names: str, *more: object, code: int = 0) -> dict[str, Any]:
    arguments = ("compare", "--model", model, "--cluster", cluster, "--techniques", names, "--json", *more)
    return printed(densing(*arguments, code=code).stdout)


@pytest.mark.parametrize(
    ("preset", "cluster", "code"),
    [("llama-8b", "a100x8-tcp", 0), ("mega-gpt2", "rtx4090x4-pcie", 3), ("llama-8b", "geo48", 3)],
)
def test_the_contract_of_compare(preset: str, cluster: str, code: int) -> None:
    # geo48 simulates every one of its unequal devices: short rounds.
    found = compare(preset, cluster, "ddp,co2,ladder", "--set", "co2.tau=4", code=code)
    assert [row["technique"] for row in found["rows"]] == ["ddp", "co2", "ladder"]
    for row in found["rows"]:
        assert set(row) >= KEYS
        assert row["status"] == ("does not fit" if row["memory_bytes"] > row["room_bytes"] else "simulated")
        assert row["reason"] == "" or "fits" in row["reason"]
        assert 0 <= row["exposed_comm_s"] <= row["step_s"]
        assert 0 <= row["overlap_ratio"] <= 1
        assert row["bytes"] == pytest.approx(sum(row["bytes_per_link"].values()))
    assert found["baseline"] == "ddp"
    assert found["rows"][0]["speedup"] == 1
    assert found["split"]["tp"] >= 2
    assert found["split"]["dp"] >= 2


def test_a_table_in_the_hosts_memory() -> None:
    names = "host-gather,pinned-gather,zero-copy,device-table"
    found = compare("sage-papers100m", "rtx3090-pcie3", names, "--set", "zero-copy.align=false")
    assert found["gather"]["table_rows"] == 111_059_956 and found["model"] == "sage-papers100m"
    rows = {row["technique"]: row for row in found["rows"]}
    assert rows["device-table"]["status"] == "does not fit"
    for name in names.split(",")[:3]:
        row = rows[name]
        assert row["parameters_on_device"] == 9_788 and row["parameters"] == 14_215_684_156
        assert row["bytes_per_link"] == {"host": row["bytes"]} and row["bytes"] >= 270_700 * 512
    shown = densing("compare", "--model", "sage-reddit", "--cluster", "rtx3090-pcie3", "--techniques", names).stdout
    assert "parameters on the device, of all (either may serve as N): host-gather 20,633 of 140,265,563" in shown
    assert "figures of sage-reddit (derived)" in shown and "232,965 rows by 602 columns" in shown


@pytest.mark.parametrize("option", [("--batch", "4"), ("--tp", "2"), ("--map",), ("--delay", "shifted-exp:mu=4")])
def test_options_of_transformers_are_refused_for_a_table(
    option: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", "--model", "sage-reddit", "--cluster", "rtx3090-pcie3", "--techniques", "zero-copy", *option]
    monkeypatch.setattr(sys, "argv", ["densing", "techniques", *command])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert f"{option[0]}: applies to transformers only, and sage-reddit is not one" in capsys.readouterr().err


def test_pipelines_find_their_stages() -> None:
    """The split that all of them need is found, and the slow edges' compression is said to change what is learned."""
    found = compare("gpt2", "geo48", "pipeline,fusion")
    assert {row["status"] for row in found["rows"]} == {"simulated"}
    assert (found["split"]["pp"], found["split"]["dp"], found["split"]["tp"]) == (6, 8, 1)
    assert found["rows"][1]["speedup"] > 1 and found["title"].endswith("but may change the loss")
    [note] = [note for note in found["notes"] if note["code"] == "placement"]
    assert "ranks 24-31, 16-23" in note["message"] and "reconstructed" in note["message"]
    assert note["details"]["cuts"] == [1, 2, 3, 4, 5] and min(note["details"]["shares"]) == 0.01


def in_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, str, str]:
    """Run the entry point itself, and return exit code, stdout and stderr."""
    monkeypatch.setattr(sys, "argv", ["densing", "techniques", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        main()
    done = capsys.readouterr()
    assert "Traceback" not in done.err
    return int(left.value.code or 0), done.out, done.err


EXAMPLE = ("compare", "--model", "llama3-70b", "--cluster", "a100x8-tcp", "--techniques", "ddp,zero3,ladder")
"""The help's example of versions up to 0.1, with one that shards more in place of CO2."""


def test_seventy_billion_parameters_on_sixteen_devices_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = in_process(monkeypatch, capsys, *EXAMPLE, "--json")
    found = printed(out)
    assert code == 3
    # A step of training, not the preset's decoding of one sequence.
    assert (found["mode"], found["batch"], found["sequence"]) == ("train", 8, 8192)
    assert {row["status"] for row in found["rows"]} == {"does not fit"}
    assert found["title"] == "None of 3 techniques fits in memory: ddp, zero3, ladder"
    reasons = {row["technique"]: row["reason"] for row in found["rows"]}
    assert reasons["zero3"].endswith("; needs 16 more devices: fits with --nodes 4 --dp 4 --tp 8 --sequence-parallel")
    assert "fits as zero" in reasons["ddp"]
    # 70.6e9 parameters, 18 bytes each with gradients of 4, over 8 devices, are 159 GB before any activation.
    assert all(row["memory"]["optimizer"] > 0 for row in found["rows"])
    assert found["rows"][0]["memory_bytes"] > 158e9
    [note] = [note for note in found["notes"] if note["code"] == "memory"]
    assert note["severity"] == "error" and note["details"]["batch"] == 8
    assert err.count("does not fit") == 1 and "at batch 8" in err


def test_what_is_said_to_fit_fits_as_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--nodes", "4", "--dp", "4", "--tp", "8", "--sequence-parallel")
    code, out, err = in_process(monkeypatch, capsys, *EXAMPLE, *flags)
    title, head, _, _, first, *_ = out.splitlines()
    # The faster ones do not fit: that is an error. Left out, it is none.
    assert (code, title) == (3, "No technique that fits is faster than ddp, which does not fit")
    alone, _, _ = in_process(monkeypatch, capsys, *EXAMPLE[:-1], "zero3", *flags)
    assert alone == 0
    assert "dp 4, tp 8, pp 1, sequence-parallel" in head
    # What fits comes first, though it was named second.
    assert first.split()[:2] == ["zero3", "fits"]
    assert "does not fit at batch 8" in err


@pytest.mark.slow
def test_the_helps_own_example_fits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = in_process(monkeypatch, capsys, "compare", "--help")
    words = (
        " ".join(out.replace("\\\n", "").split())
        .partition("Example: densing techniques ")[2]
        .split("--json")[0]
        .split()
    )
    assert words[:3] == ["compare", "--model", "llama3-70b"]
    code, out, _ = in_process(monkeypatch, capsys, *words, "--json")
    found = printed(out)
    assert code == 0
    assert {row["status"] for row in found["rows"]} == {"simulated"}
    assert found["batch"] * found["sequence"] == 8 * 8192
    # Those that change what a step learns say so in the title, too.
    assert found["title"].endswith("as fast as ddp per step, but may change the loss")


def test_equal_warnings_of_a_map_are_one_that_names_the_batches(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = tmp_path / "small.toml"
    cluster.write_text(
        'name = "small"\nn = 4\nper_node = 4\n'
        'device = { name = "toy", flops = 1e13, mem_bw = 1e12, memory = 6e8 }\n'
        "intra = { alpha_s = 1e-6, gbit_per_s = 100 }\ninter = { alpha_s = 1e-6, gbit_per_s = 10 }\n"
        "host = { alpha_s = 1e-6, gbit_per_s = 100 }\n"
    )
    arguments = ("compare", "--model", model, "--cluster", cluster, "--techniques", "ddp,zero1", "--tp", 1)
    flags = ("--micro-batches", 1, "--batch", 1, "--map", "--bandwidths", "1,10,100", "--batches", "1,16,64")
    code, out, err = in_process(monkeypatch, capsys, *arguments, *flags)
    assert code == 0
    assert err.count("does not fit") == 1
    assert "map: does not fit, toy has 1 GB: ddp, zero1 at batch 16, 64" in err
    assert next(line.split()[1:] for line in out.splitlines() if line.startswith("100 "))[-2:] == ["x", "x"]


def test_own_model_flags_and_settings(model: Path) -> None:
    flags = ("--tp", 2, "--dp", 4, "--batch", 2, "--sequence", 64, "--nodes", 1, "--set", "co2.tau=3")
    found = compare(model, "a100x8-tcp", "ddp,co2", *flags, "--baseline", "sequential")
    assert [found["split"][axis] for axis in ("dp", "tp", "pp")] == [4, 2, 1]
    assert (found["batch"], found["sequence"], found["devices"]) == (2, 64, 8)
    assert found["baseline"] == "sequential"
    assert all(set(row["bytes_per_link"]) == {"intra"} for row in found["rows"])
    decoding = compare(model, "a100x8-tcp", "tensor-parallel,ladder", "--mode", "decode")
    assert decoding["mode"] == "decode"


def test_one_that_does_not_apply_leaves_the_others(model: Path) -> None:
    done = densing("compare", "--model", model, "--cluster", "a100x8-tcp", "--techniques", "ddp,pipeline", "--json")
    row = printed(done.stdout)["rows"][1]
    assert (row["step_s"], row["speedup"], row["status"]) == (None, None, "does not apply")
    assert "pp >= 2" in done.stderr
    assert "pipeline: pipeline" not in done.stderr


def test_none_that_applies_is_an_error(model: Path) -> None:
    arguments = ("--model", model, "--cluster", "a100x8-tcp", "--techniques", "pipeline", "--pp", 1, "--json")
    done = densing("compare", *arguments, code=1)
    assert "no technique works here" in printed(done.stdout)["error"]["message"]


def test_the_screen_and_the_map(model: Path) -> None:
    flags = ("--map", "--bandwidths", "1,100", "--batches", "1,2")
    arguments = ("compare", "--model", model, "--cluster", "a100x8-tcp", "--techniques", "ddp,co2", *flags)
    lines = densing(*arguments).stdout
    assert "speed-up over ddp" in lines
    assert "co2:" in lines
    assert "batch 2" in lines
    cells = printed(densing(*arguments, "--json").stdout)["map"]["cells"]
    assert len(cells) == 2 * 2 * 2
    assert set(cells[0]) == {"bandwidth_gbps", "batch", "replicas", "technique", "step_s", "speedup", "verdict"}


def test_the_report_is_one_file(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "techniques.html"
    flags = ("--map", "--bandwidths", "1,100", "--batches", "1", "--html", out)
    densing("compare", "--model", model, "--cluster", "a100x8-tcp", "--techniques", "ddp,co2,pipeline", *flags)
    text = out.read_text()
    assert "co2" in text
    assert "<script src=" not in text


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--techniques", "ddp,laddr"), "did you mean 'ladder'"),
        (("--techniques", ","), "no technique to compare"),
        (("--techniques", "ddp,ddp"), "twice"),
        (("--set", "co2.tau"), "TECHNIQUE.KNOB=VALUE"),
        (("--set", "tau=3"), "TECHNIQUE.KNOB=VALUE"),
        (("--set", "co2.tau=x"), "not a whole number"),
        (("--set", "co2.tau=0"), "out of range"),
        (("--set", "co2.outer_lr=nan"), "out of range"),
        (("--set", "co2.tou=3"), "did you mean 'tau'"),
        (("--set", "co3.tau=3"), "did you mean 'co2'"),
        (("--set", "co2.tau=3", "--set", "co2.tau=4"), "set twice"),
        (("--set", "ddp.bucket_mb=\x1b[31m"), "not a number"),
        (("--model", "lama-8b"), "llama-8b"),
        (("--cluster", "a100x8-tpc"), "a100x8-tcp"),
        (("--tp", "3"), "cannot be divided"),
        (("--tp", "16", "--dp", "16"), "needs 256 devices"),
        (("--map", "--bandwidths", "1,x"), "--bandwidths 1,x"),
        (("--map", "--bandwidths", "inf"), "positive"),
        (("--map", "--link", "wide"), "no link 'wide'"),
        (("--mode", "dream"), "dream"),
        (("--recompute", "fully"), "did you mean 'full'"),
    ],
)
def test_bad_requests_are_user_errors(
    model: Path,
    more: tuple[str, ...],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = {"--model": str(model), "--cluster": "a100x8-tcp", "--techniques": "ddp,co2"}
    given = [part for name, value in flags.items() if name not in more for part in (name, value)]
    code, out, err = in_process(monkeypatch, capsys, "compare", *given, *more, "--json")
    assert code == 1 and json.loads(out)["exit_code"] == 1
    assert told in err
    assert "internal error" not in err
    assert "\x1b" not in err


def test_list_and_show() -> None:
    names = [row["name"] for row in printed(densing("list", "--json").stdout)]
    assert {"ddp", "co2", "ladder", "iso", "t3", "taccl"} <= set(names)
    assert len(names) == len(set(names))
    assert "co2" in densing("list").stdout
    shown = printed(densing("show", "co2", "--json").stdout)
    assert {knob["name"] for knob in shown["knobs"]} >= {"tau"}
    assert shown["runs"] is True
    assert any(claim["evidence"] == "second-hand" for claim in shown["claims"])
    text = densing("show", "co2").stdout
    assert "second-hand" in text
    assert "not available" in text
    assert "stand-in" in densing("show", "t3").stdout
    assert "did you mean 'co2'" in densing("show", "co3", code=1).stderr


def test_the_contract_of_validate(tmp_path: Path) -> None:
    out = tmp_path / "claims.html"
    rows = printed(densing("validate", "--technique", "co2", "--json", "--html", out).stdout)
    needed = {"technique", "claim", "published", "evidence", "ours", "error", "grade", "verdict", "null", "null_error"}
    assert needed | {"mutations", "turned_by", "assumptions", "decided_by"} <= set(rows[0])
    for row in rows:
        predicted = row["grade"] == "predicted"
        assert row["verdict"] in (
            {"reproduced", "not reproduced", "not answerable"}
            if predicted
            else {"agrees", "agrees, as does the null", "differs"}
        )
        assert (row["null"] is not None) == (row["grade"] == "calibrated on other rows")
    page = out.read_text()
    assert "second-hand" in page and "published figures reproduced" not in page
    text = densing("validate", "-t", "co2").stdout
    assert text.count("second-hand") >= 5
    assert "not first-hand" in text
    held = sum(row["verdict"] == "reproduced" for row in rows)
    answered = sum(row["grade"] == "predicted" and row["ours"] is not None for row in rows)
    assert f"{held} of {answered} predictions reproduced" in text
    assert f"{held} of {answered} prediction" in page
    assert "did you mean" in densing("validate", "-t", "co3", code=1).stderr


def test_a_report_never_replaces_what_was_read(model: Path) -> None:
    before = model.read_bytes()
    done = densing(
        "compare", "--model", model, "--cluster", "a100x8-tcp", "--techniques", "ddp", "--html", model, code=1
    )
    assert "is also the file of --model" in done.stderr
    assert model.read_bytes() == before


def test_a_plan_beyond_all_bounds_is_refused(model: Path) -> None:
    setting = ("--set", "co2.tau=100000000")
    done = densing("compare", "--model", model, "--cluster", "a100x8-tcp", "--techniques", "co2", *setting, code=1)
    assert "tasks" in done.stderr


@pytest.mark.slow
def test_delays_hold_up_all_techniques_alike_and_the_output_says_so(model: Path) -> None:
    names = "ddp,uc-mmc,gradient-coding,gc-mmc,lcc,backup-workers,local-sgd"
    more = ("--tp", 1, "--delay", "shifted-exp:a=0.1,mu=4,lasts=step", "--set", "local-sgd.tau=4")
    quiet, late = (compare(model, "a100x8-rdma", names, *each) for each in (more[:2] + more[4:], more))
    steps = {row["technique"]: row["step_s"] for row in late["rows"]}
    assert all(row["step_se_s"] is None for row in quiet["rows"])
    assert steps.pop("lcc") is None and all(row["step_se_s"] for row in late["rows"] if row["technique"] != "lcc")
    assert all(step > 0.1 for step in steps.values())
    # Of eight workers who waits for all waits longest, and who computes twice before it says a word longer yet.
    assert steps["backup-workers"] < steps["ddp"] < steps["gradient-coding"]
    assert {note["code"] for note in quiet["notes"]} >= {"no-delay"}
    [note] = [note for note in late["notes"] if note["code"] == "delays-drawn"]
    assert note["details"] == {"delay": "shifted-exp:a=0.1,mu=4,lasts=step"}
    shown = densing("compare", "--model", model, "--cluster", "a100x8-rdma", "--techniques", names, *more).stdout
    assert "delays are drawn (shifted-exp:a=0.1,mu=4,lasts=step); standard errors: ddp " in shown


@pytest.mark.parametrize(
    ("delay", "words"),
    [
        ("shifted-exp:mu=0", "mu: 0.0 is out of range"),
        ("gauss:mu=1", "known: empirical, pareto, shifted-exp"),
        ("pareto:scale=1", "shape: missing"),
        ("empirical:no/file", "no/file"),
    ],
)
def test_a_delay_that_is_none_is_a_user_error(model: Path, delay: str, words: str) -> None:
    arguments = ("compare", "--model", model, "--cluster", "a100x8-rdma", "--techniques", "ddp", "--delay", delay)
    failed = densing(*arguments, code=1)
    assert words in failed.stderr.replace("\n", " ") and "Traceback" not in failed.stderr


def test_least_squares_are_compared_under_delays_lagrange_codes_among_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    toml = tmp_path / "mine.toml"
    toml.write_text('n = 1000\nd = 10\nnnz = 10000\npartitions = 8\nloss = "squares"\n')
    for model in ("least-squares", str(toml)):
        options = ["--model", model, "--cluster", "a100x8-rdma", "--nodes", "1", "--delay", "shifted-exp:a=0.01,mu=10"]
        command = ["compare", *options, "--techniques", "uc-mmc,lcc,ddp", "--set", "lcc.r=2", "--json"]
        monkeypatch.setattr(sys, "argv", ["densing", "techniques", *command])
        with contextlib.suppress(SystemExit):
            main()
        document = printed(capsys.readouterr().out)
        status = {row["technique"]: row["status"] for row in document["rows"]}
        assert status == {"uc-mmc": "simulated", "lcc": "simulated", "ddp": "does not apply"}
        assert document["convex"]["loss"] == "squares"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n = 10\nd = 10\nnnz = 1000\npartitions = 2", "give at most 100"),
        ("n = 10\nd = 10\nnnz = 100\npartitions = 0", "partitions is 0"),
        ("n = 10\nd = 10\nnnz = 100\npartitions = 2\nloss = 'hinge'", "hinge"),
        ("n = 10\nd = 10\nnnz = 100\npartitions = 2\nwidth = 3", "width"),
        ("n = ", "not readable TOML"),
    ],
)
def test_linear_problems_that_are_none_are_refused(
    text: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.toml").write_text(text)
    command = ["compare", "--model", str(tmp_path / "mine.toml"), "--cluster", "cpu2", "--techniques", "uc-mmc"]
    monkeypatch.setattr(sys, "argv", ["densing", "techniques", *command])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert said in error and "mine" in error


def test_throughput_of_a_table_and_of_our_own(tmp_path: Path) -> None:
    found = printed(densing("validate", "--throughput", "--json").stdout)
    assert {"rows", "sources", "memory", "constants_sha256"} <= set(found)
    assert {"row_id", "status", "reason", "fits", "predicted_tokens_per_s", "measured_tokens_per_s", "predicted_mfu",
            "measured_mfu", "error", "memory_bytes"} <= set(found["rows"][0])  # fmt: skip
    table, page = tmp_path / "runs.csv", tmp_path / "speeds.html"
    table.write_text(
        "row_id,layers,hidden,seq,gpu,gpus,mbs,grad_acc,tokens_per_s\n"
        "<b>a</b>,24,2048,2048,H100,8,4,8,400000\nb,24,2048,2048,Abacus,8,4,8,1\n"
    )
    said = densing("validate", "--throughput", table, "--html", page)
    assert "1 of 2 rows cannot be expressed: gpu: no data sheet for Abacus is known" in said.stderr
    assert "<b>a</b>" not in page.read_text()
    rows = printed(densing("validate", "--throughput", table, "--json").stdout)["rows"]
    assert [row["status"] for row in rows] == ["predicted", "not expressible"]


def test_throughput_refuses_what_does_not_go_together(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text("row_id,layers\na,24\n")
    assert "needs row_id, layers, hidden" in densing("validate", "--throughput", table, code=1).stderr
    assert "needs --throughput" in densing("validate", table, code=1).stderr
    assert "cannot be combined with --technique" in densing("validate", "--throughput", "--rerun", code=1).stderr
    assert "is the table itself" in densing("validate", "--throughput", table, "--html", table, code=1).stderr


def test_plan_recommends_a_layout_and_says_what_is_behind_it() -> None:
    found = printed(densing("plan", "--model", "llama-8b", "--cluster", "a100x8-rdma", "--gpus", 16, "--batch", 64,
                               "--json").stdout)  # fmt: skip
    first, second = found["layouts"][:2]
    assert first["step_s"] <= second["step_s"]
    assert "% longer" in found["why"]
    shown = densing("plan", "--model", "llama-8b", "--cluster", "a100x8-rdma", "--gpus", 16, "--batch", 64).stdout
    assert "next split:" in shown


def test_a_plan_is_of_a_framework() -> None:
    asked = ("plan", "--model", "llama-8b", "--cluster", "a100x8-rdma", "--gpus", 16, "--batch", 64)
    usual, older = (printed(densing(*asked, *more, "--json").stdout) for more in ((), ("--framework", "Megatron-LM")))
    assert (usual["framework"], older["framework"]) == ("Megatron-Core", "Megatron-LM")
    assert older["layouts"][0]["step_s"] > usual["layouts"][0]["step_s"]
    assert ", by FSDP; " in densing(*asked, "--framework", "FSDP").stdout
    assert "eager: not predicted" in densing(*asked, "--framework", "nanotron", code=1).stderr
    assert "did you mean 'FSDP'" in densing(*asked, "--framework", "FSPD", code=1).stderr


def test_a_plan_says_what_a_whole_run_takes() -> None:
    asked = ("plan", "--model", "llama-8b", "--cluster", "a100x8-rdma", "--gpus", 16, "--batch", 64, "--tokens", "1e11",
             "--price", 2, "--mtbf", "50000h", "--carbon", 0.4)  # fmt: skip
    found = printed(densing(*asked, "--json").stdout)
    whole = found["budget"]
    assert whole["cost"]["value"] == pytest.approx(2 * whole["device_hours"]["value"])
    assert whole["days"]["low"] < whole["days"]["value"] < whole["days"]["high"]
    assert 0.9 < whole["goodput"] < 1
    shown = densing(*asked).stdout
    for word in ("days", "device hours", "goodput", "cost", "kWh", "t CO2e", "assumed", "memory of the first"):
        assert word in shown, word
    refused = densing("plan", "--model", "llama-8b", "--cluster", "a100x8-rdma", "--mtbf", "1000h", code=1)
    assert "--mtbf: only for a whole run; give --tokens" in refused.stderr
    odd = densing(*asked[:-2], "--checkpoint", "soon", code=1)
    assert "--checkpoint soon: not a length of time" in odd.stderr
    fixed = printed(densing(*asked[:9], "--layout", "tp=4,pp=1,recompute=full", "--json").stdout)
    assert {(each["tp"], each["pp"], each["recompute"]) for each in fixed["layouts"]} == {(4, 1, "full")}


def test_an_experimental_technique_is_marked_wherever_it_is_shown() -> None:
    marked = [row["name"] for row in printed(densing("list", "--json").stdout) if row["experimental"]]
    assert marked == ["gc-mmc"]
    assert "exchange, experimental" in densing("list").stdout
    assert "experimental: our own construction" in densing("show", "gc-mmc").stdout
    found = compare("gpt2", "a100x8-rdma", "ddp,gc-mmc,uc-mmc", "--nodes", 1, "--tp", 1)
    notes = [note for note in found["notes"] if note["code"] == "experimental"]
    assert len(notes) == 1 and notes[0]["message"].startswith("gc-mmc is experimental: ")
