"""Comparing two runs: the rank test by other programs and by enumeration, its size, power and coverage simulated.

``DENSING_COVERAGE_BUDGET=full`` simulates every scenario 4,000 times. The small budget fails when even the end of the
99.9 % binomial band of the measured share misses what is promised.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from statsmodels.tsa.stattools import acf

from densing.core.errors import InputError
from densing.efficiency.profile import RunProfile, profile_run
from densing.efficiency.profile.comparison import (
    METRICS,
    MIN_STEPS,
    OUTLIER_MADS,
    OUTLIER_SHARE,
    Comparison,
    RunSteps,
    compare,
    compare_runs,
    item_figures,
    lag_one,
    rank_test,
    run_steps,
)
from densing.efficiency.timeline import Kind, RankTimeline, Spans, Step, Timeline
from tests.support.budget import FULL
from tests.support.planted_runs import Planted

REPS = 4000 if FULL else 120
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
    assert step.difference == pytest.approx((factor - 1) * 100.5, rel=0.02)
    assert step.ratio == pytest.approx(factor, rel=0.01)
    assert step.ratio_low is not None and step.ratio_high is not None
    assert step.ratio_low < factor < step.ratio_high and step.p == pytest.approx(2 / math.comb(12, 6))


def test_steps_that_do_not_overlap_have_changed_however_they_scatter() -> None:
    """75 to 81 ms against 82 to 166, six steps each: p is .002 exactly, and the interval of the ratio agrees."""
    found = compare(run(75, 79, 77, 81, 76, 78), run(166, 84, 110, 82, 97, 140)).changes[0]
    assert found.verdict == "slower" and found.ratio_low is not None and found.ratio_low > 1
    plain = rank_test(np.array([75.0, 79, 77, 81, 76, 78]), np.array([166.0, 84, 110, 82, 97, 140]))
    assert found.p == plain[0] >= 2 / math.comb(12, 6) - 1e-12 and found.p < 0.05


def test_rare_slow_steps_that_ranks_do_not_count_are_told() -> None:
    usual = [100, 101, 99, 102, 98, 103, 97, 100.5, 99.5, 101.5]
    found = compare(run(*usual), run(*usual[:-1], 900))
    assert found.verdict == "no change beyond noise"
    assert "factor of 1.8" in next(note.message for note in found.notes if note.code == "means-differ")


def test_the_same_run_has_not_changed() -> None:
    found = compare(run(5, 7, 6, 8, 6), run(5, 7, 6, 8, 6))
    assert found.verdict == "no change beyond noise" and found.changes[0].difference == 0
    # Without any noise, as in a simulation, every difference is one.
    assert compare(run(*[5] * 5), run(*[5] * 5)).verdict == "no change beyond noise"
    assert compare(run(*[5] * 5), run(*[6] * 5)).verdict == "slower"


def test_too_few_steps_have_no_verdict() -> None:
    found = compare(run(1, 2, 3, ranks=2), run(100, 200, 300, 400, 500))
    [change] = found.changes
    assert change.verdict == "too few steps" and change.low is change.ratio is change.correlation is change.p is None
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
    assert "slow-first-step" in {note.code for note in found.notes} and found.changes[0].base == 100.5
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
    assert compare(*runs) == found


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"level": 1.0}, "level 1.0"),
        ({"level": 95}, "level 95"),
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
    found = compare(run(*base), run(*other), level=level).changes[0]
    assert found.difference is not None and found.p is not None
    assert found.difference == pytest.approx(np.median(np.subtract.outer(other, base)))
    scaled = compare(run(*(scale * t for t in base)), run(*(scale * t for t in other)), level=level).changes[0]
    assert (scaled.verdict, scaled.p) == (found.verdict, found.p) and scaled.ratio == pytest.approx(found.ratio)
    back = compare(run(*other), run(*base), level=level).changes[0]
    assert back.p == pytest.approx(found.p) and back.difference == pytest.approx(-found.difference)
    wider = compare(run(*base), run(*other), level=0.995).changes[0]
    for one in (found, wider):
        assert one.low is None or (one.high is not None and one.low <= found.difference <= one.high)
    if wider.low is not None and wider.high is not None:
        assert found.low is not None and found.high is not None
        assert wider.low <= found.low and found.high <= wider.high
    for value in (found.ratio_low, found.ratio_high, found.detectable):
        assert value is None or (math.isfinite(value) and value > 0)
    # Verdict and interval are one: it leaves out 0 where there is a verdict.
    if found.low is not None and found.high is not None and len({*base, *other}) == len(base) + len(other):
        assert (found.low > 0 or found.high < 0) == (found.verdict != "no change beyond noise")
        assert (scaled.low, scaled.high) == pytest.approx((scale * found.low, scale * found.high), rel=1e-9)


@pytest.mark.parametrize(("n", "m"), [(5, 5), (5, 7), (6, 4)])
def test_the_test_is_the_enumeration_of_all_orders(n: int, m: int) -> None:
    """Alternating steps have no correlation above 0, so p and the rejected statistics are those of all orders."""
    rng = np.random.default_rng(n)
    sums = [sum(chosen) for chosen in itertools.combinations(range(n + m), m)]
    statistic = np.array(sums) - m * (m - 1) // 2
    for shift in (0.0, 1.0, 2.0):
        base, other = rng.normal(0, 1, n), rng.normal(shift, 1, m)
        p, left_out, correlation = rank_test(base, other)
        if correlation > 0:
            continue
        seen = int(np.sum(other[:, None] > base))
        truth = min(1.0, 2 * min(np.mean(statistic <= seen), np.mean(statistic >= seen)))
        assert p == pytest.approx(truth)
        assert 2 * np.mean(statistic <= left_out) < 0.05 <= 2 * np.mean(statistic <= left_out + 1)


def test_steps_alike_in_a_row_count_for_less() -> None:
    """The deviate of p shrinks by the correlation of ranks; runs further apart than either is wide need none."""
    rng = np.random.default_rng(2)
    base, other = np.sort(rng.normal(0, 1, 12)), np.sort(rng.normal(1, 1, 9))
    p, left_out, rho = rank_test(base, other)
    assert rho == lag_one(stats.rankdata(base), stats.rankdata(other)) > 0.3
    plain = stats.mannwhitneyu(base, other, method="exact").pvalue
    wider = math.sqrt((1 + rho) / (1 - rho))
    assert p == pytest.approx(2 * stats.norm.sf(stats.norm.isf(plain / 2) / wider)) and p > plain
    assert left_out < 12 * 9 / 2 - 1.96 * math.sqrt(12 * 9 * 22 / 12)
    apart = rank_test(base, other + 20)
    assert apart[0] == pytest.approx(stats.mannwhitneyu(base, other + 20, method="exact").pvalue) and apart[2] == 0


def test_the_interval_of_many_steps_is_about_that_of_few() -> None:
    """Beyond 2,500 pairs the statistic is normal: the interval changes by no more than a pair in a hundred."""
    rng = np.random.default_rng(4)
    base, other = rng.normal(0, 1, 50), rng.normal(1, 1, 50)
    _, exact, _ = rank_test(base, other)
    _, normal, _ = rank_test(base, np.append(other, 1.0))
    assert normal == pytest.approx(exact, abs=40)


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
    "normal, 5 steps": (lambda rng, n: rng.normal(0, 5, n), 5, 0.95),
    "normal, 20 steps": (lambda rng, n: rng.normal(0, 5, n), 20, 0.95),
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
def test_the_null_stands_and_changes_are_seen_as_often_as_is_said(scenario: str) -> None:
    """The interval of the ratio holds the truth as often as the null stands, since it is the test's own."""
    noise, size, promised = SCENARIOS[scenario]
    rng = np.random.default_rng(7)
    stands, seen = 0, []
    for _ in range(REPS):
        base, same = (100 + noise(rng, size) for _ in range(2))
        [null] = compare(run(*base), run(*same)).changes
        stands += null.verdict == "no change beyond noise"
        if null.detectable is not None:
            seen.append(compare(run(*base), run(*(null.detectable * (100 + noise(rng, size))))).verdict == "slower")
    LOG.info("%s: null stands %.3f, power %.3f of %d", scenario, stands / REPS, np.mean(seen), REPS)
    bound = stands / REPS if FULL else stats.binomtest(int(stands), REPS).proportion_ci(0.998).high
    assert bound >= promised
    assert 0.6 < np.mean(seen) <= 1


def test_what_runs_ran_on_comes_before_what_changed() -> None:
    """The same work on another device, world and rank, with an operator slower, one new and one gone."""
    plain = Planted(steps=6, ranks=2, layers=2)
    base, other = plain.timelines(), replace(plain, kernel=1_000_000).timelines()

    def renamed(rank: RankTimeline, old: str, new: str, device: str) -> RankTimeline:
        names = tuple(new if name == old else name for name in rank.work.names)
        origin = msgspec.structs.replace(
            rank.origin, devices=(device,), world_size=rank.origin.world_size + (new != old)
        )
        return msgspec.structs.replace(rank, work=msgspec.structs.replace(rank.work, names=names), origin=origin)

    before = profile_run(Timeline(tuple(renamed(rank, "", "", "A100") for rank in base)))
    after = profile_run(Timeline(tuple(renamed(rank, "ncclDevKernel", "ncclDevKernel_v2", "V100") for rank in other)))
    found = compare_runs(before, after)
    assert [note.code for note in found.notes[:2]] == ["other-device", "other-world-size"]
    assert "V100 against A100" in found.notes[0].message and found.verdict == "slower"
    by_name = {item.name: item for item in found.items if item.kind != "collective"}
    # Four layers of half a millisecond more, and an optimiser of a tenth of a layer.
    assert by_name["nCOMPUTE"].status == "slower"
    assert by_name["nCOMPUTE"].other_ns - by_name["nCOMPUTE"].base_ns == pytest.approx(4.1 * 500_000)
    assert (by_name["ncclDevKernel"].status, by_name["ncclDevKernel_v2"].status) == ("gone", "new")
    assert sum(item.share_pct or 0 for item in by_name.values()) == pytest.approx(100)
    assert found.items_listing.rows and Comparison.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    same = compare_runs(before, before)
    assert not same.notes and {item.status for item in same.items} == {"alike"}


def test_defaults_and_ends_of_options() -> None:
    times = [*range(100, 112)]
    plain = compare(run(*times), run(*times[::-1]))
    assert plain.level == 0.95 and plain == compare(run(*times), run(*times[::-1]), level=0.95, skip_first=0)
    compare(run(*times), run(*times), level=0.51)
    with pytest.raises(InputError):
        compare(run(*times), run(*times), level=0.5)
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


def test_figures_of_single_items_and_frames_are_the_comparison_s() -> None:
    def profiled(ns: int) -> RunProfile:
        work = [{"start": 0, "end": ns, "kind": Kind.COMPUTE, "name": "ampere_sgemm"},
                {"start": ns, "end": ns + 4_000_000, "kind": Kind.COMM, "name": "ncclDevKernel_AllReduce"}]  # fmt: skip
        steps = (Step(0, 0, ns + 4_000_000),)
        return profile_run(Timeline((RankTimeline(0, Spans.build(work), Spans.empty(), steps),)))

    before, after = profiled(2_000_000), profiled(3_000_000)
    found = compare_runs(before, after)
    metrics = ("item_ms[sgemm]", "item_ms[AllReduce]", "item_ms[all_reduce]", "item_change_pct[sgemm]", "idle_pct")
    assert item_figures(metrics, after, found) == pytest.approx(dict(zip(metrics, (3, 4, 4, 50), strict=False)))
    with pytest.raises(InputError, match="'nosuch' in its name"):
        item_figures(["item_ms[nosuch]"], after)
    frame = found.item_table().set_index("name")
    assert frame.loc["ampere_sgemm", ["base_ns", "other_ns", "status"]].tolist() == [2e6, 3e6, "slower"]
    assert found.table().set_index("metric").loc["step_ns", "other"] == 7e6
