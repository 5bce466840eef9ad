"""How much communication was hidden behind computation, and what was exposed."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from densing.core import Record
from densing.efficiency.timeline.intervals import Union, intersect, length, subtract, union
from densing.efficiency.timeline.spans import Kind, Spans
from densing.efficiency.timeline.windows import Window


class Partition(Record, frozen=True):
    """A window split into what the device did, in nanoseconds.

    With K, C and M the unions of compute, communication and memory spans:

    .. math:: |W| = |K| + |C \\setminus K| + |M \\setminus (K \\cup C)| + idle

    Attributes
    ----------
    window_ns, span_ns : int
        Length of the window; from the first to the last work inside it.
    compute_ns, comm_ns, memcpy_ns : int
        |K|, |C|, |M| (copies and fills).
    overlap_ns, exposed_comm_ns, exposed_memcpy_ns : int
        |C ∩ K|, |C \\ K|, |M \\ (K ∪ C)|.
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
        """Share of communication hidden behind compute, 100·|C ∩ K|/|C|; None without communication."""
        return 100 * self.overlap_ns / self.comm_ns if self.comm_ns else None

    @property
    def achievable_pct(self) -> float | None:
        """Ceiling of the overlap ratio, 100·min(|C|, |K|)/|C|: no schedule hides more than there is compute."""
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
    >>> from densing.efficiency.timeline.timeline import RankTimeline
    >>> from densing.efficiency.timeline.windows import select
    >>> work = Spans.build([{"start": 10, "end": 60, "kind": Kind.COMPUTE, "name": "gemm"},
    ...                     {"start": 40, "end": 80, "kind": Kind.COMM, "name": "ncclDevKernel_AllReduce"}])
    >>> partition(select(RankTimeline(0, work, Spans.empty()))).exposed_comm_ns
    20
    """
    parts = merged or unions(window.work)
    compute, comm, memory = length(parts.compute), length(parts.comm), length(parts.memory)
    overlap = length(intersect(parts.comm, parts.compute))
    whole, busy = window.end - window.start, length(parts.busy)
    exposed_memory = busy - compute - (comm - overlap)
    work = window.work
    span = int(work.end.max() - work.start.min()) if len(work) else 0
    idle = whole - busy
    assert idle >= 0 and exposed_memory >= 0, "a partition that does not sum to its window"
    return Partition(whole, span, compute, comm, memory, overlap, comm - overlap, exposed_memory, idle)


def _merged(work: Spans, *kinds: Kind) -> Union:
    chosen = np.isin(work.kind, [int(kind) for kind in kinds])
    return union(work.start[chosen], work.end[chosen])
