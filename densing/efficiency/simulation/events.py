"""The event-driven way: contention and shared links, moment by moment."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from densing.efficiency.simulation.columns import Columns, Float, grouped
from densing.efficiency.timeline import Kind


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
            heads = [(self.queues[name][0], name) for name in self.offered if self._waits(name)]
            if not heads:
                break
            entry, name = min(heads)
            heappop(self.queues[name])
            if self.taken.isdisjoint(self.needs[entry[1]]):
                granted.append(self._take(entry[1]))
            else:
                passed.append((name, entry))
        for name, entry in passed:
            if entry[1] not in self.gone:
                heappush(self.queues[name], entry)
        self.offered.clear()
        return granted

    def _waits(self, name: str) -> bool:
        queue = self.queues[name]
        while queue and queue[0][1] in self.gone:
            heappop(queue)
        return bool(queue)

    def _take(self, task: int) -> int:
        self.gone.add(task)
        for name in self.needs[task]:
            self.taken.add(name)
            self.offered.pop(name, None)
        return task


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
        changed = self._turned()
        for task in self.fresh:
            other = 1 - self.side[task]
            self.beside[task] = sum(self.seen[rank][other] for rank in self.ranks[task])
            changed[task] = None
        found = []
        for task in changed:
            factor = self.slowed[self.side[task]] if self.beside[task] else 1.0
            before = self.factor.get(task, 0.0)
            self.factor[task] = factor
            if factor != before:
                found.append((task, factor / (before or 1.0)))
        self.fresh.clear()
        self.dirty.clear()
        return found

    def _turned(self) -> dict[int, None]:
        """Recount what runs beside each task where a rank began or ceased to compute or communicate."""
        changed: dict[int, None] = {}
        for rank in self.dirty:
            for side in (0, 1):
                runs = bool(self.running[rank][side])
                if runs == self.seen[rank][side]:
                    continue
                self.seen[rank][side] = runs
                for task in self.running[rank][1 - side]:
                    self.beside[task] = self.beside.get(task, 0) + (1 if runs else -1)
                    changed[task] = None
        return changed
