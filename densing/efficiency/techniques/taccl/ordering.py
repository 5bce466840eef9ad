"""In which order chunks go: list scheduling of routes under a dozen priorities, and the best of them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from densing.efficiency.techniques.taccl.demand import Demand
from densing.efficiency.techniques.taccl.greedy import Trees
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
    found: list[Hop] = []
    for chunk, tree in enumerate(trees):
        base, at = len(found), dict[int, int]()
        for number in tree:
            channel = topology.channels[number]
            parent = at.get(channel.src, -1)
            gone = found[parent].travelled + topology.channels[found[parent].channel].cost() if parent >= 0 else 0.0
            at[channel.dst] = len(found)
            found.append(Hop(chunk, number, parent, gone, channel.cost(), 1))
        for i in range(len(found) - 1, base - 1, -1):
            hop = found[i]
            if hop.parent >= 0:
                above = found[hop.parent]
                onward = hop.remaining + topology.channels[above.channel].cost()
                found[hop.parent] = above._replace(
                    remaining=max(above.remaining, onward), served=above.served + hop.served
                )
    return found


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
