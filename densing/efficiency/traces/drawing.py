"""A rank's timeline as events of the Chrome trace format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from densing.efficiency.timeline import Comm, Kind, Lane, RankTimeline, Spans
from densing.efficiency.traces.trace_events import (
    Axis,
    Row,
    Track,
    arguments_text,
    micros,
    plain,
    process,
    quote,
    track_events,
)

PIDS = 1_000_000
"""Numbers of processes set aside for each rank."""
CATEGORY = {
    Kind.COMPUTE: "kernel",
    Kind.COMM: "kernel",
    Kind.MEMCPY: "gpu_memcpy",
    Kind.MEMSET: "gpu_memset",
    Kind.SYNC: "cuda_sync",
    Kind.CALL: "cpu_op",
    Kind.UNKNOWN: "unknown",
    Kind.LAUNCH: "cuda_runtime",
    Kind.ANNOTATION: "user_annotation",
    Kind.OP: "cpu_op",
    Kind.FRAME: "python_function",
}
"""Categories of Kineto, so that what is written can be read as a trace again."""
_ON_HOST = {Kind.COMPUTE: "cpu_op", Kind.COMM: "user_annotation"}
_ROWS = 1 << 16


def first_moment(rank: RankTimeline) -> int:
    """Return the first moment of a timeline in nanoseconds; 0 for an empty one."""
    starts = [int(spans.start[0]) for spans in (rank.work, rank.host) if len(spans)]
    return min([*starts, *(step.start for step in rank.steps)], default=0)


def draw_rank(rank: RankTimeline, tracks: Sequence[Track], axis: Axis, place: int) -> Iterator[str]:
    """Yield the events of a rank.

    Parameters
    ----------
    rank : RankTimeline
    tracks : sequence of Track
        Rows above the rest.
    axis : Axis
    place : int
        How many ranks stand above it; decides its numbers of processes.

    Examples
    --------
    >>> work = Spans.build([{"start": 10, "end": 60, "kind": Kind.COMPUTE, "name": "<gemm>"}])
    >>> [*draw_rank(RankTimeline(3, work, Spans.empty()), (), Axis(), 0)][-1]
    '{"ph":"X","cat":"kernel","name":"<gemm>","pid":1000001,"tid":1,"ts":0.010,"dur":0.050}'
    """
    pids = _pids(rank, place)
    own = PIDS * (place + 1)
    order = PIDS * place
    title = f"rank {rank.rank}"
    if tracks or rank.steps:
        yield from process(own, f"{title}: densing", order)
    if rank.steps:
        yield from track_events(_steps(rank), Row(own, 0, "steps", 0, "user_annotation"), axis)
    for index, track in enumerate(tracks, start=1):
        yield from track_events(track, Row(own, index, track.name, index), axis)
    for index, (name, pid) in enumerate(pids.items(), start=1):
        yield from process(pid, f"{title}: {name}" if name else title, order + index)
    yield from _draw(rank.work, pids, axis, _categories(rank.on_host), first_tid=1)
    yield from _draw(rank.host, pids, axis, CATEGORY, first_tid=1 + len(rank.work.lanes))


def _pids(rank: RankTimeline, place: int) -> dict[str, int]:
    """Number the processes in which something happens; device work first."""
    used = [spans.lanes[lane].process for spans in (rank.work, rank.host) for lane in np.unique(spans.lane)]
    return {name: PIDS * (place + 1) + index for index, name in enumerate(dict.fromkeys(used), start=1)}


def _steps(rank: RankTimeline) -> Track:
    """Return the steps as a row; where they overlap, each ends as the next begins."""
    steps = sorted(rank.steps, key=lambda step: step.start)
    start = np.array([step.start for step in steps], np.int64)
    end = np.array([step.end for step in steps], np.int64)
    end[:-1] = np.minimum(end[:-1], start[1:])
    return Track("steps", start, np.maximum(end, start), [f"ProfilerStep#{step.number}" for step in steps])


def _categories(on_host: bool) -> dict[Kind, str]:
    return CATEGORY | _ON_HOST if on_host else CATEGORY


def _draw(spans: Spans, pids: dict[str, int], axis: Axis, categories: dict[Kind, str], first_tid: int) -> Iterator[str]:
    """Yield the spans of a table, and the names of the rows they stand on."""
    fronts: dict[tuple[int, int], str] = {}
    rows = [Row(pids.get(lane.process, 0), first_tid + n, _title(lane), n) for n, lane in enumerate(spans.lanes)]
    for lane in np.unique(spans.lane):
        yield from rows[int(lane)].head()
    for begin in range(0, len(spans), _ROWS):
        part = spans.take(slice(begin, begin + _ROWS))
        columns = (part.kind, part.name, part.lane, part.start, part.end, part.bytes, part.correlation, part.comm)
        for kind, name, lane, start, end, size, correlation, comm in zip(*(c.tolist() for c in columns), strict=True):
            front = fronts.get((kind, name))
            if front is None:
                front = f'{{"ph":"X","cat":"{categories[Kind(kind)]}","name":{quote(spans.names[name])}'
                fronts[kind, name] = front
            row = rows[lane]
            more = _arguments(size, correlation, spans.comms[comm] if comm >= 0 else None)
            times = f'"ts":{axis.text(start)},"dur":{micros(end - start)}'
            yield f'{front},"pid":{row.pid},"tid":{row.tid},{times}{more}}}'


def _title(lane: Lane) -> str:
    return lane.label or (f"stream {lane.thread}" if lane.thread else "")


def _arguments(size: int, correlation: int, comm: Comm | None) -> str:
    """Return what the table knows of a span, by Kineto's names."""
    known: dict[str, object] = {}
    if size >= 0:
        known["bytes"] = size
    if correlation >= 0:
        known["correlation"] = correlation
    if comm is not None:
        named = {"Collective name": comm.op, "Process Group Name": comm.group, "dtype": comm.dtype}
        counted = {"In msg nelems": comm.in_elems, "Out msg nelems": comm.out_elems, "Group size": comm.group_size}
        known |= {key: plain(text) for key, text in named.items() if text}
        known |= {key: number for key, number in {**counted, "Seq": comm.seq}.items() if number >= 0}
    return f',"args":{arguments_text(known)}' if known else ""
