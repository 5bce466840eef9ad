"""Fits of a ladder on data with a known law, and targets with a known answer."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from densing.core import InputError, UnavailableError, write_text
from densing.scores.fit import LawFit
from densing.scores.ladder.fits import (
    MEASURED,
    VALIDATION,
    TaskFit,
    check_targets,
    fit_folder,
    fit_tasks,
    fit_validation,
    measured_table,
    rollout_misses,
    score_r2,
    task_reference,
    validation_table,
)
from densing.scores.ladder.folder import describe_ladder
from densing.scores.ladder.runs import get_preset
from densing.scores.references import load_reference

E, A, B, ALPHA, BETA = 0.4, 30.0, 900.0, 0.6, 0.6
D0 = 1_638_400.0


def loss_of(params: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    return E + A * params**-ALPHA + B * tokens**-BETA


def made_ladder(noise: float = 0.01, task: str = "facts", seed: int = 0) -> pd.DataFrame:
    """Return a ladder of the CPU preset's design whose losses follow a law, with the noise of runs and of models."""
    rng = np.random.default_rng(seed)
    preset = get_preset("cpu")
    rows = []
    for shape in preset.shapes:
        for number in range(3):
            run = rng.normal(0, noise)
            for steps in shape.steps:
                tokens = preset.tokens(shape, steps)
                loss = float(loss_of(np.array(shape.non_embedding), np.array(tokens)))
                loss *= float(np.exp(run + rng.normal(0, noise / 2)))
                rows.append({"run": f"{shape.name}-s{number}", "size": shape.name, "seed": number, "task": task,
                             "params_non_embedding": float(shape.non_embedding), "tokens": float(tokens),
                             "bits_per_byte": loss, "accuracy": 0.25 + 0.7 / (1 + np.exp(6 * (loss - 0.9))),
                             "stage": "final", "held_out": False, "source": "made", "target": "", "useful": 0.8,
                             "n_items": 250})  # fmt: skip
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def fitted() -> TaskFit:
    (task,) = fit_tasks(made_ladder(), draws=300)
    return task


def test_fit_finds_the_law_that_made_the_losses(fitted: TaskFit) -> None:
    table = fitted.losses["chinchilla"].intervals().set_index("param")
    for name, true in {"E": E, "alpha": ALPHA, "beta": BETA}.items():
        assert table.loc[name, "lo"] <= true <= table.loc[name, "hi"]
    quality = fitted.quality.set_index("law")
    assert quality.loc["chinchilla", "r2"] > 0.99
    assert abs(quality.loc["chinchilla", "rollout_mean"]) < 0.05
    # The paper's form has no irreducible term, and these losses do.
    assert quality.loc["densing-loss", "r2"] < quality.loc["chinchilla", "r2"]
    assert fitted.losses["densing-loss"].law.name == "densing-loss"
    assert not {note.code for note in fitted.notes} & {"no-power-law", "at-chance"}


def test_r2_of_the_scores_by_hand_and_rows_for_json(fitted: TaskFit) -> None:
    fit = fitted.two_step
    assert fit is not None
    x = {name: np.asarray(values) for name, values in fit.x.items()}
    residuals = fit.y - fit.predict(x)
    r2 = 1 - np.sum(residuals**2) / np.sum((fit.y - fit.y.mean()) ** 2)
    assert 0.9 < r2 < 1
    assert score_r2(fit) == pytest.approx(r2, rel=1e-9)
    assert np.isnan(score_r2(dataclasses.replace(fit, y=np.full(len(fit.y), 0.5))))
    rows = fitted.rows(0.9)
    assert [(row["quantity"], row["unit"], row["runs"]) for row in rows] == [
        ("loss", "bits/byte", 21),
        ("loss", "bits/byte", 21),
        ("score", "share", 21),
    ]
    assert rows[-1]["r2"] == score_r2(fit) and "rollout_mean" not in rows[-1]


def exported(folder: Path, ladder: pd.DataFrame) -> None:
    """Write descriptions of a ladder's models, as its exports hold them."""
    describe_ladder(folder, {"preset": "cpu", "corpus": "generated/standard", "corpus_hash": "0"})
    for number, row in ladder.reset_index(drop=True).iterrows():
        about = {name: row[name] for name in ("run", "size", "seed", "target", "params_non_embedding", "tokens")}
        about |= {"name": f"m{number}", "loss": {"validation_nats_per_token": row["bits_per_byte"]}}
        write_text(folder / "models" / f"m{number}" / "densing.json", json.dumps(about))


def test_a_folder_without_answers_is_fitted_on_its_validation_losses(tmp_path: Path) -> None:
    ladder = made_ladder()
    exported(tmp_path, ladder)
    result = fit_folder(tmp_path, draws=20)
    assert [task.task for task in result.tasks] == [VALIDATION]
    assert result.notes[0].code == "not-evaluated" and result.measured is None and result.targets.empty
    assert result.tokens == ladder["tokens"].max()
    (file,) = result.write(tmp_path / "fits")
    pd.testing.assert_series_equal(
        LawFit.from_json(Path(file).read_text()).params, result.tasks[0].losses["chinchilla"].params
    )
    assert not (tmp_path / "fits" / "measured.csv").exists()


def test_r2_and_rollout_by_hand(fitted: TaskFit) -> None:
    ladder = made_ladder()
    fit = fitted.losses["chinchilla"]
    x = {"params": ladder["params_non_embedding"].to_numpy(), "tokens": ladder["tokens"].to_numpy()}
    log = np.log(ladder["bits_per_byte"].to_numpy())
    r2 = 1 - np.sum((log - np.log(fit.predict(x))) ** 2) / np.sum((log - log.mean()) ** 2)
    assert fitted.quality.set_index("law").loc["chinchilla", "r2"] == pytest.approx(r2)
    exact = made_ladder(noise=0.0).rename(columns={"bits_per_byte": "loss"})
    assert rollout_misses("chinchilla", exact)["rollout_worst"] == pytest.approx(0, abs=1e-4)
    largest = exact["params_non_embedding"].eq(exact["params_non_embedding"].max())
    doubled = exact.assign(loss=exact["loss"].where(~largest, 2 * exact["loss"]))
    assert rollout_misses("chinchilla", doubled)["rollout_mean"] == pytest.approx(-0.5, abs=1e-3)


def test_means_leave_the_emergent_set_out() -> None:
    both = pd.concat([made_ladder(task=name, seed=k) for k, name in enumerate(("facts", "skip", "table"))])
    tasks = fit_tasks(both, draws=20)
    assert [task.task for task in tasks] == ["mean", "facts", "skip", "table"]
    assert tasks[0].tasks == ("facts", "skip")


def test_what_is_no_law_is_said() -> None:
    flat = made_ladder()
    rng = np.random.default_rng(1)
    flat["bits_per_byte"] = 2.8 * np.exp(rng.normal(0, 0.01, len(flat)))
    flat["accuracy"] = 0.25 + rng.normal(0, 0.02, len(flat))
    (task,) = fit_tasks(flat, draws=20)
    assert {"no-power-law", "at-chance"} <= {note.code for note in task.notes}


def test_validation_losses_have_no_reference() -> None:
    losses = made_ladder().rename(columns={"bits_per_byte": "loss"})
    task = fit_validation(losses, draws=20)
    assert (task.task, task.two_step) == (VALIDATION, None)
    with pytest.raises(InputError, match="losses only"):
        task_reference(task, D0, "a ladder")


def test_fits_are_references(fitted: TaskFit, tmp_path) -> None:
    path = tmp_path / "facts.json"
    path.write_text(task_reference(fitted, D0, "a ladder").to_json())
    reference = load_reference(str(path), "facts")
    assert reference.given == {"tokens": D0}
    assert reference.benchmarks == ("facts",)
    law = reference.fit
    size = np.array([12_216.0])
    score = law.predict({"params": size, "tokens": np.array([D0])})
    assert law.invert(score, tokens=D0)["estimate"].tolist() == pytest.approx([12_216], rel=1e-6)
    loss_only = tmp_path / "loss.json"
    loss_only.write_text(fitted.losses["chinchilla"].to_json())
    with pytest.raises(UnavailableError):
        load_reference(str(loss_only))


def target(kind: str, loss: float, tokens: float, useful: float = 0.8) -> pd.DataFrame:
    return pd.DataFrame([{"target": kind, "size": "d24", "run": f"{kind}-{k}", "params_non_embedding": 12_216.0,
                          "tokens": tokens, "useful": useful, "useful_ladder": 0.8, "loss": loss, "accuracy": 0.5}
                         for k in range(3)])  # fmt: skip


def test_a_longer_target_is_as_dense_as_the_law_says(fitted: TaskFit) -> None:
    fit = fitted.losses["chinchilla"]
    loss = float(loss_of(np.array(12_216.0), np.array(2 * D0)))
    (row,) = check_targets(fit, target("longer", loss, 2 * D0), D0).to_dict("records")
    # The size whose loss at D0 is that of N at 2 D0, from the law by hand.
    size = ((loss - E - B * D0**-BETA) / A) ** (-1 / ALPHA)
    assert row["agrees"]
    assert row["density_lo"] < size / 12_216 < row["density_hi"]
    assert row["density"] > 1
    assert row["density_law"] == pytest.approx(size / 12_216, rel=0.1)


def test_clean_tokens_count_for_more(fitted: TaskFit) -> None:
    fit = fitted.losses["chinchilla"]
    loss = float(loss_of(np.array(12_216.0), np.array(D0 / 0.8)))
    (row,) = check_targets(fit, target("clean", loss, D0, useful=1.0), D0).to_dict("records")
    assert row["agrees"]
    assert row["loss_law"] == pytest.approx(loss, rel=0.02)


def test_a_target_that_is_not_what_the_law_says_is_found_out(fitted: TaskFit) -> None:
    fit = fitted.losses["chinchilla"]
    same = float(loss_of(np.array(12_216.0), np.array(D0)))
    (row,) = check_targets(fit, target("longer", same, 8 * D0), D0).to_dict("records")
    assert not row["agrees"]
    (floor,) = check_targets(fit, target("shuffled", 3.0, D0), D0).to_dict("records")
    assert floor["agrees"]
    assert floor["density_hi"] < 1384 / 12_216
    (learnt,) = check_targets(fit, target("shuffled", same, D0), D0).to_dict("records")
    assert not learnt["agrees"]


def test_a_loss_beyond_reach_has_no_upper_end(fitted: TaskFit) -> None:
    fit = fitted.losses["chinchilla"]
    loss = float(loss_of(np.array(12_216.0), np.array(1e3 * D0)))
    (row,) = check_targets(fit, target("longer", loss, 1e3 * D0), D0).to_dict("records")
    assert row["density"] == row["density_law"] == np.inf
    assert row["loss_law_lo"] < row["loss_law_hi"] < np.inf


def export(name: str, **change: object) -> dict[str, object]:
    return {"name": name, "run": "d8-s0", "params_non_embedding": 1384, "tokens": 640, "size": "d8", "seed": 0,
            "target": "", "useful": 0.8, "loss": {"validation_nats_per_token": 2.5}, **change}  # fmt: skip


def test_measured_table_joins_training_and_results() -> None:
    facts, skip, nothing = "densing_ladder_facts", "densing_ladder_skip", float("nan")
    rows = [("a", facts, "facts", "acc", 0.5), ("a", facts, "facts", "gold_bits_per_byte", 1.5),
            ("b", skip, nothing, "acc", 0.4), ("b", skip, nothing, "bits_per_byte", 2.5),
            ("stranger", facts, "facts", "acc", 0.9), ("a", "other", "", "acc", 0.9)]  # fmt: skip
    measurements = pd.DataFrame(rows, columns=["model", "task", "benchmark", "metric", "value"]).assign(n_items=250)
    measurements = measurements.assign(task_hash="new", file="a/results_2026-01-02T00-00-00.json")
    older = measurements.assign(task_hash="old", file="b/results_2026-01-01T00-00-00.json", value=9.0)
    measurements = pd.concat([measurements, older])
    exports = [export("a"), export("b", run="longer-d8-s1000", target="longer", tokens=2560)]
    table = measured_table(exports, measurements).set_index("task")
    assert table.columns.tolist() == [name for name in MEASURED.names if name != "task"]
    assert table.loc["facts", ["bits_per_byte", "accuracy", "held_out"]].tolist() == [1.5, 0.5, False]
    assert table.loc["skip", ["bits_per_byte", "accuracy", "held_out", "target"]].tolist() == [2.5, 0.4, True, "longer"]
    assert validation_table(exports)["loss"].tolist() == [2.5]
    with pytest.raises(InputError, match="ladder eval"):
        measured_table(exports, measurements[measurements["model"].eq("stranger")])


def test_draws_are_seeded(fitted: TaskFit) -> None:
    (again,) = fit_tasks(made_ladder(), draws=300)
    assert (again.losses["chinchilla"].draws == fitted.losses["chinchilla"].draws).all()
    assert dataclasses.asdict(again)["task"] == "facts"
