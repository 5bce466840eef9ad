"""A mean over drawn items: its variance, and critical values that spend one error rate over several looks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr

# Where a critical value would be larger, nothing is left to spend: 4e-16 of a normal lies beyond.
NEVER = 8.0
# Share of the error rate that the looks before the last may spend together.
EARLY = 0.1
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(121)


def alpha_spent(fraction: float, alpha: float = 0.05) -> float:
    """Return how much of an error rate may be spent when so much of the planned information is there.

    A tenth of it before the last look, in proportion to the information, and the rest at the last: the early intervals
    are three to four standard errors wide, and the last one costs .4 % over a single look (1.968 in place of 1.960).

    Parameters
    ----------
    fraction : float
        Information now over information planned, in [0, 1].
    alpha : float
        The two-sided rate that may be spent by the end.

    Notes
    -----
    Source: a spending function in the sense of Lan and DeMets, Biometrika 70 (1983) 659: any that does not fall, from 0
    to alpha. This one gives critical values like those of Haybittle and Peto (3 at every look but the last).

    Examples
    --------
    >>> [round(alpha_spent(t), 5) for t in (0.0, 0.4, 0.8, 1.0)]
    [0.0, 0.002, 0.004, 0.05]
    """
    return alpha if fraction >= 1 else EARLY * alpha * max(fraction, 0.0)


def critical_value(variances: Sequence[float], earlier: Sequence[float], alpha: float) -> float:
    """Return the multiple of the standard error at a look that makes the intervals of all looks miss with ``alpha``.

    Parameters
    ----------
    variances : sequence of float
        Variance of the mean at each look so far, the one in question last; positive, and none above the one before.
    earlier : sequence of float
        The multiples used at the looks before.
    alpha : float
        Probability that any interval so far misses; :data:`NEVER` is returned where the earlier ones spent it all.

    Notes
    -----
    Source: the recursion of Armitage, McPherson and Rowe, JRSS A 132 (1969) 235, as repeated confidence intervals
    (Jennison and Turnbull, JRSS B 51 (1989) 305). It needs a Brownian motion on the clock 1 / variance, and the errors
    of a mean over strata are one: at two looks with variances V1 >= V2 they have covariance V2, whatever the strata's
    sizes and shares, with or without replacement.

    Examples
    --------
    >>> round(critical_value([1.0], [], 0.05), 3)
    1.96
    >>> looks = []
    >>> for t in (0.02, 0.4, 0.8, 1.0):
    ...     looks.append(critical_value([1 / s for s in (0.02, 0.4, 0.8, 1.0) if s <= t], looks, alpha_spent(t)))
    >>> [round(z, 3) for z in looks]
    [3.891, 3.105, 3.041, 1.968]
    """
    clock = variances[-1] / np.asarray(variances, dtype=float)  # information, 1 at the look in question
    place, mass, past = np.zeros(1), np.ones(1), 0.0  # where paths are that no interval has missed yet, and how many
    for now, critical in zip(clock[:-1], earlier, strict=True):
        if now - past < 1e-3:  # nothing new was seen
            continue
        edge = min(critical, NEVER) * math.sqrt(now)
        step = math.sqrt(now - past)
        nodes = edge * _NODES
        density = np.exp(-(((nodes[:, None] - place) / step) ** 2) / 2) @ mass / (step * math.sqrt(2 * math.pi))
        place, mass, past = nodes, edge * _WEIGHTS * density, now
    step, left = math.sqrt(max(1 - past, 1e-3)), alpha - (1 - mass.sum())

    def excess(critical: float) -> float:
        missed = ndtr((-critical - place) / step) + ndtr((place - critical) / step)
        return float(missed @ mass) - left

    return float(brentq(excess, 0.0, NEVER)) if excess(NEVER) < 0 < excess(0.0) else NEVER


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
