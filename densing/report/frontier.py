"""Density against cost as a page: Markdown, or one HTML file that needs no network; and the report's section of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from densing import __version__
from densing.core import formatting, severest_first, write_text
from densing.plots import plot_frontier
from densing.report import markdown, page
from densing.report.page import (
    Field,
    Headline,
    ShownFigure,
    ShownTable,
    column,
    doubtful,
    first_notes,
    numeric,
    pairs,
    ranged,
    shown_figure,
    shown_table,
)
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
    target = Path(path)
    write_text(target, render(result) if target.suffix == ".html" else render_markdown(result))
    return target


def render(result: Frontier) -> str:
    """Return the page as HTML."""
    scales = [
        (formatting.clean(scale), scale_figure(result, scale, f"frontier-{number}"),
         frontier_table(result, scale, f"frontier-{number}-table"))
        for number, scale in enumerate(result.scales)
    ]  # fmt: skip
    context = {
        "headline": Headline(title(result), _lead(result), _facts(result), doubtful(result.notes),
                             scales[0][1] if scales else None),
        "sections": [("headline", "Headline"), *([("scales", "Frontiers")] if scales else []), ("notes", "Notes"),
                     ("versions", "Versions")],
        "scales": scales,
        **first_notes(result.notes),
        "versions": pairs({"densing": __version__}),
    }  # fmt: skip
    return page.fill("frontier.html", context)


def render_markdown(result: Frontier) -> str:
    """Return the page as Markdown."""
    parts = [
        f"# {title(result)}",
        f"Written by `densing frontier --cost {result.cost} --page FILE`; do not edit by hand.",
        _lead(result),
    ]
    for scale in result.scales:
        shown = frontier_table(result, scale, "t")
        lines = shown.markdown()
        parts += [f"## {markdown.literal(formatting.clean(scale))}", markdown.literal(result.sentence(scale)), lines]
    if result.notes:
        parts += ["## Notes", markdown.notes(severest_first(result.notes))]
    return "\n\n".join(parts) + "\n"


def title(result: Frontier) -> str:
    """Return the heading of a frontier."""
    return f"Density against {COSTS[result.cost].label}"


def scale_figure(result: Frontier, scale: str, name: str) -> ShownFigure:
    """Return the figure of a scale with what it shows in words."""
    return shown_figure(name, plot_frontier(result, scale), f"{formatting.clean(scale)}: {result.sentence(scale)}")


def frontier_table(result: Frontier, scale: str, name: str) -> ShownTable:
    """Return the rows of a scale that take part, by cost; those on the frontier are marked."""
    cost = COSTS[result.cost]
    table = result.table
    rows = table[table["scale"].eq(scale) & table["status"].eq("ok")]
    rows = rows.sort_values([result.cost, "density"], kind="stable")
    kind = "Ratio" if rows["source"].eq("arm").all() else "Density"
    fields = (
        Field("Name", column("name")),
        numeric(kind, "density"),
        Field("Interval", ranged("density", formatting.number), "density_lo", hint="95 %, measured"),
        numeric(cost.label[0].upper() + cost.label[1:], result.cost, cost.show),
        Field("On the frontier", lambda row: "yes" if row["on_frontier"] else ""),
        numeric("In draws", "share", formatting.percentage, hint="Share of joint draws in which it is on it"),
        Field("Cost rests on", column("evidence"), minor=True),
    )
    caption = "Everything with a density and a known cost, cheapest first; the frontier is emphasised."
    return shown_table(name, caption, rows, fields, mark="on_frontier", sortable=True)


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
