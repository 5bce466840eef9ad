"""``densing results``: what was evaluated, what came out, and how it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from densing.cli import options as o

if TYPE_CHECKING:
    from densing.scores.evals import RunStore

app = typer.Typer(no_args_is_help=True, help="Runs of `densing eval`, and results of other harnesses.")
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
    Path, typer.Argument(help="A run's folder, a results file of lm-eval, lighteval or OpenCompass, or a tree.")
]


@app.command("list")
def list_runs(
    folder: Annotated[Path, typer.Argument(help="Folder of runs.")] = Path("results"),
    json: o.JsonFlag = False,
) -> None:
    """List the runs in a folder: models, tasks, units done, unfinished and damaged, size and date.

    Example: densing results list results
    """
    import pandas as pd

    from densing.cli.output import emit_json, emit_table, say
    from densing.core import InputError
    from densing.scores.evals import RunStore, is_run, runs_below

    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; runs are written by densing eval --out {folder}/NAME")
    places = [folder] if is_run(folder) else runs_below(folder)
    rows = [_summary(RunStore(place), place.relative_to(folder).as_posix().strip(".")) for place in places]
    if json:
        emit_json(rows)
    elif rows:
        shown = [{**row, "models": len(row["models"]), "tasks": len(row["tasks"])} for row in rows]
        emit_table(pd.DataFrame(shown), f"{len(rows)} runs in {folder}")
    else:
        say(f"no runs in {folder}; densing eval --out {folder}/NAME makes one")


def _summary(store: RunStore, name: str = "") -> dict[str, Any]:
    states = store.all_units()
    keys = [unit.key for unit, status in states if status == "done"]
    files = [path for path in store.folder.rglob("*") if path.is_file()]
    return {
        "run": name or store.folder.name,
        "models": sorted({key.label for key in keys if key}),
        "tasks": sorted({key.task_name for key in keys if key}),
        **{state: sum(status == state for _, status in states) for state in ("done", "partial", "damaged")},
        "megabytes": round(sum(path.stat().st_size for path in files) / 1e6, 3),
        "date": _date(store),
    }


def _date(store: RunStore) -> str:
    from densing.core import ArtefactError

    try:
        return str(store.run.get("created", ""))[:10]
    except ArtefactError:
        return "damaged"


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
    from densing.cli.output import emit_json, emit_table, finish, save, show_notes
    from densing.scores.evals import read_results

    read = read_results(run)
    table = read.items if items else read.measurements
    save(table, {"rows": table, "models": read.models, "notes": read.notes}, out)
    if json:
        emit_json({"rows": table, "models": read.models, "notes": read.notes})
    else:
        columns = [name for name in (ITEM_COLUMNS if items else COLUMNS) if name in table.columns]
        emit_table(table[columns], f"{len(table)} {'documents' if items else 'measurements'} of {run}")
        show_notes(read.notes, verbose=False)
    finish(read.notes)


@app.command("merge")
def merge_runs(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the merged run.")],
    json: o.JsonFlag = False,
) -> None:
    """Copy the finished units of several runs into one, each once; two results for one unit are an error.

    Example: densing results merge results/a results/b --out results/both
    """
    from densing.cli.output import emit_json, say
    from densing.scores.evals import RunStore, merge

    summary = _summary(merge([RunStore(run) for run in runs], out))
    if json:
        emit_json(summary)
    else:
        say(f"{out}: {summary['done']} units of {len(summary['models'])} models")


@app.command("export")
def export(
    run: Run,
    out: Annotated[Path, typer.Option("--out", "-o", help="CSV file, usable as --catalog.")],
    released: Annotated[
        str | None, typer.Option("--released", help="Release date of the models, ISO.", metavar="DATE")
    ] = None,
    json: o.JsonFlag = False,
) -> None:
    """Write a run's accuracies as a table that joins the catalog: `densing density --catalog scores.csv`.

    Example: densing results export results/smollm2 --out scores.csv
    """
    from densing.cli.output import emit_json, save, show_notes
    from densing.core import InputError
    from densing.scores.evals import left_out, read_results, to_catalog_rows

    if out.suffix != ".csv":
        raise typer.BadParameter(f"{out}: the name must end in .csv", param_hint="--out")
    o.parse_date(released, "--released")
    read = read_results(run)
    rows = to_catalog_rows(read.measurements, read.models, released or "")
    notes = [*read.notes, *left_out(read.measurements, read.models, rows)]
    if rows.empty:
        reasons = "; ".join(note.message for note in notes) or "no accuracies"
        raise InputError(f"{run}: nothing of it fits the catalog ({reasons})")
    save(rows, rows, out)
    if json:
        emit_json({"path": str(out), "rows": rows, "notes": notes})
    else:
        show_notes(notes)


@app.command("targets")
def targets(
    file: Annotated[Path, typer.Argument(help="CSV or JSONL with id, prompt, target and optionally benchmark.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the task files: --include_path of densing eval.")
    ],
    name: Annotated[str, typer.Option("--name", help="Name of the task or group.")] = "targets",
    json: o.JsonFlag = False,
) -> None:
    """Make lm-eval tasks of your own targets (reasoning + answer), measured by their loss per token as in the paper.

    Example: densing results targets targets.jsonl --out tasks --name my_targets
    """
    from densing.cli.output import emit_json, say
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
        str | None, typer.Option("--field", help="Field or template of the gold answer, where the task's own is code.")
    ] = None,
    json: o.JsonFlag = False,
) -> None:
    """Make the variant of a generation task that measures the loss of its gold answer behind the same prompt.

    Example: densing results variant tasks/gsm8k.yaml --out tasks
    """
    from densing.cli.output import emit_json, say
    from densing.scores.evals import write_gold_variant

    path = write_gold_variant(task_file, out, field)
    if json:
        emit_json({"path": str(path), "task": path.stem})
    else:
        say(f"wrote {path}; run: densing eval --include_path {out} --tasks {path.stem} ...")
