"""Routes without a solver: the tree of each chunk grows by the cheapest channel, counting what others already send."""

from __future__ import annotations

import heapq

from densing.core import InputError
from densing.efficiency.techniques.taccl.demand import Demand
from densing.efficiency.techniques.taccl.topology import Channel, Topology, leaving

Trees = tuple[tuple[int, ...], ...]
"""By chunk: the channels it travels, parents before children."""


def greedy_routes(topology: Topology, wanted: Demand) -> Trees:
    """Return a tree of channels per chunk.

    Raises
    ------
    InputError
        When a chunk cannot come to where it is wanted.
    """
    load: dict[str | int, float] = {}
    out = leaving(topology)
    trees: list[tuple[int, ...]] = []
    for chunk in range(wanted.chunks):
        into = _grow(topology, out, wanted, chunk, load)
        tree = pruned(topology, wanted, chunk, into)
        trees.append(tree)
        for number in tree:
            _carry(load, topology.channels[number], number)
    return tuple(trees)


def _grow(
    topology: Topology, out: list[list[int]], wanted: Demand, chunk: int, load: dict[str | int, float]
) -> dict[int, int]:
    """The channel by which each rank is reached; to a single rank the shortest way, to many the cheapest tree."""
    single = len(wanted.wanted[chunk]) == 1
    source, into = wanted.source[chunk], dict[int, int]()
    heap: list[tuple[float, float, int, int]] = [(0.0, 0.0, -1, source)]
    while heap:
        weight, at, number, rank = heapq.heappop(heap)
        if rank in into:
            continue
        into[rank] = number
        for nxt in out[rank]:
            channel = topology.channels[nxt]
            names: tuple[str | int, ...] = (nxt, *channel.ports)
            busy = max(load.get(name, 0.0) for name in names)
            grown = channel.cost() + busy + (weight if single else 0.0)
            heapq.heappush(heap, (grown, at + channel.cost(), nxt, channel.dst))
    missing = [rank for rank in wanted.wanted[chunk] if rank not in into]
    if missing:
        raise InputError(f"topology {topology.name!r}: nothing leads from rank {source} to rank {missing[0]}")
    return into


def pruned(topology: Topology, wanted: Demand, chunk: int, into: dict[int, int]) -> tuple[int, ...]:
    """Return the channels that lead to a wanted rank, parents before children, of ``into``: rank -> channel."""
    kept: dict[int, None] = {}
    for rank in wanted.wanted[chunk]:
        way: list[int] = []
        while rank != wanted.source[chunk] and into[rank] not in kept:
            way.append(into[rank])
            rank = topology.channels[into[rank]].src
        kept.update(dict.fromkeys(reversed(way)))
    return tuple(kept)


def _carry(load: dict[str | int, float], channel: Channel, number: int) -> None:
    load[number] = load.get(number, 0.0) + channel.cost()
    for port in channel.ports:
        load[port] = load.get(port, 0.0) + channel.held()


def relaxed_time(topology: Topology, trees: Trees) -> float:
    """Return the routing model's time of routes: the busiest channel or port, or the longest way if that is longer."""
    load: dict[str | int, float] = {}
    longest = 0.0
    for tree in trees:
        at: dict[int, float] = {}
        for number in tree:
            channel = topology.channels[number]
            at[channel.dst] = at.get(channel.src, 0.0) + channel.cost()
            _carry(load, channel, number)
        longest = max(longest, *at.values(), 0.0) if at else longest
    return max([longest, *load.values()])
