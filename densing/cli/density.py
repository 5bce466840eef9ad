"""``densing density``: effective parameters and density of every model."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from densing.cli import calls
from densing.cli import options as o
from densing.cli.figures import Pictures
from densing.cli.output import emit_json, emit_table, finish, save, say, show_notes, timed_bar
from densing.core import Note, listing_of, once

if TYPE_CHECKING:
    import pandas as pd

    from densing.core import Hit

TO_QUOTE = "To quote:"


def density(
    reference: o.Reference = "qwen1.5",
    benchmark: Annotated[
        str | None,
        typer.Option(
            "--benchmark",
            "-b",
            help="Benchmark id, or `mean`: one curve on the mean score; all of them with --results.",
        ),
    ] = None,
    scores: Annotated[
        Path | None,
        typer.Option(
            help=f"Your table ({o.FORMS}) of model,params,released,benchmark,score; only its models are shown.",
        ),
    ] = None,
    results: Annotated[
        list[Path] | None,
        typer.Option(
            help="Runs of `densing eval`, or results of lm-eval, lighteval, inspect, HELM or OpenCompass (files or "
            "folders); only their models are shown.",
        ),
    ] = None,
    items: Annotated[
        str | None,
        typer.Option(
            help="Answers to some items of --bank (columns item and answer), or a run of them: densities from the "
            "scores on all items, which the bank estimates.",
        ),
    ] = None,
    bank: Annotated[str | None, typer.Option(help="The bank of --items; see densing items.")] = None,
    params: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COUNT",
            help="Size of a model of --results (13e9: 13 billion); may be repeated. Default: the size stated in the "
            "results, else the catalog's for that name.",
        ),
    ] = None,
    filter_: o.Filters = None,
    catalog: o.CatalogFiles = None,
    sheet: o.SheetName = None,
    fetch: o.Fetch = False,
    include: o.Include = None,
    combine: o.Combine = "mean-score",
    pool: o.Pool = False,
    denominator: Annotated[
        str | None,
        typer.Option(
            help="Parameter count in the denominator: total, active or non_embedding; default: total, or "
            "non_embedding for --results on a ladder, which counts these.",
        ),
    ] = None,
    tokens: o.Tokens = None,
    guard: Annotated[
        float | None,
        typer.Option(
            help="Report N_eff only within [Nmin/GUARD, GUARD*Nmax] of the family; inf: no limit.  [3; 10 for "
            "--results]",
        ),
    ] = None,
    level: o.Level = 0.95,
    references: Annotated[
        str | None,
        typer.Option(
            help="Compare references (`all` or comma-separated names): values, ranks, rank correlation.",
            metavar="NAMES",
        ),
    ] = None,
    rulers: Annotated[str | None, typer.Option(hidden=True, help="Now --references.")] = None,
    skills: Annotated[bool, typer.Option("--skills", help="Density per skill instead of on one benchmark.")] = False,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            help="'METRIC < NUMBER', e.g. 'density<0.8', for models of --scores or --results: exit code 4 if it is "
            "true for a model's whole interval, or for part of it (undecided); may be repeated. METRIC: density "
            "or n_eff; an end of the interval, e.g. density_hi, which is a plain number; with the benchmark before it "
            "that of one benchmark, as in mmlu.density. On a ladder, where losses are read, too: loss.density, "
            "piqa.score.density.",
        ),
    ] = None,
    by_step: Annotated[
        bool,
        typer.Option(
            "--by-step",
            help="Checkpoints of --scores or --results by run and training step, which their names tell (step500, "
            "checkpoint-500, iter_500); with --html, --png or --svg density against step.",
        ),
    ] = False,
    seed: o.Seed = 0,
    out: o.Out = None,
    html: o.Html = None,
    png: o.Png = None,
    svg: o.Svg = None,
    json: o.JsonFlag = False,
) -> None:
    """Turn scores into effective parameters and density, with a status and an interval per model.

    Intervals cover the error of the model's ability and of the reference. The columns density_*_recipe add
    model-to-model scatter: where another model of the same recipe may lie. With --verbose and --reference joint:
    also the reference's share of the variance, by number of families.

    Example: densing density --reference qwen1.5 --benchmark mmlu --scores my_scores.csv --json

    Example: densing density --benchmark mmlu --scores team.xlsx --sheet Scores

    Example: densing density --benchmark mmlu --scores https://example.org/team.csv --fetch

    Example: densing density --benchmark mmlu --scores my_scores.csv --html densities.html

    Example: densing density --references all --benchmark mmlu

    Example: densing density --results results/mine --reference olmo-ladder

    Example: densing density --results lm_eval_out --params org/my-model=13e9

    Example: densing density --items answers.csv --bank suite.json --params mine=1e9 --reference olmo-ladder

    Example: densing density --results results/run --reference olmo-ladder --by-step --html run.html

    Example: densing density --results results/mine --reference olmo-ladder --fail-if 'density<0.8'

    The column `protocol` says whether a score was measured as the reference was (shots, form of the answer, metric,
    normalisation, chain of thought): same, unknown, or differs, which is an error note and exit code 3.

    With --fail-if 'density<0.8' a model passes when the lower end of its interval is 0.8 or more: what cannot be
    decided fails too. 'density_hi<0.8' fails only what is surely below. A condition reads the combined row of
    --results, its loss where that was measured. Ladders combine what was measured; another reference does so only where
    all benchmarks of its mean were, and else a condition names one: 'arc_challenge.density<0.8'. --json then says under
    `fail_if` what failed each model, and exit code 3 speaks of what the condition reads alone.
    """
    if fail_if and scores is None and not results and items is None:
        raise typer.BadParameter("needs --scores, --results or --items", param_hint="--fail-if")
    if (items is None) != (bank is None) or (items is not None and results):
        raise typer.BadParameter("go together, without --results", param_hint="--items, --bank")
    if rulers is not None:
        say("--rulers is now --references; the next version removes the old name")
        references = references or rulers
    scores = scores and o.brought(scores, sheet, fetch)
    catalog = [o.brought(path, sheet, fetch) for path in catalog or []]
    pictures = Pictures(html, png, svg)
    measured = bool(results) or items is not None
    if by_step and (references is not None or skills or (scores is None and not measured)):
        raise typer.BadParameter("checkpoints of --scores or --results, on one reference", param_hint="--by-step")
    if pictures and ((measured and not by_step) or references is not None or skills):
        raise typer.BadParameter(
            "a figure shows one reference: use it with --scores or the catalog (with --results only together with "
            "--by-step), without --references and --skills",
            param_hint="--html, --png, --svg",
        )
    options: dict[str, Any] = {"denominator": denominator, "level": level, "seed": seed, "tokens": tokens}
    if measured:
        if scores is not None or catalog or skills or references is not None:
            raise typer.BadParameter(
                "cannot be combined with --scores, --catalog, --skills or --references",
                param_hint="--results" if results else "--items",
            )
        if guard is not None:
            options["guard"] = guard
        options["filters"] = o.parse_filters(filter_)
        sizes = o.parse_params(params or [])
        if items is not None and bank is not None:
            runs = _of_items(items, bank, sizes)
        else:
            runs = o.read_measured([o.brought(path, None, fetch) for path in results or []], sizes)
        _of_runs(
            *runs, reference, {**options, "benchmark": benchmark}, fail_if or [], by_step, pictures,
            out, json,
        )  # fmt: skip
        return
    if params:
        raise typer.BadParameter("for --results and --items; score tables state their sizes", param_hint="--params")
    if filter_:
        raise typer.BadParameter("for --results: a table of scores holds one per benchmark", param_hint="--filter")
    from densing.scores.catalog import load_catalog, selection_of
    from densing.scores.density import (
        HOW_TO_READ,
        catalog_densities,
        check_densities,
        densities_by_step,
        density_listing,
        density_sentences,
        reference_by_families,
        skill_results,
        skill_table,
        table_densities,
    )
    from densing.scores.density import (
        by_step as by_step_order,
    )
    from densing.scores.references import JOINT, load_reference

    benchmark, guard = benchmark or "mean", 3.0 if guard is None else guard
    options |= {"denominator": denominator or "total", "guard": guard}
    if scores is not None and (catalog or skills):
        raise typer.BadParameter(
            "cannot be combined with --catalog or --skills; use --catalog alone to add models to ours",
            param_hint="--scores",
        )
    if skills and reference.endswith(".json"):
        raise typer.BadParameter(
            "your own fit covers one benchmark, not a skill; use --benchmark", param_hint="--skills"
        )
    selection = selection_of(include)
    if references is not None:
        if skills or pool or combine != "mean-score" or fail_if:
            raise typer.BadParameter(
                "--references cannot be combined with --skills, --pool, --combine or --fail-if",
                param_hint="--references",
            )
        if scores is None:
            options |= {"models": load_catalog(*(catalog or [])), "selection": selection}
        else:
            options["models"] = scores
        _on_references(references, benchmark, options, out, json)
        return
    notes: Iterable[Note]
    if skills:
        # The curves of skills are read at the reference's own tokens.
        shared = {name: options[name] for name in ("denominator", "guard", "level", "seed")}
        by_skill = skill_results(load_catalog(*(catalog or [])), reference, selection=selection, **shared)
        table = skill_table(by_skill)
        notes = tuple(once(note for result in by_skill.values() for note in result.notes))
        title, spread = "per skill", ""
    else:
        merged = load_catalog(*(catalog or []))
        if scores is not None:
            ref = load_reference(reference, benchmark, tokens=options.pop("tokens"))
            result = table_densities(scores, ref, **options)
        else:
            # The first fit of the joint scale takes half a minute.
            with timed_bar(json, "densities"):
                _, result = o.read_densities(
                    merged, (reference, benchmark), combine=combine, pool=pool, selection=selection, **options
                )
        table, notes, spread = by_step_order(result.table), result.notes, result.spread
        title = o.curve_name(benchmark, combine)
    hits = check_densities(table, fail_if) if fail_if else {}
    steps = densities_by_step(table) if by_step else None
    if steps is not None:
        table = _with_steps(table)
        _draw_steps(pictures, steps, notes)
    elif pictures:
        from densing.plots import density_points
        from densing.report import build_density, density_figure

        mine, others = None, result
        if scores is not None:
            # A user's models stand among the catalog's, on the same reference.
            mine, others = result, catalog_densities(merged, ref, selection=selection, **options)
            others = others.subset(~others.table["model"].isin(mine.table["model"]).to_numpy(dtype=bool))
        pictures.write(
            lambda path: build_density(others, path, yours=mine),
            lambda: density_figure(others, mine),
            density_points(others, mine),
        )
    payload = _with_hits(_with_sentences(table, level), hits)
    save(table, payload, out, notes)
    show_notes(notes)
    if json:
        emit_json(payload, notes)
    elif steps is not None:
        _show_steps(steps, reference)
    else:
        emit_table(density_listing(table), f"Density against {reference}, {title}")
        told = [TO_QUOTE, *density_sentences(table, level)] if scores is not None else []
        say("\n".join(filter(None, [HOW_TO_READ.format(reference=reference), spread, *told])))
        if calls.current().verbose and reference == JOINT and scores is None and not skills:
            title = "The reference's part of the variance of densities, by how many families the reference is made from"
            emit_table(listing_of(title, reference_by_families(merged, result)))
    finish(notes, chain.from_iterable(hits.values()))


def _draw_steps(pictures: Pictures, steps: pd.DataFrame, notes: Iterable[Note]) -> None:
    """Write density against step where the options say."""
    if not pictures:
        return
    from densing.plots import plot_checkpoints
    from densing.report import build_checkpoints

    pictures.write(lambda path: build_checkpoints(steps, path, notes=notes), lambda: plot_checkpoints(steps), steps)


def _show_steps(steps: pd.DataFrame, reference: str) -> None:
    from densing.scores.density import HOW_TO_READ, density_listing

    emit_table(density_listing(steps, f"Density by step against {reference}"))
    say(HOW_TO_READ.format(reference=reference))


def _with_steps(table: pd.DataFrame) -> pd.DataFrame:
    """Add run and step of each row that a name tells."""
    from densing.scores.density import checkpoint

    told = [checkpoint(str(name)) or (None, None) for name in table["model"]]
    return table.assign(run=[run for run, _ in told], step=[step for _, step in told])


def _on_references(references: str, benchmark: str, options: dict[str, Any], out: Path | None, json: bool) -> None:
    from densing.scores.density import compare_references

    names = None if references == "all" else [name for name in references.split(",") if name]
    if names == []:
        raise typer.BadParameter("names no reference; write `all` or comma-separated names", param_hint="--references")
    with timed_bar(json, "densities"):
        comparison = compare_references(references=names, benchmark=benchmark, **options)
    order = comparison.wide().index
    rows = {str(model): group for model, group in comparison.table.groupby("model")}
    of_model = ["released", "n_params", "stratum"]
    of_reference = ["density", "density_lo", "density_hi", "interval", "status", "bound", "rank", "ranked", "protocol",
                "protocol_detail"]  # fmt: skip
    payload = {
        "benchmark": benchmark,
        "rulers": comparison.describe(),
        "models": [
            {
                "model": model,
                **rows[model][of_model].iloc[0],
                "rulers": rows[model].set_index("reference")[of_reference].to_dict("index"),
            }
            for model in order
        ],
        "rank_correlation": comparison.correlation,
        "notes": list(comparison.notes),
    }
    save(comparison.table, payload, out)
    show_notes(comparison.notes)
    if json:
        emit_json(payload)
    else:
        emit_table(comparison.listing(benchmark))
        emit_table(comparison.correlation_listing())
    finish(comparison.notes)


def _with_sentences(table: pd.DataFrame, level: float) -> pd.DataFrame:
    """Add to each row of a table of densities the sentence to quote it by; a density per skill has none."""
    from densing.scores.density import density_sentence

    if "benchmark" not in table:
        return table
    return table.assign(sentence=[density_sentence(row, level) for row in table.to_dict("records")])


def _with_hits(table: pd.DataFrame, hits: dict[str, tuple[Hit, ...]]) -> pd.DataFrame:
    return table.assign(fail_if=table["model"].astype(str).map(hits)) if hits else table


def _of_items(items: str, bank: str, sizes: dict[str, float]) -> tuple[pd.DataFrame, pd.DataFrame, tuple[Note, ...]]:
    """Return measurements, models and notes of answers to some items of a bank."""
    from densing.scores.catalog import with_sizes
    from densing.scores.density import bank_measurements
    from densing.scores.items import ItemBank

    result = bank_measurements(ItemBank.load(bank), items, params=sizes)
    models, notes = with_sizes(result.models, sizes)
    return result.measurements, models, (*result.notes, *notes)


def _of_runs(
    measurements: pd.DataFrame,
    models: pd.DataFrame,
    notes: tuple[Note, ...],
    reference: str,
    options: dict[str, Any],
    fail_if: list[str],
    by_step: bool,
    pictures: Pictures,
    out: Path | None,
    json: bool,
) -> None:
    from densing.scores.density import (
        HOW_TO_READ,
        check_densities,
        densities_by_step,
        density_listing,
        notes_on,
        run_densities,
    )

    # Before what may fail: they say what was left out, and why a size is missing.
    show_notes(notes)
    result = run_densities(measurements, models, reference, **options)
    hits = check_densities(result.table, fail_if) if fail_if else {}
    told = (*notes, *result.notes)
    table, steps = result.table, densities_by_step(result.table) if by_step else None
    if steps is not None:
        table = _with_steps(table)
        _draw_steps(pictures, steps, told)
    payload = _with_hits(_with_sentences(table, options["level"]), hits)
    save(table, payload, out, told)
    show_notes(result.notes)
    if json:
        emit_json(payload, told)
    elif steps is not None:
        _show_steps(steps, reference)
    else:
        emit_table(density_listing(result.table, f"Density against {reference}, measured"))
        say("\n".join([HOW_TO_READ.format(reference=reference), TO_QUOTE, *result.sentences()]))
    finish((*notes, *(notes_on(result, fail_if) if fail_if else result.notes)), chain.from_iterable(hits.values()))
