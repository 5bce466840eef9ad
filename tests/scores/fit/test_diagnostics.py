"""Diagnostics of a fit, against refits done by hand and algebra."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from densing.core.errors import FitError, InputError
from densing.scores.fit import bounds_table, checklist, conditioning, fit_law, influence, rollout, sensitivity
from densing.scores.fit.diagnostics import standard_errors
from densing.scores.laws import get_law
from tests.support.budget import FULL
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
    worlds = 1000 if FULL else 250
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


def test_conditioning_is_that_of_the_unit_columns():
    size = np.geomspace(1e8, 1e11, 20)
    weights = np.linspace(1, 5, 20)
    fit = fit_law("power", {"params": size}, 9 * size**-0.1, weights=weights, loss="log", bootstrap=0)
    # In logs the columns are 1 and the centred -ln N.
    columns = np.column_stack([np.ones(20), np.log(size).mean() - np.log(size)]) * np.sqrt(weights)[:, None]
    assert conditioning(fit) == pytest.approx(np.linalg.cond(columns / np.linalg.norm(columns, axis=0)))


def test_standard_errors_take_two_draws():
    size = np.geomspace(1e8, 1e11, 8)
    loss = 9 * size**-0.1 * np.exp(0.01 * np.cos(np.arange(8)))
    one, two = (fit_law("power", {"params": size}, loss, bootstrap=draws) for draws in (1, 2))
    assert np.isnan(standard_errors(one)).all()
    assert_allclose(standard_errors(two), np.abs(two.draws[0] - two.draws[1]) / 2**0.5)


@pytest.mark.parametrize(("name", "loss"), [("power", "log"), ("power", "raw"), ("logistic", "raw")])
def test_a_prediction_interval_has_noise_of_the_residuals_size(name, loss):
    law = get_law(name, floor=0.25) if name == "logistic" else get_law(name)
    x = {"params": np.geomspace(1e8, 1e11, 16)}
    curve = law.predict([0.5, 0.9, 22.5] if name == "logistic" else [12, 0.08], x)
    y = curve * np.exp(0.01 * np.random.default_rng(0).standard_normal(16))
    table = rollout(law, x, y, cutoff=2e10, loss=loss, scheme="parametric", bootstrap=400, seed=7, level=0.8)
    kept = x["params"] <= 2e10
    fit = fit_law(law, {"params": x["params"][kept]}, y[kept], loss=loss, scheme="parametric", bootstrap=400, seed=7)
    curves = law.predict(fit.draws, {"params": x["params"][~kept]})
    rng = np.random.default_rng([7, 1])
    freedom = kept.sum() - len(law.parameters)
    noise = np.sqrt(np.sum(fit.residuals**2) / rng.chisquare(freedom, size=(400, 1)))
    noise = noise * rng.standard_normal(curves.shape)
    lo, hi = np.quantile(curves * np.exp(noise) if loss == "log" else curves + noise, [0.1, 0.9], axis=0)
    assert_allclose(table[["lo", "hi"]], np.column_stack([lo, hi]))


def test_rollout_splits_at_seven_tenths_of_the_laws_first_input_unless_told():
    x, y = open_lm_runs("c4")
    table = rollout("chinchilla", x, y, bootstrap=2)
    assert table["params"].min() > np.quantile(x["params"], 0.7) >= x["params"].min()
    assert len(table) == (x["params"] > np.quantile(x["params"], 0.7)).sum()
    by_tokens = rollout("chinchilla", x, y, by="tokens", quantile=0.5, bootstrap=2)
    assert len(by_tokens) == (x["tokens"] > np.quantile(x["tokens"], 0.5)).sum()
    # A run at the cut-off is fitted.
    size = np.geomspace(1e8, 1e10, 5)
    assert len(rollout("power", {"params": size}, 9 * size**-0.1, cutoff=size[3], bootstrap=2)) == 1


def test_sensitivity_keeps_the_weights():
    law, x, y = noisy(CHINCHILLA, 3, 0.01)
    weights = np.linspace(0.2, 4, y.size)
    fit = fit_law(law, x, y, weights=weights, loss="log", bootstrap=10)
    table = sensitivity(fit)
    assert table["largest_shift_se"][2] == pytest.approx(0, abs=1e-6)
    assert table["objective"][2] == pytest.approx(fit.objective)
    assert table["delta"].tolist()[:2] == [1e-3, 1e-2] and table["delta"][2:].isna().all()
    # An observation of zero has no logarithm.
    low = get_law("logistic", floor=0.0)
    zero = fit_law(low, {"params": np.geomspace(1e8, 1e11, 6)}, [1e-9, 0.05, 0.2, 0.5, 0.7, 0.75], bootstrap=0)
    assert sensitivity(zero)["loss"].tolist() == ["huber", "huber", "log", "raw", "lad"]


def test_influence_counts_weights_and_a_run_to_spare_is_enough():
    size = np.array([1e8, 1e9, 1e10])
    fit = fit_law("power", {"params": size}, [4.0, 3.0, 2.6], weights=[1, 2, 3], loss="log", bootstrap=10)
    table = influence(fit)
    line = np.polyfit(-np.log(size[1:]), np.log([3.0, 2.6]), 1)
    shift = (np.array([np.exp(line[1]), line[0]]) - fit.theta) / fit.draws.std(axis=0, ddof=1)
    assert_allclose(table.loc[0, ["A", "alpha"]].astype(float), shift, rtol=1e-5)
