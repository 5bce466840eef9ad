"""Estimators that come from well-kept libraries: OLS with CRV3 errors, Theil-Sen, a mixed model."""

from __future__ import annotations

import warnings

import numpy as np
import statsmodels.api as sm
from scipy import stats

from densing.scores.trend.data import TrendData
from densing.scores.trend.slopes import DAYS_PER_YEAR, Slope, not_estimable

OLS_LABEL = "all observed models, OLS, CRV3 by family (censored rows dropped)"
SEN_LABEL = "Theil-Sen median slope (interval ignores families; censored rows dropped)"
MIXED_LABEL = "mixed model with a random intercept per family (second opinion; censored rows dropped)"
MIN_ROWS = 3


def ols_crv3(data: TrendData, level: float = 0.95, *, cluster: str = "family") -> Slope:
    """Ordinary least squares over all observed rows, cluster-robust with few clusters in mind.

    V = (G - 1)/G sum_g (b_-g - b)(b_-g - b)', t with G - 1 degrees of freedom.

    Source: CRV3: MacKinnon, Nielsen and Webb, J. Econometrics 232 (2023) 272-299; as in statsmodels.
    """
    seen, groups, reason = _observed(data, cluster)
    dropped = len(data) - len(seen)
    if not reason and groups < 2:
        reason = f"{groups} cluster, at least 2 needed"
    if reason:
        return not_estimable("ols-crv3", OLS_LABEL, reason, len(seen), groups, dropped)
    design = sm.add_constant(seen.days / DAYS_PER_YEAR)
    keywords = {"groups": seen.clusters(cluster)}
    model = sm.OLS(seen.log_density, design)
    try:
        fit = model.fit(cov_type="cluster-crv3", cov_kwds=keywords, use_t=True)
        error = float(fit.bse[1]) / DAYS_PER_YEAR
    except ValueError:  # without one of the clusters no slope is left: there is no such error
        fit, error = model.fit(), np.inf
    slope = float(fit.params[1]) / DAYS_PER_YEAR
    half = stats.t.ppf(0.5 + level / 2, groups - 1) * error
    kind = f"CRV3, t({groups - 1})"
    return Slope(
        "ols-crv3",
        OLS_LABEL,
        slope,
        slope - half,
        slope + half,
        float(fit.params[0]),
        len(seen),
        groups,
        kind,
        dropped,
    )


def theil_sen(data: TrendData, level: float = 0.95) -> Slope:
    """Median of the slopes of all pairs of observed rows, with the rank interval of scipy.

    Source: Sen, JASA 63 (1968) 1379-1389.
    """
    seen, _, reason = _observed(data, "model")
    n, dropped = len(seen), len(data) - len(seen)
    if reason:
        return not_estimable("theil-sen", SEN_LABEL, reason, n, n, dropped)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # many ties make scipy's rank variance negative: no interval then
        slope, intercept, lo, hi = stats.theilslopes(seen.log_density, seen.days, alpha=level)
    lo, hi = (lo, hi) if np.isfinite([lo, hi]).all() else (-np.inf, np.inf)
    ends = (float(slope), float(lo), float(hi), float(intercept))
    return Slope("theil-sen", SEN_LABEL, *ends, n, n, "rank", dropped)


def mixed(data: TrendData, level: float = 0.95, *, cluster: str = "family") -> Slope:
    """Linear mixed model, ln rho = a + b t + u_family + e, by restricted maximum likelihood.

    Source: Laird and Ware, Biometrics 38 (1982) 963-974; as in statsmodels.
    """
    seen, groups, reason = _observed(data, cluster)
    n, dropped = len(seen), len(data) - len(seen)
    if not reason and not 2 <= groups < n:
        reason = f"{groups} clusters for {n} rows leave no family variance to estimate"
    if reason:
        return not_estimable("mixedlm", MIXED_LABEL, reason, n, groups, dropped)
    design = sm.add_constant(seen.days / DAYS_PER_YEAR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a family variance of zero is a legitimate answer here
            fit = sm.MixedLM(seen.log_density, design, groups=seen.clusters(cluster)).fit(reml=True)
            slope, error = float(fit.fe_params[1]), float(fit.bse_fe[1])
    except (np.linalg.LinAlgError, ValueError):
        slope, error = np.nan, np.nan
    if not (np.isfinite(slope) and np.isfinite(error)):
        return not_estimable("mixedlm", MIXED_LABEL, "the fit is singular", n, groups, dropped)
    half = stats.norm.ppf(0.5 + level / 2) * error
    ends = (slope / DAYS_PER_YEAR, (slope - half) / DAYS_PER_YEAR, (slope + half) / DAYS_PER_YEAR)
    return Slope(
        "mixedlm",
        MIXED_LABEL,
        *ends,
        float(fit.fe_params[0]),
        n,
        groups,
        "REML, normal",
        dropped,
    )


def _observed(data: TrendData, cluster: str) -> tuple[TrendData, int, str]:
    """Observed rows, their number of clusters, and why they do not suffice (empty when they do)."""
    seen = data.take(data.observed)
    groups = len(np.unique(seen.clusters(cluster)))
    if len(seen) < MIN_ROWS:
        return seen, groups, f"{len(seen)} observed rows, at least {MIN_ROWS} needed"
    if np.ptp(seen.days) == 0:
        return seen, groups, "all observed rows share one release date"
    return seen, groups, ""
