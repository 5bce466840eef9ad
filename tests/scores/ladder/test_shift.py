"""Ratios from both arms at once: closed forms, another solver, planted truths in simulated ladders, and refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import least_squares

from densing.core import InputError
from densing.scores.fit import LawFit
from densing.scores.ladder import Shift, coverage, fit_loss, fit_shift, pair_table, simulated_ladder
from densing.scores.ladder.shift import PURE, SURE, Joint
from tests.support.budget import FULL, may_be

OURS = {"E": 2.186, "A": 50.85, "B": 27585.0, "alpha": 0.8388, "beta": 0.9474}
"""Of the record of rounds: what ladders like ours are simulated with."""


def plain_of(losses: pd.DataFrame) -> tuple[LawFit, pd.DataFrame]:
    plain = losses[losses["arm"].eq("plain")]
    return fit_loss(plain), plain


def shift_of(losses: pd.DataFrame, axis: Any = "params", **options: Any) -> Shift:
    return fit_shift(*plain_of(losses), pair_table(losses, "arm")[0], axis, **options)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ratio=st.floats(0.3, 3.0), axis=st.sampled_from(["params", "tokens"]))
def test_a_planted_ratio_without_noise_comes_out(ratio: float, axis: Any) -> None:
    quiet = {"noise": 0.0, "common": 0.0, "spread": 0.0, "seeds": 2}
    losses = simulated_ladder(**quiet, **{"params": {"rho": ratio}, "tokens": {"tau": ratio}}[axis])
    assert shift_of(losses, axis).ratio == pytest.approx(ratio, rel=2e-3)


def test_law_and_ratio_are_those_of_another_solver() -> None:
    """With the same covariance, scipy's trust region finds the same ratio from elsewhere."""
    losses = simulated_ladder(tau=0.6, seeds=3)
    law, plain = plain_of(losses)
    pairs, _ = pair_table(losses, "arm")
    joint = Joint(law.law, law.theta, plain, pairs, "tokens")
    joint.fit()
    params, tokens = (np.concatenate([plain[own], pairs[other]]).astype(float) for own, other in
                      (("params_non_embedding", "params"), ("tokens", "tokens")))  # fmt: skip
    y, arm = np.log(np.concatenate([plain["loss"], pairs["arm"]])), np.arange(len(tokens)) >= len(plain)

    def gaps(beta: Any) -> Any:
        x = {"params": params, "tokens": tokens * np.exp(beta[-1] * arm)}
        return joint.white @ (y - np.log(law.law.predict(np.exp(beta[:-1]), x)))

    found = least_squares(gaps, np.append(np.log(law.theta), 0.0), x_scale="jac", ftol=1e-12, xtol=1e-12, gtol=1e-12)
    assert joint.beta[-1] == pytest.approx(found.x[-1], abs=1e-4)
    assert joint.cost == pytest.approx(2 * found.cost, rel=1e-6)


def test_noise_is_found_as_planted() -> None:
    losses = simulated_ladder(seeds=300, spread=0.02, ripple=0.004, common=0.01, noise=0.006, steep=0.4)
    law, plain = plain_of(losses)
    joint = Joint(law.law, law.theta, plain, pair_table(losses, "arm")[0], "tokens")
    joint.fit()
    noise = joint.noise()
    assert noise.run == pytest.approx(np.array([[4e-4, 4e-4], [4e-4, 5e-4]]), rel=0.15)
    assert noise.budget == pytest.approx(np.array([[1.6e-5, 1.6e-5], [1.6e-5, 5.2e-5]]), rel=0.15)
    # Of variances, so twice that of sds.
    assert noise.slope == pytest.approx(-0.8, abs=0.1)


def test_an_offset_that_no_ratio_explains_is_not_taken_for_noise() -> None:
    losses = simulated_ladder(seeds=3, noise=0.002, common=0.002)
    law, plain = plain_of(losses)
    pairs, _ = pair_table(losses, "arm")
    worse = fit_shift(law, plain, pairs.assign(arm=pairs["plain"] * 9))
    better = fit_shift(law, plain, pairs.assign(arm=pairs["plain"] / 9))
    assert worse.hi is not None and worse.hi < 0.1
    assert better.lo is not None and better.lo > 10


def test_the_jackknife_is_that_of_fits_without_each_run() -> None:
    """Linearised at the fit, the variance is the sum over runs of squared steps when one is left out."""
    losses = simulated_ladder(tau=0.8, seeds=2)
    law, plain = plain_of(losses)
    joint = Joint(law.law, law.theta, plain, pair_table(losses, "arm")[0], "tokens")
    joint.fit()
    slopes, gap = joint.white @ joint.curve(joint.beta)[1], joint.gap(joint.beta)
    whole = np.linalg.lstsq(slopes, gap, rcond=None)[0]
    moved = []
    for rows in joint.groups:
        kept = np.setdiff1d(np.arange(len(gap)), rows)
        moved.append((np.linalg.lstsq(slopes[kept], gap[kept], rcond=None)[0] - whole)[-1])
    found = joint.robust(slopes, gap, np.eye(len(joint.beta))[-1:])
    assert found.covariance[0, 0] == pytest.approx(np.sum(np.square(moved)), rel=1e-5)


def test_a_trend_is_found_and_no_one_ratio_is_said() -> None:
    losses = simulated_ladder(tau=0.5, bend=-0.3, noise=0.002, common=0.002, spread=0.005)
    shift = shift_of(losses, "tokens")
    assert not shift.one and shift.verdict == "no"
    assert shift.trend == pytest.approx(-0.3, abs=0.05)
    assert shift.trend_lo is not None and shift.trend_hi is not None and shift.trend_lo < -0.3 < shift.trend_hi
    assert shift.size_trend_lo is not None and shift.size_trend_hi is not None
    assert shift.size_trend_lo < 0 < shift.size_trend_hi
    assert shift.lo is not None and shift.hi is not None and shift.lo < 0.5 < shift.hi
    # Over the ladder the ratio falls by (1.64e6 / 3.07e5)^-0.3, about its middle.
    width = (1.64e6 / 3.07e5) ** 0.15
    assert shift.least == pytest.approx(0.5 / width, rel=0.1) and shift.most == pytest.approx(0.5 * width, rel=0.1)
    assert shift.no_loss == "no"


def test_no_loss_holds_at_every_budget_where_the_ratio_is_not_one() -> None:
    shift = shift_of(simulated_ladder(tau=1.1, bend=0.4, noise=0.002, common=0.002, spread=0.005), "tokens")
    assert not shift.one and shift.lo is not None and shift.lo > 1
    assert shift.no_loss == "not decided"


def test_equal_losses_are_no_arm() -> None:
    shift = shift_of(simulated_ladder(noise=0, common=0), "tokens")
    assert (shift.ratio, shift.lo, shift.hi, shift.status, shift.no_loss) == (
        None,
        None,
        None,
        "no_change",
        "no change",
    )


@pytest.mark.parametrize(
    ("tau", "noise", "answer"), [(1.1, 0.002, "yes"), (0.8, 0.002, "no"), (0.98, 0.05, "not decided")]
)
def test_no_loss_is_a_test_of_non_inferiority(tau: float, noise: float, answer: str) -> None:
    assert shift_of(simulated_ladder(tau=tau, noise=noise, common=noise), "tokens").no_loss == answer


def test_what_cannot_be_decided_has_a_status() -> None:
    shift = shift_of(simulated_ladder(seeds=1), "tokens")
    assert (shift.status, shift.no_loss) == ("few_pairs", "not decided")
    one = simulated_ladder(seeds=2)
    law, plain = plain_of(one)
    cell = pair_table(one, "arm")[0].head(1)
    alone = fit_shift(law, plain, cell, "tokens")
    assert (alone.status, alone.lo, alone.hi, alone.trend, alone.p_value) == ("few_pairs", None, None, None, None)
    # A law that hardly falls with the size.
    flat = shift_of(simulated_ladder(seeds=3, theta={"E": 2, "A": 0.02, "B": 350, "alpha": 0.4, "beta": 0.48}))
    assert flat.status in ("flat", "below_floor", "above_ceiling")
    assert flat.half_width == math.inf
    # One that does not at all, to the last bit.
    level = simulated_ladder(seeds=2, theta={"E": 2, "A": 0, "B": 350, "alpha": 0.4, "beta": 0.48}, common=0.002)
    none = shift_of(level)
    assert none.half_width == math.inf and none.status in ("flat", "below_floor", "above_ceiling")
    with pytest.raises(InputError, match="no pair"):
        fit_shift(law, plain, cell.head(0))


def test_an_arm_that_keeps_fewer_parameters_is_denser() -> None:
    losses = simulated_ladder(noise=1e-4, common=1e-4, spread=1e-3)
    # Equal losses with half the parameters: twice the density.
    losses.loc[losses["arm"].eq("arm"), "params_non_embedding"] /= 2
    assert shift_of(losses).ratio == pytest.approx(2, rel=0.02)


def test_plain_runs_without_a_partner_say_what_the_law_is() -> None:
    widths = []
    for seed in range(12):
        losses = simulated_ladder(tau=0.3, seeds=8, seed=seed)
        few = losses[losses["arm"].eq("plain") | losses["seed"].lt(2)]
        shifts = [shift_of(rows, "tokens") for rows in (few, losses[losses["seed"].lt(2)])]
        assert [shift.clusters for shift in shifts] == [8, 8]
        widths.append([shift.half_width for shift in shifts])
    with_more, alone = np.median(widths, axis=0)
    assert with_more < alone


@pytest.mark.slow
@pytest.mark.parametrize("world", ["no change", "tokens x 2", "tokens x 0.22", "density x 0.8"])
def test_intervals_hold_what_was_planted_in_ladders_like_ours(world: str) -> None:
    ladders = 400 if FULL else 40
    found = coverage(ladders=ladders, world=world, seeds=3, theta=OURS, noise=0.0096, common=0.0082, seed=90_000)
    fewest, most = may_be(found["held"], ladders)
    assert most >= 0.93 and fewest <= 0.97
    # The test of one ratio is one at 5 %: 3 to 8 % measured.
    assert may_be(found["not_one"], ladders)[0] <= 0.08
    if world == "no change":
        assert found["gain"] + found["loss"] <= 0.1


@pytest.mark.slow
@pytest.mark.parametrize("world", ["tokens x 1.2", "tokens x 0.5, heavy tails"])
def test_intervals_hold_what_was_planted_in_the_smallest_ladders(world: str) -> None:
    """Three sizes of two seeds: three degrees of freedom, where normal quantiles hold 83 to 88 %."""
    small = {"sizes": (1384, 3084, 5456), "seeds": 2, "spread": 0.0024, "ripple": 0.0026}
    ladders = 400 if FULL else 60
    found = coverage(ladders=ladders, world=world, **small, theta=OURS, noise=0.0096, common=0.0082, seed=92_000)
    assert may_be(found["held"], ladders)[1] >= 0.93
    assert may_be(found["not_one"], ladders)[0] <= 0.07


def test_t_has_no_more_degrees_of_freedom_than_the_seeds_leave() -> None:
    for seeds, spare in ((1, 3), (2, 4), (3, 8)):
        losses = simulated_ladder(seeds=seeds)
        law, plain = plain_of(losses)
        joint = Joint(law.law, law.theta, plain, pair_table(losses, "arm")[0], "tokens")
        assert joint.spare == spare
        assert joint.quantile(0.95, 100.0) == pytest.approx(stats.t.ppf(0.975, spare))
        assert joint.quantile(0.95, 1.5) == pytest.approx(stats.t.ppf(0.975, 1.5))


def test_a_ratio_that_is_hardly_rejected_keeps_the_interval_of_one_ratio() -> None:
    """Between 5 % and .1 % both fits count; beyond, that with trends alone."""
    seen = set()
    for seed in range(300, 330):
        losses = simulated_ladder(tau=0.5, bend=-0.15, seeds=3, noise=0.005, common=0.005, seed=seed)
        law, plain = plain_of(losses)
        joint = Joint(law.law, law.theta, plain, pair_table(losses, "arm")[0], "tokens")
        joint.fit()
        _, *one = np.exp(np.array(joint.ratio(0.95), dtype=float))
        p_value = joint.trends(0.95)["p_value"]
        middle, *both = np.exp(joint.middle(0.95))
        shift = shift_of(losses, "tokens")
        assert shift.lo is not None and shift.hi is not None
        if p_value >= PURE:
            ends = one
        elif p_value >= SURE:
            ends, seen = [min(one[0], both[0]), max(one[1], both[1])], seen | {"both"}
        else:
            ends, seen = both, seen | {"trends"}
        assert [shift.lo, shift.hi] == pytest.approx(ends, rel=1e-3)
        assert p_value >= PURE or shift.ratio == pytest.approx(middle)
        if seen == {"both", "trends"}:
            return
    raise AssertionError(f"no ladder of each kind: {seen}")


def test_the_robust_covariance_without_bias_is_that_of_bell_and_mccaffrey() -> None:
    """Where the weights are right the mean of CR2 is the covariance that they imply, and CR3's is larger."""
    losses = simulated_ladder(tau=0.8, seeds=2)
    law, plain = plain_of(losses)
    joint = Joint(law.law, law.theta, plain, pair_table(losses, "arm")[0], "tokens")
    joint.fit()
    slopes = joint.white @ joint.curve(joint.beta)[1]
    last = np.eye(len(joint.beta))[-1:]
    plain_mean, jackknife = (joint.robust(slopes, joint.gap(joint.beta), last, power=power) for power in (-0.5, -1.0))
    assert plain_mean.expected[0, 0] == pytest.approx(plain_mean.inverse[-1, -1], rel=1e-4)
    assert jackknife.expected[0, 0] > 1.03 * jackknife.inverse[-1, -1]


@pytest.mark.slow
def test_what_is_not_one_ratio_is_seen() -> None:
    # With three seeds 68 to 72 % are seen.
    found = coverage(ladders=60, world="tokens x 0.5, not one ratio", seeds=6, theta=OURS, seed=91_000)
    assert found["not_one"] >= 0.8


def test_an_end_far_off_takes_few_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses at a limit once had a curvature from which an end was a million steps away."""
    losses = simulated_ladder(rho=0.8, noise=0.001, common=0.001)
    plain = losses[losses["arm"].eq("plain")]
    law = fit_loss(plain)
    joint = Joint(law.law, law.theta, plain, pair_table(losses, "arm")[0], "tokens")
    joint.fit()
    ln, fits, least = float(joint.beta[-1]), [], Joint.least
    monkeypatch.setattr(Joint, "least", lambda *args: fits.append(1) or least(*args))
    near, far = (joint._end(ln, reach, 3.0) for reach in (0.05, 1e-6))
    assert far == pytest.approx(near, abs=1e-4)
    assert len(fits) < 60
