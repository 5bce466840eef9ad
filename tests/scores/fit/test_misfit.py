"""Lack of fit, judged by what it moves: planted laws that are right, that are wrong by a hair, and that bend."""

from __future__ import annotations

import os

import numpy as np
import pytest
from scipy.stats import binomtest

from densing.scores.fit import LawFit, fit_law
from densing.scores.fit.diagnostics import lack_of_fit, lack_of_fit_table
from densing.scores.laws import get_law

FULL = os.environ.get("DENSING_COVERAGE_BUDGET") == "full"
OFFSET, CHINCHILLA = get_law("power-offset"), get_law("chinchilla")
THETA = [1.5, 40.0, 0.2]
RUNS = [1.8, 480.0, 2100.0, 0.35, 0.37]


def design(rng, runs):
    """Four decades of compute around twenty tokens per parameter, as far over and under it as labs go."""
    compute = np.exp(rng.uniform(np.log(1e18), np.log(1e22), runs)) / 6
    params = np.sqrt(compute / 20) * np.exp(0.7 * rng.standard_normal(runs))
    return {"params": params, "tokens": compute / params}


def severity(fit):
    return next((note.severity for note in fit.notes if note.code == "lack-of-fit"), None)


def test_a_misfit_of_a_thousandth_is_for_information_however_small_its_p_value():
    size = np.geomspace(1e8, 1e11, 400)
    ripple = 2e-4 * np.sin(2 * np.log10(size / 3e9))
    noise = 1e-4 * np.random.default_rng(0).standard_normal(len(size))
    fit = fit_law("power-offset", {"params": size}, OFFSET.predict(THETA, {"params": size}) * np.exp(ripple + noise))
    found = lack_of_fit(fit)
    assert found.p < 1e-20 and severity(fit) == "info"
    # The change leaves the stated interval, which 400 runs without noise make narrower than a thousandth.
    assert not found.prediction.lo <= found.prediction.other <= found.prediction.hi
    assert abs(found.prediction.other - found.prediction.value) < 0.002


@pytest.mark.parametrize(("runs", "noise"), [(12, 0.002), (20, 0.003), (200, 0.01)])
def test_a_law_without_the_constant_that_its_runs_have_is_refused(runs, noise):
    size = np.geomspace(1e8, 1e11, runs)
    errors = noise * np.random.default_rng(0).standard_normal(runs)
    fit = fit_law("power", {"params": size}, OFFSET.predict(THETA, {"params": size}) * np.exp(errors))
    assert severity(fit) == "error"
    change = lack_of_fit(fit).prediction
    # Ten times the largest run: what the law says there is too low by as much as leaving out a decade moved it.
    bias = np.log(fit.predict({"params": [1e12]})[0] / OFFSET.predict(THETA, {"params": [1e12]})[0])
    assert 0.5 < (change.other - change.value) / bias < 1.2


def test_an_exponent_that_the_range_decides_is_a_warning_where_the_prediction_holds():
    """Most of the loss is irreducible; of the small rest the slope changes at 1e9."""
    size = np.geomspace(1e8, 1e11, 60)
    loss = get_law("broken").predict([3.0, 1.0, 0.15, 0.4, 1e9, 0.2], {"params": size})
    loss *= np.exp(1e-4 * np.random.default_rng(0).standard_normal(60))
    fit = fit_law("power-offset", {"params": size}, loss, bootstrap=300)
    found = lack_of_fit(fit)
    assert severity(fit) == "warning" and found.prediction.status == "held"
    (change,) = found.moved
    assert change.quantity == "alpha" and abs(change.other - change.value) > 0.1 * change.value
    note = next(note for note in fit.notes if note.code == "lack-of-fit")
    assert "holds" in note.message and "alpha" in note.message
    assert note.details["p"] == pytest.approx(found.p)
    table = lack_of_fit_table(fit)
    assert set(table["quantity"]) == {"prediction", "alpha"} and table["status"].eq("harmed").any()


def test_runs_too_few_to_leave_some_out_are_a_warning():
    size = np.concatenate([np.geomspace(1e8, 4e8, 12), [1e10, 1.2e10]])
    noise = 0.001 * np.random.default_rng(0).standard_normal(14)
    fit = fit_law("power", {"params": size}, OFFSET.predict(THETA, {"params": size}) * np.exp(noise), bootstrap=50)
    note = next(note for note in fit.notes if note.code == "lack-of-fit")
    assert note.details["p"] < 0.01 and lack_of_fit(fit).changes == ()
    assert note.severity == "warning" and "too few runs" in note.message


def test_a_fit_without_draws_has_no_stated_interval_and_its_notes_are_json():
    size = np.geomspace(1e8, 1e11, 20)
    fit = fit_law("power", {"params": size}, OFFSET.predict(THETA, {"params": size}), bootstrap=0)
    assert severity(fit) == "error" and np.isnan(lack_of_fit(fit).prediction.lo)
    assert LawFit.from_json(fit.to_json()).notes == fit.notes


def test_a_change_that_noise_explains_is_not_called_small():
    """Half a family of eight hardly fixes a curve: what it says a decade on is no evidence, and no all-clear."""
    law, noted = get_law("logistic", floor=0.25), 0
    size = np.geomspace(5e8, 8e10, 8)
    rng = np.random.default_rng(1)
    for _ in range(60):
        score = law.predict([0.6, 0.8, 22.5], {"params": size}) + 0.01 * rng.standard_normal(8)
        fit = fit_law(law, {"params": size}, score, scheme="parametric", bootstrap=100)
        change = lack_of_fit(fit).prediction
        if change.status == "unclear" and (notes := [note for note in fit.notes if note.code == "lack-of-fit"]):
            assert notes[0].severity == "warning" and "noise explains" in notes[0].message
            assert change.size > 0.01 and not change.lo <= change.other <= change.hi
            noted += 1
    assert noted


def test_a_law_of_the_loss_is_judged_at_its_best_run():
    law = get_law("sigmoid")
    loss = np.linspace(0.3, 1.1, 40)
    noise = 0.002 * np.random.default_rng(2).standard_normal(40)
    # The better half falls behind its curve.
    bent = law.predict([0.6, -9.0, 0.6, 0.25], {"loss": loss}) - 0.8 * np.maximum(0.5 - loss, 0) + noise
    fit = fit_law(law, {"loss": loss}, bent, bootstrap=200)
    note = next(note for note in fit.notes if note.code == "lack-of-fit")
    assert note.severity == "error" and "the prediction for the best run" in note.message and "points" in note.message


@pytest.mark.slow
@pytest.mark.parametrize("name", ["power-offset", "chinchilla", "logistic"])
def test_right_laws_are_refused_in_no_more_than_one_case_in_a_hundred(name):
    rng, simulations = np.random.default_rng(3), 1000 if FULL else 120
    law = get_law(name, floor=0.25) if name == "logistic" else get_law(name)
    seen = []
    for _ in range(simulations):
        if name == "chinchilla":
            x = design(rng, 60)
            y = law.predict(RUNS, x) * np.exp(0.004 * rng.standard_t(5, 60))
        else:
            x = {"params": np.exp(rng.uniform(np.log(3e8), np.log(8e10), 24))}
            noise = 0.004 * rng.standard_normal(24)
            right = law.predict([0.5, 0.9, 22.5] if name == "logistic" else THETA, x)
            y = right + noise if name == "logistic" else right * np.exp(noise)
        seen.append(severity(fit_law(law, x, y, bootstrap=100)))
    silent, refused = (binomtest(seen.count(kind), simulations).proportion_ci(0.999) for kind in (None, "error"))
    assert silent.low <= 0.95 <= silent.high + 0.02, f"{seen.count(None)}/{simulations} silent"
    assert refused.low <= 0.01, f"{seen.count('error')}/{simulations} refused"
