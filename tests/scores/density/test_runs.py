"""Densities of measured models: known answers from the ladder's own law, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from densing.core.errors import InputError, UnknownNameError
from densing.scores.density import run_densities
from densing.scores.references import ladder_reference, load_reference, loss_reference
from tests.support.report_frames import measured_run

SIZE, FACTOR = 4e8, 2.5


def chinchilla(params: pd.Series, size: float, tokens: float = 1e12) -> float:
    """E + A / N^alpha + B / D^beta, written out: an implementation that shares nothing with the package's."""
    return params["E"] + params["A"] * size ** -params["alpha"] + params["B"] * tokens ** -params["beta"]


def run_of(
    losses: dict[str, float], scores: dict[str, float], error: float = 0.01
) -> tuple[pd.DataFrame, pd.DataFrame]:
    rows = [
        {"model": "toy", "task": f"olmo_ladder_{name}", "benchmark": name, "metric": metric, "value": value,
         "stderr": error, "n_items": 200}
        for metric, values in (("bits_per_byte", losses), ("accuracy", scores))
        for name, value in values.items()
    ]  # fmt: skip
    models = pd.DataFrame([{"model": "toy", "params_total": 2 * SIZE, "params_non_embedding": SIZE}])
    return pd.DataFrame(rows), models


def test_a_loss_on_the_law_gives_the_size_it_came_from() -> None:
    reference = loss_reference(load_reference("olmo-ladder", "hellaswag"))
    loss = chinchilla(reference.fit.params, FACTOR * SIZE)
    table = run_densities(*run_of({"hellaswag": loss}, {})).table
    assert table["n_eff"].tolist() == pytest.approx([FACTOR * SIZE], rel=1e-6)
    assert table["density"].tolist() == pytest.approx([FACTOR], rel=1e-6)
    row = table.iloc[0]
    assert row["density_lo"] < FACTOR < row["density_hi"]
    assert (row["quantity"], row["denominator"], row["status"]) == ("loss", "non_embedding", "ok")


def test_a_score_on_the_chained_law_gives_the_size_it_came_from() -> None:
    reference = load_reference("olmo-ladder", "hellaswag")
    c, gamma, shift, floor = (reference.fit.params[name] for name in ("c", "gamma", "l", "d"))
    loss = chinchilla(reference.fit.params, FACTOR * SIZE)
    score = floor + c / (1 + math.exp(-gamma * (loss - shift)))
    table = run_densities(*run_of({}, {"hellaswag": score})).table
    assert table["density"].tolist() == pytest.approx([FACTOR], rel=1e-6)


def test_more_items_narrow_the_interval_down_to_the_references_own() -> None:
    loss = chinchilla(load_reference("olmo-ladder", "piqa").fit.params, SIZE)
    widths = []
    for error in (0.05, 0.01, 0.0):
        row = run_densities(*run_of({"piqa": loss}, {}, error)).table.iloc[0]
        widths.append(math.log(row["density_hi"] / row["density_lo"]))
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] > 0


def test_combined_rows_invert_one_curve_on_the_mean_of_all_tasks() -> None:
    tasks = ("arc_challenge", "hellaswag", "piqa")
    reference = ladder_reference("olmo-ladder", tasks)
    mean = chinchilla(reference.fit.params, FACTOR * SIZE)
    result = run_densities(*run_of({"arc_challenge": mean - 0.1, "hellaswag": mean, "piqa": mean + 0.1}, {}))
    combined = result.table[result.table["benchmark"].eq("combined")].iloc[0]
    assert combined["benchmarks"] == "+".join(tasks)
    assert combined["score"] == pytest.approx(mean)
    assert combined["score_se"] == pytest.approx(0.01 / math.sqrt(3))
    assert combined["density"] == pytest.approx(FACTOR, rel=1e-6)
    assert combined["n_items"] == 600


def test_rows_are_one_per_task_and_one_combined_for_loss_and_for_score() -> None:
    table = run_densities(*measured_run("toy")).table
    assert table.groupby("quantity").size().to_dict() == {"loss": 4, "score": 4}
    assert table["benchmark"].value_counts().to_dict() == dict.fromkeys(
        ("hellaswag", "arc_challenge", "piqa", "combined"), 2
    )


@pytest.mark.slow
def test_the_reference_tokens_move_the_density() -> None:
    run = measured_run("toy")
    at_one, at_ten = (run_densities(*run, tokens=tokens).table["density"] for tokens in (1e11, 1e13))
    assert (at_one >= at_ten).all()
    assert (at_one > at_ten).sum() >= 6


def test_suite_tasks_are_read_without_the_catalogs_protocol_warning() -> None:
    measurements, models = measured_run("toy")
    codes = {note.code for note in run_densities(measurements, models).notes}
    assert "protocol-differs" not in codes
    assert {"measured-model", "training-tokens"} <= codes
    stock = measurements.assign(task=measurements["benchmark"], benchmark="")
    notes = run_densities(stock, models).notes
    assert any("hellaswag" in note.message and "other prompts" in note.message for note in notes)


def test_a_suite_task_comes_before_a_stock_task_of_the_same_benchmark() -> None:
    measurements, models = run_of({"piqa": 1.0}, {})
    stock = measurements.assign(task="piqa", benchmark="", value=2.0)
    table = run_densities(pd.concat([stock, measurements], ignore_index=True), models).table
    assert table["score"].tolist() == [1.0]


def test_gold_losses_of_stock_metrics_stand_in() -> None:
    measurements, models = run_of({"piqa": 1.0}, {"piqa": 0.7})
    renamed = measurements.assign(metric=["gold_bits_per_byte", "acc_norm"])
    assert run_densities(renamed, models).table["score"].tolist() == [1.0, 0.7]


def test_one_step_families_read_scores_only() -> None:
    measurements, models = run_of({"hellaswag": 1.0}, {"hellaswag": 0.6})
    table = run_densities(measurements, models, "pythia").table
    assert table["quantity"].tolist() == ["score"]
    assert table["denominator"].tolist() == ["total"]


def test_a_value_at_the_floor_or_beyond_the_law_is_a_bound() -> None:
    low = run_densities(*run_of({"hellaswag": 5.0}, {"hellaswag": 0.2})).table
    assert (low["bound"] == "upper").all()
    assert (low["density_lo"] == 0).all()
    high = run_densities(*run_of({"hellaswag": 0.05}, {})).table
    assert high["bound"].tolist() == ["lower"]


def test_missing_sampling_errors_are_said() -> None:
    measurements, models = run_of({"piqa": 1.0}, {}, error=float("nan"))
    assert any(note.code == "no-sampling-error" for note in run_densities(measurements, models).notes)


def test_a_run_without_any_of_the_references_benchmarks_is_refused() -> None:
    measurements, models = run_of({"winogrande": 1.0}, {})
    with pytest.raises(InputError, match=r"none of its benchmarks .* was measured; the run has olmo_ladder_winogrande"):
        run_densities(measurements, models)
    with pytest.raises(InputError, match=r"unknown benchmark of reference .*: 'winogrande'"):
        run_densities(measurements, models, benchmark="winogrande")
    with pytest.raises(UnknownNameError):
        run_densities(measurements, models, "no-such-ladder")


def test_models_without_a_size_are_refused_with_the_remedy() -> None:
    measurements, models = run_of({"piqa": 1.0}, {})
    with pytest.raises(InputError, match="--denominator total"):
        run_densities(measurements, models.assign(params_non_embedding=np.nan))


def test_tasks_that_no_reference_reads_are_named() -> None:
    measured, sizes = run_of({}, {"piqa": 0.7})
    others = pd.DataFrame(
        [
            {"model": "toy", "task": "toy_poems", "benchmark": "poems", "metric": "accuracy", "value": 0.5},
            {"model": "toy", "task": "olmo_ladder_csqa", "benchmark": "csqa", "metric": "brier", "value": 0.5},
            {"model": "toy", "task": "piqa", "benchmark": "piqa", "metric": "accuracy", "value": 0.6},
        ]
    )
    notes = {note.code: note for note in run_densities(pd.concat([measured, others], ignore_index=True), sizes).notes}
    assert notes["tasks-not-used"].details == {"tasks": ["toy_poems"]}
    assert notes["tasks-not-used"].severity == "warning" and "reads " in notes["tasks-not-used"].message
    assert notes["tasks-not-read"].details == {"tasks": ["olmo_ladder_csqa", "piqa"]}
    assert not {"tasks-not-used", "tasks-not-read"} & {note.code for note in run_densities(measured, sizes).notes}
