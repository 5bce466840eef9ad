"""``densing techniques`` through its real entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from densing.cli.tree import main

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
    command = [sys.executable, "-m", "densing", "techniques", *map(str, arguments)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "100"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small model's config.json, as a hub has it."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def compare(model: object, cluster: str, names: str, *more: object, code: int = 0) -> dict[str, Any]:
    arguments = ("compare", "--model", model, "--cluster", cluster, "--techniques", names, "--json", *more)
    return json.loads(densing(*arguments, code=code).stdout)


@pytest.mark.parametrize(
    ("preset", "cluster"), [("llama3-70b", "a100x8-tcp"), ("mega-gpt2", "rtx4090x4-pcie"), ("llama-8b", "geo48")]
)
def test_the_contract_of_compare(preset: str, cluster: str) -> None:
    found = compare(preset, cluster, "ddp,co2,ladder")
    assert [row["technique"] for row in found["rows"]] == ["ddp", "co2", "ladder"]
    for row in found["rows"]:
        assert set(row) >= KEYS
        assert row["status"] == "simulated"
        assert 0 <= row["exposed_comm_s"] <= row["step_s"]
        assert 0 <= row["overlap_ratio"] <= 1
        assert row["bytes"] == pytest.approx(sum(row["bytes_per_link"].values()))
    assert found["baseline"] == "ddp"
    assert found["rows"][0]["speedup"] == 1
    assert found["split"]["tp"] >= 2
    assert found["split"]["dp"] >= 2


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
    row = json.loads(done.stdout)["rows"][1]
    assert (row["step_s"], row["speedup"], row["status"]) == (None, None, "does not apply")
    assert "pp >= 2" in done.stderr
    assert "pipeline: pipeline" not in done.stderr


def test_none_that_applies_is_an_error(model: Path) -> None:
    done = densing("compare", "--model", model, "--cluster", "a100x8-tcp", "--techniques", "pipeline", "--json", code=1)
    assert done.stdout == ""
    assert "no technique works here" in done.stderr


def test_the_screen_and_the_map(model: Path) -> None:
    flags = ("--map", "--bandwidths", "1,100", "--batches", "1,2")
    arguments = ("compare", "--model", model, "--cluster", "a100x8-tcp", "--techniques", "ddp,co2", *flags)
    lines = densing(*arguments).stdout
    assert "speed-up over ddp" in lines
    assert "co2:" in lines
    assert "batch 2" in lines
    cells = json.loads(densing(*arguments, "--json").stdout)["map"]["cells"]
    assert len(cells) == 2 * 2 * 2
    assert set(cells[0]) == {"bandwidth_gbps", "batch", "technique", "step_s", "speedup", "verdict"}


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
        (("--set", "co2.tau=x"), "no whole number"),
        (("--set", "co2.tau=0"), "out of range"),
        (("--set", "co2.outer_lr=nan"), "out of range"),
        (("--set", "co2.tou=3"), "did you mean 'tau'"),
        (("--set", "co3.tau=3"), "did you mean 'co2'"),
        (("--set", "co2.tau=3", "--set", "co2.tau=4"), "set twice"),
        (("--set", "ddp.bucket_mb=\x1b[31m"), "no number"),
        (("--model", "lama-8b"), "llama-8b"),
        (("--cluster", "a100x8-tpc"), "a100x8-tcp"),
        (("--tp", "3"), "cannot be divided"),
        (("--tp", "16", "--dp", "16"), "needs 256 devices"),
        (("--map", "--bandwidths", "1,x"), "--bandwidths 1,x"),
        (("--map", "--bandwidths", "inf"), "positive"),
        (("--map", "--link", "wide"), "no link 'wide'"),
        (("--mode", "dream"), "dream"),
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
    # The entry point itself, in this process: twenty interpreters would take most of the time.
    monkeypatch.setattr(sys, "argv", ["densing", "techniques", "compare", *given, *more, "--json"])
    with pytest.raises(SystemExit) as left:
        main()
    done = capsys.readouterr()
    assert left.value.code == 1
    assert done.out == ""
    assert told in done.err
    assert "internal error" not in done.err
    assert "\x1b" not in done.err


def test_list_and_show() -> None:
    names = [row["name"] for row in json.loads(densing("list", "--json").stdout)]
    assert {"ddp", "co2", "ladder", "iso", "t3", "taccl"} <= set(names)
    assert len(names) == len(set(names))
    assert "co2" in densing("list").stdout
    shown = json.loads(densing("show", "co2", "--json").stdout)
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
    rows = json.loads(densing("validate", "--technique", "co2", "--fast", "--json", "--html", out).stdout)
    needed = {"technique", "claim", "published", "evidence", "ours", "error", "grade", "verdict", "null", "null_error"}
    assert needed | {"mutations", "turned_by", "assumptions", "decided_by"} <= set(rows[0])
    for row in rows:
        predicted = row["grade"] == "predicted"
        assert row["verdict"] in (
            {"reproduced", "not reproduced", "not answerable"} if predicted else {"agrees", "differs"}
        )
        assert (row["null"] is not None) == (row["grade"] == "calibrated on other rows")
    page = out.read_text()
    assert "second-hand" in page and "published figures reproduced" not in page
    text = densing("validate", "-t", "co2", "--fast").stdout
    assert text.count("second-hand") >= 5
    assert "not first-hand" in text
    held = sum(row["verdict"] == "reproduced" for row in rows)
    answered = sum(row["grade"] == "predicted" and row["ours"] is not None for row in rows)
    assert f"{held} of {answered} predictions reproduced" in text
    assert f"{held} of {answered} prediction" in page
    assert "did you mean" in densing("validate", "-t", "co3", code=1).stderr


@pytest.mark.parametrize("command", [(), ("list",), ("show",), ("compare",), ("validate",)])
def test_help_has_an_example(command: tuple[str, ...]) -> None:
    assert "Example: densing techniques" in densing(*command, "--help").stdout


def test_a_report_never_replaces_what_was_read(model: Path) -> None:
    before = model.read_bytes()
    done = densing(
        "compare", "--model", model, "--cluster", "a100x8-tcp", "--techniques", "ddp", "--html", model, code=1
    )
    assert "is the file of --model" in done.stderr
    assert model.read_bytes() == before


def test_a_plan_beyond_all_bounds_is_refused(model: Path) -> None:
    setting = ("--set", "co2.tau=100000000")
    done = densing("compare", "--model", model, "--cluster", "a100x8-tcp", "--techniques", "co2", *setting, code=1)
    assert "tasks" in done.stderr
