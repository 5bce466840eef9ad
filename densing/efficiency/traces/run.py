"""The traces of a run: which formats are known, which files are traces of them, and all of them read to a timeline.

A format is one folder or module beside this file, ``traces/NAME``, which offers what :class:`Format` asks, and one line
here: its name in :data:`FORMATS`. A rank of any format becomes the same
:class:`densing.efficiency.timeline.RankTimeline`, so that nothing else has to know of it; finding the files of a run,
archives, packing and limits (:mod:`densing.efficiency.traces.source`) are common to all. ``traces/kineto`` is the
example to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from densing.core import InputError, Note, as_address, shown_address
from densing.efficiency.timeline import Classifier, RankTimeline, Timeline
from densing.efficiency.traces import kineto, nsys, rocpd, xplane
from densing.efficiency.traces.source import HEAD_BYTES, ZIP, Detail, Limits, Progress, Source, TraceFile


class Format(Protocol):
    """Interface of a trace format."""

    SUFFIXES: tuple[str, ...]
    """Suffixes of such files, before packing (``.gz``, ``.zip``)."""

    def recognise(self, head: bytes) -> bool:
        """Return whether a file with this beginning (inflated, at most 64 KiB) is of this format."""

    def read_rank(
        self,
        trace: TraceFile,
        *,
        classifier: Classifier | None = None,
        detail: Detail = "auto",
        limits: Limits | None = None,
        progress: Progress | None = None,
    ) -> RankTimeline:
        """Read one file; parameters and errors are those of :func:`read_rank`."""


# What none recognises goes to the first, whose messages say what is wrong with it.
FORMATS: tuple[Format, ...] = (kineto, rocpd, nsys, xplane)


def read_rank(
    trace: TraceFile,
    *,
    classifier: Classifier | None = None,
    detail: Detail = "auto",
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> RankTimeline:
    """Read one trace of any known format; damaged parts are repaired, or left out, counted and noted.

    Parameters
    ----------
    trace : TraceFile
    classifier : Classifier, optional
        Meaning of names; the built-in rules if not given.
    detail : {"auto", "device", "host"}
        ``device``: device work, launches, ranges. ``host``: operators too. ``auto``: ``device``, or ``host`` where the
        trace is of no device; the processor's work is then the timeline's. A trace of a device that holds no kernel
        is :attr:`densing.efficiency.timeline.RankTimeline.blind`.
    limits : Limits, optional
    progress : callable, optional
        Called with the bytes of the file consumed so far.

    Raises
    ------
    InputError
        When the file cannot be read, is not a trace, holds no events or passes a limit.
    """
    kind = FORMATS[0]
    if len(FORMATS) > 1:
        head = bytearray(HEAD_BYTES)
        with Source(trace.path, trace.member, trace.label, limits or Limits()) as source, memoryview(head) as view:
            size = 0
            while size < len(head) and (count := source.readinto(view[size:])):
                size += count
        kind = next((each for each in FORMATS if each.recognise(bytes(head[:size]))), kind)
    return kind.read_rank(trace, classifier=classifier, detail=detail, limits=limits, progress=progress)


SUFFIXES = (*(suffix for kind in FORMATS for suffix in kind.SUFFIXES), ".gz", ".zst", ".zip")
"""Suffixes of the traces in a folder."""
# Every rank that is read opens its archive anew.
_MAX_MEMBERS = 4096


class Traces(list[TraceFile]):
    """Traces found, with notes on skipped files."""

    notes: tuple[Note, ...] = ()


def find_traces(paths: Sequence[Path | str], ranks: Mapping[str, int] | None = None) -> Traces:
    """List the traces that some paths name.

    A file is taken as it is; of a folder, the traces in it (``.json``, ``.gz``, ``.zst``, ``.zip``, ``.sqlite``,
    ``.db``, ``.xplane.pb``), or if it has none, those of its subfolders, or of the session in TensorBoard's
    ``plugins/profile``; of a zip archive, its members.

    Parameters
    ----------
    paths : sequence of path
    ranks : mapping of str to int, optional
        Rank of a file by its path, name or label.

    Returns
    -------
    Traces
        In order of the paths, by name within a folder; ``.notes`` lists skipped files and subfolders.

    Raises
    ------
    InputError
        When there is nothing, or ``ranks`` names a file that is not among them.
    """
    traces, ignored, below = Traces(), list[Path](), list[Path]()
    for path in map(Path, paths):
        in_path = _in_path(path, ignored)
        if any(trace.path.parent == path for trace in in_path):
            # What the names tell to be traces in subfolders; none is opened.
            files = sorted(file for ending in (".json", ".json.gz", ".json.zst") for file in path.glob(f"*/*{ending}"))
            below += [file for file in files if _is_named(TraceFile(file))]
        traces.extend(in_path)
    if not traces:
        label = ", ".join(map(str, paths)) or "no path"
        unread = [(path, what) for path in ignored if (what := _unread(path))]
        hint = f" ({unread[0][0].name} is {unread[0][1]})" if unread else ""
        raise InputError(
            f"{label}: contains no trace{hint}; expected *.json, *.json.gz, *.json.zst or *.zip files of "
            "torch.profiler, *.sqlite of nsys export, *.db of rocprofv3 or *.xplane.pb of XLA"
        )
    if ignored:
        names = ", ".join(path.name for path in ignored[:5]) + (", ..." if len(ignored) > 5 else "")
        message = f"{len(ignored)} files are not traces and were skipped: {names}"
        traces.notes = (Note("files-ignored", "info", message, {"files": [str(path) for path in ignored[:100]]}),)
    below = [path for path in below if path not in {trace.path for trace in traces}]
    if below:
        message = (
            f"{below[0]}: a trace in a subfolder was skipped because the folder itself has traces"
            f"{f', and {len(below) - 1} more' if len(below) > 1 else ''}; name the subfolder too "
            "if it belongs to the run"
        )
        traces.notes += (Note("folders-ignored", "warning", message, {"files": [str(path) for path in below[:100]]}),)
    return _with_ranks(traces, ranks or {})


def _in_path(path: Path, ignored: list[Path]) -> list[TraceFile]:
    if path.is_dir():
        traces = _in_folder(path, ignored)
        if not traces:
            folders = sorted(entry for entry in path.iterdir() if entry.is_dir())
            traces = [trace for folder in folders for trace in _in_folder(folder, ignored)]
        return traces or _in_session(path, ignored)
    if not path.exists():
        if address := as_address(path):
            raise InputError(
                f"{shown_address(address)}: an address on the network; download the traces and give their path"
            )
        raise InputError(f"{path}: no such file or folder; check the path")
    if not path.is_file():
        raise InputError(f"{path}: is not a regular file; write the trace to a file first")
    if what := _unread(path):
        raise InputError(f"{path}: is {what}")
    if _head(path, len(ZIP)) != ZIP:
        if path.name.endswith((".tar", ".tar.gz", ".tgz")):
            raise InputError(f"{path}: is a tar archive; unpack it and give the folder, or zip the traces")
        return [TraceFile(path)]
    others = list[Path]()
    members = _members(path, others)
    ignored += others
    if not members:
        inside = [other.name.rpartition(":")[2] for other in others if other.suffix == ".zip"]
        if inside:
            raise InputError(f"{path}: contains {inside[0]}, an archive inside an archive; unpack it and give that")
        raise InputError(f"{path}: contains no trace (.json or .json.gz); pack the traces themselves")
    return members


EXPORTS = {
    ".nsys-rep": "a report of Nsight Systems; export it: nsys export --type sqlite FILE",
    ".qdrep": "a report of Nsight Systems; export it: nsys export --type sqlite FILE",
    ".pickle": "a pickle, which can run code and is never opened; of torch.profiler export a trace "
    "(prof.export_chrome_trace); snapshots of memory are not read",
    ".ncu-rep": "a report of Nsight Compute, which has no timeline; record with torch.profiler or nsys",
}
"""Files of profilers that are not read, by suffix, and what to export."""


def _unread(path: Path) -> str:
    """Return what a file of another profiler is, and what to export in its place; nothing for other files."""
    return next((text for suffix, text in EXPORTS.items() if path.name.endswith(suffix)), "")


def _in_session(path: Path, ignored: list[Path]) -> list[TraceFile]:
    """Return the traces of TensorBoard's profile plug-in: ``LOGDIR/plugins/profile/SESSION/``."""
    sessions = sorted(entry for entry in path.glob("plugins/profile/*") if entry.is_dir())
    if len(sessions) > 1:
        names = ", ".join(session.name for session in sessions[-3:])
        raise InputError(f"{path}: holds {len(sessions)} recordings ({names}); name one, e.g. {sessions[-1]}")
    return [trace for session in sessions for trace in _in_folder(session, ignored)]


def _in_folder(folder: Path, ignored: list[Path]) -> list[TraceFile]:
    traces: list[TraceFile] = []
    try:
        entries = sorted(entry for entry in folder.iterdir() if not entry.is_dir())
    except OSError as error:
        raise InputError(f"{folder}: cannot read ({error.strerror}); check the path") from error
    for path in entries:
        trace = TraceFile(path)
        # A link that leads nowhere is a rank that is missing; a pipe or a device would keep a reader waiting.
        if trace.file_name.endswith(SUFFIXES) and (path.is_file() or not path.exists()):
            is_named = _is_named(trace)
            # A file is opened at most once to see what it is.
            head = _head(path, len(ZIP) if is_named else HEAD_BYTES)
            if head is not None and head.startswith(ZIP):
                traces += _members(path, ignored)
                continue
            if is_named or head is None or _is_recognised(head, trace.file_name):
                traces.append(trace)
                continue
        ignored.append(path)
    # XLA's profiler writes each host twice; the JSON of many events is cut.
    profiles = {f"{trace.file_name.removesuffix('.xplane.pb')}.trace.json.gz" for trace in traces}
    return [trace for trace in traces if trace.file_name not in profiles]


def _is_named(trace: TraceFile) -> bool:
    """Return whether the name alone marks a trace: a damaged one must not vanish from a run."""
    name = trace.file_name
    return not name.endswith(".tar.gz") and (
        "trace" in name or not name.endswith((".json", ".db", ".pb")) or trace.rank_in_name() is not None
    )


def _is_recognised(head: bytes, name: str) -> bool:
    """Return whether a file's beginning is a trace's; databases and protocol buffers are of many programs."""
    known = [kind for kind in FORMATS if not name.endswith((".db", ".pb")) or name.endswith(kind.SUFFIXES)]
    return head.startswith(ZIP) or any(kind.recognise(head) for kind in known)


def _head(path: Path, count: int) -> bytes | None:
    """Return the first bytes of a file, None where it cannot be read."""
    try:
        with path.open("rb", buffering=0) as stream:
            return stream.read(count)
    except OSError:
        return None


def _members(path: Path, ignored: list[Path]) -> list[TraceFile]:
    """Return the traces in an archive, by name."""
    import zipfile

    chosen = []
    try:
        with zipfile.ZipFile(path) as archive:
            for info in sorted(archive.infolist(), key=lambda info: info.filename):
                trace = TraceFile(path, info.filename, packed=info.compress_size)
                if _is_member(trace, archive):
                    chosen.append(trace)
                elif not info.is_dir():
                    ignored.append(Path(trace.label))
    except (OSError, zipfile.BadZipFile, NotImplementedError) as error:
        raise InputError(f"{path}: not a readable zip archive ({error}); pack it again") from error
    twice = next((trace.member for trace, after in pairwise(chosen) if trace == after), None)
    if twice:
        raise InputError(f"{path}: holds {twice} more than once, but only one can be read; pack it again")
    if len(chosen) > _MAX_MEMBERS:
        raise InputError(f"{path}: holds {len(chosen)} traces, more than {_MAX_MEMBERS}; unpack it and give the folder")
    return chosen


def _is_member(trace: TraceFile, archive: Any) -> bool:
    name = trace.member or ""
    if not name.endswith((".json", ".gz", ".zst", ".pb")) or name.startswith("__MACOSX/"):
        return False
    if _is_named(trace):
        return True
    try:
        with archive.open(name) as stream:
            return _is_recognised(stream.read(HEAD_BYTES), name)
    except Exception:  # an encrypted, damaged or strangely packed member: reading it tells which
        return True


def _with_ranks(traces: Traces, ranks: Mapping[str, int]) -> Traces:
    """Set the ranks that the user gives by label, member or name."""
    used: set[str] = set()
    for i, trace in enumerate(traces):
        members = (trace.member, trace.file_name) if trace.member else (trace.file_name,)
        key = next((key for key in (trace.label, *members) if key in ranks), None)
        if key is not None:
            used.add(key)
            traces[i] = replace(trace, rank=ranks[key])
    unknown = [key for key in ranks if key not in used]
    if unknown:
        raise InputError(
            f"a rank is given for {unknown[0]!r}, but no trace has that name; known: {traces[0].label}, ..."
        )
    return traces


def read_timeline(
    paths: Path | str | Sequence[Path | str],
    *,
    comm_patterns: Sequence[str] = (),
    detail: Detail = "auto",
    ranks: Mapping[str, int] | None = None,
) -> Timeline:
    """Read the traces of a run: files, folders, zip archives.

    Parameters
    ----------
    paths : path or sequence of path
    comm_patterns : sequence of str
        Regular expressions of names that are communication too.
    detail : {"auto", "device", "host"}
        As in :func:`read_rank`.
    ranks : mapping of str to int, optional
        Rank by file, if the traces do not state it or state it wrongly.

    Returns
    -------
    Timeline
        One timeline per rank, by rank.

    Raises
    ------
    InputError
        When nothing is found, a file is unreadable, or two files claim one rank.

    See Also
    --------
    profile_run, densing.timeline.record

    Examples
    --------
    >>> import densing, json, pathlib, tempfile
    >>> kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1.0, "dur": 2.0}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trace = pathlib.Path(folder) / "rank0.json"
    ...     _ = trace.write_text(json.dumps({"traceEvents": [kernel | {"args": {"stream": 7, "device": 0}}]}))
    ...     timeline = densing.read_timeline(trace)
    >>> len(timeline.ranks)
    1
    """
    classifier = Classifier(tuple(comm_patterns))
    traces = find_traces([paths] if isinstance(paths, Path | str) else list(paths), ranks)
    timelines = [read_rank(trace, classifier=classifier, detail=detail) for trace in traces]
    check_ranks((timeline.rank, timeline.origin.source) for timeline in timelines)
    return Timeline(tuple(sorted(timelines, key=lambda timeline: timeline.rank)))


def check_ranks(claims: Iterable[tuple[int, str]]) -> None:
    """Refuse two files that claim one rank.

    Examples
    --------
    >>> check_ranks([(0, "a.json"), (0, "b.json")])
    Traceback (most recent call last):
    densing.core.errors.InputError: a.json and b.json both claim rank 0; leave one out, or state the rank of each
    (ranks=)
    """
    owners: dict[int, str] = {}
    for rank, source in claims:
        if rank in owners:
            raise InputError(
                f"{owners[rank]} and {source} both claim rank {rank}; leave one out, or state the rank of each (ranks=)"
            )
        owners[rank] = source
