"""Optimal cuts of a chain of layers over a row of devices: least step, or least maximum over stages and edges.

    stage i, layers k to l:  sum(work[k:l]) / speed[i]      edge i, cut before layer l:  crossing[i, l]

A step of M micro-batches takes ``sum + (M - 1) * maximum`` of these. Of very many, the cuts with the least maximum, and
of these the least sum: the first micro-batch is through soonest.

Source: FusionLLM (OP-Fence), arXiv 2410.12707, reconstructed from summaries: its body was not read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from densing.core import InputError

Float = NDArray[np.float64]


class Cuts(NamedTuple):
    """Cuts of a chain and their times.

    Attributes
    ----------
    first : tuple of int
        First layer of each stage after the first.
    slowest : float
        Seconds of the slowest stage or edge.
    through : float
        Seconds of all stages and edges, one after the other.
    """

    first: tuple[int, ...]
    slowest: float
    through: float

    def step(self, micro_batches: int) -> float:
        """Return the seconds of a step, where no edge competes with another (reconstructed).

        Examples
        --------
        >>> Cuts((2,), 1.0, 3.0).step(5)
        7.0
        """
        return self.through + (micro_batches - 1) * self.slowest


def best_cuts(
    work: Sequence[float],
    speed: Sequence[float],
    crossing: ArrayLike | None = None,
    need: ArrayLike | None = None,
    room: float = math.inf,
    *,
    micro_batches: int | None = None,
) -> Cuts:
    """Return the cuts with the shortest step, or of least maximum, and of these of least sum; every stage has a layer.

    Dynamic programming over stages: O(p L²) for p devices and L layers; for a step once for every maximum that may pay.

    Parameters
    ----------
    work : sequence of float, (L,)
        Seconds of each layer at speed 1.
    speed : sequence of float, (p,)
        Of the devices, in the order of the stages.
    crossing : array, (p - 1, L + 1), optional
        Seconds of edge i where layer l is the first one beyond it. A chain whose activations differ is so cut where
        they are small; a transformer's are all equal.
    need : array, (p, L + 1, L + 1), optional
        Bytes of layers k to l as stage i.
    room : float
        Bytes of a device.
    micro_batches : int, optional
        Of a step; None: so many that only the maximum counts.

    Raises
    ------
    InputError
        For more stages than layers, a speed that is not above 0, seconds below 0, and where no cut fits.

    Examples
    --------
    >>> best_cuts([1, 1, 1, 1, 4], [1.0, 2.0])
    Cuts(first=(2,), slowest=3.0, through=5.0)
    >>> best_cuts([1, 1, 1, 1, 4], [1.0, 2.0], micro_batches=1)
    Cuts(first=(1,), slowest=3.5, through=4.5)
    """
    seconds, between = _table(work, speed, crossing, need, room)
    stages, ends = len(seconds), seconds.shape[1]
    # By the layers before a stage: the least maximum of all until there.
    least = [np.where(np.arange(ends) == 0, 0.0, math.inf)]
    for stage in range(stages):
        before = np.maximum(least[-1], between[stage])
        least.append(np.maximum(before[:, None], seconds[stage]).min(axis=0))
    slowest = float(least[-1][-1])
    if not math.isfinite(slowest):
        raise InputError(
            f"no cut of {len(work)} layers over {stages} devices fits: it would exceed some device's memory, or use a "
            "link without bandwidth; use more devices, or recompute activations"
        )
    found = _least_sum(seconds, between, slowest)
    if micro_batches is None:
        return found
    # A slower stage pays where it shortens the sum by more; the sum is never less than without any limit.
    least_sum = _least_sum(seconds, between, math.inf).through
    limits = np.unique(np.concatenate([seconds, between[:, None]], axis=1))
    for limit in limits[(limits > slowest) & np.isfinite(limits)].tolist():
        if least_sum + (micro_batches - 1) * limit >= found.step(micro_batches):
            break
        found = min(found, _least_sum(seconds, between, limit), key=lambda cuts: cuts.step(micro_batches))
    return found


def _least_sum(seconds: Float, between: Float, limit: float) -> Cuts:
    """Return the cuts of least sum with no stage and no edge slower than a limit."""
    ends = seconds.shape[1]
    through, chosen = [np.where(np.arange(ends) == 0, 0.0, math.inf)], []
    for stage in range(len(seconds)):
        allowed = np.maximum(seconds[stage], between[stage][:, None]) <= limit
        total = np.where(allowed, through[-1][:, None] + between[stage][:, None] + seconds[stage], math.inf)
        chosen.append(total.argmin(axis=0))
        through.append(total.min(axis=0))
    at, first = ends - 1, []
    for best in chosen[::-1]:
        at = int(best[at])
        first.append(at)
    return _cuts(tuple(first[-2::-1]), seconds, between)._replace(through=float(through[-1][-1]))


def every_cut(
    work: Sequence[float],
    speed: Sequence[float],
    crossing: ArrayLike | None = None,
    need: ArrayLike | None = None,
    room: float = math.inf,
) -> list[Cuts]:
    """Yield the times of all cuts that fit: the brute-force reference for :func:`best_cuts`.

    Examples
    --------
    >>> [cuts.slowest for cuts in every_cut([1, 1, 4], [1.0, 2.0])]
    [2.5, 2.0]
    """
    table = _table(work, speed, crossing, need, room)
    found = [_cuts(first, *table) for first in combinations(range(1, len(work)), len(speed) - 1)]
    return [cuts for cuts in found if math.isfinite(cuts.slowest)]


def cut_at(
    first: Sequence[int], work: Sequence[float], speed: Sequence[float], crossing: ArrayLike | None = None
) -> Cuts:
    """Return the times of given cuts, regardless of memory.

    Examples
    --------
    >>> cut_at([3], [1, 1, 1, 1, 4], [1.0, 2.0])
    Cuts(first=(3,), slowest=3.0, through=5.5)
    """
    return _cuts(first, *_table(work, speed, crossing, None, math.inf))


def _cuts(first: Sequence[int], seconds: Float, between: Float) -> Cuts:
    ends = pairwise((0, *first, seconds.shape[1] - 1))
    stages = [float(seconds[stage, begin, end]) for stage, (begin, end) in enumerate(ends)]
    edges = [float(between[stage, cut]) for stage, cut in enumerate(first, 1)]
    return Cuts(tuple(first), max(stages + edges), sum(stages) + sum(edges))


def _table(
    work: Sequence[float], speed: Sequence[float], crossing: ArrayLike | None, need: ArrayLike | None, room: float
) -> tuple[Float, Float]:
    """Seconds of stage i with layers k to l (endless: none, or they do not fit), and of the edge before it."""
    layers, stages = len(work), len(speed)
    if not 1 <= stages <= layers:
        raise InputError(f"{stages} stages for {layers} layers; give from 1 to the number of layers")
    for device, value in enumerate(speed):
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"speed of device {device}: {value} is not a finite number above 0; leave the device out")
    for layer, value in enumerate(work):
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"work of layer {layer}: {value} is not a finite time of 0 or more")
    done = np.concatenate(([0.0], np.cumsum(np.asarray(work, np.float64))))
    spans = np.where(np.arange(layers + 1)[:, None] < np.arange(layers + 1), done - done[:, None], math.inf)
    seconds = spans / np.asarray(speed, np.float64)[:, None, None]
    if need is not None:
        bytes_ = np.asarray(need, np.float64)
        for device in range(stages):
            one = min(float(bytes_[device, layer, layer + 1]) for layer in range(layers))
            if one > room:
                raise InputError(
                    f"device {device}: one layer needs {one / 1e9:,.1f} GB and it has {room / 1e9:,.1f} GB; leave it "
                    "out, recompute activations or make micro-batches smaller"
                )
        seconds = np.where(bytes_ <= room, seconds, math.inf)
    between = np.zeros((stages, layers + 1))
    if crossing is not None and stages > 1:
        between[1:] = np.asarray(crossing, np.float64)
        if np.isnan(between).any() or (between < 0).any():
            raise InputError("crossing: the seconds of an edge must be 0 or more")
    return seconds, between
