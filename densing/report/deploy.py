"""How to serve a model, as a page: Markdown, or one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from densing.report.tables import Field, ShownTable, column, numeric, shown_table

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
    policies: list[Block] = [policy_table(result), decision_table(result)]
    if result.tried is not None and len(result.tried):
        policies += [Heading("Served for real"), tried_table(result)]
    sections = (
        Section("ways", "Ways to serve", (Prose(how), choice_table(result))),
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


def choice_table(result: Deployment) -> ShownTable:
    """Return the ways to serve, the fastest first; those on the front are emphasised."""
    rows = result.choices
    dense = "density" in rows
    fields = [
        Field("Way", column("choice")),
        numeric("Bits per byte", "bits_per_byte"),
        *([Field("Density", _bounded("density"), "density")] if dense else []),
        *([Field("N per byte", _bounded("n_eff_per_byte"), "n_eff_per_byte")]
          if "n_eff_per_byte" in rows else []),
        *([Field("Density per ms", _bounded("density_per_ms"), "density_per_ms")] if dense else []),
        numeric("Device ms", "device_ms"),
        numeric("Server ms", "edge_ms"),
        numeric("Bytes sent", "bytes", formatting.count),
        numeric("Median ms", "median_ms"),
        numeric("95 % ms", "p95_ms"),
        numeric("Taken", "share", formatting.percentage, hint="By the recommended policy"),
    ]  # fmt: skip
    caption = "Ways to serve, fastest first. Those that nothing beats in quality and latency are emphasised."
    return shown_table("ways-table", caption, rows, fields, mark="front", sortable=True)


def _bounded(name: str) -> Callable[[Mapping[str, Any]], str]:
    """Return what shows a figure that may be a bound."""
    return lambda row: formatting.bounded(row[name], row.get("bound"))


def policy_table(result: Deployment) -> ShownTable:
    """Return the policies, the best first."""

    def gain(row: dict[str, float]) -> str:
        if row["sac_d_gain"] != row["sac_d_gain"]:
            return ""
        low, high = formatting.number(row["sac_d_gain_lo"]), formatting.number(row["sac_d_gain_hi"])
        return f"{formatting.number(row['sac_d_gain'])} ({low} to {high})"

    fields = (
        Field("Policy", column("policy")),
        Field("What it does", column("what")),
        numeric("Reward", "reward"),
        numeric("95 % ms", "p95_ms"),
        numeric("Late", "late", formatting.percentage),
        Field("sac-d beyond it", gain, "sac_d_gain", hint=f"{formatting.percentage(result.level)} interval"),  # type: ignore[arg-type]
    )
    return shown_table("policies-table", "Policies on the same requests.", result.policies, fields, sortable=True)


def decision_table(result: Deployment) -> ShownTable:
    """Return what the recommended policy takes while all is free."""
    fields = (
        numeric("Load", "load"),
        numeric("From Mbit/s", "from_mbit"),
        Field("Way", column("choice")),
    )
    return shown_table("decisions-table", f"What {result.recommended} takes while all is free.", result.table, fields)


def tried_table(result: Deployment) -> ShownTable:
    """Return what was served for real."""
    fields = (
        Field("Way", column("choice")),
        numeric("Bytes sent", "bytes", formatting.count),
        numeric("Predicted ms", "predicted_ms"),
        numeric("Measured ms", "measured_ms"),
        numeric("Difference", "difference", formatting.percentage),
    )
    return shown_table("tried-table", "Measured while serving, one request at a time.", result.tried, fields)


def _facts(result: Deployment) -> tuple[tuple[str, str], ...]:
    times = result.times
    return (
        ("Take", f"{result.recommended}: {result.reason}"),
        ("Deadline", f"{formatting.number(1e3 * result.service.deadline_s)} ms"),
        ("A request", f"{times.tokens} tokens every {formatting.number(1e3 * result.service.interval_s)} ms"),
        ("The model", f"{times.layers} layers, {times.parameters:,} parameters"),
    )
