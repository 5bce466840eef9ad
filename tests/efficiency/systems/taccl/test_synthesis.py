"""The synthesiser of collectives: routing optima, schedules, and a brute-force optimum beside them."""

from __future__ import annotations

import pytest

from densing.efficiency.systems.taccl.routing import OPS, demand, route
from densing.efficiency.systems.taccl.schedule import check, from_json, to_json
from densing.efficiency.systems.taccl.synthesis import synthesise
from densing.efficiency.systems.taccl.topology import PROFILES, Sketch, logical, profile_topology, ring_time, sketches


def row(nodes, per_node, relay=True, profile="ndv2-1mb"):
    """A row of the pilot's table: topology and sketch."""
    symmetry = ((per_node, nodes * per_node),) if nodes > 1 else ()
    sketch = Sketch("row", ((0, 1),) if relay and nodes > 1 else (), symmetry)
    return profile_topology(profile, nodes, per_node, "full"), sketch


# Golden: MILP bound, schedule and ring of the pilot (HiGHS, NDv2 1 MB costs).
PILOT = [
    (1, 4, True, 23, 23, 69),
    (2, 2, True, 214, 237, 321),
    (2, 4, True, 428, 474, 749),
    (2, 4, False, 428, 497, 749),
]


@pytest.mark.parametrize(("nodes", "per_node", "relay", "bound", "schedule", "ring"), PILOT)
def test_the_pilots_table(nodes, per_node, relay, bound, schedule, ring):
    topology, sketch = row(nodes, per_node, relay)
    found = synthesise(topology, "all_gather", sketch)
    assert found.status == "optimal"
    assert found.gap < 1e-6
    assert found.bound == pytest.approx(bound, rel=1e-6)
    assert found.routed == pytest.approx(bound, rel=1e-6)
    assert found.ring == ring
    # The pilot ordered greedily: ours may be shorter, but never below the bound plus the last hop's 23
    # (or, where two chunks share a latency of 2, that much less).
    assert bound - 2 <= found.makespan <= schedule
    if nodes == 2:
        assert found.makespan >= bound + 23 - 2


def test_chunks_together_give_five_times_the_ring_at_one_kilobyte():
    # By hand: 7 x 270 = 1890 over 260 + 4 x 10.25 + about 2 x 32 = 365, 5.2x.
    topology, sketch = row(2, 4, profile="ndv2-1kb")
    found = synthesise(topology, "all_gather", sketch)
    assert found.ring / found.makespan == pytest.approx(5.2, rel=0.05)
    assert found.makespan == pytest.approx(32.25 + 301 + 30.01 + 4 * 2.24, rel=1e-6)
    assert max(len(send.chunks) for send in found.schedule.sends) >= 4
    alone = synthesise(topology, "all_gather", sketch, together=1)
    assert all(len(send.chunks) == 1 for send in alone.schedule.sends)
    assert found.makespan < alone.makespan / 2
    # Three instead of four on the wire's one message: the cap holds.
    capped = synthesise(topology, "all_gather", sketch, together=3)
    assert max(len(send.chunks) for send in capped.schedule.sends) <= 3
    assert found.makespan < capped.makespan < alone.makespan


def test_symmetry_joins_variables_and_keeps_the_optimum():
    topology, sketch = row(2, 4)
    machine = logical(topology, sketch)
    with_symmetry = route(machine, demand("all_gather", 8), sketch)
    without = route(machine, demand("all_gather", 8), sketch, symmetric=False)
    assert 2 * with_symmetry.binaries == without.binaries
    assert with_symmetry.time == pytest.approx(without.time)


def test_a_whole_ndv2_node_and_a_dgx2_node():
    # By hand: hybrid cube mesh: the farthest device is two fast hops and a slow one or better away; no all-gather is
    # faster than one chunk of each of 7 others over 4 links of which 2 are half as fast: 7 / (2/23 + 2/46) = 53.7 us.
    cube = synthesise(profile_topology("ndv2-1mb"), "all_gather", Sketch("plain"), time_limit=10)
    assert 7 / (2 / 23 + 2 / 46) <= cube.bound <= cube.makespan <= cube.ring
    # A switch port takes one chunk at a time: 15 chunks of 8 us, and that is reached.
    switch = synthesise(profile_topology("dgx2-1mb"), "all_gather", time_limit=10)
    assert switch.bound == pytest.approx(15 * 8)
    assert switch.makespan == pytest.approx(15 * 8)


@pytest.mark.parametrize("op", OPS)
def test_every_collective(op):
    topology = profile_topology("ndv2-1mb", 2, 2, "full")
    found = synthesise(topology, op)
    check(found.schedule, found.topology)
    assert found.schedule.op == op
    assert from_json(to_json(found.schedule)) == found.schedule
    assert found.makespan == found.schedule.makespan > 0


def test_an_all_reduce_is_a_gather_backwards_and_forwards():
    topology, sketch = row(2, 4)
    gather, scatter, reduce = (
        synthesise(topology, op, sketch).makespan for op in ("all_gather", "reduce_scatter", "all_reduce")
    )
    assert scatter == pytest.approx(gather)
    assert reduce <= gather + scatter + 1e-9
    sends = synthesise(topology, "all_reduce", sketch).schedule.sends
    assert {send.reduce for send in sends} == {True, False}


def test_more_chunks_per_rank_pipeline():
    topology, _ = row(2, 2)
    one, two = (
        synthesise(topology, "all_gather", Sketch("s", ((0, 1),), ((2, 4),), parts), together=1) for parts in (1, 2)
    )
    assert two.schedule.chunks_up == 2
    assert two.makespan < one.makespan


def test_policies_of_a_switch():
    topology = profile_topology("dgx2-1mb", 1, 4)
    used = {}
    for policy in ("uc-min", "uc-max"):
        found = synthesise(topology, "all_gather", Sketch(policy, policy=policy))
        used[policy] = len({(send.src, send.dst) for send in found.schedule.sends})
        assert found.makespan <= ring_time(topology) * 1.4
    assert used["uc-min"] <= used["uc-max"]


def test_the_same_answer_again():
    topology, sketch = row(2, 2)
    from densing.efficiency.systems.taccl import synthesis as module

    first = synthesise(topology, "all_reduce", sketch).schedule
    module._cached.cache_clear()
    module._gather.cache_clear()
    assert synthesise(topology, "all_reduce", sketch).schedule == first


def test_profiles_have_the_costs_of_the_shipped_files():
    # github.com/microsoft/taccl, examples/topo: node_invbws_list and remote_invbw.
    totals = {"ndv2-1kb": (32.25, 270.25), "ndv2-32kb": (10.18, 59.0), "ndv2-1mb": (23.0, 107.0)}
    totals |= {"dgx2-1kb": (31.0, 270.0), "dgx2-1mb": (8.0, 107.0)}
    assert set(totals) == set(PROFILES)
    for name, (fast, wire) in totals.items():
        channels = profile_topology(name, 2).channels
        assert min(c.cost() for c in channels if not c.inter) == pytest.approx(fast)
        assert {round(c.cost(), 9) for c in channels if c.inter} == {wire}
    cube = profile_topology("ndv2-1mb").channels
    assert len(cube) == 32
    assert all(sum(c.src == rank for c in cube) == 4 for rank in range(8))
    assert all(sketch.symmetry for sketch in sketches(profile_topology("dgx2-1mb", 2)))
