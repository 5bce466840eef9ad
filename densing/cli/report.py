"""``densing report``: the HTML report alone, the replication page, or the page on density today."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from densing.cli import options as o
from densing.cli.output import emit_json, finish, progress
from densing.core import InputError, UnknownNameError

PAGES = ("replication", "today")


def report(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File to write: .html for the report, .md for a page in Markdown.")
    ] = Path("results/report.html"),
    page: Annotated[
        str,
        typer.Option(
            help="Which page in Markdown: replication, or today (the joint scale validated against its rivals, the "
            "trend's questions, forecasts back-tested; ten minutes)."
        ),
    ] = "replication",
    reference: o.Reference = "joint",
    benchmark: o.Benchmark = "mean",
    since: o.Since = "2023-02-24",
    until: o.Until = None,
    catalog: o.CatalogFiles = None,
    include: o.Include = None,
    denominator: o.Denominator = "total",
    seed: o.Seed = 0,
    json: o.JsonFlag = False,
) -> None:
    """Write one self-contained HTML report, the page that sets our numbers beside the paper's, or that on today.

    Example: densing report --out docs/results/replication.md

    Example: densing report --page today --out docs/results/density-2026.md
    """
    from densing.report import build_replication, build_report, build_today
    from densing.scores.catalog import load_catalog, selection_of
    from densing.scores.study import StudyOptions, density_today, run_study

    if out.suffix not in (".html", ".md"):
        raise InputError(f"--out {out}: the name must end in .html (report) or .md (a page in Markdown)")
    if page not in PAGES:
        raise UnknownNameError("--page", page, PAGES)
    if page == "today":
        if out.suffix != ".md":
            raise InputError(f"--out {out}: the page on today is Markdown; name it .md")
        with progress(quiet=json) as step:
            path = build_today(density_today(load_catalog(*(catalog or [])), step=step), out)
        emit_json({"report": str(path), "notes": []}) if json else typer.echo(str(path))
        return
    o.parse_window(since, until)
    options = StudyOptions(
        reference, benchmark, since, until, selection=selection_of(include), denominator=denominator, seed=seed
    )
    with progress(quiet=json) as step:
        study = run_study(load_catalog(*(catalog or [])), options, step=step)
        path = build_report(study, out) if out.suffix == ".html" else build_replication(study, out)
    if json:
        emit_json({"report": str(path), "notes": list(study.notes)})
    else:
        typer.echo(str(path))
    finish(study.notes)
