"""Arms are tuned alike: planted optima are found, what does not carry over is said, and real trials are not redone."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from densing.cli import app
from densing.core import InputError
from densing.scores.ladder import Arm, DivergedError, find_corpus, get_preset, parse_arm
from densing.tradeoff import tune_arms, tuning
from tests.support.command import printed

PRESET = get_preset("tiny")


def planted(loss: Callable[[Arm, str, int], float]) -> Callable[..., dict[str, int]]:
    """A trainer whose losses are known; inf: it diverges."""

    def train(runs: Sequence[Any], folder: Path, **_: Any) -> dict[str, int]:
        diverged = False
        for run in runs:
            value = loss(run.arm, run.shape.name, run.seed)
            diverged |= math.isinf(value)
            for budget in run.budgets if math.isfinite(value) else ():
                into = run.export_folder(folder, budget)
                into.mkdir(parents=True, exist_ok=True)
                export = {"run": run.name, "loss": {"validation_nats_per_token": value}}
                (into / "densing.json").write_text(json.dumps(export))
        if diverged:
            raise DivergedError("one")
        return {}

    return train


def search(monkeypatch: pytest.MonkeyPatch, folder: Path, loss: Callable[[Arm, str, int], float], trials: int = 16,
           arms: Sequence[str] = ("plain", "co2:tau=8")) -> Any:  # fmt: skip
    monkeypatch.setattr(tuning, "train", planted(loss))
    corpus = find_corpus("standard", folder / "corpus", PRESET.vocabulary)
    return tune_arms(PRESET, corpus, [parse_arm(arm, 4) for arm in arms], folder, trials=trials)


def bowl(arm: Arm, best: float) -> float:
    outer = float(arm.knobs.get("outer_momentum", 0.5))
    return math.log(arm.lr / best) ** 2 + (outer - 0.2) ** 2


def test_each_arm_gets_the_setting_nearest_its_own_optimum(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    best = {"plain": 1.6, "co2": 0.4}
    found = search(monkeypatch, tmp_path, lambda arm, *_: bowl(arm, best[arm.method]))
    for each, method in zip(found.arms, best, strict=True):
        assert each.trials == 16 and each.given_loss is not None and each.loss < each.given_loss
        assert abs(math.log(each.settings["lr"] / best[method])) < 0.35
        assert (each.next_size, each.next_rate) == ("d12", 1.0)
    assert abs(found.arms[1].settings["outer_momentum"] - 0.2) < 0.3
    tuned = found.tuned([parse_arm("plain", 4), parse_arm("co2:tau=8", 4)])
    # Under their own names, with the knobs that were found beside their own.
    assert [arm.name for arm in tuned] == ["plain", "co2:tau=8"]
    assert tuned[1].knobs["tau"] == "8" and float(tuned[1].knobs["outer_lr"]) == found.arms[1].settings["outer_lr"]
    assert not found.notes
    assert "2 arms tuned on d8, 16 trials each" in repr(found) and "outer_momentum" in repr(found)
    assert json.loads((tmp_path / "tuning.json").read_text())["arms"][0]["settings"] == found.arms[0].settings


def test_as_given_stays_where_nothing_is_better(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = search(monkeypatch, tmp_path, lambda arm, *_: 0.0 if arm.name == arm.method else 1 + bowl(arm, 1.0),
                   arms=["plain"])  # fmt: skip
    assert found.arms[0].settings == {"lr": 1.0} and found.arms[0].loss == found.arms[0].given_loss


def test_a_rate_that_is_not_carried_is_said_and_noise_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def moves(arm: Arm, size: str, seed: int) -> float:
        return bowl(arm, 1.6 if size == "d8" else 0.8)

    found = search(monkeypatch, tmp_path / "moves", moves, arms=["plain"])
    assert found.arms[0].next_rate == 0.5 and found.arms[0].next_gain > 0
    assert [note.code for note in found.notes] == ["rate-not-carried"]

    def noisy(arm: Arm, size: str, seed: int) -> float:
        return bowl(arm, 1.6) if size == "d8" else (arm.lr if seed % 2 else -arm.lr)

    assert search(monkeypatch, tmp_path / "noisy", noisy, arms=["plain"]).arms[0].next_rate == 1.0


@pytest.mark.parametrize("far", [1 / 24, 20.0])
def test_a_search_goes_on_until_the_best_rate_lies_inside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, far: float
) -> None:
    """An optimum far beyond the first range is found, and every arm has as many trials as the farthest."""
    best = {"plain": 1.2, "co2": far}
    found = search(monkeypatch, tmp_path, lambda arm, *_: bowl(arm, best[arm.method]), trials=8)
    plain, co2 = found.arms
    assert abs(math.log(co2.settings["lr"] / far)) <= math.log(2) / 2 + 0.01
    assert co2.rates[0] < co2.settings["lr"] < co2.rates[1]
    assert plain.trials == co2.trials and 8 < co2.trials <= 8 + tuning.ROUNDS
    assert abs(math.log(plain.settings["lr"] / 1.2)) < 0.35
    assert "rate-at-end" not in {note.code for note in found.notes}


def test_a_rate_that_diverges_bounds_the_search(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = search(monkeypatch, tmp_path, lambda arm, *_: math.inf if arm.lr > 5 else -arm.lr, trials=8, arms=["plain"])
    (plain,) = found.arms
    assert plain.rates[1] > 5 >= plain.settings["lr"] and plain.diverged == 1
    assert not [note for note in found.notes if note.code == "rate-at-end"]


def test_the_end_of_the_range_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = search(monkeypatch, tmp_path, lambda arm, *_: -arm.lr, trials=64, arms=["plain"])
    assert "rate-at-end" in {note.code for note in found.notes}
    # After so many rounds the search gives up.
    assert found.arms[0].trials == 64 + tuning.ROUNDS and found.arms[0].rates[1] > 64


def test_trials_that_diverge_are_never_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = search(monkeypatch, tmp_path / "some", lambda arm, *_: math.inf if arm.lr >= 1 else bowl(arm, 1.6),
                   arms=["plain"])  # fmt: skip
    assert found.arms[0].given_loss is None and 0 < found.arms[0].diverged < 16 and found.arms[0].settings["lr"] < 1
    with pytest.raises(DivergedError, match="--arm plain: all 16 trials diverged"):
        search(monkeypatch, tmp_path / "all", lambda *_: math.inf, arms=["plain"])


def test_one_trial_is_no_search(tmp_path: Path) -> None:
    corpus = find_corpus("standard", tmp_path / "corpus", PRESET.vocabulary)
    with pytest.raises(InputError, match="--tune 1: give 2 trials or more"):
        tune_arms(PRESET, corpus, [parse_arm("plain")], tmp_path, trials=1)


@pytest.mark.slow
def test_the_command_tunes_trains_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    options = ["ladder", "train", "--preset", "tiny", "--sizes", "d8", "--arm", "plain", "--arm", "local-sgd:tau=4",
               "--ranks", "2", "--seeds", "1", "--tune", "3", "--workers", "1", "--out", str(tmp_path / "ladder"),
               "--json"]  # fmt: skip
    first = CliRunner().invoke(app, options, catch_exceptions=False)
    assert first.exit_code == 0, first.output
    document = printed(first.stdout)
    assert document["exported"] == 4 and len(trials := {each["trials"] for each in document["tuning"]["arms"]}) == 1
    # Each as many as the arm whose best rate took longest to lie inside.
    assert 3 <= min(trials) <= 3 + tuning.ROUNDS
    shown = CliRunner().invoke(app, [each for each in options if each != "--json"], catch_exceptions=False)
    assert shown.exit_code == 0 and "2 arms tuned on d8, 3 trials each" in shown.output
    again = printed(CliRunner().invoke(app, options, catch_exceptions=False).stdout)
    assert again["exported"] == 0 and again["tuning"] == document["tuning"]
    untuned = CliRunner().invoke(app, [option for option in options if option not in ("--tune", "3")])
    assert untuned.exit_code == 1 and "holds a ladder of trials 3, not None" in str(untuned.exception)
