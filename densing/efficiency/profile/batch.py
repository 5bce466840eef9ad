"""Profiling of many ranks: in this process, in several processes, or on a cluster."""

from __future__ import annotations

import hashlib
import heapq
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from densing.core import InputError, plain, processes, replacing
from densing.efficiency.profile.store import SUFFIX, read_profiles, store_info, write_profile
from densing.jobs import Done, Executor, Job, JobEvent, Tell, Work, in_processes, in_turn

if TYPE_CHECKING:
    from densing.efficiency.traces import TraceFile

SMALL_BYTES = 64 << 20
"""Amount of text below which new processes cost more than they save: each takes a third of a second to start."""
INFLATION = 12
"""Approximate text per compressed byte: 13 for a real CUDA trace, 8 to 20 for others."""
_EDGE = 1 << 16
LISTS, LOGS = "lists", "logs"
JOBS = 16
"""Default number of jobs."""

Command = Callable[[Path, Path], Sequence[str]]
"""Makes a job's command line from a list of traces and the store."""


@dataclass(frozen=True)
class Progress:
    """Progress of :func:`profile_ranks`.

    Parameters
    ----------
    done, total : int
        Traces.
    done_bytes, total_bytes : int
        Of the files on disk, including traces in progress.
    label : str
        The trace that reported last.
    """

    done: int
    total: int
    done_bytes: int
    total_bytes: int
    label: str = ""


OnProgress = Callable[[Progress], object]
OnFailure = Callable[["TraceFile", str], object]


def profile_ranks(
    traces: Sequence[TraceFile],
    profile_one: Work,
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
    command: Command | None = None,
    out: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    progress: OnProgress = lambda progress: None,
    on_failure: OnFailure | None = None,
) -> Iterator[dict[str, Any]]:
    """Profile traces, and yield a row for each as it is ready.

    Traces of less than ``SMALL_BYTES`` in all are read in this process, one after the other; more in as many
    processes as there are processors; with an executor, in the jobs of a cluster. With ``out`` every row is stored as
    soon as it is there, and what is stored is not read again as long as the file's size and time, the options and the
    version of densing are the same: a run that was killed goes on where it was.

    Parameters
    ----------
    traces : sequence of TraceFile
    profile_one : callable
        ``profile_one(trace, tell)`` returns the row of a trace (plain data with ``rank``) and may tell how many bytes
        of the file it has read. A function of a module: it travels to other processes.
    jobs : int, optional
        Processes at a time, or jobs of the executor; the processors, or 16, when left out.
    executor : Executor, optional
        Needs ``out``, on a file system that its machines share.
    command : callable, optional
        Command line of a job, see :func:`default_command`.
    out : path, optional
        Folder of the store.
    options : mapping, optional
        With which ``profile_one`` works; plain data.
    progress : callable, optional
        Called with a :class:`Progress`.
    on_failure : callable, optional
        Called with a trace that has no row, and why. Without it, failures are an error once all others are done.

    Yields
    ------
    dict
        The row, with ``input`` added: path, member, bytes, mtime_ns, and a hash of the file's size, first and last
        64 KiB.

    Raises
    ------
    InputError
        When an option makes no sense, a file cannot be read, or traces have no row.
    """
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs {jobs}: must be a whole number from 1 up")
    if executor is not None and out is None:
        raise InputError(f"--executor {executor.name}: needs a store for its results; give a folder with --out")
    run = _Run(traces, None if out is None else Path(out), options or {}, progress, on_failure)
    yield from run.stored()
    if run.pending and executor is not None:
        assert out is not None
        yield from run.take(in_jobs(run, executor, Path(out), jobs or JOBS, command), store=False)
    elif run.pending:
        work, workers = _WithInput(profile_one), jobs or processes.processors()
        if min(workers, len(run.pending)) == 1 or text_bytes(run.pending) < SMALL_BYTES:
            ended = in_turn(work, run.pending, run.at)
        else:
            ended = in_processes(work, sorted(run.pending, key=lambda trace: -trace.size), workers, run.at)
        yield from run.take(ended, store=out is not None)
    run.raise_failures()


@dataclass(frozen=True)
class _WithInput:
    """Work whose rows state their input, taken before reading, so that a later change is noticed."""

    work: Work

    def __call__(self, trace: TraceFile, tell: Tell) -> Mapping[str, Any]:
        source = identity(trace)
        return {**self.work(trace, tell), "input": source}


class _Run:
    """The state of one call of :func:`profile_ranks`."""

    def __init__(
        self,
        traces: Sequence[TraceFile],
        out: Path | None,
        options: Mapping[str, Any],
        progress: OnProgress,
        on_failure: OnFailure | None,
    ) -> None:
        self.traces, self.out, self.options = traces, out, options
        self.progress, self.on_failure = progress, on_failure
        self.pending: list[TraceFile] = list(traces)
        self.failures: list[str] = []
        self._read: dict[TraceFile, int] = {}
        self._done = self._bytes = 0
        # Asked once: a file may grow, and the size of an archive's member requires opening the archive.
        self._sizes = {trace: trace.size for trace in traces}
        self._total = sum(self._sizes.values())

    def stored(self) -> Iterator[dict[str, Any]]:
        """Yield what the store already holds."""
        self.pending = []
        for trace in self.traces:
            row = self.find(trace)
            if row is None:
                self.pending.append(trace)
            else:
                self.at(trace, self._sizes[trace])
                yield row

    def find(self, trace: TraceFile) -> dict[str, Any] | None:
        """Return a trace's row from the store if it is still valid."""
        if self.out is None:
            return None
        from densing import __version__

        file = result_file(self.out, trace)
        try:
            info = store_info(file)
            if info.options != dict(self.options) or info.version != __version__:
                return None
            [row] = read_profiles(file)
        except (InputError, ValueError):
            # Absent, or damaged: it is written anew.
            return None
        return row if row.get("input") == identity(trace) else None

    def take(self, ended: Iterator[Done[TraceFile]], *, store: bool) -> Iterator[dict[str, Any]]:
        """Yield rows, storing new ones, and remember failures."""
        for done in ended:
            self.at(done.item, self._sizes[done.item])
            if done.row is None:
                if self.on_failure is not None:
                    self.on_failure(done.item, done.reason)
                else:
                    # Errors of the reader name the file themselves.
                    label = done.item.label
                    self.failures.append(done.reason if label in done.reason else f"{label}: {done.reason}")
                continue
            if store and self.out is not None:
                write_profile(result_file(self.out, done.item), done.row, options=self.options)
            yield dict(done.row)

    def at(self, trace: TraceFile, read: int) -> None:
        """Report progress."""
        size = self._sizes[trace]
        before, now = self._read.get(trace, -1), min(read, size)
        self._read[trace] = now
        self._done += (now == size) - (before == size)
        self._bytes += now - max(before, 0)
        self.progress(Progress(self._done, len(self.traces), self._bytes, self._total, trace.label))

    def raise_failures(self) -> None:
        """Raise failures that were not reported yet."""
        if self.failures:
            count = f"{len(self.failures)} of {len(self.traces)} traces have no result:\n"
            raise InputError((count if len(self.traces) > 1 else "") + "\n".join(self.failures))


def identity(trace: TraceFile) -> dict[str, Any]:
    """Return what identifies a trace and its version, without reading the whole file.

    Raises
    ------
    InputError
        When the file cannot be read.
    """
    try:
        stat = trace.path.stat()
        digest = hashlib.sha256(f"{stat.st_size} {trace.member}".encode())
        with trace.path.open("rb") as stream:
            digest.update(stream.read(_EDGE))
            stream.seek(max(_EDGE, stat.st_size - _EDGE))
            digest.update(stream.read(_EDGE))
    except OSError as error:
        raise InputError(f"{trace.label}: cannot read ({error.strerror}); check the path") from error
    facts = {"path": str(trace.path.absolute()), "member": trace.member, "rank": trace.rank}
    times = {"bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns, "hash": digest.hexdigest()}
    # A path may hold bytes that are not UTF-8; stored text may not.
    row: dict[str, Any] = plain({**facts, **times})
    return row


def result_file(out: Path, trace: TraceFile) -> Path:
    """Return the store's file for a trace: a readable name, and a hash that distinguishes equal names."""
    identifier = f"{trace.path.absolute()}\0{trace.member or ''}\0{trace.rank}"
    name = re.sub(r"[^\w.-]", "_", Path(trace.member or trace.path.name).name, flags=re.ASCII).lstrip(".")[:60]
    return out / f"{name}-{hashlib.sha256(identifier.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}{SUFFIX}"


def text_bytes(traces: Sequence[TraceFile]) -> int:
    """Return the approximate decompressed size of traces."""
    return sum(
        trace.size * (INFLATION if trace.member is not None or trace.path.suffix in (".gz", ".zst", ".zip") else 1)
        for trace in traces
    )


def default_command(arguments: Sequence[str] = ()) -> Command:
    """Return what a job runs: ``densing profile --rank-files LIST --out STORE`` and the arguments given.

    Examples
    --------
    >>> default_command(["--window", "all"])(Path("l.json"), Path("out"))[1:]
    ['-m', 'densing', 'profile', '--rank-files', 'l.json', '--out', 'out', '--window', 'all']
    """
    return lambda listed, out: [
        *(sys.executable, "-m", "densing", "profile", "--rank-files", str(listed), "--out", str(out)),
        *arguments,
    ]


def in_jobs(
    run: _Run, executor: Executor, out: Path, jobs: int = JOBS, command: Command | None = None
) -> Iterator[Done[TraceFile]]:
    """Profile pending traces in jobs of about equal size; results are read from the store."""
    parts, out = shares(run.pending, jobs), out.absolute()

    def on_event(event: JobEvent) -> None:
        for trace in run.pending if event.kind in ("finished", "failed") else ():
            if result_file(out, trace).exists():
                run.at(trace, trace.size)

    lists = [write_list(part, out / LISTS) for part in parts]
    work = [
        Job(tuple((command or default_command())(listed, out)), f"profile {number}", logs=out / LOGS)
        for number, listed in enumerate(lists)
    ]
    for part, result in zip(parts, executor.run(work, on_event=on_event), strict=True):
        lines = f"; last lines: {' | '.join(result.lines[-3:])}" if result.lines else ""
        for trace in part:
            row = run.find(trace)
            yield Done(trace, row, "" if row is not None else (result.reason or "its job wrote no result") + lines)


def shares(traces: Sequence[TraceFile], count: int) -> list[list[TraceFile]]:
    """Split traces into at most ``count`` parts of about the same size: the largest first, each into the smallest part.

    Examples
    --------
    >>> from types import SimpleNamespace as File
    >>> [[file.size for file in part] for part in shares([File(size=n) for n in (5, 1, 4, 2)], 2)]
    [[5, 1], [4, 2]]
    """
    parts: list[list[TraceFile]] = [[] for _ in range(min(max(count, 1), len(traces)))]
    heap = [(0, index) for index in range(len(parts))]
    for trace in sorted(traces, key=lambda trace: -trace.size):
        load, index = heapq.heappop(heap)
        parts[index].append(trace)
        heapq.heappush(heap, (load + trace.size, index))
    return parts


def write_list(traces: Sequence[TraceFile], folder: Path) -> Path:
    """Write which traces a job profiles; the name follows the content."""
    rows = [{"path": str(trace.path.absolute()), "member": trace.member, "rank": trace.rank} for trace in traces]
    text = json.dumps(rows, indent=1)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="ascii")
    return path


def read_list(path: str | Path) -> list[TraceFile]:
    """Read a list written by :func:`write_list`.

    Raises
    ------
    InputError
        When it cannot be read or is not such a list.
    """
    from densing.efficiency.traces import TraceFile

    try:
        # json rather than msgspec: a path may hold bytes that are not UTF-8, which stand as lone surrogates.
        rows = [msgspec.convert(row, _ListedTrace) for row in json.loads(Path(path).read_text(encoding="utf-8"))]
        return [TraceFile(Path(row.path), row.member, row.rank) for row in rows]
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise InputError(f"{path}: not a list of traces ({error}); densing profile --executor writes one") from error


class _ListedTrace(msgspec.Struct):
    """A row of a list of traces."""

    path: str
    member: str | None
    rank: int | None
