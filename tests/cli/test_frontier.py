"""``densing frontier`` through its entry point: tables, JSON, files, pages, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from densing.tradeoff.pareto import COLUMNS
from tests.support.command import answer, densing
from tests.support.gain_records import arm, record, written

QUICK = ("--reference", "qwen1.5", "--benchmark", "mmlu")
HOSTILE = "\x1b[31m<script>alert(1)</script>"


def test_models_against_compute(tmp_path: Path) -> None:
    out = tmp_path / "table.csv"
    shown = answer("frontier", *QUICK, "--since", "2024-01-01", "--out", out)
    assert shown["cost"] == "flops" and set(shown["rows"][0]) == set(COLUMNS)
    (front,) = shown["frontiers"]
    assert front["scale"] == "qwen1.5, mmlu" and front["names"]
    on = [row["name"] for row in shown["rows"] if row["on_frontier"]]
    assert sorted(on) == sorted(front["names"])
    table = pd.read_csv(out)
    assert table["name"].tolist() == [row["name"] for row in shown["rows"]]
    wider = answer("frontier", *QUICK, "--since", "2024-01-01", "--include", "moe")
    assert len(wider["rows"]) > len(shown["rows"])


def test_a_model_of_ones_own_stands_among_them(tmp_path: Path) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text("model,params_b,released,tokens_t,benchmark,score\nmine,1,2025-01-01,0.000001,mmlu,0.6\n")
    shown = answer("frontier", *QUICK, "--catalog", mine)
    (row,) = [row for row in shown["rows"] if row["name"] == "mine"]
    # As dense for a thousandth of the compute.
    assert row["flops"] == 6e15 and row["on_frontier"] and row["share"] == 1


def test_arms_and_runs_with_pages(tmp_path: Path) -> None:
    gain = written(tmp_path, record(arm(HOSTILE, 0.9, 100.0), arm("flat", None, 10.0, status="flat")))
    rows = [{"model": name, "benchmark": "mmlu", "density": 1.5} for name in ("mine", "other")]
    density = written(tmp_path, rows, "d.json")
    page, html = tmp_path / "f.md", tmp_path / "f.html"
    done = densing("frontier", "--cost", "device_hours", "--gain", gain, "--density", density,
                   "--device-hours", 9, "--density-model", "mine", "--page", page,
                   "--html", html)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Frontier on ratio to plain, ladder ab12cd34" in done.stdout and "mine" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert "no whole interval is known of mine" in done.stderr
    assert "<script>" not in page.read_text() and html.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cost", "euros"], "euros"),
        (["--cost", "bytes"], "give --density or --gain"),
        (["--cost", "bytes", "--gain", "BROKEN"], "not JSON"),
        (["--cost", "bytes", "--gain", "OTHER"], "schema 7 of records of gains is not known"),
        (["--cost", "device_hours", "--density", "OTHER"], "1 files and 0 --device-hours"),
        (["--cost", "device_hours", "--density", "OTHER", "--device-hours", "3"], "not the output of `densing density"),
        (["--cost", "device_hours", "--density", "DENSITY", "--device-hours", "0"], "device hours"),
        (["--cost", "bytes", "--gain", "none.json"], "no such file"),
        (["--include", "everything"], "everything"),
        ([*QUICK, "--since", "2031-01-01"], "nothing to place"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, arguments: list[str], message: str) -> None:
    files = {"BROKEN": written(tmp_path, "{", "broken.json"), "OTHER": written(tmp_path, record(schema=7), "o.json"),
             "DENSITY": written(tmp_path, [{"model": "m", "benchmark": "mmlu", "density": 1.5}], "d.json")}  # fmt: skip
    done = densing("frontier", *(str(files.get(argument, argument)) for argument in arguments), cwd=tmp_path)
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ") and not done.stdout


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--since", "yesterday", "yesterday"),
        ("--page", "x.html", "must end in .md"),
        ("--html", "x.md", "must end in .html"),
    ],
)
def test_what_an_option_cannot_be_is_a_usage_error(option: str, value: str, message: str) -> None:
    done = densing("frontier", option, value)
    assert done.returncode == 2 and message in done.stderr and not done.stdout
