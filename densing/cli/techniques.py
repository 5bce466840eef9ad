"""``densing techniques``: compare techniques that overlap communication, and check their papers' claims."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from densing.cli.grouped import given, grouped
from densing.cli.options import FORMS, JsonFlag, Report
from densing.cli.output import emit_plain, emit_table, finish, say, show_notes, timed_bar, visible, width
from densing.core import InputError, Note, aligned, formatting, parse_pairs

if TYPE_CHECKING:
    from densing.efficiency.simulation import Cluster, Workload
    from densing.efficiency.systems import Cell, Comparison, Finding, RegimeMap, Step, Technique, Validation
    from densing.efficiency.throughput import Budget, Span, Terms

Number = TypeVar("Number", int, float)

app = typer.Typer(
    no_args_is_help=True,
    help="Techniques that hide or save communication: what they are, what they gain on your model and cluster, and\n"
    "what their papers claim beside what the simulator finds.\n\n"
    "Example: densing techniques compare --model llama3-70b --cluster a100x8-tcp --nodes 16 --pp 8 --sequence-parallel "
    "--techniques ddp,co2,ladder",
)

MARKS = {"wins": "+", "ties": "=", "loses": "-", "does not fit": "x", "does not apply": "–"}
CLAIM_KEYS = (
    "id", "what", "setup", "published", "unit", "evidence", "source", "tolerance", "inputs", "grade",
)  # fmt: skip

ClusterName = Annotated[str, typer.Option("--cluster", help="Cluster preset, or a TOML file.")]
Framework = Annotated[
    str,
    typer.Option(
        "--framework",
        help="Whose kernels, bytes per gradient and overlap are assumed: Megatron-Core, FSDP or JAX (compiled); "
        "Megatron-LM, Megatron-DeepSpeed or OneFlow (before FlashAttention). Eager ones (nanotron) are not predicted.",
    ),
]


@app.command("list")
def list_(json: JsonFlag = False) -> None:
    """List the techniques, those that other packages register too.

    A token is worth: of plain training's at equal loss, by the first of this package's ladders that measured the
    technique (`densing techniques show NAME` has them all).

    Example: densing techniques list
    """
    from densing.efficiency.systems import techniques
    from densing.tradeoff import ratio, shipped_gains

    loaded, notes = techniques()
    best = shipped_gains().drop_duplicates("technique")
    if json:
        emit_plain([_brief(technique) | {"measured": _measured([technique.name])} for technique in loaded], notes)
    else:
        worth = {
            str(row["technique"]): f"{ratio('token')(row)} at {row['arm'].partition(':')[2] or 'its defaults'}"
            for row in best.to_dict("records")
        }
        rows = [
            (
                each.name,
                each.role + (", experimental" if _experimental(each) else ""),
                _runs(each).partition(":")[0],
                worth.get(each.name, formatting.MISSING),
                each.summary,
                each.paper,
            )
            for each in loaded
        ]
        lines = aligned(("technique", "role", "runs", "a token is worth", "summary", "paper"), rows, [False] * 6)
        wide = width(sys.maxsize)
        typer.echo("\n".join(formatting.cut(line, wide) if wide else line for line in lines))
    show_notes(notes)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A technique, see `densing techniques list`.")], json: JsonFlag = False
) -> None:
    """Show a technique: its paper, its knobs, what is claimed of it and how well each figure is known.

    Example: densing techniques show co2
    """
    from densing.efficiency.systems import claims_of, get_technique
    from densing.tradeoff import shipped_listing

    notes: list[Note] = []
    technique = get_technique(name)
    claims = claims_of(technique, notes)
    missing = getattr(technique, "not_available", ())
    show_notes(notes)
    if json:
        knobs = [{"name": knob.name, "default": _plain(knob.default), "help": knob.help} for knob in technique.knobs]
        stand_in = str(getattr(technique, "stand_in", ""))
        figures = [{key: getattr(claim, key) for key in CLAIM_KEYS} for claim in claims]
        emit_plain(
            {
                **_brief(technique),
                "stand_in": stand_in,
                "knobs": knobs,
                "claims": figures,
                "measured": _measured([name]),
                "not_available": [*missing],
            },
            notes,
        )
        return
    typer.echo(visible(f"{technique.name} ({technique.role}): {technique.summary}"))
    if _experimental(technique):
        typer.echo(visible(f"experimental: {_experimental(technique)}"))
    typer.echo(visible(f"paper: {technique.paper or 'none'}"))
    typer.echo(visible(f"runs for real: {_runs(technique)}"))
    knob_rows = [(knob.name, str(_plain(knob.default)), formatting.cut(knob.help, 90)) for knob in technique.knobs]
    claim_rows = [
        (
            claim.id,
            formatting.cut(claim.what, 48),
            formatting.cut(claim.setup, 40),
            formatting.figure(claim.published, claim.unit),
            claim.evidence,
            claim.grade,
        )
        for claim in claims
    ]
    for title, header, rows in (
        ("knobs", ("knob", "default", "meaning"), knob_rows),
        ("claims", ("claim", "what", "set-up", "published", "evidence", "grade"), claim_rows),
    ):
        typer.echo(f"\n{title}:" + ("" if rows else " none"))
        for line in aligned(header, rows, [False] * len(header)) if rows else ():
            typer.echo("  " + line)
    if _measured([name]):
        typer.echo("")
        emit_table(shipped_listing([name]))
    else:
        typer.echo("\nmeasured on ladders: none")
    if missing:
        typer.echo("\nnot available (in no readable source): " + "; ".join(map(visible, missing)))


@dataclass(frozen=True)
class StepOptions:
    """The step that is compared: a model, how much of it and, of a transformer, how it is split."""

    model: Annotated[
        str,
        typer.Option(
            help="Workload preset, or a Hugging Face config.json; or a step that gathers rows of a table (sage-reddit, "
            "sage-products, sage-papers100m) or of a linear problem (least-squares, mmlu-words, film-words), or a TOML "
            "file of either.",
        ),
    ]
    mode: Annotated[str, typer.Option(help="train, prefill or decode.")] = "train"
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Sequences per replica and step; default: the preset's for the mode."),
    ] = None
    sequence: Annotated[int | None, typer.Option(min=1, help="Tokens per sequence.")] = None
    micro_batches: Annotated[int | None, typer.Option(min=1, help="Micro-batches per step.")] = None
    tp: Annotated[int | None, typer.Option(min=1, help="Tensor-parallel devices; default: to fit.")] = None
    dp: Annotated[int | None, typer.Option(min=1, help="Data-parallel replicas; default: the remaining devices.")] = (
        None
    )
    pp: Annotated[
        int | None,
        typer.Option(min=1, help="Pipeline stages; default: 1, or as needed if all techniques need a pipeline."),
    ] = None
    recompute: Annotated[
        str | None,
        typer.Option(
            help="Activation recomputation: none, attention scores (selective) or whole layers (full).",
            metavar="none|selective|full",
        ),
    ] = None
    sequence_parallel: Annotated[
        bool,
        typer.Option(
            "--sequence-parallel", help="Also split activations between tensor-parallel regions (sequence parallelism)."
        ),
    ] = False
    unfused_attention: Annotated[
        bool,
        typer.Option("--unfused-attention", help="Attention materialises and keeps its scores (affects memory only)."),
    ] = False
    virtual: Annotated[int | None, typer.Option(min=1, help="Interleaved stages per device of a pipeline.")] = None
    cp: Annotated[int | None, typer.Option(min=1, help="Context-parallel degree: parts of every sequence.")] = None
    ep: Annotated[
        int | None, typer.Option(min=1, help="Expert-parallel degree: devices that share a mixture's experts.")
    ] = None
    whole_vocabulary: Annotated[
        bool,
        typer.Option(
            "--whole-vocabulary", help="Replicate embedding and head on every device of a tensor-parallel group."
        ),
    ] = False
    gradient_bytes: Annotated[
        int | None,
        typer.Option(help="Bytes per exchanged gradient element: 4 for sums in float32.", metavar="2|4"),
    ] = None
    overlap_weight_gradients: Annotated[
        bool,
        typer.Option(
            "--overlap-weight-gradients",
            help="Overlap tensor-parallel all-reduces of the backward pass with weight gradients (plain techniques).",
        ),
    ] = False

    def load(self, machine: Cluster, techniques: Sequence[str]) -> Workload:
        """Return a transformer's step, split over a cluster as the techniques need it."""
        from densing.efficiency.simulation import load_workload
        from densing.efficiency.systems import split_over

        plain = ("mode", "batch", "sequence", "micro_batches", "recompute", "virtual", "cp", "ep",
                 "gradient_bytes")  # fmt: skip
        step = load_workload(
            self.model,
            **{name: getattr(self, name) for name in plain},
            sequence_parallel=self.sequence_parallel or None,
            fused_attention=False if self.unfused_attention else None,
            # Experts are dealt out over replicas, which the cluster decides upon below.
            dp=self.dp or self.ep,
            split_vocabulary=False if self.whole_vocabulary else None,
            overlap_weight_gradients=self.overlap_weight_gradients or None,
            # Interleaved stages are checked against the stages that they are pieces of.
            pp=self.pp if self.virtual else None,
        )
        return split_over(step, machine, tp=self.tp, dp=self.dp, pp=self.pp, techniques=techniques)


@dataclass(frozen=True)
class ClusterOptions:
    """The cluster that a step is compared on."""

    cluster: ClusterName
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes of the cluster.")] = None
    gpus: Annotated[int | None, typer.Option(min=1, help="Devices, in place of --nodes.")] = None
    delay: Annotated[
        str | None,
        typer.Option(
            help="Delays of devices, instead of the cluster's: shifted-exp:a=0.01,mu=10 (seconds, per second), "
            "pareto:scale=0.1,shape=2, empirical:FILE; ,iid or ,persistent; ,seed=3.",
            metavar="MODEL",
        ),
    ] = None

    def load(self) -> Cluster:
        """Return the cluster of this size, with these delays."""
        from densing.efficiency.simulation import load_cluster, parse_delay

        if self.nodes is not None and self.gpus is not None:
            raise InputError("--nodes and --gpus both say how large the cluster is; give one of them")
        machine = load_cluster(self.cluster, n=self.gpus)
        if self.nodes is not None:
            machine = load_cluster(self.cluster, n=self.nodes * machine.per_node)
        return machine if self.delay is None else machine.change(delay=parse_delay(self.delay))


@dataclass(frozen=True)
class TechniqueOptions:
    """The techniques that are compared, and their knobs."""

    techniques: Annotated[str, typer.Option(help="Comma-separated names.", metavar="A,B,...")]
    baseline: Annotated[
        str | None, typer.Option(help="Speed-ups are relative to it; default: the first technique.")
    ] = None
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="TECHNIQUE.KNOB=VALUE, as co2.tau=48; may be repeated.")
    ] = None

    @property
    def names(self) -> list[str]:
        """Their names, in the order given."""
        return [name.strip() for name in self.techniques.split(",") if name.strip()]


@dataclass(frozen=True)
class MapOptions:
    """The map of the fastest technique, and what it varies."""

    regime_map: Annotated[
        bool, typer.Option("--map", help="Also map which technique is fastest: bandwidth × batch, or × --replicas.")
    ] = False
    link: Annotated[str | None, typer.Option(help="Link the map varies: intra, inter or wide.")] = None
    bandwidths: Annotated[
        str | None,
        typer.Option(help="Bandwidths of the map in Gbit/s, as 25,100,400.", metavar="A,B,..."),
    ] = None
    batches: Annotated[str | None, typer.Option(help="Batches of the map, as 1,4,16.", metavar="A,B,...")] = None
    replicas: Annotated[
        str | None,
        typer.Option(help="Replicas of the map, instead of batches, as 2,16,128.", metavar="A,B,..."),
    ] = None

    def axes(self) -> dict[str, Any]:
        """Return what the map varies, for `regime`."""
        from densing.efficiency.systems import BATCHES

        return {
            "link": self.link,
            "bandwidths_gbps": numbers("--bandwidths", self.bandwidths, float),
            "batches": numbers("--batches", self.batches, int) or BATCHES,
            "replicas": numbers("--replicas", self.replicas, int),
        }


@app.command("compare")
@grouped("model cluster techniques baseline mode", "pp nodes gpus recompute", "replicas delay")
def compare(
    step: StepOptions,
    cluster: ClusterOptions,
    techniques: TechniqueOptions,
    regimes: MapOptions,
    ideal: Annotated[
        bool, typer.Option("--ideal", help="Take the cluster's figures as they are, not what published runs reach.")
    ] = False,
    framework: Framework = "Megatron-Core",
    html: Report = None,
    json: JsonFlag = False,
) -> None:
    """Compare techniques on one model and one cluster, from simulated timelines.

    A training step takes the times of its modules and the shares of its links from published runs, where there are any
    like it, with a range; --ideal takes the cluster's figures as they are.

    What does not fit in a device's memory says so, with the smallest change tried that would make it fit; exit code 3
    if it is the fastest.

    Example: densing techniques compare --model llama3-70b --cluster a100x8-tcp --nodes 16 --pp 8 --sequence-parallel
    --techniques ddp,co2,ladder --json

    Example: densing techniques compare --model gpt2 --cluster a100x8-rdma --nodes 4 --tp 1 --delay
    shifted-exp:mu=4 --techniques ddp,uc-mmc,gradient-coding,gc-mmc,backup-workers,local-sgd --set uc-mmc.r=3

    Example: densing techniques compare --model sage-reddit --cluster rtx3090-pcie3 --techniques
    host-gather,pinned-gather,zero-copy --set zero-copy.align=false

    Example: densing techniques compare --model least-squares --cluster a100x8-rdma --nodes 3 --delay
    shifted-exp:a=0.01,mu=10 --techniques uc-mmc,gradient-coding,lcc,backup-workers
    """
    from densing.efficiency.simulation import Gather, Workload, load_other
    from densing.efficiency.systems import compare as compare_techniques
    from densing.efficiency.systems import parse_settings, regime, timelines
    from densing.tradeoff import shipped_listing

    for option, path in (("--model", step.model), ("--cluster", cluster.cluster)):
        source = Path(path)
        if html is not None and source.is_file() and html.resolve() == source.resolve():
            raise InputError(f"--html {html}: is also the file of {option}; choose another name")
    names, baseline = techniques.names, techniques.baseline
    knobs = parse_settings(techniques.settings or ())
    machine = cluster.load()
    other = load_other(step.model)
    late = ["--delay"] if isinstance(other, Gather) and cluster.delay else []
    if other is not None and (refused := [*given(step), *given(regimes), *late]):
        problem = f"{refused[0]}: applies to transformers only"
        raise InputError(f"{problem}, and {step.model} is not one; leave it out")
    workload: Step = step.load(machine, names) if other is None else other
    comparison = compare_techniques(
        workload, machine, names, knobs=knobs, baseline=baseline, ideal=ideal, framework=framework
    )
    if all(row.status == "does not apply" for row in comparison.rows):
        raise InputError(
            "no technique works here: " + "; ".join(f"{row.technique}: {row.reason}" for row in comparison.rows)
        )
    grid: RegimeMap | None = None
    if isinstance(workload, Workload) and given(regimes):
        with timed_bar(quiet=json, label="map") as show:
            grid = regime(
                workload,
                machine,
                names,
                **regimes.axes(),
                knobs=knobs,
                baseline=baseline,
                ideal=ideal,
                framework=framework,
                progress=lambda done, total: show("map", float(done), float(total)),
            )
    # Of the map's notes those that the comparison has not said already.
    known = {note.code for note in comparison.notes if note.severity == "info"}
    notes = [*comparison.notes, *(note for note in (grid.notes if grid else ()) if note.code not in known)]
    if html is not None:
        from densing.report import build_techniques

        build_techniques(
            html,
            compare=comparison.rows,
            regime=grid.cells if grid else None,
            timelines=timelines(workload, machine, comparison, knobs, ideal=ideal, framework=framework),
            notes=notes,
            baseline=comparison.baseline,
        )
        say(f"wrote {html}")
    if json:
        emit_plain(
            {
                **_about(workload),
                "cluster": machine.name,
                "devices": machine.n,
                "title": comparison.title,
                **comparison.to_dict(),
                "measured": _measured(names),
                **({} if grid is None else {"map": grid.to_dict()}),
            }
        )
    else:
        typer.echo(visible(comparison.title))
        # Why one does not fit stands below, why one does not apply among the notes.
        emit_table(comparison.listing().without("Remark"), _head(workload, machine))
        typer.echo("\n".join([*_legend(workload, machine, comparison), *(map_lines(grid) if grid else ())]))
        if _measured(names):
            typer.echo("")
            emit_table(shipped_listing(names))
    show_notes(notes)
    finish(notes)


@dataclass(frozen=True)
class RunTerms:
    """What a whole run is to do and what it is charged; nothing where no tokens are given."""

    tokens: Annotated[
        float | None,
        typer.Option(help="Tokens of the whole run: also print days, device hours, money and energy."),
    ] = None
    price: Annotated[float | None, typer.Option(help="With --tokens: money per device and hour.")] = None
    mtbf: Annotated[
        str | None,
        typer.Option(help="With --tokens: mean time between failures of one device, such as 50000h.", metavar="TIME"),
    ] = None
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="With --mtbf: time to write a checkpoint, such as 90s; default: every device writes 0.1 GB/s.",
            metavar="TIME",
        ),
    ] = None
    restart: Annotated[str, typer.Option(help="With --mtbf: time from a failure to work.", metavar="TIME")] = "10min"
    carbon: Annotated[float | None, typer.Option(help="With --tokens: kilograms of CO2e per kilowatt-hour.")] = None
    draw: Annotated[float, typer.Option(help="With --tokens: share of the board's power drawn.")] = 0.8
    pue: Annotated[float, typer.Option(help="With --tokens: power of the centre over its computers'.")] = 1.2

    def load(self) -> Terms | None:
        """Return the terms, None where no run is asked for."""
        from densing.efficiency.throughput import Terms

        if self.tokens is None:
            if names := given(self):
                raise InputError(f"{', '.join(names)}: only for a whole run; give --tokens")
            return None
        return Terms(
            self.tokens,
            self.price,
            None if self.mtbf is None else seconds_of(self.mtbf, "--mtbf") / 3600,
            seconds_of(self.restart, "--restart"),
            None if self.checkpoint is None else seconds_of(self.checkpoint, "--checkpoint"),
            carbon=self.carbon,
            draw=self.draw,
            pue=self.pue,
        )


def seconds_of(text: str, option: str) -> float:
    """Read a length of time with its unit.

    Examples
    --------
    >>> seconds_of("90s", "--restart"), seconds_of("1.5 h", "--mtbf")
    (90.0, 5400.0)
    """
    units = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "y": 365.25 * 86400.0}
    match = re.fullmatch(r"\s*([0-9.eE+-]+)\s*([a-z]+)\s*", text)
    try:
        if match and match[2] in units and 0 <= (value := float(match[1]) * units[match[2]]) < math.inf:
            return value
    except ValueError:
        pass
    raise InputError(f"{option} {text}: not a length of time; write a number and s, min, h, d or y, such as 50000h")


@app.command("plan")
@grouped()
def plan(
    model: Annotated[str, typer.Option(help="Workload preset, or a Hugging Face config.json.")],
    cluster: ClusterName,
    terms: RunTerms,
    gpus: Annotated[int | None, typer.Option(min=1, help="Devices; default: all of the cluster.")] = None,
    sequence: Annotated[int, typer.Option(min=1, help="Tokens per sequence.")] = 4096,
    batch: Annotated[int, typer.Option(min=1, help="Sequences per step, over all devices.")] = 1024,
    layout: Annotated[
        str,
        typer.Option(
            help="Only layouts with these parts, such as tp=8,cp=2,pp=16,zero=1,micro_batch=1,recompute=none (also "
            "virtual, dp, parts, ep); all of them price one layout.",
            metavar="NAME=VALUE,...",
        ),
    ] = "",
    precision: Annotated[str, typer.Option(help="Of matrix products: bf16 or fp8.")] = "bf16",
    schedule: Annotated[str, typer.Option(help="Of a pipeline: 1f1b or zero-bubble.")] = "1f1b",
    framework: Framework = "Megatron-Core",
    most: Annotated[int, typer.Option(min=1, help="Layouts to print.")] = 5,
    json: JsonFlag = False,
) -> None:
    """Find the fastest layout of a training step that fits, and what a whole run with it takes.

    All layouts are ranked in closed form, and the ten best simulated as `densing techniques compare` does. Times of
    modules and shares of links are fitted to published training speeds (`densing techniques validate --throughput`);
    the range is made to hold four of five runs of a source that the fit had not seen, and is wider for long sequences
    and for new devices. Mixtures of experts are not predicted: one source measured them.

    Example: densing techniques plan --model llama3-70b --cluster a100x8-rdma --gpus 1024

    Example: densing techniques plan --model llama3-70b --cluster h100x8-nvlink --gpus 2048 --tokens 15e12 --price 2.1
    --mtbf 50000h --carbon 0.35
    """
    from densing.efficiency.simulation import load_cluster, load_workload
    from densing.efficiency.systems import fastest_layouts
    from densing.efficiency.throughput import budget

    charged = terms.load()
    machine = load_cluster(cluster, n=gpus)
    shape = load_workload(model, mode="train").model
    with timed_bar(quiet=json, label="layouts") as show:
        found = fastest_layouts(
            shape, machine, machine.n, sequence=sequence, batch=batch, most=most,
            only=parse_pairs([layout], "--layout"), precision=precision, schedule=schedule, framework=framework,
            progress=lambda done, total: show("layouts", float(done), float(total)),
        )  # fmt: skip
    whole = charged and budget(found, charged)
    if json:
        emit_plain(found.to_dict() | ({"budget": whole.to_dict()} if whole else {}) | {"measured": _measured([])})
    else:
        emit_table(found.listing())
        parts = ", ".join(f"{purpose} {count / 1e9:.1f} GB" for purpose, count in found.layouts[0].memory.items())
        lines = [f"memory of the first: {parts}", f"next split: {found.why}"]
        names = ", ".join(dict.fromkeys(row["technique"] for row in _measured([])))
        lines.append(
            f"beyond layouts, what is learned changes: `densing worth` weighs {names} by measured token ratios"
        )
        typer.echo("\n".join([*lines, *(_budget_lines(whole) if whole else [])]))
    show_notes(found.notes)
    finish(found.notes)


def _budget_lines(whole: Budget) -> list[str]:
    """Return what a run takes, line by line."""

    def line(label: str, span: Span | None, form: Callable[[float], str]) -> list[str]:
        return [] if span is None else [f"  {label:13}{form(span.value)} ({form(span.low)} to {form(span.high)})"]

    lost = []
    if whole.checkpoint_every_s is not None and whole.write_s is not None:
        lost = [
            f"  {'goodput':13}{formatting.percent(100 * whole.goodput)}: {whole.failures:,.1f} failures, a checkpoint "
            f"after every {formatting.duration(1e9 * whole.checkpoint_every_s)} of work takes "
            f"{formatting.duration(1e9 * whole.write_s)}"
        ]
    return [
        "",
        f"{whole.tokens:,.3g} tokens with the first (range of its step):",
        *line("days", whole.days, lambda value: formatting.number(value, 3)),
        *line("device hours", whole.device_hours, formatting.thousands),
        *lost,
        *line("cost", whole.cost, formatting.thousands),
        *line("kWh", whole.kwh, formatting.thousands),
        *line("t CO2e", whole.co2e_kg, lambda value: formatting.number(value / 1000, 3)),
        *([f"  assumed: {'; '.join(whole.assumed)}"] if whole.assumed else []),
    ]


@app.command("validate")
def validate(
    technique: Annotated[
        list[str] | None, typer.Option("--technique", "-t", help="Only this one; may be repeated.")
    ] = None,
    rerun: Annotated[
        bool,
        typer.Option("--rerun", help="Do experiments again whose outcomes are shipped (minutes; needs PyTorch)."),
    ] = False,
    measure: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True,
            help="Recompute a measurement from its record (gain.json of a ladder's arms) and the runs next to it; may "
            "be repeated. Published figures are then checked only with --technique.",
        ),
    ] = None,
    throughput: Annotated[
        bool,
        typer.Option(
            "--throughput",
            help="Predict speed and memory of measured training runs instead (FILE, or our selection).",
        ),
    ] = False,
    table: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            exists=True,
            help=f"With --throughput: a table ({FORMS}) of training runs (row_id, layers, hidden, seq, gpu, "
            "gpus and more, see docs/results/cost-model.md).",
            show_default=False,
        ),
    ] = None,
    html: Report = None,
    json: JsonFlag = False,
) -> None:
    """Hold the published figures beside what the simulator finds, those it does not reproduce too.

    Every row has a grade: predicted, calibrated on other rows, fitted, algebraic, counted, measured, own measurement.
    Only predictions can be reproduced. The simulator's laws are broken one at a time (ring costs x 3, latency x 10, no
    contention, no overlap), and the rows that notice say so. Every miss names the assumption of ours that would turn
    it, or those that were varied in vain. Findings are cached until code, tables or packages change; small experiments
    are shipped with their outcomes, and --rerun does them again.

    Example: densing techniques validate --technique ladder --json

    Example: densing techniques validate --measure ladders/arms

    Example: densing techniques validate --throughput --html speeds.html
    """
    if throughput:
        if technique or measure or rerun:
            raise InputError("--throughput cannot be combined with --technique, --measure or --rerun")
        _validate_throughput(table, html, json)
        return
    if table is not None:
        raise InputError(f"{table}: a table of training runs needs --throughput")
    from densing.efficiency.systems import Validation
    from densing.efficiency.systems import validate as validate_claims
    from densing.tradeoff import check_record

    validation = Validation(())
    with timed_bar(quiet=json, label="claims") as show:
        if technique or not measure:
            validation = validate_claims(
                tuple(technique or ()),
                keep=True,
                again=rerun,
                progress=lambda claim, done, total: show(claim, float(done), float(total)),
            )
        again = [row for path in measure or [] for row in check_record(path)]
    validation = Validation((*validation.findings, *again), validation.notes)
    if html is not None:
        from densing.report import build_techniques

        build_techniques(html, claims=validation.findings, notes=validation.notes)
        say(f"wrote {html}")
    if json:
        emit_plain([finding.to_dict() for finding in validation.findings], validation.notes)
    else:
        _show_validation(validation)
    show_notes(validation.notes)
    finish(validation.notes)


def _validate_throughput(table: Path | None, html: Path | None, json: bool) -> None:
    """Predict every row of a table of training runs, and say how far off each source is."""
    from densing.efficiency.throughput import check_throughput

    if html is not None and table is not None and html.resolve() == table.resolve():
        raise InputError(f"--html {html}: is the table itself; choose another name")
    with timed_bar(quiet=json, label="runs") as show:
        found = check_throughput(table, progress=lambda what, done, total: show(what, float(done), float(total)))
    if html is not None:
        from densing.report import build_techniques

        build_techniques(html, throughput=found, notes=found.notes)
        say(f"wrote {html}")
    if json:
        emit_plain(found.to_dict())
    else:
        emit_table(found.listing())
        memory = found.memory
        typer.echo(
            f"memory: AUC {formatting.number(memory.auc)}; of {memory.ran:,} that ran "
            f"{formatting.share(memory.ran_refused)} are predicted not to fit, of {memory.failed:,} that failed "
            f"{formatting.share(memory.failed_passed)} are predicted to fit"
        )
    show_notes(found.notes)
    finish(found.notes)


def _brief(technique: Technique) -> dict[str, Any]:
    keys = ("name", "role", "paper", "summary")
    runs = callable(getattr(technique, "run", None))
    return {**{key: getattr(technique, key) for key in keys}, "runs": runs, "experimental": _experimental(technique)}


def _measured(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return what shipped ladders measured of some techniques."""
    from densing.tradeoff import shipped_gains

    return [{str(key): value for key, value in row.items()} for row in shipped_gains(names).to_dict("records")]


def _experimental(technique: Technique) -> str:
    return str(getattr(technique, "experimental", ""))


def _runs(technique: Technique) -> str:
    if not callable(getattr(technique, "run", None)):
        return "no"
    stand_in = str(getattr(technique, "stand_in", ""))
    return f"stand-in: {stand_in}" if stand_in else "yes"


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def numbers(option: str, text: str | None, kind: Callable[[str], Number]) -> list[Number]:
    """Parse numbers with commas between; none of None.

    Raises
    ------
    InputError
        When one is not a number.

    Examples
    --------
    >>> numbers("--batches", "1, 4", int)
    [1, 4]
    """
    try:
        return [kind(part) for part in (text or "").split(",") if part.strip()]
    except ValueError as error:
        raise InputError(f"{option} {text}: {error}; give comma-separated numbers, as in 1,4,16") from error


def _about(workload: Step) -> dict[str, Any]:
    """Return what a document says of a workload."""
    from densing.efficiency.simulation import Workload

    if not isinstance(workload, Workload):
        kind = type(workload).__name__.lower()
        return {"model": workload.name, kind: workload.to_dict()}
    return {
        "model": workload.model.name,
        "mode": workload.mode,
        "batch": workload.batch,
        "sequence": workload.sequence,
        "micro_batches": workload.micro_batches,
        "recompute": workload.recompute,
        "fused_attention": workload.fused_attention,
        "gradient_bytes": workload.gradient_size,
        "overlap_weight_gradients": workload.overlap_weight_gradients,
        "split": workload.split.to_dict(),
    }


def _head(workload: Step, cluster: Cluster) -> str:
    """Say in a line what is compared, and where."""
    from densing.efficiency.simulation import Gather, Served, Workload

    machine = visible(cluster.name)
    if isinstance(workload, Served):
        return (
            f"{visible(workload.name)}, requests of {workload.tokens:,} tokens to {workload.layers} layers; {machine}: "
            "a device and a server"
        )
    if isinstance(workload, Gather):
        return (
            f"{visible(workload.name)}, {workload.rows:,} rows a step of a table of {workload.table_rows:,} rows by "
            f"{workload.width:,} columns ({workload.table_rows * workload.row_bytes / 1e9:,.2f} GB); {machine}: one "
            "device"
        )
    if not isinstance(workload, Workload):
        what = "a sparse classifier" if workload.loss == "logistic" else "least squares"
        return (
            f"{visible(workload.name)}, {what}: {workload.n:,} items by {workload.d:,} features, {workload.nnz:,} "
            f"entries, in {workload.partitions} partitions; {machine}: {cluster.n} devices"
        )
    split = workload.split
    parts = f" in {workload.micro_batches} micro-batches" if workload.micro_batches > 1 else ""
    saving = [f"recompute {workload.recompute}"] if workload.recompute != "none" else []
    saving += ["sequence-parallel"] if split.sequence else []
    saving += [f"{axis} {getattr(split, axis)}" for axis in ("cp", "ep") if getattr(split, axis) > 1]
    saving += [f"{split.virtual} stages per device"] if split.virtual > 1 else []
    saving += [f"gradients of {workload.gradient_bytes} bytes"] if workload.gradient_bytes else []
    saving += ["sums overlapped with weight gradients"] if workload.overlap_weight_gradients else []
    return (
        f"{visible(workload.model.name)}, {workload.mode}, batch {workload.batch} per replica{parts}, sequence "
        f"{workload.sequence}; {machine}: {cluster.n} devices, {split.ranks} used "
        f"({', '.join([f'dp {split.dp}', f'tp {split.tp}', f'pp {split.pp}', *saving])})"
    )


def _legend(workload: Step, cluster: Cluster, comparison: Comparison) -> list[str]:
    """Return what stands below a comparison on a screen, line by line."""
    from densing.efficiency.simulation import Workload

    errors = ", ".join(
        f"{row.technique} {formatting.seconds(row.step_se_s)}" for row in comparison.rows if row.step_se_s is not None
    )
    late = [] if cluster.delay is None else [f"delays are drawn ({cluster.delay}); standard errors: {errors or '–'}"]
    figures = []
    if not isinstance(workload, Workload) and workload.source:
        figures = [f"figures of {visible(workload.name)} ({visible(workload.evidence)}): {visible(workload.source)}"]
    counted = [
        f"{row.technique} {row.parameters_on_device:,} of {row.parameters:,}"
        for row in comparison.rows
        if row.parameters is not None and row.parameters_on_device is not None
    ]
    ranged = any(row.low_s for row in comparison.rows)
    return [
        f"simulated; per rank and step; speed-up over {comparison.baseline}",
        *late,
        *(["4 of 5 in: held four of five published runs that the fit had not seen"] if ranged else []),
        "loss: whether a step is mathematically equivalent to one of plain synchronous training",
        *([f"parameters on the device, of all (either may serve as N): {', '.join(counted)}"] if counted else []),
        *(f"does not fit: {row.technique} {row.reason}" for row in comparison.rows if row.status == "does not fit"),
        *figures,
    ]


def map_lines(grid: RegimeMap) -> list[str]:
    """Return a table per technique: bandwidths down, batches or replicas across, the speed-up, and what it is worth."""
    names = dict.fromkeys(cell.technique for cell in grid.cells if cell.technique != grid.baseline)
    marks = ", ".join(f"{mark} {verdict}" for verdict, mark in MARKS.items())
    across = grid.across
    legend = f"speed-up over {grid.baseline} by bandwidth of the {grid.link} link and {across}; {marks}"
    lines = ["", legend]
    for name in names:
        cells = {(cell.bandwidth_gbps, getattr(cell, across)): cell for cell in grid.cells if cell.technique == name}
        sizes = sorted({size for _, size in cells})
        rows = [(f"{bandwidth:g}", *(_mark(cells[bandwidth, size]) for size in sizes))
                for bandwidth in sorted({bandwidth for bandwidth, _ in cells})]  # fmt: skip
        lines += ["", f"{name}:", *aligned(("Gbit/s", *(f"{across} {size}" for size in sizes)), rows)]
    return lines


def _mark(cell: Cell) -> str:
    return MARKS[cell.verdict] if cell.speedup is None else f"{cell.speedup:.2f} {MARKS[cell.verdict]}"


def _show_validation(validation: Validation) -> None:
    """Print the findings, how many there are of each grade, and what they are worth."""
    from densing.efficiency.systems import grades_listing

    if not validation.findings:
        typer.echo("no claims")
        return
    # Notes and reasons stand below, each once.
    emit_table(validation.listing().without("Note", "Why"))
    for listing in validation.series().values():
        emit_table(listing)
    emit_table(grades_listing([finding.to_dict() for finding in validation.findings]))
    typer.echo("\n".join([*_sentences(validation), *_remarks(validation.findings)]))


def _sentences(validation: Validation) -> list[str]:
    """Say what the counts are worth: only predictions can be reproduced."""
    tally = validation.tally
    sentences = [
        f"{tally.reproduced} of {tally.predictions} predictions reproduced"
        + (", each failing under at least one broken law of the simulator" if tally.reproduced else "")
        if tally.predictions
        else "nothing was predicted",
        "other agreeing rows are not predictions: they are inputs, arithmetic, counts, our own measurements, or were "
        "fitted together",
    ]
    if tally.with_null:
        sentences.append(
            f"of {tally.with_null} calibrated figures {tally.closer} are closer (by over 0.1 point) than the null "
            "model, which uses no simulator"
        )
    if tally.shared:
        sentences.append(
            f"the null model agrees, too, in {tally.shared} of the {tally.agreeing} calibrated rows that agree: these "
            "say nothing for the simulator"
        )
    if tally.blind:
        sentences.append(
            f"{len(tally.blind)} calibrated rows that agree also agree under every broken law: {', '.join(tally.blind)}"
        )
    if tally.untested:
        sentences.append(f"no row that holds detects {', '.join(tally.untested)}: these figures do not test it")
    if tally.not_first_hand:
        sentences.append(
            f"{tally.not_first_hand} of the published figures are not first-hand: the column Published says so"
        )
    return sentences


def _remarks(findings: tuple[Finding, ...]) -> list[str]:
    """Say, once each, what went into the figures of ours, what decides them, and why some are missing."""
    from densing.efficiency.systems import why

    remarks: dict[str, list[str]] = {}
    for finding in findings:
        null = f"null model: {finding.null_model}" if finding.null_model else ""
        decided = why(finding.to_dict())
        for text in (finding.inputs, finding.note, null, decided and f"the verdict: {decided}"):
            if text:
                remarks.setdefault(text, []).append(finding.claim)
    return ["", *(f"{', '.join(claims)}: {text}" for text, claims in remarks.items())] if remarks else []
