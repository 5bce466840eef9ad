"""Diagnostics of a fit, against refits done by hand and algebra."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from densing.core.errors import FitError, InputError
from densing.scores.fit import bounds_table, checklist, conditioning, fit_law, influence, rollout, sensitivity
from densing.scores.laws import get_law
from tests.support.law_cases import LOSS_CASES, SCORE_CASES, TWO_STEP_CASES, Case, noisy, open_lm_runs

CHINCHILLA = Case("chinchilla", (1.7, 400.0, 500.0, 0.34, 0.30))


@pytest.mark.parametrize("case", [c for c in LOSS_CASES + SCORE_CASES if c.name != "broken"], ids=str)
def test_influence_is_a_refit_without_the_run(case):
    law, x, y = noisy(case, 3, 0.004)
    fit = fit_law(law, x, y, bootstrap=100)
    table = influence(fit)
    assert len(table) == y.size
    for row in (0, 31):
        kept = np.arange(y.size) != row
        without = fit_law(law, {name: values[kept] for name, values in x.items()}, y[kept], bootstrap=0)
        shift = (without.theta - fit.theta) / fit.draws.std(axis=0, ddof=1)
        assert_allclose(table.loc[row, list(law.parameters)].astype(float), shift, atol=1e-3)
    assert_allclose(table["largest"], table[list(law.parameters)].abs().max(axis=1))


def test_an_outlier_is_the_most_influential_run():
    law, x, y = noisy(CHINCHILLA, 3, 0.004)
    y = y.copy()
    y[int(np.argmax(x["params"]))] *= 1.08
    table = influence(fit_law(law, x, y, loss="log", bootstrap=200))
    assert table["largest"].idxmax() == int(np.argmax(x["params"]))


def test_influence_needs_a_run_to_spare():
    fit = fit_law("power", {"params": [1e8, 1e10]}, [4.0, 2.5], bootstrap=0)
    with pytest.raises(FitError, match="2 runs less one cannot fix 2 parameters"):
        influence(fit)


def test_conditioning_is_small_when_centred_and_grows_with_collinearity():
    law, x, y = noisy(CHINCHILLA, 3, 0.004)
    free = conditioning(fit_law(law, x, y, bootstrap=0))
    tied = {"params": x["params"], "tokens": 20 * x["params"] * np.exp(0.01 * np.sin(np.arange(y.size)))}
    theta = fit_law(law, x, y, bootstrap=0).theta
    bound = conditioning(fit_law(law, tied, law.predict(theta, tied) * y / law.predict(theta, x), bootstrap=0))
    assert 1 < free < 300 < bound
    scaled = {"params": 1e-9 * x["params"], "tokens": x["tokens"]}
    assert conditioning(fit_law(law, scaled, y, bootstrap=0)) == pytest.approx(free, rel=1e-3)


def test_conditioning_without_curvature_in_a_parameter_is_infinite():
    size = np.geomspace(1e8, 1e11, 8)
    fit = fit_law("power-offset", {"params": size}, 2 + 300 * size**-0.3, bootstrap=0)
    with np.errstate(divide="ignore"):
        assert conditioning(replace(fit, theta=np.array([2.0, 0.0, 0.3]))) == np.inf


def test_distance_to_bounds_in_standard_errors():
    law = get_law("logistic", floor=0.25)
    x = {"params": np.geomspace(1e8, 1e11, 12)}
    y = law.predict([0.5, 0.9, 22.5], x) + 0.004 * np.random.default_rng(0).standard_normal(12)
    fit = fit_law(law, x, y, bootstrap=200, scheme="parametric")
    table = bounds_table(fit).set_index("param")
    assert table.loc["c", "high"] == 0.75
    by_hand = min(fit.params["c"], 0.75 - fit.params["c"]) / fit.draws[:, 0].std(ddof=1)
    assert table.loc["c", "distance_se"] == pytest.approx(by_hand)
    assert table.loc["x0", "distance_se"] == np.inf
    assert bounds_table(fit_law(law, x, y, bootstrap=0))["distance_se"].isna().all()


def test_rollout_reports_the_miss_of_the_large_runs():
    x, y = open_lm_runs("refinedweb")
    table = rollout("chinchilla", x, y, cutoff=1.5e9, bootstrap=300)
    assert len(table) == int((x["params"] > 1.5e9).sum())
    small = x["params"] <= 1.5e9
    by_hand = fit_law("chinchilla", {name: values[small] for name, values in x.items()}, y[small], bootstrap=0)
    assert_allclose(table["predicted"], by_hand.predict({n: v[~small] for n, v in x.items()}), rtol=1e-9)
    assert_allclose(table["miss"], table["predicted"] - y[~small])
    assert_allclose(table["relative_miss"], table["miss"] / y[~small])
    assert (table["inside"] == ((table["lo"] <= table["y"]) & (table["y"] <= table["hi"]))).all()


@pytest.mark.slow
def test_rollout_intervals_cover_what_the_law_makes():
    """Held-out runs from the same law and noise fall inside nominal 95 % intervals 93-97 % of the time.

    The small budget allows 3.3 binomial standard errors around that band, as if a table's runs were one observation.
    """
    worlds = 1000 if os.environ.get("DENSING_COVERAGE_BUDGET") == "full" else 250
    margin = 0.0 if worlds == 1000 else 3.3 * (0.05 * 0.95 / worlds) ** 0.5
    law = get_law("power-offset")
    size = np.geomspace(1e8, 1e11, 16)
    curve, rng, hits = law.predict([1.6, 220.0, 0.29], {"params": size}), np.random.default_rng(0), []
    for seed in range(worlds):
        y = curve * np.exp(0.01 * rng.standard_normal(16))
        table = rollout(law, {"params": size}, y, loss="log", scheme="parametric", bootstrap=300, seed=seed)
        hits.extend(table["inside"])
    assert 0.93 - margin <= np.mean(hits) <= 0.97 + margin


def test_rollout_of_a_broken_law_misses_and_says_so():
    size = np.geomspace(1e7, 1e12, 40)
    loss = get_law("broken").predict([0.0, 60.0, 0.1, 0.4, 1e10, 0.1], {"params": size})
    table = rollout("power", {"params": size}, loss, cutoff=3e9, loss="log", scheme="residual", bootstrap=200)
    last = table.iloc[-1]
    assert last["miss"] > 0
    assert not last["inside"]


def test_rollout_works_for_two_steps_and_refuses_what_it_cannot_split():
    case = TWO_STEP_CASES[0]
    law, x = case.law, case.table(40, 5)
    loss = law.loss_law.predict(law.split(case.theta)[0], x)
    table = rollout(law, {**x, "loss": loss}, law.predict(case.theta, x), bootstrap=20)
    assert table["miss"].abs().max() < 1e-6
    with pytest.raises(InputError, match="no run has params above"):
        rollout("power", {"params": [1e8, 1e9, 1e10]}, [4, 3, 2], cutoff=1e12)
    with pytest.raises(InputError, match="weights and clusters"):
        rollout("power", {"params": [1e8, 1e9, 1e10]}, [4, 3, 2], weights=[1, 1, 1])


def test_sensitivity_is_the_table_of_fits():
    x, y = open_lm_runs("c4")
    fit = fit_law("chinchilla", x, y, bootstrap=100)
    table = sensitivity(fit)
    assert table["loss"].tolist() == ["huber", "huber", "log", "raw", "lad"]
    assert table.loc[0, "largest_shift_se"] == pytest.approx(0.0, abs=1e-6)
    other = fit_law("chinchilla", x, y, loss="huber", delta=1e-2, bootstrap=0)
    assert table.loc[1, "alpha"] == pytest.approx(other.params["alpha"])
    logs = fit_law("chinchilla", x, y, loss="log", bootstrap=0)
    shift = np.abs(logs.theta - fit.theta) / fit.draws.std(axis=0, ddof=1)
    assert table.loc[2, "largest_shift_se"] == pytest.approx(shift.max())
    assert shift.max() > 0.1
    assert isinstance(table, pd.DataFrame)


def test_sensitivity_skips_logs_of_zero_scores():
    law = get_law("logistic", floor=0.0)
    fit = fit_law(law, {"params": np.geomspace(1e8, 1e11, 6)}, [0.0, 0.05, 0.2, 0.5, 0.7, 0.75], bootstrap=0)
    assert sensitivity(fit)["loss"].tolist() == ["raw"]


def test_two_step_fits_are_diagnosed_step_by_step():
    case = TWO_STEP_CASES[0]
    law, x = case.law, case.table(30, 5)
    loss = law.loss_law.predict(law.split(case.theta)[0], x)
    fit = fit_law(law, {**x, "loss": loss}, law.predict(case.theta, x), bootstrap=0)
    for diagnose in (influence, conditioning, sensitivity):
        with pytest.raises(InputError, match="step by step"):
            diagnose(fit)


@pytest.mark.parametrize("law", ["chinchilla", "power", "logistic"])
def test_points_that_are_all_the_same_determine_nothing_and_it_is_said(law):
    x = {"params": np.full(20, 1e9), "tokens": np.full(20, 1e11)}
    fit = fit_law(law, x, np.full(20, 0.5), bootstrap=20, scheme="residual")
    assert [note.severity for note in fit.notes if note.code == "not-identified"] == ["error"]


def test_an_ordinary_fit_is_identified():
    law, x, y = noisy(CHINCHILLA, 3, 0.004)
    assert "not-identified" not in {note.code for note in fit_law(law, x, y, bootstrap=0).notes}


def test_one_group_cannot_be_resampled():
    size = np.geomspace(1e8, 1e11, 8)
    with pytest.raises(FitError, match="one group cannot be resampled"):
        fit_law("power", {"params": size}, 10 * size**-0.1, scheme="cluster", clusters=["a"] * 8)


def test_the_checklist_holds_every_diagnostic_or_why_the_data_do_not_allow_it():
    size = np.array([1e8, 1e9])
    items = checklist(fit_law("power", {"params": size}, 10 * size**-0.1, bootstrap=0))
    assert items["fitted_range"] == {"params": (1e8, 1e9)}
    assert items["condition_number"] == pytest.approx(1.0)
    assert items["influence"] == "not available: influence: 2 runs less one cannot fix 2 parameters"
    assert len(items["sensitivity_to_loss"]) == 5
    law, x, y = noisy(SCORE_CASES[3], 3, 0.004)
    assert items.keys() == checklist(fit_law(law, x, y, bootstrap=0)).keys()


def test_the_checklist_of_two_steps_says_what_was_fitted():
    case = TWO_STEP_CASES[0]
    law, x = case.law, case.table(20, 5)
    loss = law.loss_law.predict(law.split(case.theta)[0], x)
    fit = fit_law(law, {**x, "loss": loss}, law.predict(case.theta, x), bootstrap=0)
    assert list(checklist(fit)) == ["hypothesis", "fitted_range", "objective_and_optimiser"]
