"""One curve through one table, and many refits of it: losses, start points, a batched solver, and their use.

Start points come by variable projection; the solver is Levenberg-Marquardt with bounds and case weights. One row of its
batch is one problem: a start point, a bootstrap resample, a data set with one run left out. All rows advance together;
rows that have converged drop out. The stopping rule compares the decrease that the model still promises with the
objective itself, so units and scale do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from densing.core import Array, FitError, InputError, UnknownNameError
from densing.scores.laws import Law

Mask = NDArray[np.bool_]
LossName = Literal["huber", "log", "lad", "raw", "huber-raw", "lad-raw"]
_SPACES: dict[str, str] = {name: "raw" if name.endswith("raw") else "log" for name in get_args(LossName)}
LITERATURE_DELTA = 1e-3
OUTLIER_CURVATURE = 0.02
CHUNK = 2**17  # numbers in one Jacobian block: keeps it in cache; 2**15 and 2**20 took twice as long
LAMBDA_START, LAMBDA_MIN, LAMBDA_STALL = 1e-2, 1e-12, 1e11
LAMBDA_DONE = 1e-6  # a more damped step promises too little along flat directions to prove convergence
TOLERANCE, STALL_TOLERANCE = 1e-14, 1e-7
# Draws scatter by percents, and the stages before the last only lead to it.
BOOTSTRAP_TOLERANCE, ROUGH = 1e-11, 1e-9
LAD_DELTA = 1e-5  # of the median residual; smaller only costs time, the objective agrees with LAD's to 1e-6
KEEP = 4  # grid points to descend from; most end in one optimum


@dataclass(frozen=True)
class Loss:
    """A loss: ``sum_i w_i h(r_i)`` with r the log or raw residual.

    h is Huber's function with the stated delta, half the square (delta infinite), or the absolute value
    (``absolute``). The sum is a sum, never a mean: means of small terms stop optimisers early
    (arXiv 2404.10102v2).

    Parameters
    ----------
    name : str
        Name in options and reports.
    space : {"log", "raw"}
        Residual ln(prediction) - ln(observation), or prediction - observation.
    delta : float
        Where Huber's function turns from square to linear; infinite for least squares.
    absolute : bool
        Least absolute deviations.

    Examples
    --------
    >>> float(get_loss("huber", 0.5).total(np.array([0.1, 2.0]), np.ones(2)))
    0.88
    """

    name: str
    space: str
    delta: float = math.inf
    absolute: bool = False

    def target(self, y: Array) -> Array:
        """Return the observations in the residual's space."""
        return np.log(y) if self.space == "log" else y

    def residual(self, prediction: Array, target: Array) -> Array:
        """Return prediction minus target in the residual's space."""
        return (np.log(prediction) if self.space == "log" else prediction) - target

    def total(self, residual: Array, weights: Array) -> Array:
        """Return the objective, summed over the last axis."""
        if self.absolute:
            return np.sum(weights * np.abs(residual), axis=-1)
        return np.sum(weights * huber(residual, self.delta), axis=-1)


def huber(residual: Array, delta: float) -> Array:
    """Return r^2/2 for abs(r) <= delta and delta (abs(r) - delta/2) beyond.

    Source: Huber (1964), Annals of Mathematical Statistics 35(1), section 3.

    Examples
    --------
    >>> huber(np.array([1.0, -3.0]), 2.0)
    array([0.5, 4. ])
    """
    psi = np.clip(residual, -delta, delta)
    return psi * (residual - 0.5 * psi)


def get_loss(name: str, delta: float = LITERATURE_DELTA) -> Loss:
    """Return a loss by name.

    Parameters
    ----------
    name : str
        ``huber`` (on log residuals), ``log`` (least squares on them), ``lad`` (least absolute deviations on
        them), or ``raw``, ``huber-raw``, ``lad-raw`` on plain residuals.
    delta : float
        Used by the Huber losses only.

    Raises
    ------
    UnknownNameError
        When there is no such loss.
    InputError
        When delta is not positive and finite.
    """
    if name not in _SPACES:
        raise UnknownNameError("loss", name, _SPACES)
    if not (isinstance(delta, (int, float)) and 0 < delta < math.inf):
        raise InputError(f"delta {delta} must be positive and finite; 1e-3 is usual for log residuals")
    is_huber = name.startswith("huber")
    return Loss(name, _SPACES[name], float(delta) if is_huber else math.inf, name.startswith("lad"))


@dataclass(frozen=True)
class Solution:
    """Where each row ended.

    Parameters
    ----------
    theta : ndarray, shape (R, p)
        Parameters.
    objective : ndarray, shape (R,)
        Sum of the (smooth) loss.
    converged : ndarray of bool, shape (R,)
        Whether the stopping rule was met.
    at_bound : ndarray of bool, shape (R, p)
        Parameters that ended on a bound.
    """

    theta: Array
    objective: Array
    converged: Mask
    at_bound: Mask


@dataclass(frozen=True)
class Problem:
    """Law, scaled inputs, and the loss whose sum is minimised."""

    law: Law
    x: Mapping[str, Array]
    loss: Loss

    @cached_property
    def in_log(self) -> Mask:
        """Which parameters move in their logarithm."""
        return np.array([parameter.log for parameter in self.law.space])

    @cached_property
    def bounds(self) -> tuple[Array, Array]:
        """Low and high bounds in the solver's coordinates."""
        low = np.array([parameter.low for parameter in self.law.space])
        high = np.array([parameter.high for parameter in self.law.space])
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.in_log, np.log(low), low), np.where(self.in_log, np.log(high), high)

    @cached_property
    def any_log(self) -> bool:
        """Whether any parameter moves in its logarithm."""
        return bool(self.in_log.any())

    def to_theta(self, phi: Array) -> Array:
        """Return natural parameters from solver coordinates."""
        if not self.any_log:
            return phi
        theta = phi.copy()
        theta[..., self.in_log] = np.exp(phi[..., self.in_log])
        return theta

    def to_phi(self, theta: Array) -> Array:
        """Return solver coordinates from natural parameters."""
        phi = np.array(theta, dtype=float)
        phi[..., self.in_log] = np.log(phi[..., self.in_log])
        return phi

    def quadratic(self, phi: Array, target: Array, weights: Array) -> tuple[Array, Array, Array]:
        """Return objective (R,), gradient (R, p) and Gauss-Newton curvature (R, p, p)."""
        theta = self.to_theta(phi)
        delta = self.loss.delta
        with np.errstate(all="ignore"):
            prediction, rows = self.law.linearise(theta, self.x)
            residual = self.loss.residual(prediction, target)
            if self.loss.space == "log":
                rows = np.divide(rows, prediction[..., None, :], out=rows)
            if self.any_log:
                rows[..., self.in_log, :] *= theta[..., self.in_log, None]
            psi = np.clip(residual, -delta, delta)
            value = np.sum(weights * psi * (residual - 0.5 * psi), axis=-1)
            gradient = (rows @ (weights * psi)[..., None])[..., 0]
            bend = weights
            if np.isfinite(delta):
                # An outlier pulls with constant force and has no curvature; a share of one keeps the system regular.
                size = np.abs(residual)
                bend = weights * np.where(size <= delta, 1.0, OUTLIER_CURVATURE * delta / size)
            curvature = (rows * bend[..., None, :]) @ np.swapaxes(rows, -1, -2)
        return np.where(np.isfinite(value), value, np.inf), gradient, curvature


@dataclass(frozen=True)
class Fitter:
    """A law and a loss on one table, with inputs divided by their geometric means.

    Centring the logarithms of the inputs is what makes the problem well conditioned: coefficient and
    exponent of a power are nearly collinear at N = 1e9, not at N = 1.
    """

    problem: Problem
    scale: Mapping[str, float]

    @classmethod
    def build(cls, law: Law, x: Mapping[str, Array], loss: Loss) -> Fitter:
        """Scale the inputs of a table."""
        scale = {name: float(np.exp(np.log(x[name]).mean())) for name in law.log_inputs}
        return cls(Problem(law, {name: x[name] / scale.get(name, 1.0) for name in law.inputs}, loss), scale)

    @property
    def robust(self) -> bool:
        """Whether the loss has kinks."""
        return self.problem.loss.absolute or bool(np.isfinite(self.problem.loss.delta))

    def natural(self, theta: Array) -> Array:
        """Return parameters for inputs in their own units."""
        return self.problem.law.rescale(theta, self.scale)

    def scaled(self, theta: Array) -> Array:
        """Return parameters for the scaled inputs."""
        return self.problem.law.rescale(theta, {name: 1.0 / factor for name, factor in self.scale.items()})

    def rows(self, theta: Array) -> tuple[Array, Array]:
        """Return the curve and its derivatives in the residual's space, at scaled parameters (p,)."""
        prediction, rows = self.problem.law.linearise(theta, self.problem.x)
        if self.problem.loss.space == "log":
            return np.log(prediction), rows / prediction
        return prediction, rows

    def point(self, target: Array, weights: Array) -> Solution:
        """Return the best fit (scaled parameters, one row).

        Least squares from the best grid points comes first; its distinct optima and the best grid point then
        start the robust loss.
        """
        first = starts(self.problem, target, weights, KEEP)
        smooth = replace(self.problem, loss=replace(self.problem.loss, delta=np.inf))
        optima = minimise(smooth, target, weights, first, ROUGH if self.robust else TOLERANCE)
        if not np.isfinite(optima.objective).any():
            law = self.problem.law.name
            raise FitError(f"law {law}: no start point gives a finite loss; check the table's units")
        if self.robust:
            begin = np.concatenate([_distinct(optima), first[:1]])
            optima = self.descend(optima.theta[np.argmin(optima.objective)], target, weights, begin, TOLERANCE)
        best = int(np.argmin(optima.objective))
        return Solution(*(part[best : best + 1] for part in vars(optima).values()))

    def descend(self, theta: Array, target: Array, weights: Array, start: Array, tolerance: float) -> Solution:
        """Return where each start ends, going through the stages that suit the residuals at ``theta (p,)``."""
        *early, last = self.stages(theta, target[0] if target.ndim == 2 else target)
        for stage in early:
            start = minimise(stage, target, weights, start, ROUGH).theta
        return minimise(last, target, weights, start, tolerance)

    def stages(self, theta: Array, target: Array) -> list[Problem]:
        """Return the problems to solve in turn, the last one with the loss that was asked for.

        A Huber loss with a delta far below the residuals has kinks everywhere: delta comes down tenfold at a
        time. LAD is the limit, Huber's loss with a delta of 1e-5 of the residuals.
        """
        loss = self.problem.loss
        if not self.robust:
            return [self.problem]
        size = np.abs(loss.residual(self.problem.law.predict(theta, self.problem.x), target))
        scale = float(np.median(size)) or float(size.max())
        floor = 1e-12 * (1.0 if loss.space == "log" else float(np.max(np.abs(target))))
        delta = max(LAD_DELTA * scale, floor) if loss.absolute else loss.delta
        steps = max(0, int(np.log10(max(scale, floor) / delta)))
        return [replace(self.problem, loss=replace(loss, delta=delta * 10.0**k)) for k in range(steps, -1, -1)]

    def refit(self, theta: Array, target: Array, weights: Array, rows: int) -> tuple[Array, Mask]:
        """Return scaled parameters (R, p) of refits started from ``theta (p,)``, and which converged.

        A row that does not converge from there starts again from its own grid.
        """
        start = np.broadcast_to(theta, (rows, theta.size))
        end = self.descend(theta, target, weights, start, BOOTSTRAP_TOLERANCE)
        result, converged = end.theta.copy(), end.converged.copy()
        astray = np.flatnonzero(~converged)
        if not astray.size:
            return result, converged
        problem = self.stages(theta, target[0] if target.ndim == 2 else target)[-1]
        shape = (rows, target.shape[-1])
        targets, cases = np.broadcast_to(target, shape)[astray], np.broadcast_to(weights, shape)[astray]
        begin = np.stack([starts(problem, t, w, KEEP) for t, w in zip(targets, cases, strict=True)])
        keep = begin.shape[1]
        again = minimise(
            problem,
            np.repeat(targets, keep, axis=0),
            np.repeat(cases, keep, axis=0),
            begin.reshape(-1, begin.shape[-1]),
        )
        # Each row had `keep` starts, one after the other: the best of them, where it beats the end of the first try.
        best = np.argmin(again.objective.reshape(-1, keep), axis=1) + keep * np.arange(len(astray))
        better = again.objective[best] <= end.objective[astray]
        result[astray[better]], converged[astray[better]] = again.theta[best[better]], again.converged[best[better]]
        return result, converged


def _distinct(optima: Solution) -> Array:
    """Return the end points with different objectives: several starts mostly end in one optimum."""
    order = np.argsort(optima.objective, kind="stable")
    value = optima.objective[order]
    fresh = np.ones(len(order), dtype=bool)
    fresh[1:] = ~(np.diff(value) <= 1e-9 * value[1:])
    return optima.theta[order[fresh & (np.isfinite(value) | (np.arange(len(order)) == 0))]]


def starts(problem: Problem, target: Array, weights: Array, keep: int) -> Array:
    """Return the best grid points with their closed-form linear parameters.

    Least squares weighted by 1/y^2 stands in for log residuals, so E, A and B of Chinchilla's law follow from
    a 3 x 3 system for every (alpha, beta). Coefficients outside their bounds are clipped; the grid points are
    ranked by the loss that will be minimised.

    Parameters
    ----------
    problem : Problem
        Law, scaled inputs, loss.
    target : ndarray, shape (n,)
        Observations in the residual's space.
    weights : ndarray, shape (n,)
        Case weights.
    keep : int
        How many points to return.

    Returns
    -------
    ndarray, shape (keep, p)
    """
    law = problem.law
    theta = law.grid(problem.x)
    linear = np.flatnonzero([parameter.linear for parameter in law.space])
    prediction, rows = law.linearise(theta, problem.x)
    if linear.size:
        basis = rows[:, linear, :]
        # ln(prediction) - ln(y) is (prediction - y) / y to first order: weights of 1 / y^2 make it linear.
        log = problem.loss.space == "log"
        y = np.exp(target) if log else target
        low = np.array([law.space[i].low for i in linear])
        high = np.array([law.space[i].high for i in linear])
        best = _project(basis, y - prediction, weights / y**2 if log else weights)
        theta[:, linear] = np.clip(best, low, high)
        prediction = prediction + (theta[:, None, linear] @ basis)[:, 0, :]
    with np.errstate(all="ignore"):
        value = problem.loss.total(problem.loss.residual(prediction, target), weights)
    order = np.argsort(np.where(np.isfinite(value), value, np.inf), kind="stable")
    return theta[order[:keep]]


def _project(basis: Array, y: Array, weights: Array) -> Array:
    """Return the weighted least-squares coefficients (G, m) of ``basis (G, m, n)``."""
    weighted = basis * weights
    system = weighted @ np.swapaxes(basis, -1, -2)
    # Grid points at which two columns coincide stay solvable; the hair is far below a grid's resolution.
    diagonal = np.einsum("gii->gi", system)
    diagonal *= 1.0 + 1e-12
    diagonal += 1e-300
    right = weighted @ np.broadcast_to(y, (len(basis), basis.shape[-1]))[..., None]
    return np.asarray(np.linalg.solve(system, right)[..., 0], dtype=np.float64)


def minimise(
    problem: Problem,
    target: Array,
    weights: Array,
    start: Array,
    tolerance: float = TOLERANCE,
    max_iter: int = 300,
) -> Solution:
    """Minimise the loss for every row at once.

    Parameters
    ----------
    problem : Problem
        Law, inputs (scaled to a geometric mean of 1) and a Huber or least-squares loss.
    target : ndarray, shape (n,) or (R, n)
        Observations in the residual's space.
    weights : ndarray, shape (n,) or (R, n)
        Case weights, not negative.
    start : ndarray, shape (R, p)
        Start points, inside the bounds.
    tolerance : float
        A row stops when the decrease still promised is below this share of its objective.
    max_iter : int
        Steps per row.

    Returns
    -------
    Solution
    """
    rows, size = len(start), target.shape[-1]
    target = np.broadcast_to(target, (rows, size))
    weights = np.broadcast_to(weights, (rows, size))
    phi, converged = problem.to_phi(start), np.zeros(rows, dtype=bool)
    phi = np.clip(phi, *problem.bounds)
    value = np.empty(rows)
    # Rows are independent of each other; a block of them keeps its Jacobians in the cache.
    block = max(1, CHUNK // (size * start.shape[-1]))
    for first in range(0, rows, block):
        part = slice(first, first + block)
        phi[part], value[part], converged[part] = _descend(
            problem, target[part], weights[part], phi[part], tolerance, max_iter
        )
    low, high = problem.bounds
    return Solution(problem.to_theta(phi), value, converged, (phi <= low) | (phi >= high))


def _descend(
    problem: Problem, target: Array, weights: Array, phi: Array, tolerance: float, max_iter: int
) -> tuple[Array, Array, Mask]:
    phi = phi.copy()
    value, gradient, curvature = problem.quadratic(phi, target, weights)
    damping = np.full(len(phi), LAMBDA_START)
    converged = np.zeros(len(phi), dtype=bool)
    # What rounding alone leaves of the objective, per row; fits on the curve end there.
    size = 1.0 if problem.loss.space == "log" else np.max(np.abs(target), axis=-1, initial=1e-300)
    floor = np.sum(weights, axis=-1) * (4e-16 * size) ** 2
    alive = np.flatnonzero(np.isfinite(value))
    for _ in range(max_iter):
        if not alive.size:
            break
        step = _step(problem, phi[alive], gradient[alive], curvature[alive], damping[alive])
        promised = -np.sum(step * (gradient[alive] + 0.5 * (curvature[alive] @ step[..., None])[..., 0]), axis=-1)
        trial = phi[alive] + step
        new = problem.quadratic(trial, target[alive], weights[alive])
        gain = value[alive] - new[0]
        better = gain > 0
        accepted = alive[better]
        phi[accepted] = trial[better]
        value[accepted], gradient[accepted], curvature[accepted] = (part[better] for part in new)
        # A step cut off by a bound may promise an increase: that is not convergence but a call for damping.
        small = (promised >= 0) & (promised <= tolerance * value[alive] + floor[alive])
        # On the curve to rounding there is nothing left to descend, however ill-determined the way there was.
        done = (small & (damping[alive] <= LAMBDA_DONE)) | (value[alive] <= floor[alive])
        stalled = damping[alive] > LAMBDA_STALL
        converged[alive] = done
        if stalled.any():
            stuck = alive[stalled]
            converged[stuck] |= _flat(problem, phi, gradient, curvature, value, stuck)
        # Less damping after a step that kept its promise, more after one that did not.
        with np.errstate(all="ignore"):
            ratio = np.where(gain > 0, gain / promised, -1.0)
        factor = np.select([ratio > 0.75, ratio > 0.25, ratio > 0], [0.1, 0.5, 2.0], 8.0)
        damping[alive] = np.maximum(damping[alive] * factor, LAMBDA_MIN)
        alive = alive[~(done | stalled)]
    if alive.size:
        # Steps have run out along a direction that the data hardly tell; what is left to gain decides, as for a stall.
        converged[alive] = _flat(problem, phi, gradient, curvature, value, alive)
    return phi, value, converged


def _step(problem: Problem, phi: Array, gradient: Array, curvature: Array, damping: Array) -> Array:
    """Return the damped Gauss-Newton step, projected on the bounds."""
    low, high = problem.bounds
    # A parameter on its bound that descent would push outwards stays: its row of the system becomes the identity.
    pinned = ((phi <= low) & (gradient > 0)) | ((phi >= high) & (gradient < 0))
    # Marquardt's scaling: with a diagonal of ones one damping suits parameters of any unit.
    scale = np.sqrt(np.einsum("rii->ri", curvature))
    scale = np.maximum(scale, 1e-150 + 1e-12 * scale.max(axis=-1, keepdims=True))
    system = curvature / (scale[:, :, None] * scale[:, None, :])
    system = np.where(pinned[:, :, None] | pinned[:, None, :], 0.0, system)
    diagonal = np.einsum("rii->ri", system)
    diagonal[...] = np.where(pinned, 1.0, diagonal + damping[:, None])
    right = np.where(pinned, 0.0, -gradient / scale)
    try:
        scaled = np.linalg.solve(system, right[..., None])[..., 0]
    except np.linalg.LinAlgError:  # an exactly singular row: lift all of them by a hair
        diagonal += 1e-9
        scaled = np.linalg.solve(system, right[..., None])[..., 0]
    return np.clip(phi + scaled / scale, low, high) - phi


def _flat(
    problem: Problem, phi: Array, gradient: Array, curvature: Array, value: Array, rows: NDArray[np.intp]
) -> Mask:
    """Return whether an undamped step promises next to nothing, for rows where rounding stops progress."""
    step = _step(problem, phi[rows], gradient[rows], curvature[rows], np.full(len(rows), 1e-8))
    return -np.sum(step * gradient[rows], axis=-1) <= STALL_TOLERANCE * value[rows]
