"""Ranks spread over the jobs of an executor: each job is a command that profiles a list of traces into the store."""

from __future__ import annotations

import hashlib
import heapq
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densing.core import InputError
from densing.jobs import Executor, Job, JobEvent, JobResult

if TYPE_CHECKING:
    from densing.efficiency.traces import TraceFile

LISTS, LOGS = "lists", "logs"
JOBS = 16
"""Jobs when nobody says how many."""

Command = Callable[[Path, Path], Sequence[str]]
"""From a list of traces and the store, the command line of a job."""


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


def run_jobs(
    traces: Sequence[TraceFile],
    executor: Executor,
    out: Path,
    *,
    jobs: int = JOBS,
    command: Command | None = None,
    on_event: Callable[[JobEvent], object] = lambda event: None,
) -> dict[TraceFile, JobResult]:
    """Profile traces by jobs; return for each trace how its job ended. What it yielded is in the store.

    Each job gets about the same number of bytes.
    """
    out = out.absolute()
    lists = [write_list(part, out / LISTS) for part in shares(traces, jobs)]
    work = [
        Job(tuple((command or default_command())(listed, out)), f"profile {number}", logs=out / LOGS)
        for number, listed in enumerate(lists)
    ]
    results = executor.run(work, on_event=on_event)
    ended = zip(shares(traces, jobs), results, strict=True)
    return {trace: result for part, result in ended for trace in part}


def shares(traces: Sequence[TraceFile], count: int) -> list[list[TraceFile]]:
    """Split traces into at most ``count`` parts of about the same size: the largest first, each to the least part.

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
    from densing.core import replacing

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
        When it cannot be read or is no such list.
    """
    from densing.efficiency.traces import TraceFile

    try:
        rows: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        return [TraceFile(Path(row["path"]), _member(row), _rank(row)) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: no list of traces ({error}); it is written by densing profile --executor") from error


def _member(row: Mapping[str, Any]) -> str | None:
    member = row["member"]
    if not isinstance(member, str | None):
        raise TypeError(f"member {member!r}")
    return member


def _rank(row: Mapping[str, Any]) -> int | None:
    rank = row["rank"]
    if not isinstance(rank, int | None):
        raise TypeError(f"rank {rank!r}")
    return rank
