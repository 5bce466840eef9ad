"""One Kineto or Chrome trace to the timeline of its rank: the file is read to rows, the rows become spans and steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from densing.core import InputError, Note
from densing.efficiency.timeline import (
    NO_DEVICE_WORK,
    Classifier,
    Comm,
    Kind,
    Lane,
    Marks,
    RankTimeline,
    Spans,
    Step,
    distinct,
)
from densing.efficiency.traces.kineto.communications import Comms, complete
from densing.efficiency.traces.kineto.document import Document, EventArray, LooseEvents, origin_of, rank_of
from densing.efficiency.traces.kineto.events import (
    ARGS,
    LIMIT_NS,
    MEMCPY,
    MEMSET,
    MTIA,
    Decoders,
    DeviceArgs,
    NeedsText,
    Role,
    marks_device,
    role,
    struct_of,
)
from densing.efficiency.traces.kineto.rows import Rows
from densing.efficiency.traces.kineto.text import Damage, TextBuffer
from densing.efficiency.traces.source import Detail, Limits, Progress, Source, TraceFile

_ISSUES_WORK = re.compile(r"(cu|hip|mu|ze|ur|cn|gcu|acl|mtia)\w*(Launch|Memcpy|Memset)")
"""Runtime calls that hand work to a device, by name."""
_BATCH = 4096
_ON_PROCESSORS = {"gloo", "mpi", "ucc", "cpu", "cuda"}
"""Back-ends that communicate on the CPU, as in ``gloo`` or ``cpu:gloo,cuda:gloo``."""


@dataclass
class _Read:
    """A file as read, before anything is decided."""

    document: Document
    events: EventArray
    rows: Rows
    damage: Damage
    stream_damage: str


def read_rank(
    trace: TraceFile,
    *,
    classifier: Classifier | None = None,
    detail: Detail = "auto",
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> RankTimeline:
    """Read one trace, streamed and exact; what is damaged is repaired or left out, counted and noted.

    Start in ns = baseTimeNanoseconds + 1000·ts, end = start + 1000·dur, from the decimal text.

    Parameters and errors are those of :func:`densing.efficiency.traces.read_rank`.

    Notes
    -----
    Source: format as written by libkineto's ``output_json.cpp``; the processor's timeline of a gloo run after
    torch_tb_profiler, with the launching calls taken out of compute.
    """
    limits = limits or Limits()
    with_operators = detail == "host"
    read = _read(trace, limits, with_operators, progress)
    device = _device_without_work(trace, read)
    if detail == "auto" and not device and not _has_device_work(read.rows):
        # A run on processors: the operators, which were left out, are its work.
        with_operators = True
        read = _read(trace, limits, with_operators, progress)
    return _timeline(trace, read, classifier or Classifier(), with_operators, device)


class Activity(NamedTuple):
    """One event of a format that is no Chrome trace, under Kineto's categories.

    Attributes
    ----------
    category : str
        ``kernel``, ``gpu_memcpy``, ``gpu_memset``, ``cuda_runtime``, ``user_annotation``, ...
    name : str
    start_ns, end_ns : int
    process, thread : int or str
        For a device's work its number and stream.
    correlation, bytes : int
        -1 where there is none.
    """

    category: str
    name: str
    start_ns: int
    end_ns: int
    process: int | str
    thread: int | str
    correlation: int = -1
    bytes: int = -1


def assemble(
    trace: TraceFile,
    activities: Iterable[Activity],
    header: Mapping[str, Any],
    *,
    classifier: Classifier | None = None,
    limits: Limits | None = None,
) -> RankTimeline:
    """Return the timeline of a rank from its events: spans, streams, communications and steps as of a Kineto trace.

    Parameters
    ----------
    trace : TraceFile
    activities : iterable of Activity
    header : mapping
        As of a Kineto trace: ``distributedInfo``, ``deviceProperties``, ``host_name``.
    classifier, limits
        As in :func:`read_rank`.

    Raises
    ------
    InputError
        When there is nothing, or more than a limit.
    """
    damage = Damage(trace.label)
    rows = Rows(damage, True, (limits or Limits()).spans)
    buffer = TextBuffer(lambda _: 0)
    events = EventArray(buffer, Decoders(True, True), rows, damage)
    document = Document(buffer, events, trace.label)
    document.header = dict(header)
    while batch := list(islice(activities := iter(activities), _BATCH)):
        structs = []
        for one in batch:
            if role(one.category) is Role.SKIP:
                continue
            arguments: dict[str, Any] = {"correlation": one.correlation}
            kind = ARGS[role(one.category)]
            if kind is DeviceArgs:
                arguments |= {"device": one.process, "stream": one.thread, "bytes": one.bytes}
            args = kind(**{key: value for key, value in arguments.items() if key in kind.__struct_fields__})
            times = {"ts": _microseconds(one.start_ns), "dur": _microseconds(one.end_ns - one.start_ns)}
            struct = struct_of(one.category, operators=True, text=True)
            structs.append(struct(name=one.name, pid=one.process, tid=one.thread, args=args, **times))
        first = events.count
        rows.add(structs, lambda struct, first=first: (first, 0))  # type: ignore[misc]
        events.count += len(batch)
    if events.count == 0:
        raise InputError(f"{trace.label}: holds no events; record the work of a device")
    return _timeline(trace, _Read(document, events, rows, damage, ""), classifier or Classifier(), True, "")


def _microseconds(ns: int) -> msgspec.Raw:
    return msgspec.Raw(f"{'-' * (ns < 0)}{abs(ns) // 1000}.{abs(ns) % 1000:03d}".encode())


def _read(trace: TraceFile, limits: Limits, operators: bool, progress: Progress | None) -> _Read:
    try:
        return _read_once(trace, limits, operators, progress, text=False)
    except NeedsText:
        return _read_once(trace, limits, operators, progress, text=True)


def _read_once(trace: TraceFile, limits: Limits, operators: bool, progress: Progress | None, text: bool) -> _Read:
    with Source(trace.path, trace.member, trace.label, limits) as source:

        def fill(target: memoryview) -> int:
            count = source.readinto(target)
            if progress:
                progress(source.consumed)
            return count

        buffer = TextBuffer(fill, limits.chunk_bytes, limits.event_bytes)
        damage = Damage(trace.label)
        rows = Rows(damage, text, limits.spans)
        events = EventArray(buffer, Decoders(operators, text), rows, damage)
        document = Document(buffer, events, trace.label)
        try:
            document.read()
        except InputError as error:
            if source.damage:
                raise InputError(f"{error} ({source.damage})") from error
            raise
        if events.count == 0:
            raise InputError(f"{trace.label}: holds no events; record at least one active step")
        if events.count == damage.skipped:
            raise InputError(f"{damage.notes()[0].message}; no event of the file can be read; record it again")
        return _Read(document, events, rows, damage, source.damage)


def _has_device_work(rows: Rows) -> bool:
    return any(role is Role.DEVICE for _, role in rows.categories)


def _device_without_work(trace: TraceFile, read: _Read) -> str:
    """Say what shows that a run used a device, where the trace holds no kernel of it; empty otherwise."""
    kinds = {category for category, role in read.rows.categories if role is Role.DEVICE}
    issued = [name for name in read.rows.names if _ISSUES_WORK.match(name)]
    # A trace of copies alone may be whole.
    if kinds - {MEMCPY, MEMSET} or (kinds and not any("Launch" in name for name in issued)):
        return ""
    if issued:
        return f"calls of {issued[0]}"
    if marks := sorted(filter(marks_device, read.events.loose.skipped)):
        return f"events of {marks[0]}"
    header = origin_of(trace, "", read.document.header)
    if set(re.findall(r"\w+", header.backend.lower())) <= _ON_PROCESSORS and header.backend:
        # The machine may have devices that the run leaves alone.
        return ""
    if calls := [category for category, role in read.rows.categories if role is Role.LAUNCH]:
        return f"events of {calls[0]}"
    return f"{header.devices[0]} among its devices" if header.devices else ""


def _timeline(trace: TraceFile, read: _Read, classifier: Classifier, with_operators: bool, device: str) -> RankTimeline:
    on_host = not device and not _has_device_work(read.rows) and with_operators
    rank, rank_from, rank_notes = rank_of(trace, read.document.header)
    notes = [*read.damage.notes(), *read.document.notes, *rank_notes, *_remarks(trace.label, read)]
    base, base_notes = _base(trace.label, read.document.header)
    assembly = Assembly(read.rows, read.events.loose, classifier, base)
    work, host, steps = assembly.host() if on_host else assembly.device()
    if device:
        message = (
            f"{trace.label}: comes from a run on a device ({device[:80]}) but has no kernels, so "
            "what the device did is unknown; record its activity too (ProfilerActivity.CUDA or "
            "the equivalent), with no other profiler attached"
        )
        notes.append(Note(NO_DEVICE_WORK, "error", message, {"seen": device}))
    elif not len(work):
        notes.append(Note("no-work", "error", f"{trace.label}: has neither device work nor operators", {}))
    if assembly.marks_left_out:
        message = (
            f"{trace.label}: {assembly.marks_left_out} marks of steps (ProfilerStep) are not "
            "separate steps: another thread marks the same step, or a longer mark contains them; "
            "the window still covers them"
        )
        base_notes.append(Note("steps-merged", "warning", message, {"count": assembly.marks_left_out}))
    return RankTimeline(
        rank=rank,
        work=work,
        host=host,
        steps=steps,
        origin=origin_of(trace, rank_from, read.document.header),
        on_host=on_host,
        detail="host" if with_operators else "device",
        events=read.events.count,
        skipped=read.damage.skipped,
        repaired=read.damage.repaired,
        notes=(*notes, *base_notes),
        marks=assembly.marks,
        self_launched=assembly.self_launched,
    )


def _base(label: str, header: dict[str, Any]) -> tuple[int, list[Note]]:
    """Return the nanoseconds to add to every time."""
    recorded = header.get("baseTimeNanoseconds", 0)
    try:
        base = int(recorded)
    except (TypeError, ValueError, OverflowError):
        base = -1
    if 0 <= base < LIMIT_NS:
        return base, []
    message = f"{label}: baseTimeNanoseconds is {str(recorded)[:40]!r}; times are relative to the trace's own zero"
    return 0, [Note("base-time-unreadable", "warning", message, {})]


def _remarks(label: str, read: _Read) -> list[Note]:
    """What is wrong with the file beyond single events, and what of it is not counted."""
    notes = []
    if read.stream_damage:
        message = f"{label}: the file is damaged ({read.stream_damage}); everything before that was read"
        notes.append(Note("file-damaged", "error", message, {"file": label}))
    if read.events.cut_short:
        message = f"{label}: the file {read.events.cut_short}; everything before that was read"
        notes.append(Note("file-ends-early", "error", message, {"file": label}))
    for category, (count, name) in read.rows.unknown.items():
        message = f"{label}: {count} events of unknown category {category!r} (first: {name[:80]!r}) are not counted"
        notes.append(Note("category-unknown", "warning", message, {"category": category, "count": count}))
    for process, count in read.events.loose.uncategorised.items():
        message = f"{label}: {count} events of process {process[:80]!r} have no category and are not counted"
        notes.append(Note("category-missing", "warning", message, {"process": process, "count": count}))
    if read.events.loose.halves:
        count = read.events.loose.halves
        message = f"{label}: {count} events of phase B or E (begin, end) have no partner and are not counted"
        notes.append(Note("phase-unknown", "warning", message, {"count": count}))
    return notes


# From rows to spans and steps.

Column = NDArray[Any]

_STEP = re.compile(r"ProfilerStep\s*[#*]?\s*(\d{0,18})")
_BESIDE = re.compile(r"(?i)transpose|nchwToNhwc|nhwcToNchw|elementwise|splitK\w*reduce|reduce_kernel|CastTensor|copy")
"""Kernels that an operator launches beside its product: other layouts, types, sums of parts."""
_COMM_THREAD = re.compile(r"pt_(gloo|mpi|ucc)_runloop")
_HOST_KINDS = {Role.LAUNCH: Kind.LAUNCH, Role.RANGE: Kind.ANNOTATION, Role.OP: Kind.OP, Role.FRAME: Kind.FRAME}
_NO_WORK = -1

_HOST = ("start", "duration", "name", "category", "lane", "correlation", "external", "comm")
_DEVICE = (*_HOST, "bytes")
_NOTHING: Column = np.empty(0, np.int8)
_FINAL: dict[str, Any] = {
    "kind": np.int8,
    "name": np.int32,
    "bytes": np.int64,
    "correlation": np.int64,
    "comm": np.int32,
    "product": np.int32,
}


class Assembly:
    """Builds spans from the rows of one file, emptying them column by column.

    Parameters
    ----------
    rows : Rows
    loose : LooseEvents
        Names of threads and processes.
    classifier : Classifier
    base : int
        Nanoseconds to add to every time.

    Attributes
    ----------
    marks_left_out : int
        Marks of steps that repeat one of another thread or lie inside a longer one; known once the steps are.
    marks : Marks or None
        All marks together; likewise.
    self_launched : Spans
        Device spans that stand for their own launch; known once the device's spans are.
    """

    def __init__(self, rows: Rows, loose: LooseEvents, classifier: Classifier, base: int) -> None:
        self._rows, self._loose, self._classifier, self._base = rows, loose, classifier, base
        self._names: tuple[str, ...] = tuple(rows.names)
        self._categories: list[tuple[str, Role]] = list(rows.categories)
        self._comms: list[Comm] = list(rows.comms)
        # Lanes, each once, and the lane of each key that the rows were numbered by.
        numbers: dict[Lane, int] = {}
        of_key = [numbers.setdefault(self._lane(*key), len(numbers)) for key in rows.lanes]
        self._lanes = tuple(numbers) or (Lane("", ""),)
        self._lane_of = np.array(of_key, np.int32)
        self.marks_left_out = 0
        self.marks: Marks | None = None
        self.self_launched = Spans.empty()

    def device(self) -> tuple[Spans, Spans, tuple[Step, ...]]:
        """Return what the devices did, the host's side and the steps, of a trace with device work."""
        device = {key: self._rows.device.take(key) for key in _DEVICE}
        host = {key: self._rows.host.take(key) for key in _HOST}
        device["kind"] = self._each(device["category"], device["name"], self._device_kind)
        self.self_launched = self._self_launched(device)
        device["product"] = self._computed(device, host)
        device["comm"], comms = complete(device, host, self._names, self._comms, self._rows.announced, self._classifier)
        work = self._spans(device, comms)
        host["kind"] = self._host_kinds(host["category"])
        steps = self._steps(host)
        return work, self._spans(host, self._recorded_comms()), steps

    def host(self) -> tuple[Spans, Spans, tuple[Step, ...]]:
        """Return the processor's work, its other ranges and the steps, of a trace without device work."""
        host = {key: self._rows.host.take(key) for key in _HOST}
        host["kind"] = self._host_kinds(host["category"])
        steps = self._steps(host)
        # Which lanes are threads of a communication back-end; what a thread was ever called counts.
        threads = {
            str(tid)
            for (_, tid), names in self._loose.threads.items()
            if any(_COMM_THREAD.search(name) for name in names)
        }
        is_comm_lane = np.array([*(str(key[1]) in threads for key in self._rows.lanes), False], bool)
        on_comm_thread = is_comm_lane[host["lane"]]
        kind = self._each(host["category"].astype(np.int64) << 1 | on_comm_thread, host["name"], self._work_kind)
        is_work = kind != _NO_WORK
        work = {key: column[is_work] for key, column in host.items()}
        work["kind"] = kind[is_work]
        work["product"] = self._product(work["external"])
        numbers = Comms(self._classifier)
        comm: Column = np.full(len(work["kind"]), -1, np.int32)
        for row in np.flatnonzero(work["kind"] == Kind.COMM).tolist():
            recorded = self._comms[work["comm"][row]] if work["comm"][row] >= 0 else Comm()
            comm[row] = numbers.number(recorded, self._names[work["name"][row]])
        work["comm"] = comm
        is_range = ~is_work | (host["kind"] == Kind.ANNOTATION)
        ranges = {key: host.pop(key)[is_range] for key in list(host)}
        return self._spans(work, numbers.table), self._spans(ranges, self._recorded_comms()), steps

    def _host_kinds(self, category: Column) -> Column:
        kinds = [_HOST_KINDS.get(role, Kind.UNKNOWN) for _, role in self._categories]
        return np.array([*kinds, 0], np.int8)[category]

    def _device_kind(self, category: tuple[str, Role], name: str, collective: bool) -> int:
        if category[1] is Role.UNKNOWN:
            return Kind.UNKNOWN
        return Kind.SYNC if category[1] is Role.SYNC else self._classifier.kind(category[0], name, collective)

    def _work_kind(self, category: tuple[str, Role], name: str, on_comm_thread: bool) -> int:
        is_call = category[1] in (Role.LAUNCH, Role.FRAME)
        kind = None if is_call else self._classifier.host_kind(category[0], name, on_comm_thread)
        return _NO_WORK if kind is None else kind

    def _each(self, code: Column, name: Column, decide: Callable[[tuple[str, Role], str, bool], int]) -> Column:
        """Decide once for each combination of category (with a flag in the lowest bit) and name."""
        keys = name.astype(np.int64) << 16 | code
        unique = distinct(keys)
        kinds = [
            decide(self._categories[(key & 0xFFFF) >> 1], self._names[key >> 16], bool(key & 1))
            for key in unique.tolist()
        ]
        return np.array(kinds, np.int8)[np.searchsorted(unique, keys)] if kinds else np.empty(0, np.int8)

    def _recorded_comms(self) -> tuple[Comm, ...]:
        """Communications as ranges tell them, their operation in one spelling."""
        return tuple(comm._replace(op=self._classifier.op(comm.op)) if comm.op else comm for comm in self._comms)

    def _spans(self, columns: dict[str, Column], comms: tuple[Comm, ...]) -> Spans:
        """Sort columns by start, longer first, one at a time; the originals go as their copies come."""
        start, duration = columns.pop("start"), columns.pop("duration")
        order = np.lexsort((-duration, start))
        ready: dict[str, Any] = {"start": start[order].astype(np.int64, copy=False)}
        ready["start"] += self._base
        ready["end"] = duration[order].astype(np.int64, copy=False)
        ready["end"] += ready["start"]
        del start, duration
        ready["lane"] = self._lane_of[columns.pop("lane")[order]]
        for key, dtype in _FINAL.items():
            column = columns.pop(key, _NOTHING)
            # A column that says nothing takes no memory.
            says_something = len(column) > 0 and bool((column != -1).any())
            ready[key] = (
                column[order].astype(dtype) if says_something else np.broadcast_to(np.array(-1, dtype), len(order))
            )
            del column
        return Spans(**ready, names=self._names, lanes=self._lanes, comms=comms, products=tuple(self._rows.products))

    def _product(self, external: Column) -> Column:
        """Return the product that each operator computes, by External id; -1 where its shapes do not tell."""
        shaped = self._rows.shaped
        if not shaped:
            return np.broadcast_to(np.int32(-1), len(external))
        ids = np.array(sorted(shaped), np.int64)
        numbers = np.array([shaped[key] for key in ids.tolist()], np.int32)
        at = np.minimum(np.searchsorted(ids, external), len(ids) - 1)
        return np.where(ids[at] == external, numbers[at], -1)

    def _computed(self, device: dict[str, Column], host: dict[str, Column]) -> Column:
        """Return the product that each kernel computes: of the kernels of an operator's call the longest has it.

        The operator is that of the kernel's External id, or of the call that launched it. Kernels that by their names
        bring data into place do not count: around a convolution they may take longer than it.
        """
        if not self._rows.shaped:
            return np.broadcast_to(np.int32(-1), len(device["kind"]))
        # An External id equal to the correlation is not an operator's.
        external = np.where(device["external"] == device["correlation"], -1, device["external"]).astype(np.int64)
        calls = np.flatnonzero((host["correlation"] >= 0) & (host["external"] >= 0))
        unknown = np.flatnonzero((external < 0) & (device["correlation"] >= 0))
        if len(calls) and len(unknown):
            calls = calls[np.argsort(host["correlation"][calls], kind="stable")]
            keys, wanted = host["correlation"][calls], device["correlation"][unknown]
            at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            external[unknown] = np.where(keys[at] == wanted, host["external"][calls[at]], -1)
        beside = np.array([*(bool(_BESIDE.search(name[:1000])) for name in self._names), False], bool)
        computes = (device["kind"] == Kind.COMPUTE) & ~beside[device["name"]]
        product = np.where(computes, self._product(external), -1)
        rows = np.flatnonzero(product >= 0)
        rows = rows[np.lexsort((device["duration"][rows], external[rows]))]
        shorter = rows[:-1][external[rows[:-1]] == external[rows[1:]]]
        product[shorter] = -1
        return product

    def _self_launched(self, device: dict[str, Column]) -> Spans:
        """Spans of MTIA, whose category the rule of window ``hta`` does not count among a device's."""
        mtia = np.array([category == MTIA for category, _ in self._categories], bool)
        if not mtia.any():
            return Spans.empty()
        rows = np.flatnonzero(mtia[device["category"] >> 1] & (device["correlation"] >= 0))
        columns = {key: device[key][rows] for key in ("start", "duration", "kind", "name", "lane", "correlation")}
        return self._spans(columns, ())

    def _steps(self, host: dict[str, Column]) -> tuple[Step, ...]:
        """Return the steps, each once, and remember their marks."""
        numbers = {i: match[1] for i, name in enumerate(self._names) if (match := _STEP.fullmatch(name))}
        is_mark = np.zeros(len(self._names) + 1, bool)
        is_mark[list(numbers)] = True
        rows = np.flatnonzero(is_mark[host["name"]] & (host["kind"] == Kind.ANNOTATION))
        rows = rows[np.argsort(host["start"][rows], kind="stable")]
        marks: list[Mark] = []
        for count, row in enumerate(rows.tolist()):
            start = int(host["start"][row]) + self._base
            number = int(numbers[int(host["name"][row])] or count)
            step = Step(number, start, start + int(host["duration"][row]))
            marks.append(Mark(step, int(self._lane_of[host["lane"][row]])))
        self.marks = Marks.of([mark.step for mark in marks], (int(host["name"][row]) for row in rows))
        steps = merge_marks(marks)
        self.marks_left_out = len(marks) - len(steps)
        return steps

    def _lane(
        self, pid: int | str, tid: int | str, device: int | str | None, stream: int | str | None, on_device: bool
    ) -> Lane:
        label = (self._loose.threads.get((pid, tid)) or [""])[-1].strip()
        if not on_device:
            return Lane(str(pid), str(tid), label)
        if isinstance(pid, str) and pid:
            process = pid
        else:
            labels = self._loose.processes.get(pid, {}).get("labels", "")
            process = labels if labels and labels != "CPU" else f"GPU {pid if device is None else device}"
        return Lane(process, str(tid if stream is None else stream), label if stream is None else "")


class Mark(NamedTuple):
    """A step as one thread marked it."""

    step: Step
    lane: int


def merge_marks(marks: Sequence[Mark]) -> tuple[Step, ...]:
    """Return each step once, by start.

    Of marks with one number on several threads those of one thread stay: of the thread with most marks, of equals that
    which began first. Then a mark inside a longer one goes. Repeats on one thread stay: a file may hold two recordings.

    Examples
    --------
    >>> outer, nested, other = Step(1, 0, 100), Step(1, 10, 50), Step(1, 3, 103)
    >>> merge_marks([Mark(outer, 0), Mark(other, 1), Mark(nested, 0)])
    (Step(number=1, start=0, end=100),)
    """
    # One order of threads for all numbers, lest steps take turns.
    lanes: dict[int, list[int]] = {}
    for mark in marks:
        lanes.setdefault(mark.lane, []).append(mark.step.start)
    order = sorted(lanes, key=lambda lane: (-len(lanes[lane]), min(lanes[lane]), lane))
    position = {lane: at for at, lane in enumerate(order)}
    best: dict[int, int] = {}
    for mark in marks:
        number = mark.step.number
        best[number] = min(best.get(number, len(order)), position[mark.lane])
    steps = [mark.step for mark in marks if best[mark.step.number] == position[mark.lane]]
    # Of these the outermost; twins stay. Longer first: what holds a step comes before it, and the first to reach
    # furthest holds whatever any of them holds.
    outermost: list[Step] = []
    reach: Step | None = None
    for step in sorted(steps, key=lambda step: (step.start, -step.end)):
        if reach and step.start < reach.end >= step.end and (step.start, step.end) != (reach.start, reach.end):
            continue
        outermost.append(step)
        if reach is None or step.end > reach.end:
            reach = step
    return tuple(outermost)
