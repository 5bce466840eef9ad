"""Checkpoints: what a name tells, the order of steps, and density against step as table, figure and page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from densing.core import InputError
from densing.plots import plot_bank_steps, plot_checkpoints
from densing.scores.density import BankSteps, by_step, checkpoint, checkpoint_folders, densities_by_step
from tests.support.command import answer, densing
from tests.support.eval_files import choice_sample, write_results

STEPS = (1000, 200, 30000)
ROW = {"benchmark": "mmlu", "density": 1.0, "density_lo": 0.8, "density_hi": 1.2, "status": "ok", "bound": ""}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("org/model@step143000", ("org/model", 143000)),
        ("out/checkpoint-500", ("out", 500)),
        ("checkpoint-500", ("run", 500)),
        ("out/checkpoint-500/", ("out", 500)),
        ("mine-step_20k", ("mine", 20000)),
        ("mine global_step1000", ("mine", 1000)),
        ("mine-iter_0012000-hf", ("mine-hf", 12000)),
        ("a-step10/b-step20", ("a-step10/b", 20)),
        ("Llama-3-8B", None),
        ("Stepfun-7B", None),
        ("footstep9", None),
        ("iter", None),
    ],
)
def test_a_name_tells_its_run_and_step_or_nothing(name: str, told: tuple[str, int] | None) -> None:
    assert checkpoint(name) == told


def test_steps_are_numbers_and_other_rows_stay_where_they_are() -> None:
    names = ["z", "a/checkpoint-1000", "m", "a/checkpoint-200", "b/step9", "a/checkpoint-30"]
    assert by_step(pd.DataFrame({"model": names}))["model"].tolist() == [
        "z", "a/checkpoint-30", "a/checkpoint-200", "a/checkpoint-1000", "m", "b/step9"
    ]  # fmt: skip
    rows = [{"model": f"a@step{step}", "benchmark": name} for name in ("piqa", "csqa") for step in (10, 9)]
    ordered = by_step(pd.DataFrame(rows))
    assert list(zip(ordered["benchmark"], ordered["model"], strict=True)) == [
        ("piqa", "a@step9"), ("piqa", "a@step10"), ("csqa", "a@step9"), ("csqa", "a@step10")
    ]  # fmt: skip
    assert by_step(pd.DataFrame({"model": []})).empty


def test_without_a_checkpoint_the_error_says_how_names_tell_them() -> None:
    with pytest.raises(InputError, match=r"no model name states a training step.*checkpoint-500.*found: mine"):
        densities_by_step(pd.DataFrame([{"model": "mine", **ROW}]))
    with pytest.raises(InputError, match=r"found: a, b, c$"):
        densities_by_step(pd.DataFrame([{"model": name, **ROW} for name in "abcd"]))


def test_the_figure_has_a_line_per_run_in_order_with_limits_as_triangles() -> None:
    rows = [{"model": f"{run}@step{step}", **ROW, "density": step / 1000} for run in "ab" for step in STEPS]
    rows[1] |= {"bound": "upper", "density": float("nan"), "density_hi": 0.5}
    figure = plot_checkpoints(densities_by_step(pd.DataFrame(rows)))
    assert [(trace.name, list(trace.x)) for trace in figure.data] == [(run, sorted(STEPS)) for run in "ab"]
    assert figure.data[0].marker.symbol[0] == "triangle-down-open"
    assert figure.data[0].y[0] == 0.5 and figure.data[1].y[0] == 0.2


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Results of three checkpoints of one run, better from step to step."""
    text = " an answer of some length"
    for step in STEPS:
        loss = 1.1 - 0.1 * len(str(step))
        samples = [
            choice_sample(i, [-loss * len(text), -60.0], 0, choices=[text, " another one as long"], acc=1.0)
            for i in range(40)
        ]
        config = {"model": "hf", "model_args": f"pretrained=out/checkpoint-{step}", "model_num_parameters": 200_000_000}
        write_results(tmp_path / str(step), {"hellaswag": samples}, config=config)
    return tmp_path


def test_checkpoints_of_results_come_by_step_with_a_view_and_a_page(run: Path) -> None:
    given = ("density", "--results", run, "-r", "olmo-ladder", "--denominator", "total")
    page = run / "steps.html"
    rows: list[dict[str, Any]] = answer(*given, "--by-step", "--html", page)
    losses = [row for row in rows if row["quantity"] == "loss"]
    assert [(row["run"], row["step"]) for row in losses] == [("out", step) for step in sorted(STEPS)]
    densities = [row["density"] for row in losses]
    assert densities == sorted(densities) and densities[0] < densities[-1]
    points = pd.read_csv(run / "steps-points.csv")
    assert set(points["step"]) == set(STEPS) and "Density of checkpoints: out" in page.read_text()
    shown = densing(*given, "--by-step").stdout
    assert "Density by step against olmo-ladder" in shown and "Run" in shown.splitlines()[2]
    usual = [row["model"] for row in answer(*given) if row["quantity"] == "loss"]
    assert usual == [row["model"] for row in losses], "in the order of steps without the view, too"


def test_a_table_of_checkpoints_comes_by_step_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    lines = [f"mine/step{step},3e9,2024-03-01,mmlu,{0.5 + step / 1e6}" for step in STEPS]
    path.write_text("\n".join(["model,params,released,benchmark,score", *lines]), encoding="utf-8")
    given = ("density", "-r", "qwen1.5", "-b", "mmlu", "--scores", path)
    assert [row["model"] for row in answer(*given)] == [f"mine/step{step}" for step in sorted(STEPS)]
    assert [row["step"] for row in answer(*given, "--by-step")] == sorted(STEPS)


@pytest.mark.parametrize("of", ["--scores", "--results"])
def test_a_file_of_checkpoints_holds_run_and_step_as_the_screen_does(run: Path, tmp_path: Path, of: str) -> None:
    table = tmp_path / "mine.csv"
    lines = [f"out/step{step},3e9,2024-03-01,mmlu,{0.5 + step / 1e6}" for step in STEPS]
    table.write_text("\n".join(["model,params,released,benchmark,score", *lines]), encoding="utf-8")
    given = {
        "--scores": ("--scores", table, "-b", "mmlu"),
        "--results": ("--results", run, "-r", "olmo-ladder", "--denominator", "total"),
    }[of]
    files = tmp_path / "steps.json", tmp_path / "steps.csv"
    printed = [densing("density", *given, "--by-step", "--json", "--out", file).stdout for file in files]
    assert files[0].read_text(encoding="utf-8") == printed[0]
    rows = json.loads(printed[0])["data"]
    assert {(row["run"], row["step"]) for row in rows} == {("out", step) for step in STEPS}
    assert pd.read_csv(files[1])["step"].tolist() == [row["step"] for row in rows]


@pytest.mark.parametrize("arguments", [(), ("--references", "all", "--scores", "x.csv"), ("--skills",)])
def test_a_view_by_step_is_of_ones_own_checkpoints_on_one_reference(arguments: tuple[str, ...]) -> None:
    done = densing("density", *arguments, "--by-step")
    assert done.returncode == 2 and "checkpoints of --scores or --results, on one reference" in done.stderr


def test_a_runs_checkpoints_on_a_bank_stand_by_step_with_what_is_read_of_them() -> None:
    score = {"items": 100, "score": 0.4, "lo": 0.35, "hi": 0.45, "ability": 0.1, "status": "ok"}
    density = {"density": 2.0, "density_lo": 1.0, "density_hi": 3.0}
    read = {"model": "", "benchmark": "piqa", "n_eff": 2e9, "n_eff_lo": 1e9, "n_eff_hi": 3e9, **density, "bound": ""}
    found = [
        {"model": "mine@step20-tokens2M", **score, "densities": pd.DataFrame([read])},
        {"model": "mine@step10-tokens1M", **score, "densities": pd.DataFrame([{**read, "bound": "upper"}])},
    ]
    steps = BankSteps.of("suite", "olmo-ladder", found)
    assert steps.axis == "tokens" and steps.table["tokens"].tolist() == [1e6, 2e6]
    assert steps.table["density"].tolist() == [2.0, 2.0] and "≤ 3.0" in str(steps.listing().cells()[0])
    figure = plot_bank_steps(steps)
    assert [list(trace.y) for trace in figure.data] == [[0.4, 0.4], [3e9, 2e9], [3.0, 2.0]]
    assert list(figure.data[2].x) == [1e6, 2e6] and list(figure.data[2].error_y.array) == [0.0, 1.0]
    alone = BankSteps.of("suite", "olmo-ladder", [{"model": "mine@step10", **score}])
    assert alone.axis == "step" and len(plot_bank_steps(alone).data) == 1
    assert "not recalibrated" in alone.notes[0].message


def test_folders_are_checkpoints_where_their_names_or_a_ladder_say_a_step(tmp_path: Path) -> None:
    def write(name: str, **facts: object) -> None:
        (tmp_path / name).mkdir()
        for file in ("config.json", "model.safetensors"):
            (tmp_path / name / file).write_text("{}")
        if facts:
            (tmp_path / name / "densing.json").write_text(json.dumps(facts))

    write("d8-s0-640", run="d8-s0", tokens=640, schedule={"steps": 20})
    write("d8-s0-320", run="d8-s0", tokens=320, schedule={"steps": 10})
    write("other")
    found = checkpoint_folders(tmp_path)
    assert [each.name for each in found] == ["d8-s0@step10-tokens320", "d8-s0@step20-tokens640"]
    assert found[0].path == tmp_path / "d8-s0-320"
    with pytest.raises(InputError, match="no checkpoint; expected folders"):
        checkpoint_folders(tmp_path / "other")
