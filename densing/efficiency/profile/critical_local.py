"""A rank's own critical path as input of the run's: its time by kind, and which collectives held it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from densing.efficiency.profile.critical import Local
from densing.efficiency.timeline import PATH_KINDS, CriticalPath, Int


def local_of(paths: Mapping[int, CriticalPath], offsets: Mapping[int, int] | None = None) -> Local:
    """Return the split of a rank's own time by its own critical path.

    Parameters
    ----------
    paths : mapping of rank to CriticalPath
    offsets : mapping of rank to int, optional
        Nanoseconds that the common clock is ahead of the rank's: common = own + offset.
    """
    shift = offsets or {}
    prepared: dict[int, tuple[Int, Int]] = {}

    def local(rank: int, start: int, end: int) -> dict[str, int]:
        path = paths[rank]
        if rank not in prepared:
            by_kind = (path.end - path.start)[:, None] * (path.kind[:, None] == np.arange(len(PATH_KINDS)))
            prepared[rank] = (path.end, np.concatenate((np.zeros((1, len(PATH_KINDS)), np.int64), by_kind.cumsum(0))))
        moments = np.array([start, end], np.int64) - shift.get(rank, 0)
        ends, sums = prepared[rank]
        at = np.searchsorted(ends, moments, side="right")
        total = sums[at].copy()
        for row, (index, moment) in enumerate(zip(at.tolist(), moments.tolist(), strict=True)):
            if index < len(ends):
                total[row, path.kind[index]] += max(moment - int(path.start[index]), 0)
        return {kind: ns for kind, ns in zip(PATH_KINDS, (total[1] - total[0]).tolist(), strict=True) if ns}

    return local


def blocking(path: CriticalPath, begins: Int, ends: Int) -> NDArray[np.bool_]:
    """Return which of a rank's collectives its own critical path leads through.

    Parameters
    ----------
    path : CriticalPath
        Of the rank, on its own clock.
    begins, ends : int64 (n,)
        On the same clock.
    """
    chosen = path.kind == PATH_KINDS.index("communication")
    start, end = path.start[chosen], path.end[chosen]
    return np.asarray(np.searchsorted(end, begins, side="right") < np.searchsorted(start, ends, side="left"))
