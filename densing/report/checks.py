"""The checks of a trend and of its forecast as short sentences with their numbers.

A check that is absent from the study is left out, never invented; the page also prints the raw data of all checks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from densing.core import words
from densing.plots import leave_one_out
from densing.report.parts import flag
from densing.scores.study import PAPER_MONTHS
from densing.scores.trend import sentences as trend_sentences

if TYPE_CHECKING:
    from densing.scores.study import PastForecast, Split, Study
    from densing.scores.trend import Backtest, Checks


# A longer list of the raw data is told by its length and ends.
MOST_ITEMS = 40


def check_sentences(study: Study) -> tuple[tuple[str, str], ...]:
    """Return (name, sentence) of every check the study holds."""
    checks = study.trend.checks
    sentences = (
        ("Permutation of release dates", trend_sentences.shuffled(checks)),
        ("Searched break", trend_sentences.broken(checks)),
        ("Leave out", left_out(checks)),
        ("Without named groups", without_groups(study)),
        ("Organisations as clusters", trend_sentences.by_organisation(checks)),
        ("Record-setter bias", record_setter_bias(checks)),
        ("Long window", long_window(study)),
        ("Replication", replication(study.replication)),
        ("ChatGPT split", chatgpt_split(study.split)),
        ("Where the uncertainty comes from", variance_shares(checks)),
    )
    return tuple((name, sentence) for name, sentence in sentences if sentence)


def left_out(checks: Checks) -> str:
    """Return the range of the doubling time when one family, or one organisation, at a time is left out."""
    frame = leave_one_out(checks)
    sentences = []
    for kind, many in (("family", "families"), ("organisation", "organisations")):
        rows = frame[frame["kind"] == kind]
        if rows.empty:
            continue
        first, last = rows.iloc[0], rows.iloc[-1]
        sentences.append(
            f"Leaving out one of {words.plural(len(rows), kind, many)} at a time moves the headline between "
            f"{_doubles(first['doubling_months'])} (without {words.clean(first['name'])}) and "
            f"{_doubles(last['doubling_months'])} (without {words.clean(last['name'])})."
        )
    return " ".join(sentences)


def without_groups(study: Study) -> str:
    """Return the headline, and the long window's, without each named group of families."""
    near = trend_sentences.without_groups(study.trend.checks, float(study.trend.headline["doubling_months"]))
    if study.long_trend is None:
        return near
    far = trend_sentences.without_groups(study.long_trend.checks, float(study.long_trend.headline["doubling_months"]))
    return f"{near} Over the long window: {far[:1].lower()}{far[1:]}" if near and far else near or far


def _doubles(value: Any) -> str:
    return "no doubling" if words.is_missing(value) or np.isinf(value) else f"{words.months(value)} months"


def record_setter_bias(checks: Checks) -> str:
    """Return what the paper's envelope shows where there is no trend at all.

    Examples
    --------
    >>> from densing.scores.trend import Checks, EnvelopeOfHeadline, EnvelopeWithoutTrend, RecordSetterBias
    >>> null = EnvelopeWithoutTrend(0.005, 4.5, 0.002, 0.04, 0.8, 0.3)
    >>> check = RecordSetterBias(n=41, draws=2000, no_trend=null, with_trend=EnvelopeOfHeadline(None, None))
    >>> print(record_setter_bias(Checks(record_setter_bias=check)))
    Record-setters rise even without a trend: on these dates, the paper's regression on data without any trend
    reports a doubling every 4.5 months in the median.
    """
    check = checks.record_setter_bias
    null, true = (None, None) if check is None else (check.no_trend, check.with_trend)
    if null is None or words.is_missing(null.median_doubling_months):
        return ""
    prose = (
        "Record-setters rise even without a trend: on these dates, the paper's regression on data without "
        f"any trend reports a doubling every {words.months(null.median_doubling_months)} months in the "
        "median"
    )
    months = (None, None) if true is None else (true.true_doubling_months, true.median_doubling_months)
    if not any(map(words.is_missing, months)):
        prose += (
            f". If the headline's {words.months(months[0])} months were true, it would read {words.months(months[1])}"
        )
    return f"{prose}."


def variance_shares(checks: Checks) -> str:
    """Return the shares of the slope's variance by origin.

    Examples
    --------
    >>> from densing.scores.trend import Checks, VarianceShares
    >>> variance_shares(Checks(variance_shares=VarianceShares(score_noise=None, reference_law=0.1, models=0.9)))
    'Shares of the variance of the slope: the fitted ruler 10 %, which models exist 90 %.'
    """
    origins = {
        "models": "which models exist",
        "reference_law": "the fitted ruler",
        "score_noise": "noise of the scores",
    }
    shares = {} if checks.variance_shares is None else asdict(checks.variance_shares)
    parts = [
        f"{origins[name]} {words.percentage(share)}" for name, share in shares.items() if not words.is_missing(share)
    ]
    return f"Shares of the variance of the slope: {', '.join(parts)}." if parts else ""


def diagnostics(checks: Checks) -> str:
    """Return the specification tests of the straight line.

    Examples
    --------
    >>> from densing.scores.trend import Checks, Diagnostics
    >>> diagnostics(Checks(diagnostics=Diagnostics(40, 0.2, None, None, None))).split(". ")[0]
    'On the 40 observed rows: curvature (RESET) p = 0.20'
    """
    tests = {
        "reset_p": "curvature (RESET)",
        "breusch_pagan_p": "uneven scatter (Breusch–Pagan)",
        "ljung_box_p": "serial correlation (Ljung–Box)",
    }
    results = {} if checks.diagnostics is None else asdict(checks.diagnostics)
    parts = [
        f"{name} {words.p_value(results[key])}" for key, name in tests.items() if not words.is_missing(results.get(key))
    ]
    if not parts:
        return ""
    return (
        f"On the {results['n']} observed rows: {', '.join(parts)}. These take models as independent, which families "
        "are not, so they accuse too often; their size and power were not simulated."
    )


def long_window(study: Study) -> str:
    """Return the doubling time over the long window, with its own ruler, beside that of the headline."""
    trend, ruler = study.long_trend, study.long_reference
    if trend is None:
        return ""
    head, near = trend.headline, study.trend.headline
    released = pd.DatetimeIndex(trend.data.released)
    level = float(trend.options.get("level", 0.95))
    doubling = words.doubling(head["doubling_months"], head["lo"], head["hi"], level)
    # An organisation's families share more over years than over months: here the wider interval may be the right one.
    more = f"{trend_sentences.by_organisation(trend.checks, level)} {trend_sentences.broken(trend.checks)}"
    measure = "" if ruler is None else f", ruler {words.clean(ruler.title)} on {words.clean(ruler.benchmark)}"
    return (
        f"Over the long window, {words.month(released.min())} to {words.month(released.max())} "
        f"({words.plural(len(released), 'model')}{measure}), the doubling time is {doubling}, against "
        f"{_doubles(near['doubling_months'])} in the headline{_pace(head, near)}. {more.strip()}"
    ).rstrip()


def _pace(head: Any, near: Any) -> str:
    slow, fast = head["doubling_months"], near["doubling_months"]
    if words.is_missing(slow) or words.is_missing(fast) or np.isinf(slow) or np.isinf(fast):
        return ""
    apart = head["lo"] > near["hi"] or head["hi"] < near["lo"]
    pace = "slower" if slow > fast else "faster"
    return f": a {pace} pace, and the intervals {'do not overlap' if apart else 'overlap'}"


def replication(frame: pd.DataFrame) -> str:
    """Return on how many rulers the paper's method covers the paper's figure."""
    if frame.empty:
        return ""
    covering = frame[frame["covers_paper"].map(flag)]
    bounded = int(np.isfinite(pd.to_numeric(covering["hi"], errors="coerce")).sum())
    return (
        f"The 95 % interval of the paper's own method covers its {PAPER_MONTHS} months on {len(covering)} of "
        f"{words.plural(len(frame), 'ruler and benchmark set')}, {bounded} of these with an upper end; that method is "
        "biased fast and rests on few record-setters, so agreement replicates the procedure, not the rate."
    )


def check_data(study: Study) -> str:
    """Return the checks as indented JSON; long lists are cut with their length."""
    return json.dumps(_short(study.trend.checks.to_dict()), indent=2, ensure_ascii=False, default=str)


def _short(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _short(entry) for name, entry in value.items()}
    if isinstance(value, np.ndarray):
        return _short(value.tolist())
    if isinstance(value, (list, tuple)):
        if len(value) > MOST_ITEMS and not isinstance(value[0], Mapping):
            return f"{len(value)} values, {words.number(np.nanmin(value))} to {words.number(np.nanmax(value))}"
        return [_short(entry) for entry in value]
    if isinstance(value, float) and not np.isfinite(value):
        return words.number(value)
    return value


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
        return f"A change of pace with ChatGPT cannot be tested here: {words.clean(reason, 300)}."
    if stated is None:
        return ""
    where = ""
    if split.window is not None:
        first, last = split.window
        where = (
            f" on {words.clean(split.benchmark)} from {words.clean(first)} to {words.clean(last)}: "
            f"{words.plural(stated.n_before, 'model')} before, {stated.n_after} after, scores of all evaluators "
            "pooled, dates of early models unverified"
        )
    prose = (
        f"At {words.clean(stated.date)}, named beforehand, the slope of all models goes from "
        f"{words.number(stated.slope_before)} to {words.number(stated.slope_after)} per day "
        f"({words.p_value(stated.p)}){where}. {trend_sentences.size_and_power(stated, 'without a break')}"
    )
    sides = split.sides
    if sides is None or sides.before.envelope is None or sides.after.envelope is None:
        return prose
    before, after = sides.before.envelope, sides.after.envelope
    return (
        f"{prose} The paper's envelope reads {words.number(before.slope_per_day)} before and "
        f"{words.number(after.slope_per_day)} after ({before.n} and {after.n} record-setters); the paper prints "
        f"{words.number(split.paper.before)} and {words.number(split.paper.after)}, untested."
    )


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
        return "" if not result.why else f"The forecast could not be back-tested: {words.clean(result.why, 300)}."
    prose = (
        f"Fitted to earlier cuts of the data, the line's {words.percentage(result.level)} band for single models held "
        f"{words.percentage(result.coverage)} of the {result.n} that followed (a model counts once for every "
        "cut before it)"
    )
    if result.median_error is not None and not words.is_missing(result.median_error):
        prose += f"; the median one had {words.number(np.exp(result.median_error))} times the line's density"
    moved, still = result.frontier_error, result.standstill_error
    if moved is None or still is None or words.is_missing(moved) or words.is_missing(still):
        return f"{prose}."
    better = "nearer" if result.beats_standing_still else "no nearer"
    return (
        f"{prose}. In the median over the cuts, the densest model half a year on had "
        f"{words.number(np.exp(moved))} times the density forecast for it, and {words.number(np.exp(still))} times the "
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
    prose = f"The headline's own forecast, made from models to {words.month(made.made)}, "
    score = made.score
    if score is None:
        return (
            f"{prose}ended in {words.month(made.end)}: that has passed, and no later model was measured on its "
            "ruler, so it is neither scored nor shown."
        )
    side = "inside" if score.lo90 <= score.came <= score.hi90 else "outside"
    ends = f"{words.number(score.lo90)} to {words.number(score.hi90)}"
    return (
        f"{prose}put the frontier of {words.day(score.date)} at a density of {words.number(score.mid)} (90 % "
        f"range {ends}); what came was {words.number(score.came)} ({words.clean(score.model)}), {side} the range, "
        f"from a record of {words.number(score.record)} at the time."
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
    return tuple(
        (
            f"When does a score of {words.number(row['score'])} fit in {words.size(row['params'])} parameters?",
            _answer(row),
        )
        for row in frame.to_dict("records")
    )


def _answer(row: Any) -> str:
    note = "" if words.is_missing(row.get("note")) else f" ({words.clean(row['note'], 300).rstrip('.')})"
    if words.is_missing(row["date"]):
        early = "" if words.is_missing(row["date_lo"]) else f"; not before {words.day(row['date_lo'])}"
        return f"No date can be given{early}{note}."
    early = "no earliest date" if words.is_missing(row["date_lo"]) else f"not before {words.day(row['date_lo'])}"
    late = "no latest date" if words.is_missing(row["date_hi"]) else f"at the latest {words.day(row['date_hi'])}"
    level = "" if words.is_missing(row.get("level")) else f" ({words.percentage(row['level'])} range)"
    return f"About {words.day(row['date'])}: {early}, {late}{level}{note}."
