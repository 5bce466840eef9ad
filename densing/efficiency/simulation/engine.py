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
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any

import numpy as np

from densing.core import InputError
from densing.efficiency.simulation.tasks import Columns, Float, Graph, columns, grouped
from densing.efficiency.timeline import Comm, Int, Kind, Lane, Origin, RankTimeline, Spans, Step, Timeline

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
    ``docs/techniques.md`` states the model; a link that falls free goes to the task that was ready first among
    those whose other links are free too, so no link stands idle while a task could use it.

    Examples
    --------
    >>> from densing.efficiency.timeline import Kind
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
    # A plain loop over lists: the tasks wait for one another, and numpy's scalars would cost more than the sums.
    for seconds, last in zip(table.seconds.tolist(), begins[1:], strict=True):
        start = 0.0
        for task in awaited[first:last]:
            if ends[task] > start:
                start = ends[task]
        starts.append(start)
        ends.append(start + seconds)
        first = last
    return np.array(starts, np.float64), np.array(ends, np.float64)


class Events:
    """Tasks under way, and what is to happen next.

    At each moment all that ends is ended first (tasks that take no time, too), then free links are given away, then
    the speeds of what runs are set: so neither depends on the order in which equal times are taken from the queue.

    Parameters
    ----------
    table : Columns
    kappa, kappa_comm : float
        Contention, see :func:`densing.efficiency.simulation.engine.simulate`.
    """

    def __init__(self, table: Columns, kappa: float, kappa_comm: float) -> None:
        count = len(table.tasks)
        self.seconds: list[float] = table.seconds.tolist()
        self.start, self.end = [0.0] * count, [-1.0] * count
        self.unmet: list[int] = np.bincount(table.waiter, minlength=count).tolist()
        self.waiting, self.begins = grouped(table.awaited, table.waiter, count)
        self.queue: list[tuple[float, int]] = []
        self.now = 0.0
        self.done = bytearray(count)
        self.links = Links(table)
        self.contention = Contention(table, kappa, kappa_comm) if kappa or kappa_comm else None

    def run(self) -> tuple[Float, Float]:
        """Run all tasks; return when they begin to move and end, seconds."""
        for task in [number for number, unmet in enumerate(self.unmet) if not unmet]:
            self._ready(task)
        # What starts at once may end at once; then time goes from one end to the next.
        self._settle()
        queue, done, end = self.queue, self.done, self.end
        while queue:
            when, task = queue[0]
            # A change of speed leaves the old end in the queue.
            if done[task] or when != end[task]:
                heappop(queue)
            else:
                self.now = when
                self._settle()
        return np.array(self.start), np.array(self.end)

    def _settle(self) -> None:
        """End what ends now, give links away, set speeds."""
        self._end_all()
        while self.links.offered:
            for task in self.links.grant():
                self._begin(task)
            self._end_all()
        if self.contention:
            for task, slower in self.contention.changes():
                # What is left now takes so much longer; the old end stays in the queue, and is passed over there.
                if slower != 1.0:
                    self.end[task] = self.now + (self.end[task] - self.now) * slower
                heappush(self.queue, (self.end[task], task))

    def _end_all(self) -> None:
        queue, done, unmet, waiting, begins = self.queue, self.done, self.unmet, self.waiting, self.begins
        while queue and queue[0][0] <= self.now:
            when, task = heappop(queue)
            if done[task] or when != self.end[task]:
                continue
            done[task] = 1
            if self.contention:
                self.contention.stop(task)
            self.links.release(task)
            for other in waiting[begins[task] : begins[task + 1]]:
                unmet[other] -= 1
                if not unmet[other]:
                    self._ready(other)

    def _ready(self, task: int) -> None:
        if not self.links.wants(task, self.now):
            self._begin(task)

    def _begin(self, task: int) -> None:
        self.start[task] = self.now
        self.end[task] = self.now + self.seconds[task]
        # What takes no time disturbs nobody; what does is queued once its speed is known.
        if not (self.contention and self.seconds[task] and self.contention.go(task)):
            heappush(self.queue, (self.end[task], task))


class Links:
    """Links that serve one task at a time, and the tasks that wait for them."""

    def __init__(self, table: Columns) -> None:
        self.needs = {number: tuple(dict.fromkeys(task.resources)) for number, task in enumerate(table.tasks)
                      if task.resources}  # fmt: skip
        names = {name for needed in self.needs.values() for name in needed}
        self.queues: dict[str, list[tuple[float, int]]] = {name: [] for name in names}
        self.taken: set[str] = set()
        self.gone: set[int] = set()
        # In the order they were noticed, so that nothing depends on how names hash.
        self.offered: dict[str, None] = {}

    def wants(self, task: int, now: float) -> bool:
        """Queue a task that is ready at the links it needs; False if it needs none."""
        needed = self.needs.get(task, ())
        for name in needed:
            heappush(self.queues[name], (now, task))
            if name not in self.taken:
                self.offered[name] = None
        return bool(needed)

    def release(self, task: int) -> None:
        """Free the links of a task that ended."""
        for name in self.needs.get(task, ()):
            self.taken.discard(name)
            self.offered[name] = None

    def grant(self) -> list[int]:
        """Give free links to whom they are due; return the tasks that go."""
        granted: list[int] = []
        passed: list[tuple[str, tuple[float, int]]] = []
        while self.offered:
            heads = []
            for name in self.offered:
                queue = self.queues[name]
                # A task that needs several links was queued at each, and has left from one.
                while queue and queue[0][1] in self.gone:
                    heappop(queue)
                if queue:
                    heads.append((queue[0], name))
            if not heads:
                break
            entry, name = min(heads)
            heappop(self.queues[name])
            if self.taken.isdisjoint(self.needs[entry[1]]):
                granted.append(entry[1])
                self.gone.add(entry[1])
                for link in self.needs[entry[1]]:
                    self.taken.add(link)
                    self.offered.pop(link, None)
            else:
                passed.append((name, entry))
        for name, entry in passed:
            if entry[1] not in self.gone:
                heappush(self.queues[name], entry)
        self.offered.clear()
        return granted


class Contention:
    """How computation and communication that run beside each other on a rank slow each other down."""

    def __init__(self, table: Columns, kappa: float, kappa_comm: float) -> None:
        # 0 and 1 stand for computation and communication.
        self.slowed = (1.0 + kappa, 1.0 + kappa_comm)
        sides = {int(Kind.COMPUTE): 0, int(Kind.COMM): 1}
        self.side = [sides.get(kind, -1) for kind in table.kind.tolist()]
        self.ranks = [task.ranks for task in table.tasks]
        self.running: list[tuple[set[int], set[int]]] = [(set(), set()) for _ in range(table.ranks)]
        self.seen = [[False, False] for _ in range(table.ranks)]
        # Members beside which the other side runs, and how much slower than alone a task is; 0 before it is queued.
        self.beside: dict[int, int] = {}
        self.factor: dict[int, float] = {}
        self.fresh: list[int] = []
        self.dirty: set[int] = set()

    def go(self, task: int) -> bool:
        """Note that a task runs; False if it disturbs nobody."""
        side = self.side[task]
        if side < 0:
            return False
        for rank in self.ranks[task]:
            self.running[rank][side].add(task)
        self.dirty.update(self.ranks[task])
        self.fresh.append(task)
        return True

    def stop(self, task: int) -> None:
        """Note that a task ended."""
        if self.factor.pop(task, 0.0):
            del self.beside[task]
            for rank in self.ranks[task]:
                self.running[rank][self.side[task]].discard(task)
            self.dirty.update(self.ranks[task])

    def changes(self) -> list[tuple[int, float]]:
        """Return the tasks whose speed is new, and how much longer than before the rest of each takes."""
        changed: dict[int, None] = {}
        # Recounted only where a rank began or ceased to compute or communicate: one more or less changes nothing.
        for rank in self.dirty:
            for side in (0, 1):
                runs = bool(self.running[rank][side])
                if runs == self.seen[rank][side]:
                    continue
                self.seen[rank][side] = runs
                for task in self.running[rank][1 - side]:
                    self.beside[task] = self.beside.get(task, 0) + (1 if runs else -1)
                    changed[task] = None
        for task in self.fresh:
            other = 1 - self.side[task]
            self.beside[task] = sum(self.seen[rank][other] for rank in self.ranks[task])
            changed[task] = None
        factors = []
        for task in changed:
            factor = self.slowed[self.side[task]] if self.beside[task] else 1.0
            before = self.factor.get(task, 0.0)
            self.factor[task] = factor
            if factor != before:
                factors.append((task, factor / (before or 1.0)))
        self.fresh.clear()
        self.dirty.clear()
        return factors


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
    name_of = {name: code for code, name in enumerate(dict.fromkeys(task.name for task in table.tasks))}
    names = tuple(name_of)
    name_codes = np.fromiter((name_of[task.name] for task in table.tasks), np.int64, len(table.tasks))
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
    arrival = np.where(table.previous >= 0, end[table.previous], 0.0) if len(end) else np.empty(0)
    first = np.cumsum(table.members) - table.members
    # The waits that tasks name come first in the columns, those for the task before on a stream last.
    by_name = len(table.waiter) - np.count_nonzero(table.previous >= 0)
    waiter, awaited = table.waiter[:by_name], table.awaited[:by_name]
    single = table.members[waiter] == 1
    np.maximum.at(arrival, first[waiter[single]], end[awaited[single]])
    for task in np.unique(waiter[~single]).tolist():
        member_of = {rank: member for member, rank in enumerate(table.tasks[task].ranks, int(first[task]))}
        for other in table.tasks[task].after:
            shared = [member_of[rank] for rank in table.tasks[other].ranks if rank in member_of]
            for member in shared or member_of.values():
                arrival[member] = max(arrival[member], end[other])
    return arrival


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
    # Where some spans have none, the first of the sorted numbers is -1, and stays -1.
    without = int(used[:1].min(initial=0) < 0)
    chosen["comm"] = code - without
    return Spans.columns(chosen, names, lanes, [comms[number] for number in used[without:].tolist()])


def _steps(step: Int, kind: Int, start: Int, end: Int) -> tuple[Step, ...]:
    inside = step >= 0
    numbers, code = np.unique(step[inside], return_inverse=True)
    if not len(numbers):
        return ()
    last, computed = np.full(len(numbers), -1), np.full(len(numbers), -1)
    np.maximum.at(last, code, end[inside])
    computing = kind[inside] == Kind.COMPUTE
    np.maximum.at(computed, code[computing], end[inside][computing])
    # A step without computation (a wait, a copy) ends with its last task.
    ends = np.maximum.accumulate(np.where(computed >= 0, computed, last))
    begins = np.concatenate(([start[inside].min()], ends[:-1]))
    return tuple(Step(int(n), int(a), int(b)) for n, a, b in zip(numbers, begins, ends, strict=True))
