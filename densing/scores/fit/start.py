"""Start points by variable projection: the linear parameters have a closed form on a grid of the others."""

from __future__ import annotations

import numpy as np

from densing.core import Array
from densing.scores.fit.solve import Problem


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
    diagonal = np.einsum("gii->gi", system)
    diagonal *= 1.0 + 1e-12
    diagonal += 1e-300
    right = weighted @ np.broadcast_to(y, (len(basis), basis.shape[-1]))[..., None]
    return np.asarray(np.linalg.solve(system, right)[..., 0], dtype=np.float64)
