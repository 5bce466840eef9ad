"""A mean over drawn items: its variance, and a margin that stays valid however often it is looked at."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


def time_uniform_margin(variance: float, *, tuned: float, level: float = 0.95) -> float:
    """Return the half-width of a confidence sequence for a mean, given the estimated variance of that mean.

    .. math:: \\sqrt{V\\,\\frac{x + 1}{x}\\,\\ln\\frac{x + 1}{\\alpha^2}}, \\quad
        x = \\frac{V^*}{V}\\,\\bigl(-2\\ln\\alpha + \\ln(1 - 2\\ln\\alpha)\\bigr)

    With V = s²/t this is the asymptotic confidence sequence of t independent values with spread s, its free parameter
    set to be narrowest at V*. In the limit it covers at all times at once; the values need a finite variance, not a
    bound.

    Parameters
    ----------
    variance : float
        Variance V of the mean at this look; 0 when nothing is left to draw.
    tuned : float
        Variance V* at which the half-width is the smallest multiple of the standard error: 3.04 at 95 %, against 1.96
        of an interval that is looked at once.
    level : float
        Level.

    Notes
    -----
    Source: Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, Annals of Statistics 2024, arXiv 2103.06476: the sequence
    for independent values, the one for changing variances, and the approximate tuning. The boundary is Robbins'
    normal mixture for a Brownian motion, here run on the clock 1/V: the errors of a mean over strata at two looks
    with variances V1 >= V2 have covariance V2, whatever the strata's sizes and shares, with or without replacement.

    Examples
    --------
    >>> round(time_uniform_margin(1.0, tuned=1.0), 3)
    3.035
    >>> time_uniform_margin(0.0, tuned=1.0)
    0.0
    """
    if variance == 0:
        return 0.0
    alpha = 1.0 - level
    x = tuned / variance * (-2 * math.log(alpha) + math.log1p(-2 * math.log(alpha)))
    return math.sqrt(variance * (x + 1) / x * (math.log1p(x) - 2 * math.log(alpha)))


@dataclass(frozen=True)
class Drawn:
    """What is known of one task after some of its items.

    Parameters
    ----------
    mean, spread : float
        Mean and variance of the items.
    count, size : int
        Items drawn, and in the full set.
    """

    mean: float
    spread: float
    count: int
    size: int

    @classmethod
    def of(cls, values: NDArray[np.float64], size: int, *, score: bool) -> Drawn:
        """Summarise drawn values.

        Parameters
        ----------
        values : ndarray, shape (n,)
            Losses or scores; at least one.
        size : int
            Items in the full set.
        score : bool
            Whether the values lie in [0, 1]: then a few equal ones do not mean that all are (variance
            ``(1/4 + sum of squares) / (n + 1)``, Waudby-Smith and Ramdas, arXiv 2010.09686, section 3).

        Examples
        --------
        >>> Drawn.of(np.array([1.0, 2.0, 3.0]), 10, score=False)
        Drawn(mean=2.0, spread=1.0, count=3, size=10)
        """
        mean = float(values.mean())
        squares = float(((values - mean) ** 2).sum())
        spread = (0.25 + squares) / (len(values) + 1) if score else squares / max(len(values) - 1, 1)
        return cls(mean, spread, len(values), size)

    def at(self, count: int) -> Drawn:
        """Return the same task as if so many items had been drawn (no more than it has)."""
        return replace(self, count=min(count, self.size))

    def variance(self, population: bool) -> float:
        """Return the variance of the mean as an estimate of the population's, or of the full set's."""
        return self.spread * (1 / self.count - (0.0 if population else 1 / self.size))
