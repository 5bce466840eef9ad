"""What took the time, by name; and which names no rule knows."""

from __future__ import annotations

import numpy as np

from densing.core import Record
from densing.efficiency.timeline.spans import Kind, Spans, blocks


class NameTotal(Record, frozen=True):
    """All spans of one name: how many, and the sum of their durations (not of their union), nanoseconds."""

    name: str
    kind: str
    count: int
    total_ns: int


def totals(work: Spans) -> list[NameTotal]:
    """Return one row per name and kind, the longest first.

    Examples
    --------
    >>> work = Spans.build([{"start": 0, "end": 5, "kind": Kind.COMPUTE, "name": "gemm"},
    ...                     {"start": 7, "end": 9, "kind": Kind.COMPUTE, "name": "gemm"}])
    >>> totals(work)
    [NameTotal(name='gemm', kind='compute', count=2, total_ns=7)]
    """
    if not len(work):
        return []
    counts = np.zeros(len(work.names) * len(Kind), np.int64)
    sums = np.zeros(len(counts), np.int64)
    for part in blocks(len(work)):
        key = work.name[part].astype(np.int64) * len(Kind) + work.kind[part]
        counts += np.bincount(key, minlength=len(counts))
        np.add.at(sums, key, work.end[part] - work.start[part])
    keys = np.flatnonzero(counts)
    rows = [
        NameTotal(work.names[k // len(Kind)], Kind(k % len(Kind)).name.lower(), int(count), int(total))
        for k, count, total in zip(keys.tolist(), counts[keys], sums[keys], strict=True)
    ]
    return sorted(rows, key=lambda row: (-row.total_ns, row.name))
