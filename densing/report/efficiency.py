"""Arrange the profile of a run as one self-contained HTML file."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from densing import __version__
from densing.core import write_text
from densing.efficiency.profile import SHOWN, pooled
from densing.plots import milliseconds, percent, text
from densing.report import assets, efficiency_idle, efficiency_ranks, efficiency_tables, page
from densing.report.efficiency_changes import changes
from densing.report.efficiency_definitions import DEFINITIONS
from densing.report.efficiency_density import JoinedDensity, joined_words
from densing.report.efficiency_figures import figures
from densing.report.efficiency_utilisation import utilisation_words
from densing.report.efficiency_words import clock_words, headline, per, straggler_words
from densing.report.sections import sentences

if TYPE_CHECKING:
    from densing.efficiency.profile import Comparison, RunProfile, RunUtilisation

SECTIONS = (
    ("headline", "Headline"),
    ("causes", "Causes"),
    ("partition", "Ranks"),
    ("timeline", "Timeline"),
    ("collectives", "Collectives"),
    ("stragglers", "Stragglers"),
    ("idle", "Idle"),
    ("path", "Critical path"),
    ("steps", "Steps"),
    ("copies", "Copies"),
    ("changes", "Changes"),
    ("density", "Density"),
    ("notes", "Notes"),
    ("definitions", "Definitions"),
    ("versions", "Versions"),
)
MOST_NOTES = 60
MOST_SOURCES = 200


def build_profile_report(
    run: RunProfile,
    path: Path | str,
    *,
    baseline: Comparison | None = None,
    density: JoinedDensity | None = None,
    utilisation: RunUtilisation | None = None,
) -> Path:
    """Write the report of a profiled run: one HTML file that needs no network.

    Everything that comes from the traces is escaped; the page's own policy forbids every request and every script but
    the two that are inlined.

    Parameters
    ----------
    run : RunProfile
        What ``densing profile`` computes.
    path : path
        File to write; written whole or not at all.
    baseline : Comparison, optional
        What changed against another run.
    density : JoinedDensity, optional
        Density of the model that the run trains, with the device hours of its training.
    utilisation : RunUtilisation, optional
        Model and hardware FLOPs utilisation.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    densing.core.errors.InputError
        When the file cannot be written.
    """
    target = Path(path)
    write_text(target, render(run, baseline=baseline, density=density, utilisation=utilisation))
    return target


def render(
    run: RunProfile,
    *,
    baseline: Comparison | None = None,
    density: JoinedDensity | None = None,
    utilisation: RunUtilisation | None = None,
) -> str:
    """Return the page as text."""
    context = {**_words(run), **_tables(run)}
    context["utilisation"] = [] if utilisation is None else utilisation_words(utilisation)
    context["comparison"] = None if baseline is None else changes(baseline)
    whole = pooled([rank.partition for rank in run.ranks])
    context["density_words"] = [] if density is None else joined_words(density, whole)
    optional = {"changes": baseline, "density": density}
    context["sections"] = [entry for entry in SECTIONS if optional.get(entry[0], entry) is not None]
    own = assets.inline(assets.static("efficiency.css"))
    told = page.environment().get_template("efficiency.html").render(**context, **page.frame(), own_css=own)
    # Bytes in a file's name that are no text are written out.
    return str(told).encode("utf-8", "backslashreplace").decode()


def _words(run: RunProfile) -> dict[str, Any]:
    notes = sentences(run.notes)
    return {
        "headline": headline(run),
        "worst": worst(run),
        "figures": figures(run),
        "clock_words": clock_words(run),
        "straggler_words": straggler_words(run),
        "has_steps": len({step.number for rank in run.ranks for step in rank.steps}),
        "loading_words": efficiency_idle.loading_words(run),
        "notes": notes[:MOST_NOTES],
        "more_notes": f"{len(notes) - MOST_NOTES} more notes are in the JSON output." * (len(notes) > MOST_NOTES),
        "definitions": DEFINITIONS,
        "versions": pairs({"densing": __version__, "python": platform.python_version(), "numpy": np.__version__}),
        "options": pairs(run.options),
        "sources": sources(run),
    }


def _tables(run: RunProfile) -> dict[str, Any]:
    return {
        "causes": efficiency_tables.causes_table(run),
        "ranks": efficiency_ranks.ranks_table(run),
        "names": efficiency_tables.names_table(run, "names", "What took longest, by name, over all ranks."),
        "collectives": efficiency_tables.collectives_table(run),
        "waits": efficiency_tables.waits_table(run),
        "late": efficiency_tables.late_table(run),
        "idle": efficiency_idle.idle_table(run),
        "meanwhile": efficiency_idle.meanwhile_table(run),
        "gaps": efficiency_idle.gaps_table(run),
        "launches": efficiency_idle.launches_table(run),
        "turns": efficiency_tables.turns_table(run),
        "path": efficiency_tables.path_table(run),
        "step_rows": efficiency_ranks.steps_table(run),
        "spread": efficiency_ranks.spread_table(run),
        "copies": efficiency_idle.copies_table(run),
        "unrecognised": efficiency_tables.names_table(run, "unrecognised", UNRECOGNISED),
    }


UNRECOGNISED = (
    "Kernels among them count as compute by default, other device work counts as nothing. If some of it is "
    "communication, name it with --comm-pattern; densing profile --explain NAME says which rule a name meets."
)


def worst(run: RunProfile) -> list[tuple[str, str, str]]:
    """Return the worst causes: cost, what it is, what usually helps."""
    return [
        (
            f"{milliseconds(cause.ms_per_step)} {per(run)} ({percent(cause.share_pct)})",
            text.clean(cause.message, 600),
            text.clean(cause.remedy, 600),
        )
        for cause in run.causes[:SHOWN]
    ]


def pairs(mapping: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names and values as words, by name."""
    return [(text.clean(name), text.clean(value, 400)) for name, value in sorted(mapping.items())]


def sources(run: RunProfile) -> list[tuple[str, str]]:
    """Return which file each rank was read from, and how its rank was known."""
    rows = [
        (f"rank {rank.rank}", f"{text.clean(rank.source, 300)} (rank from {rank.rank_from}; {rank.events} events)")
        for rank in run.ranks[:MOST_SOURCES]
    ]
    rest = len(run.ranks) - MOST_SOURCES
    return [*rows, ("…", f"{rest} more")] if rest > 0 else rows
