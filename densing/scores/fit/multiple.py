"""Several tests at once: p-values corrected for their number."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number; missing ones stay missing and are not counted.

    Source: Holm, Scandinavian J. Statistics 6 (1979) 65-70.

    Examples
    --------
    >>> [round(p, 3) for p in holm([0.01, 0.04, math.nan, 0.03])]
    [0.03, 0.06, nan, 0.06]
    """
    values = np.asarray(p_values, dtype=float)
    corrected = np.full(len(values), math.nan)
    order = [i for i in np.argsort(values) if math.isfinite(values[i])]
    steps = [min(1.0, (len(order) - rank) * values[i]) for rank, i in enumerate(order)]
    corrected[order] = np.maximum.accumulate(steps) if steps else []
    return [float(value) for value in corrected]
