"""Laws that end in an ability: a logit on the joint scale, where sizes act through their logarithm."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from densing.core import Array
from densing.scores.laws.base import BaseLaw, Inputs, Parameter, column, entries, finite, statuses


class LogLinear(BaseLaw):
    """ability = a + b ln N, b > 0.

    Source: own choice for abilities in logits; a logistic score in ln N (arXiv 2405.10938, eq. 3, with one size as the
    measure of capability) is the same line before the logistic function.

    Examples
    --------
    >>> LogLinear().predict([-10.0, 0.5], {"params": [1e9, 1e10]}).round(3)
    array([0.362, 1.513])
    """

    name = "log-linear"
    typical = (-10.0, 0.5)
    inputs = log_inputs = ("params",)
    output = "ability"
    equation = "ability = a + b ln N"
    source = "own choice; the line inside a logistic score in ln N"
    space = (Parameter("a", linear=True), Parameter("b", low=1e-3, linear=True))

    def linearise(self, theta: ArrayLike, x: Inputs) -> tuple[Array, Array]:
        """Return prediction and derivatives; see :meth:`BaseLaw.linearise`."""
        a, b = entries(self._check(theta))
        log_n = np.broadcast_to(
            np.log(column(self, x, "params")), np.broadcast_shapes(np.shape(a), np.shape(x["params"]))
        )
        return a + b * log_n, np.stack([np.ones_like(log_n), log_n], axis=-2)

    def invert(self, theta: ArrayLike, y: ArrayLike, **given: ArrayLike) -> tuple[Array, NDArray[np.str_]]:
        """Return N = exp((y - a) / b); beyond what a float holds it is below_floor or above_ceiling."""
        self._fixed(given)
        a, b = np.moveaxis(self._check(theta), -1, 0)
        with np.errstate(over="ignore", under="ignore"):
            size = np.exp((finite(self, y) - a) / b)
        return size, statuses(size == 0, size == np.inf)

    def rescale(self, theta: ArrayLike, factors: Mapping[str, float]) -> Array:
        """Move the line by b times the logarithm of the factor, so that it stays in place."""
        values = np.array(self._check(theta))
        values[..., 0] -= values[..., 1] * np.log(factors.get("params", 1.0))
        return values

    def grid(self, x: Inputs) -> Array:
        """Return one start: nothing is nonlinear."""
        return np.zeros((1, 2))
