"""Least squares of relative residuals, robust against outliers, with standard errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from densing.core import Record

Floats: TypeAlias = NDArray[np.float64]
Residuals: TypeAlias = Callable[[Floats], Floats]
SOFT = 0.1
"""Relative residual from which on the robust loss grows linearly."""


class Estimate(Record, frozen=True):
    """A fitted figure with its standard error and 95 % interval (cut at 0)."""

    value: float
    standard_error: float
    low: float
    high: float


def fit(residuals: Residuals, begin: Sequence[float], scales: Sequence[float], lost: int = 0) -> list[Estimate]:
    """Fit parameters from 0 up.

    Parameters
    ----------
    residuals : callable
        Parameters (p,) to residuals (n,).
    begin : sequence of float
        Where to begin; parameters are near 1.
    scales : sequence of float
        Multiply the parameters.
    lost : int
        Degrees of freedom that the residuals have lost already.

    Notes
    -----
    Loss: soft L1. Standard errors: from the Jacobian and the variance at the minimum, both weighted as the loss does;
    interval: Student's t with n - p degrees of freedom.

    Examples
    --------
    >>> import numpy as np
    >>> seen = np.log([2.0, 2.0, 2.2, 1.8])
    >>> found = fit(lambda x: np.log(x[0]) - seen, [1.0], [1.0])[0]
    >>> round(found.value, 2), found.low < 2 < found.high
    (2.0, True)
    """
    from scipy.optimize import least_squares
    from scipy.stats import t

    found = least_squares(residuals, begin, bounds=(0, np.inf), loss="soft_l1", f_scale=SOFT, x_scale="jac")
    last = residuals(found.x)
    free = max(len(last) - len(begin) - lost, 1)
    weight = 1 / np.sqrt(1 + (last / SOFT) ** 2)
    jacobian = _jacobian(residuals, found.x)
    covariance = (weight * last**2).sum() / free * np.linalg.pinv(jacobian.T @ (weight[:, None] * jacobian))
    wide = float(t.ppf(0.975, free))
    estimates = []
    for at, (value, scale) in enumerate(zip(found.x, scales, strict=True)):
        error = math.sqrt(max(float(covariance[at, at]), 0.0))
        low, high = max(float(value) - wide * error, 0.0), float(value) + wide * error
        estimates.append(Estimate(float(value) * scale, error * scale, low * scale, high * scale))
    return estimates


def stretch(beside: Floats, kappa: float) -> Floats:
    """Return the logarithm of how many times longer work takes of whose duration a share ran at 1/(1 + kappa).

    Examples
    --------
    >>> import numpy as np
    >>> np.exp(stretch(np.array([0.0, 1.0]), 0.5)).round(6).tolist()
    [1.0, 1.5]
    """
    return -np.log1p(-beside * kappa / (1 + kappa))


def rms(residuals: Floats) -> float:
    """Return the root mean square."""
    return float(np.sqrt(np.mean(residuals**2)))


def _jacobian(residuals: Residuals, x: Floats) -> Floats:
    """Central differences; one-sided at 0."""
    columns = []
    for at in range(len(x)):
        step = 1e-6 * max(abs(float(x[at])), 1e-3)
        up, down = x.copy(), x.copy()
        up[at] += step
        down[at] = max(down[at] - step, 0.0)
        columns.append((residuals(up) - residuals(down)) / (up[at] - down[at]))
    return np.stack(columns, axis=1)
