"""What no schedule can beat: the longest chain of tasks, and the work of each stream and link."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from densing.efficiency.simulation.tasks import Graph, columns


def critical_path(graph: Graph, speed: Sequence[float] = ()) -> float:
    """Return the seconds of the longest chain of tasks that wait for one another by name, streams aside.

    Parameters
    ----------
    graph : Graph
    speed : sequence of float
        Relative speed per rank.

    Raises
    ------
    InputError
        When a task is impossible.

    Examples
    --------
    >>> from densing.efficiency.timeline import Kind
    >>> graph = Graph()
    >>> a = graph.add("a", Kind.COMPUTE, (0,), "compute", 1.0)
    >>> b = graph.add("b", Kind.COMPUTE, (0,), "compute", 2.0)
    >>> c = graph.add("c", Kind.COMM, (0,), "comm", 0.5, after=[a])
    >>> critical_path(graph)
    2.0
    """
    table = columns(graph, speed=speed)
    ends: list[float] = []
    for task, seconds in zip(table.tasks, table.seconds.tolist(), strict=True):
        ends.append(max((ends[other] for other in task.after), default=0.0) + seconds)
    return max(ends, default=0.0)


def busy(graph: Graph, speed: Sequence[float] = ()) -> dict[tuple[int, str] | str, float]:
    """Return the seconds of work of each stream, by rank and name, and of each shared link, by name.

    Raises
    ------
    InputError
        When a task is impossible.

    Examples
    --------
    >>> from densing.efficiency.timeline import Kind
    >>> graph = Graph()
    >>> for rank in (0, 1):
    ...     _ = graph.add("send", Kind.COMM, (rank,), "comm", 0.5, resources=["nic"])
    >>> busy(graph)
    {(0, 'comm'): 0.5, (1, 'comm'): 0.5, 'nic': 1.0}
    """
    table = columns(graph, speed=speed)
    place = table.rank * max(len(table.streams), 1) + table.stream
    work = np.bincount(place, table.seconds[table.task])
    seconds_of: dict[tuple[int, str] | str, float] = {}
    for code in np.unique(place).tolist():
        rank, stream = divmod(code, len(table.streams))
        seconds_of[rank, table.streams[stream]] = float(work[code])
    for task, seconds in zip(table.tasks, table.seconds.tolist(), strict=True):
        for name in dict.fromkeys(task.resources):
            seconds_of[name] = seconds_of.get(name, 0.0) + seconds
    return seconds_of
