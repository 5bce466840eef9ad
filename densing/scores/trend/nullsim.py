"""What the record-setter regression reports when there is nothing to report."""

from __future__ import annotations

from typing import Any

import numpy as np

from densing.core import Array
from densing.scores.trend.data import TrendData
from densing.scores.trend.envelopes import envelope_slopes
from densing.scores.trend.slopes import doubling_months


def simulate_envelope(
    days: Array, sd: float, *, slope: float = 0.0, draws: int = 2000, seed: int = 0
) -> tuple[Array, Array]:
    """Draw independent normal series at given dates and return their record-setter slopes and R².

    ln rho_i = slope t_i + sd e_i.

    Source: the simulation of the project's design notes on the Densing Law (29 dates over 590 days, sd 1).

    Parameters
    ----------
    days : array, shape (n,) or (draws, n)
    sd, slope : float
    draws, seed : int

    Returns
    -------
    slopes, r2 : arrays
        Of the draws with at least three records.

    Examples
    --------
    >>> slopes, _ = simulate_envelope(np.linspace(0, 590, 29), 1.0, draws=500)
    >>> bool(np.median(slopes) > 0.004)  # no trend went in
    True
    """
    rng = np.random.default_rng([seed, 3])
    values = slope * days + sd * rng.standard_normal((draws, np.shape(days)[-1]))
    slopes, r2, _ = envelope_slopes(days, values)
    kept = np.isfinite(slopes)
    return slopes[kept], r2[kept]


def record_setter_bias(
    data: TrendData, sd: float, slope: float, observed: float, *, draws: int = 2000, seed: int = 0
) -> dict[str, Any]:
    """Measure the envelope's bias on this data set's own dates.

    Parameters
    ----------
    data : TrendData
    sd, slope : float
        Residual deviation and slope of the headline.
    observed : float
        The envelope's slope on the real data; NaN if it has none.
    draws, seed : int

    Returns
    -------
    dict
        ``no_trend``: median slope and doubling time the envelope invents, 5 and 95 % points, median R², and
        the share of series without trend whose envelope is at least as steep as the real one;
        ``with_trend``: what it reads when the headline is true.
    """
    days = data.days[data.observed]
    null, r2 = simulate_envelope(days, sd, draws=draws, seed=seed)
    true, _ = simulate_envelope(days, sd, slope=slope, draws=draws, seed=seed + 1)
    if len(null) == 0 or len(true) == 0:
        return {"n": len(days), "draws": draws, "no_trend": None, "with_trend": None}
    low, middle, high = (float(value) for value in np.quantile(null, [0.05, 0.5, 0.95]))
    reached = float(np.mean(null >= observed)) if np.isfinite(observed) else None
    return {
        "n": len(days),
        "draws": draws,
        "residual_sd": sd,
        "no_trend": {
            "median_slope": middle,
            "median_doubling_months": _finite(doubling_months(middle)),
            "slope_05": low,
            "slope_95": high,
            "median_r2": float(np.median(r2)),
            "share_at_least_observed": reached,
        },
        "with_trend": {
            "true_doubling_months": _finite(doubling_months(slope)),
            "median_doubling_months": _finite(doubling_months(float(np.median(true)))),
        },
    }


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
