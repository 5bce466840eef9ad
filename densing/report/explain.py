"""On which items one model fails that another solves, as a page: Markdown, or one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densing.core import formatting
from densing.report import markdown
from densing.report.document import Headline, Page, Prose, Section, doubtful, notes_section, versions_section
from densing.report.page import write
from densing.report.tables import Field, ShownTable, column, numeric, ranged, shown_table
from densing.tradeoff import AMONG

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
    slices = slice_table(result)
    shown = Section("slices", "Densities on either side of the score", (slices,), short="Densities")
    sections = (
        Section("weights", "Weights", (Prose(HOW), weight_table(result))),
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


def weight_table(result: Explained) -> ShownTable:
    """Return the weights, the largest first; stable ones are emphasised."""
    fields = (
        Field("Feature", column("feature", lambda value: formatting.clean(value, 120))),
        numeric("Weight", "weight", hint="Above 0: A fails more often"),
        numeric("Stability", "stability", formatting.percentage, hint="Draws in which it keeps its sign"),
        numeric("Items", "items", formatting.count, hint="That hold the feature"),
        numeric("A fails on", "fails", formatting.percentage, hint="Of those items"),
    )
    caption = f"Told apart: {AMONG[result.among]}. Stable weights are emphasised."
    return shown_table("weights-table", caption, result.weights, fields, mark="stable", sortable=True)


def slice_table(result: Explained) -> ShownTable:
    """Return the densities on either side of the score."""

    def density(row: Mapping[str, Any]) -> str:
        return formatting.bounded(row["density"], row["bound"])

    fields = (
        Field("Items", column("slice")),
        Field("Model", column("model")),
        Field("Benchmark", column("benchmark")),
        Field("By", column("quantity")),
        numeric("Value", "score", hint="Share solved, or bits per byte"),
        numeric("Number", "n_items", formatting.count),
        Field("Density", density, "density"),
        Field("Interval", ranged("density", formatting.number), "density_lo", hint="95 %, measured"),
        Field("Status", lambda row: formatting.short_status(row["status"], row["bound"])),
    )
    return shown_table("slices-table", SLICES, result.slices, fields, sortable=True)


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
