"""Paired comparisons: planted ratios, a null, worlds unlike the model, and pairs that cannot be paired."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

import densing
from densing.core.errors import InputError, UnknownNameError
from densing.plots import plot_comparison
from densing.scores.density.comparison import pair_ratios, paired_means
from densing.scores.evals import Measurements
from densing.scores.references import Reference, load_reference, loss_reference

NAMES = {"benchmark": "piqa", "baseline": "a", "quantity": "loss"}
World = Callable[[np.random.Generator, int, np.ndarray], np.ndarray]


@cache
def piqa(loss: bool) -> Reference:
    reference = load_reference("olmo-ladder", "piqa")
    return loss_reference(reference) if loss else reference


def losses(rng: np.random.Generator, count: int, means: np.ndarray) -> np.ndarray:
    """Skewed losses: hard items are hard for both, the second model has other hard ones too, and a heavier tail."""
    item = rng.gamma(4.0, 0.25, count)
    noise = np.column_stack([rng.lognormal(-(s**2) / 2, s, count) for s in (0.08, 0.16)])
    return np.asarray(means * item[:, None] * noise)


def answers(rng: np.random.Generator, count: int, means: np.ndarray) -> np.ndarray:
    """Right and wrong: a uniform draw per item that both share in four of five items."""
    common = rng.random(count)
    own = rng.random((count, 2))
    return np.asarray(np.where(rng.random(count)[:, None] < 0.8, common[:, None], own) < means).astype(float)


def worlds(make: World, count: int, ratio: float, number: int, *, loss: bool) -> pd.DataFrame:
    """Worlds whose reference is a draw of the one that is read, where B has ``ratio`` times the effective size of A."""
    reference, rng, rows = piqa(loss), np.random.default_rng(count), []
    for world in range(number):
        truth = reference.fit.draws[rng.integers(len(reference.fit.draws))]
        size = np.exp(rng.uniform(np.log(2e8), np.log(1e9))) * np.array([1.0, ratio])
        means = reference.fit.law.predict(
            truth, {"params": size, **{k: np.full(2, v) for k, v in reference.given.items()}}
        )
        means = paired_means("piqa", *make(rng, count, np.asarray(means)).T, score=not loss)
        # Densities are equal: actual sizes differ as the effective ones do.
        names = {**NAMES, "model": str(world)}
        rows.append(pair_ratios(reference, [means], size.tolist(), math.log(ratio), names, 100.0, 0.95, 0))
    return pd.DataFrame(rows)


@pytest.mark.slow  # 650 worlds, 5 CPU seconds
@pytest.mark.parametrize(("make", "count", "loss"), [(losses, 1500, True), (answers, 3000, False)])
def test_intervals_hold_a_planted_ratio_and_a_null_is_rejected_as_often_as_the_level_says(
    make: World, count: int, loss: bool
) -> None:
    table = worlds(make, count, 1.3, 400 if loss else 250, loss=loss)
    assert 0.93 <= table["density_ratio_lo"].le(1).mul(table["density_ratio_hi"].ge(1)).mean() <= 0.97
    assert 0.93 <= table["n_eff_ratio_lo"].le(1.3).mul(table["n_eff_ratio_hi"].ge(1.3)).mean() <= 0.97
    assert table["p"].lt(0.05).mean() <= 0.06
    # Interval and test are of the same draws: one holds 1 where the other does not reject.
    holds = table["density_ratio_lo"].le(1) & table["density_ratio_hi"].ge(1)
    assert (holds == table["p"].ge(0.05)).mean() > 0.98
    # Independent errors would be wider, and hold more than they say.
    assert table["density_ratio_lo_alone"].le(1).mul(table["density_ratio_hi_alone"].ge(1)).mean() > 0.98


def measured(tables: dict[str, pd.DataFrame], sizes: dict[str, float], **more: Any) -> Measurements:
    """Results of models on PIQA: items with ``doc_id``, ``acc`` and ``hash``."""
    items = pd.concat(
        [
            pd.DataFrame({"model": model, "task": "piqa", "doc_id": table["doc_id"], "doc_hash": table["hash"],
                          "metric_acc": table["acc"]})
            for model, table in tables.items()
        ]
    )  # fmt: skip
    rows = [
        {"model": model, "task": "piqa", "benchmark": "piqa", "metric": "acc", "filter": "none",
         "value": table["acc"].mean(), "stderr": table["acc"].std() / math.sqrt(len(table)), "n_items": len(table)}
        for model, table in tables.items()
    ]  # fmt: skip
    models = pd.DataFrame(
        [{"model": name, "params_total": size, "params_non_embedding": size, **more} for name, size in sizes.items()]
    )
    return Measurements(pd.DataFrame(rows), items, models)


def table_of(values: np.ndarray, first: int = 0) -> pd.DataFrame:
    ids = np.arange(first, first + len(values))
    return pd.DataFrame({"doc_id": ids, "acc": values.astype(float), "hash": [f"h{i}" for i in ids]})


@pytest.fixture(scope="module")
def two() -> tuple[pd.DataFrame, pd.DataFrame]:
    both = answers(np.random.default_rng(3), 1000, np.array([0.70, 0.74]))
    return table_of(both[:, 0]), table_of(both[:, 1])


def test_pairing_narrows_what_independent_errors_leave_open(two: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    comparison = densing.compare(measured(dict(zip("ab", two, strict=True)), {"a": 1e9, "b": 1e9}))
    row = comparison.table.iloc[0]
    both = np.column_stack([table["acc"] for table in two])
    assert (row["status"], row["n_items"], row["n_eff_ratio"]) == ("ok", 1000, row["density_ratio"])
    assert row["correlation"] == pytest.approx(np.corrcoef(both.T)[0, 1])
    # The standard error of a paired difference, from elsewhere.
    error = (both[:, 1] - both[:, 0]).std(ddof=1) / math.sqrt(1000)
    assert (row["difference_hi"] - row["difference_lo"]) / 2 / 1.962 == pytest.approx(error, rel=0.03)
    paired, alone = (
        math.log(row[f"density_ratio_hi{kind}"] / row[f"density_ratio_lo{kind}"]) for kind in ("", "_alone")
    )
    assert paired < 0.7 * alone
    sizes = pd.DataFrame([{"model": "m", "params_non_embedding": 1e9}])
    apart = [densing.run_densities(measured({"m": each}, {"m": 1e9}).measurements, sizes) for each in two]
    assert row["density_ratio"] == pytest.approx(apart[1].table["density"].item() / apart[0].table["density"].item())
    assert "times the density of a, 95 % interval" in row["sentence"] and "1000 common items" in row["sentence"]


def test_half_the_density_is_what_twice_the_size_leaves(two: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    same = {"a": two[0], "b": two[0]}
    row = densing.compare(measured(same, {"a": 1e9, "b": 2e9})).table.iloc[0]
    assert (row["n_eff_ratio"], row["density_ratio"]) == (1.0, pytest.approx(0.5))
    # Agreement on every item so far is not agreement on all.
    assert row["n_eff_ratio_lo"] < 0.99 and row["n_eff_ratio_hi"] > 1.01
    assert row["p"] < 0.05


def test_without_a_common_item_errors_are_independent_and_the_status_says_so(
    two: tuple[pd.DataFrame, pd.DataFrame],
) -> None:
    first, both = two[0], two[0]["acc"] + two[1]["acc"]
    few = two[1].loc[[*both[both.eq(2)].index[:6], *both[both.eq(0)].index[:2]]]
    for second, status in (
        (two[1].assign(doc_id=two[1]["doc_id"] + 5000), "no_common_item"),
        (two[1].assign(hash="another text"), "no_common_item"),
        (few, "few_items"),
    ):
        comparison = densing.compare(measured({"a": first, "b": second}, {"a": 1e9, "b": 1e9}))
        row = comparison.table.iloc[0]
        assert row["status"] == status
        if status == "few_items":
            assert row["n_items"] == 8 and "fewer than 10" in row["sentence"]
        else:
            assert "no item in common" in row["sentence"]
            assert [note.code for note in comparison.notes].count("no-common-item") == 1
            assert row["density_ratio_lo"] == row["density_ratio_lo_alone"]


def test_items_that_do_not_average_to_what_was_measured_are_not_paired(two: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    results = measured(dict(zip("ab", two, strict=True)), {"a": 1e9, "b": 1e9})
    other = results.items.assign(metric_acc=results.items["metric_acc"].where(results.items["doc_id"] > 0, 0.5))
    row = densing.compare(Measurements(results.measurements, other, results.models)).table.iloc[0]
    assert row["status"] == "no_items"


def test_what_lies_outside_the_reference_is_a_bound(two: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    guess = table_of(np.tile([1.0, 0.0], 500))
    sizes = {"a": 1e9, "b": 1e9}
    row = densing.compare(measured({"a": guess, "b": two[1]}, sizes)).table.iloc[0]
    assert (row["bound"], row["status"], row["density_ratio_hi"]) == ("lower", "outside", math.inf)
    assert "at least" in row["sentence"] and row["p"] < 0.05
    row = densing.compare(measured({"a": two[1], "b": guess}, sizes)).table.iloc[0]
    assert (row["bound"], row["density_ratio_lo"]) == ("upper", 0.0)
    row = densing.compare(measured({"a": guess, "b": guess}, sizes)).table.iloc[0]
    assert (row["bound"], row["p"]) == ("both", 1.0) and "not known" in row["sentence"]


def test_checkpoints_stand_in_order_against_tokens_and_need_no_size(two: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    values = answers(np.random.default_rng(5), 1000, np.array([0.76, 0.76]))
    tables = {
        "mine@step1000-tokens4B": table_of(values[:, 0]),
        "mine@step200-tokens1B": two[0],
        "mine@step600-tokens2B": two[1],
    }
    comparison = densing.compare(measured(tables, dict.fromkeys(tables, math.nan)))
    table = comparison.table
    assert set(table["baseline"]) == {"mine@step200-tokens1B"}
    assert table[["step", "tokens"]].to_numpy().tolist() == [[600, 2e9], [1000, 4e9]]
    assert table["density_ratio"].notna().all()
    # Holm: the smaller p times two.
    assert table["p_holm"].min() == pytest.approx(2 * table["p"].min())
    figure = plot_comparison(comparison)
    assert list(figure.data[0].x) == [2e9, 4e9] and figure.layout.xaxis.title.text == "training tokens"
    named = densing.compare(measured(tables, dict.fromkeys(tables, 1e9)), baseline="mine@step600-tokens2B")
    assert set(named.table["baseline"]) == {"mine@step600-tokens2B"}


def test_models_without_sizes_have_a_ratio_of_effective_sizes_alone(two: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    comparison = densing.compare(measured(dict(zip("ab", two, strict=True)), {"a": 1e9, "b": math.nan}))
    row = comparison.table.iloc[0]
    assert math.isnan(row["density_ratio"]) and row["n_eff_ratio"] > 1
    assert "effective size" in row["sentence"] and "no-size" in [note.code for note in comparison.notes]


def test_one_name_in_two_sources_is_two_models(two: tuple[pd.DataFrame, pd.DataFrame], tmp_path: Path) -> None:
    results = [measured({"hf": each}, {"hf": 1e9}) for each in two]
    row = densing.compare(*results).table.iloc[0]
    assert (row["baseline"], row["model"]) == ("hf (source 1)", "hf (source 2)")


def test_what_cannot_be_compared_is_refused(two: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    one = measured({"a": two[0]}, {"a": 1e9})
    with pytest.raises(InputError, match="a comparison needs two"):
        densing.compare(one)
    with pytest.raises(InputError, match="nothing to compare"):
        densing.compare()
    with pytest.raises(UnknownNameError, match="model"):
        densing.compare(one, baseline="c")
    with pytest.raises(InputError, match="level 95"):
        densing.compare(one, one, level=95)


def test_groups_are_paired_by_the_items_of_their_parts() -> None:
    rng = np.random.default_rng(0)
    tables = []
    for model in "ab":
        for part, count in (("mmlu_anatomy", 60), ("mmlu_law", 140)):
            values = (rng.random(count) < expit(0.3)).astype(float)
            tables.append(pd.DataFrame({"model": model, "task": part, "doc_id": range(count), "doc_hash": "",
                                        "metric_acc": values}))  # fmt: skip
    items = pd.concat(tables, ignore_index=True)
    rows = [
        {"model": model, "task": "mmlu", "benchmark": "mmlu", "metric": "acc", "filter": "none", "is_group": True,
         "value": items.loc[items["model"].eq(model), "metric_acc"].mean(), "stderr": 0.03, "n_items": 200}
        for model in "ab"
    ]  # fmt: skip
    models = pd.DataFrame([{"model": model, "params_total": 1e9} for model in "ab"])
    comparison = densing.compare(Measurements(pd.DataFrame(rows), items, models), reference="qwen1.5")
    assert comparison.table[["status", "n_items"]].to_numpy().tolist() == [["ok", 200]]
