"""Machines as the authors of TACCL profiled them: costs of a chunk on each kind of link.

Source: the profile files shipped with the authors' code (github.com/microsoft/taccl, ``examples/topo``), read
first-hand. A file gives, per kind of link, beta and the total of a chunk on its own; alpha here is total - beta, so
that one chunk costs what the file says (its own alpha is rounded). Files of small sizes are scaled by their authors to
stay integers: only ratios between times mean something there.
"""

from __future__ import annotations

from densing.core import InputError, Record, UnknownNameError
from densing.efficiency.techniques.taccl.topology import Channel, Topology, checked


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
    pairs = _pairs(profile, size, kind)
    channels = [_within(node * size, pair, cost, kind) for node in range(nodes) for pair, cost in pairs.items()]
    ranks = range(nodes * size)
    channels += [_between(profile, size, a, b) for a in ranks for b in ranks if a // size != b // size]
    return checked(Topology(f"{name} {nodes}x{size}", nodes * size, size, tuple(channels), SOURCE))


def _pairs(profile: Profile, size: int, kind: str) -> dict[tuple[int, int], tuple[float, float]]:
    fast, slow = profile.intra[0], profile.intra[-1]
    if kind == "cube":
        both = dict.fromkeys(_DOUBLE, fast) | dict.fromkeys(_SINGLE, slow)
        return both | {(b, a): cost for (a, b), cost in both.items()}
    if kind not in ("switch", "full"):
        raise UnknownNameError("wiring", kind, ("cube", "full", "switch"))
    return {(a, b): fast for a in range(size) for b in range(size) if a != b}


def _within(base: int, pair: tuple[int, int], cost: tuple[float, float], kind: str) -> Channel:
    a, b = base + pair[0], base + pair[1]
    ports = (f"switch.{a}.out", f"switch.{b}.in") if kind == "switch" else ()
    return Channel(a, b, round(cost[1] - cost[0], 9), cost[0], ports)


def _between(profile: Profile, size: int, a: int, b: int) -> Channel:
    share = -(-size // profile.nics)
    out, into = (f"nic.{r // size}.{r % size // share}" for r in (a, b))
    beta, total = profile.inter
    return Channel(a, b, round(total - beta, 9), beta, (out + ".out", into + ".in"), inter=True)
