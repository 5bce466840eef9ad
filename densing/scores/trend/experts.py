r"""Which size of a mixture of experts counts: the exponent between its total and its active parameters.

.. math:: N_{eff} \propto N_{total}^{a} N_{active}^{1-a}
          \quad\Rightarrow\quad
          \ln\hat N_i - \ln N_{active,i} = \alpha + \beta t_i + a \ln\frac{N_{total,i}}{N_{active,i}} + e_i

Dense models, whose ratio is 1, tell the line and its trend; a is read from how far mixtures of the same date lie above
it. With a = 0 only active parameters count, with a = 1 every parameter does, with a = .5 their geometric mean.

Source: own; the form is that of the geometric-mean rule of thumb, with its exponent free.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from densing.core import Array, formatting
from densing.scores.trend.answers import (
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
from densing.scores.trend.data import DAYS_PER_YEAR, TrendData
from densing.scores.trend.tobit import tobit_slope

QUESTION = "Which size of a mixture of experts counts?"
UNIT = "exponent of total parameters"
MIN_MIXTURES, MIN_MAKERS = 4, 3


def expert_exponent(
    data: TrendData,
    ratio: Array,
    *,
    within: bool = False,
    level: float = 0.95,
    cluster: str = "family",
    seed: int = 0,
) -> Contrast:
    """Return the exponent a of total parameters.

    Parameters
    ----------
    data : TrendData
        ``log_density`` holds ln(effective size / active parameters).
    ratio : array, shape (n,)
        ln(total / active parameters); 0 for dense models.
    within : bool
        Compare mixtures with dense models of the same organisation.
    level, cluster, seed
        As in :func:`estimate_contrast`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> days, ratio = np.arange(80.0) * 12, np.where(np.arange(80) % 4 == 0, rng.uniform(1, 3, 80), 0.0)
    >>> values = 0.8 * days / 365.25 + 0.6 * ratio + rng.normal(0, 0.2, 80)
    >>> names = [f"m{i}" for i in range(80)]
    >>> toy = TrendData.from_arrays(names, names, np.datetime64("2023-02-24") + days.astype("m8[D]"), values)
    >>> a = expert_exponent(toy, ratio)
    >>> a.lo < 0.6 < a.hi, a.p(0) < 0.01, a.p(1) < 0.01
    (True, True, True)
    """
    mixtures = data.observed & (ratio > 0)
    families = len(np.unique(data.family[mixtures]))
    if mixtures.sum() < MIN_MIXTURES or families < MIN_MAKERS:
        return Contrast.missing(
            f"{formatting.plural(int(mixtures.sum()), 'mixture')} of experts of "
            f"{formatting.plural(families, 'family', 'families')} with a date and both "
            f"sizes, at least {MIN_MIXTURES} of {MIN_MAKERS} needed",
            len(data),
        )
    if (data.observed & (ratio == 0)).sum() < MIN_MIXTURES:
        return Contrast.missing(f"fewer than {MIN_MIXTURES} dense models to compare mixtures with", len(data))
    columns = [ratio, (data.days - data.days.mean()) / DAYS_PER_YEAR]
    if within:
        if data.organisation is None:
            return Contrast.missing("the rows do not say who trained the models", len(data))
        columns += [(data.organisation == maker).astype(float) for maker in np.unique(data.organisation)]
    else:
        columns.append(np.ones(len(data)))
    regression = Regression(data, np.column_stack(columns))
    return estimate_contrast([regression], lambda b: b[:, 0], level=level, cluster=cluster, seed=seed)


def answer_experts(
    data: TrendData,
    ratio: Array,
    *,
    measured: Array | None = None,
    wider: tuple[TrendData, Array] | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> Answer:
    """Answer whether total or active parameters count.

    Parameters
    ----------
    data, ratio
        As in :func:`expert_exponent`; dense models and mixtures.
    measured : array of bool, shape (n,), optional
        Rows whose ability was measured on most skills, not on one.
    wider : (TrendData, array), optional
        Data and ratios with models whose dates are not verified.
    level, seed
    """
    options: dict[str, Any] = {"level": level, "seed": seed}
    mixture = ratio > 0
    dense, mixtures = data.take(~mixture), data.take(mixture)
    rows = [group_row("dense models", dense, tobit_slope(dense, level, seed=seed))]
    a = expert_exponent(data, ratio, **options)
    if not a.estimable:
        return unanswered("experts", QUESTION, UNIT, a.reason, rows_table(rows))
    rows.append(contrast_row("exponent, families as clusters", mixtures, a))

    def vary(label: str, keep: Array, **more: Any) -> Contrast:
        made = expert_exponent(data.take(keep), ratio[keep], **options, **more)
        rows.append(contrast_row(label, data.take(keep & mixture), made))
        return made

    everything = np.ones(len(data), dtype=bool)
    own = Contrast.missing("the rows do not say who trained the models")
    if data.organisation is not None:
        vary("organisations as clusters", everything, cluster="organisation")
        own = vary("against dense models of the same organisation", everything, within=True, cluster="organisation")
        rows += [
            contrast_row(
                f"without {maker}",
                data.take((data.organisation != maker) & mixture),
                expert_exponent(data.take(keep), ratio[keep], **options),
            )
            for maker in np.unique(data.organisation[mixture])
            for keep in [data.organisation != maker]
        ]
    if measured is not None:
        vary("models measured on three skills or more", measured)
    vary("models of 2024 and later", data.released >= np.datetime64("2024-01-01", "ns"))
    if wider is not None:
        more, its = wider
        made = expert_exponent(more, its, **options)
        rows.append(contrast_row("with dates that are not verified", more.take(its > 0), made))
    of_mixtures = np.isin(a.clusters, np.unique(mixtures.family))
    left = a.leave_out[of_mixtures]
    low, high = a.clusters[of_mixtures][np.argmin(left)], a.clusters[of_mixtures][np.argmax(left)]
    against = {truth: a.p(truth) for truth in (0.0, 1.0, 0.5)}
    test = "a = 0, only active parameters count; family jackknife (CRV3), simulated reference"
    answer = (
        f"{len(mixtures)} mixtures of experts are as able as dense models of total^a · active^(1−a) parameters with "
        f"a = {interval(a)}: {_verdict(against)} (a = 0: {formatting.p_value(against[0.0])}, a = 1: "
        f"{formatting.p_value(against[1.0])})."
    )
    caveats = [
        f"Without one family a lies between {formatting.number(left.min())} (without {low}) and "
        f"{formatting.number(left.max())} (without {high}).",
        "Mixtures come from few, well-funded makers: what their recipes have on top of those of dense models of the "
        "same date counts towards a, as far as it grows with the ratio of sizes."
        + (f" Against dense models of their own makers a is {interval(own)}." if own.estimable else ""),
        f"a = .5, the geometric mean, has {formatting.p_value(against[0.5])}.",
    ]
    typical = float(np.median(ratio[mixture]))
    caveats.append(
        f"At the median ratio of total to active, {formatting.number(math.exp(typical))}, the interval of a is one of "
        f"the effective size between {formatting.number(math.exp(a.lo * typical))} and "
        f"{formatting.number(math.exp(a.hi * typical))} times the active parameters."
    )
    return answered("experts", QUESTION, answer, a, UNIT, test, rows, caveats, data.notes)


def _verdict(against: dict[float, float]) -> str:
    some, total = against[0.0] < SIGNIFICANT, against[1.0] < SIGNIFICANT
    if some and total:
        return "neither active nor total parameters alone count"
    if some:
        return "more than the active parameters count, and that all do is not excluded"
    if total:
        return "fewer than all parameters count, and that only the active ones do is not excluded"
    return "the data exclude neither that only active parameters count nor that all do"
