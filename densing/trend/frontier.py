"""The frontier: the headline's line lifted until nine models in ten lie below it, bounds counted as bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from densing.trend.data import TrendData

Array = npt.NDArray[Any]
SHARE = 0.9


def frontier_offset(data: TrendData, centre: float, line: Array, share: float = SHARE) -> float:
    """Return how far the frontier lies above a line, in ln(density).

    minimise over d: sum_i r_q( y_i - clip(a + b t_i + d, lo_i, hi_i) ), r_q(u) = u (q - [u < 0]), q = ``share``.

    A normal quantile times the residual deviation would be simpler, and wrong where the weak models scatter further
    below the line than the strong ones above it.

    Source: Powell, J. Econometrics 32 (1986) 143-155, with the slope given.

    Parameters
    ----------
    data : TrendData
        Rows; censored ones enter at their limits.
    centre : float
        Day at which the line's level is stated.
    line : array, shape (2,)
        Level at ``centre`` and slope per day.
    share : float
        Share of models below the frontier.

    Examples
    --------
    >>> import pandas as pd
    >>> flat = pd.DataFrame({"model": list("abcdefghij"), "family": list("abcdefghij"), "log_density": np.arange(10.0),
    ...                      "released": pd.date_range("2024-01-01", periods=10)})
    >>> frontier_offset(TrendData.from_frame(flat), 0.0, np.array([0.0, 0.0]), share=0.85)
    8.0
    """
    base = line[0] + line[1] * (data.days - centre)
    y, limits = data.log_density, data.limits
    candidates = np.unique((y - base)[data.observed])
    at = np.clip(base + candidates[:, None], limits[:, 0], limits[:, 1])
    gap = y - at
    return float(candidates[np.argmin(np.sum(np.where(gap >= 0, share * gap, (share - 1) * gap), axis=1))])
