"""``densing compare``: the ratio of two models' densities, on common items."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from densing.cli import options as o
from densing.cli.figures import Pictures
from densing.cli.output import emit_json, emit_table, finish, save, say, show_notes
from densing.core import StoppedError

if TYPE_CHECKING:
    from densing.scores.evals import Stopped


def compare_(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="Runs of densing eval, or results of other harnesses with their samples (files or folders).",
            show_default=False,
        ),
    ],
    baseline: Annotated[
        str | None,
        typer.Option(help="The model that the others are compared with; default: the first."),
    ] = None,
    reference: Annotated[
        str, typer.Option("--reference", "-r", help="The reference, or a JSON fit; see densing refs list.")
    ] = "olmo-ladder",
    benchmark: Annotated[str | None, typer.Option("--benchmark", "-b", help="Only this benchmark.")] = None,
    params: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=COUNT", help="Size of a model (13e9: 13 billion); may be repeated."),
    ] = None,
    denominator: Annotated[
        str | None,
        typer.Option(help="total, active or non_embedding; default: what the reference counts."),
    ] = None,
    filter_: o.Filters = None,
    tokens: o.Tokens = None,
    until_ci: Annotated[
        float | None,
        typer.Option(
            "--until-ci",
            help="Let the two models of one or two runs answer further common items, until the half-width of ln of the "
            "ratio is below this (0.1: about 10 %), or all others would narrow it by less than a tenth.",
        ),
    ] = None,
    guard: o.Guard = 10.0,
    level: o.Level = 0.95,
    seed: o.Seed = 0,
    out: o.Out = None,
    html: o.Html = None,
    png: o.Png = None,
    svg: o.Svg = None,
    json: o.JsonFlag = False,
) -> None:
    """Compare measured models, or checkpoints, with one of them: the ratio of densities, an interval and a test.

    Both are measured on the same items and read through the same draws of the reference, so most of either error
    cancels: the ratio is known better than the two densities. With several models, p is adjusted by Holm's method.

    Example: densing compare results/a results/b --reference olmo-ladder

    Example: densing compare results/run --baseline mine@step1000 --html run.html

    Example: densing compare results/a results/b --until-ci 0.1
    """
    from densing.scores.density import compare

    stopped = [] if until_ci is None else _evaluate(sources, until_ci, reference, benchmark, tokens, level, json)
    result = compare(
        *sources, baseline=baseline, reference=reference, benchmark=benchmark, params=o.parse_params(params or []),
        tokens=tokens, denominator=denominator, guard=guard, filters=o.parse_filters(filter_), level=level, seed=seed,
    )  # fmt: skip
    pictures = Pictures(html, png, svg)
    if pictures:
        from densing.plots import plot_comparison
        from densing.report import build_comparison

        pictures.write(lambda path: build_comparison(result, path), lambda: plot_comparison(result), result.table)
    save(result.table, result.to_dict(), out, result.notes)
    show_notes(result.notes)
    if json:
        further = {"until": [one.to_dict() for one in stopped]} if stopped else {}
        emit_json({**result.to_dict(), **further}, [note for one in stopped for note in one.notes])
    else:
        emit_table(result.listing())
        say("\n".join(result.sentences()))
    finish(result.notes)


def _evaluate(
    sources: list[Path],
    target: float,
    reference: str,
    benchmark: str | None,
    tokens: float | None,
    level: float,
    json: bool,
) -> list[Stopped]:
    """Let both models answer further items, and say what that took."""
    from densing.cli.eval import bar
    from densing.scores.density import compare_until

    try:
        with bar(json) as progress:
            stopped = compare_until(
                sources, target, reference=reference, benchmark=benchmark, tokens=tokens, level=level, progress=progress
            )
    except KeyboardInterrupt:
        raise StoppedError("stopped; the same command resumes from the runs' stores") from None
    if not json:
        look, asked = stopped[0].look, sum(unit.requests for one in stopped for unit in one.units)
        message = f"{stopped[0].items} common items are stored" if look is None else look.message
        say(f"{message}; {asked} further requests of both models; stored in {' and '.join(map(str, sources))}")
        show_notes([note for one in stopped for note in one.notes])
    return stopped
