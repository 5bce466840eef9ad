"""``densing train``: run techniques on this machine's processors, over a link of a chosen rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from densing.cli.grouped import grouped
from densing.cli.options import JsonFlag, Report
from densing.cli.output import emit_plain, finish, say, show_notes, timed_bar
from densing.core import DensingError, InputError, Note, UnavailableError, aligned, formatting, once

if TYPE_CHECKING:
    from densing.efficiency.parallel import LmShape, Run, RunSpec, SeedMean
    from densing.efficiency.timeline import Timeline

SUMMARY = "summary.json"
MOST_SEEDS = 1000


@dataclass(frozen=True)
class ShapeOptions:
    """What is changed about a model that has a name."""

    layers: Annotated[int | None, typer.Option(min=1, help="Transformer layers.")] = None
    hidden: Annotated[int | None, typer.Option(min=1, help="Hidden size of the model.")] = None
    heads: Annotated[int | None, typer.Option(min=1, help="Attention heads.")] = None
    ffn: Annotated[int | None, typer.Option(min=1, help="Hidden size of the feed-forward block.")] = None

    def of(self, model: str) -> LmShape:
        """Return the shape of a model by name, so changed."""
        from densing.efficiency.parallel import named_shape

        return named_shape(model, **vars(self))


@dataclass(frozen=True)
class RunOptions:
    """What is trained, with which techniques, on what and for how long."""

    technique: Annotated[
        str,
        typer.Option(
            "--technique",
            "-t",
            help="Technique, or several, comma-separated (see `densing techniques list`).",
            metavar="NAMES",
        ),
    ]
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run; for several runs, one subfolder each.")]
    nproc: Annotated[int, typer.Option(help="Ranks: one process each, pinned to separate cores.")] = 2
    link: Annotated[
        str,
        typer.Option(
            help="200mbit: network namespaces joined at that rate; emulated:200mbit: added waiting; none. One for all "
            "ranks, or one per rank: 1gbit,1gbit,50mbit.",
        ),
    ] = "none"
    steps: Annotated[int, typer.Option(help="Training steps.")] = 48
    tau: Annotated[int | None, typer.Option(help="Steps per round, for techniques with rounds.")] = None
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="KNOB=VALUE or TECHNIQUE.KNOB=VALUE, as outer_lr=0.8; may be repeated."),
    ] = None
    seeds: Annotated[str, typer.Option("--seed", "--seeds", help="Seed, or several: 0,1,2.", metavar="NUMBERS")] = "0"
    model: Annotated[str, typer.Option(help="Model: tiny, small or medium; modified by --layers etc.")] = "small"
    batch: Annotated[
        int, typer.Option(help="Sequences per rank and step (tensor-parallel, pipeline: of all ranks).")
    ] = 4
    sequence: Annotated[int, typer.Option(help="Tokens (bytes) per sequence.")] = 128
    lr: Annotated[float, typer.Option(help="Learning rate of AdamW.")] = 1e-3
    corpus: Annotated[
        str, typer.Option(help="Text file or folder; default: the documentation shipped with Python.")
    ] = ""
    trace_steps: Annotated[int, typer.Option(help="Steps to record at the end; 0: none.")] = 8
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints; 0: none.")] = 0
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the newest checkpoint that all ranks have.")] = (
        False
    )
    timeout: Annotated[float, typer.Option(help="Timeout for communication with another rank, seconds.")] = 60.0
    device: Annotated[str, typer.Option(help="cpu (gloo) or cuda (NCCL).")] = "cpu"
    delay: Annotated[
        str,
        typer.Option(
            help="Injected delays: ranks sleep before they compute, drawn from shifted-exp:a=0.01,mu=10, pareto:... or "
            "empirical:FILE; iid or persistent. Data-parallel runs and a server's workers.",
        ),
    ] = ""

    def specifications(self, shape: ShapeOptions) -> list[RunSpec]:
        """Return one specification per technique and seed, in the order given.

        Raises
        ------
        InputError, UnknownNameError
            When a technique, a knob or a seed is none, or is given twice.
        """
        from densing.efficiency.parallel import RunSpec
        from densing.efficiency.systems import run_settings

        model = shape.of(self.model)
        names = [name.strip() for name in self.technique.split(",") if name.strip()]
        if not names:
            raise InputError("--technique: name at least one; `densing techniques list` shows them")
        double = sorted({name for name in names if names.count(name) > 1})
        if double:
            raise InputError(f"--technique: {double[0]} is named twice; name it once")
        numbers = _seeds(self.seeds)
        knobs = run_settings(names, tuple(self.settings or ()), tau=self.tau)
        single = len(names) == 1 and len(numbers) == 1
        plain = ("nproc", "steps", "batch", "sequence", "lr", "link", "trace_steps", "checkpoint_every",
                 "device", "delay")  # fmt: skip
        return [
            RunSpec(
                name,
                model=model,
                corpus=self.corpus and str(Path(self.corpus).resolve()),
                timeout_s=self.timeout,
                knobs=knobs[name],
                seed=seed,
                out=str(self.out if single else self.out / f"{name}-seed{seed}"),
                **{field: getattr(self, field) for field in plain},
            )
            for name in names
            for seed in numbers
        ]


@grouped("model layers hidden heads ffn", "html device delay")
def train(
    options: RunOptions,
    shape: ShapeOptions,
    predict: Annotated[
        str | None,
        typer.Option(help="Cluster (preset, or what `densing calibrate --out` wrote): also simulate the run."),
    ] = None,
    html: Report = None,
    json: JsonFlag = False,
) -> None:
    """Train a small language model with a technique, for real, and record where the time went.

    Ranks are processes. With --link 200mbit each has a network namespace, joined by
    interfaces of that rate, where the system allows it; else the link is emulated, and the result says so.
    OUT holds run.json, traces/ (read by `densing profile OUT`), checkpoints/ and logs/. A killed run goes on with
    --resume, with the same losses. Exit codes: 0 done, 1 user error or a rank died, 2 usage.

    Of uc-mmc, gradient-coding, gc-mmc, lcc and backup-workers rank 0 is a server and the others its workers.
    Of naive-average, owa, csl and prox-csl each rank holds partitions of a data set, for a sparse classifier.

    Of host-gather, pinned-gather and zero-copy one rank trains GraphSAGE on a graph whose rows lie in the host's
    memory; the last two need a CUDA device, and have not been run by us so far.

    Example: densing train --technique ddp,local-sgd,co2 --tau 8 --link 200mbit --seeds 0,1,2 --out runs

    densing train -t ddp,uc-mmc,gradient-coding --nproc 5 --delay shifted-exp:a=0.01,mu=10 --set r=2 --out late

    densing train -t naive-average,prox-csl --set data=films --set partitions=64 --set alpha=0.01 --out words

    densing train -t host-gather,zero-copy --set data=films-graph --nproc 1 --out tables
    """
    from densing.efficiency.parallel import check, seed_means, write_json
    from densing.efficiency.systems import find

    specs = options.specifications(shape)
    # What cannot be run is refused at once, before the first of several runs has taken its time; one that this machine
    # lacks something for is left out where another one can be run.
    skipped: dict[str, Note] = {}
    for spec in specs:
        try:
            find(spec)
            check(spec)
        except UnavailableError as error:
            skipped[spec.technique] = Note("skipped", "warning", f"left out: {error}", {"technique": spec.technique})
            if len(skipped) == len({spec.technique for spec in specs}):
                raise
    specs = [spec for spec in specs if spec.technique not in skipped]
    foretold = [_predicted(spec, predict) for spec in specs]
    runs = [_launched(spec, options.resume, quiet=json) for spec in specs]
    predictions = [given or run.foretold for given, run in zip(foretold, runs, strict=True)]
    rows = seed_means(runs, predictions)
    notes = [*skipped.values(), *once(note for run in runs for note in run.notes())]
    served = list(dict.fromkeys(spec.technique for spec in specs if _served(spec)))
    if served and len(served) < len({spec.technique for spec in specs}):
        message = (
            f"{', '.join(served)}: one of the {options.nproc} ranks is the server, {options.nproc - 1} are "
            "workers; in other techniques all ranks work"
        )
        notes.append(Note("server", "info", message, {"techniques": served}))
    document: dict[str, Any]
    if len(runs) > 1:
        each = [
            {**run.to_dict(), "out": spec.out, "predicted": predicted}
            for spec, run, predicted in zip(specs, runs, predictions, strict=True)
        ]
        document = {"rows": [row.to_dict() for row in rows], "runs": each, "notes": [note.to_dict() for note in notes]}
        write_json(options.out / SUMMARY, document)
    else:
        predicted = {name: value for name, value in rows[0].to_dict().items() if name.startswith("predicted_")}
        notes_plain = [note.to_dict() for note in notes]
        document = {**runs[0].to_dict(), **predicted, "out": specs[0].out, "notes": notes_plain}
    if html is not None:
        _write_report(html, specs, runs, rows, predict, notes)
    if json:
        emit_plain(document)
    else:
        typer.echo("\n".join(_lines(runs, rows)))
        show_notes(notes)
        say(f"wrote {options.out}")
    finish(notes)


def _launched(spec: RunSpec, resume: bool, quiet: bool) -> Run:
    """Run a technique under a bar."""
    from densing.efficiency.parallel import launch

    label = f"{spec.technique}, seed {spec.seed}"
    with timed_bar(quiet, spec.technique) as show:
        return launch(spec, resume=resume, server=_served(spec), on_step=lambda step: show(label, step, spec.steps))


def _served(spec: RunSpec) -> bool:
    """Return whether rank 0 is a server."""
    from densing.efficiency.systems import axis_of, get_technique

    return axis_of(get_technique(spec.technique)) == "server"


def _seeds(text: str) -> list[int]:
    """Parse seeds.

    Examples
    --------
    >>> _seeds("0, 1,2")
    [0, 1, 2]
    """

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise InputError(f"--seed {text[:60]!r}: give comma-separated whole numbers of at least 0")
    numbers = [int(part) for part in parts]
    if len(set(numbers)) < len(numbers) or len(numbers) > MOST_SEEDS:
        raise InputError(f"--seed {text[:60]!r}: give each seed once, {MOST_SEEDS} at most")
    return numbers


def _predicted(spec: RunSpec, cluster: str | None) -> dict[str, Any] | None:
    """Return what the simulator says of a run, before it is made."""
    if cluster is None:
        return None
    from densing.efficiency.simulation import load_cluster
    from densing.efficiency.systems import predict

    return dict(predict(spec, load_cluster(cluster)).to_dict())


def _lines(runs: Sequence[Run], rows: Sequence[SeedMean]) -> list[str]:
    """Return what is shown on a screen, line by line."""

    first = runs[0]
    link = first.link.rate if first.link.kind == "none" else f"{first.link.rate}, {first.link.kind}"
    unit = "nodes" if "row_bytes" in first.extra else "tokens"
    work = f"{first.steps} steps, {first.parameters:,} parameters, {first.tokens} {unit} per step"
    if "moved_bytes" in first.extra:
        work = f"{first.knobs['partitions']} partitions of {first.tokens:,} items, {first.parameters:,} words"
    head = f"{first.nproc} ranks, {work}; link: {link}"
    title = ("technique", "seeds", "step ms", "waiting ms", "waiting %", "loss", "predicted ms", "predicted waiting ms")
    cells = [
        (
            row.technique + (" (stand-in)" if row.stand_in else ""),
            ",".join(map(str, row.seeds)),
            _ms(row.step_s),
            _ms(row.wait_s),
            f"{100 * row.exposed:.1f}",
            f"{row.final_loss:.4f}" + ("" if row.final_loss_sd is None else f" ± {row.final_loss_sd:.4f}"),
            _ms(row.predicted_step_s),
            _ms(row.predicted_wait_s),
        )
        for row in rows
    ]
    return [
        head,
        "",
        *aligned(title, cells),
        "",
        *_solutions(runs),
        "measured; waiting: time the training thread was blocked on communication or rows",
        *(
            f"{row.technique}: measured step over predicted, less 1: {formatting.deviation(row.off)}"
            for row in rows
            if row.off is not None
        ),
        *(line for run in runs for line in _stages(run)),
    ]


def _stages(run: Run) -> list[str]:
    """Return what a run that gathered rows says of its stages, in a line."""
    figures = run.extra
    if "row_bytes" not in figures:
        return []
    size = formatting.number(figures["rows"] * figures["row_bytes"] / 1e6)
    same = "; prefetched rows gave bitwise identical weights" if figures.get("equal") else ""
    return [
        f"{run.technique}, seed {run.seed}: one after the other {_ms(figures['sequential_step_s'])} ms (sampling "
        f"{_ms(figures['sample_s'])}, gathering {_ms(figures['gather_s'])}, training {_ms(figures['train_s'])}); "
        f"{figures['rows']:,.0f} rows a step, {size} MB{same}; {100 * figures['accuracy']:.1f} % right on held-out "
        f"nodes, majority label {100 * figures['majority']:.1f} %"
    ]


def _solutions(runs: Sequence[Run]) -> list[str]:
    """Return what came out of classifiers over partitions; nothing where none was trained."""
    rows = [
        (
            f"{run.technique}, seed {run.seed}",
            f"{run.losses[-1]:.4g}",
            f"{run.extra['weights']:,.0f}",
            f"{run.extra['accuracy']:.3f}",
            formatting.volume(run.extra["moved_bytes"]),
            f"{run.extra['start_s']:.2f}",
        )
        for run in runs
        if "moved_bytes" in run.extra
    ]
    heads = ("classifier", "objective", "weights", "accuracy", "moved", "start s")
    legend = "a step is an update, or the whole of an average; accuracy: held-out; start: each partition's own solution"
    return [*aligned(heads, rows), "", legend] if rows else []


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1e3 * seconds:.1f}"


def _write_report(
    path: Path,
    specs: Sequence[RunSpec],
    runs: Sequence[Run],
    rows: Sequence[SeedMean],
    cluster: str | None,
    notes: Sequence[Note],
) -> None:
    """Write one HTML file: timelines recorded and simulated, waiting against tau, predicted and measured.

    A timeline that cannot be had becomes a note in it.
    """
    from densing.report import build_techniques

    remarks = list(notes)
    timelines: list[tuple[str, Timeline]] = []
    firsts: dict[str, tuple[RunSpec, Run]] = {}
    for spec, run in zip(specs, runs, strict=True):
        firsts.setdefault(run.technique, (spec, run))
    for name, (spec, run) in firsts.items():
        for kind, make in (("recorded", _recorded), ("simulated", lambda spec, _: _simulated(spec, cluster))):
            try:
                timeline = make(spec, run)
            except DensingError as error:
                remarks.append(Note("no-timeline", "warning", f"{name}, {kind}: {error}"))
                continue
            if timeline is not None:
                timelines.append((f"{name}, {kind}", timeline))
    tau = [
        {
            "technique": run.technique,
            "tau": run.knobs["tau"],
            "link": run.link.rate,
            "exposed_s": run.wait_s,
            "step_s": run.step_s,
            "predicted": False,
        }
        for run in runs
        if "tau" in run.knobs
    ]
    predicted = [
        {"technique": row.technique, "quantity": quantity, "predicted": simulated, "measured": measured, "unit": "s"}
        for row in rows
        for quantity, simulated, measured in (
            ("step", row.predicted_step_s, row.step_s),
            ("waiting per step", row.predicted_wait_s, row.wait_s),
        )
        if simulated is not None
    ]
    build_techniques(path, timelines=timelines, tau=tau or None, predicted=predicted or None, notes=remarks)
    say(f"wrote {path}")


def _recorded(spec: RunSpec, run: Run) -> Timeline | None:
    from densing.efficiency.traces import read_timeline

    return None if run.traces is None else read_timeline([Path(spec.out) / run.traces])


def _simulated(spec: RunSpec, cluster: str | None) -> Timeline | None:
    if cluster is None:
        return None
    from densing.efficiency.simulation import load_cluster
    from densing.efficiency.systems import get_technique, steady_timeline, workload_of_run

    loaded = load_cluster(cluster)
    plan = get_technique(spec.technique).plan(workload_of_run(spec), loaded, **spec.knobs)
    return steady_timeline(plan, loaded)
