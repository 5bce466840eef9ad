"""``densing run``: the main job end to end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from densing.cli import options as o
from densing.cli.output import emit_json, finish, progress, say, show_notes
from densing.core import write_csv

if TYPE_CHECKING:
    from densing.scores.study import Study


def run(
    out: Annotated[Path, typer.Option("--out", "-o", file_okay=False, help="Folder for the report and tables.")] = Path(
        "results/latest"
    ),
    reference: o.Reference = "qwen1.5",
    benchmark: o.Benchmark = "mean",
    since: o.Since = "2023-02-24",
    until: o.Until = None,
    catalog: o.CatalogFiles = None,
    include: o.Include = None,
    denominator: o.Denominator = "total",
    tokens: o.Tokens = None,
    guard: o.Guard = 3.0,
    seed: o.Seed = 0,
    measure: Annotated[
        bool,
        typer.Option(help="Also evaluate a real model (SmolLM2-135M, minutes the first time; needs densing[evals])."),
    ] = True,
    fast: Annotated[bool, typer.Option("--fast", help="Evaluate it on a quarter of the items.")] = False,
    json: o.JsonFlag = False,
) -> None:
    """Do the main job: catalog, densities, doubling time, a model measured here, HTML report.

    Writes report.html (opens offline), density.csv (a row per model), trend.csv (a row per estimator) and, with a
    model measured, measured.csv (a row per task) and measured/ (its result store).

    Example: densing run --out results/mine --catalog my_scores.csv
    """
    from densing.cli.eval import bar
    from densing.report import build_report
    from densing.scores.catalog import load_catalog, selection_of
    from densing.scores.study import StudyOptions, measure_bundled, run_study

    o.parse_window(since, until)
    options = StudyOptions(reference, benchmark, since, until, selection_of(include), denominator, guard, tokens, seed)
    merged = load_catalog(*(catalog or []))
    measured = None
    if measure:
        with bar(json) as show:
            measured = measure_bundled(out / "measured", merged, fast=fast, tokens=tokens, progress=show)
    with progress(quiet=json) as step:
        study = run_study(merged, options, measured=measured, step=step)
        step("report", 0.99)
        report = build_report(study, out / "report.html")
    write_csv(study.models, out / "density.csv")
    write_csv(study.trend.estimates, out / "trend.csv")
    if measured is not None and measured.densities is not None:
        write_csv(measured.densities.table, out / "measured.csv")
    if json:
        emit_json(_payload(study, report))
    else:
        show_notes(study.notes, verbose=False)
        say("\n".join(_headline(study)))
        typer.echo(str(report))
    finish(study.notes)


def _headline(study: Study) -> list[str]:
    from densing.scores.trend import sentences

    head = study.trend.headline
    lines = [
        f"{study.trend.title}; {len(study.density)} models, {head['clusters']} families, "
        f"ruler {study.reference.name} on {study.reference.benchmark}.",
        f"Models: {study.selection}.",
        *study.trend.sentences(),
    ]
    if study.long_trend is not None and study.long_reference is not None:
        trend = study.long_trend
        groups = sentences.without_groups(trend.checks, float(trend.headline["doubling_months"]))
        caveats = filter(None, (sentences.broken(trend.checks), groups))
        lines.append(" ".join([f"Long window ({study.long_reference.benchmark}): {trend.title}.", *caveats]))
    if study.measured is not None and study.measured.densities is None:
        lines.append(f"Measured: {study.measured.missing}.")
    elif study.measured is not None and study.measured.densities is not None:
        table = study.measured.densities.table
        lines += [
            f"Measured: {row.model} by {row.quantity}, {len(row.benchmarks.split('+'))} tasks, {row.n_items:.0f} "
            f"items: density {row.density:.2g} ({row.density_lo:.2g} to {row.density_hi:.2g}) on {row.reference}, "
            f"{row.status}."
            for row in table[table["benchmark"].eq("combined")].itertuples()
        ]
    return [*lines, "Report:"]


def _payload(study: Study, report: Path) -> dict[str, Any]:
    trend, long_trend, measured = study.trend.to_dict(), study.long_trend, study.measured
    return {
        "report": str(report),
        "density": str(report.with_name("density.csv")),
        "trend": str(report.with_name("trend.csv")),
        "options": study.options,
        "selection": study.selection,
        "reference": study.reference.describe(),
        "title": study.trend.title,
        "headline": trend["headline"],
        "estimates": trend["estimates"],
        "checks": trend["checks"],
        "long_window": long_trend.to_dict()["headline"] if long_trend is not None else None,
        "long_checks": long_trend.checks.to_dict() if long_trend is not None else None,
        "split": study.split,
        "replication": study.replication,
        "multiverse": study.multiverse,
        "backtest": study.backtest,
        "past_forecast": study.past_forecast or {},
        "corollaries": study.corollaries,
        "measured": {"missing": None if measured is None else measured.missing}
        if measured is None or measured.densities is None
        else {"density": measured.densities.table, "models": measured.models, "measurements": measured.measurements},
        "versions": study.versions,
        "hashes": study.hashes,
        "notes": list(study.notes),
    }
