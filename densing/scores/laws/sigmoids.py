"""Laws that end in a score: a logistic curve in the loss (eq. 3), in ln N, or after a loss law in size and tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from densing.core import Array, DomainError
from densing.scores.laws.base import (
    ABOVE,
    BELOW,
    OK,
    BaseLaw,
    Inputs,
    Parameter,
    column,
    entries,
    finite,
    statuses,
)
from densing.scores.laws.registry import law_class, law_names


class ScoreCurve(BaseLaw):
    """S = floor + c * sigma(rate * (t - centre)), t the loss or ln N; floor and ceiling are fixed or free.

    Parameters
    ----------
    floor : float or None
        Score of guessing; None fits it.
    ceiling : float or None
        Highest score; None fits the range c above the floor.

    Raises
    ------
    DomainError
        Unless 0 <= floor < ceiling <= 1.
    """

    output = "score"
    rate: ClassVar[Parameter]
    centre: ClassVar[str]

    def __init__(self, floor: float | None = None, ceiling: float | None = None) -> None:
        low, high = 0.0 if floor is None else floor, 1.0 if ceiling is None else ceiling
        if not (isinstance(low, (int, float)) and isinstance(high, (int, float)) and 0 <= low < high <= 1):
            raise DomainError(
                f"law {self.name}: floor {floor} and ceiling {ceiling} must satisfy 0 <= floor < ceiling <= 1"
            )
        if floor is None and ceiling is not None:
            raise DomainError(f"law {self.name}: a fixed ceiling ({ceiling}) needs a fixed floor; give floor=...")
        self.floor, self.ceiling = floor, ceiling
        self.space = (
            *([Parameter("c", 0.0, 1.0 - low, linear=True)] if ceiling is None else []),
            self.rate,
            Parameter(self.centre),
            *([Parameter("d", 0.0, 1.0, linear=True)] if floor is None else []),
        )

    @property
    def options(self) -> dict[str, Any]:
        """Floor and ceiling; None where fitted."""
        return {"floor": self.floor, "ceiling": self.ceiling}

    def _coordinate(self, x: Inputs) -> Array:
        return column(self, x, self.inputs[0])

    def _unpack(self, parts: Any) -> tuple[Any, Any, Any, Any]:
        """Return range, rate, centre and floor, taking fixed ones from the options."""
        free = list(parts)
        span = free.pop(0) if self.ceiling is None else self.ceiling - (self.floor or 0.0)
        floor = free.pop() if self.floor is None else self.floor
        return span, free[0], free[1], floor

    def linearise(self, theta: ArrayLike, x: Inputs) -> tuple[Array, Array]:
        """Return prediction and derivatives; inputs may carry the batch axes of ``theta``."""
        values = self._check(theta)
        span, rate, centre, floor = self._unpack(entries(values))
        offset = self._coordinate(x) - centre
        share = _sigma(rate * offset)
        # d sigma(z) / dz = sigma (1 - sigma): what rate and centre act through.
        bend = span * share * (1.0 - share)
        rows = [share] if self.ceiling is None else []
        rows += [bend * offset, -bend * rate]
        rows += [np.ones_like(share)] if self.floor is None else []
        return floor + span * share, np.stack(rows, axis=-2)

    def slope(self, theta: ArrayLike, x: Inputs) -> Array:
        """Return the derivative of the score by t (the loss, or ln N), shape ``(..., n)``."""
        span, rate, centre, _ = self._unpack(entries(self._check(theta)))
        share = _sigma(rate * (self._coordinate(x) - centre))
        return span * rate * share * (1.0 - share)

    def _solve(self, theta: ArrayLike, y: ArrayLike) -> tuple[Array, NDArray[np.bool_], NDArray[np.bool_]]:
        """Return t, and masks of scores at or below the floor and at or above the ceiling."""
        span, rate, centre, floor = self._unpack(np.moveaxis(self._check(theta), -1, 0))
        above_floor = finite(self, y) - floor
        # The logit of the share; outside floor and ceiling it is NaN, and the masks say so.
        with np.errstate(all="ignore"):
            t = centre - np.log(span / above_floor - 1.0) / rate
        return t, np.asarray(above_floor <= 0), np.asarray((above_floor >= span) & (above_floor > 0))


class Sigmoid(ScoreCurve):
    """S = c / (1 + exp(-gamma (L - l))) + d with gamma < 0, so that the score rises as the loss falls.

    Source: arXiv 2412.04315, eq. 3. As printed the equation needs a negative gamma; the sign is kept.

    Examples
    --------
    >>> law = Sigmoid()
    >>> law.predict([0.6, -20.0, 0.3, 0.25], {"loss": [0.3]}).round(6)
    array([0.55])
    """

    name = "sigmoid"
    typical: ClassVar[tuple[float, ...]] = (0.6, -9.0, 0.6, 0.25)
    inputs = ("loss",)
    rate = Parameter("gamma", -1e4, -1e-3)
    centre = "l"
    equation = "S = c / (1 + exp(-gamma (L - l))) + d,  gamma < 0"
    source = "arXiv 2412.04315, eq. 3"

    def __init__(self) -> None:
        super().__init__()

    @property
    def options(self) -> dict[str, Any]:
        """None: floor and ceiling are fitted."""
        return {}

    def invert(self, theta: ArrayLike, y: ArrayLike, **given: ArrayLike) -> tuple[Array, NDArray[np.str_]]:
        """Return L = l - ln(c / (S - d) - 1) / gamma; a score beyond that at L = 0 is above_ceiling."""
        self._fixed(given)
        t, below, above = self._solve(theta, y)
        above = above | (~below & ~(t > 0))
        return np.where(below, np.inf, np.where(above, 0.0, t)), statuses(below, above)

    def grid(self, x: Inputs) -> Array:
        """Return 12 steepnesses by 15 midpoints, placed on the range of the losses."""
        t = self._coordinate(x)
        spread = float(np.ptp(t)) or 1.0
        rates = -np.geomspace(0.5, 60.0, 12) / spread
        return _mesh(self, rates, np.linspace(t.min() - spread, t.max() + spread, 15))


class SigmoidFixed(Sigmoid):
    """The sigmoid of eq. 3 with a fixed floor and, unless ``ceiling=None``, a fixed ceiling.

    Source: arXiv 2412.04315, eq. 3, with d (and c + d) given.

    Examples
    --------
    >>> SigmoidFixed(floor=0.25).parameters
    ('gamma', 'l')
    >>> SigmoidFixed(floor=0.25, ceiling=None).parameters
    ('c', 'gamma', 'l')
    """

    name = "sigmoid-fixed"
    typical = (-9.0, 0.6)
    source = "arXiv 2412.04315, eq. 3, floor and ceiling given"

    def __init__(self, floor: float = 0.0, ceiling: float | None = 1.0) -> None:
        ScoreCurve.__init__(self, floor, ceiling)

    @property
    def options(self) -> dict[str, Any]:
        """Floor and ceiling; None where fitted."""
        return {"floor": self.floor, "ceiling": self.ceiling}


class Logistic(ScoreCurve):
    """S = floor + c / (1 + exp(-g (ln N - x0))), a score curve in ln N in one step.

    Source: own, after the one-step fits of arXiv 2405.10938 (score against log compute).

    Examples
    --------
    >>> law = Logistic(floor=0.25)
    >>> law.predict([0.6, 1.0, 22.0], {"params": [np.exp(22.0)]}).round(6)
    array([0.55])
    >>> size, status = law.invert([0.6, 1.0, 22.0], [0.2, 0.55, 0.9])
    >>> status.tolist()
    ['below_floor', 'ok', 'above_ceiling']
    """

    name = "logistic"
    typical = (0.55, 0.9, 22.5)
    inputs = log_inputs = ("params",)
    rate = Parameter("g", 1e-3, 50.0)
    centre = "x0"
    equation = "S = floor + c / (1 + exp(-g (ln N - x0)))"
    source = "one-step score curve, after arXiv 2405.10938"

    def __init__(self, floor: float | None = 0.0, ceiling: float | None = None) -> None:
        super().__init__(floor, ceiling)

    def _coordinate(self, x: Inputs) -> Array:
        return np.log(column(self, x, "params"))

    def invert(self, theta: ArrayLike, y: ArrayLike, **given: ArrayLike) -> tuple[Array, NDArray[np.str_]]:
        """Return N = exp(x0 - ln(c / (S - floor) - 1) / g) and its status."""
        self._fixed(given)
        t, below, above = self._solve(theta, y)
        with np.errstate(over="ignore"):
            size = np.where(below, 0.0, np.where(above, np.inf, np.exp(t)))
        return size, statuses(size == 0, size == np.inf)

    def rescale(self, theta: ArrayLike, factors: Mapping[str, float]) -> Array:
        """Move the midpoint by the logarithm of the factor."""
        values = np.array(self._check(theta))
        values[..., self.parameters.index("x0")] += math.log(factors.get("params", 1.0))
        return values

    def grid(self, x: Inputs) -> Array:
        """Return 12 steepnesses by 18 midpoints, reaching beyond the largest model."""
        t = self._coordinate(x)
        return _mesh(self, np.geomspace(0.1, 8.0, 12), np.linspace(t.min() - 3.0, t.max() + 8.0, 18))


def _mesh(law: ScoreCurve, rates: Array, centres: Array) -> Array:
    at_rate, at_centre = np.meshgrid(rates, centres, indexing="ij")
    theta = np.zeros((at_rate.size, len(law.space)))
    theta[:, law.parameters.index(law.rate.name)] = at_rate.ravel()
    theta[:, law.parameters.index(law.centre)] = at_centre.ravel()
    return theta


def _sigma(z: Array) -> Array:
    """Logistic function, accurate relative to itself in both tails."""
    return np.exp(-np.logaddexp(0.0, -z))


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
