"""A run's profile in one call, for notebooks and scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from densing.efficiency.profile.rank import ProfileOptions, profile_timeline, profile_trace
from densing.efficiency.profile.run import RunProfile, merge_run
from densing.efficiency.timeline import Timeline, WindowName
from densing.efficiency.traces import find_traces

if TYPE_CHECKING:
    from densing.efficiency.traces import Detail


def profile_run(
    source: Path | str | Sequence[Path | str] | Timeline,
    *,
    window: WindowName | None = None,
    comm_patterns: Sequence[str] = (),
    detail: Detail = "auto",
    ranks: Mapping[str, int] | None = None,
) -> RunProfile:
    """Profile a run: the traces of its ranks, or a timeline that was read or simulated.

    Parameters
    ----------
    source : path, sequence of path, or Timeline
        Trace files, folders and zip archives.
    window : {"steps", "all", "hta"}, optional
        ``steps`` where the traces mark steps, else ``all``.
    comm_patterns : sequence of str
        Regular expressions; names they match are communication. Timelines are classified already.
    detail : {"auto", "device", "host"}
        ``host`` reads operators too.
    ranks : mapping of str to int, optional
        Rank by file name, where the traces do not tell it.

    Returns
    -------
    RunProfile
        ``table()``, ``step_table()`` and ``collective_table()`` are DataFrames.

    Raises
    ------
    densing.core.errors.InputError
        When nothing is found, a file is unreadable, or two files claim one rank.

    Examples
    --------
    >>> from densing.efficiency.timeline.spans import Kind, Spans
    >>> from densing.efficiency.timeline.timeline import RankTimeline
    >>> work = Spans.build([{"start": 10, "end": 60, "kind": Kind.COMPUTE, "name": "gemm"},
    ...                     {"start": 40, "end": 80, "kind": Kind.COMM, "name": "ncclDevKernel_AllReduce"}])
    >>> run = profile_run(Timeline((RankTimeline(0, work, Spans.empty()),)))
    >>> run.table()[["rank", "window_ns", "exposed_comm_ns", "overlap_pct"]]
       rank  window_ns  exposed_comm_ns  overlap_pct
    0     0         70               20         50.0
    """
    options = ProfileOptions(window, tuple(comm_patterns), detail)
    if isinstance(source, Timeline):
        return merge_run([profile_timeline(rank, options) for rank in source.ranks], options=options.to_dict())
    paths = [source] if isinstance(source, Path | str) else list(source)
    traces = find_traces(paths, ranks)
    return merge_run((profile_trace(trace, options) for trace in traces), notes=traces.notes, options=options.to_dict())
