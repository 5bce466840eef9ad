"""The checks of a trend as short sentences with their numbers.

A check that is absent from the study is left out, never invented; the page also prints the raw data of all
checks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from densing.plots import leave_one_out, text
from densing.report.split import chatgpt_split
from densing.scores.trend import sentences

if TYPE_CHECKING:
    from densing.scores.study import Study
    from densing.scores.trend import Checks

KEPT_ITEMS = 40


def check_sentences(study: Study) -> tuple[tuple[str, str], ...]:
    """Return (name, sentence) of every check the study holds."""
    checks = study.trend.checks
    found = (
        ("Permutation of release dates", sentences.shuffled(checks)),
        ("Searched break", sentences.broken(checks)),
        ("Leave out", left_out(checks)),
        ("Without named groups", without_groups(study)),
        ("Organisations as clusters", sentences.by_organisation(checks)),
        ("Record-setter bias", record_setter_bias(checks)),
        ("Long window", long_window(study)),
        ("Replication", replication(study.replication)),
        ("ChatGPT split", chatgpt_split(study.split)),
        ("Where the uncertainty comes from", variance_shares(checks)),
    )
    return tuple((name, sentence) for name, sentence in found if sentence)


def left_out(checks: Checks) -> str:
    """Return the range of the doubling time when one family, or one organisation, at a time is left out."""
    frame = leave_one_out(checks)
    found = []
    for kind, many in (("family", "families"), ("organisation", "organisations")):
        rows = frame[frame["kind"] == kind]
        if rows.empty:
            continue
        first, last = rows.iloc[0], rows.iloc[-1]
        found.append(
            f"Leaving out one of {text.plural(len(rows), kind, many)} at a time moves the headline between "
            f"{_doubles(first['doubling_months'])} (without {text.clean(first['name'])}) and "
            f"{_doubles(last['doubling_months'])} (without {text.clean(last['name'])})."
        )
    return " ".join(found)


def without_groups(study: Study) -> str:
    """Return the headline, and the long window's, without each named group of families."""
    near = sentences.without_groups(study.trend.checks, float(study.trend.headline["doubling_months"]))
    if study.long_trend is None:
        return near
    far = sentences.without_groups(study.long_trend.checks, float(study.long_trend.headline["doubling_months"]))
    return f"{near} Over the long window: {far[:1].lower()}{far[1:]}" if near and far else near or far


def _doubles(value: Any) -> str:
    return "no doubling" if text.is_missing(value) or np.isinf(value) else f"{text.months(value)} months"


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
    if null is None or text.is_missing(null.median_doubling_months):
        return ""
    words = (
        "Record-setters rise even without a trend: on these dates, the paper's regression on data without "
        f"any trend reports a doubling every {text.months(null.median_doubling_months)} months in the "
        "median"
    )
    months = (None, None) if true is None else (true.true_doubling_months, true.median_doubling_months)
    if not any(map(text.is_missing, months)):
        words += (
            f". If the headline's {text.months(months[0])} months were true, it would read {text.months(months[1])}"
        )
    return f"{words}."


def variance_shares(checks: Checks) -> str:
    """Return the shares of the slope's variance by origin.

    Examples
    --------
    >>> from densing.scores.trend import Checks, VarianceShares
    >>> variance_shares(Checks(variance_shares=VarianceShares(score_noise=None, reference_law=0.1, models=0.9)))
    'Shares of the variance of the slope: the fitted ruler 10 %, which models exist 90 %.'
    """
    shares = {} if checks.variance_shares is None else asdict(checks.variance_shares)
    parts = [
        f"{_SHARES[name]} {text.percentage(share)}" for name, share in shares.items() if not text.is_missing(share)
    ]
    return f"Shares of the variance of the slope: {', '.join(parts)}." if parts else ""


_SHARES = {
    "models": "which models exist",
    "reference_law": "the fitted ruler",
    "score_noise": "noise of the scores",
}


def diagnostics(checks: Checks) -> str:
    """Return the specification tests of the straight line.

    Examples
    --------
    >>> from densing.scores.trend import Checks, Diagnostics
    >>> diagnostics(Checks(diagnostics=Diagnostics(40, 0.2, None, None, None))).split(". ")[0]
    'On the 40 observed rows: curvature (RESET) p = 0.20'
    """
    tests = {} if checks.diagnostics is None else asdict(checks.diagnostics)
    parts = [
        f"{name} {text.p_value(tests[key])}" for key, name in _TESTS.items() if not text.is_missing(tests.get(key))
    ]
    if not parts:
        return ""
    return (
        f"On the {tests['n']} observed rows: {', '.join(parts)}. These take models as independent, which families "
        "are not, so they accuse too often; their size and power were not simulated."
    )


_TESTS = {
    "reset_p": "curvature (RESET)",
    "breusch_pagan_p": "uneven scatter (Breusch–Pagan)",
    "ljung_box_p": "serial correlation (Ljung–Box)",
}


def long_window(study: Study) -> str:
    """Return the doubling time over the long window, with its own ruler, beside that of the headline."""
    trend, ruler = study.long_trend, study.long_reference
    if trend is None:
        return ""
    head, near = trend.headline, study.trend.headline
    released = pd.DatetimeIndex(trend.data.released)
    level = float(trend.options.get("level", 0.95))
    doubling = text.doubling(head["doubling_months"], head["lo"], head["hi"], level)
    # An organisation's families share more over years than over months: here the wider interval may be the right one.
    more = f"{sentences.by_organisation(trend.checks, level)} {sentences.broken(trend.checks)}"
    means = "" if ruler is None else f", ruler {text.clean(ruler.title)} on {text.clean(ruler.benchmark)}"
    return (
        f"Over the long window, {text.month(released.min())} to {text.month(released.max())} "
        f"({text.plural(len(released), 'model')}{means}), the doubling time is {doubling}, against "
        f"{_doubles(near['doubling_months'])} in the headline{_pace(head, near)}. {more.strip()}"
    ).rstrip()


def _pace(head: Any, near: Any) -> str:
    slow, fast = head["doubling_months"], near["doubling_months"]
    if text.is_missing(slow) or text.is_missing(fast) or np.isinf(slow) or np.isinf(fast):
        return ""
    apart = head["lo"] > near["hi"] or head["hi"] < near["lo"]
    pace = "slower" if slow > fast else "faster"
    return f": a {pace} pace, and the intervals {'do not overlap' if apart else 'overlap'}"


def replication(frame: pd.DataFrame) -> str:
    """Return on how many rulers the paper's method covers the paper's figure."""
    if frame.empty:
        return ""
    covering = frame[frame["covers_paper"].map(lambda cell: not text.is_missing(cell) and bool(cell))]
    bounded = int(np.isfinite(pd.to_numeric(covering["hi"], errors="coerce")).sum())
    return (
        f"The 95 % interval of the paper's own method covers its {text.PAPER_MONTHS} months on {len(covering)} of "
        f"{text.plural(len(frame), 'ruler and benchmark set')}, {bounded} of these with an upper end; that method is "
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
        if len(value) > KEPT_ITEMS and not isinstance(value[0], Mapping):
            return f"{len(value)} values, {text.number(np.nanmin(value))} to {text.number(np.nanmax(value))}"
        return [_short(entry) for entry in value]
    if isinstance(value, float) and not np.isfinite(value):
        return text.number(value)
    return value
