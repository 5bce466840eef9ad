r"""Pace per compute: ability against training FLOP and date, and how much of density's growth more tokens explain.

.. math:: \ln\hat N_i = \alpha + \beta \ln C_i + \gamma t_i + e_i, \qquad C = 6 N_{active} D

Effective compute, that is what the compute of a fixed date would have to be for the same ability, doubles every
``ln 2 · beta / gamma``. Growth of density at fixed size has a second source besides better recipes: more tokens per
parameter. Its share is what the trend loses when tokens stand beside it,

.. math:: \ln\rho_i = a + b_0 t_i + e_i, \qquad \ln\rho_i = a + b_1 t_i + c \ln D_i + e_i, \qquad 1 - b_1 / b_0

Source: Ho et al. 2024, arXiv 2403.05812 (effective compute; 8 months, 5 to 14, for language modelling to 2023); 6 N D:
Kaplan et al. 2020, arXiv 2001.08361, table 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from densing.core import Array, formatting
from densing.scores.catalog import family_groups
from densing.scores.trend.answers import Answer, answered, contrast_row, group_row, rows_table, unanswered
from densing.scores.trend.contrasts import Contrast, Regression, estimate_contrast
from densing.scores.trend.data import DAYS_PER_YEAR, TrendData
from densing.scores.trend.joint_data import shifted
from densing.scores.trend.sentences import doubling_text
from densing.scores.trend.skills import DOUBLINGS, slope_of, too_few
from densing.scores.trend.tobit import tobit_slope

QUESTION = "How fast does effective training compute grow, and how much of density's growth is more tokens?"
UNIT = "doublings of effective compute per year"
HO = (8.0, 5.0, 14.0)
"""Doubling time of effective compute and its interval, months (Ho et al. 2024)."""


def compute_growth(
    data: TrendData, log_compute: Array, *, cluster: str = "family", level: float = 0.95, seed: int = 0
) -> Contrast:
    """Return by how much ln(effective compute) grows per year: gamma / beta.

    Parameters
    ----------
    data : TrendData
        ``log_density`` holds an ability: ln(effective size), or logits.
    log_compute : array, shape (n,)
        ln(training FLOP).
    cluster, level, seed
        As in :func:`estimate_contrast`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> days, compute = np.arange(80.0) * 12, rng.normal(50, 2, 80)
    >>> values = 0.5 * compute + 0.4 * days / 365.25 + rng.normal(0, 0.2, 80)
    >>> names = [f"m{i}" for i in range(80)]
    >>> toy = TrendData.from_arrays(names, names, np.datetime64("2023-02-24") + days.astype("m8[D]"), values)
    >>> growth = compute_growth(toy, compute)
    >>> growth.lo < 0.8 < growth.hi
    True
    """
    if reason := too_few(data) or _flat(log_compute, "training compute"):
        return Contrast.missing(reason, len(data))
    design = np.column_stack([np.ones(len(data)), _centred(log_compute), _years(data)])
    regression = Regression(data, design)
    slope = estimate_contrast([regression], lambda b: b[:, 1], cluster=cluster, level=level, seed=seed)
    if not slope.lo > 0:
        # gamma / beta is a ratio: without a sure denominator it has no interval.
        return Contrast.missing(slope.reason or "ability does not surely rise with compute on these models", len(data))
    return estimate_contrast([regression], lambda b: b[:, 2] / b[:, 1], cluster=cluster, level=level, seed=seed)


def token_share(
    data: TrendData,
    log_tokens: Array,
    *,
    log_size: Array | None = None,
    cluster: str = "family",
    level: float = 0.95,
    seed: int = 0,
) -> Contrast:
    """Return the share of density's growth that is associated with more training tokens: 1 - b_1 / b_0.

    Parameters
    ----------
    data : TrendData
    log_tokens : array, shape (n,)
    log_size : array, shape (n,), optional
        With it, ln(effective size) may grow with ln(size) at its own rate rather than in proportion.
    cluster, level, seed
        As in :func:`estimate_contrast`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> days = np.arange(120.0) * 8
    >>> tokens = 28 + 0.8 * days / 365.25 + rng.normal(0, 0.7, 120)
    >>> values = 0.5 * tokens + 0.6 * days / 365.25 + rng.normal(0, 0.2, 120)
    >>> names = [f"m{i}" for i in range(120)]
    >>> toy = TrendData.from_arrays(names, names, np.datetime64("2023-02-24") + days.astype("m8[D]"), values)
    >>> share = token_share(toy, tokens)
    >>> share.lo < 0.4 < share.hi
    True
    """
    if reason := too_few(data) or _flat(log_tokens, "tokens"):
        return Contrast.missing(reason, len(data))
    size = [] if log_size is None else [_centred(log_size)]
    plain = np.column_stack([_years(data), np.ones(len(data)), *size])
    second = plain.shape[1]
    with_tokens = np.column_stack([plain, _centred(log_tokens)])
    regressions = [Regression(data, plain, "density"), Regression(data, with_tokens, "density")]
    trend = estimate_contrast(regressions[:1], lambda b: b[:, 0], cluster=cluster, level=level, seed=seed)
    if not trend.lo > 0:
        return Contrast.missing(trend.reason or "density does not surely grow on these models", len(data))
    return estimate_contrast(regressions, lambda b: 1 - b[:, second] / b[:, 0], cluster=cluster, level=level, seed=seed)


def answer_compute(data: TrendData, log_size: Array, tokens: Array, *, level: float = 0.95, seed: int = 0) -> Answer:
    """Answer how fast effective compute grows, and how much of density's growth more tokens explain.

    Parameters
    ----------
    data : TrendData
        Densities of dense models.
    log_size : array, shape (n,)
        ln(parameters).
    tokens : array, shape (n,)
        Training tokens; NaN where they are not known.
    level, seed
    """
    options: dict[str, Any] = {"level": level, "seed": seed}
    known = np.isfinite(tokens) & (tokens > 0)
    if not known.any():
        return unanswered("compute", QUESTION, UNIT, "no dated model has a known number of training tokens")
    part, size, log_tokens = data.take(known), log_size[known], np.log(tokens[known])
    log_compute = math.log(6) + size + log_tokens
    able = shifted(part, size)
    growth = compute_growth(able, log_compute, **options)
    trend = tobit_slope(part, level, seed=seed)
    rows = [
        group_row("effective compute", part, slope_of(growth)),
        group_row("density, models with known tokens", part, trend),
        group_row("density, all models", data, tobit_slope(data, level, seed=seed)),
    ]
    if not growth.estimable:
        return unanswered("compute", QUESTION, UNIT, growth.reason, rows_table(rows))
    share = token_share(part, log_tokens, **options)
    rows.append(contrast_row("share of density's growth that more tokens explain", part, share))
    for group, families in family_groups().items():
        apart = ~np.isin(part.family, families)
        if not apart.all():
            rest_of = token_share(part.take(apart), log_tokens[apart], **options)
            rows.append(contrast_row(f"share, without {group}", part.take(apart), rest_of))
            growth_of = compute_growth(able.take(apart), log_compute[apart], **options)
            rows.append(group_row(f"effective compute, without {group}", part.take(apart), slope_of(growth_of)))
    free = token_share(part, log_tokens, log_size=size, **options)
    rows.append(contrast_row("share, any return to size", part, free))
    rest = _with_tokens(part, log_tokens, **options)
    rows.append(group_row("density at fixed tokens", part, slope_of(rest)))
    if part.organisation is not None:
        by_maker = compute_growth(able, log_compute, cluster="organisation", **options)
        rows.append(group_row("effective compute, organisations as clusters", part, slope_of(by_maker)))
        share_maker = token_share(part, log_tokens, cluster="organisation", **options)
        rows.append(contrast_row("share, organisations as clusters", part, share_maker))
    published = 12 / HO[0] / DOUBLINGS
    pace = slope_of(growth)
    answer = (
        f"On {len(part)} models with known tokens effective compute has a doubling time of "
        f"{doubling_text(pace.doubling_months, *pace.doubling_interval)}; {HO[0]:g} months (Ho et al. 2024) "
        f"{'is excluded' if growth.p(published) < 0.05 else 'is not excluded'} "
        f"({formatting.p_value(growth.p(published))})"
    )
    answer += (
        f"; more tokens explain {_percentages(share)} of the growth of density ({formatting.p_value(share.p())} for "
        "none)."
        if share.estimable
        else f"; the share that more tokens explain is not known: {share.reason}."
    )
    caveats = (
        "Ho et al. 2024 (arXiv 2403.05812) found 8 months (5 to 14) for perplexity, 2012 to 2023; here it is ability "
        "on benchmarks, which data chosen for them raise without any compute.",
        f"Tokens are known for {int(known.sum())} of {len(known)} models; makers that do not say them are left out.",
        "The share is what goes along with tokens, not what they cause: makers that train longer also have better "
        "data, which counts towards tokens; errors in the number of tokens lower it.",
    )
    test = "effective compute does not grow; ratio of coefficients, family jackknife (CRV3), simulated reference"
    return answered("compute", QUESTION, answer, growth, UNIT, test, rows, caveats, data.notes, DOUBLINGS)


def _with_tokens(data: TrendData, log_tokens: Array, *, level: float, seed: int) -> Contrast:
    """Return the slope of ln(density) per year at fixed tokens."""
    design = np.column_stack([np.ones(len(data)), _years(data), _centred(log_tokens)])
    return estimate_contrast([Regression(data, design)], lambda b: b[:, 1], level=level, seed=seed)


def _percentages(share: Contrast) -> str:
    ends = (formatting.percentage(value).replace("-", "−") for value in (share.estimate, share.lo, share.hi))
    return "{} ({} to {})".format(*ends)


def _years(data: TrendData) -> Array:
    return np.asarray((data.days - data.days.mean()) / DAYS_PER_YEAR)


def _centred(values: Array) -> Array:
    return np.asarray(values - values.mean())


def _flat(values: Array, name: str) -> str:
    return "" if np.ptp(values) > 0 else f"all models have the same {name}"
