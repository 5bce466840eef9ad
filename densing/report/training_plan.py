"""What a budget trains best, as a page: Markdown, or one HTML file that needs no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from densing.core import formatting
from densing.plots import plot_isoflop
from densing.report.document import Headline, Page, Points, Prose, Section, doubtful, notes_section, versions_section
from densing.report.page import shown_figure, write
from densing.report.tables import page_table

if TYPE_CHECKING:
    from densing.tradeoff import TrainingPlan

HOW = (
    "A law says what loss a size reaches on so many tokens, a cost model fitted to published training speeds how fast "
    "the best layout of a shape of that size trains; planned is the shape of least loss. Each draw of the law's "
    "constants goes with one of the cost model's error, which is common to all sizes: the interval of N is that of the "
    "best size, those of tokens and loss are of the planned one."
)
SMALLER = (
    "The smaller model reaches the same loss on more tokens per parameter. Sizes and tokens are the law's, its hours "
    "are those of the best layout of the nearest shape; serving is counted as 2 N operations per token."
)


def build_training_plan(plan: TrainingPlan, path: Path | str) -> Path:
    """Write the page.

    Parameters
    ----------
    plan : TrainingPlan
        What :func:`densing.tradeoff.plan_training` gives.
    path : path
        HTML where the name ends in ``.html``, Markdown otherwise.

    Returns
    -------
    pathlib.Path
        The file.

    See Also
    --------
    densing.tradeoff.plan_training
    """
    return write(plan_page(plan), path)


def plan_page(plan: TrainingPlan) -> Page:
    """Return the page."""
    caption = "Loss by size: at the same GPU hours, each with its best layout, and by the law at the plan's 6 N D."
    figure = shown_figure("isoflop", plot_isoflop(plan), caption)
    layout, shape = plan.layout, plan.shape
    parts = [
        f"Shape: {shape.layers} layers of {shape.hidden:,}, {shape.heads} heads, MLP {shape.ffn:,}.",
        f"Layout: tensor {layout.tp}, context {layout.cp}, pipeline {layout.pp} of {layout.virtual} stages each, "
        f"replicas {layout.dp}, ZeRO {layout.zero}, micro-batch {layout.micro_batch}, recompute {layout.recompute}; "
        f"MFU {formatting.percent(100 * layout.mfu)}, {layout.memory_bytes / 1e9:.0f} GB per device.",
        f"Hoffmann's closed form for the plan's 6 N D: {formatting.size(plan.closed_form)} parameters.",
        plan.density_note,
    ]
    sections = (
        Section(
            "plan",
            "The plan",
            (Prose(HOW), *Points.of(parts), page_table("plan-table", plan.listing()), Prose(SMALLER)),
        ),
        Section(
            "sizes", "Sizes at the same GPU hours", (page_table("sizes-table", plan.sizes_listing(), sortable=True),)
        ),
        notes_section(plan.notes),
        versions_section(),
    )
    title = f"A model for {plan.gpu_hours:,.10g} GPU hours"
    head = Headline(title, formatting.sentence(plan.sentence), _facts(plan), doubtful(plan.notes), figure)
    return Page("densing scaling plan", head, sections, "... --page FILE")


def _facts(plan: TrainingPlan) -> tuple[tuple[str, str], ...]:
    return (
        ("Law", formatting.clean(f"{plan.law}: {plan.source}")),
        ("Cluster", formatting.clean(f"{plan.devices:,} devices ({plan.device}) of {plan.cluster}")),
        ("Days", formatting.number(plan.days, 3)),
        ("Tokens per parameter", formatting.digits(plan.tokens_per_param)),
    )
