"""The bootstrap's algebra: what is drawn, with which noise, and what is said of it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import statsmodels.api as sm

from densing.core import FitError
from densing.scores.fit import fit_law
from densing.scores.fit.bootstrap import _leverage, bootstrap_draws, perturb_responses, resample_cases, resampling
from densing.scores.fit.table import FitTable


def test_leverage_is_the_diagonal_of_the_hat_matrix() -> None:
    rows = np.random.default_rng(0).normal(size=(3, 12)) * np.array([[1e6], [1.0], [1e-6]])
    expected = sm.OLS(np.zeros(12), rows.T).fit().get_influence().hat_matrix_diag
    np.testing.assert_allclose(_leverage(rows), expected)
    # A parameter that is another, or that nothing depends on, adds no direction.
    np.testing.assert_allclose(_leverage(np.vstack([rows, 2 * rows[:1], 0 * rows[:1]])), expected)


@pytest.mark.parametrize("gaussian", [True, False])
def test_noise_has_the_residuals_size_and_the_width_of_students_t(gaussian: bool) -> None:
    setup = np.random.default_rng(1)
    rows, fitted, weights = setup.normal(size=(2, 9)), setup.normal(size=9), np.linspace(0.5, 3, 9)
    rows[:, -1] = [1e3, 0.0]  # almost all of its own fit: leverage is capped at .99
    target = fitted + 0.1 * setup.normal(size=9)
    rng = np.random.default_rng(5)
    drawn = perturb_responses(np.random.default_rng(5), fitted, target, weights, rows, 6, gaussian)
    residual = (target - fitted) * np.sqrt(weights)
    if gaussian:
        noise = rng.standard_normal((6, 9)) * np.sqrt(np.sum(residual**2) / 7)
    else:
        hat = sm.OLS(np.zeros(9), (rows * np.sqrt(weights)).T).fit().get_influence().hat_matrix_diag
        assert hat.max() > 0.99
        pool = residual / np.sqrt(1 - np.minimum(hat, 0.99))
        noise = (pool - pool.mean())[rng.integers(9, size=(6, 9))]
    noise = noise * np.sqrt(7 / rng.chisquare(7, size=(6, 1)))
    np.testing.assert_allclose(drawn.target, fitted + noise / np.sqrt(weights))
    assert drawn.weights is weights and drawn.redrawn == 0


def test_a_point_more_than_parameters_is_enough_for_noise_and_as_many_are_not() -> None:
    rng, rows = np.random.default_rng(0), np.random.default_rng(1).normal(size=(3, 4))
    drawn = perturb_responses(rng, np.zeros(4), np.ones(4), np.ones(4), rows, 2, gaussian=True)
    assert np.isfinite(drawn.target).all()
    with pytest.raises(FitError, match="3 points and 3 parameters leave no residual"):
        perturb_responses(rng, np.zeros(3), np.ones(3), np.ones(3), rows[:, :3], 2, gaussian=True)


def test_resamples_are_counts_times_weights_and_thin_ones_are_drawn_again() -> None:
    points, weights = np.array([0, 0, 1, 2, 3]), np.array([1.0, 2.0, 1.0, 1.0, 3.0])
    drawn = resample_cases(np.random.default_rng(3), np.zeros(5), weights, np.arange(5), points, 200, 3)
    counts = drawn.weights / weights
    assert (counts.sum(axis=1) == 5).all() and (counts == counts.round()).all()
    assert all(len(set(points[row > 0])) >= 3 for row in counts)
    # How many are thin: as many as in the first draws, and as in those that replace them.
    rng, thin, left = np.random.default_rng(3), 0, 200
    while left:
        picks = rng.integers(5, size=(left, 5))
        left = sum(len(set(points[row])) < 3 for row in picks)
        thin += left
    assert drawn.redrawn == thin > 0


def test_two_groups_can_be_resampled_and_groups_stay_together() -> None:
    labels = np.array([0, 0, 0, 1, 1])
    drawn = resample_cases(np.random.default_rng(0), np.zeros(5), np.ones(5), labels, np.arange(5), 50, 2)
    assert {tuple(row) for row in drawn.weights.tolist()} == {(2, 2, 2, 0, 0), (0, 0, 0, 2, 2), (1, 1, 1, 1, 1)}
    with pytest.raises(FitError, match="2 groups are too few: few resamples keep 6 distinct points"):
        resample_cases(np.random.default_rng(0), np.zeros(5), np.ones(5), labels, np.arange(5), 50, 6)


@pytest.mark.parametrize(("stopped", "severity"), [(0, None), (1, "info"), (2, "info"), (3, "warning")])
def test_refits_that_stop_early_are_counted(stopped: int, severity: str | None) -> None:
    size = np.geomspace(1e8, 1e11, 12)
    table = FitTable({"params": size}, 9 * size**-0.1, None, None)
    ends = np.arange(200) >= stopped
    fitter = SimpleNamespace(
        problem=SimpleNamespace(loss=SimpleNamespace(target=np.log)),
        refit=lambda scaled, target, weights, draws: (np.zeros((draws, 2)), ends),
        natural=lambda theta: theta + 1,
    )
    draws, notes = bootstrap_draws(fitter, np.zeros(2), table, np.random.default_rng(0), 200, "case")
    assert (draws == 1).all() and draws.shape == (200, 2)
    assert [note.severity for note in notes] == [severity] * (severity is not None)
    for note in notes:
        assert note.message.startswith(f"{stopped} of 200 bootstrap refits stopped before the tolerance")
        assert note.details == {"refits": 200, "not_converged": stopped}


def test_resamples_that_were_drawn_again_are_said() -> None:
    size = np.geomspace(1e8, 1e11, 5)
    fit = fit_law("power-offset", {"params": size}, 2 + 300 * size**-0.3, bootstrap=100)
    (note,) = (note for note in fit.notes if note.code == "bootstrap-redrawn")
    assert note.severity == "info" and note.message.startswith(f"{note.details['redrawn']} resamples had fewer")
    assert 0 < note.details["redrawn"] < 100


@pytest.mark.parametrize(
    ("sizes", "scheme", "clusters", "chosen", "code"),
    [
        ([1, 1, 2, 2, 3, 3, 4, 4, 5, 5], None, None, "cluster", "info"),
        ([1, 1, 2, 2, 3, 3, 4, 4], None, None, "case", "warning"),
        ([1, 1, 2, 2, 3, 3, 4, 4], "cluster", None, "cluster", "info"),
        ([1, 2, 3, 4, 5, 6], None, None, "case", None),
        ([1, 1, 2, 2, 3, 3, 4, 4, 5, 5], "residual", None, "residual", None),
        ([1, 2, 3], None, list("aab"), "cluster", None),
        ([1, 2, 3], "case", list("aab"), "case", None),
        ([[1, 1], [2, 2]], None, None, "case", None),
        (["x", "x"], None, None, "case", None),
    ],
)
def test_rows_that_share_a_size_decide_the_scheme(sizes, scheme, clusters, chosen, code) -> None:  # type: ignore[no-untyped-def]
    found, groups, notes = resampling({"params": sizes}, scheme, clusters)
    assert found == chosen and [note.severity for note in notes] == [code] * (code is not None)
    if clusters is not None:
        assert groups is clusters
    elif chosen == "cluster":
        assert groups == [str(size) for size in sizes]
    else:
        assert groups is None
    for note in notes:
        assert note.details == {"rows": len(sizes), "sizes": len(set(sizes))}
    assert resampling({"loss": [1.0]}, None, None) == ("case", None, [])


@pytest.mark.parametrize("scheme", ["residual", "parametric"])
def test_a_fit_perturbs_its_responses_as_the_scheme_says(scheme: str) -> None:
    size = np.geomspace(1e8, 1e11, 12)
    loss = 9 * size**-0.1 * np.exp(0.01 * np.cos(np.arange(12.0)) ** 3)
    fit = fit_law("power", {"params": size}, loss, loss="log", scheme=scheme, bootstrap=5, seed=3)
    design = np.column_stack([np.ones(12), np.log(size).mean() - np.log(size)])
    line, *_ = np.linalg.lstsq(design, np.log(loss), rcond=None)
    drawn = perturb_responses(
        np.random.default_rng(3), design @ line, np.log(loss), np.ones(12), design.T, 5, scheme == "parametric"
    )
    slopes = [np.linalg.lstsq(design, target, rcond=None)[0][1] for target in drawn.target]
    np.testing.assert_allclose(fit.draws[:, 1], slopes, rtol=1e-6)
