"""Laws that end in a loss: a constant plus powers of size and tokens, or one power of the size that bends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from densing.core import Array, DomainError
from densing.scores.laws.base import BaseLaw, Inputs, Parameter, column, entries, finite, statuses

EXPONENTS = (1e-4, 10.0)
_GRID = np.geomspace(0.03, 1.6, 12)
MAX_STEPS = 200


class PowerSum(BaseLaw):
    """L = [E] + sum over inputs of coefficient * input^-exponent; the terms are declared by the subclass."""

    output = "loss"
    constant: ClassVar[str | None] = None
    terms: ClassVar[Mapping[str, tuple[str, str]]]  # input -> (name of coefficient, name of exponent)

    def __init_subclass__(cls) -> None:
        """Derive the parameters from the declared terms: constant, coefficients, exponents."""
        cls.inputs = cls.log_inputs = tuple(cls.terms)
        linear = [cls.constant] if cls.constant else []
        linear += [coefficient for coefficient, _ in cls.terms.values()]
        cls.space = (
            *(Parameter(name, low=0.0, linear=True) for name in linear),
            *(Parameter(exponent, *EXPONENTS) for _, exponent in cls.terms.values()),
        )

    def linearise(self, theta: ArrayLike, x: Inputs) -> tuple[Array, Array]:
        """Return prediction and derivatives; see :meth:`BaseLaw.linearise`."""
        values = self._check(theta)
        parts = entries(values)
        k, first = len(self.terms), int(self.constant is not None)
        logs = [np.log(column(self, x, name)) for name in self.inputs]
        rows = np.empty((*values.shape, logs[0].shape[-1]))
        total: Array | float = 0.0
        if self.constant:
            rows[..., 0, :] = 1.0
            total = parts[0]
        for i, log_x in enumerate(logs):
            # A coefficient's derivative is its power: computed once, in logarithms, straight into its row.
            power = np.exp(-parts[first + k + i] * log_x, out=rows[..., first + i, :])
            term = parts[first + i] * power
            np.multiply(term, -log_x, out=rows[..., first + k + i, :])
            total = total + term
        return np.asarray(total), rows

    def invert(self, theta: ArrayLike, y: ArrayLike, **given: ArrayLike) -> tuple[Array, NDArray[np.str_]]:
        """Return N = ((y - E - rest) / A)^(-1/alpha), rest = B D^-beta; y <= E + rest is above_ceiling."""
        parts = np.moveaxis(self._check(theta), -1, 0)
        k, first = len(self.terms), int(self.constant is not None)
        # What the constant and the inputs held fixed leave of y for the first term; at or below zero no size gives it.
        remainder = finite(self, y) - (parts[0] if self.constant else 0.0)
        for i, fixed in enumerate(self._fixed(given).values(), start=1):
            remainder = remainder - parts[first + i] * fixed ** -parts[first + k + i]
        with np.errstate(all="ignore"):
            log_n = (np.log(parts[first]) - np.log(np.maximum(remainder, 0.0))) / parts[first + k]
            size = np.where(remainder > 0, np.exp(log_n), np.inf)
        return size, statuses(size == 0, size == np.inf)

    def optimal(self, theta: ArrayLike, flops: ArrayLike) -> tuple[Array, Array]:
        """Return the size and the tokens of least loss that a training compute of 6 N D allows.

        N = G (C/6)^(beta/(alpha+beta)) with G = (alpha A / (beta B))^(1/(alpha+beta)), and D = C / (6 N).

        Parameters
        ----------
        theta : array_like, shape (..., p)
        flops : array_like, shape (n,)

        Returns
        -------
        params, tokens : float64 (..., n)

        Raises
        ------
        DomainError
            When the law does not have both inputs, or a compute is not above 0.

        Source: Hoffmann et al., arXiv 2203.15556, section 3.3, eq. 4.

        Examples
        --------
        >>> params, tokens = Chinchilla().optimal([1.82, 482.0, 2085.4, 0.3478, 0.3658], [5.76e23])
        >>> [f"{value:.2g}" for value in (params[0], tokens[0])]
        ['7.2e+10', '1.3e+12']
        """
        compute = np.asarray(flops, dtype=float)
        a, b, alpha, beta = self._traded(theta)
        if not np.all(np.isfinite(compute) & (compute > 0)):
            raise DomainError("flops: a finite number above 0 is needed")
        with np.errstate(all="ignore"):
            ratio = (alpha * a / (beta * b)) ** (1 / (alpha + beta))
            params = ratio * (compute / 6) ** (beta / (alpha + beta))
            return params, compute / 6 / params

    def least_compute(self, theta: ArrayLike, loss: ArrayLike) -> tuple[Array, Array]:
        """Return the size and the tokens that reach a loss with the least training compute 6 N D.

        At the least compute alpha A N^-alpha = beta B D^-beta, so that N = (A (1 + alpha/beta) / (L - E))^(1/alpha) and
        D = (B (1 + beta/alpha) / (L - E))^(1/beta): what :meth:`optimal` gives for their compute.

        Parameters
        ----------
        theta : array_like, shape (..., p)
        loss : array_like, shape (n,)

        Returns
        -------
        params, tokens : float64 (..., n)
            Infinite for a loss at or below E.

        Raises
        ------
        DomainError
            When the law does not have both inputs.

        Source: Hoffmann et al., arXiv 2203.15556, section 3.3, eq. 4, solved for the loss.

        Examples
        --------
        >>> law, theta = Chinchilla(), [1.82, 482.0, 2085.4, 0.3478, 0.3658]
        >>> params, tokens = law.optimal(theta, [5.76e23])
        >>> loss = law.predict(theta, {"params": params, "tokens": tokens})
        >>> bool(np.isclose(law.least_compute(theta, loss)[0], params)[0])
        True
        """
        a, b, alpha, beta = self._traded(theta)
        above = np.asarray(loss, dtype=float) - (entries(self._check(theta))[0] if self.constant else 0.0)
        with np.errstate(all="ignore"):
            params = (a * (1 + alpha / beta) / above) ** (1 / alpha)
            tokens = (b * (1 + beta / alpha) / above) ** (1 / beta)
        return np.where(above > 0, params, np.inf), np.where(above > 0, tokens, np.inf)

    def _traded(self, theta: ArrayLike) -> Any:
        """Return coefficients and exponents of size and tokens, or say that the law does not have both."""
        if self.inputs != ("params", "tokens"):
            raise DomainError(f"law {self.name}: size and tokens cannot be traded; use one of both, such as chinchilla")
        return entries(self._check(theta))[int(self.constant is not None) :]

    def rescale(self, theta: ArrayLike, factors: Mapping[str, float]) -> Array:
        """Multiply each coefficient by factor^exponent, so that the curve stays in place."""
        values = np.array(self._check(theta))
        k, first = len(self.terms), int(self.constant is not None)
        for i, name in enumerate(self.inputs):
            values[..., first + i] *= factors.get(name, 1.0) ** values[..., first + k + i]
        return values

    def grid(self, x: Inputs) -> Array:
        """Return every combination of 12 exponents between 0.03 and 1.6."""
        mesh = np.meshgrid(*[_GRID] * len(self.terms), indexing="ij")
        exponents = np.stack([axis.ravel() for axis in mesh], axis=-1)
        theta = np.zeros((len(exponents), len(self.space)))
        theta[:, -len(self.terms) :] = exponents
        return theta


class Power(PowerSum):
    """L = A N^-alpha, the law of unlimited data.

    Source: arXiv 2412.04315, discussion section.

    Examples
    --------
    >>> Power().predict([10.0, 0.1], {"params": [1e10]}).round(6)
    array([1.])
    """

    name = "power"
    typical = (12.0, 0.08)
    terms: ClassVar = {"params": ("A", "alpha")}
    equation = "L = A N^-alpha"
    source = "arXiv 2412.04315v2, discussion (unlimited data)"


class PowerOffset(PowerSum):
    """L = E + A N^-alpha, a power law above an irreducible loss.

    Source: arXiv 2010.14701, eq. 1.1.

    Examples
    --------
    >>> PowerOffset().predict([2.0, 10.0, 0.1], {"params": [1e10]}).round(6)
    array([3.])
    """

    name = "power-offset"
    typical = (1.6, 220.0, 0.29)
    constant = "E"
    terms: ClassVar = {"params": ("A", "alpha")}
    equation = "L = E + A N^-alpha"
    source = "arXiv 2010.14701, eq. 1.1"


class Chinchilla(PowerSum):
    """L = E + A N^-alpha + B D^-beta.

    Source: arXiv 2203.15556, eq. 2 of section 3.3.

    Examples
    --------
    The law at its published optimum (arXiv 2203.15556), for the 70 B model on 1.4 T tokens:

    >>> theta = [1.69, 406.4, 410.7, 0.34, 0.28]
    >>> Chinchilla().predict(theta, {"params": [70e9], "tokens": [1.4e12]}).round(3)
    array([1.937])
    """

    name = "chinchilla"
    typical = (1.7, 400.0, 500.0, 0.34, 0.3)
    constant = "E"
    terms: ClassVar = {"params": ("A", "alpha"), "tokens": ("B", "beta")}
    equation = "L = E + A N^-alpha + B D^-beta"
    source = "arXiv 2203.15556, section 3.3, eq. 2"


class ChinchillaWithoutOffset(PowerSum):
    """L = A N^-alpha + B D^-beta: Chinchilla with the irreducible loss E set to 0.

    Source: arXiv 2203.15556, section 3.3, with E = 0.

    Examples
    --------
    >>> ChinchillaWithoutOffset().parameters
    ('A', 'B', 'alpha', 'beta')
    """

    name = "chinchilla-e0"
    typical = (20.0, 30.0, 0.13, 0.14)
    terms: ClassVar = {"params": ("A", "alpha"), "tokens": ("B", "beta")}
    equation = "L = A N^-alpha + B D^-beta"
    source = "arXiv 2203.15556, section 3.3, with E = 0"


class DensingLoss(PowerSum):
    """L = a N^-alpha + b D^-beta, the loss law of the Densing Law, with its letters.

    Source: arXiv 2412.04315, eq. 2.

    Examples
    --------
    >>> DensingLoss().invert([8.0, 9.0, 0.15, 0.2], 0.3, tokens=1e12)[1]
    array('ok', dtype='<U13')
    """

    name = "densing-loss"
    typical = (6.0, 9.0, 0.16, 0.18)
    terms: ClassVar = {"params": ("a", "alpha"), "tokens": ("b", "beta")}
    equation = "L = a N^-alpha + b D^-beta"
    source = "arXiv 2412.04315, eq. 2"


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
