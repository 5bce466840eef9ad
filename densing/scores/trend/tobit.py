"""Regression with rows that are known only as bounds (Tobit), many fits at once.

Latent model: y* = X b + s e with e standard normal; a row is seen as y*, as "at or below c" or as "at or
above c". With theta = 1/s and gamma = b/s the log-likelihood is concave (Olsen 1978), so Newton's method
with step halving finds its one maximum. All fits of a batch (leave-outs, resamples, draws, permutations)
move together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import erfcx, log_ndtr

from densing.core import Array

_LOG_ROOT_TAU = 0.5 * np.log(2 * np.pi)
_MAX_ITER, _MAX_HALVINGS = 60, 30
_PERFECT = 1e-8  # residual deviation, relative to the values, at which a fit is perfect and its likelihood unbounded
_DECREMENT = 1e-12  # predicted gain in log-likelihood (an absolute scale) at which a fit has converged


@dataclass(frozen=True)
class TobitFit:
    """A batch of Tobit fits.

    Parameters
    ----------
    beta : array, shape (B, k)
        Coefficients of the design.
    sigma : array, shape (B,)
        Residual standard deviation.
    loglik : array, shape (B,)
    converged : array of bool, shape (B,)
    """

    beta: Array
    sigma: Array
    loglik: Array
    converged: Array


def fit_tobit(design: Array, y: Array, censor: Array, weights: Array | None = None) -> TobitFit:
    """Fit Tobit regressions by maximum likelihood, batched.

    maximise sum_i w_i l_i with l_i = ln theta + ln phi(z_i) for an observed row, ln Phi(z_i) for one at or
    below its limit, ln Phi(-z_i) for one at or above, z_i = theta y_i - x_i gamma.

    Source: Tobin (1958); concave form: Olsen, Econometrica 46 (1978) 1211-1215.

    Parameters
    ----------
    design : array, shape (n, k) or (B, n, k)
    y : array, shape (n,) or (B, n)
        Values, or limits for censored rows.
    censor : array of int, shape (n,) or (B, n)
        -1 at or below, 0 observed, +1 at or above.
    weights : array, shape (n,) or (B, n), optional
        Case weights; 0 leaves a row out.

    Returns
    -------
    TobitFit
        Fits without a finite maximum (too few observed rows) come back with ``converged`` False.

    Examples
    --------
    >>> t = np.arange(6.0)
    >>> x = np.column_stack([np.ones(6), t])
    >>> y = 1 + 2 * t + np.array([0.1, -0.1, 0.05, -0.05, 0.1, -0.1])
    >>> open_end = fit_tobit(x, np.minimum(y, 9.0), np.where(y > 9, 1, 0))
    >>> open_end.beta.round(2).tolist()
    [[1.02, 2.0]]
    """
    # In theta = 1/s and gamma = b/s the likelihood has one maximum, so Newton from a crude start is safe where a step
    # that would lower it is halved. Fits that are done leave the batch; the others go on without them.
    problem = _Problem.build(design, y, censor, weights)
    params = problem.start()
    value = problem.loglik(params)
    active = np.isfinite(value)
    # A line through every point has no finite maximum: theta runs away, and is stopped here.
    ceiling = 1 / (_PERFECT * max(1.0, float(np.nanmax(np.abs(problem.jacobian)))))
    converged = np.zeros(len(value), dtype=bool)
    for _ in range(_MAX_ITER):
        rows = np.flatnonzero(active)
        if rows.size == 0:
            break
        part = problem.part(rows)
        step, gain = part.newton(params[rows])
        params[rows], value[rows], moved = part.line_search(params[rows], value[rows], step)
        done = gain < _DECREMENT
        converged[rows] = done
        active[rows] = ~done & moved & (params[rows, -1] < ceiling)
    theta = params[:, -1]
    with np.errstate(divide="ignore", invalid="ignore"):
        return TobitFit(params[:, :-1] / theta[:, None], 1 / theta, value, converged)


def inverse_mills(z: Array) -> Array:
    """Return phi(z) / Phi(z), stable in both tails: sqrt(2 / pi) / erfcx(-z / sqrt 2).

    Examples
    --------
    >>> inverse_mills(np.array([-100.0, 0.0, 40.0])).round(3).tolist()
    [100.01, 0.798, 0.0]
    """
    return np.asarray(np.sqrt(2 / np.pi) / erfcx(-z / np.sqrt(2)))


def bound_curvature(z: Array) -> Array:
    """Return -d^2 ln Phi / dz^2, between 0 (the bound says nothing) and 1 (as good as a value).

    Examples
    --------
    >>> bound_curvature(np.array([-1e9, 0.0, 40.0])).round(3).tolist()
    [1.0, 0.637, 0.0]
    """
    near = np.maximum(z, -1e4)  # beyond, the difference below is lost to rounding and the limit 1 is reached
    mills = inverse_mills(near)
    return np.asarray(np.clip(mills * (mills + near), 0.0, 1.0))


@dataclass(frozen=True)
class _Problem:
    """The batch with all its arrays at full shape: jacobian of z (B, n, k+1), censor and weights (B, n)."""

    jacobian: Array
    censor: Array
    weights: Array

    @classmethod
    def build(cls, design: Array, y: Array, censor: Array, weights: Array | None) -> _Problem:
        design, y = np.asarray(design, dtype=float), np.atleast_2d(np.asarray(y, dtype=float))
        design = design if design.ndim == 3 else design[None]
        flags = np.atleast_2d(np.asarray(censor))
        share = np.ones((1, y.shape[1])) if weights is None else np.atleast_2d(np.asarray(weights, dtype=float))
        size = max(len(design), len(y), len(flags), len(share))
        n, k = design.shape[1:]
        jacobian = np.empty((size, n, k + 1))
        jacobian[:, :, :k] = -design
        jacobian[:, :, k] = y
        return cls(jacobian, np.broadcast_to(flags, (size, n)), np.broadcast_to(share, (size, n)))

    def part(self, rows: Array) -> _Problem:
        """Return the fits still moving."""
        if len(rows) == len(self.jacobian):
            return self
        return _Problem(self.jacobian[rows], self.censor[rows], self.weights[rows])

    @property
    def seen(self) -> Array:
        """Weight of the observed rows, shape (B,)."""
        return np.sum(np.where(self.censor == 0, self.weights, 0.0), axis=1)

    def start(self) -> Array:
        """Least squares with limits taken as values: crude, but the likelihood is concave."""
        design, y = -self.jacobian[:, :, :-1], self.jacobian[:, :, -1]
        weighted = np.swapaxes(design * self.weights[:, :, None], 1, 2)
        beta = _solve(weighted @ design, (weighted @ y[:, :, None])[:, :, 0])
        residual = y - (design @ beta[:, :, None])[:, :, 0]
        total = np.maximum(self.weights.sum(axis=1), 1.0)
        scale = np.sqrt(np.sum(self.weights * residual**2, axis=1) / total)
        theta = 1 / np.maximum(scale, 1e-8)
        return np.column_stack([beta * theta[:, None], theta])

    def loglik(self, params: Array) -> Array:
        """Log-likelihood, shape (B,); minus infinity where theta is not positive or nothing is observed."""
        theta = params[:, -1]
        z = (self.jacobian @ params[:, :, None])[:, :, 0]
        safe = np.where(theta > 0, theta, 1.0)
        terms = -0.5 * z**2 - _LOG_ROOT_TAU + np.log(safe)[:, None]
        row, column = np.nonzero(self.censor)
        terms[row, column] = log_ndtr(-self.censor[row, column] * z[row, column])
        total = np.sum(np.where(self.weights > 0, self.weights * terms, 0.0), axis=1)
        return np.where((theta > 0) & (self.seen > 0), total, -np.inf)

    def newton(self, params: Array) -> tuple[Array, Array]:
        """Newton step (B, k+1) and the gain in log-likelihood it promises (B,)."""
        theta = params[:, -1]
        z = (self.jacobian @ params[:, :, None])[:, :, 0]
        slope, curvature = -z, np.ones_like(z)
        row, column = np.nonzero(self.censor)
        sign = -self.censor[row, column]
        inner = sign * z[row, column]
        mills = inverse_mills(inner)
        slope[row, column] = sign * mills
        curvature[row, column] = bound_curvature(inner)
        weighted = np.swapaxes(self.jacobian * self.weights[:, :, None], 1, 2)
        gradient = (weighted @ slope[:, :, None])[:, :, 0]
        hessian = (weighted * curvature[:, None, :]) @ self.jacobian
        gradient[:, -1] += self.seen / theta
        hessian[:, -1, -1] += self.seen / theta**2
        step = _solve(hessian, gradient)
        return step, 0.5 * np.abs(np.sum(step * gradient, axis=1))

    def line_search(self, params: Array, value: Array, step: Array) -> tuple[Array, Array, Array]:
        """Halve steps until the log-likelihood does not fall; returns parameters, values and who moved."""
        length = np.ones(len(params))
        slack = 1e-10 * (1 + np.abs(value))
        for _ in range(_MAX_HALVINGS):
            trial = params + length[:, None] * step
            found = self.loglik(trial)
            bad = ~(found >= value - slack)
            if not bad.any():
                break
            length[bad] *= 0.5
        moved = ~bad
        return np.where(moved[:, None], trial, params), np.where(moved, found, value), moved


def _solve(matrix: Array, right: Array) -> Array:
    """Solve symmetric systems scaled to unit diagonal; a trace of ridge keeps empty ones finite."""
    diagonal = np.sqrt(np.maximum(np.einsum("bii->bi", matrix), 1e-300))
    scaled = matrix / diagonal[:, :, None] / diagonal[:, None, :]
    scaled = scaled + 1e-13 * np.eye(matrix.shape[-1])
    scaled = np.where(np.isfinite(scaled), scaled, np.eye(matrix.shape[-1]))
    return np.linalg.solve(scaled, (right / diagonal)[:, :, None])[:, :, 0] / diagonal
