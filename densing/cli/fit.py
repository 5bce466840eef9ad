"""``densing fit``: a scaling law to a user's own table."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from densing.cli import options as o


def fit(
    table: Annotated[Path, typer.Argument(help="CSV with the law's inputs and output, e.g. params,tokens,loss.")],
    law: Annotated[
        str,
        typer.Option(
            "--law",
            help="power, power-offset, chinchilla, chinchilla-e0, densing-loss, "
            "sigmoid, "
            "sigmoid-fixed, logistic, two-step or broken.",
        ),
    ] = "chinchilla",
    loss: Annotated[
        str | None, typer.Option("--loss", help="huber, log, raw, lad ...; huber for losses, raw for scores.")
    ] = None,
    delta: Annotated[float, typer.Option("--delta", help="Turning point of the Huber loss, on log residuals.")] = 1e-3,
    bootstrap: Annotated[int, typer.Option("--bootstrap", min=0, help="Refits behind the intervals.")] = 1000,
    scheme: Annotated[
        str | None,
        typer.Option(
            "--scheme",
            help="case, residual, cluster or parametric; by default cluster where rows share a size or --cluster is "
            "given, else case.",
        ),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Column that groups rows, for --scheme cluster.")
    ] = None,
    floor: Annotated[float | None, typer.Option("--floor", help="Fixed floor of a score law (chance).")] = None,
    ceiling: Annotated[float | None, typer.Option("--ceiling", help="Fixed ceiling of a score law.")] = None,
    level: Annotated[
        float, typer.Option("--level", min=0.5, max=0.999, callback=o.finite, help="Level of the intervals.")
    ] = 0.95,
    rollout: Annotated[
        float | None, typer.Option("--rollout", help="Fit rows whose first input is below this, predict the rest.")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            "--protocol",
            metavar="PARTS",
            help="How the scores were measured, kept with --out and compared with the scores that are read on the fit: "
            "shots=5,form=letters,metric=acc (form: cloze, letters or generate; also normalisation=, cot=yes, "
            "source=). Unknown where not given.",
        ),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print the fit's full identity and diagnostics.")] = False,
    seed: o.Seed = 0,
    out: o.FitOut = None,
    json: o.JsonFlag = False,
) -> None:
    """Fit a scaling law with a robust loss and bootstrap intervals.

    A two-step fit of params,tokens,loss,score makes a reference of your own: `densing density --reference ruler.json`;
    --protocol says how its scores were measured.

    Example: densing fit runs.csv --law chinchilla --loss huber --delta 1e-3 --bootstrap 1000 --json
    """
    from densing.cli import fitting
    from densing.cli.output import emit_json, emit_table, finish, say, show_notes, visible
    from densing.core import write_text
    from densing.scores.catalog import parse_protocol

    stated = None if protocol is None else parse_protocol(protocol)
    options = {"floor": floor, "ceiling": ceiling}
    asked = {"loss": loss, "delta": delta, "bootstrap": bootstrap, "scheme": scheme, "seed": seed}
    rows, chosen = fitting.read_rows(table, law, options, cluster)
    result = fitting.fit_rows(rows, chosen, cluster, asked)
    if stated is not None:
        result = dataclasses.replace(result, meta={**result.meta, "protocol": stated.to_dict()})
    extra: dict[str, Any] = fitting.explain(result) if explain else {}
    if rollout is not None:
        extra["rollout"] = fitting.rollout_table(rows, chosen, rollout, asked)
    if out is not None:
        write_text(out, result.to_json() + "\n")
        say(f"wrote {out}")
    if json:
        emit_json({**fitting.payload(result, level), **extra})
    else:
        emit_table(result.intervals(level), f"{result.law.name}: {result.law.equation}; {100 * level:g} % intervals")
        say(fitting.identity(result))
        for title, value in extra.items():
            if hasattr(value, "columns"):
                emit_table(value, title)
            else:
                typer.echo(visible(f"{title}: {value}"))
        show_notes(result.notes)
    finish(result.notes)
