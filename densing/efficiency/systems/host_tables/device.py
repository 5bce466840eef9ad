"""Ways of a device to rows in the host's memory: index and copy, page-locked staging, reads by its own threads.

Not run by us so far: there was no device at hand.
"""

from __future__ import annotations

import torch
from torch import Tensor

from densing.core import InputError
from densing.efficiency.systems.host_tables import kernel
from densing.efficiency.systems.host_tables.tables import HostTable

WAYS = ("host-gather", "pinned-gather", "zero-copy")


def no_device() -> str:
    """Return why a device cannot be used here; empty where it can."""
    if not torch.cuda.is_available():
        return "torch finds none"
    return "" if kernel.PRESENT else "its kernel needs Triton: pip install triton"


class Fetch:
    """Rows of a table on a device.

    Parameters
    ----------
    table : HostTable
    way : {"host-gather", "pinned-gather", "zero-copy"}
    most : int
        Rows at once.
    align : bool
        Of ``zero-copy``.

    Raises
    ------
    InputError
        For a table that is mapped from the disk, which a device cannot read by itself.
    """

    def __init__(self, table: HostTable, way: str, most: int, align: bool = True) -> None:
        if table.mapped and way == "zero-copy":
            raise InputError(
                f"{table.name}: larger than memory, and a device can only read page-locked memory; use host-gather"
            )
        self.way, self.align, self.host = way, align, table
        self.rows = torch.from_numpy(table.rows)
        if way == "zero-copy":
            self.rows = self.rows.pin_memory()
        if way == "pinned-gather":
            self.staging = torch.empty(most, self.rows.shape[1], pin_memory=True)

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the rows of some numbers (int64, on the host), once they are on the device."""
        if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < len(self.rows)):
            raise InputError(
                f"{self.host.name}: some rows are outside a table of {len(self.rows):,} rows; rows count from 0"
            )
        if self.way == "host-gather":
            rows = self.rows.index_select(0, ids).to("cuda")
        elif self.way == "pinned-gather":
            staged = self.staging[: len(ids)]
            torch.index_select(self.rows, 0, ids, out=staged)
            rows = staged.to("cuda", non_blocking=True)
        else:
            rows = torch.empty(len(ids), self.rows.shape[1], device="cuda")
            kernel.read_rows(self.rows, ids.to("cuda"), rows, align=self.align)
        torch.cuda.synchronize()
        return rows
