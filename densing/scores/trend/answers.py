"""Answers to questions of the trend: an estimate with an interval and a test, the groups behind it, and a sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from densing.core import Card, Field, Listing, Note, Readable, UnknownNameError, column, formatting, numeric
from densing.scores.fit import holm
from densing.scores.trend.contrasts import Contrast
from densing.scores.trend.data import Slope, TrendData
from densing.scores.trend.listing import GROUPS

SIGNIFICANT = 0.05
PER_YEAR = "doublings per year"
ROW_COLUMNS = (
    "label",
    "doubling_months",
    "lo",
    "hi",
    "slope",
    "models",
    "families",
    "first",
    "last",
    "estimate",
    "estimate_lo",
    "estimate_hi",
    "p",
    "status",
)
"""Of ``Answer.rows``: a group has a doubling time, a comparison an estimate in the answer's unit."""


@dataclass(frozen=True, repr=False)
class Answer(Readable):
    """One question, answered.

    Parameters
    ----------
    key : str
        ``pace``, ``language``, ``skill``, ``experts`` or ``compute``.
    question, answer : str
        One sentence each; the answer says so where the data give none.
    estimate, lo, hi : float
        In ``unit``; NaN where nothing could be estimated.
    unit : str
    p : float
        Two-sided; NaN without an estimate.
    test : str
        What ``p`` tests, and how.
    rows : pandas.DataFrame
        Groups and comparisons, columns :data:`ROW_COLUMNS`; ``slope`` per day, doubling times in months.
    caveats : tuple of str
        What to know before quoting it.
    notes : tuple of Note
    """

    key: str
    question: str
    answer: str
    estimate: float
    lo: float
    hi: float
    unit: str
    p: float
    test: str
    rows: pd.DataFrame
    caveats: tuple[str, ...] = ()
    notes: tuple[Note, ...] = field(default=())

    @property
    def estimable(self) -> bool:
        """Whether there is a figure with an interval."""
        return math.isfinite(self.estimate) and math.isfinite(self.lo) and math.isfinite(self.hi)

    @property
    def listing(self) -> Listing:
        """The groups behind the answer."""
        return Listing(self.question, self.rows, GROUPS)

    def card(self) -> Card:
        """Return what is shown: the sentence, the figure, the test, the groups."""
        facts = {
            "answer": self.answer,
            "estimate": f"{interval(self)} {self.unit}",
            "test": f"{formatting.p_value(self.p)} ({self.test})",
        }
        notes = (*self.notes, *(Note("caveat", "info", text) for text in self.caveats))
        return Card(self.question, facts, self.listing, notes)

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        return {
            **{
                name: getattr(self, name) for name in ("key", "question", "answer", "estimate", "lo", "hi", "unit", "p")
            },
            "test": self.test,
            "rows": self.rows.to_dict("records"),
            "caveats": list(self.caveats),
            "notes": list(self.notes),
        }


@dataclass(frozen=True, repr=False)
class Answers(Readable):
    """Answers to several questions.

    Parameters
    ----------
    answers : tuple of Answer
    level : float
        Of all intervals.

    See Also
    --------
    densing.scores.trend.answer_questions
    """

    answers: tuple[Answer, ...]
    level: float = 0.95

    def __iter__(self) -> Iterator[Answer]:
        return iter(self.answers)

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, key: str) -> Answer:
        """Return the answer to a question by its key."""
        for answer in self.answers:
            if answer.key == key:
                return answer
        raise UnknownNameError("question", key, [answer.key for answer in self.answers])

    @property
    def table(self) -> pd.DataFrame:
        """One row per question: key, question, answer, estimate, lo, hi, unit, p, p_holm, test.

        ``p_holm`` is corrected for the number of questions that were answered.
        """
        names = ["key", "question", "answer", "estimate", "lo", "hi", "unit", "p"]
        table = pd.DataFrame([[getattr(answer, name) for name in names] for answer in self.answers], columns=names)
        return table.assign(p_holm=holm(table["p"].tolist()), test=[answer.test for answer in self.answers])

    @property
    def notes(self) -> tuple[Note, ...]:
        """Notes of all answers, each once."""
        return tuple({(note.code, note.message): note for answer in self.answers for note in answer.notes}.values())

    def card(self) -> Card:
        """Return what is shown: a sentence per question."""
        facts = {answer.key: answer.answer for answer in self.answers}
        return Card(formatting.plural(len(self), "question") + " of the trend", facts, notes=self.notes)


def unanswered(key: str, question: str, unit: str, reason: str, rows: pd.DataFrame | None = None) -> Answer:
    """Return the answer where the data give none, with the reason in its sentence."""
    nan = math.nan
    empty = pd.DataFrame(columns=list(ROW_COLUMNS)) if rows is None else rows
    note = Note("not-answered", "warning", f"{key}: {reason}")
    text = f"The data do not say: {reason}."
    return Answer(key, question, text, nan, nan, nan, unit, nan, "none", empty, (), (note,))


def answered(
    key: str,
    question: str,
    answer: str,
    contrast: Contrast,
    unit: str,
    test: str,
    rows: Sequence[Mapping[str, Any]],
    caveats: Sequence[str],
    notes: Sequence[Note] = (),
    scale: float = 1.0,
) -> Answer:
    """Return the answer that a contrast gives, in units of ``1 / scale``."""
    estimate, lo, hi = (scale * value for value in (contrast.estimate, contrast.lo, contrast.hi))
    table = rows_table(rows)
    return Answer(
        key, question, answer, estimate, lo, hi, unit, contrast.p(), test, table, tuple(caveats), tuple(notes)
    )


def interval(value: Answer | Contrast, scale: float = 1.0) -> str:
    """Return an estimate with its interval, a sign where there are both: ``−0.81 (−1.9 to +0.3)``."""
    estimate, lo, hi = (scale * number for number in (value.estimate, value.lo, value.hi))
    signed = min(estimate, lo) < 0

    def text(number: float) -> str:
        plus = "+" if signed and number > 0 else ""
        return plus + formatting.number(number)

    return f"{text(estimate)} ({text(lo)} to {text(hi)})"


def group_row(label: str, data: TrendData, slope: Slope) -> Mapping[str, Any]:
    """Return the row of a group: its doubling time with interval, its size and its window."""
    lo, hi = slope.doubling_interval
    return {
        "label": label,
        "doubling_months": slope.doubling_months,
        "lo": lo,
        "hi": hi,
        "slope": slope.slope,
        **_extent(data),
        "status": slope.reason or "ok",
    }


def contrast_row(label: str, data: TrendData, contrast: Contrast, scale: float = 1.0) -> Mapping[str, Any]:
    """Return the row of a comparison, its estimate in units of ``1 / scale``."""
    return {
        "label": label,
        **_extent(data),
        "estimate": scale * contrast.estimate,
        "estimate_lo": scale * contrast.lo,
        "estimate_hi": scale * contrast.hi,
        "p": contrast.p(),
        "status": contrast.reason or "ok",
    }


def rows_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a table with all columns of :data:`ROW_COLUMNS`."""
    return pd.DataFrame(list(rows)).reindex(columns=list(ROW_COLUMNS))


def _extent(data: TrendData) -> dict[str, Any]:
    first, last = (pd.Timestamp(data.released.min()), pd.Timestamp(data.released.max())) if len(data) else (pd.NaT,) * 2
    # A stacked comparison holds a model once for every outcome.
    models, families = (len(set(names.tolist())) for names in (data.model, data.family))
    return {"models": models, "families": families, "first": first, "last": last}


def answers_listing(table: pd.DataFrame) -> Listing:
    """Return a row per question, of :attr:`Answers.table`, with its answer, interval and test."""

    def estimate(row: Mapping[str, Any]) -> str:
        if formatting.is_missing(row.get("estimate")):
            return formatting.MISSING
        unit = "" if formatting.is_missing(row.get("unit")) else f" {formatting.clean(row['unit'])}"
        return f"{formatting.number(row['estimate'])}{unit}"

    def ends(row: Mapping[str, Any]) -> str:
        lo_hi = (row.get("lo"), row.get("hi"))
        missing = any(map(formatting.is_missing, lo_hi))
        return formatting.MISSING if missing else " to ".join(map(formatting.number, lo_hi))

    fields = (
        Field("Question", column("question")),
        Field("Answer", column("answer", lambda value: formatting.clean(value, 1000))),
        Field("Estimate", estimate),
        Field("95 % interval", ends),
        numeric("p", "p", hint="Of the test in the next column"),
        Field("Test", column("test", lambda value: formatting.clean(value, 1000)), minor=True),
    )
    return Listing("What the same scale says of the usual questions.", table, fields)
