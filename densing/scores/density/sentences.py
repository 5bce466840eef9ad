"""One sentence per model, made to be copied: its density, how sure, on which reference, what not to compare it with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from densing.core import formatting

COMBINED = "combined"
"""The benchmark of a row that stands for all that were measured."""
HOW_TO_READ = (
    "Densities are relative to {reference}. Across references, compare ranks only (`densing density --references "
    "all`).\nIntervals (density_lo, density_hi) cover the error of the model's ability and of the reference; those "
    "of the recipe (density_*_recipe) add model-to-model scatter, for comparing or predicting recipes.\n"
    "≤/≥: only an upper/lower bound is known (outside the reference's range)."
)
"""What a table of densities says; ``reference`` names the reference."""
_OVER = {"active": "active parameters", "non_embedding": "parameters without embeddings"}


def density_sentence(row: Mapping[str, Any], level: float = 0.95) -> str:
    """Return a model's density as a sentence that says all it needs to be quoted.

    Parameters
    ----------
    row : mapping
        Of a table of densities.
    level : float
        Of its interval.

    Examples
    --------
    >>> row = {"model": "Mine-7B", "density": 1.29, "density_lo": 1.0, "density_hi": 1.66, "bound": "", "status": "ok",
    ...        "reference": "qwen1.5", "benchmark": "mmlu", "denominator": "total", "protocol": "same"}
    >>> print(density_sentence(row))
    Mine-7B has density 1.3 (95 % interval of the measurement 1.0 to 1.7) on the reference qwen1.5, benchmark mmlu; it
    must not be compared with densities on another reference or benchmark.
    >>> limit = {**row, "bound": "upper", "density_lo": 0, "density_hi": 0.049, "status": "below_floor"}
    >>> print(density_sentence({**limit, "protocol": "differs", "protocol_detail": "shots 0, reference 5"}))
    Mine-7B has density at most 0.049 (score at or below the floor) on the reference qwen1.5, benchmark mmlu; it must
    not be compared with densities on another reference or benchmark, nor with others on this one: it was measured
    differently (shots 0, reference 5).
    """
    over = _OVER.get(str(row.get("denominator")), "")
    where = f"on the reference {formatting.clean(row.get('reference'), 80)}, {_score(row)}"
    where += f", over {over}" if over else ""
    name = formatting.clean(row["model"], 120)
    return f"{name} has density {_value(row, level)} {where}; it must not be compared {_not(row)}."


def density_sentences(table: pd.DataFrame, level: float = 0.95) -> list[str]:
    """Return a sentence per model, in order: of its combined row where there is one, its loss before its score.

    A model of several rows that nothing combines has a sentence for each.

    Examples
    --------
    >>> import densing
    >>> mine = [{"model": "mine", "params": 3e9, "released": "2024-03-01", "benchmark": "mmlu", "score": 0.6}]
    >>> table = densing.table_densities(mine, densing.load_reference("qwen1.5", "mmlu")).table
    >>> density_sentences(table)[0].split(" (")[0]
    'mine has density 2.0'
    """
    return [density_sentence(row, level) for row in quoted_rows(table).to_dict("records")]


def quoted_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of densities by which a model is quoted: its combined loss, its combined score, or all."""
    parts = []
    for _, rows in table.groupby("model", sort=False):
        whole = rows[rows["benchmark"].eq(COMBINED)]
        parts.append(whole.sort_values("quantity").head(1) if len(whole) and "quantity" in whole else rows)
    return pd.concat(parts) if parts else table


def _value(row: Mapping[str, Any], level: float) -> str:
    bound, low, high = row.get("bound") or "", row["density_lo"], row["density_hi"]
    why = formatting.status(row.get("status"))
    if bound == "upper":
        return f"at most {formatting.number(high)} ({why})"
    if bound == "lower":
        return f"at least {formatting.number(low)} ({why})"
    ends = "without ends"
    if not formatting.is_missing(low):
        open_ended = formatting.is_missing(high) or math.isinf(high)
        ends = f"{formatting.number(low)} {'and more' if open_ended else f'to {formatting.number(high)}'}"
    return f"{formatting.number(row['density'])} ({formatting.percentage(level)} interval of the measurement {ends})"


def _score(row: Mapping[str, Any]) -> str:
    by = " by loss" if row.get("quantity") == "loss" else ""
    if row.get("benchmark") == COMBINED:
        names = [formatting.clean(name, 40) for name in str(row.get("benchmarks", "")).split("+") if name]
        return f"{formatting.plural(len(names), 'benchmark')} together ({formatting.listed(names)}){by}"
    return f"benchmark {formatting.clean(row.get('benchmark'), 80)}{by}"


def _not(row: Mapping[str, Any]) -> str:
    others = "with densities on another reference or benchmark"
    detail = formatting.clean(row.get("protocol_detail"), 200)
    if row.get("protocol") == "differs":
        return f"{others}, nor with others on this one: it was measured differently ({detail})"
    if row.get("protocol") == "unknown":
        return f"{others}, and only with care with others on this one: how it was measured is not all stated"
    return others
