"""Arithmetic of columns of numbers, and of sets of half-open intervals [start, end), exact in integer nanoseconds.

A set is a pair ``(starts, ends)`` of int64 arrays; a *union* is sorted and its intervals neither overlap nor touch.

``np.unique`` without an index, ``np.median`` and ``np.percentile`` load numpy's masked arrays on their first call,
which takes as long as to read a small trace: what they do is done here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]
Index = NDArray[np.int32]
BLOCK = 1 << 15


def blocks(count: int, last_first: bool = False) -> Iterator[slice]:
    """Yield slices that cut a long table into parts: what is computed of a part at a time takes no memory to speak of.

    Examples
    --------
    >>> list(blocks(40_000))
    [slice(0, 32768, None), slice(32768, 40000, None)]
    """
    starts = range(0, count, BLOCK)
    for start in reversed(starts) if last_first else starts:
        yield slice(start, min(start + BLOCK, count))


def used(codes: NDArray[Any]) -> list[int]:
    """Return which of the codes 0, 1, 2, ... occur, in order.

    Examples
    --------
    >>> used(np.array([4, 0, 4]))
    [0, 4]
    """
    codes_used: list[int] = np.flatnonzero(np.bincount(codes)).tolist()
    return codes_used


def positions(codes: NDArray[Any]) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Yield each code that occurs, in order, and the rows that have it; in time n·log n, however many codes there are.

    Examples
    --------
    >>> [(code, rows.tolist()) for code, rows in positions(np.array([4, 0, 4]))]
    [(0, [1]), (4, [0, 2])]
    """
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    cuts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    for rows in np.split(order, cuts) if len(codes) else ():
        yield int(codes[rows[0]]), rows


def distinct(moments: Int) -> Int:
    """Return moments in order, each once.

    Examples
    --------
    >>> distinct(np.array([7, 3, 7]))
    array([3, 7])
    """
    ordered = np.sort(moments)
    return ordered[np.concatenate((ordered[:1] == ordered[:1], ordered[1:] != ordered[:-1]))]


def median(values: NDArray[Any]) -> float:
    """Return the median: the mean of the two middle values of an even number.

    Examples
    --------
    >>> median(np.array([7, 1, 4, 2]))
    3.0
    """
    low = (len(values) - 1) // 2
    middle = np.partition(values, (low, len(values) // 2))
    return (float(middle[low]) + float(middle[len(values) // 2])) / 2


def quantile(values: NDArray[Any], share: float) -> float:
    """Return the quantile that splits off a share of the values, linear between neighbours.

    Examples
    --------
    >>> quantile(np.array([7, 1, 4, 2]), 0.5)
    3.0
    """
    position = share * (len(values) - 1)
    low = int(position)
    high = min(low + 1, len(values) - 1)
    ordered = np.partition(values, (low, high))
    first, last, part = ordered[low].item(), ordered[high].item(), position - low
    # As numpy rounds: from the nearer neighbour.
    return float(first + (last - first) * part if part < 0.5 else last - (last - first) * (1 - part))


Union = tuple[Int, Int]


def union(starts: Int, ends: Int) -> Union:
    """Merge intervals that overlap or touch; empty ones vanish.

    Examples
    --------
    >>> union(np.array([40, 10, 60]), np.array([80, 60, 60]))
    (array([10]), array([80]))
    """
    starts, ends = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
    filled = ends > starts
    starts, ends = starts[filled], ends[filled]
    if len(starts) == 0:
        return starts, ends
    if np.any(starts[1:] < starts[:-1]):
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    # A union's interval begins where nothing before reaches, and ends with the furthest of its members.
    reach = np.maximum.accumulate(ends)
    first = np.concatenate(([True], starts[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return starts[first], reach[last]


def length(merged: Union) -> int:
    """Return the total length of a union in nanoseconds."""
    return int((merged[1] - merged[0]).sum())


def intersect(a: Union, b: Union) -> Union:
    """Return the part that two unions share.

    Examples
    --------
    >>> intersect((np.array([10]), np.array([60])), (np.array([40]), np.array([80])))
    (array([40]), array([60]))
    """
    if len(a[0]) == 0 or len(b[0]) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    starts, ends = [], []
    for part in blocks(len(a[0])):
        start, end = a[0][part], a[1][part]
        # Intervals of b that end after one of a begins, up to those that begin before it ends: a run per interval of a.
        first = np.searchsorted(b[1], start, side="right")
        stop = np.searchsorted(b[0], end, side="left")
        count = np.maximum(stop - first, 0)
        own = np.repeat(np.arange(len(count)), count)
        other = np.arange(len(own)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
        starts.append(np.maximum(start[own], b[0][other]))
        ends.append(np.minimum(end[own], b[1][other]))
    return (starts[0], ends[0]) if len(starts) == 1 else (np.concatenate(starts), np.concatenate(ends))


def subtract(a: Union, b: Union) -> Union:
    """Return the part of ``a`` outside ``b``.

    Examples
    --------
    >>> subtract((np.array([40]), np.array([80])), (np.array([10]), np.array([60])))
    (array([60]), array([80]))
    """
    if len(a[0]) == 0:
        return a
    return intersect(a, outside(b, int(a[0][0]), int(a[1][-1])))


def outside(merged: Union, start: int, end: int) -> Union:
    """Return the gaps of a union within ``[start, end)``: before it, between its intervals and after it.

    Examples
    --------
    >>> outside((np.array([10]), np.array([60])), 0, 80)
    (array([ 0, 60]), array([10, 80]))
    """
    starts = np.concatenate((np.array([start], np.int64), merged[1]))
    ends = np.concatenate((merged[0], np.array([end], np.int64)))
    filled = ends > starts
    return (starts, ends) if filled.all() else (starts[filled], ends[filled])


def clip(merged: Union, start: int, end: int) -> Union:
    """Cut a union to ``[start, end)``."""
    return intersect(merged, (np.array([start], np.int64), np.array([end], np.int64)))


def covered(merged: Union, starts: Int, ends: Int) -> Int:
    """Return, for each interval given, how many nanoseconds of it a union covers.

    Parameters
    ----------
    merged : union
    starts, ends : int64 (n,)
        Any intervals; they may overlap.

    Returns
    -------
    int64 (n,)

    Examples
    --------
    >>> covered((np.array([10]), np.array([60])), np.array([0, 40]), np.array([20, 80]))
    array([10, 20])
    """
    return np.maximum(_before(merged, ends) - _before(merged, starts), 0)


def _before(merged: Union, moments: Int) -> Int:
    """Length of a union up to each moment."""
    if len(merged[0]) == 0:
        return np.zeros(len(moments), np.int64)
    # Length of all intervals before each, then of the part of the last one that has begun.
    total = np.concatenate(([0], np.cumsum(merged[1] - merged[0])))
    index = np.searchsorted(merged[0], moments, side="right")
    last = np.maximum(index - 1, 0)
    inside = np.clip(moments - merged[0][last], 0, merged[1][last] - merged[0][last])
    return np.where(index == 0, 0, total[last] + inside)
