"""``densing profile``: where a training run spent its time, from its traces."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from densing.cli.grouped import grouped
from densing.cli.options import JsonFlag, Report
from densing.cli.output import MOST_NOTES, emit_plain, finish, say, show_notes, timed_bar, visible, width
from densing.core import InputError, Note, StoppedError, UnknownNameError, doubts, formatting, of_part, severest_first

if TYPE_CHECKING:
    from densing.core import Hit, Listing
    from densing.efficiency.profile import (
        Comparison,
        ProfileOptions,
        Progress,
        RankProfile,
        RunProfile,
        RunUtilisation,
    )
    from densing.efficiency.timeline import RankTimeline
    from densing.efficiency.traces import TraceFile

OF_MFU = ("mfu_pct", "hfu_pct")
"""Figures that a run has where ``--mfu`` is given."""
MOST_RANKS = 10_000_000
DETAILS = ("auto", "device", "host")
SHOWN_RANKS = 8
SHOWN_COLLECTIVES = 5
SHOWN_KERNELS = 8
NAME_SHOWN = 40
SHOWN_GAPS = 3
SHOWN_MODULES = 20
NO_MODULES = (
    "No module and no named range was recorded: record with torch.profiler.profile(with_stack=True), or name ranges "
    "with torch.profiler.record_function or NVTX"
)
BY = ("name", "module")
IDLE_PCT = 5.0
"""Least share of idle time with which single gaps are shown."""
WIDE = 100
"""Columns to which sentences are folded on a wide terminal."""
LONGEST_SENTENCE = 300
AT_ONCE = 0.005
"""Share by which the kinds of communication must exceed their union before it is said that they overlap."""

Window = Annotated[
    str | None,
    typer.Option("--window", "-w", help="steps, all or hta; default: steps where the traces mark steps, else all."),
]
Detail = Annotated[
    str,
    typer.Option(
        "--detail", help="auto, device or host; host also reads operators: slower, but shows what the host did."
    ),
]


@dataclass(frozen=True)
class Source:
    """What is to be read, and how."""

    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Traces (.json, .gz, .zst, .zip, .sqlite, .db, .pb), folders of ranks, or results stored with --out.",
            metavar="PATH...",
        ),
    ] = field(default_factory=list)
    window: Window = None
    comm_pattern: Annotated[
        list[str],
        typer.Option(help="Regular expression; kernels whose names match are communication. May be repeated."),
    ] = field(default_factory=list)
    rank: Annotated[
        list[str],
        typer.Option(help="FILE=NUMBER: which rank a file is (by name or path); may be repeated."),
    ] = field(default_factory=list)
    detail: Detail = "auto"
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder for the ranks' results (Parquet); an interrupted run resumes from it."
        ),
    ] = None
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", help="Processes, or jobs of the executor.")] = None
    executor: Annotated[
        str | None,
        typer.Option(help="slurm, local or another executor: spread the ranks over a cluster; needs --out."),
    ] = None
    executor_arg: Annotated[
        list[str],
        typer.Option(
            "--executor-arg",
            "--executor_arg",
            help="key=value for the executor, e.g. partition=cpu,account=mine,time=60; may be repeated.",
        ),
    ] = field(default_factory=list)
    rank_files: Annotated[Path | None, typer.Option(help="A list of traces.", hidden=True)] = None
    quiet: bool = False

    def options(self) -> ProfileOptions:
        """Return the options of a rank's profile, checked."""
        from densing.efficiency.profile import ProfileOptions
        from densing.efficiency.timeline import WINDOWS

        for option, value, known in (("window", self.window, WINDOWS), ("detail", self.detail, DETAILS)):
            if value is not None and value not in known:
                raise UnknownNameError(option, value, known)
        return ProfileOptions(self.window, tuple(self.comm_pattern), self.detail)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Outputs:
    """What is to come out."""

    html: Report = None
    compare: Annotated[
        list[Path],
        typer.Option(help="Baseline traces or stored results; reports changes beyond noise."),
    ] = field(default_factory=list)
    fail_if: Annotated[
        list[str],
        typer.Option(
            help="'METRIC > NUMBER', e.g. 'exposed_pct>10' or 'step_ms>=250 and overlap_pct<50': exit code 4 if it is "
            "true or undecided; may be repeated. METRIC: a key of `figures` in --json (exposed_pct, overlap_pct, "
            "idle_pct, exposed_ms_per_step, step_ms, slowdown, ...), mfu_pct, hfu_pct, item_ms[NAME] or "
            "item_change_pct[NAME]; its name states the unit.",
        ),
    ] = field(default_factory=list)
    what_if: Annotated[
        list[str],
        typer.Option(
            help="Replay the run with link=2x, link=300mbit, hide=all_reduce, drop-rank=5, overlap=perfect, "
            "co2:tau=8, local-sgd:tau=8, dct:eta=0.99, ladder (tensor-parallel sums one module late) or fuse=NAME "
            "(neighbouring kernels whose names hold it become one launch, which saves launches and pauses, no kernel "
            "time); commas join changes, and each --what-if is replayed alone.",
        ),
    ] = field(default_factory=list)
    what_if_trace: Annotated[
        Path | None,
        typer.Option(
            help="Write the run as the --what-if changes it, as a trace for Perfetto.",
            metavar="FILE",
        ),
    ] = None
    perfetto: Annotated[
        Path | None,
        typer.Option(help="Write the trace back with overlay tracks that Perfetto opens.", metavar="FILE"),
    ] = None
    slice: Annotated[
        Path | None,
        typer.Option(
            help="Write what surrounds a gap (the longest; see --gap), as a small trace for Perfetto.",
            metavar="FILE",
        ),
    ] = None
    gap: Annotated[
        int,
        typer.Option(min=1, help="With --slice: which gap, 1 for the longest of all ranks, 2 for the next."),
    ] = 1
    by: Annotated[
        str,
        typer.Option(
            help="name or module: what the table of the longest work lists; modules need recorded stacks or ranges.",
        ),
    ] = "name"
    mfu: Annotated[
        str | None,
        typer.Option(
            help="'params=7e9,tokens=4.2e6,dtype=bf16': model FLOPs utilisation; tokens are per step over all ranks. "
            "Also layers, heads, head_dim, seq (attention), peak (TFLOP/s), "
            "recompute (none, full; selective with formula=megatron).",
        ),
    ] = None
    json: JsonFlag = False


@grouped(
    "window html compare fail_if what_if what_if_trace perfetto slice gap by comm_pattern explain",
    "detail mfu",
    "rank_files json",
)
def profile(
    source: Source,
    outputs: Outputs,
    explain: Annotated[
        str | None, typer.Option(help="Print which rule classifies a kernel of this name, then exit.")
    ] = None,
) -> None:
    """Say how much communication was hidden, what was exposed, where, why and what it cost.

    Reads traces of torch.profiler (CUDA, ROCm, gloo, ...), one per rank; damaged ones as far as they go. Of a job's
    operations (trace-*.parquet of ByteDance-Seed/StragglerAnalysis) it says what slow workers cost.
    Exit codes: 0 done, 1 user error, 2 usage, 3 done but events or traces could not be read, 4 a --fail-if holds or
    cannot be decided.

    Example: densing profile traces/ --html profile.html --fail-if 'exposed_pct>10'
    """
    if explain is not None:
        from densing.efficiency.timeline import Classifier

        match = Classifier(source.comm_pattern).explain(explain)
        if outputs.json:
            emit_plain({"name": explain, "known": match.known, **match.to_dict()})
            return
        typer.echo(visible(f"{explain}: {match.kind.name.lower()}{f' ({match.op})' if match.op else ''}"))
        typer.echo(visible(f"  rule {match.rule}" + (f", pattern {match.pattern}" if match.pattern else "")))
        if match.source:
            typer.echo(visible(f"  known from: {match.source}"))
        return
    source = replace(source, quiet=outputs.json)
    if any(path.suffix == ".parquet" and _show_job(path, source, outputs) for path in source.paths):
        return
    _check_flags(source, outputs)
    if source.rank_files is not None:
        # What a job of an executor runs: the ranks of a list go into the store, and nothing else is done.
        notes: list[Note] = []
        with ExitStack() as stack:
            rows, _ = _rows(source, source.options(), notes, stack)
            for _row in rows:
                pass
        show_notes(notes)
        return
    try:
        _answer(read_run(source), source, outputs)
    except KeyboardInterrupt:
        if source.out is None:
            raise
        raise StoppedError(f"stopped; the same command resumes from {source.out}") from None


def _show_job(path: Path, source: Source, outputs: Outputs) -> bool:
    """Show what slow workers cost a job, if a file is a trace of its operations; return whether it is."""
    from densing.core import aligned
    from densing.efficiency.profile import is_job, what_if_job

    if not is_job(path):
        return False
    if (source, outputs) != (Source([path], quiet=outputs.json), Outputs(json=outputs.json)):
        raise InputError(f"{path}: is a trace of a job's operations; it is read alone, with no option but --json")
    result = what_if_job(path)
    if outputs.json:
        emit_plain(result.to_dict())
        return True
    typer.echo(
        f"{len(result.steps)} steps; slowdown by slow workers {result.slowdown.mean:.3f} "
        f"({100 * result.waste:.1f} % of device time lost), by launch delays {result.launch_slowdown:.3f}\n"
    )
    parts = (("operation", result.by_optype), ("dp rank", result.by_dp_rank), ("stage", result.by_stage))
    rows = [
        (f"{kind} {name}", formatting.fixed(slow.mean, 3))
        for kind, part in parts
        for name, slow in list(part.items())[:5]
    ]
    typer.echo("\n".join(aligned(("only this slow", "slowdown"), rows)))
    for workers, part in (("the slowest 3 % of workers", result.workers), ("the last stage", result.last_stage)):
        share = "–" if part.explained is None else f"{100 * part.explained:.1f} %"
        typer.echo(f"explained by {workers}: {share}")
    return True


def _check_flags(source: Source, outputs: Outputs) -> None:
    """Refuse what cannot work, before hours of traces are read."""
    if source.jobs is not None and source.jobs < 1:
        raise InputError(f"--jobs {source.jobs}: a whole number from 1 up is needed")
    if source.executor_arg and source.executor is None:
        raise InputError("--executor-arg without --executor; name one, e.g. --executor slurm")
    if source.comm_pattern:
        from densing.efficiency.timeline import Classifier

        Classifier(source.comm_pattern)
    if outputs.fail_if:
        from densing.core import check_conditions, parse_condition
        from densing.efficiency.profile import ITEM_METRICS, METRICS

        # On a run without figures every condition is undecided: what is left to find is names that no run has.
        parsed = [parse_condition(condition) for condition in outputs.fail_if]
        named = {part.metric for condition in parsed for part in condition.comparisons}
        of_items = {name for name in named if "[" in name and name.partition("[")[0] in ITEM_METRICS}
        hits = check_conditions(parsed, dict.fromkeys((*METRICS, "slowdown", *OF_MFU, *of_items)))
        if not outputs.compare and (changes := sorted(name for name in of_items if "change" in name)):
            raise InputError(f"--fail-if: {changes[0]} needs a baseline; give it with --compare")
        metrics = {name for hit in hits for name in hit.values}
        if outputs.mfu is None and (without := sorted(metrics.intersection(OF_MFU))):
            raise InputError(f"--fail-if: {without[0]} needs --mfu, e.g. --mfu params=7e9,tokens=4.2e6")
    if outputs.mfu is not None:
        from densing.efficiency.profile import parse_spec

        parse_spec(outputs.mfu)
    if outputs.what_if:
        from densing.efficiency.profile import parse_changes

        for change in outputs.what_if:
            parse_changes(change)
    if outputs.by not in BY:
        raise UnknownNameError("--by", outputs.by, BY)
    _check_outputs(source, outputs)
    for path in outputs.compare:
        check_source(path)


def check_source(path: Path) -> None:
    """Refuse a path at which there are neither traces nor stored results."""
    if not _is_store(path):
        from densing.efficiency.traces import find_traces

        find_traces([path])
    elif not path.exists():
        raise InputError(f"{path}: no such file or folder; check the path")


def _check_outputs(source: Source, outputs: Outputs) -> None:
    """Keep outputs from replacing what is read, each other, or what is not a file."""
    pairs = (
        ("--html", outputs.html),
        ("--perfetto", outputs.perfetto),
        ("--slice", outputs.slice),
        ("--what-if-trace", outputs.what_if_trace),
    )
    if outputs.gap != 1 and outputs.slice is None:
        raise InputError(f"--gap {outputs.gap}: says which gap --slice writes; name a file, e.g. --slice gap.json")
    if outputs.what_if_trace is not None and len(outputs.what_if) != 1:
        raise InputError(f"--what-if-trace {outputs.what_if_trace}: belongs to one --what-if; give it, e.g. link=2x")
    files = {flag: path for flag, path in pairs if path is not None}
    if len({path.absolute() for path in files.values()}) < len(files):
        raise InputError(f"{' and '.join(files)} name one file; choose others")
    for flag, path in files.items():
        if path.is_dir() or (path.exists() and not path.is_file()):
            raise InputError(f"{flag} {path}: is not a regular file; choose another name")
        for read in (*source.paths, *outputs.compare) if path.exists() else ():
            # Every file that is read, as far as its name tells.
            inputs = filter(Path.is_file, read.rglob("*")) if read.is_dir() else filter(Path.exists, [read])
            if any(map(path.samefile, inputs)):
                raise InputError(f"{flag} {path}: is one of the files to be read; choose another name")
        _check_place(f"{flag} {path}", path.parent)
    for flag, out in files.items():
        if flag == "--html":
            continue
        if out.suffix == ".zip":
            raise InputError(f"{flag} {out}: written as .json or .json.gz; choose such a name")
        if source.paths and all(map(_is_store, source.paths)):
            raise InputError(f"{flag} {out}: stored results contain no individual spans; give the traces instead")
        folders = [path.resolve() for path in source.paths if path.is_dir()]
        folder = out.resolve().parent
        # Of a folder without traces its subfolders are read.
        beside_traces = folder in folders or (folder.parent in folders and not _has_traces(folder.parent))
        if beside_traces and _is_named(out):
            raise InputError(f"{flag} {out}: would be read as another rank next time; choose another folder")


def _check_place(output: str, folder: Path) -> None:
    """Refuse a folder that nothing can be written to; what is missing of it is made when it is time."""
    absolute = folder.absolute()
    existing = next(parent for parent in (absolute, *absolute.parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"{output}: nothing can be written in {existing}; check permissions and location")


def _has_traces(folder: Path) -> bool:
    """Return whether a folder holds files that are read as traces."""
    return any(_is_named(path) for path in folder.iterdir() if path.is_file())


def _is_named(path: Path) -> bool:
    from densing.efficiency.traces import SUFFIXES

    return path.name.endswith(SUFFIXES)


def _is_store(path: Path) -> bool:
    """Return whether a path holds stored results: a Parquet file, or a folder of such."""
    if path.is_dir():
        stored = any(path.glob("*.parquet"))
        if stored and _has_traces(path):
            raise InputError(
                f"{path}: contains both traces and stored results; name files of one kind, or separate them"
            )
        return stored
    return path.suffix == ".parquet"


def read_run(source: Source) -> RunProfile:
    """Profile a run; stored results are joined without reading a trace."""
    from densing.efficiency.profile import merge_run

    options = source.options()
    stores = [path for path in source.paths if _is_store(path)]
    if stores and len(stores) == len(source.paths):
        from densing.efficiency.profile import read_profiles, store_files, store_info

        stored = dict(store_info(store_files(stores)[0]).options)
        run = merge_run(read_profiles(stores), store=stores, options=stored)
        # Refused are flags that would need the traces again.
        patterns = stored.get("comm_patterns")
        known = {"--window": run.window, "--detail": stored.get("detail"), "--comm-pattern": patterns}
        flags = {
            "--window": source.window,
            "--detail": None if source.detail == "auto" else source.detail,
            "--comm-pattern": list(source.comm_pattern) or None,
        }
        for flag, value in flags.items():
            if value is not None and value != known[flag]:
                raise InputError(
                    f"{flag} {value}: these results were stored with {known[flag]}; give the traces instead"
                )
        for flag, argument in {"--rank": source.rank, "--out": source.out, "--executor": source.executor}.items():
            if argument:
                raise InputError(f"{flag}: applies to traces, not to stored results; leave it out")
        return run
    notes: list[Note] = []
    with ExitStack() as stack:
        rows, store = _rows(source, options, notes, stack)
        return merge_run(rows, store=store, notes=notes, options=options.to_dict(), again=partial(_again, source))


def _rows(
    source: Source, options: ProfileOptions, notes: list[Note], stack: ExitStack
) -> tuple[Iterator[Mapping[str, Any] | RankProfile], Path | None]:
    """Return the rows as they are ready, and the folder they are stored in."""
    from densing.efficiency.profile import HELD_RANKS

    traces = _traces(source, notes)
    if len(traces) == 1 and source.out is None and source.executor is None:
        # A single trace is profiled in this process: nothing is loaded that spreads work.
        from densing.efficiency.profile import by_device, profile_timeline, read_trace

        trace = traces[0]
        with timed_bar(source.quiet, trace.label) as show:
            rank = read_trace(trace, options, lambda done: show(trace.label, done, trace.size))
            ranks = [profile_timeline(one, options) for one in by_device(rank)]
        return iter(ranks), None
    store = source.out
    if store is None and len(traces) > HELD_RANKS:
        import tempfile

        store = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="densing-profile-")))
    return _many(source, options, traces, store, notes), store


def _again(source: Source, labels: Container[str]) -> Iterator[RankTimeline]:
    """Read the traces of some labels again, one by one."""
    from densing.efficiency.profile import read_ranks

    return read_ranks((trace for trace in _traces(source, []) if trace.label in labels), source.options())


def _traces(source: Source, notes: list[Note]) -> list[TraceFile]:
    """Return the traces of a run; notes tell what was passed over."""
    from densing.efficiency.traces import find_traces

    if source.rank_files is not None:
        from densing.efficiency.profile import read_list

        return read_list(source.rank_files)
    if not source.paths:
        raise InputError("no trace given; name a file or a folder (densing profile --help has an example)")
    ranks: dict[str, int] = {}
    for pair in source.rank:
        name, _, digits = pair.rpartition("=")
        if not name or not (digits.isascii() and digits.isdecimal()) or int(digits[:12]) > MOST_RANKS:
            raise InputError(
                f"--rank {pair!r}: not of the form FILE=NUMBER (up to {MOST_RANKS}); write e.g. --rank trace.json=0"
            )
        if name in ranks:
            raise InputError(f"--rank {pair!r}: {name} was given a rank already; name each file once")
        ranks[name] = int(digits)
    traces = find_traces(source.paths, ranks)
    notes.extend(traces.notes)
    return traces


def _many(
    source: Source, options: ProfileOptions, traces: Sequence[TraceFile], store: Path | None, notes: list[Note]
) -> Iterator[Mapping[str, Any]]:
    from densing.efficiency.profile import default_command, profile_ranks, result_file

    failed: list[str] = []
    out = source.out
    if out is not None and source.rank_files is None:
        # A folder of other traces' results, or of traces, is not a store; jobs of an executor share the store of all.
        if out.exists() and not out.is_dir():
            raise InputError(f"--out {out}: is not a folder; choose another name")
        _check_place(f"--out {out}", out)
        own = {result_file(out, trace) for trace in traces}
        if foreign := sorted(path.name for path in out.glob("*.parquet") if path not in own):
            reason = f"holds results of other traces ({foreign[0]}, ...); choose a folder of its own"
            raise InputError(f"--out {out}: {reason}")
        if out.is_dir() and _has_traces(out):
            raise InputError(f"--out {out}: holds traces; choose another folder for results")

    def on_failure(trace: TraceFile, reason: str) -> None:
        failed.append(reason)
        notes.append(Note("rank-left-out", "error", reason if trace.label in reason else f"{trace.label}: {reason}"))

    # What a job of the executor needs to do the same.
    patterns = [flag for pattern in source.comm_pattern for flag in ("--comm-pattern", pattern)]
    window = ("--window", source.window) if source.window else ()
    flags = [*window, "--detail", source.detail, *patterns, "--json"]
    with timed_bar(source.quiet, f"{len(traces)} ranks") as show:

        def at(progress: Progress) -> None:
            show(f"{progress.done} of {progress.total} ranks", progress.done_bytes, progress.total_bytes)

        yield from profile_ranks(
            traces,
            Reader(options),
            jobs=source.jobs,
            executor=_executor(source),
            command=default_command(flags),
            out=store,
            options=options.to_dict(),
            progress=at,
            on_failure=on_failure,
        )
    if len(failed) == len(traces):
        raise InputError("\n".join(failed))


def _executor(source: Source) -> Any:
    if source.executor is None:
        return None
    from densing.core import parse_pairs
    from densing.jobs import get_executor

    return get_executor(source.executor, **parse_pairs(source.executor_arg, "--executor-arg"))


@dataclass(frozen=True)
class Reader:
    """Profiles one trace; travels to other processes."""

    options: ProfileOptions

    def __call__(self, trace: TraceFile, tell: Callable[[int], object]) -> Mapping[str, Any]:
        """Return the rank's row."""
        from densing.efficiency.profile import profile_trace

        return profile_trace(trace, self.options, lambda done: (tell(done), None)[1]).to_dict()


def _answer(run: RunProfile, source: Source, outputs: Outputs) -> None:
    """Show and write what was asked for, and leave with the exit code it calls for."""
    used: RunUtilisation | None = None
    if outputs.mfu is not None:
        from densing.efficiency.profile import parse_spec, run_utilisation

        used = run_utilisation(run, parse_spec(outputs.mfu))
    comparison: Comparison | None = None
    if outputs.compare:
        from msgspec import structs

        from densing.efficiency.profile import compare_runs

        # The baseline is profiled in the same way, within the same window; its files have their own ranks, and it is
        # read here.
        fresh: dict[str, Any] = {"rank_files": None, "rank": [], "out": None, "executor": None, "executor_arg": []}
        base = read_run(replace(source, **fresh, paths=outputs.compare, window=run.window))
        comparison = compare_runs(base, run)
        run = structs.replace(run, notes=(*run.notes, *of_part("baseline", doubts(base.notes))))
    hits: Sequence[Hit] = ()
    if outputs.fail_if:
        from densing.core import check_conditions, parse_condition
        from densing.efficiency.profile import item_figures

        figures: Mapping[str, object] = run.figures
        if used is not None:
            figures = {**figures, **{key: used.to_dict()[key] for key in OF_MFU}}
        conditions = [parse_condition(text) for text in outputs.fail_if]
        metrics = [part.metric for condition in conditions for part in condition.comparisons]
        hits = check_conditions(conditions, {**figures, **item_figures(metrics, run, comparison)})
    planned = [run.what_if(change) for change in outputs.what_if]
    if outputs.json:
        parts = {"utilisation": used, "comparison": comparison}
        more = {name: part and part.to_dict() for name, part in parts.items()}
        changed = [row.to_dict() for row in planned]
        emit_plain({**run.to_dict(), **more, "planned": changed, "fail_if": [hit.to_dict() for hit in hits]})
    else:
        typer.echo("\n".join(screen(run, used, comparison, width(WIDE), by=outputs.by)))
        for row in planned:
            typer.echo("\n".join(["", *_folded(filter(None, (row.sentence, row.model)), width(WIDE))]))
        show_notes(run.notes, most=MOST_NOTES)
    if outputs.html is not None:
        from densing.report import build_profile_report

        build_profile_report(run, outputs.html, baseline=comparison, utilisation=used, changes=planned)
        say(f"wrote {outputs.html}")
    if outputs.what_if_trace is not None:
        from densing.efficiency.traces import RankTracks, write_timelines

        made = run.what_if_timeline(outputs.what_if[0])
        write_timelines((RankTracks(rank, (), 0) for rank in made.ranks), outputs.what_if_trace)
        say(f"wrote {outputs.what_if_trace}: the run with {outputs.what_if[0]}; open it in ui.perfetto.dev")
    if outputs.slice is not None:
        from densing.efficiency.profile import write_slice

        if len(run.gaps) < outputs.gap:
            kept = f"only {formatting.plural(len(run.gaps), 'gap')} are known" if run.gaps else "no gap was recorded"
            raise InputError(f"--slice {outputs.slice}: --gap {outputs.gap}: {kept}; choose a lower one")
        rank, gap = run.gaps[outputs.gap - 1]
        trace = next(trace for trace in _traces(source, []) if trace.label == rank.source)
        write_slice(trace, outputs.slice, gap.start_ns, gap.end_ns, source.options())
        length = formatting.duration(gap.end_ns - gap.start_ns)
        say(f"wrote {outputs.slice}: rank {rank.rank} around its gap of {length}; open it in ui.perfetto.dev")
    if outputs.perfetto is not None:
        from densing.efficiency.profile import write_profiled

        offsets = run.together.clocks.offset_ns if run.together else {}
        known = {rank.source for rank in run.ranks}
        traces = [trace for trace in _traces(source, []) if trace.label in known]
        count = write_profiled(traces, outputs.perfetto, source.options(), offsets)
        # Several ranks are drawn from what was read, and which of accelerators holds no operators unless asked for.
        partial = count > 1 and source.detail != "host" and not all(rank.on_host for rank in run.ranks)
        hint = "; operators are left out, --detail host draws them" if partial else ""
        say(
            f"wrote {outputs.perfetto}: {count} rank{'s' * (count != 1)} with overlay tracks{hint}; "
            "open it in ui.perfetto.dev"
        )
    finish(run.notes, hits)


def screen(
    run: RunProfile,
    used: RunUtilisation | None,
    comparison: Comparison | None,
    width: int | None = None,
    by: str = "name",
) -> list[str]:
    """Return the summary, line by line: headline, ranks, communications, causes; then single names and gaps.

    Parameters
    ----------
    run : RunProfile
    used : RunUtilisation or None
    comparison : Comparison or None
    width : int, optional
        Sentences are folded to it; tables never are. None leaves them whole.
    by : {"name", "module"}
        What the work that took longest is listed by.
    """
    from densing.efficiency.profile import SHOWN

    lines = [*_folded(_headline(run), width), "", *_ranks(run, width), ""]
    if (grid := run.layout_listing()).rows:
        lines += [*_table(grid, width), ""]
    lines += _collectives(run, width)
    unit, causes = _unit(run), []
    for position, cause in enumerate(run.causes[:SHOWN], start=1):
        cost = f"{_ms(cause.gain_ms_per_step)} ms per {unit} ({cause.gain_pct:.1f} %)"
        causes += [f"{position}. {cost}: {cause.message}", f"   try: {cause.remedy}"]
    if run.causes:
        causes.append(_account(run))
    lines += [*_folded([*_across(run), *causes], width), *_kernels(run, width, by)]
    lines += _folded(_unrecognised(run), width)
    if used is not None:
        remarks = "; ".join(note.message for note in used.notes)
        sentence = f"MFU unknown: {remarks}"
        if used.model is not None:
            flops, peak = used.model.flops, used.model.peak
            hardware = f", HFU {used.hardware.percent:.2f} %" if used.hardware else ""
            recalled = ", recalled" if peak.recalled else ""
            sentence = (
                f"MFU {used.model.percent:.2f} %{hardware}: formula {flops.formula} ({flops.equation}), "
                f"{used.model.devices} × {peak.flops / 1e12:g} TFLOP/s ({peak.device}, {peak.dtype}{recalled})"
            ) + (f"; {remarks}" if remarks else "")
        lines += ["", *_folded([sentence], width)]
    if comparison is not None:
        lines += ["", *_comparison(comparison, width)]
    return lines


def _account(run: RunProfile) -> str:
    """Say what the causes' figures are, and what they do not add up to."""
    total = sum(cause.gain_ms_per_step for cause in run.causes) + run.interaction_ms_per_step
    text = "Gains of a replay without each cause alone"
    if len(run.causes) > 1:
        text = f"Gains of a replay without each alone; {_ms(total)} ms without all {len(run.causes)}"
    return text


def _folded(sentences: Iterable[str], width: int | None) -> list[str]:
    """Return sentences as a terminal may show them: names in them stay text and leave room for the rest.

    Examples
    --------
    >>> _folded(["1. the host launches too late"], 20)
    ['1. the host launches', '   too late']
    """
    lines = [visible(formatting.middle_cut(sentence, LONGEST_SENTENCE)) for sentence in sentences]
    if width is None:
        return lines
    fold = textwrap.TextWrapper(width, subsequent_indent="   ", break_on_hyphens=False)
    return [part for line in lines for part in fold.wrap(line) or [""]]


def _headline(run: RunProfile) -> list[str]:
    figures = run.figures
    counted = f"{run.counted}, window {run.window}"
    if figures["compute_pct"] is None:
        return [f"{counted}: no work was recorded, so time cannot be attributed (see the notes)"]
    overlap = figures["overlap_pct"]
    if overlap is None and figures["comm_pct"]:
        hidden = "share of hidden communication unknown (most of it lies outside the window)"
    elif overlap is None:
        hidden = "no communication"
    else:
        hidden = f"{_fixed(overlap)} % of communication hidden (at most {_fixed(figures['achievable_pct'])} % could be)"
    unit = _unit(run)
    exposed = (
        f"exposed {_fixed(figures['exposed_pct'])} % of the time, {_ms(figures['exposed_ms_per_step'])} ms per {unit}"
    )
    median = f"median step {_ms(figures['step_ms'])} ms" if figures["steps"] else "no steps marked"
    return [f"{counted}, {median}", f"{hidden}; {exposed}; idle {_fixed(figures['idle_pct'])} %"]


def _unit(run: RunProfile) -> str:
    """What costs are given per: a step, or a rank's window where no step is marked."""
    return "step" if run.figures["steps"] else "window"


def _fixed(value: object, digits: int = 1) -> str:
    return formatting.fixed(value if isinstance(value, int | float) else None, digits)


def _ms(value: object) -> str:
    return formatting.milliseconds_of(value if isinstance(value, int | float) else None)


def _table(listing: Listing, width: int | None, most: int | None = None) -> list[str]:
    """Return a table as lines, and what a narrow terminal leaves out of it."""
    lines, hidden = listing.laid_out(width, most)
    left_out = [f"no room for {', '.join(hidden)}: widen the terminal, or use --json"] if hidden else []
    return [*lines, *_folded(left_out, width)]


def _ranks(run: RunProfile, width: int | None) -> list[str]:
    """Return the partition of each rank, the most exposed ones where there are many."""
    lines = _table(run.ranks_listing(SHOWN_RANKS), width)
    if len(run.ranks) > SHOWN_RANKS:
        lines.append(f"... the {SHOWN_RANKS} most exposed of {len(run.ranks)} ranks; all of them: --json or --html")
    return lines


def _collectives(run: RunProfile, width: int | None) -> Iterator[str]:
    if not run.collectives:
        return
    from densing.efficiency.profile import per_step

    yield from _table(run.collectives_listing(), width, SHOWN_COLLECTIVES)
    steps = per_step(run.ranks)
    if len(run.collectives) > SHOWN_COLLECTIVES:
        yield f"... and {len(run.collectives) - SHOWN_COLLECTIVES} more kinds"
    for row in run.collectives[:SHOWN_COLLECTIVES]:
        if row.sum_ns > row.total_ns * (1 + AT_ONCE):
            union, total = (formatting.duration(ns / steps) for ns in (row.total_ns, row.sum_ns))
            name = row.op or "unknown"
            yield f"{name}: {union} per {_unit(run)}; calls overlap, their sum is {total}"
    claimed = sum(row.exposed_ns for row in run.collectives) / steps / 1e6
    exposed = run.figures["exposed_ms_per_step"]
    if isinstance(exposed, float) and claimed > exposed * (1 + AT_ONCE):
        yield f"Some overlap: all kinds together expose {formatting.milliseconds(exposed)}, less than their sum"
    yield ""


def _kernels(run: RunProfile, width: int | None, by: str) -> Iterator[str]:
    """Yield what took longest by name or by module, and the longest gaps where idle time matters."""
    listing = run.names_listing("names", "", NAME_SHOWN)
    if by == "module":
        yield ""
        yield from _table(run.modules_listing(), width, SHOWN_MODULES) if run.modules else _folded([NO_MODULES], width)
        if len(run.modules) > SHOWN_MODULES:
            yield "... more modules: --json or --html"
    elif any(rank.names for rank in run.ranks):
        yield ""
        yield from _table(listing, width, SHOWN_KERNELS)
        if len(run.name_totals("names")) > SHOWN_KERNELS:
            yield "... more names: --json or --html"
        yield from _folded([run.rate_words], width)
    idle = run.figures["idle_pct"]
    if isinstance(idle, float) and idle >= IDLE_PCT and run.gaps:
        yield ""
        yield from _table(run.gaps_listing(), width, SHOWN_GAPS)


def _across(run: RunProfile) -> Iterator[str]:
    """What several ranks tell of each other: how their clocks compare, and who is waited for."""
    if run.together is None:
        return
    clocks, stragglers = run.together.clocks, run.together.stragglers
    error = formatting.duration(clocks.error_ns)
    if clocks.verdict == "agree":
        yield f"Clocks: the ranks' agree to {error} (ends of matched collectives); times as recorded"
    elif clocks.verdict == "aligned":
        offset = _ms(max(map(abs, clocks.offset_ns.values())) / 1e6)
        yield f"Clocks: aligned on ends of collectives, up to {offset} ms taken out; {error} remain uncertain"
    elif clocks.verdict == "not aligned":
        yield "Clocks: not comparable between ranks; the last arrival is inferred from durations"
    if stragglers.worst is not None:
        slowdown, gain = run.figures.get("slowdown"), ""
        if isinstance(slowdown, float) and slowdown <= 1:
            gain = "; balancing the ranks would not help"
        elif isinstance(slowdown, float):
            gain = f"; with balanced ranks the run would be {_fixed(slowdown, 2)} times as fast"
        often = f", {stragglers.often}" if stragglers.often else ""
        yield f"Waited for most: rank {stragglers.worst}{often}{gain}"
    elif stragglers.within_clock_error is not None:
        yield f"Waited for most: within clock error (rank {stragglers.within_clock_error} as recorded; see the notes)"
    if clocks.verdict != "one rank" or stragglers.worst is not None:
        yield ""


def _unrecognised(run: RunProfile) -> Iterator[str]:
    """Name the work that no rule knows, the longest first: what counts as compute, and what counts as nothing."""
    for by_default, noun, consequence in (
        (True, "kernel", "counted as compute; if it is communication, use --comm-pattern REGEX"),
        (False, "other name", "not counted, as no rule covers the category"),
    ):
        rows = [row for row in run.name_totals("unrecognised") if (row.kind != "unknown") == by_default]
        if rows:
            longest = ", ".join(formatting.cut(row.name, 40) for row in rows[:3])
            counted = formatting.plural(sum(row.names for row in rows), noun)
            total = _ms(sum(row.total_ns for row in rows) / 1e6)
            yield ""
            yield f"No rule knows {counted} ({total} ms in all; {longest}): {consequence}"


def _comparison(comparison: Comparison, width: int | None) -> list[str]:
    """Return what the runs differ in besides, what changed per step, a line per figure, and by name."""
    notes = [f"{note.severity}: {note.message}" for note in severest_first(comparison.notes)]
    items = ["", *_table(comparison.items_listing, width, SHOWN_COLLECTIVES)] if comparison.items else []
    return [*_folded(notes, width), *_table(comparison.listing, width), *items]
