"""Items of one partition, as a linear classifier sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import expit

from densing.core import Array, InputError


def with_intercept(features: Any) -> sparse.csc_array:
    """Return features with a column of ones behind them.

    Examples
    --------
    >>> with_intercept(np.array([[2.0], [3.0]])).toarray().tolist()
    [[2.0, 1.0], [3.0, 1.0]]
    """
    return sparse.hstack([sparse.csc_array(features), np.ones((features.shape[0], 1))], format="csc")


class Part:
    """The items of one partition.

    Parameters
    ----------
    features : scipy sparse array or matrix, or array of shape (n, d)
        Kept as columns (CSC) of doubles; not copied where it is that already.
    labels : array of shape (n,)
        True or 1 where an item is of the class that is predicted.

    Examples
    --------
    >>> part = Part(np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([1, 0]))
    >>> loss, gradient = part.gradient(np.zeros(2))
    >>> round(loss, 4), gradient.tolist()
    (0.6931, [-0.25, 0.5])
    """

    def __init__(self, features: Any, labels: Array) -> None:
        self.features = sparse.csc_array(features, dtype=np.float64)
        self.labels = np.asarray(labels, dtype=np.float64)
        if self.features.shape[0] != len(self.labels):
            raise InputError(f"{self.features.shape[0]} items have {len(self.labels)} labels; each item needs one")

    @property
    def items(self) -> int:
        """Number of items, n."""
        return len(self.labels)

    @property
    def width(self) -> int:
        """Number of features, d."""
        return int(self.features.shape[1])

    @property
    def one_class(self) -> bool:
        """Whether all items have one label: there is nothing to tell apart."""
        return not 0 < self.labels.sum() < len(self.labels)

    def loss(self, margins: Array) -> float:
        r"""Return the mean logistic loss :math:`\log(1 + e^m) - y m` in nats, of margins of shape (n,)."""
        return float(np.mean(np.logaddexp(0.0, margins) - self.labels * margins))

    def residuals(self, margins: Array) -> Array:
        """Return the derivative of the mean loss by each margin."""
        return (expit(margins) - self.labels) / self.items

    def gradient(self, weights: Array) -> tuple[float, Array]:
        """Return the mean loss and its gradient, shape (d,)."""
        margins = self.features @ weights
        return self.loss(margins), self.features.T @ self.residuals(margins)
