"""``densing exits`` and the variants of ``densing eval`` through the entry point."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from densing.cli import app

pytest.importorskip("lm_eval")
pytest.importorskip("torch")

from tests.support.command import printed
from tests.support.evals_toys import write_tasks
from tests.support.served_models import TEXTS, write_deep_model


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    write_deep_model(folder / "deep")
    write_tasks(folder / "tasks")
    (folder / "text.txt").write_text("\n".join(TEXTS))
    return folder


def densing(place: Path, command: str, *arguments: str) -> Result:
    model = ("--model_args", f"pretrained={place / 'deep'},dtype=float32")
    return CliRunner().invoke(app, [command, *model, "--device", "cpu", *arguments])


def fit(place: Path, *arguments: str) -> Result:
    text = ("--text", str(place / "text.txt"), "--tokens", "3000", "--block", "100")
    return densing(place, "exits", *text, "--out", str(place / "exits"), *arguments)


@pytest.mark.slow
def test_exits_are_fitted_and_every_combination_is_evaluated_once(place: Path, tmp_path: Path) -> None:
    done = fit(place, "--exits", "1,3", "--json")
    assert done.exit_code == 0, done.output
    manifest = printed(done.stdout)
    assert list(manifest["exits"]) == ["1", "3"] and manifest["layers"] == 4
    shown = fit(place, "--exits", "1,3")
    assert "untranslated_error" in shown.stdout and "on 300 held-out tokens of 3000" in shown.stderr

    ways = ("--exit", "1,3", "--cut", "1", "--cut_bits", "2,16", "--translators", str(place / "exits"))
    tasks = ("--include_path", str(place / "tasks"), "--tasks", "toy_choice", "--out", str(tmp_path / "run"))
    run = densing(place, "eval", *ways, *tasks, "--limit", "3", "--json")
    assert run.exit_code == 0, run.output
    assert [(unit["model"], unit["state"]) for unit in printed(run.stdout)["units"]] == [
        ("deep@exit=1,cut=1,cut_bits=2", "evaluated"),
        ("deep@exit=1,cut=1", "evaluated"),
        ("deep@exit=3,cut=1,cut_bits=2", "evaluated"),
        ("deep@exit=3,cut=1", "evaluated"),
    ]
    again = densing(place, "eval", *ways, *tasks, "--limit", "3")
    assert "nothing to do: all 4 units" in again.stderr


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("exits", ("--exits", "x", "--out", "unused"), "--exits x: give comma-separated whole numbers"),
        ("exits", ("--exits", "4", "--text", "clean", "--tokens", "3000", "--out", "unused"), "the model has 4 layers"),
        ("eval", ("--exit", "2", "--cut", "3", "--tasks", "piqa"), "cut=3 lies after exit=2"),
        ("eval", ("--translators", "none", "--tasks", "piqa"), "--translators none: no exit uses them"),
        ("eval", ("--weight_bits", "5", "--tasks", "piqa"), "weight_bits=5 is not offered; choose one of 4, 8, 16"),
    ],
)
def test_what_cannot_be_served_is_refused(place: Path, command: str, arguments: tuple[str, ...], message: str) -> None:
    done = densing(place, command, *arguments)
    assert done.exit_code == 1
    assert message in str(done.exception)
