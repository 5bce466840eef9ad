"""``densing items``: calibrate banks of items, look at them, and score models from a few of their answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from densing.cli import options as o
from densing.cli.output import emit_json, emit_table, finish, save, say, show_notes

app = typer.Typer(
    no_args_is_help=True,
    help="Banks of items: a full score, with its interval, from about a hundred answers.\n\n"
    "Example: densing items show ikp",
)


@app.command("calibrate")
def calibrate_(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Tables of answers (a row per model, or columns model, item, answer), runs of densing eval, or "
            "folders of lm-eval's results with samples.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", dir_okay=False, help="The bank, as JSON.")],
    name: Annotated[str, typer.Option(help="Of the bank; that of the file by default.")] = "",
    slopes: Annotated[
        Literal["auto", "each", "common"],
        typer.Option(help="2PL (each), 1PL (common), or whichever predicts models of other dates better."),
    ] = "auto",
    source: Annotated[str, typer.Option(help="Where the answers come from; kept with the bank.")] = "",
    licence: Annotated[str, typer.Option(help="Of the answers; kept with the bank.")] = "",
    json: o.JsonFlag = False,
) -> None:
    """Calibrate items: how hard each is, how well it tells models apart, and which are flawed.

    Answers are 1 (right), 0 (wrong), a probability between, or empty. A column `released` with dates lets items be
    checked for drift, and adaptive intervals be calibrated on models of other dates.

    Example: densing items calibrate answers.csv --name arithmetic --licence "CC BY 4.0" --out arithmetic.json
    """
    from densing.scores.items import calibrate_items

    bank = calibrate_items(*sources, name=name or out.stem, slopes=slopes, source=source, licence=licence)
    say(f"wrote {bank.save(out)}")
    if json:
        emit_json({"bank": str(out), **bank.to_dict(), "notes": list(bank.notes)})
        return
    say(bank.sentence)
    emit_table(bank.tasks_listing(), bank.card().title)
    show_notes(bank.notes)


@app.command("show")
def show(
    bank: Annotated[str, typer.Argument(help="A bank's file, or ikp, which ships.")],
    out: o.Out = None,
    html: o.Html = None,
    json: o.JsonFlag = False,
) -> None:
    """Show a bank: items by task, what they tell of ability, and which are flawed.

    Example: densing items show ikp --html ikp.html
    """
    from densing.scores.items import ItemBank

    loaded = ItemBank.load(bank)
    payload = {**loaded.to_dict(), "items": loaded.items, "notes": list(loaded.notes)}
    save(loaded.items, payload, out, loaded.notes)
    if html is not None:
        from densing.report import build_bank

        say(f"wrote {build_bank(loaded, html)}")
    if json:
        emit_json(payload)
        return
    say(loaded.sentence)
    emit_table(loaded.tasks_listing(), loaded.card().title)
    emit_table(loaded.information_listing())
    show_notes(loaded.notes)


@app.command("estimate")
def estimate(
    answers: Annotated[
        str,
        typer.Argument(
            help="Answers of a model: a table with columns item and answer, a run of densing eval, or a folder of "
            "lm-eval's results.",
        ),
    ],
    bank: Annotated[str, typer.Option(help="A bank's file, or ikp, which ships.")],
    model: Annotated[str | None, typer.Option(help="Which model, where there are several.")] = None,
    chosen: Annotated[
        Literal["stratified", "random", "adaptive"],
        typer.Option(help="How the items were chosen; adaptive ones are calibrated up to 100."),
    ] = "stratified",
    control: Annotated[
        bool, typer.Option("--control/--no-control", help="Use the bank's curves as control variate.")
    ] = True,
    level: o.Level = 0.95,
    out: o.Out = None,
    json: o.JsonFlag = False,
) -> None:
    """Estimate a model's score on the whole bank, with an interval, from answers to some of its items.

    Example: densing items estimate answers.csv --bank ikp
    """
    import pandas as pd

    from densing.scores.items import ItemBank

    loaded = ItemBank.load(bank)
    result = loaded.estimate(answers, chosen=chosen, control=control, level=level, model=model)
    payload = {"bank": loaded.name, **result.to_dict()}
    save(pd.DataFrame([payload]).drop(columns="notes"), payload, out, result.notes)
    if json:
        emit_json(payload)
    else:
        emit_table(result.listing(loaded.name))
        show_notes(result.notes)
    finish(result.notes)
