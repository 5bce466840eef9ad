"""Schedules, topologies and sketches that must be refused."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from densing.core.errors import ArtefactError, InputError, UnknownNameError
from densing.efficiency.systems.taccl.schedule import check, from_json, to_json
from densing.efficiency.systems.taccl.synthesis import synthesise
from densing.efficiency.systems.taccl.topology import Channel, Sketch, Topology, checked, profile_topology


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


def row(nodes, per_node):
    topology = profile_topology("ndv2-1mb", nodes, per_node, "full")
    return topology, Sketch("row", ((0, 1),), ((per_node, nodes * per_node),))


# What a checker must refuse.


def gathered():
    topology = TINY[3]
    return synthesise(topology, "all_gather", Sketch("plain"), together=1).schedule, topology


def changed(schedule, number, **fields):
    sends = list(schedule.sends)
    sends[number] = replace(sends[number], **fields)
    return replace(schedule, sends=tuple(sends))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"end": 9.0}, "its channel"),
        ({"start": float("nan")}, "finite"),
        ({"chunks": ()}, "at least one"),
        ({"chunks": (0, 0)}, "no chunk twice"),
        ({"chunks": (7,)}, "chunks must lie between"),
        ({"dst": 5}, "no such channel"),
    ],
)
def test_the_checker_refuses_messages(fields, words):
    schedule, topology = gathered()
    with pytest.raises(InputError, match=words):
        check(changed(schedule, 0, **fields), topology)


def test_the_checker_refuses_busy_channels_missing_chunks_and_early_sends():
    schedule, topology = gathered()
    twice = replace(schedule, sends=(*schedule.sends, schedule.sends[0]))
    with pytest.raises(InputError, match="busy until"):
        check(twice, topology)
    with pytest.raises(InputError, match="ends without the whole of chunk"):
        check(replace(schedule, sends=schedule.sends[1:]), topology)
    other = (schedule.sends[0].chunks[0] + 1) % 3
    with pytest.raises(InputError, match="does not have chunk"):
        check(changed(schedule, 0, chunks=(other,)), topology)


def test_the_checker_refuses_sums_added_twice_or_late():
    topology = TINY[3]
    schedule = synthesise(topology, "reduce_scatter", Sketch("plain"), together=1).schedule
    end = schedule.makespan
    first = schedule.sends[0]
    again = replace(first, start=end, end=end + 1)
    with pytest.raises(InputError, match="already has parts"):
        check(replace(schedule, sends=(*schedule.sends, again)), topology)
    line = TINY[2]
    summed = synthesise(line, "reduce_scatter", Sketch("plain"), together=1).schedule
    onward = next(s for s in summed.sends if s.src == 1)
    before = next(s for s in summed.sends if s.dst == 1 and s.chunks == onward.chunks)
    late = replace(before, start=summed.makespan, end=summed.makespan + before.end - before.start)
    sends = tuple(s for s in summed.sends if s is not before)
    with pytest.raises(InputError, match="before this part came"):
        check(replace(summed, sends=(*sends, late)), line)


# Bad input.


def test_bad_topologies_and_sketches():
    with pytest.raises(InputError, match="no path leads from rank"):
        synthesise(machine([(0, 1, 1), (1, 0, 1)], 3), "all_gather", Sketch("plain"))
    with pytest.raises(InputError, match="must join two different ranks"):
        machine([(0, 0, 1)], 2)
    with pytest.raises(InputError, match="occurs twice"):
        machine([(0, 1, 1), (0, 1, 2)], 2)
    for cost in (float("nan"), float("inf"), -1.0, 0.0):
        with pytest.raises(InputError, match="must be finite"):
            machine([(0, 1, cost)], 2)
    topology, _ = row(2, 2)
    for sketch, words in [
        (Sketch("s", relays=((0, 9),)), "not within a node"),
        (Sketch("s", symmetry=((1, 3),)), "not whole blocks"),
        (Sketch("s", relays=((0, 1),), symmetry=((1, 2),)), "does not have the symmetry"),
        (Sketch("s", chunks_up=0), "chunks_up 0"),
        (Sketch("s", policy="most"), "neither uc-min"),
    ]:
        with pytest.raises(InputError, match=words):
            synthesise(topology, "all_gather", sketch)
    with pytest.raises(InputError, match="seconds above 0"):
        synthesise(topology, "all_gather", time_limit=-1.0)
    with pytest.raises(InputError, match="2 ranks or more"):
        synthesise(profile_topology("ndv2-1mb", 1, 1, "full"))
    with pytest.raises(UnknownNameError, match="all_gather"):
        synthesise(topology, "all_gathr")
    with pytest.raises(UnknownNameError, match="ndv2-1mb"):
        profile_topology("ndv2-1m")
    with pytest.raises(InputError, match="a cube has 8 devices"):
        profile_topology("ndv2-1mb", 1, 4)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": 3}', "\x00"])
def test_what_is_no_schedule(text):
    with pytest.raises(ArtefactError):
        from_json(text)


def test_another_version_of_a_schedule():
    text = to_json(gathered()[0]).replace("densing.collective/1", "densing.collective/9")
    with pytest.raises(ArtefactError, match="collective/9"):
        from_json(text)
