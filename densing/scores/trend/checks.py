"""What is checked of a headline: what it rests on, whether a line describes the rows, and every test of the trend."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pandas as pd

from densing.core import Array, FitError, plain
from densing.scores.trend.data import DAYS_PER_YEAR, TrendData, doubling_months
from densing.scores.trend.estimators import envelope_slopes
from densing.scores.trend.significance import (
    CHATGPT,
    BreakTests,
    PermutationTests,
    break_power,
    breakpoint_test,
    estimate_shocks,
    permutation_test,
    shuffle_power,
    trend_paces,
)
from densing.scores.trend.tobit import Headline, VarianceShares, fit_headline, tobit_lines

FEW_FAMILIES = 6
"""Below this many clusters an interval that takes them as independent is not to be relied on."""
BREAK_WORLDS = 199
DIAGNOSED_ROWS = 8


@dataclass(frozen=True)
class LeftOut:
    """The headline without one family or organisation: its name, its rows, and what the others give."""

    name: str
    n: int
    slope_per_day: float
    doubling_months: float


@dataclass(frozen=True)
class LeaveOneOut:
    """The headline without each family, or organisation, at a time.

    Parameters
    ----------
    kind : {"family", "organisation"}
    rows : tuple of LeftOut
    doubling_min, doubling_max : float or None
        Range of the doubling time, infinite where nothing doubles; None where no slope could be estimated.
    most_influential : str or None
        The one that moves the slope most.
    """

    kind: str
    rows: tuple[LeftOut, ...]
    doubling_min: float | None = None
    doubling_max: float | None = None
    most_influential: str | None = None

    @property
    def table(self) -> pd.DataFrame:
        """The rows as a table: name, n, slope_per_day, doubling_months."""
        return pd.DataFrame(self.rows, columns=[field.name for field in fields(LeftOut)])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, each row under the name of what was left out."""
        return {
            "table": [
                {
                    self.kind: row.name,
                    "n": row.n,
                    "slope_per_day": row.slope_per_day,
                    "doubling_months": row.doubling_months,
                }
                for row in self.rows
            ],
            "doubling_min": self.doubling_min,
            "doubling_max": self.doubling_max,
            "most_influential": self.most_influential,
        }


@dataclass(frozen=True, kw_only=True)
class WithoutGroup:
    """The headline without a named group of families.

    Parameters
    ----------
    group : str
    families : tuple of str
        Members of the group that have models here.
    n : int
        Their models.
    slope_per_day, doubling_months, lo, hi : float, optional
        Of the others; None where they cannot be estimated.
    reason : str or None
        Why not.
    """

    group: str
    families: tuple[str, ...]
    n: int
    slope_per_day: float | None = None
    doubling_months: float | None = None
    lo: float | None = None
    hi: float | None = None
    reason: str | None


@dataclass(frozen=True)
class ClusterCounts:
    """The clusters behind the interval.

    Parameters
    ----------
    clusters : int
        Families, or another unit taken as independent.
    largest_share : float
        Share of the rows in the largest cluster.
    censored_above, censored_below, observed : int
        Rows.
    critical_value, residual_sd : float
        Of the headline.
    reliable : bool
        Whether there are at least :data:`FEW_FAMILIES` clusters.
    """

    clusters: int
    largest_share: float
    censored_above: int
    censored_below: int
    observed: int
    critical_value: float
    residual_sd: float
    reliable: bool


@dataclass(frozen=True)
class ByOrganisation:
    """The headline's interval, in months, with organisations taken as independent in place of families."""

    clusters: int
    lo: float
    hi: float


@dataclass(frozen=True)
class Simulation:
    """The worlds behind size and power of the tests: their number, and the scatter estimated from the data."""

    worlds: int
    shuffle_worlds: int
    family_sd: float
    model_sd: float


@dataclass(frozen=True)
class Diagnostics:
    """Tests of a straight line with even scatter, on the ``n`` observed rows; None below eight of them.

    Parameters
    ----------
    n : int
    reset_p : float or None
        Curvature.
    breusch_pagan_p : float or None
        Uneven scatter.
    ljung_box_p, durbin_watson : float or None
        Serial correlation.
    """

    n: int
    reset_p: float | None
    breusch_pagan_p: float | None
    ljung_box_p: float | None
    durbin_watson: float | None


@dataclass(frozen=True)
class EnvelopeWithoutTrend:
    """What the envelope reports when density does not grow at all.

    Parameters
    ----------
    median_slope : float
        Per day.
    median_doubling_months : float or None
        None where the median slope is not positive.
    slope_05, slope_95 : float
        5 and 95 % points.
    median_r2 : float
    share_at_least_observed : float or None
        Share of series without trend whose envelope is at least as steep as the real one; None without a real one.
    """

    median_slope: float
    median_doubling_months: float | None
    slope_05: float
    slope_95: float
    median_r2: float
    share_at_least_observed: float | None


@dataclass(frozen=True)
class EnvelopeOfHeadline:
    """What the envelope reports in the median when the headline is true; None without a doubling."""

    true_doubling_months: float | None
    median_doubling_months: float | None


@dataclass(frozen=True, kw_only=True)
class RecordSetterBias:
    """The envelope's bias on a data set's own dates.

    Parameters
    ----------
    n, draws : int
        Observed models, and simulated series of as many.
    residual_sd : float, optional
        Of the series, around their line; None where no series had three records.
    no_trend : EnvelopeWithoutTrend or None
    with_trend : EnvelopeOfHeadline or None
    """

    n: int
    draws: int
    residual_sd: float | None = None
    no_trend: EnvelopeWithoutTrend | None
    with_trend: EnvelopeOfHeadline | None


@dataclass(frozen=True)
class Checks:
    """The checks that belong to a headline; None where one does not apply.

    Parameters
    ----------
    permutation : PermutationTests
        Slopes of shuffled release dates.
    leave_one_family_out, leave_one_organisation_out : LeaveOneOut
        The latter where the rows say who trained the models.
    breakpoint : BreakTests
        Whether the pace changed.
    record_setter_bias : RecordSetterBias
        What the paper's envelope reports on these dates without any trend.
    diagnostics : Diagnostics
    families : ClusterCounts
    organisations : ByOrganisation
    variance_shares : VarianceShares
    simulation : Simulation
        Settings of the simulations of size and power, if they were run.
    without_groups : tuple of WithoutGroup
        The headline without each named group of families that has models here.
    """

    permutation: PermutationTests | None = None
    leave_one_family_out: LeaveOneOut | None = None
    leave_one_organisation_out: LeaveOneOut | None = None
    breakpoint: BreakTests | None = None
    record_setter_bias: RecordSetterBias | None = None
    diagnostics: Diagnostics | None = None
    families: ClusterCounts | None = None
    organisations: ByOrganisation | None = None
    variance_shares: VarianceShares | None = None
    simulation: Simulation | None = None
    without_groups: tuple[WithoutGroup, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-ready data; infinite and missing numbers become None."""
        return {field.name: plain(getattr(self, field.name)) for field in fields(self)}


def check_headline(
    data: TrendData,
    fit: Headline,
    record_slope: float,
    *,
    level: float,
    seed: int,
    permutations: int,
    cluster: str,
    worlds: int,
    groups: Mapping[str, Iterable[str]],
) -> Checks:
    """Run every check of a headline.

    Parameters
    ----------
    data : TrendData
    fit : Headline
        Of these rows.
    record_slope : float
        Of the record-setters, per day; NaN where they have none.
    level, seed, permutations, cluster, worlds, groups
        As in :func:`densing.scores.trend.estimate_trend`.
    """
    permutation = permutation_test(data, cluster=cluster, permutations=permutations, seed=seed)
    breaks = breakpoint_test(data, cluster=cluster, bootstrap=BREAK_WORLDS, seed=seed)
    slope, simulation = fit.slope.slope, None
    if worlds > 0 and (shocks := estimate_shocks(data, cluster)) is not None:
        shares = shuffle_power(data, shocks, trend_paces(slope), cluster=cluster, worlds=2 * worlds, seed=seed)
        rated = {
            name: replace(getattr(permutation, name), size=share.size, power=share.power)
            for name, share in shares.items()
        }
        permutation = replace(permutation, **rated)
        for name, split in (("stated", CHATGPT), ("searched", None)):
            test = getattr(breaks, name)
            if test.p is not None:
                share = break_power(data, shocks, slope, split=split, cluster=cluster, worlds=worlds, seed=seed)
                breaks = replace(breaks, **{name: replace(test, size=share.size, power=share.power)})
        simulation = Simulation(worlds, 2 * worlds, shocks.family_sd, shocks.model_sd)
    sizes = np.bincount(data.clusters(cluster))
    by_organisation = leave_organisation_out = None
    if data.organisation is not None:
        codes = data.clusters("organisation")
        weights = (codes != np.arange(codes.max() + 1)[:, None]).astype(float)
        # Beside the headline's families: laboratories may differ as much as their generations (docs/adr/0003).
        lines = tobit_lines(data, fit.centre, weights)[0]
        leave_organisation_out = _leave_one_out("organisation", np.unique(data.organisation), codes, lines, fit)
        if len(weights) >= 2:
            own = fit_headline(data, level, cluster="organisation", seed=seed).slope
            by_organisation = ByOrganisation(own.clusters, *own.doubling_interval)
    return Checks(
        permutation=permutation,
        leave_one_family_out=_leave_one_out(
            "family", np.unique(getattr(data, cluster)), data.clusters(cluster), fit.leave_out, fit
        ),
        leave_one_organisation_out=leave_organisation_out,
        breakpoint=breaks,
        record_setter_bias=record_setter_bias(data, fit.sigma, slope, record_slope, seed=seed),
        diagnostics=diagnose(data),
        families=ClusterCounts(
            clusters=len(sizes),
            largest_share=float(sizes.max() / sizes.sum()),
            censored_above=int(np.sum(data.censor > 0)),
            censored_below=int(np.sum(data.censor < 0)),
            observed=int(data.observed.sum()),
            critical_value=fit.critical,
            residual_sd=fit.sigma,
            reliable=len(sizes) >= FEW_FAMILIES,
        ),
        organisations=by_organisation,
        variance_shares=fit.shares,
        simulation=simulation,
        without_groups=_without_groups(data, groups, level, cluster, seed),
    )


def _leave_one_out(kind: str, names: Array, codes: Array, lines: Array, fit: Headline) -> LeaveOneOut:
    """A row per name left out, the range of the doubling time, and the name that moves the slope most."""
    rows = tuple(
        LeftOut(str(name), int(size), float(line[1]), doubling_months(line[1]))
        for name, size, line in zip(names, np.bincount(codes), lines, strict=True)
    )
    slopes = lines[:, 1]
    known = slopes[np.isfinite(slopes)]
    if len(known) == 0:
        return LeaveOneOut(kind, rows)
    furthest = int(np.nanargmax(np.abs(slopes - fit.line[1])))
    ends = doubling_months(float(known.max())), doubling_months(float(known.min()))
    return LeaveOneOut(kind, rows, *ends, str(names[furthest]))


def _without_groups(
    data: TrendData, groups: Mapping[str, Iterable[str]], level: float, cluster: str, seed: int
) -> tuple[WithoutGroup, ...]:
    results = []
    for name, families in groups.items():
        inside = np.isin(data.family, list(families))
        if not inside.any():
            continue
        own, n = tuple(sorted(set(data.family[inside].tolist()))), int(inside.sum())
        try:
            slope = fit_headline(data.take(~inside), level, cluster=cluster, seed=seed).slope
        except FitError as error:
            results.append(WithoutGroup(group=name, families=own, n=n, reason=str(error)))
            continue
        low, high = slope.doubling_interval
        months = {"doubling_months": slope.doubling_months, "lo": low, "hi": high}
        results.append(WithoutGroup(group=name, families=own, n=n, slope_per_day=slope.slope, **months, reason=None))
    return tuple(results)


def record_setter_bias(
    data: TrendData, sd: float, slope: float, observed: float, *, draws: int = 2000, seed: int = 0
) -> RecordSetterBias:
    """Measure the envelope's bias on this data set's own dates.

    Parameters
    ----------
    data : TrendData
    sd, slope : float
        Residual deviation and slope of the headline.
    observed : float
        The envelope's slope on the real data; NaN if it has none.
    draws, seed : int
    """
    days = data.days[data.observed]
    null, r2 = simulate_envelope(days, sd, draws=draws, seed=seed)
    true, _ = simulate_envelope(days, sd, slope=slope, draws=draws, seed=seed + 1)
    if len(null) == 0 or len(true) == 0:
        return RecordSetterBias(n=len(days), draws=draws, no_trend=None, with_trend=None)

    def months(pace: float) -> float | None:
        doubling = doubling_months(pace)
        return doubling if np.isfinite(doubling) else None

    low, middle, high = (float(value) for value in np.quantile(null, [0.05, 0.5, 0.95]))
    reached = float(np.mean(null >= observed)) if np.isfinite(observed) else None
    return RecordSetterBias(
        n=len(days),
        draws=draws,
        residual_sd=sd,
        no_trend=EnvelopeWithoutTrend(middle, months(middle), low, high, float(np.median(r2)), reached),
        with_trend=EnvelopeOfHeadline(months(slope), months(float(np.median(true)))),
    )


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
    finite = np.isfinite(slopes)
    return slopes[finite], r2[finite]


def diagnose(data: TrendData) -> Diagnostics:
    """Run RESET, Breusch-Pagan, Ljung-Box and Durbin-Watson on the least-squares line.

    The rows are taken in order of release; models of one family stand next to each other, so the serial
    tests also react to families.

    Source: Ramsey (1969), Breusch and Pagan (1979), Ljung and Box (1978), Durbin and Watson (1950);
    statsmodels.

    Parameters
    ----------
    data : TrendData
        Only observed rows are used.
    """
    observed = data.take(data.observed).ordered()
    if len(observed) < DIAGNOSED_ROWS or len(np.unique(observed.days)) < 3:
        return Diagnostics(len(observed), None, None, None, None)
    import statsmodels.api as sm
    from statsmodels.stats.diagnostic import acorr_ljungbox, het_breuschpagan, linear_reset
    from statsmodels.stats.stattools import durbin_watson

    design = sm.add_constant(observed.days / DAYS_PER_YEAR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # degenerate toy data divide by a zero residual variance
        fit = sm.OLS(observed.log_density, design).fit()
        values = (
            linear_reset(fit, power=2, use_f=True).pvalue,
            het_breuschpagan(fit.resid, design)[1],
            acorr_ljungbox(fit.resid, lags=[min(4, len(observed) // 3)])["lb_pvalue"].iloc[0],
            durbin_watson(fit.resid),
        )
    return Diagnostics(len(observed), *(float(value) if np.isfinite(value) else None for value in values))
