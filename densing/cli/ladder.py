"""``densing ladder``: a reference family of one's own, trained, measured and fitted here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from densing.cli import options as o

if TYPE_CHECKING:
    from densing.scores.ladder import Run

app = typer.Typer(no_args_is_help=True, help="A reference ladder of your own: train small models, measure, fit.")
Folder = Annotated[Path, typer.Argument(exists=True, file_okay=False, help="A ladder's folder (`ladder train --out`).")]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Processes.  [one per core; 1 on other devices than the CPU]")
]
Device = Annotated[str, typer.Option("--device", help="A torch device: cpu, cuda, ...")]


@app.command("train")
def train(
    out: Annotated[Path, typer.Option("--out", "-o", file_okay=False, help="The ladder's folder.")],
    preset: Annotated[
        str, typer.Option("--preset", help="cpu (minutes), gpu (the paper's six sizes) or tiny (seconds).")
    ] = "cpu",
    sizes: Annotated[
        list[str] | None, typer.Option("--sizes", help="Only these sizes, such as d8; may be repeated.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs per size.")] = 3,
    seed: Annotated[int, typer.Option("--seed", min=0, help="First seed: initialisation and order of blocks.")] = 0,
    corpus: Annotated[
        Path | None, typer.Option("--corpus", help="Text file or folder; the generated corpus when left out.")
    ] = None,
    vocabulary: Annotated[
        int | None, typer.Option("--vocabulary", min=1, help="BPE tokens for --corpus; 257 or fewer: bytes.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", help="Train targets with a known answer instead: longer, clean or shuffled."),
    ] = None,
    tokens_factor: Annotated[
        int, typer.Option("--tokens-factor", min=2, help="How many times the tokens `--target longer` has.")
    ] = 2,
    workers: Workers = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Torch threads per process.")] = 1,
    device: Device = "cpu",
    json: o.JsonFlag = False,
) -> None:
    """Train a ladder of Llama-style models; every run is exported at several token budgets.

    What is done is skipped, and a killed run goes on from its last checkpoint with the same bits.

    Example: densing ladder train --preset cpu --out ladders/cpu --workers 2
    """
    from densing.cli.laddering import ask_runs, processes, steps_bar
    from densing.cli.output import emit_json, say
    from densing.scores.ladder import train as train_runs

    asked = {"sizes": sizes or [], "seeds": seeds, "seed": seed, "target": target, "factor": tokens_factor}
    runs: list[Run] = ask_runs(out, preset, corpus, vocabulary, asked)
    with steps_bar(json, runs) as tell:
        done = train_runs(runs, out, workers=processes(workers, device), device=device, threads=threads, progress=tell)
    exported = sum(done.values())
    models = sum(len(run.budgets) for run in runs)
    if json:
        emit_json({"folder": str(out), "runs": len(runs), "models": models, "exported": exported, "by_run": done})
    elif exported:
        say(f"exported {exported} of {models} models below {out / 'models'}; next: densing ladder eval {out}")
    else:
        say(f"nothing to do: all {models} models are below {out / 'models'}")


@app.command("eval")
def evaluate(
    folder: Folder,
    questions: Annotated[
        int | None, typer.Option("--questions", min=10, help="Questions per set; the preset's when left out.")
    ] = None,
    workers: Workers = None,
    device: Device = "cpu",
    json: o.JsonFlag = False,
) -> None:
    """Ask every exported model the corpus's questions, through lm-eval, into DIR/eval.

    Example: densing ladder eval ladders/cpu
    """
    from densing.cli.laddering import processes
    from densing.cli.laddering_eval import evaluate_ladder
    from densing.cli.output import emit_json, say, show_notes

    result: dict[str, Any] = evaluate_ladder(folder, questions, processes(workers, device), device, quiet=json)
    if json:
        emit_json(result)
    else:
        counts = ", ".join(f"{count} {state}" for state, count in result["states"].items())
        say(f"{counts}; next: densing ladder fit {folder}")
        show_notes(result["notes"])
    if result["failed"]:
        for line in result["failed"][:5]:
            say(f"failed: {line}", "bold red")
        raise typer.Exit(1)


@app.command("fit")
def fit(
    folder: Folder,
    bootstrap: Annotated[int, typer.Option("--bootstrap", min=1, help="Refits over whole runs.")] = 1000,
    level: Annotated[
        float, typer.Option("--level", min=0.5, max=0.999, callback=o.finite, help="Level of the intervals.")
    ] = 0.95,
    seed: o.Seed = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", file_okay=False, help="Folder of the fits; DIR/fits when left out.")
    ] = None,
    json: o.JsonFlag = False,
) -> None:
    """Fit loss in size and tokens and score in loss, say how well each holds, and check targets trained here.

    Each task's fit is written as JSON for `densing density --reference FILE`, the measured rows as measured.csv.

    Example: densing ladder fit ladders/cpu --json
    """
    from densing.cli.laddering_fit import fit_ladder_folder, show_fits
    from densing.cli.output import emit_json

    result = fit_ladder_folder(folder, out or folder / "fits", (bootstrap, seed, level))
    if json:
        emit_json(result)
    else:
        show_fits(result)
