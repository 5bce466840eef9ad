"""The draws of a fit by bootstrap, which varies case weights (case, cluster) or responses (residual, parametric).

Resampling cases is honest for dozens of runs. For a family of four to eight models it is not: too few
distinct resamples, and no allowance for the few degrees of freedom. There, ``residual`` and ``parametric``
keep the design, add noise to the fitted curve, and draw the noise's scale from ``s^2 nu / chi2_nu``, which
gives intervals the width of Student's t.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from densing.core import Array, FitError, Note
from densing.scores.fit.solver import Fitter
from densing.scores.fit.table import FitTable

Scheme = Literal["case", "cluster", "residual", "parametric"]
SCHEMES: tuple[str, ...] = get_args(Scheme)
LEVERAGE_CAP = 0.99
MAX_REDRAWS = 1000
# With fewer sizes a resample by size often holds two or three of them, and its curve is anybody's guess.
FEWEST_SIZES = 5


def resampling(
    x: Mapping[str, ArrayLike], scheme: str | None, clusters: Sequence[Any] | NDArray[Any] | None
) -> tuple[str, Sequence[Any] | NDArray[Any] | None, list[Note]]:
    """Return the bootstrap scheme of a table, its clusters, and what there is to say about the choice.

    A scheme that was named stands. Otherwise rows are resampled in their clusters, or by size where rows share one.
    """
    if scheme not in (None, "cluster") or clusters is not None:
        return scheme or "cluster", clusters, []
    try:
        sizes = np.asarray(x.get("params", ()), dtype=float)
    except (TypeError, ValueError):
        return scheme or "case", None, []  # the table's own check names the row
    distinct = len(np.unique(sizes))
    if sizes.ndim != 1 or distinct == len(sizes):
        return scheme or "case", None, []
    counts = {"rows": len(sizes), "sizes": distinct}
    if distinct < FEWEST_SIZES and scheme is None:
        text = (
            f"{len(sizes)} rows share {distinct} sizes, too few to resample by size: the intervals take the rows for "
            "independent and are too narrow where rows of one size have more in common; add sizes"
        )
        return "case", None, [Note("rows-share-a-size", "warning", text, counts)]
    text = (
        f"{len(sizes)} rows share {distinct} sizes and are resampled by size (scheme 'cluster'); name another group "
        "with clusters, or scheme 'case' if rows of one size are independent"
    )
    return "cluster", [f"{size:.17g}" for size in sizes], [Note("rows-share-a-size", "info", text, counts)]


def bootstrap_draws(
    fitter: Fitter, scaled: Array, table: FitTable, rng: np.random.Generator, draws: int, scheme: str
) -> tuple[Array, list[Note]]:
    """Return draws (R, p) in natural units and what there is to say about them."""
    if not draws:
        return np.empty((0, scaled.size)), []
    target = fitter.problem.loss.target(table.y)
    if scheme in ("case", "cluster"):
        labels = table.labels if scheme == "cluster" else np.arange(len(target))
        resamples = resample_cases(rng, target, table.cases, labels, table.points, draws, scaled.size)
    else:
        fitted, rows = fitter.rows(scaled)
        gaussian = scheme == "parametric"
        resamples = perturb_responses(rng, fitted, target, table.cases, rows, draws, gaussian=gaussian)
    refits, converged = fitter.refit(scaled, resamples.target, resamples.weights, draws)
    notes = []
    if not converged.all():
        stopped = int((~converged).sum())
        notes.append(
            Note(
                "bootstrap-not-converged",
                "warning" if stopped > 0.01 * draws else "info",
                f"{stopped} of {draws} bootstrap refits stopped before the tolerance; their last point is kept",
                {"refits": draws, "not_converged": stopped},
            )
        )
    if resamples.redrawn:
        notes.append(
            Note(
                "bootstrap-redrawn",
                "info",
                f"{resamples.redrawn} resamples had fewer distinct runs than parameters and were drawn "
                "again; for so few runs prefer scheme='residual'",
                {"redrawn": resamples.redrawn},
            )
        )
    return fitter.natural(refits), notes


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
    # Sparse: every run is at one point, and a square of a hundred thousand runs fits into no memory.
    member = csr_array((np.ones(len(points)), (np.arange(len(points)), points)))
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
