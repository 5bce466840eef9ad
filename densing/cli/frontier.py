"""``densing frontier``: density against cost, and the Pareto frontier."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from densing.cli import options as o
from densing.cli.output import emit_json, emit_table, finish, progress, save, say, show_notes
from densing.core import InputError


def frontier(
    cost: Annotated[str, typer.Option(help="flops, device_hours, bytes or joules.")] = "flops",
    gain: Annotated[
        list[Path] | None,
        typer.Option(help="gain.json of `densing ladder gain DIR`: adds its arms. May be repeated."),
    ] = None,
    density: Annotated[
        list[Path] | None,
        typer.Option(help="Output of `densing density --json`: adds your model. May be repeated."),
    ] = None,
    device_hours: Annotated[
        list[float] | None,
        typer.Option(help="Devices × hours of its whole training; one for each --density."),
    ] = None,
    density_model: Annotated[str | None, typer.Option(help="Which model of the --density files.")] = None,
    density_benchmark: Annotated[str | None, typer.Option(help="Which benchmark of the --density files.")] = None,
    reference: o.Reference = "joint",
    benchmark: o.Benchmark = "mean",
    since: o.Since = None,
    catalog: o.CatalogFiles = None,
    include: o.Include = None,
    seed: o.Seed = 0,
    out: o.Out = None,
    page: o.Page = None,
    html: o.Html = None,
    json: o.JsonFlag = False,
) -> None:
    """Set densities beside a cost, and name the models that are not dominated in both.

    Of the catalog's models the cost is the FLOPs of their training, where tokens are known; of runs of your own their
    device hours; of a ladder's arms the bytes, joules and hours of a run, with a ratio to plain training for density.
    Each reference and each ladder is a scale of its own.

    Example: densing frontier --since 2024-01-01 --html frontier.html

    Example: densing frontier --cost bytes --gain ladders/arms/gain.json

    Example: densing frontier --cost device_hours --density density.json --device-hours 3000
    """
    import dataclasses

    from densing.scores.catalog import load_catalog, selection_of
    from densing.tradeoff import frontier as place
    from densing.tradeoff import join

    o.parse_window(since, None)
    if len(files := density or []) != len(hours := device_hours or []):
        raise InputError(
            f"--density: {len(files)} files and {len(hours)} --device-hours; give the hours of each model's training"
        )
    runs = [
        join(file, device_hours=spent, model=density_model, benchmark=density_benchmark)
        for file, spent in zip(files, hours, strict=True)
    ]
    selection = dataclasses.replace(selection_of(include), since=since)
    with progress(json) as step:
        result = place(
            load_catalog(*catalog) if catalog else None,
            cost=cost, profiles=runs, gains=gain or (), selection=selection, reference=reference,
            benchmark=benchmark, seed=seed, step=step,
        )  # fmt: skip
    save(result.table, result.to_dict(), out)
    for path in filter(None, (page, html)):
        from densing.report import build_frontier

        say(f"wrote {build_frontier(result, path)}")
    if json:
        emit_json(result.to_dict())
    else:
        for scale in result.scales:
            emit_table(result.listing(result.front(scale), f"Frontier on {scale}, cheapest first"))
            say(f"{scale}: {result.sentence(scale)}")
        show_notes(result.notes)
    finish(result.notes)
