"""One curve through one table, and many refits of it: the numerical half of :func:`densing.scores.fit.fit_law`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import fdtrc

from densing.core import Array, FitError
from densing.scores.fit.losses import Loss
from densing.scores.fit.solve import TOLERANCE, Mask, Problem, Solution, minimise, starts
from densing.scores.fit.table import FitTable
from densing.scores.laws import Law

KEEP = 4
BOOTSTRAP_TOLERANCE, ROUGH = 1e-11, 1e-9
# A polynomial that differs from the law's own derivatives by less than this share of its size says nothing new.
NEW_DIRECTION = 1e-6
LAD_DELTA = 1e-5  # of the median residual; smaller only costs time, the objective agrees with LAD's to 1e-6


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

    def lack_of_fit(self, theta: Array, table: FitTable) -> float:
        """Return the p value of "the curve is right", at scaled parameters (p,); NaN where too few points can tell.

        F = (SS(r | J) - SS(r | J, Z)) / k / (SS(r | J, Z) / (n - p - k)): how much of the residuals r, beyond the
        law's own derivatives J, is explained by squares, cubes and products Z of the standardised log inputs; k is
        the number of directions that Z adds to J. Clusters count once, with the means of their rows.

        Source: the score test against polynomial departures, Ramsey 1969 (RESET), in the form of Davidson and
        MacKinnon, "Econometric Theory and Methods", section 6.7 (Gauss-Newton regression).
        """
        curve, rows = self.rows(theta)
        residual = self.problem.loss.target(table.y) - curve
        logs = [np.log(values) for values in self.problem.x.values() if np.ptp(values) > 0]
        logs = [(column - column.mean()) / column.std() for column in logs]
        powers = [column**power for column in logs for power in (2, 3)]
        products = [a * b for i, a in enumerate(logs) for b in logs[:i]]
        if not logs:
            return float("nan")
        columns = np.stack([residual, *rows, *powers, *products])
        weights = table.cases
        if table.clusters is not None:
            labels = table.labels
            sums = np.stack([np.bincount(labels, column * weights) for column in columns])
            weights = np.asarray(np.bincount(labels, weights), dtype=float)
            columns = sums / weights
        columns = columns * np.sqrt(weights)
        columns[1:] /= np.linalg.norm(columns[1:], axis=1, keepdims=True) + 1e-300
        p, n = len(rows), columns.shape[1]
        left, size, _ = np.linalg.svd(columns[1 : 1 + p].T, full_matrices=False)
        own = left[:, size > 1e-10 * size[0]]
        # What is left of residuals and polynomials once the law's own directions are taken out of them.
        remainder, extra = ((part.T - own @ (own.T @ part.T)) for part in (columns[:1], columns[1 + p :]))
        left, size, _ = np.linalg.svd(extra, full_matrices=False)
        added = left[:, size > NEW_DIRECTION]
        freedom = n - own.shape[1] - added.shape[1]
        explained, total = np.sum((added.T @ remainder) ** 2), np.sum(remainder**2)
        rounding = weights.sum() * (1e-13 * max(1.0, float(np.abs(table.y).max()))) ** 2
        if not added.shape[1] or freedom < 2 or total <= rounding:
            return float("nan")
        ratio = explained / added.shape[1] / max((total - explained) / freedom, 1e-300)
        return float(fdtrc(added.shape[1], freedom, ratio))

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
