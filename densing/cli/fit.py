"""``densing fit``: fit a scaling law to a user's table."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from densing.cli import options as o
from densing.cli.output import emit_json, emit_table, finish, say, show_notes, timed_bar, visible
from densing.core import InputError, listing_of, write_text
from densing.scores.laws import law_names

if TYPE_CHECKING:
    import pandas as pd

    from densing.scores.laws import Law


def fit(
    table: Annotated[
        Path,
        typer.Argument(
            help=f"Table ({o.FORMS}) with the law's inputs and output, e.g. params,tokens,loss; or a folder of runs of "
            "Weights & Biases."
        ),
    ],
    sheet: o.SheetName = None,
    fetch: o.Fetch = False,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=HEADER",
            help="Column to use as params, tokens, loss or score if the choice is ambiguous: loss=eval/loss. May be "
            "repeated.",
        ),
    ] = None,
    law: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(law_names()[:-1])} or {law_names()[-1]}.",
        ),
    ] = "chinchilla",
    loss: Annotated[
        str | None, typer.Option(help="huber, log, raw, lad ...; huber for losses, raw for scores.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Threshold of the Huber loss, on log residuals.")] = 1e-3,
    bootstrap: Annotated[int, typer.Option(min=0, help="Bootstrap refits for the intervals.")] = 1000,
    scheme: Annotated[
        str | None,
        typer.Option(
            help="case, residual, cluster or parametric; by default cluster where rows share a size or --cluster is "
            "given, else case.",
        ),
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="Column that groups rows, for --scheme cluster.")] = None,
    floor: Annotated[float | None, typer.Option(help="Fixed floor of a score law (chance).")] = None,
    ceiling: Annotated[float | None, typer.Option(help="Fixed ceiling of a score law.")] = None,
    level: o.Level = 0.95,
    rollout: Annotated[
        float | None, typer.Option(help="Fit rows whose first input is below this; predict the rest.")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="PARTS",
            help="Protocol of the scores, stored with --out and compared with that of scores read on the fit: "
            "shots=5,form=letters,metric=acc (form: cloze, letters or generate; also normalisation=, cot=yes, "
            "source=). Omitted parts are unknown.",
        ),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print the fit's full identity and diagnostics.")] = False,
    seed: o.Seed = 0,
    out: o.FitOut = None,
    json: o.JsonFlag = False,
) -> None:
    """Fit a scaling law with a robust loss and bootstrap intervals.

    A two-step fit of params,tokens,loss,score makes a reference of your own: `densing density --reference
    reference.json`; --protocol says how its scores were measured.

    A law that bends away from its runs is an error (exit code 3) only where that moves the prediction a decade beyond
    them out of its interval; --explain prints how far it and the exponents move.

    Example: densing fit runs.csv --law chinchilla --loss huber --delta 1e-3 --bootstrap 1000 --json

    Example: densing fit wandb --law chinchilla --column loss=eval/loss
    """
    from densing.scores.catalog import parse_protocol
    from densing.scores.fit import checklist, fit_runs, read_runs
    from densing.scores.laws import get_law

    parts = None if protocol is None else parse_protocol(protocol)
    ends = {"floor": floor, "ceiling": ceiling}
    chosen = get_law(law, **{name: value for name, value in ends.items() if value is not None})
    options: dict[str, Any] = {"loss": loss, "delta": delta, "bootstrap": bootstrap, "scheme": scheme, "seed": seed}
    runs, notes = read_runs(o.brought(table, sheet, fetch), chosen, cluster, _named(column or []))
    with timed_bar(json, "fit and draws"):
        result = fit_runs(runs, chosen, cluster=cluster, **options)
    result = dataclasses.replace(result, notes=(*notes, *result.notes))
    if parts is not None:
        result = dataclasses.replace(result, meta={**result.meta, "protocol": parts.to_dict()})
    extra = checklist(result) if explain else {}
    if rollout is not None:
        extra["rollout"] = _rollout(runs, chosen, rollout, options)
    if out is not None:
        write_text(out, result.to_json() + "\n")
        say(f"wrote {out}")
    intervals = result.intervals(level)
    if json:
        emit_json(
            {
                "law": result.law.name,
                "equation": result.law.equation,
                "source": result.law.source,
                "n": len(result.y),
                "params": result.params,
                "objective": result.objective,
                "intervals": {row.param: [row.lo, row.hi] for row in intervals.itertuples()},
                "level": level,
                "status": result.status,
                "options": result.options,
                "domain": result.domain,
                "data_hash": result.data_hash,
                "notes": list(result.notes),
                **extra,
            }
        )
    else:
        emit_table(result.listing(level))
        identity = result.options
        turn = "" if identity.get("delta") is None else f" with delta {identity['delta']:g}"
        say(
            f"{len(result.y)} points, loss {identity['loss']}{turn}, objective {result.objective:.6g}, "
            f"{result.status}; {len(result.draws)} {identity['scheme']} draws, seed {identity['seed']}"
        )
        for title, value in extra.items():
            if hasattr(value, "columns"):
                emit_table(listing_of(title, value))
            else:
                typer.echo(visible(f"{title}: {value}"))
        show_notes(result.notes)
    finish(result.notes)


def _named(texts: list[str]) -> dict[str, str]:
    """Return the headers of ``--column NAME=HEADER`` by the column that they are."""
    named: dict[str, str] = {}
    for text in texts:
        name, sign, header = text.partition("=")
        if not sign or not name or not header or name in named:
            raise typer.BadParameter(f"{text}: write NAME=HEADER, each name once", param_hint="--column")
        named[name] = header
    return named


def _rollout(runs: pd.DataFrame, law: Law, cutoff: float, options: dict[str, Any]) -> pd.DataFrame:
    """Fit the small models, predict the large ones, and return the misses."""
    from densing.scores.fit import rollout
    from densing.scores.laws import TwoStep

    if isinstance(law, TwoStep):
        raise InputError("--rollout: fit the two steps separately (chinchilla, then sigmoid)")
    x = {name: runs[name].to_numpy(dtype=float) for name in law.inputs}
    first = law.inputs[0]
    if not x[first].min() < cutoff <= x[first].max():
        raise InputError(
            f"--rollout {cutoff:g}: must lie above the smallest {first} ({x[first].min():g}) and at most at the "
            f"largest ({x[first].max():g})"
        )
    return rollout(law, x, runs[law.output].to_numpy(dtype=float), cutoff=cutoff, **options)
