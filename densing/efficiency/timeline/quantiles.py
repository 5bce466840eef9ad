"""Median and quantiles as numpy has them.

``np.median`` and ``np.percentile`` load numpy's masked arrays on their first call, which takes as long as to read a
small trace.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


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
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    ordered = np.partition(values, (low, high))
    first, last, part = ordered[low].item(), ordered[high].item(), place - low
    # As numpy rounds: from the nearer neighbour.
    return float(first + (last - first) * part if part < 0.5 else last - (last - first) * (1 - part))
