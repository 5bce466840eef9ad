"""The Densing Law's own route: size and tokens to loss, loss to score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from densing.core import Array, DomainError
from densing.scores.laws.base import ABOVE, BELOW, OK, BaseLaw, Inputs
from densing.scores.laws.registry import law_class, law_names
from densing.scores.laws.sigmoids import Sigmoid, SigmoidFixed


class TwoStep(BaseLaw):
    """S = f2(f1(N, D)): a loss law followed by the sigmoid of eq. 3; ``theta`` is theirs, joined.

    Source: arXiv 2412.04315, eqs. 1-4.

    Parameters
    ----------
    loss : str
        Name of the loss law; ``densing-loss`` (eq. 2) as in the paper.
    floor : float or None
        Fixed floor of the score; None fits it, as the paper does.
    ceiling : float or None
        Fixed ceiling (needs a floor); None fits it.

    Examples
    --------
    >>> law = TwoStep(floor=0.25)
    >>> law.parameters
    ('a', 'b', 'alpha', 'beta', 'c', 'gamma', 'l')
    >>> theta = [30.0, 40.0, 0.2, 0.2, 0.6, -8.0, 0.6]
    >>> score = law.predict(theta, {"params": [7e9], "tokens": [1e12]})
    >>> law.invert(theta, score, tokens=1e12)[0].round(-3)
    array([7.e+09])
    """

    name = "two-step"
    typical = (8.0, 12.0, 0.13, 0.13, 0.6, -9.0, 0.9, 0.25)
    output = "score"
    source = "arXiv 2412.04315, eqs. 1-4"

    def __init__(self, loss: str = "densing-loss", floor: float | None = None, ceiling: float | None = None) -> None:
        # Any law of the registry whose output is a loss: a new one needs no mention here.
        loss_laws = {name: law for name in law_names() if (law := law_class(name)).output == "loss"}
        if loss not in loss_laws:
            raise DomainError(f"law two-step: no loss law {loss!r}; choose one of {', '.join(loss_laws)}")
        if floor is None and ceiling is not None:
            raise DomainError(f"law two-step: a fixed ceiling ({ceiling}) needs a fixed floor; give floor=...")
        self.loss_law: BaseLaw = loss_laws[loss]()
        self.score_law: Sigmoid = Sigmoid() if floor is None else SigmoidFixed(floor, ceiling)
        self._options = {"loss": loss, "floor": floor, "ceiling": ceiling}
        self.inputs, self.log_inputs = self.loss_law.inputs, self.loss_law.log_inputs
        self.space = (*self.loss_law.space, *self.score_law.space)
        self.equation = f"{self.loss_law.equation};  {self.score_law.equation}"

    @property
    def options(self) -> dict[str, Any]:
        """Name of the loss law, floor and ceiling."""
        return dict(self._options)

    def split(self, theta: ArrayLike) -> tuple[Array, Array]:
        """Return the loss law's and the sigmoid's parameters."""
        values = self._check(theta)
        cut = len(self.loss_law.space)
        return values[..., :cut], values[..., cut:]

    def linearise(self, theta: ArrayLike, x: Inputs) -> tuple[Array, Array]:
        """Return prediction and derivatives by the chain rule."""
        first, second = self.split(theta)
        loss, loss_rows = self.loss_law.linearise(first, x)
        score, score_rows = self.score_law.linearise(second, {"loss": loss})
        # dS/dtheta1 = dS/dL dL/dtheta1; the sigmoid's own parameters follow unchanged.
        slope = self.score_law.slope(second, {"loss": loss})
        return score, np.concatenate([slope[..., None, :] * loss_rows, score_rows], axis=-2)

    def invert(self, theta: ArrayLike, y: ArrayLike, **given: ArrayLike) -> tuple[Array, NDArray[np.str_]]:
        """Return N of eq. 4: the score's loss, then the loss's size at the given tokens (1e12 by default)."""
        first, second = self.split(theta)
        loss, status = self.score_law.invert(second, y)
        # A score that no loss gives has no loss to invert: any stands in, and its status decides.
        safe = np.where(status == OK, loss, 1.0)
        size, by_loss = self.loss_law.invert(first, safe, **given)
        status, by_loss = np.broadcast_arrays(status, by_loss)
        joined = np.where(status == OK, by_loss, status)
        return np.where(joined == BELOW, 0.0, np.where(joined == ABOVE, np.inf, size)), joined

    def rescale(self, theta: ArrayLike, factors: Mapping[str, float]) -> Array:
        """Rescale the loss law; the sigmoid does not see the inputs."""
        first, second = self.split(theta)
        return np.concatenate([self.loss_law.rescale(first, factors), second], axis=-1)
