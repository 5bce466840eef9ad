"""Clusters with a link per rank, as in a real run."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from densing.efficiency.parallel import parse_rates
from densing.efficiency.simulation import Link

if TYPE_CHECKING:
    from densing.efficiency.parallel import RunSpec
    from densing.efficiency.simulation import Cluster


def uneven(spec: RunSpec, cluster: Cluster) -> Cluster:
    """Return the cluster with the run's links where these differ; its own is assumed to be the fastest rank's.

    Parameters
    ----------
    spec : RunSpec
    cluster : Cluster
        Best calibrated over the fastest of the links.

    Examples
    --------
    >>> from densing.efficiency.parallel import RunSpec
    >>> from densing.efficiency.simulation import load_cluster
    >>> there = uneven(RunSpec("pipeline", nproc=3, link="1gbit,1gbit,50mbit"), load_cluster("cpu2", n=3))
    >>> there.link(1, 2).beta_s_per_byte / there.link(0, 1).beta_s_per_byte
    20.0
    """
    rates = parse_rates(spec.link, spec.nproc)
    if len(set(rates)) == 1:
        return cluster
    fastest = max(rate.bytes_per_s for rate in rates)
    pairs = {
        f"{a}-{b}": min(rates[a].bytes_per_s, rates[b].bytes_per_s) / fastest
        for a, b in combinations(range(spec.nproc), 2)
    }
    # Every rank a site of its own: between sites bandwidths may differ by pair.
    return cluster.change(per_node=1, per_site=1, wide=cluster.inter, pairs=pairs)


ALIKE = 1.3
"""A cluster that was calibrated over a run's link has its bandwidth up to this factor."""


def of_run(cluster: Cluster, spec: RunSpec) -> Cluster:
    """Return the cluster with the run's links: its own where it has about their bandwidth, else theirs.

    Examples
    --------
    >>> from densing.efficiency.parallel import RunSpec
    >>> from densing.efficiency.simulation import load_cluster
    >>> there = load_cluster("cpu2")
    >>> [of_run(there, RunSpec("ddp", link=link)) == there for link in ("none", "200mbit", "50mbit")]
    [True, True, False]
    """
    rates = parse_rates(spec.link, spec.nproc)
    if rates[0].kind == "none":
        return cluster
    share = cluster.inter.beta_s_per_byte * max(rate.bytes_per_s for rate in rates)
    return uneven(spec, cluster) if 1 / ALIKE <= share <= ALIKE else of_links(cluster, spec)


def of_links(cluster: Cluster, spec: RunSpec) -> Cluster:
    """Return the cluster with the run's links, at their stated bandwidth, instead of its own."""
    rates = parse_rates(spec.link, spec.nproc)
    if rates[0].kind == "none":
        return cluster
    latency = max(rate.latency_s for rate in rates)
    fastest = max(rate.bytes_per_s for rate in rates)
    return uneven(spec, cluster.change(per_node=1, inter=Link(cluster.inter.alpha_s + latency, 1 / fastest)))
