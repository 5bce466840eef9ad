"""``densing catalog``: models, their scores, and the source of each figure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from densing.cli import options as o
from densing.cli.output import emit_json, emit_table, save, say, show_notes
from densing.core import UnknownNameError, cell_text, listing_of, worst

app = typer.Typer(
    no_args_is_help=True,
    help="Models and published scores, with a source for every row.\n\nExample: densing catalog show Llama-3-8B",
)
MODEL_COLUMNS = ["model", "params_total_b", "params_basis", "released", "stratum", "family", "kind", "architecture"]
# Six columns fit a terminal; the others are in --json and --out.
SOURCE_COLUMNS = ["evaluator", "role", "models", "benchmarks", "scores", "first", "last", "flagged", "languages"]
SCORE_COLUMNS = ["benchmark", "score", "evaluator", "own", "shots", "metric", "series", "flags", "source"]


@app.command("list")
def list_models(
    what: Annotated[
        str, typer.Argument(help="models, benchmarks, evaluators, sources, series or disagreement.")
    ] = "models",
    family: Annotated[str | None, typer.Option(help="Models of one family.")] = None,
    catalog: o.CatalogFiles = None,
    include: o.Include = None,
    out: o.Out = None,
    json: o.JsonFlag = False,
) -> None:
    """List models (with the reason when one is outside the headline), benchmarks, evaluators or sources.

    Example: densing catalog list --family Qwen2.5
    """
    from densing.scores.catalog import (
        disagreement,
        load_catalog,
        selection_of,
        series_list,
        size_intervals,
        strata,
    )

    merged = load_catalog(*(catalog or []))
    labels = strata(merged, selection_of(include))
    sized = merged.models.join(size_intervals(merged.models))
    tables = {
        "models": lambda: sized.merge(labels[["model", "stratum"]], on="model"),
        "benchmarks": lambda: merged.benchmarks,
        "evaluators": lambda: merged.evaluators,
        "sources": lambda: merged.sources,
        "series": lambda: series_list(merged),
        "disagreement": lambda: disagreement(merged),
    }
    if what not in tables:
        raise UnknownNameError("table", what, tables)
    table = tables[what]()
    if family is not None:
        known = merged.models["family"].dropna().unique()
        if family not in known:
            raise UnknownNameError("family", family, map(str, known))
        table = table[table["family"] == family] if "family" in table.columns else table
    save(table, table, out, merged.notes)
    if json:
        emit_json(table, merged.notes)
    else:
        shown = table[MODEL_COLUMNS] if what == "models" else table
        emit_table(listing_of(f"{len(table)} {what}", shown))
        show_notes(merged.notes)


@app.command("show")
def show_model(
    model: Annotated[str, typer.Argument(help="Model name; any unambiguous spelling.")],
    catalog: o.CatalogFiles = None,
    json: o.JsonFlag = False,
) -> None:
    """Show one model: facts with their sources, and every published score kept for it (own: by the model's maker).

    Example: densing catalog show Llama-3-8B
    """
    from densing.scores.catalog import identify, load_catalog, own_figures, strata

    merged = load_catalog(*(catalog or []))
    found = identify(merged, model)
    if found.model is None:
        raise UnknownNameError("model", model, merged.models["model"], near=found.near)
    model = found.model
    row = merged.models[merged.models["model"] == model]
    scores = merged.scores.assign(own=own_figures(merged))
    scores = scores[scores["model"] == model].sort_values(["benchmark", "evaluator"])
    labels = strata(merged).set_index("model").loc[model]
    facts: dict[str, Any] = {**row.iloc[0].to_dict(), **labels.to_dict()}
    if json:
        emit_json({"model": facts, "scores": scores}, merged.notes)
        return
    import pandas as pd

    filled = {key: value for key, value in facts.items() if not (value is None or pd.isna(value))}
    facts = pd.DataFrame({"field": list(filled), "value": list(map(cell_text, filled.values()))})
    emit_table(listing_of(model, facts))
    emit_table(listing_of(f"{len(scores)} scores", scores[SCORE_COLUMNS]))


@app.command("sources")
def sources(
    catalog: o.CatalogFiles = None,
    out: o.Out = None,
    json: o.JsonFlag = False,
) -> None:
    """Show who measured what: models, benchmarks, scores, first and last release, languages, licences, flagged rows.

    Example: densing catalog sources
    """
    from densing.scores.catalog import evaluator_table, load_catalog

    merged = load_catalog(*(catalog or []))
    table = evaluator_table(merged)
    save(table, table, out, merged.notes)
    if json:
        emit_json(table, merged.notes)
        return
    shown = table[SOURCE_COLUMNS].assign(languages=[_languages(cell) for cell in table["languages"]])
    emit_table(listing_of(f"{len(table)} evaluators", shown))
    title = "Who they are; own: figures of the organisation's own models"
    emit_table(listing_of(title, table[["evaluator", "who", "own", "licence"]]))
    show_notes(merged.notes)


def _languages(cell: str) -> str:
    codes = cell.split()
    return cell if len(codes) <= 3 else f"{len(codes)} languages"


@app.command("erratic")
def erratic(
    everything: Annotated[
        bool,
        typer.Option("--all", help="Show every verdict, including plausible scores and those with too few neighbours."),
    ] = False,
    apply: Annotated[Path | None, typer.Option(help="Table of scores whose flags are replaced by the rule's.")] = None,
    catalog: o.CatalogFiles = None,
    out: o.Out = None,
    json: o.JsonFlag = False,
) -> None:
    """Show the scores that an evaluator got wrong by rule, with the figures behind it.

    Models far below their own smaller and older relatives, and cells far below what weaker models reach. The rule
    stands in the documentation of densing.scores.catalog.erratic; flagged scores stay out of fits.

    Example: densing catalog erratic --catalog mine.csv
    """
    from densing.scores.catalog import erratic_cells, erratic_models, load_catalog, write_flags

    merged = load_catalog(*(catalog or []))
    changed = None if apply is None else write_flags(merged, apply)
    models, cells = erratic_models(merged), erratic_cells(merged)
    if not everything:
        models = models[models["status"].str.startswith("erratic")]
        cells = cells[~cells["status"].isin(["ok", "too few"])]
    payload = {"models": models, "cells": cells, "changed": changed}
    save(cells, payload, out, merged.notes)
    if json:
        emit_json(payload, merged.notes)
        return
    emit_table(listing_of(f"{len(models)} models on one evaluator", models))
    emit_table(listing_of(f"{len(cells)} single scores", cells))
    if changed is not None:
        say(f"{apply}: {changed} rows changed")
    show_notes(merged.notes)


@app.command("validate")
def validate(
    path: Annotated[
        Path | None, typer.Argument(help=f"Your table ({o.FORMS}) or folder; default: the embedded catalog.")
    ] = None,
    sheet: o.SheetName = None,
    fetch: o.Fetch = False,
    json: o.JsonFlag = False,
) -> None:
    """Check a table against the declared columns, ranges and the embedded catalog; exit code 1 when it is refused.

    Example: densing catalog validate my_models.csv
    """
    from densing.scores.catalog import load_catalog, validate_catalog

    notes = list(load_catalog().notes) if path is None else validate_catalog(o.brought(path, sheet, fetch))
    bad = worst(notes) == "error"
    if json:
        emit_json({"valid": not bad, "notes": notes})
    else:
        show_notes(notes)
        say("refused" if bad else "valid")
    if bad:
        raise typer.Exit(1)


@app.command("add")
def add(
    path: Annotated[Path, typer.Argument(help="Your CSV (or folder); created if missing.")],
    fields: Annotated[
        list[str], typer.Argument(help="column=value, e.g. model=Mine-7B params_b=7.2 released=2025-03-01.")
    ],
    json: o.JsonFlag = False,
) -> None:
    """Add a model or a score to your own table, checked before anything is written.

    A row with benchmark and score is a score; anything else is a model.

    Example: densing catalog add mine model=Mine-7B params_b=7.2 released=2025-03-01
    """
    from densing.scores.catalog import add_model, add_score

    pairs = dict(_pair(field) for field in fields)
    adder = add_score if "score" in pairs else add_model
    notes = adder(path, **pairs)
    if json:
        emit_json({"path": str(path), "row": pairs, "notes": notes})
    else:
        show_notes(notes)
        say(f"added to {path}")


def _pair(field: str) -> tuple[str, str]:
    name, sign, value = field.partition("=")
    if not sign or not name.strip():
        raise typer.BadParameter(f"{field!r} is not column=value", param_hint="FIELDS")
    return name.strip(), value.strip()
