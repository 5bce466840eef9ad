"""Arrange a study as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densing.core import write_text
from densing.plots import text
from densing.report import models, page, sections
from densing.report.checks import check_data, check_sentences, diagnostics
from densing.report.figures import figures
from densing.report.forecast import backtest, corollaries_table, past, questions
from densing.report.headline import asked_of, headline, long_title
from densing.report.measured import measured_lead, measured_table, measured_words

if TYPE_CHECKING:
    from densing.scores.study import Study

SECTIONS = (
    ("headline", "Headline"),
    ("density", "Density"),
    ("measured", "Measured here"),
    ("estimators", "Estimators"),
    ("ruler", "Ruler"),
    ("multiverse", "Multiverse"),
    ("checks", "Checks"),
    ("forecast", "Forecast"),
    ("skills", "Skills"),
    ("models", "Models"),
    ("notes", "Notes"),
    ("sources", "Sources"),
    ("versions", "Versions"),
)


def build_report(study: Study, path: Path | str) -> Path:
    """Write the report of a study: one HTML file that needs no network.

    Everything that comes from data is escaped; the page's own policy forbids every request and every script
    but the two that are inlined.

    Parameters
    ----------
    study : Study
        What ``densing run`` computes.
    path : path
        File to write; written whole or not at all.

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
    write_text(target, render(study))
    return target


def render(study: Study) -> str:
    """Return the page as text."""
    return str(page.environment().get_template("report.html").render(**_context(study), **page.frame()))


def _context(study: Study) -> dict[str, Any]:
    return {
        "headline": headline(study),
        "figures": figures(study),
        "sections": [entry for entry in SECTIONS if entry[0] != "measured" or study.measured is not None],
        "long_title": long_title(study),
        "measured": study.measured and measured_table(study.measured),
        "measured_lead": study.measured and measured_lead(study.measured),
        "measured_words": study.measured and measured_words(study.measured),
        "asked_of": asked_of(study),
        "estimates": sections.estimates_table(study.trend),
        "multiverse": sections.multiverse_table(study.multiverse),
        "replication": sections.replication_table(study.replication),
        "ruler": sections.ruler_table(study.reference),
        "checks": check_sentences(study),
        "tests": sections.tests_table(study.trend.checks),
        "diagnostics": diagnostics(study.trend.checks),
        "check_data": check_data(study),
        "questions": questions(study.questions),
        "backtest": backtest(study.backtest),
        "past": past(study.past_forecast),
        "corollaries": corollaries_table(study.corollaries),
        "models": models.models_table(study),
        "skills": sections.skills_table(study.skills),
        "notes": sections.all_notes(study),
        "provenance": sections.provenance_table(study.provenance),
        "versions": _pairs(study.versions),
        "hashes": _pairs(study.hashes),
        "options": _pairs(study.options),
    }


def _pairs(mapping: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(text.clean(name), text.clean(value, 400)) for name, value in sorted(mapping.items())]
