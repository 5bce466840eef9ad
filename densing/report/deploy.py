"""How to serve a model, as a page: Markdown, or one HTML file that needs no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from densing.core import formatting
from densing.plots import plot_deployment
from densing.report import markdown
from densing.report.document import (
    Block,
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
from densing.report.tables import page_table

if TYPE_CHECKING:
    from densing.tradeoff import Deployment

HOW = (
    "Quality is {quality_from}; no way to serve is interpolated. Latency: the device's layers, longer while "
    "others use it, the wire, the server's layers; percentiles are of requests that find all free. A policy chooses "
    "for each request by the last bandwidths, the load and what still waits, and is paid for quality less a share of "
    "the deadline used, less a penalty for a deadline missed."
)


def build_deployment(result: Deployment, path: Path | str) -> Path:
    """Write the page.

    Parameters
    ----------
    result : Deployment
        What :func:`densing.deploy` gives.
    path : path
        HTML where the name ends in ``.html``, Markdown otherwise.

    Returns
    -------
    pathlib.Path
        The file.

    See Also
    --------
    densing.deploy
    """
    return write(deployment_page(result), path)


def deployment_page(result: Deployment) -> Page:
    """Return the page."""
    caption = f"Ways to serve {formatting.clean(result.model)}; the front and the deadline."
    figure = shown_figure("front", plot_deployment(result), caption)
    title = formatting.clean(f"Serving {result.model} between a device and a server", 120)
    lead = formatting.clean(result.sentence, markdown.LONGEST)
    how = HOW.format(quality_from=formatting.clean(result.quality_from, 200))
    policies: list[Block] = [
        page_table("policies-table", result.policies_listing(), sortable=True),
        page_table("decisions-table", result.decisions_listing()),
    ]
    if result.tried is not None and len(result.tried):
        policies += [Heading("Served for real"), page_table("tried-table", result.tried_listing())]
    sections = (
        Section(
            "ways", "Ways to serve", (Prose(how), page_table("ways-table", result.choices_listing(), sortable=True))
        ),
        Section("policies", "Policies", tuple(policies)),
        notes_section(result.notes),
        versions_section(),
    )
    return Page(
        "densing deploy",
        Headline(title, lead, _facts(result), doubtful(result.notes), figure),
        sections,
        "... --page FILE",
    )


def _facts(result: Deployment) -> tuple[tuple[str, str], ...]:
    times = result.times
    return (
        ("Take", f"{result.recommended}: {result.reason}"),
        ("Deadline", f"{formatting.number(1e3 * result.service.deadline_s)} ms"),
        ("A request", f"{times.tokens} tokens every {formatting.number(1e3 * result.service.interval_s)} ms"),
        *([("An answer", f"{result.output_tokens} tokens, one after another")] if result.output_tokens > 1 else []),
        ("The model", f"{times.layers} layers, {times.parameters:,} parameters"),
    )
