"""Which files are the traces of a run, and what their names say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from densing.errors import InputError
from densing.notes import Note

_SUFFIXES = (".json", ".json.gz", ".gz", ".zip")
_RANK = re.compile(r"(?i)(?:^|[^a-z])(?:global_?rank|rank|worker|trainer)[-_=.]?(\d{1,9})(?!\d)")
_RANK_WORD = re.compile(r"(?i)rank[-_=.]?(\d{1,9})(?!\d)")
_SNIFFED = 1 << 16
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

    Examples
    --------
    >>> TraceFile(Path("run.zip"), "rank3.json").label
    'run.zip:rank3.json'
    """

    path: Path
    member: str | None = None
    rank: int | None = None

    @property
    def label(self) -> str:
        """The file as messages name it."""
        return f"{self.path}:{self.member}" if self.member else str(self.path)

    @property
    def size(self) -> int:
        """Bytes on disk, 0 if it is not there; of a member, its share of the archive."""
        import zipfile

        try:
            if self.member is None:
                return self.path.stat().st_size
            with zipfile.ZipFile(self.path) as archive:
                return archive.getinfo(self.member).compress_size
        except (OSError, zipfile.BadZipFile, KeyError):
            return 0

    def rank_in_name(self) -> int | None:
        """Return the rank that the file's name, else its folder's name, tells.

        Examples
        --------
        >>> TraceFile(Path("logs/worker12_step_4.json")).rank_in_name()
        12
        >>> TraceFile(Path("rank_3/trace.json")).rank_in_name(), TraceFile(Path("trace.json")).rank_in_name()
        (3, None)
        """
        name = Path(self.member or self.path.name)
        for part in (name.name, name.parent.name if self.member else self.path.parent.name):
            found = _RANK.search(part) or _RANK_WORD.search(part)
            if found:
                return int(found.group(1))
        return None


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
        In order of the paths, by name within a folder; ``.notes`` tells which files of a folder were passed over.

    Raises
    ------
    InputError
        When there is nothing, or ``ranks`` names a file that is not among them.
    """
    found, others = Traces(), list[Path]()
    for path in map(Path, paths):
        found.extend(_in_path(path, others))
    if not found:
        where = ", ".join(map(str, paths)) or "no path"
        raise InputError(f"{where}: no trace there; files *.json, *.json.gz or *.zip of torch.profiler are expected")
    if others:
        shown = ", ".join(path.name for path in others[:5]) + (", ..." if len(others) > 5 else "")
        message = f"{len(others)} files are no traces and were passed over: {shown}"
        found.notes = (Note("files-ignored", "info", message, {"files": [str(path) for path in others[:100]]}),)
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
    return _members(path) if _is_zip(path) else [TraceFile(path)]


def _in_folder(folder: Path, others: list[Path]) -> list[TraceFile]:
    traces: list[TraceFile] = []
    try:
        entries = sorted(entry for entry in folder.iterdir() if entry.is_file())
    except OSError as error:
        raise InputError(f"{folder}: cannot read ({error.strerror}); check the path") from error
    for entry in entries:
        if not entry.name.endswith(_SUFFIXES) or not _looks_like_trace(entry):
            others.append(entry)
        else:
            traces += _members(entry) if _is_zip(entry) else [TraceFile(entry)]
    return traces


def _looks_like_trace(path: Path) -> bool:
    """Whether a file is named as a trace or begins like one; what is damaged must not vanish from a run."""
    if "trace" in path.name or TraceFile(path).rank_in_name() is not None or not path.name.endswith(".json"):
        return True
    try:
        with path.open("rb") as stream:
            head = stream.read(_SNIFFED)
    except OSError:
        return True
    return b'"traceEvents"' in head or b'"ph"' in head or b'"deviceProperties"' in head


def _is_zip(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(4) == ZIP
    except OSError:
        return False


def _members(path: Path) -> list[TraceFile]:
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            names = sorted(info.filename for info in archive.infolist() if not info.is_dir())
    except (OSError, zipfile.BadZipFile, NotImplementedError) as error:
        raise InputError(f"{path}: no readable zip archive ({error}); pack it again") from error
    chosen = [name for name in names if name.endswith((".json", ".gz")) and not name.startswith("__MACOSX/")]
    if not chosen:
        raise InputError(f"{path}: holds no .json or .json.gz; pack the traces themselves")
    return [TraceFile(path, name) for name in chosen]


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
