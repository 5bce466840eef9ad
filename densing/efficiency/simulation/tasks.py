"""Tasks, the graph that orders them, its columns (the simulator's input), and lower bounds on any schedule."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import chain, pairwise
from numbers import Integral
from operator import eq
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from densing.core import InputError
from densing.efficiency.timeline import Comm, Int, Kind
from densing.jobs import available_memory_gb, total_memory_gb

Float = NDArray[np.float64]
Int32 = NDArray[np.int32]
KINDS = (Kind.COMPUTE, Kind.COMM, Kind.MEMCPY, Kind.ANNOTATION)
"""What a task can be."""

LARGEST = 2**31 - 1
"""Tasks and waits are numbered in 32 bits."""
TASK_BYTES, TASK_BYTES_PYTHON = 200, 400
"""Memory per task that simulating a graph and drawing its timeline takes, by the compiled loops and by those in Python
(``benchmarks/simulate.py``)."""
HELD_BYTES = 30
"""Part of it that a task takes once it was added."""
ASK_EVERY = 2**20
"""Tasks after which the memory that is left is asked for again."""


class Task(NamedTuple):
    """Work of one rank, or of several at once.

    A stream of a rank runs its tasks in the order they were added to the graph. A task of several ranks (a collective)
    starts once all have arrived: each rank's span begins when that rank arrives, all end together.

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
        Bytes that each rank contributes to a communication, -1 unknown.
    after : tuple of int
        Tasks that must have ended.
    resources : tuple of str
        Links that it occupies while it runs, beyond its streams.
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


class Operation(NamedTuple):
    """The fields that many tasks share: all of a :class:`Task` but its seconds, its step and its dependencies."""

    name: str
    kind: Kind
    ranks: tuple[int, ...]
    stream: str
    bytes: int = -1
    resources: Sequence[str] = ()
    comm: Comm | None = None


class Block(NamedTuple):
    """Tasks in columns.

    Attributes
    ----------
    operation : int32 (n,)
        Number of each task's operation in its graph.
    seconds : float64 (n,)
    step : int32 (n,)
    waits : int32 (n,)
        How many tasks each one waits for.
    awaited : int32 (e,)
        Their numbers, task by task.
    """

    operation: Int32
    seconds: Float
    step: Int32
    waits: Int32
    awaited: Int32


NOTHING = np.empty(0, np.int32)
EMPTY = Block(NOTHING, np.empty(0), NOTHING, NOTHING, NOTHING)


class Graph:
    """Tasks in the order they were added; a task can only wait for earlier ones, so there are no cycles.

    Tasks are kept in columns, some 30 bytes each: what many have in common is an :class:`Operation`, held once.

    Two rules are for late tasks. A task may need only some of the tasks that it waits for (:attr:`need`): a server that
    goes on with the first k messages. And a task may be given up when another one ends (:attr:`until`): work whose
    result is no longer needed. A task that was given up frees its streams and links at that moment and blocks none; it
    counts towards no :attr:`need`.

    Attributes
    ----------
    need : dict of int to int
        By task: how many of those in its ``after`` must have been completed; all of them where it is not named.
    until : dict of int to int
        By task: the one, earlier or later, at whose end it is given up. A task that ends at that moment is completed.

    Examples
    --------
    >>> graph = Graph()
    >>> forward = graph.add("forward", Kind.COMPUTE, (0,), "compute", 0.5)
    >>> graph.add("all_reduce", Kind.COMM, (0,), "comm", 0.2, after=[forward])
    1
    >>> graph.tasks[1].after
    (0,)
    """

    def __init__(self) -> None:
        self.need: dict[int, int] = {}
        self.until: dict[int, int] = {}
        self.step = -1
        """Step of the tasks added from now on."""
        self.operations: list[Operation] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._parts: list[Block] = []
        self._sealed = 0
        self._open()

    def _open(self) -> None:
        # Tasks added one by one; closed to a part when columns are asked for.
        self._operation, self._seconds = array("i"), array("d")
        self._step, self._waits, self._awaited = array("i"), array("i"), array("i")

    def __len__(self) -> int:
        return self._sealed + len(self._seconds)

    @property
    def tasks(self) -> Tasks:
        """The tasks by number, made on access; may be assigned a list of tasks."""
        return Tasks(self)

    @tasks.setter
    def tasks(self, tasks: Iterable[Task]) -> None:
        # First, for the new tasks may be a choice of the old ones.
        tasks, step = list(tasks), self.step
        self._parts, self._sealed = [], 0
        self._open()
        for task in tasks:
            self.step = task.step
            self.add(
                task.name, task.kind, task.ranks, task.stream, task.seconds, count=task.bytes, after=task.after,
                resources=task.resources, comm=task.comm,
            )  # fmt: skip
        self.step = step

    def operation(self, one: Operation) -> int:
        """Return the number of an operation, for :meth:`extend`.

        Raises
        ------
        InputError
            When its resources are a text (they are a sequence of names), or its ranks no numbers.
        """
        if isinstance(one.resources, str):
            raise InputError(
                f"task {one.name!r}: resources={one.resources!r}: must be a sequence of names, "
                f"for example [{one.resources!r}]"
            )
        # Tasks share a record of a communication where they share the object; hashing long ones would take the time.
        key = (*one[:2], tuple(one.ranks), *one[3:5], tuple(one.resources), id(one.comm))
        number = self._numbers.setdefault(key, len(self.operations))
        if number == len(self.operations):
            kind = Kind(one.kind) if one.kind in KINDS else one.kind
            self.operations.append(one._replace(kind=kind, ranks=key[2], resources=key[5]))
        return number

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

        An invalid task (no rank, a time below 0, waiting for a later task) is refused when the graph is simulated.

        Raises
        ------
        InputError
            When ``resources`` is a text (it takes a sequence of names), a value is no number, or the graph has become
            too large for the memory that is left.
        """
        number = self._sealed + len(self._seconds)
        if not (number + 1) % ASK_EVERY:
            self.room(1)
        try:
            operation = self._numbers.get((name, kind, tuple(ranks), stream, count, tuple(resources), id(comm)))
        except TypeError as error:
            raise InputError(f"task {number} {name!r}, ranks: {error}; use int") from error
        if operation is None or isinstance(resources, str):
            operation = self.operation(Operation(name, kind, tuple(ranks), stream, count, resources, comm))
        before, field = len(self._awaited), "after"
        try:
            self._awaited.extend(after)
            field = "step"
            self._step.append(self.step)
            field = "seconds"
            self._seconds.append(seconds)
        except (TypeError, OverflowError) as error:
            del self._awaited[before:], self._step[len(self._seconds) :]
            what = "a value is not a whole number of 32 bits; use int"
            if field == "seconds":
                what = f"{seconds!r} is not a number"
            raise InputError(f"task {number} {name!r}, {field}: {what}") from error
        self._operation.append(operation)
        self._waits.append(len(self._awaited) - before)
        return number

    def extend(
        self,
        operation: ArrayLike,
        seconds: ArrayLike,
        waits: ArrayLike,
        awaited: ArrayLike,
        step: ArrayLike | None = None,
    ) -> int:
        """Add many tasks at once, in columns, and return the number of the first.

        Parameters
        ----------
        operation : int (n,)
            Numbers that :meth:`operation` gave.
        seconds : float (n,)
        waits : int (n,)
            How many tasks each one waits for.
        awaited : int (e,)
            Their numbers in the graph, task by task.
        step : int (n,), optional
            By default that of the graph.

        Raises
        ------
        InputError
            When columns are inconsistent, or do not fit into the memory left.

        Examples
        --------
        >>> graph = Graph()
        >>> forward = graph.operation(Operation("forward", Kind.COMPUTE, (0,), "compute"))
        >>> graph.extend([forward] * 3, [0.5, 0.25, 0.25], waits=[0, 1, 1], awaited=[0, 1])
        0
        >>> graph.tasks[2].after
        (1,)
        """
        first = len(self)
        times = np.require(seconds, np.float64, ["C", "W"])
        block = Block(
            _int32(operation, "operation"),
            times,
            np.broadcast_to(_int32(self.step if step is None else step, "step"), times.shape),
            _int32(waits, "waits"),
            _int32(awaited, "awaited"),
        )
        if not len(times) == len(block.operation) == len(block.waits):
            raise InputError(
                f"graph: {len(block.operation)} operations, {len(times)} seconds and {len(block.waits)} waits; "
                "give one of each per task"
            )
        if int(block.waits.sum(dtype=np.int64)) != len(block.awaited) or block.waits.min(initial=0) < 0:
            raise InputError(
                f"graph, awaited: {len(block.awaited)} numbers where waits sum to "
                f"{int(block.waits.sum(dtype=np.int64))}; give one per wait, and no waits below 0"
            )
        known = len(self.operations)
        if not 0 <= block.operation.min(initial=0) <= block.operation.max(initial=0) < max(known, 1):
            raise InputError(f"graph, operation: a number is none of the {known} operations of the graph")
        self.room(len(times))
        self._seal()
        self._parts.append(block)
        self._sealed += len(times)
        return first

    def again(self, block: Block, awaited: Int32) -> int:
        """Add a block of this graph once more, quicker than :meth:`extend`: only what its tasks wait for is new.

        Returns the number of the first.
        """
        first = len(self)
        if (first + len(block.seconds)) // ASK_EVERY > first // ASK_EVERY:
            self.room(len(block.seconds))
        self._operation.frombytes(block.operation.tobytes())
        self._seconds.frombytes(block.seconds.tobytes())
        self._step.extend([self.step] * len(block.seconds))
        self._waits.frombytes(block.waits.tobytes())
        self._awaited.frombytes(awaited.tobytes())
        return first

    def block(self, first: int = 0) -> Block:
        """Return the tasks from one on, in read-only columns."""
        self._seal()
        if first >= self._sealed:
            return EMPTY
        begin, parts = self._sealed, len(self._parts)
        while begin > first:
            parts -= 1
            begin -= len(self._parts[parts].seconds)
        if len(self._parts) - parts > 1:
            # One part in place of several, column by column, so that memory holds no more than one of them twice.
            several: list[Any] = list(zip(*self._parts[parts:], strict=True))
            del self._parts[parts:]
            self._parts.append(Block(*[np.concatenate(several.pop(0)) for _ in range(len(several))]))
        part = self._parts[parts]
        skip = int(part.waits[: first - begin].sum(dtype=np.int64))
        own: list[Any] = [column[first - begin :] for column in part[:4]]
        return Block(*[*own, part.awaited[skip:]])

    def _seal(self) -> None:
        """Close the tasks added one by one to a part: columns over the arrays' own memory."""
        if self._seconds:
            tail = (self._operation, self._seconds, self._step, self._waits, self._awaited)
            self._parts.append(Block(*map(np.asarray, tail)))
            self._sealed += len(self._seconds)
            self._open()

    def changed(self, change: Callable[[Operation], Operation]) -> Graph:
        """Return the same tasks of other operations, without rules for late tasks.

        Examples
        --------
        >>> graph = Graph()
        >>> _ = graph.add("send", Kind.COMM, (0,), "comm", 0.5)
        >>> graph.changed(lambda one: one._replace(stream="p2p")).tasks[0].stream
        'p2p'
        """
        graph, block = Graph(), self.block()
        numbers = np.empty(len(self.operations), np.int32)
        for number, one in enumerate(map(change, self.operations)):
            numbers[number] = graph.operation(one)
        graph.extend(numbers[block.operation], block.seconds, block.waits, block.awaited, block.step)
        return graph

    def room(self, more: int) -> None:
        """Refuse to grow beyond the memory left.

        Raises
        ------
        InputError
            When there would be more than the memory that is left holds, or than can be numbered.
        """
        count = len(self) + more
        if more < ASK_EVERY and count < ASK_EVERY:
            return
        remedy = "take fewer layers, micro-batches or steps per round (tau), or larger buckets (bucket_mb)"
        if count > LARGEST:
            raise InputError(
                f"the plan would have {count:,} tasks, more than the {LARGEST:,} that can be numbered; {remedy}"
            )
        left = min(available_memory_gb(), total_memory_gb())
        # What is there already has taken its part.
        each = TASK_BYTES if has_numba() and not (self.need or self.until) else TASK_BYTES_PYTHON
        need = (count * each - len(self) * HELD_BYTES) / 1e9
        if need > left:
            raise InputError(
                f"the plan would have {count:,} tasks, which take {need:,.3g} GB to simulate, and {left:,.3g} GB are "
                f"free; {remedy}"
            )


class Tasks(Sequence[Task]):
    """The tasks of a graph, made on access."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def __len__(self) -> int:
        return len(self.graph)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        numbers = range(len(self))[index]
        if isinstance(numbers, int):
            return next(self._between(numbers, numbers + 1))
        first = min(numbers, default=0)
        between = list(self._between(first, max(numbers, default=-1) + 1))
        return [between[number - first] for number in numbers]

    def __iter__(self) -> Iterator[Task]:
        return self._between(0, len(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    def __add__(self, other: Iterable[Task]) -> list[Task]:
        return [*self, *other]

    def _between(self, first: int, last: int) -> Iterator[Task]:
        block, operations = self.graph.block(first), self.graph.operations
        size, at = last - first, 0
        for code, seconds, step, waits in zip(*(column[:size].tolist() for column in block[:4]), strict=True):
            name, kind, ranks, stream, count, resources, comm = operations[code]
            after = tuple(block.awaited[at : at + waits].tolist())
            yield Task(name, kind, ranks, stream, seconds, count, after, resources, comm, step)
            at += waits


class Members(NamedTuple):
    """The m members of tasks, which have one per rank, by task and in each task's order.

    Attributes
    ----------
    task : int32 (m,)
    lane : unsigned (m,)
        A stream of a rank, in as few bits as it takes.
    previous : int32 (m,)
        Task before it on its lane, -1 none.
    first : int64 (n,)
        First member of each task.
    """

    task: Int32
    lane: NDArray[np.unsignedinteger[Any]]
    previous: Int32
    first: Int


class Columns(NamedTuple):
    """A graph of n tasks with o operations, e waits and l lanes, which are the streams of the ranks.

    Attributes
    ----------
    operations : sequence of Operation
    ranks : int
    operation : int32 (n,)
    seconds : float64 (n,)
        At the speed of the slowest member.
    step, waits : int32 (n,)
    awaited : int32 (e,)
        What tasks wait for by name, task by task.
    kind : int64 (o,)
        -1 where no task has the operation.
    begins : int64 (o + 1,)
        Where the lanes of each operation begin in ``lanes``.
    lanes : int64
        By operation, in the order of its ranks.
    rank, stream : int64 (l,)
        Of each lane.
    streams : tuple of str
    need, until : dict of int to int
        See :class:`Graph`.
    """

    operations: Sequence[Operation]
    ranks: int
    operation: Int32
    seconds: Float
    step: Int32
    waits: Int32
    awaited: Int32
    kind: Int
    begins: Int
    lanes: Int
    rank: Int
    stream: Int
    streams: tuple[str, ...]
    need: Mapping[int, int]
    until: Mapping[int, int]

    def lanes_of(self) -> list[list[int]]:
        """Return the lanes of each operation."""
        lanes, begins = self.lanes.tolist(), self.begins.tolist()
        return [lanes[begin:end] for begin, end in pairwise(begins)]

    def ranks_of(self) -> list[tuple[int, ...]]:
        """Return the ranks of each task."""
        ranks = [one.ranks for one in self.operations]
        return [ranks[operation] for operation in self.operation.tolist()]

    @property
    def waiter(self) -> Int32:
        """The task of each wait, int32 (e,)."""
        return np.repeat(np.arange(len(self.waits), dtype=np.int32), self.waits)

    def after(self, task: int) -> list[int]:
        """Return what a task waits for by name."""
        begin = int(self.waits[:task].sum(dtype=np.int64))
        return self.awaited[begin : begin + int(self.waits[task])].tolist()

    def members(self) -> Members:
        """Return the members of all tasks."""
        count = np.diff(self.begins).astype(np.int32)[self.operation]
        first = np.cumsum(count, dtype=np.int64) - count
        task = np.repeat(np.arange(len(count), dtype=np.int32), count)
        # Where a member stands among the lanes: as far behind its task's first as it does here.
        at = np.repeat((self.begins[self.operation] - first).astype(np.int32), count)
        at += np.arange(len(task), dtype=np.int32)
        lane = self.lanes.astype(np.min_scalar_type(len(self.rank)))[at]
        del at
        # A stable sort keeps the members of a lane in the order of their tasks, so neighbours are successors. It takes
        # a sixth of the time where numbers have no more than 16 bits.
        order = np.argsort(lane, kind="stable")
        previous = np.full(len(lane), -1, np.int32)
        same = lane[order[1:]] == lane[order[:-1]]
        previous[order[1:][same]] = task[order[:-1][same]]
        return Members(task, lane, previous, first)


def columns(graph: Graph, ranks: int | None = None, speed: Sequence[float] = ()) -> Columns:
    """Put a graph into columns and check it.

    Raises
    ------
    InputError
        When a task takes no finite time from 0 up, has no rank, has a rank twice or one that is not there, is of a kind
        that cannot be simulated, waits for one that is not before it, needs more than it waits for, or is given up at
        the end of itself or of none; or a speed is not above 0.
    """
    block = graph.block()
    used = np.bincount(block.operation, minlength=len(graph.operations)) > 0

    def first(operation: int) -> str:
        return name_of(graph, int(np.argmax(block.operation == operation)))

    # Operations that no task has are left empty.
    named = [one.ranks if uses else () for one, uses in zip(graph.operations, used.tolist(), strict=True)]
    for number in np.flatnonzero(used).tolist():
        own, what = graph.operations[number].ranks, graph.operations[number].kind
        if not own:
            raise InputError(f"{first(number)}, ranks: is empty; name the rank it runs on")
        if not all(isinstance(rank, Integral) for rank in own):
            raise InputError(f"{first(number)}, ranks: a value is not a whole number; use int")
        if len(set(own)) < len(own):
            raise InputError(f"{first(number)}, ranks: {own} names a rank twice; name each once")
        if what not in KINDS:
            known = ", ".join(one.name for one in KINDS)
            raise InputError(f"{first(number)}, kind: {what} cannot be simulated; use {known}")
    count = max((max(own) for own in named if own), default=-1) + 1 if ranks is None else ranks
    if count < 0:
        raise InputError(f"ranks: {count} is below 0; give how many ranks there are")
    for number, own in enumerate(named):
        for one_rank in own:
            if not 0 <= one_rank < count:
                raise InputError(f"{first(number)}, ranks: there is no rank {one_rank} among {count} ranks")
    _check_waits(graph, block)
    _check_late(graph)
    streams = {name: code for code, name in enumerate(
        dict.fromkeys(one.stream for one, uses in zip(graph.operations, used.tolist(), strict=True) if uses)
    )}  # fmt: skip
    sizes = np.fromiter(map(len, named), np.int64, len(named))
    rank = np.fromiter(chain.from_iterable(named), np.int64, int(sizes.sum()))
    stream = np.repeat([streams.get(one.stream, 0) for one in graph.operations], sizes).astype(np.int64)
    places, lanes = np.unique(rank * max(len(streams), 1) + stream, return_inverse=True)
    of_rank, of_stream = np.divmod(places, max(len(streams), 1))
    kind = np.array([int(one.kind) if uses else -1 for one, uses in zip(graph.operations, used, strict=True)], np.int64)
    return Columns(
        graph.operations,
        count,
        block.operation,
        _seconds(graph, block, kind, named, speed, count),
        block.step,
        block.waits,
        block.awaited,
        kind,
        np.concatenate(([0], np.cumsum(sizes))),
        lanes.astype(np.int64),
        of_rank,
        of_stream,
        tuple(streams),
        graph.need,
        graph.until,
    )


@cache
def has_numba() -> bool:
    """Return whether Numba is installed, which compiles the loops of the simulator (extra ``simulate``)."""
    return find_spec("numba") is not None


def grouped(key: Int | Int32, value: Int | Int32, count: int) -> tuple[list[int], list[int]]:
    """Return values ordered by a key from 0 to ``count``, and where each key's begin (and the last one's end).

    Examples
    --------
    >>> grouped(np.array([1, 0, 1]), np.array([7, 8, 9]), 2)
    ([8, 7, 9], [0, 1, 3])
    """
    order = np.argsort(key, kind="stable")
    begins = np.concatenate(([0], np.cumsum(np.bincount(key, minlength=count))))
    return value[order].tolist(), begins.tolist()


def name_of(graph: Graph, number: int) -> str:
    """Return a task's name in messages."""
    return f"task {number} {graph.tasks[number].name!r}"


def _int32(values: ArrayLike, field: str) -> Int32:
    column = np.asarray(values)
    if not column.size:
        return np.empty(0, np.int32)
    if column.dtype.kind not in "iu" or column.min() < -LARGEST or column.max() > LARGEST:
        raise InputError(f"graph, {field}: a value is not a whole number of 32 bits; use int")
    return np.require(column, np.int32, ["C", "W"])


def _check_waits(graph: Graph, block: Block) -> None:
    if len(block.awaited) > LARGEST:
        raise InputError(f"graph: {len(block.awaited):,} waits, more than the {LARGEST:,} that can be numbered")
    waiter = np.repeat(np.arange(len(block.waits), dtype=np.int32), block.waits)
    wrong = np.flatnonzero((block.awaited < 0) | (block.awaited >= waiter))
    if len(wrong):
        number, other = int(waiter[wrong[0]]), int(block.awaited[wrong[0]])
        who = name_of(graph, other) if 0 <= other < len(graph) else f"task {other}, which does not exist"
        raise InputError(
            f"{name_of(graph, number)}, after: waits for {who}; a task can only wait for "
            "earlier ones, otherwise the two may deadlock: add tasks in the order in which every "
            "rank reaches them"
        )


def _check_late(graph: Graph) -> None:
    """Refuse needs that cannot be met, and ends that never come."""
    for number in (*graph.need, *graph.until):
        if not 0 <= number < len(graph):
            raise InputError(f"graph of {len(graph)} tasks: a rule applies to task {number}, which does not exist")
    if graph.need:
        block = graph.block()
        ends = np.cumsum(block.waits)
    for number, need in graph.need.items():
        most = len(set(block.awaited[ends[number] - block.waits[number] : ends[number]].tolist()))
        if not 1 <= need <= most:
            raise InputError(f"{name_of(graph, number)}, need: {need} of the {most} it waits for; give 1 to {most}")
    for number, event in graph.until.items():
        if event == number or not 0 <= event < len(graph):
            raise InputError(
                f"{name_of(graph, number)}, until: task {event} does not exist, or is this one; name another"
            )


def _seconds(
    graph: Graph, block: Block, kind: Int, ranks: Sequence[Sequence[int]], speed: Sequence[float], count: int
) -> Float:
    """Return each task's seconds; a computation of several ranks goes at the speed of its slowest."""
    if len(speed) and len(speed) < count:
        raise InputError(f"speed: {len(speed)} values for {count} ranks; give one per rank, or none")
    for number, value in enumerate(speed[:count]):
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"speed of rank {number}: {value} is not a finite number above 0; 1 is the usual speed")
    # Infinite or not a number: neither is at least 0 and below infinity.
    wrong = np.flatnonzero(~((block.seconds >= 0) & (block.seconds < np.inf)))
    if len(wrong):
        number = int(wrong[0])
        raise InputError(
            f"{name_of(graph, number)}, seconds: {block.seconds[number]} is not a finite time of 0 or more"
        )
    slowest = np.ones(len(ranks))
    if len(speed):
        for number in np.flatnonzero(kind == Kind.COMPUTE).tolist():
            slowest[number] = min(speed[rank] for rank in ranks[number])
    return block.seconds / slowest[block.operation] if np.any(slowest != 1) else block.seconds


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
        When a task is impossible, or the graph has rules for late tasks: one that is given up may end any chain.

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
    awaited, first = table.awaited.tolist(), 0
    for seconds, waits in zip(table.seconds.tolist(), table.waits.tolist(), strict=True):
        ends.append(max((ends[other] for other in awaited[first : first + waits]), default=0.0) + seconds)
        first += waits
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
    work = np.bincount(table.operation, table.seconds, minlength=len(table.operations)).tolist()
    lanes = zip(table.rank.tolist(), table.stream.tolist(), strict=True)
    seconds_of: dict[tuple[int, str] | str, float] = {(rank, table.streams[stream]): 0.0 for rank, stream in lanes}
    for one, seconds, kind in zip(table.operations, work, table.kind.tolist(), strict=True):
        if kind < 0:
            continue
        for rank in one.ranks:
            seconds_of[rank, one.stream] += seconds
        for name in dict.fromkeys(one.resources):
            seconds_of[name] = seconds_of.get(name, 0.0) + seconds
    return seconds_of
