"""``densing results``: list, show, merge and export evaluation results."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from densing.cli import options as o
from densing.cli.output import emit_json, emit_table, finish, progress, save, say, show_notes
from densing.core import InputError, listing_of

app = typer.Typer(
    no_args_is_help=True,
    help="Runs of `densing eval`, and results of other harnesses.\n\nExample: densing results show results/mine",
)
COLUMNS = ["model", "task", "metric", "value", "stderr", "unit", "n_items", "n_shot", "filter", "benchmark", "file"]
ITEM_COLUMNS = [
    "model",
    "task",
    "doc_id",
    "gold",
    "correct",
    "nll",
    "p_gold",
    "margin",
    "n_chars",
    "n_bytes",
    "n_tokens",
]
Run = Annotated[
    Path,
    typer.Argument(help="A run's folder, results of lm-eval, lighteval, inspect, HELM or OpenCompass, or a tree."),
]


@app.command("list")
def list_runs(
    folder: Annotated[Path, typer.Argument(help="Folder of runs.")] = Path("results"),
    json: o.JsonFlag = False,
) -> None:
    """List the runs in a folder: models, tasks, units done, unfinished and damaged, size and date.

    Example: densing results list results
    """
    import dataclasses

    import pandas as pd

    from densing.scores.evals import RunStore, is_run, runs_below

    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; runs are written by densing eval --out {folder}/NAME")
    runs = [folder] if is_run(folder) else runs_below(folder)
    overviews = [RunStore(run).overview(run.relative_to(folder).as_posix().strip(".")) for run in runs]
    rows = [dataclasses.asdict(overview) for overview in overviews]
    if json:
        emit_json(rows)
    elif rows:
        counts = [{**row, "models": len(row["models"]), "tasks": len(row["tasks"])} for row in rows]
        emit_table(listing_of(f"{len(rows)} runs in {folder}", pd.DataFrame(counts)))
    else:
        say(f"no runs in {folder}; densing eval --out {folder}/NAME makes one")


@app.command("show")
def show(
    run: Run,
    items: Annotated[bool, typer.Option("--items", help="Show the documents instead of the measurements.")] = False,
    out: o.Out = None,
    json: o.JsonFlag = False,
) -> None:
    """Show the measurements of a run: scores and losses with their unit, error and file.

    Example: densing results show results/smollm2
    """
    from densing.scores.evals import read_results

    results = read_results(run)
    table = results.items if items else results.measurements
    payload = {"rows": table, "models": results.models, "notes": results.notes}
    save(table, payload, out)
    if json:
        emit_json(payload)
    else:
        columns = [name for name in (ITEM_COLUMNS if items else COLUMNS) if name in table.columns]
        title = f"{len(table)} {'documents' if items else 'measurements'} of {run}"
        emit_table(listing_of(title, table[columns]))
        show_notes(results.notes, brief=True)
    finish(results.notes)


@app.command("merge")
def merge_runs(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the merged run.")],
    json: o.JsonFlag = False,
) -> None:
    """Copy the finished units of several runs into one, each once; two results for one unit are an error.

    Example: densing results merge results/a results/b --out results/both
    """
    import dataclasses

    from densing.scores.evals import RunStore, merge

    overview = merge([RunStore(run) for run in runs], out).overview()
    if json:
        emit_json(dataclasses.asdict(overview))
    else:
        say(f"{out}: {overview.done} units of {len(overview.models)} models")


@app.command("export")
def export(
    run: Run,
    out: Annotated[Path, typer.Option("--out", "-o", help="CSV file, usable as --catalog.")],
    released: Annotated[str | None, typer.Option(help="Release date of the models, ISO.", metavar="DATE")] = None,
    json: o.JsonFlag = False,
) -> None:
    """Write a run's accuracies as a table that joins the catalog: `densing density --catalog scores.csv`.

    Example: densing results export results/smollm2 --out scores.csv
    """
    from densing.scores.evals import left_out, read_results, to_catalog_rows

    if out.suffix != ".csv":
        raise typer.BadParameter(f"{out}: the name must end in .csv", param_hint="--out")
    o.parse_date(released, "--released")
    results = read_results(run)
    rows = to_catalog_rows(results.measurements, results.models, released or "")
    notes = [*results.notes, *left_out(results.measurements, results.models, rows)]
    if rows.empty:
        reasons = "; ".join(note.message for note in notes) or "no accuracies"
        raise InputError(f"{run}: nothing of it fits the catalog ({reasons})")
    save(rows, rows, out)
    if json:
        emit_json({"path": str(out), "rows": rows, "notes": notes})
    else:
        show_notes(notes)


@app.command("explain")
def explain(
    stores: Annotated[list[Path], typer.Argument(help="Runs of densing eval, or of lm-eval with --log_samples.")],
    model: Annotated[str, typer.Option("--model", "-M", help="A: the model that fails items.")],
    against: Annotated[str, typer.Option(help="B: the model that solves them.")],
    nnz: Annotated[int, typer.Option(help="Maximum number of weights.")] = 60,
    updates: Annotated[int, typer.Option(help="Communication rounds between stores.", min=0)] = 2,
    among: Annotated[
        str,
        typer.Option(
            help="solved: among items B solves, A failing vs. not; all: items B solves and A fails vs. all others.",
        ),
    ] = "solved",
    held_out: Annotated[float, typer.Option(help="Share of items held out for testing.")] = 0.25,
    draws: Annotated[int, typer.Option(help="Resamples of the items, for sign stability.")] = 50,
    stable: Annotated[bool, typer.Option("--stable", help="Keep only weights with a stable sign, and refit.")] = False,
    least: Annotated[int, typer.Option(help="Minimum number of items per store that contain a word.", min=1)] = 5,
    reference: o.Reference = "olmo-ladder",
    params: Annotated[
        list[str] | None,
        typer.Option(help="NAME=COUNT: a model's size, for densities. May be repeated.", metavar="NAME=COUNT"),
    ] = None,
    seed: o.Seed = 0,
    out: o.Out = None,
    page: o.Page = None,
    html: o.Html = None,
    json: o.JsonFlag = False,
) -> None:
    """Say in words on which items a model fails that another solves.

    A sparse classifier on the words and word pairs of the items, their tasks, fields and lengths. Items of several
    stores stay where they are: names of features, weights and gradients travel.

    Example: densing results explain results/mine --model small --against large --html explain.html
    """
    from densing.tradeoff import explain_items

    sizes = o.parse_params(params or [])
    with progress(json) as step:
        result = explain_items(
            stores, model=model, against=against, nnz=nnz, updates=updates, among=cast(Any, among),
            held_out=held_out, draws=draws, stable=stable, least=least, reference=reference, params=sizes, seed=seed,
            step=step,
        )  # fmt: skip
    save(result.weights, result.to_dict(), out)
    for path in filter(None, (page, html)):
        from densing.report import build_explained

        say(f"wrote {build_explained(result, path)}")
    if json:
        emit_json(result.to_dict())
    else:
        emit_table(result.weights_listing(), f"{model} fails more often where the weight is above 0")
        if len(slices := result.slices):
            # All benchmarks together where there are several; the others are in the JSON and on the page.
            several = slices["benchmark"].eq("combined")
            shown = result.slices_listing()
            emit_table(dataclasses.replace(shown, rows=slices[several] if several.any() else slices))
        say(result.sentence)
        say(result.moved)
        show_notes(result.notes)
    finish(result.notes)


@app.command("targets")
def targets(
    file: Annotated[Path, typer.Argument(help=f"Table ({o.FORMS}) with id, prompt, target and optionally benchmark.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the task files: --include_path of densing eval.")
    ],
    name: Annotated[str, typer.Option(help="Name of the task or group.")] = "targets",
    json: o.JsonFlag = False,
) -> None:
    """Make lm-eval tasks of your own targets (reasoning + answer), measured by their loss per token as in the paper.

    Example: densing results targets targets.jsonl --out tasks --name my_targets
    """
    from densing.scores.evals import write_target_tasks

    tasks = write_target_tasks(file, out, name)
    if json:
        emit_json({"folder": str(out), "tasks": tasks})
    else:
        say(f"wrote {', '.join(tasks)}; run: densing eval --include_path {out} --tasks {name} ...")


@app.command("variant")
def variant(
    task_file: Annotated[Path, typer.Argument(help="Task file of lm-eval with output_type generate_until.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the variant: --include_path of densing eval.")],
    field: Annotated[
        str | None, typer.Option(help="Field or template of the gold answer, if the task's own is code.")
    ] = None,
    json: o.JsonFlag = False,
) -> None:
    """Make the variant of a generation task that measures the loss of its gold answer behind the same prompt.

    Example: densing results variant tasks/gsm8k.yaml --out tasks
    """
    from densing.scores.evals import write_gold_variant

    path = write_gold_variant(task_file, out, field)
    if json:
        emit_json({"path": str(path), "task": path.stem})
    else:
        say(f"wrote {path}; run: densing eval --include_path {out} --tasks {path.stem} ...")
