"""``densing scaling``: scaling efficiency from profiles of runs of different sizes; what model a budget trains best."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from densing.cli.options import FORMS, Html, JsonFlag, Level, Page, Seed
from densing.cli.output import MOST_NOTES, emit_plain, finish, say, show_notes, timed_bar, visible
from densing.cli.profile import Detail, Window
from densing.cli.techniques import ClusterName, Framework
from densing.core import InputError, Note, UnknownNameError, aligned, doubts, formatting, of_part

if TYPE_CHECKING:
    from densing.scores.fit import LawFit
    from densing.tradeoff import TrainingPlan

app = typer.Typer()


@app.callback(invoke_without_command=True)
def scaling(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders or zips of traces, or stored profiles: one per run.", metavar="RUN..."),
    ],
    kind: Annotated[str, typer.Option(help="strong, weak or throughput.")] = "strong",
    work: Annotated[
        list[float] | None,
        typer.Option(help="Samples or tokens per step of each run, in order; needed for throughput."),
    ] = None,
    window: Window = None,
    detail: Detail = "auto",
    json: JsonFlag = False,
) -> None:
    """Compare step times of runs of different size with perfect scaling.

    Devices: the traces' world size, else the ranks given. Times: the median step over ranks and steps.

    Example: densing scaling runs/8gpus runs/16gpus runs/32gpus --kind strong
    """
    from densing.cli.profile import Source, check_source, read_run
    from densing.efficiency.profile import scaling_notes, scaling_of
    from densing.efficiency.timeline import EQUATIONS

    # What cannot work is refused before any trace is read.
    work = work or []
    if kind not in EQUATIONS:
        raise UnknownNameError("kind of scaling", kind, EQUATIONS)
    if len(runs) < 2:
        raise InputError("scaling needs runs of at least two sizes; add a run on another number of devices")
    if twice := {str(run) for run in runs if runs.count(run) > 1}:
        raise InputError(f"{min(twice)}: named twice; name each run once")
    if work and len(work) != len(runs):
        raise InputError(
            f"--work was given {len(work)} times for {len(runs)} runs; give it once for each run, in order"
        )
    if wrong := [value for value in work if not (math.isfinite(value) and value > 0)]:
        raise InputError(f"--work {wrong[0]:g}: a number above 0 is needed, samples or tokens per step")
    if kind == "throughput" and not work:
        raise InputError("--kind throughput needs --work: samples or tokens per step, once for each run, in order")
    for run in runs:
        check_source(run)
    sources = [Source(paths=[path], window=window, detail=detail, quiet=json) for path in runs]
    profiles = {str(source.paths[0]): read_run(source) for source in sources}
    efficiency = scaling_of(profiles, kind, dict(zip(map(str, runs), work, strict=True)) if work else {})
    # A run read in part has the step times of that part only.
    notes = [note for name, run in profiles.items() for note in of_part(name, doubts(run.notes))]
    notes += scaling_notes(profiles)
    if json:
        emit_plain({**efficiency.to_dict(), "notes": [note.to_dict() for note in notes]})
    else:
        typer.echo(f"{efficiency.kind} scaling, {efficiency.equation}; {efficiency.definition}")
        header = ("run", "devices", "step s", "work/s", "speed-up", "efficiency %")
        rows = [
            (
                formatting.cut(visible(row.name), 40),
                str(row.devices),
                f"{row.seconds:.4g}",
                formatting.fixed(row.throughput),
                formatting.fixed(row.speedup, 2),
                formatting.fixed(100 * row.efficiency),
            )
            for row in efficiency.rows
        ]
        typer.echo("\n".join(aligned(header, rows)))
        show_notes(notes, most=MOST_NOTES)
    finish(notes)


LawName = Annotated[
    str | None,
    typer.Option(
        "--law",
        help="A published law: chinchilla-refit (Besiroglu et al. 2024; the default) or chinchilla (Hoffmann et al. "
        "2022, approach 3).",
    ),
]


@app.command("plan")
def plan(
    gpu_hours: Annotated[float, typer.Option(help="Device hours to spend.")],
    cluster: ClusterName,
    fit: Annotated[
        Path | None,
        typer.Option(
            help=f"A law of your own: a fit of `densing fit --out`, or a table ({FORMS}) of runs with "
            "params,tokens,loss, to which chinchilla is fitted.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    law: LawName = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="Devices; default: all of the cluster.")] = None,
    overtrain: Annotated[
        float,
        typer.Option(help="Tokens per parameter of the smaller model of the same loss, over the plan's."),
    ] = 10.0,
    sequence: Annotated[int, typer.Option(min=1, help="Tokens per sequence.")] = 4096,
    batch: Annotated[int, typer.Option(min=1, help="Sequences per step, over all devices.")] = 1024,
    goodput: Annotated[
        float,
        typer.Option(
            help="Share of the hours that trains, as `densing techniques plan --mtbf` tells it; the rest goes to "
            "checkpoints and failures.",
        ),
    ] = 1.0,
    precision: Annotated[str, typer.Option(help="Of matrix products: bf16 or fp8.")] = "bf16",
    framework: Framework = "Megatron-Core",
    bootstrap: Annotated[int, typer.Option(min=0, help="With a table of runs: refits for the intervals.")] = 1000,
    level: Level = 0.95,
    seed: Seed = 0,
    page: Page = None,
    html: Html = None,
    json: JsonFlag = False,
) -> None:
    """Find the model that a budget of GPU hours trains best: its size, tokens, loss, density and layout.

    The law says what loss a size reaches on so many tokens, the cost model of measured runs how fast the best layout of
    a shape of that size trains; the shape of least loss is planned. N counts all parameters, embedding and head
    included. Intervals are of draws of the law's constants (a published law has none) and of the cost model's error.

    Beside it stands a smaller model of the same loss on ten times the tokens per parameter (--overtrain): what it costs
    more to train, what it saves per served token (2 N operations), and how many served tokens make up for it.

    Example: densing scaling plan --gpu-hours 1e6 --cluster h100x8-nvlink --gpus 1024

    Example: densing scaling plan --gpu-hours 2e4 --cluster h100pod.toml --fit runs.csv --overtrain 20 --html plan.html
    """
    from densing.efficiency.simulation import load_cluster
    from densing.scores.fit import published_law
    from densing.tradeoff import plan_training

    if fit is not None and law is not None:
        raise InputError("--fit and --law: the law is either fitted or published; leave one out")
    for option, path in (("--page", page), ("--html", html)):
        if path is not None and any(path.resolve() == Path(name).resolve() for name in (cluster, fit or "")):
            raise InputError(f"{option} {path}: is also a file that is read; choose another name")
    machine = load_cluster(cluster, n=gpus)
    chosen, notes = (
        (published_law(law or "chinchilla-refit"), ()) if fit is None else _fitted(fit, bootstrap, seed, json)
    )
    with timed_bar(json, "sizes") as show:
        found = plan_training(
            chosen, machine, gpu_hours, sequence=sequence, batch=batch, goodput=goodput, overtrain=overtrain,
            level=level, seed=seed, precision=precision, framework=framework, progress=show,
        )  # fmt: skip
    for path in filter(None, (page, html)):
        from densing.report import build_training_plan

        say(f"wrote {build_training_plan(found, path)}")
    shown = [*notes, *found.notes]
    if json:
        emit_plain(found.to_dict(), notes)
    else:
        typer.echo("\n".join(_plan_lines(found)))
        show_notes(shown)
    finish(shown)


def _fitted(path: Path, bootstrap: int, seed: int, quiet: bool) -> tuple[LawFit, tuple[Note, ...]]:
    """Return the stored fit, or that of a table of runs, and what was read otherwise than it stands there."""
    from densing.scores.fit import fit_runs, read_fit, read_runs
    from densing.scores.laws import get_law

    if path.suffix == ".json" and '"densing-lawfit"' in path.read_text(encoding="utf-8", errors="replace")[:200]:
        return read_fit(path), ()
    law = get_law("chinchilla")
    runs, notes = read_runs(path, law)
    with timed_bar(quiet, "fit and draws"):
        return fit_runs(runs, law, bootstrap=bootstrap, seed=seed), notes


def _plan_lines(found: TrainingPlan) -> list[str]:
    """Return the plan, the smaller model and the layout, line by line."""
    layout, shape, size = found.layout, found.shape, formatting.size
    parts = {"tp": layout.tp, "cp": layout.cp, "pp": layout.pp, "dp": layout.dp, "ZeRO": layout.zero,
             "micro-batch": layout.micro_batch, "stages each": layout.virtual}  # fmt: skip
    return [
        visible(found.sentence),
        f"law: {visible(found.law)}, {visible(found.source)}",
        "",
        *found.listing().lines(),
        "",
        f"shape: {shape.layers} layers of {shape.hidden:,}, {shape.heads} heads, MLP {shape.ffn:,}, vocabulary "
        f"{shape.vocabulary:,}; {found.steps:,.0f} steps of {found.batch:,} sequences of {found.sequence:,} tokens",
        f"layout: {', '.join(f'{name} {value}' for name, value in parts.items())}, recompute {layout.recompute}; "
        f"{layout.tokens_per_s:,.0f} tokens/s, {layout.memory_bytes / 1e9:.0f} GB per device",
        f"closed form: {size(found.closed_form)} parameters for the plan's 6 N D, if MFU did not depend on the size",
        found.density_note,
    ]
