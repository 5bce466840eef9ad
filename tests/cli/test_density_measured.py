"""From stored results to densities, through the real command."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from densing.scores.references import load_reference
from tests.support.command import answer, densing, printed
from tests.support.eval_files import choice_sample, finish, key, write_results


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of lm-eval on HellaSwag: forty documents whose right answer costs 0.9 bits per byte."""
    folder = tmp_path_factory.mktemp("run")
    answer_text = " an answer of some length"
    right = -0.9 * math.log(2) * len(answer_text)
    samples = [
        choice_sample(
            i,
            [right * (0.9 + 0.2 * (i % 2)), right - 9 * (i % 3 > 0) + 5 * (i % 3 == 0), -90.0, -95.0],
            0,
            choices=[answer_text, " another one as long here", " x", " y"],
            acc=float(i % 3 > 0),
        )
        for i in range(40)
    ]
    config = {"model": "hf", "model_args": "pretrained=models/tiny", "model_num_parameters": 200_000_000, "limit": 40.0}
    write_results(folder, {"hellaswag": samples}, config=config)
    return folder


def test_density_of_a_folder_of_foreign_results(run: Path) -> None:
    rows = answer("density", "--results", str(run), "--reference", "olmo-ladder", "--denominator", "total")
    by = {row["quantity"]: row for row in rows}
    assert by["loss"]["score"] == pytest.approx(0.9, rel=1e-6)
    params = load_reference("olmo-ladder", "hellaswag").fit.params
    left = 0.9 - params["E"] - params["B"] * 1e12 ** -params["beta"]
    assert by["loss"]["n_eff"] == pytest.approx((left / params["A"]) ** (-1 / params["alpha"]), rel=1e-6)
    assert by["loss"]["density_lo"] < by["loss"]["density"] < by["loss"]["density_hi"]
    assert by["loss"]["n_items"] == 40
    done = densing("density", "--results", str(run), "--denominator", "total", "-r", "olmo-ladder")
    assert "other prompts and shots" in " ".join(done.stderr.split())


def test_a_run_of_ours_without_the_references_tasks_names_what_it_has(tmp_path: Path) -> None:
    finish(tmp_path / "mine", key("toy"))
    done = densing("density", "--results", str(tmp_path / "mine"), "--reference", "olmo-ladder")
    assert done.returncode == 1
    assert "the run has toy" in done.stderr


def test_results_stand_alone(run: Path, tmp_path: Path) -> None:
    assert densing("density", "--results", str(run), "--skills").returncode == 2
    missing = densing("density", "--results", str(tmp_path / "nowhere"))
    assert missing.returncode == 1
    assert "no such file or folder" in missing.stderr


def test_out_writes_the_table(run: Path, tmp_path: Path) -> None:
    densing(
        "density",
        "--results",
        str(run),
        "-r",
        "olmo-ladder",
        "--denominator",
        "total",
        "--out",
        str(tmp_path / "d.json"),
    )
    assert {row["quantity"] for row in printed((tmp_path / "d.json").read_text())} == {"loss", "score"}


def test_two_results_are_compared_and_drawn(run: Path, tmp_path: Path) -> None:
    done = densing(
        "compare", str(run), str(run), "--denominator", "total", "--html", str(tmp_path / "c.html"), "--json"
    )
    assert done.returncode == 0
    rows = {row["quantity"]: row for row in printed(done.stdout)["comparisons"]}
    assert rows["loss"]["density_ratio"] == 1.0 and rows["loss"]["n_items"] == 40
    assert rows["score"]["status"] == "ok" and rows["score"]["p"] > 0.9
    assert "Density over that of" in (tmp_path / "c.html").read_text(encoding="utf-8")
    shown = densing("compare", run, run, "--denominator", "total")
    assert "times the density of" in shown.stdout + shown.stderr
