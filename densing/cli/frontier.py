"""``densing frontier``: density against cost, and the Pareto frontier."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from densing.cli import options as o
from densing.cli.output import emit_json, emit_table, finish, progress, save, say, show_notes


def frontier(
    cost: Annotated[str, typer.Option("--cost", help="flops, device_hours, bytes or joules.")] = "flops",
    gain: Annotated[
        list[Path] | None,
        typer.Option("--gain", help="gain.json of `densing ladder gain DIR`: adds its arms. May be repeated."),
    ] = None,
    profile: Annotated[
        list[Path] | None,
        typer.Option(
            "--profile",
            help="Output of `densing profile RUN --density FILE --device-hours HOURS --json`: adds your run. May be "
            "repeated.",
        ),
    ] = None,
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
    """
    import dataclasses

    from densing.scores.catalog import load_catalog, selection_of
    from densing.tradeoff import frontier as place

    o.parse_window(since, None)
    selection = dataclasses.replace(selection_of(include), since=since)
    with progress(json) as step:
        result = place(
            load_catalog(*catalog) if catalog else None,
            cost=cost, profiles=profile or (), gains=gain or (), selection=selection, reference=reference,
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
