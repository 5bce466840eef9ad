"""Sizes of packets, and the share of a tensor they keep; without torch, for plans."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from densing.core import InputError

INDEX_BYTES = 4
"""Bytes of an index; tensors of 2**31 elements and more are refused."""
COUNT_BYTES = 4
"""Bytes of the number of entries at the start of a sparse packet."""
VALUE_BYTES = 4
LENGTH_BYTES = 8
"""Bytes of the message that announces a packet's length, for codecs whose packets vary."""
DENSE_BELOW = 256
"""Elements below which a tensor is sent whole. Source: the one third-party implementation of arXiv 2010.08899."""
WORTH = 2.0
"""A value and its index weigh twice a value: of an edge's compression, less than so much saves nothing."""


def kept(count: int, share: float) -> int:
    """Return the number of entries in a share of a tensor, at least one if it has any.

    Examples
    --------
    >>> kept(1000, 0.01), kept(10, 0.01), kept(0, 0.5)
    (10, 1, 0)
    """
    return min(count, max(1, round(share * count))) if count else 0


def index_bytes(count: int, entries: int) -> int:
    """Return the bytes that say which entries are sent: their indices, or a bit per element if that is smaller.

    Examples
    --------
    >>> index_bytes(3200, 100), index_bytes(3200, 101)
    (400, 400)
    """
    return min(INDEX_BYTES * entries, -(-count // 8))


def sparse_bytes(count: int, entries: int, value_bytes: int = VALUE_BYTES) -> int:
    """Return the bytes of a sparse packet of ``entries`` of ``count`` elements.

    Examples
    --------
    >>> sparse_bytes(100_000, 1000)
    8004
    """
    return COUNT_BYTES + index_bytes(count, entries) + value_bytes * entries


def sparse_share(share: float) -> float:
    """Return the bytes of a sparse packet over those of all values, where a share of a large tensor is sent.

    Examples
    --------
    >>> [sparse_share(share) for share in (0.01, 0.5, 1.0)]
    [0.02, 0.53125, 1.03125]
    """
    return share + min(share * INDEX_BYTES, 1 / 8) / VALUE_BYTES


def gather_crossover(share: float) -> float:
    """Return the number of ranks beyond which gathering sparse packets sends more than a ring's sum of dense gradients.

    A gather hands on (n - 1) packets, a ring sends 2 (n - 1) / n gradients: n = 2 over the packet's share.

    Examples
    --------
    >>> gather_crossover(0.01), round(gather_crossover(0.056), 1)
    (100.0, 22.9)
    """
    return 2 / sparse_share(share)


def factors(shape: Sequence[int], rank: int) -> int:
    """Return the elements that PowerSGD sends of a tensor: two factors of a matrix if these are smaller, else all.

    Source: arXiv 1905.13727, algorithm 1; as torch's hook decides with its default ``min_compression_rate`` of 2.

    Examples
    --------
    >>> factors((100, 50), 2), factors((50,), 2), factors((2, 2), 1)
    (300, 50, 4)
    """
    count = math.prod(shape)
    if len(shape) < 2:
        return count
    rows, columns = shape[0], count // max(1, shape[0])
    thin = (rows + columns) * rank
    return thin if thin * 2 < count else count


def edge_shares(seconds: Sequence[float], ratio: float) -> list[float]:
    """Return the share of the entries that each edge of a pipeline keeps: r_e = max(1, r T_e / max T), kept 1 / r_e.

    An edge whose r_e is below 2 sends everything: values and indices would weigh as much.

    Source: AdaTopK of arXiv 2410.12707, reconstructed from summaries; the formula itself is not published where we can
    read it.

    Raises
    ------
    InputError
        When the ratio is below 1 or no number.

    Examples
    --------
    >>> edge_shares([0.1, 0.001, 0.01], 100)
    [0.01, 1.0, 0.1]
    """
    if not (math.isfinite(ratio) and ratio >= 1):
        raise InputError(f"r={ratio!r}: must be a ratio of at least 1; 1 means no compression")
    slowest = max(seconds, default=0.0)
    ratios = [max(1.0, ratio * each / slowest) if slowest > 0 else 1.0 for each in seconds]
    return [1 / each if each >= WORTH else 1.0 for each in ratios]


WHOLE_PASSES: Mapping[str, tuple[float, float]] = {"dense": (1.5, 1.0), "half": (2.0, 1.0), "int8": (3.0, 1.5)}
REACH_PASSES = 16.0
CHOOSE_PASSES = 50.0
SPREAD_PASSES = 80.0
ADD_PASSES = 3.0
"""What codecs take on a processor, in times that a tensor's bytes pass its memory at the speed at which AdamW moves
weights and moments (what ``densing calibrate`` measures of it): packing and unpacking every element, by codec; what
reaches a threshold that is known; choosing the largest anew; per share of the entries, putting them into their places;
and adding what was unpacked to a sum.

Measured by ``benchmarks/codecs.py`` on one core of a shared server processor (12 to 25 GB/s in the update; torch 2.13,
tensors of 33 thousand to 524 thousand float32, shares of .01 to .2): choosing 11 to 96 passes, a known threshold 7 to
27, unpacking 0.5 to 21. On another device they will be others."""


def encode_passes(share: float, refresh: int = 1) -> float:
    """Return the passes over memory of encoding, where the largest are chosen anew every ``refresh`` packets.

    Examples
    --------
    >>> encode_passes(0.01), encode_passes(0.01, refresh=2), encode_passes(1.0)
    (50.0, 33.0, 1.5)
    """
    return WHOLE_PASSES["dense"][0] if share >= 1 else REACH_PASSES + (CHOOSE_PASSES - REACH_PASSES) / refresh


def decode_passes(share: float) -> float:
    """Return the passes over memory of reading one packet into a tensor.

    Examples
    --------
    >>> decode_passes(0.05), decode_passes(1.0)
    (5.0, 1.0)
    """
    return WHOLE_PASSES["dense"][1] + (SPREAD_PASSES * share if share < 1 else 0.0)
