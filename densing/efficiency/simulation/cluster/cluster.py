"""What a cluster is: devices, and the links between them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from densing.core import Record


class Link(Record, frozen=True):
    """One way between two devices: ``seconds = alpha_s + bytes * beta_s_per_byte``.

    Parameters
    ----------
    alpha_s : float
        Latency of one message, seconds.
    beta_s_per_byte : float
        Seconds per byte (the inverse of the bandwidth in bytes per second).
    shared : str
        Name of what several devices of a node compete for (``nic``, ``pcie``); empty: every pair has its own.

    Examples
    --------
    >>> Link(1e-5, 1e-9).seconds(1_000_000)
    0.00101
    """

    alpha_s: float
    beta_s_per_byte: float
    shared: str = ""

    def seconds(self, count: float) -> float:
        """Return what a message of so many bytes takes."""
        return self.alpha_s + count * self.beta_s_per_byte

    def faster(self, factor: float) -> Link:
        """Return the link with so many times the bandwidth, and the same latency."""
        return replace(self, beta_s_per_byte=self.beta_s_per_byte / factor)


class Device(Record, frozen=True):
    """One accelerator (or processor).

    Parameters
    ----------
    name : str
    flops : float
        Peak floating-point operations per second at the precision of training, dense.
    mem_bw : float
        Bytes per second to and from its memory.
    memory : float
        Bytes; 0 unknown.
    efficiency : float
        Share of the peak, in (0, 1], that matrix products reach.
    mem_efficiency : float
        Share of the memory bandwidth that streaming reaches.
    measured : tuple of (float, float, float)
        Operations, bytes moved and seconds of pieces of work that were measured: small products reach a share of the
        peak that depends on their shape. Work takes what the piece most like it took, in proportion to operations.
    """

    name: str
    flops: float
    mem_bw: float
    memory: float = 0.0
    efficiency: float = 1.0
    mem_efficiency: float = 1.0
    measured: tuple[tuple[float, float, float], ...] = ()

    def seconds(self, flops: float, moved: float = 0.0) -> float:
        """Return what an operation takes: as measured, else the longer of computing and of moving its bytes (roofline).

        Examples
        --------
        >>> Device("toy", flops=1e12, mem_bw=1e9).seconds(2e12, 1e9)
        2.0
        >>> Device("toy", flops=1e12, mem_bw=1e9, measured=((1e9, 1e6, 0.1), (8e9, 1e6, 0.2))).seconds(2e9, 1e6)
        0.2
        """
        if self.measured and flops > 0:
            return _as_measured(self.measured, flops, moved)
        return max(flops / (self.flops * self.efficiency), moved / (self.mem_bw * self.mem_efficiency))


@lru_cache(maxsize=4096)
def _as_measured(pieces: tuple[tuple[float, float, float], ...], flops: float, moved: float) -> float:
    """Scale the time of the piece that is nearest by ratios of operations and of bytes."""

    def distance(piece: tuple[float, float, float]) -> float:
        return abs(math.log(flops / piece[0])) + abs(math.log(max(moved, 1.0) / piece[1]))

    nearest = min(pieces, key=distance)
    return nearest[2] * flops / nearest[0]


class Figure(Record, frozen=True):
    """Where a figure of a preset is from.

    Parameters
    ----------
    source : str
    evidence : {"first-hand", "second-hand", "derived", "measured", "recalled"}
    """

    source: str
    evidence: str


class Cluster(Record, frozen=True):
    """Devices in nodes, nodes in sites, and a link for each level.

    Rank ``r`` is on node ``r // per_node`` and in site ``r // per_site`` (one site where ``per_site`` is 0).

    Parameters
    ----------
    name : str
    n, per_node : int
        Devices in all and per node.
    device : Device
    intra, inter : Link
        Within a node, between nodes.
    host : Link
        Between a device and its host's memory.
    per_site : int
    wide : Link, optional
        Between sites.
    kappa, kappa_comm : float
        Contention: beside communication compute runs at ``1 / (1 + kappa)`` of its speed, and communication beside
        compute at ``1 / (1 + kappa_comm)``.
    pipelined : float
        Share of a collective's latency in which another one of its group may be under way, 0 to 1. Two threads of gloo
        run a collective each, and only bytes share the wire; on a stream of a device one follows another: 0.
    speed : tuple of float
        Relative speed per rank; empty where all are equal.
    sources : mapping of str to Figure
        By field (``intra.alpha_s``): where the figure is from.
    """

    name: str
    n: int
    per_node: int
    device: Device
    intra: Link
    inter: Link
    host: Link
    per_site: int = 0
    wide: Link | None = None
    kappa: float = 0.0
    kappa_comm: float = 0.0
    pipelined: float = 0.0
    speed: tuple[float, ...] = ()
    sources: Mapping[str, Figure] = msgspec.field(default_factory=dict)

    def link(self, a: int, b: int) -> Link:
        """Return the link that joins two ranks."""
        if a // self.per_node == b // self.per_node:
            return self.intra
        if self.wide is not None and self.per_site and a // self.per_site != b // self.per_site:
            return self.wide
        return self.inter

    def change(self, **fields: object) -> Cluster:
        """Return the cluster with other fields, say ``n=16``."""
        return replace(self, **fields)
