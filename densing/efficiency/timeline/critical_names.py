"""Names for the host's part of a critical path: the range that ran at each moment."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from densing.efficiency.timeline.intervals import distinct
from densing.efficiency.timeline.launches import named
from densing.efficiency.timeline.meanwhile import step_mark
from densing.efficiency.timeline.nesting import Segments, innermost
from densing.efficiency.timeline.spans import Kind, Spans, used

Table = NDArray[np.int64]


def host_names(
    table: Table, names: tuple[str, ...], host: Spans, kind: int, first_lane: int
) -> tuple[Table, tuple[str, ...]]:
    """Cut unnamed host segments where ranges begin and end, and name the pieces.

    Parameters
    ----------
    table : int64 (n, 5)
        Start, end, kind, lane, name of disjoint segments in order of time.
    names : tuple of str
        The last one is empty: the name of segments to be named.
    host : Spans
    kind : int
        Which kind is the host's.
    first_lane : int
        Number of the host's first lane.

    Returns
    -------
    table, names
        The same time in at least as many segments; the host's names stand after the others.
    """
    ranges = host.take(np.isin(host.kind, (int(Kind.ANNOTATION), int(Kind.OP))) & ~named(host, step_mark))
    plain = len(names) - 1
    open_rows = (table[:, 2] == kind) & (table[:, 4] == plain)
    pieces = [table[~open_rows]]
    for lane in used(table[open_rows, 3]):
        own = ranges.take(ranges.lane == lane - first_lane)
        found = innermost(own.start, own.end)
        pieces.append(_cut(table[open_rows & (table[:, 3] == lane)], found, own.name, plain))
    merged = np.concatenate(pieces)
    return merged[np.argsort(merged[:, 0], kind="stable")], (*names, *host.names)


def _cut(rows: Table, found: Segments, name: NDArray[np.int32], plain: int) -> Table:
    """Split rows of one lane at the boundaries of the ranges."""
    moments = distinct(np.concatenate((rows[:, 0], rows[:, 1], found.start, found.end)))
    left, right = moments[:-1], moments[1:]
    row = np.searchsorted(rows[:, 0], left, side="right") - 1
    inside = (row >= 0) & (left < rows[row, 1])
    left, right, row = left[inside], right[inside], row[inside]
    named_by = np.full(len(left), plain, np.int64)
    if len(found.start):
        at = np.searchsorted(found.start, left, side="right") - 1
        covered = (at >= 0) & (left < found.end[at])
        named_by[covered] = plain + 1 + name[found.which[at[covered]]]
    return np.column_stack((left, right, rows[row, 2], rows[row, 3], named_by))
