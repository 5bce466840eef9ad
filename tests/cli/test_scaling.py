"""``densing scaling``: runs of different size, a model for a budget, and what is refused or lacking."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from densing.scores.fit import published_law
from tests.support import command
from tests.support.command import printed
from tests.support.profile_command import cut, densing, run_of, trace, two, write

__all__ = ["two"]


def test_scaling_over_runs_of_different_size(two: Path, tmp_path: Path) -> None:
    for rank in range(4):
        content = trace(rank)
        content["distributedInfo"]["world_size"] = 4
        write(tmp_path / "four" / f"rank{rank}.json", content)
    found = printed(densing("scaling", two, tmp_path / "four", "--kind", "strong", "--json").stdout)
    assert [row["devices"] for row in found["rows"]] == [2, 4]
    assert found["rows"][1]["efficiency"] == pytest.approx(0.5)


def test_a_zip_of_traces_is_the_run_that_its_folder_is(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / str(count), count) for count in (2, 4)]
    zips = [shutil.make_archive(str(tmp_path / f"zip{run.name}"), "zip", tmp_path, run.name) for run in runs]
    from_folders, from_zips = (printed(densing("scaling", *each, "--json").stdout)["rows"] for each in (runs, zips))
    assert [{**row, "name": ""} for row in from_folders] == [{**row, "name": ""} for row in from_zips]


def test_damage_of_a_run_is_not_passed_over_in_scaling(tmp_path: Path) -> None:
    small, large = run_of(tmp_path / "two", 2), run_of(tmp_path / "four", 4)
    assert printed(densing("scaling", small, large, "--json").stdout)["notes"] == []
    cut(large / "rank3.json")
    assert f"error: {large}: " in densing("scaling", small, large, code=3).stderr
    notes = printed(densing("scaling", small, large, "--json", code=3).stdout)["notes"]
    assert any(note["severity"] == "error" and "rank3.json" in note["message"] for note in notes)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "other", "--kind", "stron"), "did you mean 'strong'"),
        (("run",), "at least two sizes"),
        (("run", "run"), "run: named twice"),
        (("run", "absent"), "absent: no such file"),
        (("run", "absent.parquet"), "absent.parquet: no such file"),
        (("run", "other", "--work", "1"), "--work was given 1 times"),
        (("run", "other", "--work", "nan", "--work", "2"), "--work nan"),
        (("run", "other", "--kind", "throughput"), "needs --work"),
    ],
)
def test_scaling_refuses_before_a_trace_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    for name in ("run", "other"):
        write(tmp_path / name / "rank0.json", {"traceEvents": []})
    monkeypatch.chdir(tmp_path)
    message = densing("scaling", *arguments, code=1).stderr
    assert words in message and len(message.splitlines()) == 1


def table(path: Path) -> Path:
    """Write a table of runs of 50 M to 5 B parameters, by Besiroglu et al.'s law with a little noise."""
    random = np.random.default_rng(0)
    sizes, tokens = (axis.ravel() for axis in np.meshgrid(np.geomspace(5e7, 5e9, 6), np.geomspace(1e9, 1e11, 6)))
    loss = published_law("chinchilla-refit").predict({"params": sizes, "tokens": tokens})
    loss = loss * np.exp(0.005 * random.standard_normal(len(loss)))
    pd.DataFrame({"params": sizes, "tokens": tokens, "loss": loss}).to_csv(path, index=False)
    return path


PLAN = ("scaling", "plan", "--gpu-hours", "300", "--cluster", "h100x8-nvlink", "--gpus", "8", "--batch", "128")


def test_a_budget_becomes_a_model_and_everything_is_said(tmp_path: Path) -> None:
    page, html = tmp_path / "plan.md", tmp_path / "plan.html"
    done = densing(*PLAN, "--page", page, "--html", html)
    for words in ("300 GPU hours on 8 devices of h100x8-nvlink (1.56 days) train ", "law: chinchilla-refit, Besiroglu",
                  "Parameters N", "10 times the tokens per parameter", "layout: tp ", "closed form: ",
                  "Saved per served token", "Worth it from, served tokens", "joint scale"):  # fmt: skip
        assert words in done.stdout, words
    assert "no draws of its constants are known" in done.stderr
    found = printed(densing(*PLAN, "--json").stdout)
    assert found["flops"] == pytest.approx(6 * found["params"]["value"] * found["tokens"]["value"])
    assert found["params"]["low"] <= found["params"]["value"] <= found["params"]["high"]
    assert found["layout"]["dp"] * found["layout"]["tp"] * found["layout"]["pp"] * found["layout"]["cp"] == 8
    assert {note["code"] for note in found["notes"]} >= {"no-draws", "data-sheet"}
    assert "| Parameters |" in page.read_text() and "closed form" in page.read_text()
    assert "isoflop" in html.read_text()


def test_a_law_of_own_runs_from_a_table_and_from_a_stored_fit_is_the_same(tmp_path: Path) -> None:
    runs, fit = table(tmp_path / "runs.csv"), tmp_path / "fit.json"
    densing("fit", runs, "--bootstrap", 50, "--out", fit)
    own, stored = (printed(densing(*PLAN, "--fit", path, "--bootstrap", 50, "--json").stdout) for path in (runs, fit))
    # Draws are stored with nine digits.
    assert own["params"]["value"] == stored["params"]["value"]
    assert own["loss"]["low"] == pytest.approx(stored["loss"]["low"], rel=1e-6)
    assert own["source"] == "fitted to 36 runs" and "no-draws" not in {note["code"] for note in own["notes"]}
    published = printed(densing(*PLAN, "--json").stdout)
    assert own["params"]["value"] == pytest.approx(published["params"]["value"], rel=0.5)
    assert own["loss"]["high"] - own["loss"]["low"] > 0


def test_a_table_without_tokens_and_a_law_without_them_are_refused(tmp_path: Path) -> None:
    runs = tmp_path / "runs.csv"
    runs.write_text("params,loss\n1e8,3\n1e9,2.5\n1e10,2.2\n", encoding="utf-8")
    assert "tokens" in densing(*PLAN, "--fit", runs, code=1).stderr
    fit = tmp_path / "power.json"
    densing("fit", runs, "--law", "power", "--bootstrap", 20, "--out", fit)
    assert "error: law power: size and tokens cannot be traded" in densing(*PLAN, "--fit", fit, code=1).stderr
    fit.write_text(fit.read_text()[:200], encoding="utf-8")
    assert f"error: {fit}: " in densing(*PLAN, "--fit", fit, code=1).stderr
    runs.write_text("params,tokens,loss\n1e8,1e9,nan\n1e9,1e10,2.5\n", encoding="utf-8")
    message = densing(*PLAN, "--fit", runs, code=1).stderr
    assert f"{runs}" in message and "loss" in message and "Traceback" not in message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--gpu-hours", "0"), "gpu-hours: 0 is out of range"),
        (("--gpu-hours", "nan"), "gpu-hours: nan is out of range"),
        (("--cluster", "rtx4090x4-pci"), "did you mean 'rtx4090x4-pcie'"),
        (("--cluster", "geo48", "--gpus", "48"), "unequal devices cannot be planned"),
        (("--law", "chinchila"), "did you mean 'chinchilla'"),
        (("--overtrain", "0.5"), "overtrain: 0.5 is out of range"),
        (("--framework", "nanotron"), "eager: not predicted"),
        (("--gpus", "1009", "--batch", "5"), "gpus: no split of 1009 devices divides"),
    ],
)
def test_a_plan_that_cannot_be_made_is_one_error(arguments: tuple[str, ...], words: str) -> None:
    message = densing(*PLAN, *arguments, code=1).stderr
    assert words in message and len(message.splitlines()) == 1


def test_a_law_is_fitted_or_published_and_files_that_are_read_are_not_written(tmp_path: Path) -> None:
    runs = table(tmp_path / "runs.csv")
    assert "leave one out" in densing(*PLAN, "--fit", runs, "--law", "chinchilla", code=1).stderr
    cluster = tmp_path / "pod.md"
    assert "is also a file that is read" in densing(*PLAN, "--cluster", cluster, "--page", cluster, code=1).stderr


def test_a_budget_too_small_for_any_shape_ends_with_three() -> None:
    done = densing(*PLAN, "--gpu-hours", "1e-5", code=3)
    assert "error: the budget is too small: the plan is the smallest shape" in done.stderr


def test_scaling_is_a_command_and_leads_another(two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = densing("scaling", "--help").stdout
    assert "RUN..." in shown and "  plan  Find the model that a budget of GPU hours trains best" in shown
    # A run that is called plan is named by its path.
    four = run_of(tmp_path / "plan", 4)
    monkeypatch.chdir(tmp_path)
    rows = printed(densing("scaling", "./plan", two, "--json").stdout)["rows"]
    assert [row["devices"] for row in rows] == [2, 4] and four.exists()


def test_settings_of_the_command_and_of_the_one_that_it_leads(two: Path, tmp_path: Path) -> None:
    four = run_of(tmp_path / "four", 4)
    (tmp_path / "densing.toml").write_text('[scaling]\nkind = "weak"\n[scaling.plan]\noverthrow = 3\n')
    asked = {"cwd": tmp_path}
    assert printed(command.densing("scaling", two, four, "--json", **asked).stdout)["kind"] == "weak"
    done = command.densing(*PLAN, **asked)
    assert done.returncode == 1 and "did you mean 'overtrain'" in done.stderr
    (tmp_path / "densing.toml").write_text('[scaling]\nkind = "weak"\n[scaling.plan]\novertrain = 3\ngpus = 8\n')
    assert printed(command.densing(*PLAN, "--json", **asked).stdout)["overtrained"]["times"] == 3
    names = {row["name"] for row in command.answer("doctor", **asked)["settings"]}
    assert {"scaling.kind", "scaling.plan.overtrain"} <= names
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DENSING_SCALING_PLAN_OVERTRAIN", "4")
        patch.setenv("DENSING_SCALING_KIND", "strong")
        assert printed(command.densing(*PLAN, "--json", **asked).stdout)["overtrained"]["times"] == 4
        assert printed(command.densing("scaling", two, four, "--json", **asked).stdout)["kind"] == "strong"
