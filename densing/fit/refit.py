"""One curve through one table, and many refits of it: the numerical half of :func:`densing.fit.fit_law`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from densing.errors import FitError
from densing.fit.losses import Array, Loss
from densing.fit.solve import Mask, Problem, Solution, minimise
from densing.fit.start import starts
from densing.laws.base import Law

KEEP = 4
BOOTSTRAP_TOLERANCE = 1e-11
LAD_DELTA = 1e-6  # of the median residual: below it Huber's optimum is that of absolute deviations to 1e-6


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

        Least squares from the best grid points comes first; its optima and the grid points themselves then
        start the robust loss.
        """
        first = starts(self.problem, target, weights, KEEP)
        smooth = replace(self.problem, loss=replace(self.problem.loss, delta=np.inf))
        found = minimise(smooth, target, weights, first)
        if not np.isfinite(found.objective).any():
            raise FitError(f"law {self.problem.law.name}: no start point gives a finite loss; check the table's units")
        begin = np.concatenate([found.theta, first])
        for stage in self.stages(found.theta[np.argmin(found.objective)], target):
            found = minimise(stage, target, weights, begin)
            begin = found.theta
        best = int(np.argmin(found.objective))
        return Solution(*(part[best : best + 1] for part in vars(found).values()))

    def stages(self, theta: Array, target: Array) -> list[Problem]:
        """Return the problems to solve in turn, the last one with the loss that was asked for.

        A Huber loss with a delta far below the residuals has kinks everywhere: delta comes down tenfold at a
        time. LAD is the limit, Huber's loss with a delta of 1e-6 of the residuals.
        """
        loss = self.problem.loss
        if not (loss.absolute or np.isfinite(loss.delta)):
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
        for problem in self.stages(theta, target[0] if target.ndim == 2 else target):
            found = minimise(problem, target, weights, start, tolerance=BOOTSTRAP_TOLERANCE)
            start = found.theta
        result, converged = found.theta.copy(), found.converged.copy()
        size = target.shape[-1]
        targets, cases = np.broadcast_to(target, (rows, size)), np.broadcast_to(weights, (rows, size))
        for row in np.flatnonzero(~converged):
            again = minimise(problem, targets[row], cases[row], starts(problem, targets[row], cases[row], KEEP))
            best = int(np.argmin(again.objective))
            if again.objective[best] <= found.objective[row]:
                result[row], converged[row] = again.theta[best], again.converged[best]
        return result, converged
