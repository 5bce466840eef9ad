"""The joint scale as a reference, in worlds whose slope, level and densities are known."""

from __future__ import annotations

import dataclasses
from copy import copy
from functools import lru_cache

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from scipy.stats import binom, chi2
from statsmodels.stats.meta_analysis import combine_effects

from densing.core import InputError, UnavailableError, named_stream
from densing.scores.catalog import Catalog, load_catalog
from densing.scores.density import DensityResult, catalog_densities
from densing.scores.density.abilities import joint_densities
from densing.scores.joint import JointScale, fit_joint, joint_cells
from densing.scores.references import get_family, joint_reference, load_reference
from densing.scores.references.size_curve import REACHES, _members, random_weights
from densing.scores.trend import ESTIMATORS, Slope, TrendData
from tests.support.planted_scale import PACE, SINGLES, SLOPE, planted_catalog, planted_scale

NOISE = 0.15
BENCHMARKS = ("mmlu", "arc_challenge", "bbh", "drop", "gsm8k", "math", "humaneval", "mbpp")
LEVELS = {"Qwen2.5": 0.0, "Able": 0.7, "Weak": -0.9, "Plain": 0.1, "Other": 0.3, "Sixth": -0.3, "Last": 0.2}


def world(families: dict[str, float] = LEVELS, extra: list[dict[str, object]] | None = None) -> Catalog:
    """Families on parallel lines of ability in ln N; every model on every benchmark, with little noise."""
    rng = np.random.default_rng(1)
    rows = []
    for number, (family, level) in enumerate(families.items()):
        for size in (0.5e9, 2e9, 8e9, 32e9):
            ability = level + SLOPE * np.log(size / 8e9)
            for b, benchmark in enumerate(BENCHMARKS):
                score = 0.97 * expit(ability - 0.2 * (b - 4) + NOISE * rng.standard_normal())
                rows.append(
                    {
                        "model": f"{family}-{size / 1e9:g}B",
                        "family": family,
                        "organisation": family,
                        "params": size,
                        "released": f"2024-{number + 1:02d}-01",
                        "benchmark": benchmark,
                        "score": 0.25 + 0.75 * score if benchmark in ("mmlu", "arc_challenge") else score,
                    }
                )
    return load_catalog(pd.DataFrame(rows + (extra or [])), embedded=False)


@lru_cache(maxsize=4)
def fitted() -> tuple[Catalog, JointScale]:
    catalog = world()
    return catalog, fit_joint(joint_cells(catalog), chains=1, sweeps=200, burn=150, draws=200)


def test_the_slope_of_size_is_that_of_the_world():
    catalog, scale = fitted()
    reference = joint_reference(catalog, scale=scale)
    low, high = np.quantile(reference.fit.draws[:, 1], [0.025, 0.975])
    assert low < SLOPE < high
    # Neither no slope nor twice as much; how narrow it is differs from chain to chain, 0.08 to 0.32 over ten seeds.
    assert low > 0 and high < 2 * SLOPE
    assert reference.fit.options["anchor"] == "Qwen2.5"


def test_the_anchor_has_density_one_and_others_what_their_level_buys():
    catalog, scale = fitted()
    table = catalog_densities(catalog, joint_reference(catalog, scale=scale)).table
    table = table[table["status"].eq("ok")]
    truth = table["family"].map(lambda family: np.exp(LEVELS[family] / SLOPE))
    ratio = np.log(table["density"] / truth).groupby(table["family"]).mean()
    assert len(ratio) == len(LEVELS)
    assert ratio.abs().max() < 0.25
    assert ((table["density_lo"] <= truth) & (truth <= table["density_hi"])).mean() > 0.85


def test_draws_reach_the_trend_and_bounds_are_censored():
    catalog, scale = fitted()
    result = catalog_densities(catalog, joint_reference(catalog, scale=scale))
    assert result.draws.shape == result.law_draws.shape == result.model_draws.shape == (200, len(result))
    spread = result.model_draws.std(axis=0).mean(), result.draws.std(axis=0).mean()
    assert spread[0] >= spread[1] > 0
    data = TrendData.from_density(result.headline)
    assert len(data) == 28
    bounded = result.table["bound"].ne("")
    assert (result.table.loc[bounded, "status"] == "extrapolated").all()


def test_the_order_of_rows_has_no_say():
    catalog, scale = fitted()
    again = joint_reference(catalog, scale=scale)
    np.testing.assert_array_equal(again.fit.draws, joint_reference(catalog, scale=scale).fit.draws)
    shuffled = Catalog(
        catalog.models.sample(frac=1, random_state=3).reset_index(drop=True),
        catalog.scores.sample(frac=1, random_state=4).reset_index(drop=True),
        catalog.benchmarks,
        catalog.evaluators,
        catalog.sources,
    )
    assert joint_cells(shuffled).table.equals(joint_cells(catalog).table)
    assert joint_reference(shuffled, scale=scale).fit.theta.tolist() == again.fit.theta.tolist()


def only(*families: str) -> Catalog:
    """The world's catalog, of which these families alone bear their names."""
    catalog, _ = fitted()
    named = catalog.models["family"].where(catalog.models["family"].isin(families))
    return dataclasses.replace(catalog, models=catalog.models.assign(family=named))


def test_without_the_anchor_another_family_gives_the_level_and_says_so():
    reference = joint_reference(only(*(name for name in LEVELS if name != "Qwen2.5")), scale=fitted()[1])
    notes = {note.code: note for note in reference.notes}
    assert reference.fit.options["anchor"] == reference.anchor in LEVELS and reference.anchor != "Qwen2.5"
    assert (
        notes["other-anchor"].message == f"Qwen2.5 is not on this scale: density 1 is the recipe of {reference.anchor}"
    )
    assert not {"other-anchor", "few-families"} & {
        note.code for note in joint_reference(fitted()[0], scale=fitted()[1]).notes
    }


@pytest.mark.parametrize("count", [1, 5, 6])
def test_fewer_than_six_families_are_said(count):
    families = list(LEVELS)[:count]
    notes = {note.code: note for note in joint_reference(only(*families), scale=fitted()[1]).notes}
    assert ("few-families" in notes) == (count < 6)
    if count < 6:
        assert notes["few-families"].details == {"families": sorted(families)}
        assert ("1 family" if count == 1 else "5 families") in notes["few-families"].message


def test_members_have_three_sizes_over_a_factor_of_four_known_from_three_cells():
    catalog, scale = fitted()
    sizes = {"Qwen2.5": (1, 2, 4, 4), "Able": (1, 2, 3.9, 3.9), "Weak": (1, 1, 8, 8), "Plain": (0.5, 2, 8, 32)}
    billions = catalog.models["params_total_b"].to_numpy(float).copy()
    for family, values in sizes.items():
        billions[(catalog.models["family"] == family).to_numpy()] = values
    billions[(catalog.models["model"] == "Other-0.5B").to_numpy()] = np.nan
    changed = dataclasses.replace(
        catalog, models=catalog.models.assign(params_total_b=billions, params_active_b=billions)
    )
    abilities = pd.DataFrame({"model": scale.models, "cells": 3})
    abilities.loc[abilities["model"] == "Plain-32B", "cells"] = 2
    members = _members(changed, scale, abilities)
    counts = members["family"].value_counts()
    # Of Other three sizes are left, of Plain too; Able spans less than four, and Weak has two sizes.
    assert counts.to_dict() == {"Qwen2.5": 4, "Plain": 3, "Other": 3, "Sixth": 4, "Last": 4}
    assert members["position"].tolist() == [list(scale.models).index(model) for model in members["model"]]
    assert members.loc[members["model"] == "Plain-2B", "params"].tolist() == [2e9]


def test_draws_of_the_slope_are_means_of_families_drawn_with_replacement():
    """Each family its own regression; copies of families by a named stream, with the weight that its sizes give."""
    scale, _ = planted_scale(1)
    reference = joint_reference(planted_catalog(), scale=scale, seed=3)
    points = reference.points.sort_values("model")
    draws = scale.draws[:, [scale.models.index(model) for model in points["model"]]]
    weight, log_n = 1 / (draws.var(axis=0) + 0.15**2), np.log(points["params"].to_numpy())
    slopes, shares = [], []
    for name in sorted(set(points["family"])):
        which = points["family"].eq(name).to_numpy()
        slopes.append(np.polyfit(log_n[which], draws[:, which].T, 1, w=np.sqrt(weight[which]))[0])
        middle = np.average(log_n[which], weights=weight[which])
        shares.append(np.sum(weight[which] * (log_n[which] - middle) ** 2))
    rng, count = named_stream(3, "families", "joint", "general"), len(shares)
    copies = rng.multinomial(count, np.full(count, 1 / count), len(draws)) * np.array(shares)
    np.testing.assert_allclose(
        reference.fit.draws[:, 1], (copies * np.array(slopes).T).sum(axis=1) / copies.sum(axis=1)
    )
    fit = reference.fit
    assert fit.options["seed"] == 3 and fit.options["n_bootstrap"] == len(draws) and fit.options["delta"] is None
    residual = reference.points["score"] - fit.theta[0] - fit.theta[1] * np.log(reference.points["params"])
    assert fit.objective == pytest.approx(np.sum(residual**2))
    np.testing.assert_allclose(np.sort(fit.residuals), np.sort(residual))
    np.testing.assert_allclose(points["score_se"], draws.std(axis=0))
    # The noise of scatter is one stream, so that its draws are those of chi squared with its degrees of freedom.
    freedom = len(points) - 2 * count
    chi = named_stream(3, "scale", "joint", "general").chisquare(freedom, len(draws))
    again = joint_reference(planted_catalog(), scale=scale, seed=4)
    other = named_stream(4, "scale", "joint", "general").chisquare(freedom, len(draws))
    inside = np.concatenate([
        (draws[:, which].T - np.average(draws[:, which], axis=1, weights=weight[which]))
        for which in (points["family"].eq(name).to_numpy() for name in sorted(set(points["family"])))
    ]).var(axis=1)  # fmt: skip
    noise = np.median(inside)
    positive = (reference.scatter > 0) & (again.scatter > 0)
    assert positive.mean() > 0.3
    np.testing.assert_allclose(
        ((reference.scatter**2 + noise) * chi)[positive], ((again.scatter**2 + noise) * other)[positive]
    )


def test_without_a_family_of_several_sizes_there_is_no_reference():
    catalog = world()
    lone = catalog.models.assign(family=catalog.models["model"])
    strangers = dataclasses.replace(catalog, models=lone)
    with pytest.raises(UnavailableError, match="3 sizes"):
        joint_reference(strangers, scale=fit_joint(joint_cells(strangers), chains=1, sweeps=20, burn=20, draws=10))


def test_the_joint_reference_is_a_reference_like_the_others():
    assert get_family("joint").kind == "joint"
    reference = load_reference("joint", "knowledge")
    facts = reference.describe()
    assert facts["law"] == "log-linear"
    assert facts["n_points"] >= 100
    assert 0.3 < facts["params"]["b"] < 0.9
    assert "Reference joint, knowledge" in repr(reference)


def read(scale: JointScale, reach: str = "anchor") -> DensityResult:
    catalog = planted_catalog()
    return joint_densities(catalog, joint_reference(catalog, scale=scale, reach=reach))


def line(result: DensityResult) -> Slope:
    return ESTIMATORS["tobit-crv3"].fit(TrendData.from_density(result.headline).ordered())


def test_the_reach_is_the_anchors_and_other_families_give_the_slope():
    catalog = planted_catalog()
    scale, _ = planted_scale(0)
    reference, wider = (joint_reference(catalog, scale=scale, reach=reach) for reach in ("anchor", "members"))
    assert reference.fit.domain["params"] == (0.494e9, 72.7e9) and wider.fit.domain["params"] == (0.07e9, 72.7e9)
    np.testing.assert_array_equal(reference.fit.draws, wider.fit.draws)
    assert reference.describe()["sizes"] == [0.494e9, 72.7e9] and reference.points["params"].min() == 0.07e9


def test_limits_of_models_far_below_the_anchor_hold_the_truth():
    """Whatever ability does below the anchor's guard: a limit says only that a model lies there."""
    for steeper in (0.6, 1.0, 2.0):
        scale, truth = planted_scale(1, steeper)
        result = read(scale)
        limits = result.table.assign(truth=result.table["model"].map(truth), limit=result.log_limits[:, 0])
        limits = limits[limits["bound"].eq("upper")]
        assert len(limits) > SINGLES / 2
        # Beside the limit a model's own error may put it on the other side.
        assert (limits["truth"] < limits["limit"] + 0.3).all()
        assert (limits["truth"] < limits["limit"]).mean() > 0.9


@pytest.mark.parametrize("steeper", [2.0, pytest.param(0.6, marks=pytest.mark.slow)])
def test_limits_at_the_anchor_keep_the_pace_honest_where_ability_bends_below_it(steeper):
    worlds = 24
    held = {"anchor": 0, "members": 0}
    for seed in range(worlds):
        scale, _ = planted_scale(seed, steeper)
        for reach in held:
            slope = line(read(scale, reach))
            held[reach] += slope.lo <= PACE <= slope.hi
    # In worlds without a reference the estimator holds 91 to 95 %; so few come once in a thousand times.
    least = binom.ppf(0.001, worlds, 0.91)
    assert held["anchor"] >= least > held["members"]


@pytest.mark.slow
def test_with_one_slope_everywhere_both_reaches_give_the_pace():
    worlds = 60
    scales = [planted_scale(seed)[0] for seed in range(worlds)]
    for reach in ("anchor", "members"):
        slopes = [line(read(scale, reach)) for scale in scales]
        held = sum(slope.lo <= PACE <= slope.hi for slope in slopes)
        assert held >= binom.ppf(0.001, worlds, 0.91)
        assert np.median([slope.slope for slope in slopes]) == pytest.approx(PACE, rel=0.1)


def test_the_reach_changes_nothing_where_no_model_lies_beyond_the_anchors_guard():
    catalog, scale = fitted()
    tables = [catalog_densities(catalog, joint_reference(catalog, scale=scale, reach=reach)) for reach in REACHES]
    pd.testing.assert_frame_equal(tables[0].table, tables[1].table)
    np.testing.assert_array_equal(tables[0].draws, tables[1].draws)


def test_the_line_is_a_weighted_regression_with_a_level_for_every_family():
    scale, _ = planted_scale(1)
    reference = joint_reference(planted_catalog(), scale=scale)
    points, fit = reference.points, reference.fit
    draws = scale.draws[:, [scale.models.index(model) for model in points["model"]]]
    weight, log_n = 1 / (draws.var(axis=0) + 0.15**2), np.log(points["params"].to_numpy())
    family = pd.get_dummies(points["family"]).astype(float)
    root = np.sqrt(weight)[:, None]
    slope = np.linalg.lstsq(root * np.column_stack([log_n, family]), root[:, 0] * draws.mean(axis=0), rcond=None)[0][0]
    assert fit.theta[1] == pytest.approx(slope)
    anchor = points["family"].eq("Qwen2.5").to_numpy()
    middle = np.median(draws, axis=0)
    assert fit.theta[0] == pytest.approx(np.average((middle - slope * log_n)[anchor], weights=weight[anchor]))
    own_levels = draws[:, anchor] - fit.draws[:, 1:] * log_n[anchor]
    np.testing.assert_allclose(fit.draws[:, 0], np.average(own_levels, axis=1, weights=weight[anchor]))
    # Members are moved to the anchor's level: none of their families lies above the line or below it.
    beside = points["score"] - fit.theta[0] - slope * log_n
    assert (weight * beside).groupby(points["family"]).sum().to_numpy() == pytest.approx(0, abs=1e-6)
    # What models scatter around the lines of their own families, two figures spent on each, beyond what is noise.
    own, left, inside = [], [], []
    for name in family:
        which = points["family"].eq(name).to_numpy()
        lines = np.polyfit(log_n[which], draws[:, which].T, 1, w=np.sqrt(weight[which]))
        own.append(lines[0])
        left.append(draws[:, which].T - np.outer(log_n[which], lines[0]) - lines[1])
        inside.append(draws[:, which].T - np.average(draws[:, which], axis=1, weights=weight[which]))
    free = len(points) - 2 * family.shape[1]
    seen = (1.4826 * np.median(np.abs(np.concatenate(left)), axis=0)) ** 2 * len(points) / free
    held = reference.scatter**2 + np.median(np.concatenate(inside).var(axis=1))
    # The median of chi squared is a little less than its mean.
    assert np.median(held) / np.median(seen) == pytest.approx(chi2.mean(free) / chi2.median(free), abs=0.08)
    assert (np.min(own, axis=0) <= fit.draws[:, 1]).all() and (fit.draws[:, 1] <= np.max(own, axis=0)).all()


def test_a_slope_is_never_below_a_thousandth_where_ability_falls_with_size():
    scale, _ = planted_scale(0)
    scale = copy(scale)
    scale.draws = -scale.draws
    fit = joint_reference(planted_catalog(), scale=scale).fit
    assert fit.theta[1] == 1e-3 and (fit.draws[:, 1] == 1e-3).all()


def test_weights_of_a_random_slope_are_those_of_a_meta_analysis():
    rng = np.random.default_rng(3)
    for spread in (0.0, 0.05, 0.5):
        precision = rng.uniform(20, 900, 12)
        slopes = 0.5 + spread * rng.standard_normal(12) + rng.standard_normal(12) / np.sqrt(precision)
        with np.errstate(invalid="ignore"):  # Its tau2 may be negative, ours is cut at zero.
            theirs = combine_effects(slopes, 1 / precision, method_re="dl")
        weights = random_weights(slopes, precision)
        np.testing.assert_allclose(1 / weights, 1 / precision + max(theirs.tau2, 0.0))
        if theirs.tau2 > 0:
            assert np.average(slopes, weights=weights) == pytest.approx(theirs.mean_effect_re)
        # A family that does not count changes nothing.
        more = random_weights(np.append(slopes, 9.0), np.append(precision, 0.0))
        np.testing.assert_allclose(more, np.append(weights, 0.0))


def test_a_random_slope_is_that_of_the_families_since_2024():
    catalog = planted_catalog()
    began = catalog.models.groupby("family")["released"].min()
    old = catalog.models.set_index("model")["family"].map(began).lt("2024-01-01")
    scale, _ = planted_scale(0)
    log_n = np.log(catalog.models.set_index("model")["params_total_b"].astype(float))
    # Families of before 2024 gain half as much by size.
    loss = (0.5 * SLOPE * log_n).where(old, 0.0).reindex(scale.models).to_numpy()
    scale = copy(scale)
    scale.draws = scale.draws - loss
    within, random = (joint_reference(catalog, scale=scale, slope=slope) for slope in ("within", "random"))
    low, high = np.quantile(random.fit.draws[:, 1], [0.025, 0.975])
    assert low < SLOPE < high and np.quantile(within.fit.draws[:, 1], 0.975) < SLOPE
    assert random.fit.theta[1] == pytest.approx(SLOPE, abs=0.05)
    assert random.fit.domain == within.fit.domain and random.fit.options["slope"] == "random"


@pytest.mark.parametrize("option", ["reach", "slope"])
def test_other_choices_are_refused_by_name(option):
    catalog, scale = fitted()
    with pytest.raises(InputError, match=f"{option}='all': choose"):
        joint_reference(catalog, scale=scale, **{option: "all"})
