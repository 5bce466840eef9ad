"""The rivals are what their authors describe: checked against second solvers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import least_squares
from scipy.special import expit

from densing.core import Array, InputError
from densing.scores.joint.cells import toy_cells
from densing.scores.joint.rivals import fit_eci, fit_pca
from tests.support.joint_worlds import other_world


@pytest.mark.parametrize("item", ["benchmark", "test"])
def test_eci_form_reaches_the_minimum_that_scipy_finds(item: str) -> None:
    table = other_world("probit", seed=3, models=12, benchmarks=6).cells.table
    fit = fit_eci(table, item, penalty=0.1)
    model, item_code = table["model"].factorize(sort=True)[0], table[item].factorize(sort=True)[0]
    m, j = model.max() + 1, item_code.max() + 1
    score = np.clip(table["score"].to_numpy(), 1e-3, 1 - 1e-3)
    weight = np.sqrt(0.1 / (m + 2 * j))

    def residuals(theta: Array) -> Array:
        ability, difficulty, slope = theta[:m], theta[m : m + j], theta[m + j :]
        miss = expit(slope[item_code] * (ability[model] - difficulty[item_code])) - score
        return np.concatenate([miss, weight * theta])

    # Slopes as they are, numerical derivatives, another algorithm, another start.
    start = np.concatenate([np.zeros(m + j), np.ones(j)])
    bounds = np.concatenate([np.full(m + j, -np.inf), np.zeros(j)]), np.full(m + 2 * j, np.inf)
    oracle = least_squares(residuals, start, bounds=bounds, method="trf", xtol=1e-12, ftol=1e-12, gtol=1e-10)
    assert fit.cost == pytest.approx(oracle.cost, rel=1e-4)
    expected = expit(oracle.x[m + j :][item_code] * (oracle.x[:m][model] - oracle.x[m : m + j][item_code]))
    assert fit.predict(table) == pytest.approx(expected, abs=2e-3)


def test_known_items_stay_as_they_are_when_models_are_placed() -> None:
    table = toy_cells().table
    mine = table["model"].isin(["m3", "m8"])
    known = fit_eci(table[~mine])
    placed = fit_eci(table[mine], known=known)
    assert placed.slope.to_dict() == pytest.approx(known.slope.to_dict())
    assert placed.difficulty.to_dict() == pytest.approx(known.difficulty.to_dict())
    assert known.ability["m2"] < placed.ability["m3"] < known.ability["m4"]
    # The scale itself is free, so scores are compared, not abilities.
    assert placed.predict(table[mine]) == pytest.approx(fit_eci(table).predict(table[mine]), abs=0.02)


def test_a_rival_says_nothing_of_what_it_has_not_seen() -> None:
    table = toy_cells().table
    without = table[table["benchmark"].ne("b0") & table["model"].ne("m0")]
    unseen = (table["benchmark"].eq("b0") | table["model"].eq("m0")).to_numpy()
    for fit in (fit_eci(without), fit_pca(without, 2)):
        assert np.array_equal(np.isnan(fit.predict(table)), unseen)
    with pytest.raises(InputError, match="no cell of 0"):
        fit_eci(table.iloc[:0])
    with pytest.raises(InputError, match="no 9 components"):
        fit_pca(table, 9)


def test_all_scores_at_an_end_give_finite_predictions() -> None:
    table = toy_cells().table
    for value in (0.0, 1.0):
        flat = table.assign(score=value)
        assert fit_eci(flat).predict(flat) == pytest.approx(value, abs=0.05)
        assert fit_pca(flat, 1).predict(flat) == pytest.approx(value, abs=1e-6)


def test_pca_fills_the_gaps_of_a_matrix_of_its_rank() -> None:
    # A matrix of rank two about its means is known from two thirds of its cells.
    rng = np.random.default_rng(0)
    scores = 0.5 + 0.05 * rng.standard_normal((30, 2)) @ rng.standard_normal((2, 12))
    table = toy_cells(30, 12).table.drop_duplicates(["model", "benchmark"])
    row, column = (table[name].str[1:].astype(int).to_numpy() for name in ("model", "benchmark"))
    table = table.assign(score=scores[row, column])
    hidden = rng.random(len(table)) < 0.25
    fit = fit_pca(table[~hidden], 2)
    miss = fit.predict(table[hidden]) - table["score"].to_numpy()[hidden]
    spread = table["score"][hidden].std()
    assert np.abs(miss).mean() < 0.1 * spread
    # The same cells placed afterwards on the components come out the same.
    placed = fit_pca(table[~hidden], 2, known=fit)
    assert placed.predict(table[hidden]) == pytest.approx(fit.predict(table[hidden]), abs=0.01)
