"""Forward and backward over a residual stream, module by module, so that a sum over the group can be under way in both.

Autograd would run the wait for a gradient's sum as soon as it can, which is before the module whose backward could
hide it. Here every module has a graph of its own, from what its column linears read to what its row linear gives. The
tape runs these graphs backward in the reverse of the order they were called in, and waits for a gradient's sum only
where the next graph needs it. So a schedule says only in which order modules are called and outputs are added; its
backward pass mirrors it.

The sums go through an :class:`Exchange`, which starts, lands and counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

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


class Work(Protocol):
    """One run of a module's part on this rank."""

    def output(self) -> Tensor:
        """Wait for and return the output, summed over the group."""

    def backward(self, gradient: Tensor) -> None:
        """Add to the weights' gradients, and begin to sum the input's over the group."""

    def arrived(self) -> Tensor:
        """Wait for and return the input's gradient, summed over the group."""


Start = Callable[[Exchange, Tensor], Work]


class Undivided:
    """A module's part in one piece.

    Parameters
    ----------
    exchange : Exchange
    partial : Tensor
        Its output on this rank, in the graph from ``h``.
    h : Tensor
        What it read; a leaf.
    lent : sequence of (Tensor, Tensor)
        Tensors of the graph that another module's graph reads, each with the leaf it stands there as.
    """

    def __init__(
        self, exchange: Exchange, partial: Tensor, h: Tensor, lent: Sequence[tuple[Tensor, Tensor]] = ()
    ) -> None:
        self._exchange, self._partial, self._h, self._lent = exchange, partial, h, lent
        self._flight = exchange.start(partial.detach())

    def output(self) -> Tensor:
        """Wait for and return the output, summed over the group."""
        return self._flight.land()

    def backward(self, gradient: Tensor) -> None:
        """Run the graph backward, and begin to sum the input's gradient."""
        used = [(tensor, leaf.grad) for tensor, leaf in self._lent if leaf.grad is not None]
        torch.autograd.backward([self._partial, *(t for t, _ in used)], [gradient, *(g for _, g in used)])
        self._flight = self._exchange.start(self._h.grad)

    def arrived(self) -> Tensor:
        """Wait for and return the input's gradient, summed over the group."""
        return self._flight.land()


def undivided(module: Callable[[Tensor], Tensor]) -> Start:
    """Return how to run a module in one piece."""
    return lambda exchange, h: Undivided(exchange, module(h), h)


class Residual:
    """The residual stream between two additions, ``(batch, tokens, hidden)``.

    Parameters
    ----------
    value : Tensor
    """

    def __init__(self, value: Tensor) -> None:
        self.value = value
        self.readers: list[Call] = []
        self.later: Residual | None = None
        self._gradient: Tensor | None = None

    def seed(self, gradient: Tensor) -> None:
        """Set the gradient at the stream's end."""
        self._gradient = gradient

    def gradient(self) -> Tensor:
        """Return the loss's gradient; waits for those of the modules that read the stream here."""
        if self._gradient is None:
            assert self.later is not None
            total = self.later.gradient()
            # Every reader's sum has been started by now; it is waited for only here, behind what was computed since.
            for call in self.readers:
                total = total + call.input_gradient()
            self._gradient = total
        return self._gradient


class Call:
    """One module's run: norm, local graph, and where its output is added."""

    def __init__(self, norm: Callable[[Tensor], Tensor], start: Start, source: Residual, exchange: Exchange) -> None:
        self._x = source.value.detach().requires_grad_(torch.is_grad_enabled())
        self._normed = norm(self._x)
        h = self._normed.detach().requires_grad_(torch.is_grad_enabled())
        self._work = start(exchange, h)
        self.into: Residual | None = None
        if torch.is_grad_enabled():
            source.readers.append(self)

    def output(self) -> Tensor:
        """Wait for and return the module's output."""
        return self._work.output()

    def backward(self) -> None:
        """Run the module backward; the sum of its input's gradient is under way afterwards."""
        assert self.into is not None
        self._work.backward(self.into.gradient())

    def input_gradient(self) -> Tensor:
        """Wait for the input's gradient, and take it back through the norm."""
        torch.autograd.backward(self._normed, self._work.arrived())
        gradient: Tensor = self._x.grad
        return gradient


class Tape:
    """What was called, in order.

    Parameters
    ----------
    exchange : Exchange
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._calls: list[Call] = []

    def call(self, norm: Callable[[Tensor], Tensor], start: Start, source: Residual) -> Call:
        """Run a module on the stream; its sum over the group is under way afterwards."""
        call = Call(norm, start, source, self._exchange)
        self._calls.append(call)
        return call

    def add(self, residual: Residual, call: Call | None) -> Residual:
        """Wait for a module's output, and return the stream with it; without a module, the stream."""
        if call is None:
            return residual
        later = Residual(residual.value + call.output())
        residual.later, call.into = later, later
        return later

    def clear(self) -> None:
        """Let go of what was called: streams and calls refer to each other, and hold a step's activations."""
        for call in self._calls:
            call.into = None
        self._calls.clear()

    def backward(self) -> None:
        """Run all modules backward, the last one first; the streams' ends have their gradients."""
        for call in reversed(self._calls):
            call.backward()
