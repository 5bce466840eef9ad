"""Forecasts back-tested: scores against closed forms, nothing of the future in them, statuses instead of silence."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from typer.testing import CliRunner

from densing.cli import app
from densing.core import InputError, UnknownNameError, plain
from densing.scores.catalog import Catalog, Selection, load_catalog
from densing.scores.joint import joint_cells
from densing.scores.trend.backtests import (
    QUANTILES,
    ForecastBacktest,
    backtest_forecasts,
    best_forecaster,
    crps,
    forecast_now,
    freeze,
)
from tests.support.command import densing, printed
from tests.support.joint_worlds import short

ORIGIN, END = "2024-03-31", "2024-09-30"


@cache
def known() -> Catalog:
    """The catalog as of September 2024, measured by whoever tests known models in English."""
    return freeze(load_catalog(), END)


@cache
def result() -> ForecastBacktest:
    return backtest_forecasts(known(), [ORIGIN], months=6, scale=short)


@pytest.mark.parametrize(("mean", "sd", "outcome"), [(0.0, 1.0, 0.3), (2.0, 0.5, -1.0), (-1.0, 3.0, 4.0)])
def test_crps_of_normal_draws_is_the_closed_form(mean: float, sd: float, outcome: float) -> None:
    # Gneiting and Raftery 2007, eq. 5: sd (z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi)).
    z = (outcome - mean) / sd
    closed = sd * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi))
    count = 20_000
    quantiles = stats.norm.ppf((np.arange(count) + 0.5) / count, mean, sd)
    assert crps(quantiles[:, None], np.array([outcome]))[0] == pytest.approx(closed, rel=1e-3)


finite = st.floats(-100, 100)


@given(arrays(float, st.tuples(st.integers(1, 12), st.just(3)), elements=finite), arrays(float, 3, elements=finite))
def test_crps_is_the_energy_form_written_out(draws: np.ndarray, outcome: np.ndarray) -> None:
    pairs = np.abs(draws[:, None] - draws[None]).mean(axis=(0, 1))
    expected = np.abs(draws - outcome).mean(axis=0) - pairs / 2
    np.testing.assert_allclose(crps(draws, outcome), expected, atol=1e-9)


@given(arrays(float, st.tuples(st.integers(1, 12), st.just(2)), elements=finite), finite, st.floats(-10, 10))
def test_crps_moves_and_scales_with_its_unit(draws: np.ndarray, outcome: float, factor: float) -> None:
    outcomes = np.full(2, outcome)
    base = crps(draws, outcomes)
    assert (base >= -1e-9).all()
    np.testing.assert_allclose(crps(factor * draws + 3, factor * outcomes + 3), abs(factor) * base, atol=1e-7)
    # One draw is a point forecast: the absolute error.
    np.testing.assert_allclose(crps(draws[:1], outcomes), np.abs(draws[0] - outcomes))


def test_crps_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="at least one"):
        crps(np.zeros((0, 3)), np.zeros(3))


def test_a_frozen_catalog_knows_nothing_of_later_models() -> None:
    frozen = freeze(load_catalog(), "2024-12-31")
    assert frozen.models["released"].max() <= pd.Timestamp("2024-12-31")
    assert set(frozen.scores["model"]) <= set(frozen.models["model"])
    assert set(frozen.evaluators["id"]) == set(frozen.scores["evaluator"])
    assert set(frozen.benchmarks["id"]) == set(frozen.scores["benchmark"])


def test_a_model_dated_to_a_month_is_known_when_the_month_is_over() -> None:
    catalog = load_catalog()
    [day] = catalog.models.loc[catalog.models["model"].eq("EuroLLM-22B"), "released"]
    assert day == pd.Timestamp("2025-12-15")
    assert "EuroLLM-22B" not in set(freeze(catalog, "2025-12-20").models["model"])
    assert "EuroLLM-22B" in set(freeze(catalog, "2025-12-31").models["model"])


def test_scores_of_later_models_change_nothing_in_a_forecast() -> None:
    catalog = known()
    late = set(catalog.models.loc[catalog.models["released"] > ORIGIN, "model"])
    scores = catalog.scores.copy()
    changed = scores["model"].isin(late)
    # To three decimals, so that what two evaluators print alike stays alike: one measurement, counted once.
    scores.loc[changed, "score"] = (1 - scores.loc[changed, "score"].round(3)).round(3)
    other = backtest_forecasts(replace(catalog, scores=scores), [ORIGIN], months=6, scale=short)
    keys = ["target", "forecaster", "model", "test"]
    both = result().cases.merge(other.cases, on=keys, suffixes=("", "_other"))
    assert len(both) == len(result().cases)
    for name in QUANTILES:
        np.testing.assert_array_equal(both[name], both[f"{name}_other"])
    assert (both["came"] - both["came_other"]).abs().mean() > 0.1


def test_what_came_of_a_score_is_what_was_published() -> None:
    cases = result().cases
    scores = cases[cases["target"].eq("score") & cases["forecaster"].eq("trend")]
    published = known().scores.assign(test=lambda t: t["benchmark"] + "@" + t["evaluator"])
    both = scores.merge(published, on=["model", "test"])
    assert len(both) == len(scores) > 100
    np.testing.assert_allclose(both["came"], 100 * both["score"])
    assert (scores["released"] > pd.Timestamp(ORIGIN)).all()


def test_densities_that_came_lie_on_the_level_of_the_frozen_reference() -> None:
    # A catalog that is the same before and after gives abilities that the frozen scale gives.
    cases = result().cases
    ability = cases[cases["target"].eq("ability") & cases["forecaster"].eq("trend")]
    density = cases[cases["target"].eq("density") & cases["forecaster"].eq("trend")]
    implied = ability["came"].to_numpy() / 0.45 - np.log(density["params"].to_numpy())
    assert np.corrcoef(implied, density["came"])[0, 1] > 0.9


def test_the_table_is_the_mean_of_its_cases_with_each_model_once() -> None:
    table, cases = result().table.set_index(["target", "forecaster"]), result().cases
    for (target, forecaster), part in cases.groupby(["target", "forecaster"]):
        row = table.loc[(target, forecaster)]
        per_model = part.groupby("model").agg(crps=("crps", "mean"))
        assert row["crps"] == pytest.approx(per_model["crps"].mean())
        inside = part["came"].between(part["lo90"], part["hi90"]).groupby(part["model"]).mean().mean()
        assert row["cover90"] == pytest.approx(inside)
        error = (part["came"] - part["mid"]).groupby(part["model"]).mean()
        assert row["bias"] == pytest.approx(error.mean()) and abs(row["bias"]) <= row["mae"] + 1e-12
    still, near = table.loc[("density", "standing still")], table.loc[("density", "nearest")]
    assert still["vs_nearest"] == pytest.approx(1 - still["crps"] / near["crps"])
    assert still["vs_nearest_lo"] < still["vs_nearest"] < still["vs_nearest_hi"]
    assert still["vs_still"] == still["vs_still_lo"] == still["vs_still_hi"] == 0


def test_every_histogram_of_outcomes_holds_all_of_them() -> None:
    shares = result().pit().set_index(["target", "forecaster"])
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert shares.shape == (3 * len(result().forecasters), 10)


def test_what_one_forecaster_said_stands_beside_what_came() -> None:
    table = result().models("nearest").set_index("model")
    cases = result().cases[result().cases["forecaster"].eq("nearest")]
    assert set(table.index) == set(cases["model"]) and table["scores"].sum() == cases["target"].eq("score").sum()
    density = cases[cases["target"].eq("density")].set_index("model")
    np.testing.assert_allclose(np.log(table["density"]), density.loc[table.index, "came"])
    assert (table["lo90"] < table["forecast"]).all() and (table["forecast"] < table["hi90"]).all()
    with pytest.raises(UnknownNameError):
        result().models("oracle")


def test_the_sentences_say_who_won_and_which_way_the_trend_erred() -> None:
    lines = result().sentences()
    assert len(lines) == 6 and sum("90 % intervals covered" in line for line in lines) == 3
    bias = result().table.set_index(["target", "forecaster"]).loc[("density", "trend"), "bias"]
    [trend] = [line for line in lines if line.startswith("Densities by trend")]
    assert ("too low" if bias > 0 else "too high") in trend and ORIGIN in trend


def toy(crps_by_name: dict[str, list[float]]) -> ForecastBacktest:
    """A back-test of one date and one model a family with these scores."""
    rows = [
        (pd.Timestamp("2024-01-01"), "density", name, f"m{i}", f"f{i}", value)
        for name, values in crps_by_name.items()
        for i, value in enumerate(values)
    ]
    cases = pd.DataFrame(rows, columns=["origin", "target", "forecaster", "model", "family", "crps"])
    names = tuple(crps_by_name)
    return ForecastBacktest(pd.DataFrame(), cases, pd.DataFrame(), names, dict.fromkeys(names, ""), 12.0)


def test_the_best_forecaster_has_the_lowest_score() -> None:
    choice = best_forecaster(toy({"simple": [1.0, 1.2, 1.1, 1.3], "clever": [0.5, 0.6, 0.7, 0.5]}))
    assert (choice.forecaster, choice.lowest, choice.tied) == ("clever", "clever", ("clever",))
    assert "clever" in choice.sentence and "lowest" in choice.sentence


def test_a_tie_goes_to_the_simpler_one() -> None:
    choice = best_forecaster(toy({"simple": [1.0, 0.4, 1.1, 0.5], "clever": [0.5, 0.9, 0.7, 0.6]}))
    assert (choice.forecaster, choice.lowest) == ("simple", "clever")
    assert "simpler" in choice.sentence


def test_one_family_decides_nothing() -> None:
    assert best_forecaster(toy({"simple": [1.0], "clever": [0.1]})).forecaster == "simple"


def test_the_best_of_no_back_test_is_the_simplest_and_says_so() -> None:
    empty = replace(toy({"simple": []}), cases=pd.DataFrame())
    assert "simplest" in best_forecaster(empty).sentence
    with pytest.raises(InputError, match="unknown target 'mmlu'"):
        best_forecaster(empty, "mmlu")


@pytest.mark.parametrize(
    ("origin", "status", "words"),
    [
        ("2019-01-01", "no trend yet", "0 such models"),
        ("2023-03-10", "no trend yet", "are needed"),
        (END, "no later models", "no model of the 12 months"),
    ],
)
def test_an_origin_that_shows_nothing_says_why(origin: str, status: str, words: str) -> None:
    empty = backtest_forecasts(known(), [origin], scale=short)
    [row] = empty.origins.to_dict("records")
    assert row["status"] == status and words in row["sentence"]
    assert [note.severity for note in empty.notes] == ["error"] and empty.cases.empty
    json.dumps(plain(empty.to_dict()), allow_nan=False)
    assert status.split()[0] in repr(empty) or "no forecast" in repr(empty)


def test_a_basket_that_nobody_measured_then_is_a_status_and_one_that_nobody_knows_an_error() -> None:
    catalog = known()
    ids = catalog.benchmarks.set_index("id")["language"]
    late = catalog.models.loc[catalog.models["released"] > ORIGIN, "model"]
    foreign = catalog.scores["benchmark"].map(ids).eq("de") & ~catalog.scores["model"].isin(late)
    without = replace(catalog, scores=catalog.scores[~foreign])
    [row] = backtest_forecasts(without, [ORIGIN], basket="de", scale=short).origins.to_dict("records")
    assert row["status"] == "no trend yet" and "was measured on de" in row["sentence"]
    with pytest.raises(UnknownNameError, match="elvish"):
        backtest_forecasts(catalog, [ORIGIN], basket="elvish", scale=short)


def test_later_models_without_sizes_are_counted_not_forecast() -> None:
    catalog = known()
    late = catalog.models["released"] > ORIGIN
    sizeless = catalog.models.assign(
        params_total_b=catalog.models["params_total_b"].mask(late),
        params_active_b=catalog.models["params_active_b"].mask(late),
    )
    [row] = backtest_forecasts(replace(catalog, models=sizeless), [ORIGIN], scale=short).origins.to_dict("records")
    assert row["status"] == "no later models" and "no size" in row["sentence"]


def test_one_later_model_is_an_example_without_an_interval() -> None:
    catalog = known()
    after = catalog.models["released"] > ORIGIN
    one = catalog.models[~after | catalog.models["model"].eq("Llama-3-8B")]
    scores = catalog.scores[catalog.scores["model"].isin(one["model"])]
    single = backtest_forecasts(replace(catalog, models=one, scores=scores), [ORIGIN], scale=short)
    [row] = single.origins.to_dict("records")
    assert (row["status"], row["models"]) == ("few families", 1)
    assert single.table["vs_still_lo"].isna().all() and single.table["crps"].notna().all()
    assert best_forecaster(single).forecaster == "standing still"
    json.dumps(plain(single.to_dict()), allow_nan=False)


@pytest.mark.parametrize("months", [0.0, -1.0, math.nan, math.inf])
def test_a_horizon_of_no_length_is_refused(months: float) -> None:
    with pytest.raises(InputError, match="horizon"):
        backtest_forecasts(known(), [ORIGIN], months=months)
    with pytest.raises(InputError, match="horizon"):
        forecast_now(known(), months)


@pytest.mark.parametrize("origins", [[], ["soon"], [None], [math.nan], ["9999-12-31"]])
def test_a_date_that_is_none_is_refused(origins: list[object]) -> None:
    with pytest.raises(InputError, match="date to freeze"):
        backtest_forecasts(known(), origins)


def test_the_outlook_is_the_winners_and_starts_at_the_last_release() -> None:
    outlook = forecast_now(known(), 6, result=result(), scale=short)
    assert outlook.choice.forecaster == best_forecaster(result()).forecaster
    assert outlook.choice.forecaster in outlook.sentence
    ordered = outlook.table[["lo90", "lo50", "density", "hi50", "hi90"]].to_numpy()
    assert (np.diff(ordered, axis=1) >= 0).all() and (ordered > 0).all()
    assert outlook.since <= pd.Timestamp(END) < outlook.table["released"].max()
    # Four dates, each with sizes from small to large at which the sentence begins and ends.
    sizes = outlook.table.groupby("released")["params"].agg(list)
    assert len(sizes) == 4 and all(row == [1e9, 4e9, 8e9, 32e9] for row in sizes)
    assert re.search(r"of 1\sB to 32\sB parameters", outlook.sentence)
    json.dumps(plain(outlook.to_dict()), allow_nan=False)


def test_too_few_models_for_any_outlook_is_an_error_with_a_reason() -> None:
    with pytest.raises(InputError, match="no forecast: before it"):
        forecast_now(known(), selection=Selection(architectures=("moe",), until="2024-01-31"), result=result())


def test_two_ways_of_freezing_are_refused() -> None:
    run = densing("forecast", "backtest", "--freeze", "2024-12-31", "--origins", "2023-12-31")
    assert run.returncode == 2 and "not both" in run.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("short_scales")
def test_the_embedded_catalog_back_tested() -> None:
    # In this process, so that its chains can be short.
    done = CliRunner().invoke(app, ["forecast", "backtest", "--freeze", "2025-11-14", "--json"])
    assert done.exit_code in (0, 3), done.output
    data = printed(done.stdout)
    [origin] = data["origins"]
    assert origin["models"] >= 4 and origin["status"] in ("ok", "few families")
    cases = pd.DataFrame(data["cases"])
    mine = cases[cases["model"].eq("Olmo-3-7B") & cases["forecaster"].eq("nearest") & cases["target"].eq("score")]
    catalog = load_catalog()
    models = catalog.models.set_index("model")
    # The nearest model by hand: the latest headline model within a factor 1.5 that took the test before the freeze.
    kept = joint_cells(freeze(catalog, "2025-11-14")).table
    dense = models["architecture"].eq("dense") & models["kind"].eq("base") & models["derivation"].eq("scratch")
    similar = models[dense & models["domain"].eq("general") & models["params_total_b"].between(7 / 1.5, 7 * 1.5)]
    for row in mine.head(20).itertuples():
        took = kept[kept["test"].eq(row.test) & kept["model"].isin(similar.index)]
        if took.empty:
            continue
        latest = models.loc[took["model"], "released"].max()
        near = took[took["model"].map(models["released"]).eq(latest)]
        # Errors of either sign leave the point where it is, up to the chance of the draws and the ends of the scale.
        assert (100 * near["score"] - row.mid).abs().min() < 6
    table = pd.DataFrame(data["table"])
    assert table["crps"].gt(0).all() and table["cover90"].between(0, 1).all()
    assert data["best"]["density"]["forecaster"] in set(table["forecaster"])
