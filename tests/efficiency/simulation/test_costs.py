"""Costs of collectives: closed forms, bounds, and an independent step-by-step ring as oracle."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.errors import InputError, UnknownNameError
from densing.efficiency.simulation.cluster import Cluster, Device, Link
from densing.efficiency.simulation.costs import (
    OPS,
    collective_seconds,
    latency_seconds,
    levels_of,
    span_of,
    wire_bytes,
)

COLLECTIVES = [op for op in OPS if op != "send_recv"]
ALPHA, BETA = (st.just(0.0) | st.floats(1e-12, most) for most in (1e-3, 1e-7))
COUNT = st.just(0.0) | st.floats(1, 1e12)


def cluster(n: int = 8, per_node: int = 4, alpha: float = 1e-5, beta: float = 1e-9, **fields: object) -> Cluster:
    """A cluster whose inter-node link is ten times slower than the one inside."""
    made = Cluster(
        "toy",
        n,
        per_node,
        Device("toy", 1e12, 1e11),
        intra=Link(alpha / 10, beta / 10),
        inter=Link(alpha, beta, "nic"),
        host=Link(0, 1e-10),
    )
    return made.change(**fields)


def flat(n: int, alpha: float, beta: float) -> Cluster:
    """Devices that are all joined by the same link."""
    link = Link(alpha, beta)
    return Cluster("flat", n, n, Device("toy", 1e12, 1e11), intra=link, inter=link, host=link)


def ring_step_by_step(n: int, count: float, alpha: float, beta: float, rounds: int) -> float:
    """Play a ring: every rank passes one of n chunks on, and begins once it has sent and received the last."""
    ready = [0.0] * n
    for _ in range(rounds):
        sent = [time + alpha + count / n * beta for time in ready]
        ready = [max(sent[rank], sent[rank - 1]) for rank in range(n)]
    return max(ready)


@given(n=st.integers(2, 33), count=COUNT, alpha=ALPHA, beta=BETA)
def test_ring_equals_one_played_step_by_step(n: int, count: float, alpha: float, beta: float) -> None:
    made = flat(n, alpha, beta)
    for op, rounds in (("all_reduce", 2 * (n - 1)), ("reduce_scatter", n - 1), ("all_gather", n - 1)):
        expected = ring_step_by_step(n, count, alpha, beta, rounds) if count else 0.0
        assert math.isclose(collective_seconds(op, count, made, range(n), "ring"), expected, rel_tol=1e-9)


@given(n=st.integers(2, 64), count=COUNT, alpha=ALPHA, beta=BETA)
def test_closed_forms(n: int, count: float, alpha: float, beta: float) -> None:
    """Alpha-beta formulas of Thakur et al. 2005 (ring, halving and doubling) and of pipelined trees."""
    made, depth = flat(n, alpha, beta), math.ceil(math.log2(n))
    expected = {
        ("all_reduce", "ring"): 2 * (n - 1) * alpha + 2 * (n - 1) / n * count * beta,
        ("all_to_all", "ring"): (n - 1) * alpha + (n - 1) / n * count * beta,
        ("broadcast", "ring"): (n - 1) * alpha + count * beta,
        ("all_reduce", "tree"): 2 * depth * alpha + 2 * count * beta,
        ("all_gather", "tree"): depth * alpha + (n - 1) / n * count * beta,
        ("all_to_all", "tree"): depth * (alpha + count / 2 * beta),
        ("broadcast", "tree"): depth * alpha + count * beta,
    }
    for (op, algorithm), seconds in expected.items():
        found = collective_seconds(op, count, made, range(n), algorithm)
        assert math.isclose(found, seconds if count else 0.0, rel_tol=1e-9), (op, algorithm)


@given(op=st.sampled_from(COLLECTIVES), n=st.integers(2, 64), count=COUNT, alpha=ALPHA, beta=BETA)
def test_inside_a_node_an_all_reduce_takes_the_shorter_of_ring_and_tree(
    op: str, n: int, count: float, alpha: float, beta: float
) -> None:
    made = flat(n, alpha, beta)
    ring, tree = (collective_seconds(op, count, made, range(n), kind) for kind in ("ring", "tree"))
    assert collective_seconds(op, count, made, range(n)) == (min(ring, tree) if op == "all_reduce" else ring)
    rings_only = made.change(intra=Link(alpha, beta, ring=True), inter=Link(alpha, beta, ring=True))
    assert collective_seconds(op, count, rings_only, range(n)) == ring


def test_16_kib_over_eight_devices_pay_six_latencies_and_a_gradient_goes_round_a_ring() -> None:
    made = flat(8, 2e-6, 1 / 450e9)
    small, large = 16 * 1024, 1e9
    assert collective_seconds("all_reduce", small, made, range(8)) == pytest.approx(6 * 2e-6 + 2 * small / 450e9)
    assert latency_seconds("all_reduce", small, made, range(8)) == pytest.approx(6 * 2e-6)
    assert collective_seconds("all_reduce", large, made, range(8)) == pytest.approx(14 * 2e-6 + 1.75 * large / 450e9)
    assert latency_seconds("all_reduce", large, made, range(8)) == pytest.approx(14 * 2e-6)
    # One device per node: no node to be inside of.
    apart = made.change(per_node=1, inter=made.intra)
    assert collective_seconds("all_reduce", small, apart, range(8)) > 14 * 2e-6


@given(op=st.sampled_from(COLLECTIVES), algorithm=st.sampled_from(["auto", "ring", "tree", "hierarchical"]),
       nodes=st.integers(1, 6), per_node=st.integers(1, 8), count=COUNT, more=st.floats(1, 10),
       alpha=ALPHA, beta=BETA)  # fmt: skip
def test_more_bytes_latency_or_slowness_never_cost_less(
    op: str, algorithm: str, nodes: int, per_node: int, count: float, more: float, alpha: float, beta: float
) -> None:
    ranks = range(nodes * per_node)
    made = cluster(len(ranks), per_node, alpha, beta)
    base = collective_seconds(op, count, made, ranks, algorithm)
    assert math.isfinite(base) and base >= 0
    assert collective_seconds(op, count * more, made, ranks, algorithm) >= base * (1 - 1e-12)
    slower = made.change(inter=Link(alpha * more, beta, "nic")), made.change(inter=Link(alpha, beta * more, "nic"))
    for other in slower:
        assert collective_seconds(op, count, other, ranks, algorithm) >= base * (1 - 1e-12)
    assert collective_seconds(op, count, made, ranks, algorithm, concurrent=2) >= base * (1 - 1e-12)


@given(op=st.sampled_from(COLLECTIVES), count=COUNT)
def test_auto_is_never_dearer_than_ring_or_hierarchical(op: str, count: float) -> None:
    made = cluster(32, 4)
    found = collective_seconds(op, count, made, range(32))
    assert found == min(collective_seconds(op, count, made, range(32), kind) for kind in ("ring", "hierarchical"))


@given(nodes=st.integers(2, 9), per_node=st.integers(1, 8), count=st.floats(1, 1e12), shared=st.booleans())
def test_bytes_that_must_leave_a_node_bound_an_all_reduce(
    nodes: int, per_node: int, count: float, shared: bool
) -> None:
    """Each of k nodes must send and receive 2 (k - 1)/k of the buffer, over one interface or one per device."""
    made = cluster(nodes * per_node, per_node, alpha=0.0).change(inter=Link(0.0, 1e-9, "nic" if shared else ""))
    bound = 2 * (nodes - 1) / nodes * count * 1e-9 / (1 if shared else per_node)
    for algorithm in ("auto", "ring", "hierarchical"):
        assert collective_seconds("all_reduce", count, made, range(made.n), algorithm) >= bound * (1 - 1e-9)


@given(count=st.floats(1, 1e12), algorithm=st.sampled_from(["ring", "hierarchical"]))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(count: float, algorithm: str) -> None:
    made = cluster(16, 4)
    parts = [collective_seconds(op, count, made, range(16), algorithm) for op in ("reduce_scatter", "all_gather")]
    assert math.isclose(collective_seconds("all_reduce", count, made, range(16), algorithm), sum(parts))


def test_hierarchical_by_hand() -> None:
    """2 nodes of 4, 8 MB: inside 2 * (3 alpha + 3/4 V beta), across 4 shards of V/4 on one interface."""
    made, count = cluster(8, 4, alpha=1e-5, beta=1e-9), 8e6
    inside = 2 * (3 * 1e-6 + 3 / 4 * count * 1e-10)
    across = 2 * 1e-5 + 2 * 1 / 2 * (count / 4) * (4 * 1e-9)
    assert math.isclose(collective_seconds("all_reduce", count, made, range(8), "hierarchical"), inside + across)


def test_three_levels_by_hand() -> None:
    """2 sites of 2 nodes of 2: across sites every device of a site sends its quarter over the site's one uplink."""
    made = cluster(8, 2).change(per_site=4, wide=Link(0.1, 1e-6, "uplink"))
    assert [(level.name, level.size, level.inside) for level in levels_of(made, range(8))] == [
        ("intra", 2, 1),
        ("inter", 2, 2),
        ("wide", 2, 4),
    ]
    found = collective_seconds("all_gather", 4e6, made, range(8), "hierarchical")
    intra, inter = 1e-6 + 1 / 2 * 4e6 * 1e-10, 1e-5 + 1 / 2 * (4e6 / 2) * 2e-9
    assert math.isclose(found, intra + inter + 0.1 + 1 / 2 * (4e6 / 4) * 4e-6)


@given(op=st.sampled_from(COLLECTIVES), count=COUNT)
def test_a_single_rank_and_an_empty_buffer_cost_nothing(op: str, count: float) -> None:
    assert collective_seconds(op, count, cluster(), [3]) == 0
    assert collective_seconds(op, 0, cluster(), range(8)) == 0
    assert wire_bytes(op, count, 1) == 0


@given(n=st.integers(2, 64), count=COUNT)
def test_wire_bytes_are_those_of_a_played_ring(n: int, count: float) -> None:
    assert math.isclose(wire_bytes("all_reduce", count, n), 2 * (n - 1) * (count / n), rel_tol=1e-12)
    assert math.isclose(wire_bytes("reduce_scatter", count, n), (n - 1) * (count / n), rel_tol=1e-12)
    assert wire_bytes("send_recv", count, n) == count


def test_point_to_point_takes_the_link_between() -> None:
    made = cluster(8, 4).change(per_site=4, wide=Link(0.1, 1e-6))
    assert collective_seconds("send_recv", 1e6, made, (0, 1)) == made.intra.seconds(1e6)
    assert collective_seconds("send_recv", 1e6, made, (0, 4)) == Link(0.1, 1e-6).seconds(1e6)
    assert [span_of(made, ranks) for ranks in ((0,), (0, 3), (0, 4))] == ["none", "intra", "wide"]


def test_groups_of_one_rank_per_node_share_the_interface() -> None:
    made = cluster(8, 4)
    one = collective_seconds("all_reduce", 8e6, made, (0, 4))
    four = collective_seconds("all_reduce", 8e6, made, (0, 4), concurrent=4)
    assert math.isclose(one, 2e-5 + 8e6 * 1e-9) and math.isclose(four, 2e-5 + 4 * 8e6 * 1e-9)


@pytest.mark.parametrize("count", [-1, math.nan, math.inf])
def test_impossible_counts(count: float) -> None:
    with pytest.raises(InputError, match="count"):
        collective_seconds("all_reduce", count, cluster(), range(8))


def test_impossible_groups() -> None:
    with pytest.raises(InputError, match="twice"):
        collective_seconds("all_reduce", 1, cluster(), (0, 0))
    with pytest.raises(InputError, match="not all of cluster toy"):
        collective_seconds("all_reduce", 1, cluster(), (0, 8))
    with pytest.raises(InputError, match="none given"):
        collective_seconds("all_reduce", 1, cluster(), ())
    with pytest.raises(InputError, match="joins two"):
        collective_seconds("send_recv", 1, cluster(), (0, 1, 2))
    with pytest.raises(UnknownNameError, match="all_reduce"):
        collective_seconds("allreduce", 1, cluster(), range(8))
    with pytest.raises(UnknownNameError, match="algorithm"):
        collective_seconds("all_reduce", 1, cluster(), range(8), "rings")
