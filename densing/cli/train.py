"""``densing train``: run techniques for real, on this machine's processors, over a link of a chosen rate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from densing.cli.options import JsonFlag

Techniques = Annotated[
    str,
    typer.Option(
        "--technique",
        "-t",
        help="Name, or several with commas between (see `densing techniques list`).",
        metavar="NAMES",
    ),
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder of the run; of several, one below it each.")]
Nproc = Annotated[int, typer.Option("--nproc", help="Ranks: processes, each on a core of its own.")]
Link = Annotated[
    str,
    typer.Option(
        "--link", help="200mbit: network namespaces joined at that rate; emulated:200mbit: waiting added; none."
    ),
]
Steps = Annotated[int, typer.Option("--steps", help="Training steps.")]
Tau = Annotated[int | None, typer.Option("--tau", help="Steps per round, of techniques that have rounds.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="KNOB=VALUE or TECHNIQUE.KNOB=VALUE, as outer_lr=0.8; may be repeated."),
]
Seeds = Annotated[str, typer.Option("--seed", "--seeds", help="Seed, or several: 0,1,2.", metavar="NUMBERS")]
Model = Annotated[str, typer.Option("--model", help="tiny, small or medium; --layers and the like change it.")]
Layers = Annotated[int | None, typer.Option("--layers", min=1, help="Transformer layers.")]
Hidden = Annotated[int | None, typer.Option("--hidden", min=1, help="Width.")]
Heads = Annotated[int | None, typer.Option("--heads", min=1, help="Attention heads.")]
Ffn = Annotated[int | None, typer.Option("--ffn", min=1, help="Width inside the feed-forward block.")]
Batch = Annotated[int, typer.Option("--batch", help="Sequences per rank and step (tensor-parallel: per group).")]
Sequence = Annotated[int, typer.Option("--sequence", help="Tokens (bytes) per sequence.")]
Rate = Annotated[float, typer.Option("--lr", help="Learning rate of AdamW.")]
Corpus = Annotated[
    str, typer.Option("--corpus", help="Text file or folder; default: documentation that Python comes with.")
]
Traced = Annotated[int, typer.Option("--trace-steps", help="Steps recorded at the end; 0: none.")]
Every = Annotated[int, typer.Option("--checkpoint-every", help="Steps between checkpoints; 0: none.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint that every rank has.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds after which a rank gives up on another.")]
Predict = Annotated[
    str | None,
    typer.Option("--predict", help="Cluster (preset, or what `densing calibrate --out` wrote): simulate beside it."),
]
Html = Annotated[Path | None, typer.Option("--html", help="Write the report: one HTML file.", metavar="FILE")]
Device = Annotated[str, typer.Option("--device", help="cpu (gloo) or cuda (NCCL).")]


def train(
    technique: Techniques,
    out: Out,
    nproc: Nproc = 2,
    link: Link = "none",
    steps: Steps = 48,
    tau: Tau = None,
    settings: Settings = None,
    seeds: Seeds = "0",
    model: Model = "small",
    layers: Layers = None,
    hidden: Hidden = None,
    heads: Heads = None,
    ffn: Ffn = None,
    batch: Batch = 4,
    sequence: Sequence = 128,
    lr: Rate = 1e-3,
    corpus: Corpus = "",
    trace_steps: Traced = 8,
    checkpoint_every: Every = 0,
    resume: Resume = False,
    timeout: Timeout = 60.0,
    predict: Predict = None,
    html: Html = None,
    device: Device = "cpu",
    json: JsonFlag = False,
) -> None:
    """Train a small language model with a technique, for real, and record where the time went.

    Ranks are processes started through torchrun. With --link 200mbit each has a network namespace, joined by
    interfaces of that rate, where the system allows it; else the link is emulated, and the result says so.
    OUT holds run.json, traces/ (read by `densing profile OUT`), checkpoints/ and logs/. A killed run goes on with
    --resume, with the same losses. Exit codes: 0 done, 1 user error or a rank died, 2 usage.

    Example: densing train --technique ddp,local-sgd,co2 --tau 8 --link 200mbit --seeds 0,1,2 --out runs
    """
    from densing.cli import training_runs, training_specs
    from densing.efficiency.parallel import RunSpec

    shape = training_specs.shape(model, layers=layers, hidden=hidden, heads=heads, ffn=ffn)
    spec = RunSpec(
        technique="",
        nproc=nproc,
        steps=steps,
        model=shape,
        batch=batch,
        sequence=sequence,
        lr=lr,
        corpus=corpus and str(Path(corpus).resolve()),
        link=link,
        trace_steps=trace_steps,
        checkpoint_every=checkpoint_every,
        timeout_s=timeout,
        device=device,
    )
    specs = training_specs.specs(spec, technique, seeds, out, tau, tuple(settings or ()))
    training_runs.answer(specs, out, resume=resume, predict=predict, html=html, json=json)
