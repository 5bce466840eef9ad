"""One Kineto or Chrome trace to the timeline of its rank."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from densing.core import InputError, Note
from densing.efficiency.timeline import NO_DEVICE_WORK, Classifier, RankTimeline
from densing.efficiency.traces.kineto.array import EventArray
from densing.efficiency.traces.kineto.assembly import Assembly
from densing.efficiency.traces.kineto.document import Document, origin_of, rank_of
from densing.efficiency.traces.kineto.events import MEMCPY, MEMSET, Decoders, Role, marks_device
from densing.efficiency.traces.kineto.microseconds import LIMIT_NS, NeedsText
from densing.efficiency.traces.kineto.rows import Rows
from densing.efficiency.traces.kineto.salvage import Damage
from densing.efficiency.traces.kineto.text import TextBuffer
from densing.efficiency.traces.source import Detail, Limits, Progress, Source, TraceFile

_ISSUES_WORK = re.compile(r"(cu|hip|mu|ze|ur|cn|gcu|acl|mtia)\w*(Launch|Memcpy|Memset)")
"""Runtime calls that hand work to a device, by name."""
_ON_PROCESSORS = {"gloo", "mpi", "ucc", "cpu", "cuda"}
"""What the back-end of a run is made of that communicates by the processor: ``gloo``, ``cpu:gloo,cuda:gloo``."""


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

    Parameters
    ----------
    trace : TraceFile
    classifier : Classifier, optional
        What names mean; the built-in rules if not given.
    detail : {"auto", "device", "host"}
        ``device``: device work, launches, ranges. ``host``: operators too. ``auto``: ``device``, or ``host`` where the
        trace is of no device; the processor's work is then the timeline's. A trace of a device that holds no kernel
        is :attr:`densing.efficiency.timeline.RankTimeline.blind`.
    limits : Limits, optional
    progress : callable, optional
        Called with the bytes of the file consumed so far.

    Raises
    ------
    InputError
        When the file cannot be read, is no trace, holds no events or passes a limit.

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
        document.read()
        if events.count == 0:
            raise InputError(f"{trace.label}: holds no events; record at least one active step")
        if events.count == damage.skipped:
            raise InputError(f"{damage.notes()[0].message}; no event of the file can be read, record it again")
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
            f"{trace.label}: is of a run on a device ({device[:80]}) but holds no kernel, so nothing tells what the "
            "device did; record its activity too (ProfilerActivity.CUDA or the device's own), with no other profiler "
            "attached to it"
        )
        notes.append(Note(NO_DEVICE_WORK, "error", message, {"seen": device}))
    elif not len(work):
        notes.append(Note("no-work", "error", f"{trace.label}: holds neither device work nor operators", {}))
    if assembly.marks_left_out:
        message = (
            f"{trace.label}: {assembly.marks_left_out} marks of steps (ProfilerStep) are no steps of their own: "
            "another thread marks the same step, or a longer mark holds them; the window still reaches over them"
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
    message = f"{label}: baseTimeNanoseconds is {str(recorded)[:40]!r}; times count from the trace's own zero"
    return 0, [Note("base-time-unreadable", "warning", message, {})]


def _remarks(label: str, read: _Read) -> list[Note]:
    """What is wrong with the file beyond single events, and what of it is not counted."""
    notes = []
    if read.stream_damage:
        message = f"{label}: the file is damaged ({read.stream_damage}); what precedes was read"
        notes.append(Note("file-damaged", "error", message, {"file": label}))
    if read.events.cut_short:
        message = f"{label}: the file {read.events.cut_short}; what precedes was read"
        notes.append(Note("file-ends-early", "error", message, {"file": label}))
    for category, (count, name) in read.rows.unknown.items():
        message = f"{label}: {count} events of unknown category {category!r} (first: {name[:80]!r}) are not counted"
        notes.append(Note("category-unknown", "warning", message, {"category": category, "count": count}))
    for process, count in read.events.loose.uncategorised.items():
        message = f"{label}: {count} events of process {process[:80]!r} have no category and are not counted"
        notes.append(Note("category-missing", "warning", message, {"process": process, "count": count}))
    if read.events.loose.halves:
        message = f"{label}: {read.events.loose.halves} events of phase B or E (begin, end) are not counted"
        notes.append(Note("phase-unknown", "warning", message, {"count": read.events.loose.halves}))
    return notes
