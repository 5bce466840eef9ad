r"""Do skills grow at one pace: slopes of several baskets on the same models, paired by draw.

.. math:: \ln\rho_{i,s} = a_s + b_s t_i + e_{i,s}, \qquad c = \sum_s w_s b_s - \sum_s v_s b_s

A model has a slope in a skill only where it was measured on it: elsewhere the joint scale knows its ability from other
skills, and the difference would be one between a thing and itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from densing.core import Array, formatting
from densing.scores.fit import holm
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
from densing.scores.trend.data import DAYS_PER_YEAR, Slope, TrendData
from densing.scores.trend.facts import RecallTrend
from densing.scores.trend.sentences import doubling_text
from densing.scores.trend.significance import MIN_FAMILIES, MIN_ROWS
from densing.scores.trend.tobit import tobit_slope

QUESTION = "Do knowledge, reasoning, mathematics and code grow at one pace?"
BASE = "knowledge"
DOUBLINGS = 1 / math.log(2)
Weighted = tuple[TrendData, float, str]
"""Data of one basket, its weight in the mean, and its name."""


def slope_difference(
    first: Sequence[Weighted],
    second: Sequence[Weighted] = (),
    *,
    cluster: str = "family",
    level: float = 0.95,
    seed: int = 0,
) -> Contrast:
    """Return the weighted mean of the slopes per year of some baskets, less that of others.

    Parameters
    ----------
    first, second : sequence of (TrendData, weight, name)
        Weights of each side sum to 1; without a second side the mean itself is returned.
    cluster, level, seed
        As in :func:`estimate_contrast`.

    Examples
    --------
    >>> days = np.arange(60.0) * 20
    >>> names = [f"m{i}" for i in range(60)]
    >>> rng = np.random.default_rng(0)
    >>> def toy(rate):
    ...     values = rate * days / 365.25 + rng.normal(0, 0.2, 60)
    ...     return TrendData.from_arrays(names, names, np.datetime64("2023-02-24") + days.astype("m8[D]"), values)
    >>> change = slope_difference([(toy(1.5), 1.0, "fast")], [(toy(0.5), 1.0, "slow")])
    >>> change.lo < 1.0 < change.hi
    True
    """
    terms = [*first, *((data, -weight, name) for data, weight, name in second)]
    for data, _, name in terms:
        if reason := too_few(data):
            return Contrast.missing(f"{name}: {reason}", len(data))
    centre = float(np.mean(np.concatenate([data.days for data, _, _ in terms])))
    regressions = [
        Regression(data, np.column_stack([np.ones(len(data)), (data.days - centre) / DAYS_PER_YEAR]), name)
        for data, _, name in terms
    ]
    weights = np.array([weight for _, weight, _ in terms])
    return estimate_contrast(regressions, lambda b: b[:, 1::2] @ weights, cluster=cluster, level=level, seed=seed)


def slope_of(contrast: Contrast) -> Slope:
    """Return a slope per year as a slope per day with its interval, as tables of estimates hold it."""
    if not math.isfinite(contrast.estimate):
        return Slope.missing(contrast.reason, contrast.models, len(contrast.clusters), 0)
    slope, lo, hi = (value / DAYS_PER_YEAR for value in (contrast.estimate, contrast.lo, contrast.hi))
    kind = "CRV3, simulated reference"
    return Slope(slope, lo, hi, math.nan, contrast.models, len(contrast.clusters), kind, 0)


def on_models(data: TrendData, names: Array | set[str]) -> TrendData:
    """Return the rows of some models."""
    return data.take(np.isin(data.model, sorted(map(str, names))))


def too_few(data: TrendData) -> str:
    """Return why these rows carry no slope to compare; empty where they do."""
    families = len(np.unique(data.family[data.observed]))
    seen = int(data.observed.sum())
    if seen >= MIN_ROWS and families >= MIN_FAMILIES and np.ptp(data.days[data.observed]) > 0:
        return ""
    return (
        f"{formatting.plural(seen, 'model')} of {formatting.plural(families, 'family', 'families')}, at least "
        f"{MIN_ROWS} of {MIN_FAMILIES} on two dates needed"
    )


def answer_skill(
    skills: Mapping[str, TrendData], *, recall: RecallTrend | None = None, level: float = 0.95, seed: int = 0
) -> Answer:
    """Answer whether skills grow at one pace.

    Parameters
    ----------
    skills : mapping of str to TrendData
        By skill, models measured on it only; knowledge among them.
    recall : RecallTrend, optional
        Factual recall, shown beside them.
    level, seed
    """
    options: dict[str, Any] = {"level": level, "seed": seed}
    slopes = {name: tobit_slope(data, level, seed=seed) for name, data in skills.items()}
    rows = [group_row(name, skills[name], slope) for name, slope in slopes.items()]
    others = [name for name in skills if name != BASE]
    if BASE not in skills or not others:
        reason = f"the scale has {formatting.listed(sorted(skills)) or 'no skill'}; {BASE} and another are needed"
        return unanswered("skill", QUESTION, PER_YEAR, reason, rows_table(rows))
    pairs, together = {}, set(map(str, skills[BASE].model))
    for name in others:
        shared = set(map(str, skills[name].model)) & set(map(str, skills[BASE].model))
        together &= set(map(str, skills[name].model))
        data = on_models(skills[name], shared)
        pairs[name] = slope_difference(
            [(data, 1.0, name)],
            [(on_models(skills[BASE], shared), 1.0, BASE)],
            **options,
        )
        rows.append(contrast_row(f"{name} less {BASE}", data, pairs[name], DOUBLINGS))
    corrected = dict(zip(others, holm([pair.p() for pair in pairs.values()]), strict=True))
    for row, name in zip(rows[len(skills) :], others, strict=True):
        rows[rows.index(row)] = {**row, "p": corrected[name]}
    common = {name: on_models(data, together) for name, data in skills.items()}
    mean = slope_difference(
        [(common[name], 1 / len(others), name) for name in others],
        [(common[BASE], 1.0, BASE)],
        **options,
    )
    label = f"mean of {formatting.listed(others)} less {BASE}, models measured on all"
    rows.append(contrast_row(label, common[BASE], mean, DOUBLINGS))
    if recall is not None:
        rows.append(group_row("facts (IKP)", recall.data, recall.lead.slope))
    if not mean.estimable:
        return unanswered("skill", QUESTION, PER_YEAR, mean.reason, rows_table(rows))
    shown = [name for name in others if corrected[name] < SIGNIFICANT]
    paces = formatting.listed(
        f"{name} {doubling_text(slope.doubling_months, *slope.doubling_interval)}"
        for name, slope in slopes.items()
        if slope.estimable
    )
    verdict = (
        formatting.listed(
            f"{name} {'faster' if pairs[name].estimate > 0 else 'slower'} than {BASE} (by "
            f"{interval(pairs[name], DOUBLINGS)} {PER_YEAR}, Holm {formatting.p_value(corrected[name])})"
            for name in shown
        )
        if shown
        else f"no skill differs surely from {BASE} (smallest Holm {formatting.p_value(_smallest(corrected))})"
    )
    answer = f"Doubling times: {paces}; on the same models {verdict}."
    caveats = [
        "An ability in a skill is known from few tests and drawn towards what the model's other skills say, which "
        "makes differences between skills look smaller than they are.",
        "Bounds count as bounds: "
        + formatting.listed(
            (f"{int((data.censor != 0).sum())} of {len(data)} densities in {name}" for name, data in skills.items()),
            most=len(skills),
        )
        + " lie beyond the reference.",
        f"p of {formatting.listed(others)} against {BASE} is corrected for {len(others)} comparisons (Holm).",
    ]
    notes = tuple(note for data in skills.values() for note in data.notes)
    if recall is not None:
        caveats.append(
            f"Facts are another matrix, models of July 2026 (Incompressible Knowledge Probes, arXiv 2604.24827): "
            f"{recall.text}; against {formatting.months(recall.pace_months)} months "
            f"{formatting.p_value(recall.lead.p_pace)}."
        )
    test = f"mean of the others grows as {BASE}; paired by model and draw, family jackknife (CRV3)"
    return answered("skill", QUESTION, answer, mean, PER_YEAR, test, rows, caveats, notes, DOUBLINGS)


def _smallest(p_values: Mapping[str, float]) -> float:
    finite = [p for p in p_values.values() if math.isfinite(p)]
    return min(finite) if finite else math.nan
