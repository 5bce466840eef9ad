"""What the report says about the forecast in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from densing.plots import text
from densing.report.tables import Field, ShownTable, column, shown

if TYPE_CHECKING:
    from densing.scores.study import PastForecast
    from densing.scores.trend import Backtest


def backtest(result: Backtest) -> str:
    """Return how forecasts made earlier would have fared.

    Examples
    --------
    >>> from densing.scores.trend import Backtest
    >>> print(backtest(Backtest(n=40, level=0.9, coverage=0.85, median_error=0.7)))
    Fitted to earlier cuts of the data, the line's 90 % band for single models held 85 % of the 40 that
    followed (a model counts once for every cut before it); the median one had 2.0 times the line's density.
    >>> backtest(Backtest(n=0, why="too few models"))
    'The forecast could not be back-tested: too few models.'
    """
    if not result.n:
        return "" if not result.why else f"The forecast could not be back-tested: {text.clean(result.why, 300)}."
    words = (
        f"Fitted to earlier cuts of the data, the line's {text.percentage(result.level)} band for single models held "
        f"{text.percentage(result.coverage)} of the {result.n} that followed (a model counts once for every "
        "cut before it)"
    )
    if result.median_error is not None and not text.is_missing(result.median_error):
        words += f"; the median one had {text.number(np.exp(result.median_error))} times the line's density"
    return f"{words}.{_frontier(result)}"


def _frontier(result: Backtest) -> str:
    moved, still = result.frontier_error, result.standstill_error
    if moved is None or still is None or text.is_missing(moved) or text.is_missing(still):
        return ""
    better = "nearer" if result.beats_standing_still else "no nearer"
    return (
        " In the median over the cuts, the densest model half a year on had "
        f"{text.number(np.exp(moved))} times the density forecast for it, and {text.number(np.exp(still))} times the "
        f"record at the time: the forecast came {better} than assuming no progress."
    )


def past(made: PastForecast | None) -> str:
    """Return what came of the headline's own forecast where its time has passed.

    Examples
    --------
    >>> from densing.scores.study import PastForecast
    >>> from densing.scores.trend import ForecastScore
    >>> first, end = pd.Timestamp("2024-07-31"), pd.Timestamp("2025-01-30")
    >>> print(past(PastForecast(first, end, None)))
    The headline's own forecast, made from models to July 2024, ended in January 2025: that has passed, and no later
    model was measured on its ruler, so it is neither scored nor shown.
    >>> print(past(PastForecast(first, end, ForecastScore(end, 12.0, 6.0, 40.0, 5.0, "A", 4.0))))
    The headline's own forecast, made from models to July 2024, put the frontier of 2025-01-30 at a density of 12 (90 %
    range 6.0 to 40); what came was 5.0 (A), outside the range, from a record of 4.0 at the time.
    """
    if made is None:
        return ""
    words = f"The headline's own forecast, made from models to {text.month(made.made)}, "
    score = made.score
    if score is None:
        return (
            f"{words}ended in {text.month(made.end)}: that has passed, and no later model was measured on its "
            "ruler, so it is neither scored nor shown."
        )
    where = "inside" if score.lo90 <= score.came <= score.hi90 else "outside"
    ends = f"{text.number(score.lo90)} to {text.number(score.hi90)}"
    return (
        f"{words}put the frontier of {text.day(score.date)} at a density of {text.number(score.mid)} (90 % range "
        f"{ends}); what came was {text.number(score.came)} ({text.clean(score.model)}), {where} the range, from "
        f"a record of {text.number(score.record)} at the time."
    )


def questions(frame: pd.DataFrame) -> tuple[tuple[str, str], ...]:
    """Return the forecast's questions and answers.

    Examples
    --------
    >>> ask = pd.DataFrame([{"score": 0.75, "params": 8e9, "date": pd.Timestamp("2025-01-10"),
    ...                      "date_lo": pd.Timestamp("2024-10-01"), "date_hi": pd.NaT, "note": ""}])
    >>> questions(ask)[0][1]
    'About 2025-01-10: not before 2024-10-01, no latest date.'
    """
    return tuple((_question(row), _answer(row)) for row in frame.to_dict("records"))


def _question(row: Any) -> str:
    return f"When does a score of {text.number(row['score'])} fit in {text.size(row['params'])} parameters?"


def _answer(row: Any) -> str:
    note = "" if text.is_missing(row.get("note")) else f" ({text.clean(row['note'], 300).rstrip('.')})"
    if text.is_missing(row["date"]):
        early = "" if text.is_missing(row["date_lo"]) else f"; not before {text.day(row['date_lo'])}"
        return f"No date can be given{early}{note}."
    early = "no earliest date" if text.is_missing(row["date_lo"]) else f"not before {text.day(row['date_lo'])}"
    late = "no latest date" if text.is_missing(row["date_hi"]) else f"at the latest {text.day(row['date_hi'])}"
    level = "" if text.is_missing(row.get("level")) else f" ({text.percentage(row['level'])} range)"
    return f"About {text.day(row['date'])}: {early}, {late}{level}{note}."


def corollaries_table(corollaries: pd.DataFrame) -> ShownTable:
    """Return what follows from the doubling time."""
    fields = (
        Field("Consequence", column("quantity")),
        Field("Value", column("value", text.months), "value"),
        Field("95 % interval", _plain_interval, "lo"),
        Field("Unit", column("unit")),
        Field("Equation", column("equation")),
    )
    caption = "What follows if the headline's doubling time holds; the intervals carry over from its own."
    return shown("corollaries-table", caption, corollaries, fields)


def _plain_interval(row: Any) -> str:
    return f"{text.months(row.get('lo'))} to {text.months(row.get('hi'))}"
