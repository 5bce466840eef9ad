"""The ChatGPT split in words: the pace before and after, the paper's rates beside them, and whether they differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from densing.plots import text
from densing.scores.trend import size_and_power


def chatgpt_split(split: Mapping[str, Any]) -> str:
    """Return whether the pace changed at the date named beforehand, beside the paper's rates.

    Parameters
    ----------
    split : mapping
        What :func:`densing.scores.study.split.chatgpt_split` found.

    Examples
    --------
    >>> chatgpt_split({"reason": "2 observed models before the date"})
    'A change of pace with ChatGPT cannot be tested here: 2 observed models before the date.'
    """
    stated, paper = split.get("stated") or {}, split.get("paper") or {}
    reason = split.get("reason") or stated.get("reason")
    if reason:
        return f"A change of pace with ChatGPT cannot be tested here: {text.clean(reason, 300)}."
    if not stated:
        return ""
    words = (
        f"At {text.clean(stated['date'])}, named beforehand, the slope of all models goes from "
        f"{text.number(stated['slope_before'])} to {text.number(stated['slope_after'])} per day "
        f"({text.p_value(stated['p'])}){_where(split)}."
    )
    judged = size_and_power(stated, "without a break")
    return f"{words} {judged}{_envelopes(split.get('sides') or {}, paper)}"


def _where(split: Mapping[str, Any]) -> str:
    stated, window = split["stated"], split.get("window")
    if not window:
        return ""
    return (
        f" on {text.clean(split.get('benchmark'))} from {text.clean(window[0])} to {text.clean(window[1])}: "
        f"{text.plural(stated['n_before'], 'model')} before, {stated['n_after']} after, scores of all evaluators "
        f"pooled, "
        "dates of early models unverified"
    )


def _envelopes(sides: Mapping[str, Any], paper: Mapping[str, Any]) -> str:
    found = [(sides.get(side) or {}).get("envelope") for side in ("before", "after")]
    if None in found or not paper:
        return ""
    before, after = (text.number(row["slope_per_day"]) for row in found if row)
    counts = " and ".join(str(row["n"]) for row in found if row)
    return (
        f" The paper's envelope reads {before} before and {after} after ({counts} record-setters); the paper prints "
        f"{text.number(paper['before'])} and {text.number(paper['after'])}, untested."
    )
