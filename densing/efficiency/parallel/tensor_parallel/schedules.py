"""In which order a rank runs its modules and adds their outputs: the schedules of tensor parallelism."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from densing.core import InputError
from densing.efficiency.parallel.distributed import Attention, Block, Wiring, sublayers
from densing.efficiency.parallel.tensor_parallel.tape import (
    Call,
    Exchange,
    Flight,
    Residual,
    Start,
    Tape,
    Undivided,
    undivided,
)


class Schedule:
    """Every sum over the group is waited for where it is started, as in Megatron-LM; the others are subclasses of it.

    Attributes
    ----------
    wiring : Wiring
        What the model's modules read.
    ladder_layers : int or None
        Of the wiring ``ladder``: the last so many layers; None: all.
    """

    wiring: Wiring = "standard"
    ladder_layers: int | None = None

    def parts(self, tokens: int) -> list[int]:
        """Return the tokens of each part of the sequence.

        Raises
        ------
        InputError
            When the sequence cannot be split.

        Examples
        --------
        >>> Interleaved(split=0.25).parts(8), Schedule().parts(8)
        ([2, 6], [8])
        """
        return [tokens]

    def start(self, module: Any) -> Start:
        """Return what starts a module, its sum with it."""
        return undivided(module)

    def run(self, tape: Tape, blocks: Iterable[Block], streams: list[Residual]) -> list[Residual]:
        """Run all blocks on the streams' beginnings (one per part of the sequence), and return the streams' ends."""
        return [in_order(tape, blocks, streams[0], self.start)]


class OneSum(Schedule):
    """Attention and MLP read the same input: one sum per layer."""

    wiring = "parallel-attention"


class Late(Schedule):
    """A module's sum is under way while the next module computes.

    Source: Zhang et al., arXiv 2501.06589.

    Parameters
    ----------
    ladder_layers : int, optional
        Only the last so many layers; None: all.
    """

    wiring = "ladder"

    def __init__(self, ladder_layers: int | None = None) -> None:
        self.ladder_layers = ladder_layers


class Interleaved(Schedule):
    """The sum of one part of the sequence is under way while the other part computes.

    Source: Xiao and Su, arXiv 2409.11155.

    Parameters
    ----------
    split : float
        The first part's share of the sequence, between 0 and 1.

    Raises
    ------
    InputError
        When it is outside.
    """

    def __init__(self, split: float = 0.5) -> None:
        if not isinstance(split, float) or not 0.0 < split < 1.0:
            raise InputError(f"split is {split!r}; give the first part's share, between 0 and 1")
        self.split = split

    def parts(self, tokens: int) -> list[int]:
        """Return the tokens of both parts; a sequence of one token is refused."""
        if tokens < 2:
            raise InputError("iso splits a sequence in two: it needs sequence=2 or more")
        first = min(max(round(self.split * tokens), 1), tokens - 1)
        return [first, tokens - first]

    def run(self, tape: Tape, blocks: Iterable[Block], streams: list[Residual]) -> list[Residual]:
        """Run all blocks, the parts in turn."""
        return interleaved(tape, blocks, streams)


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
        When it is no whole number from 1 up.
    """

    def __init__(self, tiles: int = 4) -> None:
        if not isinstance(tiles, int) or tiles < 1:
            raise InputError(f"tiles is {tiles!r}; give a whole number of at least 1")
        self.tiles = tiles

    def start(self, module: Any) -> Start:
        """Return what starts a module tile by tile."""
        return lambda exchange, h: TiledWork(exchange, module, h, self.tiles)


def in_order(tape: Tape, blocks: Iterable[Block], residual: Residual, start: Callable[[Any], Start]) -> Residual:
    """Run module after module; a ladder's output is added only after the module that follows it was started.

    Source: Zhang et al., arXiv 2501.06589, algorithm of the ladder block.
    """
    late: list[Call] = []
    for block in blocks:
        for norm, module in sublayers(block):
            if len(late) > 1:
                residual = tape.add(residual, late.pop(0))
            call = tape.call(norm, start(module), residual)
            if block.wiring == "ladder":
                late.append(call)
            else:
                residual = tape.add(residual, call)
    for call in late:
        residual = tape.add(residual, call)
    return residual


def interleaved(tape: Tape, blocks: Iterable[Block], streams: list[Residual]) -> list[Residual]:
    """Run every module on one part of the sequence after the other; a part's sum is under way while the other computes.

    Source: Xiao and Su, arXiv 2409.11155, the intra-sequence overlap.
    """
    late: list[Call | None] = [None] * len(streams)
    for block in blocks:
        memory = Memory(block.attention)
        for norm, start in ((block.attention_norm, memory.start), (block.mlp_norm, undivided(block.mlp))):
            for part, call in enumerate(late):
                streams[part] = tape.add(streams[part], call)
                late[part] = tape.call(norm, start, streams[part])
    return [tape.add(stream, call) for stream, call in zip(streams, late, strict=True)]


class Memory:
    """Keys and values of the sequence's parts that attention has seen; a later part attends to the earlier ones'."""

    def __init__(self, attention: Attention) -> None:
        self._attention = attention
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def start(self, exchange: Exchange, h: Tensor) -> Undivided:
        """Run attention on the next part."""
        attention = self._attention
        earlier = sum(keys.shape[2] for keys in self._keys)
        q, k, v = attention.split(attention.q(h), attention.k(h), attention.v(h), earlier)
        keys = torch.cat([*self._keys, k], dim=2) if self._keys else k
        values = torch.cat([*self._values, v], dim=2) if self._values else v
        mixed = attention.attend(q, keys, values)
        # Leaves of a later part's graph: what it adds to their gradients flows back when this part's turn comes.
        lent = [(tensor, tensor.detach().requires_grad_(tensor.requires_grad)) for tensor in (k, v)]
        self._keys.append(lent[0][1])
        self._values.append(lent[1][1])
        return Undivided(exchange, attention.row(mixed), h, lent)


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
