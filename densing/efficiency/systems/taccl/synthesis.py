"""From a machine and a collective to a schedule: routes, then order, then which chunks travel together.

Order: list scheduling of routes under a dozen priorities, and the best of them. Contiguity: a message of k chunks pays
its latency once, but waits for all of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from densing.core import InputError, Record, UnknownNameError
from densing.efficiency.systems.taccl.milp import Rows, minimise
from densing.efficiency.systems.taccl.routing import GATHERING, OPS, Demand, Trees, demand, route
from densing.efficiency.systems.taccl.schedule import Schedule, Send, check, ordered
from densing.efficiency.systems.taccl.topology import Sketch, Topology, logical, maps_onto, occupy, ring_time, sketches

TOGETHER = 6
"""Most chunks per message, as in the released code."""
EXACT = 100
"""Most hops for which the exact model is tried."""
NODES = 3000
"""Most nodes of the search tree; unlike a time limit it gives the same answer on a slow machine."""
EFFORT = 12_000
"""Most hops ordered in total: for large schedules fewer orders are tried, but at least two."""


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
        None: the best of :func:`~densing.efficiency.systems.taccl.topology.sketches`.
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
    >>> from densing.efficiency.systems.taccl import profile_topology
    >>> result = synthesise(profile_topology("ndv2-1mb", 2, 2, "full"), "all_gather")
    >>> result.bound, result.makespan, result.ring
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
    sends = []
    for message in messages:
        channel = machine.channels[message.channel]
        chunks = tuple(work[hop].chunk for hop in message.hops)
        sends.append(Send(channel.src, channel.dst, chunks, message.start, message.end))
    schedule = Schedule(op, machine.name, machine.n, request.source, request.wanted, ordered(sends), sketch.chunks_up)
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


def _scheduled(
    machine: Topology, request: Demand, work: Sequence[Hop], together: int, time_limit: float
) -> tuple[list[Message], str]:
    """Try every order, with messages of one chunk and of several; then the exact model on the best."""
    best: tuple[float, list[Message], str] | None = None
    sizes = sorted({size for size in (2, 3, 4, together) if 1 < size <= together})
    waits = any(channel.alpha > 0 for channel in machine.channels)
    per_order = len(work) * (1 + len(sizes) * waits)
    # No single priority is best everywhere and each is quick: the solver is kept for the winner.
    for number, (name, priority) in enumerate(priorities(machine, request)):
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


def _scatter(machine: Topology, sketch: Sketch, together: int, time_limit: float) -> Synthesis:
    """Reduce-scatter: an all-gather on the machine turned round, played backwards."""
    mirrored = machine.reversed()
    # The all-gather itself where turning round changes nothing: it is known already, or will be needed.
    mirrored = machine if maps_onto(mirrored, machine, tuple(range(machine.n))) else mirrored
    result = _gather(mirrored, "all_gather", sketch, together, time_limit)
    # Backwards in time, each arrival is a departure: what an all-gather spreads out, its mirror image sums up.
    end = result.makespan
    sends = [Send(s.dst, s.src, s.chunks, end - s.end, end - s.start, True) for s in result.schedule.sends]
    nobody = tuple(() for _ in result.schedule.home)
    schedule = replace(result.schedule, op="reduce_scatter", wanted=nobody, sends=ordered(sends))
    return replace(result, schedule=compact(schedule, machine), topology=machine)


def _both(first: Synthesis, second: Synthesis) -> Synthesis:
    """All-reduce: a chunk is gathered again as soon as its sum is complete."""
    # First one after the other, which is surely right; compacting then moves every message up as far as it can go.
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


class Hop(NamedTuple):
    """One chunk over one channel.

    Attributes
    ----------
    chunk, channel : int
    parent : int
        The hop that brings the chunk to the sender; -1: it begins there.
    travelled, remaining : float
        Microseconds of the way up to here, and of the longest way onwards, this hop included.
    served : int
        Ranks that wait for the chunk behind this hop, its receiver included.
    """

    chunk: int
    channel: int
    parent: int
    travelled: float
    remaining: float
    served: int


Priority = Callable[[Hop], tuple[float, ...]]
"""The smaller key goes first."""


def hops(topology: Topology, trees: Trees) -> list[Hop]:
    """Return every hop of every route, parents before children."""
    result: list[Hop] = []
    for chunk, tree in enumerate(trees):
        base, at = len(result), dict[int, int]()
        for number in tree:
            channel = topology.channels[number]
            parent = at.get(channel.src, -1)
            travelled = (
                result[parent].travelled + topology.channels[result[parent].channel].cost() if parent >= 0 else 0.0
            )
            at[channel.dst] = len(result)
            result.append(Hop(chunk, number, parent, travelled, channel.cost(), 1))
        for i in range(len(result) - 1, base - 1, -1):
            hop = result[i]
            if hop.parent >= 0:
                above = result[hop.parent]
                onward = hop.remaining + topology.channels[above.channel].cost()
                result[hop.parent] = above._replace(
                    remaining=max(above.remaining, onward), served=above.served + hop.served
                )
    return result


def priorities(topology: Topology, request: Demand) -> Iterator[tuple[str, Priority]]:
    """Yield the orders worth trying."""
    channels, source, n = topology.channels, request.source, topology.n

    def turn(hop: Hop) -> float:
        return (source[hop.chunk] - channels[hop.channel].dst) % n

    def inter(hop: Hop) -> float:
        return -float(channels[hop.channel].inter)

    yield "longest remaining", lambda h: (-h.remaining, -h.served, h.chunk)
    yield "longest remaining, round robin", lambda h: (-h.remaining, turn(h))
    yield "most served", lambda h: (-h.served, -h.remaining, h.chunk)
    yield "most travelled", lambda h: (-h.travelled, -h.remaining, h.chunk)
    yield "least travelled", lambda h: (h.travelled, -h.remaining, h.chunk)
    yield "longest way", lambda h: (-h.remaining - h.travelled, -h.remaining, h.chunk)
    yield "between nodes first", lambda h: (inter(h), -h.remaining, h.chunk)
    yield "between nodes first, round robin", lambda h: (inter(h), turn(h))
    yield "round robin", lambda h: (turn(h), h.chunk)
    yield "reversed round robin", lambda h: (-turn(h), h.chunk)
    yield "shortest remaining", lambda h: (h.remaining, h.chunk)
    yield "in order of chunks", lambda h: (h.chunk, -h.remaining)


@dataclass
class Message:
    """Hops over one channel that travel as one."""

    channel: int
    hops: tuple[int, ...]
    start: float = -1.0
    end: float = -1.0
    missing: int = 0
    children: list[int] = field(default_factory=list)


def alone(work: Sequence[Hop]) -> list[Message]:
    """Return one message per hop."""
    return [Message(hop.channel, (i,)) for i, hop in enumerate(work)]


class Line:
    """List scheduling: whenever something becomes free, the message of best priority that can go goes.

    Parameters
    ----------
    topology : Topology
    work : sequence of Hop
    messages : sequence of Message
        Each hop in one of them; filled with their times.
    priority : callable
    """

    def __init__(
        self, topology: Topology, work: Sequence[Hop], messages: Sequence[Message], priority: Priority
    ) -> None:
        self.topology, self.messages = topology, messages
        self.rank = [min((*priority(work[h]), float(h)) for h in message.hops) for message in messages]
        holder = {hop: number for number, message in enumerate(messages) for hop in message.hops}
        for number, message in enumerate(messages):
            sources = {holder[work[hop].parent] for hop in message.hops if work[hop].parent >= 0}
            message.missing, message.start, message.end = len(sources), -1.0, -1.0
            for source in sources:
                messages[source].children.append(number)
        self.waiting: dict[int, list[tuple[tuple[float, ...], int]]] = {}
        self.free: dict[object, float] = {}
        # Channels that wait for the same channel or port: all of them are looked at when it is free.
        self.rivals: dict[object, set[int]] = {}
        for number in {message.channel for message in messages}:
            for name in self._names(number):
                self.rivals.setdefault(name, set()).add(number)

    def _names(self, channel: int) -> tuple[object, ...]:
        return (channel, *self.topology.channels[channel].ports)

    def run(self) -> bool:
        """Schedule everything; False where messages wait for one another."""
        touched = {self._put(number) for number, message in enumerate(self.messages) if not message.missing}
        ends: list[tuple[float, bool, int]] = []
        now, done = 0.0, 0
        while True:
            self._start(touched, now, ends)
            if not ends:
                return done == len(self.messages)
            now = ends[0][0]
            touched = set()
            while ends and ends[0][0] <= now:
                _, ended, number = heapq.heappop(ends)
                done += ended
                touched |= {
                    channel for name in self._names(self.messages[number].channel) for channel in self.rivals[name]
                }
                # The ports may be free before the message has come; only then its chunks can go on.
                for child in self.messages[number].children if ended else ():
                    self.messages[child].missing -= 1
                    if not self.messages[child].missing:
                        touched.add(self._put(child))

    def _put(self, number: int) -> int:
        message = self.messages[number]
        heapq.heappush(self.waiting.setdefault(message.channel, []), (self.rank[number], number))
        return message.channel

    def _start(self, touched: set[int], now: float, ends: list[tuple[float, bool, int]]) -> None:
        for _, number in sorted(self.waiting[c][0] for c in touched if self.waiting.get(c)):
            message = self.messages[number]
            names = self._names(message.channel)
            # One that cannot go now is looked at again when its channel or one of its ports is released.
            if all(self.free.get(name, 0.0) <= now for name in names):
                heapq.heappop(self.waiting[message.channel])
                message.start = now
                channel, size = self.topology.channels[message.channel], len(message.hops)
                message.end = now + channel.cost(size)
                occupy(self.free, message.channel, channel, now, size)
                heapq.heappush(ends, (message.end, True, number))
                if not channel.latency_held:
                    heapq.heappush(ends, (now + channel.held(size), False, number))


def makespan(messages: Sequence[Message]) -> float:
    """Return the end of the last message."""
    return max((message.end for message in messages), default=0.0)


def runs(topology: Topology, work: Sequence[Hop], messages: Sequence[Message], limit: int) -> list[Message]:
    """Cut what each channel sends, in the order it did, into messages of up to ``limit`` chunks.

    Channels without latency gain nothing by waiting, and keep their messages.
    """
    result: list[Message] = []
    for channel, sequence in _sequences(messages).items():
        size = limit if topology.channels[channel].alpha > 0 else 1
        cuts = range(0, len(sequence), size)
        result += [Message(channel, tuple(sequence[cut : cut + size])) for cut in cuts]
    return result


def _sequences(messages: Sequence[Message]) -> dict[int, list[int]]:
    """Hops by channel, in order of time."""
    result: dict[int, list[int]] = {}
    for message in sorted(messages, key=lambda m: m.start):
        result.setdefault(message.channel, []).extend(message.hops)
    return result


def retime(topology: Topology, work: Sequence[Hop], messages: Sequence[Message]) -> list[Message]:
    """Return the messages as early as their order (given by their starts) allows."""
    free: dict[object, float] = {}
    arrived: dict[int, float] = {-1: 0.0}
    result = []
    for message in sorted(messages, key=lambda m: m.start):
        channel = topology.channels[message.channel]
        names = (message.channel, *channel.ports)
        start = max(arrived[work[hop].parent] for hop in message.hops)
        start = max([start, *(free.get(name, 0.0) for name in names)])
        end = start + channel.cost(len(message.hops))
        occupy(free, message.channel, channel, start, len(message.hops))
        arrived.update(dict.fromkeys(message.hops, end))
        result.append(Message(message.channel, message.hops, start, end))
    return result


def exact(
    topology: Topology, work: Sequence[Hop], messages: Sequence[Message], limit: int, time_limit: float
) -> list[Message] | None:
    """Return the best messages when every channel and port keeps its order; None where none was found in time.

    The model (Source: arXiv 2111.04867, contiguity and exact scheduling; written anew): for each hop its start, the
    time its message would end were it the last one in it, and its arrival; for each two neighbours on a channel a
    binary whether they travel together. Together: same start, same arrival, one more beta. Apart: one after the other.
    """
    end = max(message.end for message in messages)
    model = _Model(topology, work, messages, limit, end)
    x = model.solve(time_limit)
    return None if x is None else retime(topology, work, model.messages(x))


class _Model:
    """Columns: start, own end and arrival of each hop; time; together."""

    def __init__(
        self, topology: Topology, work: Sequence[Hop], messages: Sequence[Message], limit: int, end: float
    ) -> None:
        self.topology, self.work, self.limit = topology, work, limit
        self.size = len(work)
        # Times as hundredths of what is known: the solver's tolerances are absolute.
        self.scale = 100.0 / end
        self.time = 3 * self.size
        self.sequences = _sequences(messages)
        by_port: dict[str, list[int]] = {}
        for message in sorted(messages, key=lambda m: m.start):
            for port in topology.channels[message.channel].ports:
                by_port.setdefault(port, []).extend(message.hops)
        self.ports = list(by_port.values())
        self.pairs = self._pairs()

    def _pairs(self) -> dict[tuple[int, int], int]:
        """Neighbours on a channel that could travel together -> column of the binary."""
        orders = [set(pairwise(order)) for order in self.ports]
        result: dict[tuple[int, int], int] = {}
        for channel, sequence in self.sequences.items():
            for pair in pairwise(sequence):
                # What a port serves between two messages keeps them from travelling together.
                parted = any((pair[0] in {a for a, _ in order}) and pair not in order for order in orders)
                if self.topology.channels[channel].alpha > 0 and not parted and self.limit > 1:
                    result[pair] = self.time + 1 + len(result)
        return result

    def rows(self) -> Rows:
        # The horizon switches a row off: no time is larger.
        rows, size, horizon = Rows(), self.size, 100.0
        for number, hop in enumerate(self.work):
            cost = self.topology.channels[hop.channel].cost() * self.scale
            rows.add([(size + number, 1.0), (number, -1.0)], cost, np.inf)
            rows.add([(2 * size + number, 1.0), (size + number, -1.0)], 0.0, np.inf)
            rows.add([(self.time, 1.0), (2 * size + number, -1.0)], 0.0, np.inf)
            if hop.parent >= 0:
                rows.add([(number, 1.0), (2 * size + hop.parent, -1.0)], 0.0, np.inf)
        for channel, sequence in self.sequences.items():
            for a, b in pairwise(sequence):
                self._neighbours(rows, a, b, self.topology.channels[channel].beta * self.scale, horizon)
            # Of so many neighbours in a row at least one pair travels apart.
            neighbours = list(pairwise(sequence))
            for first in range(len(neighbours) - self.limit + 1):
                columns = [self.pairs.get(pair) for pair in neighbours[first : first + self.limit]]
                if None not in columns:
                    rows.add(((column, 1.0) for column in columns if column is not None), -np.inf, self.limit - 1.0)
        for order in self.ports:
            for a, b in pairwise(order):
                before = self.topology.channels[self.work[a].channel]
                if (a, b) not in self.pairs and self.work[a].channel != self.work[b].channel:
                    early = (before.cost() - before.held()) * self.scale
                    rows.add([(b, 1.0), (2 * size + a, -1.0)], -early, np.inf)
        return rows

    def _neighbours(self, rows: Rows, a: int, b: int, beta: float, horizon: float) -> None:
        size = self.size
        together = self.pairs.get((a, b))
        if together is None:
            rows.add([(b, 1.0), (2 * size + a, -1.0)], 0.0, np.inf)
            return
        rows.add([(size + b, 1.0), (size + a, -1.0)], beta, np.inf)
        rows.add([(b, 1.0), (a, -1.0)], 0.0, np.inf)
        rows.add([(b, 1.0), (2 * size + a, -1.0), (together, horizon)], 0.0, np.inf)
        rows.add([(a, 1.0), (b, -1.0), (together, -horizon)], -horizon, np.inf)
        rows.add([(2 * size + a, 1.0), (2 * size + b, -1.0), (together, -horizon)], -horizon, np.inf)

    def solve(self, time_limit: float) -> Any:
        width = self.time + 1 + len(self.pairs)
        upper = np.full(width, 100.0 * (1 + 1e-9))
        upper[self.time + 1 :] = 1.0
        objective = np.zeros(width)
        objective[self.time] = 1.0
        integral = np.arange(width) > self.time
        limits = {"time_limit": time_limit, "node_limit": NODES, "mip_rel_gap": 1e-4}
        return minimise(objective, self.rows(), np.zeros(width), upper, integral, **limits).x

    def messages(self, x: Any) -> list[Message]:
        """Return the messages of a solution, untimed but for their order."""
        result = []
        for channel, sequence in self.sequences.items():
            current = [sequence[0]]
            for a, b in pairwise(sequence):
                together = self.pairs.get((a, b))
                if together is not None and x[together] > 0.5:
                    current.append(b)
                else:
                    result.append(Message(channel, tuple(current), float(x[current[0]])))
                    current = [b]
            result.append(Message(channel, tuple(current), float(x[current[0]])))
        return result
