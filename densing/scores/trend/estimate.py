"""From dated densities to a doubling time: all estimators, one headline, every check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from densing.core import Array, FitError, Note
from densing.scores.catalog import family_groups
from densing.scores.trend.breakpoint import CHATGPT, breakpoint_test
from densing.scores.trend.data import TrendData
from densing.scores.trend.diagnostics import diagnose
from densing.scores.trend.envelopes import envelope, running_max
from densing.scores.trend.headline import METHOD, Headline, fit_headline, tobit_lines
from densing.scores.trend.nullsim import record_setter_bias
from densing.scores.trend.permutation import BLOCKS, permutation_test
from densing.scores.trend.power import break_power, estimate_shocks, shuffle_power, trend_paces
from densing.scores.trend.quantile import quantile_slope
from densing.scores.trend.reason import why
from densing.scores.trend.regressions import mixed, ols_crv3, theil_sen
from densing.scores.trend.result import TrendResult, clean
from densing.scores.trend.slopes import Slope, doubling_months, slopes_table

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
    worlds: int = 200,
    groups: Mapping[str, Iterable[str]] | None = None,
) -> TrendResult:
    """Estimate how fast density doubles, several ways, with every check.

    ln rho = a + b t; T = ln 2 / b / 30.44 months.

    Source: eq. 5 of Xiao et al., arXiv 2412.04315, for the question; :mod:`densing.scores.trend.headline` for the
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
    cluster : {"family", "organisation", "model"}
        What is taken as independent.
    worlds : int
        Simulated worlds behind the size and power of each test; 0 leaves them out.
    groups : mapping of str to families, optional
        Groups to leave out together, by name; those that the catalog declares by default.

    Raises
    ------
    FitError
        With fewer than three observed rows, fewer than two families or a single release date.

    Examples
    --------
    >>> from densing.scores.trend.simulate import Scenario, simulate
    >>> trend = estimate_trend(simulate(Scenario(doubling_months=3.5), seed=4), permutations=99, worlds=20)
    >>> trend.headline["method"]
    'tobit-crv3'
    """
    rows = data.ordered()
    fit = fit_headline(rows, level, cluster=cluster, seed=seed)
    slopes = _estimators(rows, fit, level, cluster, bootstrap, seed)
    estimates = slopes_table(slopes, METHOD)
    checks = _checks(rows, fit, slopes[1], (permutations, worlds, level), cluster, seed)
    found = family_groups() if groups is None else groups
    checks["without_groups"] = clean(_without_groups(rows, found, level, cluster, seed))
    options = {
        "level": level,
        "seed": seed,
        "permutations": permutations,
        "bootstrap": bootstrap,
        "cluster": cluster,
        "worlds": worlds,
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
    data: TrendData, fit: Headline, record: Slope, counts: tuple[int, int, float], cluster: str, seed: int
) -> dict[str, Any]:
    permutations, worlds, level = counts
    found = {
        "permutation": permutation_test(data, cluster=cluster, permutations=permutations, seed=seed),
        "leave_one_family_out": _leave_one_out(data, fit, cluster),
        "leave_one_organisation_out": _leave_one_organisation_out(data, fit),
        "breakpoint": breakpoint_test(data, cluster=cluster, bootstrap=BREAK_WORLDS, seed=seed),
        "record_setter_bias": record_setter_bias(data, fit.sigma, fit.slope.slope, record.slope, seed=seed),
        "diagnostics": diagnose(data),
        "families": _families(data, fit, cluster),
        "organisations": _by_organisation(data, level, seed),
        "variance_shares": dict(fit.shares),
    }
    found["simulation"] = _size_and_power(found, data, fit.slope.slope, cluster, worlds, seed)
    return dict(clean(found))


def _size_and_power(
    found: dict[str, Any], data: TrendData, slope: float, cluster: str, worlds: int, seed: int
) -> dict[str, Any] | None:
    """Put size and power beside every p-value of the checks; return what they were simulated with."""
    shocks = estimate_shocks(data, cluster) if worlds > 0 else None
    if shocks is None:
        return None
    shares = shuffle_power(data, shocks, trend_paces(slope), cluster=cluster, worlds=2 * worlds, seed=seed)
    for name, share in shares.items():
        found["permutation"][name] |= share
    for name, test in (("stated", found["breakpoint"]["stated"]), ("searched", found["breakpoint"]["searched"])):
        if test["p"] is not None:
            split = CHATGPT if name == "stated" else None
            test |= break_power(data, shocks, slope, split=split, cluster=cluster, worlds=worlds, seed=seed)
    sds = {"family_sd": shocks.family_sd, "model_sd": shocks.model_sd}
    return {"worlds": worlds, "shuffle_worlds": 2 * worlds, **sds}


def _leave_one_organisation_out(data: TrendData, fit: Headline) -> dict[str, Any] | None:
    """The same by organisation; None where the rows do not say who trained the models."""
    if data.organisation is None:
        return None
    codes = data.clusters("organisation")
    keep = (codes != np.arange(codes.max() + 1)[:, None]).astype(float)
    return _ranged(np.unique(data.organisation), codes, tobit_lines(data, fit.centre, keep)[0], fit, "organisation")


def _by_organisation(data: TrendData, level: float, seed: int) -> dict[str, Any] | None:
    """The headline's interval with organisations taken as independent in place of families."""
    if data.organisation is None or len(np.unique(data.organisation)) < 2:
        return None
    slope = fit_headline(data, level, cluster="organisation", seed=seed).slope
    low, high = slope.doubling_interval
    return {"clusters": slope.clusters, "lo": low, "hi": high}


def _without_groups(
    data: TrendData, groups: Mapping[str, Iterable[str]], level: float, cluster: str, seed: int
) -> list[dict[str, Any]]:
    """The headline without each named group that has models here."""
    found = []
    for name, families in groups.items():
        inside = np.isin(data.family, list(families))
        if not inside.any():
            continue
        row = {"group": name, "families": sorted(set(data.family[inside].tolist())), "n": int(inside.sum())}
        try:
            slope = fit_headline(data.take(~inside), level, cluster=cluster, seed=seed).slope
        except FitError as error:
            found.append({**row, "reason": str(error)})
            continue
        low, high = slope.doubling_interval
        months = {"doubling_months": slope.doubling_months, "lo": low, "hi": high}
        found.append({**row, "slope_per_day": slope.slope, **months, "reason": None})
    return found


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
    return _ranged(np.unique(getattr(data, cluster)), data.clusters(cluster), fit.leave_out, fit, "family")


def _ranged(names: Array, codes: Array, lines: Array, fit: Headline, kind: str) -> dict[str, Any]:
    """A row per name left out, the range of the doubling time, and the name that moves the slope most."""
    table = [
        {
            kind: str(name),
            "n": int(size),
            "slope_per_day": float(line[1]),
            "doubling_months": doubling_months(line[1]),
        }
        for name, size, line in zip(names, np.bincount(codes), lines, strict=True)
    ]
    slopes = lines[:, 1]
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
    p = checks["permutation"][BLOCKS]["p"]
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
