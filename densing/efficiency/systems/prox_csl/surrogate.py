"""proxCSL: a sparse classifier over several partitions in two rounds of gradients.

From the mean, or a fitted combination, of the partitions' own solutions, each update sends the weights :math:`w_t` out
(one broadcast), gathers gradients, and solves on the main machine

.. math::

   \\min_w f_k(w) + \\langle \\nabla F(w_t) - \\nabla f_k(w_t), w\\rangle + \\lambda |w|_1
   + \\tfrac{\\alpha}{2} |w - w_t|^2

where F is the mean loss of all items and f_k that of the main machine's.

Where f_k bends less than F the step overshoots, and updates run away. The guard accepts :math:`w` only where the
surrogate, moved to :math:`F(w_t)` at :math:`w_t`, is no lower than the objective over all items at :math:`w`:

.. math::

   F(w) \\le F(w_t) + \\langle \\nabla F(w_t), w - w_t\\rangle + D_{f_k}(w, w_t) + \\tfrac{\\alpha}{2} |w - w_t|^2

with D the Bregman distance; else alpha grows tenfold. What is accepted lowers the objective, because the surrogate is
at most its value at :math:`w_t`; and an alpha from the largest :math:`|\\nabla^2 F - \\nabla^2 f_k|` on always is (at
most a quarter of the longest item's squared norm), so that this ends.

Source: Lu, Curtin, Raff, Ferraro and Holt, "High-Dimensional Distributed Sparse Classification with Scalable
Communication-Efficient Global Updates", KDD 2024 (arXiv 2407.06346), and ``FutureComputing4AI/ProxCSL``
(``src/csl_solvers_impl.hpp``, ``src/mpi/mpi_pcsl_impl.hpp``) for the rule of alpha and the combination; for the guard
Lu, Freund and Nesterov, "Relatively Smooth Convex Optimization by First-Order Methods, and Applications", SIAM J.
Optim. 28 (2018), arXiv 1610.05708 (recalled, not compared with the paper), and Shamir, Srebro and Zhang,
"Communication-Efficient Distributed Optimization using an Approximate Newton-type Method", ICML 2014, arXiv 1312.7853,
for surrogates of one machine's loss.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from densing.core import Array
from densing.efficiency.systems.prox_csl.holders import Holders
from densing.efficiency.systems.prox_csl.parts import Part
from densing.efficiency.systems.prox_csl.solver import Problem, minimise

Start = Literal["naive", "owa", "zeros"]
STARTS: tuple[Start, ...] = ("naive", "owa", "zeros")
Alpha = float | Literal["adaptive", "guarded"]
ADAPTIVE: Literal["adaptive"] = "adaptive"
GUARDED: Literal["guarded"] = "guarded"

MANY, NOTHING = 1000, 1e-10
"""Fewest weights for which the rule for alpha applies, and the size below which a weight counts as zero."""
FIRST, FACTOR, TRIALS, PASSES = 1e-4, 10.0, 6, 5
RAISES = 15
"""How often the guard raises alpha in one update at most: from 1e-4 to beyond what any scaled features need."""
STEPS = 20
FOLDS, RIDGES = 5, np.logspace(-4, 4, 10)
"""Cross-validation folds of the combination, and the penalties to choose from."""


class Trained(NamedTuple):
    """What the updates gave.

    Attributes
    ----------
    weights : array of shape (d,)
    history : tuple of float
        Objective over all items, at the start and after each update.
    alphas : tuple of float
        Of each update.
    violation : float
        Of the weights, over all items: the largest entry of the smallest subgradient, as a share of the largest
        penalty. Without an intercept the objective is above its minimum by at most twice this share of it
        (:func:`train_csl`).
    steps : int
        Newton steps of the updates, in all.
    bytes : int
        What travelled, over all links.
    """

    weights: Array
    history: tuple[float, ...]
    alphas: tuple[float, ...]
    violation: float
    steps: int
    bytes: int


def train_csl(
    holders: Holders,
    penalty: Array,
    *,
    updates: int = 2,
    alpha: Alpha = ADAPTIVE,
    start: Start | Array = "naive",
    tol: float = 1e-4,
    until: float = 0.0,
) -> Trained:
    """Train over partitions, wherever they are.

    Parameters
    ----------
    holders : Holders
    penalty : array of shape (d,)
        Of each weight; 0 for an intercept.
    updates : int
        At most; 0 leaves the start as it is.
    alpha : float, "adaptive" or "guarded"
        Strength of the proximal term; 0 is CSL as it was before this paper. Adaptive: the authors' rule
        (:func:`adapted`). Guarded: from the authors' rule on tenfold until the surrogate bounds the objective (see the
        module), at the price of a round each; the next update begins with the strength that was needed, or with a tenth
        of one that was not raised.
    start : {"naive", "owa", "zeros"} or array of shape (d,)
        Plain mean or fitted combination of the partitions' own solutions; zeros need none. The authors' example starts
        from the combination; where the main machine's own solution knows its items by heart, the weights come out too
        large.
    tol : float
        Of the partitions' own solutions and of each update (:func:`minimise`).
    until : float
        A violation of optimality over all items from which on no further update is made. With penalty lambda of all
        weights a violation v leaves at most ``v lambda |w - w*|_1`` to gain, by convexity; as ``lambda |w|_1`` and
        ``lambda |w*|_1`` are below the objective, that is at most 2 v of it.
    """
    weights = np.zeros(holders.width)
    if not isinstance(start, str):
        weights = start
    elif start != "zeros" and (solutions := holders.solutions(penalty, tol)):
        mean = np.mean(solutions, axis=0)
        weights = combine(holders.main, np.array(solutions)) if start == "owa" else mean
    moved = holders.bytes
    loss, gradient = holders.gradient(weights)
    pooled = Problem(holders.main, penalty, None, 0.0, None, None)
    violation = float(pooled.violations(weights, gradient).max(initial=0.0))
    history, alphas, steps = [loss + float(penalty @ np.abs(weights))], [], 0
    strength: float | None = None
    for _ in range(updates):
        if violation <= until:
            break
        own_loss, own_gradient = holders.main.gradient(weights)
        tilt = gradient - own_gradient
        # The surrogate's value less this is what it says of the objective over all items.
        shift = float(tilt @ weights) + own_loss - loss
        if not isinstance(alpha, str):
            strength = float(alpha)
        elif alpha == ADAPTIVE or strength is None:
            strength = adapted(holders.main, penalty, weights, tilt)
        tried = strength
        for _ in range(RAISES):
            # No loss is below 0: a surrogate that promises one no longer stands for it, and is followed no further.
            solution = minimise(
                holders.main, penalty, start=weights, tilt=tilt, alpha=tried, anchor=weights, tol=tol, steps=STEPS,
                floor=shift,
            )  # fmt: skip
            steps, before = steps + solution.steps, holders.bytes
            loss, slope = holders.gradient(solution.weights)
            value = loss + float(penalty @ np.abs(solution.weights))
            # To what doubles can show.
            if alpha != GUARDED or value <= solution.objective - shift + 1e-12 * abs(value):
                break
            tried = max(FACTOR * tried, FIRST)
        else:
            break
        # The gradient after the last update is asked for to know the objective. Unless that is what a guard needs, it
        # is not part of the method, and does not count.
        moved = holders.bytes if alpha == GUARDED or until else before
        weights, gradient = solution.weights, slope
        violation = float(pooled.violations(weights, gradient).max(initial=0.0))
        history.append(value)
        alphas.append(tried)
        strength = tried if tried > strength else tried / FACTOR if tried > FIRST else 0.0
    return Trained(weights, tuple(history), tuple(alphas), violation, steps, moved)


def adapted(part: Part, penalty: Array, weights: Array, tilt: Array) -> float:
    """Return the strength of the proximal term that the authors' rule finds at the start of an update.

    Below a thousand weights none. Else from 1e-4 on tenfold, up to 1e2, while one short step (five passes) promises too
    much: the surrogate falls by a tenth while the loss of the main machine's own items rises, or it falls by a fifth.
    """
    if np.count_nonzero(np.abs(weights) > NOTHING) < MANY:
        return 0.0
    margins = part.features @ weights
    plain = Problem(part, penalty, None, 0.0, None, None)
    local = plain.value(weights, margins)
    surrogate = local + float(tilt @ weights)
    alpha = FIRST
    for _ in range(TRIALS):
        trial = minimise(
            part, penalty, start=weights, tilt=tilt, alpha=alpha, anchor=weights,
            tol=1e-6, steps=1, cycles=PASSES, whole=True,
        )  # fmt: skip
        rises = plain.value(trial.weights, part.features @ trial.weights) > local
        if not ((rises and trial.objective < 0.9 * surrogate) or trial.objective < 0.8 * surrogate):
            break
        alpha *= FACTOR
    return alpha


def combine(part: Part, solutions: Array) -> Array:
    """Return the combination of the partitions' solutions that fits one partition best (OWA).

    The margins under each solution are the features of a second, small regression with a quadratic penalty, which
    is chosen from :data:`RIDGES` by its accuracy in five folds. Penalties are on the scale of the mean loss.

    Source: Izbicki and Shelton, "Distributed Learning of Non-convex Linear Models with One Round of Communication",
    ECML 2019; as re-used in ``FutureComputing4AI/ProxCSL``.

    Parameters
    ----------
    part : Part
        The main machine's items.
    solutions : array of shape (p, d)
    """
    if len(solutions) == 1:
        return solutions[0]
    scores = part.features @ solutions.T
    folds = np.array_split(np.arange(part.items), FOLDS)

    def accuracy(ridge: float) -> float:
        right = 0
        for fold in folds:
            kept = np.setdiff1d(np.arange(part.items), fold)
            shares = _ridge(scores[kept], part.labels[kept], ridge)
            right += int(np.sum((scores[fold] @ shares > 0) == (part.labels[fold] > 0)))
        return right / part.items

    best = max(RIDGES, key=accuracy)
    return _ridge(scores, part.labels, best) @ solutions


def _ridge(features: Array, labels: Array, ridge: float) -> Array:
    """Return the weights of a dense logistic regression with penalty ridge/2 |v|², from an equal share on."""

    def objective(shares: Array) -> tuple[float, Array]:
        margins = features @ shares
        loss = np.mean(np.logaddexp(0.0, margins) - labels * margins) + 0.5 * ridge * float(shares @ shares)
        return float(loss), features.T @ (expit(margins) - labels) / len(labels) + ridge * shares

    first = np.full(features.shape[1], 1 / features.shape[1])
    return minimize(objective, first, jac=True, method="L-BFGS-B", options={"maxiter": 200}).x
