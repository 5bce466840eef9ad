"""Averages over a group, also where there is none: a single process is a group of one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist

from densing.errors import InputError
from densing.training.distributed import comm

Waiting = Callable[[], AbstractContextManager[None]]
"""Put around every wait; see :class:`densing.training.distributed.clock.Clock`."""


class Link:
    """What a rank shares with the others of its group.

    Parameters
    ----------
    group : ProcessGroup, optional
        None: all ranks; without ``torch.distributed`` this process alone.
    waiting : callable
        Gives a context for the time in which this thread stands still.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, waiting: Waiting = nullcontext) -> None:
        self.group, self.waiting = group, waiting
        grouped = dist.is_available() and dist.is_initialized()
        if group is not None and not grouped:
            raise InputError("a process group was given, but torch.distributed is not initialised in this process")
        self.size = dist.get_world_size(group) if grouped else 1
        if self.size < 1:
            raise InputError("this rank is no member of the process group it was given")
        self.rank = dist.get_rank(group) if grouped else 0

    def start_mean(self, tensor: torch.Tensor) -> comm.Handle:
        """Start to replace ``tensor`` by its mean; it belongs to the operation until :meth:`wait`."""
        if self.size == 1:
            return comm.Handle(None)
        return comm.all_reduce(tensor, op="mean", group=self.group)

    def wait(self, handle: comm.Handle) -> None:
        """Stand still until an operation is done."""
        with self.waiting():
            handle.wait()

    def mean(self, tensor: torch.Tensor) -> comm.Handle:
        """Replace ``tensor`` by its mean; return when done."""
        handle = self.start_mean(tensor)
        self.wait(handle)
        return handle

    def copy_first(self, tensors: list[torch.Tensor]) -> None:
        """Give every rank the tensors of the group's first rank."""
        if self.size == 1:
            return
        source = dist.get_global_rank(self.group, 0) if self.group is not None else 0
        for tensor in tensors:
            # Collectives take neither truth values nor gaps between elements (convolutions in channels-last).
            whole = tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor.contiguous()
            comm.broadcast(whole, source, group=self.group).wait()
            tensor.copy_(whole)
