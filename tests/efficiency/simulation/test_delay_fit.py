"""Models of delays: likelihoods against other programs, exact intervals, coverage, and what seconds cannot tell."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import statsmodels.formula.api as smf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from statsmodels.stats.anova import anova_lm

from densing.core import InputError
from densing.efficiency.profile import own_seconds
from densing.efficiency.simulation import Delay, DelayFit, delayed, fit_delays, load_cluster, to_toml
from densing.efficiency.simulation.delay_fit import (
    LEAST_RANKS,
    LEAST_VALUES,
    DelayModel,
    _distances,
    _estimate,
    _iid,
    _interval,
    _located,
    _log_density,
    _persistent,
    _quantiles,
    _region,
    _standardised,
    _variances,
)
from tests.support import folders
from tests.support.delay_runs import delayed_run


def model(fit: DelayFit, kind: str, lasts: str = "step") -> DelayModel:
    return next(one for one in fit.models if (one.kind, one.lasts) == (kind, lasts))


def world(kind: str, lasts: str, ranks: int, steps: int, seed: int, jitter: float = 0.0) -> np.ndarray:
    """Seconds of ranks: 0.4 of work, delays of mean 0.1 or Lomax(0.1, 2.5)."""
    random = np.random.default_rng(seed)
    shape = (ranks, steps if lasts == "step" else 1)
    late = random.exponential(0.1, shape) if kind == "shifted-exp" else 0.1 * random.pareto(2.5, shape)
    return 0.4 + late + jitter * random.standard_normal((ranks, steps))


def test_an_exponential_is_scipys() -> None:
    own = world("shifted-exp", "step", 6, 40, 1)
    found = model(fit_delays(own), "shifted-exp")
    least, mean = stats.expon.fit(own.ravel())
    assert found.mu is not None and math.isclose(found.work.value, least)
    # scipy divides by n, though the least value was taken from the same seconds.
    assert math.isclose(1 / found.mu.value, mean * own.size / (own.size - 1))
    expected = stats.expon.logpdf(own, found.work.value, 1 / found.mu.value).sum()
    assert math.isclose(found.log_likelihood, expected, rel_tol=1e-9)
    # 2 mu times the sum beyond the least is chi-squared with 2 (n - 1) degrees of freedom.
    total = (own - own.min()).sum()
    low, high = stats.chi2.ppf((0.025, 0.975), 2 * (own.size - 1)) / (2 * total)
    assert math.isclose(found.mu.low, low, rel_tol=1e-9) and math.isclose(found.mu.high, high, rel_tol=1e-9)
    # n (n - 1) times what the work lies below the least value, over that sum, is F with 2 and 2 (n - 1) degrees.
    reach = stats.f.ppf(0.95, 2, 2 * (own.size - 1)) * total / (own.size * (own.size - 1))
    assert found.work.high == least and math.isclose(least - found.work.low, reach, rel_tol=1e-9)
    assert math.isclose(found.bic, 2 * math.log(own.size) - 2 * expected, rel_tol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_a_pareto_is_scipys(seed: int) -> None:
    own = world("pareto", "step", 8, 60, seed)
    found = model(fit_delays(own), "pareto")
    beyond = np.sort(own.ravel())[1:] - own.min()
    shape, _, scale = stats.lomax.fit(beyond, floc=0)
    assert found.shape is not None and found.scale is not None
    # On a grid of the logarithm a hundredth apart.
    assert math.isclose(found.shape.value, shape, rel_tol=0.02) and math.isclose(found.scale.value, scale, rel_tol=0.02)
    at = found.shape.value, found.work.value, found.scale.value
    assert math.isclose(found.log_likelihood, stats.lomax.logpdf(own, *at).sum(), rel_tol=1e-4)

    def profile(log_shape: float) -> float:
        scales = np.exp(np.linspace(math.log(scale) - 4, math.log(scale) + 6, 4001))[:, None]
        return float(stats.lomax.logpdf(beyond, math.exp(log_shape), 0, scales).sum(axis=1).max())

    best = stats.lomax.logpdf(beyond, shape, 0, scale).sum()
    for end in (found.shape.low, found.shape.high):
        assert math.isclose(2 * (best - profile(math.log(end))), stats.chi2.ppf(0.95, 1), abs_tol=0.15)


def test_draws_with_noise_have_the_densities_of_other_programs() -> None:
    y = np.linspace(-0.3, 3, 23)
    for noise in (0.01, 0.1, 0.5):
        found = _log_density(y, noise, 0.7, math.inf)
        expected = stats.exponnorm.logpdf(y, 0.7 / noise, 0, noise)
        assert np.allclose(found[expected > -30], expected[expected > -30], atol=1e-6)
        found = _log_density(y, noise, 0.7, 2.5)
        for at, value in zip(y, found, strict=True):
            law, blur = stats.lomax(2.5, 0, 0.7 * 2.5), stats.norm(0, noise)
            ends = max(0.0, at - 9 * noise), max(at, 0) + 9 * noise
            expected, _ = integrate.quad(lambda d, at=at, law=law, blur=blur: law.pdf(d) * blur.pdf(at - d), *ends)
            assert expected < 1e-12 or math.isclose(math.exp(value), expected, rel_tol=1e-5)


def test_the_location_is_integrated_out() -> None:
    """Without noise: mu^n exp(-mu sum) / (n mu); with it, against another quadrature."""
    means = np.sort(np.random.default_rng(2).exponential(1.0, 9))
    found = _located(means, 1e-5, math.log(0.8), math.inf).integral
    expected = -9 * math.log(0.8) - (means - means[0]).sum() / 0.8 - math.log(9 / 0.8)
    assert math.isclose(found, expected, abs_tol=1e-3)
    for shape in (math.inf, 2.0):
        found = _located(means, 0.2, math.log(0.8), shape).integral
        grid = np.linspace(means[0] - 6, means[0] + 2, 4001)
        each = [_log_density(means - work, 0.2, 0.8, shape).sum() for work in grid]
        assert math.isclose(found, math.log(integrate.simpson(np.exp(each), x=grid)), abs_tol=0.02)


TRUTHS = [("shifted-exp", "step"), ("pareto", "step"), ("shifted-exp", "run"), ("pareto", "run")]


@pytest.mark.parametrize(("kind", "lasts"), TRUTHS)
def test_the_model_that_made_the_seconds_is_chosen(kind: str, lasts: str) -> None:
    # Ranks that keep their draw have one each: to tell the laws apart takes many.
    ranks, steps = (64, 30) if lasts == "step" else (400, 5)
    fit = fit_delays(world(kind, lasts, ranks, steps, 3, 0.005 if lasts == "run" else 0.0))
    best = fit.best
    assert best is not None and (best.kind, best.lasts) == (kind, lasts) and best.p > 0.01
    assert fit.status == "ok" and fit.delay is not None and fit.delay.lasts == lasts and fit.delay.a == 0
    assert fit.work_s is not None and math.isclose(fit.work_s, 0.4, abs_tol=0.01)
    assert best.name in fit.sentence and f"{ranks} ranks, {steps} steps" in fit.sentence
    assert [one.bic for one in fit.models] == sorted(one.bic for one in fit.models) and len(fit.models) == 5
    assert fit.between is not None and (fit.between > 0.9) == (lasts == "run")


@given(seed=st.integers(0, 99), factor=st.floats(1e-6, 1e3), kind=st.sampled_from(TRUTHS))
@settings(max_examples=10)
def test_other_units_give_the_same_fit(seed: int, factor: float, kind: tuple[str, str]) -> None:
    own = world(*kind, 5, 16, seed, 0.01 if kind[1] == "run" else 0.0)
    one, other = fit_delays(own), fit_delays(own * factor)
    assert one.status == other.status and one.sentence.split(",")[0] == other.sentence.split(",")[0]
    for a, b in zip(one.models, other.models, strict=True):
        assert (a.kind, a.lasts) == (b.kind, b.lasts) and math.isclose(a.distance, b.distance, rel_tol=1e-4)
        assert math.isclose(a.log_likelihood - own.size * math.log(factor), b.log_likelihood, abs_tol=1e-4)
        for name, power in (("work", 1), ("mu", -1), ("scale", 1), ("shape", 0)):
            x, y = getattr(a, name), getattr(b, name)
            assert (x is None) == (y is None)
            if x is not None:
                # A Pareto is fitted on a grid whose ends are where rounding puts them.
                assert math.isclose(x.value * factor**power, y.value, rel_tol=0.02)
                assert math.isclose(x.high * factor**power, y.high, rel_tol=0.02)


@given(seed=st.integers(0, 99), order=st.permutations(range(5)), kind=st.sampled_from(TRUTHS))
@settings(max_examples=10)
def test_the_order_of_ranks_tells_nothing(seed: int, order: list[int], kind: tuple[str, str]) -> None:
    own = world(*kind, 5, 16, seed, 0.01 if kind[1] == "run" else 0.0)
    one, other = fit_delays(own), fit_delays(own[order])
    for a, b in zip(one.models, other.models, strict=True):
        assert (a.kind, a.lasts) == (b.kind, b.lasts) and math.isclose(a.bic, b.bic, rel_tol=1e-9)
        assert math.isclose(a.p, b.p, abs_tol=1e-9) and math.isclose(a.work.value, b.work.value, rel_tol=1e-9)


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ([[0.1, math.nan]], r"own\[0, 1\]: nan"),
        ([[0.1, 0.2], [-0.1, 0.2]], r"own\[1, 0\]: -0.1"),
        ([[math.inf]], "inf"),
        ([0.1, 0.2], "dimensions"),
        ([["x"]], "own"),
        ([[0.1], [0.1, 0.2]], "own"),
    ],
)
def test_what_are_no_seconds_is_refused(own: object, told: str) -> None:
    with pytest.raises(InputError, match=told):
        fit_delays(own)  # type: ignore[arg-type]


def codes(fit: DelayFit) -> set[str]:
    return {note.code for note in fit.notes}


def test_too_little_and_no_spread_are_said() -> None:
    few = fit_delays(np.full((2, 3), 0.5))
    assert (few.status, few.delay, few.models, codes(few)) == ("too few", None, (), {"few-values"})
    assert "too few" in few.sentence
    flat = fit_delays(np.full((4, 9), 0.5))
    assert (flat.status, flat.delay) == ("no spread", None) and "no delay" in flat.sentence
    with pytest.raises(InputError, match="cannot write a delay"):
        delayed(load_cluster("cpu2"), flat, "a test")


def test_one_rank_or_one_step_does_not_tell_how_long_a_draw_lasts() -> None:
    for own in (world("shifted-exp", "step", 1, 40, 0), world("shifted-exp", "step", 40, 1, 0)):
        fit = fit_delays(own)
        assert {one.lasts for one in fit.models} == {"step"} and "lasts-unknown" in codes(fit)
        assert fit.between is None and "unknown" in fit.sentence


def test_a_tail_that_few_ranks_leave_open_is_said() -> None:
    """Of exponential draws, one a rank, eight ranks do not rule out a Pareto; four hundred figures of steps do."""
    fit = fit_delays(world("shifted-exp", "run", 8, 30, 1, 0.005))
    assert fit.best is not None and fit.best.kind == "shifted-exp" and fit.heaviest is not None and fit.heaviest < 3
    assert "tail-open" in codes(fit) and "or more is not ruled out" in fit.sentence
    sure = fit_delays(world("shifted-exp", "step", 32, 60, 1))
    assert sure.heaviest is None and "tail-open" not in codes(sure)


def test_few_ranks_that_keep_their_draw_are_said() -> None:
    fit = fit_delays(world("shifted-exp", "run", 4, 30, 5, 0.005))
    best = fit.best
    assert best is not None and best.lasts == "run" and {"few-ranks", "jitter"} <= codes(fit)
    assert ("pareto", "run") not in {(one.kind, one.lasts) for one in fit.models}
    assert best.mu is not None and best.mu.high > 4 * best.mu.low


def test_two_ranks_leave_the_mean_delay_open_above() -> None:
    """No rate of zero is divided by: with one excess alone the interval of the mean has no upper end."""
    fit = fit_delays(np.array([[0.1], [0.15]]) + 1e-4 * np.random.default_rng(0).random((2, 6)))
    best = fit.models[0]
    assert best.name == "shifted exponential, persistent" and best.mu is not None and best.mu.low == 0
    assert " up) beyond " in fit.sentence and "mean 50" in fit.sentence


def test_ranks_that_are_never_late_have_no_law_of_delays() -> None:
    random = np.random.default_rng(0)
    even = fit_delays(random.normal(0.4, 0.01, (8, 40)))
    assert even.status == "even" and even.delay is not None and even.delay.kind == "empirical"
    assert math.isclose(even.delay.mean, np.mean([*even.delay.values])) and "noise" in even.sentence
    with pytest.raises(InputError, match="ranks are equal"):
        _ = even.models[0].delay


def test_seconds_that_no_model_looks_like_are_taken_as_seen() -> None:
    random = np.random.default_rng(0)
    own = 0.4 + np.where(random.random((8, 80)) < 0.1, 0.3, 0.0) + 0.02 * random.random((8, 80))
    fit = fit_delays(own)
    assert fit.status == "no fit" and fit.delay is not None and fit.work_s is not None
    assert fit.delay.kind == "empirical" and len(fit.delay.values) == 500 and "no model fits" in fit.sentence
    assert math.isclose(fit.work_s + fit.delay.mean, own.mean(), rel_tol=1e-3)
    two = fit_delays(
        np.repeat([[0.4], [0.4], [0.41], [0.8], [0.81], [0.8]], 50, axis=1) + 1e-3 * random.random((6, 50))
    )
    assert two.delay is not None and two.delay.lasts == "run"


def test_steps_that_are_slow_on_every_rank_are_said() -> None:
    own = world("shifted-exp", "step", 8, 30, 0) + np.linspace(0, 0.5, 30)
    assert "steps-differ" in codes(fit_delays(own))
    own = world("shifted-exp", "step", 8, 30, 0)
    assert "steps-differ" not in codes(fit_delays(own))
    own[:, 0] += 5
    assert "slow-first-step" in codes(fit_delays(own))


def test_some_ranks_late_more_often_are_said() -> None:
    random = np.random.default_rng(0)
    fit = fit_delays(0.4 + random.exponential(0.1, (8, 60)) * np.array([1, 1, 1, 1, 1, 1, 4, 4])[:, None])
    assert fit.best is not None and fit.best.lasts == "step" and "ranks-differ" in codes(fit)


def test_a_cluster_bears_the_delay_and_where_it_is_from(tmp_path: object) -> None:
    for kind, field in (("shifted-exp", "mu"), ("pareto", "scale")):
        fit = fit_delays(world(kind, "step", 32, 40, 1))
        cluster = delayed(load_cluster("cpu2"), fit, "a test")
        source = cluster.sources[f"delay.{field}"]
        assert cluster.delay == fit.delay and source.evidence == "measured" and "95 % interval" in source.source
        assert "0.4" in cluster.sources["delay.lasts"].source
        path = tmp_path / "mine.toml"  # type: ignore[operator]
        path.write_text(to_toml(cluster))
        assert load_cluster(path) == cluster
    # A delay that was there goes, with its sources.
    seen = delayed(cluster, fit_delays(np.random.default_rng(0).normal(0.4, 0.01, (8, 40))), "another")
    assert sorted(key for key in seen.sources if "delay" in key) == ["delay.lasts", "delay.values"]


@pytest.mark.slow
def test_intervals_from_simulated_traces_hold_the_truth() -> None:
    """95 % intervals of 200 worlds: under 181 or over 198 that hold would be as rare as 1 in 1000."""
    hits = 0
    for seed in range(200):
        run = delayed_run(Delay("shifted-exp", mu=10.0, lasts="step", seed=seed), ranks=4, steps=12)
        mu = _iid(np.array(own_seconds(run.ranks).seconds), "shifted-exp").mu
        assert mu is not None
        hits += mu.low <= 10 <= mu.high
    assert 181 <= hits <= 198


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [4, 8])
def test_intervals_of_ranks_that_keep_their_draw_hold_the_truth(ranks: int) -> None:
    hits = 0
    for seed in range(200):
        found = _persistent(world("shifted-exp", "run", ranks, 10, seed, 0.02), "shifted-exp").mu
        assert found is not None
        hits += found.low <= 10 <= found.high
    assert 181 <= hits <= 198


def figures(fit: DelayFit) -> dict[str, list[float]]:
    """Every figure of every model."""
    found = {}
    for one in fit.models:
        estimates = [each for each in (one.work, one.mu, one.scale, one.shape) if each is not None]
        numbers = [figure for each in estimates for figure in (each.value, each.standard_error, each.low, each.high)]
        numbers += [one.jitter_s or 0.0, one.log_likelihood, one.bic, one.distance, one.p]
        found[f"{one.kind}, {one.lasts}"] = numbers
    return found


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: ", ".join(truth))
def test_grids_are_as_fine_as_they_were(truth: tuple[str, str]) -> None:
    """Figures of this program, frozen: how grids are laid moves them by less than any other program could tell."""
    frozen = json.loads((folders.DATA / "delay_fits.json").read_text(encoding="utf-8"))[", ".join(truth)]
    found = figures(fit_delays(world(*truth, 6, 16, 0, 0.01 if truth[1] == "run" else 0.0)))
    assert set(found) == set(frozen)
    for name, numbers in frozen.items():
        assert found[name] == pytest.approx(
            [math.inf if each is None else each for each in numbers], rel=1e-6, abs=1e-9
        )


def test_variances_are_those_of_a_two_way_analysis() -> None:
    random = np.random.default_rng(3)
    own = 0.4 + 0.05 * random.standard_normal((5, 12)) + 0.03 * random.standard_normal((5, 1))
    between, p_ranks, p_steps = _variances(own)
    table = {"own": own.ravel(), "rank": np.repeat(range(5), 12), "step": np.tile(range(12), 5)}
    found = anova_lm(smf.ols("own ~ C(rank) + C(step)", table).fit())["PR(>F)"]
    assert (p_ranks, p_steps) == pytest.approx((found["C(rank)"], found["C(step)"]))
    # The share between ranks is the intraclass correlation of a one-way analysis.
    one_way = anova_lm(smf.ols("own ~ C(rank)", table).fit())["mean_sq"]
    among, within = one_way["C(rank)"], one_way["Residual"]
    assert between == pytest.approx((among - within) / (among + 11 * within))
    assert _variances(own[:1]) == _variances(own[:, :1]) == (None, 1.0, 1.0)
    assert _variances(np.arange(6)[:, None] + np.zeros(5)) == (pytest.approx(1.0), 0.0, 1.0)
    same = random.standard_normal(12) + np.zeros((5, 1))
    assert _variances(same)[0] == 0.0


def test_distances_are_scipys() -> None:
    random = np.random.default_rng(0)
    sample, reference = np.sort(random.normal(size=(3, 40))), np.sort(random.normal(size=4001))
    expected = [stats.ks_2samp(row, reference).statistic for row in sample]
    # Against a reference of so many the steps of its own distribution are small.
    assert _distances(sample, reference) == pytest.approx(expected, abs=1 / 4000)
    low, high = np.quantile(sample[0], [0.25, 0.75])
    assert _standardised(sample[0]) == pytest.approx((sample[0] - np.median(sample[0])) / (high - low))
    assert (_standardised(np.zeros(5)) == 0).all()


def test_an_interval_ends_where_the_likelihood_has_fallen() -> None:
    grid = np.linspace(-3, 5, 81)
    value, low, high = _interval(grid, -((grid - 1) ** 2) / 2, 2.0, (-3, 5))
    assert (value, low, high) == pytest.approx((1, -1, 3), abs=5e-3)
    # A curve that does not fall before the edge of what was looked at is open there, and only there.
    flat = np.minimum(-(grid - 1), 0)
    assert _interval(grid, flat, 2.0, (-3, 5))[1:] == (-math.inf, pytest.approx(3, abs=0.02))
    assert _interval(grid, flat, 2.0, (-4, 5))[1] == -3
    assert _interval(-grid[::-1], flat[::-1], 2.0, (-5, 3))[2] == math.inf
    assert _interval(-grid[::-1], flat[::-1], 2.0, (-5, 4))[2] == 3
    holes = np.where(np.arange(81) < 5, -np.inf, -((grid - 1) ** 2) / 2)
    assert _interval(grid, holes, 2.0, (-3, 5)) == pytest.approx((1, -1, 3), abs=5e-3)
    assert _region(grid, -((grid - 1) ** 2) / 2, 2.0) == pytest.approx((-1, 3))
    assert _region(grid, flat, 1e9) == (-3, 5)
    found = _estimate(math.log(2), math.log(1), math.log(5))
    assert (found.value, found.standard_error, found.low, found.high) == pytest.approx((2, 4 / 3.92, 1, 5))
    assert _estimate(0.0, -1.0, 800.0).high == math.inf and _estimate(0.0, 0.1, -0.1).low == 1.0


def test_many_values_are_written_as_quantiles() -> None:
    values = np.random.default_rng(0).exponential(size=501)
    found = _quantiles(values)
    assert found == pytest.approx(np.quantile(values, (np.arange(500) + 0.5) / 500))
    assert _quantiles(values[:500]) == tuple(np.sort(values[:500]))


@pytest.mark.parametrize(("first", "told"), [(0.61, True), (0.59, False)])
def test_a_first_step_is_slow_beyond_half_of_the_others_or_five_spreads(first: float, told: bool) -> None:
    own = np.full((5, 9), 0.4) + 1e-4 * np.random.default_rng(0).random((5, 9))
    own[:, 0] = first
    notes = {note.code: note for note in fit_delays(own).notes}
    assert ("slow-first-step" in notes) == told
    if told:
        assert notes["slow-first-step"].details == pytest.approx({"first_s": 0.61, "median_s": 0.4}, rel=1e-3)
    wide = 0.4 * np.arange(1, 10) + np.zeros((5, 1)) + 1e-4 * np.random.default_rng(0).random((5, 9))
    spread = 1.4826 * 0.8
    for factor, slow in ((4.9, False), (5.1, True)):
        wide[:, 0] = 2.2 + factor * spread
        assert ("slow-first-step" in codes(fit_delays(wide))) == slow


def test_values_enough_and_spread_enough() -> None:
    random = np.random.default_rng(0)
    assert fit_delays(0.4 + random.exponential(size=(1, LEAST_VALUES))).status != "too few"
    assert fit_delays(0.4 + random.exponential(size=(1, LEAST_VALUES - 1))).status == "too few"
    ranks = world("shifted-exp", "run", LEAST_RANKS, 6, 0, 0.005)
    assert ("pareto", "run") in {(one.kind, one.lasts) for one in fit_delays(ranks).models}
    assert ("pareto", "run") not in {(one.kind, one.lasts) for one in fit_delays(ranks[1:]).models}
