"""Providers of collectives, which turn them into tasks: the cost model, or a synthesiser of schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from densing.efficiency.simulation import Cluster, Graph, collective_seconds, latency_seconds, span_of
from densing.efficiency.timeline import Comm, Kind


class Collectives(Protocol):
    """Adds collectives to a graph."""

    def add(
        self,
        graph: Graph,
        name: str,
        op: str,
        count: float,
        ranks_real: Sequence[int],
        simulated_ranks: Sequence[int],
        stream: str,
        after: Iterable[int],
    ) -> int:
        """Add a collective of ``count`` bytes (full buffer), and return the task whose end is the collective's."""


class Use(NamedTuple):
    """Concurrent communication of a group.

    Attributes
    ----------
    kind : str
        ``tp``, ``dp``, ``inner``, ``outer``.
    concurrent : int
        Groups of the kind on one node.
    exclusive : bool
        Groups of another kind use the same link.
    """

    kind: str
    concurrent: int = 1
    exclusive: bool = False


Maker = Callable[[Cluster, Use], Collectives]
"""Makes the collectives of a kind of group; called once per kind and plan."""


Cost = Callable[..., float]
AT_ONCE = 2
"""Collectives of a group in flight at once where their latencies may overlap: gloo's threads per process group."""


class CostModel:
    """Collectives with the seconds of :func:`densing.efficiency.simulation.costs.collective_seconds`.

    Where the cluster's collectives are ``pipelined``, that share of the latency is a task of its own, which holds up
    only the collective after the next: bytes follow one another on the wire, waiting for an answer does not occupy it.

    Parameters
    ----------
    cluster : Cluster
    use : Use

    Examples
    --------
    >>> from densing.efficiency.simulation import Device, Link
    >>> link = Link(0.0, 1e-9)
    >>> cluster = Cluster("toy", 2, 2, Device("toy", 1, 1), intra=link, inter=link, host=link)
    >>> graph = Graph()
    >>> CostModel(cluster, Use("dp")).add(graph, "gradients", "all_reduce", 1e6, (0, 1), (0,), "comm", ())
    0
    >>> graph.tasks[0].seconds, graph.tasks[0].bytes
    (0.001, 1000000)
    """

    def __init__(self, cluster: Cluster, use: Use) -> None:
        self.cluster, self.use = cluster, use
        self._known: dict[tuple[Cost, str, float, tuple[int, ...]], float] = {}
        self._comms: dict[tuple[str, tuple[int, ...]], Comm] = {}
        self._newest: dict[tuple[str, tuple[int, ...]], list[int]] = {}

    def add(
        self,
        graph: Graph,
        name: str,
        op: str,
        count: float,
        ranks_real: Sequence[int],
        simulated_ranks: Sequence[int],
        stream: str,
        after: Iterable[int],
        share: float = 1.0,
        speed: float = 1.0,
    ) -> int:
        """Add a collective, or ``share`` of one whose parts follow each other without paying latency again."""
        real, simulated = tuple(ranks_real), tuple(simulated_ranks)
        seconds = self.seconds(op, count, real) * share / speed
        if not self.cluster.pipelined or share < 1.0 or speed != 1.0:
            return self.place(graph, name, op, count, real, simulated, stream, after, seconds, share)
        apart = self.cluster.pipelined * self._cost(latency_seconds, op, count, real)
        newest = self._newest.setdefault((stream, simulated), [])
        # The latency of one collective may pass beside the bytes of another, but no more than AT_ONCE are under way.
        blocked_by = newest[-AT_ONCE:][:1] if len(newest) >= AT_ONCE else []
        lane = f"{stream}, latency {len(newest) % AT_ONCE}"
        waits = [*after, *blocked_by]
        begun = graph.add(name, Kind.COMM, simulated, lane, apart, after=waits, comm=self._comm(op, real))
        done = self.place(graph, name, op, count, real, simulated, stream, [begun], seconds - apart)
        newest.append(done)
        return done

    def seconds(self, op: str, count: float, real: tuple[int, ...]) -> float:
        """Return the seconds of a collective."""
        return self._cost(collective_seconds, op, count, real)

    def place(
        self,
        graph: Graph,
        name: str,
        op: str,
        count: float,
        real: tuple[int, ...],
        simulated_ranks: Sequence[int],
        stream: str,
        after: Iterable[int],
        seconds: float,
        share: float = 1.0,
    ) -> int:
        """Add a collective that takes so long, whoever says so, as one task."""
        resources: tuple[str, ...] = ()
        if self.use.exclusive:
            level = span_of(self.cluster, real)
            resources = tuple(f"{level} of {rank}" for rank in simulated_ranks)
        return graph.add(
            name,
            Kind.COMM,
            simulated_ranks,
            stream,
            seconds,
            count=round(put_in(op, count, len(real)) * share),
            after=after,
            resources=resources,
            comm=self._comm(op, real),
        )

    def _cost(self, cost: Cost, op: str, count: float, real: tuple[int, ...]) -> float:
        key = (cost, op, count, real)
        if key not in self._known:
            self._known[key] = cost(op, count, self.cluster, real, concurrent=self.use.concurrent)
        return self._known[key]

    def _comm(self, op: str, real: tuple[int, ...]) -> Comm:
        key = (op, real)
        if key not in self._comms:
            name = self.use.kind
            self._comms[key] = Comm(op, group=name, group_name=name, group_size=len(real), ranks=real)
        return self._comms[key]


def put_in(op: str, count: float, n: int) -> float:
    """Return the bytes each of ``n`` ranks puts into a collective whose full buffer has ``count``.

    Examples
    --------
    >>> put_in("all_gather", 8.0, 4), put_in("all_reduce", 8.0, 4)
    (2.0, 8.0)
    """
    return count / n if op == "all_gather" else count
