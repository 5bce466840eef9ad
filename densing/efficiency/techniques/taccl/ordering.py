"""In which order chunks go, and which of them travel together.

Order: list scheduling of routes under a dozen priorities, and the best of them. Contiguity: a message of k chunks pays
its latency once, but waits for all of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from densing.efficiency.techniques.taccl.milp import Rows, minimise
from densing.efficiency.techniques.taccl.routing import Demand, Trees
from densing.efficiency.techniques.taccl.topology import Channel, Topology


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
"""Smaller goes first."""


def hops(topology: Topology, trees: Trees) -> list[Hop]:
    """Return every hop of every route, parents before children."""
    result: list[Hop] = []
    for chunk, tree in enumerate(trees):
        base, at = len(result), dict[int, int]()
        for number in tree:
            channel = topology.channels[number]
            parent = at.get(channel.src, -1)
            gone = result[parent].travelled + topology.channels[result[parent].channel].cost() if parent >= 0 else 0.0
            at[channel.dst] = len(result)
            result.append(Hop(chunk, number, parent, gone, channel.cost(), 1))
        for i in range(len(result) - 1, base - 1, -1):
            hop = result[i]
            if hop.parent >= 0:
                above = result[hop.parent]
                onward = hop.remaining + topology.channels[above.channel].cost()
                result[hop.parent] = above._replace(
                    remaining=max(above.remaining, onward), served=above.served + hop.served
                )
    return result


def priorities(topology: Topology, wanted: Demand) -> Iterator[tuple[str, Priority]]:
    """Yield the orders worth trying."""
    channels, source, n = topology.channels, wanted.source, topology.n

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
    yield "round robin backwards", lambda h: (-turn(h), h.chunk)
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
            needs = {holder[work[hop].parent] for hop in message.hops if work[hop].parent >= 0}
            message.missing, message.start, message.end = len(needs), -1.0, -1.0
            for need in needs:
                messages[need].children.append(number)
        self.waiting: dict[int, list[tuple[tuple[float, ...], int]]] = {}
        self.free: dict[object, float] = {}
        self.beside: dict[object, set[int]] = {}
        for number in {message.channel for message in messages}:
            for name in self._names(number):
                self.beside.setdefault(name, set()).add(number)

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
                touched |= self._finish(number) if ended else self._released(number)

    def _put(self, number: int) -> int:
        message = self.messages[number]
        heapq.heappush(self.waiting.setdefault(message.channel, []), (self.rank[number], number))
        return message.channel

    def _finish(self, number: int) -> set[int]:
        touched = self._released(number)
        for child in self.messages[number].children:
            self.messages[child].missing -= 1
            if not self.messages[child].missing:
                touched.add(self._put(child))
        return touched

    def _released(self, number: int) -> set[int]:
        return set().union(*(self.beside[name] for name in self._names(self.messages[number].channel)))

    def _start(self, touched: set[int], now: float, ends: list[tuple[float, bool, int]]) -> None:
        for _, number in sorted(self.waiting[c][0] for c in touched if self.waiting.get(c)):
            message = self.messages[number]
            names = self._names(message.channel)
            if all(self.free.get(name, 0.0) <= now for name in names):
                heapq.heappop(self.waiting[message.channel])
                message.start = now
                channel, size = self.topology.channels[message.channel], len(message.hops)
                message.end = now + channel.cost(size)
                occupy(self.free, message.channel, channel, now, size)
                heapq.heappush(ends, (message.end, True, number))
                if not channel.latency_held:
                    heapq.heappush(ends, (now + channel.held(size), False, number))


def occupy(free: dict[object, float], name: object, channel: Channel, start: float, chunks: int) -> None:
    """Note until when a message keeps its channel and its ports."""
    free[name] = start + channel.cost(chunks)
    free.update(dict.fromkeys(channel.ports, start + channel.held(chunks)))


def makespan(messages: Sequence[Message]) -> float:
    """Return the end of the last message."""
    return max((message.end for message in messages), default=0.0)


TOGETHER = 6
"""Most chunks of one message, as in the released code."""
EXACT = 100
"""Hops above which no exact model is tried."""
NODES = 3000
"""Of the search tree: unlike a limit of time it gives the same answer on a slow machine."""


def runs(topology: Topology, work: Sequence[Hop], messages: Sequence[Message], most: int) -> list[Message]:
    """Cut what each channel sends, in the order it did, into messages of up to ``most`` chunks.

    Channels without latency gain nothing by waiting, and keep their messages.
    """
    result: list[Message] = []
    for channel, sequence in _sequences(messages).items():
        size = most if topology.channels[channel].alpha > 0 else 1
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
    topology: Topology, work: Sequence[Hop], messages: Sequence[Message], most: int, time_limit: float
) -> list[Message] | None:
    """Return the best messages when every channel and port keeps its order; None where none was found in time.

    The model (Source: arXiv 2111.04867, contiguity and exact scheduling; written anew): for each hop its start, the
    time its message would end were it the last one in it, and its arrival; for each two neighbours on a channel a
    binary whether they travel together. Together: same start, same arrival, one more beta. Apart: one after the other.
    """
    end = max(message.end for message in messages)
    model = _Model(topology, work, messages, most, end)
    x = model.solve(time_limit)
    return None if x is None else retime(topology, work, model.messages(x))


class _Model:
    """Columns: start, own end and arrival of each hop; time; together."""

    def __init__(
        self, topology: Topology, work: Sequence[Hop], messages: Sequence[Message], most: int, end: float
    ) -> None:
        self.topology, self.work, self.most = topology, work, most
        self.size = len(work)
        # Times as hundredths of what is known: the solver's tolerances are absolute.
        self.scale = 100.0 / end
        self.time = 3 * self.size
        self.sequences = _sequences(messages)
        self.ports = self._port_orders(messages)
        self.pairs = self._pairs()

    def _port_orders(self, messages: Sequence[Message]) -> list[list[int]]:
        result: dict[str, list[int]] = {}
        for message in sorted(messages, key=lambda m: m.start):
            for port in self.topology.channels[message.channel].ports:
                result.setdefault(port, []).extend(message.hops)
        return list(result.values())

    def _pairs(self) -> dict[tuple[int, int], int]:
        """Neighbours on a channel that could travel together -> column of the binary."""
        orders = [set(pairwise(order)) for order in self.ports]
        result: dict[tuple[int, int], int] = {}
        for channel, sequence in self.sequences.items():
            for pair in pairwise(sequence):
                apart = any((pair[0] in {a for a, _ in order}) and pair not in order for order in orders)
                if self.topology.channels[channel].alpha > 0 and not apart and self.most > 1:
                    result[pair] = self.time + 1 + len(result)
        return result

    def rows(self) -> Rows:
        rows, size, far = Rows(), self.size, 100.0
        for number, hop in enumerate(self.work):
            cost = self.topology.channels[hop.channel].cost() * self.scale
            rows.add([(size + number, 1.0), (number, -1.0)], cost, np.inf)
            rows.add([(2 * size + number, 1.0), (size + number, -1.0)], 0.0, np.inf)
            rows.add([(self.time, 1.0), (2 * size + number, -1.0)], 0.0, np.inf)
            if hop.parent >= 0:
                rows.add([(number, 1.0), (2 * size + hop.parent, -1.0)], 0.0, np.inf)
        for channel, sequence in self.sequences.items():
            for a, b in pairwise(sequence):
                self._neighbours(rows, a, b, self.topology.channels[channel].beta * self.scale, far)
            self._not_too_many(rows, sequence)
        for order in self.ports:
            for a, b in pairwise(order):
                before = self.topology.channels[self.work[a].channel]
                if (a, b) not in self.pairs and self.work[a].channel != self.work[b].channel:
                    early = (before.cost() - before.held()) * self.scale
                    rows.add([(b, 1.0), (2 * size + a, -1.0)], -early, np.inf)
        return rows

    def _neighbours(self, rows: Rows, a: int, b: int, beta: float, far: float) -> None:
        size = self.size
        together = self.pairs.get((a, b))
        if together is None:
            rows.add([(b, 1.0), (2 * size + a, -1.0)], 0.0, np.inf)
            return
        rows.add([(size + b, 1.0), (size + a, -1.0)], beta, np.inf)
        rows.add([(b, 1.0), (a, -1.0)], 0.0, np.inf)
        rows.add([(b, 1.0), (2 * size + a, -1.0), (together, far)], 0.0, np.inf)
        rows.add([(a, 1.0), (b, -1.0), (together, -far)], -far, np.inf)
        rows.add([(2 * size + a, 1.0), (2 * size + b, -1.0), (together, -far)], -far, np.inf)

    def _not_too_many(self, rows: Rows, sequence: Sequence[int]) -> None:
        neighbours = list(pairwise(sequence))
        for first in range(len(neighbours) - self.most + 1):
            columns = [self.pairs.get(pair) for pair in neighbours[first : first + self.most]]
            if None not in columns:
                rows.add(((column, 1.0) for column in columns if column is not None), -np.inf, self.most - 1.0)

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
