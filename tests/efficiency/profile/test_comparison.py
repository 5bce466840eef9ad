"""Comparing two runs: means by hand, intervals against Welch's, and their simulated coverage.

``DENSING_COVERAGE_BUDGET=full`` simulates every scenario 4,000 times. The small budget fails when even the upper end
of the 99.9 % binomial band of the measured share misses what is promised.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from statsmodels.tsa.stattools import acf

from densing.core.errors import InputError
from densing.efficiency.profile.comparison import (
    METRICS,
    MIN_STEPS,
    OUTLIER_MADS,
    OUTLIER_SHARE,
    Comparison,
    RunSteps,
    compare,
    compare_means,
    lag_one,
    run_steps,
)

FULL = os.environ.get("DENSING_COVERAGE_BUDGET") == "full"
REPS = 4000 if FULL else 250
LOG = logging.getLogger(__name__)


def run(*times: float, ranks: int = 1, **more: tuple[float, ...]) -> RunSteps:
    """Return a run of steps that took so long."""
    return RunSteps(tuple(range(2, 2 + len(times))), {"step_ns": tuple(map(float, times)), **more}, ranks)


def row(rank: int, steps: dict[int, int], factor: int = 1) -> dict[str, Any]:
    """Return what a rank yields: every figure of a step is its value times that figure's place."""
    parts = [
        {"number": n, "partition": {key: factor * value * (i + 1) for i, key in enumerate(METRICS.values())}}
        for n, value in steps.items()
    ]
    return {"rank": rank, "steps": parts}


def test_steps_are_averaged_over_ranks() -> None:
    found = run_steps(iter([row(0, {2: 10, 3: 20, 4: 60}), row(1, {2: 30, 3: 40}), row(2, {3: 0, 2: 2})]))
    assert (found.numbers, found.ranks, found.left_out) == ((2, 3), 3, 1)
    # Step 4 is on one rank only: a mean over other ranks would be no comparison.
    assert found.values["step_ns"] == (14.0, 20.0)
    assert found.values["compute_ns"] == (28.0, 40.0)
    assert found.values["idle_ns"] == (8 * 14.0, 8 * 20.0)
    assert run_steps([]).numbers == ()


def test_a_number_that_comes_twice_is_two_steps() -> None:
    twice = row(0, {1: 10})
    twice["steps"] += row(0, {1: 50})["steps"]
    assert run_steps([twice, twice]).values["step_ns"] == (10.0, 50.0)


@pytest.mark.parametrize(("factor", "verdict", "part"), [(2, "slower", "more"), (0.5, "faster", "less")])
def test_a_clear_change_is_named(factor: float, verdict: str, part: str) -> None:
    times = (100.0, 103.0, 99.0, 102.0, 98.0, 101.0)
    found = compare(
        run(*times, idle_ns=times), run(*(factor * t for t in times), idle_ns=tuple(factor * t for t in times))
    )
    step, idle = found.changes
    assert (found.verdict, step.verdict, idle.verdict) == (verdict, verdict, part)
    assert step.base == 100.5 and step.other == pytest.approx(factor * 100.5)
    assert step.difference == pytest.approx((factor - 1) * 100.5) and step.ratio == pytest.approx(factor)
    assert step.ratio_low is not None and step.ratio_high is not None
    assert step.ratio_low < factor < step.ratio_high


def test_the_same_run_has_not_changed() -> None:
    found = compare(run(5, 7, 6, 8, 6), run(5, 7, 6, 8, 6))
    assert found.verdict == "no change beyond noise" and found.changes[0].difference == 0
    # Without any noise, as in a simulation, every difference is one.
    assert compare(run(*[5] * 5), run(*[5] * 5)).verdict == "no change beyond noise"
    assert compare(run(*[5] * 5), run(*[6] * 5)).verdict == "slower"


def test_too_few_steps_have_no_verdict() -> None:
    found = compare(run(1, 2, 3, ranks=2), run(100, 200, 300, 400, 500))
    [change] = found.changes
    assert change.verdict == "too few steps" and change.low is change.ratio is change.correlation is None
    assert (change.base, change.other) == (2, 300)
    assert [note.code for note in found.notes] == ["too-few-steps", "different-ranks"]
    assert "3 and 5 step(s)" in found.notes[0].message


def test_different_windows_are_told() -> None:
    rows = [{**row(0, dict.fromkeys(range(6), 100)), "window": name} for name in ("steps", "all")]
    steps, whole = (run_steps([one]) for one in rows)
    assert (steps.window, whole.without_first(1).window) == ("steps", "all")
    [note] = compare(steps, whole).notes
    assert note.code == "different-windows" and "steps against all" in note.message
    assert compare(steps, steps).notes == () == compare(steps, run(*[100] * 6)).notes


def test_a_slow_first_step_is_told_and_kept() -> None:
    times = (500.0, 101.0, 99.0, 102.0, 98.0, 100.0)
    found = compare(run(*times), run(*times[1:], 100.0))
    assert [note.code for note in found.notes] == ["slow-first-step"] and found.changes[0].base == pytest.approx(
        1000 / 6
    )
    assert "its first step, 2, took 0.001 ms" in found.notes[0].message
    ms = run(*(1e6 * time for time in times))
    said = compare(ms, ms).notes[0].message
    assert "its first step, 2, took 500.000 ms while the others take 100.000 ms; it is included" in said
    without = compare(run(*times), run(*times), skip_first=1)
    assert [note.code for note in without.notes] == ["steps-skipped"] * 2 and without.changes[0].base == 100
    # Only the first: a spike elsewhere is noise, and a run that varies much has no outlier.
    assert compare(run(*times[::-1]), run(*times[::-1])).notes == ()
    assert compare(run(200, 50, 210, 40, 190), run(200, 50, 210, 40, 190)).notes == ()


def test_results_are_plain_data() -> None:
    rng = np.random.default_rng(0)
    runs = [run(*rng.normal(100, 5, 12), ranks=2, comm_ns=(0.0,) * 12) for _ in range(2)]
    found = compare(*runs)
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert Comparison.from_dict(json.loads(text)) == found
    # A ratio of nothings is undefined, not 0 and not 1.
    assert found.changes[1].ratio is None and found.changes[1].difference == 0
    assert compare(*runs) == found and compare(*runs, seed=1) != found


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"level": 1.0}, "level 1.0"),
        ({"level": 95}, "level 95"),
        ({"draws": 10}, "draws 10"),
        ({"skip_first": -1}, "skip_first -1"),
    ],
)
def test_nonsense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        compare(run(*range(1, 9)), run(*range(1, 9)), **options)


def test_runs_without_steps_are_refused() -> None:
    with pytest.raises(InputError, match="the other run has no marked step"):
        compare(run(1, 2), run())
    with pytest.raises(InputError, match="the base run has no step_ns"):
        compare(RunSteps((1,), {"idle_ns": (1.0,)}), run(1))
    assert compare(run(*range(1, 9)), run(*range(1, 9)), skip_first=20).changes[0].base is None


TIMES = st.lists(st.floats(1e3, 1e10), min_size=MIN_STEPS, max_size=20)


@settings(max_examples=60)
@given(base=TIMES, other=TIMES, scale=st.sampled_from([2.0, 1024.0]), level=st.floats(0.6, 0.99))
def test_units_do_not_matter_and_intervals_nest(
    base: list[float], other: list[float], scale: float, level: float
) -> None:
    found = compare(run(*base), run(*other), level=level, draws=200).changes[0]
    assert found.difference is not None and found.low is not None and found.high is not None
    assert found.low <= found.difference <= found.high
    assert found.difference == pytest.approx(np.mean(other) - np.mean(base))
    scaled = compare(run(*(scale * t for t in base)), run(*(scale * t for t in other)), level=level, draws=200).changes[
        0
    ]
    assert scaled.verdict == found.verdict
    assert (scaled.low, scaled.high) == pytest.approx((scale * found.low, scale * found.high), rel=1e-9)
    assert scaled.ratio == pytest.approx(found.ratio)
    wider = compare(run(*base), run(*other), level=0.995, draws=200).changes[0]
    assert wider.low is not None and wider.high is not None
    assert wider.low <= found.low and found.high <= wider.high
    for value in (found.ratio_low, found.ratio_high):
        assert value is None or (math.isfinite(value) and value > 0)


def uncorrelated(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    """Draw a sample whose own correlation asks for no correction."""
    while lag_one(sample := rng.normal(0, 1, size)) > 0:
        pass
    return sample


def test_intervals_are_welchs_where_those_hold() -> None:
    """Normal steps: the bootstrap-t estimates Student's t with Welch's degrees of freedom (Welch 1947, in SciPy)."""
    rng = np.random.default_rng(3)
    ours, theirs = [], []
    for _ in range(12):
        a, b = uncorrelated(rng, 40), 1.5 * uncorrelated(rng, 30)
        [found] = compare_means([(a, b)], level=0.95, draws=4000, seed=0)
        interval = stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
        assert (found.low + found.high) / 2 == pytest.approx((interval.low + interval.high) / 2)
        ours.append(found.high - found.low)
        theirs.append(interval.high - interval.low)
    assert np.mean(ours) == pytest.approx(np.mean(theirs), rel=0.04)


def test_resampling_in_blocks_is_resampling(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    columns = [(rng.normal(10, 1, 30), rng.normal(11, 1, 30)) for _ in range(2)]
    whole = compare_means(columns, level=0.9, draws=500, seed=5)
    monkeypatch.setattr("densing.efficiency.profile.comparison._BLOCK", 100)
    assert compare_means(columns, level=0.9, draws=500, seed=5) == whole


@given(st.lists(st.integers(-1000, 1000), min_size=3, max_size=30))
def test_lag_one_is_the_known_estimate(values: list[int]) -> None:
    sample = np.array(values, float)
    if sample.var() == 0:
        assert lag_one(sample) == 0
        return
    raw = float(acf(sample, nlags=1, fft=False)[1])
    assert lag_one(sample) == pytest.approx(min(max(raw + (1 + 3 * raw) / len(values), 0), 0.95), abs=1e-9)


def autoregressive(correlation: float) -> Callable[[np.random.Generator, int], NDArray[np.float64]]:
    def draw(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        found, value = [], 0.0
        for shock in rng.normal(0, 5, size + 60):
            value = correlation * value + shock
            found.append(value)
        return np.array(found[60:])

    return draw


SCENARIOS: dict[str, tuple[Callable[[np.random.Generator, int], NDArray[np.float64]], int, float]] = {
    # Kind of noise, steps, and the coverage promised of 95 % intervals.
    "normal, 5 steps": (lambda rng, n: rng.normal(0, 5, n), 5, 0.93),
    "normal, 20 steps": (lambda rng, n: rng.normal(0, 5, n), 20, 0.93),
    "skewed, 10 steps": (lambda rng, n: 10 * (rng.lognormal(0, 0.5, n) - math.exp(0.125)), 10, 0.93),
    "every tenth step slow, 20 steps": (
        lambda rng, n: 50 * ((rng.random(n) < 0.1) - 0.1) + rng.normal(0, 1, n),
        20,
        0.93,
    ),
    "correlated 0.3, 20 steps": (autoregressive(0.3), 20, 0.90),
    "correlated 0.5, 50 steps": (autoregressive(0.5), 50, 0.90),
}


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_intervals_hold_the_truth_as_often_as_they_say(scenario: str) -> None:
    noise, size, promised = SCENARIOS[scenario]
    rng = np.random.default_rng(7)
    held = np.zeros(2)
    for seed in range(REPS):
        [found] = compare(run(*(100 + noise(rng, size))), run(*(110 + noise(rng, size))), seed=seed, draws=400).changes
        assert found.low is not None and found.high is not None
        held[0] += found.low <= 10 <= found.high
        held[1] += found.ratio_low is None or found.ratio_high is None or found.ratio_low <= 1.1 <= found.ratio_high
    LOG.info("%s: difference %.3f, ratio %.3f of %d", scenario, *(held / REPS), REPS)
    for count in held:
        share = count / REPS
        bound = share if FULL else stats.binomtest(int(count), REPS).proportion_ci(0.998).high
        assert bound >= promised


@pytest.mark.slow
def test_a_change_of_two_standard_deviations_is_seen_in_ten_steps() -> None:
    """Width matters too: an interval that always holds the truth says nothing."""
    rng = np.random.default_rng(8)
    verdicts = [
        compare(run(*rng.normal(100, 5, 10)), run(*rng.normal(110, 5, 10)), seed=seed, draws=400).verdict
        for seed in range(REPS)
    ]
    assert verdicts.count("slower") > 0.9 * REPS and "faster" not in verdicts


@pytest.mark.parametrize("correlated", [False, True])
def test_an_interval_is_the_bootstrap_t_by_hand(correlated: bool) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(100, 5, 12), rng.normal(104, 3, 9)
    if correlated:
        a, b = np.sort(a), np.sort(b)
    rho = lag_one(a, b)
    assert (rho > 0.3) == correlated
    [found] = compare_means([(a, b)], level=0.9, draws=300, seed=4)
    generator = np.random.default_rng(4)
    draws = [sample[generator.integers(0, len(sample), (300, len(sample)))] for sample in (a, b)]
    means = [each.mean(axis=1) for each in draws]
    squares = [each.var(axis=1, ddof=1) / each.shape[1] for each in draws]
    own = [sample.var(ddof=1) / len(sample) for sample in (a, b)]
    wider = math.sqrt((1 + rho) / (1 - rho))
    gap = b.mean() - a.mean()
    q = np.quantile(np.abs(means[1] - means[0] - gap) / np.sqrt(squares[0] + squares[1]), 0.9)
    reach = q * math.sqrt(own[0] + own[1]) * wider
    assert (found.difference, found.low, found.high) == pytest.approx((gap, gap - reach, gap + reach))
    logs = np.log(means[1] / means[0]) - math.log(b.mean() / a.mean())
    spread = np.sqrt(squares[0] / means[0] ** 2 + squares[1] / means[1] ** 2)
    reach = np.quantile(np.abs(logs) / spread, 0.9) * wider
    reach *= math.sqrt(own[0] / a.mean() ** 2 + own[1] / b.mean() ** 2)
    ratio = b.mean() / a.mean()
    assert (found.ratio, found.ratio_low, found.ratio_high) == pytest.approx(
        (ratio, ratio * math.exp(-reach), ratio * math.exp(reach))
    )
    assert found.correlation == rho


def test_defaults_and_ends_of_options() -> None:
    times = [*range(100, 112)]
    plain = compare(run(*times), run(*times[::-1]))
    assert (plain.level, plain.draws, plain.seed) == (0.95, 2000, 0)
    assert plain == compare(run(*times), run(*times[::-1]), level=0.95, draws=2000, seed=0, skip_first=0)
    compare(run(*times), run(*times), draws=200, level=0.51)
    for options in ({"draws": 199}, {"level": 0.5}):
        with pytest.raises(InputError):
            compare(run(*times), run(*times), **options)
    enough, few = (compare(run(*times[:count]), run(*times)) for count in (MIN_STEPS, MIN_STEPS - 1))
    assert enough.verdict != "too few steps" == few.verdict and (few.steps, few.ranks) == ((MIN_STEPS - 1, 12), (1, 1))
    [skipped] = [note for note in compare(run(*times[:3]), run(*times), skip_first=5).notes if "base" in note.message]
    assert skipped.details == {"steps": 3}


@pytest.mark.parametrize(
    ("first", "told"), [(100 * (1 + OUTLIER_SHARE) + 1, True), (100 * (1 + OUTLIER_SHARE) - 1, False)]
)
def test_a_first_step_is_slow_beyond_a_share_of_the_others(first: float, told: bool) -> None:
    times = (first, *[100.0] * 7)
    assert ("slow-first-step" in {note.code for note in compare(run(*times), run(*[100] * 8)).notes}) == told


@pytest.mark.parametrize(("factor", "told"), [(1.02, True), (0.98, False)])
def test_a_first_step_is_slow_beyond_the_noise_of_the_others(factor: float, told: bool) -> None:
    others = (100, 180, 20, 140, 60, 100, 150)
    # Distances from the median of 100: 0, 0, 40, 40, 50, 80, 80.
    times = (100 + factor * OUTLIER_MADS * 1.4826 * 40, *others)
    assert ("slow-first-step" in {note.code for note in compare(run(*times), run(*others)).notes}) == told
