"""``densing calibrate``: latency, bandwidth and contention of a link, from recorded runs or measured on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from densing.cli.options import JsonFlag

Paths = Annotated[
    list[Path] | None,
    typer.Argument(help="Recorded runs: folders of traces, one file per rank.", metavar="PATH..."),
]
Link = Annotated[
    str | None,
    typer.Option("--link", help="Measure instead: a link as for `densing train` (200mbit, emulated:200mbit, none)."),
]
Nproc = Annotated[int, typer.Option("--nproc", min=2, help="With --link: ranks.")]
Model = Annotated[str, typer.Option("--model", help="With --link: tiny, small or medium, whose modules are timed.")]
Layers = Annotated[int | None, typer.Option("--layers", min=1, help="Transformer layers.")]
Hidden = Annotated[int | None, typer.Option("--hidden", min=1, help="Width.")]
Heads = Annotated[int | None, typer.Option("--heads", min=1, help="Attention heads.")]
Ffn = Annotated[int | None, typer.Option("--ffn", min=1, help="Width inside the feed-forward block.")]
Batch = Annotated[int, typer.Option("--batch", min=1, help="With --link: sequences per rank and step.")]
Sequence = Annotated[int, typer.Option("--sequence", min=1, help="With --link: tokens per sequence.")]
Mode = Annotated[str, typer.Option("--mode", help="With --link: train, or prefill (forward only).")]
Repeats = Annotated[int, typer.Option("--repeats", min=4, help="With --link: how often every module is timed.")]
Timeout = Annotated[float, typer.Option("--timeout", help="With --link: seconds after which a rank gives up.")]
Base = Annotated[
    str | None,
    typer.Option(
        "--base", help="Cluster whose other figures are kept (preset or TOML); default: cpu2 for runs on CPUs."
    ),
]
Level = Annotated[
    str | None,
    typer.Option("--level", help="Which link the runs used: intra, inter or wide; default: by the ranks per node."),
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Write the cluster: TOML, usable as --cluster FILE.")]


def calibrate(
    paths: Paths = None,
    link: Link = None,
    nproc: Nproc = 2,
    model: Model = "small",
    layers: Layers = None,
    hidden: Hidden = None,
    heads: Heads = None,
    ffn: Ffn = None,
    batch: Batch = 4,
    sequence: Sequence = 128,
    mode: Mode = "train",
    repeats: Repeats = 12,
    timeout: Timeout = 120.0,
    base: Base = None,
    level: Level = None,
    out: Out = None,
    json: JsonFlag = False,
) -> None:
    """Fit latency (alpha), bandwidth (beta) and contention (kappa) by least squares, and say how well they fit.

    From traces of runs, or with --link from a measurement of its own on this machine (about a minute).
    What the runs cannot tell is left out and said.
    Exit codes: 0 done, 1 user error, 2 usage, 3 no link could be fitted.

    Example: densing calibrate traces/ --base a100x8-rdma --out mine.toml

    Example: densing calibrate --link 200mbit --nproc 2 --out link.toml
    """
    from densing.cli import calibrating

    if bool(paths) == (link is not None):
        raise typer.BadParameter("give recorded runs, or --link to measure one", param_hint="PATH")
    calibrating.check_out(out)
    if link is None:
        measured = calibrating.from_traces(tuple(paths or ()), base, level)
    else:
        if base is not None or level is not None:
            raise typer.BadParameter("--base and --level go with recorded runs", param_hint="--link")
        changes = {"layers": layers, "hidden": hidden, "heads": heads, "ffn": ffn}
        run = calibrating.Asked(link, nproc, model, changes, batch, sequence, mode, repeats, timeout)
        measured = calibrating.from_link(run, quiet=json)
    calibrating.answer(measured, out, json)
