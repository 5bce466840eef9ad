"""What is sent between two stages, and what it weighs; without torch, for plans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from densing.core import InputError, UnknownNameError
from densing.efficiency.simulation import sizes

CODECS = ("dense", "half", "int8", "topk", "threshold")
MARK_BYTES = 4
"""Bytes at the start of a packet that say whether all values are finite."""
SCALE_BYTES = 4


class Coding(NamedTuple):
    """What becomes of activations on an edge, and of their gradients on the way back.

    Attributes
    ----------
    codec : str
        ``dense``, ``half``, ``int8``; ``topk``: of activations and of gradients the largest of each micro-batch;
        ``threshold``: of activations those from their row's threshold up, of gradients those of the same entries.
    share : float
        Of the entries, of ``topk`` and ``threshold``: 1 sends all, without indices.
    refresh : int
        Packets between two renewals of a threshold.

    Examples
    --------
    >>> Coding("half").bytes(1000, 64), Coding("threshold", 0.05).bytes(1000, 64)
    ((128004, 128004), (20008, 12004))
    """

    codec: str = "dense"
    share: float = 1.0
    refresh: int = 1

    @property
    def sparse(self) -> bool:
        """Whether entries are left out."""
        return self.codec in ("topk", "threshold") and self.share < 1

    @property
    def drifts(self) -> bool:
        """Whether the length of activations' packets travels first, because the codec does not tell it."""
        return self.codec == "threshold" and self.sparse and self.refresh > 1

    def bytes(self, rows: int, width: int, value_bytes: int = sizes.VALUE_BYTES) -> tuple[int, int]:
        """Return what is sent of so many rows of activations, and of their gradients.

        Where a threshold is not renewed each time it is what is meant to be sent, not what will be.
        """
        count = rows * width
        if not self.sparse:
            size = {"half": 2 * count, "int8": SCALE_BYTES + count}.get(self.codec, value_bytes * count)
            return MARK_BYTES + size, MARK_BYTES + size
        if self.codec == "topk":
            size = sizes.sparse_bytes(count, sizes.kept(count, self.share), value_bytes)
            return MARK_BYTES + size, MARK_BYTES + size
        entries = rows * sizes.kept(width, self.share)
        return MARK_BYTES + sizes.sparse_bytes(count, entries, value_bytes), MARK_BYTES + value_bytes * entries

    def passes(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return the passes over memory of encoding and decoding activations, and of the same for gradients.

        Examples
        --------
        >>> Coding("threshold", 0.05).passes()
        ((50.0, 5.0), (1.5, 1.0))
        """
        if not self.sparse:
            whole = sizes.WHOLE_PASSES.get(self.codec, sizes.WHOLE_PASSES["dense"])
            return whole, whole
        decode = sizes.decode_passes(self.share)
        if self.codec == "topk":
            passes = sizes.encode_passes(self.share), decode
            return passes, passes
        # The gradients of a threshold's entries come back without their places.
        return (sizes.encode_passes(self.share, self.refresh), decode), sizes.WHOLE_PASSES["dense"]


def codings(edges: int, codec: str = "dense", shares: Sequence[float] = (1.0,), refresh: int = 1) -> list[Coding]:
    """Return what is sent over each edge of a pipeline.

    Parameters
    ----------
    edges : int
    codec : str
        One of :data:`CODECS`.
    shares : sequence of float
        Of the entries that are sent, of ``topk`` and ``threshold``: one for all edges, or one each.
    refresh : int

    Raises
    ------
    UnknownNameError
        For another codec.
    InputError
        When a share is none, or there are more or fewer than edges.

    Examples
    --------
    >>> [coding.share for coding in codings(2, "topk", (0.01, 1.0))]
    [0.01, 1.0]
    """
    if codec not in CODECS:
        raise UnknownNameError("codec", str(codec), CODECS)
    for share in shares:
        if isinstance(share, bool) or not (isinstance(share, int | float) and math.isfinite(share) and 0 < share <= 1):
            raise InputError(f"share {share!r}: must be a share of the entries, above 0 and at most 1")
    if len(shares) not in (1, edges):
        raise InputError(f"{len(shares)} shares for {edges} edges between stages; give one for all, or one per edge")
    if isinstance(refresh, bool) or not isinstance(refresh, int) or refresh < 1:
        raise InputError(f"refresh={refresh!r}: must be a positive whole number of packets")
    return [Coding(codec, share, refresh) for share in (tuple(shares) * edges if len(shares) == 1 else shares)]
