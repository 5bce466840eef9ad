"""Tables, neighbourhoods and the layer against other programs; rows gathered ahead against rows gathered in turn."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from densing.core import InputError, UnavailableError, UnknownNameError  # noqa: E402
from densing.efficiency.parallel.distributed.spec import RunEnv, RunRecord, RunSpec  # noqa: E402
from densing.efficiency.systems.host_tables import run as runs  # noqa: E402
from densing.efficiency.systems.host_tables import tables  # noqa: E402
from densing.efficiency.systems.host_tables.ahead import Buffer, Sizes  # noqa: E402
from densing.efficiency.systems.host_tables.device import Fetch, no_device  # noqa: E402
from densing.efficiency.systems.host_tables.graph import (  # noqa: E402
    FANOUTS,
    Block,
    Graph,
    draw_neighbourhood,
    draw_neighbours,
    films_task,
)
from densing.efficiency.systems.host_tables.run import train_from_table  # noqa: E402
from densing.efficiency.systems.host_tables.sage import Sage, SageLayer  # noqa: E402
from densing.efficiency.systems.host_tables.tables import HostTable, open_table  # noqa: E402
from tests.support.table_tasks import dying_task, graph_of, karate_task  # noqa: E402

networks = st.builds(
    lambda nodes, share, seed: nx.gnp_random_graph(nodes, share, seed=seed),
    st.integers(1, 40), st.floats(0.0, 0.6), st.integers(0, 10_000),
)  # fmt: skip


@given(networks, st.integers(1, 12), st.integers(0, 1000))
def test_drawn_neighbours_are_networkxs_as_many_as_asked_and_none_twice(
    network: nx.Graph, fanout: int, seed: int
) -> None:
    nodes = np.random.default_rng(seed).permutation(len(network))
    counts, drawn = draw_neighbours(graph_of(network), nodes, fanout, np.random.default_rng(seed))
    for node, own in zip(nodes, np.split(drawn, np.cumsum(counts)[:-1]), strict=True):
        known = set(network[int(node)])
        assert len(own) == min(len(known), fanout)
        assert set(own.tolist()) <= known and len(set(own.tolist())) == len(own)


def test_every_neighbour_is_as_likely() -> None:
    star = graph_of(nx.star_graph(12))
    rng = np.random.default_rng(0)
    counts = np.zeros(13)
    for _ in range(6000):
        np.add.at(counts, draw_neighbours(star, np.array([0]), 4, rng)[1], 1)
    # 2000 each; five standard deviations of a share of one third.
    assert np.abs(counts[1:] - 2000).max() < 5 * np.sqrt(6000 * 2 / 9)


@given(networks.filter(lambda network: len(network) > 3), st.integers(1, 3), st.integers(0, 1000))
def test_a_neighbourhood_is_of_edges_within_two_hops_and_its_places_are_right(
    network: nx.Graph, count: int, seed: int
) -> None:
    graph, seeds = graph_of(network), np.arange(count)
    found = draw_neighbourhood(graph, seeds, np.random.default_rng(seed), (3, 2))
    near = set().union(*(nx.single_source_shortest_path_length(network, node, cutoff=2) for node in range(count)))
    assert found.nodes[:count].tolist() == seeds.tolist()
    assert set(found.nodes.tolist()) <= near and len(set(found.nodes.tolist())) == len(found.nodes)
    first, second = found.blocks
    assert len(second.counts) == count and len(first.counts) <= len(found.nodes)
    for block in found.blocks:
        owner = np.repeat(np.arange(len(block.counts)), block.counts)
        for target, source in zip(owner, block.sources, strict=True):
            assert network.has_edge(int(found.nodes[target]), int(found.nodes[source]))


def test_with_large_fanouts_all_neighbours_are_there() -> None:
    network = nx.karate_club_graph()
    found = draw_neighbourhood(graph_of(network), np.array([0]), np.random.default_rng(0), (100, 100))
    assert set(found.nodes.tolist()) == set(nx.single_source_shortest_path_length(network, 0, cutoff=2))


def test_a_layer_is_the_products_of_dense_matrices() -> None:
    network = nx.gnp_random_graph(9, 0.3, seed=2)
    network.add_node(9)
    graph = graph_of(network)
    block = Block(np.diff(graph.starts), graph.neighbours)
    torch.manual_seed(0)
    layer, states = SageLayer(5, 3), torch.randn(10, 5)
    dense = torch.tensor(nx.to_numpy_array(network, nodelist=range(10)), dtype=torch.float32)
    # The node on its own has a mean of zero.
    mean = dense @ states / dense.sum(1, keepdim=True).clamp(min=1)
    expected = mean @ layer.neighbours.weight.T + layer.neighbours.bias + states @ layer.own.weight.T
    assert torch.allclose(layer(states, block), expected, atol=1e-6)


def test_a_model_reads_only_what_was_drawn() -> None:
    task = karate_task()
    found = task.neighbourhood(np.array([0, 5]), 0, 3)
    rows = torch.from_numpy(task.table.rows[found.nodes]).requires_grad_()
    Sage(12, 2)(rows, found.blocks).sum().backward()
    assert rows.grad is not None and bool((rows.grad.abs().sum(1) > 0)[: len(found.blocks[0].counts)].any())


@given(st.integers(1, 20), st.integers(1, 9), st.lists(st.integers(0, 19), max_size=30))
def test_gathered_rows_are_indexed_rows(count: int, width: int, ids: list[int]) -> None:
    rows = np.arange(count * width, dtype=np.float32).reshape(count, width)
    table, chosen = HostTable(rows), np.array(ids, np.int64)
    into = np.full((len(ids), width), -1, np.float32)
    if ids and max(ids) >= count:
        with pytest.raises(InputError, match=f"row {max(ids)} is outside a table of {count}"):
            table.gather(chosen, into)
    else:
        table.gather(chosen, into)
        assert np.array_equal(into, rows[chosen])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (np.empty((4, 0), np.float32), "has no rows"),
        (np.empty(4, np.float32), "has no rows"),
        (np.empty((4, 2)), "numbers are float64; give float32"),
        (np.empty((4, 6), np.float32)[:, ::2], "are not contiguous in memory.*ascontiguousarray"),
        (np.asfortranarray(np.empty((4, 6), np.float32)), "are not contiguous in memory"),
    ],
)
def test_what_is_no_table_is_refused(rows: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        HostTable(rows)


def test_a_table_larger_than_memory_stays_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.arange(600, dtype=np.float32).reshape(100, 6)
    np.save(tmp_path / "rows.npy", rows)
    loaded = open_table(tmp_path / "rows.npy")
    assert not loaded.mapped and not isinstance(loaded.rows, np.memmap)
    monkeypatch.setattr(tables, "available_memory_gb", lambda: 4.7e-6)
    mapped = open_table(tmp_path / "rows.npy")
    assert mapped.mapped and isinstance(mapped.rows, np.memmap)
    into = np.empty((2, 6), np.float32)
    mapped.gather(np.array([99, 1]), into)
    assert np.array_equal(into, rows[[99, 1]])


def test_a_run_says_that_its_table_is_on_the_disk(tmp_path: Path) -> None:
    task = karate_task()
    np.save(tmp_path / "rows.npy", task.table.rows)
    mapped = HostTable(np.load(tmp_path / "rows.npy", mmap_mode="r"), mapped=True)
    found = trained(tmp_path, lambda: task._replace(table=mapped), overlap=False)
    assert found.losses == trained(tmp_path, overlap=False).losses
    assert runs.MAPPED in found.stand_in and runs.NO_PCIE in found.stand_in


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    (tmp_path / "words.npy").write_text("no table")
    np.savez(tmp_path / "two.npz", a=np.zeros(2), b=np.zeros(2))
    np.save(tmp_path / "columns.npy", np.asfortranarray(np.zeros((3, 2), np.float32)))
    np.save(tmp_path / "code.npy", np.array([{}], object), allow_pickle=True)
    for name, words in (("words.npy", "not a readable table"), ("none.npy", "not a readable table"),
                        ("two.npz", "several arrays"), ("columns.npy", "are not contiguous"),
                        ("code.npy", "not a readable table")):  # fmt: skip
        with pytest.raises(InputError, match=words):
            open_table(tmp_path / name)


@given(networks.filter(lambda network: network.number_of_edges() > 0), st.integers(1, 6), st.integers(0, 100))
def test_a_buffer_has_room_for_every_neighbourhood_and_holds_it_as_it_was(
    network: nx.Graph, seeds: int, step: int
) -> None:
    nodes = np.arange(len(network))
    rows = np.random.default_rng(step).normal(size=(len(nodes), 3)).astype(np.float32)
    task = karate_task()._replace(
        graph=graph_of(network), table=HostTable(rows), labels=nodes % 2, train=nodes, held_out=nodes
    )
    buffer = Buffer(Sizes.of(task, seeds))
    batch = buffer.fill(task, seeds, 5, step)
    found = task.neighbourhood(task.seeds(seeds, 5, step), 5, step)
    assert np.array_equal(batch.nodes, found.nodes[: len(batch.nodes)])
    assert np.array_equal(batch.rows, rows[found.nodes])
    for one, other in zip(batch.blocks, found.blocks, strict=True):
        assert np.array_equal(one.counts, other.counts) and np.array_equal(one.sources, other.sources)


def trained(out: Path, load: Any = karate_task, **options: Any) -> RunRecord:
    spec = RunSpec("host-gather", nproc=1, steps=options.pop("steps", 12), lr=0.05, trace_steps=0, out=str(out))
    return train_from_table(RunEnv(spec, 0, 1), "host-gather", seeds=4, load=load, **options)


@pytest.mark.slow
def test_rows_gathered_ahead_give_the_same_weights(tmp_path: Path) -> None:
    ahead, alone = trained(tmp_path), trained(tmp_path, overlap=False)
    assert ahead.extra["equal"] == 1 and "equal" not in alone.extra
    assert ahead.losses == alone.losses and ahead.final_loss == alone.final_loss
    assert len(ahead.step_s) == 12 and runs.NO_PCIE in ahead.stand_in
    figures = alone.extra
    # In turn the thread stands still for all of sampling and gathering.
    stages = figures["sample_s"] + figures["gather_s"] + figures["train_s"]
    assert figures["sequential_step_s"] == pytest.approx(stages, rel=0.5)
    assert figures["table_parameters"] == 34 * 12 and figures["row_bytes"] == 48 and 4 <= figures["rows"] <= 34


@pytest.mark.slow
def test_a_process_that_ends_too_early_is_no_hang(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="exited with code 7"):
        trained(tmp_path, partial(dying_task, os.getpid()))


def test_a_hint_in_the_rows_is_learned(tmp_path: Path) -> None:
    found = trained(tmp_path, overlap=False, steps=40)
    assert found.losses[-1] < 0.3 < found.losses[0] and found.extra["accuracy"] > found.extra["majority"]


def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path) -> None:
    task = karate_task()
    task.table.rows[:] = np.nan
    with pytest.raises(InputError, match="step 0: the loss is nan"):
        trained(tmp_path, lambda: task, overlap=False)
    with pytest.raises(UnknownNameError, match="people"):
        trained(tmp_path, data="people")


def test_the_films_and_their_people(tmp_path: Path) -> None:
    try:
        task = films_task(width=64)
    except UnavailableError as error:
        pytest.skip(str(error))
    graph = task.graph
    assert len(graph.starts) - 1 == 17_472 + 63_815 and len(graph.neighbours) == 2 * 223_940
    # Films have people for neighbours, and people films.
    owner = np.repeat(np.arange(len(graph.starts) - 1), np.diff(graph.starts))
    assert ((owner < 17_472) != (graph.neighbours < 17_472)).all()
    assert len(task.train) + len(task.held_out) == 17_453 and not set(task.train) & set(task.held_out)
    assert (task.labels == 1).sum() == 10_090 and task.classes == 2
    np.save(tmp_path / "short.npy", np.zeros((5, 2), np.float32))
    with pytest.raises(InputError, match="5 rows for 81,287 films and people"):
        films_task(table=str(tmp_path / "short.npy"))


def test_a_row_tells_nothing_of_what_people_made_of_the_film() -> None:
    from densing.efficiency.systems.host_tables import graph

    assert not {"Meter", "imdbRating", "Metacritic", "Awards", "Reviews"} & {*graph.FACTS, *graph.PEOPLE}
    assert FANOUTS == (25, 10)


@pytest.mark.gpu
@pytest.mark.skipif(bool(no_device()), reason=f"needs a CUDA device: {no_device()}")
@pytest.mark.parametrize("width", [1, 31, 32, 100, 602])
@pytest.mark.parametrize("way", ["host-gather", "pinned-gather", "zero-copy"])
def test_a_device_gets_the_rows_that_the_host_has(way: str, width: int) -> None:
    table = HostTable(np.random.default_rng(0).normal(size=(500, width)).astype(np.float32))
    ids = torch.randint(0, 500, (200,))
    for align in (False, True):
        assert torch.equal(Fetch(table, way, 200, align)(ids).cpu(), torch.from_numpy(table.rows)[ids])


def test_a_graph_of_no_edges() -> None:
    graph = Graph.undirected(np.empty((0, 2), np.int64), 3)
    found = draw_neighbourhood(graph, np.array([1]), np.random.default_rng(0))
    assert found.nodes.tolist() == [1] and found.blocks[0].sources.tolist() == []
