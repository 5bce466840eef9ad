"""When tasks ran, as the timeline of their ranks."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from densing.efficiency.simulation.columns import Columns, Float
from densing.efficiency.timeline import Comm, Int, Kind, Lane, Origin, RankTimeline, Spans, Step, Timeline


def timeline_of(table: Columns, end: Float) -> Timeline:
    """Return what each rank did, in whole nanoseconds.

    Rounding keeps order: what ended before it began still does. A rank's step ends when its last computation of the
    step does, and the next begins there.

    Parameters
    ----------
    table : Columns
    end : float64 (n,)
        Seconds.
    """
    start_ns, end_ns = to_ns(arrivals(table, end)), to_ns(end)[table.task]
    names, name_codes = _codes([task.name for task in table.tasks])
    comms, comm_codes = _comms(table)
    origin = Origin(world_size=table.ranks, simulated=True)
    by_rank = np.argsort(table.rank, kind="stable")
    ends = np.searchsorted(table.rank[by_rank], np.arange(1, table.ranks + 1))
    sizes = np.fromiter(map(itemgetter(5), table.tasks), np.int64, len(table.tasks))
    ranks = []
    for rank, rows in enumerate(np.split(by_rank, ends)[: table.ranks]):
        task = table.task[rows]
        lanes = tuple(Lane(f"rank {rank}", stream) for stream in table.streams) or (Lane("", ""),)
        data = {"start": start_ns[rows], "end": end_ns[rows], "kind": table.kind[task], "name": name_codes[task],
                "lane": table.stream[rows], "bytes": sizes[task], "comm": comm_codes[task]}  # fmt: skip
        on_host = table.kind[task] == Kind.ANNOTATION
        work, host = (_spans(data, keep, names, lanes, comms) for keep in (~on_host, on_host))
        steps = _steps(table.step[task], table.kind[task], start_ns[rows], end_ns[rows])
        ranks.append(RankTimeline(rank, work, host, steps, origin))
    return Timeline(tuple(ranks))


def to_ns(seconds: Float) -> Int:
    """Return whole nanoseconds.

    Examples
    --------
    >>> to_ns(np.array([0.5, 1.2e-9])).tolist()
    [500000000, 1]
    """
    return np.rint(seconds * 1e9).astype(np.int64)


def arrivals(table: Columns, end: Float) -> Float:
    """Return when each member of each task came: what it needs on its rank had ended, seconds (m,).

    A task waited for that has a rank in common with this one holds back only those ranks; any other holds back all.
    """
    came = np.where(table.previous >= 0, end[table.previous], 0.0) if len(end) else np.empty(0)
    first = np.cumsum(table.members) - table.members
    several = table.members > 1
    named = len(table.waiter) - np.count_nonzero(table.previous >= 0)
    waiter, awaited = table.waiter[:named], table.awaited[:named]
    alone = ~several[waiter]
    np.maximum.at(came, first[waiter[alone]], end[awaited[alone]])
    for task in np.unique(waiter[~alone]).tolist():
        _come(came, table, end, task, int(first[task]))
    return came


def _come(came: Float, table: Columns, end: Float, task: int, first: int) -> None:
    ranks = table.tasks[task].ranks
    place = {rank: number for number, rank in enumerate(ranks, first)}
    for other in table.tasks[task].after:
        when = end[other]
        for member in [place[rank] for rank in table.tasks[other].ranks if rank in place] or place.values():
            came[member] = max(came[member], when)


def _codes(values: Sequence[str]) -> tuple[tuple[str, ...], Int]:
    known = {value: code for code, value in enumerate(dict.fromkeys(values))}
    return tuple(known), np.fromiter(map(known.__getitem__, values), np.int64, len(values))


def _comms(table: Columns) -> tuple[list[Comm], Int]:
    """Return the records of communications, one where tasks share an object, and each task's number (-1 none)."""
    known: dict[int, int] = {}
    comms: list[Comm] = []
    codes = np.full(len(table.tasks), -1)
    for number, task in enumerate(table.tasks):
        if task.comm is not None:
            code = known.setdefault(id(task.comm), len(comms))
            if code == len(comms):
                comms.append(task.comm)
            codes[number] = code
    return comms, codes


def _spans(data: dict[str, Int], keep: Any, names: Sequence[str], lanes: Sequence[Lane], comms: list[Comm]) -> Spans:
    chosen = {key: column[keep] for key, column in data.items()}
    used, code = np.unique(chosen["comm"], return_inverse=True)
    lacks = int(used[:1].min(initial=0) < 0)
    chosen["comm"] = code - lacks
    return Spans.columns(chosen, names, lanes, [comms[number] for number in used[lacks:].tolist()])


def _steps(step: Int, kind: Int, start: Int, end: Int) -> tuple[Step, ...]:
    inside = step >= 0
    numbers, code = np.unique(step[inside], return_inverse=True)
    if not len(numbers):
        return ()
    last, computed = np.full(len(numbers), -1), np.full(len(numbers), -1)
    np.maximum.at(last, code, end[inside])
    computing = kind[inside] == Kind.COMPUTE
    np.maximum.at(computed, code[computing], end[inside][computing])
    ends = np.maximum.accumulate(np.where(computed >= 0, computed, last))
    begins = np.concatenate(([start[inside].min()], ends[:-1]))
    return tuple(Step(int(n), int(a), int(b)) for n, a, b in zip(numbers, begins, ends, strict=True))
