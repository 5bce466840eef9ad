"""The ChatGPT split in words: the pace before and after, the paper's rates beside them, and whether they differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from densing.plots import text
from densing.scores.trend import sentences

if TYPE_CHECKING:
    from densing.scores.study import Split


def chatgpt_split(split: Split) -> str:
    """Return whether the pace changed at the date named beforehand, beside the paper's rates.

    Parameters
    ----------
    split : Split
        Of a study.

    Examples
    --------
    >>> from densing.scores.study import Split
    >>> chatgpt_split(Split(reason="2 observed models before the date"))
    'A change of pace with ChatGPT cannot be tested here: 2 observed models before the date.'
    """
    stated = split.stated
    reason = split.reason or (None if stated is None else stated.reason)
    if reason:
        return f"A change of pace with ChatGPT cannot be tested here: {text.clean(reason, 300)}."
    if stated is None:
        return ""
    words = (
        f"At {text.clean(stated.date)}, named beforehand, the slope of all models goes from "
        f"{text.number(stated.slope_before)} to {text.number(stated.slope_after)} per day "
        f"({text.p_value(stated.p)}){_where(split)}."
    )
    judged = sentences.size_and_power(stated, "without a break")
    return f"{words} {judged}{_envelopes(split)}"


def _where(split: Split) -> str:
    stated, window = split.stated, split.window
    if stated is None or window is None:
        return ""
    return (
        f" on {text.clean(split.benchmark)} from {text.clean(window[0])} to {text.clean(window[1])}: "
        f"{text.plural(stated.n_before, 'model')} before, {stated.n_after} after, scores of all evaluators "
        f"pooled, "
        "dates of early models unverified"
    )


def _envelopes(split: Split) -> str:
    sides = split.sides
    if sides is None or sides.before.envelope is None or sides.after.envelope is None:
        return ""
    before, after = sides.before.envelope, sides.after.envelope
    return (
        f" The paper's envelope reads {text.number(before.slope_per_day)} before and "
        f"{text.number(after.slope_per_day)} after ({before.n} and {after.n} record-setters); the paper prints "
        f"{text.number(split.paper.before)} and {text.number(split.paper.after)}, untested."
    )
