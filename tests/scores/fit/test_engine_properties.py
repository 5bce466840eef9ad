"""What must hold for every fit: units, order of rows, weights, seeds, refusals, and the bootstrap's own algebra."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import least_squares

from densing.core.errors import FitError, InputError, UnknownNameError
from densing.scores.fit import GUARD, LawFit, compose, engine, fit_law, fit_two_step
from densing.scores.fit.diagnostics import lack_of_fit
from densing.scores.fit.table import FitTable
from densing.scores.laws import get_law
from tests.support.law_cases import LOSS_CASES, SCORE_CASES, TWO_STEP_CASES, Case, noisy

SMOOTH = [case for case in LOSS_CASES + SCORE_CASES if case.name != "broken"]
few = settings(max_examples=8)
CHINCHILLA = Case("chinchilla", (1.7, 400.0, 500.0, 0.34, 0.30))


@few
@given(factor=st.floats(1e-6, 1e6), seed=st.integers(0, 50))
def test_rescaling_n_by_c_multiplies_a_by_c_to_the_alpha(factor, seed):
    law, x, y = noisy(CHINCHILLA, seed, 0.004)
    before = fit_law(law, x, y, bootstrap=0).params
    after = fit_law(law, {**x, "params": factor * x["params"]}, y, bootstrap=0).params
    assert_allclose(after["A"], before["A"] * factor ** before["alpha"], rtol=1e-5)
    assert_allclose(after[["E", "B", "alpha", "beta"]], before[["E", "B", "alpha", "beta"]], rtol=1e-5)


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_order_of_rows_does_not_matter(case):
    law, x, y = noisy(case, 4, 0.004)
    order = np.random.default_rng(0).permutation(y.size)
    again = fit_law(law, {name: values[order] for name, values in x.items()}, y[order], bootstrap=0)
    assert_allclose(again.theta, fit_law(law, x, y, bootstrap=0).theta, rtol=1e-6)


@pytest.mark.parametrize("case", SMOOTH, ids=str)
@pytest.mark.parametrize("robust", [False, True])
def test_weights_are_repetitions(case, robust):
    law, x, y = noisy(case, 6, 0.004)
    loss = {("loss", False): "log", ("loss", True): "huber", ("score", False): "raw", ("score", True): "huber-raw"}
    count = np.random.default_rng(1).integers(1, 4, y.size)
    options = {"loss": loss[law.output, robust], "bootstrap": 0}
    weighted = fit_law(law, x, y, weights=count, **options)
    repeated = fit_law(law, {name: np.repeat(v, count) for name, v in x.items()}, np.repeat(y, count), **options)
    assert_allclose(weighted.objective, repeated.objective, rtol=1e-9)
    assert_allclose(weighted.theta, repeated.theta, rtol=1e-5)


@pytest.mark.parametrize("loss", ["huber", "log", "lad"])
def test_points_added_on_the_curve_do_not_move_it(loss):
    law, x, y = noisy(CHINCHILLA, 7, 0.004)
    fit = fit_law(law, x, y, loss=loss, bootstrap=0)
    extra = {"params": np.geomspace(1e8, 1e10, 20), "tokens": np.geomspace(1e10, 1e12, 20)}
    joined = {name: np.concatenate([x[name], extra[name]]) for name in x}
    more = fit_law(law, joined, np.concatenate([y, fit.predict(extra)]), loss=loss, bootstrap=0)
    assert_allclose(more.theta, fit.theta, rtol=1e-5)


def test_least_squares_is_huber_with_a_large_delta():
    law, x, y = noisy(CHINCHILLA, 9, 0.01)
    huber = fit_law(law, x, y, loss="huber", delta=10.0, bootstrap=0)
    assert_allclose(huber.theta, fit_law(law, x, y, loss="log", bootstrap=0).theta, rtol=1e-7)


def test_case_bootstrap_refits_what_it_says():
    """Each draw is scipy's least-squares fit of the same resampled runs."""
    law = get_law("logistic", floor=0.25)
    x, y = {"params": np.geomspace(1e8, 1e11, 25)}, None
    rng = np.random.default_rng(3)
    y = law.predict([0.55, 0.9, 22.5], x) + 0.01 * rng.standard_normal(25)
    fit = fit_law(law, x, y, bootstrap=20, seed=11)
    picks = np.random.default_rng(11).integers(25, size=(20, 25))
    for draw, rows in zip(fit.draws, picks, strict=True):
        theirs = least_squares(
            lambda theta, rows=rows: (law.predict(theta, x) - y)[rows],
            fit.theta, x_scale=[0.1, 0.1, 1.0], xtol=1e-15, ftol=1e-15, gtol=1e-15,
        )  # fmt: skip
        assert_allclose(draw, theirs.x, rtol=2e-5)


def test_every_bootstrap_draw_is_an_optimum_of_its_own():
    """A fresh fit of the resampled rows, with its own start grid, must not do better."""
    law, x, y = noisy(CHINCHILLA, 12, 0.006)
    fit = fit_law(law, x, y, bootstrap=30, seed=5)
    picks = np.random.default_rng(5).integers(60, size=(30, 60))
    for draw, rows in zip(fit.draws, picks, strict=True):
        fresh = fit_law(law, {name: values[rows] for name, values in x.items()}, y[rows], bootstrap=0)
        residual = (np.log(law.predict(draw, x)) - np.log(y))[rows]
        psi = np.clip(residual, -1e-3, 1e-3)
        assert np.sum(psi * (residual - psi / 2)) <= fresh.objective * (1 + 1e-8)


@pytest.mark.parametrize("scheme", ["case", "cluster", "residual", "parametric"])
def test_seed_decides_the_draws(scheme):
    law, x, y = noisy(CHINCHILLA, 13, 0.004)
    options = {"scheme": scheme, "bootstrap": 20, "clusters": np.arange(60) % 12}
    first = fit_law(law, x, y, seed=1, **options)
    assert_array_equal(first.draws, fit_law(law, x, y, seed=1, **options).draws)
    assert not np.array_equal(first.draws, fit_law(law, x, y, seed=2, **options).draws)


def test_cluster_bootstrap_keeps_clusters_together_and_is_wider_when_they_share_noise():
    law = get_law("power")
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(15), 8)
    x = {"params": np.exp(rng.uniform(17, 26, 15))[groups]}
    y = 12 * x["params"] ** -0.08 * np.exp(0.05 * rng.standard_normal(15))[groups]
    y = y * np.exp(0.002 * rng.standard_normal(120))
    by_case = fit_law(law, x, y, loss="log", bootstrap=400, scheme="case")
    by_cluster = fit_law(law, x, y, loss="log", bootstrap=400, scheme="cluster", clusters=groups)
    assert by_cluster.draws[:, 1].std() > 2 * by_case.draws[:, 1].std()
    repeated = fit_law(law, x, y, loss="log", bootstrap=50, scheme="cluster", clusters=1000 + np.arange(120), seed=4)
    assert_allclose(repeated.draws, fit_law(law, x, y, loss="log", bootstrap=50, scheme="case", seed=4).draws)


def test_residual_spread_matches_the_textbook_for_a_straight_line():
    """ln L = ln A - alpha ln N is linear: draws must have the t-distribution's spread, sd s sqrt(nu / (nu - 2))."""
    rng = np.random.default_rng(6)
    size = np.geomspace(1e8, 1e11, 12)
    loss = 12 * size**-0.08 * np.exp(0.01 * rng.standard_normal(12))
    design = np.column_stack([np.ones(12), -np.log(size)])
    solution, rss, *_ = np.linalg.lstsq(design, np.log(loss), rcond=None)
    classical = np.sqrt(rss[0] / 10 * np.linalg.inv(design.T @ design)[1, 1] * 10 / 8)
    for scheme in ("parametric", "residual"):
        fit = fit_law("power", {"params": size}, loss, loss="log", scheme=scheme, bootstrap=20000)
        assert_allclose(fit.theta[1], solution[1], rtol=1e-9)
        assert_allclose(fit.draws[:, 1].std(), classical, rtol=0.04 if scheme == "parametric" else 0.12)


def test_ceiling_at_its_bound_is_noted():
    law = get_law("logistic", floor=0.25)
    x = {"params": np.geomspace(1e8, 1e11, 12)}
    y = 0.25 + 0.01 * (x["params"] / 1e8) ** 0.5  # growth that never bends towards a ceiling
    fit = fit_law(law, x, y, bootstrap=0)
    assert fit.status == "bound_hit"
    assert fit.params["c"] == 0.75
    # A curve held back by its bound bends away from such data, too.
    assert [note.code for note in fit.notes] == ["bound-hit", "lack-of-fit"]
    assert "c = 0.75" in fit.notes[0].message


def test_irreducible_loss_at_zero_is_noted():
    size = np.geomspace(1e8, 1e11, 12)
    loss = 12 * size**-0.08 * np.exp(-0.01 * (np.log(size) - 21) ** 2)  # bends downwards: wants E below 0
    fit = fit_law("power-offset", {"params": size}, loss, loss="log", bootstrap=0)
    assert fit.params["E"] == 0.0
    assert fit.status == "bound_hit"
    pure = fit_law("power", {"params": size}, loss, loss="log", bootstrap=0)
    assert_allclose(fit.theta[1:], pure.theta, rtol=1e-6)


def test_inversion_of_a_fit_has_statuses_and_one_sided_ends():
    law = get_law("logistic", floor=0.25)
    x = {"params": np.geomspace(5e8, 7e10, 9)}
    y = law.predict([0.5, 0.9, 22.5], x) + 0.004 * np.random.default_rng(1).standard_normal(9)
    fit = fit_law(law, x, y, scheme="parametric", bootstrap=300)
    table = fit.invert([0.2, 0.27, 0.55, 0.745, 0.99])
    assert table["status"].tolist() == ["below_floor", "extrapolated", "ok", "extrapolated", "above_ceiling"]
    assert table["estimate"].iloc[[0, 4]].tolist() == [0.0, np.inf]
    assert (table["lo"] <= table["estimate"]).all()
    assert (table["estimate"] <= table["hi"]).all()
    assert not table.isna().any(axis=None)
    inside = table["status"] == "ok"
    assert table["estimate"][inside].between(5e8 / GUARD, 7e10 * GUARD).all()
    assert fit.invert_draws([0.5, 0.6]).shape == (300, 2)
    assert list(fit.band(x).columns) == ["lo", "mid", "hi"]


def test_two_step_pairs_runs_but_not_noise():
    case = TWO_STEP_CASES[0]
    law, x = case.law, case.table(30, 5)
    rng = np.random.default_rng(8)
    first, second = law.split(case.theta)
    loss = law.loss_law.predict(first, x) * np.exp(0.005 * rng.standard_normal(30))
    score = law.score_law.predict(second, {"loss": loss}) + 0.005 * rng.standard_normal(30)
    fit = fit_law(law, {**x, "loss": loss}, score, bootstrap=40, seed=3)
    step = fit_law(law.loss_law, x, loss, bootstrap=40, seed=3)
    assert_array_equal(law.split(fit.draws)[0], step.draws)
    noise = {"scheme": "parametric", "bootstrap": 40}
    fit_two_step(law, {**x, "loss": loss}, score, seed=3, **noise)
    same = (
        fit_law(law.loss_law, x, loss, seed=3, **noise),
        fit_law(law.score_law, {"loss": loss}, score, seed=3, **noise),
    )
    with pytest.raises(FitError, match="another seed"):
        compose(law, *same)
    with pytest.raises(FitError, match="fit both with one bootstrap="):
        compose(law, step, fit_law(law.score_law, {"loss": loss}, score, bootstrap=39))
    with pytest.raises(FitError, match="wanted"):
        compose(law, step, step)
    with pytest.raises(InputError, match="needs loss beside params and tokens"):
        fit_law(law, x, score)


BAD_TABLES = [
    ({"x": {"size": [1.0]}}, InputError, "needs the input 'params'"),
    ({"y": [4.0, 3.0, np.nan, 2.0]}, InputError, "row 2, loss: nan is not finite"),
    ({"y": [4.0, 3.0, -1.0, 2.0]}, InputError, "row 2, loss: -1 has no logarithm"),
    ({"y": [4.0, 3.0, "x", 2.0]}, InputError, "loss: not numbers"),
    ({"y": [4.0, 3.0, 2.0]}, InputError, "make them equal"),
    ({"y": [[4.0, 3.0, 2.5, 2.0]]}, InputError, "give one value per run"),
    ({"x": {"params": [1e8, 1e9, 0, 1e11]}}, InputError, "row 2, params: 0 must be positive"),
    ({"weights": [1, 1, 0, 1]}, InputError, "row 2, weights: 0 must be positive"),
    ({"x": {"params": [1e8]}, "y": [4.0]}, FitError, "2 parameters and the table 1 points"),
    ({"scheme": "cluster"}, InputError, "needs clusters"),
    ({"scheme": "jackknife"}, UnknownNameError, "unknown bootstrap scheme 'jackknife'"),
    ({"loss": "hubert"}, UnknownNameError, "did you mean 'huber'"),
    ({"delta": 0.0}, InputError, "delta 0.0 must be positive"),
    ({"bootstrap": -1}, InputError, "must be a whole number"),
    ({"seed": -1}, InputError, "seed -1 must be a whole number"),
    ({"law": "chinchila"}, UnknownNameError, "did you mean 'chinchilla'"),
    ({"law": "logistic", "y": [0.3, 0.4, 45, 0.6]}, InputError, "row 2, score: 45 is not between 0 and 1"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD_TABLES, ids=lambda value: str(value)[:40])
def test_bad_tables_are_refused_with_a_sentence(change, error, message):
    good = {"law": "power", "x": {"params": [1e8, 1e9, 1e10, 1e11]}, "y": [4.0, 3.2, 2.5, 2.0]}
    with pytest.raises(error, match=message):
        fit_law(**{**good, **change})


def test_as_many_points_as_parameters_give_a_curve_but_no_interval():
    x, y = {"params": [1e8, 1e10]}, [4.0, 2.5]
    fit = fit_law("power", x, y, bootstrap=0)
    assert [note.code for note in fit.notes] == ["no-freedom"]
    assert fit.intervals()[["lo", "hi"]].isna().all(axis=None)
    with pytest.raises(FitError, match="leave no residual"):
        fit_law("power", x, y, scheme="parametric")


def test_results_are_read_only_and_readable():
    law, x, y = noisy(CHINCHILLA, 14, 0.004)
    fit = fit_law(law, x, y, bootstrap=50, meta={"family": "<b>toy</b>"})
    with pytest.raises(ValueError, match="read-only"):
        fit.theta[0] = 0.0
    assert "E + A N^-alpha" in fit.summary()
    assert "delta 0.001" in fit.summary()
    assert "<table" in fit._repr_html_()
    assert isinstance(LawFit.from_json(fit.to_json()), LawFit)


def codes(fit):
    return {note.code: note.severity for note in fit.notes}


def test_a_law_of_the_wrong_form_is_an_error_that_names_its_input():
    size = np.geomspace(1e8, 1e11, 20)
    offset = get_law("power-offset").predict([1.5, 40.0, 0.2], {"params": size})
    loss = offset * np.exp(0.003 * np.random.default_rng(0).standard_normal(20))
    wrong = fit_law("power", {"params": size}, loss, bootstrap=200)
    assert codes(wrong) == {"lack-of-fit": "error"} and "bend with params" in wrong.notes[0].message
    # One right law in twenty is noted, and at most one in a hundred refused.
    assert "error" not in codes(fit_law("power-offset", {"params": size}, loss, bootstrap=200)).values()


def test_lack_of_fit_is_the_textbooks_f_test_for_a_straight_line():
    """ln L = ln A - alpha ln N against a cubic: statsmodels' F test of the two extra terms."""
    rng = np.random.default_rng(4)
    size = np.exp(rng.uniform(18, 25, 30))
    loss = 12 * size**-0.08 * np.exp(0.01 * rng.standard_normal(30))
    fit = fit_law("power", {"params": size}, loss, loss="log", bootstrap=0)
    u = np.log(size)
    line, cubic = (sm.OLS(np.log(loss), np.vander(u - u.mean(), k)).fit() for k in (2, 4))
    assert_allclose(lack_of_fit(fit).p, cubic.compare_f_test(line)[1], rtol=1e-6)


def test_lack_of_fit_is_not_judged_where_too_few_points_could_tell():
    size = np.geomspace(1e8, 1e11, 4)
    assert np.isnan(lack_of_fit(fit_law("power-offset", {"params": size}, 1 + 1e3 / size**0.4, bootstrap=0)).p)
    exact = fit_law("power", {"params": np.geomspace(1e8, 1e11, 12)}, 9 * np.geomspace(1e8, 1e11, 12) ** -0.1)
    assert np.isnan(lack_of_fit(exact).p) and codes(exact) == {}


def test_rows_that_share_a_size_are_resampled_by_size_and_it_says_so():
    size = np.repeat(np.geomspace(1e8, 1e11, 8), 3)
    loss = 12 * size**-0.08 * np.exp(0.01 * np.random.default_rng(0).standard_normal(24))
    usual = fit_law("power", {"params": size}, loss, bootstrap=50)
    assert usual.options["scheme"] == "cluster" and codes(usual) == {"rows-share-a-size": "info"}
    named = fit_law("power", {"params": size}, loss, bootstrap=50, scheme="cluster", clusters=size)
    assert_allclose(named.draws, usual.draws)
    assert fit_law("power", {"params": size}, loss, bootstrap=9, scheme="case").options["scheme"] == "case"
    assert fit_law("power", {"params": size}, loss, bootstrap=9, clusters=np.arange(24) // 6).options["clusters"]
    few = fit_law("power", {"params": size[:9]}, loss[:9], bootstrap=50)
    assert few.options["scheme"] == "case" and codes(few)["rows-share-a-size"] == "warning"


@pytest.mark.parametrize("loss", ["log", "huber", "lad", "raw"])
@pytest.mark.parametrize(
    "theta", [[1.5, 40, 0.15, 0.3, 1e9, 0.5], [1, 20, 0.3, 0.1, 3e9, 0.3], [0.5, 10, 0.05, 0.4, 1e10, 1]]
)
def test_the_broken_law_converges_on_its_own_points(theta, loss):
    for count in (8, 12, 30):
        x = {"params": np.geomspace(1e7, 1e12, count)}
        y = get_law("broken").predict(theta, x)
        fit = fit_law("broken", x, y, loss=loss, bootstrap=0)
        assert fit.status == "converged" and np.abs(fit.residuals).max() < 1e-8


def two_steps(count=30, **options):
    """The steps of a chain, fitted on the same runs."""
    case = TWO_STEP_CASES[0]
    law, x = case.law, case.table(count, 5)
    rng = np.random.default_rng(8)
    first, second = law.split(case.theta)
    loss = law.loss_law.predict(first, x) * np.exp(0.005 * rng.standard_normal(count))
    score = law.score_law.predict(second, {"loss": loss}) + 0.005 * rng.standard_normal(count)
    steps = (
        fit_law(law.loss_law, x, loss, **options),
        fit_law(law.score_law, {"loss": loss}, score, **{**options, "seed": options.get("seed", 0) + 1}),
    )
    return law, x, loss, score, steps


def test_a_chain_has_the_draws_the_ranges_and_the_worse_status_of_its_steps():
    law, x, loss, score, (first, second) = two_steps(bootstrap=4, scheme="parametric", meta={"family": "toy"})
    joined = compose(law, first, second)
    assert_array_equal(joined.theta, [*first.theta, *second.theta])
    assert_array_equal(joined.draws, np.hstack([first.draws, second.draws]))
    residual = score - law.predict(joined.theta, x)
    assert_allclose(joined.residuals, residual)
    assert joined.objective == pytest.approx(np.sum(residual**2) / 2)
    assert joined.domain == {**first.domain, "loss": (loss.min(), loss.max())}
    assert joined.options["loss"] == "raw" and joined.options["delta"] is None
    ranges = [step["loss_range"] for step in joined.options["steps"]]
    assert ranges == [[loss.min(), loss.max()]] * 2
    assert joined.meta == {"family": "toy"} and compose(law, first, second, meta={"a": 1}).meta == {"a": 1}
    others = np.linspace(0.3, 0.4, 30)
    assert_allclose(compose(law, first, second, scores=others).residuals, others - law.predict(joined.theta, x))
    for statuses in (("bound_hit", "max_iter"), ("max_iter", "converged")):
        pair = (replace(step, status=status) for step, status in zip((first, second), statuses, strict=True))
        assert compose(law, *pair).status == "max_iter"
    with pytest.raises(FitError, match="29 scores for the 30 runs"):
        compose(law, first, second, scores=others[1:])
    # Equal seeds are told only where both steps simulate noise.
    same = [replace(step, options={**step.options, "seed": 3}) for step in (first, second)]
    for schemes in (("parametric", "parametric"), ("residual", "case"), ("case", "residual")):
        pair = [
            replace(step, options={**step.options, "scheme": name}) for step, name in zip(same, schemes, strict=True)
        ]
        with pytest.raises(FitError, match="with one seed"):
            compose(law, *pair)
    none = [replace(step, draws=step.draws[:0]) for step in same]
    assert len(compose(law, *none).draws) == 0


def test_noise_of_the_second_step_has_a_seed_of_its_own_and_resampled_runs_are_the_same():
    law, x, loss, score, _ = two_steps(bootstrap=0)
    for scheme, seed in (("parametric", 4), ("case", 3)):
        fit = fit_law(law, {**x, "loss": loss}, score, bootstrap=5, scheme=scheme, seed=3)
        second = fit_law(law.score_law, {"loss": loss}, score, bootstrap=5, scheme=scheme, seed=seed)
        assert_array_equal(law.split(fit.draws)[1], second.draws)


def test_defaults_are_as_documented():
    law, x, y = noisy(CHINCHILLA, 3, 0.004)
    fit = fit_law(law, x, y, bootstrap=1)
    assert fit.options == {"loss": "huber", "delta": 1e-3, "scheme": "case", "n_bootstrap": 1, "seed": 0,
                           "weights": None, "clusters": None}  # fmt: skip
    assert fit.domain == {name: (values.min(), values.max()) for name, values in x.items()}
    assert_allclose(fit.residuals, np.log(y) - np.log(fit.predict(x)))
    size = np.geomspace(1e8, 1e11, 9)
    score = 0.25 + 0.5 / (1 + (4e9 / size) ** 0.9)
    logistic = fit_law(get_law("logistic", floor=0.25), {"params": size}, score, bootstrap=0, seed=np.int64(2))
    assert logistic.options["loss"] == "raw" and logistic.options["delta"] is None and logistic.options["seed"] == 2
    # A thousand draws, of which every refit of exact points is the curve itself.
    assert fit_law("power", {"params": size}, 9 * size**-0.1).draws.shape == (1000, 2)


def test_points_as_many_as_parameters_and_one_more():
    size = np.geomspace(1e8, 1e11, 4)
    loss = 1.5 + 40 * size**-0.2
    assert "no-freedom" not in codes(fit_law("power-offset", {"params": size}, loss, bootstrap=0))
    three = fit_law("power-offset", {"params": size[:3]}, loss[:3], bootstrap=0)
    (note,) = (note for note in three.notes if note.code == "no-freedom")
    assert note.message == "3 points for 3 parameters: the curve meets them and nothing checks it"


def test_a_solver_that_stops_early_is_an_error_of_the_fit(monkeypatch):
    point = engine.Fitter.point
    monkeypatch.setattr(engine.Fitter, "point", lambda fitter, target, weights: replace(
        point(fitter, target, weights), converged=np.array([False])))  # fmt: skip
    size = np.geomspace(1e8, 1e11, 9)
    fit = fit_law("power", {"params": size}, 9 * size**-0.1, bootstrap=0)
    assert fit.status == "max_iter" and codes(fit) == {"not-converged": "error"}


def test_a_value_on_its_bound_is_named_with_its_value():
    size = np.geomspace(1e8, 1e11, 12)
    loss = 12 * size**-0.08 * np.exp(-0.01 * (np.log(size) - 21) ** 2)
    note = fit_law("power-offset", {"params": size}, loss, loss="log", bootstrap=0).notes[0]
    assert note.details == {"E": 0.0} and note.severity == "warning"
    assert note.message == "law power-offset: E = 0 lies on its bound; the data do not determine it"


@pytest.mark.parametrize("loss", ["log", "raw"])
def test_the_limits_of_what_a_score_may_be(loss):
    law = get_law("logistic", floor=0.0)
    size = {"params": np.geomspace(1e8, 1e11, 5)}
    ends = [0.0, 0.3, 0.5, 0.9, 1.0]
    if loss == "raw":
        assert fit_law(law, size, ends, loss=loss, bootstrap=0).y.tolist() == ends
    else:
        with pytest.raises(InputError, match="row 0, score: 0 has no logarithm"):
            fit_law(law, size, ends, loss=loss, bootstrap=0)


def test_clusters_and_points_are_numbered():
    table = FitTable.build(get_law("power"), {"params": [3e8, 1e8, 3e8]}, [2.0, 3.0, 2.1], None, ["b", "a", "b"], True)
    assert (
        table.points.tolist() == [1, 0, 1] and table.labels.tolist() == [1, 0, 1] and table.cases.tolist() == [1, 1, 1]
    )
    assert replace(table, clusters=None).labels.tolist() == [0, 1, 2]
    two = FitTable({"params": np.array([1.0, 1.0, 2.0]), "tokens": np.array([1.0, 2.0, 1.0])}, np.ones(3), None, None)
    assert len(set(two.points)) == 3
