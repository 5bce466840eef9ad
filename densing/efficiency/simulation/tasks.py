"""Tasks, the graph that orders them, the same in columns (what the simulator runs), and what no schedule can beat."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from densing.core import InputError
from densing.efficiency.timeline import Comm, Int, Kind


class Task(NamedTuple):
    """Something one rank, or several at once, are busy with.

    A stream of a rank works through its tasks in the order they were added to the graph. A task of several ranks (a
    collective) moves once all have come to it: each rank's span begins when that rank is there, all end together.

    Attributes
    ----------
    name : str
    kind : Kind
        ``COMPUTE``, ``COMM``, ``MEMCPY`` or ``ANNOTATION`` (takes time and occupies nothing: a delay of the host).
    ranks : tuple of int
    stream : str
        ``compute``, ``comm``, ``host``, ... of each of the ranks.
    seconds : float
        Without contention.
    bytes : int
        Put into a communication by each rank, -1 unknown.
    after : tuple of int
        Tasks that must have ended.
    resources : tuple of str
        Links it needs for itself while it runs, beyond its streams.
    comm : Comm, optional
    step : int
        Training step it belongs to, from 0; -1 none.
    """

    name: str
    kind: Kind
    ranks: tuple[int, ...]
    stream: str
    seconds: float
    bytes: int = -1
    after: tuple[int, ...] = ()
    resources: tuple[str, ...] = ()
    comm: Comm | None = None
    step: int = -1


MOST_TASKS = 3_000_000
"""Most tasks of a graph; more are refused while it is built (at the limit some ten seconds and two gigabytes)."""


class Graph:
    """Tasks in the order they were added; a task can only wait for earlier ones, so there are no cycles.

    Two rules are for those who come late. A task may need only some of the tasks that it waits for (:attr:`need`):
    a server that goes on with the first k messages. And a task may be given up when another one ends (:attr:`until`):
    work whose result nobody waits for any more. What was given up frees its streams and links at that moment, and holds
    nobody back; it counts for no :attr:`need`.

    Attributes
    ----------
    tasks : list of Task
    need : dict of int to int
        By task: how many of those in its ``after`` must have been completed; all of them where it is not named.
    until : dict of int to int
        By task: the one, earlier or later, at whose end it is given up. What ends at that very moment is completed.

    Examples
    --------
    >>> graph = Graph()
    >>> forward = graph.add("forward", Kind.COMPUTE, (0,), "compute", 0.5)
    >>> graph.add("all_reduce", Kind.COMM, (0,), "comm", 0.2, after=[forward])
    1
    """

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.need: dict[int, int] = {}
        self.until: dict[int, int] = {}
        self.step = -1
        """Step of the tasks added from now on."""

    def __len__(self) -> int:
        return len(self.tasks)

    def add(
        self,
        name: str,
        kind: Kind,
        ranks: Sequence[int],
        stream: str,
        seconds: float,
        *,
        count: int = -1,
        after: Iterable[int] = (),
        resources: Sequence[str] = (),
        comm: Comm | None = None,
    ) -> int:
        """Add a task of ``count`` bytes and return its number.

        What makes no sense (no rank, a time below 0, waiting for a later task) is refused when the graph is simulated.

        Raises
        ------
        InputError
            When ``resources`` is a text (it takes a sequence of names), or the graph has become too large.
        """
        if isinstance(resources, str):
            raise InputError(
                f"task {name!r}: resources={resources!r}: must be a sequence of names, for example [{resources!r}]"
            )
        self.room(1)
        task = Task(name, kind, tuple(ranks), stream, seconds, count, tuple(after), tuple(resources), comm, self.step)
        self.tasks.append(task)
        return len(self.tasks) - 1

    def room(self, more: int) -> None:
        """Refuse to grow by so many tasks.

        Raises
        ------
        InputError
            When there would be more than ``MOST_TASKS``.
        """
        if len(self.tasks) + more > MOST_TASKS:
            raise InputError(
                f"the plan would have more than {MOST_TASKS:,} tasks; take fewer layers, micro-batches or steps per "
                "round (tau), or larger buckets (bucket_mb)"
            )


Float = NDArray[np.float64]
KINDS = (Kind.COMPUTE, Kind.COMM, Kind.MEMCPY, Kind.ANNOTATION)
"""What a task can be."""


class Columns(NamedTuple):
    """A graph of n tasks with m members (a task has one per rank) and e waits.

    Attributes
    ----------
    tasks : sequence of Task
    ranks : int
    seconds : float64 (n,)
        At the speed of the slowest member.
    kind : int64 (n,)
    step : int64 (n,)
    members : int64 (n,)
        Ranks of each task.
    task, rank, stream : int64 (m,)
        By task, members in the task's order.
    previous : int64 (m,)
        Task before it on the rank's stream, -1 none.
    streams : tuple of str
    waiter, awaited : int64 (e,)
        A task, and one it waits for: what it names, and what comes before it on its streams.
    need, until : dict of int to int
        See :class:`Graph`.
    """

    tasks: Sequence[Task]
    ranks: int
    seconds: Float
    kind: Int
    step: Int
    members: Int
    task: Int
    rank: Int
    stream: Int
    previous: Int
    streams: tuple[str, ...]
    waiter: Int
    awaited: Int
    need: Mapping[int, int]
    until: Mapping[int, int]

    @property
    def named(self) -> int:
        """How many of the waits are named by tasks; they come first."""
        return len(self.waiter) - int(np.count_nonzero(self.previous >= 0))

    def lists(self) -> tuple[list[int], list[int]]:
        """Return what each task waits for, one after the other, and where each task's part begins."""
        return grouped(self.waiter, self.awaited, len(self.tasks))


def columns(graph: Graph, ranks: int | None = None, speed: Sequence[float] = ()) -> Columns:
    """Put a graph into columns and check it.

    Raises
    ------
    InputError
        When a task takes no finite time from 0 up, has no rank, has a rank twice or one that is not there, is of a kind
        that cannot be simulated, waits for one that is not before it, needs more than it waits for, or is given up at
        the end of itself or of none; or a speed is not above 0.
    """
    tasks = graph.tasks
    members = _int(map(len, map(itemgetter(2), tasks)), tasks, "ranks")
    rank = _int(chain.from_iterable(map(itemgetter(2), tasks)), tasks, "ranks")
    for number in np.flatnonzero(members == 0).tolist():
        raise InputError(f"{name_of(number, tasks[number])}, ranks: is empty; name the rank it runs on")
    for number in np.flatnonzero(members > 1).tolist():
        named = tasks[number].ranks
        if len(set(named)) < len(named):
            raise InputError(f"{name_of(number, tasks[number])}, ranks: {named} names a rank twice; name each once")
    count = _count(tasks, members, rank, ranks)
    task = np.repeat(np.arange(len(tasks)), members)
    # itemgetter reads a field of all tasks without a step of Python per task.
    names = {name: code for code, name in enumerate(dict.fromkeys(map(itemgetter(3), tasks)))}
    stream = np.repeat(np.fromiter(map(names.__getitem__, map(itemgetter(3), tasks)), np.int64, len(tasks)), members)
    previous = _previous(rank * max(len(names), 1) + stream, task)
    kind = _int(map(itemgetter(1), tasks), tasks, "kind")
    for number in np.flatnonzero(~np.isin(kind, [int(known) for known in KINDS])).tolist():
        known = ", ".join(one.name for one in KINDS)
        raise InputError(f"{name_of(number, tasks[number])}, kind: {kind[number]} cannot be simulated; use {known}")
    waiter, awaited = _named(tasks)
    _check_late(graph)
    follows = previous >= 0
    return Columns(
        tasks,
        count,
        _seconds(tasks, kind, task, rank, speed, count),
        kind,
        _int(map(itemgetter(9), tasks), tasks, "step"),
        members,
        task,
        rank,
        stream,
        previous,
        tuple(names),
        np.concatenate((waiter, task[follows])),
        np.concatenate((awaited, previous[follows])),
        graph.need,
        graph.until,
    )


def grouped(key: Int, value: Int, count: int) -> tuple[list[int], list[int]]:
    """Return values ordered by a key from 0 to ``count``, and where each key's begin (and the last one's end).

    Examples
    --------
    >>> grouped(np.array([1, 0, 1]), np.array([7, 8, 9]), 2)
    ([8, 7, 9], [0, 1, 3])
    """
    order = np.argsort(key, kind="stable")
    begins = np.concatenate(([0], np.cumsum(np.bincount(key, minlength=count))))
    return value[order].tolist(), begins.tolist()


def name_of(number: int, task: Task) -> str:
    """Return how a message names a task."""
    return f"task {number} {task.name!r}"


def _int(values: Iterable[Any], tasks: Sequence[Task], field: str) -> Int:
    listed = list(values)
    if not listed:
        return np.empty(0, np.int64)
    try:
        column = np.array(listed)
    except (ValueError, OverflowError) as error:
        raise InputError(f"graph of {len(tasks)} tasks, {field}: {error}; use int") from error
    if column.ndim != 1 or column.dtype.kind not in "iu":
        raise InputError(f"graph of {len(tasks)} tasks, {field}: a value is not a whole number; use int")
    return column.astype(np.int64)


def _count(tasks: Sequence[Task], members: Int, rank: Int, ranks: int | None) -> int:
    count = int(rank.max(initial=-1)) + 1 if ranks is None else ranks
    if count < 0:
        raise InputError(f"ranks: {count} is below 0; give how many ranks there are")
    for member in np.flatnonzero((rank < 0) | (rank >= count)).tolist():
        number = int(np.searchsorted(np.cumsum(members), member, side="right"))
        raise InputError(
            f"{name_of(number, tasks[number])}, ranks: there is no rank {rank[member]} among {count} ranks"
        )
    return count


def _previous(lane: Int, task: Int) -> Int:
    """Task before each member on the same lane, which is a rank's stream."""
    # A stable sort keeps the members of a lane in the order of their tasks, so neighbours are successors.
    order = np.argsort(lane, kind="stable")
    before = np.full(len(lane), -1)
    same = lane[order[1:]] == lane[order[:-1]]
    before[order[1:][same]] = task[order[:-1][same]]
    return before


def _named(tasks: Sequence[Task]) -> tuple[Int, Int]:
    after = list(map(itemgetter(6), tasks))
    waiter = np.repeat(np.arange(len(tasks)), _int(map(len, after), tasks, "after"))
    awaited = _int(chain.from_iterable(after), tasks, "after")
    for wait in np.flatnonzero((awaited < 0) | (awaited >= waiter)).tolist():
        number, other = int(waiter[wait]), int(awaited[wait])
        who = name_of(other, tasks[other]) if 0 <= other < len(tasks) else f"task {other}, which does not exist"
        raise InputError(
            f"{name_of(number, tasks[number])}, after: waits for {who}; a task can only wait for "
            "earlier ones, otherwise the two may deadlock: add tasks in the order in which every "
            "rank reaches them"
        )
    return waiter, awaited


def _check_late(graph: Graph) -> None:
    """Refuse needs that cannot be met, and ends that do not come."""
    tasks = graph.tasks
    for number in (*graph.need, *graph.until):
        if not 0 <= number < len(tasks):
            raise InputError(f"graph of {len(tasks)} tasks: a rule applies to task {number}, which does not exist")
    for number, need in graph.need.items():
        most = len(set(tasks[number].after))
        if not 1 <= need <= most:
            raise InputError(
                f"{name_of(number, tasks[number])}, need: {need} of the {most} it waits for; give 1 to {most}"
            )
    for number, event in graph.until.items():
        if event == number or not 0 <= event < len(tasks):
            raise InputError(
                f"{name_of(number, tasks[number])}, until: task {event} does not exist, or is this one; name another"
            )


def _seconds(tasks: Sequence[Task], kind: Int, task: Int, rank: Int, speed: Sequence[float], count: int) -> Float:
    """Return each task's seconds; a computation of several ranks goes at the speed of its slowest."""
    if len(speed) and len(speed) < count:
        raise InputError(f"speed: {len(speed)} values for {count} ranks; give one per rank, or none")
    for number, value in enumerate(speed[:count]):
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"speed of rank {number}: {value} is not a finite number above 0; 1 is the usual speed")
    speeds = np.asarray(speed[:count], np.float64) if len(speed) else np.ones(count)
    try:
        seconds = np.array(list(map(itemgetter(4), tasks)), np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"graph of {len(tasks)} tasks, seconds: {error}; give numbers") from error
    for number in np.flatnonzero(~(np.isfinite(seconds) & (seconds >= 0))).tolist():
        raise InputError(
            f"{name_of(number, tasks[number])}, seconds: {seconds[number]} is not a finite time of 0 or more"
        )
    slowest = np.full(len(tasks), np.inf)
    np.minimum.at(slowest, task, speeds[rank])
    return np.where(kind == Kind.COMPUTE, seconds / slowest, seconds)


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
        When a task is impossible, or the graph has rules for those who come late: what is given up may end any chain.

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
    if graph.need or graph.until:
        raise InputError("critical path: the graph has optional waits or abandoned tasks; simulate it")
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
    lane = table.rank * max(len(table.streams), 1) + table.stream
    work = np.bincount(lane, table.seconds[table.task])
    seconds_of: dict[tuple[int, str] | str, float] = {}
    for code in np.unique(lane).tolist():
        rank, stream = divmod(code, len(table.streams))
        seconds_of[rank, table.streams[stream]] = float(work[code])
    for task, seconds in zip(table.tasks, table.seconds.tolist(), strict=True):
        for name in dict.fromkeys(task.resources):
            seconds_of[name] = seconds_of.get(name, 0.0) + seconds
    return seconds_of
