"""Item response models: how hard each item is and how well it tells models apart, by marginal maximum likelihood.

logit P(model i answers item j right) = a_j theta_i + c_j        difficulty b_j = -c_j / a_j, theta ~ N(0, 1)

EM on a grid of abilities: the E-step gives every model a posterior over the grid, the M-step is a logistic regression
of each item on the grid, all items at once. Slopes and intercepts have normal priors whose means and variances are
estimated from the bank itself, so that an item which no model solves, or every one, has finite parameters. Answers are
0, 1, anything between (a probability), or NaN (none).

Source: Bock and Aitkin, Psychometrika 46 (1981) 443-459, for EM; Mislevy, Psychometrika 51 (1986) 177-195, for priors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from densing.core import Array

LIMIT = 5.0
"""Ends of the grid of abilities, in standard deviations of the calibrated models."""
NODES = 161
SWEEPS, TOLERANCE = 300, 2e-3
"""Rounds of EM, and the largest change of a parameter below which they end."""
LEAST_SPREAD = 0.05
"""Least variance of a prior: where all items are alike it would shrink to nothing."""


@dataclass(frozen=True)
class ItemCurves:
    """Curves of items, and the abilities of the models they come from.

    Parameters
    ----------
    slope, intercept : (J,) arrays
        a and c of logit P = a theta + c.
    slope_error : (J,) array
        Standard error of a, abilities taken as known.
    ability, ability_error : (M,) arrays
        Posterior mean and standard deviation of each model's theta.
    loglik : float
        Marginal log-likelihood.
    converged : bool
    """

    slope: Array
    intercept: Array
    slope_error: Array
    ability: Array
    ability_error: Array
    loglik: float
    converged: bool


def grid(nodes: int = NODES) -> tuple[Array, Array]:
    """Return abilities, and the logarithm of the standard normal's weight at each: (nodes,) both."""
    theta = np.linspace(-LIMIT, LIMIT, nodes)
    log_weight = -(theta**2) / 2
    return theta, log_weight - np.log(np.exp(log_weight).sum())


def posterior(answers: Array, slope: Array, intercept: Array, nodes: int = NODES) -> tuple[Array, Array, Array]:
    """Return the posterior of abilities on the grid.

    Parameters
    ----------
    answers : (M, J) array
        In [0, 1]; NaN where there is none.
    slope, intercept : (J,) arrays

    Returns
    -------
    theta : (Q,) array
    weights : (M, Q) array
        Rows add up to one.
    loglik : (M,) array
        Marginal log-likelihood of each model's answers.

    Examples
    --------
    >>> theta, weights, _ = posterior(np.array([[1.0, 1.0, np.nan]]), np.ones(3), np.zeros(3))
    >>> round(float((weights @ theta)[0]), 2)
    0.7
    """
    theta, log_weight = grid(nodes)
    known = np.isfinite(answers)
    return _posterior(np.where(known, answers, 0.0), known.astype(float), slope, intercept, theta, log_weight)


def _posterior(
    right: Array, known: Array, slope: Array, intercept: Array, theta: Array, log_weight: Array
) -> tuple[Array, Array, Array]:
    logits = np.outer(slope, theta) + intercept[:, None]
    log = right @ logits - known @ np.logaddexp(0, logits) + log_weight
    top = log.max(1, keepdims=True)
    weights = np.exp(log - top)
    total = weights.sum(1, keepdims=True)
    return theta, weights / total, (top + np.log(total))[:, 0]


def fit_curves(answers: Array, *, slopes: str = "each", nodes: int = NODES) -> ItemCurves:
    """Fit the curves of all items to a table of answers.

    Parameters
    ----------
    answers : (M, J) array
        Models by items, in [0, 1]; NaN where there is no answer.
    slopes : {"each", "common"}
        Two parameters per item, or one and a common slope (the Rasch model).
    nodes : int
        Of the grid of abilities.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> b = np.linspace(-2, 2, 40)
    >>> answers = (rng.random((200, 40)) < expit(1.5 * (rng.normal(size=(200, 1)) - b))).astype(float)
    >>> curves = fit_curves(answers)
    >>> bool(np.corrcoef(-curves.intercept / curves.slope, b)[0, 1] > 0.98), curves.converged
    (True, True)
    """
    known = np.isfinite(answers)
    right, count = np.where(known, answers, 0.0), known.astype(float)
    theta, log_weight = grid(nodes)
    share = (right.sum(0) + 0.5) / (count.sum(0) + 1)
    # A slope of 1 widens the logit of a share by the spread of abilities.
    slope, intercept = np.ones(answers.shape[1]), np.log(share / (1 - share)) * 1.2
    converged, errors = False, np.zeros((2, answers.shape[1]))
    before = np.full((2, answers.shape[1]), np.inf)
    for _ in range(SWEEPS):
        _, weights, loglik = _posterior(right, count, slope, intercept, theta, log_weight)
        # The scale that gives the models mean 0 and variance 1; without it EM moves along this ridge for long.
        middle = float((weights @ theta).mean())
        spread = float(np.sqrt((weights @ (theta - middle) ** 2).mean()))
        slope, intercept = slope * spread, intercept + slope * middle
        _, weights, loglik = _posterior(right, count, slope, intercept, theta, log_weight)
        before, last = np.stack((slope, intercept)), before
        if np.abs(before - last).max() < TOLERANCE:
            converged = True
            break
        # The variance of what is estimated is that of the estimates and what each is uncertain by.
        spreads = before.var(1) + (errors**2).mean(1)
        priors = [(float(each), max(float(of), LEAST_SPREAD)) for each, of in zip(before.mean(1), spreads, strict=True)]
        slope, intercept, errors = _regress(weights.T @ right, weights.T @ count, theta, before, priors, slopes)
    _, weights, loglik = _posterior(right, count, slope, intercept, theta, log_weight)
    mean = weights @ theta
    spread = np.sqrt(np.maximum(weights @ theta**2 - mean**2, (theta[1] - theta[0]) ** 2 / 12))
    return ItemCurves(slope, intercept, errors[0], mean, spread, float(loglik.sum()), converged)


def _regress(
    right: Array, count: Array, theta: Array, start: Array, priors: list[tuple[float, float]], slopes: str
) -> tuple[Array, Array, Array]:
    """Logistic regression of all items on the grid by Newton's method, from counts (Q, J) of right and all answers."""
    (mean_a, var_a), (mean_c, var_c) = priors
    slope, intercept = start
    node, square = theta[:, None], theta[:, None] ** 2
    for _ in range(2):
        p = expit(node * slope + intercept)
        residual, weight = right - count * p, count * p * (1 - p)
        g_a = (residual * node).sum(0) - (slope - mean_a) / var_a
        g_c = residual.sum(0) - (intercept - mean_c) / var_c
        h_aa, h_ac, h_cc = ((weight * part).sum(0) for part in (square, node, np.ones_like(node)))
        h_aa, h_cc = h_aa + 1 / var_a, h_cc + 1 / var_c
        if slopes == "common":
            # One slope: its equation is the sum over items of each one's, with the intercepts eliminated.
            step_a = np.full_like(slope, (g_a - h_ac / h_cc * g_c).sum() / (h_aa - h_ac**2 / h_cc).sum())
            step_c = (g_c - h_ac * step_a) / h_cc
        else:
            determinant = h_aa * h_cc - h_ac**2
            step_a = (h_cc * g_a - h_ac * g_c) / determinant
            step_c = (h_aa * g_c - h_ac * g_a) / determinant
        slope, intercept = slope + np.clip(step_a, -1, 1), intercept + np.clip(step_c, -2, 2)
    return slope, intercept, np.sqrt(np.stack((h_cc, h_aa)) / (h_aa * h_cc - h_ac**2))
