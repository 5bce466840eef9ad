"""Where the partitions lie: what the updates ask of them, and all of them in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from scipy import sparse

from densing.core import Array, InputError, named_stream
from densing.efficiency.simulation import NUMBER
from densing.efficiency.systems.prox_csl.parts import Part
from densing.efficiency.systems.prox_csl.solver import minimise


class Holders(Protocol):
    """Who hold the partitions: other threads, ranks or, in :class:`Here`, nobody else.

    Attributes
    ----------
    main : Part
        The partition where the sums arrive and the small problem is solved.
    partitions : int
    width : int
        Features, d.
    bytes : int
        What has travelled so far, over all links.
    """

    main: Part
    partitions: int
    width: int
    bytes: int

    def gradient(self, weights: Array) -> tuple[float, Array]:
        """Send the weights to all (one broadcast), return mean loss and gradient over all items (one gather)."""
        ...

    def solutions(self, penalty: Array, tol: float) -> list[Array]:
        """Return each partition's own solution (one gather); none of a partition with items of one class only."""
        ...


class Here:
    """Partitions that all lie in this process; bytes are counted as if each but the main one were elsewhere.

    Parameters
    ----------
    parts : sequence of Part
        Of the same width. The main one is the first that has items of both classes.

    Attributes
    ----------
    skipped : int
        Partitions without a solution of their own, for want of a second class.

    Examples
    --------
    >>> parts = split_rows(np.eye(6), np.array([0, 1, 0, 1, 0, 1]), 2)
    >>> holders = Here(parts)
    >>> loss, gradient = holders.gradient(np.zeros(6))
    >>> round(loss, 4), holders.bytes
    (0.6931, 112)
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        if len({part.width for part in parts}) != 1:
            raise InputError("the partitions have different numbers of features; align them by feature name first")
        self.parts = parts
        self.main = next((part for part in parts if not part.one_class), max(parts, key=lambda part: part.items))
        self.partitions = len(parts)
        self.width = parts[0].width
        self.items = sum(part.items for part in parts)
        self.skipped = sum(part.one_class for part in parts)
        self.bytes = 0

    def gradient(self, weights: Array) -> tuple[float, Array]:
        """Return mean loss and gradient over all items; loss and size travel with a gradient."""
        total, gradient = 0.0, np.zeros(self.width)
        for part in self.parts:
            loss, own = part.gradient(weights)
            total += part.items / self.items * loss
            gradient += part.items / self.items * own
        self.bytes += (self.partitions - 1) * NUMBER * (2 * self.width + 2)
        return total, gradient

    def solutions(self, penalty: Array, tol: float) -> list[Array]:
        """Return each partition's own solution, of those with items of both classes."""
        self.bytes += (self.partitions - 1 - self.skipped) * NUMBER * self.width
        return [minimise(part, penalty, tol=tol).weights for part in self.parts if not part.one_class]


def split_rows(features: Any, labels: Array, partitions: int, seed: int = 0) -> list[Part]:
    """Return items dealt out at random to partitions of equal size, give or take one.

    Parameters
    ----------
    features : scipy sparse array or matrix, or array of shape (n, d)
    labels : array of shape (n,)
    partitions : int
        From 1 to n.
    seed : int
        One partition keeps the order of the items, whatever the seed.
    """
    if not 1 <= partitions <= len(labels):
        raise InputError(f"{partitions} partitions of {len(labels)} items; give from 1 to {len(labels)}")
    if partitions == 1:
        return [Part(features, labels)]
    rows = sparse.csr_array(features)
    order = named_stream(seed, "partitions").permutation(len(labels))
    return [Part(rows[own], labels[own]) for own in map(np.sort, np.array_split(order, partitions))]
