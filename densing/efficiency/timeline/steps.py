"""Training steps: how each splits into compute, communication and idle, how their times spread, and one as a picture.

All steps are cut from one set of unions by binary search, so that a hundred steps cost about what one costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from densing.core import Record
from densing.efficiency.timeline.idle import marked_waits
from densing.efficiency.timeline.intervals import Int, covered, intersect, positions, quantile, subtract
from densing.efficiency.timeline.intervals import median as median_of
from densing.efficiency.timeline.overlap import Partition, Unions, Window, counted_steps, unions
from densing.efficiency.timeline.timeline import BUSY, Kind, RankTimeline, Spans


class StepPartition(Record, frozen=True):
    """One step, and what the device did in it.

    Attributes
    ----------
    number : int
        As in ``ProfilerStep#number``.
    start_ns, end_ns : int
    partition : Partition
        Of [start, end); a step is never cut to the window, its work is the window's.
    waited_ns: int
        What of its idle time the host waited for communication, as far as a range of the trace says so.
    """

    number: int
    start_ns: int
    end_ns: int
    partition: Partition
    waited_ns: int = 0

    @property
    def own_ns(self) -> int:
        """What the rank took on its own: neither communicating without computing nor waiting for communication."""
        return self.partition.window_ns - self.partition.exposed_comm_ns - self.waited_ns

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {**super().to_dict(), "partition": self.partition.to_dict()}


def step_partitions(rank: RankTimeline, window: Window, merged: Unions | None = None) -> tuple[StepPartition, ...]:
    """Split each step of a rank into compute, exposed communication, exposed copies and idle.

    Each row equals :func:`densing.efficiency.timeline.overlap.partition` of the window's work cut to the step. Steps
    may overlap. In window ``hta`` the last step has no row: only what was launched before it counts.

    Parameters
    ----------
    rank : RankTimeline
    window : Window
        Of the same rank; its work is what counts.
    merged : Unions, optional
        Of the window's work, if known.

    Examples
    --------
    >>> from densing.efficiency.timeline import Kind, Step, select
    >>> work = Spans.build([{"start": 10, "end": 60, "kind": Kind.COMPUTE, "name": "gemm"}])
    >>> rank = RankTimeline(0, work, Spans.empty(), steps=(Step(3, 0, 40), Step(4, 40, 100)))
    >>> [(step.number, step.partition.idle_ns) for step in step_partitions(rank, select(rank))]
    [(3, 10), (4, 40)]
    """
    steps = counted_steps(rank, window)
    if not steps:
        return ()
    parts = merged or unions(window.work)
    starts = np.array([step.start for step in steps], np.int64)
    ends = np.array([step.end for step in steps], np.int64)
    compute, comm = covered(parts.compute, starts, ends), covered(parts.comm, starts, ends)
    # The unions are cut once for all steps; each sum is a difference of two cumulative lengths.
    overlap = covered(intersect(parts.comm, parts.compute), starts, ends)
    busy = covered(parts.busy, starts, ends)
    columns = {
        "window_ns": ends - starts,
        "span_ns": _spans_ns(window.work, starts, ends),
        "compute_ns": compute,
        "comm_ns": comm,
        "memcpy_ns": covered(parts.memory, starts, ends),
        "overlap_ns": overlap,
        "exposed_comm_ns": comm - overlap,
        "exposed_memcpy_ns": busy - compute - (comm - overlap),
        "idle_ns": ends - starts - busy,
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    split = [Partition(**dict(zip(columns, row, strict=True))) for row in rows]
    waited = covered(subtract(marked_waits(rank), parts.busy), starts, ends).tolist()
    return tuple(StepPartition(*step, part, wait) for step, part, wait in zip(steps, split, waited, strict=True))


def _spans_ns(work: Spans, starts: Int, ends: Int) -> Int:
    """From the first to the last work inside each interval, cut to it."""
    n = len(work)
    if n == 0:
        return np.zeros(len(starts), np.int64)
    # How far all work up to a position reaches: whether something still runs where a step begins.
    none = np.iinfo(np.int64).min
    reach = np.concatenate(([none], np.maximum.accumulate(work.end)))
    before, inside = np.searchsorted(work.start, starts), np.searchsorted(work.start, ends)
    first = np.where(reach[before] > starts, starts, work.start[np.minimum(before, n - 1)])
    last = np.minimum(reach[inside], ends)
    return np.where(reach[inside] > starts, last - np.minimum(first, last), 0)


class StepTimes(Record, frozen=True):
    """How the step times of one rank spread; times in ns, rounded to whole ones, None without steps.

    Attributes
    ----------
    count : int
    median_ns, mad_ns : int or None
        Median, and median absolute deviation from it.
    mean_ns, min_ns, max_ns, p95_ns : int or None
        The 95th percentile interpolates linearly between order statistics.
    p95_over_median, max_over_median : float or None
        None also where the median is 0.
    """

    count: int
    median_ns: int | None = None
    mad_ns: int | None = None
    mean_ns: int | None = None
    min_ns: int | None = None
    max_ns: int | None = None
    p95_ns: int | None = None
    p95_over_median: float | None = None
    max_over_median: float | None = None


def step_times(durations: Sequence[int] | Int) -> StepTimes:
    """Describe how step times spread.

    Parameters
    ----------
    durations : sequence of int
        Nanoseconds, one per step.

    Examples
    --------
    >>> times = step_times([10, 10, 12, 20])
    >>> times.median_ns, times.mad_ns, times.max_over_median
    (11, 1, 1.8181818181818181)
    """
    if len(durations) == 0:
        return StepTimes(0)
    times = np.asarray(durations, np.int64)
    median, high = median_of(times), quantile(times, 0.95)
    return StepTimes(
        len(times),
        round(median),
        round(median_of(np.abs(times - median))),
        round(float(times.mean())),
        int(times.min()),
        int(times.max()),
        round(high),
        high / median if median else None,
        float(times.max()) / median if median else None,
    )


class StepSpread(Record, frozen=True):
    """How far one step's times differ between ranks.

    Attributes
    ----------
    number, occurrence : int
        Step as marked; 0 unless a rank marks the number again.
    ranks : int
        How many ranks recorded it.
    median_ns, max_ns : int
    slowest_rank : int
    spread : float or None
        (max − median)/median over ranks; None for one rank or a median of 0.
    """

    number: int
    occurrence: int
    ranks: int
    median_ns: int
    max_ns: int
    slowest_rank: int
    spread: float | None


def step_spread(durations: Mapping[int, Sequence[tuple[int, int]]]) -> tuple[StepSpread, ...]:
    """Compare the ranks step by step: (max_r − median_r)/median_r.

    A collective at the end of a step makes all ranks equally slow: a spread near 0 is not proof that none lags.

    Parameters
    ----------
    durations : mapping of rank to sequence of (number, ns)

    Examples
    --------
    >>> [row.spread for row in step_spread({0: [(1, 100)], 1: [(1, 100)], 2: [(1, 130)]})]
    [0.3]
    """
    table: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for rank, rows in durations.items():
        for key, (_, time) in zip(occurrences(number for number, _ in rows), rows, strict=True):
            table.setdefault(key, []).append((time, rank))
    spread = []
    for key in sorted(table):
        median = median_of(np.array([time for time, _ in table[key]]))
        slowest, rank = max(table[key], key=lambda row: (row[0], -row[1]))
        ratio = (slowest - median) / median if median and len(table[key]) > 1 else None
        spread.append(StepSpread(*key, len(table[key]), round(median), slowest, rank, ratio))
    return tuple(spread)


def occurrences(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return each number with its previous occurrences: a repeated number on a rank is another step.

    Examples
    --------
    >>> occurrences([3, 4, 3])
    [(3, 0), (4, 0), (3, 1)]
    """
    count: dict[int, int] = {}
    keys = []
    for number in numbers:
        count[number] = count.get(number, -1) + 1
        keys.append((number, count[number]))
    return keys


PIXELS = 1500


class Box(Record, frozen=True, array_like=True):
    """Work of one kind on one lane, drawn as one: its ends (ns), how many spans, and the longest one's name."""

    lane: str
    kind: str
    start_ns: int
    end_ns: int
    count: int
    name: str


class Picture(Record, frozen=True):
    """One step of one rank (or, without steps, its window).

    Attributes
    ----------
    step : int
        Its number; -1 for the window.
    start_ns, end_ns : int
    boxes : tuple of Box
        Spans closer than a pixel (1/1500 of the step) are drawn as one.
    """

    step: int
    start_ns: int
    end_ns: int
    boxes: tuple[Box, ...]


def picture(rank: RankTimeline, window: Window) -> Picture:
    """Draw the middle one of the steps that a window counts.

    Examples
    --------
    >>> from densing.efficiency.timeline import Kind, select
    >>> work = Spans.build([{"start": 0, "end": 5, "kind": Kind.COMPUTE, "name": "a"},
    ...                     {"start": 5, "end": 9, "kind": Kind.COMPUTE, "name": "b"}])
    >>> rank = RankTimeline(0, work, Spans.empty())
    >>> [(box.name, box.count, box.end_ns) for box in picture(rank, select(rank)).boxes]
    [('a', 2, 9)]
    """
    step, start, end = (-1, window.start, window.end)
    if steps := counted_steps(rank, window):
        step, start, end = steps[len(steps) // 2]
    spans = window.work.within(start, end).of(*BUSY)
    pixel = (end - start) // PIXELS
    boxes = []
    for code, at in positions(spans.lane.astype(np.int64) * len(Kind) + spans.kind):
        lane, kind = divmod(code, len(Kind))
        # A box begins where nothing before it reaches to within a pixel.
        start_ns, reach = spans.start[at], np.maximum.accumulate(spans.end[at])
        begins = np.flatnonzero(np.concatenate(([True], start_ns[1:] > reach[:-1] + pixel)))
        duration = spans.end[at] - start_ns
        for begin, stop in zip(begins.tolist(), np.append(begins[1:], len(at)).tolist(), strict=True):
            longest = at[begin + int(duration[begin:stop].argmax())]
            name = spans.names[spans.name[longest]][:200]
            ends = int(start_ns[begin]), int(reach[stop - 1])
            boxes.append(Box(spans.lanes[lane].text, Kind(kind).name.lower(), *ends, stop - begin, name))
    return Picture(step, start, end, tuple(boxes))
