"""Traces written back for a viewer, with rows that show what was exposed, what was idle and what bound the run.

One rank: the original text, byte for byte, with the rows put in front of its events. Several ranks, or a damaged
file: what the reader understood (device work, host ranges, steps), each rank a group of processes, on one clock.

Source: "Trace Event Format" (Google, 2016): complete events (``X``) carry ``ts`` and ``dur`` in microseconds, metadata
events (``M``) name and order processes and threads; events of one thread nest. Times are exact decimal microseconds,
every name is escaped.

Three parts: what is written where, how ranks and rows become events, and the outline of an original text, which says
where its events begin without reading them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from densing.core import InputError, replacing
from densing.efficiency.timeline import (
    PATH_KINDS,
    Comm,
    CriticalPath,
    Int,
    Kind,
    RankTimeline,
    Spans,
    Unions,
    Window,
    clip,
    subtract,
)
from densing.efficiency.traces.source import Limits, Source, TraceFile, gzip_module

PID = 1_999_000_000
"""Process id of the added rows, which neither a system nor Kineto uses."""
_DAY_NS = 86_400 * 10**9
_BATCH = 4096


class RankTracks(NamedTuple):
    """A rank to draw: its timeline, the rows to overlay, and the offset from its clock to the common one."""

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
    bounds = (np.array([window.start], np.int64), np.array([window.end], np.int64))
    exposed = clip(subtract(merged.comm, merged.compute), window.start, window.end)
    idle = subtract(bounds, merged.busy) if window.end > window.start else (bounds[0][:0], bounds[1][:0])
    tracks = (Track("exposed communication", *exposed), Track("idle", *idle))
    if path is None:
        return tracks
    names = ("", *path.names)
    pairs = zip(path.kind.tolist(), path.name.tolist(), strict=True)
    labels = [f"{PATH_KINDS[kind]} {names[name + 1]}".rstrip() for kind, name in pairs]
    return (*tracks, Track("critical path", path.start, path.end, labels))


def write_overlay(source: TraceFile | Path, out: str | Path, tracks: Sequence[Track], rank: RankTimeline) -> bool:
    """Write a trace back with overlaid rows.

    Parameters
    ----------
    source : TraceFile or Path
        Plain, gzip or zip.
    out : path
        Compressed if it ends in ``.gz``. Written whole or not at all.
    tracks : sequence of Track
    rank : RankTimeline
        The source as read; written in place of its text if the source is damaged.

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
        raise InputError(f"{target}: is the trace itself; choose another output file for --perfetto")
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

    Every rank becomes its own group of processes, named ``rank 3: GPU 3``, its moments shifted to the common
    clock. If ``ranks`` is an iterator, only one rank is held in memory at a time.

    Raises
    ------
    InputError
        When there is no rank, or ``out`` cannot be written.
    """
    source = iter(ranks)
    first = next(source, None)
    if first is None:
        raise InputError(f"{out}: there is no rank to draw; name at least one trace")
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
    """Copy a text and insert events before its own."""
    offset = original.first
    for piece in text:
        stream.write(piece[:offset])
        if offset <= len(piece):
            if tracks:
                events = [process(PID, "densing", -1)]
                for index, track in enumerate(tracks):
                    row = Row(PID, index + 1, track.name, index)
                    events.append(track_events(track, row, Axis(original.base_ns)))
                _write_events(stream, chain.from_iterable(events), separate=False)
                stream.write(b"\n" if original.empty else b",")
            stream.write(piece[offset:])
            break
        offset -= len(piece)
    for piece in text:
        stream.write(piece)


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
        with gzip_module().open(temporary, "wb", compresslevel=1) as packed:
            yield packed


# Ranks and rows as events.

PIDS = 1_000_000
"""Process ids reserved per rank."""
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
"""Kineto's categories, so that the output can be read as a trace again."""
_ON_HOST = {Kind.COMPUTE: "cpu_op", Kind.COMM: "user_annotation"}
_ROWS = 1 << 16


@dataclass(frozen=True, eq=False)
class Track:
    """A row of intervals to overlay on a trace.

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
    microseconds, nanoseconds = divmod(abs(ns), 1000)
    return f"{'-' if ns < 0 else ''}{microseconds}.{nanoseconds:03d}"


def quote(text: str) -> str:
    """Return the text as an ASCII JSON string, fully escaped."""
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
        """Yield the events that name and order the row."""
        yield metadata("thread_name", self.pid, self.tid, name=plain(self.name))
        yield metadata("thread_sort_index", self.pid, self.tid, sort_index=self.order)


def process(pid: int, name: str, order: int) -> Iterator[str]:
    """Yield the events that name and order a process."""
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
    """Return text that UTF-8 can encode: undecodable bytes of a file name become question marks."""
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
        Number of ranks above it; determines its process numbers.

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
        # Where steps overlap, each ends as the next begins.
        steps = sorted(rank.steps, key=lambda step: step.start)
        start = np.array([step.start for step in steps], np.int64)
        end = np.array([step.end for step in steps], np.int64)
        end[:-1] = np.minimum(end[:-1], start[1:])
        row = Track("steps", start, np.maximum(end, start), [f"ProfilerStep#{step.number}" for step in steps])
        yield from track_events(row, Row(own, 0, "steps", 0, "user_annotation"), axis)
    for index, track in enumerate(tracks, start=1):
        yield from track_events(track, Row(own, index, track.name, index), axis)
    for index, (name, pid) in enumerate(pids.items(), start=1):
        yield from process(pid, f"{title}: {name}" if name else title, order + index)
    yield from _draw(rank.work, pids, axis, CATEGORY | _ON_HOST if rank.on_host else CATEGORY, first_tid=1)
    yield from _draw(rank.host, pids, axis, CATEGORY, first_tid=1 + len(rank.work.lanes))


def _draw(spans: Spans, pids: dict[str, int], axis: Axis, categories: dict[Kind, str], first_tid: int) -> Iterator[str]:
    """Yield the spans of a table, and the names of their rows."""
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
    """Return the table's data of a span, under Kineto's names."""
    known: dict[str, object] = {}
    if size >= 0:
        known["bytes"] = size
    if correlation >= 0:
        known["correlation"] = correlation
    if comm is not None:
        texts = {"Collective name": comm.op, "Process Group Name": comm.group, "dtype": comm.dtype}
        counts = {"In msg nelems": comm.in_elems, "Out msg nelems": comm.out_elems, "Group size": comm.group_size}
        known |= {key: plain(text) for key, text in texts.items() if text}
        known |= {key: number for key, number in {**counts, "Seq": comm.seq}.items() if number >= 0}
    return f',"args":{arguments_text(known)}' if known else ""


# The outline of an original: where its events begin.

CHUNK = 1 << 20
HEADER_BYTES = 16 << 20
"""Longest text of a value outside the events; a longer one counts as damaged."""
HEADER_KEYS = 10_000

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_REST = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_QUOTE = ord('"')
_PLAIN = bytes(set(range(256)) - set(b'"[]{}'))
_SPACE = b" \t\r\n"
_STEP = np.zeros(256, np.int8)
_STEP[list(b"[{")] = 1
_STEP[list(b"]}")] = -1


class NoOutline(Exception):
    """The text is not a whole trace."""


@dataclass(frozen=True)
class Outline:
    """Where a trace's events are.

    Parameters
    ----------
    first : int
        Offset in the text right after the bracket that opens the events.
    empty : bool
        Whether there is no event.
    base_ns : int
        ``baseTimeNanoseconds`` of the header; 0 where it has none.
    """

    first: int
    empty: bool
    base_ns: int


def outline(chunks: Iterator[bytes]) -> Outline:
    """Find the outline of a trace, given as pieces of its text.

    Raises
    ------
    NoOutline
        When brackets do not match, the text ends early, or there is no array of events.

    Examples
    --------
    >>> outline(iter([b'{"a": "traceEvents", "traceEv', b'ents": [ {"ph": "X"}], "baseTimeNanoseconds": 7}']))
    Outline(first=37, empty=False, base_ns=7)
    """
    reader = _Reader(chunks)
    first = reader.next_byte()
    if first == b"[":
        reader.take(1)
        begin, empty = reader.offset, reader.next_byte() == b"]"
        reader.skip_array()
        reader.expect_end()
        return Outline(begin, empty, 0)
    if first != b"{":
        raise NoOutline("it is neither an object nor an array")
    reader.take(1)
    return _object(reader)


def _object(reader: _Reader) -> Outline:
    begin, empty, base, keys = -1, True, 0, 0
    while reader.next_byte() != b"}":
        key = reader.value()
        keys += 1
        if keys > HEADER_KEYS:
            raise NoOutline(f"more than {HEADER_KEYS} keys outside the events")
        if not isinstance(key, str) or reader.next_byte() != b":":
            raise NoOutline(f"no key at byte {reader.offset}")
        reader.take(1)
        if key == "traceEvents" and reader.next_byte() == b"[" and begin < 0:
            reader.take(1)
            begin, empty = reader.offset, reader.next_byte() == b"]"
            reader.skip_array()
        else:
            value = reader.value()
            if key == "baseTimeNanoseconds":
                is_number = isinstance(value, int | str) and not isinstance(value, bool)
                if not is_number or not re.fullmatch(r"-?\d{1,19}", str(value)):
                    raise NoOutline(f"baseTimeNanoseconds is {value!r}")
                base = int(value)
        if reader.next_byte() == b",":
            reader.take(1)
            if reader.next_byte() == b"}":
                raise NoOutline(f"an extra comma at byte {reader.offset}")
    reader.take(1)
    reader.expect_end()
    if begin < 0:
        raise NoOutline("it has no events")
    return Outline(begin, empty, base)


class _Reader:
    """A sliding window over the text."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._text = b""
        self.offset = 0

    def take(self, count: int) -> None:
        self._text = self._text[count:]
        self.offset += count

    def _more(self) -> bool:
        piece = next(self._chunks, b"")
        self._text += piece
        return bool(piece)

    def next_byte(self) -> bytes:
        """Skip white space and return the next byte without consuming it."""
        while True:
            text = self._text.lstrip(_SPACE)
            self.take(len(self._text) - len(text))
            if text:
                return text[:1]
            if not self._more():
                raise NoOutline(f"it ends early, at byte {self.offset}")

    def expect_end(self) -> None:
        """Check that nothing follows."""
        while True:
            if self._text.strip(_SPACE):
                raise NoOutline(f"text after the end, at byte {self.offset}")
            self.take(len(self._text))
            if not self._more():
                return

    def value(self) -> Any:
        """Consume one value."""
        self.next_byte()
        while True:
            try:
                # Latin-1 keeps offsets, and keys of interest are plain; other text of the header is not looked at.
                value, used = json.JSONDecoder().raw_decode(self._text.decode("latin-1"))
            except (ValueError, RecursionError) as error:
                if len(self._text) > HEADER_BYTES or not self._more():
                    raise NoOutline(f"no value at byte {self.offset}") from error
                continue
            # A number might go on in the next piece.
            if used < len(self._text) or not self._more():
                self.take(used)
                return value

    def skip_array(self) -> None:
        """Consume the text up to and including the bracket that closes the open array."""
        depth, inside = 1, 0
        while True:
            # An escape whose second half is in the next piece waits for it.
            backslashes = len(self._text) - len(self._text.rstrip(b"\\"))
            piece = self._text[: len(self._text) - backslashes % 2]
            levels, quotes = _levels(piece, depth, inside)
            if levels.size and levels.min() <= 0:
                self._close(depth, inside)
                return
            depth = int(levels[-1]) if levels.size else depth
            inside = (inside + quotes) % 2
            self.take(len(piece))
            if not self._more():
                raise NoOutline(f"it ends early, at byte {self.offset + len(self._text)}")

    def _close(self, depth: int, inside: int) -> None:
        """Find the closing bracket in this piece."""
        start = 0
        if inside and (end_of_string := _REST.match(self._text)):
            start = end_of_string.end()
        for token in _TOKEN.finditer(self._text, start):
            depth += int(_STEP[token[0][0]])
            if depth == 0:
                if token[0] != b"]":
                    break
                self.take(token.end())
                return
        raise NoOutline(f"brackets do not match, at byte {self.offset}")


def _levels(piece: bytes, depth: int, inside: int) -> tuple[NDArray[np.int64], int]:
    """Return the depth after each bracket of a piece (and after each quote), and how many quotes it has."""
    if b"\\" in piece:
        piece = _ESCAPE.sub(b"", piece)
    marks = np.frombuffer(piece.translate(None, _PLAIN), np.uint8)
    quote = marks == _QUOTE
    outside = (np.cumsum(quote) + inside) % 2 == 0
    return depth + np.cumsum(_STEP[marks] * outside, dtype=np.int64), int(quote.sum())
