"""``densing scaling``: how well a training run scales, from the profiles of runs of different size."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from densing.cli.options import JsonFlag
from densing.cli.profile import Detail, Window


def scaling(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of traces, or stored profiles: one per run.", metavar="RUN...")
    ],
    kind: Annotated[str, typer.Option("--kind", help="strong, weak or throughput.")] = "strong",
    work: Annotated[
        list[float] | None,
        typer.Option("--work", help="Samples or tokens per step of each run, in order; needed for throughput."),
    ] = None,
    window: Window = None,
    detail: Detail = "auto",
    json: JsonFlag = False,
) -> None:
    """Compare step times of runs of different size with perfect scaling.

    Devices are the traces' world size (else the ranks given), times the median step over ranks and steps.

    Example: densing scaling runs/8gpus runs/16gpus runs/32gpus --kind strong
    """
    from densing.cli.columns import columns, number
    from densing.cli.output import emit_plain
    from densing.cli.profiling import Asked, run_of
    from densing.errors import InputError
    from densing.profile.scaling import scaling_of

    if work and len(work) != len(runs):
        raise InputError(
            f"--work was given {len(work)} times for {len(runs)} runs; give it once for each run, in order"
        )
    asked = [Asked(paths=(path,), window=window, detail=detail, quiet=json) for path in runs]
    found = scaling_of(
        {str(one.paths[0]): run_of(one) for one in asked},
        kind,
        dict(zip(map(str, runs), work, strict=True)) if work else {},
    )
    if json:
        emit_plain(found.to_dict())
        return
    typer.echo(f"{found.kind} scaling, {found.equation}; {found.definition}")
    header = ("run", "devices", "step s", "work/s", "speed-up", "efficiency %")
    rows = [
        (
            row.name,
            str(row.devices),
            number(row.seconds, 4),
            number(row.throughput),
            number(row.speedup, 2),
            number(100 * row.efficiency),
        )
        for row in found.rows
    ]
    typer.echo("\n".join(columns(header, rows)))
