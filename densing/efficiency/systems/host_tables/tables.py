"""A table of rows in the host's memory, or on its disk where it is larger than that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from densing.core import InputError
from densing.jobs import available_memory_gb

Rows = NDArray[np.float32]
SHARE = 0.5
"""Share of the free memory above which a table stays on disk."""


class HostTable:
    """Rows of 32-bit numbers, one after another.

    Parameters
    ----------
    rows : float32 (n, width)
        Contiguous by rows.
    mapped : bool
        Whether they are on the disk, and come to memory as they are read.

    Raises
    ------
    InputError
        For anything else than rows of 32-bit numbers that follow one another.

    Examples
    --------
    >>> table = HostTable(np.arange(6, dtype=np.float32).reshape(3, 2))
    >>> into = np.empty((2, 2), np.float32)
    >>> table.gather(np.array([2, 0]), into)
    >>> into.tolist()
    [[4.0, 5.0], [0.0, 1.0]]
    """

    def __init__(self, rows: Rows, *, mapped: bool = False, name: str = "table") -> None:
        if rows.ndim != 2 or 0 in rows.shape:
            raise InputError(f"{name}: shape {rows.shape} has no rows; give a table of at least one row and one column")
        if rows.dtype != np.float32:
            raise InputError(f"{name}: numbers are {rows.dtype}; give float32")
        if not rows.flags.c_contiguous:
            raise InputError(f"{name}: rows are not contiguous in memory; pass it through numpy.ascontiguousarray")
        self.rows, self.mapped, self.name = rows, mapped, name

    def gather(self, ids: NDArray[np.int64], into: Rows) -> None:
        """Write rows into a buffer, in the order of their numbers.

        Raises
        ------
        InputError
            For a number that no row has.
        """
        if len(ids) and (ids.min() < 0 or ids.max() >= len(self.rows)):
            beyond = ids.max() if ids.max() >= len(self.rows) else ids.min()
            raise InputError(
                f"{self.name}: row {beyond} is outside a table of {len(self.rows):,} rows; rows count from 0"
            )
        # Numbers are checked: any other mode than "raise" writes straight into the buffer.
        np.take(self.rows, ids, axis=0, out=into, mode="clip")


def open_table(path: str | Path) -> HostTable:
    """Open a ``.npy`` file: in memory where it takes less than half of what is free, else mapped.

    Raises
    ------
    InputError
        For a file that cannot be read, and as :class:`HostTable`.
    """
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: not a readable table ({error}); give a .npy file of float32 rows") from error
    if not isinstance(rows, np.memmap):
        raise InputError(f"{path}: holds several arrays; give a .npy file with one")
    mapped = rows.nbytes > SHARE * 1e9 * available_memory_gb()
    checked = HostTable(rows, mapped=True, name=str(path))
    return checked if mapped else HostTable(np.array(rows), name=str(path))
