"""``densing worth``: whether techniques pay for a training run, time saved and tokens lost together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from densing.cli.grouped import grouped
from densing.cli.options import Html, JsonFlag, Page
from densing.cli.output import emit_plain, emit_table, finish, say, show_notes, timed_bar, visible
from densing.cli.techniques import ClusterOptions, StepOptions
from densing.core import InputError, formatting

if TYPE_CHECKING:
    from densing.tradeoff import Worth


@grouped("model cluster tokens gain price baseline", "pp nodes gpus recompute", "delay")
def worth(
    step: StepOptions,
    cluster: ClusterOptions,
    tokens: Annotated[float, typer.Option(help="Tokens of the plain run, as in 1e12.")],
    techniques: Annotated[
        str | None, typer.Argument(help="Comma-separated, with settings: co2:tau=8,dct:eta=0.99,refresh=10,zero1.")
    ] = None,
    listed: Annotated[
        str | None, typer.Option("--techniques", help="The same as an option, as in compare.", metavar="A,B,...")
    ] = None,
    gain: Annotated[
        list[Path] | None,
        typer.Option(help="gain.json of `densing ladder gain DIR`, before the shipped ones; may be repeated."),
    ] = None,
    price: Annotated[float | None, typer.Option(help="Money per device and hour.")] = None,
    baseline: Annotated[str, typer.Option(help="What plain training exchanges gradients with.")] = "ddp",
    page: Page = None,
    html: Html = None,
    json: JsonFlag = False,
) -> None:
    """Say whether techniques are worth it: time saved per step and tokens lost, in days to the same loss.

    Steps are simulated with what published runs reach; what a token is worth beside plain training comes from ladders
    of small models (shipped, or --gain), carried to the run's size and tokens along their trends and widened with the
    distance. Where the interval of both together lies above 1 a technique pays, below 1 it does not. Too far from a
    ladder, or without one, the answer is one of time alone, with the token ratio from which it would pay.

    Example: densing worth co2:tau=8 --model llama-8b --cluster a100x8-tcp --gpus 64 --tokens 1e12

    Example: densing worth local-sgd:tau=8,zero1 --model llama-8b --cluster a100x8-tcp --tokens 2e10 --price 2.1
    --gain ladders/arms/gain.json --html worth.html
    """
    from densing.efficiency.simulation import load_other
    from densing.tradeoff import read_specs
    from densing.tradeoff import worth as weigh

    if techniques and listed:
        raise InputError("techniques stand both before the options and in --techniques; name them in one place")
    specs = read_specs(techniques or listed or "")
    if not specs:
        raise InputError("no technique named; give one or several, as in densing worth co2:tau=8,zero1 --model ...")
    machine = cluster.load()
    if load_other(step.model) is not None:
        raise InputError(f"--model {step.model}: not a transformer; tokens and losses are those of a language model")
    workload = step.load(machine, [spec.partition(":")[0] for spec in specs])
    with timed_bar(json, "comparisons") as show:
        found = weigh(
            specs, workload, machine, tokens, gains=gain or (), baseline=baseline, price=price,
            progress=lambda done, total: show("comparisons", float(done), float(total)),
        )  # fmt: skip
    for path in filter(None, (page, html)):
        from densing.report import build_worth

        say(f"wrote {build_worth(found, path)}")
    if json:
        emit_plain(found.to_dict() | {"sentences": list(found.sentences())}, found.notes)
    else:
        _show(found)
        show_notes(found.notes)
    finish(found.notes)


def _show(found: Worth) -> None:
    typer.echo("\n".join([*(f"- {visible(sentence)}" for sentence in found.sentences()), ""]))
    emit_table(found.listing(), found.card().title)
    typer.echo(
        f"plain ({found.baseline}): {formatting.duration(1e9 * found.plain_step_s)} a step, "
        f"{found.plain_days.words} days; intervals of 95 %, of plain's days four of five runs"
    )
