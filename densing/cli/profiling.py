"""What ``densing profile`` does between its flags and its output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from densing.cli.output import emit_plain, show_notes, timed_bar
from densing.cli.profile_checks import check_store, check_stored, is_store

if TYPE_CHECKING:
    from densing.core import Note
    from densing.efficiency.profile import ProfileOptions, RunProfile
    from densing.efficiency.traces import TraceFile


class Asked(msgspec.Struct, frozen=True):
    """What is to be read, and how."""

    paths: tuple[Path, ...]
    rank_files: Path | None = None
    ranks: tuple[str, ...] = ()
    window: str | None = None
    detail: str = "auto"
    comm_patterns: tuple[str, ...] = ()
    out: Path | None = None
    jobs: int | None = None
    executor: str | None = None
    executor_args: tuple[str, ...] = ()
    quiet: bool = False

    def options(self) -> ProfileOptions:
        """Return the options of a rank's profile, checked."""
        from densing.core import UnknownNameError
        from densing.efficiency.profile import ProfileOptions
        from densing.efficiency.timeline import WINDOWS

        for what, value, known in (("window", self.window, WINDOWS), ("detail", self.detail, DETAILS)):
            if value is not None and value not in known:
                raise UnknownNameError(what, value, known)
        return ProfileOptions(self.window, self.comm_patterns, self.detail)  # type: ignore[arg-type]


MOST_RANKS = 10_000_000
DETAILS = ("auto", "device", "host")


class Reader(msgspec.Struct, frozen=True):
    """Profiles one trace; travels to other processes."""

    options: ProfileOptions

    def __call__(self, trace: TraceFile, tell: Callable[[int], object]) -> Mapping[str, Any]:
        """Return the rank's row."""
        from densing.efficiency.profile import profile_trace

        return profile_trace(trace, self.options, lambda done: (tell(done), None)[1]).to_dict()


def explain(name: str, patterns: Sequence[str], json: bool) -> None:
    """Say which rule decides on a name."""
    from densing.efficiency.timeline import Classifier

    classifier = Classifier(patterns)
    match = classifier.explain(name)
    if json:
        emit_plain({"name": name, "known": match.known, **match.to_dict()})
        return
    from densing.cli.table import visible

    typer.echo(visible(f"{name}: {match.kind.name.lower()}{f' ({match.op})' if match.op else ''}"))
    typer.echo(visible(f"  rule {match.rule}" + (f", pattern {match.pattern}" if match.pattern else "")))
    if match.source:
        typer.echo(visible(f"  known from: {match.source}"))


def run_of(asked: Asked) -> RunProfile:
    """Profile what is asked for; stored results are joined without reading a trace."""
    from densing.efficiency.profile import merge_run

    options = asked.options()
    stores = [path for path in asked.paths if is_store(path)]
    if stores and len(stores) == len(asked.paths):
        from densing.efficiency.profile import read_profiles, store_files, store_info

        told = dict(store_info(store_files(stores)[0]).options)
        run = merge_run(read_profiles(stores), store=stores, options=told)
        check_stored(asked, told, run.window)
        return run
    notes: list[Note] = []
    with ExitStack() as stack:
        rows, store = _rows(asked, options, notes, stack)
        return merge_run(rows, store=store, notes=notes, options=options.to_dict())


def _rows(
    asked: Asked, options: ProfileOptions, notes: list[Note], stack: ExitStack
) -> tuple[Iterator[Mapping[str, Any]], Path | None]:
    """Return the rows as they are ready, and the folder they are stored in."""
    from densing.efficiency.profile import HELD_RANKS

    traces = traces_of(asked, notes)
    if len(traces) == 1 and asked.out is None and asked.executor is None:
        return iter([_one(traces[0], options, asked.quiet)]), None
    store = asked.out
    if store is None and len(traces) > HELD_RANKS:
        import tempfile

        store = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="densing-profile-")))
    return _many(asked, options, traces, store, notes), store


def traces_of(asked: Asked, notes: list[Note]) -> list[TraceFile]:
    """Return the traces that are asked for; notes tell what was passed over."""
    from densing.core import InputError
    from densing.efficiency.traces import find_traces

    if asked.rank_files is not None:
        from densing.efficiency.profile import read_list

        return read_list(asked.rank_files)
    if not asked.paths:
        raise InputError("no trace given; name a file or a folder (densing profile --help has an example)")
    found = find_traces(asked.paths, _numbers(asked.ranks))
    notes.extend(found.notes)
    return found


def _numbers(pairs: Sequence[str]) -> dict[str, int]:
    """Read ``FILE=NUMBER``."""
    from densing.core import InputError

    found: dict[str, int] = {}
    for pair in pairs:
        name, _, number = pair.rpartition("=")
        if not name or not (number.isascii() and number.isdecimal()) or int(number[:12]) > MOST_RANKS:
            raise InputError(
                f"--rank {pair!r}: not of the form FILE=NUMBER (up to {MOST_RANKS}); write e.g. --rank trace.json=0"
            )
        if name in found:
            raise InputError(f"--rank {pair!r}: {name} was given a rank already; name each file once")
        found[name] = int(number)
    return found


def _one(trace: TraceFile, options: ProfileOptions, quiet: bool) -> Any:
    """Profile a single trace in this process: nothing is loaded that spreads work."""
    from densing.efficiency.profile import profile_trace

    with timed_bar(quiet, trace.label) as show:
        return profile_trace(trace, options, lambda done: show(trace.label, done, trace.size))


def _many(
    asked: Asked, options: ProfileOptions, traces: Sequence[TraceFile], store: Path | None, notes: list[Note]
) -> Iterator[Mapping[str, Any]]:
    from densing.core import InputError, Note
    from densing.efficiency.profile import Progress, default_command, profile_ranks, result_file

    failed: list[str] = []
    if asked.out is not None and asked.rank_files is None:
        # Jobs of an executor write into the store of all.
        check_store(asked.out, {result_file(asked.out, trace) for trace in traces})

    def on_failure(trace: TraceFile, reason: str) -> None:
        failed.append(reason)
        notes.append(Note("rank-left-out", "error", reason if trace.label in reason else f"{trace.label}: {reason}"))

    with timed_bar(asked.quiet, f"{len(traces)} ranks") as show:

        def at(progress: Progress) -> None:
            show(f"{progress.done} of {progress.total} ranks", progress.done_bytes, progress.total_bytes)

        yield from profile_ranks(
            traces,
            Reader(options),
            jobs=asked.jobs,
            executor=_executor(asked),
            command=default_command(_flags(asked)),
            out=store,
            options=options.to_dict(),
            progress=at,
            on_failure=on_failure,
        )
    if len(failed) == len(traces):
        raise InputError("\n".join(failed))


def _executor(asked: Asked) -> Any:
    if asked.executor is None:
        return None
    from densing.jobs import get_executor
    from densing.scores.evals import parse_pairs

    return get_executor(asked.executor, **parse_pairs(asked.executor_args, "--executor-arg"))


def _flags(asked: Asked) -> list[str]:
    """Return the flags a job of the executor needs to do the same."""
    patterns = [flag for pattern in asked.comm_patterns for flag in ("--comm-pattern", pattern)]
    return [*(("--window", asked.window) if asked.window else ()), "--detail", asked.detail, *patterns, "--json"]


def store_ranks(asked: Asked) -> int:
    """Profile the ranks of a list into the store, and do nothing else: what a job of an executor runs."""
    notes: list[Note] = []
    with ExitStack() as stack:
        rows, _ = _rows(asked, asked.options(), notes, stack)
        count = sum(1 for _ in rows)
    show_notes(notes)
    return count
