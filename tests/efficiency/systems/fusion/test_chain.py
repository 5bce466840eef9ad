"""Cuts of a chain against every cut there is; communities against another algorithm; orders."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.core.errors import InputError
from densing.efficiency.simulation.cluster import load_cluster
from densing.efficiency.systems.fusion.chain import best_cuts, cut_at, every_cut
from densing.efficiency.systems.fusion.devices import Matrix, communities, orders

SECONDS = st.floats(0, 10) | st.integers(0, 3).map(float)


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[float], list[float], list[list[float]], np.ndarray]:
    """Work, speeds, edges and memory of up to 12 layers on up to 4 devices."""
    stages = draw(st.integers(1, 4))
    layers = draw(st.integers(stages, 12))
    work = draw(st.lists(SECONDS, min_size=layers, max_size=layers))
    speed = draw(st.lists(st.floats(0.1, 4), min_size=stages, max_size=stages))
    row = st.lists(SECONDS, min_size=layers + 1, max_size=layers + 1)
    crossing = draw(st.lists(row, min_size=stages - 1, max_size=stages - 1))
    sizes = draw(st.lists(st.floats(0.1, 1), min_size=layers, max_size=layers))
    held = np.cumsum([0.0, *sizes])
    # The first stages hold more micro-batches.
    need = np.array([[[(stages - stage) * (one - other) for one in held] for other in held] for stage in range(stages)])
    return work, speed, crossing, need


@settings(max_examples=200)
@given(chains(), st.floats(0.5, 20) | st.just(math.inf))
def test_cuts_are_the_best_of_all(
    chain: tuple[list[float], list[float], list[list[float]], np.ndarray], room: float
) -> None:
    work, speed, crossing, need = chain
    try:
        every = every_cut(work, speed, crossing, need, room)
    except InputError as error:
        # A device that holds no layer at all is refused before anything is tried.
        with pytest.raises(InputError, match="one layer needs"):
            best_cuts(work, speed, crossing, need, room)
        assert "one layer needs" in str(error)
        return
    if not every:
        with pytest.raises(InputError, match="no cut of"):
            best_cuts(work, speed, crossing, need, room)
        return
    found = best_cuts(work, speed, crossing, need, room)
    assert found.slowest == min(cuts.slowest for cuts in every)
    assert found.through == pytest.approx(min(cuts.through for cuts in every if cuts.slowest == found.slowest))
    bounds = list(pairwise((0, *found.first, len(work))))
    assert all(end > begin for begin, end in bounds)
    assert all(need[stage, begin, end] <= room for stage, (begin, end) in enumerate(bounds))
    again = cut_at(found.first, work, speed, crossing)
    assert again.slowest == found.slowest and again.through == pytest.approx(found.through)
    for count in (1, 2, 7):
        # Nothing, of all that fits, makes a shorter step of so many micro-batches.
        best = best_cuts(work, speed, crossing, need, room, micro_batches=count)
        assert best.step(count) == pytest.approx(min(cuts.step(count) for cuts in every))
        same = cut_at(best.first, work, speed, crossing)
        assert same.slowest == best.slowest and same.through == pytest.approx(best.through)


def test_a_device_of_twice_the_speed_takes_twice_the_layers() -> None:
    assert best_cuts([1.0] * 12, [1.0, 2.0, 3.0]).first == (2, 6)
    # Where activations differ, the cut moves to where they are small.
    assert best_cuts([1.0] * 4, [1.0, 1.0], [[9.0, 9.0, 9.0, 0.5, 9.0]]).first == (3,)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (([1.0], [1.0, 1.0]), "2 stages for 1 layers"),
        (([1.0, 1.0], []), "0 stages for 2 layers"),
        (([1.0, 1.0], [1.0, 0.0]), "speed of device 1: 0.0"),
        (([1.0, 1.0], [1.0, math.nan]), "speed of device 1: nan"),
        (([1.0, -1.0], [1.0]), "work of layer 1: -1.0"),
        (([1.0, 1.0], [1.0, 1.0], [[0.0, -1.0, 0.0]]), "must be 0 or more"),
        (([1.0, 1.0], [1.0, 1.0], [[0.0, math.inf, 0.0]]), "a link without bandwidth"),
        (
            ([1.0, 1.0], [1.0, 1.0], None, np.full((2, 3, 3), 9e9), 1e9),
            "device 0: one layer needs 9.0 GB and it has 1.0",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused(arguments: tuple[object, ...], told: str) -> None:
    with pytest.raises(InputError, match=told):
        best_cuts(*arguments)  # type: ignore[arg-type]


def spread(sites: list[int], fast: float, slow: float) -> Matrix:
    """Bandwidths of devices at sites of so many."""
    site = np.repeat(np.arange(len(sites)), sites)
    return np.where(site[:, None] == site, fast, slow)


@given(st.lists(st.integers(2, 6), min_size=2, max_size=5), st.floats(1e3, 1e5), st.randoms(use_true_random=False))
def test_communities_are_louvains(sites: list[int], times: float, random: object) -> None:
    """The second algorithm: networkx's, which comes with torch."""
    networkx = pytest.importorskip("networkx", reason="the oracle is networkx's Louvain method")
    bandwidth = spread(sites, times, 1.0)
    shuffled = list(range(sum(sites)))
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    bandwidth = bandwidth[np.ix_(shuffled, shuffled)]
    graph = networkx.from_numpy_array(bandwidth - np.diag(np.diag(bandwidth)))
    expected = networkx.community.louvain_communities(graph, seed=0)
    assert {frozenset(group) for group in communities(bandwidth)} == {frozenset(group) for group in expected}


def test_equal_links_part_nobody() -> None:
    assert communities(spread([3], 5.0, 5.0)) == [[0, 1, 2]]
    assert communities(np.zeros((1, 1))) == [[0]]
    # A fall below a factor of two is none.
    assert communities(spread([2, 1], 5.0, 3.0)) == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("bandwidth", "told"),
    [
        (spread([2, 2], 5.0, 0.0), "devices 2, 3 cannot be reached"),
        (np.array([[0.0, 1.0], [2.0, 0.0]]), "the two directions of a pair differ"),
        (np.array([[0.0, -1.0], [-1.0, 0.0]]), "of 0 or more"),
        (np.array([[0.0, math.nan], [math.nan, 0.0]]), "of 0 or more"),
        (np.zeros((2, 3)), "square"),
        (np.zeros((0, 0)), "square"),
    ],
)
def test_what_is_no_bandwidth_is_refused(bandwidth: Matrix, told: str) -> None:
    with pytest.raises(InputError, match=told):
        communities(bandwidth)


def test_a_hub_that_all_orders_would_cross_twice_is_refused() -> None:
    """Four devices joined through a fifth alone: a chain has to come back to it."""
    star = np.zeros((5, 5))
    star[0, 1:] = star[1:, 0] = 1.0
    with pytest.raises(InputError, match="every order of the devices uses a link without bandwidth"):
        list(orders(star, [1.0] * 5))


def test_sites_come_in_the_order_of_their_fastest_links() -> None:
    """geo48: 8 Mbit/s between its sites 0 and 1, 80 between 0 and 2, 800 between 1 and 2."""
    cluster = load_cluster("geo48")
    ranks = range(0, cluster.n, 2)
    bandwidth = np.array([[1 / cluster.link(a, b).beta_s_per_byte for b in ranks] for a in ranks])
    speed = [cluster.speed[rank] for rank in ranks]
    found = list(orders(bandwidth, speed))
    assert len(found) == len(set(found)) > 1
    assert all(sorted(order) == list(range(24)) for order in found)
    assert found[0] == tuple(range(24))
    for order in found[1:]:
        sites = [place // 8 for place in order]
        joints = [pair for pair in pairwise(sites) if pair[0] != pair[1]]
        assert joints in ([(0, 2), (2, 1)], [(1, 2), (2, 0)])
        # Devices of a node stay together.
        assert all(order[place] // 2 == order[place + 1] // 2 for place in range(0, 24, 2))
