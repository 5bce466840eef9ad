"""``densing what-if``: the cost of slow workers to a job, from a trace of its operations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from densing.cli.options import JsonFlag
from densing.cli.output import emit_plain
from densing.core import InputError, aligned, formatting


def what_if(
    trace: Annotated[Path, typer.Argument(help="Trace of operations (Parquet) in the published format.")],
    meta: Annotated[
        Path | None, typer.Option("--meta", help="Sizes of the parallel groups (YAML); default: meta-* beside it.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Replay a job as if no worker were slow (what-if analysis, arXiv 2505.05713).

    Reads the operation traces of ByteDance-Seed/StragglerAnalysis; `densing profile` does the same for recorded runs.

    Example: densing what-if trace-AR.parquet
    """
    from densing.efficiency.profile import what_if_job

    for path in (trace, *([meta] if meta else [])):
        if not path.is_file():
            raise InputError(f"{path}: {'is not a regular file' if path.exists() else 'no such file'}; check the path")
    result = what_if_job(trace, meta)
    if json:
        emit_plain(result.to_dict())
        return
    typer.echo(
        f"{len(result.steps)} steps; slowdown by slow workers {result.slowdown.mean:.3f} "
        f"({100 * result.waste:.1f} % of device time lost), by launch delays {result.launch_slowdown:.3f}\n"
    )
    parts = (("operation", result.by_optype), ("dp rank", result.by_dp_rank), ("stage", result.by_stage))
    rows = [
        (f"{kind} {name}", formatting.fixed(slow.mean, 3))
        for kind, part in parts
        for name, slow in list(part.items())[:5]
    ]
    typer.echo("\n".join(aligned(("only this slow", "slowdown"), rows)))
    for workers, part in (("the slowest 3 % of workers", result.workers), ("the last stage", result.last_stage)):
        share = "–" if part.explained is None else f"{100 * part.explained:.1f} %"
        typer.echo(f"explained by {workers}: {share}")
