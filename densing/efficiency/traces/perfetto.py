"""Traces written back for a viewer, with rows that show what was exposed, what was idle and what bound the run.

One rank: the original text, byte for byte, with the rows put in front of its events. Several ranks, or a damaged
file: what the reader understood (device work, host ranges, steps), each rank a group of processes, on one clock.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from densing.core import InputError, replacing
from densing.efficiency.timeline import PATH_KINDS, CriticalPath, RankTimeline, Unions, Window, clip, subtract
from densing.efficiency.traces.chrome import Axis, Row, Track, draw_rank, first_moment, process, track_events
from densing.efficiency.traces.outline import CHUNK, NoOutline, Outline, outline
from densing.efficiency.traces.source import Limits, Source, TraceFile

PID = 1_999_000_000
"""Process of the rows: no system gives such a number to a process, and Kineto to no device."""
_DAY_NS = 86_400 * 10**9
_BATCH = 4096


class RankTracks(NamedTuple):
    """A rank to draw: its timeline, the rows to lay over it, and what to add to its clock to reach the common one."""

    rank: RankTimeline
    tracks: Sequence[Track] = ()
    shift_ns: int = 0


def overlays(window: Window, merged: Unions, path: CriticalPath | None = None) -> tuple[Track, ...]:
    """Return the rows for a rank: exposed communication C \\ K, idle W \\ (K ∪ C ∪ M), and its critical path.

    Examples
    --------
    >>> import numpy as np
    >>> from densing.efficiency.timeline import Kind, Spans, unions
    >>> work = Spans.build([{"start": 10, "end": 60, "kind": Kind.COMPUTE, "name": "gemm"},
    ...                     {"start": 40, "end": 80, "kind": Kind.COMM, "name": "ncclDevKernel_AllReduce"},
    ...                     {"start": 90, "end": 95, "kind": Kind.COMPUTE, "name": "gemm"}])
    >>> window = Window("all", 0, 100, work)
    >>> [(track.name, track.start.tolist(), track.end.tolist()) for track in overlays(window, unions(work))]
    [('exposed communication', [60], [80]), ('idle', [0, 80, 95], [10, 90, 100])]
    """
    whole = (np.array([window.start], np.int64), np.array([window.end], np.int64))
    exposed = clip(subtract(merged.comm, merged.compute), window.start, window.end)
    idle = subtract(whole, merged.busy) if window.end > window.start else (whole[0][:0], whole[1][:0])
    tracks = (Track("exposed communication", *exposed), Track("idle", *idle))
    if path is None:
        return tracks
    names = ("", *path.names)
    pairs = zip(path.kind.tolist(), path.name.tolist(), strict=True)
    labels = [f"{PATH_KINDS[kind]} {names[name + 1]}".rstrip() for kind, name in pairs]
    return (*tracks, Track("critical path", path.start, path.end, labels))


def write_overlay(source: TraceFile | Path, out: str | Path, tracks: Sequence[Track], rank: RankTimeline) -> bool:
    """Write a trace back with rows laid over it.

    Parameters
    ----------
    source : TraceFile or Path
        Plain, gzip or zip.
    out : path
        Compressed if it ends in ``.gz``. Written whole or not at all.
    tracks : sequence of Track
    rank : RankTimeline
        What the reader made of the source: of a damaged one, this is written instead of its text.

    Returns
    -------
    bool
        True if the original text was kept byte for byte; False if the file was damaged.

    Raises
    ------
    InputError
        When the source cannot be read, ``out`` is the source, or cannot be written.
    """
    trace = TraceFile(source) if isinstance(source, Path) else source
    target = Path(out)
    if target.resolve() == trace.path.resolve():
        raise InputError(f"{target}: is the trace itself; choose another file for --perfetto")
    try:
        if rank.skipped or rank.repaired:
            raise NoOutline("the reader had to repair it")
        original = outline(_text(trace))
    except NoOutline:
        write_timelines([RankTracks(rank, tracks)], target)
        return False
    with _writing(target) as stream:
        _merge(stream, _text(trace), original, tracks)
    return True


def write_timelines(ranks: Iterable[RankTracks], out: str | Path) -> int:
    """Write timelines, recorded or simulated, as one trace; return how many.

    Every rank becomes a group of processes of its own, named ``rank 3: GPU 3``, its moments shifted to the common
    clock. One rank is held at a time, if ``ranks`` is an iterator that makes them one by one.

    Raises
    ------
    InputError
        When there is no rank, or ``out`` cannot be written.
    """
    source = iter(ranks)
    first = next(source, None)
    if first is None:
        raise InputError(f"{out}: no rank to draw; name at least one trace")
    # Whole days, so that moments are short enough for a viewer that reads them as floating point.
    base = max(0, (first_moment(first.rank) + first.shift_ns) // _DAY_NS - 1) * _DAY_NS
    count = 0
    with _writing(Path(out)) as stream:
        head = f'{{"schemaVersion":1,"displayTimeUnit":"ms","baseTimeNanoseconds":{base},"traceEvents":[\n'
        stream.write(head.encode("ascii"))
        for count, item in enumerate(chain([first], source), start=1):
            events = draw_rank(item.rank, item.tracks, Axis(base, item.shift_ns), count - 1)
            _write_events(stream, events, separate=count > 1)
        stream.write(b"\n]}\n")
    return count


def _merge(stream: IO[bytes], text: Iterator[bytes], original: Outline, tracks: Sequence[Track]) -> None:
    """Copy a text and put events where its own begin."""
    left = original.first
    for piece in text:
        stream.write(piece[:left])
        if left <= len(piece):
            _write_events(stream, _rows(tracks, Axis(original.base_ns)), separate=False)
            if tracks:
                stream.write(b"\n" if original.empty else b",")
            stream.write(piece[left:])
            break
        left -= len(piece)
    for piece in text:
        stream.write(piece)


def _rows(tracks: Sequence[Track], axis: Axis) -> Iterator[str]:
    if tracks:
        yield from process(PID, "densing", -1)
    for index, track in enumerate(tracks):
        yield from track_events(track, Row(PID, index + 1, track.name, index), axis)


def _write_events(stream: IO[bytes], events: Iterator[str], *, separate: bool) -> None:
    batch: list[str] = []
    for event in events:
        batch.append(event)
        if len(batch) == _BATCH:
            _flush(stream, batch, separate)
            separate = True
    if batch:
        _flush(stream, batch, separate)


def _flush(stream: IO[bytes], batch: list[str], separate: bool) -> None:
    stream.write((b",\n" if separate else b"\n") + ",\n".join(batch).encode("ascii"))
    batch.clear()


def _text(trace: TraceFile) -> Iterator[bytes]:
    """Yield the text of a trace in pieces."""
    buffer = bytearray(CHUNK)
    with Source(trace.path, trace.member, trace.label, Limits()) as source, memoryview(buffer) as view:
        while count := source.readinto(view):
            yield bytes(view[:count])
        if source.damage:
            raise NoOutline(source.damage)


@contextmanager
def _writing(path: Path) -> Iterator[IO[bytes]]:
    with replacing(path) as temporary:
        if path.suffix != ".gz":
            with temporary.open("wb") as plain:
                yield plain
            return
        with _packer().open(temporary, "wb", compresslevel=1) as packed:
            yield packed


def _packer() -> Any:
    try:
        from isal import igzip
    except ImportError:
        return gzip
    return igzip
