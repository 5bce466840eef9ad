"""Synthesised collectives for any plan: a schedule as one task, or as its messages where all ranks are simulated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from densing.core import InputError
from densing.efficiency.simulation import Cluster, Graph
from densing.efficiency.techniques.planner import CostModel, Use
from densing.efficiency.techniques.taccl.contiguity import TOGETHER
from densing.efficiency.techniques.taccl.schedule import Schedule
from densing.efficiency.techniques.taccl.synthesis import compact, synthesise
from densing.efficiency.techniques.taccl.topology import from_cluster
from densing.efficiency.timeline import Comm, Kind

MOST_RANKS = 64
"""Of a group: beyond it neither the search nor its result would be worth waiting for."""


def collective_schedule(
    op: str,
    count: float,
    cluster: Cluster,
    ranks: Sequence[int],
    *,
    concurrent: int = 1,
    together: int = TOGETHER,
    time_limit: float = 2.0,
) -> Schedule:
    """Synthesise a collective of ``count`` bytes (full buffer) among ranks of a cluster.

    Sizes share a schedule up to a factor of two: it is synthesised once for the nearest power of four of the chunk's
    bytes, kept in memory, and timed anew for the size asked for.

    Parameters
    ----------
    op, count, cluster, ranks, concurrent
        As :func:`densing.efficiency.simulation.cluster.costs.collective_seconds` has them.
    together : int
        Most chunks of a message.
    time_limit : float
        Seconds for a routing problem.

    Raises
    ------
    InputError
        When there is nothing to send, the group has more than 64 ranks or does not fill its nodes equally.
    """
    n = len(ranks)
    if not 2 <= n <= MOST_RANKS:
        raise InputError(f"taccl: synthesises collectives of 2 to {MOST_RANKS} ranks, not of {n}; use fewer nodes")
    if not (math.isfinite(count) and count > 0):
        raise InputError(f"taccl: {count} bytes; give a finite number above 0")
    chunk = count if op in ("broadcast", "send_recv") else count / n
    near = 4.0 ** round(math.log(chunk, 4))
    found = synthesise(
        from_cluster(cluster, near, ranks, concurrent=concurrent), op, together=together, time_limit=time_limit
    )
    exact = from_cluster(cluster, chunk, ranks, concurrent=concurrent)
    return replace(compact(found.schedule, exact), topology=cluster.name)


class Synthesised:
    """Provider of collectives (:class:`~densing.efficiency.techniques.planner.Collectives`) that synthesises them.

    Where one rank stands for all of a group, the collective is one task that takes as long as the schedule. Where every
    rank is simulated, its messages are tasks of their two ranks, each pair on a stream of its own: late ranks then hold
    up only what needs them, but ports that several pairs share are left out, so it can end earlier than the schedule.

    Parameters
    ----------
    cluster : Cluster
    use : Use
    together : int
    time_limit : float
        As in :func:`collective_schedule`.

    Examples
    --------
    >>> from densing.efficiency.simulation.cluster.cluster import Device, Link
    >>> link = Link(0.0, 1e-9)
    >>> cluster = Cluster("toy", 2, 2, Device("toy", 1, 1), intra=link, inter=link, host=link)
    >>> graph = Graph()
    >>> Synthesised(cluster, Use("dp")).add(graph, "gradients", "all_reduce", 1e6, (0, 1), (0,), "comm", ())
    0
    >>> round(graph.tasks[0].seconds, 9)
    0.001
    """

    def __init__(self, cluster: Cluster, use: Use, *, together: int = TOGETHER, time_limit: float = 2.0) -> None:
        self.cluster, self.use, self.together, self.time_limit = cluster, use, together, time_limit
        self._known: dict[tuple[str, float, tuple[int, ...]], Schedule] = {}
        self._simple = CostModel(cluster, use)

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
        real, simulated, waits = tuple(ranks_real), tuple(simulated_ranks), tuple(after)
        if len(real) < 2 or count <= 0 or op == "send_recv":
            return self._simple.add(graph, name, op, count, real, simulated, stream, waits)
        schedule = self.schedule(op, count, real)
        if len(simulated) == len(real):
            return self._messages(graph, name, schedule, count, simulated, stream, waits)
        seconds = schedule.makespan * 1e-6
        return self._simple.place(graph, name, op, count, real, simulated, stream, waits, seconds)

    def schedule(self, op: str, count: float, real: tuple[int, ...]) -> Schedule:
        """Return the schedule of a collective; the same one again for the same question."""
        key = (op, count, real)
        if key not in self._known:
            self._known[key] = collective_schedule(
                op,
                count,
                self.cluster,
                real,
                concurrent=self.use.concurrent,
                together=self.together,
                time_limit=self.time_limit,
            )
        return self._known[key]

    def _messages(
        self,
        graph: Graph,
        name: str,
        schedule: Schedule,
        count: float,
        ranks: tuple[int, ...],
        stream: str,
        waits: tuple[int, ...],
    ) -> int:
        """Each message waits for both its ranks and for what brings its chunks; a last task ends with all of them."""
        chunk = count / (1 if schedule.op == "broadcast" else schedule.n)
        begun = [graph.add(f"{name} begins", Kind.COMM, (rank,), stream, 0.0, after=waits) for rank in ranks]
        brought: dict[tuple[int, int], list[int]] = {}
        tasks: list[int] = []
        for send in schedule.sends:
            a, b = ranks[send.src], ranks[send.dst]
            needs = {task for c in send.chunks for task in brought.get((send.src, c), [])}
            size = round(chunk * len(send.chunks))
            task = graph.add(
                f"{name} {send.src}>{send.dst}",
                Kind.COMM,
                (a, b),
                f"{stream} {a}>{b}",
                (send.end - send.start) * 1e-6,
                count=size,
                after=(begun[send.src], begun[send.dst], *sorted(needs)),
                comm=Comm("send_recv", group=self.use.kind, group_size=2, ranks=(a, b), src=a, dst=b),
            )
            for c in send.chunks:
                brought.setdefault((send.dst, c), []).append(task)
            tasks.append(task)
        return graph.add(f"{name} ends", Kind.COMM, ranks, stream, 0.0, after=tasks)
