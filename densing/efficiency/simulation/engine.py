"""Simulate a task graph: when every task begins and ends, and the resulting timeline.

The graph alone determines the order: a stream of a rank runs its tasks in the order they were added, a task of several
ranks starts when all have arrived, a shared link serves one task at a time. Of two tasks that could start, the one that
was ready first does; of two ready at once, the one with the smaller number.

Two algorithms give the same times. Without contention and shared links a task's start follows from earlier tasks alone,
and one pass in order of number suffices; everything else is event-driven. Each is a loop in Python
and, for large graphs where Numba is installed, a compiled one (:mod:`densing.efficiency.simulation.loops`) that finds
the same times to the last bit (``benchmarks/simulate.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from heapq import heappop, heappush
from types import ModuleType
from typing import Any

import numpy as np

from densing.core import InputError
from densing.efficiency.simulation.tasks import Columns, Float, Graph, Int32, Members, columns, grouped, has_numba
from densing.efficiency.timeline import Comm, Int, Kind, Lane, Origin, RankTimeline, Spans, Step, Timeline

LONGEST_S = 4e9
"""Longest run, in seconds, whose nanoseconds fit a timeline (with some margin)."""


WORTH = 1_000_000
"""Tasks that take the loops in Python 0.3 to 4 CPU seconds, between reading the compiled ones from the cache (0.5) and
compiling them, once on a machine (1 to 5)."""


class Simulation:
    """When the tasks of a graph ran.

    Attributes
    ----------
    start : float64 (n,)
        Seconds at which a task starts: its last rank has arrived and its links are free.
    end : float64 (n,)
    given_up : tuple of int
        Tasks that were not completed; one that had not begun starts and ends when it was given up.
    """

    def __init__(self, table: Columns, start: Float, end: Float, given_up: Sequence[int] = ()) -> None:
        self.table, self.start, self.end, self.given_up = table, start, end, tuple(given_up)

    @property
    def makespan(self) -> float:
        """Seconds until the last task ends."""
        return float(self.end.max(initial=0.0))

    @cached_property
    def timeline(self) -> Timeline:
        """What every rank did, in whole nanoseconds: a task waits, as a kernel does, from when its rank is there.

        What was given up before it began is not in it.
        """
        never = [task for task in self.given_up if self.start[task] == self.end[task]]
        return timeline_of(self.table, self.end, self.given_up, never)


def simulate(
    graph: Graph,
    ranks: int | None = None,
    *,
    kappa: float = 0.0,
    kappa_comm: float = 0.0,
    speed: Sequence[float] = (),
) -> Simulation:
    """Simulate a graph.

    Parameters
    ----------
    graph : Graph
    ranks : int, optional
        Number of ranks; by default as many as the graph names.
    kappa, kappa_comm : float
        Contention, from 0 up: while a communication moves and a computation runs on one rank, the computation goes at
        ``1 / (1 + kappa)`` of its speed and the communication at ``1 / (1 + kappa_comm)`` (one of several ranks at its
        slowest rank's speed).
    speed : sequence of float
        Relative speed per rank, above 0: a computation takes its seconds divided by it. Empty where all are equal.

    Raises
    ------
    InputError
        When a number is out of range, a task impossible, two tasks would wait for each other, or one needs more of
        those it waits for than were completed.

    Notes
    -----
    ``docs/explanation/techniques.md`` states the model; a link that falls free goes to the task that was ready first
    among those whose other links are free too, so no link stands idle while a task could use it.

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
            raise InputError(f"{name}: {value} is not a finite number of 0 or more; 0 means no contention")
    table = columns(graph, ranks, speed)
    contended = kappa > 0 or kappa_comm > 0
    given_up: Sequence[int] = ()
    late = bool(graph.need or graph.until)
    in_order = not (contended or late or any(one.resources for one in table.operations))
    # Rules for late tasks are Python's alone.
    loops = None if late else LOOPS.compiled(len(graph))
    try:
        if loops is not None:
            start, end = loops.sweep(table) if in_order else loops.events(table, kappa, kappa_comm)
        elif in_order:
            start, end = sweep(table)
        else:
            events = Events(table, kappa, kappa_comm)
            start, end = events.run()
            given_up = sorted(events.given_up)
    except MemoryError as error:
        raise InputError(f"graph of {len(graph):,} tasks: the memory does not suffice; simulate fewer") from error
    longest = float(end.max(initial=0.0))
    if not longest < LONGEST_S:
        raise InputError(f"graph: runs for {longest:.3g} seconds, more than the {LONGEST_S:.0g} that can be simulated")
    return Simulation(table, start, end, given_up)


class Loops:
    """Which loops a process uses: Python's until they have cost as much as loading the compiled ones would.

    Both find the same times, to the last bit.
    """

    def __init__(self) -> None:
        self.tasks = 0
        """Simulated by this process."""

    def compiled(self, tasks: int) -> ModuleType | None:
        """Return the compiled loops for a graph of so many tasks, or None where Python's serve it."""
        self.tasks += tasks
        if self.tasks < WORTH or not has_numba():
            return None
        from densing.efficiency.simulation import loops

        return loops if loops.READY else None


LOOPS = Loops()


def sweep(table: Columns) -> tuple[Float, Float]:
    """Return when tasks begin and end without contention and shared links."""
    lanes_of, awaited = table.lanes_of(), table.awaited.tolist()
    free = [0.0] * len(table.rank)
    starts: list[float] = []
    ends: list[float] = []
    first = 0
    # A plain loop over lists: the tasks wait for one another, and numpy's scalars would cost more than the sums.
    columns_ = (table.operation.tolist(), table.seconds.tolist(), table.waits.tolist())
    for operation, seconds, waits in zip(*columns_, strict=True):
        start = 0.0
        for task in awaited[first : first + waits]:
            if ends[task] > start:
                start = ends[task]
        first += waits
        lanes = lanes_of[operation]
        for lane in lanes:
            if free[lane] > start:
                start = free[lane]
        end = start + seconds
        for lane in lanes:
            free[lane] = end
        starts.append(start)
        ends.append(end)
    return np.array(starts, np.float64), np.array(ends, np.float64)


class Events:
    """Running tasks, and the queue of events.

    At each moment all that ends is ended first (tasks that take no time, too), then free links are given away, then
    the speeds of what runs are set: so neither depends on the order in which equal times are taken from the queue.

    Parameters
    ----------
    table : Columns
    kappa, kappa_comm : float
        Contention, see :func:`densing.efficiency.simulation.engine.simulate`.
    """

    def __init__(self, table: Columns, kappa: float, kappa_comm: float) -> None:
        count = len(table.seconds)
        self.table = table
        self.seconds: list[float] = table.seconds.tolist()
        self.start, self.end = [0.0] * count, [-1.0] * count
        members = table.members()
        self.late = Late(table, members) if table.need or table.until else None
        if self.late is None:
            # A task also waits for the one before it on each of its lanes.
            follows = members.previous >= 0
            waiter = np.concatenate((table.waiter, members.task[follows]))
            awaited = np.concatenate((table.awaited, members.previous[follows]))
        else:
            waiter, awaited = self.late.others
        self.unmet: list[int] = np.bincount(waiter, minlength=count).tolist()
        if self.late is not None:
            self.unmet = [unmet + more for unmet, more in zip(self.unmet, self.late.unmet, strict=True)]
        self.waiting, self.begins = grouped(awaited, waiter, count)
        self.given_up: set[int] = set()
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
        if self.late is not None:
            self.late.check(done)
        return np.array(self.start), np.array(self.end)

    def _settle(self) -> None:
        """End what ends now, give up what waited for that, give links away, set speeds."""
        self._end_all()
        while self.links.offered or (self.late is not None and self.late.over):
            if self.late is not None and self.late.over:
                over, self.late.over = self.late.over, []
                for task in over:
                    self._give_up(task)
            else:
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
                if not unmet[other] and not done[other]:
                    self._ready(other)
            if self.late is not None:
                for other in [*self.late.enough(task), *self.late.leave(task, done)]:
                    self._met(other)

    def _met(self, task: int) -> None:
        self.unmet[task] -= 1
        if not self.unmet[task] and not self.done[task]:
            self._ready(task)

    def _give_up(self, task: int) -> None:
        """End a task that is not completed; it holds nobody back from now on."""
        assert self.late is not None
        if self.done[task]:
            return
        self.done[task] = 1
        self.given_up.add(task)
        if self.end[task] < 0:
            self.start[task] = self.now
            self.links.forget(task)
        else:
            if self.contention:
                self.contention.stop(task)
            self.links.release(task)
        self.end[task] = self.now
        for other in [*self.waiting[self.begins[task] : self.begins[task + 1]], *self.late.leave(task, self.done)]:
            self._met(other)

    def _ready(self, task: int) -> None:
        if not self.links.wants(task, self.now):
            self._begin(task)

    def _begin(self, task: int) -> None:
        self.start[task] = self.now
        self.end[task] = self.now + self.seconds[task]
        # What takes no time disturbs nobody; what does is queued once its speed is known.
        if not (self.contention and self.seconds[task] and self.contention.go(task)):
            heappush(self.queue, (self.end[task], task))


class Late:
    """Rules of :class:`Graph` for late tasks: which go on without all they wait for, and which are given up."""

    def __init__(self, table: Columns, members: Members) -> None:
        self.table = table
        self.ranks = table.ranks_of()
        self.left = dict(table.need)
        self.counted: dict[int, list[int]] = {}
        for task in table.need:
            for other in dict.fromkeys(table.after(task)):
                self.counted.setdefault(other, []).append(task)
        self.until: dict[int, list[int]] = {}
        for task, event in sorted(table.until.items()):
            self.until.setdefault(event, []).append(task)
        # What is to be given up once all that ends now has ended.
        self.over: list[int] = []
        follows = members.previous >= 0
        ranks = table.rank[members.lane]
        lanes = list(
            zip(*(column[follows].tolist() for column in (members.task, ranks, members.previous)), strict=True)
        )
        # What stands before and behind a task on each of its ranks' streams: who leaves lets its neighbours close up.
        self.before = {(task, rank): other for task, rank, other in lanes}
        self.behind = {(other, rank): task for task, rank, other in lanes}
        needs = np.zeros(len(table.seconds), bool)
        needs[list(table.need)] = True
        waiter = table.waiter
        self.others = waiter[~needs[waiter]], table.awaited[~needs[waiter]]
        """Waits handled elsewhere: those of tasks that wait for everything they name."""
        self.unmet: list[int] = (needs + np.bincount(members.task[follows], minlength=len(needs))).tolist()
        """What tasks also wait for: enough of the tasks they name, and their predecessors on their streams."""

    def enough(self, task: int) -> list[int]:
        """Note that a task was completed; return those that have as many as they need now."""
        met = []
        for other in self.counted.get(task, ()):
            self.left[other] -= 1
            if not self.left[other]:
                met.append(other)
        return met

    def leave(self, task: int, done: Sequence[int]) -> list[int]:
        """Note that a task is over, completed or not; return what is first on its streams now.

        One that is given up in the middle of a stream frees nothing: what is behind it waits for what is before it.
        """
        self.over += self.until.get(task, ())
        first = []
        for rank in self.ranks[task]:
            before, behind = self.before.get((task, rank), -1), self.behind.pop((task, rank), -1)
            if before >= 0 and not done[before]:
                self.behind.pop((before, rank))
                if behind >= 0:
                    self.behind[before, rank], self.before[behind, rank] = behind, before
            elif behind >= 0:
                first.append(behind)
        return first

    def check(self, done: Sequence[int]) -> None:
        """Refuse an end at which a task still waits.

        Raises
        ------
        InputError
        """
        for task in (task for task in self.left if not done[task]):
            most = len(set(self.table.after(task)))
            need = self.left[task]
            name = self.table.operations[self.table.operation[task]].name
            raise InputError(
                f"task {task} {name!r}, need: {need} more of the {most} it waits for "
                "would have to complete, but the rest were abandoned; set a smaller need"
            )


class Links:
    """Links that serve one task at a time, and the tasks that wait for them."""

    def __init__(self, table: Columns) -> None:
        needs = [tuple(dict.fromkeys(one.resources)) for one in table.operations]
        names = {name for needed in needs for name in needed}
        operations = enumerate(table.operation.tolist()) if names else ()
        self.needs = {number: needs[operation] for number, operation in operations if needs[operation]}
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

    def forget(self, task: int) -> None:
        """Remove a task that never started from the queues."""
        if task in self.needs:
            self.gone.add(task)

    def release(self, task: int) -> None:
        """Free the links of a task that ended."""
        for name in self.needs.get(task, ()):
            self.taken.discard(name)
            self.offered[name] = None

    def grant(self) -> list[int]:
        """Give free links to the tasks next in line; return those that start."""
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
    """How concurrent computation and communication on a rank slow each other down."""

    def __init__(self, table: Columns, kappa: float, kappa_comm: float) -> None:
        # 0 and 1 stand for computation and communication.
        self.slowed = (1.0 + kappa, 1.0 + kappa_comm)
        sides = {int(Kind.COMPUTE): 0, int(Kind.COMM): 1}
        self.side = [sides.get(kind, -1) for kind in table.kind[table.operation].tolist()]
        self.ranks = table.ranks_of()
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
        fresh = task in self.fresh
        if fresh:
            # Given up at the moment at which it began: it has disturbed nobody yet.
            self.fresh.remove(task)
        if self.factor.pop(task, 0.0) or fresh:
            self.beside.pop(task, None)
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


def timeline_of(table: Columns, end: Float, given_up: Sequence[int] = (), never: Sequence[int] = ()) -> Timeline:
    """Return what each rank did, in whole nanoseconds.

    Rounding keeps order: what ended before it began still does. A rank's step ends when its last computation of the
    step does, and the next begins there.

    Parameters
    ----------
    table : Columns
    end : float64 (n,)
        Seconds.
    given_up, never : sequence of int
        Tasks that were not completed, and of these the ones that had not begun: they are left out.
    """
    members = table.members()
    start_ns, end_ns = to_ns(arrivals(table, members, end, given_up)), to_ns(end)
    ranks_of = table.rank.astype(np.min_scalar_type(table.ranks))[members.lane]
    used = np.flatnonzero(table.kind >= 0).tolist()
    code_of = {name: code for code, name in enumerate(dict.fromkeys(table.operations[one].name for one in used))}
    names = tuple(code_of)
    comms, comm_codes = _comms(table)
    # Of each operation; int32 as in a table of spans.
    name_codes = np.array([code_of.get(one.name, -1) for one in table.operations], np.int32)
    sizes = np.array([one.bytes for one in table.operations], np.int64)
    origin = Origin(world_size=table.ranks, simulated=True)
    by_rank = np.argsort(ranks_of, kind="stable")
    if never:
        by_rank = by_rank[~np.isin(members.task[by_rank], never)]
    ends = np.searchsorted(ranks_of[by_rank], np.arange(1, table.ranks + 1))
    ranks = []
    for rank, rows in enumerate(np.split(by_rank, ends)[: table.ranks]):
        task = members.task[rows]
        operation = table.operation[task]
        kind = table.kind[operation]
        lanes = tuple(Lane(f"rank {rank}", stream) for stream in table.streams) or (Lane("", ""),)
        data: dict[str, Any] = {
            "start": start_ns[rows],
            "end": end_ns[task],
            "kind": kind,
            "name": name_codes[operation],
            "lane": table.stream[members.lane[rows]],
            "bytes": sizes[operation],
            "comm": comm_codes[operation],
        }
        on_host = kind == Kind.ANNOTATION
        work, host = (_spans(data, keep, names, lanes, comms) for keep in (~on_host, on_host))
        ranks.append(RankTimeline(rank, work, host, _steps(table.step[task], kind, data["start"], data["end"]), origin))
    return Timeline(tuple(ranks))


def to_ns(seconds: Float) -> Int:
    """Return whole nanoseconds.

    Examples
    --------
    >>> to_ns(np.array([0.5, 1.2e-9])).tolist()
    [500000000, 1]
    """
    exact = seconds * 1e9
    return np.rint(exact, out=exact).astype(np.int64)


def arrivals(table: Columns, members: Members, end: Float, given_up: Sequence[int] = ()) -> Float:
    """Return when each member of each task came: what it needs on its rank had ended, seconds (m,).

    A task waited for that has a rank in common with this one holds back only those ranks; any other holds back all. One
    that needs only some of those it waits for comes when as many are completed; what was given up came no later.
    """
    arrival = np.where(members.previous >= 0, end[members.previous], 0.0) if len(end) else np.empty(0)
    if given_up:
        # Before one that was given up in the middle of a stream another may have gone on for longer.
        free: dict[int, float] = {}
        for member, lane in enumerate(members.lane.tolist()):
            arrival[member] = free.get(lane, 0.0)
            free[lane] = max(arrival[member], end[members.task[member]])
    first, count = members.first, np.diff(table.begins)
    waiter, awaited = table.waiter, table.awaited
    if table.need:
        all_ = ~np.isin(waiter, list(table.need))
        waiter, awaited = waiter[all_], awaited[all_]
        lost = set(given_up)
        for task, need in table.need.items():
            if task in lost:
                continue
            came = sorted(end[other] for other in set(table.after(task)) if other not in lost)[need - 1]
            own = slice(first[task], first[task] + count[table.operation[task]])
            arrival[own] = np.maximum(arrival[own], came)
    single = count[table.operation[waiter]] == 1
    np.maximum.at(arrival, first[waiter[single]], end[awaited[single]])
    waiter, awaited = waiter[~single], awaited[~single]
    # Which members a wait holds back depends on the ranks of both tasks alone.
    groups = list(dict.fromkeys(one.ranks for one in table.operations))
    number = {ranks: code for code, ranks in enumerate(groups)}
    group = np.array([number[one.ranks] for one in table.operations], np.int64)
    pair = group[table.operation[waiter]] * len(groups) + group[table.operation[awaited]]
    order = np.argsort(pair, kind="stable")
    pairs, begins = np.unique(pair[order], return_index=True)
    for code, waits in zip(pairs.tolist(), np.split(order, begins[1:]), strict=False):
        ranks, others = groups[code // len(groups)], set(groups[code % len(groups)])
        shared = [at for at, rank in enumerate(ranks) if rank in others]
        for at in shared or range(len(ranks)):
            np.maximum.at(arrival, first[waiter[waits]] + at, end[awaited[waits]])
    return np.minimum(arrival, end[members.task]) if given_up else arrival


def _comms(table: Columns) -> tuple[list[Comm], Int]:
    """Return the records of communications, one where tasks share an object, and each operation's number (-1 none)."""
    known: dict[int, int] = {}
    comms: list[Comm] = []
    codes = np.full(len(table.operations), -1)
    for number, (one, kind) in enumerate(zip(table.operations, table.kind.tolist(), strict=True)):
        if one.comm is not None and kind >= 0:
            code = known.setdefault(id(one.comm), len(comms))
            if code == len(comms):
                comms.append(one.comm)
            codes[number] = code
    return comms, codes


def _spans(data: dict[str, Any], keep: Any, names: Sequence[str], lanes: Sequence[Lane], comms: list[Comm]) -> Spans:
    chosen = {key: column[keep] for key, column in data.items()}
    used, code = np.unique(chosen["comm"], return_inverse=True)
    # Where some spans have none, the first of the sorted numbers is -1, and stays -1.
    without = int(used[:1].min(initial=0) < 0)
    chosen["comm"] = code - without
    return Spans.columns(chosen, names, lanes, [comms[number] for number in used[without:].tolist()])


def _steps(step: Int32, kind: Int, start: Int, end: Int) -> tuple[Step, ...]:
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
