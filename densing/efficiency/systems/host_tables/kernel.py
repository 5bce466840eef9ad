"""A kernel in which threads of a device read rows of page-locked host memory, beginning at lines of 128 bytes.

Not run by us so far: there was no device at hand. Source: the loop of DGL's ``IndexSelectMultiKernelAligned``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError:
    triton = None

LINE = 32
"""Four-byte numbers in a cache line."""
THREADS = 128

PRESENT = triton is not None
"""Whether Triton is installed: it comes with torch's builds for CUDA."""

if PRESENT:

    @triton.jit  # type: ignore[untyped-decorator]
    def _read_rows(table: Any, ids: Any, into: Any, width: Any, align: tl.constexpr, threads: tl.constexpr) -> None:
        place = tl.program_id(0).to(tl.int64)
        start = tl.load(ids + place) * width
        shift = start % 32 if align else start * 0
        for begin in range(0, width + shift, threads):
            column = begin + tl.arange(0, threads) - shift
            there = (column >= 0) & (column < width)
            tl.store(into + place * width + column, tl.load(table + start + column, mask=there), mask=there)


def read_rows(table: Tensor, ids: Tensor, into: Tensor, *, align: bool = True) -> None:
    """Fill a buffer on the device with rows that the device reads from the host's memory.

    Parameters
    ----------
    table : float32 (n, width)
        Page-locked, on the host, contiguous.
    ids : int64 (m,)
        On the device; each from 0 to n - 1.
    into : float32 (m, width)
        On the device.
    align : bool
        Begin at a line; rows shorter than one are read as they lie.
    """
    width = table.shape[1]
    with torch.cuda.device(into.device):
        _read_rows[(len(ids),)](table, ids, into, width, align and width >= LINE, THREADS)
