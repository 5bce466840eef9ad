"""Run a task graph: when every task begins and ends, and the timeline that leaves.

The graph alone determines what happens: a stream of a rank works through its tasks in the order they were added, a
task of several ranks moves when all are there, a shared link serves one task at a time. Between two tasks that could
both go, the one that was ready first does; of two ready at once, the one with the smaller number.

Two ways lead to the same times. Without contention and shared links a task's beginning follows from earlier tasks
alone, so one pass in order of number does it, in about a quarter of the time of the event-driven way that everything
else needs (``benchmarks/simulate.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from densing.core import InputError
from densing.efficiency.simulation.columns import Columns, Float, columns
from densing.efficiency.simulation.events import Events
from densing.efficiency.simulation.spans import timeline_of
from densing.efficiency.simulation.tasks import Graph
from densing.efficiency.timeline import Timeline

LONGEST_S = 4e9
"""Longest run whose nanoseconds a timeline can hold (with some to spare)."""


class Simulation:
    """When the tasks of a graph ran.

    Attributes
    ----------
    start : float64 (n,)
        Seconds: when a task begins to move, that is when its last rank has come and its links are free.
    end : float64 (n,)
    """

    def __init__(self, table: Columns, start: Float, end: Float) -> None:
        self.table, self.start, self.end = table, start, end

    @property
    def makespan(self) -> float:
        """Seconds until the last task ends."""
        return float(self.end.max(initial=0.0))

    @cached_property
    def timeline(self) -> Timeline:
        """What every rank did, in whole nanoseconds: a task waits, as a kernel does, from when its rank is there."""
        return timeline_of(self.table, self.end)


def simulate(
    graph: Graph,
    ranks: int | None = None,
    *,
    kappa: float = 0.0,
    kappa_comm: float = 0.0,
    speed: Sequence[float] = (),
) -> Simulation:
    """Run a graph.

    Parameters
    ----------
    graph : Graph
    ranks : int, optional
        How many there are; by default as many as the graph names.
    kappa, kappa_comm : float
        Contention, from 0 up: while a communication moves and a computation runs on one rank, the computation goes at
        ``1 / (1 + kappa)`` of its speed and the communication at ``1 / (1 + kappa_comm)`` (one of several ranks at its
        slowest rank's speed).
    speed : sequence of float
        Relative speed per rank, above 0: a computation takes its seconds divided by it. Empty where all are equal.

    Raises
    ------
    InputError
        When a number is out of range, a task impossible, or two tasks would wait for each other.

    Notes
    -----
    ``techniques.md`` section 1.2 states the model; a link that falls free goes to the task that was ready first among
    those whose other links are free too, so no link stands idle while a task could use it.

    Examples
    --------
    >>> from densing.efficiency.timeline.spans import Kind
    >>> graph = Graph()
    >>> graph.step = 0
    >>> for layer in range(2):
    ...     backward = graph.add(f"backward {layer}", Kind.COMPUTE, (0,), "compute", 1.0)
    ...     _ = graph.add(f"all_reduce {layer}", Kind.COMM, (0,), "comm", 0.5, after=[backward])
    >>> simulate(graph).makespan
    2.5
    >>> simulate(graph, kappa=0.25).makespan
    2.6
    """
    for name, value in (("kappa", kappa), ("kappa_comm", kappa_comm)):
        if not (np.isfinite(value) and value >= 0):
            raise InputError(f"{name}: {value} is no finite number from 0 up; 0 is no contention")
    table = columns(graph, ranks, speed)
    contended = kappa > 0 or kappa_comm > 0
    if contended or any(task.resources for task in graph.tasks):
        start, end = Events(table, kappa, kappa_comm).run()
    else:
        start, end = sweep(table)
    longest = float(end.max(initial=0.0))
    if not longest < LONGEST_S:
        raise InputError(f"graph: runs for {longest:.3g} seconds, more than the {LONGEST_S:.0g} that can be simulated")
    return Simulation(table, start, end)


def sweep(table: Columns) -> tuple[Float, Float]:
    """Return when tasks begin and end where nothing but order holds them back."""
    awaited, begins = table.lists()
    starts: list[float] = []
    ends: list[float] = []
    first = 0
    for seconds, last in zip(table.seconds.tolist(), begins[1:], strict=True):
        start = 0.0
        for task in awaited[first:last]:
            if ends[task] > start:
                start = ends[task]
        starts.append(start)
        ends.append(start + seconds)
        first = last
    return np.array(starts, np.float64), np.array(ends, np.float64)
