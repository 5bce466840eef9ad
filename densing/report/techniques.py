"""Arrange a comparison of techniques as one self-contained HTML file."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from densing import __version__
from densing.core import write_text
from densing.plots import (
    BINS,
    MOST_RANKS,
    chosen_step,
    duration,
    plot_compare,
    plot_exposed,
    plot_gantts,
    plot_regime,
    rows_of,
    text,
)
from densing.report import assets, page
from densing.report import techniques_tables as tables
from densing.report.efficiency import MOST_NOTES, pairs
from densing.report.figures import ShownFigure, shown_figure
from densing.report.sections import sentences
from densing.report.techniques_timelines import timeline_table
from densing.report.techniques_words import DEFINITIONS, Contents, headline

if TYPE_CHECKING:
    from densing.core import Note
    from densing.efficiency.timeline import Timeline

SECTIONS = (
    ("headline", "Headline"),
    ("compare", "Side by side"),
    ("regime", "Where it pays"),
    ("timelines", "Timelines"),
    ("tau", "Period"),
    ("predicted", "Predicted"),
    ("claims", "Published"),
    ("notes", "Notes"),
    ("definitions", "Definitions"),
    ("versions", "Versions"),
)
NEEDED = {
    "compare": ("technique", "step_s", "exposed_comm_s", "speedup"),
    "regime": ("bandwidth_gbps", "batch", "technique", "speedup", "verdict"),
    "tau": ("technique", "tau", "exposed_s"),
    "predicted": ("technique", "quantity", "predicted", "measured"),
    "claims": ("technique", "claim", "published", "evidence", "source", "ours", "error", "grade", "verdict"),
}
"""Columns each table must have."""


def build_techniques(
    out: Path | str,
    compare: Any = None,
    regime: Any = None,
    claims: Any = None,
    timelines: Sequence[tuple[str, Timeline]] = (),
    tau: Any = None,
    predicted: Any = None,
    notes: Sequence[Note] = (),
    baseline: str = "",
) -> Path:
    """Write the report: one HTML file that needs no network. Sections without contents are left out.

    Every table is a DataFrame, or an iterable of mappings or Records.

    Parameters
    ----------
    out : path
        File to write; written whole or not at all.
    compare : table, optional
        technique, step_s, exposed_comm_s, speedup; optionally status, overlap_ratio, bytes, memory_bytes, changes_loss,
        reason.
    regime : table, optional
        bandwidth_gbps, batch, technique, speedup, verdict; optionally step_s.
    claims : table, optional
        technique, claim, published, evidence, source, ours, error, grade, verdict; optionally the other fields of
        :class:`densing.efficiency.techniques.validation.Finding`.
    timelines : sequence of (str, Timeline)
        Recorded or simulated, with what each is called.
    tau : table, optional
        technique, tau, exposed_s; optionally link, step_s, predicted.
    predicted : table, optional
        technique, quantity, predicted, measured; optionally unit (``s`` picks its own).
    notes : sequence of Note
    baseline : str
        What the speed-ups of ``compare`` are relative to; when empty the row whose speed-up is exactly 1.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    densing.core.errors.InputError
        When a table lacks a column, or the file cannot be written.
    """
    given = {"compare": compare, "regime": regime, "claims": claims, "tau": tau, "predicted": predicted}
    rows = {name: [] if table is None else rows_of(table, NEEDED[name], name) for name, table in given.items()}
    target = Path(out)
    write_text(target, render(Contents(**rows, timelines=tuple(timelines), notes=tuple(notes), baseline=baseline)))
    return target


def render(found: Contents) -> str:
    """Return the page as text."""
    notes = sentences(found.notes)
    context = {
        "headline": headline(found),
        "sections": [entry for entry in SECTIONS if getattr(found, entry[0], True) or entry[0] == "notes"],
        "figures": figures(found),
        **_tables(found),
        "timelines": [(text.clean(label, 120), f"gantt-{at}") for at, (label, _) in enumerate(found.timelines)],
        "timeline_words": TIMELINE_WORDS,
        "notes": notes[:MOST_NOTES],
        "more_notes": f"{len(notes) - MOST_NOTES} more notes are in the JSON output." * (len(notes) > MOST_NOTES),
        "definitions": DEFINITIONS,
        "versions": pairs({"densing": __version__, "python": platform.python_version(), "numpy": np.__version__}),
    }
    own = assets.inline(assets.static("techniques.css"))
    return str(page.environment().get_template("techniques.html").render(**context, **page.frame(), own_css=own))


TIMELINE_WORDS = (
    "One whole step of each on axes of equal length: the middle one of a recording, the longest steady one of a "
    f"simulation; up to {MOST_RANKS} ranks from the first on. Within a rank: compute, and below it communication, with "
    "what no compute covers laid over it. Where there is too much to be drawn one by one, work is put together within "
    f"each 1/{BINS} of the step (idle, compute, exposed communication): shares of time are right, the order in it not."
)
COMPARE_WORDS = (
    "A step of each technique: exposed communication (crossed), and the rest of the step: compute, with whatever "
    "communication it hides, and idle time. At the end of each bar how many times as fast as the baseline it is; a "
    "pale bar does not fit in memory and cannot be run."
)
REGIME_WORDS = (
    "Speed-up over the baseline at each bandwidth and batch (a row per technique and batch): blue and ▲ faster, orange "
    "and ▼ slower, = within 2 %, ✕ does not fit in memory; blank where the technique does not apply. The baseline "
    "itself is left out."
)
TAU_WORDS = (
    "Exposed communication per step against how many steps pass between exchanges; solid and filled measured, dashed "
    "and open predicted."
)


def figures(found: Contents) -> dict[str, ShownFigure]:
    """Return every figure of the page by name."""
    drawn = []
    for name, rows, plot, words in (
        ("compare", found.compare, plot_compare, COMPARE_WORDS),
        ("regime", found.regime, plot_regime, REGIME_WORDS),
        ("tau", found.tau, plot_exposed, TAU_WORDS),
    ):
        drawn += [shown_figure(name, plot(rows), words)] if rows else []
    gantts = plot_gantts([timeline for _, timeline in found.timelines])
    for at, ((label, timeline), figure) in enumerate(zip(found.timelines, gantts, strict=True)):
        drawn.append(shown_figure(f"gantt-{at}", figure, gantt_words(label, timeline)))
    return {figure.name: figure for figure in drawn}


def gantt_words(label: str, timeline: Timeline) -> str:
    """Return what a timeline shows, for readers who cannot see it."""
    simulated = all(rank.origin.simulated for rank in timeline.ranks)
    steps = len(timeline.ranks[0].steps) if timeline.ranks else 0
    held = f"{text.plural(len(timeline.ranks), 'rank')}, {text.plural(steps, 'step')}"
    drawn = chosen_step(timeline)
    which = f"; drawn is step {drawn.number}, {duration(drawn.length_ns)}, of steps of " if drawn else ""
    which += f"{duration(drawn.mean_ns)} in the mean" if drawn else ""
    return f"{text.clean(label, 120)}: {'simulated' if simulated else 'recorded'}, {held}{which}."


def _tables(found: Contents) -> dict[str, Any]:
    makers = {
        "compare": tables.compare_table,
        "regime": tables.regime_table,
        "tau": tables.tau_table,
        "predicted": tables.predicted_table,
        "claims": tables.claims_table,
    }
    made: dict[str, Any] = {}
    for name, make in makers.items():
        rows = getattr(found, name)
        made[name] = make(rows) if rows else None
    made["regime_sums"] = tables.regime_sums(found.regime) if found.regime else None
    made["grades"] = tables.grades_table(found.claims) if found.claims else None
    made["assumptions"] = tables.assumptions_table(found.claims)
    made["timeline_table"] = timeline_table(found.timelines)
    return made
