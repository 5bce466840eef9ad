"""T3's overlap in software: the sum of a tile overlaps the computation of the next."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from densing.core import InputError
from densing.efficiency.parallel import Exchange, Flight, Schedule, Start


class Tiled(Schedule):
    """The sum of one tile of a product is under way while the next tile is computed: a stand-in for T3, not T3.

    T3 triggers the reduce-scatter's stages in hardware while the producing GEMM is still writing. Here, in software,
    the GEMM is cut into column tiles of its output, and the sum of a tile is under way while the next tile is computed:
    for the GEMMs T3 names, the row linear's output in forward and the column linears' input gradient in backward.

    Source: Pati et al., arXiv 2401.16677.

    Parameters
    ----------
    tiles : int

    Raises
    ------
    InputError
        When it is not a whole number from 1 up.
    """

    def __init__(self, tiles: int = 4) -> None:
        if not isinstance(tiles, int) or tiles < 1:
            raise InputError(f"tiles is {tiles!r}; give a whole number of at least 1")
        self.tiles = tiles

    def start(self, module: Any) -> Start:
        """Return what starts a module tile by tile."""
        return lambda exchange, h: TiledWork(exchange, module, h, self.tiles)


class Sliced(Protocol):
    """Column linears, something local, a row linear."""

    row: nn.Linear

    @property
    def columns(self) -> tuple[nn.Linear, ...]:
        """The linears that read the input."""

    def mix(self, *projected: Tensor) -> Tensor:
        """Return what the row linear reads."""


class TiledWork:
    """One run of a module in ``tiles`` column tiles (a ``Work`` of the tape)."""

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
            # Weight gradients first, so that no other GEMM hides the sums: T3's claim is about these two alone.
            for column, along in zip(self._module.columns, outer, strict=True):
                weight, gradient = column.weight, along.T @ self._h.flatten(0, 1)
                weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)
            self._flights = []
            # Each tile's sum starts before the next tile is computed.
            for tile in zip(*(column.weight.chunk(self._tiles, dim=1) for column in self._module.columns), strict=True):
                total = outer[0] @ tile[0]
                for along, part in zip(outer[1:], tile[1:], strict=True):
                    total.addmm_(along, part)
                self._flights.append(self._exchange.start(total))

    def arrived(self) -> Tensor:
        """Wait for and return the input's gradient, summed over the group."""
        return torch.cat([flight.land() for flight in self._flights], dim=-1).view_as(self._h)
