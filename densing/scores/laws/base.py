"""What a scaling law is: a curve with named parameters, its Jacobian and its inverse.

Shapes are the same everywhere. ``theta`` is ``(..., p)`` and may carry any batch axes (bootstrap draws), an
input is ``(n,)`` and a prediction ``(..., n)``. Parameters are in natural units: counts, nats, shares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from densing.core import Array, DomainError

Inputs = Mapping[str, ArrayLike]

D0_PAPER = 1e12
"""Tokens of the reference family in arXiv 2412.04315v2 (journal version, as reported second-hand: 5e12)."""

OK, BELOW, ABOVE = "ok", "below_floor", "above_ceiling"


@dataclass(frozen=True)
class Parameter:
    """One entry of ``theta``.

    Parameters
    ----------
    name : str
        Name in tables and JSON.
    low, high : float
        Inclusive bounds that a fit respects and reports when it touches them.
    log : bool
        Whether a solver should move in the parameter's logarithm.
    linear : bool
        Whether the prediction is linear in it once the others are fixed.
    """

    name: str
    low: float = -math.inf
    high: float = math.inf
    log: bool = False
    linear: bool = False


@runtime_checkable
class Law(Protocol):
    """The interface that fits, references and plots rely on; :class:`BaseLaw` implements what laws share."""

    @property
    def name(self) -> str: ...
    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def output(self) -> str: ...
    @property
    def equation(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def space(self) -> tuple[Parameter, ...]: ...
    @property
    def parameters(self) -> tuple[str, ...]: ...
    @property
    def options(self) -> dict[str, Any]: ...
    @property
    def log_inputs(self) -> tuple[str, ...]: ...

    def predict(self, theta: ArrayLike, x: Inputs) -> Array: ...
    def jacobian(self, theta: ArrayLike, x: Inputs) -> Array: ...
    def linearise(self, theta: ArrayLike, x: Inputs) -> tuple[Array, Array]: ...
    def invert(self, theta: ArrayLike, y: ArrayLike, **given: ArrayLike) -> tuple[Array, NDArray[np.str_]]: ...
    def rescale(self, theta: ArrayLike, factors: Mapping[str, float]) -> Array: ...
    def grid(self, x: Inputs) -> Array: ...


class BaseLaw:
    """Shared half of every law; a law adds its names, ``space``, ``typical`` and :meth:`linearise`.

    ``examples/extend/law.py`` is one to copy. Where it can be written down, :meth:`invert` is faster in closed form,
    and a :meth:`grid` of several starts finds what one start may miss.
    """

    name: str
    inputs: tuple[str, ...]
    output: str
    equation: str
    source: str
    space: tuple[Parameter, ...]
    typical: ClassVar[tuple[float, ...]]
    """Plausible parameters of the law with its default options; the property tests begin there."""
    log_inputs: tuple[str, ...] = ()
    defaults: ClassVar[Mapping[str, float]] = {"tokens": D0_PAPER}

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the entries of ``theta``, in order."""
        return tuple(parameter.name for parameter in self.space)

    @property
    def options(self) -> dict[str, Any]:
        """Options that, with the name, rebuild the law through :func:`densing.scores.laws.get_law`."""
        return {}

    def __repr__(self) -> str:
        """Return the call that rebuilds the law."""
        options = "".join(f", {key}={value!r}" for key, value in self.options.items())
        return f"get_law({self.name!r}{options})"

    def __eq__(self, other: object) -> bool:
        """Two laws are equal when name and options are."""
        return isinstance(other, BaseLaw) and (self.name, self.options) == (other.name, other.options)

    def __hash__(self) -> int:
        """Hash of name and options."""
        return hash(repr(self))

    def linearise(self, theta: ArrayLike, x: Inputs) -> tuple[Array, Array]:
        """Return the prediction ``(..., n)`` and its derivatives ``(..., p, n)``, sharing their work."""
        raise NotImplementedError

    def predict(self, theta: ArrayLike, x: Inputs) -> Array:
        """Return the law's value.

        Parameters
        ----------
        theta : array_like, shape (..., p)
            Parameters in natural units, in the order of :attr:`parameters`.
        x : mapping of array_like, each of shape (n,)
            Inputs by name; see :attr:`inputs`.

        Returns
        -------
        ndarray, shape (..., n)
        """
        return self.linearise(theta, x)[0]

    def jacobian(self, theta: ArrayLike, x: Inputs) -> Array:
        """Return d predict / d theta, shape ``(..., n, p)``."""
        # Laws keep parameters before runs, where each row is contiguous; statistics writes runs first.
        return np.moveaxis(self.linearise(theta, x)[1], -2, -1)

    def invert(self, theta: ArrayLike, y: ArrayLike, **given: ArrayLike) -> tuple[Array, NDArray[np.str_]]:
        """Return the first input at which the law takes the value ``y``, and a status per value.

        This one halves the interval from 1 to 1e18, for laws that are monotone in their first input; a law with a
        closed form has its own.
        """
        fixed = {name: value[..., None] for name, value in self._fixed(given).items()}
        theta, value = self._check(theta), finite(self, y)
        shape = np.broadcast_shapes(theta.shape[:-1], value.shape)
        theta, value = np.broadcast_to(theta, (*shape, len(self.space))), np.broadcast_to(value, shape)

        def at(log_n: Array) -> Array:
            # At a size of one a curve may be infinite.
            with np.errstate(all="ignore"):
                return self.predict(theta, {self.inputs[0]: np.exp(log_n)[..., None], **fixed})[..., 0]

        low, high = np.zeros(shape), np.full(shape, math.log(1e18))
        first, last = at(low), at(high)
        rising = last > first
        for _ in range(60):
            middle = (low + high) / 2
            beyond = (at(middle) > value) == rising
            low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
        below, above = np.where(rising, value <= first, value >= first), np.where(rising, value >= last, value <= last)
        return np.where(below, 0.0, np.where(above, np.inf, np.exp((low + high) / 2))), statuses(below, above)

    def rescale(self, theta: ArrayLike, factors: Mapping[str, float]) -> Array:
        """Return the parameters of the same curve after inputs were multiplied by ``factors``.

        A law with :attr:`log_inputs` has its own: fits divide these by their geometric means.
        """
        moved = [name for name in self.log_inputs if factors.get(name, 1.0) != 1.0]
        if moved:
            raise NotImplementedError(f"law {self.name}: write rescale, or leave {', '.join(moved)} out of log_inputs")
        return np.array(theta, dtype=float)

    def grid(self, x: Inputs) -> Array:
        """Return start points ``(G, p)`` over the nonlinear parameters; linear ones are 0. Here: :attr:`typical`."""
        return np.where([parameter.linear for parameter in self.space], 0.0, [self.typical])

    def _check(self, theta: ArrayLike) -> Array:
        values = np.asarray(theta, dtype=float)
        if values.ndim == 0 or values.shape[-1] != len(self.space):
            expected = f"{len(self.space)} parameters ({', '.join(self.parameters)})"
            raise DomainError(f"law {self.name}: theta has shape {values.shape}; its last axis must hold {expected}")
        return values

    def _fixed(self, given: Mapping[str, ArrayLike]) -> dict[str, Array]:
        """Values of the inputs that are not inverted for, with their defaults."""
        fixed = self.inputs[1:]
        unknown = sorted(set(given) - set(fixed))
        if unknown:
            names = ", ".join(fixed) or "none"
            raise DomainError(f"law {self.name}: no input {unknown[0]!r} to hold fixed; it has: {names}")
        missing = [name for name in fixed if name not in given and name not in self.defaults]
        if missing:
            raise DomainError(f"law {self.name}: give {missing[0]}=... to invert it")
        return {name: np.asarray(given.get(name, self.defaults.get(name)), dtype=float) for name in fixed}


def column(law: Law, x: Inputs, name: str) -> Array:
    """Return one input as floats, or say which inputs the law needs.

    Raises
    ------
    DomainError
        When the input is missing.
    """
    if name not in x:
        needed, got = ", ".join(law.inputs), ", ".join(x) or "none"
        raise DomainError(f"law {law.name}: input {name!r} is missing; it needs {needed}, got {got}")
    return np.asarray(x[name], dtype=float)


def entries(theta: Array) -> Any:
    """Unpack ``theta (..., p)`` into p arrays ``(..., 1)``, ready to meet inputs of shape ``(n,)``."""
    return theta[:, None] if theta.ndim == 1 else np.moveaxis(theta[..., None], -2, 0)


def finite(law: Law, y: ArrayLike) -> Array:
    """Return ``y`` as floats; a NaN has no inverse and is refused rather than passed on.

    Raises
    ------
    DomainError
        When a value is NaN.
    """
    values = np.asarray(y, dtype=float)
    if np.isnan(values).any():
        where = int(np.flatnonzero(np.isnan(values))[0])
        raise DomainError(f"law {law.name}: value {where} to invert is NaN; drop missing {law.output}s first")
    return values


def statuses(below: NDArray[np.bool_], above: NDArray[np.bool_]) -> NDArray[np.str_]:
    """Return the status array of an inversion from its two masks."""
    # Twenty times as fast as choosing texts by np.where.
    shape = np.broadcast_shapes(np.shape(below), np.shape(above))
    status = np.full(shape, OK, dtype=f"U{max(map(len, (OK, BELOW, ABOVE)))}")
    for text, where in ((BELOW, below), (ABOVE, above)):
        np.copyto(status, text, where=where)
    return status


def invert_one(law: Law, theta: ArrayLike, y: float, **given: float) -> float:
    """Invert a law for one value, refusing values that it never takes.

    Parameters
    ----------
    law : Law
        The law.
    theta : array_like, shape (p,)
        Its parameters.
    y : float
        A loss or a score, as ``law.output`` says.
    **given : float
        The inputs held fixed, such as ``tokens=1e12`` (the default).

    Returns
    -------
    float
        The first input, such as a number of parameters.

    Raises
    ------
    DomainError
        When no finite positive input gives ``y``.

    Examples
    --------
    >>> from densing.scores.laws import get_law, invert_one
    >>> round(invert_one(get_law("power"), [10.0, 0.1], 1.0), -6)
    10000000000.0
    >>> invert_one(get_law("power-offset"), [2.0, 10.0, 0.1], 1.5)
    Traceback (most recent call last):
        ...
    densing.core.errors.DomainError: law power-offset: loss 1.5 is above_ceiling: no finite params reaches it

    See Also
    --------
    get_law
    """
    value, status = law.invert(np.asarray(theta, dtype=float), float(y), **given)
    if str(status) != OK:
        raise DomainError(f"law {law.name}: {law.output} {y:g} is {status}: no finite {law.inputs[0]} reaches it")
    return float(value)
