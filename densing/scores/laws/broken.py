"""The broken power law: two slopes and a smooth bend between them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from densing.core import Array
from densing.scores.laws.base import BaseLaw, Inputs, Parameter, column, entries, finite, statuses

MAX_STEPS = 200


class Broken(BaseLaw):
    """L = a + b N^-s0 (1 + (N/d)^(1/f))^(-(s1 - s0) f): slope s0 before the break at N = d, s1 after it.

    Source: arXiv 2210.14891, eq. 1 with one break; its c0 is s0 and its c1 is s1 - s0. Positive slopes on
    both sides keep the law monotone, hence invertible.

    Examples
    --------
    >>> law = Broken()
    >>> theta = [1.5, 40.0, 0.15, 0.3, 1e9, 0.5]
    >>> loss = law.predict(theta, {"params": [1e8, 1e10]})
    >>> (law.invert(theta, loss)[0] / [1e8, 1e10]).round(9)
    array([1., 1.])
    """

    name = "broken"
    typical = (1.5, 60.0, 0.16, 0.33, 1.5e9, 0.4)
    inputs = log_inputs = ("params",)
    output = "loss"
    equation = "L = a + b N^-s0 (1 + (N/d)^(1/f))^(-(s1 - s0) f)"
    source = "arXiv 2210.14891, eq. 1 with one break"
    space = (
        Parameter("a", low=0.0, linear=True),
        Parameter("b", low=0.0, linear=True),
        Parameter("s0", 1e-4, 10.0),
        Parameter("s1", 1e-4, 10.0),
        Parameter("d", low=0.0, log=True),
        Parameter("f", 1e-2, 10.0, log=True),
    )

    def linearise(self, theta: ArrayLike, x: Inputs) -> tuple[Array, Array]:
        """Return prediction and derivatives; see :meth:`BaseLaw.linearise`."""
        a, b, s0, s1, d, f = entries(self._check(theta))
        log_x = np.log(column(self, x, "params"))
        # soft = ln(1 + (N/d)^(1/f)) bends from 0 to a line at the break, share is its slope; so, neither overflows.
        z = (log_x - np.log(d)) / f
        soft, share = np.logaddexp(0.0, z), np.exp(-np.logaddexp(0.0, -z))
        shape = np.exp(-s0 * log_x - (s1 - s0) * f * soft)
        curve = b * shape
        rows = [
            np.ones_like(curve),
            shape,
            curve * (f * soft - log_x),
            -curve * f * soft,
            curve * (s1 - s0) * share / d,
            -curve * (s1 - s0) * (soft - z * share),
        ]
        return a + curve, np.stack(rows, axis=-2)

    def invert(self, theta: ArrayLike, y: ArrayLike, **given: ArrayLike) -> tuple[Array, NDArray[np.str_]]:
        """Return N by Newton's method on ln(L - a) as a function of ln N.

        That function is monotone and either convex or concave, with slopes between -s0 and -s1, so Newton's
        method converges from every start. A loss at or below a is above_ceiling.
        """
        self._fixed(given)
        a, b, s0, s1, d, f = np.moveaxis(self._check(theta), -1, 0)
        above = finite(self, y) - a
        with np.errstate(all="ignore"):
            goal = np.log(np.where(above > 0, above, np.nan)) - np.log(b)
            log_n = _newton(goal, s0, s1, np.log(d), f)
            size = np.where(above > 0, np.exp(log_n), np.inf)
        return size, statuses(size == 0, size == np.inf)

    def rescale(self, theta: ArrayLike, factors: Mapping[str, float]) -> Array:
        """Move the break by the factor and b by factor^s0."""
        values = np.array(self._check(theta))
        factor = factors.get("params", 1.0)
        values[..., 1] *= factor ** values[..., 2]
        values[..., 4] *= factor
        return values

    def grid(self, x: Inputs) -> Array:
        """Return slopes before and after, five breaks inside the data, three widths."""
        log_x = np.log(column(self, x, "params"))
        breaks = np.exp(np.quantile(log_x, [0.15, 0.35, 0.5, 0.65, 0.85]))
        slopes = np.geomspace(0.03, 1.5, 8)
        mesh = np.meshgrid([0.0], [0.0], slopes, slopes, breaks, [0.1, 0.4, 1.5], indexing="ij")
        return np.stack([axis.ravel() for axis in mesh], axis=-1)


def _newton(goal: Array, s0: Array, s1: Array, log_d: Array, f: Array) -> Array:
    # From the break, where the slope lies between those of the two ends.
    u = np.broadcast_to(log_d, np.broadcast_shapes(np.shape(goal), np.shape(log_d))).astype(float)
    for _ in range(MAX_STEPS):
        z = (u - log_d) / f
        value = -s0 * u - (s1 - s0) * f * np.logaddexp(0.0, z)
        slope = -s0 - (s1 - s0) * np.exp(-np.logaddexp(0.0, -z))
        step = (goal - value) / slope
        u = u + step
        if np.all((np.abs(step) <= 1e-14 * np.maximum(np.abs(u), 1.0)) | ~np.isfinite(step)):
            break
    return u
