"""The command line through its real entry point: a process, its two streams and its exit code."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from densing.core import formatting
from tests.support import folders
from tests.support.command import answer, densing, printed
from tests.support.gain_records import arm, record, written

ROOT = folders.ROOT


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    rows = [
        ["model", "params", "released", "benchmark", "score"],
        ["Mine-3B", "3.1e9", "2024-03-01", "mmlu", "0.62"],
        ["<script>alert(1)</script>", "7e9", "2024-05-01", "mmlu", "0.99"],
    ]
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(rows)
    return path


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    lines = ["params,tokens,loss"]
    for params in (1e7, 3e7, 1e8, 3e8, 1e9):
        lines += [f"{params:g},{t:g},{1.7 + 400 * params**-0.34 + 410 * t**-0.28:.8f}" for t in (1e9, 1e10, 1e11)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_version_and_both_shims_agree() -> None:
    import densing as package

    assert densing("--version").stdout.strip() == package.__version__
    shim = subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), "--version"], capture_output=True, text=True, check=True
    )
    assert shim.stdout.strip() == package.__version__


def test_unknown_option_is_a_usage_error() -> None:
    done = densing("trend", "--nonsense")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_fit_contract(runs: Path) -> None:
    found = answer("fit", str(runs), "--law", "chinchilla", "--loss", "huber", "--delta", "1e-3", "--bootstrap", "200")
    assert set(found["params"]) == {"E", "A", "B", "alpha", "beta"}
    assert found["params"]["alpha"] == pytest.approx(0.34, rel=1e-4)
    assert found["params"]["E"] == pytest.approx(1.7, rel=1e-4)
    assert found["objective"] < 1e-8
    low, high = found["intervals"]["beta"]
    assert low <= 0.28 * (1 + 1e-4) and high >= 0.28 * (1 - 1e-4)


def test_fit_writes_a_reference_that_density_reads(tmp_path: Path, scores: Path) -> None:
    table = tmp_path / "ruler.csv"
    table.write_text("params,score\n5e8,0.40\n2e9,0.47\n4e9,0.55\n7e9,0.61\n3e10,0.73\n7e10,0.77\n", encoding="utf-8")
    reference = tmp_path / "reference.json"
    densing(
        "fit", str(table), "--law", "logistic", "--floor", "0.25", "--scheme", "parametric", "--out", str(reference)
    )
    rows = answer("density", "--reference", str(reference), "--benchmark", "mmlu", "--scores", str(scores))
    mine = next(row for row in rows if row["model"] == "Mine-3B")
    assert mine["status"] == "ok"
    assert mine["density"] == pytest.approx(mine["n_eff"] / 3.1e9)


def test_density_contract(scores: Path) -> None:
    rows = answer("density", "--reference", "qwen1.5", "--benchmark", "mmlu", "--scores", str(scores))
    assert [row["model"] for row in rows] == ["Mine-3B", "<script>alert(1)</script>"]
    assert rows[0]["density_lo"] < rows[0]["density"] < rows[0]["density_hi"] and rows[0]["interval"] == "measured"
    assert rows[0]["density_lo_recipe"] < rows[0]["density_lo"], "that of the recipe holds the scatter too"
    assert sum(rows[0][f"share_{part}"] for part in ("ability", "ruler", "scatter")) == pytest.approx(1)
    assert rows[1]["status"] == "above_ceiling"
    assert rows[1]["n_eff_hi"] is None, "infinite ends are null, not Infinity"
    everyone = answer("density", "--reference", "qwen1.5", "--benchmark", "mean")
    assert len(everyone) > 50
    assert {"model", "n_eff", "density", "status", "stratum", "source"} <= set(everyone[0])


def test_a_table_says_what_it_replaces_which_evaluator_it_leaves_out_and_which_value_is_a_limit(tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    table.write_text(
        "model,params,released,benchmark,score,evaluator\n"
        "Llama-3-8B,3.1e9,2024-04-18,mmlu,0.66,a\nLlama-3-8B,3.1e9,2024-04-18,mmlu,0.61,b\n"
        "GPT-2-124M,124e6,2019-02-14,mmlu,0.26,a\n"
    )
    done = densing("density", "--reference", "qwen1.5", "--benchmark", "mmlu", "--scores", str(table))
    assert "Llama-3-8B (3.1 B parameters instead of 8.03 B)" in done.stderr
    assert "Llama-3-8B on mmlu: 0.66 (a) is used, 0.61 (b) is not, -0.05" in done.stderr
    [row] = [line.split() for line in done.stdout.splitlines() if line.strip().startswith("GPT-2-124M")]
    [plain] = [one for one in answer("density", "--reference", "qwen1.5", "--benchmark", "mmlu", "--scores", str(table))
               if one["model"] == "GPT-2-124M"]  # fmt: skip
    assert row[1:3] == ["≤", formatting.number(plain["density_hi"])], (
        "a limit is printed as one: the end of its interval"
    )


def test_trend_contract(scores: Path) -> None:
    window = ("--since", "2023-02-24", "--until", "2024-09-30", "--permutations", "49", "--bootstrap", "60")
    found = answer("trend", "--reference", "qwen1.5", "--benchmark", "mmlu", *window)
    methods = [row["method"] for row in found["estimates"]]
    assert any("envelope" in method for method in methods)
    for row in found["estimates"]:
        assert {"method", "slope_per_day", "doubling_months", "lo", "hi", "n"} <= set(row)
    assert {"permutation", "leave_one_family_out", "breakpoint", "record_setter_bias"} <= set(found["checks"])
    more = answer("trend", "--reference", "qwen1.5", "--benchmark", "mmlu", *window, "--catalog", str(scores))
    assert more["n"] == found["n"] + 2


@pytest.mark.slow
def test_benchmarks_combine_either_way() -> None:
    found = answer("density", "-b", "mean", "--combine", "per-benchmark")
    assert {row["benchmark"] for row in found} == {"per-benchmark"}
    trend = answer("trend", "-b", "mean", "--combine", "per-benchmark", "--permutations", "19", "--bootstrap", "50")
    assert trend["combine"] == "per-benchmark"
    assert densing("trend", "-b", "mmlu", "--combine", "per-benchmark").returncode == 1
    assert "mean-score" in densing("trend", "--combine", "both").stderr


@pytest.mark.slow
def test_trend_keeps_its_details_behind_verbose() -> None:
    quick = ("trend", "-b", "mmlu", "--permutations", "19", "--bootstrap", "50")
    brief, full = densing(*quick), densing(*quick, "--verbose")
    assert brief.stdout == full.stdout
    assert [line[:18] for line in brief.stderr.splitlines()].count("Why this estimator") == 1
    more = set(full.stderr.splitlines()) - set(brief.stderr.splitlines())
    assert set(brief.stderr.splitlines()) < set(full.stderr.splitlines())
    assert any(line.startswith("In simulations (") for line in more)


@pytest.mark.slow
def test_trend_says_when_a_score_fits_in_a_size() -> None:
    found = answer("trend", "-b", "mmlu", "--permutations", "19", "--bootstrap", "50", "--when", "0.7:3e9")
    assert found["when"][0]["score"] == 0.7
    assert densing("trend", "--when", "seventy").returncode == 2


@pytest.mark.slow
@pytest.mark.usefixtures("embedded_scale")
def test_run_writes_its_three_files(tmp_path: Path) -> None:
    mine = tmp_path / "mine.csv"
    rows = ["Mine-3B,3e9,2025-06-01,mmlu,0.66", "Mine-3B,3e9,2025-06-01,gsm8k,0.70", "Mine-3B,3e9,2025-06-01,bbh,0.55"]
    lines = ["Model,params,released,benchmark,score", *rows]
    mine.write_text("\n".join(lines).replace(",", ";"), encoding="utf-8")
    gain = written(tmp_path, record(arm("co2:tau=8", 0.5, 125.0)))
    found = answer("run", "--fast", "--no-measure", "--scores", mine, "--gain", gain, "--out", tmp_path / "out")
    for name in ("report.html", "density.csv", "trend.csv"):
        assert (tmp_path / "out" / name).stat().st_size > 500
    assert Path(found["report"]).name == "report.html"
    assert not list((tmp_path / "out").glob(".*")), "no temporary file is left"
    with (tmp_path / "out" / "density.csv").open(encoding="utf-8") as stream:
        header, *table = csv.reader(stream)
    assert header[0] == "model" and header[-3:] == ["known_as", "apart", "yours"], "new columns come last"
    cells = [dict(zip(header, row, strict=True)) for row in table]
    assert [row["model"] for row in cells if row["yours"] == "True"] == ["Mine-3B"]
    assert found["options"]["reference"] == "joint" and found["beside"]["reference"] == "qwen1.5"
    assert found["headline"]["n"] == sum(row["stratum"] == "headline" for row in cells)
    assert found["frontier"]["cost"] == "flops" and found["frontier"]["frontiers"][0]["names"]
    assert [row["arm"] for row in found["gains"][0]["figures"]] == ["co2:tau=8"]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert 'id="frontier"' in page and 'id="plot-gain-0"' in page
    (place,) = found["yours"]
    assert 1 <= place["rank"] <= place["of"] == found["headline"]["n"] + 1
    assert place["density_lo"] < place["density"] < place["density_hi"]
    assert {"separator", "columns-matched"} <= {note["code"] for note in found["notes"]}, "how the table was read"


@pytest.mark.slow
def test_run_names_what_is_wrong_in_a_users_table(tmp_path: Path) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text("model,params,released,benchmark,score\nMine-3B,3e9,2025-06-01,mmlu,66\n", encoding="utf-8")
    refused = densing("run", "--no-measure", "-r", "qwen1.5", "--scores", str(mine), "--out", str(tmp_path / "out"))
    assert refused.returncode == 1 and "Traceback" not in refused.stderr
    assert all(part in refused.stderr for part in ("mine.csv", "row 2", "score", "66"))
    assert not (tmp_path / "out").exists()


def test_run_refuses_a_damaged_record_of_gains_before_it_computes(tmp_path: Path) -> None:
    broken = written(tmp_path, record(arm("x", 0.5, 1.0, token_ratio=-1.0)))
    refused = densing("run", "--no-measure", "--gain", broken, "--out", tmp_path / "out")
    assert refused.returncode == 1 and "gain.json: x: token_ratio -1 is no finite number above 0" in refused.stderr
    assert densing("run", "--no-measure", "--gain", tmp_path / "none.json").returncode == 1
    assert not (tmp_path / "out").exists()


def test_catalog_round_trip(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    assert densing("catalog", "add", str(mine), "model=Mine-7B", "params_b=7.2", "released=2025-03-01").returncode == 0
    assert densing("catalog", "add", str(mine), "model=Mine-7B", "benchmark=mmlu", "score=0.7").returncode == 0
    assert densing("catalog", "validate", str(mine)).returncode == 0
    shown = answer("catalog", "show", "Mine-7B", "--catalog", str(mine))
    assert shown["scores"][0]["score"] == 0.7
    refused = densing("catalog", "add", str(mine), "model=Mine-7B", "benchmark=mmlu", "score=45", "evaluator=x")
    assert refused.returncode == 1
    assert "write 0.45" in refused.stderr


def test_catalog_list_and_show() -> None:
    models = answer("catalog", "list")
    assert len(models) >= 200
    assert len(answer("catalog", "list", "benchmarks")) >= 12
    assert answer("catalog", "show", "Llama-3-8B")["model"]["organisation"]
    missing = densing("catalog", "show", "Lama-3-8B")
    assert missing.returncode == 1
    assert "did you mean" in missing.stderr


def test_refs_list_show_and_refusal() -> None:
    names = {row["reference"] for row in answer("refs", "list")}
    assert {"olmo-ladder", "pythia", "qwen1.5", "qwen2.5", "llama", "densing-paper"} <= names
    shown = answer("refs", "show", "olmo-ladder", "--benchmark", "piqa")
    assert {row["target"] for row in shown["misses"]} == {"OLMo-2-7B", "OLMo-2-13B"}
    refused = densing("refs", "show", "densing-paper")
    assert refused.returncode == 1
    assert "no published losses" in refused.stderr


def test_error_severity_notes_give_exit_code_three() -> None:
    done = densing("density", "--reference", "olmo-ladder", "--benchmark", "mmlu", "--json")
    assert done.returncode == 3
    printed(done.stdout)
    assert "Do not compare these densities" in done.stderr


def test_doctor_finds_a_healthy_installation() -> None:
    found = answer("doctor")
    assert found["healthy"]
    assert found["reference_fits"]["qwen1.5"] >= 5
    # What builds or measures this project is nobody's lack.
    own = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]) - {
        "dev",
        "docs",
        "bench",
    }
    assert set(found["extras"]) == own | {"suite and model"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"model,params,released,benchmark,score\n", "no data row"),
        (b"model,params,released,benchmark,score\na,7,2024-01-01,mmlu,0.5\n", "write 7e9"),
        (b"model,params,released,benchmark,score\na,7e9,2999-01-01,mmlu,0.5\n", "2999-01-01"),
        (b"model,params,released,benchmark,score\na,7e9,2024-01-01,mmlu,45\n", "write 0.45"),
        (b"model,params,released,benchmark,score\na,7e9,2024-01-01,mmlu,nan\n", "column score: empty"),
        (b"model,params,released,benchmark,score\na,7e9,2024-01-01,arc,0.5\n", "arc"),
        (b"model;params\n1;2\n", "row 2, column params: 2 is below"),
        (b"model,params\n\xff\xfe,1\n", "UTF-8"),
        (b"a,b\n1,2,3\n", "cells"),
    ],
)
def test_bad_tables_are_one_message_and_exit_code_one(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    for arguments in (("density", "--benchmark", "mmlu", "--scores", str(path)), ("trend", "--catalog", str(path))):
        done = densing(*arguments)
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
        assert "bad.csv" in done.stderr
        assert message in done.stderr


def test_empty_windows_and_reversed_dates_are_refused() -> None:
    early = densing("trend", "--since", "2019-01-01", "--until", "2019-02-01")
    assert early.returncode == 1
    assert "at least 3 needed" in early.stderr
    assert densing("trend", "--since", "2025-01-01", "--until", "2024-01-01").returncode == 2
    assert densing("trend", "--since", "soon").returncode == 2
    strange = densing("trend", "--sensitivity")
    assert strange.returncode == 2 and "--reference joint" in strange.stderr and "qwen1.5" in strange.stderr


def test_import_and_help_stay_light() -> None:
    heavy = "{'pandas', 'numpy', 'scipy', 'statsmodels', 'plotly'}"
    code = f"import sys, densing, densing.cli; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_shell_completes_commands_and_options() -> None:
    for words, expected in (("densing tech", "techniques"), ("densing techniques compare --clus", "--cluster")):
        asked = {"_DENSING_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        command = [sys.executable, "-c", "import sys; sys.argv = ['densing']; from densing.cli import main; main()"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **asked})
        assert done.stdout.split() == [expected]


def test_help_begins_with_the_five_things_that_newcomers_do() -> None:
    first = densing("--help").stdout.split("Start here:\n")[1].split("\n\n")[0]
    commands = [line.split()[0] for line in first.splitlines() if line.startswith("  ") and line[2] != " "]
    assert commands == ["run", "density", "trend", "eval", "profile"]
