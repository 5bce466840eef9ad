"""A communication sketch: what a person tells the synthesiser, so that the search is small.

Source: TACCL (arXiv 2111.04867): logical links and relays, symmetry offsets, size of the input's chunks, policy of
switches; the sketches NDv2 sk-1 and sk-2 and DGX-2 sk-1 and sk-2 as shipped with the authors' code.
"""

from __future__ import annotations

from msgspec.structs import replace

from densing.core import InputError, Record
from densing.efficiency.techniques.taccl.topology import Topology, checked


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
    if any(not 0 <= place < topology.per_node for pair in sketch.relays for place in pair):
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
                f"sketch {sketch.name!r}: topology {topology.name!r} looks different after the symmetry "
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
    there = {(c.src, c.dst): c for c in other.channels}
    names: dict[str, str] = {}
    for channel in one.channels:
        image = there.get((ranks[channel.src], ranks[channel.dst]))
        same = image is not None and replace(image, src=channel.src, dst=channel.dst, ports=channel.ports) == channel
        if image is None or not same or len(image.ports) != len(channel.ports):
            return False
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
    whole = ((size, topology.n), (1, size)) if topology.nodes > 1 else ((1, topology.n),)
    aligned = tuple((place, place) for place in range(size)) if topology.nodes > 1 else ()
    tried = [Sketch("direct", symmetry=whole)]
    if topology.nodes > 1 and size > 1:
        tried = [Sketch("aligned", aligned, whole)]
        # Where latency keeps no port, nothing is gained by travelling together.
        if any(channel.inter and channel.alpha > 0 and channel.latency_held for channel in topology.channels):
            tried.insert(0, Sketch("relay", ((0, 1),), whole))
    return tuple(replace(one, symmetry=_holding(topology, one)) for one in tried)


def _holding(topology: Topology, sketch: Sketch) -> tuple[tuple[int, int], ...]:
    bare = logical(topology, replace(sketch, symmetry=()))
    return tuple(
        (offset, block)
        for offset, block in sketch.symmetry
        if offset % block and is_symmetric(bare, permutation(topology.n, offset, block))
    )
