"""``densing techniques``: what overlaps communication, compared on your model and cluster, and held to its papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from densing.cli.options import JsonFlag

app = typer.Typer(
    no_args_is_help=True,
    help="Techniques that hide or save communication: what they are, what they gain on your model and cluster, and\n"
    "what their papers claim beside what the simulator finds.\n\n"
    "Example: densing techniques compare --model llama3-70b --cluster a100x8-tcp --nodes 16 --pp 8 --sequence-parallel "
    "--techniques ddp,co2,ladder",
)

Html = Annotated[Path | None, typer.Option("--html", help="Write the report: one HTML file.", metavar="FILE")]


@app.command("list")
def list_(json: JsonFlag = False) -> None:
    """List the techniques, those that other packages register too.

    Example: densing techniques list
    """
    from densing.cli import techniques_about

    techniques_about.show_all(json)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A technique, see `densing techniques list`.")], json: JsonFlag = False
) -> None:
    """Show a technique: its paper, its knobs, what is claimed of it and how well each figure is known.

    Example: densing techniques show co2
    """
    from densing.cli import techniques_about

    techniques_about.show_one(name, json)


@app.command("compare")
def compare(
    model: Annotated[str, typer.Option("--model", help="Workload preset, or a Hugging Face config.json.")],
    cluster: Annotated[str, typer.Option("--cluster", help="Cluster preset, or a TOML file.")],
    techniques: Annotated[str, typer.Option("--techniques", help="Names with commas between.", metavar="A,B,...")],
    baseline: Annotated[
        str | None, typer.Option("--baseline", help="Speed-ups are relative to it; default: the first technique.")
    ] = None,
    mode: Annotated[str, typer.Option("--mode", help="train, prefill or decode.")] = "train",
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, help="Sequences per replica and step; default: the preset's for the mode."),
    ] = None,
    sequence: Annotated[int | None, typer.Option("--sequence", min=1, help="Tokens per sequence.")] = None,
    micro_batches: Annotated[int | None, typer.Option("--micro-batches", min=1, help="Parts of the batch.")] = None,
    tp: Annotated[int | None, typer.Option("--tp", min=1, help="Tensor-parallel devices; default: to fit.")] = None,
    dp: Annotated[int | None, typer.Option("--dp", min=1, help="Replicas; default: what is left.")] = None,
    pp: Annotated[int | None, typer.Option("--pp", min=1, help="Pipeline stages; default: 1.")] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="Nodes of the cluster.")] = None,
    recompute: Annotated[
        str | None,
        typer.Option(
            "--recompute",
            help="Not kept for the backward pass: none, selective (attention's scores) or full "
            "(whole layers). Memory only, not time.",
            metavar="none|selective|full",
        ),
    ] = None,
    sequence_parallel: Annotated[
        bool, typer.Option("--sequence-parallel", help="Split activations between tensor-parallel regions too.")
    ] = False,
    unfused_attention: Annotated[
        bool, typer.Option("--unfused-attention", help="Attention writes its scores, and keeps them: memory only.")
    ] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="TECHNIQUE.KNOB=VALUE, as co2.tau=48; may be repeated.")
    ] = None,
    regime: Annotated[bool, typer.Option("--map", help="Also where each wins: bandwidth × batch.")] = False,
    link: Annotated[str | None, typer.Option("--link", help="Link the map varies: intra, inter or wide.")] = None,
    bandwidths: Annotated[
        str | None, typer.Option("--bandwidths", help="Gbit/s of the map, as 25,100,400.", metavar="A,B,...")
    ] = None,
    batches: Annotated[
        str | None, typer.Option("--batches", help="Batches of the map, as 1,4,16.", metavar="A,B,...")
    ] = None,
    html: Html = None,
    json: JsonFlag = False,
) -> None:
    """Compare techniques on one model and one cluster, from simulated timelines.

    What does not fit in a device's memory says so, with the smallest change tried that would make it fit; exit code 3
    if it is the fastest.

    Example: densing techniques compare --model llama3-70b --cluster a100x8-tcp --nodes 16 --pp 8 --sequence-parallel
    --techniques ddp,co2,ladder --json
    """
    from densing.cli.techniques_compare import Asked, answer

    asked = Asked(
        model=model,
        cluster=cluster,
        techniques=techniques,
        baseline=baseline,
        overrides={
            "mode": mode,
            "batch": batch,
            "sequence": sequence,
            "micro_batches": micro_batches,
            "recompute": recompute,
            "sequence_parallel": sequence_parallel or None,
            "fused_attention": False if unfused_attention else None,
        },
        split={"tp": tp, "dp": dp, "pp": pp},
        nodes=nodes,
        settings=tuple(settings or ()),
        map=regime,
        link=link,
        bandwidths=bandwidths,
        batches=batches,
        html=html,
        json=json,
    )
    answer(asked)


@app.command("validate")
def validate(
    technique: Annotated[
        list[str] | None, typer.Option("--technique", "-t", help="Only this one; may be repeated.")
    ] = None,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast", help="Leave out claims that take more than ten seconds; break laws for predictions only."
        ),
    ] = False,
    html: Html = None,
    json: JsonFlag = False,
) -> None:
    """Hold the published figures beside what the simulator finds, those it does not reproduce too.

    Every row has a grade: predicted, calibrated on other rows, fitted, algebraic, counted, own measurement. Only
    predictions can be reproduced. The simulator's laws are broken one at a time (ring costs x 3, latency x 10, no
    contention, no overlap), and the rows that notice say so.

    Example: densing techniques validate --technique ladder --json
    """
    from densing.cli import techniques_claims

    techniques_claims.answer(tuple(technique or ()), fast=fast, html=html, json=json)
