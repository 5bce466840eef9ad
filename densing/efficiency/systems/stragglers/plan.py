"""The plan of a server and its workers: messages compete for the server's link, and who is late is not waited for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from densing.efficiency.simulation import Delay, Graph, Simulation
from densing.efficiency.systems.plan import Control, Plan
from densing.efficiency.systems.stragglers.schemes import Scheme
from densing.efficiency.timeline import Comm, Kind

Floats = NDArray[np.float64]

UPDATE, MESSAGE = "update", "send gradients"
_BLOCK = 5_000


def shortest(scheme: Scheme, times: Floats) -> Floats:
    """Return when a step is complete if nothing but tasks takes time.

    Parameters
    ----------
    scheme : Scheme
    times : float64 (draws, workers, tasks)
        Of each task, seconds.

    Returns
    -------
    float64 (draws,)

    Examples
    --------
    >>> from densing.efficiency.systems.stragglers.schemes import uncoded
    >>> shortest(uncoded(2, 2), np.array([[[1.0, 1.0], [3.0, 1.0]]])).tolist()
    [2.0]
    """
    done = np.cumsum(times, axis=2)
    came = np.stack([done[:, worker, after - 1] for worker, after in scheme.messages], axis=1)
    groups = [
        np.min([np.partition(came[:, way.of], way.need - 1, axis=1)[:, way.need - 1] for way in ways], axis=0)
        for ways in scheme.enough
    ]
    return np.max(groups, axis=0)


def exact_mean(
    scheme: Scheme, partition_s: Sequence[float], delay: Delay, devices: tuple[int, int, int], draws: int = 20_000
) -> tuple[float, float]:
    """Return the mean of :func:`shortest` over independent draws of a delay in arrays, and its standard error, seconds.

    Parameters
    ----------
    scheme : Scheme
    partition_s : sequence of float
        By worker: what a partition takes without a delay.
    delay : Delay
        That lasts a task or a step.
    devices : tuple of int
        See :func:`serve`.
    draws : int
    """
    rng, tasks = np.random.default_rng([delay.seed, draws]), max(map(len, scheme.tasks))
    fresh, found = tasks if delay.lasts == "task" else 1, []
    for begun in range(0, draws, _BLOCK):
        drawn = delay.quantile(rng.random((min(_BLOCK, draws - begun), fresh, *devices)))
        found.append(_done(scheme, partition_s, drawn.max(axis=(2, 4)), tasks))
    seconds = np.concatenate(found)
    return float(seconds.mean()), float(seconds.std(ddof=1) / np.sqrt(draws))


def _done(scheme: Scheme, partition_s: Sequence[float], late: Floats, tasks: int) -> Floats:
    """Return :func:`shortest` of delays of shape (draws, tasks or 1, workers) before each partition."""
    times = np.asarray(partition_s) + np.broadcast_to(late, (len(late), tasks, len(partition_s)))
    return shortest(scheme, times.transpose(0, 2, 1))


class Costs(NamedTuple):
    """What a step of a server and its workers takes, but for who comes late.

    Attributes
    ----------
    partition_s : tuple of float
        By worker: forward and backward over one partition, seconds.
    message_s, weights_s : float
        A gradient's way to the server, and the weights' to one worker, seconds.
    message_bytes, weights_bytes : int
    load_s, update_s : float
        New weights into a worker's memory; the server's last sum and its update, seconds.
    """

    partition_s: tuple[float, ...]
    message_s: float = 0.0
    weights_s: float = 0.0
    message_bytes: int = 0
    weights_bytes: int = 0
    load_s: float = 0.0
    update_s: float = 0.0


def serve(
    scheme: Scheme,
    costs: Costs,
    delay: Delay | None = None,
    *,
    warmup: int = 1,
    steps: int = 2,
    devices: tuple[int, int, int] | None = None,
    memory: Mapping[str, float] | None = None,
) -> Plan:
    """Plan some steps of the workers, ranks 0 to N - 1, and their server, rank N.

    A worker goes through its tasks, each after a delay, and sends its messages. The server updates once they suffice,
    and sends weights to one worker after the other; what a worker has not done when they come is given up.

    Parameters
    ----------
    scheme : Scheme
    costs : Costs
    delay : Delay, optional
        Of each task of a worker.
    warmup, steps : int
    devices : tuple of int, optional
        Stages, workers, slices: a worker of several devices is as late as its latest. One device each by default.
    memory : mapping of str to float, optional
        Bytes per device by purpose.

    Raises
    ------
    InputError
        When the graph would be too large.

    Examples
    --------
    >>> from densing.efficiency.systems.stragglers.schemes import uncoded
    >>> from densing.efficiency.simulation import simulate
    >>> late = Delay("empirical", values=(0.0, 0.0, 1.0), lasts="step", seed=1)
    >>> [float(late.draw(3, step).max()) for step in range(2)]
    [1.0, 0.0]
    >>> plan = serve(uncoded(3, 2), Costs((0.5,) * 3), late, warmup=0, steps=2)
    >>> [float(simulate(plan.graph).end[n]) for n, task in enumerate(plan.graph.tasks) if task.name == "update"][:2]
    [1.0, 1.5]
    """
    graph, server = Graph(), scheme.workers
    places = devices or (1, server, 1)
    ways = [
        (Comm("send_recv", "server", "server", 2, (worker, server), src=worker, dst=server),
         Comm("send_recv", "server", "server", 2, (worker, server), src=server, dst=worker))
        for worker in range(server)
    ]  # fmt: skip
    ready: list[tuple[int, ...]] = [()] * server
    lateness: list[list[list[float]]] = []
    for step in range(warmup + steps):
        graph.step = step
        late = [
            [] if delay is None else _latest(delay, places, step, turn) for turn in range(max(map(len, scheme.tasks)))
        ]
        work, sent = _work(graph, scheme, costs, late, ready, [up for up, _ in ways])
        suffices = [_join(graph, server, f"group {at}", group, sent) for at, group in enumerate(scheme.enough)]
        done = graph.add(UPDATE, Kind.COMPUTE, (server,), "compute", costs.update_s, after=suffices)
        for worker, (_, down) in enumerate(ways):
            came = graph.add(
                "send weights", Kind.COMM, (server,), "down", costs.weights_s,
                count=costs.weights_bytes, after=[done], comm=down,
            )  # fmt: skip
            graph.until |= dict.fromkeys(work[worker], came)
            ready[worker] = (graph.add("load weights", Kind.COMPUTE, (worker,), "compute", costs.load_s, after=[came]),)
        if not step:
            graph.room(len(graph) * (warmup + steps - 1))
        lateness.append(late)
    control = None
    if delay is not None and delay.lasts != "run":
        same = _done(scheme, costs.partition_s, np.array(lateness[warmup:]), len(lateness[0]))
        control = Control(same, partial(exact_mean, scheme, costs.partition_s, delay, places))
    # A mean over ranks is one over workers.
    return Plan(graph, server + 1, warmup, steps, dict(memory or {}), {server: 0}, control)


def _latest(delay: Delay, devices: tuple[int, int, int], step: int, turn: int) -> list[float]:
    """Return how late each worker begins a task, seconds."""
    drawn = delay.draw(math.prod(devices), step, turn)
    return drawn.reshape(devices).max(axis=(0, 2)).tolist()


def _work(
    graph: Graph,
    scheme: Scheme,
    costs: Costs,
    late: Sequence[Sequence[float]],
    ready: Sequence[tuple[int, ...]],
    up: Sequence[Comm],
) -> tuple[list[list[int]], list[int]]:
    """Add what workers do in a step: by worker what may be given up, and of every message its task."""
    by_worker: list[dict[int, int]] = [{} for _ in scheme.tasks]
    for number, (worker, after) in enumerate(scheme.messages):
        by_worker[worker][after] = number
    work: list[list[int]] = []
    sent = [-1] * len(scheme.messages)
    for worker, tasks in enumerate(scheme.tasks):
        mine: list[int] = []
        done = ready[worker]
        for turn in range(len(tasks)):
            if late[turn]:
                done = (graph.add("delay", Kind.ANNOTATION, (worker,), "compute", late[turn][worker], after=done),)
                mine += done
            done = (graph.add("partition", Kind.COMPUTE, (worker,), "compute", costs.partition_s[worker], after=done),)
            mine += done
            if turn + 1 in by_worker[worker]:
                number = by_worker[worker][turn + 1]
                sent[number] = graph.add(
                    MESSAGE, Kind.COMM, (worker,), "up", costs.message_s,
                    count=costs.message_bytes, after=done, resources=["server in"], comm=up[worker],
                )  # fmt: skip
                mine.append(sent[number])
        work.append(mine)
    return work, sent


def _join(graph: Graph, server: int, name: str, ways: Sequence[tuple[int, Sequence[int]]], sent: Sequence[int]) -> int:
    """Add the moment at which one of some alternatives holds."""
    joins = []
    for at, (need, messages) in enumerate(ways):
        after = [sent[message] for message in messages]
        stream = name if len(ways) == 1 else f"{name}, way {at}"
        # A moment takes no time; each has a stream of its own, for they come in any order.
        joins.append(graph.add("enough", Kind.ANNOTATION, (server,), stream, 0.0, after=after))
        graph.need[joins[-1]] = need
    if len(joins) == 1:
        return joins[0]
    whole = graph.add("enough", Kind.ANNOTATION, (server,), name, 0.0, after=joins)
    graph.need[whole] = 1
    # An alternative that did not come true is not waited for.
    graph.until |= dict.fromkeys(joins, whole)
    return whole


def completion(plan: Plan, simulation: Simulation) -> tuple[float, float]:
    """Return the mean seconds of a step, from update to update, and how many messages came in it before the update.

    Parameters
    ----------
    plan : Plan
        Of :func:`serve`.
    simulation : Simulation
        Of its graph.
    """
    end, lost = simulation.end, set(simulation.given_up)
    updates = {task.step: float(end[number]) for number, task in enumerate(plan.graph.tasks) if task.name == UPDATE}
    messages = sum(
        task.name == MESSAGE and task.step >= plan.warmup and number not in lost and end[number] <= updates[task.step]
        for number, task in enumerate(plan.graph.tasks)
    )
    begun = updates.get(plan.warmup - 1, 0.0)
    return (updates[plan.warmup + plan.steps - 1] - begun) / plan.steps, messages / plan.steps
