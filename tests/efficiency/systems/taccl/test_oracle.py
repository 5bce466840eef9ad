"""The synthesiser beside a brute-force optimum of tiny machines."""

from __future__ import annotations

import heapq
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from densing.efficiency.systems.taccl.routing import GATHERING, OPS, demand, greedy_routes, relaxed_time
from densing.efficiency.systems.taccl.schedule import check
from densing.efficiency.systems.taccl.synthesis import compact, synthesise
from densing.efficiency.systems.taccl.topology import Channel, Sketch, Topology, checked

# An oracle that shares nothing with the synthesiser: all schedules of tiny machines in unit time.


def brute_force(topology, wanted):
    """Least makespan over all schedules of unmerged integer-cost messages, by uniform-cost search over states."""
    n, channels = topology.n, topology.channels
    begin = frozenset((source, chunk) for chunk, source in enumerate(wanted.source))
    goal = frozenset((rank, chunk) for chunk, to in enumerate(wanted.wanted) for rank in to)
    heap = [(0, 0, begin, ())]
    seen = set()
    number = itertools.count(1)
    while heap:
        now, _, held, flying = heapq.heappop(heap)
        if goal <= held:
            return now
        if (held, tuple((end - now, channel, chunk) for end, channel, chunk in flying)) in seen:
            continue
        seen.add((held, tuple((end - now, channel, chunk) for end, channel, chunk in flying)))
        for started in starts(topology, n, wanted, held, flying):
            alive = tuple(sorted([*flying, *((now + int(channels[c].cost()), c, k) for c, k in started)]))
            if not alive:
                continue
            then = now + 1
            landed = frozenset((channels[c].dst, k) for end, c, k in alive if end <= then)
            heapq.heappush(heap, (then, next(number), held | landed, tuple(f for f in alive if f[0] > then)))
    raise AssertionError("not connected")


def starts(topology, n, wanted, held, flying):
    """Every set of messages that could start now (including none: waiting may pay)."""
    channels = topology.channels
    busy = {channel for _, channel, _ in flying}
    coming = {(channels[channel].dst, chunk) for _, channel, chunk in flying}
    taken = {port for channel in busy for port in channels[channel].ports}
    options = []
    for number, channel in enumerate(channels):
        if number in busy or taken & set(channel.ports):
            continue
        useful = [
            chunk
            for chunk in range(wanted.chunks)
            if (channel.src, chunk) in held and (channel.dst, chunk) not in held | coming
        ]
        if useful:
            options.append([(number, chunk) for chunk in useful] + [None])
    for choice in itertools.product(*options):
        picked = [one for one in choice if one]
        ports = [port for number, _ in picked for port in channels[number].ports]
        arrivals = [(channels[number].dst, chunk) for number, chunk in picked]
        if len(set(ports)) == len(ports) and len(set(arrivals)) == len(arrivals):
            yield picked


def machine(edges, n, ports=None):
    channels = tuple(Channel(a, b, 0.0, float(cost), (ports or {}).get((a, b), ())) for a, b, cost in edges)
    return checked(Topology("tiny", n, n, channels))


BOTH = [(0, 1, 1), (1, 0, 1)]
TINY = [
    machine([(0, 1, 2), (1, 0, 3)], 2),
    machine([(0, 1, 1), (1, 2, 1), (2, 0, 1)], 3),
    machine([(0, 1, 1), (1, 2, 2), (2, 1, 1), (1, 0, 2)], 3),
    machine([(a, b, 1) for a, b in itertools.permutations(range(3), 2)], 3),
    machine([(0, 1, 1), (1, 0, 1), (1, 2, 2), (2, 1, 2), (0, 2, 4), (2, 0, 4)], 3),
    machine([(0, 1, 1), (1, 2, 1), (2, 3, 1), (3, 0, 1)], 4),
    machine([(0, 1, 1), (1, 0, 1), (2, 3, 1), (3, 2, 1), (0, 2, 3), (2, 0, 3)], 4),
    machine([(0, 1, 1), (1, 2, 1), (2, 0, 1), (1, 0, 1)], 3, {(1, 2): ("x",), (1, 0): ("x",)}),
]


@pytest.mark.parametrize("topology", TINY)
def test_tiny_machines_reach_the_brute_force_optimum(topology):
    best = brute_force(topology, demand("all_gather", topology.n))
    found = synthesise(topology, "all_gather", Sketch("plain"))
    assert found.bound <= best + 1e-6
    assert found.makespan == pytest.approx(best)


@st.composite
def machines(draw):
    """Connected machines of 2 to 4 ranks: a ring, some more channels, small integer costs, some shared ports."""
    n = draw(st.integers(2, 4))
    ring = [(rank, (rank + 1) % n) for rank in range(n)]
    others = [pair for pair in itertools.permutations(range(n), 2) if pair not in ring]
    extra = draw(st.lists(st.sampled_from(others), unique=True, max_size=2)) if others else []
    cost = st.integers(1, 3)
    edges = [(a, b, draw(cost)) for a, b in ring + extra]
    ports = {(a, b): ("shared",) for a, b, _ in edges if draw(st.booleans()) and draw(st.booleans())}
    return machine(edges, n, ports)


@settings(max_examples=25)
@given(machines(), st.sampled_from(["all_gather", "broadcast"]))
def test_never_below_the_brute_force_optimum_which_is_never_below_the_bound(topology, op):
    best = brute_force(topology, demand(op, topology.n))
    found = synthesise(topology, op, Sketch("plain"))
    assert found.bound <= best + 1e-6
    assert found.makespan >= best - 1e-9
    assert found.makespan <= 2 * best + 1e-9


@st.composite
def latent(draw):
    """The same with latencies, of which some do not keep the ports."""
    topology = draw(machines())
    held = draw(st.booleans())
    channels = tuple(
        replace(c, alpha=float(draw(st.integers(0, 20))), latency_held=held, ports=c.ports) for c in topology.channels
    )
    return replace(topology, channels=channels)


@settings(max_examples=30)
@given(latent(), st.sampled_from(OPS), st.integers(1, 6))
def test_every_schedule_is_valid_and_merging_never_hurts(topology, op, together):
    found = synthesise(topology, op, Sketch("plain"), together=together)
    check(found.schedule, found.topology)
    assert all(len(send.chunks) <= together for send in found.schedule.sends)
    assert compact(found.schedule, found.topology).makespan <= found.makespan + 1e-9
    if op in GATHERING:
        alone = synthesise(topology, op, Sketch("plain"), together=1)
        assert found.makespan <= alone.makespan + 1e-9
        assert alone.makespan >= alone.bound - 1e-6
        greedy = relaxed_time(topology, greedy_routes(topology, demand(op, topology.n)))
        assert alone.routed <= greedy + 1e-6
