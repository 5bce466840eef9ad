"""A rank's timeline as events of the Chrome trace format: exact decimal microseconds, every name escaped.

Source: "Trace Event Format" (Google, 2016): complete events (``X``) carry ``ts`` and ``dur`` in microseconds, metadata
events (``M``) name and order processes and threads; events of one thread nest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from densing.core import InputError
from densing.efficiency.timeline import Comm, Int, Kind, RankTimeline, Spans

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


@dataclass(frozen=True, eq=False)
class Track:
    """A row of intervals to lay over a trace.

    Parameters
    ----------
    name : str
    start, end : int64 (n,)
        Absolute nanoseconds, sorted; intervals may touch but not overlap.
    labels : sequence of str, optional
        Text of each interval; the track's name when left out.

    Raises
    ------
    InputError
        When intervals overlap, or columns differ in length.

    Examples
    --------
    >>> Track("idle", np.array([5, 30]), np.array([10, 40])).labels
    """

    name: str
    start: Int
    end: Int
    labels: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Check the columns."""
        lengths = {len(self.start), len(self.end), len(self.start if self.labels is None else self.labels)}
        if len(lengths) > 1:
            raise InputError(f"track {self.name!r}: columns of different length {sorted(lengths)}")
        if np.any(self.end < self.start) or np.any(self.start[1:] < self.end[:-1]):
            raise InputError(f"track {self.name!r}: intervals overlap or run backwards; split it into several tracks")


@dataclass(frozen=True)
class Axis:
    """How absolute nanoseconds are written: ``ts = (ns + shift − base)/1000``."""

    base_ns: int = 0
    shift_ns: int = 0

    def text(self, moment: int) -> str:
        """Return a moment as ``ts``.

        Examples
        --------
        >>> Axis(1000).text(1_500), Axis(1000).text(995)
        ('0.500', '-0.005')
        """
        return micros(moment + self.shift_ns - self.base_ns)


def micros(ns: int) -> str:
    """Return nanoseconds as microseconds, exactly.

    Examples
    --------
    >>> micros(1_500), micros(-5), micros(0)
    ('1.500', '-0.005', '0.000')
    """
    whole, rest = divmod(abs(ns), 1000)
    return f"{'-' if ns < 0 else ''}{whole}.{rest:03d}"


def quote(text: str) -> str:
    """Return a JSON string of ASCII; whatever is in the text stays text."""
    return json.dumps(plain(text))


def metadata(event: str, pid: int, tid: int, /, **arguments: Any) -> str:
    """Return a metadata event.

    Examples
    --------
    >>> metadata("thread_name", 7, 0, name="idle")
    '{"ph":"M","name":"thread_name","pid":7,"tid":0,"ts":0,"args":{"name":"idle"}}'
    """
    return f'{{"ph":"M","name":{quote(event)},"pid":{pid},"tid":{tid},"ts":0,"args":{arguments_text(arguments)}}}'


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """Return arguments as a JSON object."""
    return json.dumps(arguments, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class Row:
    """The thread that events are drawn on, with its name and position in the order."""

    pid: int
    tid: int
    name: str
    order: int
    category: str = "densing"

    def head(self) -> Iterator[str]:
        """Yield what names and orders the row."""
        yield metadata("thread_name", self.pid, self.tid, name=plain(self.name))
        yield metadata("thread_sort_index", self.pid, self.tid, sort_index=self.order)


def process(pid: int, name: str, order: int) -> Iterator[str]:
    """Yield what names and orders a process."""
    yield metadata("process_name", pid, 0, name=plain(name))
    yield metadata("process_sort_index", pid, 0, sort_index=order)


def track_events(track: Track, row: Row, axis: Axis) -> Iterator[str]:
    """Yield a track's row and intervals."""
    yield from row.head()
    front = f'{{"ph":"X","cat":{quote(row.category)},"pid":{row.pid},"tid":{row.tid},"name":'
    quoted: dict[str, str] = {}
    for index, (start, end) in enumerate(zip(track.start.tolist(), track.end.tolist(), strict=True)):
        label = track.name if track.labels is None else track.labels[index]
        name = quoted[label] = quoted.get(label) or quote(label)
        yield f'{front}{name},"ts":{axis.text(start)},"dur":{micros(end - start)}}}'


def plain(text: str) -> str:
    """Return text that UTF-8 can hold: what was none in a file name becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


def first_moment(rank: RankTimeline) -> int:
    """Return the first moment of a timeline in nanoseconds; 0 for an empty one."""
    starts = [int(spans.start[0]) for spans in (rank.work, rank.host) if len(spans)]
    return min([*starts, *(step.start for step in rank.steps)], default=0)


def draw_rank(rank: RankTimeline, tracks: Sequence[Track], axis: Axis, position: int) -> Iterator[str]:
    """Yield the events of a rank.

    Parameters
    ----------
    rank : RankTimeline
    tracks : sequence of Track
        Rows above the rest.
    axis : Axis
    position : int
        How many ranks stand above it; decides its numbers of processes.

    Examples
    --------
    >>> work = Spans.build([{"start": 10, "end": 60, "kind": Kind.COMPUTE, "name": "<gemm>"}])
    >>> [*draw_rank(RankTimeline(3, work, Spans.empty()), (), Axis(), 0)][-1]
    '{"ph":"X","cat":"kernel","name":"<gemm>","pid":1000001,"tid":1,"ts":0.010,"dur":0.050}'
    """
    own, order = PIDS * (position + 1), PIDS * position
    # The processes in which something happens; device work first.
    processes = [spans.lanes[lane].process for spans in (rank.work, rank.host) for lane in np.unique(spans.lane)]
    pids = {name: own + index for index, name in enumerate(dict.fromkeys(processes), start=1)}
    title = f"rank {rank.rank}"
    if tracks or rank.steps:
        yield from process(own, f"{title}: densing", order)
    if rank.steps:
        yield from track_events(_steps(rank), Row(own, 0, "steps", 0, "user_annotation"), axis)
    for index, track in enumerate(tracks, start=1):
        yield from track_events(track, Row(own, index, track.name, index), axis)
    for index, (name, pid) in enumerate(pids.items(), start=1):
        yield from process(pid, f"{title}: {name}" if name else title, order + index)
    yield from _draw(rank.work, pids, axis, CATEGORY | _ON_HOST if rank.on_host else CATEGORY, first_tid=1)
    yield from _draw(rank.host, pids, axis, CATEGORY, first_tid=1 + len(rank.work.lanes))


def _steps(rank: RankTimeline) -> Track:
    """Return the steps as a row; where they overlap, each ends as the next begins."""
    steps = sorted(rank.steps, key=lambda step: step.start)
    start = np.array([step.start for step in steps], np.int64)
    end = np.array([step.end for step in steps], np.int64)
    end[:-1] = np.minimum(end[:-1], start[1:])
    return Track("steps", start, np.maximum(end, start), [f"ProfilerStep#{step.number}" for step in steps])


def _draw(spans: Spans, pids: dict[str, int], axis: Axis, categories: dict[Kind, str], first_tid: int) -> Iterator[str]:
    """Yield the spans of a table, and the names of the rows they stand on."""
    fronts: dict[tuple[int, int], str] = {}
    titles = [lane.label or (f"stream {lane.thread}" if lane.thread else "") for lane in spans.lanes]
    rows = [Row(pids.get(spans.lanes[n].process, 0), first_tid + n, title, n) for n, title in enumerate(titles)]
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
            arguments = _arguments(size, correlation, spans.comms[comm] if comm >= 0 else None)
            times = f'"ts":{axis.text(start)},"dur":{micros(end - start)}'
            yield f'{front},"pid":{row.pid},"tid":{row.tid},{times}{arguments}}}'


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
