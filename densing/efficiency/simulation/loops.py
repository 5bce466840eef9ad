"""The engine's two loops over arrays, compiled by Numba: the same sums in the same order as its loops in Python.

A task that is ready or under way is the first of its lanes, and a lane has one first task. So what is ready and what
runs is held by lane, a task by its first one (its home): little here has a value per task. Functions get the arrays
that they need, because Numba counts the references of arrays in a tuple at every use.

Where Numba is not installed, or does not fit the NumPy that is, these are plain functions, slower than those of the
engine; nothing but tests calls them then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any, TypeVar, cast

import numpy as np

from densing.core import cache_folder, one_at_a_time
from densing.efficiency.simulation.tasks import Columns, Float, Int32
from densing.efficiency.timeline import Int, Kind

try:
    import numba
except (ImportError, SystemError, AttributeError) as error:
    # Not there, or made for an older NumPy, which it says in one of these ways.
    logging.getLogger(__name__).info("Numba cannot be used: %s", error)
    numba = None

READY = numba is not None
"""Whether the loops are compiled."""

Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(loop: Loop) -> Loop:
    """Compile a loop on its first call, or read it from the cache: NUMBA_CACHE_DIR, otherwise this package's."""
    if numba is None:
        return loop
    folder = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = folder or str(cache_folder() / "numba")
    try:
        return cast(Loop, numba.njit(cache=True)(loop))
    except RuntimeError:
        # No folder can be written to: compiled in every process.
        return cast(Loop, numba.njit(loop))
    finally:
        numba.config.CACHE_DIR = folder


def _alone(loop: Any) -> AbstractContextManager[None]:
    """Let one process at a time call a loop for its first time: it compiles what the others then read."""
    return nullcontext() if not READY or loop.signatures else one_at_a_time(cache_folder() / "locks" / "loops")


def sweep(table: Columns) -> tuple[Float, Float]:
    """Return when tasks begin and end where nothing but order holds them back."""
    graph = (table.operation, table.seconds, table.waits, table.awaited, table.begins, table.lanes)
    with _alone(_sweep):
        return _sweep(*graph, len(table.rank))


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


def events(table: Columns, kappa: float, kappa_comm: float) -> tuple[Float, Float]:
    """Return when tasks begin and end; see :class:`densing.efficiency.simulation.engine.Events`.

    The graph has no rules for late tasks.
    """
    needs = [tuple(dict.fromkeys(one.resources)) for one in table.operations]
    names = {name: number for number, name in enumerate(dict.fromkeys(chain.from_iterable(needs)))}
    # A task that needs several links leaves its place at one when it is seen there: each may have been at all of its.
    most = dict.fromkeys(names, 0)
    for needed, count in zip(needs, np.bincount(table.operation, minlength=len(needs)).tolist(), strict=True):
        for name in needed:
            most[name] += count
    by_rank = np.argsort(table.rank, kind="stable")
    graph = (table.operation, table.waits, table.awaited, table.begins, table.lanes)
    with _alone(_run):
        return _run(
            table.operation,
            table.seconds,
            table.begins,
            table.lanes,
            *_index(*graph, len(table.rank)),
            _offsets([len(needed) for needed in needs]),
            np.array([names[name] for needed in needs for name in needed], np.int64),
            _offsets(list(most.values())),
            table.rank,
            np.searchsorted(table.rank[by_rank], np.arange(table.ranks + 1)),
            by_rank,
            np.select([table.kind == Kind.COMPUTE, table.kind == Kind.COMM], [0, 1], -1),
            np.array([1.0 + kappa, 1.0 + kappa_comm]),
            kappa > 0 or kappa_comm > 0,
        )


def _offsets(sizes: Sequence[int]) -> Int:
    return np.concatenate(([0], np.cumsum(np.array(sizes, np.int64))))


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
def _put(heap: Int, place: Int, size: int, current: Int, end: Float, lane: int, at: int) -> None:
    """Put a lane at a place among what is to end, and move it to where it belongs.

    ``heap`` holds the homes of running tasks, first the one whose task ends first; of two that end at once, that of
    the smaller number. ``place`` is where each lane stands in it, -1 nowhere.
    """
    task = current[lane]
    when = end[task]
    while at > 0:
        above = heap[(at - 1) // 2]
        if end[current[above]] < when or (end[current[above]] == when and current[above] < task):
            break
        heap[at] = above
        place[above] = at
        at = (at - 1) // 2
    while 2 * at + 1 < size:
        child = 2 * at + 1
        below = current[heap[child]]
        if child + 1 < size:
            other = current[heap[child + 1]]
            if end[other] < end[below] or (end[other] == end[below] and other < below):
                child += 1
                below = other
        if when < end[below] or (when == end[below] and task < below):
            break
        heap[at] = heap[child]
        place[heap[at]] = at
        at = child
    heap[at] = lane
    place[lane] = at


@compiled
def _queue(moments: Float, tasks: Int, first: int, size: int, when: float, task: int) -> None:
    """Let a task wait for a link, in the link's part of the arrays: a heap by the moments at which tasks were ready."""
    at = size
    while at > 0:
        above = first + (at - 1) // 2
        if moments[above] < when or (moments[above] == when and tasks[above] < task):
            break
        moments[first + at], tasks[first + at] = moments[above], tasks[above]
        at = (at - 1) // 2
    moments[first + at], tasks[first + at] = when, task


@compiled
def _leave(moments: Float, tasks: Int, first: int, size: int) -> None:
    """Take the first of ``size`` tasks out of a link's queue."""
    size -= 1
    at = 0
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
def _note(listed: Int, size: int, is_listed: Int, number: int) -> int:
    """Add a number to a list unless it is in it, and return the list's size."""
    if is_listed[number]:
        return size
    is_listed[number] = 1
    listed[size] = number
    return size + 1


@compiled
def _grant(
    offers: Int, offered: int, is_offered: Int, taken: Int,
    operation: Int32, link_begins: Int, links: Int,
    moments: Float, tasks: Int, line_begins: Int, line_size: Int,
    passed: Int, passed_when: Float, passed_task: Int,
    end: Float, go: Int, going: int,
) -> int:  # fmt: skip
    """Give the links that are offered to whom they are due; add who goes to ``go`` and return how many are there."""
    back = 0
    while True:
        best = -1
        for number in range(offered):
            link = offers[number]
            if not is_offered[link]:
                continue
            head = line_begins[link]
            # A task that needs several links was queued at each, and has left from one.
            while line_size[link] and end[tasks[head]] >= 0.0:
                _leave(moments, tasks, head, line_size[link])
                line_size[link] -= 1
            if line_size[link]:
                first = line_begins[best]
                if (
                    best < 0
                    or moments[head] < moments[first]
                    or (moments[head] == moments[first] and tasks[head] < tasks[first])
                ):
                    best = link
        if best < 0:
            break
        when, task = moments[line_begins[best]], tasks[line_begins[best]]
        _leave(moments, tasks, line_begins[best], line_size[best])
        line_size[best] -= 1
        needs = links[link_begins[operation[task]] : link_begins[operation[task] + 1]]
        free = True
        for link in needs:
            free = free and not taken[link]
        if free:
            for link in needs:
                taken[link] = 1
                is_offered[link] = 0
            go[going] = task
            going += 1
        else:
            passed[back], passed_when[back], passed_task[back] = best, when, task
            back += 1
    for number in range(back):
        link = passed[number]
        _queue(moments, tasks, line_begins[link], line_size[link], passed_when[number], passed_task[number])
        line_size[link] += 1
    for number in range(offered):
        is_offered[offers[number]] = 0
    return going


@compiled
def _set_speeds(
    dirty: Int, dirties: int, is_dirty: Int, fresh: Int, freshes: int, changed: Int, is_changed: Int,
    running: Int, seen: Int, beside: Int, factor: Float, slowed: Float, side: Int,
    operation: Int32, begins: Int, lanes: Int, rank: Int, rank_begins: Int, rank_lanes: Int,
    heap: Int, place: Int, size: int, current: Int, end: Float, now: float,
) -> int:  # fmt: skip
    """Set the speeds of what runs, and with them when it ends; return how many tasks are to end."""
    changes = 0
    # Recounted only where a rank began or ceased to compute or communicate: one more or less changes nothing.
    for number in range(dirties):
        one = dirty[number]
        is_dirty[one] = 0
        for mine in range(2):
            runs = 1 if running[one, mine] else 0
            more = runs - seen[one, mine]
            if not more:
                continue
            seen[one, mine] = runs
            for at in range(rank_begins[one], rank_begins[one + 1]):
                task = current[rank_lanes[at]]
                if task >= 0 and side[operation[task]] == 1 - mine:
                    home = lanes[begins[operation[task]]]
                    beside[home] += more
                    changes = _note(changed, changes, is_changed, home)
    for number in range(freshes):
        home = fresh[number]
        what = operation[current[home]]
        beside[home] = 0
        for member in range(begins[what], begins[what + 1]):
            beside[home] += seen[rank[lanes[member]], 1 - side[what]]
        changes = _note(changed, changes, is_changed, home)
    for number in range(changes):
        home = changed[number]
        is_changed[home] = 0
        task = current[home]
        new = slowed[side[operation[task]]] if beside[home] else 1.0
        before = factor[home]
        factor[home] = new
        if new == before:
            continue
        slower = new if before == 0.0 else new / before
        # What is left now takes so much longer.
        if slower != 1.0:
            end[task] = now + (end[task] - now) * slower
        at = place[home]
        if at < 0:
            at = size
            size += 1
        _put(heap, place, size, current, end, home, at)
    return size


@compiled
def _run(
    operation: Int32, seconds: Float, begins: Int, lanes: Int,
    unmet: Int32, waiter_begins: Int32, waiters: Int32, lane_begins: Int, lane_tasks: Int32,
    link_begins: Int, links: Int, line_begins: Int,
    rank: Int, rank_begins: Int, rank_lanes: Int, side: Int, slowed: Float, contended: bool,
) -> tuple[Float, Float]:  # fmt: skip
    """Run all tasks; parts of arrays that belong to a task, lane, rank or operation begin at its ``..._begins``."""
    n, m, r, k = len(seconds), len(rank), len(rank_begins) - 1, len(line_begins) - 1
    # The end of a task that has not begun is -1.
    start, end = np.zeros(n), np.full(n, -1.0)
    # The first task of each lane that has not ended, by its place there, and what runs.
    turn, current = lane_begins[:-1].copy(), np.full(m, -1, np.int64)
    heap, place, size = np.zeros(m, np.int64), np.full(m, -1, np.int64), 0
    # Tasks whose waits are over, and those that begin now.
    met, go, metting, going = np.zeros(m, np.int64), np.zeros(m, np.int64), 0, 0
    # Links that serve a task, that may serve another, and who waits for each.
    taken, is_offered = np.zeros(k, np.int64), np.zeros(k, np.int64)
    offers, offered = np.zeros(k, np.int64), 0
    queued = line_begins[-1]
    # Not filled: what is not used takes no memory.
    moments, tasks, line_size = np.empty(queued), np.empty(queued, np.int64), np.zeros(k, np.int64)
    passed, passed_when, passed_task = np.empty(queued, np.int64), np.empty(queued), np.empty(queued, np.int64)
    # Tasks of each side that run on a rank, and whether there were any when speeds were set.
    running, seen = np.zeros((r, 2), np.int64), np.zeros((r, 2), np.int64)
    dirty, is_dirty, dirties = np.zeros(r, np.int64), np.zeros(r, np.int64), 0
    # By home: members of a task beside which the other side runs, and how much slower than alone it is.
    beside, factor = np.zeros(m, np.int64), np.zeros(m)
    fresh, freshes = np.zeros(m, np.int64), 0
    changed, is_changed = np.zeros(m, np.int64), np.zeros(m, np.int64)
    for task in range(n):
        if not unmet[task]:
            met[metting] = task
            metting += 1
    now = 0.0
    while True:
        # What starts at once may end at once, and so on, until nothing happens any more at this moment.
        while True:
            for number in range(metting):
                task = met[number]
                one = operation[task]
                for need in range(link_begins[one], link_begins[one + 1]):
                    link = links[need]
                    _queue(moments, tasks, line_begins[link], line_size[link], now, task)
                    line_size[link] += 1
                    if not taken[link]:
                        offered = _note(offers, offered, is_offered, link)
                if link_begins[one] == link_begins[one + 1]:
                    go[going] = task
                    going += 1
            metting = 0
            for number in range(going):
                task = go[number]
                one = operation[task]
                start[task], end[task] = now, now + seconds[task]
                # What takes no time disturbs nobody; what does is queued once its speed is known.
                slows = contended and side[one] >= 0 and seconds[task] != 0.0
                for member in range(begins[one], begins[one + 1]):
                    lane = lanes[member]
                    current[lane] = task
                    if slows:
                        running[rank[lane], side[one]] += 1
                        dirties = _note(dirty, dirties, is_dirty, rank[lane])
                home = lanes[begins[one]]
                if slows:
                    factor[home] = 0.0
                    fresh[freshes] = home
                    freshes += 1
                else:
                    size += 1
                    _put(heap, place, size, current, end, home, size - 1)
            going = 0
            if size and end[current[heap[0]]] <= now:
                home = heap[0]
                task = current[home]
                one = operation[task]
                place[home] = -1
                size -= 1
                if size:
                    _put(heap, place, size, current, end, heap[size], 0)
                slows = contended and side[one] >= 0 and seconds[task] != 0.0
                for member in range(begins[one], begins[one + 1]):
                    lane = lanes[member]
                    current[lane] = -1
                    if slows:
                        running[rank[lane], side[one]] -= 1
                        dirties = _note(dirty, dirties, is_dirty, rank[lane])
                    turn[lane] += 1
                    if turn[lane] < lane_begins[lane + 1]:
                        other = lane_tasks[turn[lane]]
                        unmet[other] -= 1
                        if not unmet[other]:
                            met[metting] = other
                            metting += 1
                for need in range(link_begins[one], link_begins[one + 1]):
                    link = links[need]
                    taken[link] = 0
                    offered = _note(offers, offered, is_offered, link)
                for wait in range(waiter_begins[task], waiter_begins[task + 1]):
                    other = waiters[wait]
                    unmet[other] -= 1
                    if not unmet[other]:
                        met[metting] = other
                        metting += 1
            elif offered:
                going = _grant(
                    offers, offered, is_offered, taken, operation, link_begins, links, moments, tasks, line_begins,
                    line_size, passed, passed_when, passed_task, end, go, going,
                )  # fmt: skip
                offered = 0
            else:
                break
        if contended:
            size = _set_speeds(
                dirty, dirties, is_dirty, fresh, freshes, changed, is_changed, running, seen, beside, factor, slowed,
                side, operation, begins, lanes, rank, rank_begins, rank_lanes, heap, place, size, current, end, now,
            )  # fmt: skip
            dirties = freshes = 0
        if not size:
            return start, end
        now = end[current[heap[0]]]
