"""Tasks and the graph that orders them: what the simulator runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from densing.core import InputError
from densing.efficiency.timeline import Comm, Kind


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
"""A graph of more is refused while it is being made: some ten seconds, and two gigabytes."""


class Graph:
    """Tasks in the order they were added; a task can only wait for earlier ones, so there are no cycles.

    Examples
    --------
    >>> graph = Graph()
    >>> forward = graph.add("forward", Kind.COMPUTE, (0,), "compute", 0.5)
    >>> graph.add("all_reduce", Kind.COMM, (0,), "comm", 0.2, after=[forward])
    1
    """

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.step = -1
        """Step that tasks added from now on belong to."""

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
                f"task {name!r}: resources={resources!r}: a sequence of names is needed, say [{resources!r}]"
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
