"""What a synthesiser of collectives sees of a machine: channels, their cost per chunk, what they compete for; sketches.

A topology comes from a cluster, or from the machines that the authors of TACCL profiled. Source of the profiles: the
files shipped with the authors' code (github.com/microsoft/taccl, ``examples/topo``), read first-hand. A file gives, per
kind of link, beta and the total of a chunk on its own; alpha here is total - beta, so that one chunk costs what the
file says (its own alpha is rounded). Files of small sizes are scaled by their authors to stay integers: only ratios
between times mean something there.

A communication sketch is what a person tells the synthesiser, so that the search is small. Source: TACCL (arXiv
2111.04867): logical links and relays, symmetry offsets, size of the input's chunks, policy of switches; the sketches
NDv2 sk-1 and sk-2 and DGX-2 sk-1 and sk-2 as shipped with the authors' code.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from itertools import product
from typing import TYPE_CHECKING

from msgspec.structs import replace

from densing.core import InputError, Record, UnknownNameError

if TYPE_CHECKING:
    from densing.efficiency.simulation import Cluster


class Channel(Record, frozen=True):
    """One direction between two ranks: ``k`` chunks sent as one message take ``alpha + k * beta`` microseconds.

    Parameters
    ----------
    src, dst : int
    alpha, beta : float
        Microseconds per message, and per chunk.
    ports : tuple of str
        What it competes for with other channels: each serves one message at a time (a NIC, a port of a switch).
    inter : bool
        Between nodes.
    latency_held : bool
        Whether the ports are busy during alpha too (as TACCL's switch constraints have it), or only while the bytes
        pass: then the next message may set out while this one is still on its way.

    Examples
    --------
    >>> Channel(0, 1, alpha=260.0, beta=10.25).cost(4)
    301.0
    """

    src: int
    dst: int
    alpha: float
    beta: float
    ports: tuple[str, ...] = ()
    inter: bool = False
    latency_held: bool = True

    def cost(self, chunks: int = 1) -> float:
        """Return the microseconds of one message of so many chunks."""
        return self.alpha + chunks * self.beta

    def held(self, chunks: int = 1) -> float:
        """Return the microseconds for which such a message keeps its ports."""
        return self.cost(chunks) if self.latency_held else chunks * self.beta


class Topology(Record, frozen=True):
    """Ranks ``0 .. n-1``, node by node, and the channels between them.

    Parameters
    ----------
    name : str
    n, per_node : int
    channels : tuple of Channel
        At most one per direction of a pair.
    source : str
        Where the costs are from.
    """

    name: str
    n: int
    per_node: int
    channels: tuple[Channel, ...]
    source: str = ""

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.n // self.per_node

    def reversed(self) -> Topology:
        """Return the same machine with every channel turned round.

        Examples
        --------
        >>> Topology("pair", 2, 2, (Channel(0, 1, 0.0, 5.0),)).reversed().channels[0].src
        1
        """
        turned = tuple(replace(c, src=c.dst, dst=c.src, ports=c.ports[::-1]) for c in self.channels)
        return replace(self, channels=turned)


def checked(topology: Topology) -> Topology:
    """Return the topology as it is.

    Raises
    ------
    InputError
        When a channel joins ranks that are not there, costs nothing or no finite time, or is there twice, or when the
        nodes are not equally large.
    """
    where = f"topology {topology.name!r}"
    if topology.n < 1 or topology.per_node < 1 or topology.n % topology.per_node:
        raise InputError(f"{where}: {topology.n} ranks do not fill nodes of {topology.per_node}")
    seen: set[tuple[int, int]] = set()
    for c in topology.channels:
        pair = f"{where}, channel {c.src}->{c.dst}"
        if not (0 <= c.src < topology.n and 0 <= c.dst < topology.n) or c.src == c.dst:
            raise InputError(f"{pair}: it must join two different ranks of 0 to {topology.n - 1}")
        if (c.src, c.dst) in seen:
            raise InputError(f"{pair}: it occurs twice; give the pair one channel with the total bandwidth")
        if not (math.isfinite(c.alpha) and math.isfinite(c.beta) and c.alpha >= 0 and c.beta >= 0 and c.cost() > 0):
            raise InputError(f"{pair}: alpha {c.alpha} and beta {c.beta} must be finite, not negative, and not both 0")
        seen.add((c.src, c.dst))
    return topology


def leaving(topology: Topology) -> list[list[int]]:
    """Return, by rank, the numbers of the channels that leave it."""
    out: list[list[int]] = [[] for _ in range(topology.n)]
    for number, channel in enumerate(topology.channels):
        out[channel.src].append(number)
    return out


def distances(topology: Topology, sources: Iterable[int]) -> list[float]:
    """Return the microseconds in which a chunk can come from the nearest of some ranks to every rank (inf: never).

    Examples
    --------
    >>> distances(Topology("line", 3, 3, (Channel(0, 1, 0.0, 5.0), Channel(1, 2, 1.0, 5.0))), [0])
    [0.0, 5.0, 11.0]
    """
    result = [math.inf] * topology.n
    heap = [(0.0, rank) for rank in sources]
    for _, rank in heap:
        result[rank] = 0.0
    out = leaving(topology)
    while heap:
        at, rank = heapq.heappop(heap)
        # Dijkstra with lazy deletion: a longer way to a rank that was reached meanwhile is passed over.
        if at > result[rank]:
            continue
        for number in out[rank]:
            channel = topology.channels[number]
            if at + channel.cost() < result[channel.dst]:
                result[channel.dst] = at + channel.cost()
                heapq.heappush(heap, (result[channel.dst], channel.dst))
    return result


def occupy(free: dict[object, float], name: object, channel: Channel, start: float, chunks: int) -> None:
    """Note until when a message keeps its channel and its ports."""
    free[name] = start + channel.cost(chunks)
    free.update(dict.fromkeys(channel.ports, start + channel.held(chunks)))


def ring_time(topology: Topology) -> float:
    """Return the microseconds of a ring all-gather, one chunk per rank: n - 1 rounds of the slowest hop.

    The ring visits the ranks in order; where two neighbours have no channel, the shortest way counts.

    Examples
    --------
    >>> pair = Topology("pair", 2, 2, (Channel(0, 1, 0.0, 5.0), Channel(1, 0, 0.0, 7.0)))
    >>> ring_time(pair)
    7.0
    """
    n = topology.n
    hops = [distances(topology, [rank])[(rank + 1) % n] for rank in range(n)]
    return (n - 1) * max(hops)


def from_cluster(
    cluster: Cluster, chunk_bytes: float, ranks: Sequence[int] | None = None, *, concurrent: int = 1
) -> Topology:
    """Return the channels among some ranks of a cluster, renumbered from 0, for chunks of so many bytes.

    ``concurrent`` groups of a node do the same at the same time, and have so much less of what is shared.

    A device sends one message and receives one at a time within its node, and the same over the network; a link that
    is ``shared`` serves one message at a time for the whole node. Latency does not keep a port: the next message may
    follow while one is on its way. (A cluster's bandwidth is that of a device, not of a pair: without these ports each
    of eight devices would have it seven times.)

    Raises
    ------
    InputError
        When the ranks are not in the cluster, repeat, or fill the nodes unequally.

    Examples
    --------
    >>> from densing.efficiency.simulation import Cluster, Device, Link
    >>> duo = Cluster("duo", 4, 2, Device("toy", 1e12, 1e12), Link(1e-6, 1e-9), Link(1e-5, 1e-8, "nic"), Link(0, 1e-9))
    >>> topology = from_cluster(duo, 1000)
    >>> len(topology.channels), topology.channels[1].ports
    (12, ('nic0.out', 'nic1.in'))
    """
    chosen = list(range(cluster.n)) if ranks is None else list(ranks)
    if not chosen or len(set(chosen)) != len(chosen) or min(chosen) < 0 or max(chosen) >= cluster.n:
        raise InputError(f"ranks {chosen}: give different ranks of 0 to {cluster.n - 1} (cluster {cluster.name})")
    node = [rank // cluster.per_node for rank in chosen]
    per_node = node.count(node[0])
    if any(node.count(one) != per_node for one in set(node)) or node != sorted(node):
        raise InputError(f"ranks {chosen}: the synthesiser needs the same number on every node, node by node")
    channels = []
    for a in range(len(chosen)):
        for b in range(len(chosen)):
            if a != b:
                link = cluster.link(chosen[a], chosen[b])
                link = link.faster(1 / concurrent) if link.shared else link
                # What leaves a site shares the site's uplink, whichever node it comes from.
                far = (
                    cluster.wide is not None
                    and link.shared == cluster.wide.shared
                    and bool(cluster.per_site)
                    and chosen[a] // cluster.per_site != chosen[b] // cluster.per_site
                )
                ends = [f"site{chosen[one] // cluster.per_site}" if far else str(node[one]) for one in (a, b)]
                level = "net" if node[a] != node[b] else "node"
                out, into = f"{level}.rank{a}.out", f"{level}.rank{b}.in"
                if link.shared:
                    out, into = f"{link.shared}{ends[0]}.out", f"{link.shared}{ends[1]}.in"
                alpha, beta = link.alpha_s * 1e6, chunk_bytes * link.beta_s_per_byte * 1e6
                channels.append(Channel(a, b, alpha, beta, (out, into), node[a] != node[b], latency_held=False))
    return checked(Topology(cluster.name, len(chosen), per_node, tuple(channels), f"cluster {cluster.name}"))


class Profile(Record, frozen=True):
    """Costs of one chunk size on one kind of machine.

    Parameters
    ----------
    name, chunk : str
    per_node, nics : int
        Devices and network cards of a node.
    wiring : {"cube", "switch"}
        How a node is wired: hybrid cube mesh, or every device on one switch.
    intra : tuple of (beta, total)
        Microseconds, fast links first.
    inter : (beta, total)
    """

    name: str
    chunk: str
    per_node: int
    nics: int
    wiring: str
    intra: tuple[tuple[float, float], ...]
    inter: tuple[float, float]


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("ndv2-1kb", "1 KB", 8, 1, "cube", ((2.24, 32.25), (4.5, 34.5)), (10.25, 270.25)),
        Profile("ndv2-32kb", "32 KB", 8, 1, "cube", ((7.18, 10.18), (14.38, 17.38)), (32.8, 59.0)),
        Profile("ndv2-1mb", "1 MB", 8, 1, "cube", ((23.0, 23.0), (46.0, 46.0)), (105.0, 107.0)),
        Profile("dgx2-1kb", "1 KB", 16, 8, "switch", ((1.0, 31.0),), (10.25, 270.0)),
        Profile("dgx2-1mb", "1 MB", 16, 8, "switch", ((8.0, 8.0),), (105.0, 107.0)),
    )
}
SOURCE = "profile files of github.com/microsoft/taccl (first-hand)"

_DOUBLE = ((0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7))
_SINGLE = ((0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6))
"""NVLink pairs of an eight-device hybrid cube mesh: with the fast and with the slow kind of link."""


def profile_topology(name: str, nodes: int = 1, per_node: int = 0, wiring: str = "") -> Topology:
    """Return so many nodes of a profiled machine, every pair of devices on different nodes joined through the NICs.

    Parameters
    ----------
    name : str
        One of :data:`PROFILES`.
    nodes, per_node : int
        0 devices per node: as many as the machine has.
    wiring : {"", "cube", "switch", "full"}
        Empty: the machine's own. ``full``: every pair of a node has a fast link of its own.

    Examples
    --------
    >>> topology = profile_topology("ndv2-1mb", nodes=2, per_node=4, wiring="full")
    >>> topology.n, {channel.cost() for channel in topology.channels} == {23.0, 107.0}
    (8, True)
    """
    if name not in PROFILES:
        raise UnknownNameError("profile", name, PROFILES)
    profile = PROFILES[name]
    size, kind = per_node or profile.per_node, wiring or profile.wiring
    if nodes < 1 or size < 1 or (kind == "cube" and size != 8):
        raise InputError(f"{name}: {nodes} nodes of {size} devices wired as {kind!r}; a cube has 8 devices, nodes >= 1")
    fast, slow = profile.intra[0], profile.intra[-1]
    if kind == "cube":
        one_way = dict.fromkeys(_DOUBLE, fast) | dict.fromkeys(_SINGLE, slow)
        pairs = one_way | {(b, a): cost for (a, b), cost in one_way.items()}
    elif kind in ("switch", "full"):
        pairs = {(a, b): fast for a in range(size) for b in range(size) if a != b}
    else:
        raise UnknownNameError("wiring", kind, ("cube", "full", "switch"))
    channels: list[Channel] = []
    for base in range(0, nodes * size, size):
        for (src, dst), (beta, total) in pairs.items():
            a, b = base + src, base + dst
            ports = (f"switch.{a}.out", f"switch.{b}.in") if kind == "switch" else ()
            channels.append(Channel(a, b, round(total - beta, 9), beta, ports))
    # Between nodes every pair is joined through the two devices' network cards.
    devices_per_nic = -(-size // profile.nics)
    nics = [f"nic.{rank // size}.{rank % size // devices_per_nic}" for rank in range(nodes * size)]
    beta, total = profile.inter
    for a, b in product(range(nodes * size), repeat=2):
        if a // size != b // size:
            ports = (nics[a] + ".out", nics[b] + ".in")
            channels.append(Channel(a, b, round(total - beta, 9), beta, ports, inter=True))
    return checked(Topology(f"{name} {nodes}x{size}", nodes * size, size, tuple(channels), SOURCE))


class Sketch(Record, frozen=True):
    """What the schedule has to look like.

    Parameters
    ----------
    name : str
    relays : tuple of (int, int)
        Pairs (sender, receiver) of places within a node: only these send and receive between nodes. Empty: all may.
    symmetry : tuple of (int, int)
        Pairs (offset, block): the schedule stays the same when, in every block of so many ranks, each rank ``r``
        becomes ``(r + offset) mod block``.
    chunks_up : int
        Chunks into which each rank's input is cut.
    policy : {"", "uc-min", "uc-max"}
        Use as few, or as many, different channels as possible (switches).

    Examples
    --------
    >>> Sketch("sk1", relays=((0, 1),), symmetry=((4, 8),)).relays
    ((0, 1),)
    """

    name: str
    relays: tuple[tuple[int, int], ...] = ()
    symmetry: tuple[tuple[int, int], ...] = ()
    chunks_up: int = 1
    policy: str = ""


def logical(topology: Topology, sketch: Sketch) -> Topology:
    """Return the topology with only the channels that the sketch allows, for the chunks that it cuts.

    Raises
    ------
    InputError
        When the sketch names relays or offsets that do not exist, or has no chunk.
    """
    if not 1 <= sketch.chunks_up <= 64:
        raise InputError(f"sketch {sketch.name!r}: chunks_up {sketch.chunks_up} is not between 1 and 64")
    if sketch.policy not in ("", "uc-min", "uc-max"):
        raise InputError(f"sketch {sketch.name!r}: policy {sketch.policy!r} is neither uc-min nor uc-max nor empty")
    if any(not 0 <= device < topology.per_node for pair in sketch.relays for device in pair):
        raise InputError(f"sketch {sketch.name!r}: relays {sketch.relays} are not within a node of {topology.per_node}")
    size = topology.per_node
    allowed = [
        replace(channel, beta=channel.beta / sketch.chunks_up)
        for channel in topology.channels
        if not channel.inter or not sketch.relays or (channel.src % size, channel.dst % size) in sketch.relays
    ]
    result = checked(replace(topology, channels=tuple(allowed)))
    for offset, block in sketch.symmetry:
        if not is_symmetric(result, permutation(topology.n, offset, block)):
            raise InputError(
                f"sketch {sketch.name!r}: topology {topology.name!r} does not have the symmetry "
                f"({offset}, {block}); leave it out"
            )
    return result


def permutation(n: int, offset: int, block: int) -> tuple[int, ...]:
    """Return what each rank becomes.

    Raises
    ------
    InputError
        When the blocks do not fill the ranks.

    Examples
    --------
    >>> permutation(4, 1, 2)
    (1, 0, 3, 2)
    """
    if block < 1 or n % block:
        raise InputError(f"symmetry ({offset}, {block}): {n} ranks are not whole blocks of {block}")
    return tuple(rank // block * block + (rank + offset) % block for rank in range(n))


def is_symmetric(topology: Topology, ranks: tuple[int, ...]) -> bool:
    """Return whether renaming the ranks gives the same channels, costs and ports (whatever the ports are called)."""
    return maps_onto(topology, topology, ranks)


def maps_onto(one: Topology, other: Topology, ranks: tuple[int, ...]) -> bool:
    """Return whether renaming the ranks of one topology gives another, whatever the ports are called."""
    by_ends = {(c.src, c.dst): c for c in other.channels}
    names: dict[str, str] = {}
    for channel in one.channels:
        image = by_ends.get((ranks[channel.src], ranks[channel.dst]))
        same = image is not None and replace(image, src=channel.src, dst=channel.dst, ports=channel.ports) == channel
        if image is None or not same or len(image.ports) != len(channel.ports):
            return False
        # Ports are matched one to one, whatever they are called: the first meeting names the partner.
        pairs = zip(channel.ports, image.ports, strict=True)
        if any(names.setdefault(mine, its) != its for mine, its in pairs):
            return False
    return len(one.channels) == len(other.channels) and len(set(names.values())) == len(names)


def sketches(topology: Topology) -> tuple[Sketch, ...]:
    """Return sketches worth trying on a topology, with those symmetries that it has.

    One node: any channel. Several: one sender and one receiver per node (sk-1; small messages: chunks can travel
    together), and each device to its counterparts (sk-2; large ones: no detour to the relay).
    """
    size = topology.per_node
    offsets = ((size, topology.n), (1, size)) if topology.nodes > 1 else ((1, topology.n),)
    tried = [Sketch("direct", symmetry=offsets)]
    if topology.nodes > 1 and size > 1:
        tried = [Sketch("aligned", tuple((device, device) for device in range(size)), offsets)]
        # Where latency keeps no port, nothing is gained by travelling together.
        if any(channel.inter and channel.alpha > 0 and channel.latency_held for channel in topology.channels):
            tried.insert(0, Sketch("relay", ((0, 1),), offsets))
    result = []
    for sketch in tried:
        bare = logical(topology, replace(sketch, symmetry=()))
        holding = tuple(
            (offset, block)
            for offset, block in sketch.symmetry
            if offset % block and is_symmetric(bare, permutation(topology.n, offset, block))
        )
        result.append(replace(sketch, symmetry=holding))
    return tuple(result)
