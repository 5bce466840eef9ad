"""A model for a budget: held to the closed form, to published optima, to brute force and to planted laws."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from densing.core.errors import DomainError, InputError
from densing.efficiency.simulation import load_cluster, parameter_count, shape_of
from densing.efficiency.throughput import frozen, plan_layout
from densing.scores.fit import LawFit, fit_law, published_law
from densing.scores.laws import get_law
from densing.tradeoff import TrainingPlan, plan_training
from tests.support.budget import FULL, may_be
from tests.support.training_plans import CLUSTER, hours_of, planted

REFIT = published_law("chinchilla-refit")
GOPHER = 5.76e23
"""FLOP of Gopher, and of Chinchilla."""


@pytest.mark.parametrize("flops", [1e19, 1e21, GOPHER, 1e25])
@pytest.mark.parametrize("name", ["chinchilla", "chinchilla-refit"])
def test_where_speed_falls_as_one_over_size_the_plan_is_the_closed_form(
    monkeypatch: pytest.MonkeyPatch, name: str, flops: float
) -> None:
    planted(monkeypatch)
    law = published_law(name)
    plan = plan_training(law, CLUSTER, hours_of(flops))
    best = law.optimal([flops]).iloc[0]
    assert plan.flops == pytest.approx(flops)
    # As near as shapes are: a layer more or less.
    assert plan.params.value == pytest.approx(best.params, rel=0.08)
    assert plan.tokens.value == pytest.approx(flops / 6 / plan.params.value)
    assert best.loss <= plan.loss.value <= best.loss + 2e-4
    assert plan.params.low < best.params < plan.params.high
    assert plan.closed_form == pytest.approx(best.params)
    # On the law's frontier density is 1; a shape beside it has nearly the same loss.
    assert plan.density.value == pytest.approx(best.params / plan.params.value, rel=0.01)
    assert plan.days == pytest.approx(flops / 1e15 / 86400)


def test_published_optima_come_out(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch)
    # Chinchilla has 70 B parameters and 1.4 T tokens.
    refit = plan_training(REFIT, CLUSTER, hours_of(GOPHER))
    assert refit.params.value == pytest.approx(70e9, rel=0.1)
    assert refit.tokens.value == pytest.approx(1.4e12, rel=0.1)
    # Hoffmann et al.'s approach 3 says 40 B, and the plan says that this is not what their model was.
    first = plan_training(published_law("chinchilla"), CLUSTER, hours_of(GOPHER))
    assert first.params.value == pytest.approx(40e9, rel=0.06)
    assert [note.code for note in first.notes] == ["published-law", "no-draws", "extrapolated"]
    assert "published-law" not in {note.code for note in refit.notes}


@pytest.mark.parametrize("power", [0.7, 0.9, 1.0, 1.1])
def test_a_speed_that_depends_on_size_moves_the_plan_from_the_closed_form_to_the_true_best(
    monkeypatch: pytest.MonkeyPatch, power: float
) -> None:
    # With tokens c N^-p the best size has alpha A N^-alpha = p beta B D^-beta.
    seconds, rate = 1e6, 1e15 * 1e10 ** (power - 1)
    planted(monkeypatch, rate, power)
    plan = plan_training(REFIT, CLUSTER, seconds / 3600 * CLUSTER.n)
    _, a, b, alpha, beta = REFIT.theta
    c = rate / 6 * seconds
    best = (alpha * a * c**beta / (power * beta * b)) ** (1 / (alpha + power * beta))
    assert plan.params.value == pytest.approx(best, rel=0.06)
    assert plan.params.low < best < plan.params.high
    assert plan.flops == pytest.approx(rate * seconds * plan.params.value ** (1 - power))
    if power != 1:
        assert abs(math.log(plan.closed_form / best)) > 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "devices", "hours"), [("h100x8-nvlink", 64, 2e4), ("a100x8-tcp", 256, 1e5)])
def test_no_shape_near_or_far_trains_to_a_lower_loss(preset: str, devices: int, hours: float) -> None:
    cluster = load_cluster(preset, n=devices)
    plan = plan_training(REFIT, cluster, hours)
    seconds = hours * 3600 / devices
    for params in plan.params.value * np.geomspace(1 / 30, 30, 12):
        shape = shape_of(params)
        try:
            layout = plan_layout(shape, cluster, devices).layouts[0]
        except InputError:
            continue
        count = float(parameter_count(shape))
        tokens = layout.tokens_per_s * seconds
        loss = float(REFIT.predict({"params": np.array([count]), "tokens": np.array([tokens])})[0])
        assert loss > plan.loss.value - 0.002, (count, loss, plan.loss.value)


@given(
    alpha=st.floats(0.2, 0.6), ratio=st.floats(0.7, 1.4), a=st.floats(50, 2000), flops=st.floats(1e19, 1e24),
    times=st.floats(1.5, 200),
)  # fmt: skip
@settings(max_examples=15, deadline=None)
def test_the_smaller_model_has_the_same_loss_and_its_costs_add_up(
    alpha: float, ratio: float, a: float, flops: float, times: float
) -> None:
    law = dataclasses.replace(REFIT, theta=np.array([1.8, a, a, alpha, alpha * ratio]))
    with pytest.MonkeyPatch.context() as patch:
        planted(patch)
        plan = plan_training(law, CLUSTER, hours_of(flops), overtrain=times)
    small = plan.overtrained
    params, tokens = small.params.value, small.tokens.value
    loss = float(law.predict({"params": np.array([params]), "tokens": np.array([tokens])})[0])
    assert loss == pytest.approx(plan.loss.value, rel=1e-9)
    assert tokens / params == pytest.approx(times * plan.tokens_per_param)
    assert params < plan.params.value and tokens > plan.tokens.value
    assert small.compute.value == pytest.approx(params * tokens / plan.params.value / plan.tokens.value)
    # Speed falls as 1/N here: hours go as operations.
    assert small.gpu_hours is not None
    assert small.gpu_hours.value == pytest.approx(plan.gpu_hours * small.compute.value)
    assert small.saved.value == pytest.approx(1 - params / plan.params.value)
    assert small.density.value == pytest.approx(plan.density.value * plan.params.value / params)
    if small.served.value:
        # After so many served tokens both have cost the same.
        runs = ((params, tokens), (plan.params.value, plan.tokens.value))
        spent = [6 * n * d + 2 * n * small.served.value for n, d in runs]
        assert spent[0] == pytest.approx(spent[1])


def test_ten_times_the_tokens_at_equal_exponents_is_what_algebra_says(monkeypatch: pytest.MonkeyPatch) -> None:
    # At the optimum both terms are equal: x^-alpha (1 + 10^-alpha) = 2, and 10 x^2 times the compute.
    planted(monkeypatch)
    law = dataclasses.replace(REFIT, theta=np.array([1.8, 400.0, 400.0, 0.35, 0.35]))
    flops = 6 * parameter_count(shape_of(1e10)) ** 2
    plan = plan_training(law, CLUSTER, hours_of(float(flops)))
    share = ((1 + 10**-0.35) / 2) ** (1 / 0.35)
    assert plan.overtrained.params.value / plan.params.value == pytest.approx(share, rel=1e-3)
    assert plan.overtrained.compute.value == pytest.approx(10 * share**2, rel=2e-3)


def test_the_range_of_the_cost_model_is_the_interval_of_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch)
    plan = plan_training(REFIT, CLUSTER, hours_of(1e22), level=0.9)
    known = frozen().ranges["several domains"]
    assert known.scale is not None
    half = stats.t.ppf(0.95, known.sources - 1) * known.scale
    # Times are exp(center +- half) as long.
    assert plan.tokens.low == pytest.approx(plan.tokens.value / math.exp(known.center + half), rel=0.02)
    assert plan.tokens.high == pytest.approx(plan.tokens.value / math.exp(known.center - half), rel=0.02)
    ends = [float(REFIT.predict({"params": np.array([plan.params.value]), "tokens": np.array([tokens])})[0])
            for tokens in (plan.tokens.high, plan.tokens.low)]  # fmt: skip
    assert (plan.loss.low, plan.loss.high) == pytest.approx(ends)


def test_draws_of_the_law_are_the_interval_of_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch)
    random = np.random.default_rng(3)
    draws = REFIT.theta * np.exp(0.03 * random.standard_normal((500, 5)))
    law = dataclasses.replace(REFIT, draws=draws)
    exact = {kind: dataclasses_free(each) for kind, each in frozen().ranges.items()}
    monkeypatch.setattr(frozen(), "ranges", exact)
    plan = plan_training(law, CLUSTER, hours_of(1e21))
    row = law.optimal([1e21]).iloc[0]
    # Draws are drawn again, and sizes are a fiftieth apart.
    assert plan.params.low == pytest.approx(row.params_lo, rel=0.1)
    assert plan.params.high == pytest.approx(row.params_hi, rel=0.1)
    assert plan.tokens.low == pytest.approx(plan.tokens.high, rel=1e-6)
    assert plan.loss.low < plan.loss.value < plan.loss.high
    assert [note.code for note in plan.notes] == []


def dataclasses_free(each: Any) -> Any:
    """A range that errs by nothing."""
    return type(each)(each.sources, each.rows, 0.0, 1e-12, each.held)


def test_the_same_seed_gives_the_same_plan_and_another_other_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch)
    first, again, other = (plan_training(REFIT, CLUSTER, 1e4, seed=seed) for seed in (1, 1, 2))
    assert first.to_dict() == again.to_dict()
    assert first.params.value == other.params.value and first.loss != other.loss


def test_hours_that_do_not_train_buy_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch)
    half, few = plan_training(REFIT, CLUSTER, 1e4, goodput=0.5), plan_training(REFIT, CLUSTER, 5e3)
    assert (half.params, half.tokens, half.loss) == (few.params, few.tokens, few.loss)
    assert half.days == 2 * few.days


def test_more_hours_more_devices_at_a_rate_and_faster_ones_never_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = []
    for rate in (1e14, 3e14, 1e15):
        planted(monkeypatch, rate)
        losses += [plan_training(REFIT, CLUSTER, hours).loss.value for hours in (1e3, 1e4, 1e5)]
    table = np.array(losses).reshape(3, 3)
    assert (np.diff(table, axis=0) < 0).all() and (np.diff(table, axis=1) < 0).all()


def test_what_does_not_fit_is_not_planned_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, fits=lambda params: params < 1e10)
    plan = plan_training(REFIT, CLUSTER, hours_of(GOPHER))
    assert 8e9 < plan.params.value < 1e10
    (note,) = [note for note in plan.notes if note.code == "largest-that-fits"]
    assert "larger sizes have no layout: gpus: nothing tried fits 64 devices" in note.message
    # It is trained far beyond what the law would have: denser than the frontier.
    assert plan.density.value > 1.5
    planted(monkeypatch, fits=lambda params: False)
    with pytest.raises(InputError, match="nothing tried fits 64 devices"):
        plan_training(REFIT, CLUSTER, 1e4)


def test_beyond_the_fitted_runs_and_beyond_reason_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch)

    def severities(hours: float, **options: Any) -> dict[str, str]:
        return {note.code: note.severity for note in plan_training(REFIT, CLUSTER, hours, **options).notes}

    assert severities(hours_of(1e22)) == {"no-draws": "info"}
    assert severities(hours_of(2e23))["extrapolated"] == "info"
    assert severities(hours_of(1e25))["extrapolated"] == "warning"
    assert severities(hours_of(1e22), batch=100_000)["few-steps"] == "warning"
    assert severities(1e-6)["smallest-shape"] == "error"


def test_a_law_of_own_runs_is_compared_with_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch)
    law = fitted(0)
    inside = plan_training(law, CLUSTER, hours_of(1e20))
    assert "extrapolated" not in {note.code for note in inside.notes} and inside.source == "fitted to 64 runs"
    (note,) = [each for each in plan_training(law, CLUSTER, hours_of(1e23)).notes if each.code == "extrapolated"]
    assert note.details["beyond"] == ["N", "D", "6 N D"] and note.severity == "warning"


def test_a_law_that_says_little_leaves_the_size_open(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch)
    random = np.random.default_rng(0)
    draws = np.tile(REFIT.theta, (400, 1))
    draws[:, 1] *= np.exp(6 * random.standard_normal(400))
    plan = plan_training(dataclasses.replace(REFIT, draws=draws), CLUSTER, hours_of(1e22))
    assert "open-size" in {note.code for note in plan.notes}
    assert plan.params.high > 100 * plan.params.low


@pytest.mark.parametrize(
    ("hours", "options", "sentence"),
    [
        (0.0, {}, "gpu-hours: 0 is out of range; give 1e-06 to 1e"),
        (float("nan"), {}, "gpu-hours: nan is out of range"),
        (-5.0, {}, "gpu-hours: -5 is out of range"),
        (float("inf"), {}, "gpu-hours: inf is out of range"),
        (1e4, {"overtrain": 1.0}, "overtrain: 1 is out of range; give 1.01 to 10000"),
        (1e4, {"goodput": 0.0}, "goodput: 0 is out of range; give 0.01 to 1"),
        (1e4, {"level": 1.0}, "level: 1 is out of range"),
        (1e4, {"devices": 0}, "gpus: 0 is out of range"),
        (1e4, {"batch": 0}, "batch 0: give whole numbers from 1 up"),
        (1e4, {"framework": "nanotron"}, "eager: not predicted"),
        (1e4, {"precision": "fp7"}, "precision 'fp7'"),
    ],
)
def test_bad_figures_are_one_sentence(hours: float, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as error:
        plan_training(REFIT, CLUSTER, hours, **options)
    assert sentence in str(error.value)


def test_clusters_and_laws_that_cannot_be_planned_say_why() -> None:
    with pytest.raises(InputError, match="unequal devices cannot be planned"):
        plan_training(REFIT, load_cluster("geo48"), 1e4)
    sizes = np.geomspace(1e8, 1e10, 20)
    alone = fit_law("power", {"params": sizes}, 12 * sizes**-0.08, bootstrap=2)
    with pytest.raises(DomainError, match="law power: size and tokens cannot be traded"):
        plan_training(alone, CLUSTER, 1e4)
    scores = fit_law("logistic", {"params": sizes}, 0.25 + 0.5 / (1 + (1e9 / sizes)), bootstrap=2)
    with pytest.raises(DomainError, match="law logistic: size and tokens cannot be traded"):
        plan_training(scores, CLUSTER, 1e4)


def test_many_devices_make_small_models_dear_and_the_plan_knows() -> None:
    # 4,096 devices have a quarter of a sequence each: a small model leaves them idle, and the best one is larger than
    # the closed form says for what is computed.
    plan = plan_training(REFIT, load_cluster("h100x8-nvlink", n=4096), 2e4, batch=1024)
    assert plan.params.value > 1.1 * plan.closed_form
    assert plan.layout.mfu < 0.4
    one = plan_training(REFIT, load_cluster("h100x8-nvlink", n=1), 100, batch=64)
    assert one.layout.mfu > 0.3 and one.devices == 1
    assert plan.layout.memory_bytes <= 80e9 and one.layout.memory_bytes <= 80e9


def test_a_plan_is_plain_data_and_says_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch)
    plan = plan_training(REFIT, CLUSTER, 1e4)
    assert TrainingPlan.from_dict(plan.to_dict()).params == plan.params
    assert "10,000 GPU hours on 64 devices of h100x8-nvlink (6.51 days) train " in plan.sentence
    assert plan.sentence in repr(plan) and "joint scale" in plan.density_note
    sizes = [point.params for point in plan.curve]
    assert sizes == sorted(sizes) and plan.params.value in sizes
    assert min(point.loss for point in plan.curve) == plan.loss.value
    assert all(point.loss_low < point.loss < point.loss_high for point in plan.curve)
    # The law's own curve has its minimum at the closed form.
    lowest = min(plan.same_compute, key=lambda point: point[1])[0]
    assert lowest == pytest.approx(plan.closed_form, rel=0.2)


def fitted(seed: int, scatter: float = 0.01) -> LawFit:
    """The refit's law, fitted to 64 runs with noise."""
    random = np.random.default_rng(seed)
    grid = np.meshgrid(np.geomspace(5e7, 5e9, 8), np.geomspace(1e9, 1e11, 8))
    x = {"params": grid[0].ravel(), "tokens": grid[1].ravel()}
    loss = get_law("chinchilla").predict(REFIT.theta, x) * np.exp(scatter * random.standard_normal(64))
    return fit_law("chinchilla", x, loss, bootstrap=200, seed=seed)


@pytest.mark.slow
def test_intervals_hold_what_was_planted_as_often_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    # Worlds: runs with noise, fitted; and a cluster whose speed errs as the cost model's range says.
    worlds, flops = 400 if FULL else 60, 1e21
    known = frozen().ranges["several domains"]
    planted(monkeypatch)
    held = {"size": 0, "tokens": 0, "loss": 0}
    for world in range(worlds):
        slower = math.exp(float(known.draws(1, np.random.default_rng(10_000 + world))[0]))
        plan = plan_training(fitted(world), CLUSTER, hours_of(flops), seed=world)
        (best,), _ = get_law("chinchilla").optimal(REFIT.theta, [flops / slower])
        tokens = plan.tokens.value / slower
        loss = float(REFIT.predict({"params": np.array([plan.params.value]), "tokens": np.array([tokens])})[0])
        held["size"] += plan.params.low <= best <= plan.params.high
        held["tokens"] += plan.tokens.low <= tokens <= plan.tokens.high
        held["loss"] += plan.loss.low <= loss <= plan.loss.high
    for count in held.values():
        # Resampling 64 cases makes intervals somewhat narrow.
        fewest, most = may_be(count / worlds, worlds)
        assert most >= 0.93 and fewest <= 0.97, held
