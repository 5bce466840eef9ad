"""The first screen of the report in plain words: the number, what it rests on, what to hold against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from densing.core import doubts
from densing.plots import text
from densing.report.checks import long_window, record_setter_bias, without_groups
from densing.report.sections import sentence
from densing.scores.trend import sentences

if TYPE_CHECKING:
    from densing.scores.references import Reference
    from densing.scores.study import Study
    from densing.scores.trend import TrendResult


@dataclass(frozen=True)
class Headline:
    """Title, lead sentence, key facts (term, value) and caveats, all as plain text."""

    title: str
    lead: str
    facts: tuple[tuple[str, str], ...]
    caveats: tuple[str, ...]


def headline(study: Study) -> Headline:
    """Put the study's headline in words; every caveat that the checks give comes with it."""
    head = study.trend.headline
    models, families = len(study.trend.data.model), len(set(study.trend.data.family))
    facts = (
        (
            "Models and families",
            f"{text.plural(models, 'model')}, {text.plural(families, 'family', 'families')}",
        ),
        ("Window", window(study.trend)),
        ("Ruler", text.clean(study.reference.title)),
        ("Score", short_benchmark(study.reference)),
        ("Estimator", text.clean(head.get("label", head.get("method")))),
    )
    title = sentences.title(head, study.trend.data.released, level(study.trend))
    return Headline(title, lead(study), facts, caveats(study))


def lead(study: Study) -> str:
    """Return the sentence that states what was measured on what."""
    head, ruler = study.trend.headline, study.reference
    rows = study.trend.data
    families = text.plural(len(set(rows.family)), "family", "families")
    doubling = text.doubling(head["doubling_months"], head["lo"], head["hi"], level(study.trend))
    return (
        "Density is effective parameters over actual parameters: how large a model of the reference family "
        f"({text.clean(ruler.title)}) would have to be for the same score on {benchmark(ruler)}, over the "
        f"model's own size. Estimated from {text.plural(len(rows.model), 'model')} of {families}, released "
        f"{window(study.trend)}, its doubling time is {doubling}."
        f"{STANDSTILL if np.isinf(head['hi']) else ''}"
    )


STANDSTILL = " With these data it cannot be excluded that density stands still."


def caveats(study: Study) -> tuple[str, ...]:
    """Return what the reader must know before quoting the number."""
    found = (
        sentences.shuffled(study.trend.checks),
        long_window(study),
        without_groups(study),
        sentences.by_organisation(study.trend.checks, level(study.trend)),
        record_setter_bias(study.trend.checks),
        *dict.fromkeys(sentence(note.message) for note in doubts((*study.notes, *study.trend.notes))),
        sentence(f"Models in the headline: {study.selection}"),
        members(study),
        text.clean(getattr(study.trend, "why", ""), 600),
        f"Density is relative to the ruler and the benchmark set ({evaluators(study.reference)}): another "
        "ruler gives other values; the multiverse below shows how far the doubling time moves with such "
        "choices.",
    )
    return tuple(caveat for caveat in found if caveat and caveat != text.MISSING)


def members(study: Study) -> str:
    """Return how many of the headline's models are the ruler's own; empty when none is."""
    own = sorted(set(map(str, study.trend.data.model)) & set(map(str, study.reference.points["model"])))
    if not own:
        return ""
    verb = "belongs" if len(own) == 1 else "belong"
    return (
        f"{len(own)} of these {text.plural(len(study.trend.data.model), 'model')} {verb} to the reference family "
        "itself, whose effective sizes are near their own by construction."
    )


def benchmark(ruler: Reference) -> str:
    """Return which score the ruler reads."""
    if ruler.benchmark != "mean":
        return text.clean(ruler.benchmark)
    names = ", ".join(text.clean(name, 40) for name in ruler.benchmarks)
    return f"the mean of {names}" if names else "the mean score"


def short_benchmark(ruler: Reference) -> str:
    """Return which score the ruler reads, without the list."""
    if ruler.benchmark != "mean":
        return text.clean(ruler.benchmark)
    return f"mean of {text.plural(len(ruler.benchmarks), 'benchmark')}"


def evaluators(ruler: Reference) -> str:
    """Return whose scores the ruler rests on."""
    return "evaluator not stated" if text.is_missing(ruler.evaluator) else f"scores by {text.clean(ruler.evaluator)}"


def window(trend: TrendResult) -> str:
    """Return the first and last month of release of the rows."""
    released = pd.DatetimeIndex(trend.data.released)
    return f"{text.month(released.min())} to {text.month(released.max())}" if len(released) else "no dates"


def level(trend: TrendResult) -> float:
    """Return the confidence level of the intervals."""
    return float(trend.options.get("level", 0.95))


def long_title(study: Study) -> str:
    """Return the heading of the long window's figure."""
    if study.long_trend is None or study.long_reference is None:
        return ""
    return f"The long window: {window(study.long_trend)}, {short_benchmark(study.long_reference)}"


def asked_of(study: Study) -> str:
    """Return which trend and ruler the forecast's answers come from."""
    trend = study.trend if study.long_trend is None else study.long_trend
    ruler = study.asked_of
    return f"Read off the trend of {window(trend)}, ruler {text.clean(ruler.title)}, score on {benchmark(ruler)}."
