"""From dated densities to a doubling time: all estimators, one headline, every check."""

from __future__ import annotations

from typing import Any

import numpy as np

from densing.notes import Note
from densing.trend.breakpoint import breakpoint_test
from densing.trend.data import TrendData
from densing.trend.diagnostics import diagnose
from densing.trend.envelope import envelope, running_max
from densing.trend.headline import METHOD, Headline, fit_headline
from densing.trend.nullsim import record_setter_bias
from densing.trend.permutation import permutation_test
from densing.trend.quantile import quantile_slope
from densing.trend.reason import why
from densing.trend.regressions import mixed, ols_crv3, theil_sen
from densing.trend.result import TrendResult, clean
from densing.trend.slopes import Slope, doubling_months, slopes_table

FEW_FAMILIES = 6
BREAK_WORLDS = 199
SHOWN = 3


def estimate_trend(
    data: TrendData,
    *,
    level: float = 0.95,
    seed: int = 0,
    permutations: int = 999,
    bootstrap: int = 500,
    cluster: str = "family",
) -> TrendResult:
    """Estimate how fast density doubles, several ways, with every check.

    ln rho = a + b t; T = ln 2 / b / 30.44 months.

    Source: eq. 5 of Xiao et al., arXiv 2412.04315, for the question; :mod:`densing.trend.headline` for the
    answer.

    Parameters
    ----------
    data : TrendData
    level : float
        Of all intervals.
    seed : int
        Everything random follows from it.
    permutations : int
        Shuffles of release dates.
    bootstrap : int
        Resamples of families for the quantile line.
    cluster : {"family", "model"}
        What is taken as independent.

    Raises
    ------
    FitError
        With fewer than three observed rows, fewer than two families or a single release date.

    Examples
    --------
    >>> from densing.trend.simulate import Scenario, simulate
    >>> trend = estimate_trend(simulate(Scenario(doubling_months=3.5), seed=4), permutations=99)
    >>> trend.headline["method"]
    'tobit-crv3'
    """
    rows = data.ordered()
    fit = fit_headline(rows, level, cluster=cluster, seed=seed)
    slopes = _estimators(rows, fit, level, cluster, bootstrap, seed)
    estimates = slopes_table(slopes, METHOD)
    checks = _checks(rows, fit, slopes[1], cluster, permutations, seed)
    options = {
        "level": level,
        "seed": seed,
        "permutations": permutations,
        "bootstrap": bootstrap,
        "cluster": cluster,
    }
    headline = estimates.loc[estimates["headline"]].iloc[0]
    notes = (*data.notes, *_notes(rows, fit, checks))
    return TrendResult(rows, estimates, headline, checks, fit.lines[:, 1], options, notes, fit, why(METHOD))


def _estimators(data: TrendData, fit: Headline, level: float, cluster: str, bootstrap: int, seed: int) -> list[Slope]:
    return [
        fit.slope,
        envelope(data, level),
        running_max(data, level),
        ols_crv3(data, level, cluster=cluster),
        quantile_slope(data, level, cluster=cluster, bootstrap=bootstrap, seed=seed),
        theil_sen(data, level),
        mixed(data, level, cluster=cluster),
    ]


def _checks(
    data: TrendData, fit: Headline, record: Slope, cluster: str, permutations: int, seed: int
) -> dict[str, Any]:
    found = {
        "permutation": permutation_test(data, cluster=cluster, permutations=permutations, seed=seed),
        "leave_one_family_out": _leave_one_out(data, fit, cluster),
        "breakpoint": breakpoint_test(data, cluster=cluster, bootstrap=BREAK_WORLDS, seed=seed),
        "record_setter_bias": record_setter_bias(data, fit.sigma, fit.slope.slope, record.slope, seed=seed),
        "diagnostics": diagnose(data),
        "families": _families(data, fit, cluster),
        "variance_shares": dict(fit.shares),
    }
    return dict(clean(found))


def _beyond_record(data: TrendData) -> Note | None:
    """Say which models, known only as bounds, are denser than the densest that was measured."""
    record = float(data.log_density[data.observed].max())
    hidden = np.flatnonzero((data.censor > 0) & (data.log_density > record))
    if not len(hidden):
        return None
    names = [str(name) for name in data.model[hidden]]
    most = f"{names[0]} is" if len(names) == 1 else f"{len(names)} models ({', '.join(names[:SHOWN])}, ...) are"
    message = (
        f"{most} beyond the ruler and denser than the densest model measured ({np.exp(record):.3g}): record-setters "
        "and forecasts, which rest on measured densities, stand too low"
    )
    return Note("denser-than-record", "warning", message, {"models": names})


def _leave_one_out(data: TrendData, fit: Headline, cluster: str) -> dict[str, Any]:
    """Doubling time without each family, and its range; None in JSON means no doubling."""
    names = np.unique(data.family if cluster == "family" else data.model)
    sizes = np.bincount(data.clusters(cluster))
    table = [
        {
            "family": str(name),
            "n": int(size),
            "slope_per_day": float(line[1]),
            "doubling_months": doubling_months(line[1]),
        }
        for name, size, line in zip(names, sizes, fit.leave_out, strict=True)
    ]
    slopes = fit.leave_out[:, 1]
    known = slopes[np.isfinite(slopes)]
    if len(known) == 0:
        return {"table": table, "doubling_min": None, "doubling_max": None, "most_influential": None}
    furthest = int(np.nanargmax(np.abs(slopes - fit.line[1])))
    return {
        "table": table,
        "doubling_min": doubling_months(float(known.max())),
        "doubling_max": doubling_months(float(known.min())),
        "most_influential": str(names[furthest]),
    }


def _families(data: TrendData, fit: Headline, cluster: str) -> dict[str, Any]:
    sizes = np.bincount(data.clusters(cluster))
    return {
        "clusters": len(sizes),
        "largest_share": float(sizes.max() / sizes.sum()),
        "censored_above": int(np.sum(data.censor > 0)),
        "censored_below": int(np.sum(data.censor < 0)),
        "observed": int(data.observed.sum()),
        "critical_value": fit.critical,
        "residual_sd": fit.sigma,
        "reliable": len(sizes) >= FEW_FAMILIES,
    }


def _notes(data: TrendData, fit: Headline, checks: dict[str, Any]) -> list[Note]:
    notes = []
    count = fit.slope.clusters
    if count < FEW_FAMILIES:
        message = (
            f"{count} families; an interval that treats families as independent needs {FEW_FAMILIES} or more, "
            "read the range without one family instead"
        )
        notes.append(Note("few-families", "warning", message, {"families": count}))
    if not np.isfinite(fit.slope.hi):
        message = "the slope rests on a single family, so it has no interval; widen the window"
        notes.append(Note("no-interval", "error", message))
    elif fit.slope.lo <= 0:
        message = "the interval of the slope contains zero: no upper end for the doubling time"
        notes.append(Note("unbounded-doubling", "warning", message))
    p = checks["permutation"]["headline_family_blocks"]["p"]
    if p is not None and p > 0.05:
        message = f"release dates shuffled among families give a slope as steep in {100 * p:.0f} % of cases"
        notes.append(Note("permutation", "warning", message, {"p": p}))
    found = checks["breakpoint"]["searched"]
    if found["p"] is not None and found["p"] <= 0.05:
        message = (
            f"the pace changes within the window (searched break {found['date']}, p = {found['p']:.3f}): "
            "one doubling time averages over unlike periods"
        )
        notes.append(Note("break", "warning", message, {"date": found["date"], "p": found["p"]}))
    if (hidden := _beyond_record(data)) is not None:
        notes.append(hidden)
    censored = 1 - float(data.observed.mean())
    if censored > 0.5:
        message = f"{100 * censored:.0f} % of the rows lie beyond the ruler and are known only as bounds"
        notes.append(Note("mostly-censored", "warning", message, {"share": censored}))
    return notes
