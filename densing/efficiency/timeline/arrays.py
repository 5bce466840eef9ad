"""Columns of numbers: parts of them, the values that occur, median and quantiles.

``np.unique`` without an index, ``np.median`` and ``np.percentile`` load numpy's masked arrays on their first call,
which takes as long as to read a small trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]
Index = NDArray[np.int32]
BLOCK = 1 << 15


def blocks(count: int, last_first: bool = False) -> Iterator[slice]:
    """Yield slices that cut a long table into parts: what is computed of a part at a time takes no memory to speak of.

    Examples
    --------
    >>> list(blocks(40_000))
    [slice(0, 32768, None), slice(32768, 40000, None)]
    """
    starts = range(0, count, BLOCK)
    for start in reversed(starts) if last_first else starts:
        yield slice(start, min(start + BLOCK, count))


def used(codes: NDArray[Any]) -> list[int]:
    """Return which of the codes 0, 1, 2, ... occur, in order.

    Examples
    --------
    >>> used(np.array([4, 0, 4]))
    [0, 4]
    """
    codes_used: list[int] = np.flatnonzero(np.bincount(codes)).tolist()
    return codes_used


def distinct(moments: Int) -> Int:
    """Return moments in order, each once.

    Examples
    --------
    >>> distinct(np.array([7, 3, 7]))
    array([3, 7])
    """
    ordered = np.sort(moments)
    return ordered[np.concatenate((ordered[:1] == ordered[:1], ordered[1:] != ordered[:-1]))]


def median(values: NDArray[Any]) -> float:
    """Return the median: the mean of the two middle values of an even number.

    Examples
    --------
    >>> median(np.array([7, 1, 4, 2]))
    3.0
    """
    low = (len(values) - 1) // 2
    middle = np.partition(values, (low, len(values) // 2))
    return (float(middle[low]) + float(middle[len(values) // 2])) / 2


def quantile(values: NDArray[Any], share: float) -> float:
    """Return the quantile that splits off a share of the values, linear between neighbours.

    Examples
    --------
    >>> quantile(np.array([7, 1, 4, 2]), 0.5)
    3.0
    """
    position = share * (len(values) - 1)
    low = int(position)
    high = min(low + 1, len(values) - 1)
    ordered = np.partition(values, (low, high))
    first, last, part = ordered[low].item(), ordered[high].item(), position - low
    # As numpy rounds: from the nearer neighbour.
    return float(first + (last - first) * part if part < 0.5 else last - (last - first) * (1 - part))
