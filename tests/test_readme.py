"""Every command of README runs as written in a copy of the checkout; the example tables say what their sources say."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import densing
from tests.support.folders import ROOT
from tests.support.pages import load_first_hour, words

first_hour = load_first_hour()
COMMANDS = first_hour.read_commands(ROOT / "README.md")
# Not run here, by their beginning, and where they are run.
ELSEWHERE = {
    "git clone ": "by whoever checks the project out; there is no network in a test",
    "make run": ".ci/run",
    "make test": ".ci/run",
    "densing run --no-measure --scores": "tests/cli/test_main.py runs the same on a table of its own, minutes of work",
    "pip install .  ": "tests/matrix.py and docs/first_hour install the wheel",
    "pip install '.[evals,train]'": "Makefile installs these extras; docs/first_hour installs [train] from the wheel",
    "pip install --no-deps -r requirements-data.txt": "Makefile",
}
SLOW = (
    "densing run",
    "densing eval",
    "densing density --results",
    "densing train",
    "densing profile runs",
    "densing trend",
    "densing doctor",
    "densing techniques compare",
)
# What these read is written by a command before them, which is run with them.
AFTER = {"densing density --results": "densing eval"}
# Commands of tutorials: tests/test_first_hour.py runs them with a wheel, and compares what they print.
TUTORIALS = {
    words(command)
    for page in sorted(first_hour.TUTORIALS.glob("*.md"))
    for command in first_hour.read_commands(page)
    if not command.python
}
# What how-to pages show of the same commands.
SHOWN = {
    words(command): command
    for page in (ROOT / "docs" / "how-to").glob("*.md")
    for command in first_hour.read_commands(page)
    if command.shown
}


def _case(command: Any) -> Any:
    slow = command.python or command.text.startswith(SLOW)
    return pytest.param(command, id=f"line {command.line}", marks=[pytest.mark.slow] if slow else [])


def _elsewhere(command: Any) -> bool:
    if command.python:
        return False
    return words(command) in TUTORIALS or command.text.startswith((*ELSEWHERE, *AFTER.values()))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what a clone holds and commands read."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


def _run(command: Any, folder: Path) -> None:
    done = first_hour.run(command, folder, first_hour.environment(Path(sys.executable).parent))
    assert done.returncode == 0, f"README.md:{command.line}: exit code {done.returncode}\n{done.stdout}"
    if shown := SHOWN.get(words(command)):
        line = first_hour.not_printed(shown.shown, done.stdout)
        assert line is None, f"{shown.place}: the page shows a line that was not printed:\n  {line}\n{done.stdout}"


def test_every_line_that_is_not_run_here_is_named_and_stands_in_the_readme() -> None:
    for beginning in ELSEWHERE:
        assert sum(command.text.startswith(beginning) for command in COMMANDS) == 1, beginning
    assert [command for command in COMMANDS if command.python], "a block for notebooks"
    assert len(COMMANDS) > len(ELSEWHERE) + 10


@pytest.mark.parametrize("command", [_case(command) for command in COMMANDS if not _elsewhere(command)])
def test_a_command_of_the_readme_runs_as_written(command: Any, checkout: Path) -> None:
    for reader, writer in AFTER.items():
        if command.text.startswith(reader):
            (first,) = [other for other in COMMANDS if other.text.startswith(writer)]
            _run(first, checkout)
    _run(command, checkout)


def test_the_readme_s_picture_is_there() -> None:
    pictures = [line for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("![")]
    assert [(ROOT / line.partition("](")[2].rstrip(")")).is_file() for line in pictures] == [True]


def test_runs_are_the_means_of_our_own_ladder() -> None:
    table = pd.read_csv(ROOT / "densing" / "scores" / "references" / "data" / "densing_cpu.csv")
    keys = ["run", "params_non_embedding", "tokens"]
    means = table[table["task"].ne("table")].groupby(keys)[["bits_per_byte", "accuracy"]].mean()
    runs = pd.read_csv(ROOT / "examples" / "runs.csv").set_index(["run", "params", "tokens"]).sort_index()
    assert runs.index.to_list() == means.index.to_list()
    assert (runs["loss"].to_numpy() == means["bits_per_byte"].round(5).to_numpy()).all()
    assert (runs["score"].to_numpy() == means["accuracy"].round(4).to_numpy()).all()


def test_the_leaderboard_holds_the_catalog_s_facts() -> None:
    board = pd.read_csv(ROOT / "examples" / "leaderboard.csv", parse_dates=["released"]).set_index("model")
    catalog = densing.load_catalog()
    scores = catalog.scores[catalog.scores["benchmark"].eq("mmlu") & catalog.scores["evaluator"].eq("obsscaling")]
    models = catalog.models.set_index("model").loc[board.index]
    assert (board["score"] == scores.set_index("model")["score"].round(4).loc[board.index]).all()
    assert (board["released"] == models["released"]).all()
    assert (board["params"] / 1e9 - models["params_total_b"]).abs().lt(1e-5 * models["params_total_b"]).all()


def test_the_last_checkpoint_is_as_its_makers_results_and_the_catalog_say() -> None:
    last = pd.read_csv(ROOT / "examples" / "checkpoints.csv", parse_dates=["released"]).iloc[-1]
    results = densing.read_results(ROOT / "tests/data/lm_eval/old_schema/6.9b-deduped-5shot_step143000.json")
    row = results.measurements.set_index(["task", "metric"]).loc[("winogrande", "acc")]
    assert row["model"].replace("v1.1-", "").endswith(last["model"])
    assert (round(row["value"], 4), row["n_shot"]) == (last["score"], last["shots"])
    model = densing.load_catalog().models.set_index("model").loc["Pythia-6.9B-deduped"]
    assert (model["params_total_b"] * 1e9, model["released"]) == (last["params"], last["released"])


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "examples/README.md"])
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\((?!https?:|mailto:)([^)#]+)", (ROOT / page).read_text("utf-8"))
    assert [target for target in targets if not ((ROOT / page).parent / target).exists()] == []
