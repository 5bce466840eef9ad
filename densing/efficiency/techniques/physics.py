"""What the simulator takes for true, and four ways to break it: a prediction must notice at least one of them.

A claim's check is handed the laws it simulates under. Under the simulator's own it answers; under a mutation (every
collective three times as dear, latencies ten times as long, no contention, nothing hidden) the whole check runs again,
its calibrations too. Whatever comes out the same has not been tested by the claim: it went in, or it is arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from densing.efficiency.simulation import Graph
from densing.efficiency.timeline import Kind

if TYPE_CHECKING:
    from densing.efficiency.simulation import Cluster, Link, Simulation, Workload
    from densing.efficiency.techniques.measure import Measured


@dataclass(frozen=True)
class Physics:
    """The laws that a claim is checked under; the default ones are the simulator's own.

    Parameters
    ----------
    collectives : float
        Every communication takes so many times as long.
    latency : float
        Every message's latency is so many times as long.
    contention : float
        Factor on what overlapping work slows each other down by; 0: not at all.
    overlap : bool
        Whether a rank computes and communicates at once.

    Examples
    --------
    >>> from densing.efficiency.simulation.cluster.presets import load_cluster
    >>> round(Physics(latency=10).cluster(load_cluster("a100x8-tcp")).inter.alpha_s, 9)
    0.0003
    """

    collectives: float = 1.0
    latency: float = 1.0
    contention: float = 1.0
    overlap: bool = True

    def cluster(self, cluster: Cluster) -> Cluster:
        """Return what these laws make of a cluster: costs are linear in its links, so scaling these scales them."""

        def scaled(link: Link) -> Link:
            alpha, beta = link.alpha_s * self.latency, link.beta_s_per_byte
            return type(link)(alpha * self.collectives, beta * self.collectives, link.shared)

        return cluster.change(
            intra=scaled(cluster.intra),
            inter=scaled(cluster.inter),
            wide=None if cluster.wide is None else scaled(cluster.wide),
            kappa=cluster.kappa * self.contention,
            kappa_comm=cluster.kappa_comm * self.contention,
        )

    def graph(self, graph: Graph) -> Graph:
        """Return the tasks as these laws let them run: without overlap a rank has one stream for everything.

        Examples
        --------
        >>> graph = Graph()
        >>> first = graph.add("product", Kind.COMPUTE, (0,), "compute", 1.0)
        >>> second = graph.add("all_reduce", Kind.COMM, (0,), "comm", 0.5)
        >>> Physics().simulate(graph).makespan, Physics(overlap=False).simulate(graph).makespan
        (1.0, 1.5)
        """
        if self.overlap:
            return graph
        serial = Graph()
        serial.tasks = [
            # An annotation occupies nothing, whatever stream it is on.
            task if task.kind is Kind.ANNOTATION else task._replace(stream="one at a time")
            for task in graph.tasks
        ]
        return serial

    def simulate(self, graph: Graph) -> Simulation:
        """Run a graph whose contention is in its tasks' seconds."""
        from densing.efficiency.simulation import simulate

        return simulate(self.graph(graph))

    def measure(self, technique: str, workload: Workload, cluster: Cluster, **knobs: Any) -> Measured:
        """Plan, simulate and measure a technique.

        Raises
        ------
        InputError
            When the technique cannot work on this workload.
        """
        from densing.efficiency.techniques.measure import measure
        from densing.efficiency.techniques.registry import get_technique

        here = self.cluster(cluster)
        plan = get_technique(technique).plan(workload, here, **knobs)
        return measure(replace(plan, graph=self.graph(plan.graph)), here)


PHYSICS = Physics()
"""The simulator's own laws."""

MUTATIONS: Mapping[str, Physics] = MappingProxyType(
    {
        "ring costs x 3": Physics(collectives=3.0),
        "latency x 10": Physics(latency=10.0),
        "no contention": Physics(contention=0.0),
        "no overlap": Physics(overlap=False),
    }
)
"""The laws broken one at a time."""
