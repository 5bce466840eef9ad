"""Density against cost as a page: Markdown, or one HTML file that needs no network; and the report's section of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from densing.core import formatting
from densing.plots import plot_frontier
from densing.report.document import (
    Block,
    Figure,
    Heading,
    Headline,
    Page,
    Prose,
    Section,
    doubtful,
    notes_section,
    versions_section,
)
from densing.report.page import shown_figure, write
from densing.report.tables import ShownTable, page_table
from densing.tradeoff import COSTS

if TYPE_CHECKING:
    from densing.tradeoff import Frontier

WHAT = (
    "A row is on the frontier when no other has at least its density at no more cost. The share says in how many draws "
    "of all densities together that holds; costs are taken as exact. Limits are drawn (triangles) and not compared."
)
SCALES = (
    "Densities compare on one scale only: an arm of a ladder has a ratio to plain training at the ladder's sizes, "
    "never a place among models."
)
FLOPS = (
    "Training compute is 6 N D (Kaplan et al. 2020, arXiv 2001.08361, table 1), N the parameters that a token meets, D "
    "the stated training tokens; compute of teachers, of data written by models and of failed runs is in nobody's."
)

LABELS = {"ok": "Compared", "no cost": "Cost not known", "limit": "Known as a limit", "no density": "No density"}


def build_frontier(result: Frontier, path: Path | str) -> Path:
    """Write the page.

    Parameters
    ----------
    result : Frontier
        What :func:`densing.frontier` gives.
    path : path
        HTML where the name ends in ``.html``, Markdown otherwise.

    Returns
    -------
    pathlib.Path
        The file.

    See Also
    --------
    densing.frontier
    """
    return write(frontier_page(result), path)


def frontier_page(result: Frontier) -> Page:
    """Return the page."""
    blocks: list[Block] = []
    figures = [scale_figure(result, scale, f"frontier-{number}") for number, scale in enumerate(result.scales)]
    for number, (scale, figure) in enumerate(zip(result.scales, figures, strict=True)):
        blocks += [Heading(formatting.clean(scale)), *([figure] if number else []), Prose(result.sentence(scale)),
                   frontier_table(result, scale, f"frontier-{number}-table")]  # fmt: skip
    title = f"Density against {COSTS[result.cost].label}"
    head = Headline(title, _lead(result), _facts(result), doubtful(result.notes), figures[0] if figures else None)
    shown = Section("scales", "Frontiers", tuple(blocks))
    sections = (*([shown] if blocks else []), notes_section(result.notes), versions_section())
    return Page("densing frontier", head, sections, f"--cost {result.cost} --page FILE")


def scale_figure(result: Frontier, scale: str, name: str) -> Figure:
    """Return the figure of a scale with what it shows in words."""
    caption = f"{formatting.clean(scale)}: density against {COSTS[result.cost].label}, and the frontier."
    return shown_figure(name, plot_frontier(result, scale), caption)


def frontier_table(result: Frontier, scale: str, name: str) -> ShownTable:
    """Return the rows of a scale that take part, by cost; those on the frontier are marked."""
    table = result.table
    rows = table[table["scale"].eq(scale) & table["status"].eq("ok")]
    rows = rows.sort_values([result.cost, "density"], kind="stable")
    caption = "Everything with a density and a known cost, cheapest first; the frontier is emphasised."
    return page_table(name, result.listing(rows, caption), sortable=True)


def _lead(result: Frontier) -> str:
    several = len(set(result.table["scale"])) > 1 or result.table["source"].eq("arm").any()
    return " ".join([WHAT, *([SCALES] if several else []), *([FLOPS] if result.cost == "flops" else [])])


def _facts(result: Frontier) -> tuple[tuple[str, str], ...]:
    table: pd.DataFrame = result.table
    counts: dict[str, Any] = table["status"].value_counts().to_dict()
    return tuple(
        (LABELS.get(status, formatting.clean(status, 40)), formatting.plural(count, "row"))
        for status, count in counts.items()
    )
