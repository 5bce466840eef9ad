"""``densing tune`` and ``densing eval --adapter`` through the entry point."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from densing.cli import app

pytest.importorskip("lm_eval")
pytest.importorskip("torch")

from densing.core import UnavailableError
from densing.scores.evals import read_films
from tests.support.command import printed
from tests.support.served_models import write_deep_model

# lm-eval and peft warn. Peft is not loaded to see whether it is there: that took a quarter of collecting slow tests.
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(find_spec("peft") is None, reason="needs the extra tune"),
]
SMALL = ("--films", "6", "--batch", "2", "--rank", "2")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        read_films()
    except UnavailableError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("place")
    write_deep_model(folder / "deep", max_position_embeddings=512)
    return folder


def densing(place: Path, command: str, *arguments: str) -> Result:
    model = ("--model_args", f"pretrained={place / 'deep'},dtype=float32")
    return CliRunner().invoke(app, [command, *model, "--device", "cpu", *arguments])


@pytest.mark.slow
def test_a_model_is_tuned_and_asked_about_films_of_the_same_split_only(place: Path, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "tuned"))
    done = densing(place, "tune", *SMALL, *out, "--json")
    assert done.exit_code == 0, done.output
    about = printed(done.stdout)
    assert about["films"] == 6 and about["steps"] == 3 and about["settings"]["split"] == "time"
    shown = densing(place, "tune", *SMALL, *out)
    assert "deep: 6 films" in shown.stderr and "in 3 steps" in shown.stderr

    run = ("--adapter", str(tmp_path / "tuned"), "--limit", "1", "--out", str(tmp_path / "run"))
    done = densing(place, "eval", *run, "--tasks", "lcbm_films_pair,lcbm_films_pair_director", "--json")
    assert done.exit_code == 1, done.output
    asked, refused = printed(done.stdout)["units"]
    if refused["task"] == "lcbm_films_pair":
        asked, refused = refused, asked
    assert (asked["model"], asked["task"], asked["state"]) == ("deep@adapter=tuned", "lcbm_films_pair", "evaluated")
    assert refused["state"] == "failed" and "tests on split director, but" in refused["error"]


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("tune", ("--rate", "0", "--out", "unused"), "rate 0.0: give a number above 0"),
        ("tune", ("--split", "tim", "--out", "unused"), "did you mean 'time'"),
        ("tune", ("--films", "99999", "--out", "unused"), "films 99999: the split time has"),
        ("eval", ("--adapter", "a", "--exit", "2", "--tasks", "piqa"), "adapter and exits, cuts or bits at once"),
    ],
)
def test_what_cannot_be_tuned_is_refused(place: Path, command: str, arguments: tuple[str, ...], message: str) -> None:
    done = densing(place, command, *arguments)
    assert done.exit_code == 1
    assert message in str(done.exception)
