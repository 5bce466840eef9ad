"""Sums over the tensor-parallel group: started, landed, counted; and the two conjugate edges for plain autograd."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from densing.efficiency.parallel.distributed import comm


class Flight:
    """A tensor that is being summed over the group; ``land`` waits for it."""

    def __init__(self, exchange: Exchange, tensor: Tensor) -> None:
        self._exchange, self._tensor = exchange, tensor
        self._handle = None if exchange.alone else comm.all_reduce(tensor, group=exchange.group)

    def land(self) -> Tensor:
        """Return the sum, of the tensor's shape; may be called again."""
        if self._handle is not None:
            with self._exchange.waiting():
                self._handle.wait()
            self._exchange.seconds += self._handle.seconds or 0.0
            self._handle = None
        return self._tensor


class Exchange:
    """All-reduces of one tensor-parallel group.

    Parameters
    ----------
    group : ProcessGroup, optional
        Default: all ranks.
    waiting : callable
        Gives a context in which the thread stands still for communication (``Clock.waiting``).
    alone : bool
        The group is this rank only: nothing is sent, and no process group is needed.

    Attributes
    ----------
    count, bytes : int
        All-reduces started, and bytes of their buffers.
    seconds : float
        From start to completion of those that landed, one added to the other.
    """

    def __init__(
        self,
        group: Any = None,
        waiting: Callable[[], AbstractContextManager[Any]] = nullcontext,
        *,
        alone: bool = False,
    ) -> None:
        self.group, self.waiting, self.alone = group, waiting, alone
        self.count = self.bytes = 0
        self.seconds = 0.0

    def start(self, tensor: Tensor) -> Flight:
        """Begin to sum a tensor over the group, in place where it is contiguous."""
        tensor = tensor.contiguous()
        if not self.alone:
            self.count += 1
            self.bytes += tensor.numel() * tensor.element_size()
        return Flight(self, tensor)

    def enter(self, x: Tensor) -> Tensor:
        """Return ``x``; its gradient is summed over the group (f of arXiv 1909.08053, section 3)."""
        return _Enter.apply(x, self)

    def leave(self, x: Tensor) -> Tensor:
        """Return ``x`` summed over the group; its gradient passes as it is (g of arXiv 1909.08053, section 3)."""
        return _Leave.apply(x, self)


class _Enter(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.exchange.start(gradient.clone()).land(), None


class _Leave(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(_: Any, x: Tensor, exchange: Exchange) -> Tensor:
        return exchange.start(x.clone()).land()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
