"""``densing run``: the main job end to end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from densing.cli import calls
from densing.cli import options as o
from densing.cli.output import emit_json, finish, progress, say, show_notes
from densing.core import Note, doubts, formatting, plain, severest_first, write_csv

if TYPE_CHECKING:
    from densing.scores.study import Study
    from densing.tradeoff import Frontier, GainRecord, Worth


CAVEATS = 3
"""Caveats printed with the headline; the others are in the report."""


def run(
    out: Annotated[Path, typer.Option("--out", "-o", file_okay=False, help="Folder for the report and tables.")] = Path(
        "results/latest"
    ),
    reference: o.Reference = "joint",
    benchmark: o.Benchmark = "mean",
    since: o.Since = "2023-02-24",
    until: o.Until = None,
    catalog: o.CatalogFiles = None,
    scores: Annotated[
        Path | None,
        typer.Option(
            help=f"Table ({o.FORMS}) with columns model, params, released, benchmark, score: your own models, to be "
            "placed among the catalog's. They do not affect the headline; rows of --catalog do.",
        ),
    ] = None,
    sheet: o.SheetName = None,
    fetch: o.Fetch = False,
    gain: Annotated[
        list[Path] | None,
        typer.Option(
            help="gain.json of `densing ladder gain DIR`: adds a report section on its training changes. May be "
            "repeated.",
        ),
    ] = None,
    worth: Annotated[
        list[Path] | None,
        typer.Option(
            help="What `densing worth ... --json` printed: adds a report section with its verdicts. May be repeated.",
        ),
    ] = None,
    include: o.Include = None,
    denominator: o.Denominator = "total",
    tokens: o.Tokens = None,
    guard: o.Guard = 3.0,
    seed: o.Seed = 0,
    measure: Annotated[
        bool,
        typer.Option(
            help="Also evaluate a real model (SmolLM2-135M-Instruct in 4 bits, minutes the first time; needs "
            "densing[evals])."
        ),
    ] = True,
    fast: Annotated[bool, typer.Option("--fast", help="Evaluate it on a quarter of the items.")] = False,
    json: o.JsonFlag = False,
) -> None:
    """Do the main job: catalog, one scale, densities, doubling time, a model measured here, HTML report.

    Writes report.html (opens offline), density.csv (a row per model), trend.csv (a row per estimator), pace.csv (a row
    per month), leave-one-out.csv (a row per family and organisation left out) and, with a model measured, measured.csv
    (a row per task) and measured/ (its result store).

    Example: densing run --out results/mine --scores my_scores.csv

    Prints the headline, three caveats and where the report is; --verbose also the front, the tests and every note.

    Example: densing run --gain ladders/arms/gain.json --worth worth.json
    """
    from densing.cli.eval import bar
    from densing.plots import leave_one_out
    from densing.report import build_report
    from densing.scores.catalog import load_catalog, selection_of
    from densing.scores.study import StudyOptions, background_evaluation, run_study
    from densing.tradeoff import gain_record, read_worth, study_frontier

    o.parse_window(since, until)
    scores = scores and o.brought(scores, sheet, fetch)
    catalog = [o.brought(path, sheet, fetch) for path in catalog or []]
    options = StudyOptions(reference, benchmark, since, until, selection_of(include), denominator, guard, tokens, seed)
    # A damaged record is refused before minutes of computing, not after.
    ladders = [gain_record(path)[0] for path in gain or []]
    worths = [read_worth(path) for path in worth or []]
    merged = load_catalog(*(catalog or []))
    # The evaluation takes about as long as the study, and neither reads the other.
    evaluation = background_evaluation(out / "measured", merged, fast=fast, tokens=tokens) if measure else nullcontext()
    with evaluation as wait:
        with progress(quiet=json) as step:
            study = run_study(merged, options, scores=scores, step=step)
        if wait is not None:
            with bar(json) as show:
                study = replace(study, measured=wait(show))
    measured = study.measured
    against = study_frontier(study)
    report = build_report(study, out / "report.html", against=against, gains=ladders, worths=worths)
    write_csv(study.models, out / "density.csv")
    write_csv(study.trend.estimates, out / "trend.csv")
    write_csv(study.trend.pace(), out / "pace.csv")
    write_csv(leave_one_out(study.trend.checks), out / "leave-one-out.csv")
    if measured is not None and measured.densities is not None:
        write_csv(measured.densities.table, out / "measured.csv")
    if json:
        emit_json(_payload(study, report, against, ladders, worths))
    else:
        notes = [*study.notes, *(() if study.placed is None else study.placed.notes)]
        if calls.current().verbose:
            show_notes(notes)
            say("\n".join([*_headline(study), *_reasons(study), "Report:"]))
        else:
            say("\n".join(_headline(study)))
            _caveats(study, notes)
        typer.echo(str(report))
    finish(study.notes)


def _caveats(study: Study, notes: Sequence[Note]) -> None:
    """Say what must be known before the number is quoted: what is wrong with the data first, then what the checks say.

    Errors all; of the rest as much as there is room for.
    """
    doubtful = {note.message: note for note in severest_first(doubts(notes))}
    errors = sum(note.severity == "error" for note in doubtful.values())
    shown = list(doubtful.values())[: max(CAVEATS, errors)]
    show_notes(shown)
    checks = study.trend.sentences()
    told = checks[: CAVEATS - len(shown)] if len(shown) < CAVEATS else []
    more = len(doubtful) + len(checks) - len(shown) - len(told)
    say("\n".join([*told, f"{formatting.plural(more, 'more caveat')} in the report, and with --verbose:"]))


def _reasons(study: Study) -> list[str]:
    """Say why this estimator, what the checks found, and what stands beside the headline."""
    from densing.scores.trend import sentences

    lines = [
        *([] if study.trend.front is None else [study.trend.front.sentence]),
        f"Models: {study.selection}.",
        study.trend.why,
        *study.trend.sentences(),
        study.trend.record,
        *study.trend.details(),
        *([study.precision] if study.precision else []),
    ]
    if study.comparison is not None:
        trend = study.comparison.trend
        groups = sentences.without_groups(trend.checks, float(trend.line["doubling_months"]))
        caveats = filter(None, (sentences.broken(trend.checks), groups))
        reference = f"{study.comparison.reference.name} on {study.comparison.reference.benchmark}"
        lines.append(" ".join([f"{study.comparison.name} ({reference}): {trend.title}.", *caveats]))
    return lines


def _headline(study: Study) -> list[str]:
    """Say how fast density doubles, and where the models stand that were brought or measured."""
    lines = [study.trend.quoted(study.reference.name, study.reference.benchmark)]
    if study.placed is not None:
        lines += [
            f"Yours: {row.model}{row.apart and f' ({row.apart}, no headline model)'}: density {row.density:.2g} "
            f"(measured {row.density_lo:.2g} to {row.density_hi:.2g}), "
            f"{row.rank} of {row.of} models, {row.size_rank} of {row.size_of} of its size; next to {row.neighbours}."
            for row in study.placed.ranks.itertuples()
        ]
    if study.measured is not None and study.measured.densities is None:
        lines.append(f"Measured: {study.measured.missing}.")
    elif study.measured is not None and study.measured.densities is not None:
        table = study.measured.densities.table
        lines += [
            f"Measured: {row.model} by {row.quantity}, {len(row.benchmarks.split('+'))} tasks, {row.n_items:.0f} "
            f"items: density {row.density:.2g} (measured {row.density_lo:.2g} to {row.density_hi:.2g}) on "
            f"{row.reference}, {row.status}."
            for row in table[table["benchmark"].eq("combined")].itertuples()
        ]
    return lines


def _payload(
    study: Study, report: Path, against: Frontier, ladders: Sequence[GainRecord], worths: Sequence[Worth]
) -> dict[str, Any]:
    trend, comparison, measured = study.trend.to_dict(), study.comparison, study.measured
    return {
        "report": str(report),
        "density": str(report.with_name("density.csv")),
        "trend": str(report.with_name("trend.csv")),
        "options": study.options,
        "selection": study.selection,
        "reference": study.reference.describe(),
        "title": study.trend.title,
        "now": study.trend.now,
        "sentence": study.trend.quoted(study.reference.name, study.reference.benchmark),
        "last_year": trend["last_year"],
        "pace": trend["pace"],
        "vintages": plain(study.vintages.to_dict("records")),
        "front": None if study.trend.front is None else study.trend.front.sentence,
        "headline": trend["headline"],
        "estimates": trend["estimates"],
        "checks": trend["checks"],
        "precision": study.precision,
        "beside": None
        if comparison is None
        else {
            "name": comparison.name,
            "reference": comparison.reference.name,
            "benchmark": comparison.reference.benchmark,
            "headline": comparison.trend.to_dict()["headline"],
            "checks": comparison.trend.checks.to_dict(),
        },
        "sensitivity": study.sensitivity,
        "answers": [] if study.answers is None else study.answers.table,
        "yours": [] if study.placed is None else study.placed.ranks,
        "split": study.split,
        "replication": study.replication,
        "multiverse": study.multiverse,
        "backtest": study.backtest,
        "past_forecast": study.past_forecast or {},
        "corollaries": study.corollaries,
        "measured": {"missing": None if measured is None else measured.missing}
        if measured is None or measured.densities is None
        else {"density": measured.densities.table, "models": measured.models, "measurements": measured.measurements},
        "frontier": against.to_dict(),
        "gains": [ladder.to_dict() for ladder in ladders],
        "worths": [each.to_dict() for each in worths],
        "versions": study.versions,
        "hashes": study.hashes,
        "notes": [*study.notes, *(() if study.placed is None else study.placed.notes)],
    }
