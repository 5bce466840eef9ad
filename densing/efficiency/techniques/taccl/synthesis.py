"""From a machine and a collective to a schedule: routes, then order, then which chunks travel together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from msgspec.structs import replace

from densing.core import InputError, Record, UnknownNameError
from densing.efficiency.techniques.taccl.ordering import (
    EXACT,
    TOGETHER,
    Hop,
    Line,
    Message,
    alone,
    exact,
    hops,
    makespan,
    occupy,
    priorities,
    runs,
)
from densing.efficiency.techniques.taccl.routing import GATHERING, OPS, Demand, Routing, demand, route
from densing.efficiency.techniques.taccl.schedule import Schedule, Send, check, ordered
from densing.efficiency.techniques.taccl.sketch import Sketch, logical, maps_onto, sketches
from densing.efficiency.techniques.taccl.topology import Topology, ring_time

EFFORT = 12_000
"""Hops that are put in order in all: of large schedules fewer orders are tried, at least two."""


class Synthesis(Record, frozen=True):
    """A schedule, and how far from the best it can be.

    Parameters
    ----------
    schedule : Schedule
    topology : Topology
        With the sketch applied: what the schedule was checked against.
    sketch : str
    makespan : float
        Microseconds.
    ring : float
        Microseconds of the ring on the whole topology (all-gather, reduce-scatter, all-reduce), else 0.
    routed, bound, gap : float
        Time of the routes in the routing model, its lower bound and ``(routed - bound) / routed``; of an all-reduce
        the sums of both halves. A schedule without merged messages takes at least ``bound``.
    status : str
        Of the routing: ``optimal``, ``time limit`` or ``greedy``.
    order : str
        Priority that won.
    binaries : int
    solve_s : float
        Seconds of the routing here.
    """

    schedule: Schedule
    topology: Topology
    sketch: str
    makespan: float
    ring: float
    routed: float
    bound: float
    gap: float
    status: str
    order: str
    binaries: int
    solve_s: float


def synthesise(
    topology: Topology,
    op: str = "all_gather",
    sketch: Sketch | None = None,
    *,
    together: int = TOGETHER,
    time_limit: float = 20.0,
) -> Synthesis:
    """Synthesise a schedule of a collective; the result is checked before it is returned.

    Parameters
    ----------
    topology : Topology
        Costs are those of one rank's chunk (all-to-all: of one pair's).
    op : {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send_recv"}
    sketch : Sketch, optional
        None: the best of :func:`~densing.efficiency.techniques.taccl.sketch.sketches`.
    together : int
        Most chunks of a message; 1: none travel together.
    time_limit : float
        Seconds for each routing problem, and half as many for each exact schedule.

    Raises
    ------
    InputError
        When the topology does not connect who has to be, or the sketch does not fit it.

    Examples
    --------
    >>> from densing.efficiency.techniques.taccl.topology import profile_topology
    >>> found = synthesise(profile_topology("ndv2-1mb", 2, 2, "full"), "all_gather")
    >>> found.bound, found.makespan, found.ring
    (214.0, 237.0, 321.0)
    """
    if op not in OPS:
        raise UnknownNameError("collective", op, OPS)
    if topology.n < 2 or together < 1:
        raise InputError(f"a collective needs 2 ranks or more (here {topology.n}), and together >= 1 (here {together})")
    tried = (sketch,) if sketch else sketches(topology)
    candidates = [_cached(topology, op, one, together, time_limit) for one in tried]
    return min(candidates, key=lambda s: s.makespan)


@lru_cache(maxsize=256)
def _cached(topology: Topology, op: str, sketch: Sketch, together: int, time_limit: float) -> Synthesis:
    machine = logical(topology, sketch)
    if op in GATHERING:
        result = _gather(machine, op, sketch, together, time_limit)
    elif op == "reduce_scatter":
        result = _scatter(machine, sketch, together, time_limit)
    else:
        first = _scatter(machine, sketch, together, time_limit)
        result = _both(first, _gather(machine, "all_gather", sketch, together, time_limit))
    check(result.schedule, machine)
    twice = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}.get(op, 0)
    return replace(result, ring=twice * ring_time(topology))


@lru_cache(maxsize=256)
def _gather(machine: Topology, op: str, sketch: Sketch, together: int, time_limit: float) -> Synthesis:
    request = demand(op, machine.n, sketch.chunks_up)
    routing = route(machine, request, sketch, time_limit=time_limit)
    work = hops(machine, routing.trees)
    messages, order = _scheduled(machine, request, work, together, time_limit)
    schedule = _schedule(machine, op, request, work, messages, sketch.chunks_up)
    return _synthesis(machine, sketch, schedule, routing, order)


def _scheduled(
    machine: Topology, wanted: Demand, work: Sequence[Hop], together: int, time_limit: float
) -> tuple[list[Message], str]:
    """Try every order, with messages of one chunk and of several; then the exact model on the best."""
    best: tuple[float, list[Message], str] | None = None
    sizes = sorted({size for size in (2, 3, 4, together) if 1 < size <= together})
    waits = any(channel.alpha > 0 for channel in machine.channels)
    per_order = len(work) * (1 + len(sizes) * waits)
    for number, (name, priority) in enumerate(priorities(machine, wanted)):
        if number > 1 and number * per_order > EFFORT:
            break
        single = alone(work)
        Line(machine, work, single, priority).run()
        tried = [single]
        for size in sizes if waits else ():
            messages = runs(machine, work, single, size)
            if Line(machine, work, messages, priority).run():
                tried.append(messages)
        for messages in tried:
            if best is None or makespan(messages) < best[0] * (1 - 1e-12):
                best = makespan(messages), messages, name
    assert best is not None
    if waits and together > 1 and 0 < len(work) <= EXACT:
        better = exact(machine, work, best[1], together, time_limit / 2)
        if better is not None and makespan(better) < best[0]:
            return better, best[2] + ", exact"
    return best[1], best[2]


def _schedule(
    machine: Topology, op: str, wanted: Demand, work: Sequence[Hop], messages: Sequence[Message], parts: int
) -> Schedule:
    sends = []
    for message in messages:
        channel = machine.channels[message.channel]
        chunks = tuple(work[hop].chunk for hop in message.hops)
        sends.append(Send(channel.src, channel.dst, chunks, message.start, message.end))
    return Schedule(op, machine.name, machine.n, wanted.source, wanted.wanted, ordered(sends), parts)


def _synthesis(machine: Topology, sketch: Sketch, schedule: Schedule, routing: Routing, order: str) -> Synthesis:
    return Synthesis(
        schedule=schedule,
        topology=machine,
        sketch=sketch.name,
        makespan=schedule.makespan,
        ring=0.0,
        routed=routing.time,
        bound=routing.bound,
        gap=routing.gap,
        status=routing.status,
        order=order,
        binaries=routing.binaries,
        solve_s=routing.solve_s,
    )


def _scatter(machine: Topology, sketch: Sketch, together: int, time_limit: float) -> Synthesis:
    """Reduce-scatter: an all-gather on the machine turned round, played backwards."""
    turned = machine.reversed()
    # The all-gather itself where turning round changes nothing: it is known already, or will be needed.
    turned = machine if maps_onto(turned, machine, tuple(range(machine.n))) else turned
    result = _gather(turned, "all_gather", sketch, together, time_limit)
    end = result.makespan
    sends = [Send(s.dst, s.src, s.chunks, end - s.end, end - s.start, True) for s in result.schedule.sends]
    nobody = tuple(() for _ in result.schedule.home)
    schedule = replace(result.schedule, op="reduce_scatter", wanted=nobody, sends=ordered(sends))
    return replace(result, schedule=compact(schedule, machine), topology=machine)


def _both(first: Synthesis, second: Synthesis) -> Synthesis:
    """All-reduce: a chunk is gathered again as soon as its sum is complete."""
    later = [replace(s, start=s.start + first.makespan, end=s.end + first.makespan) for s in second.schedule.sends]
    joined = replace(second.schedule, op="all_reduce", sends=(*first.schedule.sends, *ordered(later)))
    schedule = compact(joined, second.topology)
    routed, bound = first.routed + second.routed, first.bound + second.bound
    statuses = (first.status, second.status)
    status = next((s for s in ("greedy", "time limit") if s in statuses), "optimal")
    return replace(
        second,
        schedule=schedule,
        makespan=schedule.makespan,
        routed=routed,
        bound=bound,
        gap=(routed - bound) / routed,
        status=status,
        order=f"{first.order}; {second.order}",
        solve_s=first.solve_s + second.solve_s,
    )


def compact(schedule: Schedule, topology: Topology) -> Schedule:
    """Return the schedule with every message as early as the order allows."""
    channels = {(c.src, c.dst): c for c in topology.channels}
    free: dict[object, float] = {}
    ready: dict[tuple[int, int], float] = {}
    sends = []
    for send in sorted(schedule.sends, key=lambda s: (s.start, s.end, s.src, s.dst)):
        channel = channels[send.src, send.dst]
        names = ((send.src, send.dst), *channel.ports)
        waits = [ready.get((send.src, chunk), 0.0) for chunk in send.chunks]
        start = max(*waits, *(free.get(name, 0.0) for name in names))
        end = start + channel.cost(len(send.chunks))
        occupy(free, names[0], channel, start, len(send.chunks))
        for chunk in send.chunks:
            ready[send.dst, chunk] = max(end, ready.get((send.dst, chunk), 0.0))
        sends.append(replace(send, start=start, end=end))
    return replace(schedule, sends=ordered(sends))
