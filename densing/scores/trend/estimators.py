"""The table of estimators: a new one is a function of :class:`TrendData` in a file of its own and a line here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from densing.scores.trend.data import Slope, TrendData
from densing.scores.trend.envelopes import envelope, running_max
from densing.scores.trend.headline import tobit_crv3
from densing.scores.trend.regressions import mixed, ols_crv3, quantile_slope, theil_sen


@dataclass(frozen=True)
class Estimator:
    """A way to estimate the slope of ln(density).

    Parameters
    ----------
    name : str
        For programs: the column ``method`` of the tables.
    function : callable
        Takes the data, the level of the interval and, by keyword, those of ``cluster``, ``bootstrap`` and ``seed``
        that it uses.
    label : str
        Name and caution, for people.
    headline : bool
        Whether its row is the one to quote; of one estimator only.
    """

    name: str
    function: Callable[..., Slope]
    label: str
    headline: bool = False

    def fit(self, data: TrendData, level: float = 0.95, **options: Any) -> Slope:
        """Return the estimate; of the options each estimator gets those that its function takes."""
        taken = inspect.signature(self.function).parameters
        return self.function(data, level, **{name: value for name, value in options.items() if name in taken})


ESTIMATORS: Mapping[str, Estimator] = {
    estimator.name: estimator
    for estimator in (
        Estimator(
            "tobit-crv3",
            tobit_crv3,
            "all models, Tobit for rows beyond the ruler, family jackknife (CRV3)",
            headline=True,
        ),
        Estimator("envelope", envelope, "record-setters OLS (Xiao et al. replication; biased fast)"),
        Estimator(
            "running-max",
            running_max,
            "running maximum at every release date, OLS (Xiao et al. replication, other reading)",
        ),
        Estimator("ols-crv3", ols_crv3, "all observed models, OLS, CRV3 by family (censored rows dropped)"),
        Estimator(
            "quantile-0.9",
            quantile_slope,
            "0.9 quantile regression (Powell, limits respected), pairs-cluster bootstrap",
        ),
        Estimator("theil-sen", theil_sen, "Theil-Sen median slope (interval ignores families; censored rows dropped)"),
        Estimator(
            "mixedlm",
            mixed,
            "mixed model with a random intercept per family (second opinion; censored rows dropped)",
        ),
    )
}
HEADLINE = next(estimator for estimator in ESTIMATORS.values() if estimator.headline)


def estimates_table(slopes: Mapping[str, Slope], estimators: Iterable[Estimator] = ESTIMATORS.values()) -> pd.DataFrame:
    """Lay estimates side by side, one row per estimator, the headline marked.

    Examples
    --------
    >>> slope = Slope(0.007, 0.005, 0.01, 0.0, 20, 8, "none", 0)
    >>> table = estimates_table({"demo": slope}, [Estimator("demo", envelope, "a demonstration", headline=True)])
    >>> table[["method", "doubling_months", "headline"]].round(2).values.tolist()
    [['demo', 3.25, True]]
    """
    rows = []
    for estimator in estimators:
        slope = slopes[estimator.name]
        lo, hi = slope.doubling_interval
        label = estimator.label
        if slope.reason:
            label += f"; not estimable: {slope.reason}"
        elif slope.estimable and slope.slope <= 0:
            label += "; slope not positive: no doubling"
        rows.append(
            {
                "method": estimator.name,
                "label": label,
                "slope_per_day": slope.slope,
                "slope_lo": slope.lo,
                "slope_hi": slope.hi,
                "doubling_months": slope.doubling_months,
                "lo": lo,
                "hi": hi,
                "n": slope.n,
                "clusters": slope.clusters,
                "se_type": slope.se_type,
                "dropped": slope.dropped,
                "headline": estimator.headline,
            }
        )
    return pd.DataFrame(rows)
