"""``densing report``: the HTML report alone, or the replication page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from densing.cli import options as o
from densing.cli.output import emit_json, finish, progress
from densing.core import InputError


def report(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File to write: .html for the report, .md for the replication page.")
    ] = Path("results/report.html"),
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
    """Write one self-contained HTML report, or the page that sets our numbers beside the paper's.

    Example: densing report --out docs/replication.md
    """
    from densing.report import build_replication, build_report
    from densing.scores.catalog import load_catalog, selection_of
    from densing.scores.study import StudyOptions, run_study

    if out.suffix not in (".html", ".md"):
        raise InputError(f"--out {out}: the name must end in .html (report) or .md (replication page)")
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
