"""A window of a rank, and how it splits: compute, communication hidden or exposed, copies, and what was idle.

Which part of a trace counts is one of three windows, always named beside a number:

- ``all``: all that keeps the device busy; from the first start to the last end.
- ``steps``: from the start of the first to the end of the last step, device spans cut to it. Steps are the host's
  ``ProfilerStep`` ranges; here every one of them counts, whatever thread marks it.
- ``hta``: the rule of HolisticTraceAnalysis, without its rounding and with the host's markers only: device spans that
  were launched before the last step began; all of them where the markers bear one name or there are none. A span of
  MTIA stands for its own launch.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np

from densing.core import InputError, Record
from densing.efficiency.timeline.intervals import Union, intersect, length, subtract, union
from densing.efficiency.timeline.timeline import Kind, RankTimeline, Spans, Step

WindowName = Literal["steps", "all", "hta"]
WINDOWS: tuple[WindowName, ...] = ("steps", "all", "hta")


class Window(msgspec.Struct, frozen=True, eq=False):
    """A window of one rank: its name, its ends (ns) and the busy work inside, cut to it."""

    name: WindowName
    start: int
    end: int
    work: Spans


def default_window(rank: RankTimeline) -> WindowName:
    """Return ``steps`` where the trace marks steps, else ``all``."""
    return "steps" if rank.steps else "all"


def select(rank: RankTimeline, name: WindowName | None = None) -> Window:
    """Cut a rank's work to a window; that of a rank whose device tells nothing has no length and no work.

    Raises
    ------
    InputError
        When ``steps`` is asked of a trace that marks none.
    """
    name = name or default_window(rank)
    if name == "steps":
        marks = rank.marked
        if marks is None:
            raise InputError(
                f"{rank.origin.source}: marks no ProfilerStep, so there is no window 'steps'; use --window all"
            )
        if rank.blind:
            return Window(name, marks.start, marks.start, Spans.empty())
        return Window(name, marks.start, marks.end, _busy(rank.work.within(marks.start, marks.end)))
    work = Spans.empty() if rank.blind else rank.work
    if name == "hta" and (cut := _cut(rank)) is not None:
        early = [
            spans.correlation[(spans.start < cut) & (spans.correlation >= 0)]
            for spans in (rank.host, rank.self_launched)
        ]
        work = work.take(np.isin(work.correlation, np.concatenate(early)))
    work = _busy(work)
    start, end = (int(work.start.min()), int(work.end.max())) if len(work) else (0, 0)
    return Window(name, start, end, work)


def _busy(work: Spans) -> Spans:
    """Leave out what keeps nothing busy: records of synchronisation, and work that no rule knows."""
    chosen = (work.kind <= Kind.MEMSET) | (work.kind == Kind.CALL)
    return work if chosen.all() else work.take(chosen)


def counted_steps(rank: RankTimeline, window: Window) -> tuple[Step, ...]:
    """Return the steps whose work a window holds: all of them, in window ``hta`` those that begin before its cut.

    Examples
    --------
    >>> rank = RankTimeline(0, Spans.empty(), Spans.empty(), (Step(1, 0, 100), Step(2, 100, 200)))
    >>> [step.number for step in counted_steps(rank, select(rank, "hta"))]
    [1]
    """
    if rank.blind:
        return ()
    cut = _cut(rank) if window.name == "hta" else None
    return rank.steps if cut is None else tuple(step for step in rank.steps if step.start < cut)


def _cut(rank: RankTimeline) -> int | None:
    """Where the step begins that window ``hta`` leaves out, ns; None where it leaves out none."""
    marks = rank.marked
    return None if marks is None or marks.names < 2 or rank.on_host else marks.last


class Partition(Record, frozen=True):
    """A window split into what the device did, in nanoseconds.

    With K, C and M the unions of compute, communication and memory spans:

    .. math:: |W| = |K| + |C \\setminus K| + |M \\setminus (K \\cup C)| + idle

    Attributes
    ----------
    window_ns, span_ns : int
        Length of the window; from the first to the last work inside it.
    compute_ns, comm_ns, memcpy_ns : int
        ``|K|``, ``|C|``, ``|M|`` (copies and fills).
    overlap_ns, exposed_comm_ns, exposed_memcpy_ns : int
        ``|C ∩ K|``, ``|C - K|``, ``|M - (K ∪ C)|``.
    idle_ns : int
        What is left of the window.

    Notes
    -----
    Source: definitions as in AMD TraceLens (partition) and Holistic Trace Analysis (overlap ratio).
    """

    window_ns: int
    span_ns: int
    compute_ns: int
    comm_ns: int
    memcpy_ns: int
    overlap_ns: int
    exposed_comm_ns: int
    exposed_memcpy_ns: int
    idle_ns: int

    @property
    def overlap_pct(self) -> float | None:
        """Share of communication hidden behind compute, ``100·|C ∩ K|/|C|``; None without communication."""
        return 100 * self.overlap_ns / self.comm_ns if self.comm_ns else None

    @property
    def achievable_pct(self) -> float | None:
        """Ceiling of the overlap ratio, ``100·min(|C|, |K|)/|C|``: no schedule hides more than there is compute."""
        return 100 * min(self.comm_ns, self.compute_ns) / self.comm_ns if self.comm_ns else None

    @property
    def exposed_pct(self) -> float | None:
        """Exposed communication as a share of the window, in percent; None for an empty window."""
        return 100 * self.exposed_comm_ns / self.window_ns if self.window_ns else None

    def to_dict(self) -> dict[str, Any]:
        """Return every figure, the ratios included, as plain data."""
        ratios = {key: getattr(self, key) for key in ("overlap_pct", "achievable_pct", "exposed_pct")}
        return {**super().to_dict(), **ratios}


class Unions(msgspec.Struct, frozen=True, eq=False):
    """Unions of one rank's work by kind: compute, communication, memory, and all that is busy."""

    compute: Union
    comm: Union
    memory: Union
    busy: Union


def unions(work: Spans) -> Unions:
    """Merge a rank's work by kind.

    While a processor is inside a communication call (kind CALL), nothing counts as compute.
    """
    compute = _merged(work, Kind.COMPUTE)
    if np.any(work.kind == Kind.CALL):
        compute = subtract(compute, _merged(work, Kind.CALL))
    comm, memory = _merged(work, Kind.COMM), _merged(work, Kind.MEMCPY, Kind.MEMSET)
    parts = (compute, comm, memory)
    busy = union(np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts]))
    return Unions(compute, comm, memory, busy)


def partition(window: Window, merged: Unions | None = None) -> Partition:
    """Split a window into compute, exposed communication, exposed copies and idle; exact to the nanosecond.

    Raises
    ------
    AssertionError
        Never, unless the arithmetic is broken: the parts sum to the window.

    Examples
    --------
    >>> from densing.efficiency.timeline import RankTimeline, select
    >>> work = Spans.build([{"start": 10, "end": 60, "kind": Kind.COMPUTE, "name": "gemm"},
    ...                     {"start": 40, "end": 80, "kind": Kind.COMM, "name": "ncclDevKernel_AllReduce"}])
    >>> partition(select(RankTimeline(0, work, Spans.empty()))).exposed_comm_ns
    20
    """
    parts = merged or unions(window.work)
    compute, comm, memory = length(parts.compute), length(parts.comm), length(parts.memory)
    overlap = length(intersect(parts.comm, parts.compute))
    total, busy = window.end - window.start, length(parts.busy)
    # |M \ (K ∪ C)| = |K ∪ C ∪ M| − |K ∪ C|, and |K ∪ C| = |K| + |C \ K|.
    exposed_memory = busy - compute - (comm - overlap)
    work = window.work
    span = int(work.end.max() - work.start.min()) if len(work) else 0
    idle = total - busy
    assert idle >= 0 and exposed_memory >= 0, "a partition that does not sum to its window"
    return Partition(total, span, compute, comm, memory, overlap, comm - overlap, exposed_memory, idle)


def _merged(work: Spans, *kinds: Kind) -> Union:
    chosen = np.isin(work.kind, [int(kind) for kind in kinds])
    return union(work.start[chosen], work.end[chosen])
