"""``densing density``: effective parameters and density of every model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from densing.cli import options as o
from densing.notes import Note

SHOWN = [
    "model",
    "released",
    "n_params",
    "score",
    "n_eff",
    "density",
    "density_lo",
    "density_hi",
    "status",
    "stratum",
]


def density(
    reference: o.Reference = "qwen1.5",
    benchmark: o.Benchmark = "mean",
    scores: Annotated[
        Path | None,
        typer.Option(
            "--scores", help="Your own CSV: model,params,released,benchmark,score; only its models are shown."
        ),
    ] = None,
    catalog: o.CatalogFiles = None,
    include: o.Include = None,
    pool: o.Pool = False,
    denominator: o.Denominator = "total",
    tokens: o.Tokens = None,
    guard: o.Guard = 3.0,
    level: Annotated[float, typer.Option("--level", min=0.5, max=0.999, help="Level of the intervals.")] = 0.95,
    skills: Annotated[bool, typer.Option("--skills", help="Density per skill instead of on one benchmark.")] = False,
    seed: o.Seed = 0,
    out: o.Out = None,
    json: o.JsonFlag = False,
) -> None:
    """Turn scores into effective parameters and density, with a status and an interval per model.

    Example: densing density --reference qwen1.5 --benchmark mmlu --scores my_scores.csv --json
    """
    from densing.catalog import load_catalog
    from densing.cli.output import emit_json, emit_table, finish, save, show_notes
    from densing.cli.selecting import selection_of
    from densing.density import catalog_densities, skill_densities, table_densities
    from densing.references import load_reference

    if scores is not None and (catalog or skills):
        raise typer.BadParameter("--scores stands alone; use --catalog to add models to ours", param_hint="--scores")
    chosen = selection_of(include)
    if skills:
        table = skill_densities(
            load_catalog(*(catalog or [])), reference, selection=chosen, denominator=denominator, guard=guard, seed=seed
        )
        notes: tuple[Note, ...] = ()
    else:
        merged = load_catalog(*(catalog or []))
        ruler = load_reference(reference, benchmark, tokens=tokens, catalog=merged)
        asked: dict[str, Any] = {"denominator": denominator, "guard": guard, "level": level, "seed": seed}
        if scores is not None:
            result = table_densities(scores, ruler, **asked)
        else:
            result = catalog_densities(merged, ruler, selection=chosen, pool=pool, **asked)
        table, notes = result.table, result.notes
    save(table, table, out)
    show_notes(notes)
    if json:
        emit_json(table)
    else:
        shown = [column for column in SHOWN if column in table.columns] if not skills else list(table.columns)
        emit_table(table[shown], f"Density against {reference}, {'per skill' if skills else benchmark}")
    finish(notes)
