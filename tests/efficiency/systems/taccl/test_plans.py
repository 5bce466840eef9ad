"""Synthesised collectives on clusters, inside plans, and the claims."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.core.errors import InputError
from densing.efficiency.simulation.cluster import Cluster, Device, Link, load_cluster
from densing.efficiency.simulation.costs import collective_seconds
from densing.efficiency.simulation.engine import simulate
from densing.efficiency.simulation.models import load_workload
from densing.efficiency.simulation.tasks import Graph
from densing.efficiency.systems.claims import PHYSICS
from densing.efficiency.systems.ddp.technique import DDP
from densing.efficiency.systems.planner.collectives import Use
from densing.efficiency.systems.registry import Runnable, Technique, get_technique
from densing.efficiency.systems.taccl.schedule import check
from densing.efficiency.systems.taccl.technique import CLAIMS, TACCL, Synthesised, collective_schedule
from densing.efficiency.systems.taccl.topology import from_cluster
from densing.efficiency.systems.validation import verdict

ALL_OPS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast")


def toy(n=4, per_node=2, alpha=1e-5, bandwidth=1e9, shared="nic", **more):
    device = Device("toy", 1e12, 1e12)
    wire = Link(10 * alpha, 10 / bandwidth, shared)
    return Cluster("toy", n, per_node, device, Link(alpha, 1 / bandwidth), wire, Link(0.0, 1e-9), **more)


@pytest.mark.parametrize("op", ALL_OPS)
@pytest.mark.parametrize("count", [1e3, 3e7])
def test_schedules_on_a_cluster_are_valid(op, count):
    cluster = toy()
    schedule = collective_schedule(op, count, cluster, range(4))
    chunk = count if op == "broadcast" else count / 4
    check(schedule, from_cluster(cluster, chunk))
    # Some chunk has to cross between the nodes, on a wire that is ten times slower and later.
    assert schedule.makespan * 1e-6 >= 1e-4 + chunk / 1e8


def test_two_ranks_take_what_the_closed_form_says():
    # One chunk each way, at once: alpha + V/2 beta; all-reduce twice that.
    cluster = toy(2)
    for op in ("all_gather", "reduce_scatter", "all_reduce"):
        ours = collective_schedule(op, 1e6, cluster, (0, 1)).makespan * 1e-6
        assert ours == pytest.approx(collective_seconds(op, 1e6, cluster, (0, 1)))


def test_one_node_large_messages_are_bound_by_the_ports_as_the_ring_is():
    cluster = toy(4, 4, alpha=0.0)
    ours = collective_schedule("all_gather", 4e8, cluster, range(4)).makespan * 1e-6
    assert ours == pytest.approx(collective_seconds("all_gather", 4e8, cluster, range(4)), rel=1e-9)


@settings(max_examples=8)
@given(st.sampled_from([1e4, 1e6, 1e8]), st.sampled_from([(4, 2), (4, 4), (4, 1)]), st.floats(1e-7, 1e-3))
def test_no_schedule_beats_the_wires(count, shape, alpha):
    cluster = toy(*shape, alpha=alpha)
    ours = collective_schedule("all_gather", count, cluster, range(4)).makespan * 1e-6
    nodes = shape[0] // shape[1]
    away = count * (nodes - 1) / nodes
    wire = cluster.inter.seconds(away / shape[1] if shape[1] == 1 else away) if nodes > 1 else 0.0
    inside = cluster.intra.beta_s_per_byte * count / 4
    assert ours >= max(0.999 * wire, inside) * (1 - 1e-9)


def test_concurrent_groups_share_what_is_shared():
    cluster = toy(4, 2)
    once = collective_schedule("all_reduce", 1e7, cluster, (0, 2)).makespan
    twice = collective_schedule("all_reduce", 1e7, cluster, (0, 2), concurrent=2).makespan
    assert 1.8 * once < twice <= 2 * once
    alone = toy(4, 2, shared="")
    assert collective_schedule("all_reduce", 1e7, alone, (0, 2), concurrent=2).makespan == pytest.approx(once)


@pytest.mark.parametrize("op", ALL_OPS)
def test_messages_as_tasks_take_as_long_as_the_schedule(op):
    cluster = toy()
    provider = Synthesised(cluster, Use("dp"))
    one, all_ranks = Graph(), Graph()
    provider.add(one, "x", op, 1e6, range(4), (0,), "comm", ())
    last = provider.add(all_ranks, "x", op, 1e6, range(4), range(4), "comm", ())
    assert len(one) == 1
    assert last == len(all_ranks) - 1 > 4
    # Ports are the schedule's business: without them its messages can only be earlier.
    whole, split = simulate(one).makespan, simulate(all_ranks).makespan
    assert split <= whole * (1 + 1e-9)
    bytes_sent = sum(task.bytes for task in all_ranks.tasks if task.bytes > 0)
    copies = {"all_gather": 3, "reduce_scatter": 3, "all_reduce": 6, "broadcast": 3}
    if op in copies:
        assert bytes_sent == pytest.approx(copies[op] * 1e6, rel=1e-5)
    else:
        assert bytes_sent >= 3e6


def test_groups_of_another_kind_on_the_same_link_wait():
    graph = Graph()
    for kind, stream in (("dp", "comm.dp"), ("tp", "comm")):
        Synthesised(toy(), Use(kind, exclusive=True)).add(graph, "x", "all_reduce", 1e6, range(4), (0,), stream, ())
    assert simulate(graph).makespan == pytest.approx(sum(task.seconds for task in graph.tasks))


def test_messages_wait_for_what_came_before():
    graph = Graph()
    from densing.efficiency.timeline.timeline import Kind

    slow = graph.add("compute", Kind.COMPUTE, (3,), "compute", 1.0)
    Synthesised(toy(), Use("dp")).add(graph, "x", "all_gather", 1e6, range(4), range(4), "comm", (slow,))
    found = simulate(graph)
    assert np.all(found.start[1:] >= 1.0)


def test_a_plan_is_a_plan_of_ddp_with_other_collectives():
    cluster = toy(4, 2, alpha=1e-4)
    workload = load_workload("llama-8b", dp=4)
    ours, ddp = (technique.plan(workload, cluster) for technique in (TACCL, DDP))
    assert ours.ranks == ddp.ranks
    assert ours.memory == ddp.memory
    assert len(ours.graph) == len(ddp.graph)
    assert sum(t.bytes for t in ours.graph.tasks if t.bytes > 0) == sum(t.bytes for t in ddp.graph.tasks if t.bytes > 0)
    # Latency of every ring round against a schedule made for the machine.
    assert simulate(ours.graph).makespan < simulate(ddp.graph).makespan


def test_a_plan_with_all_ranks_simulated():
    cluster = toy(4, 2, speed=(1.0, 1.0, 0.5, 1.0))
    plan = TACCL.plan(load_workload("mega-gpt2", dp=2, tp=2), cluster)
    assert plan.ranks == 4
    assert simulate(plan.graph, plan.ranks, speed=cluster.speed).makespan > 0
    assert any(len(task.ranks) == 2 and ">" in task.name for task in plan.graph.tasks)


def test_it_is_registered_and_follows_the_protocols():
    found = get_technique("taccl")
    assert found is TACCL
    assert isinstance(found, Technique)
    assert isinstance(found, Runnable)


def test_what_it_refuses():
    workload = load_workload("tnl-7b", dp=1)
    with pytest.raises(InputError, match="dp >= 2 or tp >= 2"):
        TACCL.plan(workload, toy())
    with pytest.raises(InputError, match="not of 128"):
        TACCL.plan(load_workload("tnl-7b", dp=128), toy(128, 8))
    with pytest.raises(InputError, match="the same number on every node"):
        collective_schedule("all_gather", 1e6, toy(), (0, 1, 2))
    for count in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InputError, match="finite number above 0"):
            collective_schedule("all_gather", count, toy(), range(4))
    with pytest.raises(InputError, match="give different ranks"):
        from_cluster(toy(), 1e3, (0, 0))
    with pytest.raises(InputError, match="together"):
        TACCL.plan(load_workload("tnl-7b", dp=2), toy(), together=0)


@pytest.mark.parametrize("claim", CLAIMS, ids=[claim.id for claim in CLAIMS])
def test_claims(claim):
    answer = claim.check(PHYSICS)
    expected = "not answerable" if claim.id in ("TAC-2", "TAC-3") else "agrees"
    assert verdict(claim, answer) == expected
    assert claim.evidence in ("measured", "derived", "second-hand")
    assert claim.source


def test_ids_are_unique():
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)


def test_an_uplink_of_a_site_is_never_outrun() -> None:
    """Three sites behind one uplink each: what leaves a site takes at least its bytes over the uplink's rate."""
    cluster = load_cluster("geo48").change(pairs={})
    assert cluster.wide is not None
    count, sites = 1e8, cluster.n // cluster.per_site
    ranks = tuple(range(0, cluster.n, cluster.per_node))
    found = collective_schedule("all_gather", count, cluster, ranks)
    foreign = count * (sites - 1) / sites
    assert found.makespan * 1e-6 >= 0.999 * foreign * cluster.wide.beta_s_per_byte
