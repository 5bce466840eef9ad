"""The engine's two loops over arrays, compiled by Numba: the same sums in the same order as its loops in Python.

A task under way occupies its lanes, and a lane serves one task at a time. So what runs is held by lane, and a task's
place among what is to end is that of its first lane: nothing here but times and counts has a value per task.

Where Numba is not installed these are plain functions, slower than those of the engine; nothing but tests calls them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from densing.core import cache_folder
from densing.efficiency.simulation.tasks import Columns, Float, Int32
from densing.efficiency.timeline import Int, Kind

try:
    import numba
except ModuleNotFoundError:
    numba = None

Loop = TypeVar("Loop", bound=Callable[..., Any])
Flags = NDArray[np.bool_]


def compiled(loop: Loop) -> Loop:
    """Compile a loop on its first call, or read it from the cache: NUMBA_CACHE_DIR, otherwise this package's."""
    if numba is None:
        return loop
    folder = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = folder or str(cache_folder() / "numba")
    try:
        return numba.njit(cache=True)(loop)
    except RuntimeError:
        # No folder can be written to: compiled in every process.
        return numba.njit(loop)
    finally:
        numba.config.CACHE_DIR = folder


def sweep(table: Columns) -> tuple[Float, Float]:
    """Return when tasks begin and end where nothing but order holds them back."""
    return _sweep(
        table.operation, table.seconds, table.waits, table.awaited, table.begins, table.lanes, len(table.rank)
    )


@compiled
def _sweep(
    operation: Int32, seconds: Float, waits: Int32, awaited: Int32, begins: Int, lanes: Int, count: int
) -> tuple[Float, Float]:
    start, end = np.empty(len(seconds)), np.empty(len(seconds))
    free = np.zeros(count)
    at = 0
    for task in range(len(seconds)):
        begin = 0.0
        for wait in range(at, at + waits[task]):
            begin = max(begin, end[awaited[wait]])
        at += waits[task]
        one = operation[task]
        for member in range(begins[one], begins[one + 1]):
            begin = max(begin, free[lanes[member]])
        start[task] = begin
        end[task] = begin + seconds[task]
        for member in range(begins[one], begins[one + 1]):
            free[lanes[member]] = end[task]
    return start, end


OFFERED, HEAP, DIRTY, FRESH, CHANGED = range(5)
"""Places of :attr:`State.size`."""


class State(NamedTuple):
    """What the event-driven loop knows of n tasks, o operations, l lanes, r ranks and k links.

    Attributes
    ----------
    operation, seconds, begins, lanes
        See :class:`densing.efficiency.simulation.tasks.Columns`.
    rank : int64 (l,)
    rank_begins : int64 (r + 1,)
        Where each rank's lanes begin in ``rank_lanes``.
    rank_lanes : int64 (l,)
    side : int64 (o,)
        0 for what computes, 1 for what communicates, -1 for what disturbs nobody.
    link_begins : int64 (o + 1,)
        Where the links of each operation begin in ``links``.
    links : int64
    slowed : float64 (2,)
        How much longer each side takes beside the other.
    waiter_begins : int32 (n + 1,)
        Where those who wait for a task begin in ``waiters``.
    waiters : int32 (e,)
    lane_begins : int64 (l + 1,)
        Where the tasks of each lane begin in ``lane_tasks``.
    lane_tasks : int32 (m,)
    turn : int64 (l,)
        Place of each lane's first task that has not ended.
    unmet : int32 (n,)
        Waits that have not ended.
    start, end : float64 (n,)
        ``end`` is -1 before a task begins.
    current : int32 (l,)
        Task under way on each lane, -1 none.
    heap, place : int64 (l,)
        First lanes of the tasks that are to end, the next one first, and each lane's place there (-1 none).
    taken, offered : bool (k,)
        Links that serve a task, and links that fell free or were asked for.
    offers : int64 (k,)
    line_begins : int64 (k + 1,)
        Where each link's queue of tasks begins, which is a heap by the moment at which they were ready.
    line_size : int64 (k,)
    line_when : float64
    line_task : int32
    passed_link, passed_when, passed_task
        Who was first at a free link and needs others that are not free.
    running : int64 (r, 2)
        Tasks of each side under way on each rank.
    seen : bool (r, 2)
        Whether there were any when speeds were set.
    dirty, is_dirty : (r,)
    beside : int64 (l,)
        By first lane, members of a task beside which the other side runs.
    factor : float64 (l,)
        By first lane, how much slower than alone a task is; 0 before it is queued.
    fresh, changed, is_changed : (l,)
    size : int64 (5,)
        Lengths of the lists.
    """

    operation: Int32
    seconds: Float
    begins: Int
    lanes: Int
    rank: Int
    rank_begins: Int
    rank_lanes: Int
    side: Int
    link_begins: Int
    links: Int
    slowed: Float
    waiter_begins: Int32
    waiters: Int32
    lane_begins: Int
    lane_tasks: Int32
    turn: Int
    unmet: Int32
    start: Float
    end: Float
    current: Int32
    heap: Int
    place: Int
    taken: Flags
    offered: Flags
    offers: Int
    line_begins: Int
    line_size: Int
    line_when: Float
    line_task: Int32
    passed_link: Int
    passed_when: Float
    passed_task: Int32
    running: Int
    seen: Flags
    dirty: Int
    is_dirty: Flags
    beside: Int
    factor: Float
    fresh: Int
    changed: Int
    is_changed: Flags
    size: Int


def events(table: Columns, kappa: float, kappa_comm: float) -> tuple[Float, Float]:
    """Return when tasks begin and end; see :class:`densing.efficiency.simulation.engine.Events`.

    The graph has no rules for who comes late.
    """
    count, lanes, ranks = len(table.seconds), len(table.rank), table.ranks
    needs = [tuple(dict.fromkeys(one.resources)) for one in table.operations]
    names = {name: number for number, name in enumerate(sorted({name for each in needs for name in each}))}
    links = np.array([names[name] for each in needs for name in each], np.int64)
    link_begins = np.concatenate(([0], np.cumsum(np.fromiter(map(len, needs), np.int64, len(needs)))))
    # How many tasks need each link, at most all at once.
    tasks_of = np.bincount(table.operation, minlength=len(needs))
    most = np.bincount(links, np.repeat(tasks_of, np.diff(link_begins)), minlength=len(names)).astype(np.int64)
    by_rank = np.argsort(table.rank, kind="stable")
    unmet, waiter_begins, waiters, lane_begins, lane_tasks = _index(
        table.operation, table.waits, table.awaited, table.begins, table.lanes, lanes
    )
    state = State(
        table.operation,
        table.seconds,
        table.begins,
        table.lanes,
        table.rank,
        np.searchsorted(table.rank[by_rank], np.arange(ranks + 1)),
        by_rank,
        np.select([table.kind == Kind.COMPUTE, table.kind == Kind.COMM], [0, 1], -1),
        link_begins,
        links,
        np.array([1.0 + kappa, 1.0 + kappa_comm]),
        waiter_begins,
        waiters,
        lane_begins,
        lane_tasks,
        lane_begins[:-1].copy(),
        unmet,
        np.zeros(count),
        np.full(count, -1.0),
        np.full(lanes, -1, np.int32),
        np.zeros(lanes, np.int64),
        np.full(lanes, -1, np.int64),
        np.zeros(len(names), bool),
        np.zeros(len(names), bool),
        np.zeros(len(names), np.int64),
        np.concatenate(([0], np.cumsum(most))),
        np.zeros(len(names), np.int64),
        np.empty(int(most.sum())),
        np.empty(int(most.sum()), np.int32),
        np.empty(int(most.sum()), np.int64),
        np.empty(int(most.sum())),
        np.empty(int(most.sum()), np.int32),
        np.zeros((ranks, 2), np.int64),
        np.zeros((ranks, 2), bool),
        np.zeros(ranks, np.int64),
        np.zeros(ranks, bool),
        np.zeros(lanes, np.int64),
        np.zeros(lanes),
        np.zeros(lanes, np.int64),
        np.zeros(lanes, np.int64),
        np.zeros(lanes, bool),
        np.zeros(5, np.int64),
    )
    _run(state, kappa > 0 or kappa_comm > 0)
    return state.start, state.end


@compiled
def _index(
    operation: Int32, waits: Int32, awaited: Int32, begins: Int, lanes: Int, count: int
) -> tuple[Int32, Int32, Int32, Int, Int32]:
    """Return what each task waits for, counted; who waits for each task; and the tasks of each lane in order."""
    n = len(operation)
    unmet = waits.copy()
    waiter_begins = np.zeros(n + 1, np.int32)
    for task in awaited:
        waiter_begins[task] += 1
    lane_begins = np.zeros(count + 1, np.int64)
    for task in range(n):
        one = operation[task]
        for member in range(begins[one], begins[one + 1]):
            if lane_begins[lanes[member]]:
                unmet[task] += 1
            lane_begins[lanes[member]] += 1
    # Ends of the parts, from which they are filled backwards: then these are their beginnings.
    for task in range(1, n + 1):
        waiter_begins[task] += waiter_begins[task - 1]
    for lane in range(1, count + 1):
        lane_begins[lane] += lane_begins[lane - 1]
    waiters = np.empty(len(awaited), np.int32)
    lane_tasks = np.empty(lane_begins[count], np.int32)
    wait = len(awaited)
    for task in range(n - 1, -1, -1):
        for _ in range(waits[task]):
            wait -= 1
            waiter_begins[awaited[wait]] -= 1
            waiters[waiter_begins[awaited[wait]]] = task
        one = operation[task]
        for member in range(begins[one], begins[one + 1]):
            lane = lanes[member]
            lane_begins[lane] -= 1
            lane_tasks[lane_begins[lane]] = task
    return unmet, waiter_begins, waiters, lane_begins, lane_tasks


@compiled
def _sooner(state: State, one: int, other: int) -> bool:
    """Whether what runs on a lane ends before what runs on another; at one moment, the smaller number first."""
    a, b = state.current[one], state.current[other]
    return state.end[a] < state.end[b] or (state.end[a] == state.end[b] and a < b)


@compiled
def _put(state: State, lane: int, at: int) -> None:
    """Put a lane at a place of the heap, and move it to where it belongs."""
    heap, place = state.heap, state.place
    while at > 0 and _sooner(state, lane, heap[(at - 1) // 2]):
        heap[at] = heap[(at - 1) // 2]
        place[heap[at]] = at
        at = (at - 1) // 2
    while True:
        child = 2 * at + 1
        if child >= state.size[HEAP]:
            break
        if child + 1 < state.size[HEAP] and _sooner(state, heap[child + 1], heap[child]):
            child += 1
        if not _sooner(state, heap[child], lane):
            break
        heap[at] = heap[child]
        place[heap[at]] = at
        at = child
    heap[at] = lane
    place[lane] = at


@compiled
def _push(state: State, lane: int) -> None:
    at = state.place[lane]
    if at < 0:
        at = state.size[HEAP]
        state.size[HEAP] += 1
    _put(state, lane, at)


@compiled
def _pop(state: State) -> int:
    lane = state.heap[0]
    state.place[lane] = -1
    state.size[HEAP] -= 1
    if state.size[HEAP]:
        _put(state, state.heap[state.size[HEAP]], 0)
    return lane


@compiled
def _queue(state: State, link: int, when: float, task: int) -> None:
    """Let a task wait for a link."""
    first, at = state.line_begins[link], state.line_size[link]
    moments, tasks = state.line_when, state.line_task
    state.line_size[link] += 1
    while at > 0:
        above = first + (at - 1) // 2
        if moments[above] < when or (moments[above] == when and tasks[above] < task):
            break
        moments[first + at], tasks[first + at] = moments[above], tasks[above]
        at = (at - 1) // 2
    moments[first + at], tasks[first + at] = when, task


@compiled
def _leave(state: State, link: int) -> None:
    """Take the first task out of a link's queue."""
    first = state.line_begins[link]
    moments, tasks = state.line_when, state.line_task
    state.line_size[link] -= 1
    size, at = state.line_size[link], 0
    when, task = moments[first + size], tasks[first + size]
    while 2 * at + 1 < size:
        child = first + 2 * at + 1
        if 2 * at + 2 < size and (
            moments[child + 1] < moments[child]
            or (moments[child + 1] == moments[child] and tasks[child + 1] < tasks[child])
        ):
            child += 1
        if when < moments[child] or (when == moments[child] and task < tasks[child]):
            break
        moments[first + at], tasks[first + at] = moments[child], tasks[child]
        at = child - first
    moments[first + at], tasks[first + at] = when, task


@compiled
def _offer(state: State, link: int) -> None:
    if not state.offered[link]:
        state.offered[link] = True
        state.offers[state.size[OFFERED]] = link
        state.size[OFFERED] += 1


@compiled
def _touch(state: State, rank: int) -> None:
    """Note that what runs on a rank has changed."""
    if not state.is_dirty[rank]:
        state.is_dirty[rank] = True
        state.dirty[state.size[DIRTY]] = rank
        state.size[DIRTY] += 1


@compiled
def _begin(state: State, task: int, now: float, contended: bool) -> None:
    one = state.operation[task]
    first, last = state.begins[one], state.begins[one + 1]
    state.start[task] = now
    state.end[task] = now + state.seconds[task]
    for member in range(first, last):
        state.current[state.lanes[member]] = task
    lane = state.lanes[first]
    # What takes no time disturbs nobody; what does is queued once its speed is known.
    if not contended or state.side[one] < 0 or state.seconds[task] == 0.0:
        _push(state, lane)
        return
    for member in range(first, last):
        rank = state.rank[state.lanes[member]]
        state.running[rank, state.side[one]] += 1
        _touch(state, rank)
    state.factor[lane] = 0.0
    state.fresh[state.size[FRESH]] = lane
    state.size[FRESH] += 1


@compiled
def _ready(state: State, task: int, now: float, contended: bool) -> None:
    one = state.operation[task]
    first, last = state.link_begins[one], state.link_begins[one + 1]
    for need in range(first, last):
        link = state.links[need]
        _queue(state, link, now, task)
        if not state.taken[link]:
            _offer(state, link)
    if first == last:
        _begin(state, task, now, contended)


@compiled
def _end_all(state: State, now: float, contended: bool) -> None:
    """End what ends now, and begin what waited for nothing else."""
    while state.size[HEAP] and state.end[state.current[state.heap[0]]] <= now:
        home = _pop(state)
        task = state.current[home]
        one = state.operation[task]
        slows = contended and state.side[one] >= 0 and state.seconds[task] != 0.0
        for member in range(state.begins[one], state.begins[one + 1]):
            lane = state.lanes[member]
            state.current[lane] = -1
            if slows:
                state.running[state.rank[lane], state.side[one]] -= 1
                _touch(state, state.rank[lane])
        for need in range(state.link_begins[one], state.link_begins[one + 1]):
            state.taken[state.links[need]] = False
            _offer(state, state.links[need])
        for wait in range(state.waiter_begins[task], state.waiter_begins[task + 1]):
            other = state.waiters[wait]
            state.unmet[other] -= 1
            if not state.unmet[other]:
                _ready(state, other, now, contended)
        for member in range(state.begins[one], state.begins[one + 1]):
            lane = state.lanes[member]
            state.turn[lane] += 1
            if state.turn[lane] < state.lane_begins[lane + 1]:
                other = state.lane_tasks[state.turn[lane]]
                state.unmet[other] -= 1
                if not state.unmet[other]:
                    _ready(state, other, now, contended)


@compiled
def _grant(state: State, now: float, contended: bool) -> None:
    """Give free links to whom they are due."""
    passed = 0
    while True:
        best = -1
        for offer in range(state.size[OFFERED]):
            link = state.offers[offer]
            if not state.offered[link]:
                continue
            # A task that needs several links was queued at each, and has left from one.
            while state.line_size[link] and state.end[state.line_task[state.line_begins[link]]] >= 0.0:
                _leave(state, link)
            if not state.line_size[link]:
                continue
            head = state.line_begins[link]
            if best < 0:
                best = link
                continue
            other = state.line_begins[best]
            if state.line_when[head] < state.line_when[other] or (
                state.line_when[head] == state.line_when[other] and state.line_task[head] < state.line_task[other]
            ):
                best = link
        if best < 0:
            break
        when, task = state.line_when[state.line_begins[best]], state.line_task[state.line_begins[best]]
        _leave(state, best)
        one = state.operation[task]
        free = True
        for need in range(state.link_begins[one], state.link_begins[one + 1]):
            free = free and not state.taken[state.links[need]]
        if free:
            for need in range(state.link_begins[one], state.link_begins[one + 1]):
                state.taken[state.links[need]] = True
                state.offered[state.links[need]] = False
            _begin(state, task, now, contended)
        else:
            state.passed_link[passed], state.passed_when[passed], state.passed_task[passed] = best, when, task
            passed += 1
    for number in range(passed):
        if state.end[state.passed_task[number]] < 0.0:
            _queue(state, state.passed_link[number], state.passed_when[number], state.passed_task[number])
    for offer in range(state.size[OFFERED]):
        state.offered[state.offers[offer]] = False
    state.size[OFFERED] = 0


@compiled
def _change(state: State, lane: int) -> None:
    if not state.is_changed[lane]:
        state.is_changed[lane] = True
        state.changed[state.size[CHANGED]] = lane
        state.size[CHANGED] += 1


@compiled
def _set_speeds(state: State, now: float) -> None:
    """Set the speeds of what runs, and with them when it ends."""
    # Recounted only where a rank began or ceased to compute or communicate: one more or less changes nothing.
    for number in range(state.size[DIRTY]):
        rank = state.dirty[number]
        state.is_dirty[rank] = False
        for side in range(2):
            runs = state.running[rank, side] > 0
            if runs == state.seen[rank, side]:
                continue
            state.seen[rank, side] = runs
            for at in range(state.rank_begins[rank], state.rank_begins[rank + 1]):
                task = state.current[state.rank_lanes[at]]
                if task >= 0 and state.side[state.operation[task]] == 1 - side:
                    home = state.lanes[state.begins[state.operation[task]]]
                    state.beside[home] += 1 if runs else -1
                    _change(state, home)
    for number in range(state.size[FRESH]):
        home = state.fresh[number]
        one = state.operation[state.current[home]]
        state.beside[home] = 0
        for member in range(state.begins[one], state.begins[one + 1]):
            state.beside[home] += state.seen[state.rank[state.lanes[member]], 1 - state.side[one]]
        _change(state, home)
    for number in range(state.size[CHANGED]):
        home = state.changed[number]
        state.is_changed[home] = False
        task = state.current[home]
        factor = state.slowed[state.side[state.operation[task]]] if state.beside[home] else 1.0
        before = state.factor[home]
        state.factor[home] = factor
        if factor == before:
            continue
        slower = factor if before == 0.0 else factor / before
        # What is left now takes so much longer.
        if slower != 1.0:
            state.end[task] = now + (state.end[task] - now) * slower
        _push(state, home)
    state.size[DIRTY] = state.size[FRESH] = state.size[CHANGED] = 0


@compiled
def _run(state: State, contended: bool) -> None:
    now = 0.0
    # Before any begins: what is met later begins when that happens.
    for task in range(len(state.seconds)):
        if not state.unmet[task]:
            _ready(state, task, now, contended)
    while True:
        _end_all(state, now, contended)
        while state.size[OFFERED]:
            _grant(state, now, contended)
            _end_all(state, now, contended)
        if contended:
            _set_speeds(state, now)
        if not state.size[HEAP]:
            break
        now = state.end[state.current[state.heap[0]]]
