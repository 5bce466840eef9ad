"""How many read requests a row costs when the threads of a device fetch it over PCIe."""

from __future__ import annotations

from functools import cache
from math import gcd

import numpy as np

from densing.core import InputError

LINE = 128
"""Most bytes that one read request returns: a cache line."""
WARP = 32
"""Threads that read together, each a consecutive number."""


@cache
def requests_per_row(width: int, *, element: int = 4, align: bool = True) -> float:
    """Return the distinct pairs of a line and a warp that a row touches, mean over the rows of a table.

    Row r begins at byte r w e; warp k reads the columns 32 k - s to 32 k + 31 - s that the row has. Without alignment
    s = 0, and a warp of a row that begins within a line straddles two; with it s = (start mod 128) / e, and no warp
    does. Rows shorter than a line, and rows that begin on one, are left as they are.

    Parameters
    ----------
    width : int
        Numbers in a row, w.
    element : int
        Bytes of one, e: 1, 2, 4 or 8.
    align : bool

    Returns
    -------
    float
        Exact: starts repeat after at most 128 rows, and a power of two divides the sum.

    Raises
    ------
    InputError
        For a width below 1, or another size of a number.

    Notes
    -----
    Source: the kernel of DGL, ``array_index_select_uvm.cuh``; the table begins on a line.

    Examples
    --------
    >>> requests_per_row(602, align=False), requests_per_row(602)
    (36.625, 19.75)
    """
    if isinstance(width, bool) or width < 1:
        raise InputError(f"width: {width!r} is not a valid number of columns; give 1 or more")
    if element not in (1, 2, 4, 8):
        raise InputError(f"element: {element!r} is not a valid number of bytes per element; give 1, 2, 4 or 8")
    size = width * element
    starts = np.arange(LINE // gcd(size, LINE)) * size % LINE
    shift = starts // element if align and size >= LINE else np.zeros_like(starts)
    warps = np.arange(-(-(width + LINE // element) // WARP))
    first = WARP * warps - shift[:, None]
    low, high = np.maximum(first, 0), np.minimum(first + WARP, width)
    lines = (starts[:, None] + high * element - 1) // LINE - (starts[:, None] + low * element) // LINE + 1
    return float(np.where(low < high, lines, 0).sum() / len(starts))
