r"""Has the pace changed: slopes of two periods, with what else differs between them.

.. math:: \ln\rho_i = a_{p(i)} + b_{p(i)} t_i + e_i, \qquad c = b_{late} - b_{early}

The date that parts the periods is stated, never searched. Who releases differs between periods, and a change of makers
looks like a change of pace: the same difference is taken within organisations, among makers of both periods and
among those that reached the front.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from densing.core import Array, formatting
from densing.scores.trend.answers import (
    PER_YEAR,
    SIGNIFICANT,
    Answer,
    answered,
    contrast_row,
    group_row,
    interval,
    rows_table,
    unanswered,
)
from densing.scores.trend.contrasts import Contrast, Regression, estimate_contrast
from densing.scores.trend.data import DAYS_PER_YEAR, EPOCH, TrendData
from densing.scores.trend.estimators import quantile_lines
from densing.scores.trend.sentences import doubling_text
from densing.scores.trend.significance import MIN_FAMILIES, MIN_ROWS
from densing.scores.trend.tobit import tobit_slope

QUESTION = "Has the pace changed, 2023-24 against 2025-26?"
PARTED = pd.Timestamp("2025-01-01")
PERIODS = ("2023-24", "2025-26")
FRONT = 3
"""A maker reached the front where a model of its was among the three ablest on the day it came out."""
QUANTILE, RESAMPLES = 0.9, 500
DOUBLINGS = 1 / math.log(2)


def pace_change(
    data: TrendData,
    parted: pd.Timestamp = PARTED,
    *,
    within: bool = False,
    joined: bool = False,
    cluster: str = "family",
    level: float = 0.95,
    seed: int = 0,
) -> Contrast:
    """Return the slope of ln(density) per year from a date on minus that before it.

    Parameters
    ----------
    data : TrendData
    parted : Timestamp
        First day of the later period.
    within : bool
        Give every organisation its own level.
    joined : bool
        Let the two lines meet at the date; otherwise each has its own level.
    cluster, level, seed
        As in :func:`estimate_contrast`.

    Examples
    --------
    >>> days = np.arange(0, 1200, 12.0)
    >>> names = [f"m{i}" for i in range(100)]
    >>> noise = np.random.default_rng(1).normal(0, 0.2, 100)
    >>> bent = 0.003 * np.minimum(days, 676) + noise
    >>> toy = TrendData.from_arrays(names, names, np.datetime64("2023-02-24") + days.astype("m8[D]"), bent)
    >>> change = pace_change(toy)
    >>> change.lo < -0.003 * 365.25 < change.hi, change.p() < 0.05
    (True, True)
    """
    late = data.released >= np.datetime64(parted, "ns")
    reason = _too_few(data, late)
    if reason:
        return Contrast.missing(reason, len(data))
    years = (data.days - float((parted - EPOCH) / pd.Timedelta(days=1))) / DAYS_PER_YEAR
    columns = [np.where(late, years, 0.0), np.where(late, 0.0, years)]
    if not joined:
        columns.append(late.astype(float))
    if within:
        if data.organisation is None:
            return Contrast.missing("the rows do not say who trained the models", len(data))
        makers = np.unique(data.organisation)
        columns += [(data.organisation == maker).astype(float) for maker in makers]
    else:
        columns.append(np.ones(len(data)))
    regression = Regression(data, np.column_stack(columns))
    return estimate_contrast([regression], lambda b: b[:, 0] - b[:, 1], level=level, cluster=cluster, seed=seed)


def quantile_change(
    data: TrendData, parted: pd.Timestamp = PARTED, *, q: float = QUANTILE, level: float = 0.95, seed: int = 0
) -> tuple[float, float, float, float]:
    """Return the difference of the q-quantile slopes per year, its interval and p, by resampling whole families.

    The p-value is twice the smaller share of resamples beyond zero.
    """
    late = data.released >= np.datetime64(parted, "ns")
    if _too_few(data, late):
        return (math.nan,) * 4
    weights = data.resample("family", RESAMPLES, np.random.default_rng([seed, 9]))
    slopes = []
    for period in (late, ~late):
        part, shares = data.take(period), weights[:, period]
        slope, _ = quantile_lines(part.days, part.log_density, part.limits, shares, q)
        first = np.where(shares > 0, part.days, np.inf).min(axis=1)
        last = np.where(shares > 0, part.days, -np.inf).max(axis=1)
        slopes.append(np.where(last > first, slope, np.nan) * DAYS_PER_YEAR)
    change = slopes[0] - slopes[1]
    drawn = change[1:][np.isfinite(change[1:])]
    if len(drawn) < RESAMPLES // 2:
        return float(change[0]), -math.inf, math.inf, math.nan
    lo, hi = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    p = 2 * (1 + min((drawn <= 0).sum(), (drawn >= 0).sum())) / (1 + len(drawn))
    return float(change[0]), float(lo), float(hi), float(min(p, 1.0))


def front_makers(models: pd.DataFrame, since: pd.Timestamp = EPOCH, front: int = FRONT) -> set[str]:
    """Return organisations with a model, released since a day, that was among the ablest models of its time.

    Parameters
    ----------
    models : pandas.DataFrame
        ``ability, released, organisation``.
    since : Timestamp
    front : int

    Examples
    --------
    >>> days = pd.to_datetime(["2023-03-01", "2023-04-01", "2023-05-01"])
    >>> toy = pd.DataFrame({"ability": [1.0, 0.5, 2.0], "released": days, "organisation": ["a", "b", "c"]})
    >>> sorted(front_makers(toy, front=1))
    ['a', 'c']
    """
    makers = set()
    for model in models[models["released"] >= since].itertuples():
        # A sibling is not a rival: a family comes out in one.
        rivals = models["released"].le(model.released) & models["organisation"].ne(model.organisation)
        if (models.loc[rivals, "ability"] > model.ability).sum() < front:
            makers.add(str(model.organisation))
    return makers


def answer_pace(
    data: TrendData,
    *,
    makers: set[str] | None = None,
    measured: Array | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> Answer:
    """Answer whether the pace has changed.

    Parameters
    ----------
    data : TrendData
        Dated densities from 2023 on.
    makers : set of str, optional
        Organisations that reached the front.
    measured : array of bool, shape (n,), optional
        Rows whose ability was measured on most skills, not on one.
    level, seed
    """
    late = data.released >= np.datetime64(PARTED, "ns")
    options: dict[str, Any] = {"level": level, "seed": seed}
    rows = [
        group_row(name, part, tobit_slope(part, level, seed=seed))
        for name, part in zip(PERIODS, (data.take(~late), data.take(late)), strict=True)
    ]
    change = pace_change(data, **options)
    if not change.estimable:
        return unanswered("pace", QUESTION, PER_YEAR, change.reason, rows_table(rows))
    rows.append(contrast_row("later less earlier, families as clusters", data, change, DOUBLINGS))

    def compare(label: str, part: TrendData, **more: Any) -> Contrast:
        made = pace_change(part, **options, **more)
        rows.append(contrast_row(label, part, made, DOUBLINGS))
        return made

    by_maker = Contrast.missing("the rows do not say who trained the models")
    inside = by_maker
    if data.organisation is not None:
        by_maker = compare("organisations as clusters", data, cluster="organisation")
        inside = compare("within organisations", data, within=True, cluster="organisation")
        both = set(data.organisation[late]) & set(data.organisation[~late])
        for label, names in (("makers of both periods", both), ("makers that reached the front", makers)):
            if names is None:
                continue
            part = data.take(np.isin(data.organisation, sorted(names)))
            compare(label, part)
            late_part = part.released >= np.datetime64(PARTED, "ns")
            for period, chosen in zip(PERIODS, (part.take(~late_part), part.take(late_part)), strict=True):
                rows.append(group_row(f"{label}, {period}", chosen, tobit_slope(chosen, level, seed=seed)))
    compare("lines that meet at the date", data, joined=True)
    if measured is not None:
        compare("models measured on three skills or more", data.take(measured))
    estimate, lo, hi, p = (x * DOUBLINGS if i < 3 else x for i, x in enumerate(quantile_change(data, **options)))
    rows.append(
        {
            **contrast_row("quantile .9, families resampled", data, Contrast.missing("")),
            "estimate": estimate,
            "estimate_lo": lo,
            "estimate_hi": hi,
            "p": p,
            "status": "ok" if math.isfinite(p) else "too few models on one side",
        }
    )
    before, after = (_text(row) for row in rows[:2])
    verdict = _verdict(change, by_maker)
    answer = (
        f"The doubling time was {before} in {PERIODS[0]} and {after} in {PERIODS[1]}, a difference of "
        f"{interval(change, DOUBLINGS)} {PER_YEAR}: {verdict}"
    )
    answer += f"; within organisations it is {interval(inside, DOUBLINGS)}." if inside.estimable else "."
    old = rows[0]["slope"] * DAYS_PER_YEAR
    detectable = change.detectable(level=level)
    stop = change.power(old, level)
    caveats = [
        f"On these dates and with this scatter of families a change of {formatting.number(detectable * DOUBLINGS)} "
        f"{PER_YEAR} is found in 80 % of samples; a full stop of the earlier pace would be in "
        f"{formatting.percentage(stop)}, a halving in {formatting.percentage(change.power(old / 2, level))}.",
        _narrower(data, late, change),
    ]
    if data.organisation is not None:
        caveats.append(_composition(data, late))
    caveats.append(
        f"The date {formatting.day(PARTED)} was stated, not searched; the first comparison is the test, the others "
        "vary one choice each and are not corrected for their number."
    )
    test = (
        f"difference of slopes is zero; family jackknife (CRV3), {change.clusters.size} families, simulated reference"
    )
    return answered("pace", QUESTION, answer, change, PER_YEAR, test, rows, caveats, data.notes, DOUBLINGS)


def _verdict(change: Contrast, by_maker: Contrast) -> str:
    """Say what the test finds with families, and with organisations, as clusters."""
    p, other = change.p(), by_maker.p()
    tests = formatting.p_value(p) + (f", by organisation {formatting.p_value(other)}" if by_maker.estimable else "")
    if p >= SIGNIFICANT:
        return f"no change is shown ({tests})" if not other < SIGNIFICANT else f"shown by organisation only ({tests})"
    direction = "slower" if change.estimate < 0 else "faster"
    sure = not by_maker.estimable or other < SIGNIFICANT
    return f"{direction} ({tests})" if sure else f"{direction} by families, not surely by organisations ({tests})"


def _text(row: object) -> str:
    months, lo, hi = (float(row[name]) for name in ("doubling_months", "lo", "hi"))  # type: ignore[index]
    return doubling_text(months, lo, hi)


def _narrower(data: TrendData, late: Array, change: Contrast) -> str:
    """Say which period causes the uncertainty, and how many more families would halve the interval."""
    counts = [len(np.unique(data.family[period])) for period in (~late, late)]
    weak = int(counts[1] < counts[0])
    needed = 3 * counts[weak]
    return (
        f"What would narrow it: the interval rests on {counts[0]} families before and {counts[1]} after; some {needed} "
        f"more in {PERIODS[weak]}, spread over its months, would about halve it."
    )


def _composition(data: TrendData, late: Array) -> str:
    """Say how many organisations of each period released in the other as well."""
    assert data.organisation is not None
    early_makers, late_makers = set(data.organisation[~late]), set(data.organisation[late])
    shared = early_makers & late_makers
    share = float(np.isin(data.organisation[late], sorted(shared)).mean())
    return (
        f"Who releases differs: {len(shared)} of {len(early_makers | late_makers)} organisations are in both periods "
        f"and made {formatting.percentage(share)} of the later models."
    )


def _too_few(data: TrendData, late: Array) -> str:
    for name, period in zip(PERIODS, (~late, late), strict=True):
        seen = period & data.observed
        families = len(np.unique(data.family[seen]))
        if seen.sum() < MIN_ROWS or families < MIN_FAMILIES or np.ptp(data.days[seen]) == 0:
            return (
                f"{formatting.plural(int(seen.sum()), 'model')} of {formatting.plural(families, 'family', 'families')} "
                f"in {name}, at least {MIN_ROWS} of {MIN_FAMILIES} on two dates needed"
            )
    return ""
