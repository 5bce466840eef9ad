"""A module whose sums over the group are started tile by tile: a software decomposition, not T3.

T3 (Pati et al., arXiv 2401.16677) triggers the reduce-scatter's stages in hardware while the producing GEMM is still
writing. What stands in for it here: the GEMM is cut into column tiles of its output, and the sum of a tile is under way
while the next tile is computed. It is done for the GEMMs T3 names: the row linear's output in forward and the column
linears' input gradient in backward. Weight gradients are computed before that, so that no other GEMM hides the sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from densing.efficiency.parallel.tensor_parallel.exchange import Exchange, Flight
from densing.efficiency.parallel.tensor_parallel.tape import Start


class Sliced(Protocol):
    """Column linears, something local, a row linear."""

    row: nn.Linear

    @property
    def columns(self) -> tuple[nn.Linear, ...]:
        """The linears that read the input."""

    def mix(self, *projected: Tensor) -> Tensor:
        """Return what the row linear reads."""


class Tiled:
    """One run of a module in ``tiles`` column tiles."""

    def __init__(self, exchange: Exchange, module: Sliced, h: Tensor, tiles: int) -> None:
        self._exchange, self._module, self._h, self._tiles = exchange, module, h, tiles
        with torch.no_grad():
            self._projected = [functional.linear(h, column.weight) for column in module.columns]
        for projected in self._projected:
            projected.requires_grad_(torch.is_grad_enabled())
        mixed = module.mix(*self._projected)
        self._partials: list[Tensor] = []
        self._flights: list[Flight] = []
        for rows in module.row.weight.chunk(tiles):
            partial = functional.linear(mixed, rows)
            self._flights.append(exchange.start(partial.detach()))
            self._partials.append(partial)

    def output(self) -> Tensor:
        """Wait for and return the output, summed over the group."""
        return torch.cat([flight.land() for flight in self._flights], dim=-1)

    def backward(self, gradient: Tensor) -> None:
        """Run the graph backward, and begin to sum the input's gradient tile by tile."""
        torch.autograd.backward(self._partials, list(gradient.chunk(self._tiles, dim=-1)))
        outer = [projected.grad.flatten(0, 1) for projected in self._projected]
        with torch.no_grad():
            for column, along in zip(self._module.columns, outer, strict=True):
                _accumulate(column.weight, along.T @ self._h.flatten(0, 1))
            # A generator: each tile's sum starts before the next tile is computed.
            self._flights = [self._exchange.start(tile) for tile in self._input_tiles(outer)]

    def _input_tiles(self, outer: list[Tensor]) -> Iterator[Tensor]:
        weights = [column.weight.chunk(self._tiles, dim=1) for column in self._module.columns]
        for tile in zip(*weights, strict=True):
            total = outer[0] @ tile[0]
            for along, weight in zip(outer[1:], tile[1:], strict=True):
                total.addmm_(along, weight)
            yield total

    def arrived(self) -> Tensor:
        """Wait for and return the input's gradient, summed over the group."""
        return torch.cat([flight.land() for flight in self._flights], dim=-1).view_as(self._h)


def _accumulate(weight: Tensor, gradient: Tensor) -> None:
    if weight.grad is None:
        weight.grad = gradient
    else:
        weight.grad += gradient


def tiled(module: Sliced, tiles: int) -> Start:
    """Return how to run a module in column tiles."""
    return lambda exchange, h: Tiled(exchange, module, h, tiles)
