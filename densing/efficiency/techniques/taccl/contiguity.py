"""Which chunks travel together: a message of k chunks pays its latency once, but waits for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from densing.efficiency.techniques.taccl.ordering import Hop, Message, occupy
from densing.efficiency.techniques.taccl.rows import Rows
from densing.efficiency.techniques.taccl.solver import minimise
from densing.efficiency.techniques.taccl.topology import Topology

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
    found: list[Message] = []
    for channel, sequence in _sequences(messages).items():
        size = most if topology.channels[channel].alpha > 0 else 1
        cuts = range(0, len(sequence), size)
        found += [Message(channel, tuple(sequence[cut : cut + size])) for cut in cuts]
    return found


def _sequences(messages: Sequence[Message]) -> dict[int, list[int]]:
    """Hops by channel, in order of time."""
    found: dict[int, list[int]] = {}
    for message in sorted(messages, key=lambda m: m.start):
        found.setdefault(message.channel, []).extend(message.hops)
    return found


def retime(topology: Topology, work: Sequence[Hop], messages: Sequence[Message]) -> list[Message]:
    """Return the messages as early as their order (given by their starts) allows."""
    free: dict[object, float] = {}
    arrived: dict[int, float] = {-1: 0.0}
    found = []
    for message in sorted(messages, key=lambda m: m.start):
        channel = topology.channels[message.channel]
        names = (message.channel, *channel.ports)
        start = max(arrived[work[hop].parent] for hop in message.hops)
        start = max([start, *(free.get(name, 0.0) for name in names)])
        end = start + channel.cost(len(message.hops))
        occupy(free, message.channel, channel, start, len(message.hops))
        arrived.update(dict.fromkeys(message.hops, end))
        found.append(Message(message.channel, message.hops, start, end))
    return found


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
        found: dict[str, list[int]] = {}
        for message in sorted(messages, key=lambda m: m.start):
            for port in self.topology.channels[message.channel].ports:
                found.setdefault(port, []).extend(message.hops)
        return list(found.values())

    def _pairs(self) -> dict[tuple[int, int], int]:
        """Neighbours on a channel that could travel together -> column of the binary."""
        orders = [set(pairwise(order)) for order in self.ports]
        found: dict[tuple[int, int], int] = {}
        for channel, sequence in self.sequences.items():
            for pair in pairwise(sequence):
                apart = any((pair[0] in {a for a, _ in order}) and pair not in order for order in orders)
                if self.topology.channels[channel].alpha > 0 and not apart and self.most > 1:
                    found[pair] = self.time + 1 + len(found)
        return found

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
        found = []
        for channel, sequence in self.sequences.items():
            current = [sequence[0]]
            for a, b in pairwise(sequence):
                together = self.pairs.get((a, b))
                if together is not None and x[together] > 0.5:
                    current.append(b)
                else:
                    found.append(Message(channel, tuple(current), float(x[current[0]])))
                    current = [b]
            found.append(Message(channel, tuple(current), float(x[current[0]])))
        return found
