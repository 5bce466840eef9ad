"""English against other languages: the same models in both, and what makes two evaluators' tables disagree.

The comparison is that of slopes on one scale, on models measured in both, draw by draw. Beside it stand the paces of
single tables, with one thing changed at a time: window, languages, models, rows that a rule calls erratic, distilled
models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from densing.core import formatting
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
from densing.scores.trend.contrasts import Contrast
from densing.scores.trend.data import DAYS_PER_YEAR, TrendData, doubling_months
from densing.scores.trend.sentences import doubling_text
from densing.scores.trend.skills import DOUBLINGS, Weighted, on_models, slope_difference, slope_of
from densing.scores.trend.tables import table_data, table_pace
from densing.scores.trend.tobit import tobit_slope

QUESTION = "Does density grow as fast in other languages as in English?"
LANGUAGES: Mapping[str, Sequence[str]] = {
    "Germanic languages": ("da", "de", "fo", "is", "nl", "no", "sv"),
    "Romance languages": ("ca", "es", "fr", "it", "pt", "ro"),
    "Slavic languages": ("bg", "bs", "cs", "hr", "pl", "sk", "sl", "sr", "uk"),
    "Baltic and Finnic languages": ("et", "fi", "lt", "lv"),
}
FEWEST_MODELS = 25
"""A language counts where so many headline models were measured in it."""


@dataclass(frozen=True)
class LanguageData:
    """Densities in English and in other languages.

    Parameters
    ----------
    english : sequence of (TrendData, weight, name)
        English baskets of the multilingual basket's skills, in its proportions.
    general : TrendData
        The four skills in English.
    others : TrendData
        The multilingual basket, on models measured in named languages.
    loosely : TrendData
        The same, with models known from a multilingual benchmark alone.
    codes : mapping of str to TrendData
        Models measured in each language.
    """

    english: Sequence[Weighted]
    general: TrendData
    others: TrendData
    loosely: TrendData
    codes: Mapping[str, TrendData]


@dataclass(frozen=True)
class TableStep:
    """One reading of an evaluator's table: the pace of its models by :func:`table_pace`.

    Parameters
    ----------
    label : str
    cells : pandas.DataFrame
    models : pandas.DataFrame
    change : str
        Difference from the reading that it is compared with; empty for the two end points.
    of_first : bool
        Compare with the first table, not with the second.
    """

    label: str
    cells: pd.DataFrame
    models: pd.DataFrame
    change: str = ""
    of_first: bool = False


def answer_language(
    measured: LanguageData, steps: Sequence[TableStep] = (), *, level: float = 0.95, seed: int = 0
) -> Answer:
    """Answer whether other languages grow as fast as English.

    Parameters
    ----------
    measured : LanguageData
    steps : sequence of TableStep
        First the table of one evaluator, then that of another, then either with one thing changed at a time.
    level, seed
    """
    options: dict[str, Any] = {"level": level, "seed": seed}
    shared = set.intersection(*({str(name) for name in data.model} for data, _, _ in measured.english))
    shared &= {str(name) for name in measured.others.model}
    english = [(on_models(data, shared), weight, name) for data, weight, name in measured.english]
    others = on_models(measured.others, shared)
    mean = slope_difference(english, **options)
    change = slope_difference([(others, 1.0, "others")], english, **options)
    abroad = tobit_slope(others, level, seed=seed)
    rows = [
        group_row("English, the same skills and models", others, slope_of(mean)),
        group_row("other languages, the same models", others, abroad),
        group_row("English, all models", measured.general, tobit_slope(measured.general, level, seed=seed)),
        group_row(
            "other languages, with XWinograd alone", measured.loosely, tobit_slope(measured.loosely, level, seed=seed)
        ),
    ]
    rows += _by_group(measured.codes, **options)
    table_rows, dissection, tables = _dissect(steps, **options)
    rows += table_rows
    if not change.estimable:
        return unanswered("language", QUESTION, PER_YEAR, change.reason, rows_table(rows))
    rows.append(contrast_row("other languages less English, the same models", others, change, DOUBLINGS))
    loose = {str(name) for name in measured.loosely.model}
    wide = [(on_models(data, loose), weight, name) for data, weight, name in measured.english]
    common = set.intersection(*({str(name) for name in data.model} for data, _, _ in wide))
    wider = slope_difference(
        [(on_models(measured.loosely, common), 1.0, "others")],
        [(on_models(data, common), weight, name) for data, weight, name in wide],
        **options,
    )
    rows.append(
        contrast_row(
            "other languages less English, with XWinograd alone", on_models(measured.loosely, common), wider, DOUBLINGS
        )
    )
    verdict = "no difference is shown" if change.p() >= SIGNIFICANT else _direction(change)
    own = slope_of(mean)
    answer = (
        f"On the {change.models} models measured in both, the doubling time is "
        f"{doubling_text(own.doubling_months, *own.doubling_interval)} in English and "
        f"{doubling_text(abroad.doubling_months, *abroad.doubling_interval)} in other languages, a difference of "
        f"{interval(change, DOUBLINGS)} {PER_YEAR}: {verdict} ({formatting.p_value(change.p())})"
    )
    answer += f"; {dissection}." if dissection else "."
    caveats = (
        "Other languages are European ones as EuroEval measures them, in knowledge and language; English is weighted "
        "as they are. Mathematics and code are measured in English alone.",
        "Abilities in languages with few scores are drawn towards those in others: differences look smaller than they "
        "are.",
        "Paces of single tables are index regressions without a scale; each changes one thing, and none is corrected "
        "for their number.",
        *tables,
    )
    test = "difference of slopes on the same models is zero; paired by model and draw, family jackknife (CRV3)"
    return answered("language", QUESTION, answer, change, PER_YEAR, test, rows, caveats, others.notes, DOUBLINGS)


def _direction(change: Contrast) -> str:
    return "other languages grow " + ("faster" if change.estimate > 0 else "slower")


def _by_group(codes: Mapping[str, TrendData], **options: Any) -> list[Mapping[str, Any]]:
    rows = []
    for label, members in LANGUAGES.items():
        known = [code for code in members if code in codes]
        if known:
            terms = [(codes[code], 1 / len(known), code) for code in known]
            pace = slope_difference(terms, **options)
            everyone = max((codes[code] for code in known), key=len)
            rows.append(group_row(f"{label} ({', '.join(known)})", everyone, slope_of(pace)))
    return rows


def _dissect(steps: Sequence[TableStep], level: float, seed: int) -> tuple[list[Mapping[str, Any]], str, list[str]]:
    """Return a row per reading of the tables, and which changes explain their gap, in brief and in full."""
    rows: list[Mapping[str, Any]] = []
    paces = []
    for step in steps:
        data, log_size = table_data(step.cells, step.models)
        pace = table_pace(data, log_size, level=level, seed=seed)
        rows.append(group_row(step.label, data, slope_of(pace)))
        paces.append(pace)
    rates = [pace.estimate for pace in paces]
    if len(rates) < 3 or not all(map(math.isfinite, rates[:2])) or rates[0] == rates[1]:
        return rows, "", []
    gap = rates[0] - rates[1]
    moves = {
        step.change: (rates[0] - rate if step.of_first else rate - rates[1]) / gap
        for step, rate in zip(steps[2:], rates[2:], strict=True)
        if math.isfinite(rate) and step.change
    }
    ends = [
        f"{formatting.months(doubling_months(rate / DAYS_PER_YEAR))} months in {step.label}"
        for rate, step in zip(rates[:2], steps[:2], strict=True)
    ]
    ranked = sorted(moves.items(), key=lambda move: -move[1])
    shares = [f"{change} {formatting.percentage(share).replace('-', '−')}" for change, share in ranked]
    brief = f"of the gap between two tables ({' and '.join(ends)}) most goes with {formatting.listed(shares[:2])}"
    apart = paces[0].lo > rates[1] or paces[0].hi < rates[1]
    full = [
        f"Share of the gap between {steps[0].label} and {steps[1].label} that a single change closes: "
        f"{formatting.listed(shares, most=len(shares))}. Shares overlap and do not add up.",
        f"{steps[0].label} holds {paces[0].models} models of {len(paces[0].clusters)} families, and its interval "
        f"{'excludes' if apart else 'includes'} the pace of {steps[1].label}.",
    ]
    return rows, brief if moves else "", full
