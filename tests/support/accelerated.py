"""Accelerated proximal gradients: a second solver of the sparse classifier's problem, as an oracle."""

from __future__ import annotations

import numpy as np

from densing.core import Array
from densing.efficiency.systems.prox_csl.solver import Part, Problem, Solution


def fista(
    part: Part,
    penalty: Array,
    *,
    start: Array | None = None,
    tilt: Array | None = None,
    alpha: float = 0.0,
    anchor: Array | None = None,
    tol: float = 1e-4,
    steps: int = 10_000,
) -> Solution:
    """Solve by accelerated proximal gradients that start again when they overshoot; arguments as for `minimise`."""
    problem = Problem(part, penalty, tilt, alpha, anchor, start)
    weights = ahead = problem.start
    margins = part.features @ weights
    steepest, momentum = 1e-3 + alpha, 1.0
    for step in range(steps + 1):
        # Optimality is tested where the answer is, not where the momentum looks.
        if step % 10 == 0 or step == steps:
            violations = problem.violations(weights, problem.gradient(weights, margins))
            worst = float(violations.max(initial=0.0))
            if worst <= tol or step == steps:
                return Solution(weights, problem.value(weights, margins), worst, step)
        looked = part.features @ ahead
        level, slope = problem.smooth(ahead, looked), problem.gradient(ahead, looked)
        while True:
            stepped = ahead - slope / steepest
            trial = np.sign(stepped) * np.maximum(np.abs(stepped) - penalty / steepest, 0.0)
            reached = part.features @ trial
            gap = trial - ahead
            bound = level + float(slope @ gap) + 0.5 * steepest * float(gap @ gap)
            if problem.smooth(trial, reached) <= bound + 1e-14 * abs(bound):
                break
            steepest *= 2
        if float((ahead - trial) @ (trial - weights)) > 0:
            momentum = 1.0
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = trial + (momentum - 1) / following * (trial - weights)
        weights, margins, momentum = trial, reached, following
    raise AssertionError("the last step returns")
