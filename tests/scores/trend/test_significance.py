"""Size and power of the trend's tests on data's own dates and families: against the full tests, and in known worlds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

from densing.scores.trend import TrendData, estimate_trend
from densing.scores.trend.coverage import Scenario, simulate
from densing.scores.trend.headline import fit_tobit
from densing.scores.trend.significance import (
    BLOCKS,
    block_shuffles,
    break_power,
    breakpoint_test,
    candidates,
    draw_worlds,
    estimate_shocks,
    kinks,
    one_line,
    one_step_slopes,
    permutation_test,
    score_statistics,
    shuffle_power,
    trend_paces,
)

DATA = simulate(Scenario(n=65, families=23), 3)
SHOCKS = estimate_shocks(DATA)


def test_shocks_without_bounds_are_those_of_a_mixed_model() -> None:
    """Oracle: statsmodels' MixedLM by maximum likelihood, the same model where nothing is censored."""
    data = simulate(Scenario(n=80, families=20, ceilings=None), 2)
    design = sm.add_constant(data.days / 365.25)
    theirs = sm.MixedLM(data.log_density, design, groups=data.clusters()).fit(reml=False)
    ours = estimate_shocks(data)
    assert ours is not None
    assert ours.family_sd == pytest.approx(float(np.sqrt(theirs.cov_re[0, 0])), rel=0.02)
    assert ours.model_sd == pytest.approx(float(np.sqrt(theirs.scale)), rel=0.02)


def test_shocks_survive_bounds() -> None:
    """With over a third of the rows below a floor the deviations stay what they were, within sampling error."""
    free = Scenario(n=400, families=120, ceilings=None, family_sd=0.7, residual_sd=0.4)
    cut = replace(free, floors=(4.5, 4.5))
    found = estimate_shocks(simulate(cut, 4))
    assert np.mean(~simulate(cut, 4).observed) > 0.35
    assert found is not None
    assert (found.family_sd, found.model_sd) == pytest.approx((0.7, 0.4), abs=0.12)


def test_worlds_keep_dates_families_and_limits() -> None:
    assert SHOCKS is not None
    y, censor = draw_worlds(DATA, SHOCKS, np.zeros(len(DATA)), 200, np.random.default_rng(0))
    assert np.all(y <= DATA.limits[:, 1]) and np.all((censor == 1) == (y == DATA.limits[:, 1]))
    free = DATA.replace(log_limits=None, censor=np.zeros(len(DATA), dtype=np.int8))
    y, _ = draw_worlds(free, SHOCKS, np.zeros(len(DATA)), 4000, np.random.default_rng(0))
    codes = DATA.clusters()
    first = np.flatnonzero(codes == np.bincount(codes).argmax())[:2]
    shared = np.cov(y[:, first].T)[0, 1]
    assert shared == pytest.approx(SHOCKS.family_sd**2, rel=0.15)


def test_one_step_decides_as_the_full_fit_does() -> None:
    """p-values of 25 worlds by full Tobit fits to the same shuffles: within one shuffle of ours."""
    assert SHOCKS is not None
    path = 0.002 * (DATA.days - DATA.days.mean())
    y, censor = draw_worlds(DATA, SHOCKS, path, 25, np.random.default_rng(1))
    dates = block_shuffles(DATA.days, DATA.clusters(), 99, np.random.default_rng(2))
    years = (dates - DATA.days.mean()) / 365.25
    quick = one_step_slopes(y, censor, years)
    design = np.stack([np.ones_like(years), years], axis=-1)
    full = np.array([fit_tobit(design, *world).beta[:, 1] for world in zip(y, censor, strict=True)])
    ranks = [np.sum(slopes[:, 1:] >= slopes[:, :1], axis=1) for slopes in (quick, full)]
    assert np.abs(ranks[0] - ranks[1]).max() <= 2
    assert np.mean(ranks[0] != ranks[1]) < 0.2


def test_score_statistics_stand_for_likelihood_ratios() -> None:
    """Without a break and without bounds the score statistic is n times R^2 where the ratio is -n ln(1 - R^2)."""
    data = simulate(Scenario(n=65, families=23, ceilings=None), 3)
    line, years = one_line(data), data.days / 365.25
    fit = fit_tobit(line, data.log_density, data.censor)
    designs = kinks(years, candidates(years))
    score = score_statistics(data.log_density[None], data.censor[None], fit, line, designs)[0]
    ratio = breakpoint_test(data, bootstrap=19).searched.statistic
    n = len(data)
    assert score == pytest.approx(n * (1 - np.exp(-ratio / n)), rel=1e-6)


def test_single_models_shuffled_accuse_the_innocent_and_whole_families_do_not() -> None:
    assert SHOCKS is not None
    tests = shuffle_power(DATA, SHOCKS, trend_paces(0.006), worlds=300)
    assert tests[BLOCKS].size < 0.09 < tests["headline"].size
    fast, slow = (effect.share for effect in tests[BLOCKS].power)
    assert fast > slow > tests[BLOCKS].size
    assert tests["envelope"].power[0].share < 0.3 < fast
    assert tests == shuffle_power(DATA, SHOCKS, trend_paces(0.006), worlds=300)


@pytest.mark.slow
def test_simulated_size_and_power_are_those_of_the_tests_themselves() -> None:
    """150 worlds through the real tests, with all their shuffles: within four binomial errors of what is printed."""
    assert SHOCKS is not None
    worlds, slope = 150, float(np.log(2)) / 12 / 30.44
    said = shuffle_power(DATA, SHOCKS, {"slow": slope}, worlds=2000)
    for effect, pace in (("size", 0.0), ("power", slope)):
        path = SHOCKS.level + pace * (DATA.days - DATA.days.mean())
        y, censor = draw_worlds(DATA, SHOCKS, path, worlds, np.random.default_rng(9))
        tests = [
            permutation_test(DATA.replace(log_density=y[row], censor=censor[row]), permutations=99, seed=row)
            for row in range(worlds)
        ]
        for name in (BLOCKS, "headline"):
            share = np.mean([getattr(test, name).p <= 0.05 for test in tests])
            expected = said[name].size if effect == "size" else said[name].power[0].share
            assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / worlds)


@pytest.mark.slow
def test_simulated_break_power_is_that_of_the_break_test_itself() -> None:
    assert SHOCKS is not None
    said = break_power(DATA, SHOCKS, 0.006, worlds=300)
    line = SHOCKS.level + 0.006 * (DATA.days - DATA.days.mean())
    y, censor = draw_worlds(DATA, SHOCKS, line, 60, np.random.default_rng(9))
    worlds = [DATA.replace(log_density=y[row], censor=censor[row]) for row in range(60)]
    share = np.mean([breakpoint_test(world, bootstrap=39, seed=1).searched.p <= 0.05 for world in worlds])
    assert abs(share - said.size) < 4 * np.sqrt(said.size * (1 - said.size) / 60) + 0.01
    halves, stops = (effect.share for effect in said.power)
    assert stops > halves


def test_every_p_of_a_trend_comes_with_its_size_and_power() -> None:
    checks = estimate_trend(DATA, permutations=19, bootstrap=30, worlds=20).checks
    shuffles, breaks = checks.permutation, checks.breakpoint
    assert shuffles is not None and breaks is not None
    tests = [shuffles.envelope, shuffles.headline, shuffles.headline_family_blocks]
    tests += [test for test in (breaks.stated, breaks.searched) if test.p is not None]
    assert len(tests) == 4
    for test in tests:
        assert 0 <= test.size <= 1
        assert test.power and all(0 <= effect.share <= 1 for effect in test.power)
    assert checks.simulation is not None and checks.simulation.family_sd > 0


def test_a_trend_without_simulation_says_so() -> None:
    trend = estimate_trend(DATA, permutations=19, bootstrap=30, worlds=0)
    assert trend.checks.simulation is None
    assert "not simulated" in trend.sentences()[0]


def labelled() -> TrendData:
    """Four families of two makers, one of the families a declared group's."""
    days = np.arange(24) * 25.0
    family = np.array(["Pythia", "b", "c", "d"])[np.arange(24) % 4]
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "model": [f"m{row}" for row in range(24)],
            "family": family,
            "released": pd.Timestamp("2023-02-24") + pd.to_timedelta(days, unit="D"),
            "log_density": 0.004 * days + rng.normal(0, 0.3, 24) - 0.8 * (family == "Pythia") * (days < 300),
        }
    )
    makers = np.where(np.isin(family, ["Pythia", "b"]), "one", "two")
    return TrendData.from_frame(table).replace(organisation=makers)


def test_leave_out_runs_over_families_organisations_and_named_groups() -> None:
    data = labelled()
    trend = estimate_trend(data, permutations=19, bootstrap=30, worlds=0)
    assert trend.checks.leave_one_organisation_out is not None
    makers = trend.checks.leave_one_organisation_out.rows
    assert [row.name for row in makers] == ["one", "two"]
    for row in makers:
        rest = data.take(data.organisation != row.name)
        assert row.slope_per_day == pytest.approx(np.polyfit(rest.days, rest.log_density, 1)[0], rel=1e-6)
    (group,) = trend.checks.without_groups
    assert (group.group, group.families, group.n) == ("research suites", ("Pythia",), 6)
    rest = data.take(data.family != "Pythia")
    alone = estimate_trend(rest, permutations=19, bootstrap=30, worlds=0)
    assert group.doubling_months == pytest.approx(alone.headline["doubling_months"])
    assert (group.lo, group.hi) == pytest.approx((alone.headline["lo"], alone.headline["hi"]))
    assert any("Without research suites (Pythia)" in sentence for sentence in trend.sentences())
    assert alone.checks.without_groups == ()


def test_groups_of_ones_own_can_be_left_out() -> None:
    trend = estimate_trend(labelled(), permutations=19, bootstrap=30, worlds=0, groups={"the rest": ["b", "c", "d"]})
    (group,) = trend.checks.without_groups
    assert "at least 2 needed" in group.reason
    assert any("nothing can be estimated" in sentence for sentence in trend.sentences())


def test_lists_of_declared_groups_hold_families_of_the_catalog() -> None:
    from densing.scores.catalog import load_catalog
    from densing.scores.catalog.catalog import read_groups

    table = read_groups()
    assert set(table["family"]) <= set(load_catalog().models["family"])
    assert table["reason"].str.len().min() > 20
