"""What a fit minimises: the residual's space and the function summed over runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from densing.core import Array, InputError, UnknownNameError

LITERATURE_DELTA = 1e-3
OUTLIER_CURVATURE = 0.02


@dataclass(frozen=True)
class Loss:
    """A loss: ``sum_i w_i h(r_i)`` with r the log or raw residual.

    h is Huber's function with the stated delta, half the square (delta infinite), or the absolute value
    (``absolute``). The sum is a sum, never a mean: means of small terms stop optimisers early
    (arXiv 2404.10102v2).

    Parameters
    ----------
    name : str
        Name in options and reports.
    space : {"log", "raw"}
        Residual ln(prediction) - ln(observation), or prediction - observation.
    delta : float
        Where Huber's function turns from square to linear; infinite for least squares.
    absolute : bool
        Least absolute deviations.

    Examples
    --------
    >>> float(get_loss("huber", 0.5).total(np.array([0.1, 2.0]), np.ones(2)))
    0.88
    """

    name: str
    space: str
    delta: float = math.inf
    absolute: bool = False

    def target(self, y: Array) -> Array:
        """Return the observations in the residual's space."""
        return np.log(y) if self.space == "log" else y

    def residual(self, prediction: Array, target: Array) -> Array:
        """Return prediction minus target in the residual's space."""
        return (np.log(prediction) if self.space == "log" else prediction) - target

    def total(self, residual: Array, weights: Array) -> Array:
        """Return the objective, summed over the last axis."""
        if self.absolute:
            return np.sum(weights * np.abs(residual), axis=-1)
        return np.sum(weights * huber(residual, self.delta), axis=-1)


def huber(residual: Array, delta: float) -> Array:
    """Return r^2/2 for abs(r) <= delta and delta (abs(r) - delta/2) beyond.

    Source: Huber (1964), Annals of Mathematical Statistics 35(1), section 3.

    Examples
    --------
    >>> huber(np.array([1.0, -3.0]), 2.0)
    array([0.5, 4. ])
    """
    psi = np.clip(residual, -delta, delta)
    return psi * (residual - 0.5 * psi)


LossName = Literal["huber", "log", "lad", "raw", "huber-raw", "lad-raw"]
_SPACES: dict[str, str] = {name: "raw" if name.endswith("raw") else "log" for name in get_args(LossName)}


def loss_names() -> list[str]:
    """Return the names that :func:`get_loss` knows."""
    return list(_SPACES)


def get_loss(name: str, delta: float = LITERATURE_DELTA) -> Loss:
    """Return a loss by name.

    Parameters
    ----------
    name : str
        ``huber`` (on log residuals), ``log`` (least squares on them), ``lad`` (least absolute deviations on
        them), or ``raw``, ``huber-raw``, ``lad-raw`` on plain residuals.
    delta : float
        Used by the Huber losses only.

    Raises
    ------
    UnknownNameError
        When there is no such loss.
    InputError
        When delta is not positive and finite.
    """
    if name not in _SPACES:
        raise UnknownNameError("loss", name, _SPACES)
    if not (isinstance(delta, (int, float)) and 0 < delta < math.inf):
        raise InputError(f"delta {delta} must be positive and finite; 1e-3 is usual for log residuals")
    is_huber = name.startswith("huber")
    return Loss(name, _SPACES[name], float(delta) if is_huber else math.inf, name.startswith("lad"))
