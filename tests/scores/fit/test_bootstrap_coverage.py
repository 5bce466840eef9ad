"""Do the intervals hold what they promise? By simulation; speed is measured in benchmarks/fit.py."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from densing.scores.fit import fit_law
from densing.scores.fit.diagnostics import lack_of_fit
from densing.scores.laws import get_law
from tests.support.budget import FULL
from tests.support.law_cases import Case

SIMULATIONS = 2000 if FULL else 60
LOGISTIC = get_law("logistic", floor=0.25)
TRUTH = np.array([0.6, 0.8, np.log(6e9)])


def covered(scheme: str, models: int, score: float, simulations: int) -> tuple[int, int]:
    """Count 95 % intervals of an inverted score that hold the truth, for a family of a few models."""
    size = np.geomspace(0.5e9, 110e9, models)
    curve = LOGISTIC.predict(TRUTH, {"params": size})
    truth = float(LOGISTIC.invert(TRUTH, score)[0])
    rng, hits = np.random.default_rng(models), 0
    for seed in range(simulations):
        y = np.clip(curve + 0.012 * rng.standard_normal(models), 0, 1)
        fit = fit_law(LOGISTIC, {"params": size}, y, scheme=scheme, bootstrap=400, seed=seed)
        row = fit.invert(score).iloc[0]
        hits += row["lo"] <= truth <= row["hi"]
    return hits, simulations


def allows(hits: int, simulations: int, low: float = 0.93, high: float = 0.97) -> bool:
    """Whether true coverage inside [low, high] is compatible with the count (exact 99.9 % interval)."""
    interval = binomtest(hits, simulations).proportion_ci(0.999)
    return bool(interval.low <= high and interval.high >= low)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["parametric", "residual"])
@pytest.mark.parametrize(("models", "score"), [(7, 0.55), (7, 0.40), (7, 0.70), (5, 0.55)])
def test_small_families_invert_with_honest_intervals(scheme, models, score):
    hits, simulations = covered(scheme, models, score, SIMULATIONS)
    assert allows(hits, simulations), f"{scheme}, {models} models, score {score}: {hits}/{simulations}"


@pytest.mark.slow
def test_case_resampling_of_a_small_family_is_too_narrow_and_we_can_tell():
    """The reason why small families default to other schemes; also shows that the check above can fail."""
    hits, simulations = covered("case", 7, 0.55, SIMULATIONS if FULL else 300)
    assert hits / simulations < 0.93


@pytest.mark.slow
def test_case_bootstrap_covers_exponents_of_a_large_table():
    case = Case("chinchilla", (1.7, 400.0, 500.0, 0.34, 0.30))
    rng, hits, simulations = np.random.default_rng(0), 0, SIMULATIONS
    for seed in range(simulations):
        x = case.table(120, seed)
        y = case.law.predict(case.theta, x) * np.exp(0.005 * rng.standard_normal(120))
        row = fit_law(case.law, x, y, bootstrap=300, seed=seed).intervals().iloc[3]
        hits += row["lo"] <= 0.34 <= row["hi"]
    assert allows(hits, simulations, 0.91, 0.97), f"{hits}/{simulations}"


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "runs", "shared"), [(8, 5, 0.8), (24, 4, 0.8), (12, 5, 0.0)])
def test_rows_that_share_a_size_have_honest_intervals_by_default(sizes, runs, shared):
    """Residuals of one size share this part of their variance; single cases would cover 60 to 70 %."""
    law, theta = get_law("power-offset"), [1.5, 40.0, 0.2]
    size = np.repeat(np.geomspace(1e8, 1e11, sizes), runs)
    rng, hits, narrow, simulations = np.random.default_rng(sizes), 0, 0, 1000 if FULL else 40
    for seed in range(simulations):
        common = np.repeat(rng.standard_normal(sizes), runs)
        noise = np.sqrt(shared) * common + np.sqrt(1 - shared) * rng.standard_normal(sizes * runs)
        loss = law.predict(theta, {"params": size}) * np.exp(0.005 * noise)
        by_size = fit_law(law, {"params": size}, loss, loss="log", bootstrap=200, seed=seed).intervals().iloc[2]
        hits += by_size["lo"] <= theta[2] <= by_size["hi"]
        if shared:
            cases = fit_law(law, {"params": size}, loss, loss="log", bootstrap=200, seed=seed, scheme="case")
            row = cases.intervals().iloc[2]
            narrow += row["lo"] <= theta[2] <= row["hi"]
    # Few clusters make the interval wide rather than narrow.
    assert allows(hits, simulations, 0.92, 0.99), f"{hits}/{simulations}"
    assert not shared or narrow / simulations < 0.85


@pytest.mark.slow
@pytest.mark.parametrize("law", ["power", "power-offset"])
def test_the_lack_of_fit_test_rejects_right_laws_as_often_as_it_says(law):
    theta, rng, simulations = (
        ([10.0, 0.05], [1.5, 40.0, 0.2])[law == "power-offset"],
        np.random.default_rng(1),
        1000 if FULL else 150,
    )
    values = []
    for _ in range(simulations):
        x = {"params": np.exp(rng.uniform(np.log(1e8), np.log(1e11), 12))}
        loss = get_law(law).predict(theta, x) * np.exp(0.005 * rng.standard_t(5, 12))
        values.append(lack_of_fit(fit_law(law, x, loss, bootstrap=0)).p)
    assert allows(int(np.sum(np.array(values) >= 0.05)), simulations, 0.94, 0.96)
