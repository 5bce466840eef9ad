"""``densing ladder`` from end to end: train, evaluate with lm-eval, fit, and the same numbers by plain torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from densing.cli import app

torch = pytest.importorskip("torch", reason="needs the extra 'evals'")
pytest.importorskip("lm_eval", reason="needs the extra 'evals'")

from densing.scores.ladder.folder import read_exports  # noqa: E402
from densing.scores.ladder.questions import SETS, questions  # noqa: E402
from tests.support.command import printed  # noqa: E402

pytestmark = pytest.mark.slow

ASKED = 16
SIZES = ("--sizes", "d8", "--sizes", "d12", "--sizes", "d16")


def densing(*arguments: str, code: int = 0) -> Any:
    """Run a command and return the JSON document it prints."""
    result = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return printed(result.stdout)


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return a tiny ladder of three sizes with a longer target, evaluated and fitted, and what the commands said."""
    folder = tmp_path_factory.mktemp("tiny") / "ladder"
    out = ("--preset", "tiny", "--out", str(folder), "--seeds", "1", "--workers", "1")
    said = {"train": densing("ladder", "train", *out, *SIZES)}
    said["target"] = densing("ladder", "train", *out, "--sizes", "d8", "--target", "longer", "--tokens-factor", "2")
    ask = ("ladder", "eval", str(folder), "--questions", str(ASKED), "--workers", "1")
    said["eval"] = densing(*ask)
    said["again"] = densing(*ask)
    said["fit"] = densing("ladder", "fit", str(folder), "--bootstrap", "20")
    return folder, said


def test_commands_say_what_they_did(ladder: tuple[Path, dict[str, Any]]) -> None:
    folder, said = ladder
    assert (said["train"]["models"], said["train"]["exported"]) == (6, 6)
    assert said["target"]["by_run"] == {"longer-2x-d8-s1000": 1}
    assert said["eval"]["states"] == {"evaluated": 7 * len(SETS)}
    assert said["eval"]["requests"] == 7 * len(SETS) * ASKED * 4
    assert said["again"]["states"] == {"skipped": 7 * len(SETS)}
    assert (said["again"]["requests"], said["again"]["failed"]) == (0, [])
    assert densing("ladder", "train", "--preset", "tiny", "--out", str(folder), "--seeds", "1", *SIZES)["exported"] == 0


def test_lm_eval_gives_the_numbers_of_plain_torch(ladder: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = ladder
    measured = pd.read_csv(folder / "fits" / "measured.csv").set_index(["run", "tokens", "task"])
    assert len(measured) == 7 * len(SETS)
    for export in read_exports(folder):
        for name in SETS:
            loss, accuracy = by_torch(export["path"], name)
            row = measured.loc[(export["run"], export["tokens"], name)]
            assert row["bits_per_byte"] == pytest.approx(loss, rel=1e-4)
            assert row["accuracy"] == accuracy
            assert row["n_items"] == ASKED


def by_torch(path: Path, name: str) -> tuple[float, float]:
    """Return bits per byte of the right answer and the share answered rightly, without lm-eval."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    bits, right = [], []
    for row in questions(name, ASKED):
        prompt = torch.tensor([tokenizer(row["query"])["input_ids"]])
        choices = [tokenizer(choice)["input_ids"] for choice in row["choices"]]
        assert all(len(choice) == 1 for choice in choices)
        with torch.no_grad():
            logs = torch.log_softmax(model(input_ids=prompt).logits[0, -1].double(), dim=0)
        found = np.array([float(logs[choice[0]]) for choice in choices])
        bits.append(-found[row["gold"]] / np.log(2) / len(row["choices"][row["gold"]].encode()))
        right.append(int(found.argmax()) == row["gold"])
    return float(np.mean(bits)), float(np.mean(right))


def test_fit_reports_both_laws_and_the_target(ladder: tuple[Path, dict[str, Any]]) -> None:
    folder, said = ladder
    laws = pd.DataFrame(said["fit"]["fits"])
    assert set(laws["task"]) == {"mean", "validation", *SETS}
    losses = laws[laws["quantity"].eq("loss")]
    assert set(losses["law"]) == {"chinchilla", "densing-loss"}
    assert losses["r2"].notna().all()
    assert set(losses["n"]) == {6}
    assert said["fit"]["tokens"] == 120 * 8 * 64
    targets = pd.DataFrame(said["fit"]["targets"])
    assert set(targets["task"]) == {"mean", *SETS}
    assert set(targets["target"]) == {"longer"}
    assert sorted(path.stem for path in (folder / "fits").glob("*.json")) == sorted({"mean", "validation", *SETS})


def test_a_fit_reads_densities_of_the_ladders_own_run(ladder: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = ladder
    fit = folder / "fits" / "facts.json"
    # Six models trained for seconds make no law: the rows come with an error note, so the exit code is 3.
    rows = densing("density", "--results", str(folder / "eval"), "--reference", str(fit), code=3)
    table = pd.DataFrame(rows)
    assert set(zip(table["model"], table["quantity"], strict=True)) == {
        (export["name"], quantity) for export in read_exports(folder) for quantity in ("loss", "score")
    }
    assert set(table["benchmark"]) == {"facts"}


def test_wrong_folders_and_corpora_are_refused(tmp_path: Path, ladder: tuple[Path, dict[str, Any]]) -> None:
    from densing.core.errors import InputError

    folder, _ = ladder
    with pytest.raises(InputError, match="no ladder here"):
        CliRunner().invoke(app, ["ladder", "fit", str(tmp_path)], catch_exceptions=False)
    with pytest.raises(InputError, match="choose another --out"):
        CliRunner().invoke(app, ["ladder", "train", "--preset", "cpu", "--out", str(folder)], catch_exceptions=False)
    (tmp_path / "corpus.txt").write_text("all work and no play " * 3000)
    asked = ["ladder", "train", "--corpus", str(tmp_path / "corpus.txt"), "--vocabulary", "257", "--target", "clean"]
    with pytest.raises(InputError, match="no clean variant"):
        CliRunner().invoke(app, [*asked, "--preset", "tiny", "--out", str(tmp_path / "x")], catch_exceptions=False)


def test_a_text_ladder_is_fitted_on_its_validation_loss(tmp_path: Path) -> None:
    from densing.core.errors import InputError

    rng = np.random.default_rng(0)
    (tmp_path / "text.txt").write_text(" ".join(rng.choice(["ore", "elm", "sky", "oak", "ash"], size=12_000)))
    folder = tmp_path / "ladder"
    densing("ladder", "train", "--preset", "tiny", "--out", str(folder), "--seeds", "1", "--workers", "1",
            "--corpus", str(tmp_path / "text.txt"), "--vocabulary", "257", *SIZES)  # fmt: skip
    with pytest.raises(InputError, match="no questions"):
        CliRunner().invoke(app, ["ladder", "eval", str(folder)], catch_exceptions=False)
    said = densing("ladder", "fit", str(folder), "--bootstrap", "20")
    assert {row["task"] for row in said["fits"]} == {"validation"}
    assert said["notes"][0]["code"] == "not-evaluated"
    assert [Path(file).name for file in said["files"]] == ["validation.json"]


def test_arms_are_trained_and_compared(tmp_path: Path) -> None:
    folder = tmp_path / "arms"
    train = ("ladder", "train", "--preset", "tiny", "--out", str(folder), "--seeds", "0..0", "--workers", "1", *SIZES,
             "--arm", "plain", "--arm", "local-sgd:tau=30", "--ranks", "2")  # fmt: skip
    said = densing(*train)
    assert (said["models"], said["exported"]) == (12, 12)
    assert densing(*train)["exported"] == 0
    gains = densing("ladder", "gain", str(folder))
    (arm,) = gains["arms"]
    assert (arm["arm"], arm["pairs"], arm["status"], arm["no_loss"]) == (
        "local-sgd:tau=30", 6, "few_pairs", "not decided",
    )  # fmt: skip
    plain = gains["spec"]["baseline_cost"]
    # Every step, or every thirtieth: gradients against parameters and the three numbers that go ahead of them.
    assert 0.02 < arm["bytes"] / plain["bytes"] < 0.05
    # The laws of the ladder are those of its plain runs.
    assert {row["n"] for row in densing("ladder", "fit", str(folder), "--bootstrap", "20")["fits"]} == {6}


def test_null_arms_change_the_losses_and_what_changes_nothing_is_no_arm(tmp_path: Path) -> None:
    folder = tmp_path / "null"
    arms = [f"--arm={arm}" for arm in ("plain", "plain:order=reverse", "plain:order=reseed", "plain:ranks=4")]
    densing("ladder", "train", "--preset", "tiny", "--out", str(folder), "--seeds", "0..0", "--workers", "1", "--ranks",
            "4", "--budgets", "1", "--sizes", "d8", *arms)  # fmt: skip
    losses = {}
    for path in sorted((folder / "models").glob("*/densing.json")):
        about = json.loads(path.read_text())
        losses[about["arm"]] = about["loss"]["validation_nats_per_token"]
    plain = losses.pop("plain")
    assert losses.pop("plain:ranks=4") == plain
    assert len(losses) == 2 and all(loss != plain for loss in losses.values())
    # Last bits of sums, against other blocks in every step.
    assert abs(losses["plain:order=reverse"] / plain - 1) < abs(losses["plain:order=reseed"] / plain - 1)


def test_students_learn_from_a_model_of_the_ladder(tmp_path: Path, ladder: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = ladder
    (model,) = (folder / "models").glob("d16-s0-61440")
    options = ["--preset", "tiny", "--student", "d8", "--seeds", "1", "--workers", "1", "--bootstrap", "30"]
    lessons = ["--method", "kd,talking", "--rounds", "1", "--out", str(tmp_path / "study")]
    study = ("distil", "--teacher", str(model), *options, *lessons)
    result = densing(*study)
    arms = {row["arm"]: row for row in result["arms"]}
    assert set(arms) == {"kd", "talking:rounds=1", "scratch:flops"}
    assert {(row["pairs"], row["status"]) for row in arms.values()} == {(2, "few_pairs")}
    assert arms["talking:rounds=1"]["flops"] > arms["kd"]["flops"]
    # The rival takes what the cheapest lesson takes, up to a step.
    assert arms["scratch:flops"]["flops_ratio"] == pytest.approx(arms["kd"]["flops_ratio"], rel=0.02)
    assert result["spec"]["law_of"] == str(folder)
    assert [row["claim"] for row in result["claims"]] == ["TM-1", "TM-2", "TM-3"]
    assert "reconstructed" in {note["code"] for note in result["notes"]}
    again = densing(*study)
    assert again["digest"] == result["digest"], "nothing is trained twice"
    shown = CliRunner().invoke(app, [*study], catch_exceptions=False)
    assert "the formulas of talking are reconstructed" in shown.stderr


def test_arms_and_targets_are_not_mixed(tmp_path: Path) -> None:
    from densing.core.errors import InputError

    options = ["ladder", "train", "--preset", "tiny", "--out", str(tmp_path)]
    for more, part in ((["--arm", "plain", "--target", "longer"], "--target"), (["--ranks", "4"], "--arm"),
                       (["--seeds", "x"], "--seeds"), (["--arm", "co2:tau=x", "--ranks", "2"], "tau")):  # fmt: skip
        with pytest.raises(InputError, match=part):
            CliRunner().invoke(app, [*options, *more], catch_exceptions=False)
    assert not list(tmp_path.iterdir())
