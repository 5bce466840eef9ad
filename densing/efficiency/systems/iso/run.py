"""ISO for real: the sum of one part of the sequence overlaps the computation of the other."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from densing.core import InputError
from densing.efficiency.parallel import Attention, Block, Call, Exchange, Residual, Schedule, Tape, Undivided, undivided


class Interleaved(Schedule):
    """The sum of one part of the sequence overlaps the computation of the other.

    Source: Xiao and Su, arXiv 2409.11155.

    Parameters
    ----------
    split : float
        The first part's share of the sequence, between 0 and 1.

    Raises
    ------
    InputError
        When it is outside.

    Examples
    --------
    >>> Interleaved(split=0.25).parts(8)
    [2, 6]
    """

    def __init__(self, split: float = 0.5) -> None:
        if not isinstance(split, float) or not 0.0 < split < 1.0:
            raise InputError(f"split is {split!r}; give the first part's share, between 0 and 1")
        self.split = split

    def parts(self, tokens: int) -> list[int]:
        """Return the tokens of both parts; a sequence of one token is refused."""
        if tokens < 2:
            raise InputError("iso splits a sequence in two and needs sequence=2 or more")
        first = min(max(round(self.split * tokens), 1), tokens - 1)
        return [first, tokens - first]

    def run(self, tape: Tape, blocks: Iterable[Block], streams: list[Residual]) -> list[Residual]:
        """Run all blocks, the parts in turn."""
        return interleaved(tape, blocks, streams)


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
