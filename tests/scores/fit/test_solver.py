"""The solver's step and stopping, beside the linear algebra written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.scores.fit.engine import _identification
from densing.scores.fit.solver import Problem, _step, get_loss
from densing.scores.laws import get_law

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
