"""Columns of a file to the spans of a rank."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from densing.efficiency.timeline import Comm, Kind, Lane, Marks, Spans, Step
from densing.efficiency.traces.readers.anything import Anything
from densing.efficiency.traces.readers.categories import MTIA, Role
from densing.efficiency.traces.readers.joins import Comms, complete, distinct
from densing.efficiency.traces.readers.marks import Mark, merge_marks
from densing.efficiency.traces.readers.rows import Columns, Rows

Column = NDArray[Any]

_STEP = re.compile(r"ProfilerStep\s*[#*]?\s*(\d{0,18})")
_COMM_THREAD = re.compile(r"pt_(gloo|mpi|ucc)_runloop")
_HOST_KINDS = {Role.LAUNCH: Kind.LAUNCH, Role.RANGE: Kind.ANNOTATION, Role.OP: Kind.OP}
_NO_WORK = -1


class Rules(Protocol):
    """What a classifier answers (:class:`densing.efficiency.timeline.classify.Classifier`)."""

    def kind(self, category: str, name: str, collective: bool = False) -> Kind:
        """Return the kind of device work."""

    def op(self, name: str) -> str:
        """Return which collective a name means, empty if none."""

    def host_kind(self, category: str, name: str, on_comm_thread: bool) -> Kind | None:
        """Return the kind of a processor's range in a run without device, None if it is no work."""


class Assembly:
    """Builds spans from the rows of one file, emptying them column by column.

    Parameters
    ----------
    rows : Rows
    anything : Anything
        Names of threads and processes.
    rules : Rules
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

    def __init__(self, rows: Rows, anything: Anything, rules: Rules, base: int) -> None:
        self._rows, self._anything, self._rules, self._base = rows, anything, rules, base
        self._names: tuple[str, ...] = tuple(rows.names)
        self._categories: list[tuple[str, Role]] = list(rows.categories)
        self._told: list[Comm] = list(rows.comms)
        self._lanes, self._lane_of = self._number_lanes()
        self.marks_left_out = 0
        self.marks: Marks | None = None
        self.self_launched = Spans.empty()

    def device(self) -> tuple[Spans, Spans, tuple[Step, ...]]:
        """Return what the devices did, the host's side and the steps, of a trace with device work."""
        device, host = _joined(self._rows.device, _DEVICE), _joined(self._rows.host, _HOST)
        device["kind"] = self._each(device["what"], device["name"], self._device_kind)
        self.self_launched = self._self_launched(device)
        device["comm"], comms = complete(device, host, self._names, self._told, self._rows.announced, self._rules)
        work = self._spans(device, comms)
        host["kind"] = self._host_kinds(host["what"])
        steps = self._steps(host)
        return work, self._spans(host, self._comms_told()), steps

    def host(self) -> tuple[Spans, Spans, tuple[Step, ...]]:
        """Return the processor's work, its other ranges and the steps, of a trace without device work."""
        host = _joined(self._rows.host, _HOST)
        host["kind"] = self._host_kinds(host["what"])
        steps = self._steps(host)
        apart = self._comm_lanes()[host["lane"]]
        kind = self._each(host["what"].astype(np.int64) << 1 | apart, host["name"], self._work_kind)
        is_work = kind != _NO_WORK
        work = {key: column[is_work] for key, column in host.items()}
        work["kind"] = kind[is_work]
        work["comm"], comms = self._comms_of_ranges(work)
        rest = ~is_work | (host["kind"] == Kind.ANNOTATION)
        others = {key: host.pop(key)[rest] for key in list(host)}
        return self._spans(work, comms), self._spans(others, self._comms_told()), steps

    def _device_kind(self, category: tuple[str, Role], name: str, collective: bool) -> int:
        if category[1] is Role.UNKNOWN:
            return Kind.UNKNOWN
        return Kind.SYNC if category[1] is Role.SYNC else self._rules.kind(category[0], name, collective)

    def _work_kind(self, category: tuple[str, Role], name: str, apart: bool) -> int:
        kind = self._rules.host_kind(category[0], name, apart) if category[1] is not Role.LAUNCH else None
        return _NO_WORK if kind is None else kind

    def _each(self, what: Column, name: Column, decide: Callable[[tuple[str, Role], str, bool], int]) -> Column:
        """Decide once for each combination of category (with a flag in the lowest bit) and name."""
        keys = name.astype(np.int64) << 16 | what
        unique = distinct(keys)
        told = [
            decide(self._categories[(key & 0xFFFF) >> 1], self._names[key >> 16], bool(key & 1))
            for key in unique.tolist()
        ]
        return np.array(told, np.int8)[np.searchsorted(unique, keys)] if told else np.empty(0, np.int8)

    def _host_kinds(self, what: Column) -> Column:
        kinds = [_HOST_KINDS.get(role, Kind.UNKNOWN) for _, role in self._categories]
        return np.array([*kinds, 0], np.int8)[what]

    def _comms_told(self) -> tuple[Comm, ...]:
        return tuple(comm._replace(op=self._rules.op(comm.op)) if comm.op else comm for comm in self._told)

    def _comms_of_ranges(self, work: dict[str, Column]) -> tuple[Column, tuple[Comm, ...]]:
        comms = Comms(self._rules)
        found: Column = np.full(len(work["kind"]), -1, np.int32)
        for row in np.flatnonzero(work["kind"] == Kind.COMM).tolist():
            told = work["comm"][row]
            comm = self._told[told] if told >= 0 else Comm()
            found[row] = comms.number(comm, self._names[work["name"][row]])
        return found, comms.table

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
            told = len(column) > 0 and bool((column != -1).any())
            ready[key] = column[order].astype(dtype) if told else np.broadcast_to(np.array(-1, dtype), len(order))
            del column
        return Spans(**ready, names=self._names, lanes=self._lanes, comms=comms)

    def _self_launched(self, device: dict[str, Column]) -> Spans:
        """Spans of MTIA, whose category the rule of window ``hta`` does not count among a device's."""
        mtia = np.array([category == MTIA for category, _ in self._categories], bool)
        if not mtia.any():
            return Spans.empty()
        rows = np.flatnonzero(mtia[device["what"] >> 1] & (device["correlation"] >= 0))
        columns = {key: device[key][rows] for key in ("start", "duration", "kind", "name", "lane", "correlation")}
        return self._spans(columns, ())

    def _steps(self, host: dict[str, Column]) -> tuple[Step, ...]:
        numbers = {i: told[1] for i, name in enumerate(self._names) if (told := _STEP.fullmatch(name))}
        marks = np.zeros(len(self._names) + 1, bool)
        marks[list(numbers)] = True
        rows = np.flatnonzero(marks[host["name"]] & (host["kind"] == Kind.ANNOTATION))
        rows = rows[np.argsort(host["start"][rows], kind="stable")]
        found: list[Mark] = []
        for count, row in enumerate(rows.tolist()):
            start = int(host["start"][row]) + self._base
            number = int(numbers[int(host["name"][row])] or count)
            step = Step(number, start, start + int(host["duration"][row]))
            found.append(Mark(step, int(self._lane_of[host["lane"][row]])))
        self.marks = Marks.of([mark.step for mark in found], (int(host["name"][row]) for row in rows))
        steps = merge_marks(found)
        self.marks_left_out = len(found) - len(steps)
        return steps

    def _number_lanes(self) -> tuple[tuple[Lane, ...], NDArray[np.int32]]:
        """Lanes, each once, and the lane of each key the rows were numbered by."""
        numbers: dict[Lane, int] = {}
        of = [numbers.setdefault(self._lane(*key), len(numbers)) for key in self._rows.lanes]
        return tuple(numbers) or (Lane("", ""),), np.array(of, np.int32)

    def _lane(
        self, pid: int | str, tid: int | str, device: int | str | None, stream: int | str | None, on: bool
    ) -> Lane:
        label = (self._anything.threads.get((pid, tid)) or [""])[-1].strip()
        if not on:
            return Lane(str(pid), str(tid), label)
        if isinstance(pid, str) and pid:
            process = pid
        else:
            known = self._anything.processes.get(pid, {}).get("labels", "")
            process = known if known and known != "CPU" else f"GPU {pid if device is None else device}"
        return Lane(process, str(tid if stream is None else stream), label if stream is None else "")

    def _comm_lanes(self) -> NDArray[np.bool_]:
        """Which lanes are threads of a communication back-end; what a thread was ever called counts."""
        named = {
            str(tid)
            for (_, tid), names in self._anything.threads.items()
            if any(_COMM_THREAD.search(name) for name in names)
        }
        return np.array([*(str(key[1]) in named for key in self._rows.lanes), False], bool)


_HOST = ("start", "duration", "name", "what", "lane", "correlation", "external", "comm")
_DEVICE = (*_HOST, "bytes")
_NOTHING: Column = np.empty(0, np.int8)
_FINAL: dict[str, Any] = {
    "kind": np.int8,
    "name": np.int32,
    "bytes": np.int64,
    "correlation": np.int64,
    "comm": np.int32,
}


def _joined(columns: Columns, keys: Iterable[str]) -> dict[str, Column]:
    return {key: columns.take(key) for key in keys}
