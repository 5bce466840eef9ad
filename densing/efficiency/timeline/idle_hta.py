"""Idle time per stream as HolisticTraceAnalysis defines it, for comparison with our own."""

from __future__ import annotations

import numpy as np

from densing.core import Record
from densing.efficiency.timeline.launches import launch_of
from densing.efficiency.timeline.spans import Spans, used

CONSECUTIVE_NS = 30_000


class StreamIdle(Record, frozen=True):
    """Idle time of one stream, ns: launched too late, short pause after an early launch, anything else."""

    stream: str
    host_wait_ns: int
    kernel_wait_ns: int
    other_ns: int


def stream_idle(work: Spans, host: Spans) -> tuple[StreamIdle, ...]:
    """Split each stream's pauses between consecutive spans.

    The pause g = start_i − end_{i−1} > 0 is ``host_wait`` if span i was launched after end_{i−1}; else ``kernel_wait``
    if g < 30 µs; else ``other``. Source: HolisticTraceAnalysis, ``get_idle_time_breakdown`` (its document gives the
    threshold in ns; its code applies µs). Here an unknown launch makes a pause ``kernel_wait`` or ``other``.

    Examples
    --------
    >>> from densing.efficiency.timeline.spans import Kind
    >>> work = Spans.build([{"start": 0, "end": 5, "kind": Kind.COMPUTE, "name": "a"},
    ...                     {"start": 9, "end": 12, "kind": Kind.COMPUTE, "name": "b"}])
    >>> stream_idle(work, Spans.empty())
    (StreamIdle(stream='', host_wait_ns=0, kernel_wait_ns=4, other_ns=0),)
    """
    launch = launch_of(work, host)
    rows = []
    for lane in used(work.lane):
        at = np.flatnonzero(work.lane == lane)
        pause = work.start[at][1:] - work.end[at][:-1]
        call = launch[at][1:]
        late = (call >= 0) & (host.start[call] > work.end[at][:-1]) if len(host) else np.zeros(len(call), bool)
        idle = pause > 0
        short = idle & ~late & (pause < CONSECUTIVE_NS)
        sums = [int(pause[mask].sum()) for mask in (idle & late, short, idle & ~late & ~short)]
        rows.append(StreamIdle(work.lanes[lane].thread, *sums))
    return tuple(rows)
