"""Is a straight line with even scatter a fair description? The usual tests, on the observed rows."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import statsmodels.api as sm
from statsmodels.stats.diagnostic import acorr_ljungbox, het_breuschpagan, linear_reset
from statsmodels.stats.stattools import durbin_watson

from densing.scores.trend.data import TrendData
from densing.scores.trend.slopes import DAYS_PER_YEAR

MIN_ROWS = 8


def diagnose(data: TrendData) -> dict[str, Any]:
    """Run RESET, Breusch-Pagan, Ljung-Box and Durbin-Watson on the least-squares line.

    The rows are taken in order of release; models of one family stand next to each other, so the serial
    tests also react to families.

    Source: Ramsey (1969), Breusch and Pagan (1979), Ljung and Box (1978), Durbin and Watson (1950);
    statsmodels.

    Parameters
    ----------
    data : TrendData
        Only observed rows are used.

    Returns
    -------
    dict
        ``reset_p`` (curvature), ``breusch_pagan_p`` (uneven scatter), ``ljung_box_p`` and ``durbin_watson``
        (serial correlation), ``n``; None below eight observed rows.
    """
    seen = data.take(data.observed).ordered()
    names = ("reset_p", "breusch_pagan_p", "ljung_box_p", "durbin_watson")
    if len(seen) < MIN_ROWS or len(np.unique(seen.days)) < 3:
        return {"n": len(seen), **dict.fromkeys(names)}
    design = sm.add_constant(seen.days / DAYS_PER_YEAR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # degenerate toy data divide by a zero residual variance
        fit = sm.OLS(seen.log_density, design).fit()
        values = (
            linear_reset(fit, power=2, use_f=True).pvalue,
            het_breuschpagan(fit.resid, design)[1],
            acorr_ljungbox(fit.resid, lags=[min(4, len(seen) // 3)])["lb_pvalue"].iloc[0],
            durbin_watson(fit.resid),
        )
    found = {name: float(value) for name, value in zip(names, values, strict=True)}
    return {"n": len(seen)} | {name: value if np.isfinite(value) else None for name, value in found.items()}
