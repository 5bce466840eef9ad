"""The tests of a trend and of a break, calibrated; their simulated size and power against the full tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats

from densing.scores.trend import TrendData, estimate_trend
from densing.scores.trend.coverage import Scenario, simulate
from densing.scores.trend.significance import (
    BLOCKS,
    _bent,
    _judged,
    _p_value,
    _rejects,
    _untestable,
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
    stated_design,
    trend_paces,
    wild_worlds,
)
from densing.scores.trend.tobit import fit_tobit
from tests.support.trend_data import dated

pytestmark = pytest.mark.usefixtures("few_sweeps")
TREND = simulate(Scenario(n=60, families=20), 5)
FLAT = Scenario(n=40, families=14, doubling_months=np.inf, ceilings=(0.5, 3.0))
DATA = simulate(Scenario(n=65, families=23), 3)
SHOCKS = estimate_shocks(DATA)
FOUND = [(0.05, 0.7), (0.1, 0.9), (0.02702702702702703, 0.075), (0.2, 0.05, 0.4), (0.05, 0.05)]
"""Size and power in few worlds: by whole families, by single models, of record-setters, of a search and of a date."""


def test_permutation_finds_a_real_trend_and_counts_honestly() -> None:
    tests = permutation_test(TREND, permutations=199)
    assert tests.headline.p == pytest.approx(1 / 200)
    assert tests.headline_family_blocks.p < 0.05
    null = np.array(tests.envelope.null_slopes)
    reached = np.sum(null >= tests.envelope.slope)
    assert tests.envelope.p == pytest.approx((1 + reached) / (1 + len(null)))


def test_permuted_slopes_match_refits_on_shuffled_rows() -> None:
    data = simulate(Scenario(n=25, families=8, ceilings=None), 0)
    null = permutation_test(data, permutations=400, seed=1).headline.null_slopes
    # Least squares under all permutations: mean 0, variance var(y) / sum (t - mean)^2 (n / (n - 1) form).
    spread = np.var(data.log_density, ddof=1) / np.sum((data.days - data.days.mean()) ** 2)
    assert np.mean(null) == pytest.approx(0, abs=4 * np.sqrt(spread / 400))
    assert np.var(null) == pytest.approx(spread, rel=0.25)


def test_permutation_p_values_are_uniform_without_a_trend() -> None:
    """60 worlds: the number of block p-values at or below .2 stays within the 99.9 % binomial range of 60 x .2."""
    values = [
        permutation_test(simulate(FLAT, seed), permutations=49, seed=seed).headline_family_blocks.p
        for seed in range(60)
    ]
    assert 3 <= np.sum(np.array(values) <= 0.2) <= 23


def test_block_shuffles_keep_families_together() -> None:
    codes = TREND.clusters()
    shuffled = block_shuffles(TREND.days, codes, 5, np.random.default_rng(0))
    np.testing.assert_allclose(shuffled[0], TREND.days)
    for row in shuffled:
        for code in np.unique(codes):
            own = codes == code
            np.testing.assert_allclose(np.diff(row[own]), np.diff(TREND.days[own]), atol=1e-9)
    assert not np.allclose(shuffled[1], shuffled[0])


def bent(seed: int, before: float, after: float) -> TrendData:
    """Sixty models around ChatGPT's release with a kink there."""
    rng = np.random.default_rng(seed)
    days = np.sort(rng.uniform(-700, 500, 60))
    split = float((pd.Timestamp("2022-11-30") - pd.Timestamp("2023-02-24")).days)
    values = before * np.minimum(days - split, 0) + after * np.maximum(days - split, 0) + rng.normal(0, 0.4, 60)
    return dated(days.tolist(), values.tolist(), [f"f{k // 2}" for k in range(60)])


def test_stated_break_recovers_two_slopes_and_the_paper_rates_stand_beside() -> None:
    data = bent(0, 0.001, 0.008)
    tests = breakpoint_test(data, bootstrap=99)
    split = -86.0
    early = data.days < split
    expected = [np.polyfit(data.days[side], data.log_density[side], 1)[0] for side in (early, ~early)]
    stated = tests.stated
    np.testing.assert_allclose([stated.slope_before, stated.slope_after], expected, rtol=1e-7)
    assert (stated.n_before, stated.n_after) == (int(early.sum()), int((~early).sum()))
    assert stated.p <= 0.02
    assert tests.searched.p <= 0.02
    assert abs((pd.Timestamp(tests.searched.date) - pd.Timestamp("2022-11-30")).days) < 200
    assert (tests.paper.before, tests.paper.after) == (0.0048, 0.0073)


def test_stated_break_statistic_is_the_likelihood_ratio() -> None:
    """Without bounds 2 (l1 - l0) = n ln(RSS0 / RSS1)."""
    data = bent(1, 0.004, 0.006)
    late = (data.days >= -86.0).astype(float)
    narrow = sm.OLS(data.log_density, sm.add_constant(data.days)).fit().ssr
    wide = sm.OLS(data.log_density, np.column_stack([np.ones(60), data.days, late, late * data.days])).fit().ssr
    assert breakpoint_test(data, bootstrap=19).stated.statistic == pytest.approx(60 * np.log(narrow / wide))


def test_break_p_values_are_uniform_without_a_break() -> None:
    """80 worlds: rejections at .2 within the 99.9 % binomial range of 80 x .2, for both tests."""
    tests = [breakpoint_test(bent(seed, 0.005, 0.005), bootstrap=39, seed=seed) for seed in range(80)]
    for kind in ("stated", "searched"):
        rejected = sum(getattr(test, kind).p <= 0.2 for test in tests)
        assert 5 <= rejected <= 29


def test_a_break_outside_the_window_says_why_it_was_not_tested() -> None:
    stated = breakpoint_test(TREND, bootstrap=19).stated
    assert stated.p is None
    assert "0 observed models of 0 families before the date" in stated.reason


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


@pytest.mark.parametrize(
    ("slopes", "p", "median"),
    [
        ([2.0, 1.0, 3.0, 2.0, 0.5], 3 / 5, 1.5),
        ([2.0, 1.0, 3.0, 2.0 * (1 - 1e-13), np.nan], 3 / 4, 2.0),
        ([-1.0, -2.0, 0.0, -1.0, 1.0], 4 / 5, -0.5),
        ([-1.0, -1.0 - 1e-13, -3.0], 1 / 3, -2.0),
        ([5.0, 1.0], 1 / 2, 1.0),
    ],
)
def test_a_slope_is_judged_by_the_shuffles_that_reach_it(slopes: list[float], p: float, median: float) -> None:
    found = _judged(np.array(slopes))
    assert (found.p, found.slope, found.null_median_slope) == pytest.approx((p, slopes[0], median))
    assert found.null_slopes == tuple(float(f"{value:.6g}") for value in slopes[1:] if np.isfinite(value))
    assert (found.null_median_doubling_months is None) == (median <= 0)
    for nothing in ([np.nan, 1.0], [1.0, np.nan], [1.0]):
        assert _judged(np.array(nothing)).p is None


@pytest.mark.parametrize(
    ("statistics", "p"),
    [([3.0, 1.0, 2.0, 4.0], 2 / 4), ([3.0, 3.0, 1.0], 2 / 3), ([3.0, np.nan, 1.0], 2 / 3), ([np.nan, 1.0], None)],
)
def test_worlds_that_reach_the_statistic_are_counted(statistics: list[float], p: float | None) -> None:
    assert _p_value(np.array(statistics)) == (None if p is None else pytest.approx(p))


def test_shares_of_worlds_that_reject() -> None:
    """At 5 % of 19 shuffles a world rejects where none reaches it; of 39, where at most one does."""
    shuffles = np.arange(19.0)
    assert _rejects(np.array([[20.0, *shuffles], [18.0, *shuffles]])) == 0.5
    many = np.arange(39.0)
    assert _rejects(np.array([[37.5, *many], [36.5, *many], [np.nan, *many], [40.0, *many]])) == pytest.approx(2 / 3)
    assert np.isnan(_rejects(np.array([[np.nan, 1.0]])))
    assert _rejects(np.array([[20.0, *shuffles[:-1], np.nan]])) == 0.0


def test_dates_at_which_a_kink_is_tried() -> None:
    years = np.arange(41) / 10
    found = candidates(years)
    # The middle seven tenths of 0 to 4 are .6 to 3.4; fifteen of the dates inside.
    assert len(found) == 15 and found[0] == pytest.approx(0.7) and found[-1] == pytest.approx(3.3)
    assert candidates(np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])).tolist() == [2.0, 3.0]
    (design,) = kinks(np.array([0.0, 1.0, 3.0]), np.array([1.0]))
    assert design.tolist() == [[1, -1, 0], [1, 0, 0], [1, 2, 2]]
    assert stated_design(np.array([0.0, 1.0, 3.0]), 1.0).tolist() == [[1, -1, 0, 0], [1, 0, 1, 0], [1, 2, 1, 2]]


def test_worlds_without_a_break_flip_whole_families_about_the_line() -> None:
    data = simulate(Scenario(n=30, families=8, ceilings=None), 4)
    line = fit_tobit(one_line(data), data.log_density, data.censor)
    y, censor = np.tile(data.log_density, (40, 1)), np.tile(data.censor, (40, 1))
    worlds, cut = wild_worlds(data, y.copy(), censor, line, data.clusters(), np.random.default_rng(1))
    mean = (line.beta @ one_line(data).T)[0]
    signs = (worlds - mean) / (data.log_density - mean)
    assert np.allclose(np.abs(signs), 1) and (cut == 0).all()
    for code in np.unique(data.clusters()):
        own = signs[:, data.clusters() == code]
        assert np.allclose(own, own[:, :1])
    assert 0.3 < np.mean(signs > 0) < 0.7


def test_residuals_of_bounds_are_drawn_beyond_their_limit() -> None:
    whole = simulate(Scenario(n=60, families=20, ceilings=None), 6)
    low, high = np.quantile(whole.log_density, [0.2, 0.8])
    censor = (whole.log_density > high).astype(np.int8) - (whole.log_density < low).astype(np.int8)
    data = whole.replace(log_density=np.clip(whole.log_density, low, high), censor=censor)
    line = fit_tobit(one_line(data), data.log_density, data.censor)
    y, censor = np.tile(data.log_density, (3000, 1)), np.tile(data.censor, (3000, 1))
    free = data.replace(log_limits=np.tile([-np.inf, np.inf], (len(data), 1)))
    worlds, _ = wild_worlds(free, y, censor, line, np.arange(60), np.random.default_rng(1))
    mean, sigma = (line.beta @ one_line(data).T)[0], line.sigma[0]
    tested = 0
    for row in np.flatnonzero(data.censor):
        edge = data.censor[row] * (data.log_density[row] - mean[row]) / sigma
        if edge > 0:
            # Half of the worlds flip the sign; its size is a normal's beyond the edge.
            sizes = np.abs(worlds[:, row] - mean[row]) / sigma
            assert stats.kstest(sizes, stats.truncnorm(edge, np.inf).cdf).pvalue > 1e-4
            tested += 1
    assert tested > 10


def test_a_bent_path_keeps_the_lines_mean() -> None:
    days = np.array([0.0, 100.0, 200.0, 300.0])
    path = _bent(np.array([1.0, 2.0, 3.0, 6.0]), days, 100.0, 0.01, 0.03)
    assert np.diff(path).tolist() == pytest.approx([1.0, 3.0, 3.0]) and path.mean() == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("days", "families", "censor", "reason"),
    [
        ([-400, -300, -200, -100, 0, 100, 200, 300], "abcabcab", [0] * 8, None),
        ([-400, -300, -200, 0, 100, 200, 300], "abcabca", [0] * 7, "3 observed models of 3 families before the date"),
        ([-400, -300, -200, -100, 0, 100, 200, 300], "abababcc", [0] * 8, "4 observed models of 2 families before"),
        (
            [-400, -300, -200, -100, 0, 100, 200, 300],
            "abcabcab",
            [0] * 7 + [1],
            "3 observed models of 3 families after",
        ),
        ([-400, -300, -300, -400, 0, 100, 200, 300], "abcabcab", [0] * 8, "4 observed models of 3 families before"),
    ],
)
def test_what_a_stated_date_needs_on_both_sides(
    days: list[int], families: str, censor: list[int], reason: str | None
) -> None:
    data = dated(days, [0.01 * day + 0.1 * (day % 3) for day in days], list(families)).replace(
        censor=np.array(censor, dtype=np.int8)
    )
    found = _untestable(data, data.clusters(), -86 / 365.25)
    assert found is None if reason is None else found is not None and found.startswith(reason)


def test_a_step_from_the_flat_line_is_least_squares_without_bounds() -> None:
    data = simulate(Scenario(n=40, families=9, ceilings=None), 1)
    years = (data.days - data.days.mean()) / 365.25
    dates = np.stack([years, years[::-1], years + 0.3])
    found = one_step_slopes(data.log_density[None], data.censor[None], dates)[0]
    expected = [np.polyfit(row, data.log_density, 1)[0] for row in dates]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_names_of_the_paces_at_which_power_is_wanted() -> None:
    slow = float(np.log(2)) / 12 / 30.44
    assert trend_paces(0.0) == {"a doubling in 12 months": pytest.approx(slow)} == trend_paces(-1.0)
    assert list(trend_paces(2 * slow)) == ["a doubling in 6.0 months", "a doubling in 12 months"]


def test_the_simulated_power_is_the_one_that_was_published() -> None:
    """The streams of random numbers are named: shares of few worlds, frozen."""
    assert SHOCKS is not None
    tests = shuffle_power(DATA, SHOCKS, {"fast": 0.004}, worlds=40, seed=2)
    found = {name: (share.size, share.power[0].share) for name, share in tests.items()}
    assert found == {
        BLOCKS: pytest.approx(FOUND[0]),
        "headline": pytest.approx(FOUND[1]),
        "envelope": pytest.approx(FOUND[2]),
    }
    broken = break_power(DATA, SHOCKS, 0.006, worlds=20, seed=2)
    assert (broken.size, *(effect.share for effect in broken.power)) == pytest.approx(FOUND[3])
    assert [effect.effect for effect in broken.power] == ["the pace halves midway", "the pace stops midway"]
    assert break_power(DATA, SHOCKS, -0.006, worlds=2, seed=2).power == ()
    stated = break_power(bent(0, 0.005, 0.005), SHOCKS, 0.006, split=pd.Timestamp("2022-11-30"), worlds=20, seed=2)
    assert (stated.size, stated.power[0].share) == pytest.approx(FOUND[4])
    assert stated.power[0].effect == "the paper's rates (0.0048 before, 0.0073 after) hold"
