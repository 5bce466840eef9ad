"""Symmetry as fewer variables: what a symmetry maps on one another is one variable, not many with equality rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densing.core import InputError
from densing.efficiency.techniques.taccl.demand import Demand
from densing.efficiency.techniques.taccl.topology import Topology

Labels = NDArray[np.int64]


class Classes:
    """Classes of (chunk, channel), (chunk, rank), channels and chunks under a sketch's symmetries.

    Parameters
    ----------
    topology : Topology
    wanted : Demand
    symmetries : sequence of tuple of int
        Each what every rank becomes; a symmetry that the collective does not have (a broadcast's root) is left out.

    Attributes
    ----------
    sent : int64 (chunks, channels)
    at : int64 (chunks, ranks)
    channel : int64 (channels,)
    chunk : int64 (chunks,)
        Class numbers.
    """

    def __init__(self, topology: Topology, wanted: Demand, symmetries: Sequence[tuple[int, ...]]) -> None:
        number = {(c.src, c.dst): i for i, c in enumerate(topology.channels)}
        channels, chunks = len(topology.channels), wanted.chunks
        maps: list[tuple[Labels, Labels, Labels]] = []
        for ranks in symmetries:
            image = wanted.image(ranks)
            if image is not None:
                try:
                    link = [number[ranks[c.src], ranks[c.dst]] for c in topology.channels]
                except KeyError:
                    raise InputError(f"topology {topology.name!r} does not have the symmetry {ranks}") from None
                maps.append((np.array(image), np.array(link, np.int64), np.array(ranks)))
        self.sent = _joined([image[:, None] * channels + link for image, link, _ in maps], (chunks, channels))
        self.at = _joined([image[:, None] * topology.n + rank for image, _, rank in maps], (chunks, topology.n))
        self.channel = _joined([link for _, link, _ in maps], (channels,))
        self.chunk = _joined([image for image, _, _ in maps], (chunks,))


def _joined(images: Sequence[Labels], shape: tuple[int, ...]) -> Labels:
    """Number the orbits of some maps on ``0 .. size-1``, in order of their first members."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = int(np.prod(shape))
    if not images or not size:
        return np.arange(size, dtype=np.int64).reshape(shape)
    to = np.concatenate([image.ravel() for image in images])
    start = np.tile(np.arange(size), len(images))
    graph: Any = coo_array((np.ones(len(to), np.int8), (start, to)), shape=(size, size))
    labels = connected_components(graph, directed=False)[1]
    first = np.unique(labels, return_inverse=True)[1]
    return np.asarray(first, np.int64).reshape(shape)
