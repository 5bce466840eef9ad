"""What a bootstrap varies: case weights (case, cluster) or responses (residual, parametric).

Resampling cases is honest for dozens of runs. For a family of four to eight models it is not: too few
distinct resamples, and no allowance for the few degrees of freedom. There, ``residual`` and ``parametric``
keep the design, add noise to the fitted curve, and draw the noise's scale from ``s^2 nu / chi2_nu``, which
gives intervals the width of Student's t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from densing.core import Array, FitError

Scheme = Literal["case", "cluster", "residual", "parametric"]
SCHEMES: tuple[str, ...] = get_args(Scheme)
LEVERAGE_CAP = 0.99
MAX_REDRAWS = 1000


@dataclass(frozen=True)
class Resamples:
    """Targets and weights of all refits; one of them is (R, n), the other may stay (n,)."""

    target: Array
    weights: Array
    redrawn: int = 0


def resample_cases(
    rng: np.random.Generator,
    target: Array,
    weights: Array,
    labels: NDArray[np.intp],
    points: NDArray[np.intp],
    draws: int,
    needed: int,
) -> Resamples:
    """Resample runs (or groups of runs) with replacement, as integer case weights.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of randomness.
    target, weights : ndarray, shape (n,)
        Observations and case weights of the fit.
    labels : ndarray of int, shape (n,)
        Group of each run; ``arange(n)`` resamples single runs.
    points : ndarray of int, shape (n,)
        Which runs have the same inputs: runs at one point of the curve fix no more of it than one run does.
    draws : int
        Number of resamples R.
    needed : int
        Number of parameters; a resample with fewer distinct points fixes no curve and is drawn again.
    """
    groups = int(labels.max()) + 1
    if groups < 2:
        raise FitError(
            "one group cannot be resampled: every draw is the same; name at least two, or use scheme='residual'"
        )
    counts = _counts(rng, groups, draws)[:, labels]
    member = np.equal.outer(points, np.unique(points)).astype(float)
    redrawn = 0
    for _ in range(MAX_REDRAWS):
        thin = np.flatnonzero(((counts > 0) @ member > 0).sum(axis=1) < needed)
        if not thin.size:
            return Resamples(target, counts * weights, redrawn)
        redrawn += thin.size
        counts[thin] = _counts(rng, groups, thin.size)[:, labels]
    raise FitError(f"{groups} groups are too few: few resamples keep {needed} distinct points; use scheme='residual'")


def _counts(rng: np.random.Generator, groups: int, draws: int) -> NDArray[np.intp]:
    """Return how often each group is picked in each resample, (R, groups); ten times faster than multinomial."""
    picks = rng.integers(groups, size=(draws, groups)) + groups * np.arange(draws)[:, None]
    return np.bincount(picks.ravel(), minlength=draws * groups).reshape(draws, groups)


def perturb_responses(
    rng: np.random.Generator,
    fitted: Array,
    target: Array,
    weights: Array,
    rows: Array,
    draws: int,
    gaussian: bool,
) -> Resamples:
    """Add noise of the residuals' size to the fitted curve.

    e* = e sqrt(nu / chi2_nu) with e Gaussian (``parametric``) or drawn from the centred residuals
    divided by sqrt(1 - leverage) (``residual``); nu = n - p.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of randomness.
    fitted, target, weights : ndarray, shape (n,)
        Curve, observations and case weights (noise variance is proportional to 1/weight).
    rows : ndarray, shape (p, n)
        Derivatives of the curve in the residual's space, for leverages.
    draws : int
        Number of resamples R.
    gaussian : bool
        Gaussian noise rather than resampled residuals.

    Raises
    ------
    FitError
        When there are no degrees of freedom.
    """
    p, n = rows.shape
    freedom = n - p
    if freedom < 1:
        raise FitError(
            f"{n} points and {p} parameters leave no residual to learn the noise from; add points, "
            "fix parameters through the law's options, or set bootstrap=0"
        )
    # A weight of w stands for a variance of 1/w: times its root every residual has the same.
    root = np.sqrt(weights)
    residual = (target - fitted) * root
    if gaussian:
        noise = rng.standard_normal((draws, n)) * np.sqrt(np.sum(residual**2) / freedom)
    else:
        pool = residual / np.sqrt(1.0 - np.minimum(_leverage(rows * root), LEVERAGE_CAP))
        pool = pool - pool.mean()
        noise = pool[rng.integers(n, size=(draws, n))]
    # The scale is as uncertain as its degrees of freedom say: intervals get the width of Student's t.
    noise *= np.sqrt(freedom / rng.chisquare(freedom, size=(draws, 1)))
    return Resamples(fitted + noise / root, weights)


def _leverage(rows: Array) -> Array:
    """Return the diagonal of the hat matrix of the columns ``rows.T``."""
    size = np.linalg.norm(rows, axis=1, keepdims=True)
    basis, singular, _ = np.linalg.svd((rows / np.where(size > 0, size, 1.0)).T, full_matrices=False)
    return np.sum(basis[:, singular > 1e-10 * singular[0]] ** 2, axis=1)
