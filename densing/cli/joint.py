"""``densing joint``: one scale for all models: abilities, evaluator offsets, links and validation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from densing.cli import options as o
from densing.cli.output import emit_json, emit_table, finish, progress, save, say, show_notes
from densing.core import listing_of

if TYPE_CHECKING:
    from pathlib import Path

    from densing.scores.catalog import Catalog
    from densing.scores.joint import Cells, JointScale

app = typer.Typer(
    no_args_is_help=True,
    help="One scale for all scores: abilities, offsets of evaluators, links, checks.\n\n"
    "Example: densing joint abilities",
)
Evaluators = Annotated[
    list[str] | None, typer.Option("--evaluator", help="Scores of this evaluator only; may be repeated.")
]
Sweeps = Annotated[
    int | None,
    typer.Option("--sweeps", min=20, help="Draws per chain; the pilot chain is four fifths as long."),
]
POINTS = ["offset", "lo", "hi"]


def _cells(catalog: list[Path] | None, evaluators: list[str] | None) -> tuple[Catalog, Cells]:
    from densing.core import UnknownNameError
    from densing.scores.catalog import load_catalog
    from densing.scores.joint import joint_cells

    merged = load_catalog(*(catalog or []))
    names = set(merged.scores["evaluator"])
    for name in evaluators or []:
        if name not in names:
            raise UnknownNameError("evaluator", name, map(str, names))
    return merged, joint_cells(merged, evaluators=evaluators or None)


def _chain(sweeps: int | None) -> dict[str, Any]:
    return {} if sweeps is None else {"sweeps": sweeps, "draws": min(500, sweeps)}


def _fitted(cells: Cells, sweeps: int | None, seed: int, quiet: bool) -> JointScale:
    from densing.scores.joint import fit_joint, usual_scale

    with progress(quiet) as step:
        if sweeps is None and seed == 0:
            return usual_scale(cells, step=step)
        return fit_joint(cells, seed=seed, step=step, **_chain(sweeps))


@app.command("abilities")
def abilities(
    basket: Annotated[str, typer.Option(help="general, a skill, multilingual, or the code of a language.")] = "general",
    catalog: o.CatalogFiles = None,
    evaluator: Evaluators = None,
    sweeps: Sweeps = None,
    seed: o.Seed = 0,
    out: o.Out = None,
    json: o.JsonFlag = False,
) -> None:
    """Show what every model can on one scale, in logits, with 95 % intervals; the ablest first.

    A model never measured on a skill has what its other abilities let expect, and the error of that.

    Example: densing joint abilities --basket mathematics --catalog mine.csv
    """
    from densing.core import UnknownNameError
    from densing.scores.joint import joint_baskets

    _, cells = _cells(catalog, evaluator)
    if basket not in (known := joint_baskets(cells)):
        raise UnknownNameError("basket of the joint scale", basket, known)
    scale = _fitted(cells, sweeps, seed, json)
    table = scale.abilities(basket).sort_values("ability", ascending=False, ignore_index=True)
    # What is wrong with the chains is judged by the ability that is shown.
    verdict = scale.not_mixed(basket)
    notes = [note for note in scale.notes if note.code != "not-mixed"] + ([] if verdict is None else [verdict])
    payload = {"basket": basket, "abilities": table, **_of_chains(scale, json), "notes": notes}
    _show(table, f"{len(table)} models: {basket} ability, logits", payload, notes, out, json)


@app.command("offsets")
def offsets(
    benchmark: Annotated[str | None, typer.Option("--benchmark", "-b", help="One benchmark only.")] = None,
    catalog: o.CatalogFiles = None,
    evaluator: Evaluators = None,
    sweeps: Sweeps = None,
    seed: o.Seed = 0,
    out: o.Out = None,
    json: o.JsonFlag = False,
) -> None:
    """Show how many percentage points each evaluator's figures lie above an average evaluator's, with 95 % intervals.

    Read at the mean ability of the models that it measured; of benchmarks that several evaluators run.

    Example: densing joint offsets --benchmark gsm8k
    """
    from densing.core import Note, UnknownNameError

    _, cells = _cells(catalog, evaluator)
    known = cells.table["benchmark"].unique()
    if benchmark is not None and benchmark not in known:
        raise UnknownNameError("benchmark of the joint scale", benchmark, map(str, known))
    scale = _fitted(cells, sweeps, seed, json)
    table = scale.offsets()
    table[POINTS] *= 100
    if benchmark is not None:
        table = table[table["benchmark"].eq(benchmark)].reset_index(drop=True)
    table = table.rename(columns={name: f"{name}_points" for name in POINTS})
    notes = [*scale.notes]
    if table.empty:
        about = "these scores" if benchmark is None else f"the scores of {benchmark}"
        message = f"no offset: {about} come from one evaluator a benchmark, so they cannot be separated"
        notes.append(Note("no-offset", "warning", message))
    payload = {"offsets": table, **_of_chains(scale, json), "notes": notes}
    _show(table, f"{len(table)} offsets, percentage points", payload, notes, out, json)


@app.command("links")
def links(
    refit: Annotated[
        str | None,
        typer.Option(help="evaluator or benchmark: refit without each large one in turn (takes minutes)."),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="With --refit: leave only this one out; may be repeated.")
    ] = None,
    catalog: o.CatalogFiles = None,
    evaluator: Evaluators = None,
    sweeps: Sweeps = None,
    seed: o.Seed = 0,
    out: o.Out = None,
    json: o.JsonFlag = False,
) -> None:
    """Show which models link the evaluators, and how far abilities move when an evaluator is taken out.

    Example: densing joint links --refit evaluator --without euroeval
    """
    from densing.scores.joint import evaluator_links, leave_one_out

    if without and refit is None:
        raise typer.BadParameter("needs --refit evaluator or --refit benchmark", param_hint="--without")
    _, cells = _cells(catalog, evaluator)
    structure = evaluator_links(cells)
    payload: dict[str, Any] = {"links": structure.table, "notes": list(structure.notes)}
    if refit is None:
        _show(structure.table, f"{len(structure.table)} evaluators", payload, structure.notes, out, json)
        return
    with progress(json) as step:
        result = leave_one_out(
            cells,
            without or None,
            column=refit,
            seed=seed,
            step=step,
            **_chain(sweeps),
        )
    payload |= {"refits": result.table, "lost": result.lost, "notes": [*structure.notes, *result.notes]}
    if not json:
        emit_table(listing_of(f"{len(structure.table)} evaluators", structure.table))
    title = f"Abilities without one {refit}: moves in widths of 95 % intervals"
    _show(result.table, title, payload, (*structure.notes, *result.notes), out, json)


@app.command("validate")
def validate_(
    splits: Annotated[
        str, typer.Option(help="Comma-separated: cells, pairs, time, skill, evaluator.")
    ] = "cells,pairs,time,skill,evaluator",
    seeds: Annotated[int, typer.Option(min=1, max=50, help="Seeds per split.")] = 3,
    cutoff: Annotated[
        str, typer.Option(help="Cut-off date of the time split: later models are hidden.", metavar="DATE")
    ] = "2025-11-01",
    by: Annotated[
        str | None, typer.Option(help="Group errors by evaluator, skill, language, benchmark or model.")
    ] = None,
    catalog: o.CatalogFiles = None,
    evaluator: Evaluators = None,
    sweeps: Sweeps = None,
    out: o.Out = None,
    json: o.JsonFlag = False,
) -> None:
    """Hide scores, predict them, and compare with what rivals predict; half a minute per split and seed.

    Rivals: the form of the Epoch Capabilities Index, on benchmarks and on tests, and PCA with imputation.

    Example: densing joint validate --splits pairs,time --seeds 3 --by evaluator
    """
    from densing.core import UnknownNameError
    from densing.scores.joint import GROUPINGS, validate

    if by is not None and by not in GROUPINGS:
        raise UnknownNameError("column of predictions", by, GROUPINGS)
    o.parse_date(cutoff, "--cutoff")
    merged, cells = _cells(catalog, evaluator)
    names = [name.strip() for name in splits.split(",") if name.strip()]
    with progress(json) as step:
        result = validate(cells, merged, splits=names, seeds=range(seeds), cutoff=cutoff, step=step, **_chain(sweeps))
    table = result.table if by is None else result.by(by)
    payload = {"validation": table, "cutoff": cutoff, "notes": list(result.notes)}
    _show(table, f"{len(result)} hidden scores", payload, result.notes, out, json)


@app.command("recover")
def recover(
    worlds: Annotated[int, typer.Option(min=1, max=50, help="Simulated data sets, one fit each.")] = 6,
    months: Annotated[
        str, typer.Option(help="Doubling times of the simulated data sets, comma-separated; used in turn.")
    ] = "4,8",
    catalog: o.CatalogFiles = None,
    seed: o.Seed = 0,
    out: o.Out = None,
    json: o.JsonFlag = False,
) -> None:
    """Simulate scores with a known doubling time on the catalog's own cells, and estimate it; half a minute per world.

    Is the trend found although skills are missing, and evaluators and most curves are none that the model knows?

    Example: densing joint recover --worlds 6
    """
    from densing.scores.catalog import load_catalog
    from densing.scores.study import recover_trend

    try:
        paces = [float(part) for part in months.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{months!r} is not a list of months; write 4,8", param_hint="--months") from None
    with progress(json) as step:
        result = recover_trend(load_catalog(*(catalog or [])), worlds=worlds, months=paces, seed=seed, step=step)
    payload = {"recovery": result.table, "sentence": result.sentence, "notes": list(result.notes)}
    if not json:
        say(result.sentence)
    _show(result.table, "Recovery of a known doubling time from simulated scores", payload, result.notes, out, json)


def _of_chains(scale: JointScale, json: bool) -> dict[str, Any]:
    """Say how well the chains agree, and return it with their options."""
    r_hat, ess = float(scale.convergence["r_hat"].max()), float(scale.convergence["ess"].min())
    if not json:
        say(scale.agreement)
    return {"options": scale.options, "convergence": {"r_hat": r_hat, "ess": ess}}


def _show(table: Any, title: str, payload: Any, notes: Any, out: Path | None, json: bool) -> None:
    save(table, payload, out, notes)
    if json:
        emit_json(payload, notes)
    else:
        emit_table(listing_of(title, table))
        show_notes(notes)
    finish(notes)
