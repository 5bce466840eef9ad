"""Scores with their errors: hand-worked cases, an independent fit, and invariance to the order of rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from densing.core.errors import InputError, UnknownNameError
from densing.scores.catalog import (
    WRONG,
    Catalog,
    disagreement,
    fit_disagreement,
    has_flag,
    load_catalog,
    mean_table,
    score_table,
    series_list,
)
from densing.scores.catalog.scores import COLUMNS, PRIOR_DOF, binomial_variance, measurements

CATALOG = load_catalog()


def toy(rows: list[tuple[str, str, float]], flags: list[str] | None = None, series: str = "") -> Catalog:
    """Return the catalog with the scores of one benchmark (mmlu, 14042 items) and nothing else."""
    scores = pd.DataFrame(rows, columns=["model", "evaluator", "score"])
    scores = scores.assign(
        benchmark="mmlu",
        items=np.nan,
        source="recalled#toy",
        flags=flags or [None] * len(rows),
        series=series or ("mmlu:" + scores["evaluator"]),
    )
    return dataclasses.replace(CATALOG, scores=scores)


SQUARE = [
    ("a", "obsscaling", 0.50),
    ("a", "swallow", 0.60),
    ("b", "obsscaling", 0.40),
    ("b", "swallow", 0.56),
]


def test_two_models_by_two_evaluators_worked_by_hand() -> None:
    # The interaction is (0.50 - 0.60 - 0.40 + 0.56) / 4 = 0.015 in every cell, with one degree of freedom.
    fitted = fit_disagreement(toy(SQUARE), "mmlu")
    assert fitted.dof == 1
    assert fitted.pooled_variance == pytest.approx(4 * 0.015**2)
    own = 2 * 0.015**2
    expected = [(PRIOR_DOF * 4 * 0.015**2 + own) / (PRIOR_DOF + 1), fitted.pooled_variance]
    assert fitted.variances(["a", "nobody"]) == pytest.approx(expected)


# Evaluators without a model in common leave the dummies of the golden fit collinear; its residuals stand.
@pytest.mark.filterwarnings("ignore:The design matrix is rank-deficient")
@pytest.mark.parametrize("benchmark", ["mmlu", "bbh", "gsm8k", "humaneval", "math", "mbpp"])
def test_the_pooled_variance_equals_that_of_statsmodels(benchmark: str) -> None:
    table = measurements(CATALOG, benchmark)
    repeated = table[table["model"].duplicated(keep=False)]
    golden = smf.ols("score ~ C(model) + C(evaluator)", repeated).fit()
    ours = fit_disagreement(CATALOG, benchmark)
    assert ours.pooled_variance == pytest.approx(golden.ssr / golden.df_resid, rel=1e-8)
    assert ours.dof == golden.df_resid


def test_an_offset_common_to_an_evaluator_is_no_disagreement() -> None:
    shifted = [(m, e, s + (0.1 if e == "swallow" else 0.0)) for m, e, s in SQUARE]
    assert fit_disagreement(toy(shifted), "mmlu").pooled_variance == pytest.approx(4 * 0.015**2)


def test_one_measurement_quoted_by_several_tables_counts_once() -> None:
    rows = [*SQUARE, ("a", "meta_llama2_card", 0.6001), ("a", "epoch:llama2_paper", 0.5004)]
    assert score_table(toy(rows), "mmlu", evaluator="swallow")["n_sources"].tolist() == [2, 2]
    assert fit_disagreement(toy(rows), "mmlu").pooled_variance == pytest.approx(4 * 0.015**2)


def test_values_of_another_protocol_and_wrong_ones_say_nothing_about_disagreement() -> None:
    rows = [*SQUARE, ("b", "opencompass", 0.9), ("a", "qwen_readme", 0.1)]
    flags = [""] * 4 + ["multiple_choice_no_cot;rounded_2dp", "suspect_copy_of_bbh"]
    assert fit_disagreement(toy(rows, flags), "mmlu").pooled_variance == pytest.approx(4 * 0.015**2)


def test_a_benchmark_measured_once_has_binomial_error_only() -> None:
    fitted = fit_disagreement(CATALOG, "truthfulqa")
    assert (fitted.dof, fitted.pooled_variance) == (0, 0.0)
    table = score_table(CATALOG, "truthfulqa")
    expected = np.sqrt(binomial_variance(table["score"].to_numpy(), np.full(len(table), 817.0)))
    np.testing.assert_allclose(table["score_se"], expected)


@given(st.integers(1, 20_000), st.data())
def test_binomial_variance_is_that_of_the_jeffreys_mean_and_never_zero(items: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(0, items))
    centre = stats.beta(right + 0.5, items - right + 0.5).mean()
    ours = binomial_variance(np.array([right / items]), np.array([float(items)]))[0]
    assert ours == pytest.approx(centre * (1 - centre) / items, rel=1e-6)
    assert ours > 0


@pytest.mark.parametrize("benchmark", CATALOG.benchmarks["id"].tolist())
def test_one_row_per_model_with_positive_errors(benchmark: str) -> None:
    table = score_table(CATALOG, benchmark)
    assert list(table.columns) == COLUMNS
    default = CATALOG.benchmarks.set_index("id").loc[benchmark, "default_series"]
    rows = CATALOG.scores[CATALOG.scores["series"] == default]
    assert table["model"].tolist() == sorted(set(rows.loc[~has_flag(rows["flags"], WRONG), "model"]))
    assert (table["score_se"] > 0).all() and (table["n_sources"] >= 1).all()
    assert table["score"].between(0, 1).all()


def test_the_number_of_items_follows_the_protocol() -> None:
    # Swallow asks 500 of MATH's problems, OpenCompass 5000.
    variance = fit_disagreement(CATALOG, "math")
    table = score_table(CATALOG, "math", evaluator="swallow").set_index("model")
    score = table.loc["Qwen2.5-7B", "score"]
    expected = binomial_variance(np.array([score]), np.array([500.0]))[0] + variance.variances(["Qwen2.5-7B"]).item()
    assert table.loc["Qwen2.5-7B", "score_se"] == pytest.approx(np.sqrt(expected))


def test_wrong_values_are_left_out_unless_asked_for() -> None:
    with pytest.raises(UnknownNameError):
        score_table(CATALOG, "humaneval", evaluator="nobody")
    assert score_table(CATALOG, "humaneval", evaluator="opencompass").empty
    asked = score_table(CATALOG, "humaneval", evaluator="opencompass", include_flagged=True)
    assert len(asked) == 31 and asked["flags"].str.contains("erratic_harness").all()


def test_values_at_the_floor_stay_because_they_are_censored_not_wrong() -> None:
    table = score_table(CATALOG, "mmlu", evaluator="obsscaling")
    assert table["flags"].str.contains("below_chance").sum() > 10


def test_the_evaluator_with_the_lowest_preference_gives_the_value() -> None:
    joined = toy(SQUARE, series="mmlu:joined")
    first = score_table(joined, "mmlu").set_index("model")
    assert first["score"].to_dict() == {"a": 0.50, "b": 0.40}
    assert set(first["evaluator"]) == {"obsscaling"}


def test_the_mean_of_a_series_halves_the_disagreement_of_two() -> None:
    joined = toy(SQUARE, series="mmlu:joined")
    table = score_table(joined, "mmlu", combine="mean").set_index("model")
    assert table["score"].to_dict() == pytest.approx({"a": 0.55, "b": 0.48})
    noise = fit_disagreement(joined, "mmlu").variances(["a"]).item()
    expected = binomial_variance(np.array([0.55]), np.array([14042.0]))[0] + noise / 2
    assert table.loc["a", "score_se"] == pytest.approx(np.sqrt(expected))
    assert table.loc["a", "evaluator"] == "obsscaling;swallow"


def test_the_default_series_is_the_declared_one_or_the_widest() -> None:
    assert set(score_table(CATALOG, "mmlu")["evaluator"]) == {"obsscaling", "swallow"}
    rows = [("a", "qwen_readme", 0.5), ("a", "swallow", 0.5), ("b", "swallow", 0.5)]
    assert set(score_table(toy(rows), "mmlu")["evaluator"]) == {"swallow"}


def test_a_series_never_mixes_with_another() -> None:
    for row in series_list(CATALOG, "bbh").itertuples():
        table = score_table(CATALOG, "bbh", series=row.series)
        assert set(table["evaluator"]) <= set(row.evaluators.split(";"))


def test_names_that_do_not_exist_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'mmlu'"):
        score_table(CATALOG, "mmlx")
    with pytest.raises(UnknownNameError, match="evaluator of mmlu"):
        score_table(CATALOG, "mmlu", evaluator="swalow")
    with pytest.raises(UnknownNameError, match="series of mmlu"):
        score_table(CATALOG, "mmlu", series="mmlu:all")
    with pytest.raises(UnknownNameError, match="combine"):
        score_table(CATALOG, "mmlu", combine="median")  # type: ignore[arg-type]


def test_the_mean_table_holds_models_with_every_benchmark() -> None:
    names = ["mmlu", "hellaswag", "winogrande"]
    table = mean_table(CATALOG, names, "obsscaling").set_index("model")
    parts = [score_table(CATALOG, name, evaluator="obsscaling").set_index("model") for name in names]
    model = "Llama-2-7B"
    assert table.loc[model, "score"] == pytest.approx(np.mean([part.loc[model, "score"] for part in parts]))
    errors = [part.loc[model, "score_se"] for part in parts]
    assert table.loc[model, "score_se"] == pytest.approx(np.sqrt(np.sum(np.square(errors))) / 3)
    assert set(table.index) == set.intersection(*(set(part.index) for part in parts))
    assert set(table["n_benchmarks"]) == {3} and set(table["benchmark"]) == {"mean"}


def test_a_mean_of_nothing_or_of_the_same_twice_is_refused() -> None:
    for names in ([], ["mmlu", "mmlu"]):
        with pytest.raises(InputError, match="give at least one, and each only once"):
            mean_table(CATALOG, names)


def test_the_disagreement_table_repeats_known_cases() -> None:
    table = disagreement(CATALOG).set_index(["model", "benchmark"])
    assert table["spread"].is_monotonic_decreasing
    # Values that the vendors print: Mixtral-8x7B BBH 50.3 (Qwen2 post), OpenCompass 68.5.
    assert table.loc[("Mixtral-8x7B", "bbh"), "spread"] == pytest.approx(0.182, abs=5e-4)
    assert table.loc[("Yi-34B", "gsm8k"), "spread"] == pytest.approx(0.166, abs=5e-4)


@settings(max_examples=5)
@given(st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(random: object) -> None:
    seed = random.randrange(2**32)  # type: ignore[attr-defined]
    rng = np.random.default_rng(seed)
    shuffled = dataclasses.replace(
        CATALOG,
        models=CATALOG.models.iloc[rng.permutation(len(CATALOG.models))],
        scores=CATALOG.scores.iloc[rng.permutation(len(CATALOG.scores))],
        evaluators=CATALOG.evaluators.iloc[::-1],
    )
    for combine in ("evaluator", "mean"):
        before = score_table(CATALOG, "mmlu", combine=combine)  # type: ignore[arg-type]
        pd.testing.assert_frame_equal(score_table(shuffled, "mmlu", combine=combine), before, check_exact=True)  # type: ignore[arg-type]
    pd.testing.assert_frame_equal(mean_table(shuffled, ["gsm8k", "mmlu"]), mean_table(CATALOG, ["mmlu", "gsm8k"]))
