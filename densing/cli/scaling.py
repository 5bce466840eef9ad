"""``densing scaling``: scaling efficiency from profiles of runs of different sizes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from densing.cli.options import JsonFlag
from densing.cli.output import MOST_NOTES, columns, emit_plain, finish, show_notes, visible
from densing.cli.profile import Detail, Window
from densing.core import InputError, UnknownNameError, doubts, formatting, of_part

app = typer.Typer()


@app.callback(invoke_without_command=True)
def scaling(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders or zips of traces, or stored profiles: one per run.", metavar="RUN..."),
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

    Devices: the traces' world size, else the ranks given. Times: the median step over ranks and steps.

    Example: densing scaling runs/8gpus runs/16gpus runs/32gpus --kind strong
    """
    from densing.cli.profile import Source, check_source, read_run
    from densing.efficiency.profile import scaling_notes, scaling_of
    from densing.efficiency.timeline import EQUATIONS

    # What cannot work is refused before any trace is read.
    work = work or []
    if kind not in EQUATIONS:
        raise UnknownNameError("kind of scaling", kind, EQUATIONS)
    if len(runs) < 2:
        raise InputError("scaling needs runs of at least two sizes; add a run on another number of devices")
    if twice := {str(run) for run in runs if runs.count(run) > 1}:
        raise InputError(f"{min(twice)}: named twice; name each run once")
    if work and len(work) != len(runs):
        raise InputError(
            f"--work was given {len(work)} times for {len(runs)} runs; give it once for each run, in order"
        )
    if wrong := [value for value in work if not (math.isfinite(value) and value > 0)]:
        raise InputError(f"--work {wrong[0]:g}: a number above 0 is needed, samples or tokens per step")
    if kind == "throughput" and not work:
        raise InputError("--kind throughput needs --work: samples or tokens per step, once for each run, in order")
    for run in runs:
        check_source(run)
    sources = [Source(paths=[path], window=window, detail=detail, quiet=json) for path in runs]
    profiles = {str(source.paths[0]): read_run(source) for source in sources}
    efficiency = scaling_of(profiles, kind, dict(zip(map(str, runs), work, strict=True)) if work else {})
    # A run read in part has the step times of that part only.
    notes = [note for name, run in profiles.items() for note in of_part(name, doubts(run.notes))]
    notes += scaling_notes(profiles)
    if json:
        emit_plain({**efficiency.to_dict(), "notes": [note.to_dict() for note in notes]})
    else:
        typer.echo(f"{efficiency.kind} scaling, {efficiency.equation}; {efficiency.definition}")
        header = ("run", "devices", "step s", "work/s", "speed-up", "efficiency %")
        rows = [
            (
                formatting.cut(visible(row.name), 40),
                str(row.devices),
                f"{row.seconds:.4g}",
                formatting.fixed(row.throughput),
                formatting.fixed(row.speedup, 2),
                formatting.fixed(100 * row.efficiency),
            )
            for row in efficiency.rows
        ]
        typer.echo("\n".join(columns(header, rows)))
        show_notes(notes, most=MOST_NOTES)
    finish(notes)


@app.command("plan")
def plan(json: JsonFlag = False) -> None:
    """X."""
