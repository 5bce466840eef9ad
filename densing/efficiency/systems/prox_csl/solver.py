"""Two unrelated solvers of one convex problem: proximal Newton with coordinate descent, and accelerated gradients.

The problem is that of the surrogate, of which a plain fit is the case without tilt and proximal term:

.. math:: \\min_w f(w) + \\langle t, w\\rangle + \\sum_j \\lambda_j |w_j| + \\tfrac{\\alpha}{2} |w - w_0|^2

with f the mean logistic loss of a partition's items. The first is fast, the second short: each is the other's check.

Source: Yuan, Ho and Lin, "An Improved GLMNET for L1-regularized Logistic Regression", JMLR 13 (2012), for the first;
Beck and Teboulle, SIAM J. Imaging Sciences 2 (2009), with the restart of O'Donoghue and Candès (2015), for the second.
The clamp of a coordinate's step and the damping are those of ``FutureComputing4AI/ProxCSL``.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.special import expit

from densing.core import Array
from densing.efficiency.systems.prox_csl.parts import Part

DAMPING, CLAMP = 1e-12, 10.0
HALVINGS, SLOPE = 30, 0.01
LEAST_WORK = 512
"""Least number of zero weights that a step considers; twice the number of nonzero ones if that is larger."""


class Solution(NamedTuple):
    """Where a solver ended.

    Attributes
    ----------
    weights : array of shape (d,)
    objective : float
        With tilt, penalty and proximal term.
    violation : float
        The largest entry of the smallest subgradient, as a share of the largest penalty: 0 at the optimum.
    steps : int
        Newton or gradient steps.
    """

    weights: Array
    objective: float
    violation: float
    steps: int


class Problem:
    """The problem above, with what its solvers ask of it."""

    def __init__(
        self, part: Part, penalty: Array, tilt: Array | None, alpha: float, anchor: Array | None, start: Array | None
    ) -> None:
        self.part, self.penalty, self.alpha = part, penalty, alpha
        self.tilt = np.zeros(part.width) if tilt is None else tilt
        self.anchor = np.zeros(part.width) if anchor is None else anchor
        self.start = np.zeros(part.width) if start is None else np.array(start, dtype=np.float64)
        self.scale = float(penalty.max(initial=0.0)) or 1.0

    def smooth(self, weights: Array, margins: Array) -> float:
        """Return the objective without its penalty."""
        pull = 0.5 * self.alpha * float(np.sum((weights - self.anchor) ** 2)) if self.alpha else 0.0
        return self.part.loss(margins) + float(self.tilt @ weights) + pull

    def value(self, weights: Array, margins: Array) -> float:
        """Return the objective."""
        return self.smooth(weights, margins) + float(self.penalty @ np.abs(weights))

    def gradient(self, weights: Array, margins: Array) -> Array:
        """Return the gradient of the objective without its penalty."""
        slope = self.part.features.T @ self.part.residuals(margins) + self.tilt
        return slope + self.alpha * (weights - self.anchor) if self.alpha else slope

    def violations(self, weights: Array, gradient: Array) -> Array:
        """Return each entry of the smallest subgradient, without sign, as a share of the largest penalty."""
        at_zero = np.maximum(np.abs(gradient) - self.penalty, 0.0)
        return np.where(weights == 0, at_zero, np.abs(gradient + np.sign(weights) * self.penalty)) / self.scale


def minimise(
    part: Part,
    penalty: Array,
    *,
    start: Array | None = None,
    tilt: Array | None = None,
    alpha: float = 0.0,
    anchor: Array | None = None,
    tol: float = 1e-4,
    steps: int = 100,
    cycles: int = 50,
    whole: bool = False,
    floor: float = -math.inf,
) -> Solution:
    """Solve by proximal Newton steps, each by coordinate descent over the columns that matter.

    Parameters
    ----------
    part : Part
    penalty : array of shape (d,)
        Each weight's own; 0 where none is to be shrunk.
    start : array of shape (d,), optional
        Zero by default.
    tilt, anchor : array of shape (d,), optional
        t and w_0 of the problem.
    alpha : float
        Strength of the proximal term.
    tol : float
        Largest violation it stops at (:class:`Solution`).
    steps, cycles : int
        Newton steps, and passes of coordinate descent within one, at most.
    whole : bool
        Let a step look at every feature whose optimality is violated, instead of the worst so many.
    floor : float
        An objective at which to give up: a tilt without end drives some problems to minus infinity.

    Examples
    --------
    >>> part = Part(np.array([[1.0], [1.0], [1.0], [-1.0]]), np.array([1, 1, 0, 0]))
    >>> solution = minimise(part, np.array([0.1]), tol=1e-9)
    >>> round(float(solution.weights[0]), 4)  # log((3/4 - 0.1) / (1/4 + 0.1))
    0.619
    """
    problem = Problem(part, penalty, tilt, alpha, anchor, start)
    weights = problem.start
    margins = part.features @ weights
    objective = problem.value(weights, margins)
    for step in range(steps + 1):
        gradient = problem.gradient(weights, margins)
        violations = problem.violations(weights, gradient)
        worst = float(violations.max(initial=0.0))
        if worst <= tol or step == steps:
            return Solution(weights, objective, worst, step)
        work = _working_set(weights, violations, tol, whole)
        columns = part.features[:, work]
        likely = expit(margins)
        reached = _descend(
            columns, likely * (1 - likely) / part.items, gradient[work], weights[work], penalty[work], alpha,
            cycles, max(0.1 * worst, 0.3 * tol) * problem.scale,
        )  # fmt: skip
        direction = reached - weights[work]
        slide = columns @ direction
        promised = float(gradient[work] @ direction)
        promised += float(penalty[work] @ (np.abs(reached) - np.abs(weights[work])))
        scale, trial = 1.0, weights.copy()
        for _ in range(HALVINGS):
            # At the full step zeros stay zeros to the bit.
            trial[work] = reached if scale == 1 else weights[work] + scale * direction
            value = problem.value(trial, margins + scale * slide)
            if value <= objective + SLOPE * scale * promised:
                break
            scale /= 2
        else:
            # Nothing is left to gain that doubles can show.
            return Solution(weights, objective, worst, step)
        weights, margins, objective = trial, margins + scale * slide, value
        if objective < floor:
            return Solution(weights, objective, worst, step + 1)
    raise AssertionError("the last step returns")


def _working_set(weights: Array, violations: Array, tol: float, whole: bool) -> Array:
    """Return which features a step may move: those that are not zero, and the worst of those that should not be."""
    support = np.flatnonzero(weights)
    fresh = np.flatnonzero((violations > 0.3 * tol) & (weights == 0))
    most = max(LEAST_WORK, 2 * len(support))
    if not whole and len(fresh) > most:
        fresh = fresh[np.argpartition(violations[fresh], -most)[-most:]]
    return np.sort(np.concatenate([support, fresh]))


def _descend(
    columns: sparse.csc_array, curvature: Array, slopes: Array, at: Array, penalty: Array, alpha: float,
    cycles: int, tol: float,
) -> Array:  # fmt: skip
    """Return the weights a Newton step leads to, by coordinate descent on the quadratic model.

    A pass over all columns is followed by passes over those that are not zero, until these have come to rest. The
    product of curvature and movement is kept per item, so that a column costs one reading and one writing of its rows.
    """
    bounds, rows, data = columns.indptr.tolist(), columns.indices, columns.data
    weighted = data * curvature[rows]
    bends = (columns.power(2).T @ curvature + alpha + DAMPING).tolist()
    spans = [slice(first, last) for first, last in pairwise(bounds)]
    own = [(rows[span], data[span], weighted[span]) for span in spans]
    slopes_, lams, first, now = slopes.tolist(), penalty.tolist(), at.tolist(), at.tolist()
    bent = np.zeros(columns.shape[0])
    everything = list(range(len(own)))
    order = everything
    for _ in range(cycles):
        largest = 0.0
        for j in order:
            index, entries, heavy = own[j]
            slope = slopes_[j] + float(entries.dot(bent.take(index))) + alpha * (now[j] - first[j])
            bend, here, lam = bends[j], now[j], lams[j]
            if slope + lam < bend * here:
                change = -(slope + lam) / bend
            elif slope - lam > bend * here:
                change = -(slope - lam) / bend
            else:
                change = -here
            if -1e-15 < change < 1e-15:
                # A zero is to be one, not the remainder of two numbers.
                now[j] = 0.0 if change == -here else here
                continue
            change = min(max(change, -CLAMP), CLAMP)
            now[j] = 0.0 if change == -here else here + change
            bent[index] += change * heavy
            largest = max(largest, abs(change) * bend)
        if largest > tol:
            order = [j for j in everything if now[j] != 0.0]
        elif len(order) == len(own):
            break
        else:
            order = everything
    return np.array(now)
