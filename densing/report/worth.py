"""Whether techniques are worth it, as a page: Markdown, or one HTML file that needs no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from densing.core import formatting
from densing.plots import plot_worth
from densing.report.document import (
    Block,
    Figure,
    Headline,
    Page,
    Points,
    Prose,
    Section,
    doubtful,
    notes_section,
    versions_section,
)
from densing.report.page import shown_figure, write
from densing.report.tables import page_table

if TYPE_CHECKING:
    from densing.tradeoff import Worth

MOST_WORDS = 1000
"""Characters of a verdict in words."""
HOW = (
    "A technique whose step is s times as fast and whose tokens are worth r of plain ones reaches the same loss in "
    "1 / (s r) of the time. Steps are simulated with what published runs reach, anew with devices and links off by the "
    "spread of that fit's errors. Token ratios are those of ladders of small models, carried to the run's size and "
    "tokens along their trends, and widened with the distance: where the interval spans more than a factor of a "
    "hundred the ladder says nothing. A technique pays where the whole 95 % interval of s r lies above 1."
)


def build_worth(result: Worth, path: Path | str) -> Path:
    """Write the page.

    Parameters
    ----------
    result : Worth
        What :func:`densing.worth` gives.
    path : path
        HTML where the name ends in ``.html``, Markdown otherwise.

    Returns
    -------
    pathlib.Path
        The file.

    See Also
    --------
    densing.worth
    """
    return write(worth_page(result), path)


def worth_page(result: Worth) -> Page:
    """Return the page."""
    sections = (
        Section("verdicts", "Verdicts", (Prose(HOW), *verdicts(result, "worth"))),
        notes_section(result.notes),
        versions_section(),
    )
    head = Headline("Is it worth it?", formatting.clean(result.card().title), _facts(result), doubtful(result.notes),
                    map_of(result, "worth"))  # fmt: skip
    return Page("densing worth", head, sections, "... --page FILE")


def map_of(result: Worth, name: str) -> Figure:
    """Return the map of link speed against token ratio."""
    caption = (
        "Above its line a technique pays: the token ratio that makes up for its step, by the speed of the link. "
        "Points: the cluster's link, and what a token is worth there, with the 95 % interval."
    )
    return shown_figure(name, plot_worth(result), caption)


def verdicts(result: Worth, name: str) -> tuple[Block, ...]:
    """Return the verdicts in words, and their table."""
    points = Points.of([formatting.clean(sentence, MOST_WORDS) for sentence in result.sentences()])
    return (*points, page_table(f"{name}-table", result.listing()))


def _facts(result: Worth) -> tuple[tuple[str, str], ...]:
    days = result.plain_days
    return (
        ("Plain", f"{result.baseline}, {formatting.duration(1e9 * result.plain_step_s)} a step"),
        ("Days of plain", days.words),
        ("Parameters outside embeddings", formatting.size(result.params)),
    )
