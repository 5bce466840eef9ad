"""Which files are the traces of a run, and what their names say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from densing.core import InputError, Note

SUFFIXES = (".json", ".gz", ".zip")
"""How the names of traces in a folder end."""
_RANK = re.compile(r"(?i)([a-z]*)([-_.]?)(rank)[-_=. ]?(0*\d{1,6})(?!\d)")
_WORKER = re.compile(r"(?i)(?<![a-z])(?:worker|trainer)[-_=. ]?(0*\d{1,6})(?!\d)")
_WHOLE = {"global", "world"}
# Ranks within a machine or within one dimension of the layout: several traces of a run share them.
_PARTIAL = {"local", "node", "group", "tp", "pp", "dp", "cp", "ep", "sp", "mp", "tensor", "pipeline"}
_SNIFFED = 1 << 16
# Every rank that is read opens its archive anew.
_MAX_MEMBERS = 4096
ZIP = b"PK\x03\x04"


@dataclass(frozen=True)
class TraceFile:
    """One trace: a file, or a member of a zip archive.

    Parameters
    ----------
    path : Path
    member : str, optional
        Name within the archive.
    rank : int, optional
        The rank the user says it is; what the file says is then ignored.
    packed : int, optional
        Bytes that the member takes in its archive, where that is known.

    Examples
    --------
    >>> TraceFile(Path("run.zip"), "rank3.json").label
    'run.zip:rank3.json'
    """

    path: Path
    member: str | None = None
    rank: int | None = None
    packed: int | None = field(default=None, compare=False)

    @property
    def label(self) -> str:
        """The file as messages name it."""
        return f"{self.path}:{self.member}" if self.member else str(self.path)

    @property
    def file_name(self) -> str:
        """The name without folders, of the member where there is one."""
        return Path(self.member).name if self.member else self.path.name

    @cached_property
    def size(self) -> int:
        """Bytes on disk, 0 if it is not there; of a member, its share of the archive."""
        if self.packed is not None:
            return self.packed
        try:
            if self.member is None:
                return self.path.stat().st_size
            return next((trace.size for trace in _members(self.path, []) if trace.member == self.member), 0)
        except (OSError, InputError):
            return 0

    def rank_in_name(self) -> int | None:
        """Return the rank that the file's name, else its folder's name, tells.

        The surest word decides: ``global_rank`` before ``rank`` before ``worker`` and ``trainer``. A rank that is only
        one within a machine or a dimension of the layout (``local_rank``, ``tp_rank``, ...) is not taken.

        Examples
        --------
        >>> TraceFile(Path("logs/worker12_step_4.json")).rank_in_name()
        12
        >>> TraceFile(Path("local_rank1_global_rank9.json")).rank_in_name()
        9
        >>> TraceFile(Path("rank_3/trace.json")).rank_in_name(), TraceFile(Path("trace.json")).rank_in_name()
        (3, None)
        """
        folder = Path(self.member).parent if self.member else self.path.parent
        for part in (self.file_name, folder.name):
            rank = _rank_in(part)
            if rank is not None:
                return rank
        return None


def _rank_in(name: str) -> int | None:
    plain: list[int] = []
    for match in _RANK.finditer(name):
        word, joint, rank, number = match.groups()
        if word.lower() in _WHOLE:
            return int(number)
        # "frank3" tells no rank, "hostRank3" does.
        apart = not word or joint or (rank[0] == "R" and word[-1].islower())
        if apart and word.lower() not in _PARTIAL:
            plain.append(int(number))
    worker = None if plain else _WORKER.search(name)
    return int(worker.group(1)) if worker else next(iter(plain), None)


class Traces(list[TraceFile]):
    """Traces found, with notes on what was passed over."""

    notes: tuple[Note, ...] = ()


def find_traces(paths: Sequence[Path | str], ranks: Mapping[str, int] | None = None) -> Traces:
    """List the traces that some paths name.

    A file is taken as it is; of a folder, the traces in it (``.json``, ``.gz``, ``.zip``), or if it has none, those
    of its subfolders; of a zip archive, its members.

    Parameters
    ----------
    paths : sequence of path
    ranks : mapping of str to int, optional
        Rank of a file by its path, name or label.

    Returns
    -------
    Traces
        In order of the paths, by name within a folder; ``.notes`` tells which files and subfolders were passed over.

    Raises
    ------
    InputError
        When there is nothing, or ``ranks`` names a file that is not among them.
    """
    found, others, below = Traces(), list[Path](), list[Path]()
    for path in map(Path, paths):
        traces = _in_path(path, others)
        if any(trace.path.parent == path for trace in traces):
            below += _below(path)
        found.extend(traces)
    if not found:
        where = ", ".join(map(str, paths)) or "no path"
        raise InputError(f"{where}: no trace there; files *.json, *.json.gz or *.zip of torch.profiler are expected")
    if others:
        shown = ", ".join(path.name for path in others[:5]) + (", ..." if len(others) > 5 else "")
        message = f"{len(others)} files are no traces and were passed over: {shown}"
        found.notes = (Note("files-ignored", "info", message, {"files": [str(path) for path in others[:100]]}),)
    below = [path for path in below if path not in {trace.path for trace in found}]
    if below:
        message = (
            f"{below[0]}: a trace in a subfolder of a folder that has traces itself was passed over"
            f"{f', and {len(below) - 1} more' if len(below) > 1 else ''}; name the subfolder too if it is of the run"
        )
        found.notes += (Note("folders-ignored", "warning", message, {"files": [str(path) for path in below[:100]]}),)
    return _with_ranks(found, ranks or {})


def _in_path(path: Path, others: list[Path]) -> list[TraceFile]:
    if path.is_dir():
        traces = _in_folder(path, others)
        if not traces:
            folders = sorted(entry for entry in path.iterdir() if entry.is_dir())
            traces = [trace for folder in folders for trace in _in_folder(folder, others)]
        return traces
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; check the path")
    if not path.is_file():
        raise InputError(f"{path}: is no regular file; write the trace to a file first")
    if _head(path, len(ZIP)) != ZIP:
        return [TraceFile(path)]
    members = _members(path, others)
    if not members:
        raise InputError(f"{path}: holds no .json or .json.gz that is a trace; pack the traces themselves")
    return members


def _below(folder: Path) -> list[Path]:
    """Return what the names tell to be traces in subfolders; none is opened."""
    files = sorted(file for ending in (".json", ".json.gz") for file in folder.glob(f"*/*{ending}"))
    return [file for file in files if _is_named(TraceFile(file))]


def _in_folder(folder: Path, others: list[Path]) -> list[TraceFile]:
    traces: list[TraceFile] = []
    try:
        entries = sorted(entry for entry in folder.iterdir() if not entry.is_dir())
    except OSError as error:
        raise InputError(f"{folder}: cannot read ({error.strerror}); check the path") from error
    for entry in entries:
        traces += _traces_of(entry, others)
    return traces


def _traces_of(path: Path, others: list[Path]) -> list[TraceFile]:
    """Return the traces in a file of a folder, which is opened at most once to see what it is."""
    trace = TraceFile(path)
    # A link that leads nowhere is a rank that is missing; a pipe or a device would keep a reader waiting.
    if trace.file_name.endswith(SUFFIXES) and (path.is_file() or not path.exists()):
        told = _is_named(trace)
        head = _head(path, len(ZIP) if told else _SNIFFED)
        if head is not None and head.startswith(ZIP):
            return _members(path, others)
        if told or head is None or _begins_like_one(head):
            return [trace]
    others.append(path)
    return []


def _is_named(trace: TraceFile) -> bool:
    """Whether a name alone tells a trace: what is damaged must not vanish from a run."""
    name = trace.file_name
    return not name.endswith(".tar.gz") and (
        "trace" in name or not name.endswith(".json") or trace.rank_in_name() is not None
    )


def _begins_like_one(head: bytes) -> bool:
    return head.startswith(ZIP) or any(word in head for word in (b'"traceEvents"', b'"ph"', b'"deviceProperties"'))


def _head(path: Path, count: int) -> bytes | None:
    """Return the first bytes of a file, None where it cannot be read."""
    try:
        with path.open("rb", buffering=0) as stream:
            return stream.read(count)
    except OSError:
        return None


def _members(path: Path, others: list[Path]) -> list[TraceFile]:
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
                    others.append(Path(trace.label))
    except (OSError, zipfile.BadZipFile, NotImplementedError) as error:
        raise InputError(f"{path}: no readable zip archive ({error}); pack it again") from error
    twice = next((trace.member for trace, after in pairwise(chosen) if trace == after), None)
    if twice:
        raise InputError(f"{path}: holds {twice} more than once, of which only one could be read; pack it again")
    if len(chosen) > _MAX_MEMBERS:
        raise InputError(f"{path}: holds {len(chosen)} traces, more than {_MAX_MEMBERS}; unpack it and give the folder")
    return chosen


def _is_member(trace: TraceFile, archive: Any) -> bool:
    name = trace.member or ""
    if not name.endswith((".json", ".gz")) or name.startswith("__MACOSX/"):
        return False
    if _is_named(trace):
        return True
    try:
        with archive.open(name) as stream:
            return _begins_like_one(stream.read(_SNIFFED))
    except Exception:  # an encrypted, damaged or strangely packed member: reading it tells which
        return True


def _with_ranks(found: Traces, ranks: Mapping[str, int]) -> Traces:
    used: set[str] = set()
    for i, trace in enumerate(found):
        for key in _keys(trace):
            if key in ranks:
                used.add(key)
                found[i] = replace(trace, rank=ranks[key])
                break
    unknown = [key for key in ranks if key not in used]
    if unknown:
        raise InputError(f"no trace is named {unknown[0]!r}, for which a rank is given; known: {found[0].label}, ...")
    return found


def _keys(trace: TraceFile) -> Iterator[str]:
    yield trace.label
    if trace.member:
        yield trace.member
        yield Path(trace.member).name
    else:
        yield trace.path.name
