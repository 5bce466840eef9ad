"""``densing tune``: train adapters on films and their reception."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from densing.cli import options as o
from densing.cli.eval import ModelOptions
from densing.cli.grouped import grouped
from densing.cli.ladder import Device, need_training
from densing.cli.output import emit_json, say, timed_bar


@grouped()
def tune_(
    out: Annotated[Path, typer.Option("--out", "-o", file_okay=False, help="Folder of the adapter.")],
    *,
    model: ModelOptions,
    split: Annotated[
        str, typer.Option(help="Train on the training films of this split: time, director or random.")
    ] = "time",
    films: Annotated[int, typer.Option(min=1, help="Number of films.")] = 500,
    passes: Annotated[int, typer.Option(min=1, help="Epochs.")] = 1,
    rank: Annotated[int, typer.Option(min=1, help="Rank of the adapters.")] = 8,
    rate: Annotated[float, typer.Option(callback=o.finite, help="Peak learning rate.")] = 1e-3,
    batch: Annotated[int, typer.Option(min=1, help="Films per step.")] = 4,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the initial weights and of the choice and order of films.")
    ] = 0,
    device: Device = "cpu",
    json: o.JsonFlag = False,
) -> None:
    """Tune a model by LoRA (peft) on films told with their score, reviews and takings; its own weights stay frozen.

    `densing eval --adapter OUT` asks the tuned model about films of the same split that it was not told. The folder is
    written at the end, whole: a killed run leaves nothing and begins anew, and a finished one is not done again.

    Example: densing tune --model smollm2-135m --split time --films 500 --out tuned/smollm2
    """
    from densing.scores.ladder import Tuning, tune

    need_training()
    spec = model.spec("--model: one model is tuned at a time")
    tuning = Tuning(split, films, passes, rank, rate, batch, seed)
    with timed_bar(json, "looking at the model") as show:
        adapter = tune(spec, out, tuning, device=device, progress=show)
    about = adapter.manifest
    if json:
        emit_json({"folder": str(out), **adapter.provenance})
        return
    loss = about["loss"]
    say(
        f"{about['model']}: {about['films']} films, {about['tokens']} tokens in {about['steps']} steps; loss "
        f"{loss['first']:.3f} at first, {loss['last']:.3f} at last ({loss['unit']}); {about['parameters']} parameters "
        f"stored in {out}; evaluate with densing eval --model ... --adapter {out}"
    )
