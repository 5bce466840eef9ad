"""On which items one model fails that another solves, as a page: Markdown, or one HTML file that needs no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from densing.core import formatting
from densing.report import markdown
from densing.report.document import Headline, Page, Prose, Section, doubtful, notes_section, versions_section
from densing.report.page import write
from densing.report.tables import page_table

if TYPE_CHECKING:
    from densing.tradeoff import Explained

HOW = (
    "A logistic classifier with an L1 penalty on the words and word pairs of the items, their tasks, fields and "
    "lengths. A weight above 0 means that A fails more often where the feature is, other features being equal; it "
    "names no cause. The penalty is the one that predicts best in folds of the items learnt from, among those that "
    "leave few enough weights. Stability is the share of draws of the items anew in which a weight keeps its sign."
)
SLICES = (
    "Densities of both models on held-out items, above the middle score of their task (A likely to fail) and at or "
    "below it. A slice is a part of a benchmark and is read on the reference of the whole: compare the models on a "
    "slice, not the slices with each other."
)


def build_explained(result: Explained, path: Path | str) -> Path:
    """Write the page.

    Parameters
    ----------
    result : Explained
        What :func:`densing.explain_items` gives.
    path : path
        HTML where the name ends in ``.html``, Markdown otherwise.

    Returns
    -------
    pathlib.Path
        The file.

    See Also
    --------
    densing.explain_items
    """
    return write(explained_page(result), path)


def explained_page(result: Explained) -> Page:
    """Return the page."""
    title = formatting.clean(f"Where {result.a} fails and {result.b} does not", 120)
    lead = formatting.clean(result.sentence, markdown.LONGEST)
    slices = page_table("slices-table", result.slices_listing(), SLICES, sortable=True)
    shown = Section("slices", "Densities on either side of the score", (slices,), short="Densities")
    sections = (
        Section(
            "weights", "Weights", (Prose(HOW), page_table("weights-table", result.weights_listing(), sortable=True))
        ),
        *([shown] if slices.rows else []),
        notes_section(result.notes),
        versions_section(),
    )
    return Page(
        "densing results explain",
        Headline(title, lead, _facts(result), doubtful(result.notes)),
        sections,
        "STORE --model A --against B --page FILE",
    )


def _facts(result: Explained) -> tuple[tuple[str, str], ...]:
    return (
        ("Items told apart", f"{result.items}, A fails on {result.fails}"),
        ("Held out", f"{result.held_out}"),
        ("AUC there", "unknown: too few held out" if formatting.is_missing(result.auc) else
                      f"{formatting.number(result.auc)}, {formatting.percentage(result.level)} interval "
                      f"{formatting.number(result.auc_lo)} to {formatting.number(result.auc_hi)}"),
        ("Tasks", formatting.clean(formatting.listed(result.tasks), 200)),
        ("Features", f"{result.features}, of which {len(result.weights)} have a weight"),
        ("Penalty", formatting.number(result.lam)),
        ("Moved", result.moved),
    )  # fmt: skip
