"""What took the time, by name; and which names no rule knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from densing.timeline.spans import Kind, Spans


@dataclass(frozen=True)
class NameTotal:
    """All spans of one name: how many, and the sum of their durations (not of their union), nanoseconds."""

    name: str
    kind: str
    count: int
    total_ns: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NameTotal:
        """Rebuild what :meth:`to_dict` gave."""
        return cls(data["name"], data["kind"], data["count"], data["total_ns"])


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
    key = work.name.astype(np.int64) * len(Kind) + work.kind
    keys, position = np.unique(key, return_inverse=True)
    counts = np.bincount(position)
    sums = np.zeros(len(keys), np.int64)
    np.add.at(sums, position, work.end - work.start)
    rows = [
        NameTotal(work.names[k // len(Kind)], Kind(k % len(Kind)).name.lower(), int(count), int(total))
        for k, count, total in zip(keys.tolist(), counts, sums, strict=True)
    ]
    return sorted(rows, key=lambda row: (-row.total_ns, row.name))
