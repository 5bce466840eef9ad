"""Communities of well-connected devices, and the order in which a pipeline passes through them.

Source: FusionLLM (OP-Fence), arXiv 2410.12707, reconstructed from summaries: communities of the bandwidth graph, one
after the other, so that slow links are crossed least. The paper's communities are Louvain's; ours are cut where the
bandwidths on the fastest tree over all devices fall most, which finds nodes and sites without a further library.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, permutations

import numpy as np
from numpy.typing import NDArray

from densing.core import InputError

Matrix = NDArray[np.float64]
GAP = 2.0
"""Drop in bandwidth that separates two communities of devices."""
MOST_TRIED = 7
"""Most communities whose orders are all tried; above it, the nearest remaining one comes next."""


def communities(bandwidth: Matrix) -> list[list[int]]:
    """Return the communities of well-connected devices.

    Devices are joined along the fastest tree over all of them (single linkage). Of the bandwidths of that tree in
    falling order, the largest fall parts the groups; a single group where none is by a factor of :data:`GAP`.

    Parameters
    ----------
    bandwidth : array, (n, n)
        Symmetric, from 0 up, in any unit; the diagonal does not count.

    Raises
    ------
    InputError
        When it is not such a matrix, or some devices cannot be reached from the others.

    Examples
    --------
    >>> fast, slow = 10.0, 0.1
    >>> communities(np.array([[0, fast, slow], [fast, 0, slow], [slow, slow, 0]]))
    [[0, 1], [2]]
    """
    n = len(bandwidth)
    if bandwidth.shape != (n, n) or not n or np.isnan(bandwidth).any() or (bandwidth < 0).any():
        raise InputError("bandwidth: must be a square matrix of numbers of 0 or more")
    if (bandwidth != bandwidth.T).any():
        raise InputError("bandwidth: the two directions of a pair differ; use the slower one for both")
    tree = _tree(bandwidth)
    falls = [(one[0] / other[0], place) for place, (one, other) in enumerate(pairwise(tree), 1) if other[0]]
    largest, place = max(falls, default=(1.0, 0), key=lambda fall: fall[0])
    if not largest >= GAP:
        return [list(range(n))]
    group = list(range(n))
    for _, a, b in tree[:place]:
        group = [group[a] if each == group[b] else each for each in group]
    return [[device for device in range(n) if group[device] == name] for name in dict.fromkeys(group)]


def _tree(bandwidth: Matrix) -> list[tuple[float, int, int]]:
    """Links of the fastest tree over all devices, the fastest first (Prim)."""
    n = len(bandwidth)
    nearest, by = bandwidth[0].copy(), np.zeros(n, int)
    left = set(range(1, n))
    links = []
    while left:
        device = max(sorted(left), key=lambda each: float(nearest[each]))
        if not nearest[device] > 0:
            raise InputError(
                f"bandwidth: devices {', '.join(map(str, sorted(left)))} cannot be reached from the others; leave "
                "them out or connect them"
            )
        left.remove(device)
        links.append((float(nearest[device]), int(by[device]), device))
        better = bandwidth[device] > nearest
        nearest, by = np.where(better, bandwidth[device], nearest), np.where(better, device, by)
    return sorted(links, key=lambda link: -link[0])


def orders(bandwidth: Matrix, speed: Sequence[float]) -> Iterator[tuple[int, ...]]:
    """Yield orders of the devices worth cutting a chain over, each once.

    As they are numbered; and community by community, inside a community again, so that the slowest link between two
    neighbours is as fast as can be, equal devices together, from fast to slow or from slow to fast.

    Raises
    ------
    InputError
        As :func:`communities`, and where no order that is tried avoids a link of no bandwidth.

    Examples
    --------
    >>> line = np.array([[0, 1, 9], [1, 0, 9], [9, 9, 0]], float)
    >>> list(orders(line, [1.0, 1.0, 1.0]))
    [(0, 1, 2), (0, 2, 1), (1, 2, 0)]
    """
    groups = [_arranged(bandwidth, speed, list(range(len(speed))), sign) for sign in (-1.0, 1.0)]
    found = dict.fromkeys([tuple(range(len(speed))), *map(tuple, groups), *(tuple(each[::-1]) for each in groups)])
    usable = [order for order in found if _slowest(bandwidth, [[each] for each in order]) > 0]
    if not usable:
        raise InputError("bandwidth: every order of the devices uses a link without bandwidth; leave some devices out")
    yield from usable


def _arranged(bandwidth: Matrix, speed: Sequence[float], members: list[int], sign: float) -> list[int]:
    """One community: its own communities in turn, or, where it has none, its devices."""
    groups = communities(bandwidth[np.ix_(members, members)])
    if len(groups) == 1:
        inner = [[each] for each in sorted(members, key=lambda each: sign * speed[each])]
    else:
        inner = [_arranged(bandwidth, speed, [members[each] for each in group], sign) for group in groups]

    def badness(row: Iterable[list[int]]) -> tuple[float, float]:
        listed = list(row)
        # Among orders that cross equal links, those whose speeds rise or fall; the first of these is as sorted.
        ranks = [sign * sum(speed[each] for each in group) / len(group) for group in listed]
        return -_slowest(bandwidth, listed), sum(abs(one - other) for one, other in pairwise(ranks))

    if len(inner) <= MOST_TRIED:
        inner = list(min(permutations(inner), key=badness))
    else:
        row, rest = inner[:1], inner[1:]
        while rest:
            near = max(rest, key=lambda group: float(bandwidth[row[-1][-1], group[0]]))
            row.append(near)
            rest.remove(near)
        inner = row
    return [each for group in inner for each in group]


def _slowest(bandwidth: Matrix, row: Sequence[Sequence[int]]) -> float:
    return min((float(bandwidth[one[-1], other[0]]) for one, other in pairwise(row)), default=math.inf)
