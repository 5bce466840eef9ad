"""Cost of communication: the alpha-beta model of collectives over one, two or three levels of links.

With n ranks, V bytes, and per message latency alpha and time per byte beta (logarithms to base 2, rounded up):

==============  ====================================  =====================================
operation       ring                                  tree
==============  ====================================  =====================================
all_reduce      2(n-1) alpha + 2(n-1)/n V beta        2 log n alpha + 2 V beta
reduce_scatter  (n-1) alpha + (n-1)/n V beta          log n alpha + (n-1)/n V beta
all_gather      (n-1) alpha + (n-1)/n V beta          log n alpha + (n-1)/n V beta
all_to_all      (n-1) alpha + (n-1)/n V beta          log n (alpha + V/2 beta)
broadcast       (n-1) alpha + V beta                  log n alpha + V beta
==============  ====================================  =====================================

V is the full buffer: the reduced one, the result of an all-gather, the input of a reduce-scatter, the bytes that a rank
sends in an all-to-all. Hierarchical: reduce-scatter inside nodes, the operation across nodes on a shard per device,
all-gather inside; devices of a node share its interface where :attr:`Link.shared` says so.

An all-reduce inside a node takes whichever of ring and tree is shorter, as NCCL chooses (its trees are for all-reduces
alone): a tree for small messages, whose latencies count, a ring for large ones. Over a link that knows rings only
(:attr:`Link.ring`) it takes a ring.

Source: Thakur, Rabenseifner, Gropp, IJHPCA 2005 (ring, recursive halving and doubling, Bruck); Sanders, Speck, Traeff,
Parallel Computing 2009 (two pipelined trees); recalled.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple

from densing.core import InputError, UnknownNameError
from densing.efficiency.simulation.cluster import Cluster, Link

OPS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send_recv")
ALGORITHMS = ("auto", "ring", "tree", "hierarchical")


class Terms(NamedTuple):
    """``seconds = messages * alpha + volume * count * beta``."""

    messages: float
    volume: float


class Level(NamedTuple):
    """One level of a group of ranks.

    Attributes
    ----------
    name : {"intra", "inter", "wide"}
    link : Link
        Between the parts.
    size : int
        Parts in the fullest unit of this level.
    inside : int
        Ranks of the smallest part: so many shards cross this link at once.
    """

    name: str
    link: Link
    size: int
    inside: int


def collective_seconds(
    op: str, count: float, cluster: Cluster, ranks: Sequence[int], algorithm: str = "auto", *, concurrent: int = 1
) -> float:
    """Return the seconds of a communication once all ranks have arrived.

    Parameters
    ----------
    op : {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send_recv"}
    count : float
        Bytes of the full buffer, see above.
    cluster : Cluster
    ranks : sequence of int
        Members of the group.
    algorithm : {"auto", "ring", "tree", "hierarchical"}
        ``auto``: inside one node a ring, for an all-reduce a tree where it is cheaper and the link allows it; across
        nodes the cheaper of one ring and hierarchical.
    concurrent : int
        Groups of the same node that communicate at once (the data-parallel groups of tensor-parallel ranks, say), and
        divide the shared links.

    Raises
    ------
    InputError
        For a count that is negative or not finite, and for ranks that repeat or lie outside the cluster.
    UnknownNameError
        For another operation or algorithm.

    Examples
    --------
    >>> from densing.efficiency.simulation import Device
    >>> slow = Link(1e-4, 1e-9)
    >>> cluster = Cluster("toy", 4, 1, Device("toy", 1e12, 1e11), intra=slow, inter=slow, host=slow)
    >>> round(collective_seconds("all_reduce", 4e6, cluster, range(4)), 6)
    0.0066
    >>> node = Cluster("toy", 4, 4, Device("toy", 1e12, 1e11), intra=slow, inter=slow, host=slow)
    >>> [round(collective_seconds("all_reduce", 4e3, node, range(4), kind), 6) for kind in ("auto", "ring")]
    [0.000408, 0.000606]
    """
    _check(op, count, algorithm, concurrent)
    members = sorted(ranks)
    if not members:
        raise InputError("ranks: none given; name at least one")
    if len(set(members)) < len(members):
        raise InputError(f"ranks: {members} has a rank twice; name each once")
    if members[0] < 0 or members[-1] >= cluster.n:
        span = f"{members[0]} to {members[-1]}"
        raise InputError(f"ranks: {span} are not all of cluster {cluster.name}, which has 0 to {cluster.n - 1}")
    if len(members) < 2 or count == 0:
        return 0.0
    if op == "send_recv":
        if len(members) != 2:
            raise InputError(f"send_recv: {len(members)} ranks were given; it joins two")
        return _shared(cluster.link(*members), concurrent).seconds(count)
    levels = levels_of(cluster, members)

    def flat(terms: Callable[[str, int], Terms]) -> float:
        return _flat(terms(op, len(members)), count, cluster, members, concurrent)

    if algorithm == "tree":
        return flat(tree_terms)
    if algorithm == "hierarchical":
        return _hierarchical(op, count, levels, concurrent)
    if algorithm == "ring":
        return flat(ring_terms)
    if len(levels) > 1:
        return min(_hierarchical(op, count, levels, concurrent), flat(ring_terms))
    trees = op == "all_reduce" and levels[0].name == "intra" and not levels[0].link.ring
    return min(flat(ring_terms), flat(tree_terms)) if trees else flat(ring_terms)


def latency_seconds(op: str, count: float, cluster: Cluster, ranks: Sequence[int], *, concurrent: int = 1) -> float:
    """Return the part of :func:`collective_seconds` that is latency; raises the same errors.

    Examples
    --------
    >>> from densing.efficiency.simulation import Device
    >>> slow = Link(1e-4, 1e-9)
    >>> cluster = Cluster("toy", 4, 1, Device("toy", 1e12, 1e11), intra=slow, inter=slow, host=slow)
    >>> round(latency_seconds("all_reduce", 4e6, cluster, range(4)), 6)
    0.0006
    """
    wires = {name: getattr(cluster, name) for name in ("intra", "inter", "wide")}
    # The latency is that of the algorithm that the bytes decide on.
    ring, best = (
        collective_seconds(op, count, cluster, ranks, kind, concurrent=concurrent) for kind in ("ring", "auto")
    )
    tree = best < ring and span_of(cluster, ranks) == "intra"
    endless = cluster.change(
        **{name: link and Link(link.alpha_s, 0.0, ring=link.ring or not tree) for name, link in wires.items()}
    )
    return min(collective_seconds(op, count, each, ranks, concurrent=concurrent) for each in (cluster, endless))


def wire_bytes(op: str, count: float, n: int) -> float:
    """Return the bytes each of ``n`` ranks sends, on average (of a ring; a tree's all-reduce sends n/(n-1) of it).

    Examples
    --------
    >>> wire_bytes("all_reduce", 1000, 4), wire_bytes("all_gather", 1000, 4), wire_bytes("send_recv", 1000, 2)
    (1500.0, 750.0, 1000.0)
    """
    _check(op, count, "auto", 1)
    if n < 1:
        raise InputError(f"n: {n} is not a number of ranks; give 1 or more")
    if n == 1 or op == "send_recv":
        return 0.0 if n == 1 else float(count)
    return {"all_reduce": 2.0}.get(op, 1.0) * (n - 1) / n * count


def ring_terms(op: str, n: int) -> Terms:
    """Return the latencies and the buffers that a ring of ``n`` costs."""
    if op == "send_recv":
        return Terms(1, 1)
    twice = 2 if op == "all_reduce" else 1
    return Terms(twice * (n - 1), 1.0 if op == "broadcast" and n > 1 else twice * (n - 1) / n)


def tree_terms(op: str, n: int) -> Terms:
    """Return the same for trees: fewer latencies, and for an all-reduce and an all-to-all more bytes."""
    depth = math.ceil(math.log2(n))
    volume: dict[str, float] = {"all_reduce": 2.0, "all_to_all": depth / 2, "broadcast": 1.0}
    return Terms(2 * depth if op == "all_reduce" else depth, volume.get(op, (n - 1) / n))


def levels_of(cluster: Cluster, ranks: Sequence[int]) -> tuple[Level, ...]:
    """Return the levels a group spans, the innermost first; levels of a single part are left out.

    Examples
    --------
    >>> from densing.efficiency.simulation import Device
    >>> link = Link(0, 1e-9)
    >>> cluster = Cluster("toy", 8, 4, Device("toy", 1, 1), intra=link, inter=link, host=link)
    >>> [(level.size, level.inside) for level in levels_of(cluster, range(8))]
    [(4, 1), (2, 4)]
    """
    nodes = Counter(rank // cluster.per_node for rank in ranks)
    sites = Counter(_site(cluster, node) for node in nodes)
    fewest = min(nodes.values())
    site_ranks = Counter[int]()
    for node, count in nodes.items():
        site_ranks[_site(cluster, node)] += count
    levels = [
        Level("intra", cluster.intra, max(nodes.values()), 1),
        Level("inter", cluster.inter, max(sites.values()), fewest),
    ]
    if cluster.wide is not None:
        # Whatever order a ring takes its sites in, the model lets it wait for the slowest pair of them.
        joins = [cluster.link(a * cluster.per_site, b * cluster.per_site) for a, b in combinations(sites, 2)]
        link = max(joins, key=lambda link: link.beta_s_per_byte) if cluster.pairs and joins else cluster.wide
        levels.append(Level("wide", link, len(sites), min(site_ranks.values())))
    return tuple(level for level in levels if level.size > 1)


def span_of(cluster: Cluster, ranks: Sequence[int]) -> str:
    """Return the outermost link a group uses: ``intra``, ``inter`` or ``wide``; ``none`` for a single rank.

    Examples
    --------
    >>> from densing.efficiency.simulation import Device
    >>> link = Link(0, 1e-9)
    >>> cluster = Cluster("toy", 8, 4, Device("toy", 1, 1), intra=link, inter=link, host=link)
    >>> span_of(cluster, range(4)), span_of(cluster, (0, 4)), span_of(cluster, (3,))
    ('intra', 'inter', 'none')
    """
    nodes = {rank // cluster.per_node for rank in ranks}
    if len({_site(cluster, node) for node in nodes}) > 1:
        return "wide"
    if len(nodes) > 1:
        return "inter"
    return "intra" if len(set(ranks)) > 1 else "none"


def _site(cluster: Cluster, node: int) -> int:
    spread = cluster.wide is not None and cluster.per_site > 0
    return node * cluster.per_node // cluster.per_site if spread else 0


def _flat(terms: Terms, count: float, cluster: Cluster, ranks: Sequence[int], concurrent: int) -> float:
    """All ranks in one ring or tree, neighbours where possible: every message waits for the slowest link it crosses."""
    each = count * terms.volume / terms.messages
    slowest = 0.0
    for level in levels_of(cluster, ranks):
        # Inside a node all its ranks send at once; out of a node or a site leads a single hop.
        flows = level.size if level.name == "intra" else 1
        slowest = max(slowest, _shared(level.link, flows * concurrent).seconds(each))
    return terms.messages * slowest


def _hierarchical(op: str, count: float, levels: Sequence[Level], concurrent: int) -> float:
    """Fold the levels: all but the outermost scatter or gather, the outermost does the operation on a shard."""
    total = 0.0
    for level in levels:
        outermost = level is levels[-1]
        flows = level.size if level.name == "intra" else 1 if op == "broadcast" else level.inside
        link = _shared(level.link, flows * concurrent)
        shard = count if op in ("all_to_all", "broadcast") else count / level.inside
        terms = ring_terms(op, level.size)
        if not outermost and op == "all_reduce":
            scatter = ring_terms("reduce_scatter", level.size)
            terms = Terms(2 * scatter.messages, 2 * scatter.volume)
        # Shards of all ranks inside cross this level at once, each in a ring of its own.
        total += terms.messages * link.alpha_s + terms.volume * shard * link.beta_s_per_byte
    return total


def _shared(link: Link, flows: int) -> Link:
    return link.faster(1 / flows) if link.shared and flows > 1 else link


def _check(op: str, count: float, algorithm: str, concurrent: int) -> None:
    if op not in OPS:
        raise UnknownNameError("collective", op, OPS)
    if algorithm not in ALGORITHMS:
        raise UnknownNameError("algorithm", algorithm, ALGORITHMS)
    if not (math.isfinite(count) and count >= 0):
        raise InputError(f"count: {count} is not a number of bytes; give a finite number of 0 or more")
    if concurrent < 1:
        raise InputError(f"concurrent: {concurrent} is not a number of groups; give 1 or more")
