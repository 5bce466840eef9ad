"""Lack of fit, judged by what it moves: planted laws that are right, that are wrong by a hair, and that bend."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.stats import binomtest

from densing.scores.fit import LawFit, fit_law
from densing.scores.fit.diagnostics import lack_of_fit, lack_of_fit_table
from densing.scores.fit.misfit import Change, Misfit, _change, estimate_misfit, misfit_notes, reset_test
from densing.scores.fit.solver import Fitter, get_loss
from densing.scores.fit.table import FitTable
from densing.scores.laws import get_law
from tests.support.budget import FULL

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


def by_statsmodels(fit: LawFit, weights=None, labels=None):
    """F test of squares, cubes and products of the standardised log inputs beside the law's derivatives."""
    x, log = fit.x, fit.options["loss"] in ("log", "huber")
    curve = fit.predict(x)
    rows = fit.law.jacobian(fit.theta, x) / (curve[:, None] if log else 1.0)
    residual = np.log(fit.y / curve) if log else fit.y - curve
    logs = [(np.log(values) - np.log(values).mean()) / np.log(values).std() for values in x.values()]
    extra = [u**power for u in logs for power in (2, 3)] + ([logs[0] * logs[1]] if len(logs) == 2 else [])
    columns = np.column_stack([residual, rows / np.linalg.norm(rows, axis=0), *extra])
    weights = np.ones(len(columns)) if weights is None else weights
    if labels is not None:
        total = np.array([weights[labels == label].sum() for label in np.unique(labels)])
        means = [(weights[labels == label] @ columns[labels == label]) for label in np.unique(labels)]
        columns, weights = np.array(means) / total[:, None], total
    columns = columns * np.sqrt(weights)[:, None]
    k = rows.shape[1] + 1
    # What the law's own derivatives explain is taken from both.
    small, large = (sm.OLS(columns[:, 0], columns[:, 1:end]).fit() for end in (k, None))
    return large.compare_f_test(small)[1], np.sqrt(large.ssr / large.df_resid)


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["power", "chinchilla", "logistic"])
def test_the_test_is_that_of_a_regression_on_polynomials(name, weighted, clustered):
    rng = np.random.default_rng(7)
    law = get_law(name, floor=0.25) if name == "logistic" else get_law(name)
    x = design(rng, 48)
    x = {key: x[key] for key in law.inputs}
    theta = {"power": [12, 0.08], "chinchilla": RUNS, "logistic": [0.5, 0.9, 21.5]}[name]
    y = law.predict(theta, x)
    y = y + 0.01 * rng.standard_normal(48) if name == "logistic" else y * np.exp(0.01 * rng.standard_normal(48))
    weights, labels = np.linspace(0.5, 2, 48) if weighted else None, np.arange(48) // 3 if clustered else None
    loss = "raw" if name == "logistic" else "log"
    fit = fit_law(law, x, y, weights=weights, clusters=labels, loss=loss, bootstrap=0)
    fitter = Fitter.build(law, fit.x, get_loss(loss))
    table = FitTable(fit.x, fit.y, weights, None if labels is None else labels.astype(str))
    given = None if labels is None else np.unique(labels.astype(str), return_inverse=True)[1]
    p, noise = by_statsmodels(fit, weights, given)
    found = reset_test(fitter, fitter.scaled(fit.theta), table)
    assert found == (pytest.approx(p, rel=1e-4), pytest.approx(noise, rel=1e-6))
    assert lack_of_fit(fit).p == pytest.approx(p, rel=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
def test_what_an_end_moves_is_a_straight_lines_by_hand(weighted):
    """ln L = ln A - alpha ln N: regressions without either decade, and their textbook standard errors."""
    rng = np.random.default_rng(3)
    size = np.sort(np.exp(rng.uniform(np.log(1e8), np.log(1e11), 40)))
    loss = OFFSET.predict(THETA, {"params": size}) * np.exp(0.002 * rng.standard_normal(40))
    weights = np.linspace(0.5, 2, 40) if weighted else np.ones(40)
    fit = fit_law("power", {"params": size}, loss, weights=weights, loss="log", bootstrap=200)
    found = lack_of_fit(fit)
    noise = by_statsmodels(fit, weights)[1]
    design = np.column_stack([np.ones(40), -np.log(size)])
    far = np.array([1.0, -np.log(10 * size[-1])])
    drawn = np.log(get_law("power").predict(fit.draws, {"params": [10 * size[-1]]}))[:, 0]
    wanted = []
    for without, kept in (("smallest", size >= 10 * size[0]), ("largest", size <= size[-1] / 10)):
        root = np.sqrt(weights[kept])[:, None]
        part = design[kept] * root
        line = np.linalg.lstsq(part, np.log(loss[kept]) * root[:, 0], rcond=None)[0]
        spread = noise**2 * np.linalg.inv(part.T @ part)
        if without == "largest":
            ends = np.quantile(drawn, [0.025, 0.975])
            value = np.log(fit.predict({"params": [10 * size[-1]]})[0])
            wanted.append(("prediction", without, value, far @ line, *ends, np.sqrt(far @ spread @ far)))
        ends = np.quantile(fit.draws[:, 1], [0.025, 0.975])
        wanted.append(("alpha", without, fit.theta[1], line[1], *ends, np.sqrt(spread[1, 1])))
    for change, (quantity, without, *numbers) in zip(found.changes, wanted, strict=True):
        assert (change.quantity, change.without) == (quantity, without)
        given = [change.value, change.other, change.lo, change.hi, change.se]
        assert given == pytest.approx(numbers, rel=1e-5, abs=1e-9)
        assert change.size == abs(change.other - change.value) > 0
    assert len(found.changes) == 3 and found.prediction is found.changes[1]


def test_laws_of_two_counts_are_asked_a_decade_of_compute_on_and_laws_of_the_loss_at_their_best_run():
    rng = np.random.default_rng(5)
    x = design(rng, 60)
    y = CHINCHILLA.predict(RUNS, x) * np.exp(0.004 * rng.standard_normal(60))
    fit = fit_law(CHINCHILLA, x, y, bootstrap=0)
    compute = x["params"] * x["tokens"]
    top = {name: [values[np.argmax(compute)] * 10**0.5] for name, values in x.items()}
    kept = compute <= compute.max() / 10
    refit = fit_law(CHINCHILLA, {name: values[kept] for name, values in x.items()}, y[kept], bootstrap=0)
    found = lack_of_fit(fit)
    assert found.prediction.value == pytest.approx(np.log(fit.predict(top)[0]))
    assert found.prediction.other == pytest.approx(np.log(refit.predict(top)[0]), rel=1e-4)
    assert [(change.quantity, change.without) for change in found.changes] == [
        ("alpha", "smallest"), ("beta", "smallest"),
        ("prediction", "largest"), ("alpha", "largest"), ("beta", "largest"),
    ]  # fmt: skip
    law = get_law("sigmoid")
    loss = np.linspace(0.3, 1.1, 40)
    score = law.predict([0.6, -9.0, 0.6, 0.25], {"loss": loss}) + 0.01 * rng.standard_normal(40)
    fit = fit_law(law, {"loss": loss}, score, bootstrap=0)
    # The logarithm of the loss is halved: up to the geometric mean of its ends.
    kept = np.log(loss) >= (np.log(0.3) + np.log(1.1)) / 2
    refit = fit_law(law, {"loss": loss[kept]}, score[kept], bootstrap=0)
    change = lack_of_fit(fit).prediction
    assert change.value == pytest.approx(fit.predict({"loss": [0.3]})[0])
    assert change.other == pytest.approx(refit.predict({"loss": [0.3]})[0], abs=1e-4)


def test_sizes_of_misfit_are_only_estimated_where_asked_for():
    size = np.geomspace(1e8, 1e11, 20)
    fit = fit_law("power", {"params": size}, 9 * size**-0.1 * np.exp(0.01 * np.cos(np.arange(20))), bootstrap=0)
    fitter, table = Fitter.build(fit.law, fit.x, get_loss("huber")), FitTable(fit.x, fit.y, None, None)
    theta = fitter.scaled(fit.theta)
    p = reset_test(fitter, theta, table)[0]
    assert estimate_misfit(fitter, theta, table, fit.draws, below=p * 0.999) == Misfit(p)
    assert len(estimate_misfit(fitter, theta, table, fit.draws, below=p).changes) == 3
    # Runs of one size, and runs at one end: nothing to leave out.
    same = {"params": np.full(12, 1e9)}
    assert np.isnan(
        reset_test(Fitter.build(fit.law, same, get_loss("log")), theta, FitTable(same, fit.y[:12], None, None))
    ).all()


@pytest.mark.parametrize(
    ("value", "other", "lo", "hi", "se", "status"),
    [
        (1.0, 1.1, 0.9, 1.2, 0.01, "held"),  # inside the stated interval
        (1.0, 1.2, 0.9, 1.2, 0.01, "held"),
        (1.0, 1.05, 0.99, 1.01, 0.01, "held"),  # negligible
        (1.0, 0.95, 0.99, 1.01, 0.01, "held"),
        (1.0, 1.2, 0.99, 1.01, 0.11, "unclear"),  # less than two standard errors
        (1.0, 1.2, 0.99, 1.01, 0.09, "harmed"),
        (1.0, 0.8, 0.99, 1.01, 0.09, "harmed"),
        (1.0, 0.8, np.nan, np.nan, 0.11, "unclear"),
        (-4.0, -3.8, np.nan, np.nan, 0.09, "harmed"),
    ],
)
def test_a_change_is_held_unclear_or_harmed(value, other, lo, hi, se, status):
    change = _change("alpha", "largest", value, other, np.array([lo, hi]), se, 0.051)
    assert change.status == status and change.size == pytest.approx(abs(other - value))


def test_exponents_that_moved_are_named_once_at_the_end_that_moves_them_most():
    changes = [
        Change("prediction", "largest", 0.0, 1.0, np.nan, np.nan, 0.1, "harmed"),
        Change("alpha", "smallest", 0.3, 0.5, np.nan, np.nan, 0.01, "harmed"),
        Change("beta", "smallest", 0.3, 0.5, np.nan, np.nan, 0.01, "held"),
        Change("alpha", "largest", 0.3, 0.0, np.nan, np.nan, 0.01, "harmed"),
        Change("beta", "largest", 0.3, 0.2, np.nan, np.nan, 0.01, "harmed"),
    ]
    assert Misfit(0.001, tuple(changes)).moved == (changes[3], changes[4])
    assert Misfit(0.001, tuple(changes)).prediction is changes[0]


def note(p, *changes, law=OFFSET, loss="log"):
    found = misfit_notes(law, get_loss(loss), Misfit(p, changes))
    return [(each.severity, each.message) for each in found]


def test_notes_say_what_a_misfit_moves():
    head = "law power-offset: the residuals bend with params (lack of fit, p = 0.02)"
    far = Change("prediction", "largest", 1.0, 1.034, 0.98, 1.02, 0.01, "harmed")
    assert note(0.05, far) == [] and note(np.nan, far) == []
    remedy = "try a law with more freedom or a narrower range"
    assert note(0.02) == [
        ("warning", f"{head}; too few runs to leave some out and say how much that matters, {remedy}")
    ]
    shift = "+3.4 % without the largest decade of runs; stated interval -2.0 to +2.0 %"
    what = "the prediction a decade beyond the runs"
    assert note(0.02, far) == [("warning", f"{head}, and it matters: {what} changes by {shift}; {remedy}")]
    assert [severity for severity, _ in note(0.0099, far)] == ["error"]
    assert [severity for severity, _ in note(0.01, far)] == ["warning"]
    (severity, text), = note(0.02, replace(far, status="unclear"))  # fmt: skip
    assert severity == "warning" and text.endswith(
        f"too few runs to say how much that matters: {what} changes by {shift}, of which noise explains 2.0 %"
    )
    held = replace(far, status="held", lo=np.nan, hi=np.nan)
    plain = "+3.4 % without the largest decade of runs"
    assert note(0.02, held) == [("info", f"{head}, not shown to matter: {what} changes by {plain}")]
    alpha = Change("alpha", "smallest", 0.25, 0.3125, np.nan, np.nan, 0.01, "harmed")
    assert note(0.02, held, alpha) == [
        ("warning", f"{head}; {what} holds ({plain}), but alpha is 0.25 with all runs and 0.312 without the smallest "
         "decade of runs: quote the curve rather than that exponent")
    ]  # fmt: skip
    (_, text), = note(0.02, far, law=get_law("sigmoid"), loss="raw")  # fmt: skip
    assert "the prediction for the best run changes by +3.4 points" in text


def test_a_run_just_a_decade_below_the_largest_is_kept_and_inputs_that_do_not_vary_say_nothing():
    size = np.concatenate([np.geomspace(1e8, 1e10, 12), [1e11]])
    fit = fit_law(
        "power", {"params": size}, 9 * size**-0.1 * np.exp(0.01 * np.sin(np.arange(13.0))), loss="log", bootstrap=0
    )
    kept = size <= 1e10
    refit = fit_law("power", {"params": size[kept]}, fit.y[kept], loss="log", bootstrap=0)
    assert kept.sum() == 12 and lack_of_fit(fit).changes[-1].other == pytest.approx(refit.theta[1])
    # One token budget for all sizes: the test is that of the sizes alone.
    x = {"params": np.geomspace(1e8, 1e11, 20), "tokens": np.full(20, 1e11)}
    flat = Fitter.build(CHINCHILLA, x, get_loss("log"))
    y = CHINCHILLA.predict(RUNS, x) * np.exp(0.004 * np.cos(2.0 * np.arange(20)))
    p, noise = reset_test(flat, flat.scaled(np.array(RUNS)), FitTable(x, y, None, None))
    assert np.isfinite(p) and np.isfinite(noise)
