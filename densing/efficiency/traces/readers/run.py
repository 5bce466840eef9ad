"""The traces of a run to its timeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from densing.core import InputError
from densing.efficiency.timeline import Classifier, RankTimeline, Timeline
from densing.efficiency.traces.readers.files import find_traces
from densing.efficiency.traces.readers.kineto import Detail, read_rank


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
        Rank by file, where the traces do not tell it or tell it wrongly.

    Returns
    -------
    Timeline
        One timeline per rank, by rank.

    Raises
    ------
    InputError
        When nothing is found, a file is unreadable, or two files claim one rank.
    """
    several = [paths] if isinstance(paths, Path | str) else list(paths)
    classifier = Classifier(tuple(comm_patterns))
    found = find_traces(several, ranks)
    timelines = [read_rank(trace, classifier=classifier, detail=detail) for trace in found]
    check_ranks((timeline.rank, timeline.origin.source) for timeline in timelines)
    return Timeline(tuple(sorted(timelines, key=_rank)))


def check_ranks(claims: Iterable[tuple[int, str]]) -> None:
    """Refuse two files that claim one rank.

    Examples
    --------
    >>> check_ranks([(0, "a.json"), (0, "b.json")])
    Traceback (most recent call last):
    densing.core.errors.InputError: a.json and b.json both claim rank 0; give one of them, or say which rank each is
    (ranks=)
    """
    owners: dict[int, str] = {}
    for rank, source in claims:
        if rank in owners:
            raise InputError(
                f"{owners[rank]} and {source} both claim rank {rank}; "
                f"give one of them, or say which rank each is (ranks=)"
            )
        owners[rank] = source


def _rank(timeline: RankTimeline) -> int:
    return timeline.rank
