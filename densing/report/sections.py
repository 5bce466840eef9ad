"""The smaller tables and lists of the report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from densing.core import Note, once, severest_first
from densing.plots import status, text
from densing.report.tables import Field, ShownTable, column, ranged, shown

if TYPE_CHECKING:
    from densing.scores.references import Reference
    from densing.scores.study import Study
    from densing.scores.trend import Checks, TrendResult

_SPECIFICATION = ("reference", "benchmark", "evaluator", "window", "denominator", "dates", "method")


def estimates_table(trend: TrendResult) -> ShownTable:
    """Return the estimators side by side, the headline marked."""
    from densing.scores.trend import held_truth

    fields = (
        Field("Estimator", lambda row: text.clean(row.get("label", row.get("method")))),
        Field("Doubling, months", column("doubling_months", text.months), "doubling_months"),
        Field("95 % interval", _months_interval, "lo"),
        Field("Held the truth", lambda row: held_truth(str(row.get("method"))) or text.MISSING, hint=_HELD),
        Field("Slope per day", column("slope_per_day", text.number), "slope_per_day"),
        Field("Rows", column("n", count), "n"),
        Field("Families", column("clusters", count), "clusters"),
        Field("Dropped", column("dropped", count), "dropped", hint="Censored rows the estimator cannot use"),
        Field("Standard error", column("se_type")),
    )
    caption = (
        "All estimators on the same rows; the marked one is the headline. Held the truth: how often the estimator's 95 "
        "% interval did in simulated worlds, from the worst kind of world to the best."
    )
    return shown("estimates-table", caption, trend.estimates, fields, mark="headline")


_HELD = "Share of simulated worlds whose truth its 95 % interval held"


def _months_interval(row: Any) -> str:
    return text.short_interval(row.get("lo"), row.get("hi"))


def count(value: Any) -> str:
    """Return a number of things, or the sign for a missing one."""
    return text.MISSING if text.is_missing(value) else f"{float(value):.0f}"


def ruler_table(ruler: Reference) -> ShownTable:
    """Return the points of the reference family with the miss of the curve at each."""
    points = ruler.points.copy()
    x = {"params": points["params"].to_numpy(float)}
    x |= {name: np.full(len(points), value) for name, value in ruler.given.items()}
    points["fitted"] = np.asarray(ruler.fit.predict(x), dtype=float) if len(points) else np.nan
    points["miss"] = points["score"] - points["fitted"]
    three = _digits(3)
    fields = (
        Field("Model", column("model")),
        Field("Size", column("params", text.size), "params"),
        Field("Score", column("score", three), "score"),
        Field("Curve", column("fitted", three), "fitted"),
        Field("Miss", column("miss", _signed), "miss", hint="Score less curve"),
        Field("Used", lambda row: "held out" if row.get("held_out") is True else "fitted"),
    )
    return shown("ruler-table", "Points of the ruler, and by how much the curve misses each.", points, fields)


def _digits(digits: int) -> Any:
    return lambda value: text.number(value, digits)


def _signed(value: Any) -> str:
    return text.MISSING if text.is_missing(value) else f"{float(value):+.3f}".replace("-", "−")


def multiverse_table(multiverse: pd.DataFrame) -> ShownTable:
    """Return every specification as a sortable table."""
    fields = (
        *(Field(name.capitalize(), column(name)) for name in _SPECIFICATION),
        Field("Doubling, months", column("doubling_months", text.months), "doubling_months"),
        Field("95 % interval", _months_interval, "lo"),
        Field("Rows", column("n", count), "n"),
        *shuffle_fields(),
    )
    caption = f"One row per specification; the marked one is the headline. {SHUFFLES}"
    return shown("multiverse-table", caption, multiverse, fields, mark="headline", sortable=True)


def shuffle_fields() -> tuple[Field, ...]:
    """Return the columns of the shuffle of whole families: its p, its size and its power."""
    return (
        Field("p, families shuffled", column("permutation_p", text.number), "permutation_p"),
        Field("Size", column("permutation_size", text.percentage), "permutation_size"),
        Field(f"Power at {text.PAPER_MONTHS}", column("permutation_power", text.percentage), "permutation_power"),
    )


SHUFFLES = (
    "p: share of shuffles of whole families' release dates with as steep a slope of all models; size and power: how "
    "often that test rejects at 5 % in worlds simulated on the same dates and families, without a trend and with a "
    f"doubling in {text.PAPER_MONTHS} months."
)


def replication_table(replication: pd.DataFrame) -> ShownTable:
    """Return the paper's own method by ruler and benchmark."""
    fields = (
        Field("Reference", column("reference")),
        Field("Benchmark", column("benchmark")),
        Field("Window", column("window")),
        Field("Doubling, months", column("doubling_months", text.months), "doubling_months"),
        Field("95 % interval", _months_interval, "lo"),
        Field("Rows", column("n", count), "n"),
        Field(f"Covers {text.PAPER_MONTHS}", lambda row: "yes" if _true(row.get("covers_paper")) else "no"),
        *shuffle_fields(),
    )
    caption = (
        "The paper's method (regression on record-setters, biased fast) on our rulers. The paper prints "
        f"about {text.PAPER_MONTHS} months (arXiv 2412.04315) without an interval; its journal version "
        f"{text.JOURNAL_MONTHS} months, {text.SECOND_HAND}. {SHUFFLES}"
    )
    return shown("replication-table", caption, replication, fields, sortable=True)


def _true(value: Any) -> bool:
    return not text.is_missing(value) and bool(value)


def skills_table(skills: pd.DataFrame) -> ShownTable:
    """Return the densities per skill."""
    fields = (
        Field("Model", column("model")),
        Field("Skill", column("skill")),
        Field("Density", lambda row: status.bounded(row.get("density"), row.get("bound")), "density"),
        Field("Interval", ranged("density", text.number), "density_lo"),
        Field("Effective size", column("n_eff", text.size), "n_eff"),
        Field("Status", lambda row: status.in_short(row.get("status"), row.get("bound"))),
        Field("Benchmarks", column("benchmarks")),
    )
    return shown("skills-table", "Density of every model for each skill.", skills, fields, sortable=True)


def provenance_table(provenance: pd.DataFrame) -> ShownTable:
    """Return the sources with licence and attribution."""
    fields = (
        Field("Source", column("title"), link="url"),
        Field("Id", column("id")),
        Field("Licence", column("licence")),
        Field("Attribution", column("attribution", lambda value: text.clean(value, 1000))),
        Field("Rows", column("rows", count), "rows"),
    )
    return shown("provenance-table", "Where the facts come from, and under which licence.", provenance, fields)


def tests_table(checks: Checks) -> ShownTable:
    """Return the tests that do not lead, with the size and power that say why."""
    from densing.scores.trend import sentences as trend_sentences

    fields = (
        Field("Test", column("test")),
        Field("p", column("p", text.number), "p"),
        Field("Size", column("size", text.percentage), "size", hint="Rejects at 5 % where there is no trend"),
        Field("Power", lambda row: _power(row.get("power"))),
    )
    caption = (
        "Tests with the wrong size or no power on these dates and families: how often each rejects at 5 % in simulated "
        "worlds without a trend (size; 5 % is right) and with one (power)."
    )
    tests = trend_sentences.other_tests(checks).items()
    rows = [{"test": name, "p": test.p, "size": test.size, "power": test.power} for name, test in tests]
    return shown("tests-table", caption, pd.DataFrame(rows), fields)


def _power(effects: Any) -> str:
    return "; ".join(f"{text.percentage(effect.share)} at {effect.effect}" for effect in effects or ()) or text.MISSING


def all_notes(study: Study) -> tuple[Note, ...]:
    """Return the notes of the study and of its parts without repeats, the severest first.

    Notes of the long window and of the models shown apart say so: their figures are not the headline's.
    """
    parts: tuple[tuple[str, Any], ...] = (
        ("", study),
        ("", study.reference),
        ("", study.density),
        ("", study.trend),
        ("Long window: ", study.long_trend),
        ("Shown apart: ", study.apart),
        ("Measured here: ", study.measured),
    )
    notes: dict[tuple[str, str], Note] = {}
    for label, part in parts:
        for note in getattr(part, "notes", ()):
            if (note.code, sentence(note.message)) not in notes:
                message = f"{label}{note.message}" if label else sentence(note.message)
                notes[note.code, message] = replace(note, message=message)
    return tuple(severest_first(notes.values()))


def sentences(notes: Iterable[Note]) -> list[Note]:
    """Return notes as sentences without repeats, the severest first."""
    return severest_first(once(Note(note.code, note.severity, sentence(note.message)) for note in notes))


def sentence(words: Any) -> str:
    """Return words as a sentence.

    Examples
    --------
    >>> sentence("no upper end")
    'No upper end.'
    """
    line = text.clean(words, 600)
    return f"{line[:1].upper()}{line[1:].rstrip('.')}."
