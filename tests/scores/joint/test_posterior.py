"""The log density of the joint model is the one that its docstring writes down, and its gradient is that density's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import invgamma, kstest, multivariate_normal, norm, t, truncnorm

from densing.core import Array
from densing.scores.joint import posterior as joint
from densing.scores.joint.cells import toy_cells
from densing.scores.joint.posterior import MEANS, SCALES, Posterior, index_cells, student
from tests.support.joint_worlds import few_cells


def somewhere(model: Posterior, seed: int) -> Array:
    """A point that nothing has fitted."""
    return 0.5 * np.random.default_rng(seed).standard_normal(model.size)


def by_hand(model: Posterior, vector: Array) -> float:
    """Return the log density from the docstring, with dense covariances where the class integrates in closed form."""
    index, q = model.index, model.split(vector)
    own, spread = np.exp(q["own"]), np.exp(q["evaluator"][0])
    effect = np.where(model.alone, spread * q["effect"], q["effect"])
    floor = index.chance + model.reach * np.tanh(q["floor"])
    ceiling = model.lowest + (1 - model.lowest) * (1 + np.tanh(q["ceiling"])) / 2
    test = index.test
    z = q["ease"][test] + np.exp(q["loading"])[test] * q["ability"][model.slot] + effect[index.pair]
    for pull, factor in zip(model.pulls, model.factors, strict=True):
        z = z + q[pull][test] * q[factor][index.model]
    width = (ceiling - floor)[test]
    slope = width * expit(z) * expit(-z)
    scale = np.sqrt(index.se**2 + np.exp(q["scatter"][test] + q["model_scatter"][index.model]) * slope**2)
    total = t.logpdf(index.score, joint.FREEDOM, floor[test] + width * expit(z), scale).sum()
    for m in range(model.models):
        mine = model.owner == m
        covariance = np.ones((mine.sum(), mine.sum())) + np.diag(own[model.kind[mine]] ** 2)
        total += multivariate_normal.logpdf(q["ability"][mine], np.zeros(mine.sum()), covariance)
    total += norm.logpdf(q["effect"], 0, np.where(model.alone, 1.0, spread)).sum()
    means = {"ease": joint.EASE, "loading": joint.LOADING}
    for kind, scale_of in {"ease": "ease", "loading": "loading", **dict.fromkeys(model.pulls, "pull")}.items():
        within, between = (np.exp(q[f"{scale_of}_{name}"][0]) for name in ("within", "between"))
        same = index.benchmark[:, None] == index.benchmark
        covariance = between**2 * same + within**2 * np.eye(model.tests)
        mean = q[f"{kind}_mean"][0] if kind in means else 0.0
        total += multivariate_normal.logpdf(q[kind], np.full(model.tests, mean), covariance)
    for kind, (centre, sd) in means.items():
        total += norm.logpdf(q[f"{kind}_mean"][0], centre, sd)
    for name in ("ease", "loading", "pull"):
        total += sum(inverse_gamma(q[f"{name}_{way}"][0]) for way in ("within", "between"))
    total += sum(norm.logpdf(q[factor]).sum() for factor in model.factors)
    total += inverse_gamma(q["evaluator"][0])
    total += norm.logpdf(q["own"], *joint.OWN).sum() + norm.logpdf(q["typical"][0], *joint.SCATTER)
    total += norm.logpdf(q["scatter"], q["typical"][0], joint.SCATTER_SD).sum()
    total += norm.logpdf(q["model_scatter"], 0, joint.MODEL_SD).sum()
    bounded = np.where(model.reach > 0, norm.logpdf(floor, index.chance, joint.FLOOR_SD), 0.0)
    total += (bounded - 2 * np.log(np.cosh(q["floor"]))).sum()
    total += (norm.logpdf(ceiling, joint.CEILING, joint.CEILING_SD) - 2 * np.log(np.cosh(q["ceiling"]))).sum()
    return float(total)


def inverse_gamma(log_sd: float) -> float:
    """Log density of a log standard deviation whose square is inverse-gamma."""
    shape, scale = joint.VARIANCE_PRIOR
    return float(invgamma.logpdf(np.exp(2 * log_sd), shape, scale=scale) + np.log(2) + 2 * log_sd)


def test_density_is_that_of_the_docstring_but_for_a_constant() -> None:
    # The oracle is written with scipy.stats and dense covariances.
    model = Posterior(few_cells())
    gaps = [model.point(somewhere(model, seed)).density - by_hand(model, somewhere(model, seed)) for seed in range(8)]
    assert gaps == pytest.approx([gaps[0]] * 8, abs=1e-8)


@pytest.mark.parametrize("benchmarks", [False, True])
def test_gradient_is_the_densitys(benchmarks: bool) -> None:
    model = Posterior(few_cells())
    vector = somewhere(model, 3)
    known = model.draw_benchmarks(vector, np.random.default_rng(0)) if benchmarks else None
    gradient, step = model.point(vector, known).gradient, 1e-5
    # Given the benchmarks, means and scales are not moved, and have no gradient.
    for name in set(model.at) - (set(MEANS + SCALES) if benchmarks else set()):
        for at in range(model.at[name].start, model.at[name].stop):
            along = step * np.eye(model.size)[at]
            ahead, behind = (model.point(vector + sign * along, known).density for sign in (1, -1))
            assert gradient[at] == pytest.approx((ahead - behind) / (2 * step), rel=1e-5, abs=1e-5), (name, at)


def test_information_is_the_mean_square_of_the_cells_slopes() -> None:
    # Of the cells alone, over scores that the model itself draws: a law of large numbers, not another derivation.
    model = Posterior(few_cells())
    vector = 0.3 * somewhere(model, 5)
    rng, index = np.random.default_rng(0), model.index
    q, _, variance, _ = model.slopes(vector)
    floor, ceiling, _, _ = model.curve(q)
    z = model.logit(q, q["effect"] * model.effect_scale(q))
    curve = floor[index.test] + (ceiling - floor)[index.test] * expit(z)
    # Where the variance moves with the curve, location and scatter share information, which is left out: little of it.
    kinds, many = model.places("ease", "ability", "effect", "loading", *model.pulls, *model.factors), 1500
    model.variance = np.full(len(curve), 0.05**2)
    variance = variance - index.se**2 + model.variance
    rows, of_cells = model.information(vector)
    expected = np.asarray(rows[:of_cells].power(2).sum(axis=0)).ravel()[kinds]
    slopes = []
    for _ in range(many):
        model.index = replace(index, score=curve + np.sqrt(variance) * rng.standard_t(joint.FREEDOM, len(curve)))
        slopes.append(model.point(vector).gradient[kinds])
    assert np.var(slopes, axis=0) == pytest.approx(expected, rel=0.2)


@given(
    st.floats(-6, 6), st.floats(0, 0.5), st.floats(0.3, 0.5), st.floats(-8, 1), st.floats(0.001, 0.1), st.floats(0, 1)
)
def test_slopes_of_a_cell_are_its_densitys(
    logit: float, floor: float, width: float, log_scatter: float, se: float, score: float
) -> None:
    def density(at: Array) -> float:
        z, low, high, spread = at
        args = (np.array([score]), np.array([se**2]), np.array([z]), (np.array([low]), np.array([high - low])))
        return float(student(*args, np.array([np.exp(spread)]))[0][0])

    at = np.array([logit, floor, floor + width, log_scatter])
    found = student(
        np.array([score]), np.array([se**2]), at[:1], (at[1:2], np.array([width])), np.array([np.exp(log_scatter)])
    )
    for position, slope in enumerate(found[1:]):
        along = 1e-6 * np.eye(4)[position]
        estimate = (density(at + along) - density(at - along)) / 2e-6
        assert slope[0] == pytest.approx(estimate, rel=1e-3, abs=1e-3 * (1 + abs(estimate)))


def test_what_was_integrated_out_is_drawn_from_its_conditional() -> None:
    model = Posterior(few_cells())
    vector = somewhere(model, 2)
    q = model.split(vector)
    rng = np.random.default_rng(0)
    drawn = np.array([model.draw_benchmarks(vector, rng)[0, 0] for _ in range(4000)])
    own = q["ease"][model.index.benchmark == 0]
    within, between = np.exp(-2 * q["ease_within"][0]), np.exp(-2 * q["ease_between"][0])
    precision = between + len(own) * within
    mean = (between * q["ease_mean"][0] + within * own.sum()) / precision
    assert kstest(drawn, norm(mean, precision**-0.5).cdf).pvalue > 1e-3
    # Model 2 was measured on one trait: the other is what that one lets expect.
    missing = next(
        (m, k) for m in range(3) for k in range(2) if (m, k) not in zip(model.owner, model.kind, strict=True)
    )
    abilities = np.array([model.draw_abilities(vector, rng)[missing] for _ in range(4000)])
    seen = model.owner == missing[0]
    sd = np.exp(q["own"])
    weight = 1 / (1 + sd[model.kind[seen]][0] ** 2)
    law = norm(weight * q["ability"][seen][0], np.sqrt(1 + sd[missing[1]] ** 2 - weight))
    assert kstest(abilities, law.cdf).pvalue > 1e-3


def test_truncated_draws_follow_their_distribution_in_either_tail() -> None:
    rng = np.random.default_rng(0)
    for mean, low, high in ((0.97, 0.1, 1.0), (1.3, 0.1, 1.0), (-0.4, 0.0, 0.6), (0.5, 0.0, 1.0)):
        drawn = joint.truncated(np.full(4000, mean), np.full(4000, 0.03), low, high, rng)
        law = truncnorm((low - mean) / 0.03, (high - mean) / 0.03, mean, 0.03)
        assert kstest(drawn, law.cdf).pvalue > 1e-3, (mean, low, high)
    # Forty standard deviations away the limit itself is as near as a double gets.
    far = joint.truncated(np.array([9.0, -9.0]), np.array([0.03, 0.03]), 0.0, 1.0, rng)
    assert np.isfinite(far).all() and (far >= 0).all() and (far <= 1).all()


def test_a_ceiling_lies_above_every_floor_that_is_possible() -> None:
    chance = np.linspace(0, 0.99, 100)
    reach, lowest = joint.ends(chance)
    assert (chance - reach >= 0).all() and (lowest <= 1).all()
    assert (lowest - chance - reach >= np.minimum(joint.NARROWEST, (1 - chance) / 2) - 1e-12).all()


def test_codes_name_what_they_number() -> None:
    table = toy_cells().table
    index, names = index_cells(table)
    assert (names["model"][index.model] == table["model"]).all() and (names["test"][index.test] == table["test"]).all()
    assert (names["benchmark"][index.benchmark[index.test]] == table["benchmark"]).all()
    assert (names["trait"][index.trait[index.test]] == table["trait"]).all()
    of_cell = names["pair"][index.pair]
    assert [(names["model"][m], e) for m, e in of_cell] == list(zip(table["model"], table["evaluator"], strict=True))
