"""The solver's step and stopping, beside the linear algebra written out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core import InputError
from densing.scores.fit import fit_law, solver
from densing.scores.fit.engine import _identification
from densing.scores.fit.solver import (
    Fitter,
    Problem,
    Solution,
    _descend,
    _distinct,
    _step,
    get_loss,
    minimise,
    starts,
)
from densing.scores.laws import get_law
from tests.support.law_cases import LOSS_CASES, SCORE_CASES, noisy

LAW = get_law("chinchilla")


def problem() -> Problem:
    size = np.geomspace(0.1, 10, 12)
    return Problem(LAW, {"params": size, "tokens": size[::-1].copy()}, get_loss("huber", 1e-3))


def system(seed: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(p, 3 * p)) * rng.uniform(0.1, 100, (p, 1))
    return rng.normal(size=p), rows @ rows.T


@given(st.integers(0, 10_000), st.sampled_from([1e-8, 1e-2, 1.0, 50.0]))
def test_a_free_step_is_marquardts(seed: int, damping: float) -> None:
    at = problem()
    low, high = at.bounds
    middle = np.where(
        np.isfinite(low) & np.isfinite(high), (low + high) / 2, np.where(np.isfinite(low), low + 1e6, 0.0)
    )
    gradient, curvature = system(seed, len(middle))
    step = _step(at, middle[None], 1e-3 * gradient[None], 1e6 * curvature[None], np.array([damping]))[0]
    full = 1e6 * curvature
    expected = np.linalg.solve(full + damping * np.diag(np.diag(full)), -1e-3 * gradient)
    np.testing.assert_allclose(step, np.clip(middle + expected, low, high) - middle, rtol=1e-5, atol=1e-9)


@given(st.integers(0, 10_000))
def test_a_parameter_on_its_bound_that_descent_pushes_outwards_stays_and_the_others_move_as_without_it(
    seed: int,
) -> None:
    at = problem()
    low = at.bounds[0]
    pinned = int(np.flatnonzero(np.isfinite(low))[0])
    phi = np.where(np.isfinite(low), low + 1.0, 0.0)
    phi[pinned] = low[pinned]
    gradient, curvature = system(seed, len(phi))
    gradient, curvature = 1e-3 * gradient, 1e6 * curvature
    others = np.arange(len(phi)) != pinned
    for sign in (1.0, -1.0):
        gradient[pinned] = sign * abs(gradient[pinned])
        step = _step(at, phi[None], gradient[None], curvature[None], np.array([1e-2]))[0]
        if sign > 0:
            kept = curvature[np.ix_(others, others)]
            expected = np.linalg.solve(kept + 1e-2 * np.diag(np.diag(kept)), -gradient[others])
            assert step[pinned] == 0.0
            np.testing.assert_allclose(step[others], expected, rtol=1e-5, atol=1e-12)
        else:
            free = np.linalg.solve(curvature + 1e-2 * np.diag(np.diag(curvature)), -gradient)
            np.testing.assert_allclose(step, np.maximum(free, low - phi), rtol=1e-5, atol=1e-12)


def two_rows(angle: float) -> np.ndarray:
    """Derivatives by two parameters that are an angle apart, the second a million times as long."""
    return np.array([[1.0, 0.0, 0.0], [1e6 * np.cos(angle), 1e6 * np.sin(angle), 0.0]])


@pytest.mark.parametrize(("angle", "identified"), [(1.0, True), (1e-7, True), (1e-10, False), (0.0, False)])
def test_directions_are_free_when_derivatives_are_collinear_whatever_their_units(
    angle: float, identified: bool
) -> None:
    notes = _identification(get_law("power"), two_rows(angle), np.zeros(2, bool))
    assert [note.code for note in notes] == [] if identified else ["not-identified"]
    # Unit rows an angle apart have the singular values sqrt(1 + cos) and sqrt(1 - cos).
    assert all(note.details["smallest_singular_value"] == pytest.approx(angle / 2**0.5, abs=1e-8) for note in notes)


def test_a_parameter_on_its_bound_takes_no_part_in_what_is_identified() -> None:
    rows = np.vstack([two_rows(1.0), [[1.0, 0.0, 0.0]]])
    assert _identification(LAW, rows, np.zeros(3, bool)) and not _identification(
        LAW, rows, np.array([False, False, True])
    )
    assert _identification(LAW, rows, np.ones(3, bool)) == []


class Bent:
    """A problem of one parameter whose stated curvature is wrong by a factor, and how often it was evaluated."""

    def __init__(self, curvature: float, least: float = 1.0, uphill: bool = False, space: str = "log") -> None:
        self.curvature, self.least, self.sign = curvature, least, -1.0 if uphill else 1.0
        self.loss = get_loss("log" if space == "log" else "raw")
        self.bounds, self.evaluations = (np.array([-2.0]), np.array([3.0])), 0

    def at(self, phi):
        value = self.least + (phi - 1) ** 2 / 2 + 0.2 * (1 - np.cos(3 * (phi - 1)))
        return value, self.sign * (phi - 1 + 0.6 * np.sin(3 * (phi - 1))), self.curvature + 0 * phi

    def quadratic(self, phi, target, weights):
        self.evaluations += 1
        value, gradient, curvature = self.at(phi[:, 0])
        return value, gradient[:, None], curvature[:, None, None]


def marquardt(at: Bent, phi: float, most: int, tolerance: float, floor: float) -> tuple[float, float, bool, int, set]:
    """The rule in plain numbers: where a parameter ends after so many steps, its value, whether it converged, the
    evaluations, and by which factors the damping changed."""
    damping, used, count = 1e-2, set(), 0
    value, slope, bend = at.at(phi)

    def move(damping: float) -> float:
        pinned = (phi <= -2 and slope > 0) or (phi >= 3 and slope < 0)
        return 0.0 if pinned else min(max(phi - slope / (bend * (1 + damping)), -2.0), 3.0) - phi

    for _ in range(most):
        step, count = move(damping), count + 1
        promise = -step * slope - bend * step**2 / 2
        new = at.at(phi + step)
        gain = value - new[0]
        ratio = gain / promise if gain > 0 else -1.0
        if gain > 0:
            phi, (value, slope, bend) = phi + step, new
        small = 0 <= promise <= tolerance * value + floor
        if (small and damping <= 1e-6) or value <= floor:
            return phi, value, True, count, used
        if damping > 1e11:
            break
        factor = 0.1 if ratio > 0.75 else 0.5 if ratio > 0.25 else 2.0 if ratio > 0 else 8.0
        used.add(factor)
        damping = max(damping * factor, 1e-12)
    return phi, value, -move(1e-8) * slope <= 1e-7 * value, count, used


@pytest.mark.parametrize(
    ("curvature", "uphill"), [(0.5, False), (1.2, False), (2.3, False), (40.0, False), (1.0, True)]
)
def test_damping_falls_after_a_kept_promise_and_rises_after_a_broken_one(curvature: float, uphill: bool) -> None:
    begin = np.array([-1.9, 2.9, 0.4])
    for most in (1, 2, 3, 5, 8, 12, 17, 22, 60):
        at = Bent(curvature, uphill=uphill)
        phi, value, converged = _descend(at, np.zeros((3, 2)), np.ones((3, 2)), begin[:, None], 1e-9, most)
        wanted = [marquardt(at, start, most, 1e-9, 2 * 4e-16**2) for start in begin]
        np.testing.assert_allclose(phi[:, 0], [each[0] for each in wanted], rtol=1e-9)
        np.testing.assert_allclose(value, [each[1] for each in wanted], rtol=1e-12)
        assert converged.tolist() == [each[2] for each in wanted]
        assert at.evaluations == 1 + max(each[3] for each in wanted)


def test_the_cases_of_damping_all_occur() -> None:
    used = {(c, factor) for c in (0.5, 1.2, 2.3, 40.0) for begin in (-1.9, 2.9, 0.4)
            for factor in marquardt(Bent(c), begin, 60, 1e-9, 0.0)[4]}  # fmt: skip
    assert {factor for _, factor in used} == {0.1, 0.5, 2.0, 8.0}


@pytest.mark.parametrize("space", ["log", "raw"])
@pytest.mark.parametrize("share", [0.98, 1.02])
def test_a_fit_ends_where_rounding_is_all_that_is_left(space: str, share: float) -> None:
    target, weights = np.array([[-500.0, 20.0]]), np.array([[2.0, 3.0]])
    floor = 5 * (4e-16 * (1.0 if space == "log" else 500.0)) ** 2
    at = Bent(1.0, least=share * floor, space=space)
    _descend(at, target, weights, np.ones((1, 1)), 1e-9, 50)
    assert at.evaluations == (2 if share < 1 else 1 + marquardt(at, 1.0, 50, 1e-9, floor)[3])


def test_a_direction_without_curvature_keeps_a_step_finite() -> None:
    at = Bent(1.0)
    at.bounds = (np.full(2, -np.inf), np.full(2, np.inf))
    flat = np.array([[[4.0, 0.0], [0.0, 1e-30]]])
    step = _step(at, np.zeros((1, 2)), np.array([[1.0, 1e-20]]), flat, np.array([0.5]))[0]
    # The scale of a parameter is at least 1e-12 of the largest.
    scale = 2e-12
    np.testing.assert_allclose(step, [-1 / 6, -1e-20 / scale**2 / (1e-30 / scale**2 + 0.5)], rtol=1e-9)
    tied = _step(at, np.zeros((1, 2)), np.ones((1, 2)), np.ones((1, 2, 2)), np.zeros(1))[0]
    np.testing.assert_allclose(tied, [-0.5, -0.5], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("chinchilla", "log"),
        ("chinchilla", "huber"),
        ("logistic", "raw"),
        ("logistic", "huber-raw"),
        ("broken", "huber"),
    ],
)
def test_gradient_and_curvature_are_those_of_the_summed_loss(name: str, loss: str) -> None:
    law, x, y = noisy(next(case for case in LOSS_CASES + SCORE_CASES if case.name == name), 3, 0.03)
    at = Fitter.build(law, x, get_loss(loss, 0.02)).problem
    weights = np.linspace(0.5, 2, y.size)
    theta = Fitter.build(law, x, get_loss(loss, 0.02)).scaled(fit_law(law, x, y, bootstrap=0).theta)
    phi, target = at.to_phi(theta) * 1.01, at.loss.target(y)

    def total(phi: np.ndarray) -> float:
        return float(at.loss.total(at.loss.residual(law.predict(at.to_theta(phi), at.x), target), weights))

    def curve(phi: np.ndarray) -> np.ndarray:
        return at.loss.residual(law.predict(at.to_theta(phi), at.x), target)

    value, gradient, curvature = (part[0] for part in at.quadratic(phi[None], target, weights))
    assert value == pytest.approx(total(phi))
    steps = 1e-6 * np.maximum(np.abs(phi), 1e-3) * np.eye(phi.size)
    slopes = [(total(phi + step) - total(phi - step)) / (2 * step.sum()) for step in steps]
    np.testing.assert_allclose(gradient, slopes, rtol=1e-4, atol=1e-6 * np.abs(gradient).max())
    rows = np.stack([(curve(phi + step) - curve(phi - step)) / (2 * step.sum()) for step in steps])
    size = np.abs(curve(phi))
    delta = 0.02 if "huber" in loss else np.inf
    assert delta == np.inf or 0 < np.mean(size > delta) < 1
    # Outside Huber's square an observation keeps a fiftieth of the curvature that would carry it there.
    bend = weights * np.where(size <= delta, 1.0, 0.02 * np.minimum(delta, 1e9) / size)
    np.testing.assert_allclose(curvature, (rows * bend) @ rows.T, rtol=1e-4, atol=1e-6 * np.abs(curvature).max())


@pytest.mark.parametrize(
    ("name", "loss"), [("chinchilla", "log"), ("chinchilla", "huber"), ("logistic", "raw"), ("power-offset", "raw")]
)
def test_starts_are_the_best_of_the_grid_with_their_linear_parameters_by_least_squares(name: str, loss: str) -> None:
    law, x, y = noisy(next(case for case in LOSS_CASES + SCORE_CASES if case.name == name), 3, 0.03)
    at = Fitter.build(law, x, get_loss(loss, 0.02)).problem
    weights = np.linspace(0.5, 2, y.size)
    linear = [i for i, item in enumerate(law.space) if item.linear]
    found = []
    for point in law.grid(at.x):
        curve, rows = law.linearise(point, at.x)
        # A log residual is a share of y: its square is the raw one's over y squared.
        root = np.sqrt(weights) / (y if at.loss.space == "log" else 1.0)
        best = np.linalg.lstsq((rows[linear] * root).T, (y - curve) * root, rcond=None)[0]
        theta = point.copy()
        theta[linear] = np.clip(best, [law.space[i].low for i in linear], [law.space[i].high for i in linear])
        with np.errstate(all="ignore"):
            value = at.loss.total(at.loss.residual(law.predict(theta, at.x), at.loss.target(y)), weights)
        found.append((value if np.isfinite(value) else np.inf, theta))
    values = sorted(value for value, _ in found)[:4]
    given = starts(at, at.loss.target(y), weights, 4)
    again = [at.loss.total(at.loss.residual(law.predict(theta, at.x), at.loss.target(y)), weights) for theta in given]
    np.testing.assert_allclose(again, values, rtol=1e-5)
    np.testing.assert_allclose(given[0], min(found, key=lambda pair: pair[0])[1], rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize(
    ("loss", "delta", "residual", "deltas"),
    [
        ("log", 1e-3, 0.05, [math.inf]),
        ("huber", 1e-3, 0.05, [1e-2, 1e-3]),
        ("huber", 1e-3, 0.5, [1e-1, 1e-2, 1e-3]),
        ("huber", 1e-3, 1e-4, [1e-3]),
        ("lad", 1e-3, 0.02, [0.02 * 10.0**-k for k in range(6)]),
        ("lad-raw", 1e-3, 0.02, [0.02 * 10.0**-k for k in range(6)]),
        ("lad", 1e-3, 0.0, [1e-12]),
        ("lad-raw", 1e-3, 0.0, [3e-12]),
    ],
)
def test_delta_comes_down_tenfold_from_the_residuals_median(
    loss: str, delta: float, residual: float, deltas: list[float]
) -> None:
    law = get_law("power")
    size, theta = np.geomspace(0.1, 10, 12), np.array([2.0, 0.0])
    fitter = Fitter(Problem(law, {"params": size}, get_loss(loss, delta)), {})
    curve = law.predict(theta, {"params": size})
    away = residual * np.array([1.0, -1.0] * 6)
    target = np.log(curve) + away if fitter.problem.loss.space == "log" else curve + away
    if loss == "lad-raw" and not residual:
        theta, target = 1.5 * theta, 1.5 * target
    stages = fitter.stages(theta, target)
    np.testing.assert_allclose([stage.loss.delta for stage in stages], deltas, rtol=1e-6)


def test_optima_with_one_objective_are_one() -> None:
    value = np.array([3.0, 1.0, 1.0 + 5e-10, np.inf, 2.0, 2.0 + 5e-9])
    theta = np.arange(6.0)[:, None]
    flags = np.ones(6, bool)
    ends = Solution(theta, value, flags, flags[:, None])
    assert _distinct(ends)[:, 0].tolist() == [1.0, 4.0, 5.0, 0.0]
    lost = replace(ends, objective=np.full(6, np.inf))
    with np.errstate(invalid="ignore"):
        assert _distinct(lost)[:, 0].tolist() == [0.0]


@pytest.mark.parametrize("loss", ["log", "huber"])
def test_refits_that_go_astray_begin_again_from_a_grid_of_their_own(monkeypatch: pytest.MonkeyPatch, loss: str) -> None:
    law, x, y = noisy(LOSS_CASES[0], 3, 0.01)
    # A hundredth of the noise: delta comes down in steps, and refits begin again with the last.
    fitter = Fitter.build(law, x, get_loss(loss, 1e-4))
    weights = np.random.default_rng(0).integers(1, 4, (5, y.size)).astype(float)
    targets = np.log(y) + 0.01 * np.random.default_rng(1).standard_normal((5, y.size))
    theta = fitter.point(np.log(y), np.ones(y.size)).theta[0]
    right, _ = fitter.refit(theta, targets, weights, 5)
    # The second, the fourth and the fifth row stop elsewhere; where the fifth stopped nothing is better.
    stopped = 1.3 * right
    value = np.array([0.0, np.inf, 0.0, np.inf, -1.0])
    done = np.array([True, False, True, False, False])
    end = Solution(stopped, value, done, np.zeros_like(right, bool))
    monkeypatch.setattr(Fitter, "descend", lambda *_: end)
    for observed in (targets, np.log(y)):
        again, converged = fitter.refit(theta, observed, weights, 5)
        assert converged.tolist() == [True, True, True, True, False]
        np.testing.assert_array_equal(again[[0, 2, 4]], stopped[[0, 2, 4]])
        for row in (1, 3):
            own = observed if observed.ndim == 1 else observed[row]
            best = minimise(fitter.problem, own, weights[row], starts(fitter.problem, own, weights[row], 4))
            np.testing.assert_allclose(again[row], best.theta[np.argmin(best.objective)], rtol=1e-5)


def test_second_tries_of_absolute_deviations_take_their_delta_from_the_first_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    law, x, y = noisy(LOSS_CASES[0], 3, 0.01)
    fitter, ones = Fitter.build(law, x, get_loss("lad")), np.ones((2, y.size))
    theta = fitter.point(np.log(y), ones[0]).theta[0]
    targets = np.log(y) + np.array([[0.01], [0.3]]) * np.random.default_rng(1).standard_normal((2, y.size))
    end = Solution(np.stack([theta, theta]), np.full(2, np.inf), np.zeros(2, bool), np.zeros((2, theta.size), bool))
    deltas: list[float] = []
    monkeypatch.setattr(Fitter, "descend", lambda *_: end)
    monkeypatch.setattr(
        solver, "minimise", lambda problem, *rest: deltas.append(problem.loss.delta) or minimise(problem, *rest)
    )
    for target in (targets, targets[0]):
        fitter.refit(theta, target, ones, 2)
    away = np.abs(targets[0] - np.log(law.predict(theta, fitter.problem.x)))
    assert deltas == pytest.approx([1e-5 * np.median(away)] * 2)


def test_rows_are_solved_in_blocks_as_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    law, x, y = noisy(LOSS_CASES[0], 3, 0.01)
    fitter = Fitter.build(law, x, get_loss("log"))
    begin = starts(fitter.problem, np.log(y), np.ones(y.size), 4)
    whole = minimise(fitter.problem, np.log(y), np.ones(y.size), begin)
    seen: list[int] = []
    monkeypatch.setattr(solver, "CHUNK", 3 * y.size * begin.shape[1])
    monkeypatch.setattr(solver, "_descend", lambda *args: seen.append(len(args[3])) or _descend(*args))
    parts = minimise(fitter.problem, np.log(y), np.ones(y.size), begin)
    assert seen == [3, 1]
    np.testing.assert_allclose(parts.theta, whole.theta, rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "space", "delta", "absolute", "robust"),
    [
        ("huber", "log", 0.5, False, True),
        ("log", "log", math.inf, False, False),
        ("lad", "log", math.inf, True, True),
        ("raw", "raw", math.inf, False, False),
        ("huber-raw", "raw", 0.5, False, True),
        ("lad-raw", "raw", math.inf, True, True),
    ],
)
def test_losses_by_name(name: str, space: str, delta: float, absolute: bool, robust: bool) -> None:
    loss = get_loss(name, 0.5)
    assert (loss.name, loss.space, loss.delta, loss.absolute) == (name, space, delta, absolute)
    assert Fitter(Problem(LAW, {}, loss), {}).robust == robust
    # |r| = .2 and 2 with weights 3 and 1: squares, Huber's function, absolute values.
    total = {True: 3 * 0.2 + 2}.get(absolute, 3 * 0.02 + (0.5 * (2 - 0.25) if delta == 0.5 else 2))
    assert loss.total(np.array([0.2, -2.0]), np.array([3.0, 1.0])) == pytest.approx(total)


@pytest.mark.parametrize("delta", [0.0, -1.0, math.inf, math.nan, "1"])
def test_a_delta_is_a_positive_number(delta: float) -> None:
    with pytest.raises(InputError, match=f"delta {delta} must be positive and finite"):
        get_loss("huber", delta)
    assert get_loss("huber", 1).delta == 1.0
