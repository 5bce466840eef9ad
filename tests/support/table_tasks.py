"""Small graphs with tables, importable by the processes that gather their rows."""

from __future__ import annotations

import os

import networkx as nx
import numpy as np

from densing.efficiency.systems.host_tables.graph import Graph, Task
from densing.efficiency.systems.host_tables.tables import HostTable


def graph_of(network: nx.Graph) -> Graph:
    """Return a network's graph; its nodes are numbers from 0 up."""
    pairs = np.array(list(network.edges), np.int64).reshape(-1, 2)
    return Graph.undirected(pairs, len(network))


def karate_task(width: int = 12) -> Task:
    """Zachary's club: rows of noise and a hint, labels are the two sides."""
    network = nx.karate_club_graph()
    labels = np.array([network.nodes[node]["club"] == "Officer" for node in network], np.int64)
    rows = np.random.default_rng(0).normal(size=(34, width)).astype(np.float32)
    rows[:, 0] += 2 * labels
    nodes = np.arange(34)
    return Task(graph_of(network), HostTable(rows), labels, nodes[::2], nodes[1::2])


def dying_task(parent: int) -> Task:
    """A task that ends any other process than the one named."""
    if os.getpid() != parent:
        os._exit(7)
    return karate_task()
